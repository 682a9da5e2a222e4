//! `learner`: the engine or process in which the policy learns.

use std::path::PathBuf;

use tamis_core::setting::{PYTHON_OF_RUN, TimeSpan};
use tamis_core::{choice, settings};

choice! {
    /// Engine that runs the policy's forward and backward passes and its optimizer.
    pub enum LearnerBackend {
        /// The built-in CPU engine.
        Native = "native",
        /// PyTorch, on a GPU or a CPU, in a separate process: any decoder model of transformers.
        Torch = "torch",
    }
}

choice! {
    /// Number format that PyTorch computes in. Trained weights are always in f32.
    pub enum LearnerDtype {
        /// `bf16` on a GPU, `f32` on a CPU.
        Auto = "auto",
        /// 32 bits.
        F32 = "f32",
        /// bfloat16.
        Bf16 = "bf16",
    }
}

choice! {
    /// How AdamW's moments are held.
    pub enum MomentFormat {
        /// 32 bits: 8 bytes for each trained weight.
        F32 = "f32",
        /// 8 bits and a scale for each block of 256 (Dettmers et al. 2022): 2 bytes for each trained weight.
        EightBits = "8bit",
    }
}

choice! {
    /// How the weights below an adapter are held.
    pub enum LoraBase {
        /// In `learner.dtype`.
        Dtype = "dtype",
        /// Linear layers in 4 bits (NF4 of bitsandbytes with 8-bit scales, QLoRA): half a byte for each
        /// weight.
        Nf4 = "nf4",
    }
}

settings! {
    /// A low-rank adapter (LoRA). Only the adapter learns, and the reference is the policy without it.
    pub struct LoraConfig {
        /// Rank of the adapter's matrices.
        rank: usize = 32, Between(1.0, 65_536.0);
        /// Scale of the adapter: its output is multiplied by `alpha / rank`.
        alpha: f64 = 32.0, Positive;
        /// Layers that get an adapter, by the ends of their names (`[q_proj, v_proj]`). Null: every linear
        /// layer except the output head.
        targets: Option<Vec<String>> = None;
        /// How the policy's own weights are held, which do not learn. `nf4` needs the Python package
        /// `bitsandbytes` and one rank. Samples, training and published weights then use the rounded weights;
        /// published ones have the adapter merged into them.
        base: LoraBase = LoraBase::Dtype;
    }
}

