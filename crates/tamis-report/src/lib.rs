//! Offline tools over rollouts and runs.
//!
//! [`filter`] judges the groups of rollout files that anyone produced, with the filters a run uses;
//! [`rollouts`] shows what is in such a file; [`compare`] sets runs beside each other by their
//! `metrics.jsonl`.

pub mod compare;
pub mod filter;
pub mod rollouts;
