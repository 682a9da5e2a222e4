//! Events in, commands out.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{Diagnosis, GroupFacts, RoundReport, SettingsError, SkipReason, Spent, StepReport, Unbalanced};
use crate::fault::Fault;
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

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The driver is ready for the next step: at the start, and after a step was trained or skipped.
    BeginStep,
    /// Answer to [`Command::Draw`]: the groups started, in dispatch order.
    Dispatched {
        /// As many as asked for, or fewer if the epoch ended; ids greater than any before. With
        /// `mode: deficit` and one round in flight a driver may begin fewer, at least one: that is the round
        /// then.
        groups: Vec<GroupId>,
        /// The policy version that samples them.
        version: PolicyVersion,
        /// Whether the epoch has no prompt left.
        exhausted: bool,
    },
    /// A member of a group was scored, others are still to come; only a streaming schedule wants to know.
    Sampled {
        /// The group.
        group: GroupId,
        /// The filter's metric of the member; `None` where it has none.
        value: Option<f64>,
    },
    /// The first members of a group were scored, with which alone it was begun
    /// ([`screen_first`](super::ScheduleSettings::screen_first)): answered by [`Command::Continue`], or by
    /// [`Command::Judged`], which ends the group. Where the others were begun before, it says nothing new.
    Screened {
        /// The group.
        group: GroupId,
        /// The filter's metric of each of them \[n₀\]; NaN where it has none.
        #[serde(with = "nan_as_null")]
        values: Vec<f64>,
        /// Other facts about them.
        facts: GroupFacts,
    },
    /// A group is complete and all its members were scored.
    Scored {
        /// The group.
        group: GroupId,
        /// The filter's metric of each member \[n\]; NaN where it has none.
        #[serde(with = "nan_as_null")]
        values: Vec<f64>,
        /// Other facts about the group.
        facts: GroupFacts,
    },
    /// A member's generation failed for good, and with it its group.
    Failed {
        /// The group.
        group: GroupId,
        /// What was generated for it.
        #[serde(flatten)]
        spent: Spent,
    },
    /// A group that was to be given up has stopped.
    Aborted {
        /// The group.
        group: GroupId,
        /// What was generated for it.
        #[serde(flatten)]
        spent: Spent,
    },
    /// The step was trained.
    Trained {
        /// Members of the step's groups that bore no loss; they count as left out instead of trained.
        #[serde(default)]
        left_out: u64,
        /// Their completion tokens.
        #[serde(default)]
        tokens: u64,
        /// Their turns.
        #[serde(default)]
        turns: u64,
    },
    /// Weights were published: groups that are dispatched from now on are sampled by them.
    Published {
        /// Their version, not below any before.
        version: PolicyVersion,
    },
    /// The run is to end now, between steps or in the middle of generation.
    Cancelled,
}

/// A step is over, one way or another: where its groups go. Dropped groups were named by [`Command::Judged`],
/// failed ones by the driver.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepClose {
    /// Groups to train on, in batch order; empty unless the step is ready.
    pub trained: Vec<GroupId>,
    /// Those of them that the filter dropped and that are in the batch because too few were kept
    /// ([`OnLimit::KeepDropped`](super::OnLimit::KeepDropped)), in the order of dispatch.
    #[serde(default)]
    pub kept_when_insufficient: Vec<GroupId>,
    /// Those of them that are trained on once more, one entry for each copy: the batch is `trained` and then
    /// these ([`OnLimit::Duplicate`](super::OnLimit::Duplicate)).
    #[serde(default)]
    pub duplicated: Vec<GroupId>,
    /// Kept groups to throw away.
    pub surplus: Vec<GroupId>,
    /// Carried groups to throw away because they are too old.
    pub stale: Vec<GroupId>,
    /// Kept groups to hold for the next step.
    pub carried: Vec<GroupId>,
    /// Groups that were given up: [`Command::Abort`] named those that were still generating, the others were
    /// complete and not judged.
    pub aborted: Vec<GroupId>,
    /// Groups, in dispatch order, whose prompts go back to the source, to be drawn first, where the run goes
    /// on: those that were given up before they were judged, and stale ones; of a streaming schedule also
    /// surplus, and what it dispatched after the last group of a full batch and dropped, where surplus is
    /// thrown away.
    #[serde(default)]
    pub returned: Vec<GroupId>,
    /// Numbers of the step.
    pub report: StepReport,
}

/// Why a run came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunEnd {
    /// All steps are trained.
    TotalSteps,
    /// All epochs are over.
    TotalEpochs,
    /// The data ended and the run was told to stop there.
    DataExhausted,
    /// The driver cancelled it.
    Cancelled,
}

/// Something to do.
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
    /// Begin the other members of a group as well: its first ones differ. Comes once for a group that is
    /// begun with a part of its members, unless it ends with them.
    Continue {
        /// The group.
        group: GroupId,
    },
    /// The filter judged a group, or it ended with its first members. Comes for every scored group that was
    /// not given up before, in dispatch order within a round.
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
    /// Train on these groups, a part of the step, while the rest still generates. The last part comes with
    /// [`Command::StepClosed`].
    Train {
        /// The step, from 1.
        step: u64,
        /// The part, from 0.
        part: u64,
        /// The groups, in batch order.
        groups: Vec<GroupId>,
    },
    /// Stop generating these groups; each is answered by [`Event::Aborted`], or by what it had come to, at
    /// any time: also when the run has ended.
    Abort {
        /// The groups, in dispatch order.
        groups: Vec<GroupId>,
    },
    /// The step is complete and all of it was handed out; [`Event::Trained`] says that it was trained.
    StepClosed(Box<StepClose>),
    /// Nothing is trained; [`Event::BeginStep`] tries again.
    SkipStep {
        /// The reason.
        why: SkipReason,
        /// Final places of the groups.
        close: Box<StepClose>,
    },
    /// The run ends well: validate, save, report.
    Finish {
        /// The reason.
        why: RunEnd,
        /// Final places of the groups that are left.
        close: Box<StepClose>,
    },
    /// The run ends for want of signal.
    Stop {
        /// Observations and the changes to make.
        diagnosis: Box<Diagnosis>,
        /// Final places of the groups that are left.
        close: Box<StepClose>,
    },
}

/// What the machine comes to.
pub type Result<T, E = ScheduleError> = std::result::Result<T, E>;

/// An event does not fit the machine's state, or its settings contradict themselves. The driver is at fault;
/// the machine is as before.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ScheduleError {
    /// Contradictory settings.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// Groups were lost or counted twice.
    #[error(transparent)]
    Unbalanced(#[from] Unbalanced),
    /// Anything else.
    #[error(transparent)]
    Fault(#[from] Fault),
}
