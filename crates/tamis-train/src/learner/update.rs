//! From a step's batch to new weights: mini-batches, epochs, micro-batches, and the objective between forward
//! and backward.

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};
use tamis_core::advantage::Advantages;
use tamis_core::correction::{Correction, SamplerColumns};
use tamis_core::group::{Group, Trajectory};
use tamis_core::objective::{
    Accumulator, AdvantageColumn, CandidateColumns, Columns, Derivatives, Evaluation, Normalisers, Objective,
    ObjectiveMetrics, ObjectiveState, Selection, ZeroGroups,
};
use tamis_core::ragged::Ragged;
use tamis_core::random::Key;

use crate::interrupt::Halt;
use crate::learner::micro_batch::{Cut, MicroBatch};
use crate::learner::old_logprobs::OldLogprobs;
use crate::learner::optimizer_batch::{OptimizerBatch, first_rows};
use crate::learner::taught::Taught;
use crate::learner::updates::{UpdateTally, forward_backward, mini_batches_of};
use crate::learner::{Learner, LearnerError, Network, Pass, TokenColumns, Trained};
use crate::own_function::error::in_step;
use crate::own_function::loss::{LossNumbers, OwnLoss};
use tamis_run::metrics::summary::NumberSummary;

/// Settings of the optimizer updates made of a batch.
#[derive(Debug, Clone)]
pub struct UpdateSettings {
    /// Number of groups of one update.
    pub mini_batch_size: NonZeroUsize,
    /// Passes over the batch.
    pub epochs: usize,
    /// Shuffle groups before they are cut into mini-batches.
    pub shuffle: Option<Key>,
    /// Division of a mini-batch into micro-batches.
    pub micro_batch: MicroBatch,
    /// Leave truncated trajectories out of the loss.
    pub mask_truncated: bool,
    /// Correction for a sampler that is not the policy.
    pub correction: Option<Correction>,
    /// Key of the choices that the objective draws.
    pub key: Key,
}

/// A step's batch: whole groups with their computed columns.
#[derive(Debug, Clone, Copy)]
pub struct TrainingBatch<'a> {
    /// Kept groups \[P\].
    pub groups: &'a [&'a Group],
    /// Advantages.
    pub advantages: &'a Advantages,
    /// Mask of the trajectories that stay in the loss `[P][G]`; `None`: all.
    pub kept: Option<&'a Ragged<bool>>,
    /// Weight of each group's losses \[P\], divergence and entropy included; `None`: 1.
    pub weights: Option<&'a [f64]>,
    /// Factor of the policy term.
    pub policy_factor: f64,
    /// Log-probabilities under the policy at the start of the step.
    pub old: &'a OldLogprobs,
    /// Groups, trajectories and tokens that the filter dropped, if they stay in the denominators.
    pub dropped: Option<Normalisers>,
    /// Log-probabilities of the reference, one row per trajectory `[B][T]`.
    pub reference: Option<&'a Ragged<f32>>,
    /// The teacher's likeliest tokens, if the loss compares with them.
    pub taught: Option<&'a Taught>,
}

/// Results of one step's updates.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct UpdateReport {
    /// Number of optimizer updates taken.
    pub num_updates: usize,
    /// Updates left out because the gradient was not finite.
    pub num_skipped: usize,
    /// Whether each was left out, in order.
    pub skipped: Vec<bool>,
    /// Mean loss over the updates taken.
    pub loss: f64,
    /// Mean norm of the gradient before clipping, over finite ones.
    pub grad_norm: f64,
    /// Mean of each metric of objective and correction over the updates taken, by name as logged; the
    /// correction's also over mini-batches that it rejected whole.
    pub metrics: Vec<(String, f64)>,
    /// Mean entropy of the policy over the updates taken, in nats per token.
    pub entropy: Option<f64>,
    /// Mean divergence from the policy at the start of the step, in nats per token.
    pub old_kl: Option<f64>,
    /// Mean divergence from the reference, if it is in the loss.
    pub reference_kl: Option<f64>,
    /// Whether each trajectory had tokens to train on and lost all of them to the correction in every update
    /// \[B\].
    pub rejected: Vec<bool>,
}

