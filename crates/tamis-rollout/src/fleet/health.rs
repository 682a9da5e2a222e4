//! Decides which servers are used: faults, checks, missing weights, and waiting if none is left.

use std::time::{Duration, Instant};

use super::member::{FleetMember, State};
use super::{Fleet, FleetMessage, LOOK_UP_EVERY, SAY_EVERY};
use crate::generator::{FailureKind, GeneratorError, SampleId};
use crate::server::ServerReport;
use crate::wire::{Fault, FaultClass};

impl Fleet {
    /// Takes out a server with too many failed samples in a row. Fewer are enough if the faults are the
    /// server's own than if its answers are not samples.
    pub(super) fn doubt(&mut self, place: usize, fault: Fault, now: Instant) {
        let is_harmless = matches!(fault.class, FaultClass::Paused | FaultClass::Busy);
        if is_harmless || fault.class.kind() == FailureKind::Permanent {
            return;
        }
        let member = &mut self.members[place];
        let (count, most) = if fault.class.is_of_server() {
            (&mut member.faults, self.settings.most_faults)
        } else {
            (&mut member.bad_answers, self.settings.most_bad_answers)
        };
        *count += 1;
        let are_too_many = *count >= most;
        if member.state != State::Usable {
            return;
        }
        if fault.class == FaultClass::StaleWeights {
            // Its other samples in flight use those weights too.
            member.holds = None;
            self.lose(place, fault, now);
        } else if are_too_many || matches!(fault.class, FaultClass::Connect | FaultClass::OtherLogprobs) {
            member.says_other |= fault.class == FaultClass::OtherLogprobs;
            // Its samples in flight may still arrive; a check decides.
            self.set_aside(place, fault, now);
        }
    }

    pub(super) fn set_aside(&mut self, place: usize, fault: Fault, now: Instant) {
        let longest = self.settings.longest_pause;
        let member = &mut self.members[place];
        let pause = Duration::from_secs(1).saturating_mul(1 << member.times_out.min(20)).min(longest);
        member.times_out += 1;
        member.state = State::Out { until: now + pause };
        let is_new = member.last_fault.as_ref().map(|last| last.class) != Some(fault.class);
        member.last_fault = Some(fault.clone());
        if is_new {
            let server = member.server.name().to_owned();
            (self.say)(FleetMessage::Lost { server, fault });
        }
    }

    /// Takes a server out, and retries its samples elsewhere.
    pub(super) fn lose(&mut self, place: usize, fault: Fault, now: Instant) {
        let mut dropped = self.members[place].server.drop_all();
        dropped.sort_unstable();
        let member = &mut self.members[place];
        (member.is_checking, member.is_publishing) = (false, false);
        self.set_aside(place, fault.clone(), now);
        let fault = Fault { num_tokens: 0, ..fault };
        for id in dropped {
            if let Some(task) = self.end_attempt(place, id) {
                self.retry(task, place, &fault, now);
            }
        }
    }

    pub(super) fn note_check(&mut self, place: usize, result: Result<ServerReport, Fault>, now: Instant) {
        let current = self.version();
        let member = &mut self.members[place];
        (member.is_checking, member.was_checked) = (false, true);
        member.next_check = now + self.settings.check_every;
        match result {
            Ok(report) => {
                member.limit.learn(&report.figures, member.in_flight);
                let is_back = member.state != State::Usable;
                let is_other = report.holds_current == Some(false);
                // A server that was away may have been restarted. If it cannot report that itself, it
                // gets the weights again.
                if is_other || (is_back && member.last_fault.is_some() && report.holds_current.is_none()) {
                    member.holds = None;
                }
                if is_back {
                    member.state = State::Usable;
                    (member.faults, member.bad_answers) = (0, 0);
                } else if is_other {
                    let detail =
                        "its weights have another name: it was restarted, or another program changed them";
                    self.lose(place, Fault::new(FaultClass::StaleWeights, detail), now);
                    return;
                }
                if self.members[place].holds == current {
                    self.welcome(place);
                }
            }
            Err(fault) => {
                *self.counts.servers.entry(fault.class).or_default() += 1;
                member.faults += 1;
                // A busy server may be slow to answer a health check.
                let is_patient = fault.class == FaultClass::TimedOut
                    && member.state == State::Usable
                    && member.faults < self.settings.most_faults;
                if !is_patient {
                    self.lose(place, fault, now);
                }
            }
        }
    }

