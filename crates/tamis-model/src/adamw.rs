//! AdamW (Loshchilov and Hutter 2019), with clipping by the global norm.

use std::path::Path;
use std::sync::Arc;

use tamis_core::weights::SaveDtype;

use crate::checkpoint::{self, CheckpointError};
use crate::floats::Floats;
use crate::layout::{Role, Tensor, WeightLayout};
use crate::model::{Model, largest};
use crate::simd::multiversion;
use crate::threads::{Parts, Threads};
use crate::training::Gradients;

/// Values per task and per partial sum of the norm, whatever the number of threads.
const CHUNK: usize = 16 * 1024;

/// Constants of the optimizer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWConfig {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay per unit of learning rate.
    pub weight_decay: f64,
    /// Whether norms and biases decay too.
    pub decay_norms_and_biases: bool,
}

impl Default for AdamWConfig {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01, decay_norms_and_biases: true }
    }
}

/// The outcome of an update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptimizerStep {
    /// Norm of all gradients before clipping.
    pub grad_norm: f64,
    /// Factor of the gradients: below 1 if they were clipped.
    pub clip_scale: f64,
    /// Whether the update was skipped because the norm was not finite; nothing changed.
    pub skipped: bool,
}

/// Moments and step count of a model's optimizer.
#[derive(Debug, Clone)]
pub struct AdamW {
    config: AdamWConfig,
    layout: Arc<WeightLayout>,
    first: Floats,
    second: Floats,
    step: u64,
}

/// Factors of one update.
#[derive(Clone, Copy)]
pub(crate) struct Factors {
    /// Of the gradients, if they are clipped.
    scale: f32,
    beta1: f32,
    beta2: f32,
    /// The learning rate over the first moment's bias correction.
    step_size: f32,
    /// Of the second moment's root, its bias correction.
    root_scale: f32,
    eps: f32,
    /// Of the weights, which decay.
    keep: f32,
}

multiversion! {
    /// One update of a range of weights.
    fn update<F>(weights: &mut [f32], first: &mut [f32], second: &mut [f32], gradients: &[f32], factors: Factors) {
        let Factors { scale, beta1, beta2, step_size, root_scale, eps, keep } = factors;
        let moments = first.iter_mut().zip(second.iter_mut());
        for ((weight, (first, second)), &gradient) in weights.iter_mut().zip(moments).zip(gradients) {
            let gradient = gradient * scale;
            *first = F::fma(1.0 - beta1, gradient - *first, *first);
            *second = F::fma(1.0 - beta2, gradient * gradient, *second * beta2);
            let denominator = F::fma(second.sqrt(), root_scale, eps);
            *weight = *weight * keep - step_size * (*first / denominator);
        }
    }
}

multiversion! {
    /// Sum of squares in f64: eight lanes, then in order.
    fn squares<F>(values: &[f32]) -> f64 {
        let _ = F::fma;
        let mut sums = [0.0f64; 8];
        let (chunks, tail) = values.as_chunks::<8>();
        for chunk in chunks {
            for i in 0..8 {
                sums[i] += f64::from(chunk[i]) * f64::from(chunk[i]);
            }
        }
        sums.iter().sum::<f64>() + tail.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>()
    }
}

impl AdamW {
    /// Zero moments.
    pub fn new(model: &Model, config: AdamWConfig) -> Self {
        let layout = Arc::clone(model.layout());
        let (first, second) = (Floats::zeros(layout.len), Floats::zeros(layout.len));
        Self { config, layout, first, second, step: 0 }
    }

    /// Updates made so far; skipped ones do not count.
    pub fn num_steps(&self) -> u64 {
        self.step
    }

