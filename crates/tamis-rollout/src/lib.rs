//! The Generator trait and the shell that drives a scheduler.
