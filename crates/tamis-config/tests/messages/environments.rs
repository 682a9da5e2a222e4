//! Environments: settings that nothing reads, warm starts with nothing to imitate, and lengths.

use insta::assert_snapshot;

use crate::{load, raw};

/// The warnings and errors of these lines in a configuration that is sound but for them.
fn show(lines: &str, arguments: &[&str]) -> String {
    let base = ["model.path=m", "train.total_steps=10", "reward=[{kind: environment}]"];
    let arguments: Vec<&str> = base.iter().chain(arguments).copied().collect();
    raw(lines, &arguments)
}

const PROGRAM: &str = "
data: {train: tasks.jsonl}
environment: {kind: program, argv: [./agent], ";

#[test]
fn words_of_what_has_its_own() {
    let words = "prompting: {think: false, max_actions: 4, max_turns: 3}}";
    assert_snapshot!(show(&format!("{PROGRAM}{words}"), &[]), @"");
    // Its turns are the default of its length, and nothing else.
    assert_snapshot!(show(&format!("{PROGRAM}max_length: 900, {words}"), &[]), @"");
    // A default that is written out asks for nothing.
    let default = "prompting: {think: true, max_actions: 10}}";
    assert_eq!(show(&format!("{PROGRAM}{default}"), &[]), "");
    let elsewhere = "
data: {task: environment}
environment: {kind: python, path: game.py:Game, expert_prob: 0.9, prompting: {max_tokens: 50, max_turns: 3}}
warm_start: {steps: 10}
";
    assert_snapshot!(show(elsewhere, &[]), @"");
    let tools = "
data: {train: tasks.jsonl}
environment: {kind: tools, interpreter: true, prompting: {instruction: Think., max_turns: 3}}
";
    assert_snapshot!(show(tools, &[]), @"");
}

#[test]
fn words_of_a_game_that_speaks_plainly() {
    let several = "
data: {task: environment}
environment: {kind: bandit, style: plain, expert_prob: 0.9, prompting: {max_turns: 1, format_penalty: -1}}
more_environments:
- {kind: frozen_lake, style: plain, prompting: {show_reward: false, think: true}}
";
    assert_snapshot!(show(several, &[]), @"");
    let spoken = several.replace(", style: plain", "");
    assert_eq!(show(&spoken, &["~environment.expert_prob"]), "");
}

#[test]
fn a_warm_start_needs_something_to_imitate() {
    let none = "
data: {task: environment}
environment: {kind: gymnasium, id: FrozenLake-v1}
warm_start: {steps: 5}
";
    assert_snapshot!(show(none, &[]), @"");
    let one = "more_environments=[{kind: frozen_lake}]";
    assert_snapshot!(show(none, &[one]), @"");
    assert_eq!(show(none, &[one, "environment.train_size=0"]), "");
    assert_eq!(show(none, &["environment={kind: frozen_lake}"]), "");
}

/// Each environment has its own limit; what has one for all takes the largest, and a message names whose that is.
#[test]
fn lengths_are_of_each_environment() {
    let several = "
data: {task: environment, max_prompt_length: 100}
environment: {kind: bandit, max_length: 40}
more_environments: [{kind: frozen_lake, max_length: 70}, {kind: sudoku, max_length: 60}]
";
    let config = load(several, &["model.path=m", "train.total_steps=10"]).config;
    let lengths: Vec<usize> =
        config.environments().map(|environment| config.max_episode_length(environment)).collect();
    assert_eq!((lengths, config.max_completion_length()), (vec![40, 70, 60], 70));
    assert_eq!(config.text_length_key(), "more_environments[0].max_length");
    let small = ["~model.path", "model.init.max_position_embeddings=150"];
    assert_snapshot!(show(several, &small), @"");
    // Where a window of turns is seen, the longest window counts, and not the turns of the first environment.
    let windows = "
data: {task: environment, max_prompt_length: 100}
rollout: {max_response_length: 20}
environment: {kind: bandit, context: single_turn, prompting: {max_turns: 1}}
more_environments: [{kind: frozen_lake, context: single_turn, prompting: {max_turns: 4}}]
";
    let config = load(windows, &["model.path=m", "train.total_steps=10"]).config;
    assert_eq!((config.max_completion_length(), config.max_text_length()), (480, 480));
    let one = ["environment.max_context_window=1", "more_environments.0.max_context_window=1"];
    let config = load(windows, &[&["model.path=m", "train.total_steps=10"], &one[..]].concat()).config;
    let texts = config.environments().map(|environment| config.max_episode_text_length(environment));
    assert_eq!((config.max_completion_length(), texts.collect::<Vec<_>>()), (480, vec![120, 120]));
}
