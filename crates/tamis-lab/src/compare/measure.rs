//! How runs are compared: last value, best value, mean level over the steps, and the value at equal cost.

use super::series::{Series, SeriesRow};

/// The metric to compare by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// Accuracy at validations: the run's first `val-core/.../mean@n`, or TRL's `eval_reward`.
    Validation,
    /// Mean reward of everything that was generated, or of the trained batch if the run has nothing else.
    Reward,
    /// A metric by its name.
    Named(String),
}

/// Names of a mean reward, the best first. A filtered batch's mean is biased, so it comes last.
const REWARDS: [&str; 4] = ["all/critic/score/mean", "critic/score/mean", "critic/rewards/mean", "reward"];

impl Choice {
    /// Title for the reader.
    pub fn title(&self) -> String {
        match self {
            Self::Validation => "validation".to_owned(),
            Self::Reward => "reward".to_owned(),
            Self::Named(name) => name.clone(),
        }
    }

    /// Name of the metric in a run.
    pub fn name(&self, series: &Series) -> Option<String> {
        let names = series.names();
        match self {
            Self::Validation => names
                .iter()
                .find(|name| name.starts_with("val-core/") && name.contains("/mean@"))
                .or_else(|| names.get("eval_reward"))
                .map(|&name| name.to_owned()),
            Self::Reward => REWARDS.iter().find(|&&name| names.contains(name)).map(|&name| name.to_owned()),
            Self::Named(name) => names.contains(name.as_str()).then(|| name.clone()),
        }
    }
}

/// Standard error of a validation's value over its prompts: the logged one, or that of a share, which is an
/// upper bound.
pub(crate) fn standard_error(series: &Series, name: &str, step: u64, value: f64) -> Option<f64> {
    let found = |name: &str| series.rows.iter().find(|row| row.step == step)?.values.get(name).copied();
    let logged = name.strip_prefix("val-core/").map(|rest| format!("val-aux/{rest}/standard_error"));
    if let Some(error) = logged.and_then(|name| found(&name)) {
        return Some(error);
    }
    let prompts = found(&format!("val-aux/{}/num_prompts", source_of(name)?))?;
    // With one more right and one more wrong answer (Agresti and Coull): a share of 0 is not certain either.
    let share = (value * prompts + 1.0) / (prompts + 2.0);
    ((0.0..=1.0).contains(&value) && prompts > 1.0).then(|| (share * (1.0 - share) / prompts).sqrt())
}

/// The data source in `val-core/{source}/{score}/{statistic}`.
pub(crate) fn source_of(name: &str) -> Option<&str> {
    let (rest, _statistic) = name.strip_prefix("val-core/")?.rsplit_once('/')?;
    rest.rsplit_once('/').map(|(source, _score)| source)
}

/// The axis of a plot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// Training steps.
    Steps,
    /// Tokens.
    Tokens,
    /// Seconds.
    Seconds,
}

impl Over {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Steps, Self::Tokens, Self::Seconds];

    /// Its unit.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Steps => "steps",
            Self::Tokens => "tokens",
            Self::Seconds => "s",
        }
    }

    /// Position of a row on the axis.
    pub fn of(self, row: &SeriesRow) -> Option<f64> {
        match self {
            Self::Steps => Some(row.step as f64),
            Self::Tokens => row.tokens,
            Self::Seconds => row.seconds,
        }
    }
}

/// Ways to reduce a curve to one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// The last value.
    Last,
    /// The largest value.
    Best,
    /// Area under the curve up to the last step that all runs have, divided by its width: the mean level.
    Area,
    /// The last value up to the cost that all runs reach.
    At(Over),
}

impl Measure {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Last,
        Self::Best,
        Self::Area,
        Self::At(Over::Steps),
        Self::At(Over::Tokens),
        Self::At(Over::Seconds),
    ];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Last => "last",
            Self::Best => "best",
            Self::Area => "area",
            Self::At(Over::Steps) => "equal_steps",
            Self::At(Over::Tokens) => "equal_tokens",
            Self::At(Over::Seconds) => "equal_seconds",
        }
    }
}

/// The values of a metric along an axis, in order.
pub fn curve(series: &Series, name: &str, over: Over) -> Vec<(f64, f64)> {
    series.rows.iter().filter_map(|row| Some((over.of(row)?, *row.values.get(name)?))).collect()
}

/// The last value up to a place; `None` if there is none yet.
pub fn value_at(curve: &[(f64, f64)], place: f64) -> Option<f64> {
    curve.iter().rfind(|(at, _)| *at <= place).map(|(_, value)| *value)
}

/// Area under a curve up to a place by trapezoids, divided by its width:
/// `sum (x[i+1]-x[i])(y[i]+y[i+1])/2 / (x[n]-x[0])`. A single value gives that value, and none `None`.
///
/// ```
/// use tamis_lab::compare::measure::area;
/// assert_eq!(area(&[(0.0, 0.0), (1.0, 1.0), (3.0, 1.0)], 9.0), Some(2.5 / 3.0));
/// assert_eq!(area(&[(2.0, 7.0)], 9.0), Some(7.0));
/// assert_eq!(area(&[(2.0, 7.0)], 1.0), None);
/// ```
pub fn area(curve: &[(f64, f64)], place: f64) -> Option<f64> {
    let within: Vec<(f64, f64)> = curve.iter().copied().filter(|(at, _)| *at <= place).collect();
    let (&(first, value), &(last, _)) = (within.first()?, within.last()?);
    if last <= first {
        return Some(value);
    }
    let trapezoid = |pair: &[(f64, f64)]| (pair[1].0 - pair[0].0) * (pair[0].1 + pair[1].1) / 2.0;
    Some(within.windows(2).map(trapezoid).sum::<f64>() / (last - first))
}

/// Mean and spread over seeds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// Mean.
    pub mean: f64,
    /// Sample standard deviation; `None` for one run.
    pub spread: Option<f64>,
    /// Number of runs.
    pub runs: usize,
}

impl Summary {
    /// Mean and spread of some values; `None` for no value.
    pub fn of(values: &[f64]) -> Option<Self> {
        let runs = values.len();
        if runs == 0 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / runs as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let spread = (runs > 1).then(|| (squares / (runs - 1) as f64).sqrt());
        Some(Self { mean, spread, runs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_spread() {
        assert_eq!(
            Summary::of(&[1.0, 3.0]),
            Some(Summary { mean: 2.0, spread: Some(2.0_f64.sqrt()), runs: 2 })
        );
        assert_eq!(Summary::of(&[1.0]), Some(Summary { mean: 1.0, spread: None, runs: 1 }));
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn a_value_at_a_place() {
        let curve = [(1.0, 5.0), (4.0, 6.0)];
        assert_eq!(
            [0.5, 1.0, 3.9, 4.0].map(|place| value_at(&curve, place)),
            [None, Some(5.0), Some(5.0), Some(6.0)]
        );
    }
}
