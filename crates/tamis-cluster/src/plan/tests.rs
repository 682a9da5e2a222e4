//! Plans of configurations.

use serde_json::json;
use tamis_config::load_sources;
use tamis_config::source::{Source, SourceKind};

use super::*;

const GPUS: &[&str] = &[
    "learner.backend=torch",
    "cluster.launcher=local",
    "rollout.backend=vllm",
    "rollout.launch.replicas=4",
    "train.micro_batch_tokens=16384",
    "model.recompute_activations=true",
];

fn config(overrides: &[&str]) -> Config {
    let yaml = "model: {path: model}\n\
        data: {train: x.jsonl, train_batch_size: 128, max_prompt_length: 1024}\n\
        rollout: {n: 8, max_response_length: 4096}\nreward: [{kind: number}]\ntrain: {total_steps: 1}\n";
    let source = Source::new(SourceKind::File("run.yaml".into()), yaml.to_owned());
    let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
    load_sources(&[source], &overrides).unwrap_or_else(|errors| panic!("{errors}")).config
}

/// Qwen2.5-7B.
fn seven() -> RunModels {
    let config = json!({"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
        "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152_064,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16"});
    RunModels { policy: ModelSizes::of_config(&config), ..RunModels::default() }
}

/// A plan on machines that the user named.
fn plan(overrides: &[&str], machines: &str) -> Plan {
    plan_on(overrides, Machines::parse(machines).expect("machines"))
}

fn plan_on(overrides: &[&str], machines: Machines) -> Plan {
    Plan::new(&config(&[GPUS, overrides].concat()), &seven(), machines)
}

/// A plan on inspected machines.
fn plan_seen(overrides: &[&str], machines: &str) -> Plan {
    let named = Machines::parse(machines).expect("machines");
    plan_on(overrides, Machines::Known(named.known().to_vec()))
}

fn messages(found: &[Misfit]) -> String {
    found.iter().fold(String::new(), |text, one| text + &one.message + "\n  hint: " + &one.hint + "\n")
}

