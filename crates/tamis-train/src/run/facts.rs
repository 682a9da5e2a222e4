//! Facts about a trained step, and the metrics that are made from them. Metrics are made only here, outside
//! the step.

use tamis_core::advantage::Advantages;
use tamis_core::correction::Agreement;
use tamis_core::group::{Group, PromptId};
use tamis_core::objective::explained_variance;
use tamis_core::ragged::Ragged;
use tamis_core::schedule::StepReport;
use tamis_core::schedule::selector::SelectionReport;
use tamis_rollout::Ignored;

use super::divergence::Diverged;
use crate::credit::Credit;
use crate::credit::batch::StepBatch;
use crate::credit::columns::{CreditColumns, RewardKlFacts};
use crate::credit::members::TrainedMembers;
use crate::credit::passes::GreedyFacts;
use crate::learner::critic::CriticReport;
use crate::learner::update::UpdateReport;
use crate::workers::Workers;
use tamis_run::metrics::Metrics;
use tamis_run::metrics::summary::NumberSummary;
use tamis_run::metrics::timings::Timings;

pub(crate) struct StepFacts {
    /// The step, from 1.
    pub(crate) step: u64,
    /// The accounting of its groups. Members without a loss are counted as left out.
    pub(crate) report: StepReport,
    /// Number of attempts that were abandoned.
    pub(crate) num_given_up: usize,
    /// What the selector of prompts did, if there is one.
    pub(crate) selection: SelectionReport,
    /// The greedy completions, if the estimator compares with them.
    pub(crate) greedy: Option<GreedyFacts>,
    /// The divergence in the reward, if there is one.
    pub(crate) reward_kl: Option<RewardKlFacts>,
    /// Mean divergence from the teacher per token, if there is one.
    pub(crate) teacher_kl: Option<f64>,
    /// Metrics of the shapings, by name as logged.
    pub(crate) shaping: Vec<(&'static str, f64)>,
    pub(crate) critic: Option<CriticFacts>,
    /// Norms of gradients by reward deviation, by name as logged.
    pub(crate) gradients: Vec<(String, f64)>,
    pub(crate) update: Option<UpdateReport>,
    pub(crate) learning_rate: f64,
    pub(crate) advantages: Advantages,
    /// Returns, if the estimator computes them `[B][T]`.
    pub(crate) returns: Option<Ragged<f64>>,
    /// Rewards after the KL penalty \[B\], if it is in the reward.
    pub(crate) final_rewards: Option<Vec<f64>>,
    /// Largest number of updates of the policy in a row that were left out, up to one of this step.
    pub(crate) most_skipped: u32,
    /// The same for the critic.
    pub(crate) most_skipped_critic: u32,
    /// Events of the generator since the step before that no caller waited for.
    pub(crate) ignored: Ignored,
    /// Agreement of the servers' log-probabilities with the learner's, if both are known.
    pub(crate) agreement: Option<Agreement>,
    /// Number of faults at servers and of environments, and of refused calls of programs, since the step
    /// before, by metric.
    pub(crate) server_faults: Vec<(String, u64)>,
    /// Weights or moments that are not finite.
    pub(crate) diverged: Option<Diverged>,
    /// Whether the logits of the new weights are finite, if the weights are.
    pub(crate) gives_numbers: bool,
    /// A warning about groups in the batch whose members all have the same reward, if it is the first.
    pub(crate) uniform_groups: Option<String>,
    pub(crate) warnings: Vec<String>,
    pub(crate) timings: Timings,
}

/// Results of the critic's updates, and its explained variance before them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CriticFacts {
    pub(crate) report: CriticReport,
    learning_rate: f64,
    explained_variance: Option<f64>,
    values: Option<NumberSummary>,
}

impl CriticFacts {
    /// Over the policy's tokens in members that are `compared` `[P][G]`.
    pub(crate) fn of(
        report: CriticReport,
        learning_rate: f64,
        groups: &[&Group],
        compared: &Ragged<bool>,
        old: &Ragged<f64>,
        returns: &Ragged<f64>,
    ) -> Self {
        let members = groups.iter().flat_map(|group| &group.trajectories).zip(compared.values());
        let mask: Vec<bool> = members
            .flat_map(|(member, &is_compared)| member.loss_mask.iter().map(move |&on| on && is_compared))
            .collect();
        let explained = explained_variance(old.values(), returns.values(), &mask);
        let trained = old.values().iter().zip(&mask).filter(|(_, on)| **on).map(|(&value, _)| value);
        Self {
            explained_variance: (!explained.is_nan()).then_some(explained),
            values: NumberSummary::of(trained),
            report,
            learning_rate,
        }
    }

