//! Pass rates of prompts, and their drift.
//!
//! A population is a fixed list of rates: quantiles of a distribution, or rates from rollouts. During a
//! simulation each rate moves in its logit, by a common drift and noise of its own.

use std::cell::RefCell;

use tamis_config::{HistogramRates, SimulatedDriftConfig, SimulatedPassRates};
use tamis_core::random::{Key, Purpose};

use crate::Fault;
use crate::simulate::rollout_rates;

/// Points for the integral of a distribution.
const GRID: usize = 1 << 14;
/// A density is cut off below e to the power of minus this times its largest value.
const CUT: f64 = 36.0;

/// Pass rates of all prompts, as logits.
#[derive(Debug, Clone)]
pub struct Population {
    logits: Vec<f64>,
    warnings: Vec<String>,
    lengths: Option<String>,
}

fn logit(rate: f64) -> f64 {
    (rate / (1.0 - rate)).ln()
}

pub(crate) fn rate_of(logit: f64) -> f64 {
    1.0 / (1.0 + (-logit).exp())
}

impl Population {
    /// Draws the prompts of a distribution.
    ///
    /// # Errors
    /// The lists of a histogram have different lengths, or rollouts cannot be read.
    pub fn new(rates: &SimulatedPassRates, seed: u64) -> Result<Self, Fault> {
        let (mut warnings, mut lengths) = (Vec::new(), None);
        let logits = match rates {
            SimulatedPassRates::Beta(beta) => beta_quantiles(beta.a, beta.b, beta.prompts),
            SimulatedPassRates::Histogram(histogram) => histogram_quantiles(histogram)?,
            SimulatedPassRates::Rollouts(rollouts) => {
                let key = Key::new(seed, Purpose::Bootstrap);
                let found = rollout_rates::read(&rollouts.path, rollouts.prompts, key)?;
                (warnings, lengths) = (found.warnings, found.lengths);
                found.rates.into_iter().map(logit).collect()
            }
        };
        Ok(Self { logits, warnings, lengths })
    }

    /// Settings that match the lengths in the rollouts that the rates come from.
    pub(crate) fn lengths(&self) -> Option<&str> {
        self.lengths.as_deref()
    }

    /// Warnings about the rollouts that the rates come from.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Number of prompts.
    pub fn len(&self) -> usize {
        self.logits.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.logits.is_empty()
    }

    pub(crate) fn logits(&self) -> impl Iterator<Item = f64> {
        self.logits.iter().copied()
    }

    /// Pass rates at the start.
    pub fn rates(&self) -> impl Iterator<Item = f64> {
        self.logits.iter().map(|logit| rate_of(*logit))
    }
}

/// Logits of Beta(a, b) at (i + 1/2) / `count`.
///
/// The density of the logit x is proportional to σ(x)^a σ(-x)^b. It is smooth and exponentially small on both
/// sides. So the trapezoidal rule converges fast, and no function of the Beta distribution is needed.
fn beta_quantiles(a: f64, b: f64, count: usize) -> Vec<f64> {
    let softplus = |x: f64| if x > 0.0 { x + (-x).exp().ln_1p() } else { x.exp().ln_1p() };
    let density = |x: f64| -a * softplus(-x) - b * softplus(x);
    let mode = (a / b).ln();
    let top = density(mode);
    let reach = |sign: f64| {
        let mut reach = 1.0 / (a * b / (a + b)).sqrt().max(1.0);
        while density(mode + sign * reach) > top - CUT {
            reach *= 1.25;
        }
        mode + sign * reach
    };
    let (low, high) = (reach(-1.0), reach(1.0));
    let width = (high - low) / GRID as f64;
    let mut below = vec![0.0];
    let mut last = (density(low) - top).exp();
    for point in 1..=GRID {
        let next = (density(low + width * point as f64) - top).exp();
        below.push(below[point - 1] + f64::midpoint(last, next));
        last = next;
    }
    let total = below[GRID];
    let mut cell = 0;
    (0..count)
        .map(|prompt| {
            let wanted = total * (prompt as f64 + 0.5) / count as f64;
            while cell + 1 < GRID && below[cell + 1] < wanted {
                cell += 1;
            }
            let inside = below[cell + 1] - below[cell];
            let share = if inside > 0.0 { (wanted - below[cell]) / inside } else { 0.5 };
            low + width * (cell as f64 + share)
        })
        .collect()
}

