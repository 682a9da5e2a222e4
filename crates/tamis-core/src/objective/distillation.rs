//! Distillation in the loss: a divergence between a teacher's distribution and the policy's at every token,
//! over the teacher's likeliest tokens.
//!
//! A divergence over many tokens moves all of their log-probabilities, so that it is no advantage of the
//! sampled one. The learner computes the policy's log-probabilities of the candidates, and takes the
//! derivative by each of them.

use serde::{Deserialize, Serialize};

use super::columns::{Real, Slopes};
use super::error::ObjectiveError;
use super::sequence_sums::SequenceSums;
use crate::choice;
use crate::entry::{Entry, Family};
use crate::fault::Fault;
use crate::ragged::check_length;
use crate::setting::Ranged as _;
use crate::settings;

pub(super) const ENTRIES: [Entry; 1] = [Entry {
    name: "top_k_distillation",
    family: Family::Distillation,
    meaning: "A divergence between a teacher and the policy over the teacher's likeliest tokens, in the loss: forward KL, \
        reverse KL, or the generalized Jensen-Shannon divergence between them.",
    formula: "D = sum_v q (ln q - ln p) if beta = 0, sum_v p (ln p - ln q) if beta = 1, else beta sum_v q (ln q - ln m) + \
        (1 - beta) sum_v p (ln p - ln m) with m = beta q + (1 - beta) p; p the policy's and q the teacher's probability of \
        candidate v; l = coefficient·D",
    source: "Agarwal et al., GKD, arXiv 2306.13649 eq. 1; TRL 1.16 `_jsd_divergence` and `_add_tail_bucket`; verl 0.9.1 \
        `compute_forward_kl_topk`",
    defaults: &[
        "objective.distillation.top_k",
        "objective.distillation.sampled",
        "objective.distillation.beta",
        "objective.distillation.rest",
        "objective.distillation.min_logprob",
        "objective.distillation.clip",
        "objective.distillation.coefficient",
        "objective.distillation.advantages",
    ],
    degenerate: &[
        "0 wherever the teacher is the policy",
        "with as many candidates as the vocabulary has tokens it is the divergence of the whole distributions",
        "a uniform group and a group of one have a signal: filters by reward only lose tokens",
        "one candidate renormalised by itself has probability 1, so that the divergence is 0",
        "with `rest: ignored` a policy that is the teacher has a gradient all the same: its candidates gain what the \
            others have",
    ],
    known_as: &[
        (
            "verl",
            "distillation.distillation_loss.loss_mode=forward_kl_topk with topk, log_prob_min_clamp (rest: ignored)",
        ),
        (
            "TRL",
            "ServerDistillationTrainer (beta, loss_top_k, loss_add_tail), AsyncDistillationTrainer (teacher_top_k)",
        ),
        ("TRL", "DistillationTrainer and GKDTrainer (beta) over the whole vocabulary"),
    ],
    differences: &[
        "TRL's DistillationTrainer compares the whole vocabulary; here the tokens beyond the candidates are one more \
            candidate (rest: bucket)",
        "TRL's server form allows beta above 0 only with the teacher's likeliest and the sampled token (top_k: 1, \
            sampled: true); here any number of candidates has any beta",
    ],
}];

choice! {
    /// What happens to the probability of the tokens beyond the candidates.
    pub enum DistillationRest {
        /// It is one more candidate (TRL `loss_add_tail: true`).
        Bucket = "bucket",
        /// It is left out, and the candidates' probabilities are divided by their sum (TRL `loss_add_tail:
        /// false`).
        Renormalized = "renormalized",
        /// It is left out, and a divergence below 0, which the missing part allows, counts as 0 (verl).
        Ignored = "ignored",
    }
}

