//! Commands of TRL.

use insta::assert_snapshot;
use tamis_core::advantage::Scale;

use crate::{converted, import_errors, loaded, notes, value_at};

#[test]
fn arguments_of_trl() {
    let import = converted(&[
        "trl",
        "grpo",
        "--model_name_or_path",
        "./model",
        "--dataset_name",
        "data.jsonl",
        "--output_dir",
        "out/first",
        "--num_generations",
        "8",
        "--per_device_train_batch_size",
        "16",
        "--gradient_accumulation_steps",
        "4",
        "--beta",
        "0.04",
        "--epsilon_high",
        "0.28",
        "--loss_type",
        "grpo",
        "--scale_rewards",
        "none",
        "--reward_funcs",
        "['accuracy_reward', 'think_format_reward']",
        "--reward_weights",
        "[1.0, 0.2]",
        "--lr_scheduler_type",
        "cosine",
        "--warmup_ratio",
        "0.1",
        "--max_steps",
        "200",
        "--use_vllm",
        "--report_to",
        "wandb",
        "--bf16",
    ]);
    assert_snapshot!(import.yaml, @"
run:
  name: first  # TRL: output_dir=out/first
  dir: out  # TRL: output_dir=out/first
  seed: 42  # TRL: seed (default)
  loggers: [console, wandb, jsonl]  # TRL: report_to=wandb
model:
  path: ./model  # TRL: model_name_or_path=./model
data:
  train: data.jsonl  # TRL: dataset_name=data.jsonl
  train_batch_size: 8  # TRL: per_device_train_batch_size=16
rollout:
  backend: vllm  # TRL: use_vllm=true
  launch: {}  # TRL: use_vllm=true
  n: 8  # TRL: num_generations=8
reward:
  - {kind: math_verify, weight: 1.0}  # TRL: reward_funcs=['accuracy_reward', 'think_format_reward']
  # TRL: reward_funcs=['accuracy_reward', 'think_format_reward']
  - {name: think_format, kind: think_format, weight: 0.2}
objective:
  advantage:
    scale: none  # TRL: scale_rewards=none
  loss:
    kind: clip  # TRL: loss_type=grpo
    clip_low: 0.2  # TRL: epsilon_high=0.28
    clip_high: 0.28  # TRL: epsilon_high=0.28
    dual_clip: null  # TRL: epsilon_high=0.28
    log_ratio_limit: null  # TRL: a bound on the log-ratio (default)
  aggregation: seq-mean-token-mean  # TRL: loss_type=grpo
  kl:
    in: loss  # TRL: beta=0.04
    estimator: k3  # TRL: beta=0.04
    coefficient: 0.04  # TRL: beta=0.04
    bias_corrected: true  # TRL: beta=0.04
    adaptive: null  # TRL: beta=0.04
  correction:
    weights:
      level: sequence  # TRL: vllm_importance_sampling_mode (default)
      outside: mask  # TRL: vllm_importance_sampling_mode (default)
      max: 3.0  # TRL: vllm_importance_sampling_mode (default)
train:
  ppo_mini_batch_size: 8  # TRL: gradient_accumulation_steps=4
  micro_batch_size: 16  # TRL: per_device_train_batch_size=16
  optimizer:
    weight_decay: 0.0  # TRL: weight_decay (default)
  lr_schedule:
    kind: cosine  # TRL: lr_scheduler_type=cosine
    warmup_steps: 20  # TRL: warmup_ratio=0.1
  total_steps: 200  # TRL: max_steps=200
checkpoint:
  save_freq: 500  # TRL: save_steps (default)
  keep_last: null  # TRL: save_total_limit (default)
");
    assert_snapshot!(notes(&import), @r#"
model_name_or_path=./model -> model.path: ./model
dataset_name=data.jsonl -> data.train: data.jsonl
output_dir=out/first -> run.dir: out, run.name: first
num_generations=8 -> rollout.n: 8
per_device_train_batch_size=16 -> data.train_batch_size: 8, train.micro_batch_size: 16 (TRL counts completions; prompts are counted by tamis)
gradient_accumulation_steps=4 -> train.ppo_mini_batch_size: 8
beta=0.04 -> objective.kl.in: loss, objective.kl.estimator: k3, objective.kl.coefficient: 0.04, objective.kl.adaptive: null, objective.kl.bias_corrected: true (TRL 1.16 weights the KL by the ratio unless use_bias_correction_kl=False; older versions do not)
epsilon_high=0.28 -> objective.loss.clip_low: 0.2, objective.loss.clip_high: 0.28, objective.loss.dual_clip: null
loss_type=grpo -> objective.loss.kind: clip, objective.aggregation: seq-mean-token-mean
scale_rewards=none -> objective.advantage.scale: none
reward_funcs=["accuracy_reward","think_format_reward"] -> reward: [{kind: math_verify, weight: 1.0}, {name: think_format, kind: think_format, weight: 0.2}] (the `python` of `math_verify` has to have that library (docs/rewards.md); `kind: math` needs none and judges otherwise)
reward_weights=[1.0,0.2] goes into what reward_funcs becomes
lr_scheduler_type=cosine -> train.lr_schedule.kind: cosine
warmup_ratio=0.1 -> train.lr_schedule.warmup_steps: 20
max_steps=200 -> train.total_steps: 200
use_vllm=true -> rollout.backend: vllm, rollout.launch: {} (the run starts vLLM as a server of its own, which has to be installed here; for one that is running already: `rollout.servers=[http://HOST:PORT]`)
report_to=wandb -> run.loggers: [console, wandb, jsonl]
bf16=true has no effect: the native engine computes in f32; `learner.backend: torch` reads it, as `learner.dtype`
vllm_importance_sampling_mode is not given -> objective.correction.weights: {level: sequence, outside: mask, max: 3.0} (TRL's default)
seed is not given -> run.seed: 42 (TRL's default)
weight_decay is not given -> train.optimizer.weight_decay: 0.0 (TRL's default)
a bound on the log-ratio is not given -> objective.loss.log_ratio_limit: null (TRL's default)
save_steps is not given -> checkpoint.save_freq: 500 (TRL's default)
save_total_limit is not given -> checkpoint.keep_last: null (TRL's default)
max_prompt_length is not given: TRL has had no limit since 0.28; here a prompt longer than `data.max_prompt_length` stops the run
"#);
    assert_eq!(import.remaining, []);
}

/// TRL takes the ratio as it is; a loss that reads no bound gets none.
#[test]
fn log_ratios_of_trl_are_not_bounded() {
    let bound = |loss: &str| {
        let arguments = [
            "--model_name_or_path",
            "m",
            "--dataset_name",
            "t",
            "--loss_type",
            loss,
            "--reward_funcs",
            "accuracy_reward",
        ];
        let import = converted(&arguments);
        assert!(!import.remaining.iter().any(|printed| printed.to_string().contains("log_ratio_limit")));
        let loss = serde_json::to_value(loaded(&import).objective.loss).expect("json");
        loss.get("log_ratio_limit").cloned()
    };
    for loss in ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo"] {
        assert_eq!(bound(loss), Some(serde_json::Value::Null), "{loss}");
    }
    assert_eq!(bound("vespo"), None);
}

#[test]
fn luspo_with_a_cap_on_the_ratio_is_the_clip_under_a_token_sum() {
    let words = ["loss_type=luspo", "importance_sampling_level=sequence", "epsilon=0.1", "delta=2"];
    let import = command(&words);
    let objective = loaded(&import).objective;
    let clip = tamis_core::objective::Clip {
        clip_low: 0.1,
        clip_high: 0.1,
        dual_clip: None,
        delta: Some(2.0),
        log_ratio_limit: None,
    };
    assert_eq!(objective.loss, tamis_core::objective::PolicyLoss::Clip(clip));
    assert_eq!(objective.aggregation, tamis_core::objective::Aggregation::SeqMeanTokenSum);
    assert_eq!(objective.importance, tamis_core::objective::Importance::Sequence);
    assert_eq!(note_on(&import, "delta"), "delta=2 -> objective.loss.delta: 2");
    let without = loaded(&command(&words[..3])).objective.loss;
    assert_eq!(without.as_str(), "luspo");
}

/// A command of TRL that lacks nothing, with more words.
fn command(more: &[&str]) -> tamis_config::Import {
    converted(&[&["model_name_or_path=m", "dataset_name=t", "reward_funcs=accuracy_reward"], more].concat())
}

/// The note about one key.
fn note_on(import: &tamis_config::Import, key: &str) -> String {
    let found = notes(import).lines().find(|line| line.starts_with(&format!("{key}="))).map(str::to_owned);
    found.unwrap_or_else(|| panic!("nothing on {key}: {}", notes(import)))
}

#[test]
fn schedules_of_transformers() {
    use tamis_config::LrScheduleKind::{Constant, Cosine, Linear};
    let of = |words: &[&str]| {
        let config = loaded(&command(&[&["max_steps=200", "learning_rate=1e-5"], words].concat()));
        let schedule = config.train.lr_schedule;
        (schedule.kind, schedule.warmup_steps, schedule.min_ratio)
    };
    assert_eq!(of(&[]), (Linear, 0, 0.0));
    assert_eq!(of(&["lr_scheduler_type=constant_with_warmup", "warmup_steps=10"]), (Constant, 10, 0.0));
    // transformers' `constant` has no warm-up.
    assert_eq!(of(&["lr_scheduler_type=constant", "warmup_steps=10"]), (Constant, 0, 0.0));
    assert_eq!(of(&["lr_scheduler_type=cosine", "warmup_ratio=0.1"]), (Cosine, 20, 0.0));
    // Below 1 the newer key is a share too.
    assert_eq!(of(&["lr_scheduler_type=cosine", "warmup_steps=0.1"]), (Cosine, 20, 0.0));
    assert_eq!(of(&["lr_scheduler_type=cosine_with_restarts"]), (Cosine, 0, 0.0));
    let least = |options: &str| {
        of(&["lr_scheduler_type=cosine_with_min_lr", &format!("lr_scheduler_kwargs={options}")])
    };
    assert_eq!(least("{min_lr_rate: 0.1}"), (Cosine, 0, 0.1));
    assert_eq!(least("{\"min_lr\": 1e-6}"), (Cosine, 0, 0.1));
    // In a line to 1e-7, and to another end.
    assert_eq!(of(&["lr_scheduler_type=polynomial"]), (Linear, 0, 0.01));
    assert_eq!(of(&["lr_scheduler_type=polynomial", "lr_scheduler_kwargs={lr_end: 5e-6}"]), (Linear, 0, 0.5));
    for (words, printed) in [
        (&["lr_scheduler_type=cosine_with_min_lr"][..], "give one of min_lr and min_lr_rate"),
        (&["lr_scheduler_type=cosine", "lr_scheduler_kwargs={num_cycles: 3}"], "leave num_cycles out"),
        (&["lr_scheduler_type=polynomial", "lr_scheduler_kwargs={power: 2}"], "a power of 1 alone"),
        (&["lr_scheduler_type=linear", "lr_scheduler_kwargs={min_lr: 1e-7}"], "has no option `min_lr`"),
        (&["lr_scheduler_type=inverse_sqrt"], "the schedules are constant"),
        (&["lr_scheduler_type=cosine_warmup_with_min_lr"], "the schedules are constant"),
        (&["lr_scheduler_type=warmup_stable_decay"], "the schedules are constant"),
        (&["warmup_ratio=0.1"], "the number of steps is not known"),
    ] {
        let errors = import_errors(&[&["model_name_or_path=m"], words].concat());
        assert!(errors.contains(printed), "{words:?}: {errors}");
    }
}

/// A step of TRL is an update, one of ours a generation with all its updates.
#[test]
fn steps_and_batches_of_trl() {
    let of = |words: &[&str]| {
        let config = loaded(&command(words));
        (config.data.train_batch_size, config.train.ppo_mini_batch_size, config.train.total_steps)
    };
    let base = [
        "num_generations=4",
        "per_device_train_batch_size=8",
        "gradient_accumulation_steps=2",
        "max_steps=100",
    ];
    assert_eq!(of(&base), (4, Some(4), Some(100)));
    // Four micro-batches a generation are two updates.
    let two = [&base[..], &["steps_per_generation=4", "save_steps=25", "warmup_steps=3"]].concat();
    assert_eq!(of(&two), (8, Some(4), Some(50)));
    let config = loaded(&command(&two));
    assert_eq!(
        (value_at(&config, "/checkpoint/save_freq"), config.train.lr_schedule.warmup_steps),
        ("13".to_owned(), 2)
    );
    assert_snapshot!(note_on(&command(&two), "max_steps"), @"max_steps=100 -> train.total_steps: 50 (TRL counts updates, and a step of tamis has 2 of them)");
    // And twice as many where everything is used twice.
    assert_eq!(of(&[&two[..], &["num_iterations=2"]].concat()), (8, Some(4), Some(25)));
    assert_eq!(of(&[&base[..], &["generation_batch_size=32"]].concat()), (8, Some(4), Some(50)));
    assert_eq!(of(&[&base[..], &["num_processes=2"]].concat()), (8, Some(8), Some(100)));
    // Two generations for one update come from the same weights.
    assert_eq!(of(&[&base[..], &["steps_per_generation=1"]].concat()), (4, Some(4), Some(100)));
    // Nothing given: one group of eight.
    assert_eq!(of(&[]), (1, Some(1), None));
    assert_eq!(of(&["num_generations=4"]), (2, Some(2), None));
    for (words, printed) in [
        (&["num_generations=16"][..], "are not whole groups of 16"),
        (&["generation_batch_size=32", "steps_per_generation=4"], "TRL takes one of them"),
        (
            &["num_generations=4", "gradient_accumulation_steps=3", "steps_per_generation=2"],
            "is not made of whole generations",
        ),
    ] {
        let errors = import_errors(&[&["model_name_or_path=m"], words].concat());
        assert!(errors.contains(printed), "{words:?}: {errors}");
    }
}

/// The name of the loss does not decide the advantages.
#[test]
fn dr_grpo_of_trl_keeps_the_division() {
    assert_snapshot!(note_on(&command(&["loss_type=dr_grpo"]), "loss_type"), @"loss_type=dr_grpo -> objective.loss.kind: clip, objective.aggregation: seq-mean-token-sum-norm (warning: as in TRL it changes what the loss is divided by and no more: advantages are still divided by the deviation of their group. Dr. GRPO as published wants scale_rewards=none too)");
    for none in ["none", "False", "false"] {
        let import = command(&["loss_type=dr_grpo", &format!("scale_rewards={none}")]);
        assert!(!note_on(&import, "loss_type").contains("warning"), "{none}");
        assert_eq!(loaded(&import).objective.advantage.divisor(), Some(Scale::None));
    }
    for group in ["True", "group"] {
        let divided = loaded(&command(&[&format!("scale_rewards={group}")])).objective.advantage.divisor();
        assert_eq!(divided, Some(Scale::Group));
    }
}

/// Keys of the versions that write-ups of TRL quote.
#[test]
fn older_keys_of_trl() {
    let import = command(&[
        "max_prompt_length=1024",
        "use_transformers_paged=True",
        "use_liger_loss=True",
        "vllm_guided_decoding_regex=null",
    ]);
    let config = loaded(&import);
    assert_eq!(
        (config.data.max_prompt_length, config.data.overlong_prompts),
        (1024, tamis_data::overlong::OverlongPrompts::Left)
    );
    assert_eq!(config.rollout.regex, None);
    for key in ["vllm_structured_outputs_regex", "vllm_guided_decoding_regex"] {
        let import = command(&[&format!("--{key}"), "[0-9]+"]);
        assert_eq!(loaded(&import).rollout.regex.as_deref(), Some("[0-9]+"), "{key}");
        assert_eq!(loaded(&command(&[&format!("{key}=None")])).rollout.regex, None, "{key}");
    }
    let kl = |words: &[&str]| loaded(&command(words)).objective.kl.bias_corrected;
    assert!(kl(&["beta=0.04"]));
    assert!(!kl(&["beta=0.04", "use_bias_correction_kl=False"]));
    assert!(!kl(&["use_bias_correction_kl=True"]), "without a KL nothing is weighted");
}

#[test]
fn reward_functions_of_trl() {
    let of = |names: &str| {
        let import = converted(&["model_name_or_path=m", "dataset_name=t", &format!("reward_funcs={names}")]);
        serde_json::to_value(&loaded(&import).reward).unwrap()
    };
    assert_snapshot!(of("[get_soft_overlong_punishment, accuracy_reward]"), @r#"[{"name":"overlong","kind":"soft_overlong","weight":1.0,"form":"bounded","buffer":256,"max_length":1280,"penalty_factor":1.0},{"name":"math_verify","kind":"math_verify","weight":1.0,"python":"python3","num_processes":2,"timeout":"30s","startup_timeout":"60s","max_restarts":10}]"#);
    assert_snapshot!(of("[trl.rewards.think_format_reward, pkg.rewards.short]"), @r#"[{"name":"think_format","kind":"think_format","weight":1.0},{"name":"short","kind":"python","weight":1.0,"path":"pkg/rewards.py","function":"short","style":"trl","kwargs":{},"python":"python3","num_processes":2,"timeout":"30s","startup_timeout":"60s","max_restarts":10}]"#);
    for (name, printed) in [
        ("reasoning_accuracy_reward", "import it in a file of your own"),
        ("my_reward", "takes a dotted path"),
    ] {
        let errors = import_errors(&["model_name_or_path=m", &format!("reward_funcs={name}")]);
        assert!(errors.contains(printed), "{name}: {errors}");
    }
    let errors = import_errors(&["reward_funcs=[accuracy_reward]", "reward_weights=[1.0, 2.0]"]);
    assert!(errors.contains("2 weights for 1 functions"), "{errors}");
}

/// Options of the generator go before the fields of their own, as there.
#[test]
fn options_of_the_generator() {
    let import = command(&[
        "temperature=1.0",
        "generation_kwargs={temperature: 0.7, stop_strings: ['</answer>'], max_new_tokens: 64, top_k: 20}",
    ]);
    let rollout = loaded(&import).rollout;
    assert_eq!((rollout.temperature, rollout.top_k, rollout.max_response_length), (0.7, 20, 64));
    assert_eq!(rollout.stop, ["</answer>"]);
    let errors = import_errors(&["generation_kwargs={num_beams: 4}"]);
    assert!(errors.contains("`num_beams` has nothing in the native engine"), "{errors}");
    // What vLLM understands beside them goes to it by its own name.
    let import = command(&["use_vllm=True", "generation_kwargs={presence_penalty: 0.5, top_k: 20}"]);
    let rollout = loaded(&import).rollout;
    assert_eq!(rollout.server_parameters.0.get("presence_penalty"), Some(&0.5.into()));
    assert_eq!(rollout.top_k, 20);
}

/// TRL validates on a split, by sampling as in training, at the interval of its log.
#[test]
fn validation_of_trl() {
    let import = command(&[
        "eval_strategy=steps",
        "temperature=0.8",
        "num_generations=4",
        "per_device_train_batch_size=4",
    ]);
    let config = loaded(&import);
    assert_eq!(
        (value_at(&config, "/validate/test_freq"), config.validate.n, config.validate.temperature),
        ("10".to_owned(), 4, 0.8)
    );
    assert!(!config.validate.before_train);
    assert_snapshot!(value_at(&config, "/data/val"), @r#"["PATH/TO/test.jsonl"]"#);
    let named = command(&["eval_strategy=steps", "eval_steps=20", "dataset_test_split=validation"]);
    assert_snapshot!(note_on(&named, "dataset_test_split"), @"dataset_test_split=validation -> data.val: PATH/TO/validation.jsonl (TRL validates on that split of the data set: write its rows to a file)");
    let errors = import_errors(&["dataset_train_split=train_sft"]);
    assert!(errors.contains("a file has no splits"), "{errors}");
    let several = converted(&[
        "model_name_or_path=m",
        "reward_funcs=accuracy_reward",
        "datasets=[{path: a.jsonl}, {path: b.jsonl, split: train}]",
    ]);
    assert_snapshot!(value_at(&loaded(&several), "/data/train"), @r#"["a.jsonl","b.jsonl"]"#);
}

/// The token of a hub is a secret that no message repeats.
#[test]
fn a_hub_token_is_not_shown() {
    let import = command(&["hub_token=hf_abcdef"]);
    assert!(!notes(&import).contains("hf_abcdef"), "{}", notes(&import));
}

/// A split that is called as its file is one.
#[test]
fn a_file_of_a_split_has_one_ending() {
    for (split, file) in [
        ("test", "PATH/TO/test.jsonl"),
        ("test.jsonl", "PATH/TO/test.jsonl"),
        ("held_out.parquet", "PATH/TO/held_out.parquet"),
        ("v1.2", "PATH/TO/v1.2.jsonl"),
    ] {
        let import = converted(&[
            "trl",
            "grpo",
            "--dataset_name",
            "train.jsonl",
            "--eval_strategy",
            "steps",
            "--dataset_test_split",
            split,
        ]);
        assert!(import.yaml.contains(&format!("val: {file} ")), "{split}: {}", import.yaml);
    }
}
