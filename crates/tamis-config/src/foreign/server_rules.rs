//! Engines of other systems as servers: those that they start, which the run starts here, and those that run already.

use std::fmt::Write as _;

use super::rules::quoted;
use super::translate::{Translator, show};
use super::{Becomes, Owner, Rule};

/// Where nothing says that an engine generates.
const ENGINE: &str = "the native engine generates, and needs no tuning of memory or parallelism";
/// What concerns machines, there.
const DEVICES: &str = "the native engine runs on the CPU of one machine";

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
fn argument(t: &mut Translator, key: &str, option: &str, backend: &str) -> Option<String> {
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
fn sweep(t: &mut Translator, rule: Rule, reason: impl Fn(&str) -> &'static str) {
    let is_of = |becomes: &Becomes| matches!(becomes, Becomes::Rule(of, _) if *of == rule);
    let keys = t.given.iter().filter(|given| is_of(&given.entry.becomes)).map(|given| given.key.clone());
    for key in keys.collect::<Vec<_>>() {
        t.no_effect(&key, reason(&key));
    }
}

/// verl's, RAGEN's and EasyR1's engine.
pub(super) fn servers(owner: Owner, t: &mut Translator) {
    const GPUS: &str = "trainer.n_gpus_per_node";
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
        return sweep(t, Rule::Servers, |key| match key.rsplit('.').next() {
            _ if key.starts_with("trainer.") => DEVICES,
            Some("dtype" | "quantization") => "computation is in f32",
            Some("enable_prefix_caching") => "the prompt of a group is always shared",
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
    let gpus = t.number(GPUS).filter(|&gpus| gpus >= 1.0);
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
        let replicas = (gpus / each.max(1.0)).floor().max(1.0);
        t.set(&[GPUS], "rollout.launch.replicas", &replicas.to_string());
        t.remark(
            GPUS,
            "the GPUs of this machine, as many for each server as share a model; the learner is on the CPU",
        );
    }
    sweep(t, Rule::Servers, |_| "the server does so anyway, or has no such option");
}

/// Has the run start its servers, with arguments that keys became.
fn launch(t: &mut Translator, from: &str, arguments: &[(String, String)]) {
    // A list that is not there cannot be appended to.
    t.set(&[from], "rollout.launch", if arguments.is_empty() { "{}" } else { "{args: []}" });
    for (key, argument) in arguments {
        t.append(&[key], "rollout.launch.args", &quoted(argument));
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

const USE: &str = "use_vllm";
const MODE: &str = "vllm_mode";
const URL: &str = "vllm_server_base_url";
const HOST: &str = "vllm_server_host";
const PORT: &str = "vllm_server_port";

/// TRL's vLLM: beside the trainer, or as a server.
pub(super) fn trl(t: &mut Translator) {
    if !t.flag(USE, false) {
        if t.find(USE).is_some() {
            t.set(&[USE], "rollout.backend", "native");
        }
        return sweep(
            t,
            Rule::TrlServers,
            |_| "use_vllm is false: the native engine generates, and there is nothing to correct",
        );
    }
    t.set(&[USE], "rollout.backend", "vllm");
    let mode = t.text(MODE).unwrap_or_else(|| "colocate".to_owned());
    match mode.as_str() {
        "server" => server(t),
        "colocate" => {
            let mut arguments = Vec::new();
            for (key, option) in [
                ("vllm_gpu_memory_utilization", "gpu_memory_utilization"),
                ("vllm_max_model_length", "max_model_len"),
                ("vllm_max_model_len", "max_model_len"),
                ("vllm_dtype", "dtype"),
                ("vllm_enable_prefix_caching", "enable_prefix_caching"),
            ] {
                arguments.extend(argument(t, key, option, "vllm").map(|argument| (key.to_owned(), argument)));
            }
            if let Some(model) = t.text("vllm_model_impl") {
                arguments.push(("vllm_model_impl".to_owned(), format!("--model-impl={model}")));
            }
            launch(t, USE, &arguments);
            t.remark(
                USE,
                "the run starts vLLM as a server of its own, which has to be installed here; for one that is running already: \
                 `rollout.servers=[http://HOST:PORT]`",
            );
            if let Some(each) = t.text("vllm_tensor_parallel_size") {
                t.set(&["vllm_tensor_parallel_size"], "rollout.launch.tensor_parallel", &each);
            }
        }
        _ => t.bad_value(MODE, "server or colocate"),
    }
    importance_sampling(t);
    let is_server = mode == "server";
    sweep(t, Rule::TrlServers, |key| match key {
        MODE => "it says whether the run starts the server",
        "vllm_group_port" => "weights go to servers as a folder that they read, `publish.dir`",
        "vllm_enable_sleep_mode" => "the learner is on the CPU: the server has its GPUs to itself",
        "vllm_device" => "CUDA_VISIBLE_DEVICES says it",
        URL | HOST | PORT | "vllm_server_timeout" if !is_server => {
            "vllm_mode is colocate: the run starts the server"
        }
        _ if is_server => "it is an argument of the server, which is started by hand: give it there",
        _ => "null leaves the default",
    });
}

fn server(t: &mut Translator) {
    let url = t.text(URL).unwrap_or_else(|| {
        let host = t.text(HOST).filter(|host| host != "0.0.0.0");
        let port = t.text(PORT).unwrap_or_else(|| "8000".to_owned());
        format!("http://{}:{port}", host.as_deref().unwrap_or("127.0.0.1"))
    });
    t.set(&[URL, HOST, PORT, USE], "rollout.servers", &format!("[{}]", quoted(&url)));
    for key in [HOST, PORT] {
        let whole = t.first_given(&[URL, HOST, PORT]).filter(|whole| whole != key);
        if let Some(whole) = whole {
            t.part_of(key, &whole);
        }
    }
    let model = t.text("model_name_or_path").unwrap_or_else(|| "MODEL".to_owned());
    let mut flags = String::new();
    for (key, flag) in [
        ("vllm_tensor_parallel_size", "--tensor-parallel-size"),
        ("vllm_gpu_memory_utilization", "--gpu-memory-utilization"),
        ("vllm_max_model_length", "--max-model-len"),
    ] {
        if let Some(value) = t.text(key) {
            let _ = write!(flags, " {flag} {value}");
        }
    }
    t.remark(
        USE,
        &format!(
            "there has to be, not `trl vllm-serve`, whose protocol is TRL's own, but `VLLM_SERVER_DEV_MODE=1 vllm serve {model} --logprobs-mode \
             processed_logprobs --enable-scale-out{flags}`"
        ),
    );
    if let Some(timeout) = t.number("vllm_server_timeout") {
        t.set(&["vllm_server_timeout"], "rollout.server_startup_timeout", &format!("{timeout}s"));
    }
}

/// TRL weighs by the ratio of the trainer's policy to vLLM's.
fn importance_sampling(t: &mut Translator) {
    const CORRECTION: &str = "vllm_importance_sampling_correction";
    const KIND: &str = "vllm_importance_sampling_mode";
    const MAX: &str = "vllm_importance_sampling_clip_max";
    const CAP: &str = "vllm_importance_sampling_cap";
    const MIN: &str = "vllm_importance_sampling_clip_min";
    const OURS: &str = "objective.correction.weights";
    let keys = [KIND, MAX, CAP, MIN, CORRECTION];
    if !t.flag(CORRECTION, true) {
        t.set(&[CORRECTION], "objective.correction.preset", "disabled");
        for key in keys {
            t.no_effect(key, "vllm_importance_sampling_correction is false");
        }
        return;
    }
    let kind = t.text(KIND).unwrap_or_else(|| "sequence_mask".to_owned());
    let Some((level, outside)) = kind.split_once('_').filter(|(level, outside)| {
        matches!(*level, "token" | "sequence") && matches!(*outside, "mask" | "truncate")
    }) else {
        t.bad_value(KIND, "token_truncate, token_mask, sequence_truncate or sequence_mask");
        return;
    };
    let max = t.text(MAX).or_else(|| t.text(CAP)).unwrap_or_else(|| "3.0".to_owned());
    let min = t.text(MIN).map_or_else(String::new, |min| format!(", min: {min}"));
    let weights = format!("{{level: {level}, outside: {outside}, max: {max}{min}}}");
    match t.first_given(&keys) {
        Some(first) => {
            t.set(&keys, OURS, &weights);
            for key in keys.into_iter().filter(|key| *key != first) {
                t.part_of(key, &first);
            }
        }
        None => t.default(Owner::Trl, KIND, OURS, &weights),
    }
}
