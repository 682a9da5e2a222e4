//! Accounting of every generated group.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A number of groups, of the trajectories in them and of their completion tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Count {
    /// Groups.
    pub groups: u64,
    /// Trajectories.
    pub trajectories: u64,
    /// Completion tokens.
    pub tokens: u64,
}

impl Count {
    /// `groups` groups of `group_size` members, with so many tokens in all.
    pub fn of(groups: usize, group_size: usize, tokens: u64) -> Self {
        Self { groups: groups as u64, trajectories: (groups * group_size) as u64, tokens }
    }

    /// Tokens of groups that are counted already.
    pub fn tokens(tokens: u64) -> Self {
        Self { tokens, ..Self::default() }
    }
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.groups += other.groups;
        self.trajectories += other.trajectories;
        self.tokens += other.tokens;
    }
}

/// Every group ends in exactly one place, and so does every trajectory and every token: generated + carried
/// in + in flight in = trained + left out + dropped + surplus + stale + failed + aborted + carried out + in
/// flight out.
///
/// A group is never split, so none is left out: [`Accounting::left_out`] counts members of trained groups.
/// How many tokens a group costs is known when it is complete, has failed or has been given up: its tokens
/// count as generated in the step in which they are told, and what is in flight has none so far. The tokens
/// of a group that stops after the step that gave it up are counted in the next one, or in the run where
/// there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Accounting {
    /// Dispatched in this step; of tokens, told in it.
    pub generated: Count,
    /// Kept in an earlier step and carried into this one.
    pub carried_in: Count,
    /// In flight when the step before it was closed.
    #[serde(default)]
    pub in_flight_in: Count,
    /// Trained on: groups in the batch, and those of their members that bear loss.
    pub trained: Count,
    /// Members of trained groups that bear no loss: not chosen by the filter, unscored, masked. No groups.
    #[serde(default)]
    pub left_out: Count,
    /// Dropped by the filter.
    pub dropped: Count,
    /// Kept, not needed and discarded.
    pub surplus: Count,
    /// Carried longer than the bound on lag allows.
    pub stale: Count,
    /// Generation failed for good.
    pub failed: Count,
    /// Given up before it was judged: the step was full, it was too old, or the run ended.
    pub aborted: Count,
    /// Kept, not needed and carried to the next step.
    pub carried_out: Count,
    /// Still in flight when the step was closed.
    #[serde(default)]
    pub in_flight_out: Count,
}

/// The accounting identity does not hold: groups were lost or counted twice, which is a fault of the
/// scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "{come} {unit} were generated, carried in or in flight before, but {went} were trained, left out, dropped, surplus, stale, failed, aborted, \
     carried out or left in flight"
)]
pub struct Unbalanced {
    /// `groups`, `trajectories` or `tokens`.
    pub unit: &'static str,
    /// Generated + carried in + in flight in.
    pub come: u64,
    /// Everything else.
    pub went: u64,
}

