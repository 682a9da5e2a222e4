//! `cluster`: what starts the learner and the servers of a run, and where.

use tamis_core::{choice, settings};

choice! {
    /// What starts the processes of a run.
    pub enum LauncherKind {
        /// The run itself, on this machine: a learner of one process, and the servers of `rollout.launch`.
        None = "none",
        /// A launcher on this machine. It can start a learner of several ranks, one for each GPU.
        Local = "local",
        /// Ray: learner and servers are placed on the nodes of a cluster.
        Ray = "ray",
    }
}

settings! {
    /// What starts the learner and the servers of a run: the run itself, a launcher on this machine, or Ray.
    /// The launcher is a separate process (`python -m tamis.cluster`). Everything that it started ends with
    /// it.
    pub struct ClusterConfig {
        /// Launcher of a PyTorch learner and of the servers of `rollout.launch`. With `local` and `ray`,
        /// learner and servers use different GPUs, unless `cluster.colocate` is true.
        launcher: LauncherKind = LauncherKind::None, Any, Free;
        /// Address of the Ray cluster. `ray://` is refused: start the run on a node of the cluster. `auto`:
        /// the cluster of `RAY_ADDRESS`, or the one that runs on this machine.
        address: String = "auto".to_owned(), NotEmpty, Free;
        /// Start servers on the learner's GPUs instead of on others. They take turns with the memory if they
        /// sleep while the policy learns (`rollout.sleep_level`).
        colocate: bool = false, Any, Free;
    }
}
