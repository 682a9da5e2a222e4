//! Layout of a model's tensors in one flat buffer; weights, gradients and moments share it.

use crate::config::{OutputHead, TransformerConfig};
use crate::panels;
use crate::simd::PANEL;

/// Name of the embedding.
pub(crate) const EMBEDDING: &str = "model.embed_tokens.weight";

/// Order of a tensor's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TensorOrder {
    Rows,
    /// Panels of sixteen rows (see [`crate::panels`]).
    Panels,
}

/// Role of a tensor, for weight decay and initial values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Matrix,
    Norm,
    Bias,
}

#[derive(Debug, Clone)]
pub(crate) struct Tensor {
    pub name: String,
    pub shape: Vec<usize>,
    pub order: TensorOrder,
    pub role: Role,
    pub offset: usize,
    pub len: usize,
}

impl Tensor {
    pub(crate) fn of<'a>(&self, buffer: &'a [f32]) -> &'a [f32] {
        &buffer[self.offset..self.offset + self.len]
    }

    /// The tensor's part of a buffer, mutable.
    pub(crate) fn of_mut<'a>(&self, buffer: &'a mut [f32]) -> &'a mut [f32] {
        &mut buffer[self.offset..self.offset + self.len]
    }

    /// The tensor's values in the order of the file.
    pub(crate) fn to_rows(&self, buffer: &[f32]) -> Vec<f32> {
        self.pieces_of_rows(buffer).flatten().collect()
    }

    /// [`to_rows`](Self::to_rows) in pieces, so that no second copy of a large tensor is needed.
    pub(crate) fn pieces_of_rows<'a>(&'a self, buffer: &'a [f32]) -> impl Iterator<Item = Vec<f32>> {
        let values = self.of(buffer);
        let (n, k) = match (self.order, &self.shape[..]) {
            (TensorOrder::Panels, &[n, k]) => (n, k),
            _ => (0, 0),
        };
        let pieces = values.chunks(if k == 0 { 1 << 16 } else { PANEL * k }).enumerate();
        pieces.map(move |(panel, values)| {
            if k == 0 { values.to_vec() } else { panels::to_rows(values, (n - panel * PANEL).min(PANEL), k) }
        })
    }

    /// Writes consecutive whole rows, in the order of the file, into a buffer, starting at row `first`.
    pub(crate) fn set_some_rows(&self, buffer: &mut [f32], first: usize, values: &[f32]) {
        let width = self.shape.iter().skip(1).product::<usize>();
        let out = self.of_mut(buffer);
        if self.order == TensorOrder::Panels {
            for (row, values) in values.chunks_exact(width).enumerate() {
                panels::set_row(out, width, first + row, values.iter().copied());
            }
        } else {
            out[first * width..][..values.len()].copy_from_slice(values);
        }
    }

    /// Writes values in the order of the file into a buffer.
    pub(crate) fn set_rows(&self, buffer: &mut [f32], mut values: impl Iterator<Item = f32>) {
        let out = self.of_mut(buffer);
        match (self.order, &self.shape[..]) {
            (TensorOrder::Panels, &[n, k]) => {
                for row in 0..n {
                    panels::set_row(out, k, row, values.by_ref());
                }
            }
            _ => out.iter_mut().zip(values).for_each(|(out, value)| *out = value),
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Layer {
    pub input_norm: usize,
    pub q: usize,
    pub k: usize,
    pub v: usize,
    /// Biases of q, k, v.
    pub qkv_bias: Option<[usize; 3]>,
    /// Norms of q and k.
    pub qk_norm: Option<[usize; 2]>,
    pub o: usize,
    pub o_bias: Option<usize>,
    pub mlp_norm: usize,
    pub gate: usize,
    pub up: usize,
    pub down: usize,
}

#[derive(Debug, Clone)]
pub(crate) struct WeightLayout {
    pub tensors: Vec<Tensor>,
    /// Length of a buffer.
    pub len: usize,
    pub embedding: usize,
    pub layers: Vec<Layer>,
    pub norm: usize,
    /// The embedding if the head is tied; the weights of a value head.
    pub head: usize,
    /// Bias of a value head.
    pub head_bias: Option<usize>,
}

impl WeightLayout {
    pub(crate) fn new(config: &TransformerConfig) -> Self {
        let mut builder = Builder::default();
        let d = config.hidden_size;
        let (q, kv) = (config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim);
        let order = if config.is_tied() { TensorOrder::Panels } else { TensorOrder::Rows };
        let embedding = builder.add(EMBEDDING.to_owned(), &[config.vocab_size, d], order, Role::Matrix);
        let layers = (0..config.num_layers)
            .map(|i| {
                let mut matrix = |name: &str, n: usize, k: usize| {
                    builder.add(
                        format!("model.layers.{i}.{name}.weight"),
                        &[n, k],
                        TensorOrder::Panels,
                        Role::Matrix,
                    )
                };
                let [q_index, k_index, v_index] = [("q", q), ("k", kv), ("v", kv)]
                    .map(|(name, n)| matrix(&format!("self_attn.{name}_proj"), n, d));
                let o = matrix("self_attn.o_proj", d, q);
                let gate = matrix("mlp.gate_proj", config.intermediate_size, d);
                let up = matrix("mlp.up_proj", config.intermediate_size, d);
                let down = matrix("mlp.down_proj", d, config.intermediate_size);
                let mut vector = |name: &str, n: usize, role| {
                    builder.add(format!("model.layers.{i}.{name}"), &[n], TensorOrder::Rows, role)
                };
                Layer {
                    input_norm: vector("input_layernorm.weight", d, Role::Norm),
                    q: q_index,
                    k: k_index,
                    v: v_index,
                    qkv_bias: config.qkv_bias.then(|| {
                        [("q", q), ("k", kv), ("v", kv)]
                            .map(|(name, n)| vector(&format!("self_attn.{name}_proj.bias"), n, Role::Bias))
                    }),
                    qk_norm: config.qk_norm().then(|| {
                        ["q", "k"].map(|name| {
                            vector(&format!("self_attn.{name}_norm.weight"), config.head_dim, Role::Norm)
                        })
                    }),
                    o,
                    o_bias: config.output_bias.then(|| vector("self_attn.o_proj.bias", d, Role::Bias)),
                    mlp_norm: vector("post_attention_layernorm.weight", d, Role::Norm),
                    gate,
                    up,
                    down,
                }
            })
            .collect();
        let norm = builder.add("model.norm.weight".to_owned(), &[d], TensorOrder::Rows, Role::Norm);
        let (head, head_bias) = match config.head {
            OutputHead::Vocabulary if config.is_tied() => (embedding, None),
            OutputHead::Vocabulary => {
                let shape = [config.vocab_size, d];
                (builder.add("lm_head.weight".to_owned(), &shape, TensorOrder::Panels, Role::Matrix), None)
            }
            OutputHead::Value => (
                builder.add("score.weight".to_owned(), &[1, d], TensorOrder::Rows, Role::Matrix),
                Some(builder.add("score.bias".to_owned(), &[1], TensorOrder::Rows, Role::Bias)),
            ),
        };
        Self { tensors: builder.tensors, len: builder.len, embedding, layers, norm, head, head_bias }
    }

    /// Number of values without padding.
    pub(crate) fn num_parameters(&self) -> usize {
        self.tensors.iter().map(|tensor| tensor.shape.iter().product::<usize>()).sum()
    }
}

#[derive(Default)]
struct Builder {
    tensors: Vec<Tensor>,
    len: usize,
}

impl Builder {
    fn add(&mut self, name: String, shape: &[usize], order: TensorOrder, role: Role) -> usize {
        let len = match (order, shape) {
            (TensorOrder::Panels, &[n, k]) => panels::len(n, k),
            _ => shape.iter().product(),
        };
        self.tensors.push(Tensor { name, shape: shape.to_vec(), order, role, offset: self.len, len });
        // Each tensor begins at a cache line.
        self.len += len.next_multiple_of(PANEL);
        self.tensors.len() - 1
    }
}
