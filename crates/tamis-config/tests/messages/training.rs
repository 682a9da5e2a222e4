//! The length of a run, its learning rate and its validation.

use insta::assert_snapshot;

use crate::{raw, show_errors};

#[test]
fn length_and_learning_rate() {
    let cosine = ["~train.total_steps", "train.total_epochs=2", "train.lr_schedule.kind=cosine"];
    assert_eq!(show_errors("", &cosine), "", "without a filter the number of steps follows from the epochs");
    assert_snapshot!([
        show_errors("filter: {}", &cosine),
        show_errors("", &["train.lr_schedule.warmup_steps=10"]),
        show_errors("", &["train.lr_schedule.min_ratio=0.1"]),
    ].join("\n"), @r"
    error: `train.lr_schedule.kind: cosine` falls towards the last step, but the number of steps is not known (with a filter, the number of epochs does not determine it)
      at command line: train.lr_schedule.kind=«cosine»
      hint: set `train.total_steps`, or `train.lr_schedule.kind: constant`
    warning: `train.lr_schedule.warmup_steps` (10) is not below `train.total_steps` (10): the learning rate only rises
      at command line: train.lr_schedule.warmup_steps=«10»
      hint: use fewer than 10 warm-up steps
    warning: `train.lr_schedule.min_ratio` has no effect: the learning rate is constant
      at command line: train.lr_schedule.min_ratio=«0.1» [remove it]
    ");
}

#[test]
fn validation() {
    let files = ["~data.task", "data.train=t.jsonl", "reward=[{kind: exact}]"];
    assert_snapshot!([
        show_errors("validate: {test_freq: 5}", &files),
        show_errors("validate: {before_train: false, n: 4}", &files),
        show_errors("validate: {metrics: ['mean@k', 'pass@k', 'maj@k']}", &[]),
        show_errors("checkpoint: {keep_best: {}}", &[]),
    ].join("\n"), @r"
    error: `validate.test_freq` is set, but there are no validation prompts
      at run.yaml:1: validate: {test_freq: «5»}
      hint: set `data.val` to a file, or `data.val_fraction` to hold out a part of the training data, or `validate.test_freq: 0`
    warning: `validate.before_train` has no effect: there are no validation prompts
      at run.yaml:1: validate: {before_train: «false», n: 4} [remove it]
    warning: `validate.n` has no effect: there are no validation prompts
      at run.yaml:1: validate: {before_train: false, n: «4»} [remove it]
    warning: `validate.n` is 4 with `validate.temperature: 0`: greedy samples of one prompt are identical
      at run.yaml:1: validate: {before_train: false, n: «4»}
      hint: set `validate.temperature` above 0, or `validate.n: 1`
    warning: `validate.metrics` has pass@k, maj@k, which with `validate.n: 1` all equal mean@1
      at run.yaml:1: validate: {metrics: «['mean@k', 'pass@k', 'maj@k']»}
      hint: raise `validate.n`
    error: `checkpoint.keep_best` compares validation metrics, but `validate.test_freq` is off
      at run.yaml:1: checkpoint: {«keep_best»: {}}
      hint: set `validate.test_freq`
    ");
}

#[test]
fn early_stops() {
    assert_snapshot!([
        show_errors("train: {early_stop: {low_success: {}}}", &["data.arithmetic.val_size=0", "validate.test_freq=0"]),
        show_errors("train: {early_stop: {reward_collapse: {share: 1.0}}}", &[]),
        show_errors("train: {gradient_analysis: {edges: [0, 1, 1]}}", &[]),
        show_errors("train: {gradient_analysis: {edges: [0, 1], buckets: 3}}", &[]),
    ].join("\n"), @r"
    error: `train.early_stop.low_success` looks at validation, but there is none
      at run.yaml:1: train: {early_stop: {«low_success»: {}}}
      hint: set `data.val` and `validate.test_freq`
    error: `train.early_stop.reward_collapse.share` is 1: half of all runs would stop at once
      at run.yaml:1: train: {early_stop: {reward_collapse: {share: «1.0»}}}
      hint: use 0.1
    error: `train.gradient_analysis.edges` must ascend, but 1 comes after 1
      at run.yaml:1: train: {gradient_analysis: {edges: «[0, 1, 1]»}}
      hint: write the edges in ascending order
    warning: `train.gradient_analysis.buckets` has no effect: `train.gradient_analysis.edges` is set
      at run.yaml:1: train: {gradient_analysis: {edges: [0, 1], buckets: «3»}} [remove it]
    ");
    let sound = "train: {early_stop: {reward_collapse: {}, empty_steps: {patience: 3}}}";
    assert_eq!(show_errors(sound, &["filter.kind=variance", "schedule.on_empty_round=skip"]), "");
}

#[test]
fn a_learner_is_named_by_its_address_and_its_device() {
    let errors = |more: &[&str]| show_errors("learner: {backend: torch}", more);
    assert_eq!(errors(&["learner.url=unix:l.sock", "learner.device=cuda:1"]), "");
    assert_eq!(errors(&["learner.url=unix:l.sock", "learner.orphan_timeout=60s"]), "");
    assert_snapshot!([
        errors(&["learner.url=localhost:8700", "learner.device=gpu"]),
        errors(&["learner.url=unix:l.sock", "learner.orphan_timeout=0s"]),
        errors(&["learner.orphan_timeout=60s"]),
    ].join("\n"), @r#"
    error: `learner.url` is not an address: `localhost:8700`
      at command line: learner.url=«localhost:8700»
      hint: write `http://HOST:PORT` or `unix:PATH`
    error: `learner.device` is not a PyTorch device: `gpu`
      at command line: learner.device=«gpu»
      hint: write `auto`, `cpu`, `cuda` or `cuda:1`
    error: `learner.orphan_timeout` must be a duration above 0 such as 500ms, 30s, 5m, 1h, or a number of seconds or null, not the text "0s"
      at command line: learner.orphan_timeout=«0s» [explain it]
    warning: `learner.orphan_timeout` has no effect: `learner.url` is not set
      at command line: learner.orphan_timeout=«60s» [remove it]
    "#);
}

#[test]
fn keys_that_do_nothing_for_this_learner_are_told() {
    let errors = |more: &[&str]| show_errors("learner: {backend: torch}", more);
    let elsewhere = errors(&["model.memory_limit=8GiB"]);
    assert_eq!(show_errors("", &["model.memory_limit=8GiB"]), "");
    let at_a_socket = show_errors("", &["model.memory_limit=8GiB", "learner.url=unix:l.sock"]);
    assert_eq!(at_a_socket, elsewhere);
    let kl = ["objective.kl.in=loss", "objective.kl.coefficient=0.1", "learner.offload_reference=true"];
    assert_eq!(errors(&kl), "");
    let with = |more: &[&'static str]| errors(&[&kl[..], more].concat());
    assert_eq!(with(&["learner.lora={}", "model.reference=r"]), "");
    assert_eq!(errors(&["learner.moments=8bit", "learner.offload_moments=true"]), "");
    assert_eq!(errors(&["learner.freeze_vision=true"]), "");
    assert_snapshot!([
        elsewhere,
        errors(&kl[2..]),
        with(&["learner.lora={}"]),
        with(&["learner.device=cpu"]),
        errors(&["learner.device=cpu", "learner.moments=8bit", "learner.offload_moments=true"]),
        show_errors("", &["learner.moments=8bit"]),
        errors(&["learner.freeze_vision=true", "learner.lora={}"]),
    ].join("\n"), @r"
    warning: `model.memory_limit` has no effect: the policy learns in another process
      at command line: model.memory_limit=«8GiB» [remove it]
    warning: `learner.offload_reference` has no effect: no KL term is on, so there is no reference
      at command line: learner.offload_reference=«true» [remove it]
    warning: `learner.offload_reference` has no effect: the reference is the policy without its adapter
      at command line: learner.offload_reference=«true» [remove it]
    warning: `learner.offload_reference` has no effect: `learner.device` is `cpu`
      at command line: learner.offload_reference=«true» [remove it]
    warning: `learner.offload_moments` has no effect: `learner.device` is `cpu`
      at command line: learner.offload_moments=«true» [remove it]
    warning: `learner.moments` has no effect: `learner.backend` is `native`
      at command line: learner.moments=«8bit» [remove it]
    warning: `learner.freeze_vision` has no effect: an adapter trains only the language model, and everything else stays frozen
      at command line: learner.freeze_vision=«true» [remove it]
    ");
}

#[test]
fn continuous_batching_is_of_a_learner_in_pytorch_that_samples() {
    let told = |backend: &str, rollout: &str| {
        let rollout = format!("rollout.backend={rollout}");
        show_errors(
            &format!("learner: {{backend: {backend}, continuous_batching: true}}"),
            &[rollout.as_str()],
        )
    };
    assert_snapshot!([
        told("native", "learner"),
        told("torch", "native"),
    ].join("\n"), @r"
    warning: `learner.continuous_batching` has no effect: `learner.backend` is `native`
      at run.yaml:1: learner: {backend: native, continuous_batching: «true»} [remove it]
    warning: `learner.continuous_batching` has no effect: `rollout.backend` is `native`, so no learner samples
      at run.yaml:1: learner: {backend: torch, continuous_batching: «true»} [remove it]
    ");
    assert_eq!(told("torch", "learner"), "");
}

#[test]
fn exact_passes_need_samples_of_the_same_learner() {
    let told = |backend: &str, rollout: &str, more: &str| {
        let rollout = format!("rollout.backend={rollout}");
        show_errors(&format!("learner: {{backend: {backend}, exact: true{more}}}"), &[rollout.as_str()])
    };
    assert_snapshot!([
        told("native", "native", ""),
        told("torch", "native", ""),
        told("torch", "learner", ", attention: sdpa, continuous_batching: true"),
        told("torch", "learner", ", logprob_chunk: 8, lora: {base: nf4}"),
    ].join("\n"), @r"
    warning: `learner.exact` has no effect: the native engine always samples and learns with the same bits
      at run.yaml:1: learner: {backend: native, exact: «true»} [remove it]
    error: `learner.exact` needs the learner's own samples, and `rollout.backend` is `native`, which has other kernels
      at run.yaml:1: learner: {backend: torch, exact: «true»}
      hint: set `rollout.backend: learner`, or remove `learner.exact`
    error: `learner.attention` chooses how numbers are computed, and `learner.exact` has its own way
      at run.yaml:1: learner: {backend: torch, exact: true, attention: «sdpa», continuous_batching: true}
      hint: remove `learner.attention`, or `learner.exact`
    error: `learner.continuous_batching` chooses how numbers are computed, and `learner.exact` has its own way
      at run.yaml:1: learner: {backend: torch, exact: true, attention: sdpa, continuous_batching: «true»}
      hint: remove `learner.continuous_batching`, or `learner.exact`
    error: `learner.exact` is not tested over weights in 4 bits
      at run.yaml:1: learner: {backend: torch, exact: true, logprob_chunk: 8, lora: {base: «nf4»}}
      hint: remove `learner.lora.base`, or `learner.exact`
    error: `learner.logprob_chunk` chooses how numbers are computed, and `learner.exact` has its own way
      at run.yaml:1: learner: {backend: torch, exact: true, logprob_chunk: «8», lora: {base: nf4}}
      hint: remove `learner.logprob_chunk`, or `learner.exact`
    ");
    assert_eq!(told("torch", "learner", ""), "");
}

/// What one rank can do and several refuse is known before any has loaded a model.
#[test]
fn what_several_ranks_refuse_is_refused_at_once() {
    let local = ["learner.backend=torch", "cluster.launcher=local", "learner.gpus_per_node=2"];
    let two = |more: &[&str]| show_errors("", &[&local[..], more].concat());
    let shared = [
        "rollout.backend=vllm",
        "rollout.launch={}",
        "cluster.colocate=true",
        "rollout.sleep_level=1",
        "publish.mode=ipc",
    ];
    assert_snapshot!([
        two(&["rollout.backend=learner"]),
        two(&shared),
    ].join("\n"), @r"
    error: `rollout.backend: learner` samples in the learner, which has 2 ranks: each token would gather every layer from all of them
      at command line: rollout.backend=«learner»
      hint: sample at servers (`rollout.backend: vllm`), or set `learner.gpus_per_node: 1`
    error: `publish.mode: ipc` shares the memory of one GPU, but the learner has 2 ranks, each with a part of the weights
      at command line: publish.mode=«ipc»
      hint: set `publish.mode: folder`, or `learner.gpus_per_node: 1`
    ");
    let base = ["model.path=m", "data.train=x.jsonl", "reward=[{kind: number}]", "train.total_steps=10"];
    let sees =
        |more: &[&str]| raw("", &[&base[..], &local, &["data.columns.images=pictures"], more].concat());
    assert_snapshot!(sees(&[]), @r#"
error: `data.columns.images` needs a model that sees images, which only one rank can train, but the learner has 2 ranks
  at command line: learner.gpus_per_node=«2»
  hint: set `learner.gpus_per_node: 1`
"#);
    assert_eq!(sees(&["learner.gpus_per_node=1"]), "");
    assert!(!sees(&["data.images=false"]).contains("error"), "{}", sees(&["data.images=false"]));
    let nodes =
        ["cluster.launcher=ray", "learner.nodes=2", "learner.gpus_per_node=null", "rollout.backend=learner"];
    assert!(
        two(&nodes).contains("or set `learner.nodes: 1` and `learner.gpus_per_node: 1`"),
        "{}",
        two(&nodes)
    );
    for one in [&["rollout.backend=learner"][..], &shared] {
        for ranks in ["learner.gpus_per_node=1", "learner.gpus_per_node=null"] {
            assert_eq!(two(&[one, &[ranks]].concat()), "");
        }
    }
}

#[test]
fn a_rank_may_be_silent_for_a_second() {
    let heartbeat = |time: &str| {
        let written = format!("learner.heartbeat={time}");
        show_errors("learner: {backend: torch}", &["cluster.launcher=local", &written])
    };
    assert_snapshot!(heartbeat("1ms"), @r#"
error: `learner.heartbeat` is 1ms, but live ranks can be silent for longer than that: it must be at least 1s
  at command line: learner.heartbeat=«1ms»
  hint: set `learner.heartbeat: 5s`, or remove it
"#);
    assert_eq!(heartbeat("1s"), "");
}

/// What a launcher cannot start, and ranks that nothing would start.
#[test]
fn ranks_need_a_launcher_that_can_start_them() {
    let torch = |more: &[&str]| show_errors("learner: {backend: torch}", more);
    for fine in [
        &["learner.gpus_per_node=1"][..],
        &["cluster.launcher=local", "learner.gpus_per_node=8", "learner.heartbeat=1s"],
        &["cluster.launcher=ray", "learner.nodes=2", "cluster.address=10.0.0.1:6379"],
    ] {
        assert_eq!(torch(fine), "");
    }
    let served = |more: &[&str]| {
        show_errors("learner: {backend: torch}\nrollout: {backend: vllm, launch: {replicas: 3}}", more)
    };
    assert_eq!(served(&["cluster.launcher=ray"]), "");
    assert_eq!(served(&["cluster.launcher=ray", "publish.mode=nccl"]), "");
    assert_eq!(served(&["cluster.launcher=local", "cluster.colocate=true", "rollout.sleep_level=1"]), "");
    assert_snapshot!([
        torch(&["learner.gpus_per_node=2"]),
        torch(&["learner.nodes=2", "cluster.launcher=local"]),
        torch(&["learner.heartbeat=1s", "cluster.address=10.0.0.1:6379", "cluster.colocate=true"]),
        torch(&["cluster.launcher=local", "learner.device=cuda:1"]),
        torch(&["cluster.launcher=ray", "cluster.address=ray://h:10001"]),
        torch(&["learner.url=unix:l", "learner.nodes=2", "cluster.launcher=ray"]),
        show_errors("", &["learner.nodes=2", "cluster.launcher=ray"]),
        served(&["cluster.launcher=ray", "publish.mode=nccl", "cluster.colocate=true", "rollout.sleep_level=1"]),
        served(&["cluster.launcher=ray", "publish.mode=ipc", "rollout.launch.replicas=1"]),
        served(&["cluster.launcher=local", "cluster.colocate=true", "learner.gpus_per_node=2"]),
        served(&["cluster.launcher=ray", "rollout.launch.command=[s, '{model}', '{port}']"]),
    ].join("\n"), @r"
    error: `learner.gpus_per_node` is 2, and without a launcher the learner is one process
      at command line: learner.gpus_per_node=«2»
      hint: set `cluster.launcher: local`, or `ray` on a Ray cluster
    error: `learner.nodes` is 2, and `cluster.launcher: local` starts processes only on this machine
      at command line: learner.nodes=«2»
      hint: set `cluster.launcher: ray`; or start the learner on the machines (torchrun, Slurm) and set `learner.url`
    warning: `cluster.address` has no effect: `cluster.launcher` is `none`
      at command line: cluster.address=«10.0.0.1:6379» [remove it]
    warning: `cluster.colocate` has no effect: `cluster.launcher` is `none`: learner and servers are started side by side
      at command line: cluster.colocate=«true» [remove it]
    warning: `learner.heartbeat` has no effect: without a launcher the learner is one process
      at command line: learner.heartbeat=«1s» [remove it]
    error: `learner.device: cuda:1` names one GPU, but `cluster.launcher: local` gives each rank its own
      at command line: learner.device=«cuda:1»
      hint: set `learner.device: cuda`; `CUDA_VISIBLE_DEVICES` chooses the GPUs
    error: `cluster.address` is a Ray Client address, but a run must start on a node of the cluster
      at command line: cluster.address=«ray://h:10001»
      hint: submit the run as a job (`ray job submit -- tamis train ...`), with `cluster.address: auto`
    error: `cluster.launcher: ray` has nothing to start: no learner in PyTorch, and no servers
      at command line: cluster.launcher=«ray»
      hint: remove `cluster.launcher`: `learner.url` and `rollout.servers` already name running processes
    warning: `learner.nodes` has no effect: the learner at `learner.url` has the ranks that it was started with
      at command line: learner.nodes=«2» [remove it]
    error: `cluster.launcher: ray` has nothing to start: no learner in PyTorch, and no servers
      at command line: cluster.launcher=«ray»
      hint: set `learner.backend: torch`, or `rollout.launch`, or remove `cluster.launcher`
    error: a learner of several ranks needs `learner.backend: torch`: the native engine learns in one process
      at command line: learner.nodes=«2»
      hint: set `learner.backend: torch` and `cluster.launcher: local` (or `ray`), or remove the key
    error: `publish.mode: nccl` needs servers on other GPUs than the learner's first rank (NCCL refuses two ranks on one), but `cluster.colocate` puts them onto the same GPUs
      at command line: publish.mode=«nccl»
      hint: set `publish.mode: folder`, or `cluster.colocate: false`
    error: `publish.mode: ipc` shares GPU memory, but with `cluster.launcher: ray` learner and servers have separate GPUs
      at command line: publish.mode=«ipc»
      hint: set `cluster.colocate: true`, or `publish.mode: folder`
    error: `cluster.colocate` puts the servers onto the learner's GPUs: they need 3 (`rollout.launch`; a server cannot span machines), but the learner has 2 on each of 1
      at command line: cluster.colocate=«true»
      hint: lower `rollout.launch.replicas`, or raise `learner.gpus_per_node`
    warning: servers on the learner's GPUs keep their memory while the policy learns: `rollout.sleep_level` is 0
      at command line: cluster.colocate=«true»
      hint: set `rollout.sleep_level: 1` (vLLM), or make sure that both fit
    error: `rollout.launch.command` does not contain `{host}`: a server on another node could not be reached
      at command line: rollout.launch.command=«[s, '{model}', '{port}']»
      hint: add `{host}`, as in `[tamis, serve, '{model}', --host, '{host}', --port, '{port}', --api-key-file, '{key_file}']`
    ");
}
