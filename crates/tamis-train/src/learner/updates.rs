//! Optimizer updates of one network: the shared part of the loops of policy, critic and warm start.

use std::num::NonZeroUsize;

use tamis_core::random::Key;
use tamis_core::schedule::mini_batches;

use super::{Learner, LearnerError, Pass, TokenColumns, Trained, Wave};

pub(crate) struct MiniBatchGroups {
    /// Which pass over the batch it is of.
    pub(crate) epoch: usize,
    /// Index of the update in that pass.
    pub(crate) index: usize,
    /// Number of groups before it in that pass.
    pub(crate) start: usize,
    pub(crate) places: Vec<usize>,
}

/// The mini-batches of this many groups, in the order of training; `shuffle`: in another order in every
/// epoch.
pub(crate) fn mini_batches_of(
    num_groups: usize,
    size: NonZeroUsize,
    epochs: usize,
    shuffle: Option<Key>,
) -> impl Iterator<Item = MiniBatchGroups> {
    (0..epochs).flat_map(move |epoch| {
        let order = match shuffle {
            Some(key) => key.with(epoch as u64).permutation(num_groups),
            None => (0..num_groups).collect(),
        };
        let ranges = mini_batches(num_groups, size).into_iter().enumerate();
        ranges.map(move |(index, range)| MiniBatchGroups {
            epoch,
            index,
            start: range.start,
            places: order[range].to_vec(),
        })
    })
}

/// Runs a wave forward, gets the loss's derivatives by its outputs, and runs it back.
pub(crate) fn forward_backward(
    learner: &mut dyn Learner,
    network: Trained,
    wave: &Wave<'_>,
    ask: impl FnOnce(&TokenColumns) -> Pass<TokenColumns>,
) -> Pass<()> {
    let columns = learner.forward_hold(network, wave)?;
    match ask(&columns) {
        Ok(derivatives) => learner.backward(derivatives),
        Err(halt) => {
            learner.discard()?;
            Err(halt)
        }
    }
}

/// Counts and means over the optimizer updates of a step; metrics go by names of type N.
#[derive(Debug, Clone)]
pub(crate) struct UpdateTally<N> {
    pub(crate) num_updates: usize,
    /// Whether each was left out because its gradient was not finite, in order.
    pub(crate) skipped: Vec<bool>,
    norms: f64,
    /// Sum and number of each metric, in the order in which they came.
    totals: Vec<(N, f64, usize)>,
}

impl<N> Default for UpdateTally<N> {
    fn default() -> Self {
        Self { num_updates: 0, skipped: Vec::new(), norms: 0.0, totals: Vec::new() }
    }
}

impl<N: PartialEq> UpdateTally<N> {
    /// Takes an optimizer step; returns whether it was taken or left out.
    pub(crate) fn step(
        &mut self,
        learner: &mut dyn Learner,
        network: Trained,
        learning_rate: f64,
    ) -> Result<bool, LearnerError> {
        let step = learner.optim_step(network, learning_rate)?;
        self.skipped.push(step.skipped);
        if !step.skipped {
            self.num_updates += 1;
            self.norms += step.grad_norm;
        }
        Ok(!step.skipped)
    }

    /// Counts the figures of an update, without those that are NaN.
    pub(crate) fn add(&mut self, metrics: impl IntoIterator<Item = (N, f64)>) {
        for (name, value) in metrics.into_iter().filter(|(_, value)| !value.is_nan()) {
            match self.totals.iter_mut().find(|(known, ..)| *known == name) {
                Some((_, total, count)) => {
                    *total += value;
                    *count += 1;
                }
                None => self.totals.push((name, value, 1)),
            }
        }
    }

    pub(crate) fn num_skipped(&self) -> usize {
        self.skipped.len() - self.num_updates
    }

    /// Mean over the updates taken of a quantity with this sum: NaN if none was taken, 0 if there was
    /// nothing to train on.
    pub(crate) fn mean(&self, sum: f64) -> f64 {
        if self.skipped.is_empty() { 0.0 } else { sum / self.num_updates as f64 }
    }

    /// Mean norm of the gradient before clipping, over the updates taken.
    pub(crate) fn grad_norm(&self) -> f64 {
        self.mean(self.norms)
    }

    /// Mean of each metric over the updates that had it.
    pub(crate) fn means(self) -> Vec<(N, f64)> {
        self.totals.into_iter().map(|(name, total, count)| (name, total / count as f64)).collect()
    }
}
