//! Log-probability, entropy and their gradients against verl's and TRL's, which were computed in f64. The
//! engine's are f32.

use serde_json::Value;
use tamis_core::objective::{Aggregation, GroupCounts, LengthDivisors, Normalisers};
use tamis_core::ragged::Ragged;
use tamis_golden::{assert_close, cases, numbers};

use super::{RowBack, Statistics, backward, statistics};
use crate::simd::SimdLevel;

/// Relative and absolute tolerance: logits of up to 30 in size lose six bits below the point.
const F32: (f64, f64) = (2e-6, 4e-6);

struct Rows {
    logits: Vec<f32>,
    labels: Vec<usize>,
    vocab: usize,
    inverse: f32,
}

impl Rows {
    fn of(case: &Value, labels: &str, temperature: f64) -> Self {
        Self {
            logits: numbers(&case["inputs"]["logits"]).iter().map(|&logit| logit as f32).collect(),
            labels: numbers(&case["inputs"][labels]).iter().map(|&label| label as usize).collect(),
            vocab: case["params"]["vocab"].as_u64().unwrap() as usize,
            inverse: (1.0 / temperature) as f32,
        }
    }

    fn rows(&self) -> impl Iterator<Item = (&[f32], usize, Statistics)> {
        assert_eq!(self.logits.len(), self.labels.len() * self.vocab);
        self.logits
            .chunks_exact(self.vocab)
            .zip(&self.labels)
            .map(|(row, &label)| (row, label, statistics(SimdLevel::detect(), row, self.inverse)))
    }

    fn logprobs(&self) -> Vec<f64> {
        self.rows().map(|(row, label, found)| f64::from(found.logprob(row[label], self.inverse))).collect()
    }

    fn entropies(&self) -> Vec<f64> {
        self.rows().map(|(_, _, found)| f64::from(found.entropy())).collect()
    }

    /// Gradient of `Σ logprob_t·log-probability + entropy_t·entropy` by the logits.
    fn gradient(&self, logprob_t: &[f64], entropy_t: &[f64]) -> Vec<f64> {
        let mut gradient = Vec::new();
        for (t, (row, label, found)) in self.rows().enumerate() {
            let mut row = row.to_vec();
            let back = RowBack { logprob: logprob_t[t] as f32, entropy: entropy_t[t] as f32 };
            backward(SimdLevel::detect(), &mut row, self.inverse, &found, back);
            row[label] += back.logprob * self.inverse;
            gradient.extend(row.iter().map(|&value| f64::from(value)));
        }
        gradient
    }
}

fn close(case: &Value, field: &str, actual: &[f64]) {
    let what = format!("{} {field}", case["name"]);
    assert_close(&what, actual, &numbers(&case["outputs"][field]), F32.0, F32.1);
}

#[test]
fn verl_entropy_logprob() {
    for case in cases("verl_entropy_logprob") {
        let rows = Rows::of(&case, "label", 1.0);
        close(&case, "logp", &rows.logprobs());
        close(&case, "entropy", &rows.entropies());
        let tokens = rows.labels.len();
        close(&case, "dsumlogp_dlogits", &rows.gradient(&vec![1.0; tokens], &vec![0.0; tokens]));
        let lengths: Vec<usize> =
            numbers(&case["inputs"]["lengths"]).iter().map(|&length| length as usize).collect();
        let mask: Vec<bool> = numbers(&case["inputs"]["mask"]).iter().map(|&on| on > 0.0).collect();
        let mode = &case["params"]["loss_agg_mode"];
        let aggregation = Aggregation::ALL.iter().find(|aggregation| *mode == aggregation.as_str()).unwrap();
        let divisors = LengthDivisors {
            loss_scale_factor: case["inputs"]["padded_len"].as_f64().unwrap_or(1.0),
            length_epsilon: 1e-8,
        };
        let mask = Ragged::from_lengths(mask, &lengths).unwrap();
        let (normalisers, _) = Normalisers::of(&mask, &vec![1; lengths.len()]).unwrap();
        let mut weights = Vec::new();
        for mask_t in mask.rows() {
            let count = mask_t.iter().filter(|&&on| on).count();
            let weight = if count > 0 {
                aggregation.weight(count, GroupCounts::default(), &normalisers, &divisors).unwrap()
            } else {
                0.0
            };
            weights.extend(mask_t.iter().map(|&on| if on { weight } else { 0.0 }));
        }
        let loss: f64 = rows.entropies().iter().zip(&weights).map(|(entropy, weight)| entropy * weight).sum();
        let expected = case["outputs"]["entropy_loss"].as_f64().unwrap();
        assert_close(&format!("{} entropy_loss", case["name"]), &[loss], &[expected], F32.0, 1e-5);
        close(&case, "dentropy_loss_dlogits", &rows.gradient(&vec![0.0; tokens], &weights));
    }
}

#[test]
fn trl_logprob_entropy() {
    for case in cases("trl_logprob_entropy") {
        let plain = Rows::of(&case, "index", 1.0);
        close(&case, "selective_log_softmax_T1", &plain.logprobs());
        close(&case, "entropy_T1", &plain.entropies());
        let rows = Rows::of(&case, "index", case["params"]["temperature"].as_f64().unwrap());
        close(&case, "logp", &rows.logprobs());
        close(&case, "entropy", &rows.entropies());
        let (ones, zeros) = (vec![1.0; rows.labels.len()], vec![0.0; rows.labels.len()]);
        close(&case, "dsumlogp_dlogits", &rows.gradient(&ones, &zeros));
        close(&case, "dsumentropy_dlogits", &rows.gradient(&zeros, &ones));
    }
}
