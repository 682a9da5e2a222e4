//! The critic in a run: where it begins, its values, its updates.

use std::path::PathBuf;
use std::time::Instant;

use tamis_config::Config;
use tamis_core::group::Group;
use tamis_core::objective::explained_variance;
use tamis_core::ragged::Ragged;

use super::step::most_in_a_row;
use super::{RunError, Session};
use crate::assemble::{AssembleError, critic};
use crate::batch_metrics::Summary;
use crate::checkpoint::{self, RunState};
use crate::critic::{CriticBatch, update_critic, values};
use crate::metrics::Metrics;
use crate::micro_batch::sequences;
use crate::native::NativeCritic;
use crate::optimizer_batch::mask_of;
use crate::timings::Timings;

/// The critic of the last checkpoint, or the one that the configuration names where the run begins.
pub(super) fn given(
    config: &Config,
    last: Option<&(RunState, PathBuf)>,
) -> Result<Option<NativeCritic>, RunError> {
    let Some((state, folder)) = last else { return Ok(critic::named(config)?) };
    let read = |state| checkpoint::read_critic(folder, state, |model| critic::critic(config, model));
    Ok(state.critic.as_ref().map(read).transpose()?)
}

/// Refuses a warm-up that lasts as long as the epochs do: only with the prompts at hand is their number of steps known. Every step
/// uses up at least a batch of them, or what is left of an epoch.
pub(super) fn check_warm_up(config: &Config, num_prompts: usize) -> Result<(), AssembleError> {
    let (warmup, batch) = (config.critic.warmup_steps, config.data.train_batch_size);
    let Some(epochs) = config.train.total_epochs.filter(|_| config.has_critic()) else { return Ok(()) };
    let most = num_prompts.div_ceil(batch.max(1)).saturating_mul(epochs);
    if warmup == 0 || warmup < most {
        return Ok(());
    }
    Err(AssembleError::setting(
        format!(
            "`critic.warmup_steps` ({warmup}) is not below the number of steps, at most {most} with `train.total_epochs` ({epochs}) of {num_prompts} prompts: \
             the policy would never be trained"
        ),
        format!("use fewer than {most} steps, or train for longer (`train.total_epochs`)"),
    ))
}

impl Session {
    /// A critic with the policy's layers, where one is needed and neither a checkpoint nor the configuration gave it.
    pub(super) fn keep_critic(&mut self) {
        if self.critic.is_none() {
            return;
        }
        if self.engine.critic().is_none() {
            let model = self.engine.model().critic();
            self.engine.set_critic(critic::critic(&self.config, model));
        }
        if let Some(critic) = self.engine.critic() {
            let from = match &self.config.critic.model.path {
                Some(path) => path.display().to_string(),
                None => "the policy's layers".to_owned(),
            };
            let age = match critic.version() {
                0 => format!("begins with {from}"),
                version => format!("trained in {version} steps"),
            };
            self.progress.say(&format!("critic: {} parameters, {age}", critic.model().num_parameters()));
        }
    }

    /// Whether the policy is trained in a step, or the critic alone.
    pub(super) fn trains_policy(&self, step: u64) -> bool {
        self.critic.is_none_or(|plan| step > plan.warmup_steps)
    }

    /// Tells that a run ends in the critic's warm-up: its policy is the one it began with.
    pub(super) fn tell_untrained_policy(&self, steps: u64) {
        if let Some(plan) = self.critic.filter(|_| steps > 0 && !self.trains_policy(steps)) {
            self.progress.warn(&format!(
                "the policy was never trained: all {steps} steps of the run are the critic's warm-up (critic.warmup_steps is {}); set fewer, \
                 or train for longer",
                plan.warmup_steps
            ));
        }
    }

    /// The critic's values of the trained groups `[B][T]`, where there is one.
    pub(super) fn values(
        &mut self,
        groups: &[&Group],
        timings: &mut Timings,
    ) -> Result<Option<Ragged<f64>>, RunError> {
        if self.critic.is_none() {
            return Ok(None);
        }
        let clock = Instant::now();
        let values = values(&mut self.engine, &sequences(groups), self.update.micro_batch)?;
        timings.add("values", clock.elapsed());
        Ok(Some(values))
    }

    /// Trains the critic on the step's returns and tells how well it knew them. How many of its updates, up to one of this step, were
    /// left out in a row.
    pub(super) fn train_critic(
        &mut self,
        step: u64,
        groups: &[&Group],
        old: Option<&Ragged<f64>>,
        returns: Option<&Ragged<f64>>,
        metrics: &mut Metrics,
        timings: &mut Timings,
    ) -> Result<u32, RunError> {
        let (Some(plan), Some(old), Some(returns)) = (self.critic, old, returns) else { return Ok(0) };
        let clock = Instant::now();
        let total = self.planned_steps();
        let learning_rate = plan.learning_rate.rate(step - 1, total);
        let mut settings = plan.settings;
        settings.shuffle = settings.shuffle.map(|key| key.with(step));
        let batch = CriticBatch { groups, old, returns };
        let report = update_critic(&mut self.engine, batch, &settings, learning_rate)?;
        if let Some(critic) = self.engine.critic_mut() {
            critic.set_version(critic.version() + 1);
        }
        timings.add("update_critic", clock.elapsed());
        if report.num_skipped > 0 {
            self.progress.warn(&format!(
                "step {step}: the gradient of {} of {} updates of the critic was not finite; these updates were left out",
                report.num_skipped,
                report.num_skipped + report.num_updates
            ));
        }
        metrics.extend(report.metrics.iter().copied());
        metrics.set("critic/grad_norm", report.grad_norm);
        metrics.set("critic/lr", learning_rate);
        metrics.set("critic/num_updates", report.num_updates as f64);
        metrics.set("critic/num_skipped_updates", report.num_skipped as f64);
        let mask: Vec<bool> = groups.iter().flat_map(|group| mask_of(group, false)).flatten().collect();
        let explained = explained_variance(old.values(), returns.values(), &mask);
        metrics.set_some("critic/vf_explained_var", (!explained.is_nan()).then_some(explained));
        let trained = old.values().iter().zip(&mask).filter(|(_, on)| **on).map(|(&value, _)| value);
        if let Some(summary) = Summary::of(trained) {
            metrics.set("critic/values/mean", summary.mean);
            metrics.set("critic/values/max", summary.max);
            metrics.set("critic/values/min", summary.min);
        }
        Ok(most_in_a_row(&mut self.skipped_critic_updates, &report.skipped))
    }
}