settings! {
    /// A divergence from a teacher in the loss, over the candidates of every token: the `top_k` likeliest
    /// tokens of the teacher, with `sampled` also the token that was sampled.
    ///
    /// Source: GKD (arXiv 2306.13649, eq. 1); TRL 1.16 `_jsd_divergence`, `_add_tail_bucket`; verl 0.9.1
    /// `compute_forward_kl_topk`.
    #[derive(Copy)]
    pub struct Distillation {
        /// Number of the teacher's likeliest tokens that are compared. 0: only the sampled one.
        top_k: usize = 32, Between(0.0, 65536.0);
        /// Compare the sampled token, too, if it is not among the `top_k`.
        sampled: bool = false;
        /// The divergence: 0 is the forward KL (the policy covers all that the teacher does), 1 the reverse
        /// KL (the policy keeps to what the teacher finds likely), and between them the generalized
        /// Jensen-Shannon divergence.
        beta: f64 = 0.0, Between(0.0, 1.0);
        /// The probability of all other tokens: `bucket`, one more candidate; `renormalized`, left out, and
        /// the candidates' probabilities are divided by their sum; `ignored`, left out.
        rest: DistillationRest = DistillationRest::Bucket;
        /// With `rest: ignored`, log-probabilities below this count as this (verl `log_prob_min_clamp`).
        /// Null: no bound.
        min_logprob: Option<f64> = None;
        /// Largest divergence of a token in nats; tokens above it have no gradient (verl `loss_max_clamp`).
        /// Null: no limit.
        clip: Option<f64> = None, Positive;
        /// Factor of the divergence in the loss.
        coefficient: f64 = 1.0, NonNegative;
        /// The advantages count beside it. False: they are 0 in the policy loss, so that the teacher
        /// alone teaches; rewards are only reported.
        advantages: bool = true;
    }
}

/// The candidates of every token; k per token, flat \[N k\], token after token.
#[derive(Debug, Clone, Copy)]
pub struct CandidateColumns<'a, T> {
    /// k.
    pub per_token: usize,
    /// Log-probability of each candidate under the policy being trained; differentiable.
    pub logprob: &'a [T],
    /// Log-probability of each under the teacher; -inf: there is no such candidate.
    pub teacher: &'a [T],
    /// Log-probability of the sampled token under the teacher \[N\]; -inf if it is among the candidates.
    /// `None`: it is not compared.
    pub sampled: Option<&'a [T]>,
}

impl<'a, T> CandidateColumns<'a, T> {
    /// The candidates of some tokens; lengths have been checked.
    pub(super) fn cut(&self, tokens: &std::ops::Range<usize>) -> CandidateColumns<'a, T> {
        let own = tokens.start * self.per_token..tokens.end * self.per_token;
        CandidateColumns {
            per_token: self.per_token,
            logprob: &self.logprob[own.clone()],
            teacher: &self.teacher[own],
            sampled: self.sampled.map(|column| &column[tokens.clone()]),
        }
    }

    /// Whether the lengths fit `num_tokens` tokens.
    pub(super) fn check(&self, num_tokens: usize) -> Result<(), Fault> {
        check_length("candidates.logprob", num_tokens * self.per_token, self.logprob.len())?;
        check_length("candidates.teacher", num_tokens * self.per_token, self.teacher.len())?;
        self.sampled.map_or(Ok(()), |column| check_length("candidates.sampled", num_tokens, column.len()))
    }
}

/// The divergence at one token.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TokenDivergence {
    /// In nats, after `clip` and before the coefficient.
    pub divergence: f64,
    /// Probability of all candidates under the policy.
    pub policy_mass: f64,
    /// The same under the teacher.
    pub teacher_mass: f64,
}

/// Largest log of the candidates' probability, as in TRL: some is always left for the rest.
const MOST_LOG_MASS: f64 = -1e-7;

/// `exp(log)`·`of`, which is 0 for a probability of 0, whatever the other factor is.
fn weighted(log: f64, of: f64) -> f64 {
    let probability = log.exp();
    if probability == 0.0 { 0.0 } else { probability * of }
}

