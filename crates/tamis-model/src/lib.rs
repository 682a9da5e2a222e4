//! Kernel: the native CPU engine, with the forward pass, the backward pass and generation of Qwen2, Qwen3 and
//! Llama.
//!
//! [`TransformerConfig`] and [`Model`] read and write Hugging Face folders. [`score`] computes
//! log-probabilities and entropies of ragged sequences, and [`forward_hold`] with [`backward`] also their
//! gradients. [`values`], and [`values_forward_hold`] with [`values_backward`], do the same for a critic
//! ([`Model::critic`]). [`AdamW`] updates the weights. [`BatchGenerator`] samples completions; their
//! log-probabilities are, bit for bit, those of [`score`].

mod activation;
mod adamw;
mod attention;
mod checkpoint;
mod config;
mod floats;
mod generation;
mod layout;
mod linear;
mod memory;
mod model;
mod norm;
mod panels;
mod product;
mod rotary;
mod simd;
mod threads;
mod training;
mod vocabulary;

pub use adamw::{AdamW, AdamWConfig, OptimizerStep, norm as gradient_norm};
pub use checkpoint::{CheckpointError, Fill, head_warning, weights_elsewhere, write_file};
pub use config::{ConfigError, Llama3Scaling, OutputHead, TransformerConfig};
pub use generation::{
    Alternatives, BatchGenerator, Completion, CompletionEnd, CompletionProgress, GenerationRequest,
    GeneratorSettings, LOGITS_NOT_FINITE, RequestId, SamplingError, SamplingParams, SequenceName, StopCheck,
    TokenMask, TurnPlace,
};
pub use memory::{GenerationPlan, MemoryEstimate, MemoryPlan, available_memory, micro_batch_tokens};
pub use model::Model;
pub use product::{ProductShape, measure_peak, measure_product};
pub use simd::SimdLevel;
pub use tamis_core::weights::{Architecture, SaveDtype};
pub use threads::Threads;
pub use training::{
    Candidates, Coefficients, Gradients, HeldPass, PassOptions, Sequence, SequenceError, TokenScores,
    TopTokens, Workspace, backward, backward_beside, forward_backward, forward_hold, forward_hold_beside,
    logits, score, score_with_top, values, values_backward, values_forward_hold,
};