/// Objective, settings and learning rate of some updates.
#[derive(Debug, Clone, Copy)]
pub struct UpdatePlan<'a> {
    /// The loss.
    pub objective: &'a Objective,
    /// Mini-batches, epochs and micro-batches.
    pub settings: &'a UpdateSettings,
    /// The user's loss, if that is the objective's.
    pub(crate) own_loss: Option<&'a OwnLoss>,
    /// The optimizer's learning rate.
    pub learning_rate: f64,
    /// The step of the run, for messages.
    pub(crate) step: u64,
}

/// The updates of one step, mini-batch by mini-batch: those of the complete batch, or of parts that were
/// trained on before it was complete.
#[derive(Debug, Clone, Default)]
pub struct Updates {
    tally: UpdateTally<String>,
    losses: f64,
    entropies: Vec<f64>,
    old_kls: Vec<f64>,
    reference_kls: Vec<f64>,
    /// For the step's trajectories so far \[B\]: whether one had loss, and whether the correction
    /// rejected all of its tokens.
    bore_loss: Vec<bool>,
    was_rejected: Vec<bool>,
}

/// A mini-batch: groups of a batch, and which update of the step it is.
#[derive(Debug, Clone, Copy)]
struct Places<'a> {
    /// Places of its groups in the batch.
    groups: &'a [usize],
    /// Row of each group's first member in the batch.
    first_row: &'a [usize],
    /// Row of the batch's first member in the step.
    offset: usize,
    key: Key,
}

impl Updates {
    /// Trains on a part of a step that is handed over before the rest of it is complete, in one pass:
    /// the groups after those trained before, in whole mini-batches.
    ///
    /// # Errors
    /// If the learner cannot continue, or is interrupted: some of the part may have been trained on
    /// then.
    pub fn train_part(
        &mut self,
        learner: &mut dyn Learner,
        plan: UpdatePlan<'_>,
        state: &mut ObjectiveState,
        batch: TrainingBatch<'_>,
        num_before: usize,
    ) -> Pass<()> {
        let UpdateSettings { mini_batch_size, key, .. } = *plan.settings;
        let (first_row, offset) = (first_rows(batch.groups), self.bore_loss.len());
        self.grow(offset + num_rows(batch.groups));
        for mini in mini_batches_of(batch.groups.len(), mini_batch_size, 1, None) {
            let index = (num_before + mini.start) / mini_batch_size;
            let key = key.with(0).with(index as u64);
            let places = Places { groups: &mini.places, first_row: &first_row, offset, key };
            self.mini_batch(learner, plan, state, batch, places)?;
        }
        Ok(())
    }

    /// Trains on a complete batch: `epochs` passes, one optimizer update per mini-batch, without the
    /// first `num_before` groups, which were trained on as parts. Every update advances `state`.
    ///
    /// Metrics are means over the updates of the step, as verl reduces them.
    ///
    /// # Errors
    /// If the learner cannot continue, or is interrupted.
    pub fn train(
        mut self,
        learner: &mut dyn Learner,
        plan: UpdatePlan<'_>,
        state: &mut ObjectiveState,
        batch: TrainingBatch<'_>,
        num_before: usize,
    ) -> Pass<UpdateReport> {
        let UpdateSettings { mini_batch_size, epochs, shuffle, key, .. } = *plan.settings;
        let first_row = first_rows(batch.groups);
        self.grow(num_rows(batch.groups));
        let minis = mini_batches_of(batch.groups.len(), mini_batch_size, epochs, shuffle);
        for mini in minis.filter(|mini| mini.epoch > 0 || mini.start >= num_before) {
            let key = key.with(mini.epoch as u64).with(mini.index as u64);
            let places = Places { groups: &mini.places, first_row: &first_row, offset: 0, key };
            self.mini_batch(learner, plan, state, batch, places)?;
        }
        Ok(self.finish())
    }

    fn grow(&mut self, num_rows: usize) {
        self.bore_loss.resize(num_rows, false);
        self.was_rejected.resize(num_rows, false);
    }

