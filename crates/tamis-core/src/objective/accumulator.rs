//! Merges the sums of all trajectories, over micro-batches, into one loss and one set of metrics.

use super::loss::OwnMetric;
use super::{Importance, Objective, ObjectiveError, ObjectiveState, SequenceSums};
use crate::fault;

/// Collects the sums of a whole optimizer batch from any micro-batches and adds them in batch order: the loss
/// and the metrics have the same bits however the batch was cut.
#[derive(Debug, Clone, PartialEq)]
pub struct Accumulator {
    rows: Vec<Option<SequenceSums>>,
}

impl Accumulator {
    /// An accumulator for an optimizer batch of `num_sequences` trajectories.
    pub fn new(num_sequences: usize) -> Self {
        Self { rows: vec![None; num_sequences] }
    }

    /// Records the trajectory at `index` of the optimizer batch.
    ///
    /// # Errors
    /// The batch has no such index, or it was already recorded.
    pub fn record(&mut self, index: usize, sums: SequenceSums) -> Result<(), ObjectiveError> {
        let num_sequences = self.rows.len();
        match self.rows.get_mut(index) {
            Some(row @ None) => {
                *row = Some(sums);
                Ok(())
            }
            place => Err(fault!(
                "trajectory {index} of an optimizer batch of {num_sequences} {}",
                if place.is_some() { "was recorded twice" } else { "does not exist" }
            )
            .into()),
        }
    }

    /// Loss, metrics and next state of the recorded sums, added in batch order. Missing trajectories count as
    /// fully masked.
    pub fn finish(&self, objective: &Objective, state: &ObjectiveState) -> Outcome {
        Outcome::of(self.rows.iter().flatten(), objective, state)
    }
}

