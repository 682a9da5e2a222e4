//! Chooses a server for each sample, and the time when it is asked for again.

use std::time::Instant;

use tamis_core::schedule::Spent;

use super::member::SampleJob;
use super::{Fleet, FleetMessage, SAY_EVERY};
use crate::generator::{FailureKind, GeneratorEvent, SampleId};
use crate::wire::{Fault, FaultClass};

/// Number of groups whose server is remembered while none of their samples is in flight.
const MOST_LEFT_HOMES: usize = 4096;

impl Fleet {
    /// Takes the attempt from its server; `None` if it has no such attempt.
    pub(super) fn end_attempt(&mut self, place: usize, id: SampleId) -> Option<SampleJob> {
        if self.tasks.get(&id).is_none_or(|task| task.member != Some(place)) {
            self.counts.num_unknown += 1;
            return None;
        }
        let task = self.tasks.remove(&id)?;
        self.members[place].in_flight -= 1;
        let home = (id.purpose, id.group);
        if let Some((at, num)) = self.homes.get_mut(&home)
            && *at == place
        {
            // One that went elsewhere while its home was full may end after the home moved there.
            let was_busy = *num > 0;
            *num = num.saturating_sub(1);
            if was_busy && *num == 0 {
                // The next turn of an episode finds its beginning in the cache there.
                self.left_homes.push_back(home);
                if self.left_homes.len() > MOST_LEFT_HOMES
                    && let Some(oldest) = self.left_homes.pop_front()
                    && self.homes.get(&oldest).is_some_and(|(_, num)| *num == 0)
                {
                    self.homes.remove(&oldest);
                }
            }
        }
        Some(task)
    }

    /// Sends nothing to a full server for a while, and fewer at once from then on.
    fn spare(&mut self, place: usize, fault: &Fault, now: Instant) {
        // A server that asks for an immediate retry has turned a request away all the same.
        let wanted = fault.retry_after.unwrap_or_default().max(self.settings.first_pause);
        let pause = wanted.min(self.settings.busy_timeout);
        let member = &mut self.members[place];
        // Samples that were in flight with the one that was turned away are no new evidence.
        if member.quiet_until.is_none() {
            member.limit.halve();
            if member.said_busy.is_none_or(|last| now.saturating_duration_since(last) >= SAY_EVERY) {
                member.said_busy = Some(now);
                let (server, limit) = (member.server.name().to_owned(), member.limit.get());
                (self.say)(FleetMessage::TurnedAway { server, fault: fault.clone(), limit });
            }
        }
        member.quiet_until = member.quiet_until.max(Some(now + pause));
    }

    /// Retries a sample, or lets it fail.
    pub(super) fn retry(&mut self, mut task: SampleJob, place: usize, fault: &Fault, now: Instant) {
        *self.counts.samples.entry(fault.class).or_default() += 1;
        task.spent += Spent::on_answer(fault.num_tokens);
        if fault.class == FaultClass::Busy {
            self.spare(place, fault, now);
            let since = *task.turned_away.get_or_insert(now);
            if !task.is_given_up && now.saturating_duration_since(since) < self.settings.busy_timeout {
                task.attempts -= 1;
                task.member = None;
                self.queue.push_front(task.request.id);
                self.tasks.insert(task.request.id, task);
                return;
            }
        }
        if fault.class == FaultClass::OtherLogprobs && !task.is_given_up {
            // It was not sent, so this does not count.
            task.attempts -= 1;
            (task.member, task.avoid) = (None, Some(place));
            self.queue.push_front(task.request.id);
            self.tasks.insert(task.request.id, task);
            return;
        }
        task.turned_away = None;
        let is_last = task.attempts >= self.settings.max_attempts;
        if task.is_given_up || fault.class.kind() == FailureKind::Permanent || is_last {
            self.attempts.remove(&task.id);
            let (id, spent) = (task.id, task.spent);
            self.events.push(if task.is_given_up {
                GeneratorEvent::Aborted { id, spent }
            } else {
                let times = if task.attempts == 1 {
                    String::new()
                } else {
                    format!(" after {} attempts", task.attempts)
                };
                let reason = format!("{}{times}: {fault}", self.members[place].server.name());
                GeneratorEvent::Failed { id, kind: fault.class.kind(), reason, spent }
            });
            return;
        }
        let doubled = self.settings.first_pause.saturating_mul(1 << (task.attempts - 1).min(20));
        // A draw of the request's own that no token uses.
        let share = 0.5 + 0.5 * task.request.key.uniform(u64::MAX - u64::from(task.attempts));
        let at = now + doubled.min(self.settings.longest_pause).mul_f64(share);
        let mut attempt = task.request.id.again();
        while self.tasks.contains_key(&attempt) {
            attempt = attempt.again();
        }
        task.request.id = attempt;
        task.member = None;
        task.avoid = Some(place);
        self.attempts.insert(task.id, attempt);
        self.tasks.insert(attempt, task);
        self.num_pauses += 1;
        self.pausing.insert((at, self.num_pauses), attempt);
    }

    /// Sends waiting samples to servers with room.
    pub(super) fn dispatch(&mut self) {
        let current = self.version();
        if !self.unanswered.is_empty() {
            // Submitted after the publication or not, it is sampled by the new weights.
            let may_begin = self.members.iter().any(|member| member.takes(current));
            if !may_begin {
                return;
            }
        }
        let takers: Vec<usize> =
            (0..self.members.len()).filter(|&place| self.members[place].takes(current)).collect();
        let mut room: usize = takers.iter().map(|&place| self.members[place].room()).sum();
        let mut left = Vec::new();
        while room > 0 {
            let Some(attempt) = self.queue.pop_front() else { break };
            // Aborted while it waited, or requested again under the same id and sent already.
            let Some(task) = self.tasks.get_mut(&attempt).filter(|task| task.member.is_none()) else {
                continue;
            };
            let members = &self.members;
            // It is retried at the server that failed only if no other server will soon have room.
            let takes = |place: &usize| members[*place].quiet_until.is_none();
            let avoid = task.avoid.filter(|avoid| takers.iter().any(|place| place != avoid && takes(place)));
            let fits = |&place: &usize| members[place].room() > 0 && avoid != Some(place);
            let home = self.homes.get(&(attempt.purpose, attempt.group)).map(|&(place, _)| place);
            let home = home.filter(|place| takers.contains(place) && fits(place));
            let least = || {
                let places = takers.iter().copied().filter(fits);
                places.min_by_key(|&place| members[place].in_flight)
            };
            let Some(place) = home.or_else(least) else {
                left.push(attempt);
                continue;
            };
            task.member = Some(place);
            task.attempts += 1;
            let home = self.homes.entry((attempt.purpose, attempt.group)).or_insert((place, 0));
            if home.1 == 0 {
                home.0 = place;
            }
            if home.0 == place {
                home.1 += 1;
            }
            let member = &mut self.members[place];
            member.in_flight += 1;
            member.server.submit(task.request.clone());
            room -= 1;
        }
        for attempt in left.into_iter().rev() {
            self.queue.push_front(attempt);
        }
    }
}
