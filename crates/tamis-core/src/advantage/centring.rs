//! Centring: rewards less a baseline of their group, with the groups that have nothing to compare.

use super::singleton::Singleton;
use super::statistics::Moments;
use crate::ragged::Ragged;

/// Centres rewards `[P][G]` in place, each group on its own baseline; unscored members stay NaN.
///
/// `baseline` is given the flat place of the group's first member, its rewards \[G\] and their moments, and asked only where it counts: a
/// group of one follows `singleton`, and the members of a uniform group get exactly 0 whatever a baseline would round to.
pub(crate) fn centre(
    rewards: &mut Ragged<f64>,
    singleton: Singleton,
    mut baseline: impl FnMut(usize, &[f64], &Moments) -> f64,
) {
    let mut first = 0;
    for group in 0..rewards.num_rows() {
        let rewards_g = rewards.row_mut(group);
        let start = first;
        first += rewards_g.len();
        let moments = Moments::of(rewards_g);
        let is_single = rewards_g.len() == 1;
        let baseline =
            if is_single || moments.is_uniform() { None } else { Some(baseline(start, rewards_g, &moments)) };
        for reward in rewards_g.iter_mut().filter(|reward| !reward.is_nan()) {
            *reward = match baseline {
                Some(baseline) => *reward - baseline,
                None if is_single => singleton.advantage(*reward),
                None => 0.0,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_without_a_comparison_do_not_ask_for_a_baseline() {
        let mut rewards = Ragged::from_rows([
            vec![1.0, 3.0, f64::NAN],
            vec![7.0],
            vec![2.0, f64::NAN, 2.0],
            vec![f64::NAN],
            vec![],
            vec![4.0, 0.0],
        ]);
        let mut asked = Vec::new();
        centre(&mut rewards, Singleton::RawReward, |first, rewards_g, moments| {
            asked.push((first, rewards_g.len()));
            moments.mean
        });
        assert_eq!(asked, [(0, 3), (8, 2)]);
        let shown: Vec<String> = rewards.values().iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["-1", "1", "NaN", "7", "0", "NaN", "0", "NaN", "2", "-2"]);
    }
}
