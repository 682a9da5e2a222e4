//! `rollout`: how completions are sampled.

use std::path::PathBuf;

use tamis_core::setting::TimeSpan;
use tamis_core::{choice, settings};

use crate::value::FreeMap;

choice! {
    /// Where completions are sampled.
    pub enum BackendKind {
        /// The built-in CPU engine.
        Native = "native",
        /// The learner itself (`learner.backend`, `learner.url`). It samples and learns in turns with the
        /// same weights, so nothing is published. A learner in this process is the built-in engine.
        Learner = "learner",
        /// vLLM servers, `tamis serve` included: weights are published to them after every step.
        Vllm = "vllm",
        /// SGLang servers: weights are published to them after every step.
        Sglang = "sglang",
        /// Any server with OpenAI's `/v1/completions`: text in, text out, from the server's own model. Only
        /// for `tamis eval`; training needs tokens and log-probabilities.
        OpenAi = "openai",
    }
}

choice! {
    /// Which trajectories are written to `rollouts/` in the run folder.
    pub enum SaveRollouts {
        /// Every generated trajectory, dropped ones too.
        All = "all",
        /// Trajectories that were trained on.
        Kept = "kept",
        /// None.
        Off = "off",
    }
}

settings! {
    /// Servers that a run starts itself, on this machine or through `cluster.launcher`. They end with the
    /// run.
    pub struct LaunchConfig {
        /// Number of servers to start.
        replicas: usize = 1, Between(1.0, 1024.0), Free;
        /// Number of GPUs over which each server splits its model. If there are several servers, each gets
        /// the next GPUs of `CUDA_VISIBLE_DEVICES`, or of all GPUs if that is not set.
        tensor_parallel: usize = 1, Between(1.0, 1024.0), Free;
        /// Further arguments of the server (`[--gpu-memory-utilization, '0.8']`).
        args: Vec<String> = Vec::new(), Any, Free;
        /// Command that replaces vLLM's or SGLang's own. It is run without a shell. `{model}` is replaced by
        /// the folder of the first weights, `{port}` by the port, and `{host}` by the address to listen on
        /// (127.0.0.1, unless `cluster.launcher: ray` starts the server). If a launcher starts it,
        /// `{key_file}` is replaced by a file with the API key that the server must require, and
        /// `{key_config}` by a YAML file with that key. Empty: `vllm serve {model} ...` or
        /// `python3 -m sglang.launch_server --model-path {model} ...`.
        command: Vec<String> = Vec::new(), Any, Free;
        /// Longest time until the started servers answer.
        startup_timeout: TimeSpan = TimeSpan::seconds(900), Any, Free;
        /// Longest time for which a started server may leave health checks unanswered. A server that hangs
        /// longer is killed and started again. Null: no limit.
        lost_timeout: Option<TimeSpan> = Some(TimeSpan::seconds(120)), Any, Free;
    }
}

settings! {
    /// How completions are sampled. Log-probabilities are those of the temperature-scaled distribution,
    /// before the repetition penalty, top-k, top-p and min-p.
    pub struct RolloutConfig {
        /// Where completions are sampled.
        backend: BackendKind = BackendKind::Native;
        /// Addresses of servers that are running already (`[http://127.0.0.1:8000]`). They must serve a model
        /// of this run's shape and tokenizer, and must be able to read the folder that weights are published
        /// to (`publish.dir`). vLLM must run with `VLLM_SERVER_DEV_MODE=1`.
        servers: Vec<String> = Vec::new(), Any, Free;
        /// Servers that the run starts itself, if `rollout.servers` is empty. `{}` starts one. Null: none.
        launch: Option<LaunchConfig> = None, Any, Free;
        /// The model's name at the servers. Null: the first model that each server lists.
        server_model: Option<String> = None, NotEmpty, Free;
        /// Further sampling parameters of the servers, by their names (`{cache_salt: x}`). A parameter that a
        /// key of this configuration sets is refused.
        server_parameters: FreeMap = FreeMap::default();
        /// Longest time of one sample at a server. A sample that takes longer is retried, if possible at
        /// another server.
        server_timeout: TimeSpan = TimeSpan::seconds(600), Any, Free;
        /// Most samples in flight at one server; a run starts with this number. Null: it starts with 256 and
        /// adapts to the server's own metrics or refusals (429, 503).
        max_in_flight: Option<usize> = None, AtLeast(1.0), Free;
        /// Longest time until servers answer at the start of a run.
        server_startup_timeout: TimeSpan = TimeSpan::seconds(60), Any, Free;
        /// Longest time that a run waits if no server is left. The run then saves its state and ends; it can
        /// be resumed. Null: no limit.
        server_lost_timeout: Option<TimeSpan> = Some(TimeSpan::seconds(3600)), Any, Free;
        /// Sleep of vLLM servers while the policy learns, if they share its GPU. 0: they stay awake. 1: they
        /// free the GPU and hold their weights in main memory. 2: they discard their weights too, and get
        /// them back when weights are published.
        sleep_level: usize = 0, Between(0.0, 2.0), Free;
        /// File with the API key that the servers require (`Authorization: Bearer`).
        api_key_file: Option<PathBuf> = None, NotEmpty, Free;
        /// Environment variable with the servers' API key, instead of `rollout.api_key_file`.
        api_key_env: Option<String> = None, NotEmpty, Free;
        /// Trajectories per prompt: the group size.
        n: usize = 8, Between(1.0, 65536.0);
        /// Temperature of the softmax that tokens are sampled from.
        temperature: f64 = 1.0, Between(1e-6, 1e6);
        /// Sample only from the smallest set of tokens whose probabilities sum to at least this. 1: all
        /// tokens.
        top_p: f64 = 1.0, Probability;
        /// Sample only from this number of likeliest tokens. 0: all tokens.
        top_k: usize = 0;
        /// Lowest probability of a sampled token, as a fraction of the likeliest token's. 0: no limit.
        min_p: f64 = 0.0, Between(0.0, 1.0);
        /// Penalty for tokens that occurred before: their positive logits are divided by it, their negative
        /// ones multiplied. 1: no penalty.
        repetition_penalty: f64 = 1.0, Positive;
        /// Longest completion, in tokens.
        max_response_length: usize = 512, AtLeast(1.0);
        /// Texts that end a completion, besides the model's end tokens.
        stop: Vec<String> = Vec::new();
        /// Regular expression that each completion must match as a whole, also in validation and evaluation.
        /// Only tokens that can lead to a match are sampled. If `max_response_length` or a text of `stop`
        /// ends a completion, it is the beginning of a match. Log-probabilities stay those of the
        /// unrestricted distribution. Null: none.
        regex: Option<String> = None, NotEmpty;
        /// Most sequences generated at once: by the engine or the learner that samples, or by each server
        /// that the run starts (unless `launch.command` is set). Results do not depend on this number.
        max_num_seqs: usize = 256, AtLeast(1.0), Free;
        /// Trajectories that are written to the run folder.
        save: SaveRollouts = SaveRollouts::All, Any, Free;
    }
}
