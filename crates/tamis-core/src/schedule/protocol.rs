//! The protocol of the scheduling machine: events in, commands out.
//!
//! The driver generates, scores and trains, and reports each result as an [`Event`]. The machine answers with
//! [`Command`]s. It has no clock, and its draws are keyed, so the same events give the same commands.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{Diagnosis, GroupFacts, RoundReport, SettingsError, SkipReason, Spent, StepReport, Unbalanced};
use crate::fault::Fault;
use crate::faults;
use crate::filter::Verdict;
use crate::group::{GroupId, PolicyVersion};

/// NaN as `null`, because JSON has no NaN.
mod nan_as_null {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(values: &[f64], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(values.iter().map(|value| (!value.is_nan()).then_some(*value)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f64>, D::Error> {
        let values: Vec<Option<f64>> = Vec::deserialize(deserializer)?;
        Ok(values.into_iter().map(|value| value.unwrap_or(f64::NAN)).collect())
    }
}

/// An event that the driver reports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The driver is ready for the next step: at the start, and after a step was trained or skipped.
    BeginStep,
    /// Answer to [`Command::Draw`]: the groups started, in dispatch order.
    Dispatched {
        /// As many as requested, or fewer if the epoch ended; ids are greater than all earlier ones. With
        /// `mode: deficit` and one round in flight a driver may begin fewer, at least one: these are then the
        /// whole round.
        groups: Vec<GroupId>,
        /// The policy version that samples them.
        version: PolicyVersion,
        /// Whether the epoch has no prompt left.
        exhausted: bool,
    },
    /// A member of a group was scored and others are still to come. Only a streaming schedule uses this.
    Sampled {
        /// The group.
        group: GroupId,
        /// The filter's metric of the member; `None` if it has none.
        value: Option<f64>,
    },
    /// The first members of a group were scored, and the group was begun with only these
    /// ([`screen_first`](super::ScheduleSettings::screen_first)). The answer is [`Command::Continue`], or
    /// [`Command::Judged`], which ends the group. If the others were already begun, it adds nothing.
    Screened {
        /// The group.
        group: GroupId,
        /// The filter's metric of each of them \[n₀\]; NaN if it has none.
        #[serde(with = "nan_as_null")]
        values: Vec<f64>,
        /// Other facts about them.
        facts: GroupFacts,
    },
    /// A group is complete and all its members were scored.
    Scored {
        /// The group.
        group: GroupId,
        /// The filter's metric of each member \[n\]; NaN if it has none.
        #[serde(with = "nan_as_null")]
        values: Vec<f64>,
        /// Other facts about the group.
        facts: GroupFacts,
    },
    /// A member's generation failed for good; its group fails with it.
    Failed {
        /// The group.
        group: GroupId,
        /// Amount generated for it.
        #[serde(flatten)]
        spent: Spent,
    },
    /// A group that was to be aborted has stopped.
    Aborted {
        /// The group.
        group: GroupId,
        /// Amount generated for it.
        #[serde(flatten)]
        spent: Spent,
    },
    /// The step was trained.
    Trained {
        /// Members of the step's groups that had no loss; they count as left out instead of trained.
        #[serde(default)]
        left_out: u64,
        /// Their completion tokens.
        #[serde(default)]
        tokens: u64,
        /// Their turns.
        #[serde(default)]
        turns: u64,
    },
    /// Weights were published: they sample the groups that are dispatched from now on.
    Published {
        /// Their version, not below any before.
        version: PolicyVersion,
    },
    /// The run is to end now, between steps or during generation.
    Cancelled,
}

/// A step has ended, in whichever way: the places of its groups. [`Command::Judged`] has named dropped
/// groups, and the driver failed ones.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepClose {
    /// Groups to train on, in batch order; empty unless the step is ready.
    pub trained: Vec<GroupId>,
    /// Those of them that the filter dropped and that fill the batch because too few were kept
    /// ([`OnLimit::KeepDropped`](super::OnLimit::KeepDropped)), in dispatch order.
    #[serde(default)]
    pub kept_when_insufficient: Vec<GroupId>,
    /// Those of them that are trained on again, one entry for each copy: the batch is `trained` followed by
    /// these ([`OnLimit::Duplicate`](super::OnLimit::Duplicate)).
    #[serde(default)]
    pub duplicated: Vec<GroupId>,
    /// Kept groups to discard.
    pub surplus: Vec<GroupId>,
    /// Carried groups to discard because they are too old.
    pub stale: Vec<GroupId>,
    /// Kept groups to hold for the next step.
    pub carried: Vec<GroupId>,
    /// Groups that were aborted: [`Command::Abort`] has named those that were still generating; the others
    /// were complete and not judged.
    pub aborted: Vec<GroupId>,
    /// Groups, in dispatch order, whose prompts go back to the source and are drawn first if the run
    /// continues: those that were aborted before they were judged, and stale ones. In a streaming schedule
    /// also surplus groups and, if surplus is discarded, dropped groups that were dispatched after the last
    /// group of a full batch.
    #[serde(default)]
    pub returned: Vec<GroupId>,
    /// Numbers of the step.
    pub report: StepReport,
}

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunEnd {
    /// All steps are trained.
    TotalSteps,
    /// All epochs are over.
    TotalEpochs,
    /// The data ended, and the settings stop the run there.
    DataExhausted,
    /// The driver cancelled it.
    Cancelled,
}

/// A command to the driver.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Begin another pass over the data.
    NextEpoch {
        /// Index of the epoch, from 0.
        epoch: u64,
    },
    /// Take prompts from the current epoch and start a group for each; answered by [`Event::Dispatched`].
    Draw {
        /// The step, from 1.
        step: u64,
        /// The round of the step, from 1.
        round: u64,
        /// Number of prompts.
        num_prompts: usize,
    },
    /// Begin the other members of a group as well: its first ones differ. Issued once for a group that begins
    /// with some of its members, unless it ends with them.
    Continue {
        /// The group.
        group: GroupId,
    },
    /// The filter judged a group, or the group ended with its first members. Issued for every scored group
    /// that was not aborted before, in dispatch order within a round.
    Judged {
        /// The group.
        group: GroupId,
        /// The filter's verdict.
        verdict: Verdict,
    },
    /// A round is over.
    RoundComplete(Box<RoundReport>),
    /// Train on [`StepClose::trained`]; answered by [`Event::Trained`].
    StepReady(Box<StepClose>),
    /// Train on these groups, a part of the step, while the rest still generates. [`Command::StepClosed`]
    /// follows the last part.
    Train {
        /// The step, from 1.
        step: u64,
        /// The part, from 0.
        part: u64,
        /// The groups, in batch order.
        groups: Vec<GroupId>,
    },
    /// Stop generating these groups. Each is answered by [`Event::Aborted`], or by its result, at any time,
    /// even after the end of the run.
    Abort {
        /// The groups, in dispatch order.
        groups: Vec<GroupId>,
    },
    /// The step is complete and all of it was handed out. [`Event::Trained`] reports that it was trained.
    StepClosed(Box<StepClose>),
    /// Nothing is trained; [`Event::BeginStep`] tries again.
    SkipStep {
        /// The reason.
        why: SkipReason,
        /// Final places of the groups.
        close: Box<StepClose>,
    },
    /// The run is finished: validate, save, report.
    Finish {
        /// The reason.
        why: RunEnd,
        /// Final places of the groups that are left.
        close: Box<StepClose>,
    },
    /// The run ends for lack of signal.
    Stop {
        /// Observations and the changes to make.
        diagnosis: Box<Diagnosis>,
        /// Final places of the groups that are left.
        close: Box<StepClose>,
    },
}

/// Result of the machine's functions.
pub type Result<T, E = ScheduleError> = std::result::Result<T, E>;

/// An event does not fit the machine's state, or its settings contradict each other. This is a fault of the
/// driver; the machine is unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ScheduleError {
    /// Contradictory settings.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// Anything else.
    #[error(transparent)]
    Fault(#[from] Fault),
}

faults!(ScheduleError: Unbalanced);
