//! The rules of TRL's fields.

use super::Owner;
use super::rules::{limit_text, quoted};
use super::translate::{Translator, is_hub_name};

const DEVICE: &str = "per_device_train_batch_size";
const ACCUMULATION: &str = "gradient_accumulation_steps";
const STEPS: &str = "steps_per_generation";
const GENERATION: &str = "generation_batch_size";
const PROCESSES: &str = "num_processes";
const SIZES: [&str; 5] = [GENERATION, DEVICE, ACCUMULATION, STEPS, PROCESSES];

/// What TRL's sizes, which count completions, come to.
struct Sizes {
    /// Completions of one forward and backward pass of one device.
    device: f64,
    /// Completions of one generation, over all devices.
    generated: f64,
    /// Completions of one update, over all devices.
    update: f64,
    /// Completions of a group.
    group: f64,
    /// Passes over what was generated.
    passes: f64,
}

impl Sizes {
    fn of(t: &mut Translator) -> Self {
        let device = t.number(DEVICE).unwrap_or(8.0);
        let accumulation = t.number(ACCUMULATION).unwrap_or(1.0);
        let processes = t.number(PROCESSES).unwrap_or(1.0);
        let steps = t.number(STEPS).unwrap_or(accumulation);
        Self {
            device,
            generated: t.number(GENERATION).unwrap_or(device * processes * steps),
            update: device * processes * accumulation,
            group: t.number("num_generations").unwrap_or(8.0),
            passes: t.number("num_iterations").unwrap_or(1.0),
        }
    }

    /// Updates from one generation to the next: a step of ours is one generation, a step of TRL's is one update.
    fn updates_per_step(&self) -> f64 {
        (self.generated / self.update).max(1.0) * self.passes
    }
}

fn is_count(value: f64) -> bool {
    value >= 1.0 && value.fract() == 0.0
}

/// TRL counts completions; a step of its generation is ours, one of its optimizer is our mini-batch.
pub(super) fn batch(t: &mut Translator) {
    let Some(key) = t.first_given(&SIZES).or_else(|| t.whole.then(|| DEVICE.to_owned())) else { return };
    if t.text(GENERATION).is_some() && t.text(STEPS).is_some() {
        t.refuse(STEPS, "generation_batch_size is given too, and TRL takes one of them");
        return;
    }
    let sizes = Sizes::of(t);
    let Sizes { generated, update, group, .. } = sizes;
    let (prompts, mini) = (generated / group, update / group);
    if !is_count(prompts) || !is_count(mini) {
        let reason = format!(
            "{generated} completions a generation and {update} an update are not whole groups of {group} (num_generations); a group is \
             never split here"
        );
        t.refuse_or_say(Owner::Trl, &key, reason);
        return;
    }
    // Several generations for one update are sampled from the same weights: one generation of ours.
    let merged = mini > prompts;
    if merged && (!is_count(mini / prompts) || sizes.passes > 1.0) {
        let reason = format!(
            "an update of {update} completions is not made of whole generations of {generated}, each of them used once: set \
             steps_per_generation to a multiple of gradient_accumulation_steps"
        );
        t.refuse_or_say(Owner::Trl, &key, reason);
        return;
    }
    let prompts = prompts.max(mini);
    if t.first_given(&SIZES).is_some() {
        t.set(&SIZES, "data.train_batch_size", &prompts.to_string());
        t.set(
            &[ACCUMULATION, DEVICE, GENERATION, STEPS, PROCESSES],
            "train.ppo_mini_batch_size",
            &mini.to_string(),
        );
    } else {
        let (prompts, mini) = (prompts.to_string(), mini.to_string());
        let sizes =
            [("data.train_batch_size", prompts.as_str()), ("train.ppo_mini_batch_size", mini.as_str())];
        t.defaults(Owner::Trl, DEVICE, &sizes);
        return;
    }
    if t.find(DEVICE).is_some() {
        t.set(&[DEVICE], "train.micro_batch_size", &sizes.device.to_string());
    }
    let remark = if merged {
        "TRL counts completions, prompts are counted by tamis; the generations of one update are one here: the same weights sample them"
    } else {
        "TRL counts completions; prompts are counted by tamis"
    };
    t.remark(&key, remark);
    for part in SIZES {
        t.part_of(part, &key);
    }
}

