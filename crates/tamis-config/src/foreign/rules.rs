//! Keys that mean something only together.

use super::objective_rules;
use super::translate::Translator;
use super::{Owner, Rule};

/// Applies a rule whose keys were given.
pub(super) fn apply(rule: Rule, owner: Owner, t: &mut Translator) {
    match rule {
        Rule::Advantage => advantage(owner, t),
        Rule::FilterGroups => filter_groups(t),
        Rule::DynamicSample => super::easyr1_rules::dynamic_sample(t),
        Rule::OnlineFiltering => super::easyr1_rules::online_filtering(t),
        Rule::RolloutFilter => super::ragen_rules::rollout_filter(t),
        Rule::RagenSizes => super::ragen_rules::sizes(t),
        Rule::Kl => kl(t),
        Rule::EasyKl => super::easyr1_rules::kl(t),
        Rule::Rewards => super::reward_rules::rewards(t),
        Rule::EasyRewards => super::easyr1_rules::rewards(t),
        Rule::TrlRewards => super::trl_rules::rewards(t),
        Rule::MicroBatch => micro_batch(t),
        Rule::LrSchedule if owner == Owner::Trl => super::trl_rules::schedule(t),
        Rule::LrSchedule => learning_rate(owner, t),
        Rule::LongPrompts => long_prompts(owner, t),
        Rule::TopK => sampling_cuts(t),
        Rule::Validation => validation(t),
        Rule::Loggers => loggers(t),
        Rule::Names => names(owner, t),
        Rule::LossAverage => {
            super::easyr1_rules::loss_average("worker.actor.loss_avg_mode", "objective.aggregation", t);
        }
        Rule::TrlBatch => super::trl_rules::batch(t),
        Rule::TrlKl => super::trl_rules::kl(t),
        Rule::TrlClip => super::trl_rules::clip(t),
        Rule::TrlLoss => super::trl_rules::loss(t),
        Rule::TrlScale => super::trl_rules::scale(t),
        Rule::PolicyLoss => objective_rules::policy_loss(t),
        Rule::CpoWrap => objective_rules::cpo_wrap(t),
        Rule::Correction => objective_rules::correction(t),
        Rule::KeepRatios => objective_rules::keep_ratios(t),
        Rule::RagenShapings => super::ragen_rules::shapings(t),
        Rule::GradientAnalysis => super::ragen_rules::gradient_analysis(t),
        Rule::EasyLoss => objective_rules::easyr1_loss(t),
        Rule::AdaptiveEntropy => objective_rules::adaptive_entropy(t),
        Rule::SeveralRewards => objective_rules::several_rewards(t),
        Rule::Masks => objective_rules::masks(t),
        Rule::TrlIntervals => super::trl_rules::intervals(t),
        Rule::TrlLength => super::trl_rules::length(t),
        Rule::TrlPrompts => super::trl_rules::prompts(t),
        Rule::TrlGeneration => super::trl_rules::generation(t),
        Rule::Servers => super::server_rules::servers(owner, t),
        Rule::TrlServers => super::server_rules::trl(t),
        Rule::TrlOptimizer => super::trl_rules::optimizer(t),
        Rule::TrlValidation => super::trl_rules::validation(t),
        Rule::TrlData => super::trl_rules::data(t),
        Rule::KeepLast => keep_last(t),
        Rule::ChatTemplate => super::easyr1_rules::chat_template(t),
        Rule::FormatPrompt => super::easyr1_rules::format_prompt(t),
        Rule::EasyLength => super::easyr1_rules::length(t),
        Rule::BiLevelGae => super::critic_rules::bi_level_gae(t),
        Rule::Critic => super::critic_rules::critic(owner, t),
    }
}

