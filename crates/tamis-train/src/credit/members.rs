//! The members of a step's groups: which of them the filter chose, why a member has no loss, and their
//! advantages.

use tamis_core::advantage::Advantages;
use tamis_core::group::Trajectory;
use tamis_core::ragged::Ragged;
use tamis_core::schedule::{Members, Spent};
use tamis_rollout::Record;

use crate::assemble::recipe::Recipe;
use crate::learner::left_out::LeftOut;

/// What becomes of a member of a trained group, as the rollout file has it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct TrainedMember {
    /// Whether the filter chose it.
    pub(crate) is_chosen: bool,
    /// Why it has no loss; `None`: it is trained on.
    pub(crate) left_out: Option<LeftOut>,
    /// Advantage of the member, the mean over its tokens if each has one; `None` if it does not train.
    pub(crate) advantage: Option<f64>,
}

/// A member of a trained group with its trajectory, from the filter to the end of the step.
#[derive(Debug, Clone, Copy)]
struct Member<'a> {
    trajectory: &'a Trajectory,
    outcome: TrainedMember,
    /// Whether the filter kept its group; what else fills a batch is counted in whole groups.
    is_of_kept_group: bool,
}

/// The members of a batch, group by group.
#[derive(Debug, Clone)]
pub(crate) struct TrainedMembers<'a>(Ragged<Member<'a>>);

impl<'a> TrainedMembers<'a> {
    /// Members as the filter chose them.
    pub(crate) fn new(recipe: &Recipe, trained: &'a [Record]) -> Self {
        let mut members = Ragged::default();
        // A filter that does not choose members, or none, chooses whole groups.
        let chosen: Option<Vec<Vec<bool>>> =
            trained.iter().map(|record| recipe.sieve.choose_members(record)).collect();
        for (place, record) in trained.iter().enumerate() {
            let is_chosen =
                |i: usize| chosen.as_ref().is_none_or(|chosen| chosen[place].get(i) == Some(&true));
            members.push_row(record.group.trajectories.iter().enumerate().map(|(i, trajectory)| Member {
                trajectory,
                outcome: TrainedMember { is_chosen: is_chosen(i), left_out: None, advantage: None },
                is_of_kept_group: record.is_trained(),
            }));
        }
        Self(members)
    }

    /// What becomes of them \[B\].
    pub(crate) fn outcomes(&self) -> impl Iterator<Item = &TrainedMember> {
        self.0.values().iter().map(|member| &member.outcome)
    }

    /// Why the first that has no loss does not.
    pub(crate) fn first_left_out(&self) -> Option<LeftOut> {
        self.outcomes().find_map(|member| member.left_out)
    }

    /// Something of every member `[P][G]`.
    fn rows<T>(&self, of: impl Fn(&Member<'_>) -> T) -> Ragged<T> {
        let mut rows = Ragged::default();
        for members in self.0.rows() {
            rows.push_row(members.iter().map(&of));
        }
        rows
    }

    /// Rewards as the estimator compares them `[P][G]`: NaN, which it takes for "no score", if the filter did
    /// not choose a member.
    pub(crate) fn rewards(&self) -> Ragged<f64> {
        self.rows(|member| if member.outcome.is_chosen { member.trajectory.reward } else { f64::NAN })
    }

    /// Mask of the members that are compared: chosen, and scored `[P][G]`.
    pub(crate) fn comparison_mask(&self) -> Ragged<bool> {
        self.rows(|member| member.outcome.is_chosen && member.trajectory.is_scored())
    }

    /// Mask of the members in the loss `[P][G]`.
    pub(crate) fn in_loss(&self) -> Ragged<bool> {
        self.rows(|member| member.outcome.left_out.is_none())
    }

    /// Finds out which have no loss; `kept` are those that the shapings keep `[P][G]`, `None`: all.
    pub(crate) fn leave_out(&mut self, kept: Option<&Ragged<bool>>, mask_truncated: bool) {
        for place in 0..self.0.num_rows() {
            for (i, Member { trajectory, outcome, .. }) in self.0.row_mut(place).iter_mut().enumerate() {
                let is_kept = kept.is_none_or(|kept| kept.row(place).get(i) == Some(&true));
                outcome.left_out = LeftOut::of(trajectory, outcome.is_chosen, is_kept, mask_truncated);
            }
        }
    }

    /// Leaves out members that only the updates of the policy know \[B\]: those that their correction
    /// rejected.
    pub(crate) fn reject(&mut self, rejected: &[bool]) {
        let mut rejected = rejected.iter();
        for place in 0..self.0.num_rows() {
            for (member, _) in
                self.0.row_mut(place).iter_mut().zip(&mut rejected).filter(|(_, rejected)| **rejected)
            {
                member.outcome.left_out.get_or_insert(LeftOut::Rejected);
            }
        }
    }

    /// The members left out of groups that the filter kept.
    pub(crate) fn count_left_out(&self) -> Members {
        let mut count = Members::default();
        for member in self.0.values().iter().filter(|member| member.is_of_kept_group) {
            if member.outcome.left_out.is_some() {
                count.trajectories += 1;
                count.spent += Spent::of(member.trajectory);
            }
        }
        count
    }

    /// The members of each group \[P\] with their advantages.
    pub(crate) fn with_advantages(&self, advantages: &Advantages) -> Vec<Vec<TrainedMember>> {
        let mut row = 0;
        let mut finish = |place: usize, i: usize, member: &Member<'_>| {
            let advantage = match advantages {
                Advantages::PerTrajectory(advantages) => advantages.row(place)[i],
                Advantages::PerToken(advantages) => mean_over_policy(advantages.row(row), member.trajectory),
            };
            row += 1;
            let advantage = member.outcome.left_out.is_none().then_some(advantage);
            TrainedMember { advantage, ..member.outcome }
        };
        let groups = self.0.rows().enumerate();
        groups
            .map(|(place, members)| {
                members.iter().enumerate().map(|(i, member)| finish(place, i, member)).collect()
            })
            .collect()
    }
}

/// Mean over the tokens that the policy produced.
fn mean_over_policy(advantages: &[f64], trajectory: &Trajectory) -> f64 {
    let num_tokens = trajectory.loss_mask.iter().filter(|&&on| on).count();
    advantages.iter().sum::<f64>() / num_tokens.max(1) as f64
}