fn histogram_quantiles(histogram: &HistogramRates) -> Result<Vec<f64>, Fault> {
    let HistogramRates { rates, counts, prompts } = histogram;
    // An empty sum would be -0.
    let total = counts.iter().fold(0.0, |sum, count| sum + count);
    let fits = rates.len() == counts.len() && total > 0.0 && total.is_finite();
    if !fits {
        let (rates, counts) = (rates.len(), counts.len());
        let message = format!(
            "`simulate.pass_rate` has {rates} rates and {counts} counts, {total} prompts in all: each rate needs a count, \
             and some must be above 0"
        );
        return Err(Fault::usage(message).with_hint(
            "write for example `pass_rate: {kind: histogram, rates: [0, 0.5, 1], counts: [20, 60, 20]}`",
        ));
    }
    let (mut place, mut passed) = (0, counts[0]);
    Ok((0..*prompts)
        .map(|prompt| {
            let wanted = total * (prompt as f64 + 0.5) / *prompts as f64;
            while place + 1 < rates.len() && passed < wanted {
                place += 1;
                passed += counts[place];
            }
            logit(rates[place])
        })
        .collect())
}

/// Pass rates that drift over the steps of a run.
#[derive(Debug)]
pub(crate) struct Moving<'world> {
    population: &'world Population,
    drift: &'world SimulatedDriftConfig,
    key: Key,
    /// Offset of each prompt's logit from its own random walk, and the step up to which it is known.
    own: RefCell<Vec<(f64, u64)>>,
}

impl<'world> Moving<'world> {
    pub(crate) fn new(
        population: &'world Population,
        drift: &'world SimulatedDriftConfig,
        seed: u64,
    ) -> Self {
        let own = if drift.noise > 0.0 { vec![(0.0, 0); population.len()] } else { Vec::new() };
        Self { population, drift, key: Key::new(seed, Purpose::Task), own: RefCell::new(own) }
    }

    /// Pass rate of a prompt at a step. Steps must not decrease.
    pub(crate) fn rate(&self, prompt: usize, step: u64) -> f64 {
        let mut logit = self.population.logits[prompt] + self.drift.logit * step as f64;
        if self.drift.noise > 0.0 {
            let (way, at) = &mut self.own.borrow_mut()[prompt];
            if *at < step {
                let steps = (step - *at) as f64;
                *way += self.drift.noise * steps.sqrt() * self.key.with(prompt as u64).normal(step);
                *at = step;
            }
            logit += *way;
        }
        rate_of(logit)
    }
}

#[cfg(test)]
mod tests {
    use tamis_core::schedule::yields::{PassRateSpread, keep_probability};

    use super::*;

    /// The keep rates of table A, from the closed form.
    #[test]
    fn quantiles_have_the_keep_rate_of_their_distribution() {
        for (a, b, n) in
            [(2.0, 2.0, 8), (1.0, 1.0, 8), (0.3, 0.3, 8), (0.2, 0.8, 8), (0.1, 0.1, 16), (40.0, 3.0, 8)]
        {
            let logits = beta_quantiles(a, b, 6000);
            assert!(logits.is_sorted());
            let mean = logits.iter().map(|logit| keep_probability(rate_of(*logit), n)).sum::<f64>() / 6000.0;
            let expected = PassRateSpread::Beta { a, b }.keep_probability(n);
            assert!((mean - expected).abs() < 1e-3, "Beta({a}, {b}), n {n}: {mean} against {expected}");
        }
    }

    #[test]
    fn a_histogram_has_its_shares() {
        let histogram =
            HistogramRates { rates: vec![0.0, 0.5, 1.0], counts: vec![20.0, 60.0, 20.0], prompts: 10 };
        let rates: Vec<f64> = histogram_quantiles(&histogram).unwrap().into_iter().map(rate_of).collect();
        assert_eq!(rates, [0.0, 0.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 1.0, 1.0]);
        let without = HistogramRates { counts: vec![1.0], ..histogram };
        assert!(histogram_quantiles(&without).unwrap_err().to_string().contains("3 rates and 1 counts"));
        let empty = HistogramRates { rates: Vec::new(), counts: Vec::new(), prompts: 10 };
        let said = histogram_quantiles(&empty).unwrap_err().to_string();
        assert!(said.contains("0 rates and 0 counts, 0 prompts in all"), "{said}");
    }

    #[test]
    fn rates_drift_in_their_logit() {
        let population = Population { logits: vec![0.0; 4000], warnings: Vec::new(), lengths: None };
        let drift = SimulatedDriftConfig { logit: 0.01, noise: 0.1 };
        let moving = Moving::new(&population, &drift, 1);
        // The standard deviation is that of the whole walk, even if it is read at several steps.
        let logits: Vec<f64> = (0..4000)
            .map(|prompt| {
                moving.rate(prompt, prompt as u64 % 50);
                logit(moving.rate(prompt, 100))
            })
            .collect();
        let mean = logits.iter().sum::<f64>() / 4000.0;
        let deviation = (logits.iter().map(|logit| (logit - mean).powi(2)).sum::<f64>() / 4000.0).sqrt();
        assert!((mean - 1.0).abs() < 0.06 && (deviation - 1.0).abs() < 0.06, "{mean} {deviation}");
    }
}
