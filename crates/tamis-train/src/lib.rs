//! The step loop, checkpoints, resume, validation.
