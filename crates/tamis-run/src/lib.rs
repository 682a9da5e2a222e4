//! Kernel: writes the files of a run, and reads them.
//!
//! [`directory`] names every file of a run and cuts them back to a checkpoint. [`durable`] writes files
//! that survive a crash, [`journal`] records that survive it one by one. [`metrics`] are the numbers of
//! a step and the catalogue of their names. [`log`] holds their destinations: `metrics.jsonl`,
//! TensorBoard, the console with `run.log`. Training writes through this crate, and reports read
//! through it; it depends on neither.

pub mod checksum;
pub mod directory;
pub mod durable;
pub mod journal;
pub mod log;
pub mod metrics;
