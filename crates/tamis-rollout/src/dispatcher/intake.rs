//! Takes in a generator's events, one at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use tamis_core::fault;
use tamis_core::group::{GroupId, PolicyVersion, Trajectory};
use tamis_core::schedule::{ScheduleError, Spent};
use tamis_env::reward::Scored;

use super::flight::{Course, GroupFlight, MemberState};
use super::replay::{Arrival, SampleEnd, Taken};
use super::round::ScoredMember;
use super::{Dependencies, DispatchError, Dispatcher};
use crate::generator::{FailureKind, GeneratorError, GeneratorEvent, Sample, SampleId, Wait};
use crate::inbox::Unexpected;
use crate::record::{Fate, Record};

/// Longest single wait for the generator while reward functions are waited for, too.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A sample fails if the generator aborts it this often without a request from here.
const MOST_ATTEMPTS: u32 = 8;

impl Dispatcher {
    /// Puts held groups that the machine waits for back into flight, with the members they have.
    pub(super) fn take_off_again(&mut self) {
        let (size, is_by_rounds) = (self.settings.group_size, self.is_by_rounds());
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
                let members = vec![MemberState::Lost; size];
                let (course, generation) = (Course::Failed, record.generation);
                let flight = GroupFlight { members, course, generation, ..GroupFlight::of(serial, place) };
                self.flights.insert(id, flight);
                self.resumed.push(id);
                continue;
            }
            let num_begun = self.machine.num_begun(id).unwrap_or(size);
            let mut members: Vec<MemberState> = (0..size)
                .map(|member| {
                    let sample = self.sample_id(id, member);
                    if member < num_begun { MemberState::Sampling(sample) } else { MemberState::Unbegun }
                })
                .collect();
            let mut rows = Vec::new();
            for trajectory in &record.group.trajectories {
                let Some(member) = members.get_mut(trajectory.sample_index as usize) else { continue };
                *member = MemberState::Sampled;
                // A round is examined when it is complete, with its members' scores at that time.
                if let Some(row) = scored_before(record, trajectory).filter(|_| !is_by_rounds) {
                    *member = MemberState::Scored;
                    rows.push(((id, trajectory.sample_index), row));
                }
            }
            if let Some(round) = self.rounds.get_mut(&serial) {
                round.rows.extend(rows);
            }
            let missing = members.iter().filter_map(|member| match member {
                MemberState::Sampling(sample) => Some(*sample),
                _ => None,
            });
            self.again.extend(missing);
            let flight =
                GroupFlight { members, generation: record.generation, ..GroupFlight::of(serial, place) };
            self.flights.insert(id, flight);
            self.resumed.push(id);
        }
    }

    /// Waits until something happens, and takes it in; `is_ending`: a publication need not be confirmed any
    /// more.
    pub(super) fn pump(
        &mut self,
        with: &mut Dependencies<'_>,
        is_ending: &dyn Fn() -> bool,
    ) -> Result<(), DispatchError> {
        self.ask_again(with)?;
        if !self.has_arrival() {
            self.scored.extend(with.scorer.next(Wait::No)?);
        }
        if !self.has_arrival() {
            self.wait(with, is_ending)?;
        }
        // The commands that follow from an event are carried out before the next event; only a
        // publication comes before draws.
        while self.commands.is_empty() || self.publishing.is_some() {
            if !self.has_arrival() {
                // Scores that were computed on the spot are included.
                self.scored.extend(with.scorer.next(Wait::No)?);
            }
            match self.next_arrival() {
                Some(arrival) => self.take(with, arrival)?,
                None => break,
            }
        }
        Ok(())
    }

    pub(super) fn take(
        &mut self,
        with: &mut Dependencies<'_>,
        arrival: Arrival,
    ) -> Result<(), DispatchError> {
        let taken = match arrival {
            Arrival::Event(event) => self.take_event(with, event),
            Arrival::Score(event) => self.take_score(with, event),
            Arrival::Unheard(group) => self.hear_no_more(with, group),
        };
        self.is_replaying = false;
        taken
    }

    /// Waits for the generator, or for reward functions, or for both.
    pub(super) fn wait(
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
            return Ok(());
        }
        let is_quiet = !self.has_arrival() && !with.scorer.is_busy();
        if !self.has_arrival() && is_ending() {
            // A generator that is being stopped may be silent for a while, and may also return at once.
            std::thread::sleep(LOOK_EVERY);
        }
        // Retries wait for the publication.
        let is_asked = self.again.is_empty() || (self.publishing.is_some() && is_ending());
        if is_quiet && with.generator.load().in_flight == 0 && is_asked {
            let is_to_come = |version: &PolicyVersion| {
                !self.inbox.of_groups.contains(&GeneratorEvent::Published { version: *version })
            };
            if let Some(version) = self.publishing.filter(is_to_come) {
                // If the run is ending, slow servers are not waited for: a resume publishes again.
                // Otherwise they are waited for, even if all samples are already here (read back from
                // the journal, for instance).
                if is_ending() {
                    self.inbox.of_groups.push_back(GeneratorEvent::Published { version });
                }
                return Ok(());
            }
            if !self.replay.is_over() {
                return self.stop_following(with);
            }
            return Err(self.stuck());
        }
        Ok(())
    }

    /// Something is waited for, and nothing is in progress.
    pub(super) fn stuck(&self) -> DispatchError {
        let is_sampling = |member: &&MemberState| matches!(member, MemberState::Sampling(_));
        let members = || self.flights.values().flat_map(|flight| &flight.members);
        let num_samples = members().filter(is_sampling).count();
        if num_samples > 0 {
            let reason =
                format!("{num_samples} samples are in flight and the generator returns none of them");
            return GeneratorError::stopped(reason).into();
        }
        ScheduleError::Fault(fault!(
            "event `begin_step` came while the scheduler was waiting for an event that nobody sends"
        ))
        .into()
    }

    /// Requests again what the generator aborted by itself, and what resumed groups lack.
    pub(super) fn ask_again(&mut self, with: &mut Dependencies<'_>) -> Result<(), DispatchError> {
        if self.publishing.is_some() {
            return Ok(());
        }
        for id in std::mem::take(&mut self.again) {
            let is_waited_for = self.member(id).is_ok_and(|member| *member == MemberState::Sampling(id));
            if is_waited_for {
                self.ask(with, id)?;
            }
        }
        // Members that a resumed group already has are scored. Scores that are not reproducible are in
        // the journal.
        let mut rounds = BTreeSet::new();
        for id in std::mem::take(&mut self.resumed) {
            let Some(flight) = self.flights.get(&id) else { continue };
            rounds.insert(flight.round);
            // The previous process did not finish this.
            if flight.is_complete() {
                self.settle_group(with, id)?;
                continue;
            }
            if flight.is_screened() {
                self.screen(with, id)?;
                continue;
            }
            if !flight.is_on() {
                // Those beside it in a batch of the reward functions wait for no member of it.
                for member in 0..self.settings.group_size as u32 {
                    self.end_member(with, id, member);
                }
                self.settle_group(with, id)?;
                continue;
            }
            let sampled =
                flight.members.iter().enumerate().filter(|(_, member)| **member == MemberState::Sampled);
            let members: Vec<u32> = sampled.map(|(member, _)| member as u32).collect();
            for member in members {
                self.end_member(with, id, member);
            }
        }
        // A stream's groups are examined together with the next dispatched ones.
        let is_by_rounds = self.is_by_rounds();
        for serial in rounds.into_iter().filter(|_| is_by_rounds) {
            self.close_round(with, serial)?;
        }
        Ok(())
    }

    /// The member that a number means, whatever its attempt.
    pub(super) fn member(&self, id: SampleId) -> Result<&MemberState, Unexpected> {
        let flight = self.flights.get(&GroupId(id.group)).ok_or(if id.group < self.next_group {
            Unexpected::Late
        } else {
            Unexpected::Foreign
        })?;
        flight.members.get(id.member as usize).filter(|_| id.turn == 0).ok_or(Unexpected::Foreign)
    }

    /// Whether the answer to this sample is expected.
    pub(super) fn expect(&self, id: SampleId) -> Result<(), Unexpected> {
        if id.purpose != self.purpose() {
            let asked = self.inbox.num_prompts.get(&id.purpose).copied().unwrap_or(0);
            return Err(if id.group < asked { Unexpected::Late } else { Unexpected::Foreign });
        }
        match self.member(id)? {
            MemberState::Sampling(expected) if *expected == id => Ok(()),
            MemberState::Sampling(expected) if id.attempt > expected.attempt => Err(Unexpected::Foreign),
            MemberState::Unbegun => Err(Unexpected::Foreign),
            MemberState::Sampling(_) | MemberState::Lost => Err(Unexpected::Late),
            MemberState::Sampled | MemberState::Scored if id.attempt >= MOST_ATTEMPTS => {
                Err(Unexpected::Foreign)
            }
            MemberState::Sampled | MemberState::Scored => Err(Unexpected::Duplicate),
        }
    }

    pub(super) fn take_event(
        &mut self,
        with: &mut Dependencies<'_>,
        event: GeneratorEvent,
    ) -> Result<(), DispatchError> {
        if self.beside.is_some() && event.id().is_none_or(|id| id.purpose != self.purpose()) {
            self.inbox.of_others.push_back(event);
            return Ok(());
        }
        let (id, outcome) = match event {
            GeneratorEvent::Published { version } if self.publishing == Some(version) => {
                self.publishing = None;
                self.note(with, &Taken::Published { version })?;
                return self.note_published(version);
            }
            GeneratorEvent::Published { .. } => {
                self.inbox.ignored.count(Unexpected::Foreign);
                return Ok(());
            }
            GeneratorEvent::Sampled { id, mut sample } if self.has_logprobs(&sample) => {
                sample.logprobs.resize(sample.token_ids.len(), f32::NAN);
                (id, RequestEnd::Sampled(sample))
            }
            // A sample is trained on only if its log-probabilities are known.
            GeneratorEvent::Sampled { id, sample } => {
                let (given, num_tokens) = (sample.logprobs.len(), sample.token_ids.len());
                let reason = format!("the sample has {given} log-probabilities for {num_tokens} tokens");
                (id, RequestEnd::Failed(FailureKind::Permanent, reason, sample.spent()))
            }
            GeneratorEvent::Failed { id, kind, reason, spent } => {
                (id, RequestEnd::Failed(kind, reason, spent))
            }
            GeneratorEvent::Aborted { id, spent } => (id, RequestEnd::Aborted(spent)),
        };
        if let Err(why) = self.expect(id) {
            self.inbox.ignored.count(why);
            return Ok(());
        }
        self.note(with, &Taken::Sample { id, end: outcome.end() })?;
        if let RequestEnd::Failed(kind, ..) = &outcome {
            self.inbox.faults.count(*kind);
        }
        let group = GroupId(id.group);
        self.arrivals += 1;
        let arrival = self.arrivals;
        let Some(flight) = self.flights.get_mut(&group) else { return Ok(()) };
        let is_on = flight.is_on();
        flight.generation.spend(outcome.spent());
        flight.generation.arrival = arrival;
        if let Some(record) = self.held.get_mut(&group) {
            record.generation = flight.generation;
        }
        let Some(member) = flight.members.get_mut(id.member as usize) else { return Ok(()) };
        match outcome {
            RequestEnd::Sampled(sample) if is_on => {
                *member = MemberState::Sampled;
                self.keep_sample(group, id.member, sample);
                self.end_member(with, group, id.member);
            }
            RequestEnd::Aborted(_) if is_on && id.attempt + 1 < MOST_ATTEMPTS => {
                *member = MemberState::Sampling(id.again());
                self.again.push(id.again());
            }
            RequestEnd::Sampled(_) => {
                *member = MemberState::Lost;
                self.end_member(with, group, id.member);
            }
            RequestEnd::Failed(..) | RequestEnd::Aborted(_) => {
                *member = MemberState::Lost;
                if is_on {
                    flight.course = Course::Failed;
                    let reason = match outcome {
                        RequestEnd::Failed(_, reason, _) => reason,
                        _ => format!("the generator aborted the sample {MOST_ATTEMPTS} times"),
                    };
                    if let Some(record) = self.held.get_mut(&group) {
                        with.observer.group_failed(group.0, &record.prompt.prompt.data_source, &reason);
                        record.group.trajectories.clear();
                        record.logged.clear();
                        record.fate = Fate::Failed(reason);
                    }
                    self.stop_members(with, group);
                }
                self.end_member(with, group, id.member);
            }
        }
        let landed = self.flights.get(&group).is_some_and(|flight| !flight.is_on() && flight.has_landed());
        if landed { self.settle_group(with, group) } else { Ok(()) }
    }

    /// Whether every token has its log-probability, or will have it from the learner.
    fn has_logprobs(&self, sample: &Sample) -> bool {
        let is_left_to_learner = self.settings.recomputes_logprobs && sample.logprobs.is_empty();
        is_left_to_learner || sample.logprobs.len() == sample.token_ids.len()
    }

    pub(super) fn keep_sample(&mut self, group: GroupId, member: u32, sample: Sample) {
        let Some(record) = self.held.get_mut(&group) else { return };
        let trajectory = sample.into_trajectory(member, &record.prompt.continued);
        let trajectories = &mut record.group.trajectories;
        let place = trajectories.partition_point(|other| other.sample_index < member);
        trajectories.insert(place, trajectory);
    }
}

