//! verl's reward functions and DAPO's overlong punishment, in every spelling that verl has had.

use insta::assert_snapshot;
use serde_json::json;
use tamis_config::source::{Source, SourceKind};
use tamis_config::{Config, load_sources};

use crate::{converted, import_errors, loaded, notes};

const BASE: [&str; 5] = [
    "algorithm.adv_estimator=grpo",
    "data.train_files=t",
    "data.max_response_length=512",
    "actor_rollout_ref.model.path=m",
    "reward_model.reward_manager=dapo",
];

/// The rewards of a configuration as JSON.
fn rewards(config: &Config) -> serde_json::Value {
    serde_json::to_value(&config.reward).expect("a value")
}

/// Overlong punishments of the configuration.
fn overlong(config: &Config) -> Vec<serde_json::Value> {
    let rewards = rewards(config);
    rewards
        .as_array()
        .expect("a value")
        .iter()
        .filter(|reward| reward["kind"] == "soft_overlong")
        .cloned()
        .collect()
}

/// A run's own configuration with keys of verl on the command line, as `train` and `check` take them.
fn over(yaml: &str, arguments: &[&str]) -> (Config, String) {
    let source = Source::new(SourceKind::File("run.yaml".into()), yaml);
    let base = ["model.path=m", "data.task=arithmetic", "train.total_steps=1"];
    let arguments: Vec<String> = base.iter().chain(arguments).map(|&argument| argument.to_owned()).collect();
    let loaded = load_sources(&[source], &arguments).unwrap_or_else(|errors| panic!("{errors}"));
    let notes = loaded.notes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    (loaded.config, notes)
}

#[test]
fn every_spelling_of_the_overlong_buffer() {
    for (prefix, limit) in [
        ("+reward_model.reward_kwargs.overlong_buffer_cfg", "+reward_model.reward_kwargs.max_resp_len"),
        ("reward.reward_kwargs.overlong_buffer_cfg", "reward.reward_kwargs.max_resp_len"),
        ("reward_model.overlong_buffer", "reward_model.max_resp_len"),
        ("custom_reward_function.overlong_buffer", "reward_model.max_resp_len"),
    ] {
        let keys: Vec<String> = [
            format!("{prefix}.enable=True"),
            format!("{prefix}.len=128"),
            format!("{prefix}.penalty_factor=0.5"),
            format!("{prefix}.log=True"),
            format!("{limit}=400"),
        ]
        .into();
        let arguments: Vec<&str> = BASE.into_iter().chain(keys.iter().map(String::as_str)).collect();
        let import = converted(&arguments);
        let expected = json!({
            "name": "overlong", "kind": "soft_overlong", "weight": 1.0, "form": "verl", "buffer": 128, "max_length": 400,
            "penalty_factor": 0.5,
        });
        assert_eq!(rewards(&loaded(&import))[1], expected, "{prefix}");
        let notes = notes(&import);
        let log = format!(
            "{}.log=True has no effect: every reward function's score is logged",
            prefix.trim_start_matches('+')
        );
        assert!(notes.contains(&log), "{notes}");
        assert_eq!(
            notes.matches("has no effect").count(),
            2,
            "the switch of the log and the manager: {notes}"
        );
        // The same keys over a configuration of one's own.
        let (config, _) = over("", &arguments[2..]);
        assert_eq!(overlong(&config), [expected], "{prefix}");
    }
}

#[test]
fn the_limit_of_the_run_is_not_said_twice() {
    let import = converted(
        &[
            &BASE[..],
            &[
                "reward.reward_kwargs.overlong_buffer_cfg.enable=True",
                "reward.reward_kwargs.overlong_buffer_cfg.len=128",
                "reward.reward_kwargs.max_resp_len=512",
            ],
        ]
        .concat(),
    );
    assert!(!import.yaml.contains("max_length:"), "{}", import.yaml);
}

