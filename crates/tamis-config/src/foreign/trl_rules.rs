//! The rules of TRL's fields.

use super::rules::quoted;
use super::translate::Translator;

/// TRL counts completions; a step of its generation is ours, one of its optimizer is our mini-batch.
pub(super) fn batch(t: &mut Translator) {
    const DEVICE: &str = "per_device_train_batch_size";
    const ACCUMULATION: &str = "gradient_accumulation_steps";
    const STEPS: &str = "steps_per_generation";
    const GENERATION: &str = "generation_batch_size";
    let device = t.number(DEVICE).unwrap_or(8.0);
    let accumulation = t.number(ACCUMULATION).unwrap_or(1.0);
    let steps = t.number(STEPS).unwrap_or(accumulation);
    let generated = t.number(GENERATION).unwrap_or(device * steps);
    let group = t.number("num_generations").unwrap_or(8.0);
    let Some(key) = t.first_given(&[GENERATION, DEVICE, ACCUMULATION, STEPS]) else { return };
    let (prompts, mini) = (generated / group, device * accumulation / group);
    let whole = |value: f64| value >= 1.0 && value.fract() == 0.0;
    if !whole(prompts) || !whole(mini) {
        let reason = format!(
            "{generated} completions a generation and {} an update are not whole groups of {group} (num_generations); a \
             group is never split here",
            device * accumulation
        );
        t.refuse(&key, reason);
        return;
    }
    t.set(&[GENERATION, DEVICE, ACCUMULATION, STEPS], "data.train_batch_size", &prompts.to_string());
    t.set(&[ACCUMULATION, DEVICE], "train.ppo_mini_batch_size", &mini.to_string());
    t.set(&[DEVICE], "train.micro_batch_size", &device.to_string());
    t.remark(&key, "TRL counts completions, on one device here; prompts are counted by tamis");
    for part in [GENERATION, DEVICE, ACCUMULATION, STEPS] {
        t.part_of(part, &key);
    }
}

pub(super) fn kl(t: &mut Translator) {
    let beta = t.number("beta").unwrap_or(0.0);
    if beta == 0.0 {
        t.set(&["beta"], "objective.kl.in", "none");
        return;
    }
    t.set(&["beta"], "objective.kl.in", "loss");
    t.set(&["beta"], "objective.kl.estimator", "k3");
    t.set(&["beta"], "objective.kl.coefficient", &beta.to_string());
}

pub(super) fn clip(t: &mut Translator) {
    let low = t.number("epsilon").unwrap_or(0.2);
    let high = t.number("epsilon_high").unwrap_or(low);
    if t.text("loss_type").as_deref() == Some("cispo") {
        // TRL's bound of CISPO is the ratio itself.
        t.set(&["epsilon_high", "epsilon"], "objective.loss.max_ratio", &high.to_string());
        t.part_of("epsilon", "epsilon_high");
        return;
    }
    t.set(&["epsilon", "epsilon_high"], "objective.loss.clip_low", &low.to_string());
    t.set(&["epsilon_high", "epsilon"], "objective.loss.clip_high", &high.to_string());
    t.set(&["epsilon", "epsilon_high"], "objective.loss.dual_clip", "null");
    t.no_effect("epsilon_high", "null takes epsilon");
}

pub(super) fn loss(t: &mut Translator) {
    const KEY: &str = "loss_type";
    let kind = match t.text(KEY).as_deref() {
        Some("cispo") => {
            t.set(&[KEY], "objective.loss.bound", "absolute");
            if t.first_given(&["epsilon", "epsilon_high"]).is_none() {
                t.set(&[KEY], "objective.loss.max_ratio", "0.2");
                t.remark(KEY, "TRL bounds the ratio by epsilon_high itself, 0.2 unless set; ScaleRL takes 5");
            }
            Some("cispo")
        }
        Some(kind @ ("sapo" | "vespo" | "luspo")) => Some(match kind {
            "sapo" => "sapo",
            "vespo" => "vespo",
            _ => "luspo",
        }),
        _ => None,
    };
    if let Some(kind) = kind {
        t.set(&[KEY], "objective.loss.kind", kind);
    }
    let (aggregation, remark) = match t.text(KEY).as_deref() {
        Some("grpo" | "sapo") => ("seq-mean-token-mean", None),
        Some("luspo") => ("seq-mean-token-sum", None),
        None | Some("dapo" | "cispo" | "vespo") => ("token-mean", None),
        Some("bnpo") => (
            "token-mean",
            Some("TRL's bnpo takes the mean per device's micro-batch; here it is the mini-batch's"),
        ),
        Some("dr_grpo") => ("seq-mean-token-sum-norm", None),
        Some(_) => {
            t.refuse(KEY, "the losses are grpo, bnpo, dr_grpo, dapo, cispo, sapo, luspo and vespo");
            return;
        }
    };
    t.set(&[KEY], "objective.aggregation", aggregation);
    if let Some(remark) = remark {
        t.remark(KEY, remark);
    }
}

