//! Accounting of every generated group.
//!
//! Groups, trajectories, turns and tokens are counted by the place in which they end. In every step the
//! counts must satisfy one identity; if they do not, something was lost or counted twice.

use std::iter::Sum;
use std::ops::{Add, AddAssign, SubAssign};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::group::Trajectory;

/// An amount generated: completion tokens, and the turns of the policy to which they belong.
/// Completion tokens are all tokens of a trajectory after its prompt, including those that an environment or
/// a tool wrote between two turns. The cost of a trajectory does not depend on whether it completes, fails or
/// is aborted. A turn is one answer of the policy, complete or begun: a single-turn trajectory has one, and a
/// trajectory that was aborted before its first token has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Spent {
    /// Completion tokens.
    #[serde(rename = "num_tokens")]
    pub tokens: u64,
    /// Turns of the policy.
    #[serde(rename = "num_turns", default)]
    pub turns: u64,
}

impl Spent {
    /// A whole trajectory.
    pub fn of(trajectory: &Trajectory) -> Self {
        Self { tokens: trajectory.token_ids.len() as u64, turns: trajectory.num_turns() as u64 }
    }

    /// One answer, as far as it was generated.
    pub fn on_answer(tokens: u64) -> Self {
        Self { tokens, turns: u64::from(tokens > 0) }
    }

    /// The amount by which it exceeds `other`, at least nothing.
    #[must_use]
    pub fn beyond(self, other: Self) -> Self {
        let (tokens, turns) =
            (self.tokens.saturating_sub(other.tokens), self.turns.saturating_sub(other.turns));
        Self { tokens, turns }
    }
}

impl Add for Spent {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        // Made-up numbers of a driver must not stop the run.
        let tokens = self.tokens.saturating_add(other.tokens);
        Self { tokens, turns: self.turns.saturating_add(other.turns) }
    }
}

impl AddAssign for Spent {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for Spent {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}

/// A number of groups, of the trajectories in them, of their turns and of their completion tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Count {
    /// Groups.
    pub groups: u64,
    /// Trajectories.
    pub trajectories: u64,
    /// Turns of the policy in them.
    pub turns: u64,
    /// Completion tokens.
    pub tokens: u64,
}

impl Count {
    /// `groups` groups of `group_size` members, with `spent` as the amount generated for all of them.
    pub fn of(groups: usize, group_size: usize, spent: Spent) -> Self {
        let Spent { tokens, turns } = spent;
        Self { groups: groups as u64, trajectories: (groups * group_size) as u64, turns, tokens }
    }
}

impl AddAssign<Spent> for Count {
    /// Adds what was generated for groups that are counted already.
    fn add_assign(&mut self, spent: Spent) {
        self.turns += spent.turns;
        self.tokens += spent.tokens;
    }
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.groups += other.groups;
        self.trajectories += other.trajectories;
        self.turns += other.turns;
        self.tokens += other.tokens;
    }
}

impl SubAssign for Count {
    /// Takes away what was added before.
    fn sub_assign(&mut self, other: Self) {
        self.groups -= other.groups;
        self.trajectories -= other.trajectories;
        self.turns -= other.turns;
        self.tokens -= other.tokens;
    }
}

/// Members of groups, with their turns and tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Members {
    /// Their number.
    pub trajectories: u64,
    /// Their turns and completion tokens.
    pub spent: Spent,
}

/// Every group ends in exactly one place, and so does every trajectory, every turn and every token:
/// generated + carried in + in flight in = trained + kept when insufficient + left out + dropped + surplus +
/// stale + failed + aborted + carried out + in flight out.
/// A group is never split, so no group is left out: [`Accounting::left_out`] counts members of trained
/// groups. Copies were not generated and are outside the identity ([`Accounting::duplicated`]): the batch is
/// trained + kept when insufficient + duplicated. The turns and tokens of a group are known when it is
/// complete, has failed or was aborted. They count as generated in the step in which they are reported;
/// groups in flight have none so far. If an aborted group stops after its step, they count in the next step,
/// or in the run if there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Accounting {
    /// Dispatched in this step; for turns and tokens, reported in it.
    pub generated: Count,
    /// Kept in an earlier step and carried into this one.
    pub carried_in: Count,
    /// In flight when the step before it was closed.
    pub in_flight_in: Count,
    /// Trained on: groups in the batch, and those of their members that have a loss.
    pub trained: Count,
    /// Dropped by the filter but in the batch because too few groups were kept: whole groups, including
    /// members without loss.
    pub kept_when_insufficient: Count,
    /// Members of trained groups without loss: not chosen by the filter, unscored or masked. No groups.
    pub left_out: Count,
    /// Dropped by the filter, and not in the batch.
    pub dropped: Count,
    /// Kept, not needed and discarded.
    pub surplus: Count,
    /// Carried longer than the bound on lag allows.
    pub stale: Count,
    /// Generation failed for good.
    pub failed: Count,
    /// Aborted before it was judged: the step was full, the group was too old, or the run ended.
    pub aborted: Count,
    /// Kept, not needed and carried to the next step.
    pub carried_out: Count,
    /// Still in flight when the step was closed.
    pub in_flight_out: Count,
    /// Copies of trained groups that fill the batch, one for each further training on a group: whole groups.
    /// Not a part of the identity.
    pub duplicated: Count,
}

