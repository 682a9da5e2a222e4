//! The dispatcher: one loop between the scheduling machine, the generator and the reward functions.
//!
//! ```text
//!   commands: draw, abort ──▶ one request a member ──▶ Generator ──▶ sampled, failed, aborted ─┐
//!        ▲                                                                                     ▼
//!   machine ◀── scored, failed, aborted ◀── groups whose members are all there ◀── Scorer ◀── trajectories
//! ```
//!
//! Events are taken in one at a time, in the order of their arrival. As soon as a whole group has
//! ended, the machine gets an event for it. Trajectories are scored as they end, while others still
//! generate. A member that fails for good fails its group: the other members are aborted, and their
//! cost is counted. Events that nobody waits for (second answers, answers to aborted requests, answers
//! to no request) are counted by class and otherwise ignored.
//!
//! **By rounds** the machine gets a round's groups when all of them have settled, in the order in which
//! their generation ended. So neither slow reward functions nor the order of answers changes anything.
//! Functions that score several completions together get those of the dispatch order. **Streaming** it
//! gets each group at once, and each member's metric before that. The parts of a step that it hands out
//! ([`Command::Train`]) are passed on if the caller wants that, and gathered until the step is closed
//! otherwise. The batch is the same either way, whatever the timing.

mod commands;
mod flight;
mod intake;
#[cfg(test)]
mod laws;
mod observation;
mod publication;
mod replay;
mod round;
mod scores;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tamis_core::fault::Fault;
use tamis_core::filter::MetricError;
use tamis_core::group::{Group, GroupId, PolicyVersion};
use tamis_core::ragged::Ragged;
use tamis_core::schedule::{Command, Event, Members, RoundReport, ScheduleError, Scheduler, Spent};
use tamis_core::{fault, faults};
use tamis_env::reward::{RewardError, Rewards};
use thiserror::Error;

use self::flight::GroupFlight;
pub use self::publication::{OnStop, PublicationEnd};
use self::replay::Replay;
pub use self::replay::{OrderLog, SampleEnd, Taken};
use self::round::Round;
use crate::generator::{Generator, GeneratorError, SampleId, SamplePurpose, Sampling};
use crate::inbox::Inbox;
use crate::record::{Collected, Fate, Record};
use crate::reward_health::{MissingRewards, RewardHealth};
use crate::scorer::{ScoreError, ScoreEvent, Scorer};
use crate::source::PromptSource;

/// Receives progress while a step is collected.
pub trait Observer {
    /// A round of `num_prompts` prompts begins; streaming, a round's worth of groups.
    fn round_begins(&mut self, step: u64, round: u64, num_prompts: usize);

    /// The generator is done with one more member of a group.
    fn member_ended(&mut self, group: GroupId) {
        let _ = group;
    }

    /// Reports how many of the round's groups are complete.
    fn groups_finished(&mut self, finished: usize);

    /// A round was judged.
    fn round_complete(&mut self, report: &RoundReport);

    /// Reports how many groups of a streaming step are ready to be trained on.
    fn groups_ready(&mut self, step: u64, num_groups: usize) {
        let _ = (step, num_groups);
    }

    /// A group failed, of a data source that may have no name.
    fn group_failed(&mut self, group: u64, source: &str, reason: &str) {
        let source = if source.is_empty() { String::new() } else { format!(" of `{source}`") };
        self.warn(&format!("group {group}{source} failed: {reason}"));
    }

    /// The next pass over the data begins.
    fn epoch_begins(&mut self, epoch: u64);

    /// A message for the user.
    fn warn(&mut self, message: &str);
}

/// Result of a reference pass over some groups, one row per trajectory in order.
#[derive(Debug, Clone)]
pub struct ReferencePass {
    /// Rewards after the KL penalty \[B\].
    pub final_rewards: Vec<f64>,
    /// Log-probabilities under the reference `[B][T]`.
    pub logprobs: Ragged<f32>,
}

/// Computes the KL penalty of groups against a reference, for filters that look at rewards after it.
pub trait Reference {
    /// A pass over scored groups: by rounds a round's groups; streaming, one group. No group is passed
    /// twice. `None` if the run is to stop.
    fn pass(&mut self, groups: &[&Group]) -> Result<Option<ReferencePass>, DispatchError>;
}

