//! Commands of other systems as in their documentation: words, files and options.

use insta::assert_snapshot;
use tamis_config::source::{Source, SourceKind};
use tamis_config::{Config, Loaded};
use tamis_import::{load, load_sources};

use crate::{converted, import_errors, loaded, notes, split, value_at};

/// A folder with one file, and the file's path.
fn file(name: &str, text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join(name);
    std::fs::write(&path, text).expect("written");
    let path = path.to_str().expect("a path in UTF-8").to_owned();
    (folder, path)
}

/// The configuration that `train` and `check` load.
fn taken(files: &[&str], arguments: &[&str]) -> Loaded {
    let files: Vec<std::path::PathBuf> = files.iter().map(Into::into).collect();
    let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
    load(&files, &arguments).unwrap_or_else(|errors| panic!("{errors}"))
}

/// A file of EasyR1, with the sections of its example.
const EASYR1: &str = "
data:
  train_files: math.parquet
  val_files: test.parquet
  prompt_key: problem
  rollout_batch_size: 128
  max_prompt_length: 2048
  max_response_length: 2048
  format_prompt: ./math.jinja
algorithm: {adv_estimator: grpo, disable_kl: false, use_kl_loss: true, kl_penalty: low_var_kl, kl_coef: 1.0e-2}
worker:
  actor:
    global_batch_size: 64
    padding_free: true
    model: {model_path: ./model, enable_gradient_checkpointing: true, freeze_vision_tower: false}
    optim: {lr: 1.0e-6, weight_decay: 1.0e-2, strategy: adamw, lr_warmup_ratio: 0.0}
    fsdp: {enable_full_shard: true}
  rollout: {n: 5, top_p: 1.0, val_override_config: {temperature: 0.6, top_p: 0.95, n: 1}}
  reward: {reward_type: batch, reward_function: './reward.py:compute_score'}
trainer: {total_epochs: 15, max_steps: null, save_limit: 3, val_freq: 5, logger: [console, wandb]}
";

#[test]
fn a_command_of_easyr1_with_its_file() {
    let (_folder, path) = file("config.yaml", EASYR1);
    let config = format!("config={path}");
    // Typed values take precedence over the file, in any order.
    let words = [
        "python3",
        "-m",
        "verl.trainer.main",
        "data.max_response_length=512",
        &config,
        "worker.actor.optim.lr=1e-5",
        r#"worker.rollout.val_override_config={"n":16,"temperature":1.0,"top_p":0.7}"#,
        "trainer.save_limit=-1",
    ];
    let import = converted(&words);
    assert_eq!(import.remaining, []);
    let config = loaded(&import);
    assert_eq!((config.rollout.n, config.rollout.max_response_length), (5, 512));
    assert_eq!((config.validate.n, config.validate.temperature, config.validate.top_p), (16, 1.0, 0.7));
    assert_eq!(config.checkpoint.keep_last, None);
    assert_eq!(config.data.prompt_template.as_deref(), Some(std::path::Path::new("./math.jinja")));
    assert_snapshot!(config.data.prompt_format, @"chat");
    // The same without `import`: as a file, or in EasyR1's form.
    let rest: Vec<&str> =
        words.iter().copied().filter(|word| word.contains('=') && !word.starts_with("config=")).collect();
    let as_file = taken(&[&path], &rest);
    let values = |config: &Config| serde_json::to_value(config).unwrap();
    assert_eq!(values(&as_file.config), values(&config));
    let as_option = taken(&[], &[&rest[..], &[words[4]]].concat());
    assert_eq!(values(&as_option.config), values(&config));
    assert_eq!(as_file.origin("rollout.n").unwrap().to_string(), format!("{path}:18"));
}

