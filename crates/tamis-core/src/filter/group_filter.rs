//! The filters by name, as configured.

use serde::{Deserialize, Serialize};

use super::{
    Filter, FilterError, GroupStatistics, Mass, MeanRange, MinP, OutcomeScale, Percentile, Pool, Scope, TopK,
    TopP, Variance, Verdict, WithinGroup,
};

/// A filter with its settings: what a run or an offline tool was told to use.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum GroupFilter {
    /// Members must differ.
    Variance(Variance),
    /// The mean must lie in a range.
    MeanRange(MeanRange),
    /// The best groups of a round that hold a share of its mass.
    TopP(TopP),
    /// The k best groups of a round.
    TopK(TopK),
    /// The groups of a round not far behind the best.
    MinP(MinP),
    /// A band of the ranking of a round.
    Percentile(Percentile),
    /// Every group, and some of its members.
    WithinGroup(WithinGroup),
}

impl GroupFilter {
    /// The filter with its settings checked; for filters read from a file or a command line.
    ///
    /// # Errors
    /// Those of the filters themselves.
    pub fn checked(self) -> Result<Self, FilterError> {
        Ok(match self {
            Self::Variance(filter) => Self::Variance(Variance::new(filter.tolerance, filter.singleton)?),
            Self::MeanRange(filter) => Self::MeanRange(MeanRange::new(filter.low, filter.high, filter.ends)?),
            Self::TopP(filter) => Self::TopP(filter.checked()?),
            Self::TopK(filter) => Self::TopK(filter.checked()?),
            Self::MinP(filter) => Self::MinP(filter.checked()?),
            Self::Percentile(filter) => Self::Percentile(filter.checked()?),
            Self::WithinGroup(filter) => Self::WithinGroup(filter.checked()?),
        })
    }

    /// Whether it may keep a group whose members all have the same metric, by its settings alone: a selection among the groups of a round in
    /// which such groups compete. A group-relative advantage learns nothing from them.
    ///
    /// ```
    /// use tamis_core::filter::{GroupFilter, Mass, Pool, TopP, Variance};
    /// let softmax = TopP::default();
    /// assert!(GroupFilter::TopP(softmax).admits_uniform());
    /// // Without mass such a group is never kept, and without `include_zero` it does not compete.
    /// assert!(!GroupFilter::TopP(TopP { mass: Mass::Linear, ..softmax }).admits_uniform());
    /// let pool = Pool { include_zero: false, ..Pool::default() };
    /// assert!(!GroupFilter::TopP(TopP { pool, ..softmax }).admits_uniform());
    /// assert!(!GroupFilter::Variance(Variance::default()).admits_uniform());
    /// ```
    pub fn admits_uniform(&self) -> bool {
        match self {
            Self::Variance(_) | Self::MeanRange(_) => false,
            Self::TopP(filter) => {
                let has_mass = filter.mass == Mass::Softmax || filter.p >= 1.0;
                filter.pool.admits_uniform() && (has_mass || !filter.pool.is_by_spread())
            }
            Self::TopK(filter) => filter.pool.admits_uniform(),
            Self::MinP(filter) => filter.pool.admits_uniform(),
            Self::Percentile(filter) => filter.pool.admits_uniform(),
            Self::WithinGroup(filter) => filter.include_zero,
        }
    }

    /// Whether a group is kept whatever its other members score, once some of them have this smallest and largest metric. Only the variance
    /// filter can know before the group is complete.
    pub fn is_certain(&self, min: f64, max: f64) -> bool {
        match self {
            Self::Variance(filter) => max - min > filter.tolerance,
            _ => false,
        }
    }

    /// The pool in which it compares the groups of a round, where it does.
    pub fn pool(&self) -> Option<Pool> {
        match self {
            Self::Variance(_) | Self::MeanRange(_) | Self::WithinGroup(_) => None,
            Self::TopP(filter) => Some(filter.pool),
            Self::TopK(filter) => Some(filter.pool),
            Self::MinP(filter) => Some(filter.pool),
            Self::Percentile(filter) => Some(filter.pool),
        }
    }

    fn as_filter(&self) -> &dyn Filter {
        match self {
            Self::Variance(filter) => filter,
            Self::MeanRange(filter) => filter,
            Self::TopP(filter) => filter,
            Self::TopK(filter) => filter,
            Self::MinP(filter) => filter,
            Self::Percentile(filter) => filter,
            Self::WithinGroup(filter) => filter,
        }
    }
}

impl Filter for GroupFilter {
    fn name(&self) -> &'static str {
        self.as_filter().name()
    }

    fn scope(&self) -> Scope {
        self.as_filter().scope()
    }

    fn judge(&self, groups: &[GroupStatistics], scale: Option<OutcomeScale>) -> Vec<Verdict> {
        self.as_filter().judge(groups, scale)
    }

    fn members(&self, values: &[f64]) -> Option<Vec<bool>> {
        self.as_filter().members(values)
    }
}
