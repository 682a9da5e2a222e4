//! How much memory a run takes, estimated before anything is allocated for it.

use std::fmt;

use tamis_config::Config;
use tamis_model::ModelConfig;

/// What takes how many bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Estimate {
    parts: Vec<(&'static str, u64)>,
}

impl Estimate {
    /// All parts together, in bytes.
    pub fn total(&self) -> u64 {
        self.parts.iter().map(|(_, bytes)| bytes).sum()
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, bytes)) in self.parts.iter().enumerate() {
            let separator = if i == 0 { "" } else { ", " };
            write!(formatter, "{separator}{name} {}", human(*bytes))?;
        }
        Ok(())
    }
}

/// Number of weights of a model.
fn num_parameters(model: &ModelConfig) -> u64 {
    let (hidden, heads) = (model.hidden_size as u64, model.num_heads as u64);
    let (kv, dim) = (model.num_kv_heads as u64, model.head_dim as u64);
    let attention = 2 * hidden * heads * dim + 2 * hidden * kv * dim;
    let layer = attention + 3 * hidden * model.intermediate_size as u64 + 2 * hidden;
    let embeddings = model.vocab_size as u64 * hidden * if model.tie_word_embeddings { 1 } else { 2 };
    model.num_layers as u64 * layer + embeddings + hidden
}

/// Estimates a run's memory in bytes. Weights, packed copies of them, gradients and moments are exact up to norms and biases; activations
/// are those of the largest micro-batch; the cache is that of `rollout.max_num_seqs` sequences of full length.
pub fn estimate(config: &Config, model: &ModelConfig) -> Estimate {
    let weights = 4 * num_parameters(model);
    let has_reference = config.objective.kl.place != tamis_config::KlPlace::None;
    let longest = (config.data.max_prompt_length + config.rollout.max_response_length)
        .min(model.max_position_embeddings) as u64;
    let tokens = match config.train.micro_batch_size {
        Some(size) => size as u64 * longest,
        None => (config.train.micro_batch_tokens as u64).max(longest),
    };
    let (hidden, inner) = (model.hidden_size as u64, model.intermediate_size as u64);
    let heads = ((model.num_heads + 2 * model.num_kv_heads) * model.head_dim) as u64;
    let per_layer = 4 * (4 * hidden + 2 * heads + 4 * inner);
    let layers = model.num_layers as u64;
    let activations = if config.model.recompute_activations {
        tokens * (4 * hidden * (layers + 1) + per_layer)
    } else {
        tokens * layers * per_layer
    };
    let logits = (4 * tokens * model.vocab_size as u64).min(512 << 20);
    let sequences = (config.rollout.max_num_seqs as u64).min((config.data.train_batch_size * config.rollout.n) as u64);
    let cache = sequences * longest * layers * 2 * 4 * (model.num_kv_heads * model.head_dim) as u64;
    let mut parts = vec![("weights", weights), ("gradients", weights), ("optimizer", 2 * weights)];
    if has_reference {
        parts.push(("reference", weights));
    }
    parts.extend([("activations", activations + logits), ("generation cache", cache)]);
    Estimate { parts }
}

/// Memory that is free on this machine, in bytes; `None` where the system does not say.
pub fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

/// Bytes with a unit.
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        assert_eq!(human(512), "512 B");
        assert_eq!(human(1536), "1.5 KiB");
        assert_eq!(human(3 << 30), "3.0 GiB");
    }
}
