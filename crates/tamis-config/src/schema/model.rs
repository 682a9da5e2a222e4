//! `model`: the policy that is trained and the reference it is held to.

use std::path::PathBuf;

use tamis_core::settings;
use tamis_core::weights::{Architecture, SaveDtype};

use crate::hub_name::ModelSource;
use crate::value::{ByteSize, TokenizerSource};

settings! {
    /// A model that starts from random weights.
    pub struct InitConfig {
        /// Architecture of the new model.
        architecture: Architecture = Architecture::Qwen3;
        /// Width of the residual stream.
        hidden_size: usize = 128, Between(1.0, 16_777_216.0);
        /// Width inside the feed-forward part.
        intermediate_size: usize = 384, Between(1.0, 16_777_216.0);
        /// Number of transformer blocks.
        num_layers: usize = 4, Between(1.0, 4096.0);
        /// Number of query heads.
        num_heads: usize = 4, Between(1.0, 65_536.0);
        /// Number of key and value heads, a divisor of `num_heads`. Null: as many as query heads.
        num_kv_heads: Option<usize> = None, Between(1.0, 65_536.0);
        /// Width of a head, even. Null: `hidden_size / num_heads`.
        head_dim: Option<usize> = None, Between(2.0, 65_536.0);
        /// Share the embedding's weights with the output head.
        tie_word_embeddings: bool = true;
        /// Base of the rotary position embedding.
        rope_theta: f64 = 10_000.0, Positive;
        /// Longest sequence in tokens, prompt and response together.
        max_position_embeddings: usize = 1024, Between(2.0, 16_777_216.0);
        /// Tokenizer: `char` for the built-in character tokenizer, or the path of a `tokenizer.json` or of
        /// the folder that holds it.
        tokenizer: TokenizerSource = TokenizerSource::Character;
    }
}

settings! {
    /// The policy that is trained, and the reference it is held to. Exactly one of `path` and `init` is set.
    pub struct ModelConfig {
        /// Folder of a checkpoint in the Hugging Face layout (`config.json`, `*.safetensors`, tokenizer), or
        /// the name of a model on a hub (`Qwen/Qwen2.5-0.5B-Instruct`, `owner/name@REVISION`). A folder that
        /// is there goes before a name; `hf://` before a name makes it one in any case. What is not in the
        /// cache of the hub's own library is downloaded into it, and the commit is written into the run's
        /// `config.yaml`.
        path: Option<ModelSource> = None, NotEmpty;
        /// A model from random weights, in place of `path`.
        init: Option<InitConfig> = None;
        /// Checkpoint of the reference policy that the KL terms are measured against, a folder or a name as
        /// `path`. Null: the initial policy (after the warm start, where there is one). It is loaded only
        /// where a KL term is on.
        reference: Option<ModelSource> = None, NotEmpty;
        /// A value head on the policy itself: refused. The critic (`critic`) is a model of its own, made
        /// where the advantages need one.
        value_head: bool = false;
        /// Number format of saved weights.
        save_dtype: SaveDtype = SaveDtype::F32, Any, Free;
        /// File with a Jinja chat template that replaces the model's own.
        chat_template: Option<PathBuf> = None, NotEmpty;
        /// Recompute activations in the backward pass: about a third more computation, much less memory.
        recompute_activations: bool = false, Any, Free;
        /// Memory that a run whose policy learns in this process may take, in bytes or with a unit (`8GiB`).
        /// A run that could take more is refused at the start. Null: refuse only a run that cannot fit into
        /// the free memory even with the shortest completions.
        memory_limit: Option<ByteSize> = None, Any, Free;
    }
}
