//! Engines of other systems as servers: those that they start, which the run starts here.

use crate::owner::Owner;
use crate::shared::learner::is_torch;
use crate::translator::{Translator, quote, show};
use crate::verl::{is_asynchronous, is_separate};

/// Reason for ignoring an engine's keys where no engine is named.
const ENGINE: &str = "the native engine generates, and needs no tuning of memory or parallelism";

const LAUNCHER: &str = "cluster.launcher";

/// Options of an engine, with the flags of vLLM and of SGLang that they become; a flag that is empty is none.
struct Flag {
    option: &'static str,
    vllm: &'static str,
    sglang: &'static str,
    /// Of a switch: the value that needs a flag.
    switch: Option<bool>,
}

const fn flag(option: &'static str, vllm: &'static str, sglang: &'static str) -> Flag {
    Flag { option, vllm, sglang, switch: None }
}

const FLAGS: [Flag; 9] = [
    flag("gpu_memory_utilization", "--gpu-memory-utilization", "--mem-fraction-static"),
    flag("max_model_len", "--max-model-len", "--context-length"),
    flag("max_num_batched_tokens", "--max-num-batched-tokens", ""),
    flag("dtype", "--dtype", "--dtype"),
    flag("quantization", "--quantization", "--quantization"),
    flag("scheduling_policy", "--scheduling-policy", "--schedule-policy"),
    Flag { switch: Some(true), ..flag("enforce_eager", "--enforce-eager", "--disable-cuda-graph") },
    Flag {
        switch: Some(false),
        ..flag("enable_chunked_prefill", "--no-enable-chunked-prefill", "--chunked-prefill-size=-1")
    },
    Flag {
        switch: Some(false),
        ..flag("enable_prefix_caching", "--no-enable-prefix-caching", "--disable-radix-cache")
    },
];

/// The option of an engine as an argument of its server, where it needs one.
pub(crate) fn argument(t: &mut Translator, key: &str, option: &str, backend: &str) -> Option<String> {
    let flag = FLAGS.iter().find(|flag| flag.option == option)?;
    let name = if backend == "sglang" { flag.sglang } else { flag.vllm };
    let text = t.text(key)?;
    if name.is_empty() {
        return None;
    }
    if let Some(needs) = flag.switch {
        return (t.flag(key, !needs) == needs).then(|| name.to_owned());
    }
    let value = match text.as_str() {
        "bf16" => "bfloat16",
        "fp16" => "float16",
        "fp32" => "float32",
        same => same,
    };
    Some(format!("{name}={value}"))
}

/// Says of each key of a rule that became nothing else why that is.
pub(crate) fn sweep(t: &mut Translator, rule: &str, reason: impl Fn(&str) -> &'static str) {
    let keys = t.given.iter().filter(|given| given.rule == Some(rule)).map(|given| given.key.clone());
    for key in keys.collect::<Vec<_>>() {
        t.no_effect(&key, reason(&key));
    }
}

/// The name of the rule of every owner that translates its engine.
pub(crate) const RULE: &str = "servers";

const NODES: &str = "trainer.nnodes";
const GPUS: &str = "trainer.n_gpus_per_node";
/// The servers' own, in verl's `separate_async`.
const SERVER_NODES: &str = "actor_rollout_ref.rollout.nnodes";
const SERVER_GPUS: &str = "actor_rollout_ref.rollout.n_gpus_per_node";