/// A number of TRL's steps, which are updates, in steps of ours.
pub(super) fn in_steps_of_ours(t: &mut Translator, steps: f64) -> f64 {
    (steps / Sizes::of(t).updates_per_step()).ceil()
}

/// Sets one of ours to a number of TRL's steps; says so where they are not ours.
fn steps_of_ours(t: &mut Translator, keys: &[&str], ours: &str, steps: f64) {
    let updates = Sizes::of(t).updates_per_step();
    let steps = in_steps_of_ours(t, steps);
    t.set(keys, ours, &steps.to_string());
    if updates > 1.0
        && let Some(key) = t.first_given(keys)
    {
        t.remark(&key, &format!("TRL counts updates, and a step of tamis has {updates} of them"));
    }
}

pub(super) fn kl(t: &mut Translator) {
    const BETA: &str = "beta";
    const CORRECTION: &str = "use_bias_correction_kl";
    let beta = t.number(BETA).unwrap_or(0.0);
    if beta == 0.0 && (t.find(BETA).is_some() || t.whole) {
        t.set(&[BETA], "objective.kl.in", "none");
        t.no_effect(CORRECTION, "beta is 0: there is no KL term");
        return;
    }
    if t.find(BETA).is_some() {
        t.set(&[BETA], "objective.kl.in", "loss");
        t.set(&[BETA], "objective.kl.estimator", "k3");
        t.set(&[BETA], "objective.kl.coefficient", &beta.to_string());
        t.set(&[BETA], "objective.kl.adaptive", "null");
    }
    let is_corrected = t.flag(CORRECTION, true);
    t.set(&[CORRECTION, BETA], "objective.kl.bias_corrected", if is_corrected { "true" } else { "false" });
    if t.find(CORRECTION).is_none() {
        t.remark(
            BETA,
            "TRL 1.16 weights the KL by the ratio unless use_bias_correction_kl=False; older versions do not",
        );
    }
}

pub(super) fn clip(t: &mut Translator) {
    const DELTA: &str = "delta";
    const BOUNDS: [&str; 2] = ["epsilon", "epsilon_high"];
    const UNREAD: &str = "does not read it";
    let low = t.number("epsilon").unwrap_or(0.2);
    let high = t.number("epsilon_high").unwrap_or(low);
    let loss = t.text("loss_type").unwrap_or_else(|| "dapo".to_owned());
    match loss.as_str() {
        // TRL's bound of CISPO is the ratio itself.
        "cispo" if t.first_given(&BOUNDS).is_some() => {
            t.set(&["epsilon_high", "epsilon"], "objective.loss.max_ratio", &high.to_string());
            t.part_of("epsilon", "epsilon_high");
        }
        "cispo" => {}
        "sapo" | "vespo" => {
            for key in BOUNDS {
                t.no_effect(key, &format!("the loss `{loss}` {UNREAD}"));
            }
        }
        _ if t.first_given(&BOUNDS).is_some() => {
            t.set(&BOUNDS, "objective.loss.clip_low", &low.to_string());
            t.set(&["epsilon_high", "epsilon"], "objective.loss.clip_high", &high.to_string());
            t.set(&BOUNDS, "objective.loss.dual_clip", "null");
            t.no_effect("epsilon_high", "null takes epsilon");
        }
        _ => {}
    }
    if matches!(loss.as_str(), "cispo" | "sapo" | "vespo") {
        t.no_effect(DELTA, &format!("the loss `{loss}` {UNREAD}"));
    } else if let Some(delta) = t.text(DELTA) {
        t.set(&[DELTA], "objective.loss.delta", &delta);
    }
    t.no_effect(DELTA, "null is no bound");
    t.no_effect("epsilon_high", "null takes epsilon");
}

/// Parameters of one loss: its name, TRL's key, ours.
const OF_ONE_LOSS: [(&str, &str, &str); 6] = [
    ("sapo", "sapo_temperature_pos", "objective.loss.tau_positive"),
    ("sapo", "sapo_temperature_neg", "objective.loss.tau_negative"),
    ("vespo", "vespo_k_pos", "objective.loss.k_positive"),
    ("vespo", "vespo_lambda_pos", "objective.loss.lambda_positive"),
    ("vespo", "vespo_k_neg", "objective.loss.k_negative"),
    ("vespo", "vespo_lambda_neg", "objective.loss.lambda_negative"),
];