#[test]
fn eight_gpus_by_default_are_shared_out_between_learner_and_servers() {
    let plan = plan(&[], "8x80GiB");
    insta::assert_snapshot!(plan.lines().join("\n"), @r"
    plan: machine 1, 8 GPUs with 80.0 GiB
      learner: 4 ranks on GPUs 0 to 3; a wave has at most 4 x 16384 tokens
        each GPU: 28.4 GiB of 80.0 GiB before a token is computed: weights 7.1 GiB, gradients 7.1 GiB, moments 14.2 GiB
      servers: 4 of vLLM, on GPUs 4 to 7
        each GPU: weights 14.2 GiB of the 72.0 GiB that it takes
    ");
    assert_eq!(messages(&plan.misfits) + &messages(&plan.doubts), "");
    let learner = plan.learner.expect("one");
    assert_eq!(learner.gpus.expect("known"), ["0", "1", "2", "3"]);
    assert_eq!(plan.servers.expect("some").gpus.expect("known"), ["4", "5", "6", "7"]);
}

/// Supervised fine-tuning alone has no servers, and its learner neither a reference nor a critic.
#[test]
fn supervised_fine_tuning_alone_is_weights_gradients_and_moments() {
    let alone =
        ["train.total_steps=0", "sft.data=[x.jsonl]", "sft.epochs=1", "objective.kl.in=loss", "preset=ppo"];
    let own = plan(&[&alone[..], &["sft.max_length=2048", "sft.batch_size=16"]].concat(), "8x80GiB");
    let lines = own.lines().join("\n");
    for absent in ["server", "reference", "critic"] {
        assert!(!lines.contains(absent), "{lines}");
    }
    // All GPUs learn. A rank has two rows of an update.
    let learner = own.learner.expect("one");
    assert_eq!((learner.ranks_per_machine, learner.tokens), (Some(8), 4096), "{lines}");
    // A row longer than a micro-batch is one by itself.
    let long = plan(&[&alone[..], &["sft.max_length=32768"]].concat(), "8x80GiB");
    assert_eq!(long.learner.expect("one").tokens, 32768);
}

#[test]
fn what_cannot_fit_is_refused_with_the_numbers() {
    let plan = plan(&["rollout.launch.replicas=1"], "2x24GiB");
    insta::assert_snapshot!(messages(&plan.misfits), @r"
    the learner needs 127.7 GiB on each GPU before a token is computed, but has 24.0 GiB: weights 42.6 GiB, gradients 28.4 GiB, moments 56.7 GiB
      hint: to need less: an adapter (`learner.lora: {rank: 32, alpha: 32}`): 15.5 GiB, an adapter over 4-bit weights (`learner.lora: {rank: 32, alpha: 32, base: nf4}`): 6.5 GiB, more GPUs (`learner.gpus_per_node`, `learner.nodes`), a smaller model
    ");
    assert!(plan.doubts.is_empty());
}

#[test]
fn more_gpus_than_there_are_is_refused_or_told() {
    let plan = plan(&["learner.gpus_per_node=6"], "8x80GiB");
    insta::assert_snapshot!(messages(&plan.misfits), @r"
    the learner needs 6 GPUs, and the servers 4 more; there are 8 of machine 1, with room for 2 of 4 servers
      hint: lower `learner.gpus_per_node`, `learner.nodes`, `rollout.launch.replicas` or `rollout.launch.tensor_parallel`; have learner and servers share GPUs (`cluster.colocate: true`); check `CUDA_VISIBLE_DEVICES`
    ");
    // On inspected machines this is only a doubt: the launcher refuses it, or waits for GPUs.
    let looked = plan_seen(&["learner.gpus_per_node=6"], "8x80GiB");
    assert_eq!((looked.misfits.len(), messages(&looked.doubts)), (0, messages(&plan.misfits)));
    // Whether a command that the user wrote takes GPUs is not known.
    let own = ["learner.gpus_per_node=6", "rollout.launch.command=[serve, '{host}', '{port}', '{model}']"];
    let plan = self::plan(&own, "8x80GiB");
    assert!(plan.doubts.is_empty() && plan.misfits.is_empty(), "{}", messages(&plan.doubts));
}

/// The ranks of a node, and the GPUs of a server, have to be on one machine. The total is not enough.
#[test]
fn gpus_are_counted_machine_by_machine() {
    let ray = |overrides: &[&str], machines| {
        let refused = plan(&[&["cluster.launcher=ray"], overrides].concat(), machines).misfits;
        let messages = refused.into_iter().map(|misfit| misfit.message);
        messages.filter(|text| text.contains("there are")).collect::<String>()
    };
    let large = ["learner.nodes=2", "learner.gpus_per_node=16"];
    insta::assert_snapshot!(ray(&large, "4x8x80GiB"), @"the learner needs 32 GPUs (16 on each of 2 machines), and the servers 4 more; there are 8 of machine 1, 8 of machine 2, 8 of machine 3, 8 of machine 4");
    insta::assert_snapshot!(ray(&["rollout.launch={replicas: 1, tensor_parallel: 16}"], "4x8x80GiB"), @"the learner needs 8 GPUs, and the servers 16 more (16 for each, which are on one machine); there are 8 of machine 1, 8 of machine 2, 8 of machine 3, 8 of machine 4, with room for 0 of 1 servers");
    // Two machines have room for one server each beside the learner on both.
    insta::assert_snapshot!(ray(&["learner.nodes=2", "rollout.launch={replicas: 3, tensor_parallel: 4}"], "2x8x80GiB"), @"the learner needs 4 GPUs (2 on each of 2 machines), and the servers 12 more (4 for each, which are on one machine); there are 8 of machine 1, 8 of machine 2, with room for 2 of 3 servers");
    let colocated =
        ["cluster.colocate=true", "learner.nodes=3", "rollout.launch={replicas: 4, tensor_parallel: 3}"];
    insta::assert_snapshot!(ray(&colocated, "3x4x80GiB"), @"the learner needs 12 GPUs (4 on each of 3 machines), and the servers 12 of them (3 for each, which are on one machine); there are 4 of machine 1, 4 of machine 2, 4 of machine 3, with room for 3 of 4 servers");
    for (overrides, machines) in [
        (&["learner.nodes=2", "learner.gpus_per_node=8"][..], "3x8x80GiB"),
        (&["learner.gpus_per_node=8", "rollout.launch={replicas: 1, tensor_parallel: 8}"], "2x8x80GiB"),
        (
            &["cluster.colocate=true", "learner.nodes=3", "rollout.launch={replicas: 3, tensor_parallel: 3}"],
            "3x4x80GiB",
        ),
    ] {
        assert_eq!(ray(overrides, machines), "");
    }
    // Only servers: the learner runs already.
    let served = ["learner.url=unix:/l", "rollout.launch={replicas: 1, tensor_parallel: 16}"];
    let machines = Machines::parse("8x80GiB").expect("machines");
    let alone = Plan::new(&config(&[&GPUS[..3], &served].concat()), &seven(), machines);
    insta::assert_snapshot!(messages(&alone.misfits), @r"
    the servers need 16 GPUs (16 for each, which are on one machine); there are 8
      hint: lower `rollout.launch.replicas` or `rollout.launch.tensor_parallel`
    ");
}

/// If the number of ranks is left open, each machine needs at least one GPU; a launcher on Ray waits for it.
#[test]
fn ranks_that_are_left_open_need_a_gpu_on_each_machine() {
    let overrides = ["cluster.launcher=ray", "learner.nodes=3", "rollout.launch.replicas=1"];
    let named = plan(&overrides, "2x8x80GiB");
    insta::assert_snapshot!(messages(&named.misfits), @r"
    the learner needs at least 3 GPUs (1 on each of 3 machines), and the servers 1 more; there are 8 of machine 1, 8 of machine 2
      hint: lower `learner.gpus_per_node`, `learner.nodes`, `rollout.launch.replicas` or `rollout.launch.tensor_parallel`; have learner and servers share GPUs (`cluster.colocate: true`); check `CUDA_VISIBLE_DEVICES`
    ");
    let seen = |machines: &str| plan_seen(&overrides, machines);
    insta::assert_snapshot!(messages(&seen("2x8x80GiB").doubts), @r"
    the learner needs at least 3 GPUs (1 on each of 3 machines), and the servers 1 more; there are 8 of machine 1, 8 of machine 2
      hint: lower `learner.gpus_per_node`, `learner.nodes`, `rollout.launch.replicas` or `rollout.launch.tensor_parallel`; have learner and servers share GPUs (`cluster.colocate: true`); or add nodes: the launcher waits for them (`learner.startup_timeout`)
    ");
    // A GPU on each machine leaves none for the server.
    insta::assert_snapshot!(messages(&seen("3x1x80GiB").doubts[..1]), @r"
    the learner needs 3 GPUs (1 on each of 3 machines), and the servers 1 more; there are 1 of machine 1, 1 of machine 2, 1 of machine 3, with room for 0 of 1 servers
      hint: lower `learner.gpus_per_node`, `learner.nodes`, `rollout.launch.replicas` or `rollout.launch.tensor_parallel`; have learner and servers share GPUs (`cluster.colocate: true`); or add nodes: the launcher waits for them (`learner.startup_timeout`)
    ");
    assert!(seen("3x2x80GiB").doubts.iter().all(|doubt| !doubt.message.contains("there are")));
}

#[test]
fn one_machine_of_many_is_planned_for_without_ray() {
    let plan =
        plan(&["learner.gpus_per_node=8", "rollout.launch={replicas: 1, tensor_parallel: 8}"], "2x8x80GiB");
    assert!(plan.lines()[0].starts_with("plan: machine 1, 8 GPUs"), "{:?}", plan.lines());
    insta::assert_snapshot!(messages(&plan.misfits), @r"
    the learner needs 8 GPUs, and the servers 8 more (8 for each, which are on one machine); there are 8 of machine 1, with room for 0 of 1 servers
      hint: lower `learner.gpus_per_node`, `learner.nodes`, `rollout.launch.replicas` or `rollout.launch.tensor_parallel`; have learner and servers share GPUs (`cluster.colocate: true`); check `CUDA_VISIBLE_DEVICES`
    ");
    insta::assert_snapshot!(messages(&plan.doubts[..1]), @r"
    `cluster.launcher: local` starts everything on one machine: the plan uses the first of the 2, and the others stay idle
      hint: set `cluster.launcher: ray`, or name one machine (--machines 8x80GiB)
    ");
}

#[test]
fn servers_on_the_learners_gpus_leave_it_room() {
    let shared = ["cluster.colocate=true", "rollout.launch.replicas=8", "rollout.sleep_level=1"];
    let plan = plan(&shared, "8x80GiB");
    insta::assert_snapshot!(messages(&plan.doubts), @r"
    servers share the learner's GPUs: each takes 72.0 GiB (--gpu-memory-utilization 0.9), the learner holds 10.6 GiB all the time, but a GPU has only 80.0 GiB
      hint: give them `--gpu-memory-utilization 0.86` (`rollout.launch.args`), or GPUs of their own
    ");
    let share =
        plan.doubts[0].hint.split('`').nth(1).and_then(|text| text.split(' ').nth(1)).expect("a number");
    let args = format!("rollout.launch.args=[--gpu-memory-utilization, '{share}']");
    let mended: Vec<&str> = shared.iter().copied().chain([args.as_str()]).collect();
    let plan = self::plan(&mended, "8x80GiB");
    assert!(plan.doubts.is_empty(), "{}", messages(&plan.doubts));
    insta::assert_snapshot!(plan.lines().join("\n"), @r"
    plan: machine 1, 8 GPUs with 80.0 GiB
      learner: 8 ranks on GPUs 0 to 7; a wave has at most 8 x 16384 tokens
        each GPU: 14.2 GiB of 80.0 GiB before a token is computed: weights 3.5 GiB, gradients 3.5 GiB, moments 7.1 GiB
      servers: 8 of vLLM, on GPUs 0 to 7, which the learner has, too
        each GPU: weights 14.2 GiB of the 68.8 GiB that it takes
    ");
}

fn servers(plan: &Plan) -> &ServerMemory {
    plan.servers.as_ref().and_then(|servers| servers.memory.as_ref()).expect("known")
}

#[test]
fn options_of_servers_change_what_they_need() {
    let weights = |args: &str| {
        let plan = plan(&[&format!("rollout.launch.args={args}")], "8x80GiB");
        servers(&plan).weights
    };
    let parameters = 7_615_616_512;
    assert_eq!(weights("[]"), Some(2 * parameters));
    assert_eq!(weights("[--dtype=float32]"), Some(4 * parameters));
    assert_eq!(weights("[--quantization, fp8]"), Some(parameters));
    assert_eq!(weights("[--quantization, awq]"), None);
    let plan =
        plan(&["rollout.launch={replicas: 1, tensor_parallel: 4}", "cluster.launcher=local"], "8x3GiB");
    assert_eq!(servers(&plan).weights, Some(parameters / 4 * 2));
    insta::assert_snapshot!(messages(&plan.doubts[1..]), @r"
    a server needs 3.5 GiB on each of its GPUs for its weights, but has 2.7 GiB (--gpu-memory-utilization 0.9)
      hint: raise `rollout.launch.tensor_parallel`, or take a smaller model
    ");
    // SGLang's options have other names.
    let sglang =
        ["rollout.backend=sglang", "rollout.launch.args=[--context-length, '4096', --max-model-len=7]"];
    let plan = self::plan(&sglang, "8x80GiB");
    insta::assert_snapshot!(messages(&plan.doubts), @r"
    servers take sequences of at most 4096 tokens (--context-length), but a prompt with its answer may have 5120
      hint: raise `--context-length` (`rollout.launch.args`), or lower `rollout.max_response_length`
    ");
}

#[test]
fn a_reference_beside_an_adapter_counts_where_it_is_another_model() {
    let adapted = ["learner.lora={rank: 32}", "objective.kl.in=loss", "objective.kl.coefficient=0.1"];
    let has_reference = |overrides: &[&str]| {
        let plan = plan(&[&adapted, overrides].concat(), "8x80GiB");
        let memory = plan.learner.and_then(|learner| learner.memory).expect("known");
        memory.has("reference")
    };
    assert!(!has_reference(&[]) && has_reference(&["model.reference=other"]));
}

/// Without a launcher servers have the first GPUs, and the learner may have another.
#[test]
fn a_learner_on_another_gpu_shares_none() {
    let apart = ["cluster.launcher=none", "learner.device=cuda:1", "rollout.launch.replicas=1"];
    let plan = plan(&apart, "2x140GiB");
    let servers = plan.servers.as_ref().expect("some");
    assert_eq!((servers.shares, servers.gpus.as_deref()), (false, Some(&["0".to_owned()][..])));
    assert_eq!(
        plan.learner.as_ref().and_then(|learner| learner.gpus.as_deref()),
        Some(&["1".to_owned()][..])
    );
    assert!(plan.doubts.is_empty() && plan.misfits.is_empty(), "{}", messages(&plan.doubts));
}

/// A small GPU may drive a display. With `learner.device: auto`, PyTorch may be a build for CPUs.
#[test]
fn a_gpu_that_may_not_be_meant_refuses_nothing() {
    let small = ["rollout.launch.replicas=1"];
    let plan = plan(&small, "2x4GiB");
    assert!(plan.misfits.is_empty() && !plan.doubts.is_empty());
    let meant = self::plan(&["rollout.launch.replicas=1", "learner.device=cuda"], "2x4GiB");
    assert_eq!(meant.misfits.len(), 1, "{}", messages(&meant.misfits));
}

#[test]
fn several_machines_and_what_is_not_known() {
    let on_ray = ["cluster.launcher=ray", "learner.nodes=2", "rollout.launch.tensor_parallel=2"];
    let plan = plan(&on_ray, "2x8x80GiB");
    insta::assert_snapshot!(plan.lines().join("\n"), @r"
    plan: 2 machines, each 8 GPUs with 80.0 GiB
      learner: 2 machines with 4 ranks each, on a GPU each; a wave has at most 8 x 16384 tokens
        each GPU: 14.2 GiB of 80.0 GiB before a token is computed: weights 3.5 GiB, gradients 3.5 GiB, moments 7.1 GiB
      servers: 4 of vLLM, 2 GPUs each
        each GPU: weights 7.1 GiB of the 72.0 GiB that it takes
    ");
    let unseen = Machines::Unknown("the cluster is looked at when the run starts".to_owned());
    let plan = Plan::new(&config(&[GPUS, &on_ray].concat()), &RunModels::default(), unseen);
    insta::assert_snapshot!(plan.lines().join("\n"), @r"
    plan: the cluster is looked at when the run starts
      learner: as many ranks as there are GPUs; a micro-batch has at most 16384 tokens
      servers: 4 of vLLM, 2 GPUs each
    ");
    assert!(plan.misfits.is_empty() && plan.doubts.is_empty());
}

#[test]
fn a_machine_without_gpus_has_its_memory_shared_by_ranks() {
    let machine = Machine { memory: Some(300 << 30), ..Machine::default() };
    let machines = Machines::Known(vec![Machine { name: "here".to_owned(), ..machine }]);
    let overrides =
        ["learner.backend=torch", "cluster.launcher=local", "learner.device=cpu", "learner.gpus_per_node=2"];
    let command = "rollout.launch.command=[tamis, serve, '{model}', --port, '{port}']";
    let served = [&overrides[..], &["rollout.backend=vllm", command]].concat();
    let plan = Plan::new(&config(&served), &seven(), machines.clone());
    assert_eq!(
        plan.lines().last().map(String::as_str),
        Some("  server: 1 of `rollout.launch.command`, on the CPU")
    );
    let plan = Plan::new(&config(&overrides), &seven(), machines);
    insta::assert_snapshot!(plan.lines().join("\n"), @r"
    plan: here, no GPU, 300.0 GiB of memory free
      learner: 2 ranks on the CPU; a wave has at most 2 x 8192 tokens
        each rank: 56.7 GiB (2 of them have 300.0 GiB) before a token is computed: weights 14.2 GiB, gradients 14.2 GiB, moments 28.4 GiB
    ");
    assert!(plan.misfits.is_empty(), "{}", messages(&plan.misfits));
    let machines = Machines::Known(vec![Machine { memory: Some(100 << 30), ..Machine::default() }]);
    let plan = Plan::new(&config(&overrides), &seven(), machines);
    assert!(plan.misfits[0].message.starts_with("the learner needs "), "{}", messages(&plan.misfits));
}

#[test]
fn memory_that_others_have_is_told() {
    let gpu = Gpu { id: "0".to_owned(), name: "X".to_owned(), memory: 80 << 30, used: 30 << 30 };
    let machines =
        Machines::Known(vec![Machine { name: "here".to_owned(), gpus: vec![gpu], ..Machine::default() }]);
    let overrides = ["learner.backend=torch", "learner.lora={rank: 32}", "model.recompute_activations=true"];
    let plan = Plan::new(&config(&overrides), &seven(), machines);
    assert!(messages(&plan.doubts).starts_with("GPU 0 of here has 30.0 GiB in use by other processes"));
}

#[test]
fn ranks_follow_the_gpus_as_the_launcher_has_it() {
    let machines = |counts: &[usize]| {
        let of = |&count: &usize| Machine {
            gpus: (0..count)
                .map(|id| Gpu { id: id.to_string(), name: String::new(), memory: 1, used: 0 })
                .collect(),
            ..Machine::default()
        };
        counts.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(share_out(&machines(&[8]), 1, 4), Some(4));
    assert_eq!(share_out(&machines(&[8, 8]), 2, 4), Some(6));
    assert_eq!(share_out(&machines(&[8, 4]), 2, 0), Some(4));
    assert_eq!(share_out(&machines(&[2]), 1, 8), Some(1));
    assert_eq!(share_out(&machines(&[0, 8, 8]), 2, 0), Some(8));
    // Some machines are still being added.
    assert_eq!(share_out(&machines(&[8]), 2, 0), None);
    assert_eq!(share_out(&machines(&[0, 8]), 2, 0), None);
    assert_eq!(share_out(&[], 1, 0), None);
}

#[test]
fn a_micro_batch_is_no_larger_than_the_mini_batch_of_a_rank() {
    let config =
        config(&["data.train_batch_size=4", "rollout.max_response_length=100", "data.max_prompt_length=50"]);
    // Four groups of 50 + 8 x 100 tokens.
    assert_eq!(micro_batch_tokens(&config, 1), 3400);
    assert_eq!(micro_batch_tokens(&config, 4), 850);
    assert_eq!(micro_batch_tokens(&config, 64), 850);
    let long = self::config(&["rollout.max_response_length=20000"]);
    assert_eq!(micro_batch_tokens(&long, 1), 21_024);
}

/// Qwen2.5-0.5B.
fn half() -> RunModels {
    let config = json!({"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864,
        "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151_936,
        "tie_word_embeddings": true, "torch_dtype": "bfloat16"});
    RunModels { policy: ModelSizes::of_config(&config), ..RunModels::default() }
}

const ONE: &[&str] = &[
    "learner.backend=torch",
    "rollout.backend=learner",
    "train.micro_batch_tokens=16384",
    "model.recompute_activations=true",
];

fn plan_one(models: &RunModels, overrides: &[&str]) -> Plan {
    let machines = Machines::parse("1x24GiB").expect("machines");
    Plan::new(&config(&[ONE, overrides].concat()), models, machines)
}

#[test]
fn one_card_of_24_gib_and_a_model_of_7b() {
    let whole = plan_one(&seven(), &[]);
    insta::assert_snapshot!(messages(&whole.misfits), @r"
    the learner needs 127.7 GiB on each GPU before a token is computed, but has 24.0 GiB: weights 42.6 GiB, gradients 28.4 GiB, moments 56.7 GiB
      hint: to need less: an adapter (`learner.lora: {rank: 32, alpha: 32}`): 15.5 GiB, an adapter over 4-bit weights (`learner.lora: {rank: 32, alpha: 32, base: nf4}`): 6.5 GiB, more GPUs (`learner.gpus_per_node`, `learner.nodes`), a smaller model
    ");
    let adapted = plan_one(&seven(), &["learner.lora={rank: 32}"]);
    insta::assert_snapshot!(adapted.lines().join("\n"), @r"
    plan: machine 1, 1 GPU with 24.0 GiB
      learner: 1 rank on GPU 0; a micro-batch has at most 16384 tokens
        each GPU: 15.5 GiB of 24.0 GiB before a token is computed: weights 14.6 GiB, gradients 308.0 MiB, moments 616.0 MiB
        policy: 7.62e9 parameters, of which 8.07e7 learn: 14.2 GiB in bf16, 5.2 GiB with its linear layers in 4 bits
        beside it: at least 4.6 GiB of activations in a micro-batch, and at most 57.8 GiB of keys and values while it samples
        it would keep 15.1 GiB with `learner.moments: 8bit`, 14.9 GiB with `learner.offload_moments: true`, 6.5 GiB with 4-bit weights below the adapter (`learner.lora.base: nf4`)
    ");
    assert_eq!(messages(&adapted.misfits), "");
    let plan = adapted.learner.expect("one");
    // Rank 32 on q, k, v, o, gate, up and down of 28 layers.
    let adapter = 32 * 28 * (2 * (3584 + 3584) + 2 * (512 + 3584) + 3 * (18_944 + 3584));
    let sizes = plan.sizes.expect("known");
    assert_eq!((sizes.parameters, sizes.learned, sizes.in_passes), (7_615_616_512, adapter, 15_231_233_024));
    // 6,525,288,448 weights are in linear layers: half a byte, a byte for 64, four for 256 of these.
    let linears = 28 * (3584 * 8192 + 3 * 3584 * 18_944);
    let in_four_bits = linears / 2 + linears / 64 + linears / 4096 + 2 * (7_615_616_512 - linears);
    assert_eq!(sizes.in_four_bits, in_four_bits);
    assert_eq!(plan.memory.expect("known").total(), 15_231_233_024 + 18 * adapter);
    // The inputs of 28 layers and the outputs of one's linear layers, 2 bytes each, of 16,384 tokens.
    let outputs = 3584 + 2 * 512 + 3584 + 2 * 18_944 + 3584;
    let working = plan.working.expect("known");
    assert_eq!(working.activations, 2 * 16_384 * (28 * 3584 + outputs));
    // Keys and values of 256 completions and 32 prompts.
    assert_eq!(working.cache, 2 * 28 * 2 * 512 * (256 * 4096 + 32 * 1024));
    // The adapter over 4 bits with moments in 8 bits.
    let small = plan_one(&seven(), &["learner.lora={rank: 32, base: nf4}", "learner.moments=8bit"]);
    let found = small.learner.expect("one");
    let moments = 2 * (adapter + adapter / 64);
    assert_eq!(found.memory.expect("known").total(), in_four_bits + 10 * adapter + moments);
    assert_eq!(found.smaller.len(), 1, "moments on the host: {:?}", found.smaller);
}

#[test]
fn activations_that_do_not_fit_beside_the_weights_are_a_doubt() {
    let given = ["learner.lora={rank: 32}", "model.recompute_activations=false"];
    insta::assert_snapshot!(messages(&plan_one(&seven(), &given).doubts), @r"
the learner needs 15.5 GiB on each GPU, and at least 45.5 GiB of activations in a micro-batch, but has 24.0 GiB
  hint: to need less: `model.recompute_activations: true`, lower `train.micro_batch_tokens` (now 16384), `learner.moments: 8bit`: 15.1 GiB, `learner.offload_moments: true`: 14.9 GiB, 4-bit weights below the adapter (`learner.lora.base: nf4`): 6.5 GiB
");
    let recomputed = ["learner.lora={rank: 32}", "train.micro_batch_tokens=65536"];
    let found = messages(&plan_one(&seven(), &recomputed).doubts);
    assert!(found.contains("hint: to need less: lower `train.micro_batch_tokens` (now "), "{found}");
    // 6.5 GiB of weights and 4.6 of activations.
    let small = plan_one(&seven(), &["learner.lora={rank: 32, base: nf4}"]);
    assert_eq!(messages(&small.doubts), "");
}

#[test]
fn one_card_of_24_gib_and_a_model_of_half_a_billion() {
    let plan = plan_one(&half(), &["learner.moments=8bit", "learner.offload_moments=true"]);
    insta::assert_snapshot!(plan.lines().join("\n"), @r"
    plan: machine 1, 1 GPU with 24.0 GiB
      learner: 1 rank on GPU 0; a micro-batch has at most 16384 tokens
        each GPU: 4.6 GiB of 24.0 GiB before a token is computed: weights 2.8 GiB, gradients 1.8 GiB
        policy: 4.94e8 parameters, of which 4.94e8 learn: 942.3 MiB in bf16, 435.8 MiB with its linear layers in 4 bits
        beside it: at least 1.0 GiB of activations in a micro-batch, and at most 12.4 GiB of keys and values while it samples
        it would keep 1.1 GiB with an adapter (`learner.lora: {rank: 32, alpha: 32}`), 603.6 MiB with an adapter over 4-bit weights (`learner.lora: {rank: 32, alpha: 32, base: nf4}`)
        main memory of all machines: 957.0 MiB
    ");
    // Every exact row holds its prompt.
    let cache = |given: &[&str]| plan_one(&half(), given).learner.unwrap().working.unwrap().cache;
    assert!(cache(&["learner.exact=true", "learner.dtype=f32"]) > cache(&["learner.dtype=f32"]));
    assert_eq!(messages(&plan.misfits), "");
    let learner = plan.learner.expect("one");
    let memory = learner.memory.expect("known");
    // 6 bytes of weights and 4 of gradients; moments of 2 bytes and 1/32 in the main memory.
    assert_eq!(memory.total(), 10 * 494_032_768);
    assert_eq!(memory.host, 2 * (494_032_768 + 1_929_816 * 4));
    assert_eq!(learner.working.expect("known").cache, 2 * 24 * 2 * 128 * (256 * 4096 + 32 * 1024));
}
