//! A [`Game`] as a conversation in RAGEN's form: the messages to a policy, and the meaning of its answers.
//!
//! ```text
//! system       You're a helpful assistant. {instruction}
//!              The meaning of each symbol in the state is:
//!              #: wall, _: floor
//!              Your available actions are:
//!              Up, Down, Left, Right
//!              You can make up to 10 actions, separated by the action separator " || "
//!
//! user
//!              Turn 1:
//!              State:
//!              {state}
//!              You have 10 actions left. Always output: <think> [Your thoughts] </think> <answer> [your answer]
//!              </answer> with no extra text. Strictly follow this format. Max response length: 100 words (tokens).
//!
//! assistant    <think>The box is above.</think><answer>Up || Up</answer>
//!
//! user         Reward:
//!              -0.2
//!
//!              Turn 2:
//!              State:
//!              ...
//! ```
//! [`PromptedGame::system_text`] is the first of these, [`Environment::observe`] each message of the user.
//! The legend appears if the game has one, and the two lines on actions if it lists its actions. If actions
//! follow a rule, the instruction must give that rule. After a turn without any valid action, a warning
//! follows the state.
//!
//! **Reading an answer.** The pattern is `<think>(.*?)</think>\s*<answer>(.*?)</answer>`, or only its second
//! half if `think` is off. A chat template may have opened the thoughts already. The first match counts;
//! without one there are no actions. Leftover tags, `<|im_start|>` and `<|im_end|>` are removed from the
//! answer. It is split at the separator and trimmed, and its first `max_actions_per_turn` non-empty parts are
//! the turn's actions. They are played in order until the game is over or no actions are left. A part that is
//! no action of the game is skipped and does not count as an action.
//!
//! **Reward of a turn**: the sum over the played actions, plus `format_penalty`, once, if any of the turn's
//! actions is invalid or none is valid. [`TurnOutcome::info`] reports the penalty separately, so the reward
//! without it is known; the text `Reward:` excludes it, as in RAGEN.
//!
//! **End**: [`EpisodeEnd::Terminated`] if the game is over, otherwise [`EpisodeEnd::Truncated`] if turns or
//! actions are used up.
//!
//! # Differs from RAGEN
//! - The text of an answer is never rewritten. RAGEN rebuilds it from its parts, and so trains on text that
//!   was not sampled.
//! - The reward in the text is rounded to nine decimals: `-0.3` instead of RAGEN's `-0.30000000000000004`.
//! - The success of a game that is won before the actions run out counts even if the game continues (2048).

use std::sync::LazyLock;

use regex::Regex;
use tamis_core::fault;
use tamis_core::fault::Fault;
use tamis_core::setting::Ranged;
use tamis_core::settings;

use super::game::{Game, find_action};
use super::{Environment, EpisodeEnd, TurnOutcome};

settings! {
    /// Texts of a game's messages, and limits on its answers.
    pub struct Prompting {
        /// Instruction before the first turn. Empty: the game's own.
        instruction: String = String::new();
        /// Expect thoughts in `<think>` before each answer.
        think: bool = true;
        /// Text between the actions of a turn.
        action_separator: String = "||".to_owned(), NotEmpty;
        /// Most actions of a turn. Further ones are ignored.
        max_actions_per_turn: usize = 2, AtLeast(1.0);
        /// Most actions of an episode.
        max_actions: usize = 10, AtLeast(1.0);
        /// Most turns of an episode.
        max_turns: usize = 5, AtLeast(1.0);
        /// Amount added to the reward of a turn with an invalid action or without a valid one.
        format_penalty: f64 = -0.1, Between(-1e6, 0.0);
        /// Longest answer, in tokens, that the messages ask for. It is not enforced. Null: the messages do
        /// not mention it.
        max_tokens: Option<usize> = None, AtLeast(1.0);
        /// Show the policy the reward of its last turn.
        show_reward: bool = true;
    }
}

/// Texts that are removed from an answer before it is split.
const LEFTOVERS: [&str; 6] = ["<think>", "</think>", "<answer>", "</answer>", "<|im_start|>", "<|im_end|>"];