/// Those systems take relative paths from the working directory of the command, also in their files. So do
/// `train` and `check`. `import` writes absolute paths, so that its output can be put anywhere. Other values
/// stay unchanged.
#[test]
fn paths_of_others_are_taken_from_where_the_command_is_started() {
    let there = tempfile::tempdir().expect("a temporary folder");
    std::fs::create_dir_all(there.path().join("models/mine")).expect("a folder");
    let base = there.path().to_str().expect("a path in UTF-8");
    let of = |name: &str, text: &str, arguments: &[&str]| {
        let (_folder, path) = file(name, text);
        let words: Vec<String> =
            [path.as_str()].iter().chain(arguments).map(|&word| word.to_owned()).collect();
        let direct = serde_json::to_value(&taken(&[&path], arguments).config).unwrap();
        let import = tamis_import::import(&words, there.path()).unwrap_or_else(|errors| panic!("{errors}"));
        let written = serde_json::to_value(loaded(&import)).unwrap();
        let at = |pointer: &'static str| {
            let value = |config: &serde_json::Value| config.pointer(pointer).unwrap().to_string();
            format!("{pointer}: {}, imported {}", value(&direct), value(&written).replace(base, "BASE"))
        };
        ["/model/path", "/data/train", "/data/val", "/data/prompt_template", "/reward/0/path", "/run/dir"]
            .into_iter()
            .filter(|pointer| direct.pointer(pointer).is_some_and(|value| !value.is_null()))
            .map(at)
            .collect::<Vec<_>>()
            .join("\n")
    };
    assert_snapshot!(of("config.yaml", EASYR1, &["data.val_files=data/x.jsonl"]), @r#"
/model/path: "./model", imported "BASE/model"
/data/train: ["math.parquet"], imported ["BASE/math.parquet"]
/data/val: ["data/x.jsonl"], imported ["BASE/data/x.jsonl"]
/data/prompt_template: "./math.jinja", imported "BASE/math.jinja"
/reward/0/path: "./reward.py", imported "BASE/reward.py"
/run/dir: "runs", imported "runs"
"#);
    let trl = "{model_name_or_path: ./models/mine, dataset_name: rows.jsonl, output_dir: out/run, reward_funcs: my.length, max_steps: 1}";
    assert_snapshot!(of("grpo.yaml", trl, &["eval_strategy=steps"]), @r#"
/model/path: "./models/mine", imported "BASE/models/mine"
/data/train: ["rows.jsonl"], imported ["BASE/rows.jsonl"]
/data/val: ["PATH/TO/test.jsonl"], imported ["PATH/TO/test.jsonl"]
/reward/0/path: "my.py", imported "BASE/my.py"
/run/dir: "out", imported "BASE/out"
"#);
    let verl = "actor_rollout_ref: {model: {path: Qwen/Qwen3-0.6B}}\ndata: {train_files: [a.parquet, ../b.parquet], val_files: /d/v.parquet}\n\
                custom_reward_function: {path: r/score.py}";
    assert_snapshot!(of("verl.yaml", verl, &[]), @r#"
/model/path: "hf://Qwen/Qwen3-0.6B", imported "hf://Qwen/Qwen3-0.6B"
/data/train: ["a.parquet","../b.parquet"], imported ["BASE/a.parquet","BASE/../b.parquet"]
/data/val: ["/d/v.parquet"], imported ["/d/v.parquet"]
/reward/0/path: "r/score.py", imported "BASE/r/score.py"
/run/dir: "runs", imported "runs"
"#);
}

/// `~/` is the user's home folder, as for their readers of data; a shell does not expand it after `key=`.
#[test]
fn the_home_folder_is_found() {
    let Some(home) = std::env::var("HOME").ok().filter(|home| !home.is_empty()) else { return };
    let words = ["actor_rollout_ref.model.path=m", "data.train_files=~/data/gsm8k/train.parquet"];
    let expected = serde_json::json!([format!("{home}/data/gsm8k/train.parquet")]).to_string();
    assert_eq!(value_at(&taken(&[], &words).config, "/data/train"), expected);
    assert_eq!(value_at(&loaded(&converted(&words)), "/data/train"), expected);
}

#[test]
fn a_command_of_trl_with_its_file() {
    let text = "
model_name_or_path: ./model
dataset_name: rows.jsonl
env: {WANDB_PROJECT: mine}
reward_funcs: [accuracy_reward]
num_generations: 4
max_steps: 100
learning_rate: 1.0e-5
lr_scheduler_type: cosine_with_min_lr
lr_scheduler_kwargs: {min_lr_rate: 0.1}
chat_template_kwargs: {enable_thinking: false}
bf16: true
";
    let (_folder, path) = file("grpo.yaml", text);
    let words = [
        "CUDA_VISIBLE_DEVICES=0",
        "trl",
        "grpo",
        "--config",
        &path,
        "--reward_funcs",
        "accuracy_reward",
        "my_rewards.length",
        "--reward-weights",
        "1.0",
        "0.5",
        "--no_shuffle_dataset",
        "--use_vllm",
        "--beta=0.04",
        "--max_grad_norm",
        "0",
    ];
    let import = converted(&words);
    assert_eq!(import.remaining, []);
    let config = loaded(&import);
    assert!(!config.data.shuffle);
    assert_eq!(config.train.optimizer.constants.max_grad_norm, None);
    assert_eq!((config.train.lr_schedule.min_ratio, config.train.total_steps), (0.1, Some(100)));
    assert_snapshot!(value_at(&config, "/data/chat_template_kwargs"), @r#"{"enable_thinking":false}"#);
    let rewards: Vec<(&str, f64)> =
        config.reward.iter().map(|reward| (reward.name.as_str(), reward.weight)).collect();
    assert_eq!(rewards, [("math_verify", 1.0), ("length", 0.5)]);
    assert_snapshot!(notes(&import).lines().find(|line| line.starts_with("reward_funcs")).unwrap(), @r#"reward_funcs=["accuracy_reward","my_rewards.length"] -> reward: [{kind: math_verify, weight: 1.0}, {name: length, kind: python, path: my_rewards.py, function: length, style: trl, weight: 0.5}] (the `python` of `math_verify` has to have that library (docs/rewards.md); `kind: math` needs none and judges otherwise; a module is looked for as a file from the folder that the command is started in)"#);
    assert!(notes(&import).contains("env.WANDB_PROJECT=mine has no effect"), "{}", notes(&import));

    // The launcher's options are about processes.
    let launched = converted(&split(
        "accelerate launch --num_processes 8 --config_file zero3.yaml \
        train_grpo.py --model_name_or_path m --num_generations 4",
    ));
    assert_eq!(loaded_rollouts(&launched.yaml), 4);
    assert!(!launched.yaml.contains("zero3"));
}

fn loaded_rollouts(yaml: &str) -> usize {
    let source = Source::new(SourceKind::File("imported.yaml".into()), format!("{yaml}\n"));
    let rest = ["data.train=t", "reward=[{kind: math}]"].map(str::to_owned);
    load_sources(&[source], &rest).unwrap_or_else(|errors| panic!("{errors}")).config.rollout.n
}

/// Over a configuration of ours, keys of other systems change what they name. Without one, they are a whole
/// command.
#[test]
fn keys_that_name_the_model_are_a_whole_command() {
    let words = ["model_name_or_path=m", "dataset_name=t", "reward_funcs=accuracy_reward", "max_steps=3"];
    let alone = taken(&[], &words);
    assert_eq!(
        serde_json::to_value(&alone.config).unwrap(),
        serde_json::to_value(loaded(&converted(&words))).unwrap()
    );
    assert_eq!((alone.config.run.seed, alone.config.data.train_batch_size), (42, 1));
    let (_folder, path) = file("ours.yaml", "run: {seed: 7}\nrollout: {n: 2}\n");
    let over = taken(&[&path], &words);
    assert_eq!((over.config.run.seed, over.config.data.train_batch_size), (7, 64));
}

/// A value that a run would refuse is refused with its argument, not passed through.
#[test]
fn values_are_checked_where_they_are_typed() {
    assert_snapshot!(import_errors(&["actor_rollout_ref.rollout.temperature=0"]), @"
error: `rollout.temperature` must be from 0.000001 to 1000000, got 0
  at command line, verl key: actor_rollout_ref.rollout.temperature=«0» [explain it]
");
    assert_snapshot!(import_errors(&["model_name_or_path=m", "--num_train_epochs", "0.5"]), @"
error: `num_train_epochs=0.5` of TRL cannot be followed: here epochs are whole: give max_steps, 0.5 times the prompts of the data, divided by the prompts of one step
  at command line, TRL key: num_train_epochs=«0.5»
  hint: see `tamis config explain num_train_epochs`
");
    assert_snapshot!(import_errors(&["worker.actor.optim.lr=-1", "worker.rollout.n=0"]), @"
error: `rollout.n` must be from 1 to 65536, got 0
  at command line, EasyR1 key: worker.rollout.n=«0» [explain it]
error: `train.optimizer.learning_rate` must be greater than 0, got -1
  at command line, EasyR1 key: worker.actor.optim.lr=«-1» [explain it]
");
}
