//! Words for weights that the configuration, the engine and the wire to learners share.

use crate::choice;

choice! {
    /// A decoder-only architecture of the native engine.
    pub enum Architecture {
        /// Qwen2: biases on query, key and value.
        Qwen2 = "qwen2",
        /// Qwen3: normalised queries and keys, no biases.
        Qwen3 = "qwen3",
        /// Llama: no biases, no normalisation of queries and keys.
        Llama = "llama",
    }
}

impl Architecture {
    /// The class name in `architectures` of a language model.
    pub fn class_name(self) -> &'static str {
        match self {
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
            Self::Llama => "LlamaForCausalLM",
        }
    }

    /// The class name in `architectures` of a critic.
    pub fn critic_class_name(self) -> String {
        self.class_name().replace("ForCausalLM", "ForTokenClassification")
    }
}

choice! {
    /// The number format in which weights are saved. Computation is always in f32.
    pub enum SaveDtype {
        /// 32 bits: the trained values exactly.
        F32 = "f32",
        /// bfloat16: half the size, 8 bits of precision.
        Bf16 = "bf16",
        /// IEEE half precision: half the size, 11 bits of precision, largest value 65,504.
        F16 = "f16",
    }
}

impl SaveDtype {
    /// The name in `config.json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::Bf16 => "bfloat16",
            Self::F16 => "float16",
        }
    }

    /// Bytes of one number.
    pub fn size(self) -> usize {
        if self == Self::F32 { 4 } else { 2 }
    }
}
