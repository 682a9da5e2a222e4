//! Why a run cannot begin or continue, and what to do about it.

use std::path::PathBuf;

use tamis_core::advantage::AdvantageError;
use tamis_core::objective::ObjectiveError;
use tamis_core::schedule::{ScheduleError, Unbalanced};
use tamis_data::sampler::PositionError;
use tamis_env::reward::RewardError;
use tamis_rollout::launch::LaunchError;
use tamis_rollout::{DispatchError, GeneratorError, MissingRewards, ScoreError};
use thiserror::Error;

use super::AssembleError;
use crate::checkpoint::SaveError;
use crate::interrupt::Halt;
use crate::learner::LearnerError;
use crate::learner::left_out::LeftOut;
use crate::learner::logits_hint;
use crate::learner::sft::SftError;
use crate::own_function::FunctionError;
use tamis_core::fault::Fault;
use tamis_core::figure::counted;
use tamis_core::{fault, faults};
use tamis_run::directory::RunDirectoryError;
use tamis_run::durable::{DiskError, space_hint};
use tamis_run::journal::JournalError;
use tamis_run::log::LoggerError;

/// A run cannot begin or continue.
#[derive(Debug, Error)]
pub enum RunError {
    /// A part of it cannot be built.
    #[error(transparent)]
    Assemble(#[from] AssembleError),
    /// The run directory.
    #[error("failed to {0}")]
    Directory(#[from] RunDirectoryError),
    /// A checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] SaveError),
    /// Generation, scoring or filtering.
    #[error(transparent)]
    Dispatch(DispatchError),
    /// Servers that do not answer, or a fleet that broke down.
    #[error(transparent)]
    Servers(GeneratorError),
    /// Servers that the run is to start itself.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// Learning.
    #[error(transparent)]
    Learner(LearnerError),
    /// A teacher at servers gave no log-probabilities.
    #[error("{message}")]
    Teacher {
        /// The message.
        message: String,
    },
    /// The learner was lost repeatedly.
    #[error(
        "the learner was lost {} in a row after step {step}, so the run ends:{}",
        counted(reasons.len(), "time"), describe_losses(reasons)
    )]
    LostAgain {
        /// The last finished step.
        step: u64,
        /// The message of each loss.
        reasons: Vec<String>,
        /// The last loss.
        last: Box<RunError>,
    },
    /// Supervised fine-tuning.
    #[error(transparent)]
    Sft(SftError),
    /// Gold answers are missing, or a verifier rejects them.
    #[error("{message}")]
    Gold {
        /// The rows, with examples.
        message: String,
        /// The fix.
        hint: String,
    },
    /// The estimate of the memory is above what there is.
    #[error("the run needs about {needed} of memory, {limit} is available:\n{breakdown}")]
    Memory {
        /// Estimate.
        needed: String,
        /// Limit.
        limit: String,
        /// Memory of each part.
        breakdown: String,
        /// The settings to change.
        remedy: String,
    },
    /// The plan of the run cannot be carried out on these machines.
    #[error("{message}")]
    Plan {
        /// What does not fit, with the numbers; a line for each.
        message: String,
        /// The settings to change.
        hint: String,
    },
    /// The resumed run differs from the one that was begun.
    #[error("the run in {run} cannot be resumed with this configuration:\n{differences}")]
    Mismatch {
        /// The run directory.
        run: PathBuf,
        /// Keys with both values.
        differences: String,
        /// The fix.
        hint: String,
    },
    /// The checkpoints of the run to be resumed are missing.
    #[error(
        "the run in {} cannot be resumed: it was saved before{}, and no checkpoint is left in {}",
        run.display(), upto(*last_step), run.join("checkpoints").display()
    )]
    CheckpointsGone {
        /// The run directory.
        run: PathBuf,
        /// The last step of its metrics.
        last_step: Option<u64>,
    },
    /// The reference policy of the run to be resumed is missing.
    #[error("the run cannot be resumed: its reference policy {} is gone", path.display())]
    ReferenceGone {
        /// Path of the reference policy.
        path: PathBuf,
    },
    /// A reward function fails on everything, or no completion has a reward.
    #[error(
        "{}{}, up to step {step}: the run does not learn; the first: {}",
        as_before(*is_old), describe_missing(missing, key.as_deref()), missing.first.trim_start()
    )]
    MissingRewards {
        /// The missing rewards.
        missing: Box<MissingRewards>,
        /// The function's configuration key, if it has one.
        key: Option<String>,
        /// The step of the last round without a reward.
        step: u64,
        /// The run directory.
        run: PathBuf,
        /// How a command that trains the run begins ([`tamis_config::Config::train_command`]).
        train: String,
        /// How to train further, if no step is left.
        further: Option<String>,
        /// Whether an earlier process found it, and this one had no step to train.
        is_old: bool,
    },
    /// Several steps in a row made no update.
    #[error(
        "{}the {} up to step {step} made no update of the policy{}: the run does not learn",
        as_before(*is_old), counted(steps, "step"), because(*reason)
    )]
    NothingTrained {
        /// Number of steps in a row.
        steps: u64,
        /// The last of them.
        step: u64,
        /// Why the first trajectory of the last one has no loss.
        reason: Option<LeftOut>,
        /// The run directory.
        run: PathBuf,
        /// How to train further, if no step is left.
        further: Option<String>,
        /// Whether an earlier process found it, and this one had no step to train.
        is_old: bool,
    },
    /// The journal of external answers is damaged in a part that a checkpoint needs.
    #[error("the run cannot be resumed: failed to {source}")]
    JournalDamaged {
        /// The fault.
        source: JournalError,
        /// The newest checkpoint that does not need the damaged part, if there is one.
        usable: Option<PathBuf>,
    },
    /// Any other failure. None of these is a mistake in the configuration.
    #[error(transparent)]
    Fault(Fault),
}