#[test]
fn a_buffer_that_is_off_switches_the_preset_s_off() {
    let off = "+reward_model.reward_kwargs.overlong_buffer_cfg.enable=False";
    // A whole command.
    let import = converted(&[
        "algorithm.adv_estimator=dapo",
        "data.train_files=t",
        "actor_rollout_ref.model.path=m",
        off,
    ]);
    let weights = |config: &Config| -> Vec<f64> {
        let overlong = config.reward.iter().filter(|reward| reward.kind.as_str() == "soft_overlong");
        overlong.map(|reward| reward.weight).collect()
    };
    assert_eq!(weights(&loaded(&import)), [0.0]);
    // Over a preset of the file, and over a list of the file.
    assert_eq!(weights(&over("preset: dapo", &[off]).0), [0.0]);
    assert_eq!(weights(&over("", &["preset=dapo", off]).0), [0.0]);
    let list = "reward: [{kind: number}, {kind: soft_overlong, buffer: 64}]";
    assert_eq!(weights(&over(list, &[off]).0), [0.0]);
    // Nothing is added where there is nothing to switch off.
    let (config, notes) = over("", &[off]);
    assert_eq!(weights(&config), [0.0; 0]);
    assert!(notes.contains("has no effect: there is no overlong punishment"), "{notes}");
}

#[test]
fn a_buffer_replaces_the_one_below_it() {
    let on = ["reward_model.overlong_buffer.enable=True", "reward_model.overlong_buffer.len=32"];
    for yaml in ["preset: dapo", "reward: [{kind: number}, {kind: soft_overlong, buffer: 64, weight: 0.5}]"] {
        let (config, _) = over(yaml, &on);
        let overlong = overlong(&config);
        assert_eq!(overlong.len(), 1, "{yaml}");
        for (key, value) in [("buffer", json!(32)), ("weight", json!(1.0)), ("form", json!("verl"))] {
            assert_eq!(overlong[0][key], value, "{yaml}: {key}");
        }
    }
    // So it does a list that is typed beside it, before or behind.
    let list = "reward=[{kind: number}, {kind: soft_overlong, buffer: 64}]";
    for arguments in [[list, on[0], on[1]], [on[0], on[1], list]] {
        let overlong = overlong(&over("", &arguments).0);
        assert_eq!((overlong.len(), &overlong[0]["buffer"]), (1, &json!(32)));
    }
    // A length alone changes what is on already, and does nothing where nothing is.
    let (config, _) = over("preset: dapo", &on[1..]);
    assert_eq!(overlong(&config)[0]["buffer"], 32);
    let (_, notes) = over("", &on[1..]);
    assert_eq!(
        notes,
        "reward_model.overlong_buffer.len=32 has no effect: reward_model.overlong_buffer.enable is not True"
    );
}

#[test]
fn another_manager_than_dapo_reads_no_buffer() {
    let import = converted(&[
        "data.train_files=t",
        "reward.reward_manager.name=naive",
        "reward.reward_kwargs.overlong_buffer_cfg.enable=True",
    ]);
    let printed = "reward.reward_kwargs.overlong_buffer_cfg.enable=True has no effect: verl's reward manager `dapo` alone reads it, and this \
                is `naive`";
    assert!(notes(&import).contains(printed), "{}", notes(&import));
    let import = converted(&[
        "data.train_files=t",
        "reward.reward_kwargs.overlong_buffer_cfg.enable=True",
        "reward.reward_kwargs.overlong_buffer_cfg.len=64",
        "reward.reward_kwargs.overlong_buffer_cfg.penalty_factor=1.0",
    ]);
    assert!(
        notes(&import)
            .contains("(warning: no reward manager is named, and verl's default `naive` reads none of this"),
        "{}",
        notes(&import)
    );
}

#[test]
fn functions_with_their_arguments_and_workers() {
    for prefix in ["reward.custom_reward_function", "custom_reward_function"] {
        let keys = [
            format!("{prefix}.path=score.py"),
            format!("{prefix}.name=mine"),
            format!("+{prefix}.reward_kwargs.scale=2"),
            "reward.num_workers=3".to_owned(),
        ];
        let arguments: Vec<&str> = BASE.into_iter().chain(keys.iter().map(String::as_str)).collect();
        let reward = &rewards(&loaded(&converted(&arguments)))[0];
        assert_eq!(
            (&reward["function"], &reward["kwargs"], &reward["num_processes"]),
            (&"mine".into(), &json!({"scale": 2}), &3.into()),
            "{prefix}"
        );
    }
}

