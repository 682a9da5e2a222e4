//! Which server a sample goes to, and when it is asked for again.

use std::time::Instant;

use super::Fleet;
use super::member::{Member, Task};
use crate::generator::{FailureKind, GeneratorEvent, SampleId};
use crate::wire::Fault;

impl Fleet {
    /// Takes the attempt from its server; `None` where there is no such attempt there.
    pub(super) fn end_attempt(&mut self, place: usize, id: SampleId) -> Option<Task> {
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
            *num -= 1;
            if *num == 0 {
                self.homes.remove(&home);
            }
        }
        Some(task)
    }

    /// Asks again, or lets it fail.
    pub(super) fn retry(&mut self, mut task: Task, place: usize, fault: &Fault, now: Instant) {
        *self.counts.samples.entry(fault.class).or_default() += 1;
        task.spent += fault.num_tokens;
        let is_last = task.attempts >= self.settings.max_attempts;
        if task.is_given_up || fault.class.kind() == FailureKind::Permanent || is_last {
            self.attempts.remove(&task.id);
            let (id, num_tokens) = (task.id, task.spent);
            self.events.push(if task.is_given_up {
                GeneratorEvent::Aborted { id, num_tokens }
            } else {
                let times = if task.attempts == 1 {
                    String::new()
                } else {
                    format!(" after {} attempts", task.attempts)
                };
                let reason = format!("{}{times}: {fault}", self.members[place].server.name());
                GeneratorEvent::Failed { id, kind: fault.class.kind(), reason, num_tokens }
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

    /// Sends what waits to servers with room.
    pub(super) fn dispatch(&mut self) {
        let current = self.version();
        if !self.unanswered.is_empty() {
            // Submitted after the publication or not, it is sampled by the new weights.
            let may_begin = self.members.iter().any(|member| member.takes(current));
            if !may_begin {
                return;
            }
        }
        let mut room: usize =
            self.members.iter().filter(|member| member.takes(current)).map(Member::room).sum();
        while room > 0 {
            let Some(attempt) = self.queue.pop_front() else { return };
            // Given up while it waited, or asked for again under the same id and sent already.
            let Some(task) = self.tasks.get_mut(&attempt).filter(|task| task.member.is_none()) else {
                continue;
            };
            let fits =
                |place: usize, members: &[Member]| members[place].takes(current) && members[place].room() > 0;
            let home = self.homes.get(&(attempt.purpose, attempt.group)).map(|&(place, _)| place);
            let home = home.filter(|&place| fits(place, &self.members) && task.avoid != Some(place));
            let least = |avoid: Option<usize>| {
                (0..self.members.len())
                    .filter(|&place| fits(place, &self.members) && avoid != Some(place))
                    .min_by_key(|&place| self.members[place].in_flight)
            };
            let Some(place) = home.or_else(|| least(task.avoid)).or_else(|| least(None)) else {
                self.queue.push_front(attempt);
                return;
            };
            task.member = Some(place);
            task.attempts += 1;
            let home = self.homes.entry((attempt.purpose, attempt.group)).or_insert((place, 0));
            if home.0 == place {
                home.1 += 1;
            }
            let member = &mut self.members[place];
            member.in_flight += 1;
            member.server.submit(task.request.clone());
            room -= 1;
        }
    }
}
