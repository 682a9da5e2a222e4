//! The loop over groups that the group-relative estimators share.

use super::statistics::Moments;
use crate::ragged::Ragged;

pub(crate) struct MixedGroup<'a> {
    /// Index of the first member in the batch.
    pub(crate) first: usize,
    /// Rewards \[G\], NaN for unscored members.
    pub(crate) rewards: &'a [f64],
    pub(crate) moments: Moments,
}

/// Advantages of rewards `[P][G]`, each group by itself; unscored members stay NaN.
///
/// `mixed` is called once for each group whose rewards differ, and returns the advantage of a reward in that
/// group. The only member of a group of one gets `alone` applied to its reward; every other member of a
/// uniform group gets exactly 0.
pub(crate) fn per_group<F: Fn(f64) -> f64>(
    rewards: &Ragged<f64>,
    alone: impl Fn(f64) -> f64,
    mut mixed: impl FnMut(&MixedGroup<'_>) -> F,
) -> Ragged<f64> {
    let mut advantages = Vec::with_capacity(rewards.num_values());
    let scored = |reward: f64, advantage: f64| if reward.is_nan() { f64::NAN } else { advantage };
    for rewards_g in rewards.rows() {
        if let &[reward] = rewards_g {
            advantages.push(scored(reward, alone(reward)));
            continue;
        }
        let moments = Moments::of(rewards_g);
        if moments.is_uniform() {
            advantages.extend(rewards_g.iter().map(|&reward| scored(reward, 0.0)));
        } else {
            let advantage = mixed(&MixedGroup { first: advantages.len(), rewards: rewards_g, moments });
            advantages.extend(rewards_g.iter().map(|&reward| scored(reward, advantage(reward))));
        }
    }
    rewards.cut_alike(advantages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_groups_that_differ_are_asked_about() {
        let rewards = Ragged::from_rows([
            vec![1.0, 3.0, f64::NAN],
            vec![7.0],
            vec![2.0, f64::NAN, 2.0],
            vec![f64::NAN],
            vec![],
            vec![4.0, 0.0],
        ]);
        let mut asked = Vec::new();
        let advantages = per_group(
            &rewards,
            |reward| 10.0 * reward,
            |group| {
                asked.push((group.first, group.rewards.len()));
                let mean = group.moments.mean;
                move |reward| reward - mean
            },
        );
        assert_eq!(asked, [(0, 3), (8, 2)]);
        let shown: Vec<String> = advantages.values().iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["-1", "1", "NaN", "70", "0", "NaN", "0", "NaN", "2", "-2"]);
    }
}
