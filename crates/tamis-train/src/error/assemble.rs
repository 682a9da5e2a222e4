//! Why a part of a run cannot be built.

use tamis_core::advantage::AdvantageError;
use tamis_core::correction::CorrectionError;
use tamis_core::fault::Fault;
use tamis_core::faults;
use tamis_core::filter::{FilterError, MetricError};
use tamis_core::objective::ObjectiveError;
use tamis_core::schedule::ScheduleError;
use tamis_data::dataset::DatasetError;
use tamis_env::reward::RewardError;
use tamis_env::reward::settings::RELATIVE;
use tamis_env::task::TaskError;
use tamis_model::{CheckpointError, ConfigError};
use tamis_rollout::GeneratorError;
use tamis_run::durable::DiskError;
use thiserror::Error;

use crate::checkpoint::{ChecksumError, OTHER_ARCHITECTURE, is_other_architecture};
use crate::interrupt::Halt;
use crate::prompts::codec::CodecError;

/// A part of the run cannot be built.
#[derive(Debug, Error)]
pub enum AssembleError {
    /// A setting lacks what another one needs, or a file or a program cannot be used.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// A setting, known by its key, lacks what another one needs.
    #[error("{key}: {fault}")]
    At {
        /// The key.
        key: &'static str,
        /// What is wrong with it.
        fault: Fault,
    },
    /// Text cannot become tokens.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// A reward cannot be set up.
    #[error(transparent)]
    Reward(#[from] RewardError),
    /// No server of a judge or of a reward model answers.
    #[error(transparent)]
    Judge(GeneratorError),
    /// No server of a teacher answers.
    #[error(transparent)]
    Teacher(GeneratorError),
    /// The model's configuration is wrong.
    #[error(transparent)]
    ModelConfig(#[from] ConfigError),
    /// The model cannot be loaded.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The model is not what was saved.
    #[error(transparent)]
    Checksum(#[from] ChecksumError),
    /// The objective's settings are out of range.
    #[error(transparent)]
    Objective(#[from] ObjectiveError),
    /// The advantage's settings are out of range.
    #[error(transparent)]
    Advantage(#[from] AdvantageError),
    /// The correction's settings are out of range.
    #[error(transparent)]
    Correction(#[from] CorrectionError),
    /// The schedule's settings contradict themselves.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
}

faults!(AssembleError: DatasetError, MetricError, FilterError);

impl From<TaskError> for AssembleError {
    fn from(error: TaskError) -> Self {
        Self::Fault(error.fault)
    }
}

impl From<DiskError> for AssembleError {
    fn from(error: DiskError) -> Self {
        Self::Fault(error.into())
    }
}

impl AssembleError {
    pub(crate) fn setting(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Fault(Fault::new(message).with_hint(hint))
    }

    pub(crate) fn at(key: &'static str, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::At { key, fault: Fault::new(message).with_hint(hint) }
    }

    /// Separates an interruption from a failure: a reward function that no longer waits for its program was
    /// interrupted.
    pub fn halt(self) -> Halt<Self> {
        match self {
            Self::Reward(RewardError::Interrupted) => Halt::Interrupted,
            error => Halt::Failed(error),
        }
    }

    /// Whether a model has an architecture that the native engine does not know.
    pub fn is_other_architecture(&self) -> bool {
        match self {
            Self::ModelConfig(error) => matches!(error, ConfigError::Architecture { .. }),
            Self::Checkpoint(error) => is_other_architecture(error),
            _ => false,
        }
    }

    /// The fix, if more is known than the message contains.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            error if error.is_other_architecture() => Some(OTHER_ARCHITECTURE),
            Self::Fault(fault) | Self::At { fault, .. } => fault.hint(),
            Self::Checksum(error) => error.hint(),
            Self::Judge(_) => Some("start the server first, and name it in the `servers` of the reward"),
            Self::Teacher(_) => {
                Some("start the server first (`vllm serve TEACHER`), and name it in `servers` of the teacher")
            }
            Self::Codec(CodecError::TemplateFile { .. }) => {
                return Some(format!("set `model.chat_template`; {RELATIVE}"));
            }
            Self::Codec(CodecError::PromptTemplateFile { .. }) => {
                Some("`data.prompt_template` is taken from the folder in which tamis is started")
            }
            Self::Checkpoint(
                CheckpointError::Shape { .. }
                | CheckpointError::Missing { .. }
                | CheckpointError::Unexpected { .. },
            ) => Some("`config.json` and the weights are not of one model: take both from the same folder"),
            _ => None,
        };
        hint.map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};
    use std::path::Path;

    use super::*;
    use tamis_run::durable::DiskOperation;

    #[test]
    fn a_reward_program_that_cannot_be_written() {
        let path = Path::new("runs/tiny/tamis_reward.py");
        let error = DiskError::new(DiskOperation::Write, path, Error::from(ErrorKind::StorageFull));
        let error = AssembleError::from(error);
        insta::assert_snapshot!(error.to_string(), @"failed to write `runs/tiny/tamis_reward.py`");
        insta::assert_snapshot!(error.hint().unwrap_or_default(), @"no space is left there: free some and \
             continue with `--resume`, keep fewer checkpoints (`checkpoint.keep_last`), or name a folder on \
             another disk (`run.dir`); files written before are whole");
    }
}