fn advantage(owner: Owner, t: &mut Translator) {
    const ESTIMATOR: &str = "algorithm.adv_estimator";
    const BY_STD: &str = "algorithm.norm_adv_by_std_in_grpo";
    match t.text(ESTIMATOR).as_deref() {
        Some("dapo") => {
            t.set(&[ESTIMATOR], "preset", "dapo");
            t.remark(
                ESTIMATOR,
                "no estimator of verl has this name: taken as the whole recipe, group-relative advantages, clip 0.2/0.28, token \
                 mean, soft overlong punishment, dynamic sampling, no KL",
            );
        }
        Some(name) => match objective_rules::estimator(name) {
            Some(ours) => {
                t.set(&[ESTIMATOR], "objective.advantage.estimator", ours);
                objective_rules::as_there(t, ESTIMATOR, ours);
                if name == "grpo_vectorized" {
                    t.remark(
                        ESTIMATOR,
                        "verl's vectorised form takes no deviation below 0.001; here it is as in `grpo`",
                    );
                }
                if objective_rules::has_singletons(ours) {
                    t.set(&[ESTIMATOR], "objective.advantage.singleton", "raw");
                }
            }
            None if name == "flow_grpo" => t.refuse(ESTIMATOR, objective_rules::IMAGES),
            None => t.refuse(ESTIMATOR, "no estimator of this name is known: use grpo"),
        },
        None => {}
    }
    if t.find(BY_STD).is_some() {
        let value = t.flag(BY_STD, true);
        t.set(&[BY_STD], "objective.advantage.norm_by_std", if value { "true" } else { "false" });
    }
    components(t);
    let _ = owner;
}

/// verl's `gdpo` takes several numbers of one function apart.
fn components(t: &mut Translator) {
    const KEYS: &str = "algorithm.gdpo_reward_keys";
    const WEIGHTS: &str = "algorithm.gdpo_reward_weights";
    // Over a configuration of ours the estimator may stand there.
    let is_read = t.text("algorithm.adv_estimator").map_or(!t.whole, |name| name == "gdpo");
    for (key, reason) in [
        (
            KEYS,
            "here a function gives one score, and the estimator `gdpo` normalises each entry of `reward` by itself: write a function for \
             each of them, and name it there with `kind: python`, `style: verl` and a `weight`",
        ),
        (WEIGHTS, "each entry of `reward` has a `weight` of its own: give it there"),
    ] {
        if t.text(key).is_none_or(|value| matches!(value.as_str(), "None" | "[]" | "{}")) {
            t.no_effect(key, "it names nothing");
        } else if is_read {
            t.refuse(key, reason);
        } else {
            t.no_effect(key, "the estimator `gdpo` alone reads it");
        }
    }
}

fn filter_groups(t: &mut Translator) {
    const ENABLE: &str = "algorithm.filter_groups.enable";
    const METRIC: &str = "algorithm.filter_groups.metric";
    const LIMIT: &str = "algorithm.filter_groups.max_num_gen_batches";
    const IN_FLIGHT: &str = "algorithm.filter_groups.max_inflight_gen_batches";
    let enabled = t.flag(ENABLE, false);
    if !enabled {
        if t.find(ENABLE).is_some() {
            t.set(&[ENABLE], "filter", "null");
        }
        for key in [METRIC, LIMIT, IN_FLIGHT] {
            t.no_effect(key, "algorithm.filter_groups.enable is false");
        }
        return;
    }
    t.set(&[ENABLE], "filter.kind", "variance");
    t.set(&[ENABLE], "filter.singleton", "keep");
    t.set(&[ENABLE], "filter.tolerance", "0.0");
    t.set(&[ENABLE], "schedule.refill", "true");
    t.set(&[ENABLE], "schedule.on_limit", "error");
    t.set(&[ENABLE], "schedule.on_empty_round", "retry");
    t.set(&[ENABLE], "schedule.on_exhausted", "next_epoch");
    t.set(&[ENABLE], "schedule.surplus", "discard");
    t.set(&[ENABLE], "schedule.order", "dispatch");
    match t.text(METRIC).as_deref() {
        // verl 0.9.1's own default; null, the one before, would be an error there.
        None if t.whole && t.find(METRIC).is_none() => {
            t.set(&[ENABLE], "filter.metric", "seq_reward");
            t.remark(
                ENABLE,
                "no metric is given: verl takes the reward before the KL; `acc` is the raw outcome alone",
            );
        }
        None => {
            t.set(&[METRIC, ENABLE], "filter.metric", "null");
            t.remark(ENABLE, "no metric is given: the raw outcome is taken, `acc`, else `score`");
        }
        Some("reward") => {
            t.set(&[METRIC], "filter.metric", "seq_reward");
            t.remark(METRIC, "the reward before the KL");
        }
        Some(metric) => t.set(&[METRIC], "filter.metric", metric),
    }
    let limit = t.number(LIMIT).unwrap_or(0.0);
    t.set(&[LIMIT, ENABLE], "schedule.max_num_gen_batches", &limit_text(limit));
    if let Some(batches) = t.number(IN_FLIGHT) {
        // verl counts prompts in flight by the batch that is trained, we by the round.
        let (train, round) = (t.number("data.train_batch_size"), t.number("data.gen_batch_size"));
        let rounds = match (train, round) {
            (Some(train), Some(round)) if round > 0.0 => (batches * train / round).round().max(1.0),
            _ => batches,
        };
        t.set(&[IN_FLIGHT], "schedule.rounds_in_flight", &rounds.to_string());
        if (rounds - batches).abs() > 0.0 {
            t.remark(IN_FLIGHT, "as many prompts: verl counts batches of data.train_batch_size, and rounds are of data.gen_batch_size");
        }
    }
    t.no_effect(IN_FLIGHT, "null leaves the default");
}

