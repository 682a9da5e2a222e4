//! `train.gradient_analysis`: gradient norms by reward deviation, between the passes of a step and its updates.

use std::time::Instant;

use tamis_core::diagnostics::Buckets;

use super::{RunError, Session};
use crate::gradient_analysis::GradientAnalysis;
use crate::learner::LearnerError;
use crate::metrics::Metrics;
use crate::timings::Timings;
use crate::update::{TrainingBatch, UpdateSettings};

impl Session {
    /// `grad_norm/*`, in the steps that are measured. The weights stay as they are.
    pub(super) fn analyse_gradients(
        &mut self,
        step: u64,
        batch: TrainingBatch<'_>,
        settings: &UpdateSettings,
        (metrics, timings): (&mut Metrics, &mut Timings),
    ) -> Result<(), RunError> {
        let Some(config) = &self.config.train.gradient_analysis else { return Ok(()) };
        let buckets = match &config.edges {
            Some(edges) => Buckets::Edges { edges: edges.clone() },
            None => Buckets::Quantile { buckets: config.buckets },
        };
        let analysis = GradientAnalysis::new(config.every as u64, buckets)
            .map_err(|error| LearnerError::Engine { reason: error.to_string() })?;
        if !analysis.is_due(step) {
            return Ok(());
        }
        let clock = Instant::now();
        let objective = (&self.objective, &self.objective_state);
        metrics.extend(analysis.measure(&mut self.engine, objective, batch, settings)?);
        timings.add("gradient_analysis", clock.elapsed());
        Ok(())
    }
}
