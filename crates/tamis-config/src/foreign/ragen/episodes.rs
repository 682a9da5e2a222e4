//! Turns, actions and rewards of an episode, and how many levels there are.

use super::context::context;
use super::played::Played;
use crate::foreign::key::Rule;
use crate::foreign::owner::Owner;
use crate::foreign::translator::{Translator, quote};

const TURNS: &str = "agent_proxy.max_turn";

const SEPARATOR: &str = "agent_proxy.action_sep";

const ACTIONS: &str = "agent_proxy.max_actions_per_turn";

const THINK: &str = "agent_proxy.enable_think";

const TURN_SCORES: &str = "agent_proxy.use_turn_scores";

const PENALTY: &str = "es_manager.format_penalty";

const VAL_GROUPS: &str = "es_manager.val.env_groups";

const MODEL_LENGTH: &str = "actor_rollout_ref.rollout.max_model_len";

const PROMPT_LENGTH: &str = "data.max_prompt_length";

/// Tokens of a prompt where nothing says how many, of those that an episode may have.
const PROMPT_SHARE: f64 = 600.0;

/// Where the rewards of turns stand.
pub(super) const WHERE_EARNED: &str = "each turn's reward stands where it was earned, with what its form costs: gae and bi_level_gae see where, advantages of \
     whole episodes see the sum; RAGEN puts the sum at the end unless the key is on";

/// Keys that have one of ours for the same.
const SAME: [(&str, &str); 4] = [
    (TURNS, "environment.prompting.max_turns"),
    (ACTIONS, "environment.prompting.max_actions_per_turn"),
    (THINK, "environment.prompting.think"),
    (PENALTY, "environment.prompting.format_penalty"),
];

/// Defaults of a whole configuration that plays an environment.
pub(in crate::foreign) const PLAYED_DEFAULTS: &[(&str, &str, &str, &str)] = &[
    (TURNS, "5", "environment.prompting.max_turns", "5"),
    (ACTIONS, "2", "environment.prompting.max_actions_per_turn", "2"),
    (VAL_GROUPS, "512", "environment.val_size", "512"),
];

/// Turns, actions and rewards.
pub(super) const EPISODES: Rule = Rule::new(4, "episodes", episodes);

fn episodes(t: &mut Translator) {
    let played = Played::by(t);
    context(played, t);
    if played == Played::Nothing {
        without_episodes(t);
        return;
    }
    for (key, ours) in SAME {
        if let Some(value) = t.text(key) {
            t.set(&[key], ours, &value);
        }
        t.no_effect(key, "null leaves the default");
    }
    if let Some(separator) = t.text(SEPARATOR) {
        t.set(&[SEPARATOR], "environment.prompting.action_separator", &quote(separator.trim()));
    }
    if let Some(groups) = t.text(VAL_GROUPS) {
        t.set(&[VAL_GROUPS], "environment.val_size", &groups);
    }
}

/// Where there is no environment, the keys of its episodes do nothing, as far as that is so.
fn without_episodes(t: &mut Translator) {
    let turns = t.number(TURNS);
    if turns.is_some_and(|turns| turns.to_bits() == 1.0_f64.to_bits()) {
        t.no_effect(TURNS, "this is how tamis works without the key");
    } else {
        t.refuse(
            TURNS,
            "the prompts are rows, each answered in one turn: name an environment by \
             es_manager.train.env_configs.tags",
        );
    }
    if let Some(groups) = t.text(VAL_GROUPS) {
        t.set(&[VAL_GROUPS], "validate.max_prompts", &groups);
    }
    for key in [SEPARATOR, ACTIONS] {
        t.no_effect(key, "no environment is played: a trajectory is one turn");
    }
    t.no_effect(THINK, "prompts are those of the data, and nothing is added to them");
    t.no_effect(PENALTY, "an answer's form is scored by a reward of its own, such as `kind: format`");
}

/// Defaults of a whole configuration that plays an environment.
pub(super) fn defaults(t: &mut Translator) {
    let owner = Owner::Ragen;
    for (key, _, ours, value) in PLAYED_DEFAULTS {
        t.default(owner, key, ours, value);
    }
    if t.text(TURN_SCORES).is_none() && t.value_of("objective.advantage.kind").as_deref() == Some("gae") {
        t.absent_without_effect(owner, TURN_SCORES, WHERE_EARNED);
    }
    length(t);
    let num_of = |key: &str, t: &Translator| t.value_of(key).and_then(|value| value.parse::<f64>().ok());
    let steps = num_of("train.total_steps", t);
    if let (Some(steps), Some(groups)) = (steps, num_of("data.train_batch_size", t))
        && steps * groups > 8192.0
    {
        const LEVELS: &str = "a level for each group";
        let levels = (steps * groups).min(1e7);
        t.default(owner, LEVELS, "environment.train_size", &levels.to_string());
        t.remark(LEVELS, "RAGEN draws new levels in every step");
    }
}

/// RAGEN's length of prompt and episode together becomes a length of each.
fn length(t: &mut Translator) {
    const OURS: [&str; 2] = ["data.max_prompt_length", "environment.max_length"];
    let given = t.number(MODEL_LENGTH);
    let whole = given.unwrap_or(3600.0);
    let prompt = t.number(PROMPT_LENGTH).unwrap_or_else(|| PROMPT_SHARE.min((whole / 2.0).floor()));
    let episode = (whole - prompt).max(1.0);
    let (prompt_text, episode) = (prompt.to_string(), episode.to_string());
    if given.is_some() {
        if t.text(PROMPT_LENGTH).is_none() {
            t.set(&[MODEL_LENGTH], OURS[0], &prompt_text);
        }
        t.set(&[MODEL_LENGTH], OURS[1], &episode);
    } else {
        t.defaults(Owner::Ragen, MODEL_LENGTH, &[(OURS[0], &prompt_text), (OURS[1], &episode)]);
    }
    t.remark(
        MODEL_LENGTH,
        "prompt and episode have a length each; an episode that outgrows its own ends, where RAGEN drops its \
         oldest turns",
    );
}
