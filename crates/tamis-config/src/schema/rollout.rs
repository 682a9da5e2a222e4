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
        /// The learner itself, wherever it is (`learner.backend`, `learner.url`): it samples and learns in
        /// turns, by one set of weights, and nothing is published. In this process that is the built-in
        /// engine.
        Learner = "learner",
        /// vLLM servers, `tamis serve` included: weights are published to them after every step.
        Vllm = "vllm",
        /// SGLang servers: weights are published to them after every step.
        Sglang = "sglang",
        /// Any server with OpenAI's `/v1/completions`: text in, text out, from the server's own model. For
        /// `tamis eval` alone; training needs tokens and log-probabilities.
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
    /// Servers that a run starts itself, on this machine or through `cluster.launcher`, and ends with itself.
    pub struct LaunchConfig {
        /// Number of servers to start.
        replicas: usize = 1, Between(1.0, 1024.0), Free;
        /// GPUs of each server, over which its model is split. Each of several servers gets the next ones of
        /// `CUDA_VISIBLE_DEVICES`, or of all.
        tensor_parallel: usize = 1, Between(1.0, 1024.0), Free;
        /// Further arguments of the server (`[--gpu-memory-utilization, '0.8']`).
        args: Vec<String> = Vec::new(), Any, Free;
        /// The command in place of vLLM's or SGLang's own, without a shell: in it `{model}` stands for the
        /// folder of the first weights, `{host}` for the address to answer on, which is 127.0.0.1 unless Ray
        /// starts it (`cluster.launcher: ray`), and `{port}` for the port; where a launcher starts it,
        /// `{key_file}` for a file with the key that it is to ask for, and `{key_config}` for one that says
        /// so in YAML. Empty: `vllm serve {model} ...` or
        /// `python3 -m sglang.launch_server --model-path {model} ...`.
        command: Vec<String> = Vec::new(), Any, Free;
        /// Longest time that the started servers may take to answer.
        startup_timeout: TimeSpan = TimeSpan::seconds(900), Any, Free;
        /// Longest time for which a started server may leave health checks unanswered: one that hangs is
        /// ended and started again. Null: no limit.
        lost_timeout: Option<TimeSpan> = Some(TimeSpan::seconds(120)), Any, Free;
    }
}

settings! {
    /// How completions are sampled. Log-probabilities are those of the temperature-scaled distribution,
    /// before the repetition penalty and the cuts of top-k, top-p and min-p.
    pub struct RolloutConfig {
        /// Where completions are sampled.
        backend: BackendKind = BackendKind::Native;
        /// Addresses of servers that are running already (`[http://127.0.0.1:8000]`). They serve a model of
        /// this run's shape and tokenizer, can read the folder that weights are published to (`publish.dir`),
        /// and (vLLM) run with `VLLM_SERVER_DEV_MODE=1`.
        servers: Vec<String> = Vec::new(), Any, Free;
        /// Servers that the run starts itself where `rollout.servers` names none; `{}` starts one. Null:
        /// none.
        launch: Option<LaunchConfig> = None, Any, Free;
        /// The model's name at the servers. Null: the first that each of them has.
        server_model: Option<String> = None, NotEmpty, Free;
        /// Further sampling parameters of the servers, by their names (`{cache_salt: x}`); what a key of this
        /// configuration decides is refused.
        server_parameters: FreeMap = FreeMap::default();
        /// Longest time of one sample at a server. A sample that takes longer is asked for again, elsewhere
        /// where possible.
        server_timeout: TimeSpan = TimeSpan::seconds(600), Any, Free;
        /// Most samples in flight at one server, and the number to begin with. Null: 256 to begin with, then
        /// adapted to the server's own figures or refusals (429, 503).
        max_in_flight: Option<usize> = None, AtLeast(1.0), Free;
        /// Longest time that servers may take to answer at the start of a run.
        server_startup_timeout: TimeSpan = TimeSpan::seconds(60), Any, Free;
        /// Longest time that a run waits where no server is left; the run then saves and ends, to be resumed.
        /// Null: no limit.
        server_lost_timeout: Option<TimeSpan> = Some(TimeSpan::seconds(3600)), Any, Free;
        /// Sleep of vLLM servers while the policy learns, where they share its GPU. 0: they stay awake. 1:
        /// they free the GPU, with their weights in main memory. 2: their weights are gone too, and come back
        /// as those that are published.
        sleep_level: usize = 0, Between(0.0, 2.0), Free;
        /// File with the key that the servers ask for (`Authorization: Bearer`).
        api_key_file: Option<PathBuf> = None, NotEmpty, Free;
        /// Environment variable with the servers' key, in place of `rollout.api_key_file`.
        api_key_env: Option<String> = None, NotEmpty, Free;
        /// Trajectories per prompt: the group size.
        n: usize = 8, Between(1.0, 65536.0);
        /// Temperature of the softmax that tokens are sampled from.
        temperature: f64 = 1.0, Between(1e-6, 1e6);
        /// Share of the probability that is sampled from: the smallest set of tokens that reaches it. 1: all
        /// tokens.
        top_p: f64 = 1.0, Probability;
        /// Number of likeliest tokens that are sampled from. 0: all tokens.
        top_k: usize = 0;
        /// Least probability of a token that is sampled, as a fraction of the likeliest token's. 0: no limit.
        min_p: f64 = 0.0, Between(0.0, 1.0);
        /// Divisor of positive logits, and factor of negative ones, of tokens that occurred before. 1: no
        /// penalty.
        repetition_penalty: f64 = 1.0, Positive;
        /// Longest completion, in tokens.
        max_response_length: usize = 512, AtLeast(1.0);
        /// Texts that end a completion, beside the end tokens of the model.
        stop: Vec<String> = Vec::new();
        /// Regular expression that each completion must match as a whole, in validation and evaluation too:
        /// only tokens that can lead to a match are sampled. A completion that `max_response_length` or a
        /// text of `stop` ends is the beginning of a match. Log-probabilities stay those of the whole
        /// distribution. Null: none.
        regex: Option<String> = None, NotEmpty;
        /// Most sequences generated at once: by the engine or the learner that samples, or by each server
        /// that the run starts without a command of your own. Results do not depend on this number.
        max_num_seqs: usize = 256, AtLeast(1.0), Free;
        /// Trajectories that are written to the run folder.
        save: SaveRollouts = SaveRollouts::All, Any, Free;
    }
}
