//! Gradient norm by reward deviation: whether groups with larger differences teach more.

use serde::{Deserialize, Serialize};

use crate::entry::{Entry, Family};
use crate::fault;
use crate::fault::Fault;

pub(super) const ENTRY: Entry = Entry {
    name: "variance_buckets",
    family: Family::Diagnostic,
    meaning: "Sorts groups into buckets by the deviation of their rewards, and gives the gradient norm of each bucket.",
    formula: "by quantile: equal numbers of groups, ascending, the remainder in the last; by edges: [e_i, e_(i+1)), open at the end",
    source: "RAGEN gradient_analysis",
    defaults: &["train.gradient_analysis.buckets"],
    degenerate: &[
        "a group without a deviation (fewer than two scored members) is in no bucket",
        "with fewer groups than buckets there are fewer buckets; equal deviations stay in the order of the batch",
    ],
    known_as: &[("RAGEN", "gradient_analysis_num_buckets, gradient_analysis_bucket_mode=quantile|fixed_rv")],
    differences: &[
        "`train.gradient_analysis` runs a backward pass for each bucket and term of the loss, as RAGEN does",
        "RAGEN can measure a separate batch (128 prompts of 16) and end the run after it; here it is the filtered batch of the step",
    ],
};

/// Assignment of groups to buckets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Buckets {
    /// Equal numbers of groups.
    Quantile {
        /// Buckets, at least 1.
        buckets: usize,
    },
    /// Lower ends, ascending. A bucket reaches to the next one, and the last has no end. Groups below the
    /// first are in no bucket.
    Edges {
        /// The lower ends (RAGEN 0, 1, 2, 3, 4, 5).
        edges: Vec<f64>,
    },
}

impl Default for Buckets {
    fn default() -> Self {
        Self::Quantile { buckets: 6 }
    }
}

impl Buckets {
    /// Checks that there are buckets and that edges ascend.
    pub fn check(&self) -> Result<(), Fault> {
        match self {
            Self::Quantile { buckets: 0 } => Err(fault!("there must be at least one bucket")),
            Self::Edges { edges } if edges.is_empty() => Err(fault!("there must be at least one bucket")),
            Self::Quantile { .. } => Ok(()),
            Self::Edges { edges } => {
                // NaN comes after nothing.
                let unordered = edges
                    .windows(2)
                    .find(|pair| pair[0].partial_cmp(&pair[1]) != Some(std::cmp::Ordering::Less));
                match unordered {
                    Some(pair) => Err(fault!(
                        "bucket edge {edge} does not come after {previous}; edges must ascend",
                        previous = pair[0],
                        edge = pair[1]
                    )),
                    None => Ok(()),
                }
            }
        }
    }

    /// The bucket of each group \[P\] by its deviation \[P\]; `None`: in no bucket.
    ///
    /// ```
    /// use tamis_core::diagnostics::Buckets;
    /// let found = Buckets::Quantile { buckets: 2 }.assign(&[0.5, 0.1, f64::NAN, 0.2])?;
    /// assert_eq!(found, [Some(1), Some(0), None, Some(1)]);
    /// # Ok::<(), tamis_core::fault::Fault>(())
    /// ```
    pub fn assign(&self, deviations: &[f64]) -> Result<Vec<Option<usize>>, Fault> {
        self.check()?;
        match self {
            Self::Quantile { buckets } => {
                let mut order: Vec<usize> =
                    (0..deviations.len()).filter(|&group| !deviations[group].is_nan()).collect();
                order.sort_by(|&a, &b| deviations[a].total_cmp(&deviations[b]));
                let buckets = (*buckets).min(order.len()).max(1);
                let size = order.len() / buckets;
                let mut found = vec![None; deviations.len()];
                for (rank, group) in order.into_iter().enumerate() {
                    found[group] = Some((rank / size.max(1)).min(buckets - 1));
                }
                Ok(found)
            }
            Self::Edges { edges } => Ok(deviations
                .iter()
                .map(|&deviation| edges.partition_point(|&edge| edge <= deviation).checked_sub(1))
                .zip(deviations)
                .map(|(bucket, deviation)| bucket.filter(|_| !deviation.is_nan()))
                .collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_hold_equal_numbers_and_the_last_the_rest() {
        let deviations: Vec<f64> = (0..8).map(|i| f64::from(7 - i)).collect();
        let found = Buckets::Quantile { buckets: 3 }.assign(&deviations).expect("buckets");
        assert_eq!(found, [2, 2, 2, 2, 1, 1, 0, 0].map(Some));
        assert_eq!(Buckets::default().assign(&[2.0, 1.0]), Ok(vec![Some(1), Some(0)]));
        assert_eq!(Buckets::default().assign(&[]), Ok(vec![]));
    }

    #[test]
    fn edges_are_lower_ends() {
        let buckets = Buckets::Edges { edges: vec![0.0, 1.0, 5.0] };
        let found = buckets.assign(&[0.0, 0.99, 1.0, 7.0, -1.0, f64::NAN]).expect("buckets");
        assert_eq!(found, [Some(0), Some(0), Some(1), Some(2), None, None]);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        insta::assert_snapshot!(
            Buckets::Quantile { buckets: 0 }.check().unwrap_err(),
            @"there must be at least one bucket"
        );
        assert_eq!(Buckets::Edges { edges: vec![] }.check(), Buckets::Quantile { buckets: 0 }.check());
        assert_eq!(Buckets::Edges { edges: vec![0.5] }.check(), Ok(()));
        let refused = |edges| Buckets::Edges { edges }.check().unwrap_err().to_string();
        assert_eq!(refused(vec![0.0, 0.0]), "bucket edge 0 does not come after 0; edges must ascend");
        assert_eq!(refused(vec![0.0, 2.0, 1.0]), "bucket edge 1 does not come after 2; edges must ascend");
    }
}
