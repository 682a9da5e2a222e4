//! Histogram of the groups' pass rates, and the distribution of the prompts' pass rates behind them.

use serde::Serialize;
use tamis_config::{BetaRates, SimulatedPassRates};
use tamis_core::schedule::yields::PassRateSpread;

use super::keep_rate::OutcomeCounts;
use crate::simulate::Population;

/// Prompts that represent a distribution.
const PROMPTS: usize = 4000;
/// Bounds of the inner bins.
const QUARTERS: [(&str, f64); 4] =
    [("up to 1/4", 0.25), ("up to 1/2", 0.5), ("up to 3/4", 0.75), ("below all", 1.0)];

/// Groups whose share of correct members lies in a range.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bin {
    /// The range as text.
    pub range: &'static str,
    /// Groups.
    pub groups: u64,
    /// Share of the groups, by their weights.
    pub share: f64,
    /// Whether it is the range of groups that are all correct.
    #[serde(skip)]
    pub is_all: bool,
}

/// Groups by the share of their members that are correct: none, quarters, all.
pub(super) fn bins(groups: &[OutcomeCounts]) -> Vec<Bin> {
    let mut counts = [(0_u64, 0.0); QUARTERS.len() + 2];
    for group in groups {
        let Some(correct) = group.correct else { continue };
        let share = correct as f64 / group.n() as f64;
        let place = match correct {
            0 => 0,
            all if all == group.n() => QUARTERS.len() + 1,
            _ => 1 + QUARTERS.iter().position(|(_, bound)| share <= *bound).unwrap_or(QUARTERS.len() - 1),
        };
        let (groups, weight) = &mut counts[place];
        *groups += 1;
        *weight += group.weight;
    }
    let all: f64 = counts.iter().map(|(_, weight)| weight).sum();
    let names = ["none"].into_iter().chain(QUARTERS.map(|(name, _)| name)).chain(["all"]);
    let bin = |(range, (groups, weight)): (&'static str, (u64, f64))| Bin {
        range,
        groups,
        share: weight / all,
        is_all: range == "all",
    };
    if all <= 0.0 { Vec::new() } else { names.zip(counts).map(bin).collect() }
}

/// The distribution of pass rates over prompts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Spread {
    /// `beta`, `equal` (all prompts alike) or `split` (each solved always or never).
    pub kind: &'static str,
    /// The first parameter of a Beta distribution.
    pub a: Option<f64>,
    /// The second one.
    pub b: Option<f64>,
    /// Share of prompts with a pass rate below 0.1.
    pub hard: f64,
    /// Share of prompts with a pass rate above 0.9.
    pub easy: f64,
}

impl Spread {
    pub(super) fn of(fit: PassRateSpread) -> Option<Self> {
        let one = |is: bool| f64::from(u8::from(is));
        match fit {
            PassRateSpread::Equal(rate) => {
                Some(Self { kind: "equal", a: None, b: None, hard: one(rate < 0.1), easy: one(rate > 0.9) })
            }
            PassRateSpread::Split(rate) => {
                Some(Self { kind: "split", a: None, b: None, hard: 1.0 - rate, easy: rate })
            }
            PassRateSpread::Beta { a, b } => {
                let of = SimulatedPassRates::Beta(BetaRates { a, b, prompts: PROMPTS });
                let population = Population::new(&of, 0).ok()?;
                let share = |is: &dyn Fn(f64) -> bool| {
                    population.rates().filter(|rate| is(*rate)).count() as f64 / PROMPTS as f64
                };
                Some(Self {
                    kind: "beta",
                    a: Some(a),
                    b: Some(b),
                    hard: share(&|rate| rate < 0.1),
                    easy: share(&|rate| rate > 0.9),
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::evidence::Groups;
    use super::*;

    #[test]
    fn groups_fall_into_quarters() {
        let groups = Groups::of_counts(&[(0, 4), (0, 8), (1, 4), (2, 4), (3, 8), (7, 8), (8, 8), (3, 4)]);
        let found = bins(&groups.counts(0, Some(1.0)));
        let counts: Vec<(&str, u64)> = found.iter().map(|bin| (bin.range, bin.groups)).collect();
        assert_eq!(
            counts,
            [("none", 2), ("up to 1/4", 1), ("up to 1/2", 2), ("up to 3/4", 1), ("below all", 1), ("all", 1)]
        );
        assert!((found.iter().map(|bin| bin.share).sum::<f64>() - 1.0).abs() < 1e-12);
        assert_eq!(bins(&[]), []);
    }

    #[test]
    fn shares_of_hard_and_easy_prompts() {
        let uniform = Spread::of(PassRateSpread::Beta { a: 1.0, b: 1.0 }).unwrap();
        assert!((uniform.hard - 0.1).abs() < 2e-3 && (uniform.easy - 0.1).abs() < 2e-3, "{uniform:?}");
        let split = Spread::of(PassRateSpread::Split(0.25)).unwrap();
        assert_eq!((split.hard, split.easy), (0.75, 0.25));
    }
}
