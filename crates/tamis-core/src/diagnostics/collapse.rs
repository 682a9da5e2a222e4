//! Collapse, measured without a second model: completions that no longer differ, or that no longer depend on
//! the prompt.

use crate::advantage::statistics::Moments;
use crate::entry::{Entry, Family};
use crate::ragged::Ragged;

pub(super) const DIVERSITY: Entry = Entry {
    name: "diversity",
    family: Family::Diagnostic,
    meaning: "Number of different completions or answers in a group, their entropy, and how much they depend on the prompt.",
    formula: "distinct / members; H(Z|X) = mean over groups of -Σ p ln p; H(Z) the same over the batch; \
        I(X;Z) = H(Z) - H(Z|X), all from counted frequencies",
    source: "plug-in estimate of the template-collapse measures of RAGEN-2 (mutual information of prompt and \
        reasoning), which score every completion under every prompt instead",
    defaults: &[],
    degenerate: &[
        "members without an answer are left out; groups with fewer than two are not counted in the distinct share",
        "without completions everything is NaN",
        "frequencies of n draws miss rare values: entropies are biased downwards, and I is at most ln P",
    ],
    known_as: &[("RAGEN", "collapse/* (by a model)")],
    differences: &[
        "RAGEN needs a forward pass for every pair of prompt and completion; tamis counts equal strings, and \
            so detects a collapse to equal answers, but not to similar ones",
    ],
};

pub(super) const VARIANCE: Entry = Entry {
    name: "variance_shares",
    family: Family::Diagnostic,
    meaning: "Variance of rewards within groups, which trains, compared with that between groups, which does not.",
    formula: "within = mean over groups of the population variance, between = population variance of group \
        means; share = within / (within + between)",
    source: "analysis of variance; std(s)/mean(s) of group deviations: RAGEN-2, table 8",
    defaults: &[],
    degenerate: &[
        "groups with fewer than two scored members are left out",
        "if nothing varies the share is NaN, and so is the dispersion",
    ],
    known_as: &[("RAGEN", "rollout/in_group_reward_std")],
    differences: &[],
};

/// Diversity of completions, computed from texts or from extracted answers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Diversity {
    /// Mean over groups of the number of distinct members over the number present.
    pub distinct_share: f64,
    /// Mean over members of the entropy of the group's frequencies, in nats: `H(Z|X)`.
    pub conditional_entropy: f64,
    /// Entropy of the frequencies over the whole batch, in nats: `H(Z)`.
    pub entropy: f64,
}

/// Number of different keys, and entropy of their frequencies; sorts the keys.
fn frequencies<K: Ord>(keys: &mut [K]) -> (usize, f64) {
    keys.sort_unstable();
    let (mut distinct, mut entropy) = (0, 0.0);
    for equal in keys.chunk_by(|a, b| a == b) {
        distinct += 1;
        let share = equal.len() as f64 / keys.len() as f64;
        entropy -= share * share.ln();
    }
    // A single key has entropy -0.
    (distinct, if distinct == 1 { 0.0 } else { entropy })
}

impl Diversity {
    /// From one key per trajectory `[P][G]`: a text, an answer, a hash; `None`: none was found.
    ///
    /// ```
    /// use tamis_core::diagnostics::Diversity;
    /// use tamis_core::ragged::Ragged;
    /// // Every prompt gets the same two answers: diverse within groups, but independent of the prompt.
    /// let found = Diversity::of(&Ragged::from_rows([[Some("4"), Some("5")], [Some("4"), Some("5")]]));
    /// assert_eq!((found.distinct_share, found.mutual_information()), (1.0, 0.0));
    /// ```
    pub fn of<K: Ord + Clone>(keys: &Ragged<Option<K>>) -> Self {
        let (mut shares, mut groups) = (0.0, 0_usize);
        let (mut conditional, mut members) = (0.0, 0_usize);
        let mut all: Vec<K> = Vec::with_capacity(keys.num_values());
        for row in keys.rows() {
            let mut present: Vec<K> = row.iter().flatten().cloned().collect();
            if present.is_empty() {
                continue;
            }
            let (distinct, entropy) = frequencies(&mut present);
            if present.len() > 1 {
                groups += 1;
                shares += distinct as f64 / present.len() as f64;
            }
            members += present.len();
            conditional += entropy * present.len() as f64;
            all.append(&mut present);
        }
        let entropy = if all.is_empty() { f64::NAN } else { frequencies(&mut all).1 };
        Self {
            distinct_share: shares / groups as f64,
            conditional_entropy: conditional / members as f64,
            entropy,
        }
    }

    /// `I(X;Z) = H(Z) - H(Z|X)` in nats, not negative beyond rounding: how much an answer depends on its
    /// prompt.
    pub fn mutual_information(&self) -> f64 {
        self.entropy - self.conditional_entropy
    }

    /// Names as logged; `what` names the keys (`answer`, `completion`).
    pub fn to_pairs(&self, what: &str) -> Vec<(String, f64)> {
        [
            ("distinct_share", self.distinct_share),
            ("conditional_entropy", self.conditional_entropy),
            ("entropy", self.entropy),
            ("mutual_information", self.mutual_information()),
        ]
        .iter()
        .map(|(name, value)| (format!("collapse/{what}_{name}"), *value))
        .collect()
    }
}

/// Variance of rewards within and between groups.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VarianceShares {
    /// Mean over groups of the population variance of their scored members.
    pub within: f64,
    /// Population variance of the groups' means.
    pub between: f64,
    /// Deviation over mean of the groups' sample deviations. If it is small, a filter by deviation has
    /// nothing to choose from.
    pub dispersion: f64,
}

impl VarianceShares {
    /// From rewards `[P][G]`; NaN: unscored.
    ///
    /// ```
    /// use tamis_core::diagnostics::VarianceShares;
    /// use tamis_core::ragged::Ragged;
    /// let found = VarianceShares::of(&Ragged::from_rows([[0.0, 2.0], [3.0, 3.0]]));
    /// // Within 1 and 0, means 1 and 3.
    /// assert_eq!((found.within, found.between), (0.5, 1.0));
    /// ```
    pub fn of(rewards: &Ragged<f64>) -> Self {
        let groups: Vec<Moments> =
            rewards.rows().map(Moments::of).filter(|moments| moments.count > 1).collect();
        let column = |value: fn(&Moments) -> f64| groups.iter().map(value).collect::<Vec<f64>>();
        let within = column(|moments| moments.deviation(0).powi(2));
        let means = column(|moments| moments.mean);
        let deviations = Moments::of(&column(|moments| moments.deviation(1)));
        Self {
            within: Moments::of(&within).mean,
            between: Moments::of(&means).deviation(0).powi(2),
            dispersion: deviations.deviation(1) / deviations.mean,
        }
    }

    fn within_share(&self) -> f64 {
        self.within / (self.within + self.between)
    }

    /// Names as logged.
    pub fn to_pairs(&self) -> [(&'static str, f64); 4] {
        [
            ("collapse/reward_variance_within", self.within),
            ("collapse/reward_variance_between", self.between),
            ("collapse/reward_variance_within_share", self.within_share()),
            ("collapse/reward_std_dispersion", self.dispersion),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_nothing_there_is_no_measure() {
        let none: Ragged<Option<u8>> = Ragged::default();
        let found = Diversity::of(&none);
        assert!(
            found.distinct_share.is_nan() && found.entropy.is_nan() && found.mutual_information().is_nan()
        );
        assert!(VarianceShares::of(&Ragged::default()).within_share().is_nan());
    }
}
