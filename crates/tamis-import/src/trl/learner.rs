//! TRL's number formats and attention.

use crate::key::Rule;
use crate::shared::learner::{is_torch, of_torch};
use crate::translator::Translator;

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
