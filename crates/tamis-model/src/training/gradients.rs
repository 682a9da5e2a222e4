//! The gradient of every weight.

use std::sync::Arc;

use crate::floats::Floats;
use crate::layout::WeightLayout;
use crate::model::Model;

/// Gradients of every weight, summed over the passes since the last [`Gradients::clear`].
#[derive(Debug, Clone)]
pub struct Gradients {
    pub(crate) values: Floats,
    pub(super) layout: Arc<WeightLayout>,
}

impl Gradients {
    /// Zeros for a model.
    pub fn new(model: &Model) -> Self {
        Self { values: Floats::zeros(model.layout().len), layout: Arc::clone(model.layout()) }
    }

    /// Sets all to zero.
    pub fn clear(&mut self) {
        self.values.fill(0.0);
    }

    /// Name, shape and row-major values of every tensor's gradient.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &[usize], Vec<f32>)> {
        self.layout
            .tensors
            .iter()
            .map(|tensor| (tensor.name.as_str(), &tensor.shape[..], tensor.to_rows(&self.values)))
    }

    /// Whether two gradients are equal bit for bit.
    pub fn same_bits(&self, other: &Self) -> bool {
        self.values.len() == other.values.len()
            && self.values.iter().zip(other.values.iter()).all(|(a, b)| a.to_bits() == b.to_bits())
    }

    /// Multiplies all by a factor.
    pub fn scale(&mut self, factor: f32) {
        self.values.iter_mut().for_each(|value| *value *= factor);
    }

    pub(crate) fn of_mut(&mut self, index: usize) -> &mut [f32] {
        self.layout.tensors[index].of_mut(&mut self.values)
    }
}
