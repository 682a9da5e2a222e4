//! Offline tools over rollouts and runs.
//!
//! [`filter`] judges the groups of rollout files that anyone produced, with the filters a run uses;
//! [`rollouts`] shows what is in such a file; [`compare`] sets runs beside each other by their
//! `metrics.jsonl`; [`monitor`] follows a run, or the log of anyone's, while it is at work; [`page`] tells
//! everything about one run or several in one HTML file, with the [charts](chart) that both draw.

pub mod chart;
pub mod compare;
pub mod filter;
pub mod html;
pub mod monitor;
mod names;
pub mod page;
pub mod rollouts;
