//! Gradient norm by reward deviation: whether groups that differ more really teach more.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::entry::{Entry, Family};

/// The catalogue's entry.
pub(super) const ENTRY: Entry = Entry {
    name: "variance_buckets",
    family: Family::Diagnostic,
    meaning: "groups sorted into buckets by the deviation of their rewards, and the gradient norm of each bucket",
    formula: "by quantile: equal numbers of groups, ascending, the remainder in the last; by edges: [e_i, e_(i+1)), open at the end",
    source: "RAGEN gradient_analysis",
    defaults: &[("train.gradient_analysis.buckets", "6")],
    degenerate: &[
        "a group without a deviation (fewer than two scored members) is in no bucket",
        "with fewer groups than buckets there are fewer buckets; equal deviations stay in the order of the batch",
    ],
    known_as: &[("RAGEN", "gradient_analysis_num_buckets, gradient_analysis_bucket_mode=quantile|fixed_rv")],
    differences: &[
        "`train.gradient_analysis` runs a backward pass for each bucket and term of the loss, as RAGEN does; a table over norms of single groups, or over `coefficient_norms`, which cost no pass, is for other trainers",
        "RAGEN can measure a batch of its own (128 prompts of 16) and end the run after it; here it is the filtered batch of the step",
    ],
};

/// How groups are sorted into buckets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Buckets {
    /// Equal numbers of groups.
    Quantile {
        /// Buckets, at least 1.
        buckets: usize,
    },
    /// Lower ends, ascending; a bucket reaches to the next, the last has no end. What is below the first is
    /// in no bucket.
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

/// Buckets that cannot be.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum BucketsError {
    /// None at all.
    #[error("there must be at least one bucket")]
    None,
    /// Edges out of order.
    #[error("bucket edge {edge} does not come after {previous}; edges must ascend")]
    Edges {
        /// An edge.
        previous: f64,
        /// The one after it.
        edge: f64,
    },
    /// Not one norm per group.
    #[error("{norms} gradient norms for {groups} groups")]
    Length {
        /// Groups.
        groups: usize,
        /// Norms.
        norms: usize,
    },
    /// Tables of different definitions.
    #[error("a table of {other} buckets cannot be added to one of {buckets}")]
    Merge {
        /// Buckets of the one.
        buckets: usize,
        /// Buckets of the other.
        other: usize,
    },
    /// Group sizes, offsets and derivatives that do not fit together.
    #[error(
        "groups of {expected} trajectories in all do not fit the {actual} trajectories or derivatives given"
    )]
    Groups {
        /// Sum of the group sizes.
        expected: usize,
        /// Trajectories.
        actual: usize,
    },
}

impl Buckets {
    /// Whether there are any, in order.
    ///
    /// # Errors
    /// [`BucketsError::None`], [`BucketsError::Edges`].
    pub fn check(&self) -> Result<(), BucketsError> {
        match self {
            Self::Quantile { buckets: 0 } => Err(BucketsError::None),
            Self::Edges { edges } if edges.is_empty() => Err(BucketsError::None),
            Self::Quantile { .. } => Ok(()),
            Self::Edges { edges } => {
                // NaN comes after nothing.
                let unordered = edges
                    .windows(2)
                    .find(|pair| pair[0].partial_cmp(&pair[1]) != Some(std::cmp::Ordering::Less));
                match unordered {
                    Some(pair) => Err(BucketsError::Edges { previous: pair[0], edge: pair[1] }),
                    None => Ok(()),
                }
            }
        }
    }

