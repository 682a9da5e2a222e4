//! The keys of `model`.

use std::path::PathBuf;

use tamis_core::choice;
use tamis_core::setting::{ModelPlace, Program, TimeSpan};

choice! {
    /// What happens to a text that is too long for the reward model.
    pub enum OverlongTexts {
        /// The completion has no score of this reward and counts among its failures.
        Unscored = "unscored",
        /// Its first tokens are removed; the share of such texts is the metric `reward_log/NAME_truncated`.
        Left = "left",
        /// Its last tokens are removed; the share of such texts is the metric `reward_log/NAME_truncated`.
        Right = "right",
    }
}

choice! {
    /// How a reward model's logits become its score.
    pub enum LogitActivation {
        /// The logit itself, as in TRL and verl.
        Identity = "none",
        /// `1 / (1 + exp(-logit))`.
        Sigmoid = "sigmoid",
        /// The label's share of the exponentials of all logits.
        Softmax = "softmax",
        /// The default of `servers`: requests do not set it.
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
    /// The API call for a score from servers.
    pub enum ScoreEndpoint {
        /// vLLM's `/classify`: sequence classification, with logits by label.
        Classify = "classify",
        /// vLLM's `/pooling`, also for models with a logit for each token, of which the last counts.
        Pooling = "pooling",
    }
}

tamis_core::settings! {
    /// A reward model: its place, its input text, and how its score is computed.
    pub struct ModelSettings {
        /// Reward model that the run loads in PyTorch, in a separate process: a folder in Hugging Face
        /// layout, or a name on a hub (`owner/name`, `owner/name@revision`). It must have a head for sequence
        /// classification. Null: `servers` serve the model.
        path: Option<ModelPlace> = None, NotEmpty;
        /// Addresses of servers with the model, such as `vllm serve MODEL --runner pooling`. Requests go to
        /// them in turn.
        servers: Vec<String> = Vec::new(), Any, Free;
        /// Name of the model at the servers. Null: the first model that a server lists.
        model: Option<String> = None, NotEmpty;
        /// API call to the servers.
        endpoint: ScoreEndpoint = ScoreEndpoint::Classify;
        /// Input text of the model. `auto`: a prompt of messages and its completion go through the model's
        /// own chat template; a text prompt is followed by the completion (as in TRL). `chat`: always the
        /// chat template; a text prompt is one user message. Any other value is a template for the text, in
        /// which `{prompt}`, `{completion}`, `{ground_truth}`, `{data_source}` and `{COLUMN}` (a column of
        /// the data) are replaced.
        template: String = "auto".to_owned(), NotEmpty;
        /// Add the tokenizer's special tokens to a text without a chat template (`[CLS]`, `<s>`).
        add_special_tokens: bool = false;
        /// Longest text in tokens. Null: the model's own limit.
        max_length: Option<usize> = None, AtLeast(1.0);
        /// Action for a longer text.
        overlong: OverlongTexts = OverlongTexts::Unscored;
        /// Index of the logit that is the score, from 0.
        label: usize = 0;
        /// How the logits become the score.
        activation: LogitActivation = LogitActivation::Identity;
        /// Lowest score of a right completion, which sets `acc`. Null: the model gives no `acc`.
        pass_score: Option<f64> = None;
        /// Most texts in one pass of the model, or in one request to a server. With 1, a score of the loaded
        /// model depends only on its text, bit for bit.
        batch_size: usize = 16, Between(1.0, 4096.0);
        /// Most requests in flight at once.
        concurrency: usize = 32, Between(1.0, 1024.0), Free;
        /// Device of the loaded model: `cuda`, `cuda:1`, `cpu`. `auto`: a GPU, if there is one.
        device: String = "auto".to_owned(), NotEmpty, Free;
        /// Number format that the loaded model computes in.
        dtype: RewardDtype = RewardDtype::Auto;
        /// Python interpreter that loads the model; it needs PyTorch, transformers and safetensors.
        /// `run.python`: that of this key.
        python: Program = Program::of_run(), NotEmpty, Free;
        /// Longest time until the model is loaded, or until servers answer at the start of a run.
        startup_timeout: TimeSpan = TimeSpan::seconds(300), Any, Free;
        /// Most restarts of the model's process in a run.
        max_restarts: usize = 10, Any, Free;
        /// File with the servers' API key.
        api_key_file: Option<PathBuf> = None, NotEmpty, Free;
        /// Environment variable with the servers' API key, instead of `api_key_file`.
        api_key_env: Option<String> = None, NotEmpty, Free;
        /// Longest time of one answer.
        timeout: TimeSpan = TimeSpan::seconds(600), Any, Free;
        /// Most attempts for one request if servers are busy or do not answer.
        max_attempts: usize = 5, Between(1.0, 100.0), Free;
    }
}
