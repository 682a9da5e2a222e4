//! The table of what fits where: the plan of models that people train, on GPUs that they have.

use std::fmt::Write as _;

use serde_json::json;

use super::model_sizes::ModelSizes;
use super::rank_memory::{RankMemory, RankSettings};

/// A micro-batch below which nobody would train: the shortest prompt and answer of a reasoning model.
const LEAST_TOKENS: u64 = 2048;
/// Rank of the adapters.
const RANK: u64 = 32;

/// GPUs of one kind: their number, the driver's MiB of each, and the heading.
const GPUS: [(u64, u64, &str); 9] = [
    (1, 24_564, "1 x 24 GB"),
    (1, 81_559, "1 x 80 GB"),
    (2, 81_559, "2 x 80 GB"),
    (4, 81_559, "4 x 80 GB"),
    (8, 81_559, "8 x 80 GB"),
    (16, 81_559, "16 x 80 GB"),
    (1, 143_771, "1 x 141 GB"),
    (8, 143_771, "8 x 141 GB"),
    (16, 143_771, "16 x 141 GB"),
];

/// Sizes as their `config.json` has them: width, feed-forward width, layers, heads, key heads, vocabulary.
const MODELS: [(&str, [u64; 6], bool); 7] = [
    ("Qwen2.5-0.5B", [896, 4864, 24, 14, 2, 151_936], true),
    ("Qwen2.5-1.5B", [1536, 8960, 28, 12, 2, 151_936], true),
    ("Qwen2.5-3B", [2048, 11_008, 36, 16, 2, 151_936], true),
    ("Qwen2.5-7B", [3584, 18_944, 28, 28, 4, 152_064], false),
    ("Qwen2.5-14B", [5120, 13_824, 48, 40, 8, 152_064], false),
    ("Qwen2.5-32B", [5120, 27_648, 64, 40, 8, 152_064], false),
    ("Qwen2.5-72B", [8192, 29_568, 80, 64, 8, 152_064], false),
];

fn models() -> Vec<(&'static str, ModelSizes)> {
    let dense = MODELS.iter().filter_map(|&(name, [d, f, layers, heads, kv, vocab], is_tied)| {
        let config = json!({
            "model_type": "qwen2", "hidden_size": d, "intermediate_size": f, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": kv, "vocab_size": vocab,
            "tie_word_embeddings": is_tied,
        });
        Some((name, ModelSizes::of_config(&config)?))
    });
    let mixture = json!({
        "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
        "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151_936, "tie_word_embeddings": false,
    });
    let mixture = ModelSizes::of_config(&mixture).map(|sizes| ("Qwen3-30B-A3B", sizes));
    dense.chain(mixture).collect()
}

/// The largest micro-batch that fits, in tokens; `None` where none worth training with does.
fn tokens(sizes: &ModelSizes, has_adapter: bool, (ranks, mebibytes): (u64, u64)) -> Option<u64> {
    let settings = RankSettings {
        ranks,
        on_gpu: true,
        rounds: true,
        // With all its linear layers.
        adapter: has_adapter.then(|| sizes.adapter(RANK, None)),
        recomputes: true,
        tokens: LEAST_TOKENS,
        logprob_chunk: None,
        offloads_reference: false,
        sends_weights: false,
        capacity: Some(mebibytes << 20),
    };
    let memory = RankMemory::new(sizes, None, None, settings);
    Some(memory.tokens_that_fit(mebibytes << 20)).filter(|&tokens| tokens >= LEAST_TOKENS)
}

/// The page of the table (the source of docs/what-fits.md).
pub fn markdown() -> String {
    let mut text = String::from(
        "# What fits where\n\n\
         The largest micro-batch of each rank, in thousands of tokens, that a learner in PyTorch has room for: \
         `bf16`,\nAdamW in f32, `model.recompute_activations: true`, no reference and no critic, nothing else on \
         the GPUs.\nA dash: it does not fit, or not with 2,048 tokens. The longest trajectory (prompt and answer) \
         has to fit\ninto a micro-batch.\n\n\
         This page is printed by the plan that a run makes for itself (`tamis config fits`), whose formulas are \
         in\n`crates/tamis-train/src/plan/rank_memory.rs`. **No GPU has been met**: activations were counted in \
         PyTorch\non a CPU, and 1.5 GiB for CUDA and 0.5 for NCCL are assumed. For a model of yours, with a \
         reference, a\ncritic or servers on the same GPUs:\n\n\
         ```\ntamis config check run.yaml --plan --machines 2x8x80GiB\n```\n\n",
    );
    let headings: Vec<&str> = GPUS.iter().map(|(_, _, heading)| *heading).collect();
    let _ = writeln!(text, "| model | parameters | learns | {} |", headings.join(" | "));
    let _ = writeln!(text, "|---|---|---|{}", "---|".repeat(GPUS.len()));
    for (name, sizes) in models() {
        for (learns, has_adapter) in [("all", false), ("LoRA 32", true)] {
            let cells: Vec<String> = GPUS
                .iter()
                .map(|&(ranks, mebibytes, _)| {
                    let found = tokens(&sizes, has_adapter, (ranks, mebibytes));
                    found.map_or_else(|| "–".to_owned(), |tokens| format!("{}", tokens / 1000))
                })
                .collect();
            let billions = sizes.num_parameters as f64 / 1e9;
            let _ = writeln!(text, "| {name} | {billions:.2} B | {learns} | {} |", cells.join(" | "));
        }
    }
    text.push_str(
        "\nA few thousand tokens a micro-batch are enough to keep a GPU busy; more ranks than needed make room for \
         longer\nanswers, and learn faster. Servers need GPUs of their own beside these, or the same ones in turns \
         (`cluster.colocate`,\n[many GPUs and many machines](cluster.md)).\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_a_7b_model() {
        let models = models();
        let (_, seven) = models.iter().find(|(name, _)| *name == "Qwen2.5-7B").expect("there");
        let fits = |adapter, gpus| tokens(seven, adapter, gpus).is_some();
        // 18 bytes a parameter are 137 GB: one GPU of 80 GB cannot have them, one of 141 GiB or eight of 80 can;
        // an adapter needs the rounded weights alone.
        assert!(!fits(false, (1, 81_559)) && fits(false, (1, 143_771)) && fits(false, (8, 81_559)));
        assert!(fits(true, (1, 81_559)) && fits(true, (1, 24_564)));
        let (_, large) = models.iter().find(|(name, _)| *name == "Qwen2.5-72B").expect("there");
        assert_eq!(tokens(large, false, (8, 81_559)), None);
        assert!(tokens(large, true, (8, 81_559)).is_some());
        // More GPUs never have room for less.
        for (name, sizes) in &models {
            for adapter in [false, true] {
                let several = [2, 4, 8, 16].map(|ranks| tokens(sizes, adapter, (ranks, 81_559)).unwrap_or(0));
                assert!(several.is_sorted(), "{name}: {several:?}");
            }
        }
    }
}
