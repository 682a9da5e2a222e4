//! A generated group with everything known about it, and what became of it.

use serde::{Deserialize, Serialize};
use tamis_core::filter::{DropReason, ExtraColumns, FinalReward, Metric, MetricError};
use tamis_core::group::{Group, GroupId, Trajectory};
use tamis_core::ragged::Ragged;
use tamis_core::schedule::{Diagnosis, RunEnd, SkipReason, Spent, StepReport};
use tamis_data::rollouts::RolloutRow;
use tamis_env::reward::{Logged, RewardInput, TrainerState};

use crate::source::PreparedPrompt;

/// The counted place in which a generated group ended.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// Into the step's batch.
    Trained,
    /// Into the step's batch although the filter dropped it for that reason: too few groups were kept.
    KeptWhenInsufficient(DropReason),
    /// A copy of a group of the batch, which is trained on once more. It was not generated.
    Duplicated,
    /// Out, by the filter's reason.
    Dropped(DropReason),
    /// Kept, not needed and thrown away.
    Surplus,
    /// Carried for too long and thrown away.
    Stale,
    /// Kept for the next step, or not settled yet.
    #[default]
    Carried,
    /// A member's generation failed.
    Failed(String),
    /// Stopped while generating.
    Aborted,
}

impl Fate {
    /// Whether it is still held.
    pub fn is_open(&self) -> bool {
        *self == Self::Carried
    }

    /// The name in rollout files.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Trained => "trained",
            Self::KeptWhenInsufficient(_) => "kept_when_insufficient",
            Self::Duplicated => "duplicated",
            Self::Dropped(reason) => reason.name(),
            Self::Surplus => "surplus",
            Self::Stale => "stale",
            Self::Carried => "carried",
            Self::Failed(_) => "failed",
            Self::Aborted => "aborted",
        }
    }
}

/// A group with everything known about it.
#[derive(Debug, Clone)]
pub struct Record {
    /// The group. In flight it has the members that have ended so far, in sample order; it has none if
    /// its generation failed.
    pub group: Group,
    /// The prompt of the group.
    pub prompt: PreparedPrompt,
    /// Step in which it was dispatched, from 1.
    pub step: u64,
    /// The round of that step, from 1.
    pub round: u64,
    /// The filter's metric of each member \[G\], NaN if it has none. Empty until all are scored, and if
    /// generation failed.
    pub values: Vec<f64>,
    /// Reward after the KL penalty of each member \[G\], if the filter used it.
    pub final_rewards: Option<Vec<f64>>,
    /// Extra values that the reward functions logged for each member \[G\]; empty if there are none.
    pub logged: Vec<Logged>,
    /// Log-probability of each token under the reference `[G][T]`, if the filter needed them: they are
    /// not computed again.
    pub reference: Option<Ragged<f32>>,
    /// The counted place in which the group ended.
    pub fate: Fate,
    /// The step that kept the group for a later one, if any: its generation is counted in that step.
    pub kept_in: Option<u64>,
    /// Cost and duration of the group's generation.
    pub generation: Generation,
    /// Probability with which its prompt was selected; 1 without selection.
    pub inclusion: f64,
}

impl Record {
    /// Whether it is a copy of another record, which was generated.
    pub fn is_copy(&self) -> bool {
        self.fate == Fate::Duplicated
    }

    /// A trajectory of it as reward functions get it, without the messages of its episode.
    pub fn input<'a>(&'a self, trajectory: &'a Trajectory) -> RewardInput<'a> {
        RewardInput {
            prompt: &self.prompt.prompt,
            completion: &trajectory.text,
            messages: None,
            episode: trajectory.episode.as_ref(),
            completion_ids: &trajectory.token_ids,
            step: self.step,
            epoch: self.group.epoch,
            trainer_state: TrainerState::default(),
        }
    }

    /// Its trajectories as rows of a file, with the fields that the group holds.
    pub fn rows(&self) -> impl Iterator<Item = RolloutRow<'_>> {
        self.group.trajectories.iter().enumerate().map(|(i, trajectory)| RolloutRow {
            step: self.step,
            round: self.round,
            group: &self.group,
            trajectory,
            inclusion: self.inclusion,
            data_source: &self.prompt.prompt.data_source,
            prompt: &self.prompt.text,
            ground_truth: self.prompt.prompt.ground_truth.as_deref(),
            advantage: None,
            metric: "",
            metric_value: self.values.get(i).copied().filter(|value| !value.is_nan()),
            verdict: self.fate.name(),
            logged: self.logged.get(i).map(|logged| &logged.columns),
        })
    }

    /// Whether the filter kept it and it is trained on, and not as a copy.
    pub fn is_trained(&self) -> bool {
        self.fate == Fate::Trained
    }
}

/// Cost and duration of a group's generation until its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Generation {
    /// Completion tokens that were generated for it: of its members, and of attempts at them that came to
    /// nothing.
    pub num_tokens: u64,
    /// Turns of the policy that they belong to.
    pub num_turns: u64,
    /// The place of its last sample among all samples of the run: by rounds groups are judged in this order.
    pub arrival: u64,
}

impl Generation {
    /// Its turns and tokens.
    pub fn spent(&self) -> Spent {
        Spent { tokens: self.num_tokens, turns: self.num_turns }
    }

    /// Adds the cost of one more sample.
    pub fn spend(&mut self, spent: Spent) {
        let Spent { tokens, turns } = self.spent() + spent;
        (self.num_tokens, self.num_turns) = (tokens, turns);
    }
}

/// The filter's metric of each member of a group \[G\], NaN if it has none; `final_rewards` are those
/// after the KL penalty \[G\], if they differ from the rewards.
///
/// # Errors
/// If the metric needs a column that is missing.
pub fn metric_values(
    metric: &Metric,
    group: &Group,
    final_rewards: Option<&[f64]>,
) -> Result<Vec<f64>, MetricError> {
    let final_reward = final_rewards.map_or(FinalReward::IsReward, FinalReward::Column);
    metric.values(std::slice::from_ref(group), &ExtraColumns { final_reward, entropy: None })
}

/// The ways in which a collection ends.
#[derive(Debug)]
pub enum End {
    /// The batch is complete.
    Ready,
    /// Nothing is trained; the next call tries again.
    Skipped(SkipReason),
    /// The run is over.
    Finished(RunEnd),
    /// The run stops for lack of signal.
    Stopped(Box<Diagnosis>),
}

/// The groups of one step, returned by [`crate::Dispatcher::next`].
#[derive(Debug)]
pub struct Collected {
    /// The end of the collection.
    pub end: End,
    /// Numbers of the step.
    pub report: StepReport,
    /// Groups to train on, in batch order; copies of them come last.
    pub trained: Vec<Record>,
    /// Every other group that left the machine in this step (dropped, surplus, stale, failed, aborted).
    pub others: Vec<Record>,
    /// Groups kept in this step and carried on: they show up again in the step that trains them.
    pub carried_out: Vec<GroupId>,
}

impl Collected {
    /// Every group that left the machine, each once.
    pub fn groups(&self) -> impl Iterator<Item = &Record> {
        self.trained.iter().filter(|record| !record.is_copy()).chain(&self.others)
    }
}
