//! The purpose of a check decides what is read.

use std::path::Path;

use tamis_config::Config;

/// The command that a configuration is checked for. Only the keys that it reads are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckPurpose<'p> {
    /// A new run.
    Begin,
    /// Continuing a run, from this checkpoint if there is one. Policy, tokenizer and critic are then the
    /// checkpoint's.
    Resume(Option<&'p Path>),
    /// Measuring `model.path` on the validation prompts.
    Evaluate,
}

impl CheckPurpose<'_> {
    /// Whether training data is read. An evaluation reads it only if its prompts are held out from it.
    pub(super) fn reads_train(self, config: &Config) -> bool {
        self != Self::Evaluate || config.holds_out()
    }

    /// Whether the folder of `model.path`, or `model.init`, is read.
    pub(super) fn reads_model(self) -> bool {
        !matches!(self, Self::Resume(Some(_)))
    }
}
