//! The keys of `model`.

use std::path::PathBuf;

use tamis_core::choice;
use tamis_core::setting::{ModelPlace, Program, TimeSpan};

choice! {
    /// Treatment of a text that is longer than the reward model reads.
    pub enum OverlongTexts {
        /// The completion has no score of this reward, and is counted among its failures.
        Unscored = "unscored",
        /// Its first tokens are cut; the share of such texts is the metric `reward_log/NAME_truncated`.
        Left = "left",
        /// Its last tokens are cut; the share of such texts is the metric `reward_log/NAME_truncated`.
        Right = "right",
    }
}

choice! {
    /// The function of a reward model's logits that is its score.
    pub enum LogitActivation {
        /// The logit itself, as TRL and verl take it.
        Identity = "none",
        /// `1 / (1 + exp(-logit))`.
        Sigmoid = "sigmoid",
        /// The label's share of the exponentials of all logits.
        Softmax = "softmax",
        /// Whatever `servers` apply: they are not told otherwise.
        AsServed = "as_served",
    }
}

choice! {
    /// The number format that a reward model computes in.
    pub enum RewardDtype {
        /// `bf16` on a GPU, `f32` on a CPU.
        Auto = "auto",
        /// 32 bits.
        F32 = "f32",
        /// bfloat16.
        Bf16 = "bf16",
        /// IEEE half precision.
        F16 = "f16",
    }
}

choice! {
    /// The call by which servers are asked for a score.
    pub enum ScoreEndpoint {
        /// vLLM's `/classify`: sequence classification, with logits by label.
        Classify = "classify",
        /// vLLM's `/pooling`: also models that give a logit for each token, of which the last one counts.
        Pooling = "pooling",
    }
}

tamis_core::settings! {
    /// A reward model: where it is, the text that it reads, and the number that is its score.
    pub struct ModelSettings {
        /// Reward model that the run loads in PyTorch, in a process of its own: a folder in Hugging Face
        /// layout, or a name on a hub (`owner/name`, `owner/name@revision`). It must have a head for sequence
        /// classification. Null: `servers` have it.
        path: Option<ModelPlace> = None, NotEmpty;
        /// Addresses of servers that have it, such as `vllm serve MODEL --runner pooling`; they are asked in
        /// turn.
        servers: Vec<String> = Vec::new(), Any, Free;
        /// Name of the model at the servers. Null: the first that a server has.
        model: Option<String> = None, NotEmpty;
        /// Call by which the servers are asked.
        endpoint: ScoreEndpoint = ScoreEndpoint::Classify;
        /// Text that the model reads. `auto`: a prompt of messages and its completion go through the model's
        /// own chat template, a prompt of text has the completion after it (as in TRL). `chat`: the chat
        /// template always; a prompt of text is one message of the user. Anything else is the text itself, in
        /// which `{prompt}`, `{completion}`, `{ground_truth}`, `{data_source}` and `{COLUMN}` of the data are
        /// filled in.
        template: String = "auto".to_owned(), NotEmpty;
        /// Add the tokenizer's special tokens to a text without a chat template (`[CLS]`, `<s>`).
        add_special_tokens: bool = false;
        /// Longest text in tokens. Null: as long as the model reads.
        max_length: Option<usize> = None, AtLeast(1.0);
        /// Treatment of a longer text.
        overlong: OverlongTexts = OverlongTexts::Unscored;
        /// Number of the logit that is the score, from 0.
        label: usize = 0;
        /// Function of the logits that is the score.
        activation: LogitActivation = LogitActivation::Identity;
        /// Score from which on a completion is right (`acc`). Null: the model gives no `acc`.
        pass_score: Option<f64> = None;
        /// Most texts that pass through the model together, or go to a server in one request. With 1, a score
        /// of the loaded model depends on its text alone, to the bit.
        batch_size: usize = 16, Between(1.0, 4096.0);
        /// Number of requests at once.
        concurrency: usize = 32, Between(1.0, 1024.0), Free;
        /// Device of the loaded model: `cuda`, `cuda:1`, `cpu`. `auto`: a GPU where there is one.
        device: String = "auto".to_owned(), NotEmpty, Free;
        /// Number format that the loaded model computes in.
        dtype: RewardDtype = RewardDtype::Auto;
        /// Python interpreter with PyTorch, transformers and safetensors, which loads the model.
        python: Program = Program("python3".into()), NotEmpty, Free;
        /// Longest time until the model is loaded, or until servers answer at the start of a run.
        startup_timeout: TimeSpan = TimeSpan::seconds(300), Any, Free;
        /// Most restarts of the model's process in a run.
        max_restarts: usize = 10, Any, Free;
        /// File with the servers' key.
        api_key_file: Option<PathBuf> = None, NotEmpty, Free;
        /// Environment variable with the servers' key, in place of `api_key_file`.
        api_key_env: Option<String> = None, NotEmpty, Free;
        /// Longest time of one answer.
        timeout: TimeSpan = TimeSpan::seconds(600), Any, Free;
        /// Most attempts for one request where servers are busy or do not answer.
        max_attempts: usize = 5, Between(1.0, 100.0), Free;
    }
}
