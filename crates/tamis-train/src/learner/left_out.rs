//! Members of trained groups that train nothing, and why.
//!
//! A group is trained whole or not at all. Still, some of its members may have no loss: the filter
//! chose others, there is no score, or a mask, a shaping or the correction leaves them out. Counts of
//! trained members do not include them. Each has its reason in the rollout file's `verdict` and in
//! `train/num_left_out/{reason}`, and together they are `trajectories/left_out`.

use serde::{Deserialize, Serialize};
use tamis_core::group::Trajectory;

/// Why a member of a trained group has no loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeftOut {
    /// No reward function answered.
    Unscored,
    /// The filter chose other members of its group.
    Unchosen,
    /// The completion was cut at the response limit, and the loss leaves such trajectories out.
    Truncated,
    /// A shaping of the advantages took it out.
    Shaped,
    /// None of its tokens was written by the policy.
    Masked,
    /// The correction rejected all of its tokens, in every update that it was in.
    Rejected,
}

impl LeftOut {
    /// Every reason, in the order in which they are looked for.
    pub const ALL: [Self; 6] =
        [Self::Unscored, Self::Unchosen, Self::Truncated, Self::Shaped, Self::Masked, Self::Rejected];

    /// The name in rollout files and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unscored => "unscored",
            Self::Unchosen => "unchosen",
            Self::Truncated => "truncated",
            Self::Shaped => "shaped",
            Self::Masked => "masked",
            Self::Rejected => "rejected",
        }
    }

    /// The setting to change if this reason leaves out every member of every group.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Unscored => "check the inputs and the results of the reward functions",
            Self::Unchosen => "let the filter choose more members (`filter`)",
            Self::Truncated => {
                "every completion ends at rollout.max_response_length: raise it, or set objective.masks.truncated=false"
            }
            Self::Shaped => "look at objective.shaping, which takes them out",
            Self::Masked => "no token of theirs is the policy's: look at what is generated",
            Self::Rejected => {
                "loosen the rejection of objective.correction, or look at why the policies differ so much"
            }
        }
    }

    /// The reason for one member, from whether the filter chose it and the shapings kept it. `None`: it
    /// is trained on.
    pub fn of(member: &Trajectory, is_chosen: bool, is_kept: bool, mask_truncated: bool) -> Option<Self> {
        if !member.is_scored() {
            Some(Self::Unscored)
        } else if !is_chosen {
            Some(Self::Unchosen)
        } else if mask_truncated && member.is_truncated() {
            Some(Self::Truncated)
        } else if !is_kept {
            Some(Self::Shaped)
        } else if !member.loss_mask.contains(&true) {
            Some(Self::Masked)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_verdict_is_on_the_page_of_rollouts() {
        let page = include_str!("../../../../docs/rollouts.md");
        let fates = [
            tamis_rollout::Fate::Trained,
            tamis_rollout::Fate::KeptWhenInsufficient(tamis_core::filter::DropReason::AllWrong),
            tamis_rollout::Fate::Surplus,
            tamis_rollout::Fate::Stale,
            tamis_rollout::Fate::Aborted,
        ];
        for name in
            fates.iter().map(tamis_rollout::Fate::name).chain(super::LeftOut::ALL.map(super::LeftOut::name))
        {
            assert!(page.contains(&format!("`{name}`")), "{name}");
        }
    }

    use proptest::prelude::*;
    use tamis_core::group::{FinishReason, Group};
    use tamis_core::ragged::Ragged;

    use super::*;
    use crate::learner::optimizer_batch::mask_of;
    use crate::support::{group, trajectory};

    fn member(is_scored: bool, is_truncated: bool, loss_mask: Vec<bool>) -> Trajectory {
        Trajectory {
            finish_reason: if is_truncated { FinishReason::Length } else { FinishReason::Stop },
            ..trajectory(loss_mask, if is_scored { 1.0 } else { f64::NAN })
        }
    }

    #[test]
    fn each_under_its_own_name() {
        let on = || vec![false, true];
        let members = vec![
            member(true, false, on()),
            member(false, true, on()),
            member(true, true, on()),
            member(true, false, on()),
            member(true, false, on()),
            member(true, false, vec![false]),
        ];
        let group = group(0, members);
        let chosen = [true, false, true, false, true, true];
        let kept = [true, true, true, true, false, true];
        let names = |mask_truncated| -> Vec<&str> {
            let members = group.trajectories.iter().zip(chosen).zip(kept);
            members
                .map(|((member, is_chosen), is_kept)| {
                    LeftOut::of(member, is_chosen, is_kept, mask_truncated).map_or("trained", LeftOut::name)
                })
                .collect()
        };
        assert_eq!(names(true), ["trained", "unscored", "truncated", "unchosen", "shaped", "masked"]);
        assert_eq!(names(false)[2], "trained");
    }

    proptest! {
        /// Trained are exactly the members with a token in the loss.
        #[test]
        fn what_is_left_out_has_no_token_in_the_loss(
            groups in prop::collection::vec(
                prop::collection::vec((any::<[bool; 4]>(), prop::collection::vec(any::<bool>(), 0..3)), 1..5),
                1..4,
            ),
            mask_truncated: bool,
        ) {
            let of = |pick: fn(&[bool; 4]) -> bool| -> Vec<Vec<bool>> {
                groups.iter().map(|group| group.iter().map(|(flags, _)| pick(flags)).collect()).collect()
            };
            let (chosen, kept) = (of(|flags| flags[0]), Ragged::from_rows(of(|flags| flags[1])));
            let made: Vec<Group> = groups
                .iter()
                .map(|members| {
                    group(0, members.iter().map(|(flags, mask)| member(flags[2], flags[3], mask.clone())).collect())
                })
                .collect();
            // In the update's mask members that are not chosen have no reward.
            for (place, group) in made.iter().enumerate() {
                let mut thinned = group.clone();
                for (member, chosen) in thinned.trajectories.iter_mut().zip(&chosen[place]) {
                    if !chosen {
                        member.reward = f64::NAN;
                    }
                }
                for (i, mask_t) in mask_of(&thinned, mask_truncated).enumerate() {
                    let left_out =
                        LeftOut::of(&group.trajectories[i], chosen[place][i], kept.row(place)[i], mask_truncated);
                    let bears_loss = kept.row(place)[i] && mask_t.contains(&true);
                    prop_assert_eq!(left_out.is_none(), bears_loss);
                }
            }
        }
    }
}
