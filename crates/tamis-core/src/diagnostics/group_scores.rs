//! The group score table: one row per group.

use serde::{Deserialize, Serialize};

use crate::advantage::statistics::Moments;
use crate::entry::{Entry, Family};
use crate::ragged::Ragged;

/// The catalogue's entry.
pub(super) const ENTRY: Entry = Entry {
    name: "group_scores",
    family: Family::Diagnostic,
    meaning: "one row per group: members, scored ones, mean, deviation, extremes, share above a threshold",
    formula: "deviation with ddof 1 over the scored members",
    source: "RAGEN rollout/reward_table and group_rv_table",
    defaults: &[("pass_above", "0.5")],
    degenerate: &[
        "unscored members (NaN) are counted and outside every statistic",
        "a group without a scored member has NaN everywhere",
    ],
    known_as: &[("RAGEN", "rollout/reward_table, rollout/group_rv_table")],
    differences: &["RAGEN's reward_variance is this deviation, not the variance"],
};

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct GroupScore {
    /// Place of the group in the batch.
    pub group: usize,
    /// Members.
    pub members: usize,
    /// Members that were scored.
    pub scored: usize,
    /// Mean score.
    pub mean: f64,
    /// Sample deviation; 0 where all are equal, NaN with fewer than two scored members.
    pub deviation: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// Share of scored members above the threshold.
    pub pass_rate: f64,
}

/// The table of scores `[P][G]`; a member passes above `pass_above`.
///
/// ```
/// use tamis_core::diagnostics::group_scores;
/// use tamis_core::ragged::Ragged;
/// let row = group_scores(&Ragged::from_rows([[1.0, 0.0, f64::NAN]]), 0.5)[0];
/// assert_eq!((row.scored, row.mean, row.pass_rate), (2, 0.5, 0.5));
/// ```
pub fn group_scores(scores: &Ragged<f64>, pass_above: f64) -> Vec<GroupScore> {
    let row = |(group, scores_g): (usize, &[f64])| {
        let moments = Moments::of(scores_g);
        // f64::min and max pass over NaN.
        let min = scores_g.iter().copied().fold(f64::NAN, f64::min);
        let max = scores_g.iter().copied().fold(f64::NAN, f64::max);
        let passed = scores_g.iter().filter(|&&score| score > pass_above).count();
        GroupScore {
            group,
            members: scores_g.len(),
            scored: moments.count,
            mean: moments.mean,
            deviation: moments.deviation(1),
            min,
            max,
            pass_rate: passed as f64 / moments.count as f64,
        }
    };
    scores.rows().enumerate().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_by_hand() {
        let rows = group_scores(&Ragged::from_rows([vec![1.0, 2.0, 6.0], vec![f64::NAN], vec![]]), 1.5);
        assert_eq!((rows[0].mean, rows[0].min, rows[0].max), (3.0, 1.0, 6.0));
        // Squares 4 + 1 + 9 over 2.
        assert!((rows[0].deviation - 7_f64.sqrt()).abs() < 1e-15);
        assert!((rows[0].pass_rate - 2.0 / 3.0).abs() < 1e-15);
        for row in &rows[1..] {
            assert!(
                row.mean.is_nan() && row.deviation.is_nan() && row.min.is_nan() && row.pass_rate.is_nan()
            );
        }
        assert_eq!((rows[1].members, rows[2].members), (1, 0));
    }
}
