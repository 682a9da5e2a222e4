//! Objects of tamis-core that depend only on a configuration: the objective, the correction for a sampler,
//! the critic's loss, the settings of the scheduling machine.

use tamis_core::advantage::Column;
use tamis_core::advantage::shaping::Shaping;
use tamis_core::correction::{Correction, CorrectionError, CorrectionPreset, ImportanceWeights, Rejection};
use tamis_core::filter::{GroupFilter, Metric};
use tamis_core::objective::{
    EntropyBonus, KlController, KlEstimator, KlTerm, LengthDivisors, LossMasks, Objective, ObjectiveError,
    ValueTerm,
};
use tamis_core::schedule::{RoundSize, ScheduleSettings, Surplus};
use tamis_env::task::TaskKind;

use crate::schema::{Config, GoldCheck, KlPlace, ScheduleMode, SurplusKind, TeacherConfig};

impl Config {
    /// The policy's objective: loss, aggregation, the divergence if it is in the loss, entropy and masks.
    ///
    /// # Errors
    /// A setting out of range, or settings that contradict each other.
    pub fn policy_objective(&self) -> Result<Objective, ObjectiveError> {
        let settings = &self.objective;
        let kl = (settings.kl.place == KlPlace::Loss).then(|| KlTerm {
            estimator: self.kl_estimator(),
            controller: self.kl_controller(),
            bias_corrected: settings.kl.bias_corrected,
        });
        let objective = Objective {
            importance: settings.importance,
            kl,
            entropy: self.entropy_bonus(),
            distillation: settings.distillation,
            masks: LossMasks {
                top_entropy: settings.masks.top_entropy,
                off_policy: settings.masks.off_policy,
            },
            divisors: self.length_divisors(),
            ..Objective::of(settings.loss.clone(), settings.aggregation)
        };
        objective.check()?;
        Ok(objective)
    }

    /// The correction for a sampler whose probabilities differ from the policy's. `None`: only the loss's
    /// ratio, which is to the sampling policy.
    ///
    /// # Errors
    /// A setting out of range, or a statistic or threshold that is not in verl's form.
    pub fn policy_correction(&self) -> Result<Option<Correction>, CorrectionError> {
        let settings = &self.objective.correction;
        let preset = self.correction_preset();
        if preset.is_none() && settings.weights.is_none() && settings.rejections.is_empty() {
            return Ok(None);
        }
        let mut correction = preset.map(CorrectionPreset::correction).unwrap_or_default();
        if let Some(weights) = &settings.weights {
            correction.importance = Some(ImportanceWeights {
                level: weights.level,
                outside: weights.outside,
                min: weights.min,
                max: Some(weights.max),
                batch_normalize: weights.batch_normalize,
            });
        }
        if !settings.rejections.is_empty() {
            correction.rejections.clear();
            for rejection in &settings.rejections {
                correction.rejections.extend(Rejection::verl(&rejection.statistic, &rejection.threshold)?);
            }
        }
        correction.count_rejected = settings.count_rejected;
        correction.check()?;
        Ok(Some(correction))
    }

    /// The first of the loss, the estimator and the shapings that needs a teacher, and its key.
    pub fn distillation(&self) -> Option<(&'static str, &'static str)> {
        let objective = &self.objective;
        if objective.distillation.is_some() {
            return Some(("objective.distillation", "objective.distillation"));
        }
        if objective.advantage.needs().contains(&Column::TeacherLogprobs) {
            return Some(("objective.advantage.kind", objective.advantage.name()));
        }
        let needs = |shaping: &&Shaping| shaping.needs().contains(&Column::TeacherLogprobs);
        objective.shaping.iter().find(needs).map(|shaping| ("objective.shaping", shaping.name()))
    }

    /// The teachers that the learner loads; none if nothing is computed from teachers.
    pub fn loaded_teachers(&self) -> impl Iterator<Item = &TeacherConfig> {
        let is_taught = self.distillation().is_some();
        self.teacher.iter().filter(move |teacher| is_taught && teacher.is_loaded())
    }