/// The accounting identity does not hold: groups were lost or counted twice. This is a fault of the
/// scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "{come} {unit} were generated, carried in or in flight before, but {went} were trained, kept when insufficient, left out, dropped, \
     surplus, stale, failed, aborted, carried out or left in flight"
)]
pub struct Unbalanced {
    /// `groups`, `trajectories`, `turns` or `tokens`.
    pub unit: &'static str,
    /// Generated + carried in + in flight in.
    pub come: u64,
    /// Everything else.
    pub went: u64,
}

impl Accounting {
    /// Whether the identity holds, in groups, in trajectories, in turns and in tokens.
    pub fn check(&self) -> Result<(), Unbalanced> {
        for (unit, number) in [
            ("groups", (|count| count.groups) as fn(Count) -> u64),
            ("trajectories", |count| count.trajectories),
            ("turns", |count| count.turns),
            ("tokens", |count| count.tokens),
        ] {
            let come = number(self.generated) + number(self.carried_in) + number(self.in_flight_in);
            let went = [
                self.trained,
                self.kept_when_insufficient,
                self.left_out,
                self.dropped,
                self.surplus,
                self.stale,
                self.failed,
                self.aborted,
                self.carried_out,
                self.in_flight_out,
            ]
            .into_iter()
            .map(number)
            .sum();
            if come != went {
                return Err(Unbalanced { unit, come, went });
            }
        }
        Ok(())
    }

    /// Moves members of trained groups, with their turns and tokens, from trained to left out; at most as
    /// many as were trained.
    pub fn leave_out(&mut self, members: Members) {
        fn shift(number: u64, from: &mut u64, to: &mut u64) {
            let moved = number.min(*from);
            *from -= moved;
            *to += moved;
        }
        let (trained, left_out) = (&mut self.trained, &mut self.left_out);
        shift(members.trajectories, &mut trained.trajectories, &mut left_out.trajectories);
        shift(members.spent.turns, &mut trained.turns, &mut left_out.turns);
        shift(members.spent.tokens, &mut trained.tokens, &mut left_out.tokens);
    }

    /// Moves dropped groups into the batch.
    pub(super) fn keep_dropped(&mut self, groups: Count) {
        self.dropped -= groups;
        self.kept_when_insufficient += groups;
    }

    /// An aborted group has stopped after `spent`, or an attempt at a member is retried.
    pub(super) fn stop_aborted(&mut self, spent: Spent) {
        self.generated += spent;
        self.aborted += spent;
    }

    /// Appends the next step's accounting: this step's carried-out and in-flight groups must be those that
    /// the next one took in, and cancel.
    pub fn append(&mut self, next: &Self) {
        self.generated += next.generated;
        self.trained += next.trained;
        self.kept_when_insufficient += next.kept_when_insufficient;
        self.left_out += next.left_out;
        self.dropped += next.dropped;
        self.surplus += next.surplus;
        self.stale += next.stale;
        self.failed += next.failed;
        self.aborted += next.aborted;
        self.carried_out = next.carried_out;
        self.in_flight_out = next.in_flight_out;
        self.duplicated += next.duplicated;
    }