    fn mini_batch(
        &mut self,
        learner: &mut dyn Learner,
        plan: UpdatePlan<'_>,
        state: &mut ObjectiveState,
        batch: TrainingBatch<'_>,
        places: Places<'_>,
    ) -> Pass<()> {
        let UpdatePlan { objective, settings, learning_rate, .. } = plan;
        let mut mini = MiniBatch::of(batch, places.first_row, places.groups, settings);
        let given = mini.batch.live();
        if given.is_empty() {
            // Nothing to learn from: an optimizer step would only decay weights and move by old
            // momentum.
            return Ok(());
        }
        let corrected = mini.correct(learner, objective, settings)?;
        for &row in &given {
            let is_live = mini.batch.mask.row(row).contains(&true);
            let of_step = places.offset + mini.batch.rows[row];
            self.bore_loss[of_step] |= is_live;
            self.was_rejected[of_step] |= !is_live;
        }
        if mini.batch.live().is_empty() {
            self.tally.add(corrected.metrics);
            return Ok(());
        }
        let outcome = mini.pass(learner, plan, state, &corrected, places.key)?;
        if !self.tally.step(learner, Trained::Policy, learning_rate)? {
            // Nothing of it is kept: a state that moved on with numbers that are not finite would spoil every
            // later update.
            return Ok(());
        }
        self.losses += outcome.loss;
        *state = outcome.state;
        self.entropies.push(outcome.metrics.entropy);
        self.old_kls.push(outcome.metrics.old_kl);
        self.reference_kls.extend(outcome.metrics.kl);
        // The correction's figures about the policy that sampled replace the objective's figures of the
        // same name.
        let of_objective = name_metrics(&outcome.metrics)
            .into_iter()
            .filter(|(name, _)| corrected.metrics.iter().all(|(other, _)| other != name))
            .map(|(name, value)| (name.to_owned(), value));
        self.tally.add(of_objective.chain(corrected.metrics.iter().cloned()).collect::<Vec<_>>());
        Ok(())
    }

    fn finish(self) -> UpdateReport {
        let mean = |values: Vec<f64>| NumberSummary::of(values).map(|summary| summary.mean);
        let rows = self.was_rejected.iter().zip(&self.bore_loss);
        UpdateReport {
            num_updates: self.tally.num_updates,
            num_skipped: self.tally.num_skipped(),
            skipped: self.tally.skipped.clone(),
            loss: self.tally.mean(self.losses),
            grad_norm: self.tally.grad_norm(),
            metrics: self.tally.means(),
            entropy: mean(self.entropies),
            old_kl: mean(self.old_kls),
            reference_kl: mean(self.reference_kls),
            rejected: rows.map(|(&rejected, &bore)| rejected && !bore).collect(),
        }
    }
}

fn num_rows(groups: &[&Group]) -> usize {
    groups.iter().map(|group| group.trajectories.len()).sum()
}

/// Norm of the gradient of the groups at `places` as an optimizer batch of their own; no weight moves.
/// `None` if they have no loss.
pub(crate) fn gradient_norm(
    learner: &mut dyn Learner,
    plan: UpdatePlan<'_>,
    state: &ObjectiveState,
    batch: TrainingBatch<'_>,
    places: &[usize],
) -> Pass<Option<f64>> {
    let UpdatePlan { objective, settings, .. } = plan;
    let mut mini = MiniBatch::of(batch, &first_rows(batch.groups), places, settings);
    let corrected = mini.correct(learner, objective, settings)?;
    if mini.batch.live().is_empty() {
        return Ok(None);
    }
    mini.pass(learner, plan, state, &corrected, settings.key)?;
    Ok(Some(learner.grad_norm(Trained::Policy)?))
}

/// The correction's weights for an optimizer batch.
#[derive(Default)]
struct BatchCorrection {
    /// Weight of each token \[N\]; `None`: 1.
    weight: Option<Vec<f32>>,
    metrics: Vec<(String, f64)>,
    /// The policy's log-probabilities and entropies, if they were computed for it or for a selection.
    scores: Option<TokenColumns>,
}

fn name_metrics(metrics: &ObjectiveMetrics) -> Vec<(&'static str, f64)> {
    metrics.to_pairs()
}

/// The teacher's numbers for an optimizer batch.
struct TaughtBatch {
    /// Candidates of each token, k.
    per_token: usize,
    /// Their log-probabilities \[N k\].
    candidates: Vec<f32>,
    /// Those of the sampled tokens \[N\], -inf if they are candidates.
    sampled: Vec<f32>,
}

