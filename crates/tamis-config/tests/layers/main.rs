//! Layers, origins, presets, the resolved configuration and its resumption.

use insta::assert_snapshot;
use tamis_config::source::{Source, SourceKind};
use tamis_config::{ConfigErrors, Loaded, Preset, load_sources, resume_differences};
use tamis_core::advantage::{Advantage, SingletonAdvantage};
use tamis_core::correction::CorrectionPreset;
use tamis_core::objective::{Aggregation, PolicyLoss};
use tamis_env::reward::RewardKind;

const BASE: &str = "model: {path: m}\ndata: {task: arithmetic}\ntrain: {total_steps: 10}\n";

fn load(files: &[&str], arguments: &[&str]) -> Result<Loaded, ConfigErrors> {
    let names = ["base.yaml", "more.yaml", "last.yaml"];
    let sources: Vec<_> = files
        .iter()
        .zip(names)
        .map(|(text, name)| Source::new(SourceKind::File(name.into()), *text))
        .collect();
    let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
    load_sources(&sources, &arguments)
}

fn sound(files: &[&str], arguments: &[&str]) -> Loaded {
    load(files, arguments).unwrap_or_else(|errors| panic!("{errors}"))
}

/// What differs from the preset.
fn listed(loaded: &Loaded) -> String {
    loaded.preset_differences.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn later_layers_win_and_every_value_has_its_origin() {
    let files = [BASE, "rollout:\n  n: 4\n  temperature: 0.7\n", "rollout: {n: 6}\n"];
    let loaded = sound(&files, &["preset=dapo", "rollout.top_p=0.9"]);
    let origin = |key: &str| loaded.origin(key).unwrap().to_string();
    assert_eq!(loaded.config.rollout.n, 6);
    assert_eq!(origin("rollout.n"), "last.yaml:1");
    assert_eq!(origin("rollout.temperature"), "more.yaml:3");
    assert_eq!(origin("rollout.top_p"), "command line");
    assert_eq!(origin("objective.loss.clip_high"), "preset dapo");
    assert_eq!(origin("rollout.min_p"), "default");
}

#[test]
fn counts_without_an_upper_bound_take_more_than_32_bits() {
    let stops = "train: {early_stop: {low_success: {patience: 4294967296}, empty_steps: {patience: 4294967297}, \
                 reward_collapse: {baseline_steps: 4294967298}}}";
    let loaded =
        sound(&[BASE, stops], &["validate.test_freq=1", "schedule.on_empty_round=skip", "preset=dapo"]);
    let stop = loaded.config.train.early_stop;
    assert_eq!(stop.low_success.map(|stop| stop.patience), Some(1 << 32));
    assert_eq!(stop.empty_steps.map(|stop| stop.patience), Some((1 << 32) + 1));
    assert_eq!(stop.reward_collapse.map(|stop| stop.baseline_steps), Some((1 << 32) + 2));
}

#[test]
fn an_empty_section_changes_nothing() {
    let loaded = sound(&[BASE, "preset: dapo\nrollout:\nobjective:\n  loss:\n"], &[]);
    let PolicyLoss::Clip(clip) = loaded.config.objective.loss else { panic!("clip") };
    assert_eq!(clip.clip_high.to_bits(), 0.28_f64.to_bits());
    assert_eq!(sound(&[BASE, ""], &[]).config, sound(&[BASE], &[]).config);
    assert_eq!(sound(&[BASE, "# nothing\n"], &[]).config, sound(&[BASE], &[]).config);
}

#[test]
fn overrides_set_add_and_reset() {
    let file = "rollout: {stop: [a], n: 3}\nreward: [{kind: exact}, {kind: length}]\nfilter: {metric: acc}\n";
    let loaded = sound(&[BASE, file], &["+rollout.stop=b", "~rollout.n", "reward[1].weight=0.5", "~filter"]);
    assert_eq!(loaded.config.rollout.stop, ["a", "b"]);
    assert_eq!(loaded.config.rollout.n, 8);
    assert!((loaded.config.reward[1].weight - 0.5).abs() < 1e-12);
    assert_eq!(loaded.config.filter, None);

    let loaded = sound(&[BASE, file], &["~reward[1]", "+rollout.stop=[c, d]", "filter={kind: mean_range}"]);
    assert_eq!(loaded.config.reward.len(), 1);
    assert_eq!(loaded.config.rollout.stop, ["a", "c", "d"]);
    assert_eq!(loaded.config.filter.unwrap().metric.as_deref(), Some("acc"), "a mapping is merged");

    // One key of a nullable section makes the section.
    let loaded = sound(&[BASE], &["checkpoint.keep_best.k=2", "validate.test_freq=1", "~preset"]);
    assert_eq!(loaded.config.checkpoint.keep_best.unwrap().k, 2);
}

#[test]
fn rewards_are_completed_by_task_and_preset() {
    let kinds = |loaded: &Loaded| -> Vec<String> {
        let rewards = loaded.config.reward.iter();
        rewards.map(|reward| format!("{}:{}", reward.name, reward.kind.as_str())).collect()
    };
    assert_eq!(kinds(&sound(&[BASE], &[])), ["number:number"]);
    assert_eq!(kinds(&sound(&[BASE], &["preset=dapo"])), ["number:number", "overlong:soft_overlong"]);
    let own = "reward=[{kind: exact}, {kind: soft_overlong, buffer: 100}]";
    let loaded = sound(&[BASE], &["preset=dapo", own]);
    assert_eq!(kinds(&loaded), ["exact:exact", "soft_overlong:soft_overlong"]);
    let RewardKind::SoftOverlong(overlong) = &loaded.config.reward[1].kind else { panic!("soft_overlong") };
    assert_eq!(overlong.buffer, Some(100));
    let shaped = sound(&[BASE], &["reward=[{kind: length, weight: 0.1}]"]);
    assert_eq!(kinds(&shaped), ["length:length", "number:number"]);
}

#[test]
fn overridden_presets_are_listed() {
    let clip = "preset: dapo\nobjective: {loss: {clip_high: 0.3, clip_low: 0.2}}\n";
    let loaded = sound(&[BASE, clip], &["schedule.on_limit=use_partial", "~filter"]);
    assert_snapshot!(listed(&loaded), @"
filter: none (preset dapo has variance on acc; default)
schedule.on_limit: use_partial (preset dapo has error; command line)
objective.loss.clip_high: 0.3 (preset dapo has 0.28; more.yaml:2)
");
    for &preset in Preset::ALL {
        let loaded = sound(&[BASE], &[&format!("preset={preset}")]);
        assert_eq!(loaded.preset_differences, [], "{preset}");
        assert!(loaded.warnings.is_empty(), "{preset}: {:?}", loaded.warnings);
    }
    let dr_grpo = sound(&[BASE], &["preset=dr_grpo"]).config;
    assert_eq!(dr_grpo.objective.aggregation, Aggregation::SeqMeanTokenSumNorm);
}

#[test]
fn a_difference_in_kind_is_listed_as_the_kind_alone() {
    let differences = |arguments: &[&str]| listed(&sound(&[BASE], &[&["preset=dapo"], arguments].concat()));
    assert_snapshot!(differences(&["objective.advantage.kind=rloo"]), @"objective.advantage.kind: rloo (preset dapo has grpo; command line)");
    assert_snapshot!(differences(&["objective.loss={kind: sapo}"]), @"objective.loss.kind: sapo (preset dapo has clip; command line)");
    assert_snapshot!(differences(&["filter.kind=mean_range", "filter.metric=score"]), @"
    filter.kind: mean_range (preset dapo has variance; command line)
    filter.metric: score (preset dapo has acc; command line)
    ");
    // The section at its own default, not the preset's.
    assert_snapshot!(differences(&["~objective.loss"]), @"
    objective.loss.clip_high: 0.2 (preset dapo has 0.28; default)
    objective.loss.dual_clip: 3.0 (preset dapo has 10.0; default)
    ");
}

#[test]
fn a_difference_in_a_reward_of_the_preset_is_listed_key_by_key() {
    let own = |keys: &str| {
        let rewards = format!("[{{kind: number}}, {{kind: soft_overlong, {keys}}}]");
        listed(&sound(&[BASE, &format!("preset: dapo\nreward: {rewards}\n")], &[]))
    };
    assert_eq!(own("name: overlong, form: bounded, penalty_factor: 1, weight: 1.0"), "");
    assert_snapshot!(own("name: overlong, form: bounded, penalty_factor: 0.5, buffer: 2"), @"reward[1].penalty_factor: 0.5 (preset dapo has 1.0; more.yaml:2)");
    assert_snapshot!(own("form: bounded"), @"reward[1].name: soft_overlong (preset dapo has overlong; more.yaml:2)");
}

#[test]
fn the_command_line_is_one_layer_whatever_the_order_of_its_arguments() {
    let keys = ["objective.advantage.singleton=raw", "objective.advantage.epsilon=1e-3"];
    let kind = ["objective.advantage.kind=cpo"];
    for arguments in [[&keys[..], &kind].concat(), [&kind[..], &keys].concat()] {
        let config = sound(&[BASE], &arguments).config;
        let Advantage::Cpo(cpo) = config.objective.advantage else { panic!("cpo") };
        assert_eq!((cpo.grpo.singleton, cpo.grpo.epsilon), (SingletonAdvantage::Raw, 1e-3), "{arguments:?}");
    }
    // What a file sets is dropped with its kind.
    let file = "objective: {advantage: {singleton: raw}}\n";
    let Advantage::Cpo(cpo) = sound(&[BASE, file], &kind).config.objective.advantage else { panic!("cpo") };
    assert_eq!(cpo.grpo.singleton, SingletonAdvantage::Zero);
}

#[test]
fn a_kind_in_place_of_its_section_is_hinted_at() {
    let wrong = load(&[BASE], &["objective.advantage=rloo"]).expect_err("a text").to_string();
    assert!(wrong.contains("hint: write {kind: rloo}\n"), "{wrong}");
}

#[test]
fn the_filter_itself_says_what_makes_no_sense_in_it() {
    let check = |filter: &str| load(&[BASE, &format!("filter: {filter}\n")], &["schedule.refill=false"]);
    // Closed bounds that are equal leave one value.
    assert!(check("{kind: mean_range, low: 0.5, high: 0.5, bounds: closed}").is_ok());
    let open = check("{kind: mean_range, low: 0.5, high: 0.5}").expect_err("empty").to_string();
    let none = "no group mean lies within the bounds of the mean_range filter, (0.5, 0.5)";
    assert!(open.contains(none), "{open}");
    let warnings = |filter: &str| {
        let warnings = check(filter).expect(filter).warnings;
        warnings.iter().map(ToString::to_string).collect::<String>()
    };
    assert!(warnings("{kind: min_p, p: 0}").contains("keeps every scored group: nothing is filtered"));
    assert!(!warnings("{kind: min_p, p: 0.1}").contains("nothing is filtered"));
}

#[test]
fn a_key_is_reset_to_the_default_of_its_kind() {
    let loaded = sound(&[BASE, "preset: ppo\n"], &["~objective.advantage.kind"]);
    assert_eq!(loaded.config.objective.advantage, Advantage::default());
    let gspo = |arguments: &[&str]| {
        let loaded = sound(&[BASE, "objective: {loss: {kind: gspo, clip_low: 0.1}}\n"], arguments);
        let PolicyLoss::Gspo(gspo) = loaded.config.objective.loss else { panic!("gspo") };
        gspo.clip_low
    };
    assert_eq!(gspo(&[]).to_bits(), 0.1_f64.to_bits());
    let default = tamis_core::objective::Gspo::default().clip_low;
    assert_eq!(gspo(&["~objective.loss.clip_low"]).to_bits(), default.to_bits());
}

#[test]
fn shown_configurations_load_to_the_same() {
    let stops = "rollout.stop=['\\n', '#', 'yes', '1e5']";
    let command = "reward=[{kind: command, argv: [a, '-x'], timeout: 1500ms}]";
    let best = "checkpoint.keep_best={metric: acc}";
    let of_init = "model: {init: {tokenizer: tok/en.json}, memory_limit: 1.5GiB}\ndata: {task: arithmetic, \
        arithmetic: {levels: [{digits: 3}]}}\n";
    for (text, arguments) in [
        (BASE, &["preset=dapo", "run.name='12'", "run.dir=a: b #c", stops][..]),
        (BASE, &[command, "data.chat_template_kwargs={a: {b: null}}"]),
        (BASE, &["preset=grpo", "objective.kl.adaptive=null", best, "validate.test_freq=3"]),
        (of_init, &["train.total_epochs=1", "filter={metric: acc}"]),
    ] {
        let loaded = sound(&[text], arguments);
        let shown = loaded.show();
        let again = load(&[&shown], &[]).unwrap_or_else(|errors| panic!("{errors}\n{shown}"));
        assert_eq!(again.values(), loaded.values(), "{shown}");
    }
}

#[test]
fn shown_configuration() {
    let loaded = sound(&[BASE, "rollout: {n: 4, stop: ['\n']}\n"], &["preset=dapo", "run.name=first try"]);
    let here = std::env::current_dir().unwrap();
    let shown = loaded.show().replace(&here.display().to_string(), "DIR");
    let keys = ["preset", "name:", "  n:", "stop", "kind", "max_num_gen", "clip", "path:", "learning_rate"];
    let is_shown = |line: &&str| keys.iter().any(|key| line.contains(key));
    let excerpt: Vec<&str> = shown.lines().filter(is_shown).collect();
    assert_snapshot!(excerpt.join("\n"), @r#"
preset: dapo  # command line: preset=dapo
  name: first try  # command line: run.name=first try
  path: DIR/m  # base.yaml:1
  learning_rate: null  # default
  n: 4  # more.yaml:1
  stop: [" "]  # more.yaml:1
  - {name: number, kind: number, weight: 1.0}  # default
  # preset dapo; buffer 102, max_length 512 follow rollout.max_response_length
  - {name: overlong, kind: soft_overlong, weight: 1.0, form: bounded, buffer: 102, max_length: 512, penalty_factor: 1.0}
  kind: variance  # preset dapo
  metric: acc  # preset dapo
  refill: true  # preset dapo
  max_num_gen_batches: 10  # preset dapo
  on_limit: error  # preset dapo
  on_empty_round: retry  # preset dapo
  surplus: discard  # preset dapo
    kind: shuffle  # default
    kind: grpo  # preset dapo
    scale: group  # preset dapo
    singleton: zero  # preset dapo
    kind: clip  # preset dapo
    clip_low: 0.2  # preset dapo
    clip_high: 0.28  # preset dapo
    dual_clip: 10.0  # preset dapo
    delta: null  # preset dapo
  aggregation: token-mean  # preset dapo
    in: none  # preset dapo
    coefficient: 0.0  # preset dapo
    preset: null  # default
    learning_rate: 1e-6  # default
    kind: constant  # default
  early_stop:
    path: null  # default
    learning_rate: 1e-5  # default
    kind: constant  # default
  cliprange_value: 0.5  # default
  n: 1  # default
"#);
}

/// A key that follows others is shown with its value if something reads it, and reads back as that value
/// without a new warning.
#[test]
fn keys_that_follow_others_are_set() {
    let followed = |arguments: &[&str]| {
        let loaded = sound(&[BASE], arguments);
        let shown = loaded.show();
        let again = load(&[&shown], &[]).unwrap_or_else(|errors| panic!("{errors}\n{shown}"));
        assert_eq!(again.values(), loaded.values(), "{shown}");
        let messages = |loaded: &Loaded| -> Vec<String> {
            loaded.warnings.iter().map(|found| found.problem.to_string()).collect()
        };
        assert_eq!(messages(&again), messages(&loaded), "{shown}");
        shown.lines().filter(|line| line.contains(" follows ")).map(str::trim).collect::<Vec<_>>().join("\n")
    };
    assert_snapshot!(followed(&["filter={}", "objective.entropy.coefficient=0.01"]), @"
    gen_batch_size: 64  # 64 follows data.train_batch_size
    metric: acc  # acc follows reward
    rounds_in_flight: 1  # 1 follows schedule.mode, rollout.backend
    aggregation: token-mean  # token-mean follows objective.aggregation
    ppo_mini_batch_size: 64  # 64 follows data.train_batch_size
    ");
    assert_snapshot!(followed(&["preset=dr_grpo", "schedule.mode=deficit", "filter={}"]), @"
    gen_batch_size: 64  # 64 follows data.train_batch_size
    metric: acc  # acc follows reward
    granularity: 64  # 64 follows train.ppo_mini_batch_size
    rounds_in_flight: 1  # 1 follows schedule.mode, rollout.backend
    loss_scale_factor: 512.0  # 512.0 follows rollout.max_response_length
    ppo_mini_batch_size: 64  # 64 follows data.train_batch_size
    ");
    assert_snapshot!(followed(&["preset=ppo", "model.path=null", "model.init.num_heads=4"]), @"
    num_kv_heads: 4  # 4 follows num_heads
    head_dim: 32  # 32 follows hidden_size / num_heads
    ppo_mini_batch_size: 64  # 64 follows data.train_batch_size
    ppo_mini_batch_size: 64  # 64 follows train.ppo_mini_batch_size
    ppo_epochs: 1  # 1 follows train.ppo_epochs
    aggregation: token-mean  # token-mean follows objective.aggregation
    ");
    let carries = ["preset=dapo", "schedule.surplus=carry", "schedule.max_lag=1", "schedule.mode=streaming"];
    assert_snapshot!(followed(&carries), @"
    gen_batch_size: 64  # 64 follows data.train_batch_size
    rounds_in_flight: 1  # 1 follows schedule.mode, rollout.backend
    # decoupled_token_is follows schedule.mode, schedule.surplus, rollout.backend
    ppo_mini_batch_size: 64  # 64 follows data.train_batch_size
    ");
    let served = ["rollout.backend=vllm", "rollout.servers=[http://localhost:8000]"];
    assert_snapshot!(followed(&[&carries[..], &served].concat()), @"
    gen_batch_size: 64  # 64 follows data.train_batch_size
    mode: folder  # folder follows learner.lora, rollout.launch
    pause: keep  # keep follows schedule.mode, schedule.surplus, rollout.backend
    rounds_in_flight: 8  # 8 follows schedule.mode, rollout.backend
    # decoupled_token_is follows schedule.mode, schedule.surplus, rollout.backend
    ppo_mini_batch_size: 64  # 64 follows data.train_batch_size
    ");
    // The names of a program's numbers are known when it answers.
    assert_snapshot!(followed(&["filter={}", "reward=[{kind: command, argv: [judge]}]"]), @"
    gen_batch_size: 64  # 64 follows data.train_batch_size
    rounds_in_flight: 1  # 1 follows schedule.mode, rollout.backend
    ppo_mini_batch_size: 64  # 64 follows data.train_batch_size
    ");
    let overlong = sound(&[BASE], &["preset=dapo", "rollout.max_response_length=100"]).show();
    assert!(overlong.contains("buffer: 20, max_length: 100"), "{overlong}");
}

/// Groups that are carried over are corrected if the learner computes their old log-probabilities again,
/// because its loss then does not show how old they are.
#[test]
fn carried_groups_are_corrected_where_the_learner_computes_in_another_number_format() {
    let carries = ["filter={}", "schedule.surplus=carry", "schedule.max_lag=1"];
    let correction = |further: &[&str]| {
        let loaded = sound(&[BASE], &[&carries[..], further].concat());
        loaded.config.objective.correction.preset
    };
    let torch = "learner.backend=torch";
    assert_eq!(correction(&[]), None);
    assert_eq!(correction(&[torch, "learner.dtype=f32"]), None);
    for dtype in ["learner.dtype=bf16", "learner.dtype=auto"] {
        assert_eq!(correction(&[torch, dtype]), Some(CorrectionPreset::DecoupledTokenIs), "{dtype}");
    }
    assert_eq!(correction(&[torch, "objective.loss.kind=decoupled"]), None, "that loss weighs them itself");
    let named = correction(&[torch, "objective.correction.preset=disabled"]);
    assert_eq!(named, Some(CorrectionPreset::Disabled));
}

/// A value that followed another key in a shown configuration follows it again in a new configuration made
/// from that.
#[test]
fn keys_that_follow_others_follow_on_in_what_is_made_of_a_shown_configuration() {
    let shown = |arguments: &[&str]| sound(&[BASE], arguments).show();
    let with = |shown: &str, arguments: &[&str]| sound(&[shown], arguments);
    let dr_grpo = shown(&["preset=dr_grpo", "filter={}", "model.path=null", "model.init.num_heads=2"]);
    let leaders = ["rollout.max_response_length=8", "data.train_batch_size=8", "model.init.num_heads=4"];
    let longer = with(&dr_grpo, &leaders);
    let config = &longer.config;
    assert!(config.objective.loss_scale_factor.is_some_and(|factor| (factor - 8.0).abs() < 1e-12));
    assert_eq!((config.data.gen_batch_size, config.train.ppo_mini_batch_size), (Some(8), Some(8)));
    assert_eq!(config.model.init.as_ref().and_then(|init| init.num_kv_heads), Some(4));
    let longer = longer.show();
    assert_eq!(longer.matches(" follows ").count(), dr_grpo.matches(" follows ").count(), "{longer}");
    // A reward's lengths, which are on its line.
    let overlong = |loaded: &Loaded| {
        let lines = loaded.show();
        lines.lines().find(|line| line.contains("soft_overlong")).unwrap_or_default().trim().to_owned()
    };
    let dapo = shown(&["preset=dapo"]);
    let follow = "# preset dapo; buffer 102, max_length 512 follow rollout.max_response_length\n";
    assert!(dapo.contains(follow), "{dapo}");
    let dapo = with(&dapo, &["rollout.max_response_length=100"]);
    assert!(overlong(&dapo).contains("buffer: 20, max_length: 100"), "{}", overlong(&dapo));
    // A correction that the user did not set goes with the key that needed it.
    let carried = shown(&["schedule.mode=streaming", "schedule.surplus=carry", "schedule.max_lag=1"]);
    assert!(carried.contains("  # decoupled_token_is follows schedule.mode"), "{carried}");
    let rounds = ["schedule.mode=rounds", "schedule.surplus=discard", "schedule.max_lag=null"];
    assert_eq!(with(&carried, &rounds).config.objective.correction.preset, None);
    assert_eq!(with(&carried, &["objective.loss.kind=decoupled"]).config.objective.correction.preset, None);
    // A comment of the user's own that begins alike changes nothing.
    let commented = "model: {path: m}\ndata: {task: arithmetic}\nrollout:\n  n: 8  # 8 follows the paper\n\
                     train:\n  total_steps: 10\n  # it follows the DAPO paper\n  ppo_mini_batch_size: 64\n";
    let commented = load(&[commented], &["data.train_batch_size=128"]).expect("sound").config;
    assert_eq!((commented.rollout.n, commented.train.ppo_mini_batch_size), (8, Some(64)));
    // It may look the same, behind a key that follows no other.
    let alike = "validate:\n  max_prompts: 32  # 32 follows data.train_batch_size\n";
    assert_eq!(load(&[BASE, alike], &[]).expect("sound").config.validate.max_prompts, Some(32));
    // The key that is followed may be edited in the file itself.
    let leaders = [
        (" train_batch_size: 64", " train_batch_size: 8"),
        (" num_heads: 2", " num_heads: 4"),
        (" max_response_length: 512", " max_response_length: 20"),
    ];
    let led = |shown: &str| {
        let edited = leaders.iter().fold(shown.to_owned(), |text, (from, to)| text.replace(from, to));
        assert_ne!(edited, shown);
        with(&edited, &[])
    };
    let of_file = led(&dr_grpo).config;
    assert_eq!((of_file.data.gen_batch_size, of_file.train.ppo_mini_batch_size), (Some(8), Some(8)));
    assert_eq!(of_file.model.init.as_ref().and_then(|init| init.num_kv_heads), Some(4));
    assert_eq!(of_file.objective.loss_scale_factor, Some(20.0));
    assert!(overlong(&led(&shown(&["preset=dapo"]))).contains("buffer: 4, max_length: 20"));
    // An edited value is what the user wants.
    let edited = dr_grpo.replace("gen_batch_size: 64  #", "gen_batch_size: 96  #");
    assert_eq!(with(&edited, &["data.train_batch_size=8"]).config.data.gen_batch_size, Some(96));
}

/// Another `kind` replaces the section, however it is written, and keys of the section's kind go into that
/// kind.
#[test]
fn another_kind_replaces_the_section_in_every_form() {
    let rewards = "reward: [{kind: number}, {kind: length, min_length: 3}, {kind: by_source, sources: {a: gsm8k, b: {kind: number}}}]\n";
    let values = |arguments: &[&str], key: &str| {
        let loaded = sound(&[BASE, rewards], &[&["preset=dapo"], arguments].concat());
        let pointer = format!("/{}", key.replace('.', "/"));
        loaded.values().pointer(&pointer).cloned().unwrap_or_default().to_string()
    };
    let kind = "objective.loss.kind=gspo";
    for argument in [kind, &format!("+{kind}"), "objective.loss={kind: gspo}"] {
        let loss = values(&[argument], "objective.loss");
        assert_eq!(loss, values(&["objective={loss: {kind: gspo}}"], "objective.loss"), "{argument}");
        assert!(loss.contains(r#""clip_low":0.0003"#), "{loss}");
    }
    assert_snapshot!(values(&["reward[1]={kind: format, pattern: x}"], "reward.1"), @r#"{"name":"format","kind":"format","weight":1.0,"pattern":"x"}"#);
    assert_snapshot!(values(&["reward[2].sources.b={kind: math}"], "reward.2.sources"), @r#"{"a":{"kind":"gsm8k","method":"strict","format_score":0.0},"b":{"kind":"math"}}"#);
    assert_snapshot!(values(&["reward[2].sources.b.kind=gsm8k"], "reward.2.sources"), @r#"{"a":{"kind":"gsm8k","method":"strict","format_score":0.0},"b":{"kind":"gsm8k","method":"strict","format_score":0.0}}"#);
    assert_snapshot!(values(&["reward[2].sources.a.method=flexible"], "reward.2.sources"), @r#"{"a":{"kind":"gsm8k","method":"flexible","format_score":0.0},"b":{"kind":"number"}}"#);
    // What all filters have stays.
    assert_snapshot!(values(&["filter.metric=score", "filter.kind=top_p", "filter.p=0.5"], "filter.metric"), @r#""score""#);
}

#[test]
fn resumption() {
    let run = sound(&[BASE], &[]).config;
    let changes = "train.total_steps=20 rollout.n=4 run.loggers=[console] filter={} validate.test_freq=2 \
        run.threads=2 train.micro_batch_tokens=4096 train.balance_micro_batches=true \
        train.micro_batch_size=2 model.recompute_activations=true";
    let now = sound(&[BASE], &changes.split_whitespace().collect::<Vec<_>>()).config;
    assert_eq!(resume_differences(&run, &run), []);
    let text: Vec<String> = resume_differences(&run, &now)
        .iter()
        .map(|difference| format!("{} {difference}", if difference.refused { "refused" } else { "allowed" }))
        .collect();
    assert_snapshot!(text.join("\n"), @"
allowed run.threads: null in the run, 2 now
allowed run.loggers: [console, jsonl, tensorboard] in the run, [console] now
allowed model.recompute_activations: false in the run, true now
refused data.gen_batch_size: null in the run, 64 now
refused rollout.n: 8 in the run, 4 now
refused filter: null in the run, {kind: variance, tolerance: 0.0, singleton: keep, metric: acc} now
refused schedule.rounds_in_flight: null in the run, 1 now
allowed train.micro_batch_tokens: null in the run, 4096 now
allowed train.balance_micro_batches: null in the run, true now
allowed train.micro_batch_size: null in the run, 2 now
allowed train.total_steps: 10 in the run, 20 now
allowed validate.test_freq: 0 in the run, 2 now
");

    // Steps that were already done would have had another schedule.
    let cosine = ["train.lr_schedule.kind=cosine"];
    let run = sound(&[BASE], &cosine).config;
    let now = sound(&[BASE], &[cosine[0], "train.total_steps=20"]).config;
    assert!(resume_differences(&run, &now)[0].refused);

    // External rewards: what they compute is fixed, how they run is free.
    let command =
        |extra: &str| sound(&[BASE], &[&format!("reward=[{{kind: command, argv: [x]{extra}}}]")]).config;
    let differences = resume_differences(&command(""), &command(", timeout: 5s, weight: 2"));
    let text: Vec<String> =
        differences.iter().map(|found| format!("{} {}", found.key, found.refused)).collect();
    assert_eq!(text, ["reward[0].weight true", "reward[0].timeout false"]);
}

#[test]
fn what_nobody_has_said_is_no_error_of_what_is_shown() {
    let shown = |arguments: &[&str]| {
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        tamis_config::load_sources_to_show(&[], &arguments)
    };
    let loaded = shown(&["preset=dapo"]).unwrap();
    assert!(loaded.show().contains("clip_high: 0.28  # preset dapo"), "{}", loaded.show());
    let lacking: Vec<String> = loaded.warnings.iter().map(|found| found.problem.to_string()).collect();
    assert_snapshot!(lacking.join("\n"), @r"
    there is no model: neither `model.path` nor `model.init` is set
    there are no training prompts: neither `data.train` nor the task `arithmetic` is set
    there is no reward: `reward` is empty, and no task (`data.task`) provides a verifier
    the length of the run is not set: neither `train.total_steps` nor `train.total_epochs` is given
    ");
    assert!(shown(&["preset=dapo", "rollout.n=0"]).is_err(), "what was said is still checked");
}
