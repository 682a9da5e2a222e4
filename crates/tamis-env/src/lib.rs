//! Tasks, rewards and verifiers.