const WARNING: &str =
    "No valid action provided previously. Environment state remains the same. Please try again.\n";

/// A constant, valid pattern.
fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a regular expression")
}

static THINK_AND_ANSWER: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"(?s)<think>.*?</think>\s*<answer>(.*?)</answer>"));
static ANSWER: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?s)<answer>(.*?)</answer>"));

impl Prompting {
    fn check(&self, actions: &[String]) -> Result<(), Fault> {
        self.check_ranges()?;
        let separator = &self.action_separator;
        if separator.is_empty() {
            return Err(fault!("setting `action_separator` is \"\"; expected a non-empty text"));
        }
        match actions.iter().find(|action| action.contains(separator)) {
            Some(action) => Err(fault!(
                "setting `action_separator` is {separator:?}; expected a text that is in no action, and one is {action:?}"
            )),
            None => Ok(()),
        }
    }

    /// The actions in an answer, valid or not: at most `max_actions_per_turn`, and none if the answer does
    /// not have the required form.
    ///
    /// ```
    /// use tamis_env::environment::prompting::Prompting;
    /// let prompting = Prompting::default();
    /// assert_eq!(prompting.parse("<think>hm</think> <answer>Up || || left||Up</answer>"), ["Up", "left"]);
    /// assert!(prompting.parse("Up").is_empty());
    /// ```
    pub fn parse(&self, text: &str) -> Vec<String> {
        let pattern = if self.think { &*THINK_AND_ANSWER } else { &*ANSWER };
        // The chat template may have opened the thoughts.
        let is_opened = self.think && !text.contains("<think>") && text.contains("</think>");
        let opened = is_opened.then(|| format!("<think>{text}"));
        let text = opened.as_deref().unwrap_or(text);
        let Some(answer) = pattern.captures(text).and_then(|captures| captures.get(1)) else {
            return Vec::new();
        };
        let answer = LEFTOVERS.iter().fold(answer.as_str().to_owned(), |answer, tag| answer.replace(tag, ""));
        answer
            .split(&self.action_separator)
            .map(str::trim)
            .filter(|action| !action.is_empty())
            .take(self.max_actions_per_turn)
            .map(str::to_owned)
            .collect()
    }

    /// The required form of an answer, as the policy sees it.
    fn format(&self) -> &'static str {
        if self.think {
            "<think> [Your thoughts] </think> <answer> [your answer] </answer>"
        } else {
            "<answer> [your answer] </answer>"
        }
    }
}

/// The last turn, for the next message.
#[derive(Debug, Clone, Copy)]
struct LastTurn {
    reward: f64,
    num_actions: usize,
    has_valid: bool,
}

/// A game as a conversation: an [`Environment`].
pub struct PromptedGame {
    game: Box<dyn Game>,
    prompting: Prompting,
    num_turns: usize,
    num_actions: usize,
    last_turn: Option<LastTurn>,
    end: Option<EpisodeEnd>,
}

impl PromptedGame {
    /// Makes a conversation of a game at its start.
    ///
    /// # Errors
    /// A setting out of range, or a separator that is in one of the game's actions.
    pub fn new(game: Box<dyn Game>, prompting: Prompting) -> Result<Self, Fault> {
        prompting.check(&game.actions())?;
        Ok(Self { game, prompting, num_turns: 0, num_actions: 0, last_turn: None, end: None })
    }

    /// The game in its present state.
    pub fn game(&self) -> &dyn Game {
        &*self.game
    }

    /// The text before the first turn.
    pub fn system_text(&self) -> String {
        let Prompting { instruction, action_separator, max_actions, .. } = &self.prompting;
        let symbols: Vec<String> =
            self.game.legend().iter().map(|(symbol, meaning)| format!("{symbol}: {meaning}")).collect();
        let legend = match symbols[..] {
            [] => String::new(),
            _ => format!("\nThe meaning of each symbol in the state is:\n{}", symbols.join(", ")),
        };
        let names = self.game.actions();
        let actions = match names[..] {
            [] => String::new(),
            _ => format!(
                "\nYour available actions are:\n{}\nYou can make up to {max_actions} actions, separated by the action \
                 separator \" {action_separator} \"\n",
                names.join(", ")
            ),
        };
        format!("You're a helpful assistant. {instruction}{legend}{actions}")
    }

