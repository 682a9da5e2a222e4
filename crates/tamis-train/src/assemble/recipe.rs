//! The recipe of a run: everything in a step that only its configuration decides.

use tamis_config::Config;
use tamis_core::advantage::shaping::Shaping;
use tamis_core::advantage::{Advantage, Column};
use tamis_core::diagnostics::Buckets;
use tamis_core::objective::Objective;
use tamis_core::objective::ZeroGroups;
use tamis_core::schedule::selector::InclusionWeights;
use tamis_env::reward::TrainerState;
use tamis_rollout::{InFlight, Record, SamplePurpose};

use super::hints::Hints;
use super::settings::{planned_steps, trainer_state, update_settings, validation_settings};
use crate::assemble::critic::{self, CriticPlan};
use crate::assemble::objective::{self, Divergence};
use crate::assemble::schedule::Sieve;
use crate::assemble::{advantage, learning_rate};
use crate::error::AssembleError;
use crate::learner::gradient_analysis::GradientAnalysis;
use crate::learner::learning_rate::LearningRate;
use crate::learner::update::UpdateSettings;
use crate::learner::{LearnerInfo, Network};
use crate::measure::validation::ValidationSettings;
use crate::own_function::OwnFunctions;

/// Settings of every step, made from the configuration once and never changed.
pub(crate) struct Recipe {
    pub(crate) config: Config,
    /// Training prompts of an epoch.
    pub(crate) num_prompts: usize,
    /// Chooses the groups that are trained on, and their members.
    pub(crate) sieve: Sieve,
    pub(crate) advantage: Advantage,
    /// Shapings that are applied to the advantages.
    pub(crate) shapings: Vec<Shaping>,
    /// Prompts with their gold answer, if the estimator contrasts with it.
    pub(crate) hints: Hints,
    pub(crate) objective: Objective,
    /// The loss and the advantage of the user's own, if they are.
    pub(crate) functions: OwnFunctions,
    /// Where the divergence from the reference enters.
    pub(crate) divergence: Divergence,
    pub(crate) update: UpdateSettings,
    pub(crate) learning_rate: LearningRate,
    /// Settings of the critic's training, if there is a critic.
    pub(crate) critic: Option<CriticPlan>,
    /// Gradient norms by reward deviation, if they are wanted.
    pub(crate) gradient_analysis: Option<GradientAnalysis>,
    /// Whether the learner's weights stay elsewhere, so that it has no reference in a folder.
    weights_elsewhere: bool,
}

impl Recipe {
    /// The network of the learner that is the reference. If the policy has an adapter and no reference is
    /// named, it is the policy without the adapter. A learner whose weights stay elsewhere always trains an
    /// adapter.
    pub(crate) fn reference(&self) -> Network {
        let has_adapter = self.config.learner.lora.is_some() || self.weights_elsewhere;
        if has_adapter && self.config.model.reference.is_none() { Network::Base } else { Network::Reference }
    }

    /// Builds the recipe from a configuration, once its sieve, the prompts and the learner are known.
    pub(crate) fn new(
        config: &Config,
        sieve: Sieve,
        hints: Hints,
        functions: OwnFunctions,
        num_prompts: usize,
        learner: &LearnerInfo,
    ) -> Result<Self, AssembleError> {
        let (objective, divergence) = objective::objective(config)?;
        let update = update_settings(config, learner)?;
        Ok(Self {
            num_prompts,
            sieve,
            advantage: advantage::advantage(config)?,
            shapings: advantage::shapings(config)?,
            hints,
            objective,
            functions,
            divergence,
            critic: critic::plan(config, update.micro_batch),
            update,
            learning_rate: learning_rate(config.train.optimizer.learning_rate, &config.train.lr_schedule),
            gradient_analysis: gradient_analysis(config)?,
            weights_elsewhere: learner.weights_elsewhere,
            config: config.clone(),
        })
    }

    /// Whether the estimator or a shaping reads a column, or would.
    pub(crate) fn reads(&self, column: Column) -> bool {
        self.needs(column)
            || self.advantage.uses().contains(&column)
            || self.shapings.iter().any(|shaping| shaping.needs().contains(&column))
    }

    /// Whether the estimator cannot do without a column.
    pub(crate) fn needs(&self, column: Column) -> bool {
        self.advantage.needs().contains(&column)
    }

