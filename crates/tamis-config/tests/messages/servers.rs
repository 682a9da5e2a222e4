//! Servers that sample, what is published to them, and judges.

use insta::assert_snapshot;
use tamis_config::ServerCommand;

use crate::{show_errors, try_load};

#[test]
fn servers() {
    assert_snapshot!([
        show_errors("", &["rollout.backend=vllm"]),
        show_errors("", &["rollout.backend=openai", "rollout.servers=[http://h:1]"]),
        show_errors("rollout: {backend: vllm, launch: {command: [vllm, serve], args: [--dtype=float32]}}", &[]),
        show_errors("rollout: {backend: vllm, servers: ['http://h:1'], launch: {replicas: 2}}", &[]),
        show_errors("rollout: {launch: {}}\npublish: {dir: /shared, keep: 3}", &[]),
    ].join("\n"), @r"
    error: `rollout.backend: vllm` needs a server: `rollout.servers` is empty and `rollout.launch` is not set
      at command line: rollout.backend=«vllm»
      hint: let the run start one itself, `rollout.launch: {}`; or start it with `VLLM_SERVER_DEV_MODE=1 vllm serve m --host 127.0.0.1 --port 8000 --logprobs-mode processed_logprobs --enable-scale-out --max-num-seqs 256` and set `rollout.servers: [http://127.0.0.1:8000]`
    error: `rollout.backend: openai` cannot be used for training: its servers return only text, without tokens and log-probabilities, and take no weights
      at command line: rollout.backend=«openai»
      hint: evaluate with it (`tamis eval`), let it score completions (a reward with `kind: judge`), or train with `rollout.backend: vllm`
    error: `rollout.launch.command` does not contain `{port}`: the server would not know its port
      at run.yaml:1: rollout: {backend: vllm, launch: {command: «[vllm, serve]», args: [--dtype=float32]}}
      hint: add `{port}`, as in `[tamis, serve, '{model}', --port, '{port}']`
    error: `rollout.launch.command` does not contain `{model}`: the server would not know its model
      at run.yaml:1: rollout: {backend: vllm, launch: {command: «[vllm, serve]», args: [--dtype=float32]}}
      hint: add `{model}`, as in `[tamis, serve, '{model}', --port, '{port}']`
    warning: `rollout.launch.args` has no effect: `rollout.launch.command` is the whole command
      at run.yaml:1: rollout: {backend: vllm, launch: {command: [vllm, serve], args: «[--dtype=float32]»}} [remove it]
    warning: `rollout.launch` has no effect: `rollout.servers` names servers that are already running
      at run.yaml:1: rollout: {backend: vllm, servers: ['http://h:1'], «launch»: {replicas: 2}} [remove it]
    warning: `rollout.launch` has no effect: `rollout.backend` is `native`
      at run.yaml:1: rollout: {«launch»: {}} [remove it]
    warning: `publish.dir` has no effect: `rollout.backend` is `native`
      at run.yaml:2: publish: {dir: «/shared», keep: 3} [remove it]
    warning: `publish.keep` has no effect: `rollout.backend` is `native`
      at run.yaml:2: publish: {dir: /shared, keep: «3»} [remove it]
    ");
}

/// On a Ray cluster, a server runs on a node of the cluster.
#[test]
fn servers_that_a_run_starts_are_announced_where_they_are() {
    let announced = |launcher: &str| {
        let launcher = format!("cluster.launcher={launcher}");
        let arguments = [
            "model.path=m",
            "data.task=arithmetic",
            "train.total_steps=1",
            "rollout.backend=vllm",
            "rollout.launch={}",
            &launcher,
        ];
        let loaded = try_load("", &arguments).expect("sound");
        ServerCommand::announcement(&loaded.config).expect("servers")
    };
    let on_ray = announced("ray");
    assert!(on_ray.contains(" --host HOST --port PORT ") && !on_ray.contains("127.0.0.1"), "{on_ray}");
    assert!(on_ray.contains("; install its program on the nodes of the cluster, "), "{on_ray}");
    let here = announced("local");
    assert!(here.contains(" --host 127.0.0.1 ") && here.contains("; install its program here, "), "{here}");
}

#[test]
fn keys_in_a_command_of_ones_own() {
    let yaml = |word: &str| {
        format!(
            "rollout: {{backend: vllm, launch: {{command: [s, '{{model}}', '{{host}}', '{{port}}', '{word}']}}}}"
        )
    };
    assert_snapshot!(show_errors(&yaml("{key_file}"), &[]), @r#"
error: `rollout.launch.command` uses the file of the servers' key, but `cluster.launcher: none` starts servers without a key
  at run.yaml:1: rollout: {backend: vllm, launch: {command: «[s, '{model}', '{host}', '{port}', '{key_file}']»}}
  hint: set `cluster.launcher: local`, or name your own key file in the command and in `rollout.api_key_file`
"#);
    let refused = "`rollout.launch.command` uses the file of the servers' key";
    assert!(show_errors(&yaml("--config={key_config}"), &[]).contains(refused));
    for word in ["{key_file}", "--config={key_config}"] {
        for launcher in ["cluster.launcher=local", "cluster.launcher=ray"] {
            assert_eq!(show_errors(&yaml(word), &[launcher]), "", "{word} {launcher}");
        }
    }
}

#[test]
fn limits_of_servers_that_others_start() {
    let served =
        |rollout: &str| show_errors(&format!("rollout: {{backend: vllm, max_num_seqs: 64, {rollout}}}"), &[]);
    assert_eq!(served("launch: {tensor_parallel: 2}"), "");
    let own = |more: &str| served(&format!("launch: {{command: [serve, '{{model}}', '{{port}}'], {more}}}"));
    assert_snapshot!([
        served("servers: ['http://h:1']"),
        own("tensor_parallel: 2"),
        // Each of several servers gets as many GPUs.
        own("tensor_parallel: 2, replicas: 2"),
    ].join("\n"), @r"
    warning: `rollout.max_num_seqs` has no effect: `rollout.servers` names servers that are already running, each with a limit of its own
      at run.yaml:1: rollout: {backend: vllm, max_num_seqs: «64», servers: ['http://h:1']} [remove it]
    warning: `rollout.max_num_seqs` has no effect: `rollout.launch.command` is the whole command
      at run.yaml:1: rollout: {backend: vllm, max_num_seqs: «64», launch: {command: [serve, '{model}', '{port}'], tensor_parallel: 2}} [remove it]
    warning: `rollout.launch.tensor_parallel` has no effect: `rollout.launch.command` is the whole command, and a single server sees every GPU
      at run.yaml:1: rollout: {backend: vllm, max_num_seqs: 64, launch: {command: [serve, '{model}', '{port}'], tensor_parallel: «2»}} [remove it]
    warning: `rollout.max_num_seqs` has no effect: `rollout.launch.command` is the whole command
      at run.yaml:1: rollout: {backend: vllm, max_num_seqs: «64», launch: {command: [serve, '{model}', '{port}'], tensor_parallel: 2, replicas: 2}} [remove it]
    ");
}

#[test]
fn publications() {
    let served = ["rollout.backend=vllm", "rollout.servers=[http://h:1]"];
    assert_snapshot!(show_errors("publish: {dir: /shared, server_dir: /mnt/shared, keep: 3, verify: off}", &served), @"");
}

#[test]
fn learners_that_sample() {
    let elsewhere = ["rollout.backend=learner", "learner.url=unix:/l"];
    let carries = "schedule: {mode: streaming, surplus: carry, max_lag: 1}\npublish: {pause: wait}\nrollout: {regex: '[0-9]'}";
    assert_snapshot!([
        show_errors(carries, &elsewhere),
        // In this process it is the built-in engine, which can do both.
        show_errors("rollout: {backend: learner, regex: '[0-9]'}\npublish: {keep: 3, pause: keep}", &[]),
        show_errors("publish: {pause: abort}", &elsewhere),
    ].join("\n"), @r"
    error: `rollout.regex` needs a tokenizer in the sampler, but a learner in another process has none
      at run.yaml:3: rollout: {regex: «'[0-9]'»}
      hint: remove `rollout.regex`, or sample with the built-in engine (`rollout.backend: native`) or on servers
    error: `publish.pause: wait` does not work if the learner samples: its weights have already changed when a version is published
      at run.yaml:2: publish: {pause: «wait»}
      hint: set `publish.pause: keep` (samples in flight continue with the new weights, and each token records the version that sampled it) or `abort`
    warning: `publish.keep` has no effect: `rollout.backend` is `learner`
      at run.yaml:2: publish: {keep: «3», pause: keep} [remove it]
    warning: `publish.pause` has no effect: `rollout.backend` is `learner`
      at run.yaml:2: publish: {keep: 3, pause: «keep»} [remove it]
    warning: `publish.pause` has no effect: nothing is in flight at a publication with `schedule.surplus: discard`
      at run.yaml:1: publish: {pause: «abort»} [remove it]
    ");
}

#[test]
fn judges() {
    assert_snapshot!(show_errors("reward: [{kind: judge, prompt: hello}]", &[]), @r#"
error: `reward[0].servers` is empty: the judge needs a server
  at run.yaml:1: reward: [{kind: «judge», prompt: hello}]
  hint: set it: `servers: [http://HOST:PORT]`, or `[https://HOST]`
error: `reward[0].prompt` does not contain `{completion}`: the judge would not see the completion
  at run.yaml:1: reward: [{kind: judge, prompt: «hello»}]
  hint: add `{completion}` for the policy's text; `{prompt}`, `{ground_truth}` and columns of the data can be used too
"#);
    assert_snapshot!(
        show_errors("reward: [{kind: judge, servers: ['http://h:1'], prompt: '{prompt} {completion}'}]", &[]),
        @""
    );
}

#[test]
fn adapters_and_sleep_are_checked_against_what_takes_them() {
    let served = ["rollout.backend=vllm", "rollout.servers=[http://127.0.0.1:8000]", "learner.backend=torch"];
    let errors = |more: &[&str]| show_errors("model: {path: m}", &[&served[..], more].concat());
    let four_bits = ["learner.lora={base: nf4}", "cluster.launcher=local", "learner.gpus_per_node=2"];
    assert_eq!(errors(&four_bits[..2]), "");
    assert_eq!(errors(&["publish.mode=nccl", "publish.timeout=1m"]), "");
    let after_kl = [
        "rollout.sleep_level=1",
        "objective.kl.in=reward",
        "objective.kl.coefficient=0.1",
        "filter={kind: variance, metric: seq_final_reward}",
    ];
    assert_snapshot!([
        errors(&["publish.mode=adapter"]),
        errors(&["publish.mode=adapter", "learner.lora={}", "rollout.backend=sglang"]),
        errors(&four_bits),
        errors(&["publish.mode=adapter", "learner.lora={base: nf4}"]),
        errors(&["publish.mode=adapter", "learner.lora={rank: 1024}"]),
        errors(&["publish.mode=adapter", "learner.lora={}", "rollout.sleep_level=2"]),
        errors(&["publish.mode=ipc", "learner.backend=native"]),
        errors(&["publish.mode=ipc", "rollout.servers=[]", "rollout.launch={replicas: 2}"]),
        errors(&["publish.mode=ipc", "learner.device=cpu"]),
        errors(&["publish.mode=nccl", "learner.backend=native"]),
        errors(&["publish.mode=nccl", "learner.device=cpu"]),
        errors(&["rollout.sleep_level=1", "schedule.mode=streaming"]),
        errors(&after_kl),
    ].join("\n"), @r"
    error: `publish.mode: adapter` needs an adapter, but the whole policy learns
      at command line: publish.mode=«adapter»
      hint: set `publish.mode: folder`, or set `learner.lora: {}`
    error: `publish.mode: adapter` needs vLLM, but `rollout.backend` is `sglang`
      at command line: publish.mode=«adapter»
      hint: set `publish.mode: folder`
    error: `learner.lora.base: nf4` needs one rank: weights in 4 bits are not shared out, but the learner has 2
      at command line: learner.lora={base: «nf4»}
      hint: set `learner.gpus_per_node: 1` and `learner.nodes: 1`, or remove `learner.lora.base`
    error: `publish.mode: adapter` applies the adapter to the servers' weights, which are not the 4-bit ones below which it learns
      at command line: publish.mode=«adapter»
      hint: set `publish.mode: folder`, which publishes those with the adapter merged into them
    error: vLLM takes adapters up to rank 512, but `learner.lora.rank` is 1024
      at command line: learner.lora={rank: «1024»}
      hint: set `publish.mode: folder`
    error: at sleep level 2 servers lose the weights under the adapter
      at command line: rollout.sleep_level=«2»
      hint: set `rollout.sleep_level: 1`, or `publish.mode: folder`
    error: `publish.mode: ipc` shares the memory of a GPU between PyTorch and vLLM, but the policy learns with `native` and samples with `vllm`
      at command line: publish.mode=«ipc»
      hint: set `publish.mode: folder`
    error: `publish.mode: ipc` needs one server on the learner's GPU, but `rollout.launch` uses several GPUs
      at command line: «rollout.launch»={replicas: 2}
      hint: set `publish.mode: folder`
    error: `publish.mode: ipc` shares the memory of a GPU, but `learner.device` is `cpu`
      at command line: publish.mode=«ipc»
      hint: set `publish.mode: folder`
    error: `publish.mode: nccl` sends weights from PyTorch to vLLM, but the policy learns with `native` and samples with `vllm`
      at command line: publish.mode=«nccl»
      hint: set `publish.mode: folder`
    error: `publish.mode: nccl` sends weights from a GPU, but `learner.device` is `cpu`
      at command line: publish.mode=«nccl»
      hint: set `publish.mode: folder`
    error: `schedule.mode: streaming` and `schedule.surplus: carry` sample while the policy learns, but the servers sleep then
      at command line: rollout.sleep_level=«1»
      hint: set `rollout.sleep_level: 0`; or `schedule.mode: rounds` (or `deficit`) and `schedule.surplus: discard`
    error: the filter needs rewards after the KL, which the learner computes between rounds, but the servers sleep only after the last round
      at command line: rollout.sleep_level=«1»
      hint: use `filter.metric: seq_reward`, the same before the KL, or set `rollout.sleep_level: 0`
    warning: the filter looks at `seq_final_reward` with the KL in the reward: that varies in every group, so nothing is filtered
      at command line: filter={kind: variance, metric: «seq_final_reward»}
      hint: use `filter.metric: seq_reward`, the same before the KL, or `acc`
    ");
    assert_eq!(errors(&["publish.mode=adapter", "learner.lora={}", "rollout.sleep_level=1"]), "");
}