#[test]
fn managers_that_cannot_be_followed() {
    let batch = ["reward_model.reward_manager=batch", "custom_reward_function.path=score.py"];
    assert!(import_errors(&batch).contains("its functions take lists"));
    assert!(import_errors(&["reward.reward_manager.name=mine"]).contains("the managers are naive, dapo"));
    assert!(import_errors(&["reward.reward_manager.module.path=mine.py"]).contains("cannot be followed"));
    assert!(
        import_errors(&["+reward_model.reward_kwargs.overlong_bufer_cfg.enable=True"])
            .contains("cannot be followed")
    );
    let lost = import_errors(&["reward.reward_model.enable=True"]);
    assert!(lost.contains("reward.reward_model.model_path does not say which model"), "{lost}");
}

#[test]
fn an_overlong_buffer_has_verl_s_defaults() {
    const ON: &str = "reward.reward_kwargs.overlong_buffer_cfg.enable=True";
    const LENGTH: &str = "reward.reward_kwargs.overlong_buffer_cfg.len";
    for keys in [&[ON][..], &[ON, &format!("{LENGTH}=0")]] {
        let printed = import_errors(&[&BASE[..], keys].concat());
        assert!(printed.contains("overlong_buffer_cfg.len` is 0 unless it is given"), "{printed}");
    }
    let import = converted(&[&BASE[..], &[ON, &format!("{LENGTH}=64")]].concat());
    assert_eq!(overlong(&loaded(&import))[0]["penalty_factor"], 0.0);
    assert!(notes(&import).contains("(warning: penalty_factor is 0, verl's default: nothing is taken off)"));
    // A preset's own length is there.
    let (config, _) = over("preset: dapo", &[ON]);
    assert_eq!(overlong(&config)[0]["penalty_factor"], 1.0);
}

#[test]
fn reasons_are_those_of_the_key() {
    let printed = |keys: &[&str]| notes(&converted(&[&["data.train_files=t"][..], keys].concat()));
    let off = printed(&["custom_reward_function.overlong_buffer.len=8"]);
    assert!(
        off.contains("has no effect: custom_reward_function.overlong_buffer.enable is not True"),
        "{off}"
    );
    assert!(printed(&["data.use_shm=True"]).contains("saves computation or memory"));
    let grpo = printed(&["algorithm.adv_estimator=grpo", "reward.reward_manager.name=gdpo"]);
    assert!(grpo.contains("that is not the one here"), "{grpo}");
    let refused =
        import_errors(&["data.train_files=t", "algorithm.adv_estimator=gae", "critic.enable=False"]);
    assert!(refused.contains("reads a critic's values"), "{refused}");
    assert!(
        printed(&["algorithm.adv_estimator=grpo", "critic.enable=False"])
            .contains("critic.enable=False has no effect")
    );
}

#[test]
fn older_spellings_are_known() {
    let of = |keys: &[&str]| loaded(&converted(&[&BASE[..], keys].concat()));
    assert_eq!(of(&["trainer.remove_previous_ckpt_in_save=True"]).checkpoint.keep_last, Some(1));
    assert_eq!(of(&["trainer.val_generations_to_log_to_wandb=3"]).validate.num_samples_shown, 3);
    let trl = [
        "model_name_or_path=m",
        "dataset_name=t",
        "reward_funcs=accuracy_reward",
        "max_steps=3",
        "logging_dir=x",
    ];
    let of = |keys: &[&str]| converted(&[&trl[..], keys].concat()).yaml;
    assert!(of(&["per_gpu_train_batch_size=16"]).contains("train_batch_size: 2"));
    let old = of(&["--evaluation_strategy", "steps", "eval_steps=7"]);
    assert!(old.contains("test_freq: 7"), "{old}");
}

