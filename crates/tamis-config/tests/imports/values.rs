//! Values as YAML, JSON and Hydra write them, in keys of other systems: `train` and `check`, which load, and
//! `import` take them alike.

use tamis_config::{LoggerKind, load_sources};

use crate::{converted, loaded};

/// Both ways must give the same value of one of ours.
#[track_caller]
fn both(ours: &str, arguments: &[&str], expected: &str) {
    let base = ["data.train_files=a.jsonl", "actor_rollout_ref.model.path=m", "trainer.total_epochs=1"];
    let arguments: Vec<&str> = base.iter().chain(arguments).copied().collect();
    let value = |config: tamis_config::Config| {
        let config = serde_json::to_value(config).expect("a value");
        ours.split('.').fold(config, |value, part| match part.parse::<usize>() {
            Ok(index) => value[index].clone(),
            Err(_) => value[part].clone(),
        })
    };
    assert_eq!(value(loaded(&converted(&arguments))).to_string(), expected, "import: {arguments:?}");
    // What has no function of verl's own gets one of ours, which keys of verl then add to.
    let list = "reward=[{kind: exact}]".to_owned();
    let own = (!arguments.iter().any(|argument| argument.contains("custom_reward"))).then_some(list);
    let owned: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).chain(own).collect();
    let found = load_sources(&[], &owned).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(value(found.config).to_string(), expected, "train and check: {arguments:?}");
}

#[test]
fn lists() {
    for logger in [
        r#"trainer.logger=["console","wandb"]"#,
        "trainer.logger=['console','wandb']",
        "trainer.logger=[console,wandb]",
        r#"trainer.logger='["console","wandb"]'"#,
        r#"trainer.logger="['console', 'wandb']""#,
    ] {
        both("run.loggers", &[logger], r#"["console","wandb","jsonl"]"#);
    }
    both("run.loggers", &["trainer.logger=console"], r#"["console","jsonl"]"#);
    // The loggers of others sort runs by the project.
    let base = ["data.train_files=a.jsonl", "actor_rollout_ref.model.path=m", "trainer.total_epochs=1"];
    let named = ["trainer.logger=[mlflow,wandb,wandb,file]", "trainer.project_name=sieve"];
    let loggers = loaded(&converted(&[&base[..], &named[..]].concat())).run.loggers;
    let [LoggerKind::Mlflow(mlflow), LoggerKind::Wandb(wandb), LoggerKind::Jsonl(_)] = loggers.as_slice()
    else {
        panic!("{loggers:?}")
    };
    assert_eq!((mlflow.experiment.as_deref(), wandb.project.as_deref()), (Some("sieve"), Some("sieve")));
    for files in [
        "data.train_files=['a','b']",
        r#"data.train_files=["a","b"]"#,
        r#"data.train_files="['a','b']""#,
        "data.train_files=[a,b]",
        "data.train_files=[ a , b ]",
    ] {
        both("data.train", &[files], r#"["a","b"]"#);
    }
    both("train.optimizer.betas", &["actor_rollout_ref.actor.optim.betas=[0.9, 0.95]"], "[0.9,0.95]");
}

#[test]
fn mappings() {
    for kwargs in [
        "data.apply_chat_template_kwargs={enable_thinking: false}",
        "data.apply_chat_template_kwargs={enable_thinking:False}",
        r#"data.apply_chat_template_kwargs={"enable_thinking":false}"#,
        r#"data.apply_chat_template_kwargs='{"enable_thinking": false}'"#,
        "+data.apply_chat_template_kwargs.enable_thinking=False",
    ] {
        both("data.chat_template_kwargs", &[kwargs], r#"{"enable_thinking":false}"#);
    }
    for overlong in [
        "+reward_model.reward_kwargs.overlong_buffer_cfg={enable: True, len: 128, penalty_factor: 0.5, log: False}",
        "+reward_model.reward_kwargs.overlong_buffer_cfg={enable:True,len:128,penalty_factor:0.5,log:False}",
        "reward.reward_kwargs={overlong_buffer_cfg: {enable: true, len: 128, penalty_factor: 0.5}}",
    ] {
        both("reward.1.buffer", &[overlong], "128");
        both("reward.1.penalty_factor", &[overlong], "0.5");
    }
    for filter in [
        "algorithm.filter_groups={enable: true, metric: acc}",
        "algorithm={filter_groups:{enable:True,metric:acc}}",
    ] {
        both("filter.metric", &[filter], r#""acc""#);
    }
    let function = "custom_reward_function.path=score.py";
    for kwargs in [
        "custom_reward_function.reward_kwargs={scale: 2, words: [a, b]}",
        "custom_reward_function.reward_kwargs={scale:2,words:[a,b]}",
    ] {
        both("reward.0.kwargs", &[function, kwargs], r#"{"scale":2,"words":["a","b"]}"#);
    }
    both(
        "validate.n",
        &["actor_rollout_ref.rollout.val_kwargs={n: 2, do_sample: True, temperature: 1.0}"],
        "2",
    );
}

#[test]
fn scalars() {
    for n in [
        "actor_rollout_ref.rollout.n=4",
        "actor_rollout_ref.rollout.n='4'",
        r#"actor_rollout_ref.rollout.n="4""#,
    ] {
        both("rollout.n", &[n], "4");
    }
    for shuffle in ["data.shuffle=False", "data.shuffle='False'", "data.shuffle=false"] {
        both("data.shuffle", &[shuffle], "false");
    }
    both("rollout.n", &["actor_rollout_ref.rollout.n=${oc.select:algorithm.nothing,4}"], "4");
    both("run.name", &["trainer.experiment_name='2024'"], r#""2024""#);
}
