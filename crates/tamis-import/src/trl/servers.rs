//! TRL's vLLM beside the trainer.

use crate::shared::servers::{argument, launch};
use crate::translator::Translator;

/// The server that the run starts, with the arguments that its keys become.
pub(crate) fn beside_the_learner(t: &mut Translator) {
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
    launch(t, "use_vllm", &arguments);
}
