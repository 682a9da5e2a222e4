//! Engines of other systems as servers.

use insta::assert_snapshot;
use tamis_config::{BackendKind, Config, ServerCommand, load_sources};

use crate::{converted, import_errors, loaded, notes, value_at};

const VERL: [&str; 3] =
    ["algorithm.adv_estimator=grpo", "data.train_files=t", "actor_rollout_ref.model.path=m"];
const TRL: [&str; 3] = ["model_name_or_path=m", "dataset_name=t", "reward_funcs=accuracy_reward"];

fn with<'a>(base: &[&'a str], more: &[&'a str]) -> tamis_config::Import {
    converted(&[base, more].concat())
}

/// The command that a run starts its servers with.
fn command(config: &Config) -> String {
    ServerCommand::new(
        &config.rollout,
        tamis_config::Intake::Folders,
        std::path::Path::new("m"),
        (tamis_config::LOOPBACK, "8000"),
    )
    .to_string()
}

fn note_on(import: &tamis_config::Import, key: &str) -> String {
    notes(import).lines().find(|line| line.starts_with(key)).expect("a note").to_owned()
}

#[test]
fn options_of_verl_s_engine_are_arguments_of_the_server() {
    let options = [
        "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=4",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.8",
        "actor_rollout_ref.rollout.max_num_batched_tokens=8192",
        "actor_rollout_ref.rollout.max_num_seqs=64",
        "actor_rollout_ref.rollout.enforce_eager=True",
        "actor_rollout_ref.rollout.enable_chunked_prefill=True",
        "actor_rollout_ref.rollout.free_cache_engine=True",
        "actor_rollout_ref.rollout.engine_kwargs.vllm.swap_space=8",
        "actor_rollout_ref.rollout.engine_kwargs.vllm.disable_cascade_attn=True",
        "actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend=fa3",
        "trainer.n_gpus_per_node=8",
        "trainer.nnodes=2",
    ];
    let import = with(&VERL, &options);
    assert_snapshot!(
        command(&loaded(&import)),
        @"VLLM_SERVER_DEV_MODE=1 vllm serve m --host 127.0.0.1 --port 8000 --logprobs-mode processed_logprobs --enable-scale-out --max-num-seqs 64 --tensor-parallel-size 4 --gpu-memory-utilization=0.8 --max-num-batched-tokens=8192 --enforce-eager --swap-space=8 --disable-cascade-attn"
    );
    assert_eq!(value_at(&loaded(&import), "/rollout/launch/replicas"), "2");
    assert_snapshot!(note_on(&import, "actor_rollout_ref.rollout.gpu_memory_utilization"), @r#"actor_rollout_ref.rollout.gpu_memory_utilization=0.8 -> rollout.launch.args: + "--gpu-memory-utilization=0.8""#);
    assert_snapshot!(note_on(&import, "actor_rollout_ref.rollout.engine_kwargs.sglang"), @"actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend=fa3 has no effect: it is an option of another engine");
    assert_snapshot!(note_on(&import, "actor_rollout_ref.rollout.enable_chunked"), @"actor_rollout_ref.rollout.enable_chunked_prefill=True has no effect: the server does so anyway, or has no such option");
    assert_snapshot!(note_on(&import, "trainer.nnodes"), @"trainer.nnodes=2 has no effect: the native engine learns on one machine, and the run starts servers there alone; `learner.backend: torch` reads it, as `learner.nodes`");
    // As `train` takes them, over what the user has.
    let arguments = VERL.iter().chain(&options).chain(&["reward=[{kind: math}]", "train.total_epochs=1"]);
    let arguments: Vec<String> = arguments.map(|&argument| argument.to_owned()).collect();
    let train = load_sources(&[], &arguments).unwrap_or_else(|errors| panic!("{errors}")).config;
    assert_eq!(command(&train), command(&loaded(&import)));
}

/// Machines and GPUs of verl are those of a learner in PyTorch, which its servers share.
#[test]
fn machines_of_verl() {
    let options = [
        "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=4",
        "trainer.n_gpus_per_node=8",
        "trainer.nnodes=2",
    ];
    let of = |options: &[&str], more: &[&str]| {
        let import = with(&VERL, &[options, more].concat());
        let config = loaded(&import);
        let shown = [
            "/learner/nodes",
            "/learner/gpus_per_node",
            "/cluster",
            "/rollout/launch",
            "/rollout/sleep_level",
        ]
        .map(|key| value_at(&config, key));
        (shown.join(" "), note_on(&import, "trainer.nnodes"), note_on(&import, "trainer.n_gpus"))
    };
    let (shown, nodes, gpus) = of(&options, &["learner.backend=torch"]);
    assert_snapshot!(shown, @r#"2 8 {"launcher":"ray","address":"auto","colocate":true} {"replicas":4,"tensor_parallel":4,"args":[],"command":[],"startup_timeout":"900s","lost_timeout":"120s"} 1"#);
    assert_snapshot!(nodes, @"trainer.nnodes=2 -> learner.nodes: 2, cluster.launcher: ray");
    assert_snapshot!(gpus, @"trainer.n_gpus_per_node=8 -> learner.gpus_per_node: 8, rollout.launch.replicas: 4, cluster.colocate: true, rollout.sleep_level: 1 (learner and servers share GPUs, as many for each server as share a model)");
    let (shown, _, gpus) =
        of(&options, &["learner.backend=torch", "cluster.launcher=ray", "trainer.nnodes=1"]);
    assert_snapshot!(shown, @r#"1 8 {"launcher":"ray","address":"auto","colocate":true} {"replicas":2,"tensor_parallel":4,"args":[],"command":[],"startup_timeout":"900s","lost_timeout":"120s"} 1"#);
    assert_snapshot!(gpus, @"trainer.n_gpus_per_node=8 -> learner.gpus_per_node: 8, rollout.launch.replicas: 2, cluster.colocate: true, rollout.sleep_level: 1 (learner and servers share GPUs, as many for each server as share a model)");
    let (shown, _, gpus) = of(&options[2..], &["learner.backend=torch"]);
    assert_snapshot!(shown, @r#"2 8 {"launcher":"ray","address":"auto","colocate":false} null 0"#);
    assert_snapshot!(gpus, @"trainer.n_gpus_per_node=8 -> learner.gpus_per_node: 8");
    let (shown, nodes, gpus) = of(&options[2..], &[]);
    assert_snapshot!(shown, @r#"1 null {"launcher":"none","address":"auto","colocate":false} null 0"#);
    assert_snapshot!(nodes, @"trainer.nnodes=2 has no effect: the native engine learns on one machine, and the run starts servers there alone; `learner.backend: torch` reads it, as `learner.nodes`");
    assert_snapshot!(gpus, @"trainer.n_gpus_per_node=8 has no effect: the native engine learns and samples on the CPU of one machine; `learner.backend: torch` reads it, as `learner.gpus_per_node`");
    // verl's engines free their memory unless told otherwise, on a single GPU, too.
    let sleeps = |more: &[&str]| {
        let options = ["learner.backend=torch", "actor_rollout_ref.rollout.name=vllm", "trainer.nnodes=1"];
        loaded(&with(&VERL, &[&options, more].concat())).rollout.sleep_level
    };
    let stays = "actor_rollout_ref.rollout.free_cache_engine=False";
    assert_eq!(sleeps(&["trainer.n_gpus_per_node=1"]), 1);
    assert_eq!(sleeps(&["trainer.n_gpus_per_node=8", stays]), 0);
    assert_eq!(sleeps(&["trainer.n_gpus_per_node=8", "rollout.sleep_level=2"]), 2);
    let import =
        with(&VERL, &["learner.backend=torch", "trainer.nnodes=2", "ray_kwargs.ray_init.address=h:6379"]);
    assert_eq!(loaded(&import).cluster.address, "h:6379");
    let named = with(&VERL, &["learner.url=unix:l", "trainer.nnodes=2"]);
    assert_snapshot!(note_on(&named, "trainer.nnodes"), @"trainer.nnodes=2 has no effect: the learner at `learner.url` has the ranks that it was started with");
}

#[test]
fn other_engines_of_verl() {
    let rollout = |more: &[&str]| loaded(&with(&VERL, more)).rollout;
    let sglang = [
        "actor_rollout_ref.rollout.name=sglang",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.8",
        "actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend=fa3",
    ];
    assert_snapshot!(
        command(&loaded(&with(&VERL, &sglang))),
        @"python3 -m sglang.launch_server --model-path m --host 127.0.0.1 --port 8000 --max-running-requests 256 --tp-size 2 --mem-fraction-static=0.8 --attention-backend=fa3"
    );
    assert_eq!(rollout(&["actor_rollout_ref.rollout.name=hf"]).backend, BackendKind::Native);
    assert_eq!(rollout(&["actor_rollout_ref.rollout.gpu_memory_utilization=0.8"]).launch, None);
    let errors = import_errors(&["actor_rollout_ref.rollout.name=trtllm"]);
    assert!(errors.contains("the engines are vllm, sglang and hf"), "{errors}");
}

/// Servers that are named go before those that an engine's name asks for, and nobody is told off for that.
#[test]
fn servers_that_are_running_go_before_those_that_would_be_started() {
    let arguments =
        ["actor_rollout_ref.rollout.name=vllm", "rollout.servers=[http://h:1]", "reward=[{kind: math}]"];
    let arguments: Vec<String> = VERL.iter().chain(&arguments).map(|&argument| argument.to_owned()).collect();
    let loaded = load_sources(&[], &arguments).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(loaded.config.rollout.servers, ["http://h:1"]);
    let printed: Vec<String> = loaded.warnings.iter().map(|found| found.problem.to_string()).collect();
    assert!(!printed.iter().any(|warning| warning.contains("launch")), "{printed:?}");
}

#[test]
fn vllm_of_easyr1() {
    let options = [
        "worker.actor.model.model_path=m",
        "data.train_files=t",
        "reward=[{kind: math}]",
        "worker.rollout.name=vllm",
        "worker.rollout.gpu_memory_utilization=0.6",
        "worker.rollout.dtype=bf16",
        "worker.rollout.tensor_parallel_size=1",
        "trainer.n_gpus_per_node=4",
    ];
    let config = loaded(&converted(&options));
    assert_snapshot!(
        command(&config),
        @"VLLM_SERVER_DEV_MODE=1 vllm serve m --host 127.0.0.1 --port 8000 --logprobs-mode processed_logprobs --enable-scale-out --max-num-seqs 256 --gpu-memory-utilization=0.6 --dtype=bfloat16"
    );
    assert_eq!(config.rollout.launch.map(|launch| launch.replicas), Some(4));
}

#[test]
fn a_server_of_trl() {
    let import = with(
        &TRL,
        &[
            "use_vllm=True",
            "vllm_mode=server",
            "vllm_server_host=10.0.0.7",
            "vllm_server_port=9000",
            "vllm_server_timeout=300",
            "vllm_tensor_parallel_size=2",
            "vllm_importance_sampling_mode=token_truncate",
            "vllm_importance_sampling_clip_max=2.0",
            "vllm_importance_sampling_clip_min=0.5",
        ],
    );
    let config = loaded(&import);
    assert_eq!(
        (config.rollout.servers, config.rollout.launch),
        (vec!["http://10.0.0.7:9000".to_owned()], None)
    );
    assert_eq!(config.rollout.server_startup_timeout.as_secs(), 300);
    let weights = config.objective.correction.weights.expect("weights");
    assert_eq!((weights.level.as_str(), weights.outside.as_str()), ("token", "truncate"));
    assert_eq!((weights.min, weights.max), (Some(0.5), 2.0));
    assert_snapshot!(note_on(&import, "use_vllm"), @"use_vllm=True -> rollout.backend: vllm (there has to be, not `trl vllm-serve`, whose protocol is TRL's own, but `VLLM_SERVER_DEV_MODE=1 vllm serve m --logprobs-mode processed_logprobs --enable-scale-out --tensor-parallel-size 2`)");
    assert_snapshot!(note_on(&import, "vllm_server_port"), @"vllm_server_port=9000 goes into what vllm_server_host becomes");
    assert_snapshot!(note_on(&import, "vllm_importance_sampling_clip_max"), @"vllm_importance_sampling_clip_max=2.0 goes into what vllm_importance_sampling_mode becomes");
    let servers = |more: &[&str]| {
        loaded(&with(&TRL, &[&["use_vllm=True", "vllm_mode=server"], more].concat())).rollout.servers
    };
    assert_eq!(servers(&[]), ["http://127.0.0.1:8000"]);
    assert_eq!(servers(&["vllm_server_base_url=http://h:1"]), ["http://h:1"]);
}

#[test]
fn vllm_beside_trl_s_trainer() {
    let import = with(
        &TRL,
        &[
            "use_vllm=True",
            "vllm_gpu_memory_utilization=0.3",
            "vllm_tensor_parallel_size=2",
            "vllm_server_port=9000",
        ],
    );
    let config = loaded(&import);
    assert_snapshot!(
        command(&config),
        @"VLLM_SERVER_DEV_MODE=1 vllm serve m --host 127.0.0.1 --port 8000 --logprobs-mode processed_logprobs --enable-scale-out --max-num-seqs 256 --tensor-parallel-size 2 --gpu-memory-utilization=0.3"
    );
    // TRL's own default.
    let weights = config.objective.correction.weights.expect("weights");
    assert_eq!((weights.level.as_str(), weights.outside.as_str(), weights.max), ("sequence", "mask", 3.0));
    assert_snapshot!(note_on(&import, "vllm_server_port"), @"vllm_server_port=9000 has no effect: vllm_mode is colocate: the run starts the server");
    let none = loaded(&with(&TRL, &["use_vllm=True", "vllm_importance_sampling_correction=False"]));
    assert_eq!(none.objective.correction.weights, None);
    let native = with(&TRL, &["vllm_importance_sampling_clip_max=2.0", "use_vllm=False"]);
    assert_eq!(loaded(&native).objective.correction.weights, None);
    assert_snapshot!(note_on(&native, "vllm_importance"), @"vllm_importance_sampling_clip_max=2.0 has no effect: use_vllm is false: the native engine generates, and there is nothing to correct");
}

/// verl counts what is in flight in batches that are trained, we in rounds that are generated.
#[test]
fn batches_in_flight_are_rounds_of_as_many_prompts() {
    let rounds = |more: &[&str]| {
        let filter = ["algorithm.filter_groups.enable=True", "data.train_batch_size=64"];
        let config = loaded(&with(&VERL, &[&filter[..], more].concat()));
        config.schedule.rounds_in_flight
    };
    let batches = "algorithm.filter_groups.max_inflight_gen_batches=4";
    assert_eq!(rounds(&[batches]), Some(4));
    assert_eq!(rounds(&[batches, "data.gen_batch_size=128"]), Some(2));
    assert_eq!(rounds(&[batches, "data.gen_batch_size=512"]), Some(1));
    let off = with(&VERL, &[batches]);
    assert_snapshot!(note_on(&off, "algorithm.filter_groups.max"), @"algorithm.filter_groups.max_inflight_gen_batches=4 has no effect: algorithm.filter_groups.enable is false");
}
