//! Hand-computed updates of a critic.
