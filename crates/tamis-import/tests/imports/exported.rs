//! What an export writes of a configuration, what it lists as lost, and that the two are all of it.

use std::path::Path;

use serde_json::Value as Json;
use tamis_config::Config;
use tamis_config::preset::Preset;
use tamis_config::source::{Source, SourceKind};
use tamis_import::{Export, Owner, export, import, load_sources};

use super::loaded;

const BASE: &str = "
model: {path: some/model}
data: {train: t.parquet, val: v.parquet, train_batch_size: 32}
rollout: {n: 8, max_response_length: 2048}
train: {total_steps: 100}
reward: [{kind: math_verify}]
";

/// The base with other keys over it.
fn config(more: &str) -> Config {
    let files = [BASE, more].map(|text| Source::new(SourceKind::File("mine.yaml".into()), text.to_owned()));
    load_sources(&files, &[]).unwrap_or_else(|errors| panic!("{errors}\n{more}")).config
}

fn exported(owner: Owner, more: &str) -> Export {
    export(&config(more), owner)
}

fn value<'a>(exported: &'a Export, key: &str) -> Option<&'a str> {
    exported.settings.iter().find(|(own, _)| *own == key).map(|(_, value)| value.as_str())
}

fn assert_lost(exported: &Export, keys: &[&str]) {
    let lines = exported.lost_lines();
    for key in keys {
        assert!(lines.iter().any(|line| line.starts_with(&format!("{key}: "))), "{key} is not in {lines:#?}");
    }
}

fn assert_kept(exported: &Export, keys: &[&str]) {
    let lines = exported.lost_lines();
    for key in keys {
        assert!(!lines.iter().any(|line| line.starts_with(key)), "{key} is in {lines:#?}");
    }
}

#[test]
fn validation_goes_to_trl() {
    let made = exported(Owner::Trl, "validate: {test_freq: 20, n: 4, before_train: true, temperature: 0.0}");
    assert_eq!(value(&made, "eval_strategy"), Some("steps"));
    assert_eq!(value(&made, "eval_steps"), Some("20"));
    assert_eq!(value(&made, "num_generations_eval"), Some("4"));
    assert_eq!(value(&made, "eval_on_start"), Some("true"));
    // TRL evaluates at the temperature that it trains at.
    assert_lost(&made, &["validate.temperature"]);
    assert_kept(&made, &["validate.test_freq", "validate.n", "data.val"]);
    let script = made.script();
    assert!(script.contains("eval_dataset=load((\"parquet\", {\"data_files\": \"v.parquet\""), "{script}");
    // Whole groups in an evaluation batch, which TRL asks for.
    let odd = exported(Owner::Trl, "validate: {test_freq: 20, n: 3}").script();
    assert!(odd.contains("per_device_eval_batch_size=3,"), "{odd}");
    assert!(!script.contains("per_device_eval_batch_size"), "{script}");
}

#[test]
fn functions_with_names_that_tamis_has_are_renamed() {
    let arguments = [
        "reward_funcs=[mine.score, other.score, mine.reward]",
        "model_name_or_path=m",
        "dataset_name=d.jsonl",
    ];
    let arguments = arguments.map(str::to_owned);
    let imported = import(&arguments, Path::new("")).unwrap_or_else(|errors| panic!("{errors}"));
    let config = loaded(&imported);
    let names: Vec<&str> = config.reward.iter().map(|reward| reward.name.as_str()).collect();
    assert_eq!(names, ["score_reward", "score_reward_2", "reward_2"]);
    let made = export(&config, Owner::Trl);
    assert_eq!(value(&made, "reward_funcs"), Some("[mine.score, other.score, mine.reward]"));
    let script = made.script();
    assert!(script.contains("from mine import score\n"), "{script}");
    assert!(script.contains("from other import score as score_2\n"), "{script}");
    assert!(script.contains("reward_funcs=[score, score_2, reward]"), "{script}");
}

