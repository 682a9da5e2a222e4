//! TRL's KL, clip range, loss, advantages, entropy bonus and masks.

use crate::key::Rule;
use crate::shared::advantage;
use crate::translator::Translator;

/// The clip range.
pub(super) const CLIP: Rule = Rule::new(2, "clip", clip);

fn clip(t: &mut Translator) {
    const BOUNDS: [&str; 2] = ["epsilon", "epsilon_high"];
    let low = t.number("epsilon").unwrap_or(0.2);
    let high = t.number("epsilon_high").unwrap_or(low);
    // Without it a layer of ours may have chosen the loss.
    let loss =
        t.text("loss_type").or_else(|| t.kind_of("objective.loss")).unwrap_or_else(|| "dapo".to_owned());
    match loss.as_str() {
        // TRL's bound of CISPO is the ratio itself.
        "cispo" if t.first_given(&BOUNDS).is_some() => {
            if t.text("loss_type").is_none() {
                t.set(&["epsilon_high", "epsilon"], "objective.loss.bound", "absolute");
            }
            t.set(&["epsilon_high", "epsilon"], "objective.loss.max_ratio", &high.to_string());
            t.part_of("epsilon", "epsilon_high");
        }
        "cispo" => {}
        _ if t.first_given(&BOUNDS).is_some() => {
            t.set(&BOUNDS, "objective.loss.clip_low", &low.to_string());
            t.set(&["epsilon_high", "epsilon"], "objective.loss.clip_high", &high.to_string());
            t.set(&BOUNDS, "objective.loss.dual_clip", "null");
        }
        _ => {}
    }
    t.no_effect("epsilon_high", "null takes epsilon");
}

/// `scale_rewards`.
pub(super) const SCALE: Rule = Rule::new(2, "scale", scale);

fn scale(t: &mut Translator) {
    const KEY: &str = "scale_rewards";
    let scale = match t.text(KEY).as_deref() {
        None | Some("group" | "True" | "true") => "group",
        Some("batch") => "batch",
        Some("none" | "False" | "false") => "none",
        Some(_) => {
            t.bad_value(KEY, "group, batch, none, true or false");
            return;
        }
    };
    advantage::scale(t, KEY, scale);
    if scale != "none" {
        t.set(&[KEY], "objective.advantage.epsilon", "1e-4");
    }
}