pub(super) fn scale(t: &mut Translator) {
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
    t.set(&[KEY], "objective.advantage.scale", scale);
    t.set(&[KEY], "objective.advantage.norm_by_std", if scale == "none" { "false" } else { "true" });
    if scale != "none" {
        t.set(&[KEY], "objective.advantage.epsilon", "1e-4");
    }
}

pub(super) fn intervals(t: &mut Translator) {
    match t.number("max_steps") {
        Some(steps) if steps > 0.0 => t.set(&["max_steps"], "train.total_steps", &steps.to_string()),
        _ => t.no_effect("max_steps", "num_train_epochs says how long the run is"),
    }
    for (strategy, steps, ours) in [
        ("eval_strategy", "eval_steps", "validate.test_freq"),
        ("save_strategy", "save_steps", "checkpoint.save_freq"),
    ] {
        let by_steps = match t.text(strategy).as_deref() {
            Some("steps") => true,
            Some("no") => false,
            Some("epoch" | "best") => {
                t.refuse(strategy, "intervals are counted in steps: use `steps`");
                continue;
            }
            Some(_) => {
                t.bad_value(strategy, "no, steps or epoch");
                continue;
            }
            // Saving is by steps unless said otherwise, evaluation is off.
            None => strategy == "save_strategy",
        };
        if by_steps {
            let every = t.number(steps).unwrap_or(500.0);
            if every < 1.0 && every > 0.0 {
                t.refuse(steps, "a fraction of the run is not an interval here: give steps");
                continue;
            }
            if t.first_given(&[steps, strategy]).is_some() {
                t.set(&[steps, strategy], ours, &every.to_string());
            }
        } else if t.find(strategy).is_some() {
            t.set(&[strategy], ours, "0");
        }
        t.no_effect(steps, "the strategy is `no`");
        t.no_effect(strategy, "the interval is in steps");
    }
}

pub(super) fn rewards(t: &mut Translator) {
    const FUNCTIONS: &str = "reward_funcs";
    const WEIGHTS: &str = "reward_weights";
    let list = |t: &Translator, key: &str| -> Vec<serde_json::Value> {
        match t.find(key).map(|given| given.node.to_json()) {
            Some(serde_json::Value::Array(items)) => items,
            Some(serde_json::Value::Null) | None => Vec::new(),
            Some(item) => vec![item],
        }
    };
    let functions = list(t, FUNCTIONS);
    let weights = list(t, WEIGHTS);
    if functions.is_empty() {
        t.refuse(WEIGHTS, "the functions are not named: give `reward_funcs` too, or weights under `reward`");
        t.no_effect(FUNCTIONS, "null leaves the default");
        return;
    }
    if !weights.is_empty() && weights.len() != functions.len() {
        let reason = format!("{} weights for {} functions", weights.len(), functions.len());
        t.refuse(WEIGHTS, reason);
        return;
    }
    let mut items = Vec::new();
    for (index, function) in functions.iter().enumerate() {
        let name = function.as_str().unwrap_or_default();
        let keys = match name {
            "accuracy_reward" => "kind: math",
            "think_format_reward" => "name: think_format, kind: think_format",
            "get_soft_overlong_punishment" => "name: overlong, kind: soft_overlong",
            "get_cosine_scaled_reward" => "name: cosine, kind: cosine",
            "get_repetition_penalty_reward" => "name: repetition, kind: repetition",
            _ => {
                let reason = format!(
                    "{} is no function of trl.rewards: name its file under `reward` with `kind: python`, `style: trl`",
                    quoted(name)
                );
                t.refuse(FUNCTIONS, reason);
                return;
            }
        };
        let weight = weights.get(index).map_or_else(|| "1.0".to_owned(), ToString::to_string);
        items.push(format!("{{{keys}, weight: {weight}}}"));
    }
    t.set(&[FUNCTIONS], "reward", &format!("[{}]", items.join(", ")));
    t.part_of(WEIGHTS, FUNCTIONS);
}