/// A limit where 0 and less mean none.
pub(super) fn limit_text(limit: f64) -> String {
    if limit > 0.0 { limit.to_string() } else { "null".to_owned() }
}

fn estimator(kind: &str) -> Option<&'static str> {
    match kind.trim_end_matches('+') {
        "kl" | "k1" => Some("k1"),
        "abs" => Some("abs"),
        "mse" | "k2" => Some("k2"),
        "low_var_kl" | "k3" => Some("k3"),
        _ => None,
    }
}

pub(super) fn set_estimator(t: &mut Translator, key: &str, switch: &str, default: &str) {
    let kind = t.text(key).unwrap_or_else(|| default.to_owned());
    match estimator(&kind) {
        Some(ours) => {
            t.set(&[key, switch], "objective.kl.estimator", ours);
            if kind.ends_with('+') {
                t.set(&[key], "objective.kl.straight_through", "true");
            }
        }
        None => t.refuse(key, "the estimators are kl, abs, mse and low_var_kl"),
    }
}

fn kl(t: &mut Translator) {
    const LOSS: &str = "actor_rollout_ref.actor.use_kl_loss";
    const LOSS_COEF: &str = "actor_rollout_ref.actor.kl_loss_coef";
    const LOSS_TYPE: &str = "actor_rollout_ref.actor.kl_loss_type";
    const REWARD: &str = "algorithm.use_kl_in_reward";
    const PENALTY: &str = "algorithm.kl_penalty";
    const COEF: &str = "algorithm.kl_ctrl.kl_coef";
    const TYPE: &str = "algorithm.kl_ctrl.type";
    const HORIZON: &str = "algorithm.kl_ctrl.horizon";
    const TARGET: &str = "algorithm.kl_ctrl.target_kl";
    // RAGEN has defaults of its own for a KL that is switched on.
    let (default_coefficient, default_type) =
        if t.has_key_of(Owner::Ragen) { (0.0, "kl") } else { (0.001, "low_var_kl") };
    let (in_loss, in_reward) = (t.flag(LOSS, false), t.flag(REWARD, false));
    if in_loss && in_reward {
        t.refuse(REWARD, "use_kl_loss is on too, and the KL enters in one place");
        return;
    }
    if in_loss {
        t.set(&[LOSS], "objective.kl.in", "loss");
        let coefficient = t.number(LOSS_COEF).unwrap_or(default_coefficient);
        t.set(&[LOSS_COEF, LOSS], "objective.kl.coefficient", &coefficient.to_string());
        set_estimator(t, LOSS_TYPE, LOSS, default_type);
    } else if in_reward {
        t.set(&[REWARD], "objective.kl.in", "reward");
        set_estimator(t, PENALTY, REWARD, "kl");
        set_controller(t, REWARD, COEF, default_coefficient, [TYPE, HORIZON, TARGET]);
    } else if let Some(key) = t.first_given(&[LOSS, REWARD]) {
        t.set(&[&key], "objective.kl.in", "none");
    }
    for key in [LOSS, LOSS_COEF, LOSS_TYPE] {
        t.no_effect(key, "actor_rollout_ref.actor.use_kl_loss is false");
    }
    for key in [REWARD, PENALTY, COEF, TYPE, HORIZON, TARGET] {
        t.no_effect(key, "algorithm.use_kl_in_reward is false");
    }
}