    /// The places by name, in the order of the identity, followed by the copies, which are outside it; for
    /// metrics.
    pub fn places(&self) -> [(&'static str, Count); 14] {
        [
            ("generated", self.generated),
            ("carried_in", self.carried_in),
            ("in_flight_in", self.in_flight_in),
            ("trained", self.trained),
            ("kept_when_insufficient", self.kept_when_insufficient),
            ("left_out", self.left_out),
            ("dropped", self.dropped),
            ("surplus", self.surplus),
            ("stale", self.stale),
            ("failed", self.failed),
            ("aborted", self.aborted),
            ("carried_out", self.carried_out),
            ("in_flight_out", self.in_flight_out),
            ("duplicated", self.duplicated),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Groups of which each member has written two turns.
    fn count(groups: usize, group_size: usize, tokens: u64) -> Count {
        Count::of(groups, group_size, Spent { tokens, turns: 2 * (groups * group_size) as u64 })
    }

    #[test]
    fn what_is_lost_is_found() {
        let mut accounting = Accounting {
            generated: count(10, 4, 100),
            carried_in: count(2, 4, 20),
            trained: count(5, 4, 50),
            dropped: count(4, 4, 40),
            carried_out: count(2, 4, 20),
            ..Accounting::default()
        };
        insta::assert_snapshot!(accounting.check().unwrap_err(), @"12 groups were generated, carried in or in flight before, but 11 were trained, kept when insufficient, left out, dropped, surplus, stale, failed, aborted, carried out or left in flight");
        accounting.stale = Count { trajectories: 3, ..count(1, 4, 10) };
        insta::assert_snapshot!(accounting.check().unwrap_err(), @"48 trajectories were generated, carried in or in flight before, but 47 were trained, kept when insufficient, left out, dropped, surplus, stale, failed, aborted, carried out or left in flight");
        accounting.stale = Count { turns: 7, ..count(1, 4, 10) };
        insta::assert_snapshot!(accounting.check().unwrap_err(), @"96 turns were generated, carried in or in flight before, but 95 were trained, kept when insufficient, left out, dropped, surplus, stale, failed, aborted, carried out or left in flight");
        accounting.stale = count(1, 4, 9);
        insta::assert_snapshot!(accounting.check().unwrap_err(), @"120 tokens were generated, carried in or in flight before, but 119 were trained, kept when insufficient, left out, dropped, surplus, stale, failed, aborted, carried out or left in flight");
        accounting.stale = count(1, 4, 10);
        assert_eq!(accounting.check(), Ok(()));
    }

    #[test]
    fn members_left_out_are_not_trained_and_stay_accounted_for() {
        let mut accounting = Accounting {
            generated: count(3, 4, 30),
            trained: count(2, 4, 20),
            dropped: count(1, 4, 10),
            ..Accounting::default()
        };
        accounting.leave_out(Members { trajectories: 5, spent: Spent { tokens: 15, turns: 10 } });
        assert_eq!(accounting.check(), Ok(()));
        assert_eq!(accounting.trained, Count { groups: 2, trajectories: 3, turns: 6, tokens: 5 });
        assert_eq!(accounting.left_out, Count { groups: 0, trajectories: 5, turns: 10, tokens: 15 });
        // Leaving out more than there are leaves out all of them.
        accounting.leave_out(Members { trajectories: 9, spent: Spent { tokens: 99, turns: 99 } });
        assert_eq!(accounting.check(), Ok(()));
        assert_eq!(accounting.trained, Count { groups: 2, ..Count::default() });
    }

    /// Groups that the first step carries into the second cancel. Copies are outside the identity.
    #[test]
    fn steps_add_up_to_a_run() {
        let mut first = Accounting {
            generated: count(10, 4, 100),
            trained: count(3, 4, 30),
            dropped: count(5, 4, 50),
            duplicated: count(5, 4, 50),
            carried_out: count(2, 4, 20),
            ..Accounting::default()
        };
        first.keep_dropped(count(2, 4, 20));
        assert_eq!((first.kept_when_insufficient, first.dropped), (count(2, 4, 20), count(3, 4, 30)));
        let second =
            Accounting { carried_in: count(2, 4, 20), trained: count(2, 4, 20), ..Accounting::default() };
        let mut run = Accounting::default();
        for step in [first, second] {
            assert_eq!(step.check(), Ok(()));
            run.append(&step);
            assert_eq!(run.check(), Ok(()));
        }
        assert_eq!(
            (run.generated, run.trained, run.dropped),
            (first.generated, count(5, 4, 50), first.dropped)
        );
        assert_eq!((run.kept_when_insufficient, run.duplicated), (count(2, 4, 20), count(5, 4, 50)));
        assert_eq!((run.carried_in, run.carried_out), (Count::default(), Count::default()));
    }
}
