//! Offline tools over rollouts and runs.
//!
//! [`filter`] judges the groups of rollout files that anyone produced, with the filters a run uses;
//! [`rollouts`] shows what is in such a file.

pub mod filter;
pub mod rollouts;
