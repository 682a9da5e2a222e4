//! Distillation in the loss against TRL's and verl's: divergences over the teacher's likeliest tokens and
//! over the whole vocabulary, with the gradient by the student's logits.

use serde_json::{Value, json};
use tamis_core::objective::{
    AdvantageColumn, CandidateColumns, Columns, Derivatives, Distillation, DistillationRest, Objective,
    Outcome, PolicyLoss, Reinforce,
};
use tamis_golden::numbers;

use crate::verl_loss::{aggregation, divisors, normalisers};
use crate::{cases, close, column, lengths, mask, number, offsets, only_known, tolerance};

/// Log-probabilities of rows of logits.
fn log_softmax(logits: &[f64], vocab: usize, temperature: f64) -> Vec<f64> {
    let of_row = |row: &[f64]| {
        let z: Vec<f64> = row.iter().map(|logit| logit / temperature).collect();
        let top = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum = top + z.iter().map(|z| (z - top).exp()).sum::<f64>().ln();
        z.into_iter().map(|z| z - sum).collect::<Vec<f64>>()
    };
    logits.chunks(vocab).flat_map(of_row).collect()
}

/// A student and the candidates of its teacher.
struct Student {
    vocab: usize,
    temperature: f64,
    /// Log-probabilities of the whole vocabulary \[N V\].
    logprobs: Vec<f64>,
    /// The sampled tokens, and the teacher's log-probabilities of them.
    tokens: Vec<usize>,
    sampled: Vec<f64>,
    per_token: usize,
    candidates: Vec<usize>,
    teacher: Vec<f64>,
}

impl Student {
    /// Log-probabilities of some tokens at each place.
    fn gather(&self, ids: &[usize], per_token: usize) -> Vec<f64> {
        let at = |(place, &id): (usize, &usize)| self.logprobs[place / per_token.max(1) * self.vocab + id];
        ids.iter().enumerate().map(at).collect()
    }

    /// Loss, and the derivative by every logit.
    fn run(&self, case: &Value, objective: &Objective, global: &Value) -> (Outcome, Vec<f64>) {
        let (lengths, mask) = (lengths(case), mask(case));
        let (logprob, logprobs) =
            (self.gather(&self.tokens, 1), self.gather(&self.candidates, self.per_token));
        let advantages = vec![1.0; lengths.len()];
        let offsets = offsets(&lengths);
        let columns = Columns {
            candidates: Some(CandidateColumns {
                per_token: self.per_token,
                logprob: &logprobs,
                teacher: &self.teacher,
                sampled: Some(&self.sampled),
            }),
            ..Columns::new(&offsets, &mask, &logprob, AdvantageColumn::PerTrajectory(&advantages))
        };
        let normalisers = normalisers(global, &lengths, &mask);
        let (outcome, derivatives) =
            objective.value_and_gradient(&columns, &normalisers, &objective.initial_state()).unwrap();
        (outcome, self.by_logits(&derivatives))
    }

    fn by_logits(&self, derivatives: &Derivatives) -> Vec<f64> {
        let mut found = vec![0.0; self.logprobs.len()];
        for (t, row) in found.chunks_mut(self.vocab).enumerate() {
            let own = t * self.per_token..(t + 1) * self.per_token;
            let ids = self.candidates[own.clone()].iter().chain([&self.tokens[t]]);
            let slopes = derivatives.candidates[own].iter().chain([&derivatives.logprob[t]]);
            for (&id, &slope) in ids.zip(slopes) {
                for (place, one) in row.iter_mut().enumerate() {
                    let probability = self.logprobs[t * self.vocab + place].exp();
                    *one += slope * (f64::from(u8::from(place == id)) - probability) / self.temperature;
                }
            }
        }
        found
    }
}

fn objective(distillation: Distillation) -> Objective {
    let distillation = Some(Distillation { advantages: false, ..distillation });
    Objective {
        distillation,
        ..Objective::of(PolicyLoss::Reinforce(Reinforce::default()), aggregation("token-mean"))
    }
}

fn ids(values: &[f64]) -> Vec<usize> {
    values.iter().map(|&id| id as usize).collect()
}

