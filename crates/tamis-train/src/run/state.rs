//! The state of a run between two steps, as one value. A checkpoint holds it as it is, a step returns the
//! next one, and nothing edits it in place.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tamis_core::advantage::AdvantageState;
use tamis_core::early_stop::{EarlyStopState, LowSuccessState, RewardCollapseState};
use tamis_core::group::{Group, PolicyVersion};
use tamis_core::objective::{KlState, ObjectiveState};
use tamis_core::schedule::Scheduler;
use tamis_core::schedule::selector::{Candidate, SelectorState};
use tamis_data::sampler::DataPosition;
use tamis_env::reward::Logged;
use tamis_rollout::{Dispatcher, Fate, Generation, Record, RewardHealth};

use super::inputs::{InputChanges, RunInputs};
use super::untrained::Untrained;
use crate::checkpoint::{SaveError, read_state};
use crate::measure::validation::ValidationReport;
use crate::prompts::pool::PromptPool;
use tamis_run::directory::LogPositions;

/// Everything that a run is between two steps, except weights and moments. A number that survives a resume is
/// declared here and nowhere else.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunState {
    /// Layout version of the file that holds it.
    pub format: u32,
    /// Steps trained.
    pub step: u64,
    /// Version of the weights.
    pub version: PolicyVersion,
    /// The critic, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub critic: Option<CriticState>,
    /// CRC-32 of the training prompts as the model sees them. A resume on other data would not be exact.
    pub data_crc32: u32,
    /// CRC-32 of the model below an adapter, if one learns. The adapter would mean nothing on another model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_crc32: Option<u32>,
    /// What else the run reads, as it was when the checkpoint was written.
    pub inputs: RunInputs,
    /// Prompt and completion tokens of all trajectories generated so far.
    pub num_tokens: u64,
    /// State of the scheduler.
    pub schedule: ScheduleState,
    /// State of advantages and updates.
    pub learning: LearningState,
    /// Results of the validations so far.
    pub validation: ValidationHistory,
    /// State of the early stops.
    pub early_stop: EarlyStopState,
    /// Length of every log when the checkpoint was written.
    pub logs: LogPositions,
    /// Position in the journal of answers, in bytes, from which a resume reads the answers for the steps
    /// after this one.
    pub journal: Option<u64>,
    /// The same for the journal of servers' samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// The same for the journal of trajectories that were played elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub episodes: Option<u64>,
    /// The same for the journal of teachers at servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub teachers: Option<u64>,
    /// The same for the order in which events were handled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<u64>,
}

/// Checksums of what a run reads and never changes.
#[derive(Debug, Clone, Copy)]
pub struct Checksums {
    /// Of the training data.
    pub data: u32,
    /// Of the weights below an adapter, if there is one.
    pub base: Option<u32>,
}

impl RunState {
    /// The layout version that this build writes and reads.
    pub const FORMAT: u32 = 7;

    /// Reads the state of a checkpoint.
    pub fn read(checkpoint: &Path) -> Result<Self, SaveError> {
        read_state(checkpoint, Self::FORMAT)
    }

    /// Before the first step of a run.
    pub fn first(
        schedule: ScheduleState,
        objective: ObjectiveState,
        checksums: Checksums,
        inputs: RunInputs,
        has_critic: bool,
    ) -> Self {
        Self {
            format: Self::FORMAT,
            step: 0,
            version: PolicyVersion(0),
            critic: has_critic.then(CriticState::default),
            data_crc32: checksums.data,
            base_crc32: checksums.base,
            inputs,
            num_tokens: 0,
            schedule,
            learning: LearningState { objective, ..LearningState::default() },
            validation: ValidationHistory::default(),
            early_stop: EarlyStopState::default(),
            logs: LogPositions::default(),
            journal: None,
            samples: None,
            episodes: None,
            teachers: None,
            order: None,
        }
    }

    /// The state of a resumed run that reads these inputs. If they measure something else, it forgets what
    /// was measured before.
    pub(super) fn with_inputs(self, inputs: RunInputs, changes: &InputChanges) -> Self {
        let mut state = Self { inputs, ..self };
        if !changes.measured.is_empty() {
            state.validation = state.validation.begun_again(state.step);
            state.early_stop.low_success = LowSuccessState::default();
        }
        if changes.scores {
            state.early_stop.reward_collapse = RewardCollapseState::default();
        }
        state
    }
}

/// State of a critic except its weights and moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CriticState {
    /// Steps that it has been trained in.
    pub version: u64,
}

/// The scheduler right after the last trained step. A checkpoint holds this and not the live scheduler, so a
/// resume repeats skipped attempts at the next step.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ScheduleState {
    /// Place in the data.
    pub position: DataPosition,
    /// Prompts that were drawn before that place and given back. They come first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub given_back: Vec<Candidate>,
    /// What the selector of prompts has learned, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<SelectorState>,
    /// The scheduling machine.
    pub machine: Scheduler,
    /// Id of the next dispatched group.
    pub next_group: u64,
    /// Groups kept for the next step, and those in flight with the members they have.
    pub carried: Vec<CarriedGroup>,
    /// Group and member of what was in flight, in the order of its requests, if that is not the order of the
    /// groups. What is sampled in this process ends in an order that depends on it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub in_flight: Vec<(u64, u32)>,
    /// The rewards that arrived in the rounds.
    pub reward_health: RewardHealth,
}

