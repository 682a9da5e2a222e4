//! `learner`: where the policy learns.

use std::path::PathBuf;

use tamis_core::setting::TimeSpan;
use tamis_core::{choice, settings};

choice! {
    /// What runs a policy forward and backward and steps its optimizer.
    pub enum LearnerBackend {
        /// The built-in CPU engine.
        Native = "native",
        /// PyTorch, on a GPU or a CPU: any decoder of transformers, in a process of its own.
        Torch = "torch",
    }
}

choice! {
    /// The number format that PyTorch computes in; weights that are trained and moments are in f32 whatever
    /// it is.
    pub enum LearnerDtype {
        /// `bf16` on a GPU, `f32` on a CPU.
        Auto = "auto",
        /// 32 bits.
        F32 = "f32",
        /// bfloat16.
        Bf16 = "bf16",
    }
}

settings! {
    /// A low-rank adapter (LoRA): it alone learns, and the reference is the policy without it.
    pub struct LoraConfig {
        /// Rank of the adapter's matrices.
        rank: usize = 32, Between(1.0, 65_536.0);
        /// Scale: what the adapter adds is multiplied by `alpha / rank`.
        alpha: f64 = 32.0, Positive;
        /// Layers that have an adapter, by the ends of their names (`[q_proj, v_proj]`). Null: every linear
        /// layer but the output head.
        targets: Option<Vec<String>> = None;
    }
}

settings! {
    /// Where the policy learns: on the native engine or in PyTorch, in this process or in another one.
    pub struct LearnerConfig {
        /// Engine that runs the policy forward and backward and steps its optimizer.
        backend: LearnerBackend = LearnerBackend::Native, Any, Free;
        /// Address of a learner that runs already, `http://HOST:PORT` or `unix:PATH`: one that
        /// `tamis learner` (native) or `python -m tamis.learner` (PyTorch) started. It holds weights and
        /// moments; run directory and checkpoints must have the same paths there. Null: the native engine
        /// learns in this process, and PyTorch in one that the run starts and ends.
        url: Option<String> = None, NotEmpty, Free;
        /// File with the key that the learner at `learner.url` asks for (`Authorization: Bearer`).
        api_key_file: Option<PathBuf> = None, NotEmpty, Free;
        /// Environment variable with that key, in place of `learner.api_key_file`.
        api_key_env: Option<String> = None, NotEmpty, Free;
        /// Python interpreter with PyTorch, transformers and safetensors, which the run starts. A bare
        /// `python3` is the one beside the program where there is one, as in an environment that the Python
        /// package is installed in; otherwise that of `PATH`. It runs the launcher, too (`cluster.launcher`),
        /// which needs Ray in it for `ray`; on the nodes of Ray a bare `python3` is the interpreter of Ray's
        /// workers.
        python: String = "python3".to_owned(), NotEmpty, Free;
        /// Machines that the learner in PyTorch is started on (`cluster.launcher: ray`).
        nodes: usize = 1, Between(1.0, 4096.0), Free;
        /// GPUs that it has on each of them, one for each of its ranks. Null: all that are there and that no
        /// server of `rollout.launch` needs. With `learner.device: cpu` the number of ranks on each machine,
        /// 1 where it is null. Without a launcher (`cluster.launcher: none`) there is one rank.
        gpus_per_node: Option<usize> = None, Between(1.0, 1024.0), Free;
        /// Longest silence of one of several ranks, after which it counts as lost; each shows four times as
        /// often that it is alive. At least `1s`.
        heartbeat: TimeSpan = TimeSpan::seconds(5), Any, Free;
        /// Longest time that the started learner may take until it answers, waiting for machines included. So
        /// long a Ray cluster that a run has lost is waited for, too.
        startup_timeout: TimeSpan = TimeSpan::seconds(300), Any, Free;
        /// Longest time of one call to a learner in another process: a pass over a wave, a checkpoint,
        /// loading the model.
        timeout: TimeSpan = TimeSpan::seconds(1800), Any, Free;
        /// Longest time without a sign of life from it, after which it is lost.
        lost_timeout: TimeSpan = TimeSpan::seconds(60), Any, Free;
        /// Most times in a row, with no step finished in between, that the run starts a lost learner again
        /// and goes on from its last checkpoint: what was generated since is read from the journal and
        /// trained on again. One at `learner.url` is waited for, at most `learner.startup_timeout`. 0: the
        /// run ends, to be resumed.
        max_restarts: usize = 3, Any, Free;
        /// Time without a request after which the learner at `learner.url` ends by itself, so that a run that
        /// is killed leaves none behind. A run asks it for a sign of life all the time. Null: never.
        orphan_timeout: Option<TimeSpan> = None, Any, Free;
        /// Device of PyTorch: `cuda`, `cuda:1`, `cpu`. `auto`: a GPU where there is one.
        device: String = "auto".to_owned(), NotEmpty, Free;
        /// Number format that PyTorch computes in.
        dtype: LearnerDtype = LearnerDtype::Auto, Any, Free;
        /// Attention of PyTorch: `varlen` (kernels over packed sequences), `sdpa`, `eager`,
        /// `flash_attention_2` or another that transformers knows. `auto`: the fastest that gives what the
        /// model's own gives.
        attention: String = "auto".to_owned(), NotEmpty, Free;
        /// Tokens whose logits PyTorch holds at once: fewer take less memory. Null: chosen by the vocabulary.
        logprob_chunk: Option<usize> = None, AtLeast(1.0), Free;
        /// Keep the reference in the main memory while it is not used, not on the GPU.
        offload_reference: bool = false, Any, Free;
        /// Sample in PyTorch through the continuous batching of transformers, whose cache has pages
        /// (`rollout.backend: learner`). On a GPU it needs flash-attention; on a CPU it is slow. False: rows
        /// of a cache of the learner's own.
        continuous_batching: bool = false, Any, Free;
        /// Leave the vision tower of a model that sees images as it is (PyTorch). False: it learns with the
        /// rest.
        freeze_vision: bool = false;
        /// An adapter that is trained in place of the whole policy (PyTorch). Null: the whole policy.
        lora: Option<LoraConfig> = None;
    }
}
