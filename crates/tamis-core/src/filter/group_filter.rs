//! The filters by name, as configured.

use serde::{Deserialize, Serialize};

use super::{
    Filter, FilterError, GroupStatistics, MeanRange, MinP, OutcomeScale, Percentile, Scope, TopK, TopP,
    Variance, Verdict, WithinGroup,
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
