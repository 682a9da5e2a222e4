//! Estimates a run's memory before anything is allocated for it.

use tamis_config::{Config, ScheduleMode, SurplusKind};
use tamis_core::advantage::Column;
use tamis_model::{GenerationPlan, MemoryEstimate, MemoryPlan, PassOptions, TransformerConfig};

use super::settings::threads;
use super::teacher;

/// Bytes of the program itself: code, tokenizer, prompts, what the allocator keeps.
pub const PROGRAM: u64 = 20 << 20;

/// Largest lengths in a run, in tokens.
#[derive(Debug, Clone, Copy)]
pub struct Lengths {
    /// Of a prompt.
    pub prompt: usize,
    /// A gold answer, which a warm start learns.
    pub gold: usize,
    /// Number of validation prompts.
    pub num_validation_prompts: usize,
    /// How often one prompt may come in a batch. Groups of one prompt that follow one another go through the
    /// layers as one. That environments may all begin alike is not counted.
    pub num_alike: usize,
}

/// The estimate for a run whose completions all have the largest length: its largest micro-batch (or batch of
/// the warm start), a reference if a divergence needs one, teachers, a critic if there is one, and in the
/// generator the sequences of a round or of a validation, at most `rollout.max_num_seqs` of them.
pub fn estimate(
    config: &Config,
    model: &TransformerConfig,
    critic: Option<&TransformerConfig>,
    lengths: Lengths,
) -> MemoryEstimate {
    let reach = model.max_position_embeddings;
    let n = config.rollout.n.max(1);
    // A prompt with its gold answer may take whatever a completion leaves.
    let response = config.max_completion_length().min(reach);
    let prompt = if config.objective.advantage.needs().contains(&Column::GoldLogprobs) {
        reach
    } else {
        lengths.prompt.min(config.data.max_prompt_length)
    }
    .min(reach - response);
    let groups = (config.train.ppo_mini_batch_size.into_iter())
        .chain(config.critic.ppo_mini_batch_size.filter(|_| critic.is_some()))
        .max()
        .unwrap_or(config.data.train_batch_size);
    // Rows and scored rows of so many groups. The last token of a sequence is no row, and the prompt's last
    // row scores the first token of all members of a group.
    let whole =
        |groups: usize| groups.saturating_mul(prompt + n.saturating_mul(response.saturating_sub(1)).max(1));
    let limit = if let Some(size) = config.train.micro_batch_size {
        // A micro-batch may begin within a group.
        (size.div_ceil(n) + usize::from(size % n != 0)) * prompt + size * response
    } else {
        let own = tamis_model::micro_batch_tokens(model, config.model.recompute_activations);
        config.micro_batch_tokens(Some(own)).max(prompt + response)
    };
    let rows = limit.min(whole(groups));
    let teachers = teacher::shapes(config);
    let score =
        critic.is_some() || config.objective.kl.place != tamis_config::KlPlace::None || !teachers.is_empty();
    // As many of the rows as the group's completions have.
    let of_group = whole(1).max(1) as f64;
    let scored = (rows as f64 * (1.0 - prompt.saturating_sub(1) as f64 / of_group)).ceil() as usize;
    // The warm start's batch is not cut.
    let warm = if config.imitates() { config.sft.batch_size } else { 0 };
    let warm_rows = warm.saturating_mul((prompt + lengths.gold).min(reach));
    let round = config.gen_batch_size().saturating_mul(n);
    let generation = |sequences: usize, group_size: usize| GenerationPlan {
        // Servers sample in processes of their own.
        num_sequences: if config.samples_at_servers() {
            0
        } else {
            config.rollout.max_num_seqs.min(sequences)
        },
        group_size,
        prompt_tokens: prompt,
        response_tokens: response,
    };
    let validation = lengths.num_validation_prompts.saturating_mul(config.validate.n);
    let plan = MemoryPlan {
        trains: true,
        num_copies: usize::from(config.objective.kl.place != tamis_config::KlPlace::None),
        micro_batch_tokens: rows.max(warm_rows),
        scored_tokens: scored.max(warm.saturating_mul(lengths.gold)),
        // In a warm start each prompt usually comes once.
        group_tokens: whole(groups.min(lengths.num_alike)).max((prompt + lengths.gold).min(reach)),
        score_tokens: if score {
            limit.min(whole(config.gen_batch_size().max(config.data.train_batch_size)))
        } else {
            0
        },
        num_threads: threads(config),
        recompute: config.model.recompute_activations,
        keep_logits_bytes: PassOptions::KEEP_LOGITS_BYTES,
        generation: generation(round, n),
    };
    let mut estimate = MemoryEstimate::new(model, &plan);
    let of_teacher = |shape: &TransformerConfig| MemoryEstimate::new(shape, &MemoryPlan::default()).weights;
    estimate.copies += teachers.iter().map(of_teacher).sum::<u64>();
    let validates = MemoryPlan { generation: generation(validation, config.validate.n), ..plan };
    let of_validation = MemoryEstimate::new(model, &validates).generation;
    let schedule = &config.schedule;
    if schedule.mode == ScheduleMode::Streaming && config.samples_at_servers() {
        // Copies of weights and optimizer state, while parts of a step are trained on.
        let keeps_before = schedule.early_updates && config.mini_batch_size() < config.data.train_batch_size;
        estimate.copies += u64::from(keeps_before) * (estimate.weights + estimate.moments);
    }
    if schedule.mode == ScheduleMode::Streaming && schedule.surplus == SurplusKind::Carry {
        // Groups in flight keep their weights while a step is trained, and exist beside a validation.
        estimate.copies += estimate.weights;
        estimate.generation += of_validation;
    }
    estimate.generation = estimate.generation.max(of_validation);
    critic.map_or(estimate, |critic| estimate.with_critic(critic, &plan))
}

