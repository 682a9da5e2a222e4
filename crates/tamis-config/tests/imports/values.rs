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

/// What goes to a function, a template or an engine of the user's has the types that hydra gives it, `OmegaConf` in a
/// file and at EasyR1.
#[test]
fn free_arguments_have_the_values_of_their_owner() {
    let function = "reward.custom_reward_function.path=f.py";
    let typed = ["a=None", "b=010", "c=1_0", "d=", "e=null", "f='7'", "g=[None,1_0]", "h=yes"]
        .map(|pair| format!("+reward.custom_reward_function.reward_kwargs.{pair}"));
    let arguments: Vec<&str> = [function].into_iter().chain(typed.iter().map(String::as_str)).collect();
    let expected = r#"{"a":"None","b":"010","c":10,"d":"","e":null,"f":"7","g":["None",10],"h":"yes"}"#;
    both("reward.0.kwargs", &arguments, expected);
    both(
        "data.chat_template_kwargs",
        &[
            "+data.apply_chat_template_kwargs.a=None",
            "+data.apply_chat_template_kwargs.b=010",
            "+data.apply_chat_template_kwargs.c=null",
            "+data.apply_chat_template_kwargs.d='8'",
        ],
        r#"{"a":"None","b":"010","c":null,"d":"8"}"#,
    );
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("verl.yaml");
    let text = "actor_rollout_ref: {model: {path: m}}\ndata: {train_files: a.jsonl}\nreward:\n  custom_reward_function:\n    \
        path: f.py\n    reward_kwargs: {a: None, b: 010, c: 1_0, d: , h: yes}\n";
    std::fs::write(&path, text).expect("written");
    let config = loaded(&converted(&[path.to_str().expect("a path")]));
    let kwargs = serde_json::to_value(&config.reward).expect("JSON")[0]["kwargs"].to_string();
    assert_eq!(kwargs, r#"{"a":"None","b":8,"c":10,"d":null,"h":true}"#);
    // A key of ours knows the type that it wants.
    both("rollout.n", &["actor_rollout_ref.rollout.n='8'"], "8");
}

/// What a filter looks at does not depend on the command that reads the keys.
#[test]
fn a_filter_has_one_metric() {
    let enable = "algorithm.filter_groups.enable=True";
    both("filter.metric", &[enable], r#""seq_reward""#);
    both("filter.metric", &[enable, "algorithm.filter_groups.metric=reward"], r#""seq_reward""#);
    both("filter.metric", &[enable, "algorithm.filter_groups.metric=acc"], r#""acc""#);
    both("filter.metric", &[enable, "algorithm.filter_groups.metric=null"], r#""acc""#);
}