pub(super) fn set_controller(
    t: &mut Translator,
    switch: &str,
    coefficient: &str,
    default_coefficient: f64,
    [kind, horizon_key, target_key]: [&str; 3],
) {
    let value = t.number(coefficient).unwrap_or(default_coefficient);
    t.set(&[coefficient, switch], "objective.kl.coefficient", &value.to_string());
    match t.text(kind).as_deref() {
        Some("adaptive") => {
            let target = t.number(target_key).unwrap_or(0.1);
            let horizon = t.number(horizon_key).unwrap_or(10_000.0);
            let text = format!("{{target: {target}, horizon: {horizon}}}");
            t.set(&[kind], "objective.kl.adaptive", &text);
            for key in [horizon_key, target_key] {
                t.part_of(key, kind);
            }
        }
        None | Some("fixed") => {
            t.set(&[kind, switch], "objective.kl.adaptive", "null");
            for key in [horizon_key, target_key] {
                t.no_effect(key, "the coefficient is fixed");
            }
        }
        Some(_) => t.bad_value(kind, "fixed or adaptive"),
    }
}

fn micro_batch(t: &mut Translator) {
    const DYNAMIC: &str = "actor_rollout_ref.actor.use_dynamic_bsz";
    const TOKENS: &str = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu";
    const MICRO: &str = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu";
    const GLOBAL: &str = "actor_rollout_ref.actor.ppo_micro_batch_size";
    if t.flag(DYNAMIC, false) {
        let tokens = t.text(TOKENS).unwrap_or_else(|| "16384".to_owned());
        t.set(&[TOKENS, DYNAMIC], "train.micro_batch_tokens", &tokens);
        t.part_of(DYNAMIC, TOKENS);
        for key in [MICRO, GLOBAL] {
            t.no_effect(key, "use_dynamic_bsz is true");
        }
        return;
    }
    for key in [MICRO, GLOBAL] {
        if let Some(size) = t.text(key) {
            t.set(&[key], "train.micro_batch_size", &size);
            t.remark(key, "trajectories of one pass; there is one device");
        }
        t.no_effect(key, "null leaves the default");
    }
    t.no_effect(DYNAMIC, "micro-batches are cut by tokens unless their size is set");
    t.no_effect(TOKENS, "use_dynamic_bsz is false");
}

fn learning_rate(owner: Owner, t: &mut Translator) {
    const NORM: &str = "actor_rollout_ref.actor.optim.clip_grad";
    let (steps, ratio, min_ratio, kinds, total): (&str, &str, &str, &[&str], &[&str]) = match owner {
        Owner::Verl | Owner::Ragen | Owner::Trl => (
            "actor_rollout_ref.actor.optim.lr_warmup_steps",
            "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio",
            "actor_rollout_ref.actor.optim.min_lr_ratio",
            &[
                "actor_rollout_ref.actor.optim.lr_decay_style",
                "actor_rollout_ref.actor.optim.warmup_style",
                "actor_rollout_ref.actor.optim.lr_scheduler_type",
            ],
            &["trainer.total_training_steps"],
        ),
        Owner::EasyR1 => (
            "worker.actor.optim.lr_warmup_steps",
            "worker.actor.optim.lr_warmup_ratio",
            "worker.actor.optim.min_lr_ratio",
            &["worker.actor.optim.lr_scheduler_type"],
            &["trainer.max_steps"],
        ),
    };
    schedule("train.lr_schedule", (steps, ratio, min_ratio, kinds, total), t);
    if let Some(norm) = t.text(NORM) {
        t.set(&[NORM], "train.optimizer.max_grad_norm", &norm);
        t.no_effect("actor_rollout_ref.actor.grad_clip", "optim.clip_grad, which replaced it, is given");
    }
    t.no_effect(NORM, "null leaves the default");
}