/// Settings of a dispatcher's steps, apart from the machine's own.
#[derive(Debug, Clone)]
pub struct DispatcherSettings {
    /// Run seed.
    pub seed: u64,
    /// Group size n.
    pub group_size: usize,
    /// Sampling parameters.
    pub sampling: Sampling,
    /// Whether the first scored rounds must prove that the filter's metric exists. This is needed if
    /// its name could not be checked earlier. A checkpoint does not store the number of rounds without
    /// it: before the first trained step a resume repeats all rounds, and after that step the metric is
    /// proven.
    pub is_metric_unproven: bool,
    /// Whether samples without log-probabilities are taken, because the learner computes them.
    pub recomputes_logprobs: bool,
    /// Whether parts of a step are handed out as soon as the machine names them ([`Next::Part`]), while the
    /// rest is generated.
    pub hands_out_parts: bool,
}

/// The purpose of groups that are not trained on, those of a second dispatcher beside the run's.
#[derive(Debug, Clone)]
pub struct Beside {
    /// Purpose of the samples; not [`SamplePurpose::Rollout`].
    pub purpose: SamplePurpose,
    /// Training step that reward functions see.
    pub step: u64,
    /// Prefix of the trajectories' journal keys, different for every list of prompts of a run.
    pub journal: String,
}

/// Everything that the dispatcher works with.
pub struct Dependencies<'a> {
    /// Prompts.
    pub source: &'a mut dyn PromptSource,
    /// Completions.
    pub generator: &'a mut dyn Generator,
    /// Scores.
    pub scorer: &'a mut Scorer,
    /// The reference pass, if the filter's metric needs rewards after the KL penalty. Without it the
    /// metric is computed from the rewards.
    pub reference: Option<&'a mut dyn Reference>,
    /// Listener.
    pub observer: &'a mut dyn Observer,
    /// The log of the order in which events are taken in, if a resumed run is to follow it.
    pub order: Option<&'a mut dyn OrderLog>,
    /// Whether the run is to stop soon.
    pub is_interrupted: &'a dyn Fn() -> bool,
}