fn log_sum(logs: &[f64]) -> f64 {
    let largest = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if largest == f64::NEG_INFINITY {
        return largest;
    }
    largest + logs.iter().map(|log| (log - largest).exp()).sum::<f64>().ln()
}

impl Distillation {
    /// Whether the settings are in range and compare something.
    pub(super) fn check(&self) -> Result<(), ObjectiveError> {
        self.check_ranges()?;
        if self.top_k == 0 && !self.sampled {
            return Err(crate::fault!(
                "`distillation.top_k` is 0 and `distillation.sampled` is false: no token is compared"
            )
            .into());
        }
        Ok(())
    }

    /// The divergence at one token from log-probabilities of its candidates under policy and teacher, and its
    /// derivative by each of the policy's. Candidates of -inf under the teacher are none, and have the
    /// derivative 0; without any candidate the divergence is 0. Slices of different lengths count as the
    /// shortest.
    ///
    /// ```
    /// use tamis_core::objective::{Distillation, DistillationRest};
    /// let ln = f64::ln;
    /// let forward = Distillation::default();
    /// // One candidate: 1/2 under the policy, 1/4 under the teacher. The rest are 1/2 and 3/4.
    /// let mut slopes = [0.0];
    /// let found = forward.token(&[ln(0.5)], &[ln(0.25)], &mut slopes);
    /// assert!((found.divergence - (0.25 * ln(0.5) + 0.75 * ln(1.5))).abs() < 1e-12);
    /// // By the candidate -1/4; by the rest -3/4, of which it takes away as much as it gains.
    /// assert!((slopes[0] - (-0.25 + 0.75)).abs() < 1e-12);
    /// // Without the rest, as verl has it: 1/4 ln(1/2) is below 0, and counts as 0.
    /// let ignored = Distillation { rest: DistillationRest::Ignored, ..forward };
    /// assert_eq!(ignored.token(&[ln(0.5)], &[ln(0.25)], &mut slopes).divergence, 0.0);
    /// assert_eq!(slopes, [0.0]);
    /// ```
    pub fn token(&self, policy: &[f64], teacher: &[f64], slopes: &mut [f64]) -> TokenDivergence {
        slopes.fill(0.0);
        let places: Vec<usize> = (0..policy.len().min(teacher.len()).min(slopes.len()))
            .filter(|&place| teacher[place] != f64::NEG_INFINITY)
            .collect();
        let of = |column: &[f64]| places.iter().map(|&place| column[place]).collect::<Vec<f64>>();
        let (mut p, mut q) = (of(policy), of(teacher));
        let (p_mass, q_mass) = (log_sum(&p), log_sum(&q));
        let masses = (p_mass.exp(), q_mass.exp());
        let nothing = TokenDivergence { divergence: 0.0, policy_mass: masses.0, teacher_mass: masses.1 };
        if places.is_empty() {
            return nothing;
        }
        let mut own = vec![0.0; p.len() + 1];
        let divergence = match self.rest {
            DistillationRest::Bucket => {
                let rest = |mass: f64| (-mass.min(MOST_LOG_MASS).exp_m1()).ln();
                let p_rest = rest(p_mass);
                p.push(p_rest);
                q.push(rest(q_mass));
                let divergence = self.of_logs(&p, &q, &mut own);
                // The rest falls by what a candidate gains, unless it is held.
                let of_rest = if p_mass > MOST_LOG_MASS { 0.0 } else { own[places.len()] / p_rest.exp() };
                for (slope, log) in own.iter_mut().zip(&p[..places.len()]) {
                    *slope -= weighted(*log, of_rest);
                }
                divergence
            }
            DistillationRest::Renormalized => {
                for (logs, mass) in [(&mut p, p_mass), (&mut q, q_mass)] {
                    for log in logs.iter_mut() {
                        *log -= mass;
                    }
                }
                let divergence = self.of_logs(&p, &q, &mut own);
                let sum: f64 = own[..places.len()].iter().sum();
                for (slope, log) in own.iter_mut().zip(&p) {
                    *slope -= weighted(*log, sum);
                }
                divergence
            }
            DistillationRest::Ignored => {
                let least = self.min_logprob.unwrap_or(f64::NEG_INFINITY);
                let held: Vec<bool> = p.iter().map(|&log| log < least).collect();
                p.iter_mut().chain(&mut q).filter(|log| **log < least).for_each(|log| *log = least);
                let divergence = self.of_logs(&p, &q, &mut own);
                for (slope, _) in own.iter_mut().zip(held).filter(|(_, held)| *held) {
                    *slope = 0.0;
                }
                if divergence < 0.0 {
                    return nothing;
                }
                divergence
            }
        };
        if let Some(clip) = self.clip.filter(|&clip| divergence > clip) {
            TokenDivergence { divergence: clip, ..nothing }
        } else {
            for (&place, &slope) in places.iter().zip(&own) {
                slopes[place] = slope;
            }
            TokenDivergence { divergence, ..nothing }
        }
    }

