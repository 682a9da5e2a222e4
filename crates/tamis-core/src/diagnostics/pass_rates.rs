//! The pass-rate histogram: how hard the prompts are for the present policy.

use serde::{Deserialize, Serialize};

use crate::entry::{Entry, Family};
use crate::ragged::Ragged;

pub(super) const ENTRY: Entry = Entry {
    name: "pass_rates",
    family: Family::Diagnostic,
    meaning: "Number of groups in which no member passes, in which all pass, and in equal intervals of the pass rate between.",
    formula: "group with c of n scored members above the threshold: none if c = 0, all if c = n, otherwise interval floor(c·bins / n)",
    source: "what dynamic sampling keeps: DAPO, arXiv 2503.14476, eq. 11",
    defaults: &[],
    degenerate: &[
        "groups with fewer than two scored members are counted separately: they have nothing to compare",
        "without intervals all groups between form one",
    ],
    known_as: &[],
    differences: &[],
};

/// Groups by their pass rate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassRates {
    /// Groups in which no scored member passes.
    pub none: u64,
    /// Groups with a pass rate strictly between 0 and 1, by equal intervals, lowest first.
    pub between: Vec<u64>,
    /// Groups in which every scored member passes.
    pub all: u64,
    /// Groups with fewer than two scored members.
    pub unscored: u64,
}

impl PassRates {
    /// From scores `[P][G]`; a member passes above `pass_above`.
    ///
    /// ```
    /// use tamis_core::diagnostics::PassRates;
    /// use tamis_core::ragged::Ragged;
    /// let scores = Ragged::from_rows([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [1.0, f64::NAN]]);
    /// let found = PassRates::of(&scores, 0.5, 2);
    /// assert_eq!((found.none, found.between.as_slice(), found.all, found.unscored), (1, &[0, 1][..], 1, 1));
    /// ```
    pub fn of(scores: &Ragged<f64>, pass_above: f64, bins: usize) -> Self {
        let mut found = Self { none: 0, between: vec![0; bins.max(1)], all: 0, unscored: 0 };
        for scores_g in scores.rows() {
            let scored = scores_g.iter().filter(|score| !score.is_nan()).count();
            let passed = scores_g.iter().filter(|&&score| score > pass_above).count();
            let count = if scored < 2 {
                &mut found.unscored
            } else if passed == 0 {
                &mut found.none
            } else if passed == scored {
                &mut found.all
            } else {
                // Below the number of intervals, because passed is below scored.
                let interval = passed * found.between.len() / scored;
                &mut found.between[interval]
            };
            *count += 1;
        }
        found
    }

    /// Share of scored groups in which some members pass and others do not; NaN without scored groups.
    fn mixed_share(&self) -> f64 {
        let mixed: u64 = self.between.iter().sum();
        mixed as f64 / (self.none + mixed + self.all) as f64
    }

    /// Names as logged, as shares of the scored groups.
    pub fn to_pairs(&self) -> Vec<(String, f64)> {
        let scored = (self.none + self.between.iter().sum::<u64>() + self.all) as f64;
        let bins = self.between.len();
        let mut named = vec![("diagnostics/pass_rate/none".to_owned(), self.none as f64 / scored)];
        named.extend(
            self.between
                .iter()
                .enumerate()
                .map(|(i, &count)| (format!("diagnostics/pass_rate/{i}_of_{bins}"), count as f64 / scored)),
        );
        named.push(("diagnostics/pass_rate/all".to_owned(), self.all as f64 / scored));
        named.push(("diagnostics/pass_rate/mixed".to_owned(), self.mixed_share()));
        named
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_hold_their_lower_end() {
        // Pass rates 1/4, 2/4, 3/4.
        let scores = Ragged::from_rows([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]]);
        assert_eq!(PassRates::of(&scores, 0.5, 4).between, [0, 1, 1, 1]);
        assert_eq!(PassRates::of(&scores, 2.0, 4).none, 3);
        assert_eq!(PassRates::of(&scores, 0.5, 0).between, [3]);
    }

    #[test]
    fn shares_are_logged_under_their_interval() {
        let scores = Ragged::from_rows([[1.0, 0.0], [1.0, 1.0]]);
        let named = PassRates::of(&scores, 0.5, 2).to_pairs();
        let expected = [("none", 0.0), ("0_of_2", 0.0), ("1_of_2", 0.5), ("all", 0.5), ("mixed", 0.5)];
        for ((name, value), (ending, share)) in named.iter().zip(expected) {
            assert!(name.ends_with(ending) && (value - share).abs() < 1e-15, "{name} {value}");
        }
    }
}