struct MiniBatch<'a> {
    batch: OptimizerBatch<'a>,
    groups: Vec<&'a Group>,
    /// Log-probabilities from generation \[N\].
    behaviour: Vec<f32>,
    /// Whether it gave them.
    is_behaviour_known: bool,
    /// Under the policy at the start of the step, if that was computed anew \[N\].
    old: Option<Vec<f32>>,
    reference: Option<Vec<f32>>,
    /// The teacher's, if the loss compares with it.
    taught: Option<TaughtBatch>,
    /// One per trajectory \[B\] or per token \[N\].
    advantages: Vec<f64>,
    is_per_token: bool,
    policy_factor: f64,
    dropped: Option<Normalisers>,
}

impl<'a> MiniBatch<'a> {
    fn of(
        batch: TrainingBatch<'a>,
        first_row: &[usize],
        places: &[usize],
        settings: &UpdateSettings,
    ) -> Self {
        let weights = batch.weights.map(|weights| places.iter().map(|&place| weights[place]).collect());
        let mut own =
            OptimizerBatch::of(batch.groups, first_row, places, settings.mask_truncated, batch.kept)
                .with_weights(weights);
        if let Some(taught) = batch.taught {
            own.add_candidates(&taught.candidates);
        }
        let members = || places.iter().flat_map(|&place| &batch.groups[place].trajectories);
        Self {
            groups: places.iter().map(|&place| batch.groups[place]).collect(),
            behaviour: members().flat_map(|member| &member.logprobs).copied().collect(),
            is_behaviour_known: members().all(Trajectory::has_logprobs),
            old: batch.old.recomputed().map(|column| own.gather(column)),
            reference: batch.reference.map(|column| own.gather(column)),
            taught: batch.taught.map(|taught| TaughtBatch {
                per_token: taught.per_token,
                candidates: own.gather(&taught.top_logprobs),
                sampled: own.gather(&taught.sampled),
            }),
            advantages: match batch.advantages {
                Advantages::PerTrajectory(rows) => {
                    places.iter().flat_map(|&place| rows.row(place)).copied().collect()
                }
                Advantages::PerToken(rows) => own.gather(rows),
            },
            is_per_token: matches!(batch.advantages, Advantages::PerToken(_)),
            policy_factor: batch.policy_factor,
            // Each optimizer batch gets its share of the dropped groups.
            dropped: batch.dropped.map(|dropped| {
                let share = places.len() as f64 / batch.groups.len().max(1) as f64;
                Normalisers {
                    tokens: dropped.tokens * share,
                    sequences: dropped.sequences * share,
                    groups: dropped.groups * share,
                    dp_size: dropped.dp_size,
                }
            }),
            batch: own,
        }
    }

    /// A trajectory by its place, for messages.
    fn name(&self, place: usize) -> String {
        let members =
            self.groups.iter().flat_map(|group| group.trajectories.iter().map(|member| (*group, member)));
        let mut named = members.map(|(group, member)| group.name(member));
        named.nth(place).unwrap_or_else(|| format!("trajectory {place}"))
    }

    fn old(&self) -> &[f32] {
        self.old.as_deref().unwrap_or(&self.behaviour)
    }