/// Bytes of the trajectories that are held at once, at their longest (ids, log-probabilities, masks, text,
/// scores): those of a round or of a batch, those of a validation beside them, and the columns from which
/// advantages and loss are computed.
pub fn trajectories(config: &Config, num_validation_prompts: usize) -> u64 {
    const PER_TRAJECTORY: u64 = 1024;
    const PER_TOKEN: u64 = 16;
    // Up to ten columns of eight bytes: log-probabilities, advantages, returns, values, derivatives.
    const PER_TRAINED_TOKEN: u64 = 80;
    let groups = config.gen_batch_size().max(config.data.train_batch_size);
    let round = groups.saturating_mul(config.rollout.n);
    let validation = num_validation_prompts.saturating_mul(config.validate.n);
    let trajectory = PER_TRAJECTORY + PER_TOKEN * config.max_completion_length() as u64;
    let trained = config.data.train_batch_size.saturating_mul(config.rollout.n) as u64;
    let columns =
        trained.saturating_mul(PER_TRAINED_TOKEN.saturating_mul(config.max_completion_length() as u64));
    (round.saturating_add(validation) as u64).saturating_mul(trajectory).saturating_add(columns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::loaded;

    fn config(overrides: &[&str]) -> Config {
        let yaml = "model: {init: {architecture: llama, hidden_size: 16, intermediate_size: 32, \
                    num_layers: 1, num_heads: 1, max_position_embeddings: 64}}\n\
            data: {task: arithmetic, max_prompt_length: 12, train_batch_size: 8}\n\
            rollout: {n: 4, max_response_length: 20, max_num_seqs: 256}\nreward: [{kind: number}]\n\
            train: {total_steps: 1, ppo_mini_batch_size: 4, micro_batch_tokens: 100000}\nrun: {threads: 1}\n";
        loaded(yaml, overrides).config
    }

    fn model() -> TransformerConfig {
        let mut model = TransformerConfig::new(tamis_model::Architecture::Llama, 32, 16, 32, 1, 1, 64);
        model.num_kv_heads = 1;
        model
    }

    const LENGTHS: Lengths = Lengths { prompt: 10, gold: 3, num_validation_prompts: 6, num_alike: 1 };

    fn estimated(overrides: &[&str]) -> MemoryEstimate {
        estimate(&config(overrides), &model(), None, LENGTHS)
    }

    /// The plan of a run, worked out by hand: rows and scored rows of its largest micro-batch, and what runs
    /// at once in the generator.
    #[test]
    fn the_plan_of_a_run_by_hand() {
        let by_hand = |plan: MemoryPlan| MemoryEstimate::new(&model(), &plan);
        let generation =
            GenerationPlan { num_sequences: 32, group_size: 4, prompt_tokens: 10, response_tokens: 20 };
        // A mini-batch of four groups: a prompt of ten tokens, and four completions of twenty, of which the
        // last token is no row. The nine first rows of a prompt have no logits.
        let rows = 4 * (10 + 4 * 19);
        let scored = (rows as f64 * (1.0 - 9.0 / 86.0)).ceil() as usize;
        let plan = MemoryPlan {
            trains: true,
            micro_batch_tokens: rows,
            scored_tokens: scored,
            group_tokens: 86,
            num_threads: 1,
            keep_logits_bytes: PassOptions::KEEP_LOGITS_BYTES,
            generation,
            ..MemoryPlan::default()
        };
        assert_eq!(estimated(&[]), by_hand(plan));
        // Groups of the same prompt may go through the layers as one.
        let alike = Lengths { num_alike: 3, ..LENGTHS };
        let found = estimate(&config(&[]), &model(), None, alike);
        assert_eq!(found, by_hand(MemoryPlan { group_tokens: 3 * 86, ..plan }));
        // A micro-batch of tokens holds no more than its limit; one of sequences may begin within a group.
        let cut = MemoryPlan {
            micro_batch_tokens: 100,
            scored_tokens: (100.0_f64 * (1.0 - 9.0 / 86.0)).ceil() as usize,
            ..plan
        };
        assert_eq!(estimated(&["train.micro_batch_tokens=100"]), by_hand(cut));
        let rows = 2 * 10 + 2 * 20;
        let cut = MemoryPlan {
            micro_batch_tokens: rows,
            scored_tokens: (rows as f64 * (1.0 - 9.0 / 86.0)).ceil() as usize,
            ..plan
        };
        assert_eq!(estimated(&["train.micro_batch_size=2", "~train.micro_batch_tokens"]), by_hand(cut));
        // A reference is a copy, and a pass over a batch beside that of the training.
        let with_reference = MemoryPlan { num_copies: 1, score_tokens: 8 * 86, ..plan };
        assert_eq!(estimated(&["objective.kl.in=loss"]), by_hand(with_reference));
        assert_eq!(
            estimated(&["model.recompute_activations=true"]),
            by_hand(MemoryPlan { recompute: true, ..plan })
        );
        // The warm start's batch is not cut.
        let warm = MemoryPlan { micro_batch_tokens: 512 * 13, scored_tokens: 512 * 3, ..plan };
        assert_eq!(estimated(&["sft.steps=1", "sft.batch_size=512"]), by_hand(warm));
        // A validation of many samples generates more than a round.
        let samples = GenerationPlan { num_sequences: 60, group_size: 10, ..generation };
        let validates = by_hand(MemoryPlan { generation: samples, ..plan });
        let found = estimated(&["validate.n=10"]);
        assert_eq!(found.generation, validates.generation.max(by_hand(plan).generation));
        // Eight sequences at once of a round, or the six of the validation with a prompt for each: what takes
        // more.
        let of = |num_sequences, group_size| {
            by_hand(MemoryPlan {
                generation: GenerationPlan { num_sequences, group_size, ..generation },
                ..plan
            })
        };
        let few = of(8, 4);
        let expected = MemoryEstimate { generation: few.generation.max(of(6, 1).generation), ..few };
        assert_eq!(estimated(&["rollout.max_num_seqs=8"]), expected);
        // Servers sample in their own memory.
        let served = estimated(&["rollout.backend=vllm", "rollout.servers=[http://h:1]"]);
        assert_eq!(served, by_hand(MemoryPlan { generation: GenerationPlan::default(), ..plan }));
        assert_eq!(served.generation, 0);
    }

    #[test]
    fn a_critic_has_weights_gradients_and_moments_of_its_own() {
        let overrides = ["preset=ppo", "critic.ppo_mini_batch_size=8"];
        let config = config(&overrides);
        let mut critic = model();
        critic.head = tamis_model::OutputHead::Value;
        let with = estimate(&config, &model(), Some(&critic), LENGTHS);
        let without = estimate(&config, &model(), None, LENGTHS);
        assert!(with.critic >= 4 * without.weights / 2 && without.critic == 0, "{with}");
        assert_eq!(with.certain(), without.certain() + with.critic + with.gradients - without.gradients);
        assert!(with.activations > without.activations, "its mini-batch is the larger one");
    }

    #[test]
    fn trajectories_by_hand() {
        // A round of 8 groups of 4 and a validation of 6 prompts, each trajectory 1 KiB and 16 bytes a token;
        // the batch's columns.
        let expected = (32 + 6) * (1024 + 16 * 20) + 32 * 80 * 20;
        assert_eq!(trajectories(&config(&[]), 6), expected);
    }
}