    pub(super) fn put(&self, metrics: &mut Metrics) {
        metrics.extend(self.report.metrics.iter().copied());
        metrics.set("critic/grad_norm", self.report.grad_norm);
        metrics.set("critic/lr", self.learning_rate);
        metrics.set("critic/num_updates", self.report.num_updates as f64);
        metrics.set("critic/num_skipped_updates", self.report.num_skipped as f64);
        metrics.set_some("critic/vf_explained_var", self.explained_variance);
        if let Some(values) = self.values {
            metrics.set("critic/values/mean", values.mean);
            metrics.set("critic/values/max", values.max);
            metrics.set("critic/values/min", values.min);
        }
    }
}

impl StepFacts {
    /// The facts of a step that has not been trained yet.
    pub(crate) fn new(batch: &StepBatch, workers: &mut Workers) -> Self {
        let version = workers.version;
        let selection = workers.pool.selector_mut().map(|selector| {
            let trained = batch.trained.iter().map(|record| (record.group.prompt, record.inclusion));
            selector.report(&trained.collect::<Vec<(PromptId, f64)>>(), version)
        });
        Self {
            step: batch.report.step,
            report: batch.report,
            num_given_up: batch.num_given_up,
            selection: selection.unwrap_or_default(),
            greedy: None,
            reward_kl: None,
            teacher_kl: None,
            shaping: Vec::new(),
            critic: None,
            gradients: Vec::new(),
            update: None,
            learning_rate: 0.0,
            advantages: Advantages::PerTrajectory(Ragged::default()),
            returns: None,
            final_rewards: None,
            most_skipped: 0,
            most_skipped_critic: 0,
            diverged: None,
            gives_numbers: true,
            ignored: Ignored::default(),
            agreement: None,
            server_faults: Vec::new(),
            uniform_groups: None,
            warnings: Vec::new(),
            timings: Timings::new(),
        }
    }

    /// Adds what generator and environments counted since the step before.
    pub(crate) fn note_workers(&mut self, workers: &mut Workers) {
        self.ignored = workers.dispatcher.inbox().take_ignored();
        self.server_faults = workers.sampler.take_faults();
        self.server_faults.extend(workers.dispatcher.inbox().take_faults().by_metric());
        self.server_faults.extend(workers.plays.take_refused_calls().by_metric());
        self.warnings.extend(workers.plays.take_warnings());
    }

    /// Adds the facts that metrics are made from.
    pub(crate) fn note_credit(&mut self, columns: CreditColumns, credit: Credit) {
        self.teacher_kl = columns.teacher_kl();
        self.greedy = columns.passes.greedy.map(|greedy| greedy.facts);
        if let Some(penalty) = columns.reward_kl {
            self.reward_kl = Some(penalty.facts);
            self.final_rewards = Some(penalty.final_rewards);
        }
        self.advantages = credit.shaped.advantages;
        self.shaping = credit.shaped.metrics;
        self.returns = credit.returns;
    }

    /// Warns about updates that could not be made, and about a batch in which no member has a loss.
    pub(crate) fn warn_of_updates(&mut self, members: &TrainedMembers<'_>) {
        let step = self.step;
        let skipped = |num_skipped: usize, num_updates: usize, whose: &str| {
            (num_skipped > 0).then(|| {
                format!(
                    "step {step}: the gradient of {num_skipped} of {} updates{whose} was not finite; these updates were left out",
                    num_skipped + num_updates
                )
            })
        };
        let of_critic = self.critic.as_ref().map(|critic| &critic.report);
        self.warnings.extend(
            of_critic.and_then(|report| skipped(report.num_skipped, report.num_updates, " of the critic")),
        );
        let num_members = members.outcomes().count();
        if num_members > 0 && members.outcomes().all(|member| member.left_out.is_some()) {
            let first = members.first_left_out();
            self.warnings.push(format!(
                "step {step}: none of its {num_members} trajectories bears any loss, so nothing is learned \
                     ({}); train/num_left_out/* counts them by reason",
                first.map_or("left out", |reason| reason.name())
            ));
        }
        let of_policy = self.update.as_ref();
        self.warnings
            .extend(of_policy.and_then(|report| skipped(report.num_skipped, report.num_updates, "")));
    }
}