settings! {
    /// The learner: the native engine or PyTorch, in this process or in another one.
    pub struct LearnerConfig {
        /// Engine that runs the policy's forward and backward passes and its optimizer.
        backend: LearnerBackend = LearnerBackend::Native, Any, Free;
        /// Address of a running learner, `http://HOST:PORT` or `unix:PATH`, that `tamis learner` (native) or
        /// `python -m tamis.learner` (PyTorch) started. It holds weights and moments. The run directory and
        /// checkpoints must have the same paths there. Null: the native engine learns in this process;
        /// PyTorch learns in a process that the run starts and ends.
        url: Option<String> = None, NotEmpty, Free;
        /// File with the API key that the learner at `learner.url` requires (`Authorization: Bearer`).
        api_key_file: Option<PathBuf> = None, NotEmpty, Free;
        /// Environment variable with that key, instead of `learner.api_key_file`.
        api_key_env: Option<String> = None, NotEmpty, Free;
        /// Python interpreter that the run starts; it needs PyTorch, transformers and safetensors.
        /// `run.python`: that of this key. It also runs the launcher (`cluster.launcher`), and needs the
        /// package `ray` for `launcher: ray`. On the nodes of Ray, `python3` is the interpreter of Ray's
        /// workers.
        python: String = PYTHON_OF_RUN.to_owned(), NotEmpty, Free;
        /// Number of machines on which the PyTorch learner is started (`cluster.launcher: ray`).
        nodes: usize = 1, Between(1.0, 4096.0), Free;
        /// Number of the learner's GPUs on each machine, one for each rank. Null: all GPUs that no server of
        /// `rollout.launch` needs. With `learner.device: cpu`, this is the number of ranks on each machine
        /// (null: 1). Without a launcher (`cluster.launcher: none`) there is one rank.
        gpus_per_node: Option<usize> = None, Between(1.0, 1024.0), Free;
        /// Longest time without a heartbeat of a rank, if there are several ranks; then the rank counts as
        /// lost. Ranks send heartbeats four times as often. At least `1s`.
        heartbeat: TimeSpan = TimeSpan::seconds(5), Any, Free;
        /// Longest time until the started learner answers, including the wait for machines. It is also the
        /// longest wait for a Ray cluster that a run has lost.
        startup_timeout: TimeSpan = TimeSpan::seconds(300), Any, Free;
        /// Longest time of one call to a learner in another process: a pass over a wave, a checkpoint,
        /// loading the model.
        timeout: TimeSpan = TimeSpan::seconds(1800), Any, Free;
        /// Longest time without a connection or an answer to a health check from a learner in another
        /// process; then it counts as lost.
        lost_timeout: TimeSpan = TimeSpan::seconds(60), Any, Free;
        /// How often in a row, without a finished step in between, the run restarts a lost learner. It then
        /// continues from the last checkpoint; later completions are read from the journal and trained on
        /// again. A learner at `learner.url` is not restarted: the run waits for it, at most
        /// `learner.startup_timeout`. 0: the run ends and can be resumed.
        max_restarts: usize = 3, Any, Free;
        /// Time without a request after which the learner at `learner.url` exits, so that a killed run leaves
        /// no learner behind. A live run polls it continuously. Null: never.
        orphan_timeout: Option<TimeSpan> = None, Any, Free;
        /// Device of PyTorch: `cuda`, `cuda:1`, `cpu`. `auto`: a GPU, if there is one.
        device: String = "auto".to_owned(), NotEmpty, Free;
        /// Number format that PyTorch computes in.
        dtype: LearnerDtype = LearnerDtype::Auto, Any, Free;
        /// Attention of PyTorch: `varlen` (kernels over packed sequences), `sdpa`, `eager`,
        /// `flash_attention_2` or another one of transformers. `auto`: the fastest whose results equal those
        /// of the model's own attention.
        attention: String = "auto".to_owned(), NotEmpty, Free;
        /// Number of tokens whose logits PyTorch holds at once. A smaller number needs less memory. Null:
        /// chosen by the size of the vocabulary.
        logprob_chunk: Option<usize> = None, AtLeast(1.0), Free;
        /// Keep the reference and the teachers in main memory instead of on the GPU while they are not used.
        offload_reference: bool = false, Any, Free;
        /// How PyTorch holds AdamW's moments. Checkpoints have them in 32 bits.
        moments: MomentFormat = MomentFormat::F32, Any, Free;
        /// Keep AdamW's moments in main memory instead of on the GPU. Each update copies them to the GPU and
        /// back, part by part.
        offload_moments: bool = false, Any, Free;
        /// Sample in PyTorch by the continuous batching of transformers, which has a paged cache
        /// (`rollout.backend: learner`). On a GPU it needs flash-attention; on a CPU it is slow. False: the
        /// learner's own cache, which has one row per sequence.
        continuous_batching: bool = false, Any, Free;
        /// Sample and learn in PyTorch with the same bits (`rollout.backend: learner`): a token's
        /// log-probability does not depend on what is computed beside it, as on the native engine. Passes go
        /// by tiles of a fixed number of tokens, which takes longer. False: the fastest kernels, whose
        /// log-probabilities differ by rounding.
        exact: bool = false;
        /// Freeze the vision tower of a vision-language model (PyTorch). False: it learns with the rest.
        freeze_vision: bool = false;
        /// An adapter that is trained instead of the whole policy (PyTorch). Null: the whole policy is
        /// trained.
        lora: Option<LoraConfig> = None;
    }
}
