//! The members of a step's groups: which train, and what is told of the others.

use tamis_core::advantage::Advantages;
use tamis_core::group::Group;

use crate::left_out::LeftOut;

/// The groups as they train: members that the filter did not choose are without a reward.
pub(super) fn thinned(groups: &[&Group], chosen: &[Vec<bool>]) -> Vec<Group> {
    let thin = |(group, chosen): (&&Group, &Vec<bool>)| {
        let mut group = (*group).clone();
        for (trajectory, _) in group.trajectories.iter_mut().zip(chosen).filter(|(_, chosen)| !**chosen) {
            trajectory.reward = f64::NAN;
        }
        group
    };
    groups.iter().zip(chosen).map(thin).collect()
}

/// How many members are left out, and their completion tokens.
pub(super) fn counted(groups: &[&Group], left_out: &[Option<LeftOut>]) -> (u64, u64) {
    let members = groups.iter().flat_map(|group| &group.trajectories).zip(left_out);
    members
        .filter(|(_, left_out)| left_out.is_some())
        .fold((0, 0), |(number, tokens), (member, _)| (number + 1, tokens + member.token_ids.len() as u64))
}

/// Advantages as they are told: members that are left out have none (NaN); their scores are the group's all the same.
pub(super) fn of_trained(
    advantages: &Advantages,
    groups: &[&Group],
    left_out: &[Option<LeftOut>],
) -> Advantages {
    let mut told = advantages.clone();
    let members = groups
        .iter()
        .enumerate()
        .flat_map(|(place, group)| (0..group.trajectories.len()).map(move |member| (place, member)));
    for (row, ((place, member), _)) in
        members.zip(left_out).enumerate().filter(|(_, (_, left_out))| left_out.is_some())
    {
        match &mut told {
            Advantages::PerTrajectory(rows) => rows.row_mut(place)[member] = f64::NAN,
            Advantages::PerToken(rows) => rows.row_mut(row).fill(f64::NAN),
        }
    }
    told
}

/// One advantage per trajectory for the rollout file \[B\]: its own, or the mean over the tokens that the policy produced.
pub(super) fn of_trajectories(advantages: &Advantages, groups: &[&Group]) -> Vec<f64> {
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
