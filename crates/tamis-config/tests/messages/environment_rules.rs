//! Environments: their names, windows, turns with tools, and penalties.

use crate::{raw, show_errors};

const LAKE: &str = "environment: {kind: frozen_lake}\n";

/// As [`show_errors`], for a run in environments.
fn show_played(yaml: &str, arguments: &[&str]) -> String {
    let base = ["model.path=m", "data.task=environment", "train.total_steps=10"];
    raw(yaml, &base.iter().chain(arguments).copied().collect::<Vec<_>>())
}

#[test]
fn a_name_of_metrics_is_one() {
    let told = show_played(LAKE, &["environment.name=a/b c"]);
    assert!(
        told.contains("error: `environment.name` is \"a/b c\", but metrics are named after it"),
        "{told}"
    );
    assert!(told.contains("hint: use 1 to 64 letters of ASCII, digits, `_`, `-` and `.`"), "{told}");
    let more = "more_environments: [{kind: sokoban, name: 'so ko'}]\n";
    let told = show_played(&format!("{LAKE}{more}"), &[]);
    assert!(told.contains("error: `more_environments[0].name` is \"so ko\""), "{told}");
    assert_eq!(show_played(LAKE, &["environment.name=small_lake-2.0"]), "");
    let long = format!("environment.name={}", "a".repeat(65));
    assert!(show_played(LAKE, &[&long]).contains("metrics are named after it"));
}

#[test]
fn a_window_of_what_is_seen_whole_has_no_effect() {
    let told = show_played(LAKE, &["environment.max_context_window=2"]);
    let said = "warning: `environment.max_context_window` has no effect: `environment.context` is full, which shows every turn";
    assert!(told.contains(said), "{told}");
    let more = "more_environments: [{kind: sokoban, max_context_window: 3}]\n";
    assert!(show_played(&format!("{LAKE}{more}"), &[]).contains(
        "`more_environments[0].max_context_window` has no effect: `more_environments[0].context` is full"
    ));
    let limited = ["environment.context=single_turn", "environment.max_context_window=2"];
    assert_eq!(show_played(LAKE, &limited), "");
}

#[test]
fn tools_need_a_second_answer() {
    let tools = "environment: {kind: tools, interpreter: true, prompting: {max_turns: 1}}\n";
    let said = "`environment.prompting.max_turns` is 1: an episode ends with its first answer, so no tool that it calls is ever run";
    let told = show_errors(tools, &[]);
    assert!(told.contains(&format!("warning: {said}")), "{told}");
    let told = show_errors(tools, &["environment.prompting.max_turns=2"]);
    assert!(!told.contains("max_turns"), "{told}");
}

#[test]
fn a_penalty_outside_of_the_rewards_of_an_advantage_is_refused() {
    let running = "objective.advantage.kind=bnpo_running";
    let told = show_played(LAKE, &[running]);
    let said = "error: `objective.advantage.kind: bnpo_running` needs rewards of at least 0 (`objective.advantage.low`), but \
        `environment.prompting.format_penalty` gives -0.1 for an answer without an action";
    assert!(told.contains(said), "{told}");
    let gymnasium = "environment: {kind: gymnasium, id: Taxi-v3}\n";
    assert!(
        show_played(gymnasium, &["objective.advantage.kind=bnpo"])
            .contains("`environment.invalid_penalty` gives -0.1")
    );
    for sound in ["environment.prompting.format_penalty=0", "objective.advantage.low=-1"] {
        let told = show_played(LAKE, &[running, sound]);
        assert!(!told.contains("error"), "{sound}: {told}");
    }
    // Beside another reward it is unknown.
    let two = format!("{LAKE}reward: [{{kind: environment}}, {{kind: format, pattern: x}}]\n");
    assert!(!show_played(&two, &[running]).contains("format_penalty"));
    assert_eq!(show_played(LAKE, &[]), "");
}
