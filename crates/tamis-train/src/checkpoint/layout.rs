//! Names of the files of a checkpoint.

/// Folder of the weights that a resume reads, if those for other programs are saved in fewer bits.
pub(crate) const MASTER: &str = "master";
/// Folder of the critic: its weights in full precision, because nothing else reads them, and its moments.
pub(crate) const CRITIC: &str = "critic";
pub(crate) const OPTIMIZER: &str = "optimizer.safetensors";
pub(super) const STATE: &str = "state.json";