faults!(RunError: AdvantageError, ObjectiveError, ScheduleError, PositionError);

impl From<DiskError> for RunError {
    fn from(error: DiskError) -> Self {
        Self::Fault(error.into())
    }
}

impl From<JournalError> for RunError {
    fn from(error: JournalError) -> Self {
        let (message, hint) = (format!("failed to {error}"), error.hint());
        Self::Fault(Fault::new(message).with_known_hint(hint).with_source(error))
    }
}

impl From<LoggerError> for RunError {
    fn from(error: LoggerError) -> Self {
        let hint = error.hint();
        Self::Fault(fault!("failed to {error}").with_known_hint(hint).with_source(error))
    }
}

impl From<FunctionError> for RunError {
    fn from(error: FunctionError) -> Self {
        Self::Fault(error.into())
    }
}

/// Groups were lost or counted twice. This is a bug of tamis.
impl From<Unbalanced> for RunError {
    fn from(error: Unbalanced) -> Self {
        Self::Fault(Fault::new("the accounting of groups does not balance").with_source(error))
    }
}

impl<S> From<S> for Halt<RunError>
where
    RunError: From<S>,
{
    fn from(source: S) -> Self {
        Self::Failed(source.into())
    }
}

impl From<Fault> for RunError {
    fn from(fault: Fault) -> Self {
        Self::Assemble(fault.into())
    }
}

impl From<LearnerError> for RunError {
    fn from(error: LearnerError) -> Self {
        match error {
            LearnerError::Files(error) => Self::Checkpoint(error),
            error => Self::Learner(error),
        }
    }
}

impl From<GeneratorError> for RunError {
    fn from(error: GeneratorError) -> Self {
        match error {
            GeneratorError::Learner(source) => match source.downcast::<LearnerError>() {
                Ok(error) => (*error).into(),
                Err(source) => Self::Servers(GeneratorError::Learner(source)),
            },
            error => Self::Servers(error),
        }
    }
}

impl From<SftError> for RunError {
    fn from(error: SftError) -> Self {
        match error {
            SftError::Learner(error) => error.into(),
            error => Self::Sft(error),
        }
    }
}

impl From<Halt<FunctionError>> for Halt<RunError> {
    fn from(halt: Halt<FunctionError>) -> Self {
        halt.map(RunError::from)
    }
}

impl From<Halt<LearnerError>> for Halt<RunError> {
    fn from(halt: Halt<LearnerError>) -> Self {
        halt.map(RunError::from)
    }
}

impl From<Halt<DispatchError>> for Halt<RunError> {
    fn from(halt: Halt<DispatchError>) -> Self {
        match halt {
            Halt::Interrupted => Self::Interrupted,
            Halt::Failed(error) => error.into(),
        }
    }
}

impl From<DispatchError> for Halt<RunError> {
    fn from(error: DispatchError) -> Self {
        match error {
            DispatchError::Generator(
                lost @ (GeneratorError::Unreachable { .. } | GeneratorError::Learner(_)),
            ) => Self::Failed(lost.into()),
            // A lost learner is reported as lost, whatever call failed.
            DispatchError::Reference { source } => match source.downcast() {
                Ok(error) if matches!(*error, RunError::Learner(LearnerError::Lost { .. })) => {
                    Self::Failed(*error)
                }
                Ok(error) => Self::Failed(RunError::Dispatch(DispatchError::Reference { source: error })),
                Err(source) => Self::Failed(RunError::Dispatch(DispatchError::Reference { source })),
            },
            error => Self::Failed(RunError::Dispatch(error)),
        }
    }
}

