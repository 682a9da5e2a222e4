//! The table of what fits: memory of popular models by number of ranks.

use std::fmt::Write as _;

use serde_json::json;
use tamis_core::figure::counted;

use tamis_config::{LoraBase, MomentFormat};

use super::memory::{Kept, Offloads, RankMemory};
use super::model_sizes::ModelSizes;

/// Rank of the adapters.
const RANK: u64 = 32;

/// Numbers of ranks in the table.
const RANKS: [u64; 5] = [1, 2, 4, 8, 16];

/// Sizes from each `config.json`: width, feed-forward width, layers, heads, key heads, vocabulary.
const MODELS: [(&str, [u64; 6], bool); 7] = [
    ("Qwen2.5-0.5B", [896, 4864, 24, 14, 2, 151_936], true),
    ("Qwen2.5-1.5B", [1536, 8960, 28, 12, 2, 151_936], true),
    ("Qwen2.5-3B", [2048, 11_008, 36, 16, 2, 151_936], true),
    ("Qwen2.5-7B", [3584, 18_944, 28, 28, 4, 152_064], false),
    ("Qwen2.5-14B", [5120, 13_824, 48, 40, 8, 152_064], false),
    ("Qwen2.5-32B", [5120, 27_648, 64, 40, 8, 152_064], false),
    ("Qwen2.5-72B", [8192, 29_568, 80, 64, 8, 152_064], false),
];

/// What learns, and how it is held.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Learns {
    All,
    AllWithSmallMoments,
    Adapter,
    AdapterOverFourBits,
}