impl Accounting {
    /// Whether the identity holds, in groups, in trajectories and in tokens.
    ///
    /// # Errors
    /// [`Unbalanced`] with both sides.
    pub fn check(&self) -> Result<(), Unbalanced> {
        for (unit, number) in [
            ("groups", (|count| count.groups) as fn(Count) -> u64),
            ("trajectories", |count| count.trajectories),
            ("tokens", |count| count.tokens),
        ] {
            let come = number(self.generated) + number(self.carried_in) + number(self.in_flight_in);
            let went = [
                self.trained,
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

    /// Moves so many members of trained groups, and so many of their tokens, from trained to left out; at
    /// most as many as were trained.
    pub fn leave_out(&mut self, trajectories: u64, tokens: u64) {
        let (trained, left_out) = (&mut self.trained, &mut self.left_out);
        let moved = trajectories.min(trained.trajectories);
        trained.trajectories -= moved;
        left_out.trajectories += moved;
        let moved = tokens.min(trained.tokens);
        trained.tokens -= moved;
        left_out.tokens += moved;
    }

    /// A group that was given up has stopped, after so many tokens, or an attempt at a member that is made
    /// again.
    pub(super) fn stop_aborted(&mut self, tokens: u64) {
        self.generated.tokens += tokens;
        self.aborted.tokens += tokens;
    }

    /// Appends the next step's accounting: what this one carried out or left in flight must be what that one
    /// took in, and cancels.
    pub fn append(&mut self, next: &Self) {
        self.generated += next.generated;
        self.trained += next.trained;
        self.left_out += next.left_out;
        self.dropped += next.dropped;
        self.surplus += next.surplus;
        self.stale += next.stale;
        self.failed += next.failed;
        self.aborted += next.aborted;
        self.carried_out = next.carried_out;
        self.in_flight_out = next.in_flight_out;
    }

    /// The places by name, in the order of the identity; for metrics.
    pub fn places(&self) -> [(&'static str, Count); 12] {
        [
            ("generated", self.generated),
            ("carried_in", self.carried_in),
            ("in_flight_in", self.in_flight_in),
            ("trained", self.trained),
            ("left_out", self.left_out),
            ("dropped", self.dropped),
            ("surplus", self.surplus),
            ("stale", self.stale),
            ("failed", self.failed),
            ("aborted", self.aborted),
            ("carried_out", self.carried_out),
            ("in_flight_out", self.in_flight_out),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_found() {
        let mut accounting = Accounting {
            generated: Count::of(10, 4, 100),
            carried_in: Count::of(2, 4, 20),
            trained: Count::of(5, 4, 50),
            dropped: Count::of(4, 4, 40),
            carried_out: Count::of(2, 4, 20),
            ..Accounting::default()
        };
        insta::assert_snapshot!(accounting.check().unwrap_err(), @"12 groups were generated, carried in or in flight before, but 11 were trained, left out, dropped, surplus, stale, failed, aborted, carried out or left in flight");
        accounting.stale = Count { groups: 1, trajectories: 3, tokens: 10 };
        insta::assert_snapshot!(accounting.check().unwrap_err(), @"48 trajectories were generated, carried in or in flight before, but 47 were trained, left out, dropped, surplus, stale, failed, aborted, carried out or left in flight");
        accounting.stale = Count::of(1, 4, 9);
        insta::assert_snapshot!(accounting.check().unwrap_err(), @"120 tokens were generated, carried in or in flight before, but 119 were trained, left out, dropped, surplus, stale, failed, aborted, carried out or left in flight");
        accounting.stale = Count::of(1, 4, 10);
        assert_eq!(accounting.check(), Ok(()));
    }

    #[test]
    fn members_left_out_are_not_trained_and_stay_accounted_for() {
        let mut accounting = Accounting {
            generated: Count::of(3, 4, 30),
            trained: Count::of(2, 4, 20),
            dropped: Count::of(1, 4, 10),
            ..Accounting::default()
        };
        accounting.leave_out(5, 15);
        assert_eq!(accounting.check(), Ok(()));
        assert_eq!(accounting.trained, Count { groups: 2, trajectories: 3, tokens: 5 });
        assert_eq!(accounting.left_out, Count { groups: 0, trajectories: 5, tokens: 15 });
        // More than there are is all there are.
        accounting.leave_out(9, 99);
        assert_eq!(accounting.check(), Ok(()));
        assert_eq!((accounting.trained.trajectories, accounting.trained.tokens), (0, 0));
    }

    #[test]
    fn carried_groups_cancel_over_steps() {
        let first = Accounting {
            generated: Count::of(6, 2, 60),
            trained: Count::of(4, 2, 40),
            carried_out: Count::of(2, 2, 20),
            ..Accounting::default()
        };
        let second = Accounting {
            generated: Count::of(2, 2, 20),
            carried_in: Count::of(2, 2, 20),
            trained: Count::of(4, 2, 40),
            ..Accounting::default()
        };
        let mut run = Accounting::default();
        run.append(&first);
        assert_eq!(run.check(), Ok(()));
        run.append(&second);
        assert_eq!(run.check(), Ok(()));
        assert_eq!(
            (run.generated, run.trained, run.carried_out),
            (Count::of(8, 2, 80), Count::of(8, 2, 80), Count::default())
        );
    }
}
