//! TRL's vLLM: beside the trainer, or as a server.

use std::fmt::Write as _;

use crate::key::Rule;
use crate::owner::Owner;
use crate::shared::servers::{RULE, argument, launch, sweep};
use crate::translator::{Translator, quote};

const USE: &str = "use_vllm";

const MODE: &str = "vllm_mode";

const URL: &str = "vllm_server_base_url";

const HOST: &str = "vllm_server_host";

const PORT: &str = "vllm_server_port";

/// vLLM as the engine that generates.
pub(super) const SERVERS: Rule = Rule::new(2, RULE, servers);

/// TRL's vLLM: beside the trainer, or as a server.
fn servers(t: &mut Translator) {
    if !t.flag(USE, false) {
        if t.find(USE).is_some() {
            t.set(&[USE], "rollout.backend", "native");
        }
        return sweep(
            t,
            RULE,
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
    sweep(t, RULE, |key| match key {
        MODE => "it says whether the run starts the server",
        "vllm_group_port" => "weights go to servers as a folder that they read, `publish.dir`",
        "vllm_enable_sleep_mode" => {
            "servers stay awake; where PyTorch learns on their GPU, `rollout.sleep_level: 2` is TRL's sleep"
        }
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
    t.set(&[URL, HOST, PORT, USE], "rollout.servers", &format!("[{}]", quote(&url)));
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
