//! `Model`: a configuration with its weights.
//!
//! All weights are in one buffer of f32, in which a layout gives each tensor its place. Models are loaded,
//! made from random keys, saved, and checked for numbers that are not finite.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tamis_core::random::Key;
use tamis_core::weights::SaveDtype;

use crate::checkpoint::{self, CheckpointError, Fill, TiedHead};
use crate::config::{ConfigError, OutputHead, TransformerConfig};
use crate::floats::Floats;
use crate::layout::{Role, Tensor, WeightLayout};

/// A decoder-only transformer's weights in f32. A reference copy is a clone.
#[derive(Debug, Clone)]
pub struct Model {
    config: TransformerConfig,
    layout: Arc<WeightLayout>,
    weights: Floats,
    state: WeightsState,
}

/// Identifies the values of a model's weights. Two models with the same state have the same weights, bit for
/// bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WeightsState(u64);

impl WeightsState {
    /// A state that no weights have had.
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl Model {
    fn new(config: TransformerConfig, layout: WeightLayout, weights: Floats) -> Self {
        Self { config, layout: Arc::new(layout), weights, state: WeightsState::new() }
    }

    /// Loads a language model from a Hugging Face folder: `config.json`, `model.safetensors` or its shards.
    /// If the configuration ties the output head to the embedding and the files hold another head, the model
    /// has that head and is not tied ([`head_warning`](crate::head_warning)).
    pub fn load(folder: &Path) -> Result<Self, CheckpointError> {
        Self::load_weights(folder, TransformerConfig::load(folder))
    }

    /// Loads a critic. It is either one that was saved as such (`...ForTokenClassification` with one label),
    /// or a language model's layers under a value head of zeros.
    pub fn load_critic(folder: &Path) -> Result<Self, CheckpointError> {
        let loaded = Self::load_weights(folder, TransformerConfig::load_any(folder))?;
        Ok(match loaded.config.head {
            OutputHead::Value => loaded,
            OutputHead::Vocabulary => loaded.critic(),
        })
    }

    fn load_weights(
        folder: &Path,
        config: Result<TransformerConfig, ConfigError>,
    ) -> Result<Self, CheckpointError> {
        let mut config = config.map_err(|source| {
            let folder = folder.to_owned();
            match checkpoint::weights_elsewhere(&folder) {
                Some(place) => CheckpointError::Elsewhere { folder, place },
                None => CheckpointError::Config { folder, source },
            }
        })?;
        let mut layout = WeightLayout::new(&config);
        let mut in_files = layout.clone();
        if config.is_tied() {
            let embedding = &mut in_files.tensors[layout.embedding].name;
            match checkpoint::find_head(folder, embedding)? {
                TiedHead::Embedding => {}
                TiedHead::UnderItsName => checkpoint::HEAD.clone_into(embedding),
                TiedHead::Other => {
                    config = config.to_untied();
                    layout = WeightLayout::new(&config);
                    in_files = layout.clone();
                }
            }
        }
        checkpoint::read_weights(folder, &in_files, None)?;
        let mut weights = Floats::zeros(layout.len);
        checkpoint::read_weights(folder, &in_files, Some(&mut weights))?;
        Ok(Self::new(config, layout, weights))
    }

    /// A critic with these layers. Its value head is zero, so it returns 0 for every token until it is
    /// trained.
    #[must_use]
    pub fn critic(&self) -> Self {
        let config = self.config.critic();
        let layout = WeightLayout::new(&config);
        let mut weights = Floats::zeros(layout.len);
        for tensor in &layout.tensors {
            if let Some(own) = self.layout.tensors.iter().find(|own| own.name == tensor.name) {
                tensor.set_rows(&mut weights, own.to_rows(&self.weights).into_iter());
            }
        }
        Self::new(config, layout, weights)
    }

    /// The same model with an untied head, which starts as a copy of the embedding. If the head is untied
    /// already, this is a plain copy. Both models give the same log-probabilities until one of them is
    /// trained.
    #[must_use]
    pub fn to_untied(&self) -> Self {
        if !self.config.is_tied() {
            return self.clone();
        }
        let config = self.config.to_untied();
        let layout = WeightLayout::new(&config);
        let mut weights = Floats::zeros(layout.len);
        let embedding = self.layout.embedding;
        for (index, tensor) in layout.tensors.iter().enumerate() {
            let own = if index == layout.head { embedding } else { index };
            tensor.set_rows(&mut weights, self.layout.tensors[own].to_rows(&self.weights).into_iter());
        }
        Self::new(config, layout, weights)
    }

    /// New weights: matrices normal with the configuration's `initializer_range`, norms one, biases zero.
    /// Each tensor's values depend only on the key and the tensor's name.
    pub fn init(config: TransformerConfig, key: Key) -> Result<Self, ConfigError> {
        config.validate()?;
        let layout = WeightLayout::new(&config);
        let mut weights = Floats::zeros(layout.len);
        for tensor in &layout.tensors {
            let name = tensor.name.bytes().fold(key, |key, byte| key.with(u64::from(byte)));
            let deviation = config.initializer_range;
            let value = |i: u64| match tensor.role {
                Role::Matrix => (name.normal(i) * deviation) as f32,
                Role::Norm => 1.0,
                Role::Bias => 0.0,
            };
            let count = tensor.shape.iter().product::<usize>() as u64;
            tensor.set_rows(&mut weights, (0..count).map(value));
        }
        Ok(Self::new(config, layout, weights))
    }

    /// Writes `config.json`, `generation_config.json` (if there are end tokens) and `model.safetensors`.
    pub fn save(&self, folder: &Path, dtype: SaveDtype) -> Result<(), CheckpointError> {
        self.save_sharded(folder, dtype, u64::MAX)
    }

    /// [`Self::save`] in shards of at most so many bytes each, with `model.safetensors.index.json`. A larger
    /// tensor gets a shard of its own. If everything fits into one file, there is no index.
    pub fn save_sharded(
        &self,
        folder: &Path,
        dtype: SaveDtype,
        max_bytes: u64,
    ) -> Result<(), CheckpointError> {
        std::fs::create_dir_all(folder)
            .map_err(|source| CheckpointError::Write { path: folder.to_owned(), source })?;
        self.save_through(dtype, max_bytes, |name, fill| {
            checkpoint::write_file(&folder.join(name), |out| fill(out))
        })
    }

    /// The files of [`Self::save_sharded`] in the order in which they have to be written. `put` gets each
    /// name and a function that writes the content.
    pub fn save_through<E>(
        &self,
        dtype: SaveDtype,
        max_bytes: u64,
        mut put: impl FnMut(&str, &mut Fill<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let size = |tensor: &Tensor| (tensor.shape.iter().product::<usize>() * dtype.size()) as u64;
        let mut shards: Vec<(u64, Vec<&Tensor>)> = Vec::new();
        for tensor in &self.layout.tensors {
            match shards.last_mut() {
                Some((bytes, shard)) if *bytes + size(tensor) <= max_bytes => {
                    *bytes += size(tensor);
                    shard.push(tensor);
                }
                _ => shards.push((size(tensor), vec![tensor])),
            }
        }
        let mut map = serde_json::Map::new();
        let total: u64 = shards.iter().map(|(bytes, _)| bytes).sum();
        for (i, (_, shard)) in shards.iter().enumerate() {
            let file = if shards.len() == 1 {
                "model.safetensors".to_owned()
            } else {
                format!("model-{:05}-of-{:05}.safetensors", i + 1, shards.len())
            };
            let tensors: Vec<_> = shard.iter().map(|tensor| ("", *tensor, &self.weights[..])).collect();
            put(&file, &mut |out| checkpoint::write_tensors(out, &tensors, &[], dtype))?;
            for tensor in shard {
                map.insert(tensor.name.clone(), file.clone().into());
            }
        }
        if shards.len() > 1 {
            let index = serde_json::json!({"metadata": {"total_size": total}, "weight_map": map});
            put("model.safetensors.index.json", &mut |out| write_json(out, &index))?;
        }
        let config = self.config.to_json(dtype.name());
        put("config.json", &mut |out| write_json(out, &config))?;
        if let Some(generation) = self.config.generation_json() {
            put("generation_config.json", &mut |out| write_json(out, &generation))?;
        }
        Ok(())
    }

    /// Name of the first tensor with a value that is not finite.
    pub fn non_finite(&self) -> Option<&str> {
        let tensors = self.layout.tensors.iter();
        tensors
            .filter(|tensor| !largest(tensor.of(&self.weights)).is_finite())
            .map(|tensor| &*tensor.name)
            .next()
    }

    /// Name and largest magnitude of the first tensor that would become infinite in this type.
    pub fn overflow(&self, dtype: SaveDtype) -> Option<(&str, f32)> {
        let mut tensors =
            self.layout.tensors.iter().map(|tensor| (&*tensor.name, largest(tensor.of(&self.weights))));
        tensors.find(|(_, largest)| !checkpoint::holds(dtype, *largest))
    }

    /// The shape.
    pub fn config(&self) -> &TransformerConfig {
        &self.config
    }

    /// Number of weights.
    pub fn num_parameters(&self) -> usize {
        self.layout.num_parameters()
    }

    /// Name, shape and row-major values of every tensor, in the layout's order.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &[usize], Vec<f32>)> {
        self.layout
            .tensors
            .iter()
            .map(|tensor| (tensor.name.as_str(), &tensor.shape[..], tensor.to_rows(&self.weights)))
    }

    /// Whether two models have the same weights, bit for bit.
    pub fn same_weights(&self, other: &Self) -> bool {
        self.weights.len() == other.weights.len()
            && self.weights.iter().zip(other.weights.iter()).all(|(a, b)| a.to_bits() == b.to_bits())
    }

    /// Adds `change(i)` to element i (row-major) of a tensor; `false` if no tensor has the name. For studies
    /// of a model, not for training.
    pub fn nudge(&mut self, name: &str, change: impl Fn(usize) -> f32) -> bool {
        let layout = Arc::clone(&self.layout);
        let Some(tensor) = layout.tensors.iter().find(|tensor| tensor.name == name) else {
            return false;
        };
        let values = tensor.to_rows(&self.weights);
        tensor.set_rows(self.weights_mut(), values.iter().enumerate().map(|(i, value)| value + change(i)));
        true
    }

    pub(crate) fn state(&self) -> WeightsState {
        self.state
    }

    pub(crate) fn weights_mut(&mut self) -> &mut Floats {
        self.state = WeightsState::new();
        &mut self.weights
    }

    pub(crate) fn layout(&self) -> &Arc<WeightLayout> {
        &self.layout
    }

    /// The values of tensor `index` in the layout's order.
    pub(crate) fn weight(&self, index: usize) -> &[f32] {
        self.layout.tensors[index].of(&self.weights)
    }
}

/// The largest magnitude; NaN and infinities are above all numbers. 0 for no values. Magnitudes are in the
/// order of their bits.
pub(crate) fn largest(values: &[f32]) -> f32 {
    f32::from_bits(values.iter().fold(0, |most, value| most.max(value.abs().to_bits())))
}

fn write_json(out: &mut dyn Write, value: &serde_json::Value) -> std::io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    out.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_magnitude_knows_what_is_no_number() {
        assert_eq!(largest(&[0.5, -3.0, 2.0]).to_bits(), 3.0_f32.to_bits());
        assert_eq!(largest(&[]).to_bits(), 0.0_f32.to_bits());
        assert!(largest(&[1.0, f32::NEG_INFINITY]).is_infinite());
        assert!(largest(&[1.0, -f32::NAN, f32::INFINITY]).is_nan());
    }

    #[test]
    fn what_a_type_has_no_room_for() {
        // 65520 is half-way between the largest number, 65504, and the next one if there were one.
        let held = |dtype: SaveDtype| {
            [65504.0, 65519.0, 65520.0, 3.3e38, f32::MAX, f32::NAN].map(|x| checkpoint::holds(dtype, x))
        };
        assert_eq!(held(SaveDtype::F16), [true, true, false, false, false, false]);
        assert_eq!(held(SaveDtype::Bf16), [true, true, true, true, false, false]);
        assert_eq!(held(SaveDtype::F32), [true, true, true, true, true, false]);
    }
}
