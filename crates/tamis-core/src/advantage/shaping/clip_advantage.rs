//! Bounds on advantages.

use super::{ShapeAdvantages, Shaped, ShapingBatch};
use crate::advantage::error::in_range;
use crate::advantage::{Advantages, Result};
use crate::entry::{Entry, Family};
use crate::setting::Ranged as _;
use crate::settings;

pub(in crate::advantage) const ENTRY: Entry = Entry {
    name: "clip_advantage",
    family: Family::Shaping,
    formula: "A = clamp(A, low, high)",
    source: "a common safeguard; e.g. prime-rl's and OpenRLHF's clip ranges on advantages and rewards",
    degenerate: &["without a bound nothing changes; advantages of a group need not sum to zero afterwards"],
    known_as: &[],
    differences: &[],
    ..Entry::REGISTERED
};

settings! {
    /// `A = clamp(A, low, high)`, per trajectory or per token.
    ///
    /// ```
    /// use tamis_core::advantage::shaping::ClipAdvantage;
    /// assert_eq!(ClipAdvantage { low: None, high: Some(2.0) }.clip(3.5), 2.0);
    /// ```
    #[derive(Copy)]
    pub struct ClipAdvantage {
        /// Lower bound of the advantage, 0 or less. Null: none.
        low: Option<f64> = None;
        /// Upper bound of the advantage, 0 or more. Null: none.
        high: Option<f64> = None, NonNegative;
    }
}

impl ClipAdvantage {
    /// One advantage.
    pub fn clip(&self, advantage: f64) -> f64 {
        let raised = self.low.map_or(advantage, |low| advantage.max(low));
        self.high.map_or(raised, |high| raised.min(high))
    }
}

impl ShapeAdvantages for ClipAdvantage {
    fn check(&self) -> Result<()> {
        self.check_ranges()?;
        let low = self.low.unwrap_or_default();
        in_range("low", low, low <= 0.0, "a number of at most 0")
    }

    fn change(&self, shaped: &mut Shaped, _batch: &ShapingBatch<'_>) {
        let (Advantages::PerTrajectory(advantages) | Advantages::PerToken(advantages)) =
            &mut shaped.advantages;
        for row in 0..advantages.num_rows() {
            for advantage in advantages.row_mut(row) {
                *advantage = self.clip(*advantage);
            }
        }
    }
}