/// The rows of each model, by what learns.
const ROWS: [(&str, Learns); 4] = [
    ("all", Learns::All),
    ("all, 8bit", Learns::AllWithSmallMoments),
    ("LoRA 32", Learns::Adapter),
    ("LoRA 32, nf4", Learns::AdapterOverFourBits),
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

/// GiB that each rank keeps.
fn kept(sizes: &ModelSizes, learns: Learns, ranks: u64) -> f64 {
    // An adapter on all linear layers.
    let is_all = matches!(learns, Learns::All | Learns::AllWithSmallMoments);
    let kept = Kept {
        ranks,
        rounds: true,
        adapter: (!is_all).then(|| sizes.adapter(RANK, None)),
        base: if learns == Learns::AdapterOverFourBits { LoraBase::Nf4 } else { LoraBase::Dtype },
        moments: if learns == Learns::AllWithSmallMoments {
            MomentFormat::EightBits
        } else {
            MomentFormat::F32
        },
        teachers: 0,
        offloads: Offloads::default(),
        sends_weights: false,
    };
    RankMemory::new(sizes, None, None, kept).total() as f64 / f64::from(1 << 30)
}

/// Text before and after the table.
const BEFORE: &str = "\
GiB that each GPU keeps of parameters, gradients and AdamW's moments if a learner in PyTorch computes in
`bf16`, without a reference and a critic:

";
const AFTER: &str = "
Bytes for each parameter:
  weights that learn                                          4 (6 on one rank, which also holds them rounded)
  weights that do not learn: below an adapter, the reference  2 (4 in `f32`)
  linear layers below an adapter (`learner.lora.base: nf4`)   0.516
  gradients                                                   4
  AdamW's moments                                             8 (2.031 with `learner.moments: 8bit`)

Ranks share all of it. A GPU needs more than that: activations and logits of a micro-batch, one whole layer of
the model at a time, the cache of a learner that samples, CUDA and NCCL. The command below estimates activations
and this cache for one rank. `model.recompute_activations: true` and smaller micro-batches lower the rest.

Servers need GPUs of their own, or take turns with the learner (`cluster.colocate`). A server holds 2 bytes a
parameter, over its `tensor_parallel` GPUs, and its cache.

For your own model, with a reference, a critic or servers on the same GPUs:

  tamis config check run.yaml --plan --machines 2x8x80GiB

It counts parameters from the headers of the model's tensors, and compares with the memory that `nvidia-smi`
reports.
";

/// The page that `tamis config fits` prints: one line for each model and kind of training, for a terminal and
/// for programs alike.
pub fn page() -> String {
    let headings = RANKS.iter().map(|ranks| counted(ranks, "GPU"));
    let mut lines =
        vec![["model", "parameters", "learns"].map(str::to_owned).into_iter().chain(headings).collect()];
    for (name, sizes) in models() {
        for (named, learns) in ROWS {
            let billions = format!("{:.2} B", sizes.num_parameters as f64 / 1e9);
            // Weights in 4 bits are not shared out.
            let shares = learns != Learns::AdapterOverFourBits;
            let numbers = RANKS.iter().map(|&ranks| {
                if shares || ranks == 1 {
                    format!("{:.1}", kept(&sizes, learns, ranks))
                } else {
                    "-".to_owned()
                }
            });
            let named = [name.to_owned(), billions, named.to_owned()];
            lines.push(named.into_iter().chain(numbers).collect::<Vec<String>>());
        }
    }
    let widths: Vec<usize> = (0..3 + RANKS.len())
        .map(|column| lines.iter().filter_map(|line| line.get(column)).map(String::len).max().unwrap_or(0))
        .collect();
    let mut text = BEFORE.to_owned();
    for line in &lines {
        let cells = line.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if column == 0 || column == 2 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  "));
    }
    text + AFTER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_a_7b_model() {
        let models = models();
        let (_, seven) = models.iter().find(|(name, _)| *name == "Qwen2.5-7B").expect("there");
        // 18 bytes of 7,615,616,512 parameters; 16 over eight ranks.
        assert!((kept(seven, Learns::All, 1) - 127.66).abs() < 0.01, "{}", kept(seven, Learns::All, 1));
        assert!((kept(seven, Learns::All, 8) - 14.18).abs() < 0.01, "{}", kept(seven, Learns::All, 8));
        // 12.03 bytes: 6 of weights, 4 of gradients, 2 and 1/32 of moments.
        let small = kept(seven, Learns::AllWithSmallMoments, 1);
        assert!((small - 12.031_25 * 7_615_616_512.0 / f64::from(1 << 30)).abs() < 0.01, "{small}");
        // The rounded weights, and 18 bytes of the adapter.
        let adapter = seven.adapter(RANK, None) as f64;
        let expected = (2.0 * 7_615_616_512.0 + 18.0 * adapter) / f64::from(1 << 30);
        assert!((kept(seven, Learns::Adapter, 1) - expected).abs() < 1e-6);
        // Of each layer 3,584 x (3,584 + 512 + 512 + 3,584) + 3 x 3,584 x 18,944 weights are in 4 bits.
        let linears = 28.0 * (3584.0 * 8192.0 + 3.0 * 3584.0 * 18_944.0);
        let expected =
            (0.5 + 1.0 / 64.0 + 1.0 / 4096.0) * linears + 2.0 * (7_615_616_512.0 - linears) + 18.0 * adapter;
        let found = kept(seven, Learns::AdapterOverFourBits, 1);
        assert!((found - expected / f64::from(1 << 30)).abs() < 1e-6, "{found}");
    }

    #[test]
    fn the_page_is_a_table_for_a_terminal() {
        let page = page();
        assert!(!page.contains(['|', '#']), "{page}");
        let line = page.lines().find(|line| line.starts_with("Qwen2.5-7B ")).expect("there");
        assert_eq!(line, "Qwen2.5-7B         7.62 B  all            127.7    56.7    28.4    14.2      7.1");
        let widths: Vec<usize> =
            page.lines().filter(|line| line.starts_with("Qwen")).map(|line| line.chars().count()).collect();
        assert_eq!(widths, [widths[0]; 32]);
        assert!(page.lines().all(|line| line.chars().count() <= 112), "{page}");
    }
}
