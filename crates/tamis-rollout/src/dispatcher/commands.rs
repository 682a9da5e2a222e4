//! Carries out the scheduling machine's commands: draws prompts, aborts groups, hands over a step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tamis_core::filter::{DropReason, Verdict};
use tamis_core::group::{Group, GroupId};
use tamis_core::random::{Key, Purpose};
use tamis_core::schedule::selector::JudgedGroup;
use tamis_core::schedule::{Command, Event, StepClose};

use super::flight::{Course, GroupFlight, MemberState};
use super::replay::Taken;
use super::round::Round;
use super::{Dependencies, DispatchError, Dispatcher, Next};
use crate::generator::{AbortScope, SampleId, SampleRequest, Wait};
use crate::record::{Collected, End, Fate, Generation, Record};
use crate::source::DrawnPrompt;

/// Longest wait, at the end of a run, for the last event of samples that were aborted.
const LAST_WORD: Duration = Duration::from_secs(2);

/// Longest single wait while a recorded order is followed.
const LOOK_EVERY: Duration = Duration::from_millis(50);

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

impl Dispatcher {
    /// Carries out the pending commands. Returns how the step ended, if it did, or the part of it that
    /// was handed out. Commands that come with the end (groups that generate while the step is trained)
    /// are carried out before this returns.
    pub(super) fn run(
        &mut self,
        with: &mut Dependencies<'_>,
        draws: bool,
    ) -> Result<Option<Next>, DispatchError> {
        let mut collected: Option<Collected> = None;
        let mut part: Vec<GroupId> = Vec::new();
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
                    // They may arrive again in the first round of a step, when a run that ended because they
                    // were missing is resumed.
                    if draws
                        && self.has_observed
                        && collected.is_none()
                        && let Some(missing) = self.missing_rewards(with.scorer.rewards())
                    {
                        return Err(DispatchError::MissingRewards(Box::new(missing)));
                    }
                    self.dispatch(with, step, round, num_prompts)?;
                }
                Command::Continue { group } => self.begin_rest(with, group)?,
                Command::Judged { group, verdict } => self.note_verdict(group, verdict)?,
                Command::RoundComplete(report) => with.observer.round_complete(&report),
                Command::Train { step, groups, .. } => {
                    with.observer.groups_ready(step, groups.len());
                    if self.settings.hands_out_parts {
                        part.extend(groups);
                    }
                }
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
        if let Some(collected) = collected {
            // Parts that come with the end are trained on with the rest.
            if matches!(collected.end, End::Finished(_) | End::Stopped(_)) {
                self.hear_out(with)?;
            }
            return Ok(Some(Next::Step(Box::new(collected))));
        }
        let records: Vec<Record> = part.iter().filter_map(|id| self.held.get(id)).cloned().collect();
        Ok((!records.is_empty()).then_some(Next::Part(records)))
    }

    /// Waits a little for the last events of aborted groups, so that their cost is counted. At the end
    /// of a run only aborted groups are in flight; between two steps the other groups settle as usual.
    pub(super) fn hear_out(&mut self, with: &mut Dependencies<'_>) -> Result<(), DispatchError> {
        let until = Instant::now() + LAST_WORD;
        let is_unheard = |flight: &GroupFlight| flight.course == Course::Aborted;
        while self.flights.values().any(is_unheard) {
            while let Some(arrival) = self.next_arrival() {
                self.take(with, arrival)?;
            }
            if !self.flights.values().any(is_unheard) {
                break;
            }
            self.scored.extend(with.scorer.next(Wait::No)?);
            let is_late = self.replay.is_over() && Instant::now() >= until;
            let until = if self.replay.is_over() { until } else { Instant::now() + LOOK_EVERY };
            let events = if is_late { Vec::new() } else { with.generator.next(Wait::Until(until))? };
            let is_silent =
                events.is_empty() && with.generator.load().in_flight == 0 && !with.scorer.is_busy();
            if events.is_empty() && !is_late {
                // A generator that is asked to stop reports it at once.
                std::thread::sleep(Duration::from_millis(1));
            }
            self.inbox.of_groups.extend(events);
            if is_silent && !self.replay.is_over() && !self.has_arrival() {
                self.stop_following(with)?;
            } else if (with.is_interrupted)() {
                break;
            } else if is_late || (is_silent && self.replay.is_over()) {
                self.hear_no_more_of_aborted(with)?;
            }
        }
        Ok(())
    }

    /// Stops waiting for the last events of aborted groups.
    pub(super) fn hear_no_more_of_aborted(
        &mut self,
        with: &mut Dependencies<'_>,
    ) -> Result<(), DispatchError> {
        let is_unheard = |flight: &GroupFlight| flight.course == Course::Aborted;
        let unheard: Vec<GroupId> =
            self.flights.iter().filter(|(_, flight)| is_unheard(flight)).map(|(id, _)| *id).collect();
        unheard.into_iter().try_for_each(|group| self.hear_no_more(with, group))
    }

    /// Stops waiting for the last event of an aborted group.
    pub(super) fn hear_no_more(
        &mut self,
        with: &mut Dependencies<'_>,
        group: GroupId,
    ) -> Result<(), DispatchError> {
        let Some(flight) = self.flights.get_mut(&group) else { return Ok(()) };
        flight.members.fill(MemberState::Lost);
        self.note(with, &Taken::Unheard { group: group.0 })?;
        self.settle_group(with, group)
    }

    /// Draws prompts and starts a group for each.
    pub(super) fn dispatch(
        &mut self,
        with: &mut Dependencies<'_>,
        step: u64,
        round: u64,
        num_prompts: usize,
    ) -> Result<(), DispatchError> {
        let is_by_rounds = self.is_by_rounds();
        let seen_as = self.beside.as_ref().map_or(step, |beside| beside.step);
        let drawn = with.source.draw(num_prompts, self.version);
        let num_rounds = self.next_round;
        let serial = self.round_for(step, round, is_by_rounds);
        let window = self.machine.settings().gen_batch_size.max(1);
        if is_by_rounds {
            with.observer.round_begins(step, round, drawn.prompts.len());
        } else if self.next_round > num_rounds {
            with.observer.round_begins(step, round, window);
        }
        let mut ids = Vec::with_capacity(drawn.prompts.len());
        for DrawnPrompt { epoch, prompt, inclusion } in drawn.prompts {
            let id = GroupId(self.next_group);
            self.next_group += 1;
            ids.push(id);
            let group = Group {
                id,
                prompt: prompt.prompt.id,
                epoch,
                dispatched: self.version,
                prompt_token_ids: prompt.token_ids.to_vec(),
                images: prompt.images.to_vec(),
                trajectories: Vec::new(),
            };
            let record = Record {
                group,
                prompt,
                step: seen_as,
                round,
                values: Vec::new(),
                final_rewards: None,
                logged: Vec::new(),
                reference: None,
                fate: Fate::Carried,
                kept_in: None,
                generation: Generation::default(),
                inclusion,
            };
            let samples: Vec<SampleId> =
                (0..self.settings.group_size).map(|member| self.sample_id(id, member)).collect();
            let num_first = self.machine.settings().num_first_members();
            let place = self.add_to_round(serial, id);
            let members = samples.iter().enumerate();
            let members =
                members
                    .map(|(place, sample)| {
                        if place < num_first { MemberState::Sampling(*sample) } else { MemberState::Unbegun }
                    })
                    .collect();
            let flight = GroupFlight { members, ..GroupFlight::of(serial, place) };
            self.flights.insert(id, flight);
            self.held.insert(id, record);
            for sample in samples.into_iter().take(num_first) {
                self.ask(with, sample)?;
            }
        }
        let exhausted = drawn.exhausted;
        self.tell(Event::Dispatched { groups: ids, version: self.version, exhausted })?;
        // A round that crosses the end of an epoch is drawn in parts, and examined as a whole: a filter
        // may compare all its groups.
        let goes_on = |command: &Command| matches!(command, Command::Draw { step: s, round: r, .. } if (*s, *r) == (step, round));
        let num_groups = self.rounds.get(&serial).map_or(0, |round| round.groups.len());
        let is_drawn = if is_by_rounds { !self.commands.iter().any(goes_on) } else { num_groups >= window };
        if is_drawn {
            self.close_round(with, serial)?;
        }
        Ok(())
    }

    /// Requests the remaining members of a group.
    pub(super) fn begin_rest(
        &mut self,
        with: &mut Dependencies<'_>,
        group: GroupId,
    ) -> Result<(), DispatchError> {
        let first = self.sample_id(group, 0);
        let flight = self.flights.get_mut(&group).filter(|flight| flight.is_on());
        let Some(flight) = flight else { return Ok(()) };
        let mut begun = Vec::new();
        for (place, member) in flight.members.iter_mut().enumerate() {
            if *member == MemberState::Unbegun {
                let sample = SampleId { member: place as u32, ..first };
                *member = MemberState::Sampling(sample);
                begun.push(sample);
            }
        }
        begun.into_iter().try_for_each(|sample| self.ask(with, sample))
    }

    /// Requests a member of a group, unless it is known to have ended without a completion.
    pub(super) fn ask(&mut self, with: &mut Dependencies<'_>, id: SampleId) -> Result<(), DispatchError> {
        let Some(record) = self.held.get(&GroupId(id.group)) else { return Ok(()) };
        if !self.replay.keeps(id) {
            with.generator.submit(self.request(id, record))?;
            self.asked.push(id);
        }
        Ok(())
    }

    fn request(&self, id: SampleId, record: &Record) -> SampleRequest {
        let seed = self.settings.seed;
        let of_pass = match self.beside {
            None => Key::new(seed, Purpose::Rollout).with(record.group.epoch),
            Some(_) => Key::new(seed, Purpose::Validation),
        };
        let key = of_pass.with(record.group.prompt.0).with(u64::from(id.member));
        SampleRequest {
            id,
            prompt_token_ids: record.prompt.token_ids.clone(),
            images: record.prompt.images.clone(),
            key,
            sampling: self.sampling.clone(),
            prompt: Some(Arc::clone(&record.prompt.prompt)),
        }
    }

    /// The open round that a draw goes to: its own, or as many groups of a stream as a round has.
    pub(super) fn round_for(&mut self, step: u64, round: u64, is_by_rounds: bool) -> u64 {
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

    pub(super) fn add_to_round(&mut self, serial: u64, group: GroupId) -> usize {
        let round = self.rounds.entry(serial).or_default();
        round.groups.push(group);
        round.num_open += 1;
        round.groups.len() - 1
    }

    pub(super) fn abort(&mut self, with: &mut Dependencies<'_>, group: GroupId) -> Result<(), DispatchError> {
        let Some(flight) = self.flights.get_mut(&group) else { return Ok(()) };
        flight.course = Course::Aborted;
        self.stop_members(with, group);
        let landed = self.flights.get(&group).is_some_and(GroupFlight::has_landed);
        if landed { self.settle_group(with, group) } else { Ok(()) }
    }

    /// Aborts a group's samples in the generator and drops its pending retries.
    pub(super) fn stop_members(&mut self, with: &mut Dependencies<'_>, group: GroupId) {
        let purpose = self.purpose();
        let Some(flight) = self.flights.get_mut(&group) else { return };
        let mut unasked = Vec::new();
        self.again.retain(|id| {
            let is_meant = id.group == group.0;
            if is_meant {
                unasked.push(id.member);
            }
            !is_meant
        });
        for member in &unasked {
            if let Some(member) = flight.members.get_mut(*member as usize) {
                *member = MemberState::Lost;
            }
        }
        let has_landed = flight.has_landed();
        for member in unasked {
            self.end_member(with, group, member);
        }
        if !has_landed {
            with.generator.abort(AbortScope::Group { purpose, group: group.0 });
        }
    }

    /// Records the filter's verdict on a group. Whether a kept group is trained on is known when the
    /// step closes.
    pub(super) fn note_verdict(&mut self, group: GroupId, verdict: Verdict) -> Result<(), DispatchError> {
        let record = self.held.get_mut(&group).ok_or_else(|| DispatchError::unknown(group))?;
        if let Verdict::Dropped(reason) = verdict {
            record.fate = Fate::Dropped(reason);
        }
        Ok(())
    }

    /// Outcomes of the groups that were judged since the previous step was closed, in the order of
    /// dispatch, without those whose prompts were returned. A kept group counts in the step in which it
    /// was kept.
    fn judged(&self, close: &StepClose) -> Vec<JudgedGroup> {
        let goes_back: BTreeSet<GroupId> = close.returned.iter().copied().collect();
        let was_kept: BTreeSet<GroupId> =
            close.trained.iter().chain(&close.surplus).chain(&close.carried).copied().collect();
        let is_judged = |record: &&Record| match record.fate {
            Fate::Dropped(_) => true,
            _ => was_kept.contains(&record.group.id) && record.kept_in.is_none(),
        };
        let settings = self.machine.settings();
        let (scale, first) = (settings.metric.outcome_scale(), settings.num_first_members());
        let judged = self.held.values().filter(is_judged);
        judged
            .filter(|record| !goes_back.contains(&record.group.id))
            .map(|record| JudgedGroup::of(&record.group, &record.values, first, scale, record.inclusion))
            .collect()
    }

    /// Hands over the groups that leave the machine.
    pub(super) fn close(
        &mut self,
        with: &mut Dependencies<'_>,
        end: End,
        close: StepClose,
    ) -> Result<Collected, DispatchError> {
        if !self.is_by_rounds() {
            self.observe_rest(with)?;
        }
        let given_back = close.returned.iter().filter_map(|id| self.held.get(id)).map(|record| DrawnPrompt {
            epoch: record.group.epoch,
            prompt: record.prompt.clone(),
            inclusion: record.inclusion,
        });
        let given_back: Vec<DrawnPrompt> = given_back.collect();
        if !given_back.is_empty() {
            with.source.give_back(given_back);
        }
        with.source.learn(&self.judged(&close));
        let dropped_for: BTreeMap<GroupId, DropReason> = close
            .kept_when_insufficient
            .iter()
            .filter_map(|id| match self.held.get(id)?.fate {
                Fate::Dropped(reason) => Some((*id, reason)),
                _ => None,
            })
            .collect();
        let mut take = |ids: &[GroupId], fate: &Fate| -> Result<Vec<Record>, DispatchError> {
            ids.iter()
                .map(|id| {
                    let mut record = self.held.remove(id).ok_or_else(|| DispatchError::unknown(*id))?;
                    record.fate = fate.clone();
                    Ok(record)
                })
                .collect()
        };
        let mut trained = take(&close.trained, &Fate::Trained)?;
        for record in &mut trained {
            if let Some(reason) = dropped_for.get(&record.group.id) {
                record.fate = Fate::KeptWhenInsufficient(*reason);
            }
        }
        let copies: Vec<Record> = close
            .duplicated
            .iter()
            .filter_map(|id| trained.iter().find(|record| record.group.id == *id))
            .map(|record| Record { fate: Fate::Duplicated, ..record.clone() })
            .collect();
        trained.extend(copies);
        let mut others = take(&close.surplus, &Fate::Surplus)?;
        others.extend(take(&close.stale, &Fate::Stale)?);
        let mut aborted = take(&close.aborted, &Fate::Aborted)?;
        for record in &mut aborted {
            // A part of a group does not count.
            record.group.trajectories.clear();
            record.logged.clear();
        }
        others.extend(aborted);
        // A group that the machine neither holds nor has named was dropped or failed, and reports that
        // itself.
        let stays: BTreeSet<GroupId> = self.machine.held().collect();
        let is_gone = |id: &GroupId| !stays.contains(id);
        let rest: Vec<GroupId> = self.held.keys().copied().filter(is_gone).collect();
        for id in rest {
            others.extend(self.held.remove(&id));
        }
        others.sort_by_key(|record| record.group.id);
        for id in &close.carried {
            if let Some(record) = self.held.get_mut(id) {
                record.kept_in.get_or_insert(close.report.step);
            }
        }
        Ok(Collected { end, report: close.report, trained, others, carried_out: close.carried })
    }
}