pub(super) fn loss(t: &mut Translator) {
    const KEY: &str = "loss_type";
    let given = t.text(KEY);
    // Without it a file below may have chosen the loss.
    let loss = given.clone().or_else(|| t.whole.then(|| "dapo".to_owned()));
    for (reader, key, ours) in OF_ONE_LOSS {
        match (&loss, t.number(key)) {
            (Some(loss), _) if loss != reader => {
                t.no_effect(key, &format!("the loss `{loss}` does not read it"));
            }
            (_, Some(value)) => t.set(&[key], ours, &value.to_string()),
            (_, None) => t.no_effect(key, "null leaves the default"),
        }
    }
    let Some(given) = given else {
        t.no_effect(KEY, "null leaves the default");
        return;
    };
    match given.as_str() {
        "cispo" => {
            t.set(&[KEY], "objective.loss.kind", "cispo");
            t.set(&[KEY], "objective.loss.bound", "absolute");
            if t.first_given(&["epsilon", "epsilon_high"]).is_none() {
                t.set(&[KEY], "objective.loss.max_ratio", "0.2");
            }
        }
        "sapo" | "vespo" | "luspo" => t.set(&[KEY], "objective.loss.kind", &given),
        "grpo" | "bnpo" | "dr_grpo" | "dapo" => t.set(&[KEY], "objective.loss.kind", "clip"),
        _ => {
            t.refuse(KEY, "the losses are grpo, bnpo, dr_grpo, dapo, cispo, sapo, luspo and vespo");
            return;
        }
    }
    let aggregation = match given.as_str() {
        "grpo" | "sapo" => "seq-mean-token-mean",
        "luspo" => "seq-mean-token-sum",
        "dr_grpo" => "seq-mean-token-sum-norm",
        _ => "token-mean",
    };
    t.set(&[KEY], "objective.aggregation", aggregation);
    let is_scaled = !matches!(t.text("scale_rewards").as_deref(), Some("none" | "False" | "false"));
    match given.as_str() {
        "bnpo" => t.remark(KEY, "TRL's bnpo takes the mean per device's micro-batch; here it is the mini-batch's"),
        "dr_grpo" if is_scaled => t.remark(
            KEY,
            "warning: as in TRL it changes what the loss is divided by and no more: advantages are still divided by the deviation of \
             their group. Dr. GRPO as published wants scale_rewards=none too",
        ),
        "cispo" if t.first_given(&["epsilon", "epsilon_high"]).is_none() => {
            t.remark(KEY, "TRL bounds the ratio by epsilon_high itself, 0.2 unless set; ScaleRL takes 5");
        }
        _ => {}
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

/// How long a run is: `max_steps` counts updates and goes before the epochs.
pub(super) fn length(t: &mut Translator) {
    const MAX: &str = "max_steps";
    const EPOCHS: &str = "num_train_epochs";
    match t.number(MAX) {
        Some(steps) if steps > 0.0 => {
            steps_of_ours(t, &[MAX], "train.total_steps", steps);
            t.no_effect(EPOCHS, "max_steps is given, and goes before it");
            return;
        }
        _ => t.no_effect(MAX, "num_train_epochs says how long the run is"),
    }
    match t.number(EPOCHS) {
        Some(epochs) if is_count(epochs) => t.set(&[EPOCHS], "train.total_epochs", &epochs.to_string()),
        Some(epochs) => {
            let reason = format!(
                "epochs are whole here: give max_steps, {epochs} times the prompts of the data, divided by the prompts of one step"
            );
            t.refuse(EPOCHS, reason);
        }
        None => t.no_effect(EPOCHS, "null leaves the default"),
    }
}

pub(super) fn intervals(t: &mut Translator) {
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
        if by_steps && t.first_given(&[steps, strategy]).is_some() {
            // What TRL takes where no interval is given; validation has that of the log.
            let default =
                if steps == "save_steps" { 500.0 } else { t.number("logging_steps").unwrap_or(10.0) };
            let mut every = t.number(steps).filter(|&every| every > 0.0).unwrap_or(default);
            if every < 1.0 {
                let Some(total) = t.number("max_steps").filter(|&total| total > 0.0) else {
                    t.refuse(steps, "a share of the run is steps only where max_steps is given: give steps");
                    continue;
                };
                every = (every * total).ceil();
            }
            steps_of_ours(t, &[steps, strategy], ours, every);
        } else if t.find(strategy).is_some() {
            t.set(&[strategy], ours, "0");
        }
        t.no_effect(steps, "its strategy is `no`");
        t.no_effect(strategy, "the interval is in steps");
    }
}

/// What is read: TRL takes splits of a data set on a hub, tamis files.
pub(super) fn data(t: &mut Translator) {
    const NAME: &str = "dataset_name";
    const MIXTURE: &str = "datasets";
    const TRAIN: &str = "dataset_train_split";
    const TEST: &str = "dataset_test_split";
    const SPLIT: &str = "a file has no splits: write the rows of that one to a file of its own and name it";
    let paths: Vec<String> = match t.find(MIXTURE).map(|given| given.node.to_json()) {
        Some(serde_json::Value::Array(items)) => {
            let path = |item: &serde_json::Value| {
                let only = item.as_object()?.iter().all(|(key, value)| {
                    key == "path" || value.is_null() || (key == "split" && value == "train")
                });
                item.get("path").filter(|_| only)?.as_str().map(str::to_owned)
            };
            let paths: Option<Vec<String>> = items.iter().map(path).collect();
            let Some(paths) = paths else {
                t.refuse(
                    MIXTURE,
                    "files have no configurations, splits, columns and shares: give each one as `path` alone",
                );
                return;
            };
            paths
        }
        _ => Vec::new(),
    };
    if !paths.is_empty() {
        let list: Vec<String> = paths.iter().map(|path| quoted(path)).collect();
        t.set(&[MIXTURE], "data.train", &format!("[{}]", list.join(", ")));
        t.no_effect(NAME, "datasets are given, and go before it");
    }
    t.no_effect(MIXTURE, "no data is named by it");
    if let Some(name) = t.text(NAME) {
        if paths.is_empty() {
            t.set(&[NAME], "data.train", &quoted(&name));
            if is_hub_name(&name) {
                t.remark(NAME, "a name on a hub is no file: download it and put its path here");
            }
        }
    } else {
        t.no_effect(NAME, "null leaves the default");
    }
    match t.text(TRAIN).as_deref() {
        None | Some("train") => t.no_effect(TRAIN, "the rows of the file are those that are trained on"),
        Some(_) => t.refuse(TRAIN, format!("{SPLIT} in dataset_name")),
    }
    if validates(t) && t.whole && !t.has_set("data.val") {
        let file = format!("PATH/TO/{}.jsonl", t.text(TEST).unwrap_or_else(|| "test".to_owned()));
        if t.find(TEST).is_some() {
            t.set(&[TEST], "data.val", &file);
            t.remark(TEST, "TRL validates on that split of the data set: write its rows to a file");
        } else {
            t.default(Owner::Trl, TEST, "data.val", &file);
        }
    }
    t.no_effect(TEST, "`data.val` is what is validated on");
}

/// Older versions of TRL keep the last tokens of longer prompts.
pub(super) fn prompts(t: &mut Translator) {
    const KEY: &str = "max_prompt_length";
    if let Some(length) = t.text(KEY) {
        t.set(&[KEY], "data.max_prompt_length", &length);
        t.set(&[KEY], "data.overlong_prompts", "left");
        t.remark(KEY, "as TRL before 0.28, which keeps the last tokens; later versions have no limit");
    }
    t.no_effect(
        KEY,
        "null is no limit there; here longer prompts than `data.max_prompt_length` stop the run",
    );
}

/// Whether something is validated.
pub(super) fn validates(t: &Translator) -> bool {
    t.value_of("validate.test_freq").is_some_and(|every| every != "0")
}

/// How TRL validates: it samples as it does in training.
pub(super) fn validation(t: &mut Translator) {
    const SAMPLES: &str = "num_generations_eval";
    const FIRST: &str = "eval_on_start";
    if t.whole && !validates(t) {
        for key in [SAMPLES, FIRST] {
            t.no_effect(key, "eval_strategy is `no`: nothing is validated");
        }
        return;
    }
    if let Some(n) = t.text(SAMPLES) {
        t.set(&[SAMPLES], "validate.n", &n);
    }
    t.no_effect(SAMPLES, "null takes num_generations");
    if t.find(FIRST).is_some() {
        let first = t.flag(FIRST, false);
        t.set(&[FIRST], "validate.before_train", if first { "true" } else { "false" });
    }
}

/// Options of the generator, which go before the fields of their own.
pub(super) fn generation(t: &mut Translator) {
    const KEY: &str = "generation_kwargs";
    let Some(given) = t.find(KEY) else { return };
    let options = match given.node.to_json() {
        serde_json::Value::Object(options) => options,
        serde_json::Value::Null => serde_json::Map::new(),
        _ => {
            t.bad_value(KEY, "a mapping");
            return;
        }
    };
    for (name, value) in &options {
        let ours = match name.as_str() {
            "temperature" | "top_p" | "top_k" | "min_p" | "repetition_penalty" | "stop" => name.as_str(),
            "stop_strings" => "stop",
            "max_new_tokens" | "max_tokens" => "max_response_length",
            "do_sample" if value == true => continue,
            // What vLLM understands beside them.
            _ if t.flag("use_vllm", false) && !name.contains('.') => {
                t.set(&[KEY], &format!("rollout.server_parameters.{name}"), &value.to_string());
                continue;
            }
            _ => {
                t.refuse(
                    KEY,
                    format!(
                        "`{name}` has nothing in the native engine, which has temperature, top_p, top_k, min_p, repetition_penalty, max_new_tokens \
                         and stop_strings; with use_vllm it goes to the server"
                    ),
                );
                return;
            }
        };
        let text = match value {
            serde_json::Value::String(text) if ours == "stop" => format!("[{}]", quoted(text)),
            other => other.to_string(),
        };
        t.set(&[KEY], &format!("rollout.{ours}"), &text);
        let field = match ours {
            "max_response_length" => "max_completion_length",
            "stop" => "stop_strings",
            same => same,
        };
        t.no_effect(field, "generation_kwargs goes before it");
    }
    t.no_effect(KEY, "it says nothing");
}

/// AdamW's settings that are not one key here.
pub(super) fn optimizer(t: &mut Translator) {
    const DECAY: &str = "weight_decay";
    const NORM: &str = "max_grad_norm";
    if let Some(decay) = t.number(DECAY) {
        t.set(&[DECAY], "train.optimizer.weight_decay", &decay.to_string());
        if decay != 0.0 {
            t.set(&[DECAY], "train.optimizer.decay_norms_and_biases", "false");
        }
    }
    t.no_effect(DECAY, "null leaves the default");
    if t.find(NORM).is_some() {
        let norm = t.number(NORM).unwrap_or(0.0);
        t.set(&[NORM], "train.optimizer.max_grad_norm", &limit_text(norm));
    }
    if t.first_given(&["adam_beta1", "adam_beta2"]).is_some() {
        let first = t.number("adam_beta1").unwrap_or(0.9);
        let second = t.number("adam_beta2").unwrap_or(0.999);
        t.set(&["adam_beta1", "adam_beta2"], "train.optimizer.betas", &format!("[{first}, {second}]"));
        t.part_of("adam_beta2", "adam_beta1");
    }
}

/// The schedules of transformers, by `lr_scheduler_type` with `lr_scheduler_kwargs`.
pub(super) fn schedule(t: &mut Translator) {
    const KIND: &str = "lr_scheduler_type";
    const OPTIONS: &str = "lr_scheduler_kwargs";
    const THERE_ARE: &str =
        "the schedules are constant, constant_with_warmup, linear, cosine, cosine_with_min_lr and polynomial";
    let kind = t.text(KIND).unwrap_or_else(|| "linear".to_owned());
    let options = match t.find(OPTIONS).map(|given| given.node.to_json()) {
        Some(serde_json::Value::Object(options)) => options,
        Some(serde_json::Value::Null) | None => serde_json::Map::new(),
        Some(_) => {
            t.bad_value(OPTIONS, "a mapping");
            return;
        }
    };
    let option = |name: &str| options.get(name).and_then(serde_json::Value::as_f64);
    let is_or_absent =
        |name: &str, value: f64| option(name).is_none_or(|given| (given - value).abs() < f64::EPSILON);
    // Of another system's whole command it is known; over a file of ours it may be there.
    let rate = t.number("learning_rate").or_else(|| t.whole.then_some(1e-6));
    let needs_rate = options.contains_key("min_lr") || kind == "polynomial";
    if rate.is_none() && needs_rate {
        t.refuse(
            if t.find(OPTIONS).is_some() { OPTIONS } else { KIND },
            "it ends at a learning rate, and what share that is of the first depends on learning_rate: give it too",
        );
        return;
    }
    let rate = rate.unwrap_or(1e-6);
    // What is left at the end, as a share of the learning rate, and the options that say so.
    let (ours, min_ratio, known): (&str, f64, &[&str]) = match kind.as_str() {
        "constant" | "constant_with_warmup" => ("constant", 0.0, &[]),
        "linear" => ("linear", 0.0, &[]),
        "cosine" if is_or_absent("num_cycles", 0.5) => ("cosine", 0.0, &["num_cycles"]),
        "cosine_with_restarts" if is_or_absent("num_cycles", 1.0) => ("cosine", 0.0, &["num_cycles"]),
        "cosine_with_min_lr" if is_or_absent("num_cycles", 0.5) => {
            let min_ratio = match (option("min_lr"), option("min_lr_rate")) {
                (Some(least), None) => least / rate,
                (None, Some(share)) => share,
                _ => {
                    t.refuse(
                        KIND,
                        "lr_scheduler_kwargs says where it ends: give one of min_lr and min_lr_rate",
                    );
                    return;
                }
            };
            ("cosine", min_ratio, &["min_lr", "min_lr_rate", "num_cycles"])
        }
        "polynomial" if is_or_absent("power", 1.0) => {
            ("linear", option("lr_end").unwrap_or(1e-7) / rate, &["lr_end", "power"])
        }
        "cosine" | "cosine_with_restarts" | "cosine_with_min_lr" => {
            t.refuse(OPTIONS, "the learning rate falls along half a cosine, once: leave num_cycles out");
            return;
        }
        "polynomial" => {
            t.refuse(OPTIONS, "the learning rate falls in a line: a power of 1 alone can be followed");
            return;
        }
        _ => {
            t.refuse(KIND, THERE_ARE);
            return;
        }
    };
    if let Some(name) = options.keys().find(|name| !known.contains(&name.as_str())) {
        t.refuse(OPTIONS, format!("the schedule `{kind}` has no option `{name}`"));
        return;
    }
    if t.first_given(&[KIND, OPTIONS]).is_some() {
        t.set(&[KIND, OPTIONS], "train.lr_schedule.kind", ours);
    }
    if min_ratio != 0.0 {
        // A quotient of two decimals, to as many digits as they have.
        let min_ratio = (min_ratio * 1e12).round() / 1e12;
        t.set(&[OPTIONS, KIND], "train.lr_schedule.min_ratio", &min_ratio.to_string());
    }
    t.no_effect(OPTIONS, "it says nothing");
    warm_up(t, &kind);
}

fn warm_up(t: &mut Translator, kind: &str) {
    const STEPS: &str = "warmup_steps";
    const RATIO: &str = "warmup_ratio";
    if kind == "constant" {
        for key in [STEPS, RATIO] {
            t.no_effect(
                key,
                "the schedule `constant` has no warm-up in transformers: constant_with_warmup has",
            );
        }
        return;
    }
    // Steps below 1 are a share of the run, as the older key is.
    let (key, warmup) = match t.number(STEPS) {
        Some(steps) if steps > 0.0 => (STEPS, steps),
        _ => (RATIO, t.number(RATIO).unwrap_or(0.0)),
    };
    if warmup >= 1.0 {
        steps_of_ours(t, &[key], "train.lr_schedule.warmup_steps", warmup);
    } else if warmup > 0.0 {
        match t.number("max_steps").filter(|&total| total > 0.0) {
            Some(total) => {
                steps_of_ours(t, &[key], "train.lr_schedule.warmup_steps", (warmup * total).ceil());
            }
            None => {
                t.refuse(key, "the number of steps is not known: give max_steps, or the warm-up in steps");
            }
        }
    } else if let Some(key) = t.first_given(&[STEPS, RATIO]) {
        t.set(&[&key], "train.lr_schedule.warmup_steps", "0");
    }
    t.no_effect(
        RATIO,
        if warmup > 0.0 { "the number of warm-up steps is given" } else { "there is no warm-up" },
    );
    t.no_effect(STEPS, "warmup_ratio is given");
}

/// Names in TRL's registry by our reward functions; sizes as its script has them.
fn registered(name: &str) -> Option<&'static str> {
    Some(match name {
        "accuracy_reward" => "kind: math",
        "think_format_reward" => "name: think_format, kind: think_format",
        "get_soft_overlong_punishment" => {
            "name: overlong, kind: soft_overlong, max_length: 1280, buffer: 256"
        }
        "get_cosine_scaled_reward" => "name: cosine, kind: cosine, max_length: 1000",
        "get_repetition_penalty_reward" => "name: repetition, kind: repetition",
        _ => return None,
    })
}

