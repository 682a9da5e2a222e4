//! The metrics of a step, made from its facts in this one place.

use std::collections::BTreeMap;

use tamis_core::correction::Agreement;
use tamis_core::group::Group;
use tamis_rollout::Record;

use super::facts::StepFacts;
use super::step::Step;
use crate::assemble::objective::Divergence;
use crate::assemble::recipe::Recipe;
use crate::learner::left_out::LeftOut;
use crate::learner::rank_balance::RankBalance;
use crate::learner::update::UpdateReport;
use crate::learner::work::WorkDone;
use crate::measure::batch_metrics::{
    BatchNumbers, GeneratedFacts, TrainedColumns, TrainedFacts, generated_metrics, trained_metrics,
};
use crate::measure::diagnostics;
use crate::measure::episode_metrics::episode_metrics;
use tamis_run::log::console::StepView;
use tamis_run::metrics::Metrics;
use tamis_run::metrics::summary::NumberSummary;
use tamis_run::metrics::timings::{GENERATION, OLD_LOGPROBS, STEP, Timings, TokenCounts, UPDATE};

/// The metrics of a step, and those that the console shows.
pub(crate) struct StepMetrics {
    pub(crate) metrics: Metrics,
    trained: TrainedFacts,
    generated: GeneratedFacts,
    zero_advantage: Option<f64>,
    trains_on_all: bool,
    num_generated_tokens: usize,
    utilization: Option<f64>,
}

impl StepMetrics {
    /// Every metric of a step except clocks and validation.
    pub(crate) fn of(recipe: &Recipe, step: &Step) -> Self {
        let Step { after, facts, .. } = step;
        let mut metrics = Metrics::new();
        metrics.set("training/global_step", facts.step as f64);
        metrics.set("training/epoch", facts.report.epoch as f64);
        if let Some(greedy) = facts.greedy {
            metrics.set_some("greedy/reward/mean", greedy.mean_reward);
            metrics.set("greedy/num_completions", greedy.num_completions as f64);
            metrics.set_some("greedy/response_length/mean", greedy.mean_length);
        }
        if let Some(kl) = facts.reward_kl {
            metrics.set("actor/reward_kl_penalty", kl.mean);
            metrics.set("actor/reward_kl_penalty_coeff", kl.coefficient);
        }
        metrics.set_some("distillation/kl", facts.teacher_kl);
        metrics.extend(facts.shaping.iter().copied());
        metrics.extend(facts.selection.to_pairs().iter().copied());
        if let Some(critic) = &facts.critic {
            critic.put(&mut metrics);
        }
        metrics.extend(facts.gradients.iter().map(|(name, value)| (name.as_str(), *value)));
        if let Some(report) = &facts.update {
            metrics.set("loss", report.loss);
            metrics.set("actor/grad_norm", report.grad_norm);
            metrics.set("actor/lr", facts.learning_rate);
            metrics.set("actor/num_updates", report.num_updates as f64);
            metrics.set("actor/num_skipped_updates", report.num_skipped as f64);
            metrics.extend(report.metrics.iter().map(|(name, value)| (name.as_str(), *value)));
        }
        // It comes after the metrics of the updates, because it is their whole.
        metrics.extend(facts.agreement.iter().flat_map(Agreement::to_pairs));

        let groups = step.groups();
        let left_out: Vec<Option<LeftOut>> = step.members().map(|member| member.left_out).collect();
        let columns = TrainedColumns {
            advantages: Some(BatchNumbers::from(&facts.advantages)),
            returns: facts.returns.as_ref().map(BatchNumbers::PerToken),
            final_rewards: facts.final_rewards.as_deref(),
            left_out: &left_out,
            max_prompt_length: Some(recipe.config.data.max_prompt_length),
        };
        let trained = trained_metrics(&groups, &columns, &mut metrics);
        // Groups in a batch that the filter did not keep are counted whole.
        let of_kept = step.trained.iter().filter(|trained| trained.record.is_trained());
        let of_kept: Vec<Option<LeftOut>> =
            of_kept.flat_map(|trained| &trained.members).map(|member| member.left_out).collect();
        for reason in LeftOut::ALL {
            let number = of_kept.iter().filter(|left_out| **left_out == Some(reason)).count();
            metrics.set(format!("train/num_left_out/{}", reason.name()), number as f64);
        }
        let zero_advantage = diagnostics::set_trained(&groups, &facts.advantages, &left_out, &mut metrics);
        let records = step.generated_records();
        logged_metrics(&records, &mut metrics);
        let generated: Vec<&Group> = records.iter().map(|record| &record.group).collect();
        let of_generated = generated_metrics(&generated, &mut metrics);
        if let Some(environment) = recipe.config.played() {
            let mut by_source: BTreeMap<&str, Vec<&Group>> = BTreeMap::new();
            for record in &records {
                // An environment for prompts of any source has one name for all of them.
                let own = environment.name.as_deref().unwrap_or_else(|| environment.kind.as_str());
                let source = match record.prompt.prompt.data_source.as_str() {
                    source if !source.is_empty() && !environment.maker().plays_any_prompt() => source,
                    _ => own,
                };
                by_source.entry(source).or_default().push(&record.group);
            }
            for (source, groups) in by_source {
                episode_metrics(source, &groups, &mut metrics);
            }
        }
        diagnostics::set_generated(&generated, &mut metrics);
        metrics.extend(facts.report.metrics());
        if step.members().any(|member| !member.is_chosen) {
            // The scheduling machine counts only whole groups. Members that the filter did not choose are not
            // trained on.
            metrics.set_some("train/filter_metric/mean", mean_of_chosen(step));
        }
        metrics.set("dynamic_sampling/num_given_up_attempts", facts.num_given_up as f64);
        for (reason, number) in facts.report.all.dropped_by() {
            metrics.set(format!("train/num_dropped/{reason}"), number as f64);
        }
        for (class, number) in facts.ignored.classes() {
            metrics.set(format!("rollout/ignored/{class}"), number as f64);
        }
        for (name, number) in &facts.server_faults {
            metrics.set(name.as_str(), *number as f64);
        }
        let position = after.schedule.position;
        let share = position.position as f64 / recipe.num_prompts.max(1) as f64;
        metrics.set("epoch", position.epoch as f64 + share);
        metrics.set("num_tokens", after.num_tokens as f64);
        Self {
            trained,
            generated: of_generated,
            zero_advantage: (zero_advantage.groups > 0).then(|| zero_advantage.group_share()),
            trains_on_all: generated.len() == groups.len()
                && facts.report.accounting.carried_in.groups == 0
                && facts.report.accounting.duplicated.groups == 0,
            num_generated_tokens: generated.iter().map(|group| group.num_tokens()).sum(),
            utilization: None,
            metrics,
        }
    }