/// The score that a member got before the state of the run was saved; `None` without one. Which
/// functions had failed on it is no longer known.
fn scored_before(record: &Record, trajectory: &Trajectory) -> Option<ScoredMember> {
    let mut scores = trajectory.scores.clone();
    let reward = scores.remove("reward")?;
    let logged = record.logged.get(trajectory.sample_index as usize).cloned().unwrap_or_default();
    let failures = BTreeMap::new();
    Some(ScoredMember {
        scored: Scored { reward, scores, failures, logged, is_beyond: false },
        is_new: false,
    })
}

enum RequestEnd {
    Sampled(Sample),
    Failed(FailureKind, String, Spent),
    Aborted(Spent),
}

impl RequestEnd {
    fn end(&self) -> SampleEnd {
        match self {
            Self::Sampled(_) => SampleEnd::Sampled,
            Self::Failed(kind, reason, spent) => {
                SampleEnd::Failed { kind: *kind, reason: reason.clone(), spent: *spent }
            }
            Self::Aborted(spent) => SampleEnd::Aborted { spent: *spent },
        }
    }

    fn spent(&self) -> Spent {
        match self {
            Self::Sampled(sample) => sample.spent(),
            Self::Failed(_, _, spent) | Self::Aborted(spent) => *spent,
        }
    }
}