pub(super) fn rewards(t: &mut Translator) {
    const FUNCTIONS: &str = "reward_funcs";
    const WEIGHTS: &str = "reward_weights";
    const REGISTRY: &str = "accuracy_reward, think_format_reward, get_soft_overlong_punishment, get_cosine_scaled_reward, get_repetition_penalty_reward";
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
        t.no_effect(FUNCTIONS, "null leaves the default");
        if weights.is_empty() {
            t.no_effect(WEIGHTS, "null weighs all alike");
        } else {
            t.refuse(
                WEIGHTS,
                "the functions are not named: give `reward_funcs` too, or weights under `reward`",
            );
        }
        return;
    }
    if !weights.is_empty() && weights.len() != functions.len() {
        let reason = format!("{} weights for {} functions", weights.len(), functions.len());
        t.refuse(WEIGHTS, reason);
        return;
    }
    let mut items: Vec<String> = Vec::new();
    let mut remarks: Vec<&str> = Vec::new();
    for (index, function) in functions.iter().enumerate() {
        let name = function.as_str().unwrap_or_default();
        let own = name.strip_prefix("trl.rewards.").unwrap_or(name);
        let keys = if let Some(keys) = registered(own) {
            if own == "get_soft_overlong_punishment" {
                remarks.push("the overlong punishment has the lengths of TRL's script, 1280 and 256");
            }
            keys.to_owned()
        } else if own == "reasoning_accuracy_reward" {
            t.refuse(
                FUNCTIONS,
                "`reasoning_accuracy_reward` is not there: import it in a file of your own and name that under `reward` with `kind: \
                 python`, `style: trl`",
            );
            return;
        } else if own.contains('/') {
            let reason = format!(
                "{} is a model, and rewards are functions: query it from one, under `reward` with `kind: python`, `style: trl`",
                quoted(name)
            );
            t.refuse(FUNCTIONS, reason);
            return;
        } else if let Some((module, function)) = name.rsplit_once('.') {
            let path = format!("{}.py", module.replace('.', "/"));
            remarks.push("a module is looked for as a file from the folder that the command is started in");
            format!(
                "name: {}, kind: python, path: {}, function: {}, style: trl",
                quoted(function),
                quoted(&path),
                quoted(function)
            )
        } else {
            let reason = format!(
                "{} is no function of TRL's script, which has {REGISTRY}, or takes a dotted path such as my_module.my_reward",
                quoted(name)
            );
            t.refuse(FUNCTIONS, reason);
            return;
        };
        let weight = weights.get(index).map_or_else(
            || "1.0".to_owned(),
            |weight| weight.as_str().map_or_else(|| weight.to_string(), str::to_owned),
        );
        items.push(format!("{{{keys}, weight: {weight}}}"));
    }
    t.set(&[FUNCTIONS], "reward", &format!("[{}]", items.join(", ")));
    remarks.dedup();
    if !remarks.is_empty() {
        t.remark(FUNCTIONS, &remarks.join("; "));
    }
    t.part_of(WEIGHTS, FUNCTIONS);
}