    /// Whether a teacher rates the tokens.
    pub(crate) fn is_taught(&self) -> bool {
        self.objective.distillation.is_some() || self.reads(Column::TeacherLogprobs)
    }

    /// Whether a step trains the policy, or only the critic.
    pub(crate) fn trains_policy(&self, step: u64) -> bool {
        self.critic.is_none_or(|plan| step > plan.warmup_steps)
    }

    /// Whether a warning is due about a group whose members all have the same reward: there is a filter, and
    /// the estimator compares within groups.
    pub(crate) fn tells_uniform_groups(&self) -> bool {
        self.sieve.filter.is_some() && self.config.signal_beyond_group().is_none()
    }

    /// Whether the loss itself holds the policy to the reference.
    pub(crate) fn reference_is_in_loss(&self) -> bool {
        self.divergence == Divergence::InLoss
    }

    /// Whether what the filter dropped stays in the denominators of the loss.
    pub(crate) fn counts_dropped(&self) -> bool {
        self.config.objective.zero_groups != ZeroGroups::Drop
    }

    /// Weights of groups, one over the probability with which their prompts were selected; `None` if all
    /// weigh the same.
    pub(crate) fn selection_weights<'r>(
        &self,
        records: impl IntoIterator<Item = &'r Record>,
    ) -> Option<Vec<f64>> {
        let is_corrected = self.config.schedule.selector.correction() == InclusionWeights::Corrected;
        is_corrected.then(|| records.into_iter().map(|record| 1.0 / record.inclusion).collect())
    }

    /// Whether the loss compares with log-probabilities of the policy at the start of the step, and not with
    /// those of generation.
    pub(crate) fn is_decoupled(&self) -> bool {
        self.objective.policy.weighs_behaviour()
            || self.update.correction.as_ref().is_some_and(|correction| !correction.mode.is_bypass())
    }

    /// Whether the sampler's log-probabilities stand for those of the policy before the step, by the chosen
    /// correction.
    pub(crate) fn bypasses_old(&self) -> bool {
        self.update.correction.as_ref().is_some_and(|correction| correction.mode.is_bypass())
    }

    /// Treatment of samples in flight when weights are published. Those of the native engine end first: it
    /// takes new weights at no cost, and their prefixes would have to be computed again.
    pub(crate) fn in_flight(&self) -> InFlight {
        let config = &self.config;
        let goes_on = config.samples_at_servers() || config.samples_through_learner();
        if goes_on { config.publish_pause() } else { InFlight::Wait }
    }

    /// Steps that the run will have, for schedules of the learning rate: as configured, or the number that
    /// its epochs hold if every step is one round of the same number of prompts. 0 if neither is known.
    pub(crate) fn planned_steps(&self) -> u64 {
        planned_steps(&self.config, self.num_prompts)
    }

    /// Progress of the training after `steps` steps, as reward functions see it.
    pub(crate) fn trainer_state(&self, steps: u64, num_tokens: u64) -> TrainerState {
        trainer_state(&self.config, self.num_prompts, steps, num_tokens)
    }

    /// Sampling of the greedy completion that a trained group is compared with.
    pub(crate) fn greedy(&self) -> ValidationSettings {
        let mut settings = validation_settings(&self.config);
        settings.groups.group_size = 1;
        let sampling = &mut settings.groups.sampling;
        (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) = (0.0, None, 1.0, 0.0);
        ValidationSettings {
            purpose: SamplePurpose::Greedy,
            num_samples_shown: 0,
            keeps_samples: false,
            ..settings
        }
    }
}

fn gradient_analysis(config: &Config) -> Result<Option<GradientAnalysis>, AssembleError> {
    let Some(analysis) = &config.train.gradient_analysis else { return Ok(None) };
    let buckets = match &analysis.edges {
        Some(edges) => Buckets::Edges { edges: edges.clone() },
        None => Buckets::Quantile { buckets: analysis.buckets },
    };
    let analysis = GradientAnalysis::new(analysis.every as u64, buckets).map_err(|error| {
        AssembleError::setting(format!("train.gradient_analysis: {error}"), "change its `edges` or `buckets`")
    })?;
    Ok(Some(analysis))
}