impl ScheduleState {
    /// The state between two steps.
    pub fn of(dispatcher: &Dispatcher, pool: &PromptPool) -> Self {
        let mut carried: Vec<CarriedGroup> = dispatcher.held().map(CarriedGroup::of).collect();
        // Only the order of events counts.
        let mut arrivals: Vec<u64> = carried.iter().map(|carried| carried.generation.arrival).collect();
        arrivals.sort_unstable();
        for Generation { arrival, .. } in carried.iter_mut().map(|carried| &mut carried.generation) {
            *arrival = arrivals.partition_point(|earlier| earlier < arrival) as u64;
        }
        let mut in_flight = dispatcher.in_flight();
        if in_flight.is_sorted() {
            in_flight.clear();
        }
        Self {
            position: pool.position(),
            given_back: pool.given_back(),
            selector: pool.selector().map(|selector| selector.state().clone()),
            machine: dispatcher.machine().clone(),
            next_group: dispatcher.next_group(),
            carried,
            in_flight,
            reward_health: dispatcher.reward_health().clone(),
        }
    }
}

/// State that advantages and updates carry from step to step.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct LearningState {
    /// State of the objective.
    pub objective: ObjectiveState,
    /// State of the advantage estimator.
    pub advantage: AdvantageState,
    /// Coefficient of the divergence in the reward; `None` before the first step, and if there is no such
    /// divergence.
    pub reward_kl: Option<KlState>,
    /// Number of updates in a row, up to the last one, that were left out because their gradients were not
    /// finite.
    pub skipped_updates: u32,
    /// The same for the critic's updates.
    pub skipped_critic_updates: u32,
    /// The latest steps that made no update of the policy.
    pub untrained: Untrained,
}

/// Validations so far.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ValidationHistory {
    /// Whether the validation after this step is still to be made, because the run was interrupted in it.
    pub is_missing: bool,
    /// Figures by step, to keep the best checkpoints.
    pub scores: BTreeMap<u64, f64>,
    /// The validation before reinforcement learning, for the closing table.
    pub before: Option<ValidationReport>,
    /// The last validation and the step after which it was made. A resume does not repeat it.
    pub latest: Option<(u64, ValidationReport)>,
    /// First step whose validation is comparable with later ones: on a resume, the prompts, their sampling or
    /// a function that scores them may have changed.
    #[serde(default, skip_serializing_if = "is_beginning")]
    pub since: u64,
}

impl ValidationHistory {
    /// The history after a resume at which a validation began to measure something else.
    fn begun_again(self, step: u64) -> Self {
        Self { is_missing: self.is_missing, since: step + 1, ..Self::default() }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_beginning(step: &u64) -> bool {
    *step == 0
}

/// A group held between two steps: kept for the next one, or in flight.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CarriedGroup {
    /// The group, with the log-probabilities it was sampled with.
    pub group: Group,
    /// Step in which it was generated.
    pub step: u64,
    /// Round of that step.
    pub round: u64,
    /// Rewards after the KL penalty \[G\], if the filter looked at them; `None` for a member without.
    final_rewards: Option<Vec<Option<f64>>>,
    /// Extra values that the reward functions logged for each member \[G\]; empty if they logged nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub logged: Vec<Logged>,
    /// What became of the group since the step was closed.
    #[serde(default, skip_serializing_if = "Fate::is_open")]
    pub fate: Fate,
    /// The step that ended with the group kept, if there was one.
    pub kept_in: Option<u64>,
    /// Cost and duration of the group's generation.
    pub generation: Generation,
    /// Probability with which the group's prompt was selected.
    #[serde(default = "certain", skip_serializing_if = "is_certain")]
    pub inclusion: f64,
}

fn certain() -> f64 {
    1.0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_certain(inclusion: &f64) -> bool {
    *inclusion >= 1.0
}

impl CarriedGroup {
    /// The part of a group that is stored while the group is held between two steps.
    pub fn of(record: &Record) -> Self {
        // JSON has no NaN.
        let of_member = |reward: &f64| (!reward.is_nan()).then_some(*reward);
        Self {
            group: record.group.clone(),
            step: record.step,
            round: record.round,
            final_rewards: record
                .final_rewards
                .as_ref()
                .map(|rewards| rewards.iter().map(of_member).collect()),
            logged: record.logged.clone(),
            fate: record.fate.clone(),
            kept_in: record.kept_in,
            generation: record.generation,
            inclusion: record.inclusion,
        }
    }

    /// Whether it was in flight: members are missing, or not scored.
    pub fn is_in_flight(&self, group_size: usize) -> bool {
        let members = &self.group.trajectories;
        self.fate.is_open()
            && (members.len() < group_size
                || members.iter().any(|member| !member.scores.contains_key("reward")))
    }

    /// Rewards after the KL penalty \[G\], if the filter looked at them; NaN for a member without.
    pub fn final_rewards(&self) -> Option<Vec<f64>> {
        let rewards = self.final_rewards.as_ref()?;
        Some(rewards.iter().map(|reward| reward.unwrap_or(f64::NAN)).collect())
    }
}