    /// The bucket of each group \[P\] by its deviation \[P\]; `None`: in none.
    ///
    /// # Errors
    /// As [`Self::check`].
    ///
    /// ```
    /// use tamis_core::diagnostics::Buckets;
    /// let found = Buckets::Quantile { buckets: 2 }.assign(&[0.5, 0.1, f64::NAN, 0.2])?;
    /// assert_eq!(found, [Some(1), Some(0), None, Some(1)]);
    /// # Ok::<(), tamis_core::diagnostics::BucketsError>(())
    /// ```
    pub fn assign(&self, deviations: &[f64]) -> Result<Vec<Option<usize>>, BucketsError> {
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

/// Sums of the groups of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    /// Groups.
    pub groups: usize,
    /// Sum of their reward deviations.
    pub deviation_sum: f64,
    /// Smallest of them; +inf of none.
    pub deviation_min: f64,
    /// Largest of them; -inf of none.
    pub deviation_max: f64,
    /// Sum of their gradient norms.
    pub norm_sum: f64,
    /// Sum of their squares.
    pub square_sum: f64,
}

impl Bucket {
    const EMPTY: Self = Self {
        groups: 0,
        deviation_sum: 0.0,
        deviation_min: f64::INFINITY,
        deviation_max: f64::NEG_INFINITY,
        norm_sum: 0.0,
        square_sum: 0.0,
    };

    /// Mean gradient norm of a group; NaN of none.
    pub fn mean_norm(&self) -> f64 {
        self.norm_sum / self.groups as f64
    }
}

/// Buckets in ascending order of deviation; those of several batches or ranks add up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BucketTable {
    /// One for each bucket that the definition has.
    pub buckets: Vec<Bucket>,
}

impl BucketTable {
    /// Of reward deviations \[P\] and gradient norms \[P\] of groups.
    ///
    /// # Errors
    /// Buckets that cannot be, lengths that differ.
    pub fn of(definition: &Buckets, deviations: &[f64], norms: &[f64]) -> Result<Self, BucketsError> {
        if deviations.len() != norms.len() {
            return Err(BucketsError::Length { groups: deviations.len(), norms: norms.len() });
        }
        let places = definition.assign(deviations)?;
        let count = match definition {
            Buckets::Quantile { buckets } => *buckets,
            Buckets::Edges { edges } => edges.len(),
        };
        let mut buckets = vec![Bucket::EMPTY; count];
        for ((place, &deviation), &norm) in places.iter().zip(deviations).zip(norms) {
            if let Some(bucket) = place.and_then(|place| buckets.get_mut(place)) {
                bucket.groups += 1;
                bucket.deviation_sum += deviation;
                bucket.deviation_min = bucket.deviation_min.min(deviation);
                bucket.deviation_max = bucket.deviation_max.max(deviation);
                bucket.norm_sum += norm;
                bucket.square_sum += norm * norm;
            }
        }
        Ok(Self { buckets })
    }

    /// Adds another table of the same definition. Quantiles of different batches have different bounds: the
    /// n-th lowest of each.
    ///
    /// # Errors
    /// [`BucketsError::Merge`].
    pub fn merge(&mut self, other: &Self) -> Result<(), BucketsError> {
        if self.buckets.len() != other.buckets.len() {
            return Err(BucketsError::Merge { buckets: self.buckets.len(), other: other.buckets.len() });
        }
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            mine.groups += theirs.groups;
            mine.deviation_sum += theirs.deviation_sum;
            mine.deviation_min = mine.deviation_min.min(theirs.deviation_min);
            mine.deviation_max = mine.deviation_max.max(theirs.deviation_max);
            mine.norm_sum += theirs.norm_sum;
            mine.square_sum += theirs.square_sum;
        }
        Ok(())
    }

    /// Names as logged, for buckets that hold a group: mean gradient norm, its share of the sum of squares,
    /// bounds of the deviation.
    pub fn named(&self) -> Vec<(String, f64)> {
        let total: f64 = self.buckets.iter().map(|bucket| bucket.square_sum).sum();
        let groups: usize = self.buckets.iter().map(|bucket| bucket.groups).sum();
        let mut named = Vec::new();
        for (i, bucket) in self.buckets.iter().enumerate().filter(|(_, bucket)| bucket.groups > 0) {
            for (name, value) in [
                ("norm", bucket.mean_norm()),
                ("square_share", bucket.square_sum / total),
                ("group_share", bucket.groups as f64 / groups as f64),
                ("reward_std_mean", bucket.deviation_sum / bucket.groups as f64),
                ("reward_std_min", bucket.deviation_min),
                ("reward_std_max", bucket.deviation_max),
            ] {
                named.push((format!("grad_norm/bucket_{i}/{name}"), value));
            }
        }
        named
    }
}

