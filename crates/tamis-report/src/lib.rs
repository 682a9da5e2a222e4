//! Offline tools over rollouts and runs.
