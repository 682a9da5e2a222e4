//! `publish`: how new weights reach the servers that sample.

use std::path::PathBuf;

use tamis_core::schedule::InFlight;
use tamis_core::setting::TimeSpan;
use tamis_core::{choice, settings};

choice! {
    /// How a server shows that it holds new weights.
    pub enum PublishVerify {
        /// The server returns the log-probabilities of a known text. Their mean difference from the learner's
        /// must be at most 0.1 nats.
        Probe = "probe",
        /// Not checked: a server that reports that it has loaded them is trusted.
        Off = "off",
    }
}

choice! {
    /// How servers get new weights.
    pub enum PublishMode {
        /// All weights, in a folder that they read.
        Folder = "folder",
        /// Only the adapter (LoRA), in a folder that they read. vLLM applies it to the model that it was
        /// started with, which is the one that the run began with.
        Adapter = "adapter",
        /// Addresses of the weights in the memory of the GPU that PyTorch and vLLM share (CUDA IPC). vLLM
        /// copies them within the GPU; no file is written.
        Ipc = "ipc",
        /// All weights, sent from the learner's GPU to each vLLM server over a separate NCCL communicator, on
        /// one machine or several. If that fails, a folder is used.
        Nccl = "nccl",
    }
}

settings! {
    /// How new weights reach the servers that sample completions. By default they are folders of
    /// `.safetensors` files that servers read.
    pub struct PublishConfig {
        /// How servers get new weights. Null: `adapter` if an adapter learns (`learner.lora`) and the run
        /// starts vLLM itself (`rollout.launch` without `command`), otherwise `folder`. Never `adapter` if
        /// the weights below it are in 4 bits, because servers have the original ones.
        mode: Option<PublishMode> = None, Any, Free;
        /// Folder that servers can read too (a shared file system). Weights are written to `NAME/version_N`
        /// in it; NAME is the name of the run folder with a hash of its path. Null: `published/version_N` in
        /// the run folder.
        dir: Option<PathBuf> = None, NotEmpty, Free;
        /// Path of `publish.dir` as the servers see it (in a container, on another machine). Null: the same
        /// path.
        server_dir: Option<String> = None, NotEmpty, Free;
        /// Longest time, with `publish.mode: nccl`, until the workers of a server are connected to the
        /// learner, and until they have the weights. After that the communicator is closed, and the server
        /// reads a folder instead.
        timeout: TimeSpan = TimeSpan::seconds(300), Any, Free;
        /// Number of versions that stay on disk, including the newest.
        keep: usize = 2, AtLeast(2.0), Free;
        /// Action for samples in flight when weights are published (there are some only with
        /// `schedule.surplus: carry`). Null: `keep` with `schedule.mode: streaming`, and if a learner in
        /// another process samples (`rollout.backend: learner`); otherwise `wait`.
        pause: Option<InFlight> = None;
        /// How a server shows that it holds the new weights before it is used.
        verify: PublishVerify = PublishVerify::Probe, Any, Free;
    }
}
