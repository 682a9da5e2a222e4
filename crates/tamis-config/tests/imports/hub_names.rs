//! Names on a hub, as the other systems write them.

use std::path::Path;

use insta::assert_snapshot;
use tamis_config::{Config, import};

use crate::{converted, loaded};

/// Model and data of a configuration as they are written into a run's `config.yaml`.
fn named(config: &Config) -> String {
    let json = serde_json::to_value(config).expect("a configuration is JSON");
    ["/model/path", "/data/train", "/data/val"]
        .map(|key| json.pointer(key).expect("the key").to_string())
        .join(" ")
}

fn becomes(arguments: &[&str]) -> String {
    named(&loaded(&converted(arguments)))
}

fn refused(arguments: &[&str]) -> String {
    let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
    let errors = import(&arguments, Path::new("")).expect_err("refused").to_string();
    errors.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn trl_names_a_configuration_and_splits() {
    let of = |more: &[&str]| {
        let model = ["model_name_or_path=Qwen/Qwen3-0.6B", "max_steps=1", "reward_funcs=accuracy_reward"];
        becomes(&[&model[..], more].concat())
    };
    let gsm8k = ["dataset_name=openai/gsm8k", "dataset_config=main"];
    assert_snapshot!(of(&[&gsm8k[..], &["eval_strategy=steps"]].concat()), @r#""hf://Qwen/Qwen3-0.6B" ["hf://openai/gsm8k:main/train"] ["hf://openai/gsm8k:main/test"]"#);
    assert_snapshot!(of(&[&gsm8k[..], &["dataset_train_split=train_sft"]].concat()), @r#""hf://Qwen/Qwen3-0.6B" ["hf://openai/gsm8k:main/train_sft"] []"#);
    assert_snapshot!(of(&["dataset_name=trl-lib/math", "eval_strategy=steps", "dataset_test_split=dev"]), @r#""hf://Qwen/Qwen3-0.6B" ["hf://trl-lib/math:train"] ["hf://trl-lib/math:dev"]"#);
    assert_snapshot!(of(&["dataset_name=a/b", "model_revision=v1"]), @r#""hf://Qwen/Qwen3-0.6B@v1" ["hf://a/b:train"] []"#);
    assert_snapshot!(of(&["datasets=[{path: a/b, name: c, split: d}, {path: x.jsonl}]"]), @r#""hf://Qwen/Qwen3-0.6B" ["hf://a/b:c/d","x.jsonl"] []"#);
    let file = ["model_name_or_path=./m", "dataset_name=x.jsonl", "max_steps=1"];
    assert_snapshot!(refused(&[&file[..], &["dataset_config=main"]].concat()), @"error: `dataset_config=main` of TRL cannot be followed: a file has no configurations: give the file of that one in dataset_name");
    assert_snapshot!(refused(&[&file[..], &["dataset_train_split=dev"]].concat()), @"error: `dataset_train_split=dev` of TRL cannot be followed: a file has no splits: write the rows of that one to a file of its own and name it in dataset_name");
    assert_snapshot!(refused(&[&file[..], &["model_revision=v1"]].concat()), @"error: `model_revision=v1` of TRL cannot be followed: a folder has no revisions: name the folder of that one");
    assert_snapshot!(refused(&["model_name_or_path=./m", "max_steps=1", "datasets=[{path: x.jsonl, name: c}]"]), @r#"error: `datasets=[{"path":"x.jsonl","name":"c"}]` of TRL cannot be followed: files have no configurations and splits, and nothing has columns and shares: give each one as `path` alone, one on a hub with its `name` and `split`"#);
}

#[test]
fn easyr1_writes_a_split_after_an_at() {
    let data = ["data.train_files=hiyouga/math12k@train", "data.val_files=hiyouga/math12k@test"];
    assert_snapshot!(
        becomes(&[&data[..], &["worker.actor.model.model_path=Qwen/Qwen2.5-7B-Instruct", "trainer.max_steps=1", "reward=[{kind: math}]"]].concat()),
        @r#""hf://Qwen/Qwen2.5-7B-Instruct" ["hf://hiyouga/math12k:train"] ["hf://hiyouga/math12k:test"]"#
    );
    assert_snapshot!(
        becomes(&["data.train_files=hiyouga/math12k", "worker.actor.model.model_path=m", "trainer.max_steps=1", "reward=[{kind: math}]"]),
        @r#""m" ["hf://hiyouga/math12k:train"] []"#
    );
}

#[test]
fn verl_names_models() {
    assert_snapshot!(
        becomes(&["data.train_files=[/d/a.parquet]", "data.val_files=/d/b.parquet", "actor_rollout_ref.model.path=Qwen/Qwen3-8B"]),
        @r#""hf://Qwen/Qwen3-8B" ["/d/a.parquet"] ["/d/b.parquet"]"#
    );
}