    /// A server is used.
    pub(super) fn welcome(&mut self, place: usize) {
        let member = &mut self.members[place];
        let is_news = member.last_fault.take().is_some();
        if is_news {
            let server = member.server.name().to_owned();
            (self.say)(FleetMessage::Back { server });
        }
    }

    /// Puts those in the place of servers that were started again at another address.
    pub(super) fn look_who_moved(&mut self, now: Instant) {
        let Some((moves, next)) = self.moves.as_mut().filter(|(_, next)| *next <= now) else { return };
        *next = now + LOOK_UP_EVERY;
        for (place, server) in moves() {
            let Some(member) = self.members.get_mut(place) else { continue };
            let (from, to) = (member.server.name().to_owned(), server.name().to_owned());
            let fault = Fault::new(FaultClass::Reset, format!("it was restarted and now answers at {to}"));
            // The message about the move reports that it is lost.
            member.last_fault = Some(fault.clone());
            (self.say)(FleetMessage::Moved { from, to });
            self.lose(place, fault.clone(), now);
            // Samples that it had finished and not yet reported are lost with it.
            let unsaid = self.tasks.iter().filter(|(_, task)| task.member == Some(place));
            let mut unsaid: Vec<SampleId> = unsaid.map(|(&id, _)| id).collect();
            unsaid.sort_unstable();
            for id in unsaid {
                if let Some(task) = self.end_attempt(place, id) {
                    self.retry(task, place, &fault, now);
                }
            }
            let member = &mut self.members[place];
            // Nothing that is known about the old server applies to it. Until it has sampled it counts as one
            // that was taken out, so no publication waits for it.
            *member = FleetMember {
                times_out: 1,
                last_fault: member.last_fault.take(),
                ..FleetMember::new(server, self.settings.max_in_flight, now)
            };
        }
    }

    /// Checks that are due, weights that servers lack, servers that are drained.
    pub(super) fn look_after(&mut self, now: Instant) {
        let current = self.current.clone();
        for member in &mut self.members {
            let is_due = match member.state {
                State::Usable => member.next_check <= now,
                State::Out { until } => until <= now,
            };
            if is_due && !member.is_checking && !member.is_publishing {
                member.is_checking = true;
                member.server.check();
            }
            if let Some((publication, in_flight)) = &current
                && member.state == State::Usable
                && !member.is_publishing
                && !member.is_checking
                && member.holds != Some(publication.version)
            {
                member.is_publishing = true;
                member.server.publish(publication, *in_flight, now);
            }
            if member.is_draining && member.in_flight == 0 && member.state == State::Usable {
                // Out permanently.
                member.state = State::Out { until: now + Duration::from_secs(u64::from(u32::MAX)) };
                (self.say)(FleetMessage::Drained { server: member.server.name().to_owned() });
            }
        }
    }

    /// Reports that no server is left, and fails after the time limit.
    pub(super) fn complain(&mut self, now: Instant) -> Result<(), GeneratorError> {
        let current = self.version();
        // One that lives and was taken out before is of no use until it holds the weights.
        let is_left = self.members.iter().any(|member| {
            let is_new = member.state == State::Usable && !member.is_draining && member.times_out == 0;
            // A server with useless log-probabilities still answers checks.
            is_new || (member.takes(current) && !member.says_other)
        });
        let is_wanted = !self.tasks.is_empty() || !self.unanswered.is_empty();
        if is_left || !is_wanted {
            self.lost_since = None;
            return Ok(());
        }
        let (since, next) = *self.lost_since.get_or_insert((now, now));
        let for_so_long = now.saturating_duration_since(since);
        if self.settings.give_up_after.is_some_and(|limit| for_so_long >= limit) {
            return Err(GeneratorError::Unreachable { tried: self.describe_servers() });
        }
        if next <= now {
            let tried = self.describe_servers();
            (self.say)(FleetMessage::Waiting { for_so_long, tried });
            self.lost_since = Some((since, now + SAY_EVERY));
        }
        Ok(())
    }

    /// Each server with its last state.
    pub(super) fn describe_servers(&self) -> Vec<String> {
        let one = |member: &FleetMember| match &member.last_fault {
            _ if member.is_draining => format!("{}: drained", member.server.name()),
            Some(fault) => format!("{}: {fault}", member.server.name()),
            None => format!("{}: no answer yet", member.server.name()),
        };
        if self.members.is_empty() {
            vec!["no server is configured".to_owned()]
        } else {
            self.members.iter().map(one).collect()
        }
    }
}