    /// The divergence of log-probabilities `p` of the policy and `q` of the teacher, and its derivative by
    /// each of `p`, as if they were independent.
    fn of_logs(&self, p: &[f64], q: &[f64], slopes: &mut [f64]) -> f64 {
        let beta = self.beta;
        let mut divergence = 0.0;
        for ((&p, &q), slope) in p.iter().zip(q).zip(slopes) {
            let (term, own) = if beta <= 0.0 {
                (weighted(q, q - p), -q.exp())
            } else if beta >= 1.0 {
                (weighted(p, p - q), weighted(p, p - q + 1.0))
            } else {
                let m = log_sum(&[p + (-beta).ln_1p(), q + beta.ln()]);
                let of_policy = (1.0 - beta) * weighted(p, p - m);
                (beta * weighted(q, q - m) + of_policy, of_policy)
            };
            divergence += term;
            *slope = own;
        }
        divergence
    }

    /// One trajectory: its sums, and the derivatives by its candidates `[T][k]` and, if the sampled token is
    /// one, by its log-probability \[T\], which are added. `scale` is the weight of each token.
    pub(super) fn sequence<T: Real>(
        &self,
        row: &super::columns::Row<'_, T>,
        candidates: &CandidateColumns<'_, T>,
        scale: f64,
        derivatives: &mut Slopes<'_, T>,
        sums: &mut SequenceSums,
    ) {
        let k = candidates.per_token;
        let (mut policy, mut teacher) = (vec![0.0; k + 1], vec![f64::NEG_INFINITY; k + 1]);
        let mut slopes = vec![0.0; k + 1];
        let mut total = 0.0;
        for t in (0..row.mask.len()).filter(|&t| row.mask[t]) {
            let own = t * k..(t + 1) * k;
            for (to, from) in policy.iter_mut().zip(&candidates.logprob[own.clone()]) {
                *to = (*from).into();
            }
            for (to, from) in teacher.iter_mut().zip(&candidates.teacher[own.clone()]) {
                *to = (*from).into();
            }
            if let Some(sampled) = candidates.sampled.filter(|_| self.sampled) {
                (policy[k], teacher[k]) = (row.logprob[t].into(), sampled[t].into());
            }
            let found = self.token(&policy, &teacher, &mut slopes);
            total += found.divergence;
            sums.policy_mass += found.policy_mass;
            sums.teacher_mass += found.teacher_mass;
            let factor = self.coefficient * scale;
            for (to, slope) in derivatives.candidates[own].iter_mut().zip(&slopes) {
                *to = T::of(factor * slope);
            }
            if slopes[k] != 0.0 {
                let derivative = &mut derivatives.logprob_t[t];
                *derivative = T::of((*derivative).into() + factor * slopes[k]);
            }
        }
        sums.distillation = total;
        sums.distillation_loss = scale * total;
    }
}
