//! How much of an episode a policy sees in a turn.

use super::played::Played;
use crate::foreign::translator::Translator;

const MODE: &str = "agent_proxy.context_window_mode";

const WINDOW: &str = "agent_proxy.max_context_window";

const WITHOUT: &str = "agent_proxy.without_history";

const SUMMARY: &str = "agent_proxy.enable_summary_memory";

/// What RAGEN's modes become.
pub(super) fn context(played: Played, t: &mut Translator) {
    if played == Played::Nothing {
        for key in [MODE, WINDOW, WITHOUT, SUMMARY] {
            t.no_effect(key, "no environment is played: a trajectory is one turn");
        }
        return;
    }
    let mode = t.text(MODE).unwrap_or_else(|| "full".to_owned());
    match mode.as_str() {
        "full" => t.no_effect(MODE, "the whole episode is in sight, which is how tamis works without the key"),
        "limited_multi_turn" | "single_turn" => t.refuse(
            MODE,
            "the whole episode is in sight of every turn, and no other context is there yet: only full can be followed",
        ),
        _ => t.bad_value(MODE, "full, limited_multi_turn or single_turn"),
    }
    t.no_effect(WINDOW, "RAGEN's mode full does not read it");
    if t.flag(WITHOUT, false) {
        t.refuse(WITHOUT, "the whole episode is in sight of every turn, and no other context is there yet");
    }
    if t.flag(SUMMARY, false) {
        t.no_effect(SUMMARY, "RAGEN's mode full does not read it");
    }
    for key in [WITHOUT, SUMMARY] {
        t.no_effect(key, "this is how tamis works without the key");
    }
}
