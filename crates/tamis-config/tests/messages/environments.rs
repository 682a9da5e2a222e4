//! Environments: settings that nothing reads, warm starts with nothing to imitate, and lengths.

use crate::{load, raw};

/// The messages about these lines in an otherwise sound configuration, without places and fixes.
fn show(lines: &str, arguments: &[&str]) -> Vec<String> {
    let base = ["model.path=m", "train.total_steps=10", "reward=[{kind: environment}]"];
    let arguments: Vec<&str> = base.iter().chain(arguments).copied().collect();
    let told = raw(lines, &arguments);
    let is_first = |line: &&str| line.starts_with("warning: ") || line.starts_with("error: ");
    let mut firsts: Vec<String> = told.lines().filter(is_first).map(str::to_owned).collect();
    firsts.sort_unstable();
    firsts
}

const PROGRAM: &str = "
data: {train: tasks.jsonl}
environment: {kind: program, argv: [./agent], ";

#[test]
fn words_of_what_has_its_own() {
    let words = "prompting: {think: false, max_actions: 4, max_turns: 3}}";
    let unread = |name: &str| {
        format!(
            "warning: `environment.prompting.{name}` has no effect: `environment.kind` program writes its own prompts"
        )
    };
    let told = show(&format!("{PROGRAM}{words}"), &[]);
    assert_eq!(told, [unread("max_actions"), unread("think")]);
    // Its turns are the default of its length, and nothing else.
    let turns = "warning: `environment.prompting.max_turns` has no effect: `environment.max_length` is set, and a program itself decides \
        when an episode ends";
    let told = show(&format!("{PROGRAM}max_length: 900, {words}"), &[]);
    assert_eq!(told, [unread("max_actions"), turns.to_owned(), unread("think")]);
    // A written default has no effect.
    let default = "prompting: {think: true, max_actions: 10}}";
    assert!(show(&format!("{PROGRAM}{default}"), &[]).is_empty());
    let elsewhere = "
data: {task: environment}
environment: {kind: python, path: game.py:Game, expert_prob: 0.9, prompting: {max_tokens: 50, max_turns: 3}}
sft: {steps: 10}
";
    assert_eq!(
        show(elsewhere, &[]),
        [
            "warning: `environment.expert_prob` has no effect: no script plays `environment.kind` python",
            "warning: `environment.prompting.max_tokens` has no effect: `environment.kind` python writes its own prompts",
        ]
    );
    let tools = "
data: {train: tasks.jsonl}
environment: {kind: tools, interpreter: true, prompting: {instruction: Think., max_turns: 3}}
";
    assert_eq!(
        show(tools, &[]),
        [
            "warning: `environment.prompting.instruction` has no effect: `environment.kind` tools writes its own prompts"
        ]
    );
}

#[test]
fn settings_of_tools_that_nobody_uses() {
    let tools = "
data: {train: tasks.jsonl}
environment: {kind: tools, functions: [t.py:f], timeout: 5s, sandbox: {timeout: 3s}, prompting: {max_turns: 3}}
";
    assert_eq!(
        show(tools, &[]),
        [
            "warning: `environment.sandbox.timeout` has no effect: `environment.interpreter` is false",
            "warning: `environment.timeout` has no effect: a call has `environment.call_timeout`",
        ]
    );
    let interpreter = "
data: {train: tasks.jsonl}
environment: {kind: tools, interpreter: true, call_timeout: 5s, sandbox: {timeout: 3s}, prompting: {max_turns: 3}}
";
    assert_eq!(
        show(interpreter, &[]),
        [
            "warning: `environment.call_timeout` has no effect: `environment.functions` is empty, so no process runs"
        ]
    );
}

#[test]
fn words_of_a_game_that_speaks_plainly() {
    let several = "
data: {task: environment}
environment: {kind: bandit, style: plain, expert_prob: 0.9, prompting: {max_turns: 1, format_penalty: -1}}
more_environments:
- {kind: frozen_lake, style: plain, prompting: {show_reward: false, think: true}}
";
    assert_eq!(
        show(several, &[]),
        [
            "warning: `environment.expert_prob` has no effect: `sft.steps` is 0",
            "warning: `more_environments[0].prompting.show_reward` has no effect: `more_environments[0].style` is plain: only the state \
            is shown, and an answer is one action",
        ]
    );
    let taught = ["environment.kind=twenty_forty_eight", "sft.steps=5"];
    assert_eq!(
        show(several, &taught)[0],
        "warning: `environment.expert_prob` has no effect: no script can solve `twenty_forty_eight`, so `sft` imitates guesses"
    );
    let spoken = several.replace(", style: plain", "").replace(", expert_prob: 0.9", "");
    assert!(show(&spoken, &[]).is_empty());
}

#[test]
fn guesses_that_are_never_made() {
    let countdown = "
data: {task: environment}
environment: {kind: countdown, short_prob: 0.5, expert_prob: 1.0}
";
    let ignored = |key: &str, why: &str| format!("warning: `environment.{key}` has no effect: {why}");
    let none = "`sft.steps` is 0";
    assert_eq!(show(countdown, &[]), [ignored("expert_prob", none), ignored("short_prob", none)]);
    assert_eq!(
        show(countdown, &["sft.steps=5"]),
        [ignored("short_prob", "with `environment.expert_prob` of 1 the script never guesses")]
    );
    assert!(show(countdown, &["sft.steps=5", "environment.expert_prob=0.9"]).is_empty());
}

#[test]
fn statistics_of_turns_need_turns() {
    let turns = "objective: {advantage: {kind: grpo, statistics: turn}}\n";
    let sums = format!("data: {{task: arithmetic}}\n{turns}");
    assert_eq!(
        show(&sums, &[]),
        [
            "warning: `objective.advantage.statistics` has no effect: without an environment an episode has one turn"
        ]
    );
    let lakes = format!("data: {{task: environment}}\nenvironment: {{kind: frozen_lake}}\n{turns}");
    assert!(show(&lakes, &[]).is_empty());
}

#[test]
fn an_sft_needs_something_to_imitate() {
    let none = "
data: {task: environment}
environment: {kind: gymnasium, id: FrozenLake-v1}
sft: {steps: 5}
";
    let nothing = "which has neither a script that plays it nor gold answers";
    assert_eq!(
        show(none, &[]),
        [
            "error: `sft` has nothing to imitate: `gymnasium` has neither a script that plays it nor gold answers"
        ]
    );
    let one = "more_environments=[{kind: frozen_lake}]";
    assert_eq!(show(none, &[one]), [format!("warning: `sft` has no examples of `gymnasium`, {nothing}")]);
    assert!(show(none, &[one, "environment.train_size=0"]).is_empty());
    assert!(show(none, &["environment={kind: frozen_lake}"]).is_empty());
}

/// The name of an environment elsewhere is not known before it answers.
#[test]
fn names_that_are_known_are_not_given_twice() {
    let of = |more: &str| {
        let first = "{kind: command, argv: [one]}";
        let lines =
            format!("\ndata: {{task: environment}}\nenvironment: {first}\nmore_environments: [{more}]\n");
        show(&lines, &[])
    };
    assert!(of("{kind: command, argv: [other]}, {kind: frozen_lake}").is_empty());
    for more in [
        "{kind: frozen_lake}, {kind: command, argv: [other], name: frozen_lake}",
        "{kind: frozen_lake}, {kind: frozen_lake}",
    ] {
        assert_eq!(of(more), ["error: two environments are called `frozen_lake` in metrics"]);
    }
}

/// Each environment has its own limit. A setting for all of them takes the largest, and a message names its
/// environment.
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
    assert_eq!(
        show(several, &small),
        ["error: `data.max_prompt_length` (100) and `more_environments[0].max_length` (70) make 170, above \
             `model.init.max_position_embeddings` (150)"]
    );
    // If a window of turns is shown, the longest window counts, and not the turns of the first environment.
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