/// The first line of each loss, and everything about the last one.
fn describe_losses(reasons: &[String]) -> String {
    let describe = |(place, reason): (usize, &String)| {
        let whole = reason.replace('\n', "\n     ");
        let shown = if place + 1 == reasons.len() { &*whole } else { reason.lines().next().unwrap_or("") };
        format!("\n  {}. {shown}", place + 1)
    };
    reasons.iter().enumerate().map(describe).collect()
}

fn upto(last_step: Option<u64>) -> String {
    last_step.map_or_else(String::new, |step| format!(" (metrics.jsonl goes up to step {step})"))
}

fn describe_missing(missing: &MissingRewards, key: Option<&str>) -> String {
    let rounds = match missing.num_rounds {
        1 => "the only round".to_owned(),
        rounds => format!("{rounds} rounds in a row"),
    };
    let given = missing
        .part
        .as_ref()
        .map_or_else(String::new, |part| format!(" that its `sources` entry `{part}` scores,"));
    match (&missing.function, key) {
        (Some(name), Some(key)) => {
            format!("reward `{name}` ({key}) failed on every completion{given} of {rounds}")
        }
        (Some(name), None) => format!("reward `{name}` failed on every completion{given} of {rounds}"),
        (None, _) if missing.is_shaped => {
            format!("no completion of {rounds} had a score from a reward function other than shaping")
        }
        (None, _) => format!("no completion of {rounds} had a reward"),
    }
}

fn as_before(is_old: bool) -> &'static str {
    if is_old { "no step was left to train, and as before: " } else { "" }
}

fn because(reason: Option<LeftOut>) -> String {
    reason.map_or_else(String::new, |reason| format!(" (their trajectories bear no loss: {})", reason.name()))
}

impl RunError {
    /// Whether no server answers any more. They may come back, and a resume continues.
    pub(crate) fn is_lost_fleet(&self) -> bool {
        matches!(self, Self::Servers(GeneratorError::Unreachable { .. }))
    }

    /// The sample whose next token could not be drawn because the logits were not finite.
    pub(crate) fn not_finite_sample(&self) -> Option<String> {
        match self {
            Self::Dispatch(DispatchError::Generator(GeneratorError::NotFinite { id, token }))
            | Self::Servers(GeneratorError::NotFinite { id, token }) => Some(format!("{id}, token {token}")),
            Self::Learner(LearnerError::LogitsNotFinite) => Some("a sample".to_owned()),
            _ => None,
        }
    }

    /// The fix, if one is known.
    pub fn hint(&self) -> Option<String> {
        self.own_hint().or_else(|| space_hint(self).map(str::to_owned))
    }

