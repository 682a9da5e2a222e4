//! How much of an episode a policy sees in a turn.

use super::played::{Played, sections};
use crate::translator::Translator;

const MODE: &str = "agent_proxy.context_window_mode";

const WINDOW: &str = "agent_proxy.max_context_window";

const WITHOUT: &str = "agent_proxy.without_history";

const SUMMARY: &str = "agent_proxy.enable_summary_memory";

/// What is other than in RAGEN where a turn is shown anew.
const ONE_EPISODE: &str = "an episode is one member of its group and one sequence of the loss, where RAGEN makes \
     a row of the batch of each turn; `objective.advantage.statistics: turn` counts turns in the mean and deviation \
     of grpo";

const EARLIER_ANSWERS: &str =
    "earlier turns are told by what was answered, where RAGEN tells states and rewards too";

/// Whether the whole episode is in sight of every turn.
pub(super) fn is_full(t: &Translator) -> bool {
    t.text_of("environment.context").is_none_or(|mode| mode == "full")
}

/// What RAGEN's modes become.
pub(super) fn context(played: Played, t: &mut Translator) {
    if played == Played::Nothing {
        for key in [MODE, WINDOW, WITHOUT, SUMMARY] {
            t.no_effect(key, "no environment is played: a trajectory is one turn");
        }
        return;
    }
    let mode = t.text(MODE);
    if mode.as_deref().is_some_and(|mode| !matches!(mode, "full" | "limited_multi_turn" | "single_turn")) {
        t.bad_value(MODE, "full, limited_multi_turn or single_turn");
        return;
    }
    if let Some(mode) = &mode {
        set(MODE, "context", mode, t);
    }
    without_history(mode.as_deref(), t);
    window(t);
    if t.flag(SUMMARY, false) {
        let is_cut = t.text_of("environment.max_context_window").is_some_and(|window| window != "null");
        if is_full(t) {
            t.no_effect(SUMMARY, "RAGEN's mode full does not read it");
        } else if is_cut {
            t.refuse(
                SUMMARY,
                "turns before `environment.max_context_window` are out of sight, and nothing tells of them",
            );
        } else {
            t.no_effect(SUMMARY, "no turn is out of sight");
        }
    }
    for key in [MODE, WINDOW] {
        t.no_effect(key, "null leaves the default");
    }
    for key in [WITHOUT, SUMMARY] {
        t.no_effect(key, "this is how tamis works without the key");
    }
    if !is_full(t) {
        let key = if t.text(MODE).is_some() { MODE } else { WITHOUT };
        if mode.as_deref() == Some("single_turn") {
            t.remark(key, &format!("{ONE_EPISODE}; {EARLIER_ANSWERS}"));
        } else {
            t.remark(key, ONE_EPISODE);
        }
    }
}

/// RAGEN's older name for a window of one turn.
fn without_history(mode: Option<&str>, t: &mut Translator) {
    if !t.flag(WITHOUT, false) {
        return;
    }
    if mode == Some("full") {
        t.refuse(WITHOUT, format!("{MODE} is full, which shows the whole episode: give one of the two"));
        return;
    }
    if mode.is_none() {
        set(WITHOUT, "context", "limited_multi_turn", t);
    }
    set(WITHOUT, "max_context_window", "1", t);
    t.no_effect(WINDOW, &format!("{WITHOUT} says that it is one turn"));
}

/// How many turns are in sight; RAGEN's negative numbers are all of them.
fn window(t: &mut Translator) {
    let Some(turns) = t.number(WINDOW) else { return };
    if is_full(t) {
        t.no_effect(WINDOW, "RAGEN's mode full does not read it");
    } else if turns < 0.0 {
        if !t.is_noted(WINDOW) {
            set(WINDOW, "max_context_window", "null", t);
        }
    } else if turns < 1.0 || turns.fract() != 0.0 {
        t.bad_value(WINDOW, "a whole number of turns from 1, or -1 for all of them");
    } else if !t.is_noted(WINDOW) {
        set(WINDOW, "max_context_window", &turns.to_string(), t);
    }
}

/// Sets one of ours in every environment.
fn set(key: &str, name: &str, value: &str, t: &mut Translator) {
    for section in sections(t) {
        t.set(&[key], &format!("{section}.{name}"), value);
    }
}
