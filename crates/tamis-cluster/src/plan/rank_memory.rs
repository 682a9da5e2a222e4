//! Memory of a rank of the PyTorch learner, by part.
//!
//! With `N` parameters of which `T` learn, `W` ranks, and `b` bytes of a number that passes compute in (2 in bf16):
//!
//! | part | one rank | `W` ranks |
//! |---|---|---|
//! | weights | f32 `4T`, and what is computed with `bN` (`4N` in all where that is f32) | `4T/W`, and `bN/W` of what does not learn |
//! | gradients, moments | `4T`, `8T` | `4T/W`, `8T/W` |
//! | reference | `bN`; one that is offloaded: what is beyond the gradients, which are not there in its pass | `bN/W`; 0 |
//! | gathered | | two layers and what is in no layer in `b`; the gradient of the largest of them in `b` and f32 |
//! | whole gradient | | `4T`, where that is at most a quarter of what is free (the learner decides it) |
//! | activations | by the widths of the model (`activation_bytes`) | the same |
//!
//! What a pass keeps for its backward pass was counted with hooks on PyTorch's saved tensors
//! (`python/tests/test_plan.py` counts it again); a CUDA context, NCCL and the allocator's rounding are
//! assumptions, for no GPU has been met.

use serde::Serialize;

use super::model_sizes::{DecoderShape, ModelSizes};

/// A CUDA context, the workspaces of its libraries, and what the allocator rounds up.
const CUDA: u64 = 3 << 29;
/// Buffers of NCCL.
const NCCL: u64 = 1 << 29;
/// Python with PyTorch and transformers, on a CPU.
const PROGRAM: u64 = 3 << 28;
/// Numbers of the logits that are held at once where `learner.logprob_chunk` is null: as in
/// `python/tamis/learner/logprob.py`.
const CHUNK_NUMBERS: [u64; 2] = [1 << 27, 1 << 21];
/// Bytes for each of these numbers: the logits, their exponentials, and the derivative in two types.
const CHUNK_BYTES: u64 = 12;

/// A whole gradient is held on every rank where it takes at most one in so many bytes that are free:
/// `_SHARE_FOR_GRADIENTS` in `python/tamis/learner/sharding.py`.
const SHARE_FOR_GRADIENTS: u64 = 4;

/// How a learner is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankSettings {
    /// Ranks that share weights, gradients and moments out.
    pub ranks: u64,
    /// It computes on a GPU.
    pub on_gpu: bool,
    /// It computes in bf16, not in f32.
    pub rounds: bool,
    /// Parameters of an adapter that learns in place of the weights.
    pub adapter: Option<u64>,
    /// Activations are computed again in the backward pass.
    pub recomputes: bool,
    /// Tokens of its largest micro-batch.
    pub tokens: u64,
    /// Tokens whose logits are held at once, where somebody says so.
    pub logprob_chunk: Option<u64>,
    /// The reference waits in main memory.
    pub offloads_reference: bool,
    /// The first rank sends weights over NCCL, of which it keeps a copy in main memory.
    pub sends_weights: bool,
    /// Memory of its GPU, or of its machine where it computes on a CPU; `None` where it is not known.
    pub capacity: Option<u64>,
}

/// A part of the memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemoryPart {
    /// Its name.
    pub name: &'static str,
    /// Bytes.
    pub bytes: u64,
}

/// Memory of one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RankMemory {
    /// What is taken whatever is generated.
    pub certain: Vec<MemoryPart>,
    /// What the learner takes where it finds room when it has loaded.
    pub if_room: Vec<MemoryPart>,
    /// What grows with a micro-batch, at its largest; empty where the model does not say enough of itself.
    pub of_batch: Vec<MemoryPart>,
    /// Bytes for each token of a micro-batch that stay until its backward pass has gone by.
    kept_per_token: u64,
    /// Bytes for each token while a layer is computed.
    layer_per_token: u64,
    /// Bytes of the logits that are there at once, and of the head's gradient.
    logits: u64,
    /// Logits and a layer that is computed again are not there at once.
    takes_turns: bool,
    /// Main memory that a machine needs for it beside the GPUs.
    pub host: u64,
}

