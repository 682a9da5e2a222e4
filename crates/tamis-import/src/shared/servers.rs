//! Engines of other systems as servers. Those systems start them; here the run does.

use crate::translator::{Translator, show};
use tamis_config::render::scalar;

/// Options of an engine, with the flags of vLLM and SGLang that they become. An empty flag means that there
/// is none.
struct Flag {
    option: &'static str,
    vllm: &'static str,
    sglang: &'static str,
    /// For a switch: the value that needs a flag.
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

/// The option of an engine as an argument of its server, if it needs one.
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

/// Makes the run start servers of an engine, with its options as arguments. `name` is the key that names the
/// engine.
pub(crate) fn engine(name: &str, backend: &str, t: &mut Translator) {
    let prefix = name.trim_end_matches("name");
    let mut arguments = Vec::new();
    for option in FLAGS.iter().map(|flag| flag.option) {
        let key = format!("{prefix}{option}");
        arguments.extend(argument(t, &key, option, backend).map(|argument| (key, argument)));
    }
    // They precede verl's own keys of the same meaning: a server uses the last one.
    arguments.extend(engine_kwargs(t, &format!("{prefix}engine_kwargs."), backend));
    launch(t, name, &arguments);
}

/// Makes the run start its servers, with arguments from keys.
pub(crate) fn launch(t: &mut Translator, from: &str, arguments: &[(String, String)]) {
    // A missing list cannot be appended to.
    t.set(&[from], "rollout.launch", if arguments.is_empty() { "{}" } else { "{args: []}" });
    for (key, argument) in arguments {
        t.append(&[key], "rollout.launch.args", &scalar(argument));
    }
}

/// Options that verl passes to the engine under the engine's own names.
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
            // vLLM's switches can be turned off by name. SGLang's are off by default.
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