#[test]
fn loggers_of_the_other_system_are_kept() {
    let loggers = "run: {loggers: [jsonl, console, {kind: wandb, project: p}, tensorboard]}";
    let made = exported(Owner::Trl, loggers);
    assert_eq!(value(&made, "report_to"), Some("[wandb, tensorboard]"));
    assert_lost(&made, &["run.loggers[2].project"]);
    assert_kept(&made, &["run.loggers[3]", "run.loggers:"]);
    let made = exported(Owner::Verl, loggers);
    assert_eq!(value(&made, "trainer.logger"), Some("[console, wandb, tensorboard]"));
    // Their defaults are others than tamis's.
    let own = ["jsonl, console, tensorboard", "jsonl"].map(|own| format!("run: {{loggers: [{own}]}}"));
    let [trl, none] = own.clone().map(|loggers| exported(Owner::Trl, &loggers).script());
    assert!(trl.contains("report_to=[\"tensorboard\"]"), "{trl}");
    assert!(none.contains("report_to=[]"), "{none}");
    let [verl, none] = own.map(|loggers| exported(Owner::Verl, &loggers).script());
    assert!(verl.contains("'trainer.logger=[console,tensorboard]'"), "{verl}");
    assert!(none.contains("'trainer.logger=[]'"), "{none}");
}

#[test]
fn an_adapter_beside_vllm_has_its_batch_and_all_its_layers() {
    let made = exported(
        Owner::Trl,
        "
rollout: {backend: vllm, launch: {}}
learner: {backend: torch, lora: {rank: 8, alpha: 16, targets: null}}
train: {ppo_mini_batch_size: 16}
reward: [{kind: math_verify}]",
    );
    let number =
        |key: &str, default: u32| value(&made, key).map_or(default, |text| text.parse().expect("a number"));
    let update = number("per_device_train_batch_size", 8) * number("gradient_accumulation_steps", 1);
    assert_eq!((update, number("generation_batch_size", 0)), (16 * 8, 32 * 8), "{:?}", made.settings);
    assert_eq!(value(&made, "lora_target_modules"), Some("all-linear"));
    assert_eq!(value(&made, "use_vllm"), Some("True"));
    assert!(made.script().contains("target_modules=\"all-linear\""), "{}", made.script());
}

#[test]
fn a_kl_without_the_ratio_stays_without() {
    let kl = "objective: {kl: {in: loss, coefficient: 0.04, estimator: k3, bias_corrected: false}}";
    let made = exported(Owner::Trl, kl);
    assert_eq!(value(&made, "beta"), Some("0.04"));
    assert_eq!(value(&made, "use_bias_correction_kl").map(str::to_lowercase), Some("false".to_owned()));
    assert_kept(&made, &["objective.kl"]);
}

#[test]
fn a_group_of_one_is_no_group_of_trl() {
    let made = exported(Owner::Trl, "preset: reinforce_plus_plus\nrollout: {n: 1}");
    assert_eq!(value(&made, "num_generations"), Some("2"));
    let lines = made.lost_lines();
    assert!(
        lines.contains(&"rollout.n: 1 (in TRL: 2, whose groups have two members or more)".to_owned()),
        "{lines:#?}"
    );
    let arguments = ["num_generations=1".to_owned(), "model_name_or_path=m".to_owned()];
    let refused = import(&arguments, Path::new("")).expect_err("TRL refuses it too").to_string();
    assert!(refused.contains("`num_generations=1` of TRL cannot be followed"), "{refused}");
}

#[test]
fn a_preset_and_the_sizes_of_its_rewards_are_not_lost() {
    let made = exported(Owner::Trl, "preset: dapo\nreward: [{kind: math_verify, weight: 2}]");
    assert_kept(&made, &["preset", "reward", "objective.aggregation", "objective.loss.clip"]);
    let script = made.script();
    assert!(
        script.contains("reward_funcs=[accuracy_reward, get_soft_overlong_punishment(max_completion_len=2048, soft_punish_cache=409)]"),
        "{script}"
    );
    assert!(script.contains("reward_weights=[2.0, 1.0]"), "{script}");
    // One that TRL does not have keeps its place.
    let made = exported(Owner::Trl, "preset: dapo\nreward: [{kind: gsm8k, name: sums, weight: 2}]");
    assert_lost(&made, &["reward[0]"]);
    let script = made.script();
    assert!(
        script.contains("\ndef sums(completions, **columns):\n    raise NotImplementedError("),
        "{script}"
    );
    assert!(script.contains("reward_funcs=[sums, get_soft_overlong_punishment("), "{script}");
}