    fn actions_left(&self) -> usize {
        self.prompting.max_actions - self.num_actions
    }
}

/// A reward in the form for the policy: `0` if no action was played, otherwise with a decimal point (`1.0`,
/// `-0.1`), as Python prints the sums.
fn reward_text(LastTurn { reward, num_actions, .. }: LastTurn) -> String {
    if num_actions == 0 {
        return "0".to_owned();
    }
    // Adding 0 turns -0 into 0.
    let rounded = (reward * 1e9).round() / 1e9 + 0.0;
    format!("{:?}", if rounded.is_finite() { rounded } else { reward })
}

impl Environment for PromptedGame {
    fn observe(&self) -> String {
        let reward = match self.last_turn {
            Some(last_turn) if self.prompting.show_reward => format!("Reward:\n{}\n", reward_text(last_turn)),
            _ => String::new(),
        };
        let warning = if self.last_turn.is_some_and(|last_turn| !last_turn.has_valid) { WARNING } else { "" };
        let length = match self.prompting.max_tokens {
            Some(max_tokens) => format!(" Max response length: {max_tokens} words (tokens)."),
            None => String::new(),
        };
        format!(
            "{reward}\nTurn {}:\nState:\n{}\n{warning}You have {} actions left. Always output: {} with no extra text. \
             Strictly follow this format.{length}\n",
            self.num_turns + 1,
            self.game.observe(),
            self.actions_left(),
            self.prompting.format(),
        )
    }

    /// `info`: `action_is_valid` (whether an action was played) and `action_is_effective` (whether the last
    /// one changed anything), both 1 or 0; `num_actions`, the number of played actions; `format_penalty`, the
    /// penalty in the reward, 0 if there is none.
    fn act(&mut self, text: &str) -> TurnOutcome {
        if self.end.is_some() {
            return TurnOutcome { end: self.end, ..TurnOutcome::default() };
        }
        let names = self.game.actions();
        let (mut reward, mut num_actions, mut num_valid, mut num_invalid) = (0.0, 0, 0, 0);
        let (mut is_over, mut is_effective) = (false, false);
        for action in self.prompting.parse(text) {
            // For actions that are not reached, only the name shows whether they are valid.
            let is_reached = !is_over && num_actions < self.actions_left();
            if !is_reached {
                let is_known = names.is_empty() || find_action(&names, &action).is_some();
                num_invalid += usize::from(!is_known);
                num_valid += usize::from(is_known);
            } else if let Some(played) = self.game.play(&action) {
                reward += played.reward;
                (is_over, is_effective) = (played.is_over, played.is_effective);
                num_actions += 1;
                num_valid += 1;
            } else {
                num_invalid += 1;
            }
        }
        let is_penalised = num_invalid > 0 || num_valid == 0;
        let penalty = if is_penalised { self.prompting.format_penalty } else { 0.0 };
        self.num_turns += 1;
        self.num_actions += num_actions;
        self.last_turn = Some(LastTurn { reward, num_actions, has_valid: num_valid > 0 });
        let is_used_up = self.num_turns >= self.prompting.max_turns || self.actions_left() == 0;
        self.end =
            if is_over { Some(EpisodeEnd::Terminated) } else { is_used_up.then_some(EpisodeEnd::Truncated) };
        TurnOutcome {
            reward: Some(reward + penalty),
            end: self.end,
            info: vec![
                ("action_is_valid".into(), f64::from(num_actions > 0)),
                ("action_is_effective".into(), f64::from(is_effective)),
                ("num_actions".into(), num_actions as f64),
                ("format_penalty".into(), penalty),
            ],
            fault: None,
        }
    }

    fn is_success(&self) -> Option<bool> {
        Some(self.game.is_success())
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "exact by construction")]
mod tests;
