//! `publish`: how new weights reach the servers that sample.

use std::path::PathBuf;

use crate::define::{choice, section};

choice! {
    /// What becomes of samples in flight while servers take new weights in.
    pub enum PublishPause {
        /// They are finished first, with the weights that they began with; nothing new begins meanwhile.
        Wait = "wait",
        /// They are halted and go on with the new weights: each token knows which weights sampled it.
        Keep = "keep",
        /// They are given up, and sampled anew.
        Abort = "abort",
    }
}

choice! {
    /// How a server shows that it holds new weights.
    pub enum PublishVerify {
        /// By what it says of a known text: a mean difference of at most 0.1 nats from what the learner says.
        Probe = "probe",
        /// Not at all: it says that it has loaded them.
        Off = "off",
    }
}

section! {
    /// How new weights reach the servers that sample: as folders of `.safetensors` files that they read.
    pub struct PublishConfig {
        /// Folder that servers read too (a shared file system): weights are written to `NAME/version_N` in it, NAME being that of the run folder and a hash of its path.
        /// Null: `published` in the run folder, with `version_N` in it.
        dir: Option<PathBuf> = "null", NotEmpty, Free;
        /// What that folder is called at the servers, where they see it under another path (a container, another machine). Null: the same.
        server_dir: Option<String> = "null", NotEmpty, Free;
        /// Versions that stay on disk, the newest included.
        keep: usize = "2", AtLeast(2.0), Free;
        /// What becomes of samples in flight, which there are at a publication with `schedule.surplus: carry` alone. Null: `keep` with
        /// `schedule.mode: streaming`, else `wait`.
        pause: Option<PublishPause> = "null", Any, Fixed;
        /// How a server shows that it holds the new weights before it is used.
        verify: PublishVerify = "probe", Any, Free;
    }
}
