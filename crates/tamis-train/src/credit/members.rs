//! The members of a step's groups: which are compared with each other, and which train.

use tamis_core::advantage::Advantages;
use tamis_core::group::{Group, Trajectory};
use tamis_core::ragged::Ragged;
use tamis_core::schedule::{Members, Spent};
use tamis_rollout::Record;

use crate::assemble::recipe::Recipe;
use crate::learner::left_out::LeftOut;

/// Fate of a member of a trained group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct TrainedMember {
    /// Whether the filter chose it.
    pub(crate) is_chosen: bool,
    /// Why it bears no loss; `None`: it trains.
    pub(crate) left_out: Option<LeftOut>,
    /// Advantage of the member, the mean over its tokens where each has one; `None` where it does not train.
    pub(crate) advantage: Option<f64>,
}

/// The filter's choice of members in the batch.
pub(crate) struct TrainedMembers {
    /// Whether the filter chose each `[P][G]`; `None`: it chooses whole groups.
    pub(crate) chosen: Option<Vec<Vec<bool>>>,
}

impl TrainedMembers {
    /// Of the groups of a batch.
    pub(crate) fn of(recipe: &Recipe, trained: &[Record]) -> Self {
        Self { chosen: trained.iter().map(|record| recipe.sieve.choose_members(record)).collect() }
    }

    /// Fate of each member, group by group: the reason why it is left out \[B\], or its advantage \[B\].
    pub(crate) fn fates(
        &self,
        groups: &[&Group],
        left_out: &[Option<LeftOut>],
        advantages: &[f64],
    ) -> Vec<Vec<TrainedMember>> {
        let mut members = left_out.iter().zip(advantages);
        let mut of_group = |(place, group): (usize, &&Group)| -> Vec<TrainedMember> {
            let own = members.by_ref().take(group.trajectories.len()).enumerate();
            own.map(|(i, (left_out, advantage))| TrainedMember {
                is_chosen: self.is_chosen(place, i),
                left_out: *left_out,
                advantage: left_out.is_none().then_some(*advantage),
            })
            .collect()
        };
        groups.iter().enumerate().map(&mut of_group).collect()
    }

    fn is_chosen(&self, group: usize, member: usize) -> bool {
        self.chosen.as_ref().is_none_or(|chosen| chosen[group].get(member) == Some(&true))
    }

    /// Something of every member, given whether the filter chose it `[P][G]`.
    fn rows<T>(&self, groups: &[&Group], of: impl Fn(&Trajectory, bool) -> T) -> Ragged<T> {
        let mut rows = Ragged::default();
        for (place, group) in groups.iter().enumerate() {
            let members = group.trajectories.iter().enumerate();
            rows.push_row(members.map(|(i, member)| of(member, self.is_chosen(place, i))));
        }
        rows
    }

    /// Rewards as the estimator compares them `[P][G]`: NaN, which it takes for "no score", where the filter
    /// did not choose a member.
    pub(crate) fn rewards(&self, groups: &[&Group]) -> Ragged<f64> {
        self.rows(groups, |member, is_chosen| if is_chosen { member.reward } else { f64::NAN })
    }

    /// Mask of the members that are compared: chosen, and scored `[P][G]`.
    pub(crate) fn comparison_mask(&self, groups: &[&Group]) -> Ragged<bool> {
        self.rows(groups, |member, is_chosen| is_chosen && member.is_scored())
    }
}

/// Mask of the members that bear loss `[P][G]`.
pub(crate) fn in_loss(groups: &[&Group], left_out: &[Option<LeftOut>]) -> Ragged<bool> {
    let mut left_out = left_out.iter();
    let mut rows = Ragged::default();
    for group in groups {
        rows.push_row(left_out.by_ref().take(group.trajectories.len()).map(Option::is_none));
    }
    rows
}

/// The members left out of groups that the filter kept; what else fills a batch is counted in whole groups.
pub(crate) fn count_left_out(trained: &[Record], left_out: &[Option<LeftOut>]) -> Members {
    let members = trained
        .iter()
        .flat_map(|record| record.group.trajectories.iter().map(move |member| (member, record.is_trained())));
    let mut count = Members::default();
    for ((member, _), _) in
        members.zip(left_out).filter(|((_, is_trained), left_out)| *is_trained && left_out.is_some())
    {
        count.trajectories += 1;
        count.spent += Spent::of(member);
    }
    count
}

/// One advantage per trajectory for the rollout file \[B\]: its own, or the mean over the tokens that the
/// policy produced.
pub(crate) fn of_trajectories(advantages: &Advantages, groups: &[&Group]) -> Vec<f64> {
    match advantages {
        Advantages::PerTrajectory(advantages) => advantages.values().to_vec(),
        Advantages::PerToken(advantages) => groups
            .iter()
            .flat_map(|group| &group.trajectories)
            .zip(advantages.rows())
            .map(|(trajectory, row)| {
                let num_tokens = trajectory.loss_mask.iter().filter(|&&on| on).count();
                row.iter().sum::<f64>() / num_tokens.max(1) as f64
            })
            .collect(),
    }
}