impl RankMemory {
    /// Of a policy, beside it a reference with weights of its own and a critic where there are.
    pub fn new(
        policy: &ModelSizes,
        reference: Option<&ModelSizes>,
        critic: Option<&ModelSizes>,
        settings: RankSettings,
    ) -> Self {
        let RankSettings { ranks, on_gpu, rounds, .. } = settings;
        let number = if rounds { 2 } else { 4 };
        let each = |bytes: u64| bytes.div_ceil(ranks);
        let learned = settings.adapter.unwrap_or(policy.num_parameters);
        let frozen = if settings.adapter.is_some() { policy.num_parameters } else { 0 };
        // With one rank what learns is held rounded, too.
        let copies = if ranks == 1 && rounds { number } else { 0 };
        let weights = each((4 + copies) * learned + number * frozen);
        let of_critic = critic.map_or(0, |critic| each((16 + copies) * critic.num_parameters));
        let of_reference = reference.map_or(0, |reference| each(number * reference.num_parameters));
        let gradients = each(4 * learned);
        let all_gradients = gradients + critic.map_or(0, |critic| each(4 * critic.num_parameters));
        let offloads = settings.offloads_reference && on_gpu;
        let reference_beside = match ranks {
            _ if !offloads => of_reference,
            // For its pass it comes to the GPU whole, while no gradients are there.
            1 => of_reference.saturating_sub(all_gradients),
            // A layer at a time, which `gathered` has room for.
            _ => 0,
        };
        let networks = [Some(policy), reference, critic];
        let gathered = |of: fn(&ModelSizes) -> u64| {
            networks.iter().flatten().map(|network| of(network)).max().unwrap_or(0)
        };
        let (layer, outside) = (gathered(|one| one.layer), gathered(|one| one.outside));
        // Of what learns whole, which is not the policy under an adapter.
        let learning = [Some(policy).filter(|_| settings.adapter.is_none()), critic];
        let largest = learning.iter().flatten().map(|one| one.layer.max(one.outside)).max().unwrap_or(0);
        let reduced = (4 + number) * largest;
        let gathered = if ranks > 1 { number * (outside + 2 * layer) + reduced } else { 0 };
        let program = match (on_gpu, ranks > 1) {
            (true, true) => CUDA + NCCL,
            (true, false) => CUDA,
            (false, _) => PROGRAM,
        };
        let part = |name, bytes| MemoryPart { name, bytes };
        let mut certain = vec![
            part("weights", weights),
            part("gradients", gradients),
            part("moments", each(8 * learned)),
            part("reference", reference_beside),
            part("critic", of_critic),
            part("gathered", gathered),
            part(if on_gpu { "CUDA" } else { "program" }, program),
        ];
        certain.retain(|part| part.bytes > 0);
        // There are weights by then, and no gradients or moments yet.
        let free =
            settings.capacity.map(|capacity| capacity.saturating_sub(weights + reference_beside + program));
        let whole = [4 * learned, critic.map_or(0, |critic| 4 * critic.num_parameters)];
        let whole = whole_gradients(&whole, free.filter(|_| ranks > 1));
        let if_room = if whole > 0 { vec![part("whole gradient", whole)] } else { Vec::new() };
        let shape = policy.shape.as_ref();
        // The policy's passes, or those of a critic that is larger.
        let shapes = [shape, critic.and_then(|critic| critic.shape.as_ref())];
        let (kept_per_token, layer_per_token) = (shapes.iter().flatten())
            .map(|shape| activation_bytes(shape, settings))
            .max_by_key(|(kept, layer)| kept + layer)
            .unwrap_or((0, 0));
        let logits = shape.map_or(0, |shape| {
            let numbers = CHUNK_NUMBERS[usize::from(!on_gpu)];
            let chunk = settings.logprob_chunk.unwrap_or((numbers / shape.vocab).max(16));
            // The head's gradient adds up in f32 before it is a weight's.
            let head = if settings.adapter.is_some() { 0 } else { 4 * shape.vocab * shape.hidden };
            CHUNK_BYTES * chunk.min(settings.tokens) * shape.vocab + head
        });
        let takes_turns = settings.recomputes;
        let layer = settings.tokens * layer_per_token;
        let of_batch = shape.map_or(Vec::new(), |_| {
            let beyond = if takes_turns { logits.saturating_sub(layer) } else { logits };
            let parts =
                vec![part("activations", settings.tokens * kept_per_token + layer), part("logits", beyond)];
            parts.into_iter().filter(|part| part.bytes > 0).collect()
        });
        let sent = if settings.sends_weights { number * policy.num_parameters } else { 0 };
        let host = sent + if offloads { of_reference * ranks } else { 0 };
        Self { certain, if_room, of_batch, kept_per_token, layer_per_token, logits, takes_turns, host }
    }