    fn advantage(&self) -> AdvantageColumn<'_> {
        if self.is_per_token {
            AdvantageColumn::PerToken(&self.advantages)
        } else {
            AdvantageColumn::PerTrajectory(&self.advantages)
        }
    }

    /// Whether an advantage of a trajectory is other than 0.
    fn has_advantage(&self, place: usize) -> bool {
        let offsets = self.batch.mask.offsets();
        let own = if self.is_per_token { offsets[place]..offsets[place + 1] } else { place..place + 1 };
        self.advantages[own].iter().any(|&advantage| advantage != 0.0)
    }

    /// The policy's log-probabilities and entropies over the whole optimizer batch \[N\]; 0 in sequences that
    /// are not trained on.
    fn scores(&self, learner: &mut dyn Learner, settings: &UpdateSettings) -> Pass<TokenColumns> {
        let mask = &self.batch.mask;
        let num_tokens = mask.num_values();
        let zeros = || vec![0.0; num_tokens];
        let mut all = TokenColumns { logprobs: zeros(), entropies: zeros(), ..TokenColumns::default() };
        let mut gives_entropy = true;
        self.batch.for_each_wave(
            Cut::of(learner.info(), settings.micro_batch),
            |_| true,
            |micro, _| {
                let scores = learner.forward(Network::Policy, micro.wave, 1.0)?;
                gives_entropy &= !scores.entropies.is_empty();
                let mut from = 0;
                for &place in micro.places {
                    let tokens = mask.offsets()[place]..mask.offsets()[place + 1];
                    let to = from + tokens.len();
                    all.logprobs[tokens.clone()].copy_from_slice(&scores.logprobs[from..to]);
                    if gives_entropy {
                        all.entropies[tokens].copy_from_slice(&scores.entropies[from..to]);
                    }
                    from = to;
                }
                Ok::<_, Halt<LearnerError>>(())
            },
        )?;
        if !gives_entropy {
            all.entropies.clear();
        }
        Ok(all)
    }

    /// Corrects for a sampler that is not the policy: weights, and a mask without rejected tokens.
    fn correct(
        &mut self,
        learner: &mut dyn Learner,
        objective: &Objective,
        settings: &UpdateSettings,
    ) -> Pass<BatchCorrection> {
        let judges_policy = |correction: &Correction| {
            correction.mode.is_bypass()
                && (correction.importance.is_some() || !correction.rejections.is_empty())
        };
        let needs_scores =
            objective.needs_selection() || settings.correction.as_ref().is_some_and(judges_policy);
        let mut batch = BatchCorrection {
            scores: if needs_scores { Some(self.scores(learner, settings)?) } else { None },
            ..BatchCorrection::default()
        };
        if let Some(correction) = &settings.correction {
            let old = match &batch.scores {
                Some(scores) if judges_policy(correction) => &scores.logprobs,
                _ => self.old(),
            };
            let columns = SamplerColumns {
                offsets: self.batch.mask.offsets(),
                mask: self.batch.mask.values(),
                old,
                behaviour: &self.behaviour,
            };
            let corrected = correction.correct(&columns)?;
            batch.weight =
                corrected.weights.map(|weights| weights.iter().map(|&weight| weight as f32).collect());
            batch.metrics = corrected.metrics.to_pairs();
            for row in 0..self.batch.mask.num_rows() {
                let tokens = self.batch.mask.offsets()[row]..self.batch.mask.offsets()[row + 1];
                self.batch.mask.row_mut(row).copy_from_slice(&corrected.mask[tokens]);
            }
        }
        #[expect(clippy::float_cmp, reason = "1 is the factor of a batch without such a shaping, exactly")]
        if self.policy_factor != 1.0 {
            if objective.policy.multiplies_weights() {
                // A token's weight is a factor of the whole trajectory's there: the factor would come in once
                // for every token.
                for advantage in &mut self.advantages {
                    *advantage *= self.policy_factor;
                }
            } else {
                let factor = self.policy_factor as f32;
                let weights = batch.weight.get_or_insert_with(|| vec![1.0; self.batch.mask.num_values()]);
                for weight in weights {
                    *weight *= factor;
                }
            }
        }
        Ok(batch)
    }

    /// Forward and backward: choices over the whole, then micro-batch by micro-batch.
    fn pass(
        &self,
        learner: &mut dyn Learner,
        plan: UpdatePlan<'_>,
        state: &ObjectiveState,
        corrected: &BatchCorrection,
        key: Key,
    ) -> Pass<tamis_core::objective::Outcome> {
        let objective = plan.objective;
        let selection = match &corrected.scores {
            Some(scores) if objective.needs_selection() => {
                let columns = Columns {
                    old: Some(self.old()),
                    entropy: entropies(scores),
                    ..Columns::new(
                        self.batch.mask.offsets(),
                        self.batch.mask.values(),
                        &scores.logprobs,
                        self.advantage(),
                    )
                };
                Some(objective.select(&columns, key)?)
            }
            _ => None,
        };
        let weight = corrected.weight.as_deref();
        self.micro_batches(learner, plan, state, weight, selection.as_ref())
    }

    fn micro_batches(
        &self,
        learner: &mut dyn Learner,
        plan: UpdatePlan<'_>,
        state: &ObjectiveState,
        weight: Option<&[f32]>,
        selection: Option<&Selection>,
    ) -> Pass<tamis_core::objective::Outcome> {
        let UpdatePlan { objective, settings, .. } = plan;
        // A part of the objective that is measured alone has another loss.
        let own_loss = plan.own_loss.filter(|_| objective.policy.is_given());
        let mut accumulator = Accumulator::new(self.batch.sequences.len());
        let mut evaluation = Evaluation::default();
        // Members with equal scores have advantages of 0. If the loss has no other term, they have no
        // gradient. If the learner skips backward passes without derivatives, they are kept apart from
        // the others, and the gradient is the same sum.
        let takes_all = !learner.info().passes_over_zeros
            || objective.kl.is_some()
            || objective.entropy.is_some()
            || objective.distillation.is_some();
        let teaches = |place: usize| takes_all || self.has_advantage(place);
        self.batch.for_each_wave(
            Cut::of(learner.info(), settings.micro_batch),
            teaches,
            |micro, normalisers| {
                let normalisers = self
                    .dropped
                    .map_or(*normalisers, |dropped| normalisers.with_dropped(dropped, ZeroGroups::Mask));
                let places = micro.places;
                let old_n = self.batch.cut(self.old(), places);
                let needs_behaviour =
                    self.is_behaviour_known && (self.old.is_some() || objective.policy.weighs_behaviour());
                let behaviour_n = needs_behaviour.then(|| self.batch.cut(&self.behaviour, places));
                let rollout_n = own_loss
                    .filter(|_| self.is_behaviour_known)
                    .map(|_| self.batch.cut(&self.behaviour, places));
                let reference_n = self.reference.as_ref().map(|column| self.batch.cut(column, places));
                let taught_n =
                    self.taught.as_ref().filter(|_| objective.distillation.is_some()).map(|taught| {
                        let TaughtBatch { per_token, candidates, sampled } = taught;
                        let candidates = self.batch.cut_wide(candidates, *per_token, places);
                        (*per_token, candidates, self.batch.cut(sampled, places))
                    });
                let weight_n = weight.map(|column| self.batch.cut(column, places));
                let selection_n = selection.map(|selection| self.batch.cut(&selection.flags, places));
                let advantages: Vec<f64> = if self.is_per_token {
                    self.batch.cut(&self.advantages, places)
                } else {
                    places.iter().map(|&place| self.advantages[place]).collect()
                };
                let advantage = if self.is_per_token {
                    AdvantageColumn::PerToken(&advantages)
                } else {
                    AdvantageColumn::PerTrajectory(&advantages)
                };
                forward_backward(learner, Trained::Policy, micro.wave, |scores| {
                    let columns = Columns {
                        old: Some(&old_n),
                        behaviour: behaviour_n.as_deref(),
                        reference: reference_n.as_deref(),
                        entropy: entropies(scores),
                        weight: weight_n.as_deref(),
                        selection: selection_n.as_deref(),
                        candidates: taught_n.as_ref().map(|(per_token, teacher, sampled)| CandidateColumns {
                            per_token: *per_token,
                            logprob: &scores.candidates,
                            teacher,
                            sampled: Some(sampled),
                        }),
                        group_tokens: Some(&micro.group_tokens),
                        group_sequences: Some(&micro.group_sequences),
                        sequence_weight: micro.sequence_weights.as_deref(),
                        ..Columns::new(&micro.offsets, &micro.mask, &scores.logprobs, advantage)
                    };
                    let name = |row: usize| self.name(places[row]);
                    let given = own_loss.map(|own| own.evaluate(&columns, rollout_n.as_deref(), &name));
                    let given = given.transpose().map_err(|halt| in_step(halt, plan.step))?;
                    let given = given.as_ref().map(LossNumbers::as_column);
                    let columns = Columns { given, ..columns };
                    objective.evaluate(&columns, &normalisers, state, &mut evaluation)?;
                    for (&place, sums) in places.iter().zip(&evaluation.sequences) {
                        accumulator.record(place, *sums)?;
                    }
                    let derivatives = std::mem::take(&mut evaluation.derivatives);
                    let Derivatives { logprob, entropy, candidates } = derivatives;
                    let values = Vec::new();
                    Ok(TokenColumns { logprobs: logprob, entropies: entropy, values, candidates })
                })
            },
        )?;
        Ok(accumulator.finish(objective, state))
    }
}

/// The entropies of a pass, if the learner gives them.
fn entropies(scores: &TokenColumns) -> Option<&[f32]> {
    (!scores.entropies.is_empty()).then_some(&scores.entropies)
}

#[cfg(test)]
mod tests;
