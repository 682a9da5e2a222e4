//! Health of the run by the step's groups: pass rates, collapse, advantages of zero. Every measure is of
//! tamis-core.

use tamis_core::advantage::Advantages;
use tamis_core::diagnostics::{Diversity, PassRates, VarianceShares, ZeroAdvantage};
use tamis_core::group::{Group, Trajectory};
use tamis_core::ragged::Ragged;

use crate::learner::left_out::LeftOut;
use tamis_run::metrics::Metrics;

/// Intervals of pass rates strictly between 0 and 1.
const INTERVALS: usize = 4;

fn rows<'a, T>(groups: &[&'a Group], of: impl Fn(&'a Trajectory) -> T) -> Ragged<T> {
    let mut rows = Ragged::default();
    for group in groups {
        rows.push_row(group.trajectories.iter().map(&of));
    }
    rows
}

/// `diagnostics/pass_rate/*` by `acc` (1 or more), if there is such a score, and `collapse/*`, over all
/// generated groups.
pub fn set_generated(groups: &[&Group], metrics: &mut Metrics) {
    let passes = |one: &Trajectory| match one.scores.get("acc") {
        Some(acc) if !acc.value.is_nan() => f64::from(acc.value >= 1.0),
        _ => f64::NAN,
    };
    let rates = PassRates::of(&rows(groups, passes), 0.5, INTERVALS);
    set(metrics, rates.to_pairs());
    let texts = rows(groups, |one| Some(one.text.as_str()));
    set(metrics, Diversity::of(&texts).to_pairs("completion"));
    set(metrics, VarianceShares::of(&rows(groups, |one| one.reward)).to_pairs());
}

/// `diagnostics/zero_advantage/*`, over the trained tokens. Members that are left out have none; if
/// `left_out` \[B\] is empty, there are no such members.
pub fn set_trained(
    groups: &[&Group],
    advantages: &Advantages,
    left_out: &[Option<LeftOut>],
    metrics: &mut Metrics,
) -> ZeroAdvantage {
    let sizes: Vec<usize> = groups.iter().map(|group| group.trajectories.len()).collect();
    let members = groups.iter().flat_map(|group| &group.trajectories).enumerate();
    let bears_loss = |place: usize| left_out.get(place).is_none_or(Option::is_none);
    let mut masks = members.map(|(place, one)| -> Vec<bool> {
        one.loss_mask.iter().map(|&on| on && bears_loss(place)).collect()
    });
    let found = match advantages {
        Advantages::PerTrajectory(advantages) => {
            let tokens: Vec<usize> =
                masks.by_ref().map(|mask_t| mask_t.into_iter().filter(|&on| on).count()).collect();
            ZeroAdvantage::of(advantages, &tokens)
        }
        Advantages::PerToken(advantages) => {
            ZeroAdvantage::of_tokens(advantages, &Ragged::from_rows(masks.by_ref()), &sizes)
        }
    };
    set(metrics, found.to_pairs());
    found
}

/// Sets only figures that are not NaN: a share of nothing is not a number.
fn set<N: Into<String>>(metrics: &mut Metrics, named: impl IntoIterator<Item = (N, f64)>) {
    for (name, value) in named {
        metrics.set_some(name.into(), Some(value).filter(|value| !value.is_nan()));
    }
}

#[cfg(test)]
mod tests {
    use tamis_core::group::FinishReason;

    use super::*;
    use crate::measure::batch_metrics::tests::{group, trajectory};

    /// A group of completions: text, `acc` (which is the reward), trained tokens (the first token is not).
    fn of(members: &[(&str, f64, usize)]) -> Group {
        let member = |&(text, acc, tokens): &(&str, f64, usize)| {
            let mut member = trajectory(acc, &[("acc", acc)], tokens + 1, FinishReason::Stop);
            text.clone_into(&mut member.text);
            member
        };
        group(1, members.iter().map(member).collect())
    }

    fn value(metrics: &Metrics, name: &str) -> Option<f64> {
        metrics.get(name)
    }

    #[test]
    fn generated_groups_by_hand() {
        let groups = [
            of(&[("4", 1.0, 1), ("5", 0.0, 1)]),
            of(&[("4", 0.0, 1), ("4", 0.0, 1)]),
            of(&[("7", f64::NAN, 1), ("8", f64::NAN, 1)]),
        ];
        let mut metrics = Metrics::new();
        set_generated(&groups.iter().collect::<Vec<_>>(), &mut metrics);
        // One of two scored groups has no correct member, the other one in two; the unscored one is outside.
        assert_eq!(value(&metrics, "diagnostics/pass_rate/none"), Some(0.5));
        assert_eq!(value(&metrics, "diagnostics/pass_rate/2_of_4"), Some(0.5));
        assert_eq!(value(&metrics, "diagnostics/pass_rate/all"), Some(0.0));
        assert_eq!(value(&metrics, "diagnostics/pass_rate/mixed"), Some(0.5));
        // Distinct texts: 2 of 2, 1 of 2, 2 of 2.
        assert_eq!(value(&metrics, "collapse/completion_distinct_share"), Some(2.5 / 3.0));
        // Rewards: variance 1/4 and 0 within, means 1/2 and 0.
        assert_eq!(value(&metrics, "collapse/reward_variance_within"), Some(0.125));
        // Missing figures are not written.
        let mut metrics = Metrics::new();
        set_generated(&[], &mut metrics);
        assert_eq!(value(&metrics, "diagnostics/pass_rate/none"), None);
    }

    #[test]
    fn zero_advantages_count_by_trained_tokens_of_either_kind() {
        let groups = [of(&[("a", 1.0, 3), ("b", 0.0, 1)]), of(&[("c", 1.0, 4), ("d", 1.0, 2)])];
        let groups: Vec<&Group> = groups.iter().collect();
        let per_trajectory = Advantages::PerTrajectory(Ragged::from_rows([[1.0, -1.0], [0.0, 0.0]]));
        let per_token = Advantages::PerToken(Ragged::from_rows([
            vec![0.0, 1.0, 1.0, 1.0],
            vec![0.0, -1.0],
            vec![5.0, 0.0, 0.0, 0.0, 0.0],
            vec![0.0; 3],
        ]));
        for advantages in [per_trajectory, per_token] {
            let mut metrics = Metrics::new();
            set_trained(&groups, &advantages, &[], &mut metrics);
            assert_eq!(value(&metrics, "diagnostics/zero_advantage/tokens"), Some(0.6));
            assert_eq!(value(&metrics, "diagnostics/zero_advantage/trajectories"), Some(0.5));
            assert_eq!(value(&metrics, "diagnostics/zero_advantage/groups"), Some(0.5));
            // Without the third: 2 of the 6 tokens that are left, 1 of 3 trajectories.
            let left_out = [None, None, Some(LeftOut::Unchosen), None];
            let mut metrics = Metrics::new();
            set_trained(&groups, &advantages, &left_out, &mut metrics);
            assert_eq!(value(&metrics, "diagnostics/zero_advantage/tokens"), Some(2.0 / 6.0));
            assert_eq!(value(&metrics, "diagnostics/zero_advantage/trajectories"), Some(1.0 / 3.0));
        }
    }
}
