//! Gradient norm by reward deviation: do groups that differ more teach more? Every bucket of groups is passed
//! on its own, without an update.

use tamis_core::diagnostics::Buckets;
use tamis_core::fault::Fault;
use tamis_core::filter::GroupStatistics;
use tamis_core::objective::{Objective, ObjectiveState};
use tamis_core::ragged::Ragged;

use crate::learner::update::{TrainingBatch, UpdatePlan, gradient_norm};
use crate::learner::{Learner, LearnerError, Pass};

/// When groups are sorted, and into which buckets.
#[derive(Debug, Clone, PartialEq)]
pub struct GradientAnalysis {
    every: u64,
    buckets: Buckets,
}

/// A term of the loss whose gradient is measured separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Policy,
    Kl,
    Entropy,
    Distillation,
}

impl Part {
    /// Name of the term in the metrics; RAGEN calls the policy term the task's.
    fn name(self) -> &'static str {
        match self {
            Self::Policy => "task",
            Self::Kl => "kl",
            Self::Entropy => "entropy",
            Self::Distillation => "distillation",
        }
    }

    /// The objective with only this term, and the factor of its policy term; `None` if the objective
    /// has no such term.
    fn alone(self, objective: &Objective) -> Option<(Objective, f64)> {
        let without = Objective { kl: None, entropy: None, distillation: None, ..objective.clone() };
        match self {
            // Without them the policy's term is 0 in the loss.
            Self::Policy if objective.distillation.is_some_and(|one| !one.advantages) => None,
            Self::Policy => Some((without, 1.0)),
            Self::Kl => objective.kl.map(|kl| (Objective { kl: Some(kl), ..without }, 0.0)),
            Self::Entropy => {
                objective.entropy.map(|entropy| (Objective { entropy: Some(entropy), ..without }, 0.0))
            }
            Self::Distillation => {
                let alone = |one| (Objective { distillation: Some(one), ..without }, 0.0);
                objective.distillation.map(alone)
            }
        }
    }
}

/// Statistics of a set of groups.
struct Measured<'a> {
    name: String,
    /// Places in the batch.
    places: Vec<usize>,
    deviations: &'a [f64],
}

impl Measured<'_> {
    fn metrics(&self, into: &mut Vec<(String, f64)>) {
        let deviations: Vec<f64> =
            self.places.iter().map(|&place| self.deviations[place]).filter(|one| !one.is_nan()).collect();
        let mut set = |name: &str, value: f64| into.push((format!("grad_norm/{}/{name}", self.name), value));
        set("num_groups", self.places.len() as f64);
        if !deviations.is_empty() {
            set("reward_std_mean", deviations.iter().sum::<f64>() / deviations.len() as f64);
            set("reward_std_min", deviations.iter().copied().fold(f64::INFINITY, f64::min));
            set("reward_std_max", deviations.iter().copied().fold(f64::NEG_INFINITY, f64::max));
        }
    }
}

/// Deviation of a group's rewards \[G\] (ddof 0); NaN with fewer than two scored members.
fn deviation(rewards: &[f64]) -> f64 {
    let statistics = GroupStatistics::of(rewards, None);
    if statistics.num_scored < 2 { f64::NAN } else { statistics.std }
}

impl GradientAnalysis {
    /// Interval in steps, the first at step 1.
    pub fn new(every: u64, buckets: Buckets) -> Result<Self, Fault> {
        buckets.check()?;
        Ok(Self { every: every.max(1), buckets })
    }

    /// Whether a step (from 1) has one.
    pub fn is_due(&self, step: u64) -> bool {
        step >= 1 && (step - 1).is_multiple_of(self.every)
    }

    /// `grad_norm/{all,bucket_I}/*` of a batch, under the policy as it is: the norm of the gradient of
    /// each term of the loss over only these groups, normalised as if they were an optimizer batch. The
    /// weights do not change. Buckets without a token to train on have no norm. `rewards` are those
    /// that are compared within a group `[P][G]`, NaN for a member that is not.
    pub fn measure(
        &self,
        learner: &mut dyn Learner,
        plan: UpdatePlan<'_>,
        state: &ObjectiveState,
        batch: TrainingBatch<'_>,
        rewards: &Ragged<f64>,
    ) -> Pass<Vec<(String, f64)>> {
        let deviations: Vec<f64> = rewards.rows().map(deviation).collect();
        let places = self
            .buckets
            .assign(&deviations)
            .map_err(|error| LearnerError::Engine { reason: error.to_string() })?;
        let last = places.iter().flatten().max().map_or(0, |last| last + 1);
        let everything = Measured {
            name: "all".to_owned(),
            places: (0..batch.groups.len()).collect(),
            deviations: &deviations,
        };
        let buckets = (0..last).map(|bucket| Measured {
            name: format!("bucket_{bucket}"),
            places: (0..places.len()).filter(|&place| places[place] == Some(bucket)).collect(),
            deviations: &deviations,
        });
        let mut metrics = Vec::new();
        for measured in std::iter::once(everything).chain(buckets).filter(|one| !one.places.is_empty()) {
            measured.metrics(&mut metrics);
            for part in [Part::Policy, Part::Kl, Part::Entropy, Part::Distillation] {
                let Some((objective, factor)) = part.alone(plan.objective) else { continue };
                let plan = UpdatePlan { objective: &objective, ..plan };
                let batch = TrainingBatch { policy_factor: batch.policy_factor * factor, ..batch };
                let norm = gradient_norm(learner, plan, state, batch, &measured.places)?;
                metrics
                    .extend(norm.map(|norm| (format!("grad_norm/{}/{}", measured.name, part.name()), norm)));
            }
        }
        Ok(metrics)
    }
}
