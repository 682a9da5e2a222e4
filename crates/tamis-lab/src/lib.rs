//! A satellite, the laboratory: everything that reads run folders and rollout files, and everything that
//! plans runs before they start. It uses what the kernel publishes (configuration, run folder, rollout files,
//! the scheduler) and starts `tamis train` as a process. It never looks inside the trainer.
//!
//! | command | module | what it does |
//! |---|---|---|
//! | `tamis filter` | [`filter`] | judges the groups of rollout files, from any program, with the filters of a run |
//! | `tamis rollouts` | [`rollouts`] | prints what is in a rollout file |
//! | `tamis advise` | [`advise`] | recommends settings from rollouts, a run or a log, with their cost |
//! | `tamis simulate` | [`simulate`] | runs schedules on a virtual clock, before anybody rents a GPU |
//! | `tamis monitor` | [`monitor`] | follows a run or a log while it grows, in a terminal or as text |
//! | `tamis report` | [`report`] | writes one HTML page about one or more runs |
//! | `tamis sweep` | [`sweep`] | runs a grid of configurations, each as its own process |
//! | `tamis sweep --compare` | [`compare`] | compares runs by their `metrics.jsonl` |
//!
//! It also reads runs of TRL, verl, verifiers and prime-rl: `other_runs` converts them to run folders.
//! [`cost`] is the cost model of `advise` and `simulate`. [`chart`] draws for the pages of [`report`],
//! [`compare`] and [`simulate`], and `html` frames them.

pub mod advise;
pub mod chart;
pub mod compare;
pub mod cost;
mod fault;
pub mod filter;
mod html;
pub mod monitor;
mod names;
mod other_runs;
mod repeats;
pub mod report;
pub mod rollouts;
pub mod simulate;
pub mod sweep;

pub use fault::{Fault, FaultKind};