    /// Adds how evenly the ranks of the learner were loaded.
    pub(crate) fn put_balance(&mut self, balance: &RankBalance) {
        self.metrics.set_some("perf/rank_idle_share", balance.idle_share());
        self.metrics.set_some("perf/rank_token_spread", balance.token_spread());
    }

    /// Adds the share of the devices' peak that the updates took.
    pub(crate) fn put_work(&mut self, work: &WorkDone, timings: &Timings) {
        self.utilization = timings.get(UPDATE).and_then(|time| work.utilization(time.as_secs_f64()));
        self.metrics.set_some("perf/mfu", self.utilization);
    }

    pub(crate) fn put_times(&mut self, timings: &Timings) {
        let tokens = TokenCounts { generated: self.num_generated_tokens, trained: self.trained.num_tokens };
        timings.metrics(tokens, &mut self.metrics);
    }

    pub(crate) fn view(&self, recipe: &Recipe, facts: &StepFacts, timings: &Timings) -> StepView {
        let report = facts.update.as_ref();
        StepView {
            reward: self.trained.rewards.map(|rewards| rewards.mean),
            reward_std: self.trained.rewards.and_then(|rewards| rewards.std),
            generated_reward: self
                .generated
                .rewards
                .filter(|_| !self.trains_on_all)
                .map(|rewards| rewards.mean),
            accuracy: self.generated.accuracy,
            graded: self.generated.graded,
            zero_advantage: self.zero_advantage,
            rounds: facts.report.rounds,
            dropped: facts.report.all.filter_rate(),
            length: self.trained.mean_length,
            truncated: self.trained.truncated,
            entropy: report.and_then(|report| report.entropy),
            kl: shown_kl(recipe, facts),
            grad_norm: report.map(|report| report.grad_norm),
            learning_rate: report.map(|_| facts.learning_rate),
            time: timings.get(STEP),
            generation: timings.pace(GENERATION, self.num_generated_tokens),
            old_logprobs: timings.pace(OLD_LOGPROBS, self.trained.num_tokens),
            update: timings.pace(UPDATE, self.trained.num_tokens),
            utilization: self.utilization,
        }
    }
}

/// The divergence that the settings define: from the reference, in the loss or in the reward. Without one,
/// the divergence from the policy at the start of the step, if more than one update let it move, or if it
/// shall be exactly 0 at one (`learner.exact`).
fn shown_kl(recipe: &Recipe, facts: &StepFacts) -> Option<(&'static str, f64)> {
    let report = facts.update.as_ref();
    let is_told = |report: &&UpdateReport| report.num_updates > 1 || recipe.config.learner.exact;
    match recipe.divergence {
        Divergence::None if facts.teacher_kl.is_some() => Some(("teacher_kl", facts.teacher_kl?)),
        Divergence::InLoss => Some(("ref_kl", report?.reference_kl?)),
        Divergence::InReward { .. } => Some(("kl_penalty", facts.reward_kl?.mean)),
        Divergence::None => Some(("ppo_kl", report.filter(is_told)?.old_kl?)),
    }
}

/// Mean of the filter's metric over the members that it chose.
fn mean_of_chosen(step: &Step) -> Option<f64> {
    let values = step.trained.iter().flat_map(|trained| &trained.record.values).zip(step.members());
    let chosen = values.filter(|(_, member)| member.is_chosen).map(|(value, _)| *value);
    NumberSummary::of(chosen).map(|summary| summary.mean)
}

/// Metrics that reward functions logged for the step's completions (TRL's `log_metric`): the mean of each
/// number, in the order of the completions.
fn logged_metrics(records: &[&Record], metrics: &mut Metrics) {
    let mut sums: BTreeMap<&str, (f64, usize)> = BTreeMap::new();
    let logged = records.iter().flat_map(|record| &record.logged).flat_map(|logged| &logged.metrics);
    for (name, values) in logged {
        let (sum, count) = sums.entry(name).or_default();
        *sum += values.iter().sum::<f64>();
        *count += values.len();
    }
    for (name, (sum, count)) in sums {
        metrics.set(format!("reward_log/{name}"), sum / count as f64);
    }
}