/// The machines and GPUs that the policy learns on. Returns whether it does so in PyTorch there.
fn machines(t: &mut Translator) -> bool {
    if t.text_of("learner.url").is_some() {
        for key in [NODES, GPUS] {
            t.no_effect(key, "the learner at `learner.url` has the ranks that it was started with");
        }
        return false;
    }
    if !is_torch(t) {
        t.no_effect(
            NODES,
            "the native engine learns on one machine, and the run starts servers there alone; `learner.backend: torch` \
             reads it, as `learner.nodes`",
        );
        if is_separate(t) {
            t.no_effect(
                GPUS,
                "the native engine learns on the CPU of one machine; `learner.backend: torch` reads it, as \
                 `learner.gpus_per_node`",
            );
        }
        return false;
    }
    let (nodes, gpus) = (t.number(NODES), t.number(GPUS));
    for (key, ours, value) in [(NODES, "learner.nodes", nodes), (GPUS, "learner.gpus_per_node", gpus)] {
        if let Some(value) = value {
            t.set(&[key], ours, &value.to_string());
        }
    }
    let is_many = |value: Option<f64>| value.is_some_and(|value| value > 1.0);
    let says_none = t.text_of(LAUNCHER).is_none_or(|launcher| launcher == "none");
    if says_none && is_many(nodes) {
        t.set(&[NODES], LAUNCHER, "ray");
    } else if says_none && is_many(gpus) {
        t.set(&[GPUS], LAUNCHER, "local");
    }
    true
}

/// verl's, RAGEN's and EasyR1's engine, and the machines that it shares with the learner.
pub(crate) fn servers(owner: Owner, t: &mut Translator) {
    let learns_on_gpus = machines(t);
    let prefix = if owner == Owner::EasyR1 { "worker.rollout." } else { "actor_rollout_ref.rollout." };
    let of = |name: &str| format!("{prefix}{name}");
    let name = of("name");
    let backend = match t.text(&name).as_deref() {
        Some("vllm") => "vllm",
        Some("sglang" | "sglang_async") => "sglang",
        Some("hf" | "naive") => {
            t.set(&[&name], "rollout.backend", "native");
            t.remark(&name, "the native engine takes the place of transformers' `generate`");
            "native"
        }
        Some(_) => {
            t.refuse(&name, "the engines are vllm, sglang and hf");
            "native"
        }
        None => "native",
    };
    if backend == "native" {
        return sweep(t, RULE, |key| match key.rsplit('.').next() {
            _ if key == GPUS => {
                "the native engine learns and samples on the CPU of one machine; `learner.backend: torch` reads it, as `learner.gpus_per_node`"
            }
            _ if [SERVER_NODES, SERVER_GPUS].contains(&key) => {
                "the native engine samples on the CPU of one machine"
            }
            Some("dtype" | "quantization") => "computation is in f32",
            Some("enable_prefix_caching") => "the prompt of a group is always shared",
            Some("free_cache_engine") => "the native engine frees its cache when nothing is in flight",
            _ => ENGINE,
        });
    }
    t.set(&[&name], "rollout.backend", backend);
    let mut arguments = Vec::new();
    for option in FLAGS.iter().map(|flag| flag.option) {
        let key = of(option);
        arguments.extend(argument(t, &key, option, backend).map(|argument| (key, argument)));
    }
    // They go before the keys of verl that say the same, and a server takes the last.
    arguments.extend(engine_kwargs(t, &of("engine_kwargs."), backend));
    launch(t, &name, &arguments);
    t.remark(
        &name,
        "the run starts the engine as a server of its own, which has to be installed here; for servers that are running already: \
         `rollout.servers=[http://HOST:PORT]`",
    );
    let cut = of(if owner == Owner::EasyR1 { "tensor_parallel_size" } else { "tensor_model_parallel_size" });
    let is_separate = is_separate(t);
    let (nodes_key, gpus_key) = if is_separate { (SERVER_NODES, SERVER_GPUS) } else { (NODES, GPUS) };
    let gpus = t.number(gpus_key).filter(|&gpus| gpus >= 1.0);
    // Both cut a model over two GPUs unless told otherwise.
    let default = if t.whole { gpus.unwrap_or(2.0).min(2.0) } else { 1.0 };
    let given = t.number(&cut);
    let each = given.unwrap_or(default);
    if given.is_some() {
        t.set(&[&cut], "rollout.launch.tensor_parallel", &each.to_string());
    } else {
        t.default(owner, &cut, "rollout.launch.tensor_parallel", &each.to_string());
    }
    if let Some(gpus) = gpus {
        let nodes = if learns_on_gpus { t.number(nodes_key).unwrap_or(1.0).max(1.0) } else { 1.0 };
        let replicas = (nodes * gpus / each.max(1.0)).floor().max(1.0);
        t.set(&[gpus_key], "rollout.launch.replicas", &replicas.to_string());
        if is_separate {
            t.part_of(SERVER_NODES, SERVER_GPUS);
            t.remark(gpus_key, "the servers have these GPUs to themselves, as many each as share a model");
        } else if !learns_on_gpus {
            t.remark(
                GPUS,
                "the GPUs of this machine, as many for each server as share a model; the learner is on the CPU",
            );
        } else if t.text_of(LAUNCHER).is_some_and(|launcher| launcher != "none") {
            t.set(&[GPUS], "cluster.colocate", "true");
            t.remark(GPUS, "learner and servers share GPUs, as many for each server as share a model");
        }
    }
    // What samples while the policy learns has no time to sleep.
    if learns_on_gpus && gpus.is_some() && backend == "vllm" && !is_asynchronous(t) {
        sleep(owner, t, &of("free_cache_engine"));
    }
    let is_asynchronous = is_asynchronous(t);
    sweep(t, RULE, |key| {
        if key.ends_with(".free_cache_engine") && is_asynchronous {
            return "servers sample while the policy learns, and have nothing to free";
        }
        if [SERVER_NODES, SERVER_GPUS].contains(&key) {
            return "trainer.v1.trainer_mode=separate_async alone gives servers GPUs of their own";
        }
        if key.ends_with(".free_cache_engine") {
            return "servers that share the learner's GPUs sleep while it learns (`rollout.sleep_level`), others have \
                    nothing to free";
        }
        "the server does so anyway, or has no such option"
    });
}

