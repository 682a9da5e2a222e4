//! A satellite: learners and servers on other machines, and what a run needs of machines.
//! [`Cluster`] is the kernel's [`Launcher`](tamis_train::launcher::Launcher) for `cluster.launcher: local`
//! and `ray`; [`plan`] says what a run needs of which machines, and [`doctor`] what is there.

mod cluster;
pub mod doctor;
mod launcher;
pub mod plan;
mod role;

pub use cluster::Cluster;
