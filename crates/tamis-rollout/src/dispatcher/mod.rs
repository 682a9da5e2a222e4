//! The dispatcher: one loop between the scheduling machine, the generator and the reward functions.
//!
//! ```text
//!   commands: draw, abort ──▶ one request a member ──▶ Generator ──▶ sampled, failed, aborted ─┐
//!        ▲                                                                                     ▼
//!   machine ◀── scored, failed, aborted ◀── groups whose members are all there ◀── Scorer ◀── trajectories
//! ```
//!
//! Whatever happens is taken in one at a time, in the order in which it is heard of, and becomes an event of the machine as soon as a whole group has
//! come to something. Trajectories are scored as they end, while others generate. A member that fails for good fails its group: the others are given
//! up, and what was spent on them is counted. Events that nobody waits for (second answers, answers to what was given up, answers nobody asked for) are
//! counted by class and used for nothing.
//!
//! **By rounds** the machine hears of a round's groups when all of them have settled, in the order in which their generation ended, so that neither
//! the speed of reward functions nor the order of answers changes anything; functions that look at several completions get those of the dispatch order.
//! **Streaming** it hears of each group at once, and of each member's metric before. The parts of a step that it hands out
//! ([`Command::Train`]) are gathered until the step is closed and trained as one batch: that batch is the same whatever the timing.

mod flight;
#[cfg(test)]
mod laws;
mod round;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tamis_core::filter::{AvailableMetrics, Metric, MetricError, Verdict};
use tamis_core::group::{Group, GroupId, PolicyVersion, Score, Trajectory};
use tamis_core::ragged::Ragged;
use tamis_core::random::{Key, Purpose};
use tamis_core::schedule::{Command, Event, GroupFacts, RoundReport, ScheduleError, Scheduler, StepClose};
use tamis_env::reward::{Logged, RewardError, RewardInput, Scored, TrainerState};
use thiserror::Error;

use self::flight::{Course, Flight, Member};
use self::round::{Round, Row};
use crate::generator::{
    AbortScope, Generator, GeneratorError, GeneratorEvent, InFlight, Publication, Sample, SampleId,
    SamplePurpose, SampleRequest, Sampling, Wait,
};
use crate::inbox::{Inbox, Unexpected};
use crate::record::{Collected, End, Fate, Record, metric_values};
use crate::reward_health::{MOST_FAILED_ROUNDS, MissingRewards, RewardHealth};
use crate::scorer::{ScoreError, ScoreEvent, ScoreRequest, Scorer};
use crate::source::{DrawnPrompt, PromptSource};

/// How long the generator is waited for at a time while reward functions are, too.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// How long the last word of what was given up is waited for when a run ends.
const LAST_WORD: Duration = Duration::from_secs(2);

/// A sample that is given up as often as this without anybody here asking for it fails.
const MOST_ATTEMPTS: u32 = 8;

/// Hears of progress while a step is collected.
pub trait Observer {
    /// A round of so many prompts begins; streaming, a round's worth of groups.
    fn round_begins(&mut self, step: u64, round: u64, num_prompts: usize);

    /// So many of the round's groups are complete; so many tokens were generated since the last call.
    fn groups_finished(&mut self, finished: usize, num_tokens: u64);

    /// What was said of the round's trajectories.
    fn scored(&mut self, scored: &[Scored]);

    /// A round was judged.
    fn round_complete(&mut self, report: &RoundReport);

    /// So many groups of a streaming step are ready to be trained on.
    fn groups_ready(&mut self, step: u64, num_groups: usize) {
        let _ = (step, num_groups);
    }

    /// The next pass over the data begins.
    fn epoch_begins(&mut self, epoch: u64);

    /// Something a person should know.
    fn warn(&mut self, message: &str);
}

/// What a reference pass over some groups gave, one row per trajectory in order.
#[derive(Debug, Clone)]
pub struct ReferencePass {
    /// Rewards after the KL penalty \[B\].
    pub final_rewards: Vec<f64>,
    /// Log-probabilities under the reference `[B][T]`.
    pub logprobs: Ragged<f32>,
}

/// Says what the divergence from a reference costs groups, for filters that look at rewards after the KL penalty.
pub trait Reference {
    /// A pass over scored groups: those of a round; streaming, one group. No group is passed twice.
    fn pass(&mut self, groups: &[&Group]) -> Result<ReferencePass, DispatchError>;
}

/// What a dispatcher does at each step, apart from the machine's own settings.
#[derive(Debug, Clone)]
pub struct DispatcherSettings {
    /// Run seed.
    pub seed: u64,
    /// Group size n.
    pub group_size: usize,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Whether the first rounds that are scored must show that the filter's metric is there at all: where its name could not be known before.
    /// How many did not is no part of a checkpoint: before the first step is trained a resume does all rounds again, after it the metric is
    /// proven.
    pub is_metric_unproven: bool,
    /// Whether samples without log-probabilities are taken, because the learner computes them.
    pub recomputes_logprobs: bool,
}

/// What the dispatcher works with.
pub struct Dependencies<'a> {
    /// Prompts.
    pub source: &'a mut dyn PromptSource,
    /// Completions.
    pub generator: &'a mut dyn Generator,
    /// Scores.
    pub scorer: &'a mut Scorer,
    /// Where the filter's metric needs rewards after the KL penalty; else it looks at the rewards.
    pub reference: Option<&'a mut dyn Reference>,
    /// Listener.
    pub observer: &'a mut dyn Observer,
    /// Whether the run is to stop soon.
    pub is_interrupted: &'a dyn Fn() -> bool,
}

