//! How much memory a run takes, estimated before anything is allocated for it.

use tamis_config::Config;
use tamis_model::{MemoryEstimate, MemoryPlan, ModelConfig};

use crate::native::KEEP_LOGITS_BYTES;
use crate::session::threads;

/// The estimate for a run: its largest micro-batch, a reference where a divergence needs one, a critic where there is one, and in the generator the sequences of a round or
/// of a validation at full length, `rollout.max_num_seqs` of them at most.
pub fn estimate(
    config: &Config,
    model: &ModelConfig,
    critic: Option<&ModelConfig>,
    num_validation_prompts: usize,
) -> MemoryEstimate {
    let longest = (config.data.max_prompt_length + config.rollout.max_response_length)
        .min(model.max_position_embeddings);
    // A prompt with its gold answer may take whatever a completion leaves.
    let longest = if config.objective.advantage.estimator == tamis_config::Estimator::Cpo {
        model.max_position_embeddings
    } else {
        longest
    };
    let micro_batch_tokens = match config.train.micro_batch_size {
        Some(size) => size * longest,
        None => config.train.micro_batch_tokens.max(longest),
    };
    let round = config.gen_batch_size().saturating_mul(config.rollout.n);
    let validation = num_validation_prompts.saturating_mul(config.validate.n);
    let sequences = config.rollout.max_num_seqs.min(round.max(validation));
    let plan = MemoryPlan {
        trains: true,
        num_copies: usize::from(config.objective.kl.place != tamis_config::KlPlace::None),
        micro_batch_tokens,
        num_threads: threads(config),
        recompute: config.model.recompute_activations,
        keep_logits_bytes: KEEP_LOGITS_BYTES,
        cached_tokens: sequences.saturating_mul(longest),
    };
    let estimate = MemoryEstimate::new(model, &plan);
    critic.map_or(estimate, |critic| estimate.with_critic(critic, &plan))
}

/// Bytes of the trajectories that are held at once, at their longest (ids, log-probabilities, masks, text, scores): those of a round or of a
/// batch, and beside them those of a validation; and the columns that advantages and loss are computed from.
pub fn trajectories(config: &Config, num_validation_prompts: usize) -> u64 {
    const PER_TRAJECTORY: u64 = 1024;
    const PER_TOKEN: u64 = 16;
    // Up to ten columns of eight bytes: log-probabilities, advantages, returns, values, derivatives.
    const PER_TRAINED_TOKEN: u64 = 80;
    let groups = config.gen_batch_size().max(config.data.train_batch_size);
    let round = groups.saturating_mul(config.rollout.n);
    let validation = num_validation_prompts.saturating_mul(config.validate.n);
    let trajectory = PER_TRAJECTORY + PER_TOKEN * config.rollout.max_response_length as u64;
    let trained = config.data.train_batch_size.saturating_mul(config.rollout.n) as u64;
    let columns =
        trained.saturating_mul(PER_TRAINED_TOKEN.saturating_mul(config.rollout.max_response_length as u64));
    (round.saturating_add(validation) as u64).saturating_mul(trajectory).saturating_add(columns)
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
