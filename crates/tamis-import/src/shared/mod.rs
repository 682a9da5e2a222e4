//! Translations that several systems share.

pub(super) mod advantage;
pub(super) mod critic;
pub(super) mod kl;
pub(super) mod learner;
pub(super) mod learning_rate;
pub(super) mod reward;
pub(super) mod run;
pub(super) mod servers;
