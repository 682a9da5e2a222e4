//! The members of a step's groups: which of them the filter chose, why a member has no loss, and their
//! advantages.

use tamis_core::advantage::Advantages;
use tamis_core::group::{Group, Trajectory};
use tamis_core::ragged::Ragged;
use tamis_core::schedule::{Members, Spent};
use tamis_rollout::Record;

use crate::assemble::recipe::Recipe;
use crate::learner::left_out::LeftOut;

/// A member of a trained group, from the filter to the rollout file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct TrainedMember {
    /// Whether the filter chose it.
    pub(crate) is_chosen: bool,
    /// Why it has no loss; `None`: it is trained on.
    pub(crate) left_out: Option<LeftOut>,
    /// Advantage of the member, the mean over its tokens if each has one; `None` if it does not train.
    pub(crate) advantage: Option<f64>,
}

impl TrainedMember {
    /// Whether it is compared with the others of its group.
    fn is_compared(self, trajectory: &Trajectory) -> bool {
        self.is_chosen && trajectory.is_scored()
    }
}

#[derive(Debug, Clone)]
pub(crate) struct TrainedMembers {
    members: Ragged<TrainedMember>,
}

impl TrainedMembers {
    /// Members as the filter chose them.
    pub(crate) fn new(recipe: &Recipe, trained: &[Record]) -> Self {
        let mut members = Ragged::default();
        // A filter that does not choose members, or none, chooses whole groups.
        let chosen: Option<Vec<Vec<bool>>> =
            trained.iter().map(|record| recipe.sieve.choose_members(record)).collect();
        for (place, record) in trained.iter().enumerate() {
            let is_chosen =
                |i: usize| chosen.as_ref().is_none_or(|chosen| chosen[place].get(i) == Some(&true));
            members.push_row((0..record.group.trajectories.len()).map(|i| TrainedMember {
                is_chosen: is_chosen(i),
                left_out: None,
                advantage: None,
            }));
        }
        Self { members }
    }

    /// All members \[B\].
    pub(crate) fn all(&self) -> &[TrainedMember] {
        self.members.values()
    }

    /// Why the first that has no loss does not.
    pub(crate) fn first_left_out(&self) -> Option<LeftOut> {
        self.all().iter().find_map(|member| member.left_out)
    }

    /// Something of every member and its trajectory `[P][G]`.
    fn rows<T>(&self, groups: &[&Group], of: impl Fn(TrainedMember, &Trajectory) -> T) -> Ragged<T> {
        let mut rows = Ragged::default();
        for (members, group) in self.members.rows().zip(groups) {
            rows.push_row(members.iter().zip(&group.trajectories).map(|(member, one)| of(*member, one)));
        }
        rows
    }

    /// Rewards as the estimator compares them `[P][G]`: NaN, which it takes for "no score", if the filter did
    /// not choose a member.
    pub(crate) fn rewards(&self, groups: &[&Group]) -> Ragged<f64> {
        self.rows(groups, |member, one| if member.is_chosen { one.reward } else { f64::NAN })
    }

    /// Mask of the members that are compared: chosen, and scored `[P][G]`.
    pub(crate) fn comparison_mask(&self, groups: &[&Group]) -> Ragged<bool> {
        self.rows(groups, TrainedMember::is_compared)
    }

    /// Mask of the members in the loss `[P][G]`.
    pub(crate) fn in_loss(&self) -> Ragged<bool> {
        Ragged::from_rows(
            self.members.rows().map(|members| -> Vec<bool> {
                members.iter().map(|member| member.left_out.is_none()).collect()
            }),
        )
    }

    /// Finds out which have no loss; `kept` are those that the shapings keep `[P][G]`, `None`: all.
    pub(crate) fn leave_out(&mut self, groups: &[&Group], kept: Option<&Ragged<bool>>, mask_truncated: bool) {
        for (place, group) in groups.iter().enumerate() {
            let members = self.members.row_mut(place).iter_mut().zip(&group.trajectories);
            for (i, (member, trajectory)) in members.enumerate() {
                let is_kept = kept.is_none_or(|kept| kept.row(place).get(i) == Some(&true));
                member.left_out = LeftOut::of(trajectory, member.is_chosen, is_kept, mask_truncated);
            }
        }
    }

    /// Leaves out members that only the updates of the policy know \[B\]: those that their correction
    /// rejected.
    pub(crate) fn reject(&mut self, rejected: &[bool]) {
        let mut rejected = rejected.iter();
        for place in 0..self.members.num_rows() {
            for (member, _) in
                self.members.row_mut(place).iter_mut().zip(&mut rejected).filter(|(_, rejected)| **rejected)
            {
                member.left_out.get_or_insert(LeftOut::Rejected);
            }
        }
    }

    /// The members left out of groups that the filter kept; what else fills a batch is counted in whole
    /// groups.
    pub(crate) fn count_left_out(&self, trained: &[Record]) -> Members {
        let mut count = Members::default();
        for (members, record) in self.members.rows().zip(trained).filter(|(_, record)| record.is_trained()) {
            let left_out = members.iter().zip(&record.group.trajectories);
            for (_, trajectory) in left_out.filter(|(member, _)| member.left_out.is_some()) {
                count.trajectories += 1;
                count.spent += Spent::of(trajectory);
            }
        }
        count
    }

    /// The members of each group \[P\] with their advantages.
    pub(crate) fn with_advantages(
        mut self,
        advantages: &Advantages,
        groups: &[&Group],
    ) -> Vec<Vec<TrainedMember>> {
        let mut row = 0;
        for (place, group) in groups.iter().enumerate() {
            let members = self.members.row_mut(place).iter_mut().zip(&group.trajectories).enumerate();
            for (i, (member, trajectory)) in members {
                let advantage = match advantages {
                    Advantages::PerTrajectory(advantages) => advantages.row(place)[i],
                    Advantages::PerToken(advantages) => mean_over_policy(advantages.row(row), trajectory),
                };
                member.advantage = member.left_out.is_none().then_some(advantage);
                row += 1;
            }
        }
        self.members.rows().map(<[TrainedMember]>::to_vec).collect()
    }
}

/// Mean over the tokens that the policy produced.
fn mean_over_policy(advantages: &[f64], trajectory: &Trajectory) -> f64 {
    let num_tokens = trajectory.loss_mask.iter().filter(|&&on| on).count();
    advantages.iter().sum::<f64>() / num_tokens.max(1) as f64
}