/// A gradient norm of each group \[P\] that needs no backward pass: `sqrt(Σ_t (∂loss/∂logprob_t)²)` over its
/// tokens.
///
/// It is the norm of the gradient with respect to the log-probabilities, not to the weights: the two are
/// proportional only where all tokens' score vectors are of one length and orthogonal. It ranks groups by how
/// hard the loss pulls at them, and knows nothing of how much the weights give.
///
/// Shapes: derivatives \[N\], offsets \[B + 1\], group sizes \[P\].
///
/// # Errors
/// [`BucketsError::Groups`] where sizes, offsets and derivatives do not fit together.
pub fn coefficient_norms(
    derivatives: &[f64],
    offsets: &[usize],
    group_sizes: &[usize],
) -> Result<Vec<f64>, BucketsError> {
    let expected: usize = group_sizes.iter().sum();
    let actual = offsets.len().saturating_sub(1);
    if expected != actual {
        return Err(BucketsError::Groups { expected, actual });
    }
    let base = offsets.first().copied().unwrap_or(0);
    let mut norms = Vec::with_capacity(group_sizes.len());
    let mut first = 0;
    for &size in group_sizes {
        let tokens = offsets[first].saturating_sub(base)..offsets[first + size].saturating_sub(base);
        let Some(derivatives_g) = derivatives.get(tokens) else {
            return Err(BucketsError::Groups { expected, actual: derivatives.len() });
        };
        norms.push(derivatives_g.iter().map(|derivative| derivative * derivative).sum::<f64>().sqrt());
        first += size;
    }
    Ok(norms)
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
    fn tables_add_up() {
        let definition = Buckets::Edges { edges: vec![0.0, 1.0] };
        let mut table = BucketTable::of(&definition, &[0.5, 2.0], &[1.0, 3.0]).expect("table");
        let other = BucketTable::of(&definition, &[1.5], &[5.0]).expect("table");
        table.merge(&other).expect("same definition");
        assert_eq!(table, BucketTable::of(&definition, &[0.5, 2.0, 1.5], &[1.0, 3.0, 5.0]).expect("table"));
        assert_eq!((table.buckets[1].mean_norm(), table.buckets[1].deviation_min), (4.0, 1.5));
        let named = table.named();
        assert!(named.contains(&("grad_norm/bucket_1/square_share".to_owned(), 34.0 / 35.0)), "{named:?}");
    }

    #[test]
    fn coefficient_norms_by_hand() {
        let found = coefficient_norms(&[3.0, 4.0, 0.0, -2.0], &[0, 1, 2, 3, 4], &[2, 1, 1]).expect("fits");
        assert_eq!(found, [5.0, 0.0, 2.0]);
        // A view of a larger batch.
        assert_eq!(coefficient_norms(&[3.0, 4.0], &[7, 9], &[1]), Ok(vec![5.0]));
        assert_eq!(coefficient_norms(&[], &[], &[]), Ok(vec![]));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        insta::assert_snapshot!(
            Buckets::Quantile { buckets: 0 }.check().unwrap_err(),
            @"there must be at least one bucket"
        );
        insta::assert_snapshot!(
            Buckets::Edges { edges: vec![0.0, 0.0] }.check().unwrap_err(),
            @"bucket edge 0 does not come after 0; edges must ascend"
        );
        insta::assert_snapshot!(
            BucketTable::of(&Buckets::default(), &[1.0], &[]).unwrap_err(),
            @"0 gradient norms for 1 groups"
        );
        insta::assert_snapshot!(
            coefficient_norms(&[1.0], &[0, 1], &[2]).unwrap_err(),
            @"groups of 2 trajectories in all do not fit the 1 trajectories or derivatives given"
        );
        let mut table = BucketTable { buckets: vec![Bucket::EMPTY] };
        insta::assert_snapshot!(
            table.merge(&BucketTable { buckets: vec![] }).unwrap_err(),
            @"a table of 0 buckets cannot be added to one of 1"
        );
    }
}
