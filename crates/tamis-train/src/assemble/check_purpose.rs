//! The purpose of a check: what is read for it.

use std::path::Path;

use tamis_config::Config;

/// The command that a configuration is checked for: only the keys that it reads are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckPurpose<'p> {
    /// A new run.
    Begin,
    /// Going on with a run, from this checkpoint where there is one: policy, tokenizer and critic are then
    /// the checkpoint's.
    Resume(Option<&'p Path>),
    /// Measuring `model.path` on the validation prompts.
    Evaluate,
}

impl CheckPurpose<'_> {
    /// Whether training data is read: for an evaluation if that is where its prompts are held out.
    pub(super) fn reads_train(self, config: &Config) -> bool {
        self != Self::Evaluate || config.holds_out()
    }

    /// Whether the folder of `model.path`, or `model.init`, is read.
    pub(super) fn reads_model(self) -> bool {
        !matches!(self, Self::Resume(Some(_)))
    }
}
