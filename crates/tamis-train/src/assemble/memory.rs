//! Estimates a run's memory before anything is allocated for it.

use std::collections::HashMap;

use tamis_config::{Config, ScheduleMode, SurplusKind};
use tamis_core::advantage::Column;
use tamis_core::figure;
use tamis_model::{GenerationPlan, MemoryEstimate, MemoryPlan, PassOptions, TransformerConfig};

use super::settings::threads;
use super::teacher;
use crate::error::RunError;
use crate::learner::sft::{Example, SftExamples};

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

/// The estimate for supervised fine-tuning alone on these examples, and what the examples take themselves.
/// Nothing is generated, and there is neither a reference nor a critic. A micro-batch has at most
/// `train.micro_batch_tokens`, or one longer row. At most it has the longest rows of an update.
pub(crate) fn estimate_sft(
    config: &Config,
    model: &TransformerConfig,
    examples: &SftExamples,
) -> (MemoryEstimate, u64) {
    let SftExamples { train, validation } = examples;
    let own = tamis_model::micro_batch_tokens(model, config.model.recompute_activations);
    let limit = config.micro_batch_tokens(Some(own));
    let longest = |rows: &[Example]| rows.iter().map(Example::num_tokens).max().unwrap_or(0);
    let of_update = |of: fn(&Example) -> usize| {
        let mut lengths: Vec<usize> = train.iter().map(of).collect();
        lengths.sort_unstable_by(|left, right| right.cmp(left));
        // An update that goes beyond the last row begins again with the first.
        lengths.iter().cycle().take(config.sft.batch_size.min(lengths.len().saturating_mul(2))).sum::<usize>()
    };
    let rows = limit.max(longest(train)).min(of_update(Example::num_tokens));
    // Rows that begin alike go through the layers as one.
    let mut alike: HashMap<&[u32], usize> = HashMap::new();
    for example in train {
        *alike.entry(example.prompt()).or_default() += example.num_tokens();
    }
    let num_validated: usize = validation.iter().map(Example::num_tokens).sum();
    let plan = MemoryPlan {
        trains: true,
        micro_batch_tokens: rows,
        scored_tokens: rows.min(of_update(Example::num_scored)),
        group_tokens: alike.into_values().max().unwrap_or(0).min(rows),
        score_tokens: limit.max(longest(validation)).min(num_validated),
        num_threads: threads(config),
        recompute: config.model.recompute_activations,
        keep_logits_bytes: PassOptions::KEEP_LOGITS_BYTES,
        ..MemoryPlan::default()
    };
    // Ids and mask of each token, and the columns of an update's tokens.
    let num_tokens: usize = train.iter().map(Example::num_tokens).sum();
    let held = (num_tokens + num_validated) as u64 * 5 + of_update(Example::num_tokens) as u64 * 80;
    (MemoryEstimate::new(model, &plan), held)
}

/// What a run holds beside models and passes.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) what: &'static str,
    pub(crate) bytes: u64,
    /// When the run needs as much as is estimated.
    pub(crate) too_long: &'static str,
    /// Keys that lower it, beside those of micro-batches.
    pub(crate) keys: String,
}

/// Compares an estimate with the memory, and refuses what cannot fit. Returns the line that the run prints,
/// and a warning if it may not fit. A limit that the user set is compared with the whole estimate. Memory
/// that is `free` is compared only with what is needed in any case, because sequences may all be short.
pub(crate) fn fit(
    config: &Config,
    estimate: MemoryEstimate,
    held: &Held,
    free: Option<u64>,
) -> Result<(String, Option<String>), RunError> {
    let at_most = estimate.total().saturating_add(held.bytes).saturating_add(PROGRAM);
    let (needed, limit) = match config.model.memory_limit {
        Some(limit) => (at_most, Some(limit.0)),
        None => (estimate.certain() + PROGRAM, free),
    };
    let parts = format!(
        "{estimate}, {} {}, the program {}",
        held.what,
        figure::bytes(held.bytes),
        figure::bytes(PROGRAM)
    );
    let remedy = remedy(config, &held.keys);
    if let Some(limit) = limit
        && needed > limit
    {
        return Err(RunError::Memory {
            needed: figure::bytes(needed),
            limit: figure::bytes(limit),
            breakdown: parts,
            remedy,
        });
    }
    let warning = limit.filter(|&limit| at_most > limit).map(|limit| {
        format!(
            "{} of memory is free: the run continues, but will not fit if {}\n  hint: {remedy}",
            figure::bytes(limit),
            held.too_long
        )
    });
    Ok((format!("memory: at most {}: {parts}", figure::bytes(at_most)), warning))
}

/// Settings that would lower the memory and are not in use yet.
fn remedy(config: &Config, keys: &str) -> String {
    let micro_batch = match config.train.micro_batch_size {
        Some(_) if !config.is_sft_alone() => "train.micro_batch_size",
        _ => "train.micro_batch_tokens",
    };
    let recompute =
        if config.model.recompute_activations { "" } else { "set model.recompute_activations=true, " };
    let limit = match config.model.memory_limit {
        Some(_) => "raise model.memory_limit",
        None => "free some memory",
    };
    format!("lower {micro_batch}, {keys}, {recompute}take a smaller model, or {limit}")
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
