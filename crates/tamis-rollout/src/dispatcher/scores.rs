//! Scores members as they end, and passes groups that have ended to the machine.

use tamis_core::group::{Group, GroupId, Score};
use tamis_core::ragged::Ragged;
use tamis_core::schedule::{Event, GroupFacts};
use tamis_env::reward::Logged;

use super::flight::{Course, GroupFlight, MemberState};
use super::replay::Taken;
use super::round::ScoredMember;
use super::{Dependencies, DispatchError, Dispatcher};
use crate::record::metric_values;
use crate::scorer::{ScoreEvent, ScoreRequest};

impl Dispatcher {
    /// The generator is done with a member: whatever is to be scored with it is handed to the scorer.
    pub(super) fn end_member(&mut self, with: &mut Dependencies<'_>, group: GroupId, member: u32) {
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
        with.observer.member_ended(group);
        let batch_size = self.batch_size(with);
        let Some(round) = self.rounds.get_mut(&serial) else { return };
        if let Some(places) = round.end(place, batch_size, size) {
            self.submit_scores(with, serial, &places);
        }
    }

    /// Completions of a round that are scored together.
    fn batch_size(&self, with: &Dependencies<'_>) -> usize {
        // A list is scored whole: a model that scores has no other batches than its own.
        if self.beside.is_some() { usize::MAX } else { with.scorer.rewards().batch_size() }
    }

