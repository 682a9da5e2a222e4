//! TRL's adapters, number formats and attention.

use super::{NONE, OFF};
use crate::foreign::key::Rule;
use crate::foreign::shared::learner::{AdapterKeys, adapter, is_torch, of_torch};
use crate::foreign::translator::Translator;

/// `use_peft`.
pub(super) const ADAPTER: Rule = Rule::new(1, "adapter", |t| {
    let is_on = t.flag(KEYS.leading, false);
    adapter(&KEYS, is_on, t);
});

const KEYS: AdapterKeys = AdapterKeys {
    leading: "use_peft",
    rank: ("lora_r", 16.0),
    alpha: ("lora_alpha", 32.0),
    targets: "lora_target_modules",
    // What peft takes for Llama and Qwen.
    default_targets: "[q_proj, v_proj]",
    refused: &[
        (
            "lora_target_parameters",
            NONE,
            "an adapter is on whole linear layers: name them in `lora_target_modules`",
        ),
        ("lora_modules_to_save", NONE, "nothing but the adapter is trained beside it"),
        (
            "use_rslora",
            OFF,
            "the scale is `lora_alpha / lora_r`: multiply `lora_alpha` by the root of `lora_r` instead",
        ),
        ("use_dora", OFF, "an adapter is the product of two matrices alone (LoRA)"),
    ],
    ignored: &[
        (
            "lora_dropout",
            "an adapter is trained without dropout: what is trained on has the probabilities that it was sampled with",
        ),
        ("lora_task_type", "the policy is a causal language model"),
    ],
};

/// `bf16` and `fp16`.
pub(super) const PRECISION: Rule = Rule::new(2, "precision", precision);

fn precision(t: &mut Translator) {
    const NATIVE: &str = "the native engine computes in f32";
    let (bf16, fp16) = (t.flag("bf16", false), t.flag("fp16", false));
    if fp16 && is_torch(t) {
        t.refuse(
            "fp16",
            "half precision would need a scale of the loss: take bf16=True, whose range is that of f32",
        );
    }
    t.no_effect("fp16", if fp16 { NATIVE } else { "false asks for nothing" });
    if t.text("bf16").is_some() {
        of_torch("bf16", "learner.dtype", if bf16 { "bf16" } else { "f32" }, NATIVE, t);
    }
    t.no_effect("bf16", "null leaves the default: bf16 on a GPU, f32 on a CPU");
}

/// `attn_implementation`.
pub(super) const ATTENTION: Rule = Rule::new(2, "attention", attention);

fn attention(t: &mut Translator) {
    const KEY: &str = "attn_implementation";
    if let Some(name) = t.text(KEY) {
        of_torch(KEY, "learner.attention", &name, "the native engine has one attention", t);
    }
    t.no_effect(KEY, "null leaves the default");
}