#[test]
fn trl_distillation() {
    for case in cases("trl_distillation") {
        let params = &case["params"];
        only_known(
            &case,
            "params",
            &["function", "beta", "loss_top_k", "loss_add_tail", "sampled", "temperature"],
        );
        let known =
            ["lengths", "mask", "vocab", "logits", "teacher_logits", "token", "top_token", "top_logprob"];
        only_known(&case, "inputs", &known);
        only_known(&case, "outputs", &["loss", "dloss_dlogits"]);
        let vocab = number(&case["inputs"]["vocab"]) as usize;
        let temperature = params["temperature"].as_f64().unwrap_or(1.0);
        let column = |name: &str| column(&case, name);
        let teacher = log_softmax(&column("teacher_logits").unwrap(), vocab, temperature);
        let tokens = ids(&column("token").unwrap());
        // Without candidates the whole vocabulary is compared.
        let whole = || ((0..tokens.len()).flat_map(|_| 0..vocab).collect::<Vec<_>>(), teacher.clone());
        let is_whole = params["loss_top_k"].is_null();
        let per_token = params["loss_top_k"].as_u64().map_or(vocab, |k| k as usize);
        let (candidates, of_candidates) = if is_whole {
            whole()
        } else {
            (ids(&column("top_token").unwrap()), column("top_logprob").unwrap())
        };
        let is_candidate = |t: usize| candidates[t * per_token..(t + 1) * per_token].contains(&tokens[t]);
        let sampled = (0..tokens.len())
            .map(|t| if is_candidate(t) { f64::NEG_INFINITY } else { teacher[t * vocab + tokens[t]] });
        let student = Student {
            vocab,
            temperature,
            logprobs: log_softmax(&column("logits").unwrap(), vocab, temperature),
            sampled: sampled.collect(),
            tokens: tokens.clone(),
            per_token,
            candidates,
            teacher: of_candidates,
        };
        let rests = match params["loss_add_tail"].as_bool() {
            Some(true) => vec![DistillationRest::Bucket],
            Some(false) => vec![DistillationRest::Renormalized],
            // Nothing is beyond the whole vocabulary.
            None => vec![DistillationRest::Bucket, DistillationRest::Renormalized, DistillationRest::Ignored],
        };
        for rest in rests {
            let distillation = Distillation {
                top_k: per_token,
                sampled: params["sampled"] == true,
                beta: number(&params["beta"]),
                rest,
                ..Distillation::default()
            };
            let (outcome, by_logits) = student.run(&case, &objective(distillation), &Value::Null);
            // A rest of rounding is 1e-7 of the probability there.
            let (rtol, atol) = tolerance(&case);
            close(
                &case,
                "loss",
                &[outcome.loss],
                &[number(&case["outputs"]["loss"])],
                (rtol, atol.max(1e-9)),
            );
            let expected = numbers(&case["outputs"]["dloss_dlogits"]);
            close(&case, "dloss_dlogits", &by_logits, &expected, (rtol, atol.max(1e-9)));
        }
    }
}

#[test]
fn verl_distillation_topk() {
    for case in cases("verl_distillation_topk") {
        let params = &case["params"];
        only_known(&case, "params", &["topk", "log_prob_min_clamp", "loss_max_clamp", "loss_agg_mode"]);
        let known = ["lengths", "mask", "padded_len", "vocab", "logits", "top_token", "top_logprob"];
        only_known(&case, "inputs", &known);
        only_known(&case, "outputs", &["loss", "dloss_dlogits", "student_mass", "teacher_mass"]);
        let vocab = number(&case["inputs"]["vocab"]) as usize;
        let column = |name: &str| column(&case, name).unwrap();
        let num_tokens = mask(&case).len();
        let per_token = number(&params["topk"]) as usize;
        let student = Student {
            vocab,
            temperature: 1.0,
            logprobs: log_softmax(&column("logits"), vocab, 1.0),
            tokens: vec![0; num_tokens],
            sampled: vec![f64::NEG_INFINITY; num_tokens],
            per_token,
            candidates: ids(&column("top_token")),
            teacher: column("top_logprob"),
        };
        let distillation = Distillation {
            top_k: per_token,
            rest: DistillationRest::Ignored,
            min_logprob: params["log_prob_min_clamp"].as_f64(),
            clip: params["loss_max_clamp"].as_f64(),
            ..Distillation::default()
        };
        let objective = Objective {
            aggregation: aggregation(params["loss_agg_mode"].as_str().unwrap()),
            divisors: divisors(&case, &Value::Null),
            ..objective(distillation)
        };
        let global = json!({"global_batch_size": lengths(&case).len()});
        let (outcome, by_logits) = student.run(&case, &objective, &global);
        let outputs = &case["outputs"];
        close(&case, "loss", &[outcome.loss], &[number(&outputs["loss"])], tolerance(&case));
        close(&case, "dloss_dlogits", &by_logits, &numbers(&outputs["dloss_dlogits"]), tolerance(&case));
        let metrics = outcome.metrics.distillation.unwrap();
        let masses = [metrics.policy_mass, metrics.teacher_mass];
        let expected = [number(&outputs["student_mass"]), number(&outputs["teacher_mass"])];
        close(&case, "masses", &masses, &expected, tolerance(&case));
    }
}