impl Outcome {
    /// Loss, metrics and next state of a whole optimizer batch that was evaluated in one call, in its order:
    /// the result of an [`Accumulator`] that has recorded all of these.
    pub fn of<'a>(
        sequences: impl IntoIterator<Item = &'a SequenceSums>,
        objective: &Objective,
        state: &ObjectiveState,
    ) -> Self {
        let mut sum = SequenceSums::EMPTY;
        let mut totals = [0_u64; 5];
        let (mut low_min, mut high_max, mut trained) = (f64::NAN, f64::NAN, 0_usize);
        let (mut low_shares, mut high_shares) = (0.0, 0.0);
        for row in sequences {
            sum.policy_loss += row.policy_loss;
            sum.kl_loss += row.kl_loss;
            sum.entropy_loss += row.entropy_loss;
            sum.distillation_loss += row.distillation_loss;
            if row.tokens == 0 {
                continue;
            }
            trained += 1;
            let counts = [row.tokens, row.clipped, row.dual, row.low, row.high];
            for (total, count) in totals.iter_mut().zip(counts) {
                *total += u64::from(count);
            }
            sum.kl += row.kl;
            sum.entropy += row.entropy;
            sum.distillation += row.distillation;
            sum.policy_mass += row.policy_mass;
            sum.teacher_mass += row.teacher_mass;
            sum.old_kl += row.old_kl;
            sum.old_kl_k3 += row.old_kl_k3;
            sum.ratio += row.ratio;
            sum.ratio_max = sum.ratio_max.max(row.ratio_max);
            sum.ratio_min = sum.ratio_min.min(row.ratio_min);
            sum.behaviour_kl += row.behaviour_kl;
            sum.behaviour_kl_k3 += row.behaviour_kl_k3;
            sum.own += row.own;
            let low_share = f64::from(row.low) / f64::from(row.tokens);
            let high_share = f64::from(row.high) / f64::from(row.tokens);
            low_shares += low_share;
            high_shares += high_share;
            // f64::min and max ignore the initial NaN.
            low_min = low_min.min(low_share);
            high_max = high_max.max(high_share);
        }
        let [tokens, clipped, dual, low, high] = totals.map(|total| total as f64);
        let mean = |value: f64| value / tokens;
        let per_sequence = |value: f64| value / trained as f64;
        let (low_share, high_share) =
            if objective.policy.importance(objective.importance) == Importance::Token {
                (mean(low), mean(high))
            } else {
                (per_sequence(low_shares), per_sequence(high_shares))
            };
        let or_nan = |value: f64| if tokens > 0.0 { value } else { f64::NAN };
        let kl_state = objective.kl_state(state);
        let mut loss = sum.policy_loss;
        if let Some(kl) = kl_state {
            loss += kl.coef * sum.kl_loss;
        }
        let entropy_coef = objective.entropy_coef(state);
        if let Some(coef) = entropy_coef {
            loss -= coef * sum.entropy_loss;
        }
        if let Some(distillation) = objective.distillation {
            loss += distillation.coefficient * sum.distillation_loss;
        }
        let metrics = ObjectiveMetrics {
            tokens,
            sequences: trained as f64,
            policy_loss: sum.policy_loss,
            clip_share: mean(clipped),
            clip_share_dual: mean(dual),
            clip_share_low: low_share,
            clip_share_high: high_share,
            clip_share_low_min: low_min,
            clip_share_high_max: high_max,
            ratio_mean: mean(sum.ratio),
            ratio_max: or_nan(sum.ratio_max),
            ratio_min: or_nan(sum.ratio_min),
            old_kl: mean(sum.old_kl),
            old_kl_k3: mean(sum.old_kl_k3),
            kl: objective.kl.map(|_| mean(sum.kl)),
            kl_loss: objective.kl.map(|_| sum.kl_loss),
            kl_coef: kl_state.map(|kl| kl.coef),
            entropy: mean(sum.entropy),
            entropy_loss: sum.entropy_loss,
            entropy_coef,
            distillation: objective.distillation.map(|_| DistillationMetrics {
                divergence: mean(sum.distillation),
                loss: sum.distillation_loss,
                policy_mass: mean(sum.policy_mass),
                teacher_mass: mean(sum.teacher_mass),
            }),
            behaviour_kl: mean(sum.behaviour_kl),
            behaviour_kl_k3: mean(sum.behaviour_kl_k3),
            own: objective.policy.own_metric().map(|own| match own {
                OwnMetric::PerToken(name) => (name, mean(sum.own)),
                OwnMetric::PerSequence(name) => (name, per_sequence(sum.own)),
                OwnMetric::HighShare(name) => (name, high_share),
            }),
        };
        let kl = objective
            .kl
            .zip(kl_state)
            .map(|(term, kl)| term.controller.update(kl, metrics.kl.unwrap_or(f64::NAN), metrics.sequences));
        let entropy = objective
            .entropy
            .zip(objective.entropy_state(state))
            .map(|(bonus, state)| bonus.update(state, metrics.entropy));
        Self { loss, metrics, state: ObjectiveState { kl, entropy } }
    }
}

/// The value of an objective over an optimizer batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// The loss: policy loss + coefficient · KL + coefficient · distillation − coefficient · entropy. 0 if
    /// nothing is trained on.
    pub loss: f64,
    /// Metrics to log.
    pub metrics: ObjectiveMetrics,
    /// State of the next optimizer batch.
    pub state: ObjectiveState,
}

