//! Turns, actions and rewards of an episode, and how many levels there are.

use super::context::{context, is_full};
use super::played::{MORE, Played, sections};
use super::shares::VAL;
use crate::key::Rule;
use crate::owner::Owner;
use crate::translator::{Translator, quote};

const TURNS: &str = "agent_proxy.max_turn";

const SEPARATOR: &str = "agent_proxy.action_sep";

const ACTIONS: &str = "agent_proxy.max_actions_per_turn";

const THINK: &str = "agent_proxy.enable_think";

const TURN_SCORES: &str = "agent_proxy.use_turn_scores";

const PENALTY: &str = "es_manager.format_penalty";

const VAL_GROUPS: &str = VAL.total;

const MODEL_LENGTH: &str = "actor_rollout_ref.rollout.max_model_len";

const PROMPT_LENGTH: &str = "data.max_prompt_length";

/// Tokens of a prompt where nothing says how many, of those that an episode may have.
const PROMPT_SHARE: f64 = 600.0;

/// Where the rewards of turns stand.
const WHERE_EARNED: &str = "each turn's reward stands where it was earned, with what its form costs: gae and bi_level_gae see where, advantages of \
     whole episodes see the sum; RAGEN puts the sum at the end unless the key is on";

/// Keys that have one of ours for the same, in every environment.
const SAME: [(&str, &str); 4] = [
    (TURNS, "prompting.max_turns"),
    (ACTIONS, "prompting.max_actions_per_turn"),
    (THINK, "prompting.think"),
    (PENALTY, FORM),
];

const FORM: &str = "prompting.format_penalty";

/// Defaults of a whole configuration that plays an environment.
pub(crate) const PLAYED_DEFAULTS: &[(&str, &str, &str, &str)] = &[
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
    turn_scores(t);
    let sections = sections(t);
    for (key, ours) in SAME {
        if let Some(value) = t.text(key).filter(|_| !t.is_noted(key)) {
            for section in &sections {
                t.set(&[key], &format!("{section}.{ours}"), &value);
            }
        }
        t.no_effect(key, "null leaves the default");
    }
    if let Some(separator) = t.text(SEPARATOR) {
        for section in &sections {
            t.set(&[SEPARATOR], &format!("{section}.prompting.action_separator"), &quote(separator.trim()));
        }
    }
    let Some(groups) = t.text(VAL_GROUPS).filter(|_| !t.is_noted(VAL_GROUPS)) else { return };
    if sections.len() == 1 {
        t.set(&[VAL_GROUPS], "environment.val_size", &groups);
    } else if played == Played::Own {
        t.refuse(
            VAL_GROUPS,
            format!(
                "the configuration has several environments: set `val_size` of each, under `environment` \
                 and `{MORE}`"
            ),
        );
    }
}

/// Where the rewards of turns stand. Where RAGEN's switch is on, an answer's form costs nothing there.
fn turn_scores(t: &mut Translator) {
    if !t.flag(TURN_SCORES, false) {
        t.no_effect(TURN_SCORES, WHERE_EARNED);
    } else if is_full(t) {
        for section in sections(t) {
            t.set(&[TURN_SCORES], &format!("{section}.{FORM}"), "0");
        }
        t.remark(
            TURN_SCORES,
            "RAGEN charges nothing for an answer's form where it is on; each turn's reward stands where it was \
             earned with and without it",
        );
        t.no_effect(PENALTY, "RAGEN charges it where agent_proxy.use_turn_scores is off");
    } else {
        t.no_effect(
            TURN_SCORES,
            "RAGEN reads it where the whole episode is in sight; each turn's reward stands where it was earned",
        );
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
    t.no_effect(TURN_SCORES, "a trajectory is one turn, and its reward stands at the end of it");
    t.no_effect(THINK, "prompts are those of the data, and nothing is added to them");
    t.no_effect(PENALTY, "an answer's form is scored by a reward of its own, such as `kind: format`");
}

/// Defaults of a whole configuration that plays an environment.
pub(super) fn defaults(t: &mut Translator) {
    let owner = Owner::Ragen;
    let sections = sections(t);
    for (key, _, ours, value) in PLAYED_DEFAULTS {
        let of_each: Vec<String> = match ours.strip_prefix("environment.prompting") {
            Some(name) => sections.iter().map(|section| format!("{section}.prompting{name}")).collect(),
            None => vec![(*ours).to_owned()],
        };
        let pairs: Vec<(&str, &str)> = of_each.iter().map(|ours| (ours.as_str(), *value)).collect();
        t.defaults(owner, key, &pairs);
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
    const PROMPT: &str = "data.max_prompt_length";
    let of_episodes: Vec<String> =
        sections(t).iter().map(|section| format!("{section}.max_length")).collect();
    let given = t.number(MODEL_LENGTH);
    let whole = given.unwrap_or(3600.0);
    let prompt = t.number(PROMPT_LENGTH).unwrap_or_else(|| PROMPT_SHARE.min((whole / 2.0).floor()));
    let episode = (whole - prompt).max(1.0);
    let (prompt_text, episode) = (prompt.to_string(), episode.to_string());
    if given.is_some() {
        if t.text(PROMPT_LENGTH).is_none() {
            t.set(&[MODEL_LENGTH], PROMPT, &prompt_text);
        }
        for ours in &of_episodes {
            t.set(&[MODEL_LENGTH], ours, &episode);
        }
    } else {
        let mut pairs = vec![(PROMPT, prompt_text.as_str())];
        pairs.extend(of_episodes.iter().map(|ours| (ours.as_str(), episode.as_str())));
        t.defaults(Owner::Ragen, MODEL_LENGTH, &pairs);
    }
    t.remark(
        MODEL_LENGTH,
        "prompt and episode have a length each; an episode that outgrows its own ends, where RAGEN drops its \
         oldest turns",
    );
}
