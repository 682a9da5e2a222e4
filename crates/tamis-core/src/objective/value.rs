//! The value loss of a critic.

use serde::{Deserialize, Serialize};

use super::ObjectiveError;
use super::accumulator::SequenceSums;
use super::aggregation::Aggregation;
use super::columns::{Real, Row, ValueColumns};
use crate::entry::{Entry, Family};

/// The catalogue's entry.
pub(super) const ENTRY: Entry = Entry {
    name: "value_loss",
    family: Family::Critic,
    meaning: "squared error of the critic, the value kept near its old one",
    formula: "l = max((v - R)^2, (clamp(v, old - clip, old + clip) - R)^2) / 2",
    source: "Schulman et al.'s PPO code; verl compute_value_loss",
    defaults: &[("coef", "1"), ("clip", "null")],
    degenerate: &["nothing to train on: 0"],
    known_as: &[("verl", "critic.cliprange_value")],
    differences: &["verl clips at 0.5 unless set"],
};

/// `1 - Var(R - v) / Var(R)` over the unmasked tokens: 1 for a perfect critic, 0 for one that says the same everywhere, negative for a
/// worse one. NaN where the returns do not vary or nothing is unmasked.
///
/// Shapes: all \[N\]; the shortest counts. Source: verl `critic/vf_explained_var`.
///
/// ```
/// use tamis_core::objective::explained_variance;
/// let mask = [true, true, true];
/// assert_eq!(explained_variance(&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0], &mask), 1.0);
/// assert_eq!(explained_variance(&[2.0, 2.0, 2.0], &[1.0, 2.0, 3.0], &mask), 0.0);
/// assert!(explained_variance(&[2.0, 2.0], &[1.0, 1.0], &mask).is_nan());
/// ```
pub fn explained_variance<T: Real>(values: &[T], returns: &[T], mask: &[bool]) -> f64 {
    let unmasked = || {
        let pairs = values.iter().zip(returns).zip(mask).filter(|(_, on)| **on);
        pairs.map(|((&value, &target), _)| (value.into(), target.into()))
    };
    let count = unmasked().count() as f64;
    let variance = |of: fn((f64, f64)) -> f64| {
        let mean = unmasked().map(of).sum::<f64>() / count;
        unmasked().map(|pair| (of(pair) - mean).powi(2)).sum::<f64>() / count
    };
    let total = variance(|(_, target)| target);
    if total > 0.0 { 1.0 - variance(|(value, target)| target - value) / total } else { f64::NAN }
}

/// Squared error of the critic, `+ coef · aggregated l_t`, with the value kept near its old one.
///
/// `l = max((v - R)², (clamp(v, old ± clip) - R)²) / 2`, v the value, R the return. Derivative with respect to the value: `v - R` where
/// the unclipped branch is the larger or the value within the bounds, else 0.
///
/// Source: Schulman et al.'s PPO code; verl `compute_value_loss`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValueTerm {
    /// The coefficient.
    pub coef: f64,
    /// How far the value may move from its old one before the clipped branch counts; above 0 (verl 0.5). `None`: no clip.
    #[serde(default)]
    pub clip: Option<f64>,
    /// How tokens are aggregated; `None`: as the policy loss.
    #[serde(default)]
    pub aggregation: Option<Aggregation>,
}

impl ValueTerm {
    /// Whether the settings are in range.
    pub(crate) fn check(&self) -> Result<(), ObjectiveError> {
        if !self.coef.is_finite() {
            return Err(ObjectiveError::Setting {
                setting: "value.coef",
                value: self.coef,
                expected: "a finite number",
            });
        }
        match self.clip {
            Some(clip) if !(clip > 0.0 && clip.is_finite()) => Err(ObjectiveError::Setting {
                setting: "value.clip",
                value: clip,
                expected: "a number above 0",
            }),
            _ => self.aggregation.as_ref().map_or(Ok(()), Aggregation::check),
        }
    }

    /// One token: loss, derivative with respect to the value, whether the clipped branch is strictly the larger.
    ///
    /// ```
    /// use tamis_core::objective::ValueTerm;
    /// let term = ValueTerm { coef: 1.0, clip: Some(0.5), aggregation: None };
    /// // From 0 to 2, return 3: held at 0.5, so the loss is 2.5²/2 and nothing pulls.
    /// assert_eq!(term.token(2.0, 0.0, 3.0), (3.125, 0.0, true));
    /// // Return 0: the unclipped error is the larger and pulls back.
    /// assert_eq!(term.token(2.0, 0.0, 0.0), (2.0, 2.0, false));
    /// ```
    #[inline]
    pub fn token(&self, value: f64, old: f64, target: f64) -> (f64, f64, bool) {
        let error = value - target;
        let Some(clip) = self.clip else {
            return (0.5 * error * error, error, false);
        };
        let (low, high) = (old - clip, old + clip);
        let within = value >= low && value <= high;
        let held = if value < low {
            low
        } else if value > high {
            high
        } else {
            value
        };
        let held_error = held - target;
        let (unclipped, clipped) = (error * error, held_error * held_error);
        let held_slope = if within { held_error } else { 0.0 };
        if clipped > unclipped {
            (0.5 * clipped, held_slope, true)
        } else if unclipped > clipped {
            (0.5 * unclipped, error, false)
        } else {
            (0.5 * unclipped, 0.5 * (error + held_slope), false)
        }
    }

    /// Adds a trajectory's value loss to its sums and derivatives. `sums.value_loss` is before the coefficient.
    pub(crate) fn sequence<T: Real>(
        &self,
        row: &Row<'_, T>,
        values: &ValueColumns<'_, T>,
        scale: f64,
        dvalue_t: &mut [f64],
        sums: &mut SequenceSums,
    ) {
        let mut loss = 0.0;
        for (t, derivative) in dvalue_t.iter_mut().enumerate() {
            *derivative = 0.0;
            if !row.mask[t] {
                continue;
            }
            let (value, slope, is_clipped) =
                self.token(values.value[t].into(), values.old[t].into(), values.returns[t].into());
            loss += value;
            *derivative = scale * (self.coef * slope);
            sums.value_clipped += u32::from(is_clipped);
        }
        sums.value_loss = scale * loss;
    }
}
