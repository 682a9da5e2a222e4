//! `cluster`: what starts the learner and the servers of a run, and where.

use tamis_core::{choice, settings};

choice! {
    /// What starts the processes of a run.
    pub enum LauncherKind {
        /// The run itself, on this machine: a learner of one process, and the servers of `rollout.launch`.
        None = "none",
        /// A launcher on this machine, which can start a learner of several ranks, one for each GPU.
        Local = "local",
        /// Ray: learner and servers are placed on the nodes of a cluster.
        Ray = "ray",
    }
}

settings! {
    /// What starts the learner and the servers of a run: the run itself, a launcher on this machine, or Ray.
    /// The launcher is a process beside the run (`python -m tamis.cluster`), and all that it started ends
    /// with it.
    pub struct ClusterConfig {
        /// Launcher of a learner in PyTorch and of the servers of `rollout.launch`. With `local` and `ray`
        /// learner and servers have GPUs of their own, unless `cluster.colocate` is on.
        launcher: LauncherKind = LauncherKind::None, Any, Free;
        /// Address of the Ray cluster (`ray://` is not taken: start the run on a node of it). `auto`: the one
        /// that `RAY_ADDRESS` names or that runs on this machine.
        address: String = "auto".to_owned(), NotEmpty, Free;
        /// Servers are started on the learner's GPUs, not on others. They share the memory in turns where
        /// they sleep while the policy learns (`rollout.sleep_level`).
        colocate: bool = false, Any, Free;
    }
}