    /// Bytes that are taken in any case.
    pub fn least(&self) -> u64 {
        self.certain.iter().map(|part| part.bytes).sum()
    }

    /// Bytes with the largest micro-batch.
    pub fn most(&self) -> u64 {
        self.before_a_token() + self.of_batch.iter().map(|part| part.bytes).sum::<u64>()
    }

    /// Bytes of all that no micro-batch makes larger.
    fn before_a_token(&self) -> u64 {
        self.least() + self.if_room.iter().map(|part| part.bytes).sum::<u64>()
    }

    /// All parts.
    pub fn parts(&self) -> impl Iterator<Item = &MemoryPart> {
        self.certain.iter().chain(&self.if_room).chain(&self.of_batch)
    }

    /// The largest micro-batch that fits into so much memory, in tokens; 0 where none does.
    pub fn tokens_that_fit(&self, capacity: u64) -> u64 {
        let room = capacity.saturating_sub(self.before_a_token());
        let (kept, layer) = (self.kept_per_token, self.layer_per_token);
        let beside = room.saturating_sub(self.logits);
        if !self.takes_turns {
            return beside.checked_div(kept + layer).unwrap_or(0);
        }
        // The layer is the larger of the two, or the logits are.
        let by_layer = room.checked_div(kept + layer).unwrap_or(0);
        if by_layer * layer >= self.logits { by_layer } else { beside.checked_div(kept).unwrap_or(0) }
    }
}

/// Bytes of those gradients that a rank holds whole beside its part, with so much memory free; none where that is not
/// known.
fn whole_gradients(gradients: &[u64], free: Option<u64>) -> u64 {
    let most = free.unwrap_or(0) / SHARE_FOR_GRADIENTS;
    gradients.iter().filter(|&&bytes| bytes <= most).sum()
}