    fn own_hint(&self) -> Option<String> {
        match self {
            Self::Launch(LaunchError::Start { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Some(
                "install the server on this machine, name its program in rollout.launch.command, name servers that are running in \
                 rollout.servers, or sample in this process (`rollout.backend=native`)"
                    .to_owned(),
            ),
            Self::Launch(LaunchError::Refused { hint, .. }) => hint.clone(),
            Self::Launch(_) => Some(
                "fix what its output says (rollout.launch.args are its arguments, rollout.launch.startup_timeout \
                 how long it may take), name servers that \
                 are running in rollout.servers, or sample in this process (`rollout.backend=native`)"
                    .to_owned(),
            ),
            Self::Servers(GeneratorError::Unreachable { .. }) => Some(
                "start the servers (`tamis serve CHECKPOINT`, or vLLM with VLLM_SERVER_DEV_MODE=1), and \
                 name them in rollout.servers; if the run had begun, continue it with --resume".to_owned(),
            ),
            Self::Dispatch(DispatchError::Generator(GeneratorError::Refused { .. })) => {
                Some("change that in the program of environment.argv, or in the client that it uses".to_owned())
            }
            Self::Dispatch(DispatchError::Generator(GeneratorError::Environment { .. })) => Some(
                "fix what it reports, or allow more restarts (environment.max_restarts); if the run had begun, continue it with --resume"
                    .to_owned(),
            ),
            Self::Teacher { .. } => Some(
                "check that the servers of `teacher` answer; the run goes on with --resume, and asks nothing twice"
                    .to_owned(),
            ),
            Self::Learner(error) => error.hint(),
            Self::LostAgain { reasons, last, .. } => {
                let is_same = reasons.windows(2).all(|pair| pair[0] == pair[1]);
                let cause = if is_same {
                    "it fails in the same way every time, so another start will not help"
                } else {
                    "learner.max_restarts sets how often this is tried"
                };
                Some(last.hint().map_or_else(|| cause.to_owned(), |hint| format!("{cause}; {hint}")))
            }
            Self::Assemble(error) => error.hint(),
            Self::Fault(fault) => fault.hint().map(str::to_owned),
            Self::Directory(error) => error.hint(),
            Self::Sft(error) => error.hint().map(str::to_owned),
            Self::Checkpoint(error) => error.hint(),
            Self::Memory { remedy, .. } => Some(remedy.clone()),
            Self::Gold { hint, .. } | Self::Plan { hint, .. } | Self::Mismatch { hint, .. } => {
                Some(hint.clone())
            }
            Self::CheckpointsGone { .. } => Some(
                "nothing was changed: put the checkpoints back where they were, or begin a new run (`tamis train` with another run.name)"
                    .to_owned(),
            ),
            Self::ReferenceGone { .. } => Some(
                "nothing was trained: put the folder back where it was, or begin a new run; model.reference \
                     names one of its own".to_owned(),
            ),
            error if error.not_finite_sample().is_some() => Some(logits_hint(None, None)),
            Self::MissingRewards { missing, run, train, further, .. } => {
                let cause = match (&missing.hint, &missing.function) {
                    (Some(hint), _) => hint,
                    (None, Some(_)) => "fix the function",
                    (None, None) => "check the inputs and the results of the reward functions",
                };
                Some(match further {
                    Some(further) => format!("{cause}; no step of this run is left: {further}"),
                    None => format!(
                        "{cause}; then `{train} --resume {}` continues after the last trained step, and asks again",
                        run.display()
                    ),
                })
            }
            Self::NothingTrained { reason, run, further, .. } => {
                let cause = reason.map_or("look at the warnings of its steps", LeftOut::remedy);
                Some(match further {
                    Some(further) => format!("{cause}; no step of this run is left: {further}"),
                    None => format!("{cause}; the run is in {}", run.display()),
                })
            }
            Self::Dispatch(DispatchError::Score(ScoreError::Reward(RewardError::BrokenDown { .. }))) => Some(
                "fix the program, then continue with `tamis train --resume` and the run's directory: \
                     nothing that was answered is asked again"
                    .to_owned(),
            ),
            Self::JournalDamaged {
                source: source @ (JournalError::Damaged { .. } | JournalError::Unreadable { .. }),
                ..
            } => source.hint(),
            Self::JournalDamaged { usable: Some(checkpoint), .. } => Some(format!(
                "restore the file, or move the checkpoints after {} elsewhere: the run then resumes from that one",
                checkpoint.display()
            )),
            Self::JournalDamaged { usable: None, .. } => Some(
                "journal.bin holds the answers of your reward program, and without it no checkpoint can be \
                 continued: put the file back as it was, or \
                 begin a new run".to_owned(),
            ),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};
    use std::path::Path;

    use tamis_rollout::AnswerJournalError;
    use tamis_run::durable::DiskOperation;

    use super::*;

    #[test]
    fn a_full_disk_has_a_hint_wherever_it_is_met() {
        let disk =
            |kind: ErrorKind| DiskError::new(DiskOperation::Write, Path::new("runs/a/x"), Error::from(kind));
        let of_answers = |kind| {
            let error = AnswerJournalError(Box::new(JournalError::from(disk(kind))));
            RunError::Dispatch(DispatchError::Score(error.into()))
        };
        let of_metrics = |kind| RunError::from(LoggerError { logger: "jsonl", step: 7, cause: disk(kind) });
        let of_rollouts =
            |kind| RunError::Fault(fault!("failed to write rollouts").with_source(Error::from(kind)));
        for made in [&of_answers as &dyn Fn(ErrorKind) -> RunError, &of_metrics, &of_rollouts, &|kind| {
            disk(kind).into()
        }] {
            let hint = made(ErrorKind::StorageFull).hint().unwrap_or_default();
            for part in
                ["free some and continue with `--resume`", "`run.dir`", "files written before are whole"]
            {
                assert!(hint.contains(part), "{hint}");
            }
            assert_eq!(made(ErrorKind::TimedOut).hint(), None);
        }
    }
}