#[test]
fn arguments_of_a_function_go_to_verl() {
    let made = exported(
        Owner::Verl,
        "
reward:
  - {kind: soft_overlong, form: verl, buffer: 512}
  - {kind: python, path: mine.py, function: score, style: verl, kwargs: {scale: 2, mode: 'a b', deep: {x: [1]}}}",
    );
    let script = made.script();
    assert!(
        script.contains(
            "'+reward.custom_reward_function.reward_kwargs={scale:2,mode:'\\''a b'\\'',deep:{x:[1]}}'"
        ),
        "{script}"
    );
    assert_kept(&made, &["reward"]);
    // Only this manager reads the buffer, and wants the length.
    assert_eq!(value(&made, "reward.reward_manager.name"), Some("dapo"));
    assert_eq!(value(&made, "reward.reward_kwargs.max_resp_len"), Some("2048"));
}

/// The file that a script for verl writes for a function which names columns.
#[test]
fn a_function_that_names_columns_is_called_by_a_file_of_the_script() {
    let reward =
        "\nreward:\n  - {kind: python, path: mine.py, function: right, style: simple, kwargs: {scale: 2}}";
    let made = exported(Owner::Verl, reward);
    assert_lost(&made, &["reward[0].style"]);
    let script = made.script();
    assert!(script.contains("style: simple (in verl: verl, called with data_source,"), "{script}");
    assert!(script.contains(" reward.custom_reward_function.path=mine_verl.py"), "{script}");
    assert!(!script.contains("custom_reward_function.name"), "{script}");
    let (_, rest) = script.split_once("cat > mine_verl.py <<'PYTHON'\n").expect("a file");
    let (file, _) = rest.split_once("PYTHON\n").expect("its end");
    let folder = tempfile::tempdir().expect("a folder");
    let own = "def right(completion, answer, level=0, scale=1):\n    return {'right': scale * float(completion == answer), 'easy': level}\n";
    let call = "import mine_verl\nprint(mine_verl.compute_score('s', '7', '7', {'level': 3}, scale=2))\n";
    for (name, text) in [("mine.py", own), ("mine_verl.py", file), ("call.py", call)] {
        std::fs::write(folder.path().join(name), text).expect("written");
    }
    let Ok(ran) = std::process::Command::new("python3").arg("call.py").current_dir(folder.path()).output()
    else {
        println!("skipped: no python3");
        return;
    };
    let printed = String::from_utf8_lossy(&ran.stdout);
    assert_eq!(
        printed.trim(),
        "{'right': 2.0, 'easy': 3, 'score': 5.0}",
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    // A function of verl's own parameters needs none.
    let plain = exported(Owner::Verl, &reward.replace("simple", "verl")).script();
    assert!(!plain.contains("PYTHON") && plain.contains("custom_reward_function.name=right"), "{plain}");
}

#[test]
fn rejections_that_verl_lacks_are_listed() {
    let made = exported(
        Owner::Verl,
        "
objective:
  correction:
    rejections:
      - {statistic: token_tv, threshold: '0.1'}
      - {statistic: seq_mean_k3, threshold: '0.02'}
      - {statistic: seq_mean_binary_kl, threshold: '0.05'}",
    );
    assert_eq!(value(&made, "algorithm.rollout_correction.rollout_rs"), Some("seq_mean_k3"));
    assert_eq!(value(&made, "algorithm.rollout_correction.rollout_rs_threshold"), Some("0.02"));
    assert_lost(&made, &["objective.correction.rejections[0]", "objective.correction.rejections[2]"]);
    assert_kept(&made, &["objective.correction.rejections[1]"]);
}

/// The leaves of a configuration by their paths. A list is one leaf.
fn leaves(path: &str, value: &Json, found: &mut Vec<(String, String)>) {
    match value {
        Json::Object(entries) => {
            for (name, value) in entries {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                leaves(&path, value, found);
            }
        }
        other => found.push((path.to_owned(), other.to_string())),
    }
}

fn leaves_of(config: &Config) -> Vec<(String, String)> {
    let mut found = Vec::new();
    leaves("", &serde_json::to_value(config).expect("a configuration is JSON"), &mut found);
    found
}

/// Where a script has what a command of TRL cannot have, or what a size follows.
const ELSEWHERE: [&str; 8] = [
    "preset",
    "data.train",
    "data.val",
    "data.gen_batch_size",
    "train.ppo_mini_batch_size",
    "train.micro_batch_size",
    "train.micro_batch_tokens",
    "run.loggers",
];

/// Every preset, as every system's command, and back: what then differs is what the export lists, and what it
/// lists differs.
#[test]
fn what_differs_after_the_way_back_is_what_is_listed() {
    assert_differences_are_listed(&[Preset::Dapo]);
}

#[test]
#[ignore = "long: .ci/all"]
fn what_differs_after_the_way_back_is_what_is_listed_for_every_preset() {
    assert_differences_are_listed(Preset::ALL);
}

fn assert_differences_are_listed(presets: &[Preset]) {
    let mut wrong = Vec::new();
    for &preset in presets {
        let n = if preset.as_str() == "remax" { 1 } else { 8 };
        let config = config(&format!(
            "preset: {preset}\nrollout: {{n: {n}}}\nreward: [{{kind: math_verify}}]\nvalidate: {{test_freq: 5}}",
            preset = preset.as_str()
        ));
        for owner in [Owner::Trl, Owner::Verl] {
            let made = export(&config, owner);
            let again = import(&made.arguments(), Path::new(""))
                .unwrap_or_else(|errors| panic!("{preset:?} {errors}"));
            let source = Source::new(SourceKind::File("imported.yaml".into()), again.yaml.clone());
            let again = tamis_import::load_sources_to_show(&[source], &[])
                .unwrap_or_else(|errors| panic!("{errors}"));
            let (ours, theirs) = (leaves_of(&config), leaves_of(&again.config));
            let differs = |key: &str| {
                let of = |leaves: &[(String, String)]| -> Vec<String> {
                    let is_in = |path: &str| path == key || path.starts_with(&format!("{key}."));
                    leaves.iter().filter(|(path, _)| is_in(path)).map(|(_, value)| value.clone()).collect()
                };
                of(&ours) != of(&theirs)
            };
            let lost: Vec<&str> =
                made.lost.iter().map(|lost| lost.key.split('[').next().unwrap_or_default()).collect();
            let is_listed = |path: &str| {
                lost.iter().any(|key| {
                    path == *key
                        || path.starts_with(&format!("{key}."))
                        || key.starts_with(&format!("{path}."))
                })
            };
            for (path, _) in ours.iter().chain(&theirs) {
                let excused = ELSEWHERE.contains(&path.as_str()) || owner == Owner::Trl && path == "reward";
                if differs(path) && !is_listed(path) && !excused {
                    wrong.push(format!("{} as {owner}: {path} differs, and is not listed", preset.as_str()));
                }
            }
            for key in lost {
                if !differs(key) {
                    wrong.push(format!("{} as {owner}: {key} is listed, and is the same", preset.as_str()));
                }
            }
            // Every line that is printed is about a key that was lost, or a sentence of its own.
            let listed = made.lost_lines();
            let silent = made.lost.iter().filter(|lost| {
                let is_listed = listed.iter().any(|own| own.contains(&lost.key));
                let is_elsewhere =
                    owner == Owner::Trl && ELSEWHERE.iter().any(|key| lost.key.starts_with(key));
                !is_listed && !is_elsewhere
            });
            wrong.extend(
                silent.map(|lost| {
                    format!("{} as {owner}: {} is lost without a line", preset.as_str(), lost.key)
                }),
            );
        }
    }
    wrong.sort();
    wrong.dedup();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