    /// One update. Gradients whose global norm is above `max_norm` are scaled down to it: `norm * scale` with
    /// `scale = max_norm / (norm + 1e-6)`, as PyTorch's `clip_grad_norm_`. `None` does not clip. If a
    /// gradient is not finite, the update is skipped. The gradients themselves are not changed.
    pub fn step(
        &mut self,
        threads: &Threads,
        model: &mut Model,
        gradients: &Gradients,
        learning_rate: f64,
        max_norm: Option<f64>,
    ) -> OptimizerStep {
        let grad_norm = norm(threads, gradients);
        if !grad_norm.is_finite() {
            return OptimizerStep { grad_norm, clip_scale: 1.0, skipped: true };
        }
        let clip_scale = max_norm.map_or(1.0, |max| (max / (grad_norm + 1e-6)).min(1.0));
        self.step += 1;
        let AdamWConfig { beta1, beta2, eps, weight_decay, decay_norms_and_biases } = self.config;
        let power = self.step.min(i32::MAX as u64) as i32;
        let step_size = learning_rate / (1.0 - beta1.powi(power));
        let root_scale = 1.0 / (1.0 - beta2.powi(power)).sqrt();
        let factors = Factors {
            scale: clip_scale as f32,
            beta1: beta1 as f32,
            beta2: beta2 as f32,
            step_size: step_size as f32,
            root_scale: root_scale as f32,
            eps: eps as f32,
            keep: 1.0,
        };
        let weights = model.weights_mut();
        for tensor in &self.layout.tensors {
            let decays = decay_norms_and_biases || tensor.role == Role::Matrix;
            let keep = if decays { 1.0 - learning_rate * weight_decay } else { 1.0 };
            let factors = Factors { keep: keep as f32, ..factors };
            let parts = (
                Parts::chunks(tensor.of_mut(weights), CHUNK),
                Parts::chunks(tensor.of_mut(&mut self.first), CHUNK),
                Parts::chunks(tensor.of_mut(&mut self.second), CHUNK),
            );
            let gradients = tensor.of(&gradients.values);
            threads.run(tensor.len.div_ceil(CHUNK), |task| {
                let weights = parts.0.take(task);
                let (first, second) = (parts.1.take(task), parts.2.take(task));
                let gradients = &gradients[task * CHUNK..][..weights.len()];
                update(threads.level(), weights, first, second, gradients, factors);
            });
        }
        OptimizerStep { grad_norm, clip_scale, skipped: false }
    }

    /// Its settings.
    pub fn config(&self) -> AdamWConfig {
        self.config
    }

    /// Name of the first tensor with a moment that is not finite.
    pub fn non_finite(&self) -> Option<&str> {
        let is_broken = |tensor: &&Tensor| {
            [&self.first, &self.second].iter().any(|moments| !largest(tensor.of(moments)).is_finite())
        };
        self.layout.tensors.iter().find(is_broken).map(|tensor| &*tensor.name)
    }

    /// Writes moments (`first.NAME`, `second.NAME`, f32) and the step count as one safetensors file.
    pub fn save(&self, path: &Path) -> Result<(), CheckpointError> {
        checkpoint::write_file(path, |out| self.write(out))
    }

    /// The bytes of [`Self::save`].
    pub fn write(&self, out: &mut dyn std::io::Write) -> std::io::Result<()> {
        let tensors: Vec<_> = [("first.", &self.first), ("second.", &self.second)]
            .into_iter()
            .flat_map(|(prefix, buffer)| {
                self.layout.tensors.iter().map(move |tensor| (prefix, tensor, &buffer[..]))
            })
            .collect();
        checkpoint::write_tensors(out, &tensors, &[("step", self.step.to_string())], SaveDtype::F32)
    }

    /// Reads what [`Self::save`] wrote, exactly.
    pub fn load(&mut self, path: &Path) -> Result<(), CheckpointError> {
        let tensors: Vec<_> = self.layout.tensors.iter().collect();
        let step = checkpoint::read_metadata(path, "step")?;
        let (mut first, mut second) = (Floats::zeros(self.layout.len), Floats::zeros(self.layout.len));
        checkpoint::read_file(path, &self.layout, &tensors, "first.", Some(&mut first))?;
        checkpoint::read_file(path, &self.layout, &tensors, "second.", Some(&mut second))?;
        (self.first, self.second, self.step) = (first, second, step);
        Ok(())
    }
}

/// Global norm of the gradients, f64, in an order that does not depend on the number of threads.
pub fn norm(threads: &Threads, gradients: &Gradients) -> f64 {
    let values = &gradients.values[..];
    let mut sums = vec![0.0f64; values.len().div_ceil(CHUNK)];
    {
        let parts = Parts::chunks(&mut sums, 1);
        threads.run(values.len().div_ceil(CHUNK), |task| {
            let end = values.len().min((task + 1) * CHUNK);
            parts.take(task)[0] = squares(threads.level(), &values[task * CHUNK..end]);
        });
    }
    sums.iter().sum::<f64>().sqrt()
}
