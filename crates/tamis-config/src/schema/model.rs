//! `model`: the policy that is trained and the reference for its KL divergence.

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
        /// Width of the feed-forward layers.
        intermediate_size: usize = 384, Between(1.0, 16_777_216.0);
        /// Number of transformer blocks.
        num_layers: usize = 4, Between(1.0, 4096.0);
        /// Number of query heads.
        num_heads: usize = 4, Between(1.0, 65_536.0);
        /// Number of key and value heads, a divisor of `num_heads`. Null: `num_heads`.
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
        /// its folder.
        tokenizer: TokenizerSource = TokenizerSource::Character;
    }
}

settings! {
    /// The policy that is trained, and the reference for its KL divergence. Exactly one of `path` and `init`
    /// must be set.
    pub struct ModelConfig {
        /// Folder of a checkpoint in the Hugging Face layout (`config.json`, `*.safetensors`, tokenizer), or
        /// the name of a model on a hub (`Qwen/Qwen2.5-0.5B-Instruct`, `owner/name@REVISION`). A text that is
        /// both an existing folder and a name is taken as the folder; `hf://` in front makes it a name.
        /// Missing files are downloaded into the cache of the hub's own library, and the commit is written to
        /// the run's `config.yaml`.
        path: Option<ModelSource> = None, NotEmpty;
        /// A model with random weights, instead of `path`.
        init: Option<InitConfig> = None;
        /// Checkpoint of the reference policy for the KL terms: a folder or a name, as in `path`. Null: the
        /// initial policy, after the warm start if there is one. It is loaded only if a KL term is used.
        reference: Option<ModelSource> = None, NotEmpty;
        /// A value head on the policy itself. Not supported: `true` is refused. The critic (`critic`) is a
        /// separate model, which is created if the advantages need one.
        value_head: bool = false;
        /// Number format of saved weights.
        save_dtype: SaveDtype = SaveDtype::F32, Any, Free;
        /// File with a Jinja chat template that replaces the model's own.
        chat_template: Option<PathBuf> = None, NotEmpty;
        /// Recompute activations in the backward pass. This costs about a third more computation and saves
        /// much memory.
        recompute_activations: bool = false, Any, Free;
        /// Most memory of a run whose policy learns in this process, in bytes or with a unit (`8GiB`). A run
        /// that could need more is refused at the start. Null: a run is refused only if it does not fit into
        /// the free memory even with the shortest completions.
        memory_limit: Option<ByteSize> = None, Any, Free;
    }
}
