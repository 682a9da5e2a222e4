//! `publish`: how new weights reach the servers that sample.

use std::path::PathBuf;

use tamis_core::schedule::InFlight;
use tamis_core::setting::TimeSpan;
use tamis_core::{choice, settings};

choice! {
    /// How a server shows that it holds new weights.
    pub enum PublishVerify {
        /// The server reports log-probabilities of a known text; their mean difference from the learner's is
        /// at most 0.1 nats.
        Probe = "probe",
        /// Not checked: the server's word that it has loaded them is trusted.
        Off = "off",
    }
}

choice! {
    /// What servers are given as new weights.
    pub enum PublishMode {
        /// The whole weights, in a folder that they read.
        Folder = "folder",
        /// The adapter alone (LoRA), in a folder that they read: vLLM puts it onto the model that it was
        /// started with, the one that the run began with.
        Adapter = "adapter",
        /// Where the weights are in the memory of the GPU that PyTorch and vLLM share (CUDA IPC): vLLM copies
        /// them there, and no file is written.
        Ipc = "ipc",
        /// The whole weights, sent from the learner's GPU to each vLLM server over a communicator of their
        /// own (NCCL), on one machine or several; a folder where that fails.
        Nccl = "nccl",
    }
}

settings! {
    /// How new weights reach the servers that sample: as folders of `.safetensors` files that they read.
    pub struct PublishConfig {
        /// Weights that servers are given. Null: `adapter` where an adapter learns (`learner.lora`) and the
        /// run starts vLLM itself (`rollout.launch`, without a command of your own), otherwise `folder`.
        mode: Option<PublishMode> = None, Any, Free;
        /// Folder that servers read too (a shared file system): weights are written to `NAME/version_N` in
        /// it, NAME being that of the run folder and a hash of its path. Null: `published` in the run folder,
        /// with `version_N` in it.
        dir: Option<PathBuf> = None, NotEmpty, Free;
        /// Path of `publish.dir` as the servers see it (in a container, on another machine). Null: the same
        /// path.
        server_dir: Option<String> = None, NotEmpty, Free;
        /// Longest time with `publish.mode: nccl` until the workers of a server have met the learner, and
        /// until they have the weights; the communicator is given up then, and the server is given a folder.
        timeout: TimeSpan = TimeSpan::seconds(300), Any, Free;
        /// Versions that stay on disk, the newest included.
        keep: usize = 2, AtLeast(2.0), Free;
        /// Treatment of samples in flight when weights are published (there are some only with
        /// `schedule.surplus: carry`). Null: `keep` with `schedule.mode: streaming` and where a learner in
        /// another process samples (`rollout.backend: learner`), otherwise `wait`.
        pause: Option<InFlight> = None;
        /// How a server shows that it holds the new weights before it is used.
        verify: PublishVerify = PublishVerify::Probe, Any, Free;
    }
}
