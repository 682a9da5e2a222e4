//! Values of another type or outside their range.

use insta::assert_snapshot;

use crate::show_errors;

#[test]
fn types_and_values() {
    assert_snapshot!([
        show_errors("rollout: {n: 2.5}", &[]),
        show_errors("rollout: 3", &[]),
        show_errors("run: {loggers: console}", &[]),
        show_errors("data: {shuffle: maybe}", &[]),
        show_errors("model: {memory_limit: 4 parsecs}", &[]),
        show_errors("rollout: {temperature: .nan}", &[]),
        show_errors("train: {optimizer: {betas: [0.9]}}", &[]),
        show_errors("data: {overlong_prompts: truncate}", &[]),
        show_errors("schedule: {on_empty_round: 'retry:0'}", &[]),
        show_errors("data: {train: {a: 1}}", &[]),
        show_errors("validate: {test_freq: often}", &[]),
        show_errors("run: {name: ''}", &[]),
        show_errors("preset: sft", &[]),
    ].join("\n"), @r#"
    error: `rollout.n` must be a whole number, not the number 2.5
      at run.yaml:1: rollout: {n: «2.5»} [explain it]
    error: `rollout` must be a section, not the number 3
      at run.yaml:1: rollout: «3» [explain it]
    error: `run.loggers` must be a list, each one of console, jsonl, tensorboard, wandb, mlflow, trackio, prometheus, otlp, alone or as the `kind` of a section, not the text "console"
      at run.yaml:1: run: {loggers: «console»}
      hint: write [console]
    error: `data.shuffle` must be true or false, not the text "maybe"
      at run.yaml:1: data: {shuffle: «maybe»} [explain it]
    error: `model.memory_limit` must be a number of bytes, with a unit if wanted (512MiB, 8GiB, 1GB) or null, not the text "4 parsecs"
      at run.yaml:1: model: {memory_limit: «4 parsecs»} [explain it]
    error: `rollout.temperature` must be a number, not the text ".nan"
      at run.yaml:1: rollout: {temperature: «.nan»} [explain it]
    error: `train.optimizer.betas` must be a list of 2, each a number, not a list of 1
      at run.yaml:1: train: {optimizer: {betas: «[0.9]»}} [explain it]
    error: `data.overlong_prompts` cannot be `truncate`: it is one of error, drop, left, right, middle
      at run.yaml:1: data: {overlong_prompts: «truncate»} [explain it]
    error: `schedule.on_empty_round` must be a text: retry, retry:N, skip or error, not the text "retry:0"
      at run.yaml:1: schedule: {on_empty_round: «'retry:0'»} [explain it]
    error: `data.train` must be a path or the name of a data set on a hub or a list of such, not a mapping
      at run.yaml:1: data: {train: «{a: 1}»} [explain it]
    error: `validate.test_freq` must be a whole number of steps (0 or negative: never), not the text "often"
      at run.yaml:1: validate: {test_freq: «often»} [explain it]
    error: `run.name` must be non-empty, got ""
      at run.yaml:1: run: {name: «''»} [explain it]
    error: `preset` cannot be `sft`: it is one of grpo, dapo, dapo_paper, dr_grpo, rloo, reinforce_plus_plus, reinforce_plus_plus_baseline, flash_reinforce, remax, opo, gpg, bnpo, gspo, gmpo, cispo, sapo, ppo
      at run.yaml:1: preset: «sft»
      hint: `sft` is a loss of supervised fine-tuning (`sft.data`) here: `tamis explain sft`
    "#);
}

/// Absurdly large whole numbers are accepted or refused, alone and together, at once and without a panic.
#[test]
fn numbers_beyond_reason() {
    let integers: Vec<&str> = tamis_config::table::keys()
        .iter()
        .filter(|entry| {
            let shape = (entry.spec.shape)().describe();
            shape.starts_with("a whole number") && !entry.path.contains(['[', '*'])
        })
        .map(|entry| entry.path.as_str())
        .collect();
    assert!(integers.len() > 30, "{integers:?}");
    for huge in ["18446744073709551615", "1000000000000007", "4294967296"] {
        let all: Vec<String> = integers.iter().map(|key| format!("{key}={huge}")).collect();
        for one in &all {
            let _ = show_errors("filter: {}\nmodel: {init: {}}", &[one]);
            // An even number of heads with odd sizes.
            let _ = show_errors(
                "filter: {kind: within_group, k: 2}\nschedule: {refill: false}",
                &[one, "rollout.n=3"],
            );
        }
        let together: Vec<&str> = all.iter().map(String::as_str).collect();
        let _ = show_errors("filter: {kind: top_k, k: 2}\nmodel: {init: {}}", &together);
    }
    let _ = show_errors(
        "",
        &["data.train_batch_size=1000000000000000", "train.ppo_mini_batch_size=900000000000000"],
    );
}

#[test]
fn a_stop_text_is_not_empty() {
    assert_snapshot!(show_errors("rollout: {stop: [a, '']}", &[]), @r#"
error: `rollout.stop` contains an empty text, which would end every completion at once
  at run.yaml:1: rollout: {stop: «[a, '']»}
  hint: remove it from `rollout.stop`
"#);
}