/// Keys of a schedule: steps of the warm-up, their share, what is left at the end, names of the kind, number of steps.
pub(super) type ScheduleKeys<'a> = (&'a str, &'a str, &'a str, &'a [&'a str], &'a [&'a str]);

/// A learning-rate schedule into one of ours.
pub(super) fn schedule(ours: &str, keys: ScheduleKeys<'_>, t: &mut Translator) {
    let (steps, ratio, min_ratio, kinds, total) = keys;
    let (warmup_key, kind_key) = (format!("{ours}.warmup_steps"), format!("{ours}.kind"));
    let warmup = t.number(steps).filter(|&steps| steps >= 0.0);
    if let Some(warmup) = warmup {
        t.set(&[steps], &warmup_key, &warmup.to_string());
        t.no_effect(ratio, "the number of warm-up steps is given");
    } else {
        t.no_effect(steps, "-1 leaves it to the ratio");
        let share = t.number(ratio).unwrap_or(0.0);
        let total = total.iter().find_map(|key| t.number(key)).filter(|&total| total > 0.0);
        if share > 0.0 {
            match total {
                Some(total) => {
                    let steps = (share * total).ceil();
                    t.set(&[ratio], &warmup_key, &steps.to_string());
                }
                None => t.refuse(
                    ratio,
                    "the number of steps is not known, and with a filter it cannot be: give the warm-up in steps",
                ),
            }
        }
        t.no_effect(ratio, "there is no warm-up");
    }
    for key in kinds {
        match t.text(key).as_deref() {
            Some("constant" | "constant_with_warmup") => t.set(&[key], &kind_key, "constant"),
            Some("cosine") => t.set(&[key], &kind_key, "cosine"),
            Some("linear") => t.set(&[key], &kind_key, "linear"),
            Some(_) => t.refuse(key, "the schedules are constant, linear and cosine"),
            None => t.no_effect(key, "null leaves the default"),
        }
    }
    match t.text(min_ratio) {
        Some(value) => t.set(&[min_ratio], &format!("{ours}.min_ratio"), &value),
        None => t.no_effect(min_ratio, "null leaves the default"),
    }
}

/// How many checkpoints are kept: null and what is not above 0 keep all.
fn keep_last(t: &mut Translator) {
    const REMOVE: &str = "trainer.remove_previous_ckpt_in_save";
    if t.flag(REMOVE, false) {
        t.set(&[REMOVE], "checkpoint.keep_last", "1");
    }
    t.no_effect(REMOVE, "every checkpoint is kept, unless `checkpoint.keep_last` says how many");
    for key in ["save_total_limit", "trainer.save_limit"] {
        if t.find(key).is_some() {
            let limit = t.number(key).unwrap_or(0.0);
            t.set(&[key], "checkpoint.keep_last", &limit_text(limit));
        }
    }
}

fn long_prompts(owner: Owner, t: &mut Translator) {
    const TRUNCATION: &str = "data.truncation";
    const DROP: &str = "data.filter_overlong_prompts";
    if t.flag(DROP, false) {
        t.set(&[DROP], "data.overlong_prompts", "drop");
        t.no_effect(TRUNCATION, "data.filter_overlong_prompts drops longer prompts");
        return;
    }
    if owner == Owner::EasyR1 && t.find(DROP).is_some() {
        t.set(&[DROP], "data.overlong_prompts", "right");
        t.remark(DROP, "EasyR1 cuts the last tokens of the prompts that it does not leave out");
    }
    if let Some(side) = t.text(TRUNCATION) {
        t.set(&[TRUNCATION], "data.overlong_prompts", &side);
    }
    t.no_effect(DROP, "data.truncation says what happens");
}

fn sampling_cuts(t: &mut Translator) {
    for key in ["actor_rollout_ref.rollout.top_k", "worker.rollout.top_k", "top_k"] {
        if let Some(value) = t.number(key) {
            t.set(&[key], "rollout.top_k", &value.max(0.0).to_string());
        }
        t.no_effect(key, "null leaves the default");
    }
    match t.text("min_p") {
        Some(value) => t.set(&["min_p"], "rollout.min_p", &value),
        None => t.no_effect("min_p", "null leaves the default"),
    }
}