    pub(super) fn submit_scores(&mut self, with: &mut Dependencies<'_>, serial: u64, places: &[usize]) {
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

    /// A member to be scored; `None` if it is lost.
    pub(super) fn score_request(&self, group: GroupId, member: u32) -> Option<ScoreRequest> {
        let flight = self.flights.get(&group).filter(|flight| flight.is_on())?;
        if flight.members.get(member as usize) != Some(&MemberState::Sampled) {
            return None;
        }
        let record = self.held.get(&group)?;
        let trajectories = &record.group.trajectories;
        let place = trajectories.binary_search_by_key(&member, |trajectory| trajectory.sample_index).ok()?;
        let trajectory = &trajectories[place];
        let key = match &self.beside {
            // If servers sample, a resumed run may have another completion in its place.
            None => {
                format!("rollout/{}/{member}/{:08x}", group.0, fingerprint(&record.group, &trajectory.text))
            }
            Some(beside) => format!("{}/{}/{member}", beside.journal, record.group.prompt.0),
        };
        let (prompt, epoch) = (record.prompt.prompt.clone(), record.group.epoch);
        Some(ScoreRequest::new(group, key, prompt, trajectory, record.step, epoch))
    }

    pub(super) fn take_score(
        &mut self,
        with: &mut Dependencies<'_>,
        event: ScoreEvent,
    ) -> Result<(), DispatchError> {
        let ScoreEvent { request, scored, is_new } = event;
        let (group, member) = request.member;
        let is_by_rounds = self.is_by_rounds();
        // A group that has failed or was aborted meanwhile no longer needs it.
        let Some(flight) = self.flights.get_mut(&group).filter(|flight| flight.is_on()) else {
            return Ok(());
        };
        let (serial, size) = (flight.round, self.settings.group_size);
        match flight.members.get_mut(member as usize) {
            Some(state) if *state == MemberState::Sampled => *state = MemberState::Scored,
            _ => return Ok(()),
        }
        let (is_complete, is_screened) = (flight.is_complete(), flight.is_screened());
        self.note(with, &Taken::Score { group: group.0, member })?;
        let Some(record) = self.held.get_mut(&group) else { return Ok(()) };
        let trajectories = &mut record.group.trajectories;
        let place = trajectories.binary_search_by_key(&member, |trajectory| trajectory.sample_index);
        let Some(trajectory) = place.ok().and_then(|place| trajectories.get_mut(place)) else {
            return Ok(());
        };
        trajectory.reward = scored.reward.value;
        trajectory.scores.clone_from(&scored.scores);
        if self.beside.is_none() {
            trajectory.scores.insert("reward".to_owned(), Score::clone(&scored.reward));
        }
        let value = if is_by_rounds { None } else { self.machine.settings().metric.of_member(trajectory) };
        if !scored.logged.is_empty() {
            record.logged.resize(size, Logged::default());
            if let Some(logged) = record.logged.get_mut(member as usize) {
                logged.clone_from(&scored.logged);
            }
        }
        if let Some(round) = self.rounds.get_mut(&serial) {
            round.rows.insert((group, member), ScoredMember { scored, is_new });
        }
        if is_complete {
            return self.settle_group(with, group);
        }
        if is_screened {
            return self.screen(with, group);
        }
        if !is_by_rounds {
            // Before the filter looks at rewards after a KL penalty, nothing is certain.
            let value = value.filter(|_| with.reference.is_none());
            self.tell(Event::Sampled { group, value })?;
        }
        Ok(())
    }

    pub(super) fn close_round(
        &mut self,
        with: &mut Dependencies<'_>,
        serial: u64,
    ) -> Result<(), DispatchError> {
        let (is_by_rounds, size) = (self.is_by_rounds(), self.settings.group_size);
        let batch_size = self.batch_size(with);
        let Some(round) = self.rounds.get_mut(&serial) else { return Ok(()) };
        let places = round.close(batch_size, size);
        if let Some(places) = places.filter(|_| is_by_rounds) {
            self.submit_scores(with, serial, &places);
        }
        self.round_settled(with, serial)
    }

    /// A group has ended: all of its members are scored, or none of them is left in the generator.
    pub(super) fn settle_group(
        &mut self,
        with: &mut Dependencies<'_>,
        group: GroupId,
    ) -> Result<(), DispatchError> {
        let Some(flight) = self.flights.get_mut(&group) else { return Ok(()) };
        let serial = flight.round;
        let is_news = !std::mem::replace(&mut flight.is_settled, true);
        let is_aborted = flight.course == Course::Aborted;
        if !self.is_by_rounds() || is_aborted {
            self.tell_of(with, &[group])?;
        }
        if is_news { self.leave_round(with, serial) } else { self.round_settled(with, serial) }
    }

    /// One group less of a round is open.
    fn leave_round(&mut self, with: &mut Dependencies<'_>, serial: u64) -> Result<(), DispatchError> {
        if let Some(round) = self.rounds.get_mut(&serial) {
            round.num_open -= 1;
            with.observer.groups_finished(round.groups.len() - round.num_open);
        }
        self.round_settled(with, serial)
    }

    /// The first members of a group are scored (only they were requested): the machine decides whether
    /// the group continues.
    pub(super) fn screen(
        &mut self,
        with: &mut Dependencies<'_>,
        group: GroupId,
    ) -> Result<(), DispatchError> {
        if !self.machine.awaits(group) {
            // The command that gives it up is on its way.
            return Ok(());
        }
        let record = self.held.get(&group).ok_or_else(|| DispatchError::unknown(group))?;
        let Some(flight) = self.flights.get(&group) else { return Ok(()) };
        let values = metric_values(&self.machine.settings().metric, &record.group, None)?;
        let facts = facts_of(&record.group, flight);
        self.tell(Event::Screened { group, values: values.clone(), facts })?;
        if self.machine.awaits(group) {
            return Ok(());
        }
        if let Some(record) = self.held.get_mut(&group) {
            record.values = values;
        }
        let serial = self.flights.remove(&group).map(|flight| flight.round);
        serial.map_or(Ok(()), |serial| self.leave_round(with, serial))
    }

    /// Examines a complete round: whether its rewards arrive. By rounds the machine now gets its
    /// groups.
    pub(super) fn round_settled(
        &mut self,
        with: &mut Dependencies<'_>,
        serial: u64,
    ) -> Result<(), DispatchError> {
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

    /// Passes settled groups to the machine: complete ones in the order in which their generation
    /// ended, then failed ones.
    pub(super) fn tell_of(
        &mut self,
        with: &mut Dependencies<'_>,
        groups: &[GroupId],
    ) -> Result<(), DispatchError> {
        let is_complete = |id: &&GroupId| self.flights.get(id).is_some_and(GroupFlight::is_on);
        let complete: Vec<GroupId> = groups.iter().filter(is_complete).copied().collect();
        if !self.pass_reference(with, &complete)? {
            return Ok(());
        }
        let settled: Vec<(GroupId, GroupFlight)> =
            groups.iter().filter_map(|id| Some((*id, self.flights.remove(id)?))).collect();
        let (mut complete, lost): (Vec<_>, Vec<_>) =
            settled.into_iter().partition(|(_, flight)| flight.is_on());
        complete.sort_by_key(|(_, flight)| flight.generation.arrival);
        for (id, flight) in complete {
            let record = self.held.get_mut(&id).ok_or_else(|| DispatchError::unknown(id))?;
            let metric = &self.machine.settings().metric;
            record.values = metric_values(metric, &record.group, record.final_rewards.as_deref())?;
            let (values, facts) = (record.values.clone(), facts_of(&record.group, &flight));
            self.tell(Event::Scored { group: id, values, facts })?;
        }
        for (group, flight) in lost {
            let spent = flight.generation.spent();
            match flight.course {
                Course::Failed => self.tell(Event::Failed { group, spent })?,
                Course::Aborted => self.tell(Event::Aborted { group, spent })?,
                Course::On => {}
            }
        }
        Ok(())
    }

    /// Runs the reference pass over complete groups if the filter looks at rewards after the KL
    /// penalty. False if the run is to stop.
    pub(super) fn pass_reference(
        &mut self,
        with: &mut Dependencies<'_>,
        ids: &[GroupId],
    ) -> Result<bool, DispatchError> {
        let Some(reference) = &mut with.reference else { return Ok(true) };
        let groups: Vec<&Group> =
            ids.iter().filter_map(|id| self.held.get(id)).map(|record| &record.group).collect();
        if groups.is_empty() {
            return Ok(true);
        }
        let Some(pass) = reference.pass(&groups)? else { return Ok(false) };
        let passed: Vec<(GroupId, usize)> =
            groups.iter().map(|group| (group.id, group.trajectories.len())).collect();
        let mut first = 0;
        for (id, num_members) in passed {
            let rows = first..first + num_members;
            first = rows.end;
            let record = self.held.get_mut(&id).ok_or_else(|| DispatchError::unknown(id))?;
            record.final_rewards = Some(pass.final_rewards[rows.clone()].to_vec());
            record.reference = Some(Ragged::from_rows(rows.map(|row| pass.logprobs.row(row))));
        }
        Ok(true)
    }
}

/// Facts about the members of a group that are there, and about attempts at them.
fn facts_of(group: &Group, flight: &GroupFlight) -> GroupFacts {
    let facts = GroupFacts::of(group);
    let lost = flight.generation.spent().beyond(facts.spent);
    GroupFacts { num_lost_tokens: lost.tokens, num_lost_turns: lost.turns, ..facts }
}

/// CRC-32 of what a completion answers and of its text.
fn fingerprint(group: &Group, text: &str) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&group.prompt.0.to_le_bytes());
    sum.update(&group.epoch.to_le_bytes());
    sum.update(text.as_bytes());
    sum.finalize()
}