/// Bytes of activations for each token of a micro-batch: what stands whichever layer is computed, and what the
/// layer that is computed takes.
///
/// With `d` the width of the residual stream, `f` that of the feed-forward part, `q` and `k` those of all query
/// heads and of all key heads, a layer keeps for its backward pass, in bf16 (in f32),
///
/// ```text
/// 8 f + 16 d + 4 q + 4 k   (16 f + 24 d + 8 q + 8 k)
/// ```
///
/// and 4 for each head; more by 6 (8) for each number of heads that are normalised, by 20 (16) d where four norms
/// stand in a layer, and by 4 (8) d for each expert that a token passes through. Where activations are
/// computed again, each layer keeps its input alone. Derivatives within a layer take 6 (12) f + 8 (16) d.
fn activation_bytes(shape: &DecoderShape, settings: RankSettings) -> (u64, u64) {
    let (d, f) = (shape.hidden, shape.feed_forward);
    let heads = (shape.heads + shape.kv_heads) * shape.head_dim;
    let number = if settings.rounds { 2 } else { 4 };
    let norms = match (shape.has_four_norms, settings.rounds) {
        (false, true) => 16,
        (false, false) => 24,
        (true, true) => 36,
        (true, false) => 40,
    };
    let of_heads = 2 * number
        + match (shape.normalises_heads, settings.rounds) {
            (false, _) => 0,
            (true, true) => 6,
            (true, false) => 8,
        };
    let kept = 4 * number * f
        + (norms + 2 * number * shape.active_experts) * d
        + of_heads * heads
        + 4 * shape.heads
        + 8;
    let derivatives = 3 * number * f + 4 * number * d;
    // The last hidden states and their derivative.
    let last = 2 * number * d;
    if settings.recomputes {
        (number * d * shape.num_layers + last, kept + derivatives)
    } else {
        (kept * shape.num_layers + last, derivatives)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ALONE: RankSettings = RankSettings {
        ranks: 1,
        on_gpu: true,
        rounds: true,
        adapter: None,
        recomputes: false,
        tokens: 100,
        logprob_chunk: Some(10),
        offloads_reference: false,
        sends_weights: false,
        capacity: None,
    };

    /// Two layers of width 8, one of 32 tokens.
    fn sizes() -> ModelSizes {
        let config = json!({"model_type": "llama", "hidden_size": 8, "intermediate_size": 16,
            "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 32});
        ModelSizes::of_config(&config).expect("sizes")
    }

    fn of(memory: &RankMemory, name: &str) -> u64 {
        memory.parts().find(|part| part.name == name).map_or(0, |part| part.bytes)
    }

    #[test]
    fn one_rank_by_hand() {
        let sizes = sizes();
        let n = sizes.num_parameters;
        assert_eq!(n, 2 * (2 * 64 + 2 * 32 + 3 * 128 + 16) + 2 * 256 + 8);
        let memory = RankMemory::new(&sizes, Some(&sizes), None, ALONE);
        assert_eq!((of(&memory, "weights"), of(&memory, "gradients")), (6 * n, 4 * n));
        assert_eq!((of(&memory, "moments"), of(&memory, "reference")), (8 * n, 2 * n));
        assert_eq!((of(&memory, "gathered"), of(&memory, "CUDA")), (0, CUDA));
        let kept = 8 * 16 + 16 * 8 + 4 * (8 + 4) + 4 * 2 + 8;
        let derivatives = 6 * 16 + 8 * 8;
        assert_eq!(of(&memory, "activations"), 100 * (2 * kept + 4 * 8 + derivatives));
        assert_eq!(of(&memory, "logits"), 12 * 10 * 32 + 4 * 32 * 8);
        // Computed again, a layer takes its turn with the logits.
        let again = RankMemory::new(&sizes, None, None, RankSettings { recomputes: true, ..ALONE });
        let layer = 100 * (kept + derivatives);
        assert_eq!(of(&again, "activations"), 100 * (2 * 2 * 8 + 4 * 8) + layer);
        assert_eq!(of(&again, "logits"), 0);
        assert_eq!(again.tokens_that_fit(again.most()), 100);
        let few = RankSettings { recomputes: true, tokens: 5, ..ALONE };
        let few = RankMemory::new(&sizes, None, None, few);
        assert_eq!(of(&few, "logits"), 12 * 5 * 32 + 4 * 32 * 8 - 5 * (kept + derivatives));
        assert_eq!(few.tokens_that_fit(few.most()), 5);
        // As many tokens fit as were asked for, where the memory is what they take.
        assert_eq!(memory.tokens_that_fit(memory.most()), 100);
        assert_eq!(memory.tokens_that_fit(memory.least()), 0);
        // In f32 there is one copy, and all is twice as wide.
        let exact = RankMemory::new(&sizes, None, None, RankSettings { rounds: false, ..ALONE });
        assert_eq!(of(&exact, "weights"), 4 * n);
        let kept = 16 * 16 + 24 * 8 + 8 * (8 + 4) + 4 * 2 + 8;
        assert_eq!(of(&exact, "activations"), 100 * (2 * kept + 8 * 8 + 2 * derivatives));
    }

    #[test]
    fn several_ranks_share_out_what_one_has_whole() {
        let sizes = sizes();
        let n = sizes.num_parameters;
        let four = RankSettings { ranks: 4, ..ALONE };
        let critic = sizes.as_critic();
        let memory = RankMemory::new(&sizes, Some(&sizes), Some(&critic), four);
        assert_eq!((of(&memory, "weights"), of(&memory, "gradients")), (n, n));
        assert_eq!((of(&memory, "moments"), of(&memory, "reference")), (2 * n, n.div_ceil(2)));
        assert_eq!(critic.num_parameters, n - 256 + 8);
        assert_eq!(of(&memory, "critic"), 4 * critic.num_parameters);
        let (layer, outside) = (sizes.layer, sizes.outside);
        assert_eq!(of(&memory, "gathered"), 2 * (outside + 2 * layer) + 6 * layer.max(outside));
        assert_eq!(of(&memory, "CUDA"), CUDA + NCCL);
        // An adapter learns beside frozen weights.
        let adapted = RankSettings { adapter: Some(1000), ..four };
        let memory = RankMemory::new(&sizes, None, None, adapted);
        assert_eq!(of(&memory, "weights"), (4 * 1000 + 2 * n).div_ceil(4));
        assert_eq!((of(&memory, "moments"), of(&memory, "reference")), (2000, 0));
        let away =
            RankMemory::new(&sizes, Some(&sizes), None, RankSettings { offloads_reference: true, ..ALONE });
        assert_eq!((of(&away, "reference"), away.host), (0, 2 * n));
    }

    /// Where there is room ranks add up whole gradients, as `_finds_room` in `python/tamis/learner/sharding.py` has it.
    #[test]
    fn a_whole_gradient_counts_where_it_finds_room() {
        let sizes = sizes();
        let n = sizes.num_parameters;
        let critic = sizes.as_critic();
        // The rank's part of the weights, CUDA and NCCL; the gradient is a quarter of what is left.
        let enough = CUDA + NCCL + n + 4 * 4 * n;
        let four = |capacity| RankSettings { ranks: 4, capacity: Some(capacity), ..ALONE };
        let memory = RankMemory::new(&sizes, None, None, four(enough));
        assert_eq!(of(&memory, "whole gradient"), 4 * n);
        assert_eq!(memory.tokens_that_fit(memory.most()), 100);
        // It never counts as certain.
        let without = RankMemory::new(&sizes, None, None, four(enough - 1));
        assert_eq!((of(&without, "whole gradient"), without.least()), (0, memory.least()));
        assert_eq!(without.most() + 4 * n, memory.most());
        let both = RankMemory::new(&sizes, None, Some(&critic), four(enough));
        assert_eq!(of(&both, "whole gradient"), 4 * (n + critic.num_parameters));
        let alone = RankSettings { capacity: Some(1 << 40), ..ALONE };
        assert_eq!(of(&RankMemory::new(&sizes, None, None, alone), "whole gradient"), 0);
        // An adapter's is small.
        let adapted = RankSettings { adapter: Some(10), ..four(enough) };
        assert_eq!(of(&RankMemory::new(&sizes, None, None, adapted), "whole gradient"), 40);
    }

    #[test]
    fn weights_that_are_sent_are_in_main_memory_once() {
        let sizes = sizes();
        let sends = RankSettings { ranks: 4, sends_weights: true, ..ALONE };
        assert_eq!(RankMemory::new(&sizes, None, None, sends).host, 2 * sizes.num_parameters);
    }

    /// Where it waits in main memory it is on one rank's GPU for its pass, in which there are no gradients.
    #[test]
    fn a_reference_that_is_offloaded_counts_where_it_is() {
        let sizes = sizes();
        let n = sizes.num_parameters;
        let larger = ModelSizes { num_parameters: 5 * n, ..sizes.clone() };
        let away = RankSettings { offloads_reference: true, ..ALONE };
        let memory = RankMemory::new(&sizes, Some(&larger), None, away);
        assert_eq!((of(&memory, "reference"), memory.host), (10 * n - 4 * n, 10 * n));
        let critic = sizes.as_critic();
        let memory = RankMemory::new(&sizes, Some(&larger), Some(&critic), away);
        assert_eq!(of(&memory, "reference"), 10 * n - 4 * n - 4 * critic.num_parameters);
        let several = RankSettings { ranks: 4, ..away };
        assert_eq!(of(&RankMemory::new(&sizes, Some(&larger), None, several), "reference"), 0);
        // On a CPU it has nowhere else to wait.
        let memory = RankMemory::new(&sizes, Some(&sizes), None, RankSettings { on_gpu: false, ..away });
        assert_eq!((of(&memory, "reference"), memory.host), (2 * n, 0));
    }

    #[test]
    fn a_cpu_has_smaller_chunks_and_no_driver() {
        let memory = RankMemory::new(
            &sizes(),
            None,
            None,
            RankSettings { on_gpu: false, rounds: false, logprob_chunk: None, tokens: 1 << 20, ..ALONE },
        );
        assert_eq!((of(&memory, "program"), of(&memory, "CUDA")), (PROGRAM, 0));
        assert_eq!(of(&memory, "logits"), 12 * (1 << 21) + 4 * 32 * 8);
    }
}