/// Has servers on the learner's GPUs free them while it learns, as the engines of those systems do: verl's unless
/// told otherwise, EasyR1's in any case (`enable_sleep_mode=True` and `sleep(level=1)` in its
/// `vllm_rollout_spmd.py`).
fn sleep(owner: Owner, t: &mut Translator, key: &str) {
    const LEVEL: &str = "rollout.sleep_level";
    if owner != Owner::EasyR1 && t.find(key).is_some() {
        let level = if t.flag(key, true) { "1" } else { "0" };
        t.set(&[key], LEVEL, level);
    } else if t.text_of(LEVEL).is_none_or(|level| level == "0") {
        t.set(&[GPUS], LEVEL, "1");
    }
}

/// Has the run start its servers, with arguments that keys became.
pub(crate) fn launch(t: &mut Translator, from: &str, arguments: &[(String, String)]) {
    // A list that is not there cannot be appended to.
    t.set(&[from], "rollout.launch", if arguments.is_empty() { "{}" } else { "{args: []}" });
    for (key, argument) in arguments {
        t.append(&[key], "rollout.launch.args", &quote(argument));
    }
}

/// Options that verl hands to the engine by their own names.
fn engine_kwargs(t: &mut Translator, prefix: &str, backend: &str) -> Vec<(String, String)> {
    let mut arguments = Vec::new();
    let given = t.given.iter().filter(|given| given.key.starts_with(prefix));
    let given: Vec<(String, String)> = given
        .map(|given| {
            (given.key.clone(), if given.node.is_null() { String::new() } else { show(&given.node) })
        })
        .collect();
    for (key, value) in given {
        let Some(option) = key[prefix.len()..].strip_prefix(&format!("{backend}.")) else {
            t.no_effect(&key, "it is an option of another engine");
            continue;
        };
        let flag = format!("--{}", option.replace('_', "-"));
        let argument = match value.as_str() {
            "" => {
                t.no_effect(&key, "null leaves the default");
                continue;
            }
            "True" | "true" => flag,
            // vLLM's switches can be turned off by name, SGLang's are off.
            "False" | "false" if backend == "vllm" => format!("--no-{}", option.replace('_', "-")),
            "False" | "false" => {
                t.no_effect(&key, "a switch of SGLang is off unless it is given");
                continue;
            }
            value => format!("{flag}={value}"),
        };
        arguments.push((key, argument));
    }
    arguments
}