fn validation(t: &mut Translator) {
    const TEMPERATURE: &str = "actor_rollout_ref.rollout.val_kwargs.temperature";
    const SAMPLE: &str = "actor_rollout_ref.rollout.val_kwargs.do_sample";
    const FOLDER: &str = "trainer.validation_data_dir";
    if let Some(folder) = t.find(FOLDER).map(|given| given.node.clone()) {
        t.set(&[FOLDER], "validate.save_samples", if folder.is_null() { "false" } else { "true" });
        if !folder.is_null() {
            t.remark(FOLDER, "to `validation/` in the run folder");
        }
    }
    if t.first_given(&[SAMPLE, TEMPERATURE]).is_none() && !t.whole {
        return;
    }
    // RAGEN samples in validation, at 0.5, unless told otherwise.
    let is_ragen = t.has_key_of(Owner::Ragen);
    if t.flag(SAMPLE, is_ragen) {
        let temperature = t.number(TEMPERATURE).unwrap_or(if is_ragen { 0.5 } else { 0.0 });
        t.set(&[TEMPERATURE, SAMPLE], "validate.temperature", &temperature.to_string());
        t.part_of(SAMPLE, TEMPERATURE);
    } else {
        t.set(&[SAMPLE, TEMPERATURE], "validate.temperature", "0.0");
        if t.find(SAMPLE).is_none() {
            t.remark(TEMPERATURE, "val_kwargs.do_sample is False unless given: validation is greedy");
        }
        t.no_effect(TEMPERATURE, "do_sample is false: validation is greedy");
    }
}

fn loggers(t: &mut Translator) {
    let Some(key) = t.first_given(&["trainer.logger", "report_to"]) else { return };
    let Some(given) = t.find(&key) else { return };
    let names: Vec<String> = match given.node.to_json() {
        serde_json::Value::Array(items) => {
            items.iter().map(|item| item.as_str().map_or_else(|| item.to_string(), str::to_owned)).collect()
        }
        serde_json::Value::String(text) => text.split(',').map(|name| name.trim().to_owned()).collect(),
        _ => Vec::new(),
    };
    // The journal of metrics is always written: resume and reports read it.
    let mut ours = Vec::new();
    let mut missing = Vec::new();
    for name in names {
        match name.as_str() {
            "console" => ours.push("console"),
            "tensorboard" => ours.push("tensorboard"),
            "file" | "none" => {}
            _ => missing.push(name),
        }
    }
    if key == "report_to" {
        ours.insert(0, "console");
    }
    ours.push("jsonl");
    t.set(&[&key], "run.loggers", &format!("[{}]", ours.join(", ")));
    if !missing.is_empty() {
        let remark = format!(
            "{} is not there yet; metrics.jsonl holds the same figures, and TensorBoard files are there",
            missing.join(", ")
        );
        t.remark(&key, &remark);
    }
}

fn names(owner: Owner, t: &mut Translator) {
    if owner == Owner::Trl {
        if let Some(folder) = t.text("output_dir") {
            let path = std::path::Path::new(&folder);
            let part = |part: Option<&std::ffi::OsStr>| part.map(|part| part.to_string_lossy().into_owned());
            let name = part(path.file_name()).unwrap_or_else(|| "run".to_owned());
            let parent =
                part(path.parent().map(std::path::Path::as_os_str)).filter(|parent| !parent.is_empty());
            t.set(&["output_dir"], "run.dir", &quoted(parent.as_deref().unwrap_or(".")));
            t.set(&["output_dir"], "run.name", &quoted(&name));
        }
        if t.has_set("run.name") {
            t.no_effect("run_name", "output_dir names the run folder");
        } else if let Some(name) = t.text("run_name") {
            t.set(&["run_name"], "run.name", &quoted(&name));
        }
        t.no_effect("run_name", "null leaves the default");
        return;
    }
    if let Some(project) = t.text("trainer.project_name") {
        t.set(&["trainer.project_name"], "run.dir", &quoted(&format!("runs/{project}")));
    }
    if let Some(name) = t.text("trainer.experiment_name") {
        t.set(&["trainer.experiment_name"], "run.name", &quoted(&name));
    }
}

/// A text that YAML takes for nothing else.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::String(text.to_owned()).to_string()
}