    /// What gives signal to a group whose members all have the same score, if anything does: its name, and
    /// its source of signal (`a critic`, `a teacher`).
    pub fn signal_beyond_group(&self) -> Option<(&'static str, &'static str)> {
        let estimator = &self.objective.advantage;
        let mut shapings = self.objective.shaping.iter();
        let of_estimator = estimator.baseline_beyond_group().map(|source| (estimator.name(), source));
        let of_loss = self.objective.distillation.map(|_| ("objective.distillation", "a teacher"));
        of_loss
            .or(of_estimator)
            .or_else(|| shapings.find_map(|shaping| Some((shaping.name(), shaping.baseline_beyond_group()?))))
    }

    /// Coefficient of the divergence from the reference, constant or adaptive.
    pub fn kl_controller(&self) -> KlController {
        let kl = &self.objective.kl;
        match &kl.adaptive {
            Some(adaptive) => KlController::Adaptive {
                initial: kl.coefficient,
                target: adaptive.target,
                horizon: adaptive.horizon,
            },
            None => KlController::Fixed { coef: kl.coefficient },
        }
    }

    /// Estimator of the divergence from the reference.
    pub fn kl_estimator(&self) -> KlEstimator {
        let kl = &self.objective.kl;
        let straight_through = kl.straight_through && kl.place == KlPlace::Loss;
        // verl's clamps. They bind only if the policy is far from the reference, and keep one token from
        // dominating.
        KlEstimator { kind: kl.estimator, clamped: true, straight_through }
    }

    /// The entropy bonus; `None` if it would always be 0.
    fn entropy_bonus(&self) -> Option<EntropyBonus> {
        let settings = &self.objective.entropy;
        let bonus = EntropyBonus {
            coef: settings.coefficient,
            aggregation: settings.aggregation,
            adaptive: settings.adaptive,
        };
        (bonus.coef != 0.0 || bonus.adaptive.is_some()).then_some(bonus)
    }

    fn length_divisors(&self) -> LengthDivisors {
        LengthDivisors { loss_scale_factor: self.loss_scale_factor(), length_epsilon: 0.0 }
    }

    /// The critic's loss.
    pub fn value_loss(&self) -> ValueTerm {
        ValueTerm {
            coef: 1.0,
            clip: self.critic.cliprange_value,
            aggregation: self.critic.aggregation.unwrap_or(self.objective.aggregation),
            divisors: self.length_divisors(),
        }
    }

    /// Settings of the scheduling machine; `filter` judges groups by `metric`.
    pub fn schedule_settings(&self, filter: Option<GroupFilter>, metric: Metric) -> ScheduleSettings {
        let schedule = &self.schedule;
        let mut plain = ScheduleSettings::new(self.data.train_batch_size, self.rollout.n);
        if self.data.task == Some(TaskKind::Environment) {
            "the settings of `environment`".clone_into(&mut plain.difficulty_in);
        }
        ScheduleSettings {
            gen_batch_size: self.gen_batch_size(),
            size: match schedule.mode {
                ScheduleMode::Deficit if self.refills() => {
                    let granularity = schedule.granularity.unwrap_or(self.mini_batch_size());
                    RoundSize::Deficit { granularity, margin: schedule.margin }
                }
                _ => RoundSize::Fixed,
            },
            rounds_in_flight: self.rounds_in_flight(),
            screen_first: schedule.screen_first,
            filter,
            refill: schedule.refill,
            max_num_gen_batches: schedule.max_num_gen_batches.0,
            on_limit: schedule.on_limit,
            seed: self.run.seed,
            on_empty_round: schedule.on_empty_round.0,
            on_exhausted: schedule.on_exhausted,
            surplus: match schedule.surplus {
                SurplusKind::Discard => Surplus::Discard,
                SurplusKind::Carry => Surplus::Carry { max_lag: schedule.max_lag.unwrap_or(1) as u64 },
            },
            order: schedule.order,
            total_steps: self.train.total_steps.map(|steps| steps as u64),
            total_epochs: self.train.total_epochs.map(|epochs| epochs as u64),
            metric,
            temperature: Some(self.rollout.temperature),
            cuts_sampling: Some(
                self.rollout.top_k > 0 || self.rollout.top_p < 1.0 || self.rollout.min_p > 0.0,
            ),
            scores_gold: Some(self.data.check_gold != GoldCheck::Off),
            ..plain
        }
    }
}
