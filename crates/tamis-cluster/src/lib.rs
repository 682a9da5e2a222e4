//! A satellite: learners and servers on other machines, and the resources of a run. [`Cluster`] is the
//! kernel's [`Launcher`](tamis_train::launcher::Launcher) for `cluster.launcher: local` and `ray`. [`plan`]
//! computes which machines and memory a run needs, and [`doctor`] reports what is there.

mod cluster;
pub mod doctor;
mod launcher;
pub mod plan;
mod role;

pub use cluster::Cluster;