/// Metrics over the unmasked tokens of an optimizer batch. Shares and means are NaN if there are none (a mean
/// of nothing is not 0) or their column was not given.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ObjectiveMetrics {
    /// Unmasked tokens.
    pub tokens: f64,
    /// Trajectories with an unmasked token.
    pub sequences: f64,
    /// Policy loss as aggregated.
    pub policy_loss: f64,
    /// Share of tokens to which the loss's bound applies ([`SequenceSums::clipped`]).
    pub clip_share: f64,
    /// Share of tokens to which its second bound applies ([`SequenceSums::dual`]).
    pub clip_share_dual: f64,
    /// Share of tokens below the low bound with negative advantage; with one ratio per trajectory, share of
    /// trajectories.
    pub clip_share_low: f64,
    /// Share of tokens above the high bound with positive advantage; with one ratio per trajectory, share of
    /// trajectories.
    pub clip_share_high: f64,
    /// Smallest low share of a trajectory.
    pub clip_share_low_min: f64,
    /// Largest high share of a trajectory.
    pub clip_share_high_max: f64,
    /// Mean ratio to the old policy.
    pub ratio_mean: f64,
    /// Largest ratio.
    pub ratio_max: f64,
    /// Smallest ratio.
    pub ratio_min: f64,
    /// Mean of `old - logprob`: the k1 estimate of the divergence from the old policy.
    pub old_kl: f64,
    /// k3 estimate of the divergence from the old policy, not negative beyond rounding.
    pub old_kl_k3: f64,
    /// Token mean of the divergence from the reference, if the objective has one.
    pub kl: Option<f64>,
    /// The same as aggregated in the loss, before the coefficient.
    pub kl_loss: Option<f64>,
    /// Coefficient that this batch used.
    pub kl_coef: Option<f64>,
    /// Token mean of the entropy, in nats.
    pub entropy: f64,
    /// Entropy as aggregated, before the coefficient.
    pub entropy_loss: f64,
    /// Coefficient of the entropy bonus that this batch used, if the objective has one.
    pub entropy_coef: Option<f64>,
    /// The divergence from the teacher, if it is in the loss.
    pub distillation: Option<DistillationMetrics>,
    /// Mean of `behaviour - old`: the difference between sampler and trainer.
    pub behaviour_kl: f64,
    /// k3 estimate of the divergence from the behaviour policy.
    pub behaviour_kl_k3: f64,
    /// The policy loss's own metric, by its name in the package that the loss is from.
    pub own: Option<(&'static str, f64)>,
}

/// A distillation in the loss; token means.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DistillationMetrics {
    /// The divergence from the teacher, in nats.
    pub divergence: f64,
    /// The divergence as aggregated, before the coefficient.
    pub loss: f64,
    /// Probability of the candidates under the policy.
    pub policy_mass: f64,
    /// The same under the teacher.
    pub teacher_mass: f64,
}

impl ObjectiveMetrics {
    /// Names as logged: verl's if it has one, together with TRL's.
    pub fn to_pairs(&self) -> Vec<(&'static str, f64)> {
        let mut named = vec![
            ("actor/pg_loss", self.policy_loss),
            ("actor/pg_clipfrac", self.clip_share),
            ("actor/pg_clipfrac_lower", self.clip_share_dual),
            ("actor/ppo_kl", self.old_kl),
            ("actor/ppo_kl_k3", self.old_kl_k3),
            ("actor/ratio_mean", self.ratio_mean),
            ("actor/ratio_max", self.ratio_max),
            ("actor/ratio_min", self.ratio_min),
            ("actor/entropy", self.entropy),
            ("clip_ratio/low_mean", self.clip_share_low),
            ("clip_ratio/low_min", self.clip_share_low_min),
            ("clip_ratio/high_mean", self.clip_share_high),
            ("clip_ratio/high_max", self.clip_share_high_max),
            ("clip_ratio/region_mean", self.clip_share_low + self.clip_share_high),
            ("rollout_corr/kl", self.behaviour_kl),
            ("rollout_corr/k3_kl", self.behaviour_kl_k3),
        ];
        named.extend(self.kl.map(|kl| ("kl", kl)));
        named.extend(self.kl_loss.map(|kl| ("actor/kl_loss", kl)));
        named.extend(self.kl_coef.map(|coef| ("actor/kl_coef", coef)));
        named.extend(self.entropy_coef.map(|coef| ("entropy_coef", coef)));
        if let Some(distillation) = self.distillation {
            named.extend([
                ("distillation/divergence", distillation.divergence),
                ("distillation/loss", distillation.loss),
                ("distillation/student_mass", distillation.policy_mass),
                ("distillation/teacher_mass", distillation.teacher_mass),
            ]);
        }
        named.extend(self.own);
        named
    }
}