/// The scoring function is never guessed from the name of a file: verl's rows say it themselves, RAGEN's are
/// taken as verl's, and EasyR1, which refuses to start without a function, asks for one.
#[test]
fn no_reward_is_guessed_from_the_name_of_a_file() {
    insta::allow_duplicates! {
        for file in ["gsm8k.parquet", "dapo-math-17k.parquet", "aime-2024.parquet", "rows.jsonl"] {
            let file = format!("data.train_files={file}");
            for words in [
                &["actor_rollout_ref.model.path=m", file.as_str()][..],
                &["model_path=m", "agent_proxy.max_turn=1", &file],
            ] {
                let import = converted(words);
                assert_eq!(loaded(&import).reward[0].kind.as_str(), "by_source", "{words:?}");
            }
            let import = converted(&["worker.actor.model.model_path=m", &file, "worker.rollout.n=4"]);
            assert!(!import.yaml.contains("reward:"), "{}", import.yaml);
            let printed: Vec<String> = import.remaining.iter().map(|found| found.problem.to_string()).collect();
            assert_snapshot!(printed.join("\n"), @"there is no reward: `reward` is empty, and no task (`data.task`) brings a verifier");
            let note = notes(&import).lines().find(|line| line.contains("reward_function")).map(str::to_owned);
            assert_snapshot!(note.unwrap(), @"worker.reward.reward_function is not given: EasyR1 has no reward of its own: name one, worker.reward.reward_function=FILE.py:FUNCTION or `reward=[{kind: math}]`");
        }
    }
    let ragen = notes(&converted(&["model_path=m", "agent_proxy.max_turn=1", "data.train_files=t"]));
    assert_snapshot!(ragen.lines().find(|line| line.contains("by_source")).unwrap(), @"custom_envs is not given -> reward: [{kind: by_source}] (warning: RAGEN's environments give the reward, and data are given instead: the verifier of each row by its data_source, as in verl, unless `reward` names another, such as `reward=[{kind: math}]`)");
    // Filters that look at a number of the reward are not blamed for its absence.
    let filtered = converted(&[
        "algorithm.online_filtering=true",
        "algorithm.filter_key=accuracy",
        "worker.rollout.n=4",
    ]);
    assert!(!filtered.remaining.iter().any(|found| found.problem.to_string().contains("metric")));
}

/// A key without a counterpart here is refused with the reason and the alternative, where it is read at all.
#[test]
fn the_newest_of_verl() {
    let printed = |words: &[&str]| {
        let errors = import_errors(words);
        errors.lines().filter(|line| line.starts_with("error")).collect::<Vec<_>>().join("\n")
    };
    let gdpo = "algorithm.adv_estimator=gdpo";
    let keys = "+algorithm.gdpo_reward_keys=['format_reward','accuracy_reward']";
    let weights = "+algorithm.gdpo_reward_weights=[1.0,0.5]";
    assert_snapshot!(printed(&[gdpo, keys, weights]), @r#"
error: `algorithm.gdpo_reward_keys=["format_reward","accuracy_reward"]` of verl cannot be followed: here a function gives one score, and the estimator `gdpo` normalises each entry of `reward` by itself: write a function for each of them, and name it there with `kind: python`, `style: verl` and a `weight`
error: `algorithm.gdpo_reward_weights=[1.0,0.5]` of verl cannot be followed: each entry of `reward` has a `weight` of its own: give it there
"#);
    let others = converted(&["algorithm.adv_estimator=grpo", keys, weights]);
    assert_snapshot!(notes(&others).lines().filter(|line| line.contains("gdpo")).collect::<Vec<_>>().join("\n"), @r#"
algorithm.gdpo_reward_keys=["format_reward","accuracy_reward"] has no effect: the estimator `gdpo` alone reads it
algorithm.gdpo_reward_weights=[1.0,0.5] has no effect: the estimator `gdpo` alone reads it
"#);
    let loss = |name: &str| {
        let mode = format!("actor_rollout_ref.actor.policy_loss.loss_mode={name}");
        printed(&[&mode, "actor_rollout_ref.actor.policy_loss.cppo.cppo_w_min=0.8"])
    };
    assert_snapshot!(["cppo", "flow_grpo", "bypass_mode", "mine"].map(loss).join("\n"), @"
error: `actor_rollout_ref.actor.policy_loss.loss_mode=cppo` of verl cannot be followed: its bound on the drift of a whole prefix is not there: `dppo_tv` bounds the divergence of each token
error: `actor_rollout_ref.actor.policy_loss.loss_mode=flow_grpo` of verl cannot be followed: it trains models that make images, and language models are trained here
error: `actor_rollout_ref.actor.policy_loss.loss_mode=bypass_mode` of verl cannot be followed: verl sets it by itself where algorithm.rollout_correction.bypass_mode is True: give that
error: `actor_rollout_ref.actor.policy_loss.loss_mode=mine` of verl cannot be followed: the losses are vanilla, gspo, sapo, gpg, clip_cov, kl_cov, geo_mean, cispo, dppo_tv, dppo_kl and dro
");
    assert_snapshot!(printed(&["algorithm.adv_estimator=flow_grpo"]), @"error: `algorithm.adv_estimator=flow_grpo` of verl cannot be followed: it trains models that make images, and language models are trained here");
}