/// Collecting a step failed.
#[derive(Debug, Error)]
pub enum DispatchError {
    /// The run was asked to stop.
    #[error("interrupted")]
    Interrupted,
    /// The generator broke down.
    #[error(transparent)]
    Generator(#[from] GeneratorError),
    /// Scoring broke down.
    #[error(transparent)]
    Score(#[from] ScoreError),
    /// The filter's metric is a score that no completion has.
    #[error("the filter's metric `{metric}` is not among the scores of the completions of the first rounds: {}", names.join(", "))]
    NoMetric {
        /// The metric.
        metric: String,
        /// What there is instead.
        names: Vec<String>,
    },
    /// The filter's metric could not be read.
    #[error(transparent)]
    Metric(#[from] MetricError),
    /// The machine and its driver disagree: a fault of tamis.
    #[error("the scheduler refused an event")]
    Schedule(#[from] ScheduleError),
    /// The machine named a group that is not held: a fault of tamis.
    #[error("the scheduler named group {0}, which is not held")]
    UnknownGroup(u64),
    /// Rewards do not arrive, and more would be generated for nothing.
    #[error("no rewards arrive")]
    MissingRewards(Box<MissingRewards>),
    /// The reference pass failed.
    #[error("the reference pass before the filter failed: {reason}")]
    Reference {
        /// Why.
        reason: String,
    },
}

impl DispatchError {
    /// Whether it is no failure: something was given up because of Ctrl-C.
    pub fn is_interruption(&self) -> bool {
        matches!(self, Self::Interrupted | Self::Score(ScoreError::Reward(RewardError::Interrupted)))
    }
}

impl From<RewardError> for DispatchError {
    fn from(error: RewardError) -> Self {
        Self::Score(ScoreError::Reward(error))
    }
}

/// Whether a command ends the step.
fn is_end(command: &Command) -> bool {
    matches!(
        command,
        Command::StepReady(_)
            | Command::StepClosed(_)
            | Command::SkipStep { .. }
            | Command::Finish { .. }
            | Command::Stop { .. }
    )
}

/// Drives a [`Scheduler`]: one call of [`Dispatcher::collect`] per step.
pub struct Dispatcher {
    settings: DispatcherSettings,
    sampling: Arc<Sampling>,
    machine: Scheduler,
    /// Of every group that is in flight or kept.
    held: BTreeMap<GroupId, Record>,
    flights: BTreeMap<GroupId, Flight>,
    rounds: BTreeMap<u64, Round>,
    next_round: u64,
    /// Still to be carried out.
    commands: VecDeque<Command>,
    /// Scored, and not taken in.
    scored: VecDeque<ScoreEvent>,
    version: PolicyVersion,
    /// A version whose publication is waited for.
    publishing: Option<PolicyVersion>,
    /// To be asked for again, once nothing is being published.
    again: Vec<SampleId>,
    /// Groups in flight that came from a checkpoint, until their members are scored.
    resumed: Vec<GroupId>,
    inbox: Inbox,
    next_group: u64,
    arrivals: u64,
    tokens_told: u64,
    reward_health: RewardHealth,
    /// Whether rewards of this attempt at a step were looked at.
    has_observed: bool,
    /// Rounds so far that had rewards and not the filter's metric.
    rounds_without_metric: u32,
}

impl Dispatcher {
    /// Around a machine at its start.
    pub fn new(settings: DispatcherSettings, machine: Scheduler) -> Self {
        Self::resumed(settings, machine, 0, PolicyVersion(0), Vec::new(), RewardHealth::default())
    }

    /// Around a machine as it was saved, with the groups it held and the version that generates. Of held groups that
    /// the machine still waits for, what they lack is asked for again.
    pub fn resumed(
        settings: DispatcherSettings,
        machine: Scheduler,
        next_group: u64,
        version: PolicyVersion,
        held: Vec<Record>,
        reward_health: RewardHealth,
    ) -> Self {
        let held: BTreeMap<GroupId, Record> =
            held.into_iter().map(|record| (record.group.id, record)).collect();
        let mut dispatcher = Self {
            sampling: Arc::new(settings.sampling.clone()),
            settings,
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
            resumed: Vec::new(),
            inbox: Inbox::default(),
            next_group,
            arrivals: 0,
            tokens_told: 0,
            reward_health,
            has_observed: false,
            rounds_without_metric: 0,
        };
        dispatcher.take_off_again();
        dispatcher
    }

    /// Puts held groups that the machine waits for back into flight, with the members they have.
    fn take_off_again(&mut self) {
        let size = self.settings.group_size;
        let open: Vec<GroupId> = self
            .held
            .values()
            .filter(|record| self.machine.awaits(record.group.id))
            .map(|record| record.group.id)
            .collect();
        for id in open {
            let serial = self.round_for(0, 0, false);
            let place = self.add_to_round(serial, id);
            let Some(record) = self.held.get(&id) else { continue };
            if !record.fate.is_open() {
                // It had failed, and the last word of its other members was still to come.
                let members = vec![Member::Lost; size];
                let flight = Flight { members, course: Course::Failed, ..Flight::of(serial, place) };
                self.flights.insert(id, flight);
                self.resumed.push(id);
                continue;
            }
            let mut members: Vec<Member> =
                (0..size).map(|member| Member::Sampling(SampleId::of_member(id, member as u32))).collect();
            for trajectory in &record.group.trajectories {
                if let Some(member) = members.get_mut(trajectory.sample_index as usize) {
                    *member = Member::Sampled;
                }
            }
            let missing = members.iter().filter_map(|member| match member {
                Member::Sampling(sample) => Some(*sample),
                _ => None,
            });
            self.again.extend(missing);
            let num_tokens = record.group.num_tokens() as u64;
            let flight = Flight { members, num_tokens, ..Flight::of(serial, place) };
            self.flights.insert(id, flight);
            self.resumed.push(id);
        }
    }

    /// The machine.
    pub fn machine(&self) -> &Scheduler {
        &self.machine
    }

    /// Groups held: kept for the next step, and those in flight with the members they have so far.
    pub fn held(&self) -> impl Iterator<Item = &Record> {
        self.held.values()
    }

    /// Commands that are to be carried out by the next [`Dispatcher::collect`], before the next step begins; none where the schedule goes by rounds.
    pub fn pending(&self) -> impl Iterator<Item = &Command> {
        self.commands.iter()
    }

    /// Where those who sample beside the groups leave what is for them; see [`crate::complete`].
    pub fn inbox(&mut self) -> &mut Inbox {
        &mut self.inbox
    }

    /// The groups of an attempt at a step that ended with an error before the step was complete, each with its fate: dropped where the filter
    /// had said so, else aborted. They stay held.
    pub fn unfinished(&self, step: u64) -> Vec<Record> {
        let of_step = self.held().filter(|record| record.step == step).cloned();
        of_step
            .map(|mut record| {
                if record.fate == Fate::Carried {
                    record.fate = Fate::Aborted;
                }
                // Nobody has looked at the metric of what was not judged.
                record.values.resize(record.group.trajectories.len(), f64::NAN);
                record
            })
            .collect()
    }

    /// The id that the next dispatched group gets.
    pub fn next_group(&self) -> u64 {
        self.next_group
    }

    /// How the rewards of the rounds arrived so far.
    pub fn reward_health(&self) -> &RewardHealth {
        &self.reward_health
    }

    /// Tells the machine that the step it handed over was trained; so many members of its groups, with so many completion tokens, bore no loss.
    pub fn trained(&mut self, left_out: u64, tokens: u64) -> Result<(), DispatchError> {
        self.tell(Event::Trained { left_out, tokens })
    }

    /// Tells the machine that groups are sampled by this version from now on, where no weights had to be published for that.
    pub fn published(&mut self, version: PolicyVersion) -> Result<(), DispatchError> {
        self.version = version;
        self.tell(Event::Published { version })
    }

    /// Has the generator sample from new weights, and waits until it does. Groups that end meanwhile settle as ever; what the machine wants to
    /// have drawn waits for the new weights. Where the run is to stop, what is in flight is not waited for: it is asked for again.
    pub fn publish(
        &mut self,
        publication: &Publication,
        in_flight: InFlight,
        mut with: Dependencies<'_>,
    ) -> Result<(), DispatchError> {
        self.publishing = Some(publication.version);
        with.generator.publish(publication, in_flight)?;
        let is_interrupted = with.is_interrupted;
        with.is_interrupted = &|| false;
        let mut waits = in_flight == InFlight::Wait;
        while self.publishing.is_some() {
            self.pump(&mut with, is_interrupted)?;
            if waits && self.publishing.is_some() && is_interrupted() {
                with.generator.publish(publication, InFlight::Abort)?;
                waits = false;
            }
        }
        // What waited for them. Between two steps nothing ends.
        self.run(&mut with, false)?;
        Ok(())
    }

    /// Generates, scores and judges until the machine says how the step ends.
    pub fn collect(&mut self, mut with: Dependencies<'_>) -> Result<Collected, DispatchError> {
        self.tokens_told = with.generator.load().num_generated_tokens;
        self.has_observed = false;
        // What is left of the step before comes first.
        let mut ended = self.run(&mut with, true)?;
        if ended.is_none() {
            self.tell(Event::BeginStep)?;
        }
        loop {
            if ended.is_none() {
                ended = self.run(&mut with, true)?;
            }
            match ended {
                Some(collected) => return Ok(collected),
                None => self.pump(&mut with, &|| false)?,
            }
        }
    }

    /// Ends the run between steps: says where the groups still held go.
    pub fn cancel(&mut self, mut with: Dependencies<'_>) -> Result<Collected, DispatchError> {
        self.tell(Event::Cancelled)?;
        self.run(&mut with, false)?.ok_or(DispatchError::UnknownGroup(self.next_group))
    }

    /// Tells the machine what happened and takes its commands in.
    fn tell(&mut self, event: Event) -> Result<(), DispatchError> {
        let commands = self.machine.handle(event)?;
        self.commands.extend(commands);
        Ok(())
    }

    /// Carries out the commands that there are; how the step ended, where it did. What comes with the end (groups that generate while the step is
    /// trained) is carried out before it is told.
    fn run(&mut self, with: &mut Dependencies<'_>, draws: bool) -> Result<Option<Collected>, DispatchError> {
        let mut collected = None;
        while let Some(command) = self.commands.pop_front() {
            if collected.is_some() && is_end(&command) {
                self.commands.push_front(command);
                break;
            }
            match command {
                Command::NextEpoch { epoch } => {
                    with.source.next_epoch();
                    with.observer.epoch_begins(epoch);
                }
                Command::Draw { step, round, num_prompts } => {
                    // The first round of a step may be the one in which they arrive again: a run that ended for want of them is resumed so.
                    if draws
                        && self.has_observed
                        && collected.is_none()
                        && let Some(missing) = self.reward_health.missing(with.scorer.rewards())
                    {
                        return Err(DispatchError::MissingRewards(Box::new(missing)));
                    }
                    self.dispatch(with, step, round, num_prompts)?;
                }
                Command::Judged { group, verdict } => self.judged(group, verdict)?,
                Command::RoundComplete(report) => with.observer.round_complete(&report),
                Command::Train { step, groups, .. } => with.observer.groups_ready(step, groups.len()),
                Command::Abort { groups } => {
                    for group in groups {
                        self.abort(with, group)?;
                    }
                }
                Command::StepReady(close) | Command::StepClosed(close) => {
                    collected = Some(self.close(with, End::Ready, *close)?);
                }
                Command::SkipStep { why, close } => {
                    collected = Some(self.close(with, End::Skipped(why), *close)?);
                }
                Command::Finish { why, close } => {
                    collected = Some(self.close(with, End::Finished(why), *close)?);
                }
                Command::Stop { diagnosis, close } => {
                    collected = Some(self.close(with, End::Stopped(diagnosis), *close)?);
                }
            }
        }
        if matches!(collected, Some(Collected { end: End::Finished(_) | End::Stopped(_), .. })) {
            self.hear_out(with)?;
        }
        Ok(collected)
    }

    /// Waits a little for the last word of groups that were given up at the end of the run: what they cost is counted.
    fn hear_out(&mut self, with: &mut Dependencies<'_>) -> Result<(), DispatchError> {
        let until = Instant::now() + LAST_WORD;
        while !self.flights.is_empty() && Instant::now() < until {
            let events = with.generator.next(Wait::Until(until))?;
            let is_over = events.is_empty() && with.generator.load().in_flight == 0;
            for event in events {
                self.take_event(with, event)?;
            }
            if is_over || (with.is_interrupted)() {
                break;
            }
        }
        Ok(())
    }

    fn is_by_rounds(&self) -> bool {
        self.machine.goes_by_rounds()
    }

    /// The open round that a draw goes to: its own, or as many groups of a stream as a round has.
    fn round_for(&mut self, step: u64, round: u64, is_by_rounds: bool) -> u64 {
        if let Some((serial, last)) = self.rounds.last_key_value()
            && !last.is_drawn
            && (!is_by_rounds || (last.step, last.round) == (step, round))
        {
            return *serial;
        }
        let serial = self.next_round;
        self.next_round += 1;
        self.rounds.insert(serial, Round::of(step, round));
        serial
    }

    fn add_to_round(&mut self, serial: u64, group: GroupId) -> usize {
        let round = self.rounds.entry(serial).or_default();
        round.groups.push(group);
        round.num_open += 1;
        round.groups.len() - 1
    }

    /// Draws prompts and starts a group for each.
    fn dispatch(
        &mut self,
        with: &mut Dependencies<'_>,
        step: u64,
        round: u64,
        num_prompts: usize,
    ) -> Result<(), DispatchError> {
        let is_by_rounds = self.is_by_rounds();
        let drawn = with.source.draw(num_prompts);
        let num_rounds = self.next_round;
        let serial = self.round_for(step, round, is_by_rounds);
        let window = self.machine.settings().gen_batch_size.max(1);
        if is_by_rounds {
            with.observer.round_begins(step, round, drawn.prompts.len());
        } else if self.next_round > num_rounds {
            with.observer.round_begins(step, round, window);
        }
        let mut ids = Vec::with_capacity(drawn.prompts.len());
        for DrawnPrompt { epoch, prompt } in drawn.prompts {
            let id = GroupId(self.next_group);
            self.next_group += 1;
            ids.push(id);
            let group = Group {
                id,
                prompt: prompt.prompt.id,
                epoch,
                dispatched: self.version,
                prompt_token_ids: prompt.token_ids.to_vec(),
                trajectories: Vec::new(),
            };
            let record = Record {
                group,
                prompt,
                step,
                round,
                values: Vec::new(),
                final_rewards: None,
                logged: Vec::new(),
                reference: None,
                fate: Fate::Carried,
            };
            let samples: Vec<SampleId> =
                (0..self.settings.group_size as u32).map(|member| SampleId::of_member(id, member)).collect();
            for sample in &samples {
                with.generator.submit(self.request(*sample, &record))?;
            }
            let place = self.add_to_round(serial, id);
            let members = samples.into_iter().map(Member::Sampling).collect();
            let flight = Flight { members, ..Flight::of(serial, place) };
            self.flights.insert(id, flight);
            self.held.insert(id, record);
        }
        let exhausted = drawn.exhausted;
        self.tell(Event::Dispatched { groups: ids, version: self.version, exhausted })?;
        // A round that goes over the end of an epoch is drawn in parts, and looked at whole: a filter may compare all its groups.
        let goes_on = |command: &Command| matches!(command, Command::Draw { step: s, round: r, .. } if (*s, *r) == (step, round));
        let num_groups = self.rounds.get(&serial).map_or(0, |round| round.groups.len());
        let is_drawn = if is_by_rounds { !self.commands.iter().any(goes_on) } else { num_groups >= window };
        if is_drawn {
            self.close_round(with, serial)?;
        }
        Ok(())
    }

    fn request(&self, id: SampleId, record: &Record) -> SampleRequest {
        let key = Key::new(self.settings.seed, Purpose::Rollout)
            .with(record.group.epoch)
            .with(record.group.prompt.0)
            .with(u64::from(id.member));
        SampleRequest {
            id,
            prompt_token_ids: record.prompt.token_ids.clone(),
            key,
            sampling: self.sampling.clone(),
        }
    }

    /// Waits until something happens, and takes it in; `is_ending`: a publication need not be confirmed any more.
    fn pump(
        &mut self,
        with: &mut Dependencies<'_>,
        is_ending: &dyn Fn() -> bool,
    ) -> Result<(), DispatchError> {
        self.ask_again(with)?;
        if self.inbox.of_groups.is_empty() && self.scored.is_empty() {
            self.scored.extend(with.scorer.next(Wait::No)?);
        }
        if self.inbox.of_groups.is_empty() && self.scored.is_empty() {
            self.wait(with, is_ending)?;
        }
        // What an event makes the machine want is carried out before the next one; only a publication comes before draws.
        while self.commands.is_empty() || self.publishing.is_some() {
            if let Some(event) = self.inbox.of_groups.pop_front() {
                self.take_event(with, event)?;
            } else if let Some(event) = self.scored.pop_front() {
                self.take_score(with, event)?;
            } else {
                // What was scored on the spot, too.
                self.scored.extend(with.scorer.next(Wait::No)?);
                if self.scored.is_empty() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Waits for the generator, or for reward functions, or for both.
    fn wait(
        &mut self,
        with: &mut Dependencies<'_>,
        is_ending: &dyn Fn() -> bool,
    ) -> Result<(), DispatchError> {
        let is_generating = with.generator.load().in_flight > 0 || self.publishing.is_some();
        let is_scoring = with.scorer.is_busy();
        let soon = || Wait::Until(Instant::now() + LOOK_EVERY);
        if is_generating || !is_scoring {
            let events = with.generator.next(if is_scoring { soon() } else { Wait::Forever })?;
            self.inbox.of_groups.extend(events);
            self.scored.extend(with.scorer.next(Wait::No)?);
        } else {
            self.scored.extend(with.scorer.next(soon())?);
            self.inbox.of_groups.extend(with.generator.next(Wait::No)?);
        }
        if (with.is_interrupted)() {
            return Err(DispatchError::Interrupted);
        }
        let is_quiet = self.inbox.of_groups.is_empty() && self.scored.is_empty() && !with.scorer.is_busy();
        if is_quiet && with.generator.load().in_flight == 0 && self.again.is_empty() {
            if let Some(version) = self.publishing.filter(|_| is_ending()) {
                // Servers that take their time are not waited for where nothing is sampled any more: a resume publishes anew.
                self.inbox.of_groups.push_back(GeneratorEvent::Published { version });
                return Ok(());
            }
            return Err(self.stuck());
        }
        Ok(())
    }

    /// Nothing goes on, and something is waited for.
    fn stuck(&self) -> DispatchError {
        let is_sampling = |member: &&Member| matches!(member, Member::Sampling(_));
        let members = || self.flights.values().flat_map(|flight| &flight.members);
        let num_samples = members().filter(is_sampling).count();
        if let Some(version) = self.publishing {
            let reason = format!(
                "version {} of the weights was given to it, and it does not say that it has them",
                version.0
            );
            return GeneratorError::Broken { reason }.into();
        }
        if num_samples > 0 {
            let reason = format!("{num_samples} samples are in flight and none of them goes on");
            return GeneratorError::Broken { reason }.into();
        }
        DispatchError::Schedule(ScheduleError::Unexpected {
            event: "begin_step",
            phase: "waiting for an event that nobody sends",
        })
    }

    /// Asks for samples anew that were given up without anybody here wanting that, and for what resumed groups lack.
    fn ask_again(&mut self, with: &mut Dependencies<'_>) -> Result<(), DispatchError> {
        if self.publishing.is_some() {
            return Ok(());
        }
        for id in std::mem::take(&mut self.again) {
            let is_waited_for = self.member(id).is_ok_and(|member| *member == Member::Sampling(id));
            if let Some(record) = self.held.get(&GroupId(id.group)).filter(|_| is_waited_for) {
                with.generator.submit(self.request(id, record))?;
            }
        }
        // Members that a resumed group has are scored; what was said of them before is in the journal where it matters.
        let mut rounds = BTreeSet::new();
        for id in std::mem::take(&mut self.resumed) {
            let Some(flight) = self.flights.get(&id) else { continue };
            rounds.insert(flight.round);
            if !flight.is_on() {
                self.group_settled(with, id)?;
                continue;
            }
            let sampled = flight.members.iter().enumerate().filter(|(_, member)| **member == Member::Sampled);
            let members: Vec<u32> = sampled.map(|(member, _)| member as u32).collect();
            for member in members {
                self.member_ended(with, id, member);
            }
        }
        for serial in rounds {
            self.close_round(with, serial)?;
        }
        Ok(())
    }

    /// The member that a number means, whatever its attempt.
    fn member(&self, id: SampleId) -> Result<&Member, Unexpected> {
        let flight = self.flights.get(&GroupId(id.group)).ok_or(if id.group < self.next_group {
            Unexpected::Late
        } else {
            Unexpected::Foreign
        })?;
        flight.members.get(id.member as usize).filter(|_| id.turn == 0).ok_or(Unexpected::Foreign)
    }

    /// Whether somebody waits for an answer to this.
    fn expect(&self, id: SampleId) -> Result<(), Unexpected> {
        if id.purpose != SamplePurpose::Rollout {
            let asked = self.inbox.num_prompts.get(&id.purpose).copied().unwrap_or(0);
            return Err(if id.group < asked { Unexpected::Late } else { Unexpected::Foreign });
        }
        match self.member(id)? {
            Member::Sampling(expected) if *expected == id => Ok(()),
            Member::Sampling(expected) if id.attempt > expected.attempt => Err(Unexpected::Foreign),
            Member::Sampling(_) | Member::Lost => Err(Unexpected::Late),
            Member::Sampled | Member::Scored if id.attempt >= MOST_ATTEMPTS => Err(Unexpected::Foreign),
            Member::Sampled | Member::Scored => Err(Unexpected::Duplicate),
        }
    }

    fn take_event(
        &mut self,
        with: &mut Dependencies<'_>,
        event: GeneratorEvent,
    ) -> Result<(), DispatchError> {
        let (id, outcome) = match event {
            GeneratorEvent::Published { version } if self.publishing == Some(version) => {
                self.publishing = None;
                return self.published(version);
            }
            GeneratorEvent::Published { .. } => {
                self.inbox.ignored.count(Unexpected::Foreign);
                return Ok(());
            }
            GeneratorEvent::Sampled { id, mut sample } if self.has_logprobs(&sample) => {
                sample.logprobs.resize(sample.token_ids.len(), f32::NAN);
                (id, Outcome::Sampled(sample))
            }
            // Nothing is trained on whose log-probabilities are not known.
            GeneratorEvent::Sampled { id, sample } => {
                let (given, num_tokens) = (sample.logprobs.len(), sample.token_ids.len());
                let reason = format!("it came with {given} log-probabilities for {num_tokens} tokens");
                (id, Outcome::Failed(reason, num_tokens as u64))
            }
            GeneratorEvent::Failed { id, reason, num_tokens, .. } => {
                (id, Outcome::Failed(reason, num_tokens))
            }
            GeneratorEvent::Aborted { id, num_tokens } => (id, Outcome::Aborted(num_tokens)),
        };
        if let Err(why) = self.expect(id) {
            self.inbox.ignored.count(why);
            return Ok(());
        }
        let group = GroupId(id.group);
        self.arrivals += 1;
        let arrival = self.arrivals;
        let Some(flight) = self.flights.get_mut(&group) else { return Ok(()) };
        let is_on = flight.is_on();
        flight.num_tokens += outcome.num_tokens();
        flight.arrival = arrival;
        let Some(member) = flight.members.get_mut(id.member as usize) else { return Ok(()) };
        match outcome {
            Outcome::Sampled(sample) if is_on => {
                *member = Member::Sampled;
                self.keep_sample(group, id.member, sample);
                self.member_ended(with, group, id.member);
            }
            Outcome::Aborted(_) if is_on && id.attempt + 1 < MOST_ATTEMPTS => {
                *member = Member::Sampling(id.again());
                self.again.push(id.again());
            }
            Outcome::Sampled(_) => {
                *member = Member::Lost;
                self.member_ended(with, group, id.member);
            }
            Outcome::Failed(..) | Outcome::Aborted(_) => {
                *member = Member::Lost;
                if is_on {
                    flight.course = Course::Failed;
                    let reason = match outcome {
                        Outcome::Failed(reason, _) => reason,
                        _ => format!("the generator gave it up {MOST_ATTEMPTS} times"),
                    };
                    with.observer.warn(&format!("group {} failed: {reason}", group.0));
                    if let Some(record) = self.held.get_mut(&group) {
                        record.group.trajectories.clear();
                        record.logged.clear();
                        record.fate = Fate::Failed(reason);
                    }
                    self.stop_members(with, group);
                }
                self.member_ended(with, group, id.member);
            }
        }
        let landed = self.flights.get(&group).is_some_and(|flight| !flight.is_on() && flight.has_landed());
        if landed { self.group_settled(with, group) } else { Ok(()) }
    }

    /// Has the generator give up what it has of a group; what was to be asked for again is not.
    fn stop_members(&mut self, with: &mut Dependencies<'_>, group: GroupId) {
        let Some(flight) = self.flights.get_mut(&group) else { return };
        let mut unasked = Vec::new();
        self.again.retain(|id| {
            let is_meant = id.group == group.0;
            if is_meant {
                unasked.push(id.member);
            }
            !is_meant
        });
        for member in unasked {
            if let Some(member) = flight.members.get_mut(member as usize) {
                *member = Member::Lost;
            }
        }
        if !flight.has_landed() {
            with.generator.abort(AbortScope::Group { purpose: SamplePurpose::Rollout, group: group.0 });
        }
    }

    /// Gives a group up.
    fn abort(&mut self, with: &mut Dependencies<'_>, group: GroupId) -> Result<(), DispatchError> {
        let Some(flight) = self.flights.get_mut(&group) else { return Ok(()) };
        flight.course = Course::Aborted;
        self.stop_members(with, group);
        let landed = self.flights.get(&group).is_some_and(Flight::has_landed);
        if landed { self.group_settled(with, group) } else { Ok(()) }
    }

    /// Whether every token has its log-probability, or will have it from the learner.
    fn has_logprobs(&self, sample: &Sample) -> bool {
        let is_left_to_learner = self.settings.recomputes_logprobs && sample.logprobs.is_empty();
        is_left_to_learner || sample.logprobs.len() == sample.token_ids.len()
    }

    /// Puts a sample into its group.
    fn keep_sample(&mut self, group: GroupId, member: u32, sample: Sample) {
        let Some(record) = self.held.get_mut(&group) else { return };
        let trajectory = Trajectory {
            versions: sample.version_range(),
            sample_index: member,
            loss_mask: vec![true; sample.token_ids.len()],
            text: format!("{}{}", record.prompt.continued, sample.text),
            token_ids: sample.token_ids,
            logprobs: sample.logprobs,
            entropy: sample.entropy,
            finish_reason: sample.finish_reason,
            scores: BTreeMap::new(),
            reward: f64::NAN,
        };
        let trajectories = &mut record.group.trajectories;
        let place = trajectories.partition_point(|other| other.sample_index < member);
        trajectories.insert(place, trajectory);
    }

    /// The generator is done with a member: whatever is to be scored with it is handed to the scorer.
    fn member_ended(&mut self, with: &mut Dependencies<'_>, group: GroupId, member: u32) {
        let Some(flight) = self.flights.get(&group) else { return };
        let (serial, size) = (flight.round, self.settings.group_size);
        if !self.is_by_rounds() {
            let requests: Vec<ScoreRequest> = self.score_request(group, member).into_iter().collect();
            if !requests.is_empty() {
                with.scorer.submit(requests);
            }
            return;
        }
        let place = flight.place * size + member as usize;
        let batch_size = with.scorer.rewards().batch_size();
        let Some(round) = self.rounds.get_mut(&serial) else { return };
        if let Some(places) = round.end(place, batch_size, size) {
            self.submit_scores(with, serial, &places);
        }
    }

    fn submit_scores(&mut self, with: &mut Dependencies<'_>, serial: u64, places: &[usize]) {
        let Some(round) = self.rounds.get(&serial) else { return };
        let size = self.settings.group_size.max(1);
        let members =
            places.iter().filter_map(|place| Some((*round.groups.get(place / size)?, place % size)));
        let requests: Vec<ScoreRequest> =
            members.filter_map(|(group, member)| self.score_request(group, member as u32)).collect();
        if !requests.is_empty() {
            with.scorer.submit(requests);
        }
    }

    /// A member to be scored; `None` where it is lost.
    fn score_request(&self, group: GroupId, member: u32) -> Option<ScoreRequest> {
        let flight = self.flights.get(&group).filter(|flight| flight.is_on())?;
        if flight.members.get(member as usize) != Some(&Member::Sampled) {
            return None;
        }
        let record = self.held.get(&group)?;
        let trajectories = &record.group.trajectories;
        let place = trajectories.binary_search_by_key(&member, |trajectory| trajectory.sample_index).ok()?;
        let trajectory = &trajectories[place];
        Some(ScoreRequest {
            member: (group, member),
            key: format!("rollout/{}/{member}", group.0),
            prompt: record.prompt.prompt.clone(),
            completion: trajectory.text.clone(),
            completion_ids: trajectory.token_ids.clone(),
            step: record.step,
            epoch: record.group.epoch,
        })
    }

    /// No more groups come to a round.
    fn close_round(&mut self, with: &mut Dependencies<'_>, serial: u64) -> Result<(), DispatchError> {
        let (is_by_rounds, size) = (self.is_by_rounds(), self.settings.group_size);
        let batch_size = with.scorer.rewards().batch_size();
        let Some(round) = self.rounds.get_mut(&serial) else { return Ok(()) };
        let places = round.close(batch_size, size);
        if let Some(places) = places.filter(|_| is_by_rounds) {
            self.submit_scores(with, serial, &places);
        }
        self.round_settled(with, serial)
    }

    fn take_score(&mut self, with: &mut Dependencies<'_>, event: ScoreEvent) -> Result<(), DispatchError> {
        let ScoreEvent { request, scored, is_new } = event;
        let (group, member) = request.member;
        let is_by_rounds = self.is_by_rounds();
        // A group that failed or was given up meanwhile needs it no more.
        let Some(flight) = self.flights.get_mut(&group).filter(|flight| flight.is_on()) else {
            return Ok(());
        };
        let (serial, size) = (flight.round, self.settings.group_size);
        match flight.members.get_mut(member as usize) {
            Some(state) if *state == Member::Sampled => *state = Member::Scored,
            _ => return Ok(()),
        }
        let is_complete = flight.is_complete();
        let Some(record) = self.held.get_mut(&group) else { return Ok(()) };
        let trajectories = &mut record.group.trajectories;
        let place = trajectories.binary_search_by_key(&member, |trajectory| trajectory.sample_index);
        let Some(trajectory) = place.ok().and_then(|place| trajectories.get_mut(place)) else {
            return Ok(());
        };
        trajectory.reward = scored.reward.value;
        trajectory.scores.clone_from(&scored.scores);
        // The trained reward's finer numbers (process rewards) travel under its own name.
        trajectory.scores.insert("reward".to_owned(), Score::clone(&scored.reward));
        let value = if is_by_rounds { None } else { self.machine.settings().metric.of_member(trajectory) };
        if !scored.logged.is_empty() {
            record.logged.resize(size, Logged::default());
            if let Some(logged) = record.logged.get_mut(member as usize) {
                logged.clone_from(&scored.logged);
            }
        }
        if let Some(round) = self.rounds.get_mut(&serial) {
            round.rows.insert((group, member), Row { scored, is_new });
        }
        if is_complete {
            return self.group_settled(with, group);
        }
        if !is_by_rounds {
            // Before the filter looks at rewards after a KL penalty, nothing is certain.
            let value = value.filter(|_| with.reference.is_none());
            self.tell(Event::Sampled { group, value })?;
        }
        Ok(())
    }

    /// A group has come to something: all of its members are scored, or the generator has none of them any more.
    fn group_settled(&mut self, with: &mut Dependencies<'_>, group: GroupId) -> Result<(), DispatchError> {
        let Some(flight) = self.flights.get_mut(&group) else { return Ok(()) };
        let serial = flight.round;
        let is_news = !std::mem::replace(&mut flight.is_settled, true);
        let is_aborted = flight.course == Course::Aborted;
        if !self.is_by_rounds() || is_aborted {
            self.tell_of(with, &[group])?;
        }
        if let Some(round) = self.rounds.get_mut(&serial).filter(|_| is_news) {
            round.num_open -= 1;
            let total = with.generator.load().num_generated_tokens;
            let num_tokens = total.saturating_sub(std::mem::replace(&mut self.tokens_told, total));
            with.observer.groups_finished(round.groups.len() - round.num_open, num_tokens);
        }
        self.round_settled(with, serial)
    }

    /// Looks at a round that is whole: whether its rewards arrive; by rounds the machine hears of its groups now.
    fn round_settled(&mut self, with: &mut Dependencies<'_>, serial: u64) -> Result<(), DispatchError> {
        if !self.rounds.get(&serial).is_some_and(|round| round.is_drawn && round.num_open == 0) {
            return Ok(());
        }
        let Some(round) = self.rounds.remove(&serial) else { return Ok(()) };
        self.observe(with, &round)?;
        if self.is_by_rounds() {
            self.tell_of(with, &round.groups)?;
        }
        Ok(())
    }

    /// Tells the machine of groups that have settled: complete ones in the order in which their generation ended, then failed ones.
    fn tell_of(&mut self, with: &mut Dependencies<'_>, groups: &[GroupId]) -> Result<(), DispatchError> {
        let settled: Vec<(GroupId, Flight)> =
            groups.iter().filter_map(|id| Some((*id, self.flights.remove(id)?))).collect();
        let complete: Vec<GroupId> =
            settled.iter().filter(|(_, flight)| flight.is_on()).map(|(id, _)| *id).collect();
        self.pass_reference(with, &complete)?;
        let (mut complete, lost): (Vec<_>, Vec<_>) =
            settled.into_iter().partition(|(_, flight)| flight.is_on());
        complete.sort_by_key(|(_, flight)| flight.arrival);
        for (id, _) in complete {
            let record = self.held.get_mut(&id).ok_or(DispatchError::UnknownGroup(id.0))?;
            let metric = &self.machine.settings().metric;
            record.values = metric_values(metric, &record.group, record.final_rewards.as_deref())?;
            let (values, facts) = (record.values.clone(), GroupFacts::of(&record.group));
            self.tell(Event::Scored { group: id, values, facts })?;
        }
        for (group, flight) in lost {
            let num_tokens = flight.num_tokens;
            match flight.course {
                Course::Failed => self.tell(Event::Failed { group, num_tokens })?,
                Course::Aborted => self.tell(Event::Aborted { group, num_tokens })?,
                Course::On => {}
            }
        }
        Ok(())
    }

    /// Takes the rewards of a round's complete groups in.
    fn observe(&mut self, with: &mut Dependencies<'_>, round: &Round) -> Result<(), DispatchError> {
        let mut inputs = Vec::new();
        let mut rows: Vec<&Row> = Vec::new();
        for id in &round.groups {
            let of_group = || round.rows.range((*id, 0)..=(*id, u32::MAX));
            let Some(record) = self.held.get(id) else { continue };
            if of_group().count() != record.group.trajectories.len() {
                continue;
            }
            for (trajectory, (_, row)) in record.group.trajectories.iter().zip(of_group()) {
                inputs.push(RewardInput {
                    prompt: &record.prompt.prompt,
                    completion: &trajectory.text,
                    messages: None,
                    completion_ids: &trajectory.token_ids,
                    step: record.step,
                    epoch: record.group.epoch,
                    trainer_state: TrainerState::default(),
                });
                rows.push(row);
            }
        }
        if !self.is_by_rounds() && inputs.is_empty() {
            return Ok(());
        }
        self.has_observed = true;
        let scored: Vec<Scored> = rows.iter().map(|row| row.scored.clone()).collect();
        let is_missing = self.reward_health.observe(with.scorer.rewards(), &inputs, &scored);
        let new: Vec<(&RewardInput<'_>, &Scored)> = inputs
            .iter()
            .zip(&rows)
            .filter(|(_, row)| row.is_new)
            .map(|(input, row)| (input, &row.scored))
            .collect();
        let warnings = with.scorer.rewards().warnings(&new);
        drop(inputs);
        let proven = if is_missing { Ok(()) } else { self.prove_metric(&scored, with.observer) };
        with.observer.scored(&scored);
        for warning in warnings {
            with.observer.warn(&warning);
        }
        // What fails here can be looked at with its scores.
        proven
    }

    /// Fails where the completions of the first rounds were scored and none of them has the score that the filter looks at. One round may by
    /// chance hold only sources that do not give it, which is a warning.
    fn prove_metric(&mut self, scored: &[Scored], observer: &mut dyn Observer) -> Result<(), DispatchError> {
        let Metric::Score(name) = &self.machine.settings().metric else { return Ok(()) };
        let answered = || scored.iter().filter(|scored| !scored.reward.value.is_nan());
        if !self.settings.is_metric_unproven {
            return Ok(());
        }
        if answered().any(|scored| scored.scores.contains_key(name)) {
            self.settings.is_metric_unproven = false;
            return Ok(());
        }
        let scores: BTreeSet<&String> = answered().flat_map(|scored| scored.scores.keys()).collect();
        let available = AvailableMetrics { scores: scores.into_iter().cloned().collect(), entropy: true };
        let (metric, names) = (self.machine.settings().metric.to_string(), available.names());
        self.rounds_without_metric += 1;
        if self.rounds_without_metric >= MOST_FAILED_ROUNDS {
            return Err(DispatchError::NoMetric { metric, names });
        }
        observer.warn(&format!(
            "the filter's metric `{metric}` is not among the scores of this round: {}; the run ends after {MOST_FAILED_ROUNDS} such rounds in \
             a row",
            names.join(", ")
        ));
        Ok(())
    }

    /// Runs the reference pass over complete groups, where the filter looks at rewards after the KL penalty.
    fn pass_reference(&mut self, with: &mut Dependencies<'_>, ids: &[GroupId]) -> Result<(), DispatchError> {
        let Some(reference) = &mut with.reference else { return Ok(()) };
        let groups: Vec<&Group> =
            ids.iter().filter_map(|id| self.held.get(id)).map(|record| &record.group).collect();
        if groups.is_empty() {
            return Ok(());
        }
        let pass = reference.pass(&groups)?;
        let passed: Vec<(GroupId, usize)> =
            groups.iter().map(|group| (group.id, group.trajectories.len())).collect();
        let mut first = 0;
        for (id, num_members) in passed {
            let rows = first..first + num_members;
            first = rows.end;
            let record = self.held.get_mut(&id).ok_or(DispatchError::UnknownGroup(id.0))?;
            record.final_rewards = Some(pass.final_rewards[rows.clone()].to_vec());
            record.reference = Some(Ragged::from_rows(rows.map(|row| pass.logprobs.row(row))));
        }
        Ok(())
    }

    /// Notes what the filter said of a group; what becomes of a kept one is known when the step closes.
    fn judged(&mut self, group: GroupId, verdict: Verdict) -> Result<(), DispatchError> {
        let record = self.held.get_mut(&group).ok_or(DispatchError::UnknownGroup(group.0))?;
        if let Verdict::Dropped(reason) = verdict {
            record.fate = Fate::Dropped(reason);
        }
        Ok(())
    }

    /// Hands over the groups that leave the machine.
    fn close(
        &mut self,
        with: &mut Dependencies<'_>,
        end: End,
        close: StepClose,
    ) -> Result<Collected, DispatchError> {
        if !self.is_by_rounds() {
            self.observe_rest(with)?;
        }
        let given_back = close
            .returned
            .iter()
            .filter_map(|id| self.held.get(id))
            .map(|record| DrawnPrompt { epoch: record.group.epoch, prompt: record.prompt.clone() });
        let given_back: Vec<DrawnPrompt> = given_back.collect();
        if !given_back.is_empty() {
            with.source.give_back(given_back);
        }
        let mut take = |ids: &[GroupId], fate: &Fate| -> Result<Vec<Record>, DispatchError> {
            ids.iter()
                .map(|id| {
                    let mut record = self.held.remove(id).ok_or(DispatchError::UnknownGroup(id.0))?;
                    record.fate = fate.clone();
                    Ok(record)
                })
                .collect()
        };
        let trained = take(&close.trained, &Fate::Trained)?;
        let mut others = take(&close.surplus, &Fate::Surplus)?;
        others.extend(take(&close.stale, &Fate::Stale)?);
        let mut aborted = take(&close.aborted, &Fate::Aborted)?;
        for record in &mut aborted {
            // A part of a group is none.
            record.group.trajectories.clear();
            record.logged.clear();
        }
        others.extend(aborted);
        // What the machine does not hold and has not named was dropped or failed, and says so itself.
        let stays: BTreeSet<GroupId> = self.machine.held().collect();
        let is_gone = |id: &GroupId| !stays.contains(id);
        let rest: Vec<GroupId> = self.held.keys().copied().filter(is_gone).collect();
        for id in rest {
            others.extend(self.held.remove(&id));
        }
        others.sort_by_key(|record| record.group.id);
        Ok(Collected { end, report: close.report, trained, others, carried_out: close.carried })
    }

    /// Looks at the rewards of what has settled of a stream at the end of a step, after which the groups are gone; the rest is looked at with what
    /// comes.
    fn observe_rest(&mut self, with: &mut Dependencies<'_>) -> Result<(), DispatchError> {
        for (serial, round) in std::mem::take(&mut self.rounds) {
            self.observe(with, &round)?;
            let is_open = |id: &GroupId| self.flights.get(id).is_some_and(|flight| !flight.is_settled);
            let open: Vec<GroupId> = round.groups.iter().copied().filter(is_open).collect();
            if open.is_empty() {
                continue;
            }
            let rows = round.rows.into_iter().filter(|((group, _), _)| open.contains(group)).collect();
            let mut rest = Round::of(round.step, round.round);
            (rest.num_open, rest.rows, rest.groups) = (open.len(), rows, open);
            self.rounds.insert(serial, rest);
        }
        Ok(())
    }
}

/// What a request of a group came to.
enum Outcome {
    Sampled(Sample),
    Failed(String, u64),
    Aborted(u64),
}

impl Outcome {
    /// Completion tokens spent on it.
    fn num_tokens(&self) -> u64 {
        match self {
            Self::Sampled(sample) => sample.token_ids.len() as u64,
            Self::Failed(_, num_tokens) | Self::Aborted(num_tokens) => *num_tokens,
        }
    }
}