/// Collecting a step failed.
#[derive(Debug, Error)]
pub enum DispatchError {
    /// The generator broke down.
    #[error(transparent)]
    Generator(#[from] GeneratorError),
    /// Scoring broke down.
    #[error(transparent)]
    Score(#[from] ScoreError),
    /// The filter's metric is a score that no completion has.
    #[error("the filter's metric `{metric}` is not among the scores of the first rounds: {}", names.join(", "))]
    NoMetric {
        /// The metric.
        metric: String,
        /// Names of the scores that there are.
        names: Vec<String>,
    },
    /// The filter's metric could not be read, or the machine and its driver disagree: a fault of tamis.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// Rewards do not arrive, and more would be generated for nothing.
    #[error("no rewards arrive")]
    MissingRewards(Box<MissingRewards>),
    /// The reference pass failed.
    #[error("the reference pass before the filter failed: {source}")]
    Reference {
        /// The reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

faults!(DispatchError: MetricError);

impl From<ScheduleError> for DispatchError {
    fn from(error: ScheduleError) -> Self {
        Fault::new("the scheduler refused an event").with_source(error).into()
    }
}

impl DispatchError {
    /// The machine named a group that is not held.
    fn unknown(group: GroupId) -> Self {
        fault!("the scheduler named group {}, which is not held", group.0).into()
    }
}

impl From<RewardError> for DispatchError {
    fn from(error: RewardError) -> Self {
        Self::Score(ScoreError::Reward(error))
    }
}

/// Result of [`Dispatcher::next`].
#[derive(Debug)]
pub enum Next {
    /// The next groups of the step's batch, whole mini-batches of them, in batch order; the rest is still
    /// generated. They are held until the step is complete, and are in its batch once more.
    Part(Vec<Record>),
    /// The step, or the run, is over.
    Step(Box<Collected>),
    /// The run is to stop: work in progress is aborted.
    Interrupted,
}

/// Drives a [`Scheduler`]: [`Dispatcher::next`] gives the parts of a step and then the step.
pub struct Dispatcher {
    settings: DispatcherSettings,
    /// `None` for the dispatcher of a run.
    beside: Option<Beside>,
    sampling: Arc<Sampling>,
    machine: Scheduler,
    /// Records of all groups that are in flight or kept.
    held: BTreeMap<GroupId, Record>,
    flights: BTreeMap<GroupId, GroupFlight>,
    rounds: BTreeMap<u64, Round>,
    next_round: u64,
    /// Still to be carried out.
    commands: VecDeque<Command>,
    scored: VecDeque<ScoreEvent>,
    version: PolicyVersion,
    publishing: Option<PolicyVersion>,
    /// Requested again, once nothing is being published.
    again: Vec<SampleId>,
    /// Members that the generator was asked for, in order. Those that have ended are removed from time to
    /// time.
    asked: Vec<SampleId>,
    /// Groups in flight that came from a checkpoint, until their members are scored.
    resumed: Vec<GroupId>,
    inbox: Inbox,
    replay: Replay,
    /// Whether the present event was noted before.
    is_replaying: bool,
    next_group: u64,
    arrivals: u64,
    reward_health: RewardHealth,
    /// Whether an attempt at a step has begun and not ended.
    is_open: bool,
    /// Whether rewards of this attempt at a step were looked at.
    has_observed: bool,
    /// Rounds so far that had rewards and not the filter's metric.
    rounds_without_metric: u32,
}

impl Dispatcher {
    /// Around a machine at its start.
    pub fn new(settings: DispatcherSettings, machine: Scheduler) -> Self {
        Self::resume(settings, machine, 0, PolicyVersion(0), Vec::new(), RewardHealth::default())
    }

    /// A dispatcher around a saved machine, with the groups it held and the version that generates.
    /// Missing members of held groups that the machine still waits for are requested again.
    pub fn resume(
        settings: DispatcherSettings,
        machine: Scheduler,
        next_group: u64,
        version: PolicyVersion,
        held: Vec<Record>,
        reward_health: RewardHealth,
    ) -> Self {
        let held: BTreeMap<GroupId, Record> =
            held.into_iter().map(|record| (record.group.id, record)).collect();
        let arrivals = held.values().map(|record| record.generation.arrival).max().unwrap_or(0);
        let mut dispatcher = Self {
            sampling: Arc::new(settings.sampling.clone()),
            settings,
            beside: None,
            machine,
            held,
            flights: BTreeMap::new(),
            rounds: BTreeMap::new(),
            next_round: 0,
            commands: VecDeque::new(),
            scored: VecDeque::new(),
            version,
            publishing: None,
            again: Vec::new(),
            asked: Vec::new(),
            resumed: Vec::new(),
            inbox: Inbox::default(),
            replay: Replay::default(),
            is_replaying: false,
            next_group,
            arrivals,
            reward_health,
            is_open: false,
            has_observed: false,
            rounds_without_metric: 0,
        };
        dispatcher.take_off_again();
        dispatcher
    }

    /// The same for groups that are not trained on.
    pub(crate) fn beside(self, beside: Beside) -> Self {
        Self { beside: Some(beside), ..self }
    }

    fn purpose(&self) -> SamplePurpose {
        self.beside.as_ref().map_or(SamplePurpose::Rollout, |beside| beside.purpose)
    }

    /// The first turn of a member of a group, asked for the first time.
    fn sample_id(&self, group: GroupId, member: usize) -> SampleId {
        SampleId { purpose: self.purpose(), ..SampleId::of_member(group, member as u32) }
    }

    /// The machine.
    pub fn machine(&self) -> &Scheduler {
        &self.machine
    }

    /// Groups held: kept for the next step, and those in flight with the members they have so far.
    pub fn held(&self) -> impl Iterator<Item = &Record> {
        self.held.values()
    }

    /// Commands that the next [`Dispatcher::next`] carries out, before the next step begins. There are
    /// none if the schedule goes by rounds.
    pub fn pending(&self) -> impl Iterator<Item = &Command> {
        self.commands.iter()
    }

    /// Members that are waited for, each as group and member, in the order in which they were asked for, and
    /// then those that are still to be.
    pub fn in_flight(&self) -> Vec<(u64, u32)> {
        let of_generator =
            self.asked.iter().filter(|id| self.expect(**id).is_ok() && !self.again.contains(id));
        of_generator.chain(&self.again).map(|id| (id.group, id.member)).collect()
    }

    /// Requests the members in flight again in this order, as before; those that it does not list come
    /// last.
    pub fn ask_in_order(&mut self, order: &[(u64, u32)]) {
        let places: BTreeMap<(u64, u32), usize> =
            order.iter().enumerate().map(|(place, member)| (*member, place)).collect();
        let place = |id: &SampleId| places.get(&(id.group, id.member)).copied().unwrap_or(usize::MAX);
        self.again.sort_by_key(place);
    }

    /// The inbox, in which a dispatcher beside this one leaves its events; see [`crate::complete`].
    pub fn inbox(&mut self) -> &mut Inbox {
        &mut self.inbox
    }

    /// The groups of an attempt at a step that failed before the step was complete. A group is marked
    /// dropped if the filter had dropped it, otherwise aborted. The groups stay held.
    pub fn unfinished(&self, step: u64) -> Vec<Record> {
        let of_step = self.held().filter(|record| record.step == step).cloned();
        of_step
            .map(|mut record| {
                if record.fate == Fate::Carried {
                    record.fate = Fate::Aborted;
                }
                // The metric of a group that was not judged was not computed.
                record.values.resize(record.group.trajectories.len(), f64::NAN);
                record
            })
            .collect()
    }

    /// Whether an event arrived that is not taken in yet because a recorded order is followed.
    pub fn has_untaken(&self) -> bool {
        !self.inbox.of_groups.is_empty() || !self.scored.is_empty()
    }

    /// The id that the next dispatched group gets.
    pub fn next_group(&self) -> u64 {
        self.next_group
    }

    /// Record of the rewards that arrived, and did not, in the rounds so far.
    pub fn reward_health(&self) -> &RewardHealth {
        &self.reward_health
    }

    /// The rewards that have been missing for so long that the run should end.
    pub fn missing_rewards(&self, rewards: &Rewards) -> Option<MissingRewards> {
        let round_size = if self.is_by_rounds() { 0 } else { self.machine.settings().gen_batch_size };
        self.reward_health.missing(round_size, rewards)
    }

    /// Reports to the machine that the step it handed over was trained, and which members of its groups
    /// had no loss.
    pub fn note_trained(&mut self, left_out: Members) -> Result<(), DispatchError> {
        let Members { trajectories, spent: Spent { tokens, turns } } = left_out;
        self.tell(Event::Trained { left_out: trajectories, tokens, turns })
    }

    /// Generates, scores and judges until the machine ends the step or hands out a part of it to train
    /// on. Call it until the step ends.
    pub fn next(&mut self, mut with: Dependencies<'_>) -> Result<Next, DispatchError> {
        if !self.is_open {
            self.has_observed = false;
        }
        // Members that a checkpoint had in flight are requested first, in their old order.
        self.ask_again(&mut with)?;
        // The rest of the previous step comes first.
        let mut next = self.run(&mut with, true)?;
        if next.is_none() && !std::mem::replace(&mut self.is_open, true) {
            self.tell(Event::BeginStep)?;
        }
        loop {
            if next.is_none() {
                next = self.run(&mut with, true)?;
            }
            match next {
                Some(next) => {
                    self.is_open = !matches!(next, Next::Step(_));
                    return Ok(next);
                }
                None => self.pump(&mut with, &|| false)?,
            }
            if (with.is_interrupted)() {
                return Ok(Next::Interrupted);
            }
        }
    }

    /// Passes an event to the machine and queues its commands.
    fn tell(&mut self, event: Event) -> Result<(), DispatchError> {
        let commands = self.machine.handle(event)?;
        self.commands.extend(commands);
        Ok(())
    }

    fn is_by_rounds(&self) -> bool {
        self.machine.goes_by_rounds()
    }
}
