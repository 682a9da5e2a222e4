//! A [`Game`] put into words as RAGEN does it: what a policy reads, and what its answers mean.
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
//!
//! [`PromptedGame::system_text`] is the first of these, [`Environment::observe`] each message of the user. The legend is
//! there where the game has one, the two lines on actions where it lists its actions; where actions are written by a
//! rule, the instruction has to give it. After a turn without any valid action a warning stands below the state.
//!
//! **Reading an answer.** `<think>(.*?)</think>\s*<answer>(.*?)</answer>` is looked for (a chat template may have opened the thoughts before the
//! answer begins), or the second half of it where
//! `think` is off; the first match counts, and without one there are no actions. What stands in the answer is stripped
//! of leftover tags and of `<|im_start|>` and `<|im_end|>`, split at the separator, trimmed, and its first
//! `max_actions_per_turn` non-empty parts are the turn's actions. They are carried out in turn until the game is over
//! or no actions are left; what is no action of the game is skipped and uses none up.
//!
//! **Reward of a turn**: the sum over the actions carried out, plus `format_penalty`, once, where any of the turn's
//! actions is none of the game's or there is no valid one. The penalty is told apart in [`TurnOutcome::info`], so that a
//! reward without it can be had; the text `Reward:` is without it, as in RAGEN.
//!
//! **End**: [`EpisodeEnd::Terminated`] where the game is over, else [`EpisodeEnd::Truncated`] where turns or actions are used up.
//!
//! # Differs from RAGEN
//! - The text of an answer is never rewritten: RAGEN rebuilds it from its parts, and trains on what was not sampled.
//! - The reward in the text is rounded to nine decimals, `-0.3` where RAGEN writes `-0.30000000000000004`.
//! - The success of a game that is won before the actions run out counts even where the game goes on (2048).

use std::sync::LazyLock;

use regex::Regex;
use tamis_core::setting::{OutOfRange, Ranged};
use tamis_core::settings;
use thiserror::Error;

use super::game::{Game, find_action};
use super::{Environment, EpisodeEnd, TurnOutcome};

settings! {
    /// How a game is put into words, and what its answers may hold.
    pub struct Prompting {
        /// Words about the game before the first turn. Empty: those of the game.
        instruction: String = String::new();
        /// Thoughts in `<think>` before each answer.
        think: bool = true;
        /// Text between the actions of a turn.
        action_separator: String = "||".to_owned(), NotEmpty;
        /// Actions of a turn that count; those after them are not looked at.
        max_actions_per_turn: usize = 2, AtLeast(1.0);
        /// Actions of an episode.
        max_actions: usize = 10, AtLeast(1.0);
        /// Turns of an episode.
        max_turns: usize = 5, AtLeast(1.0);
        /// Part of the reward of a turn with an invalid action or without a valid one.
        format_penalty: f64 = -0.1, Between(-1e6, 0.0);
        /// Length of an answer that the policy is told to keep to, in tokens; a limit for nobody else. Null: no word
        /// of it.
        max_tokens: Option<usize> = None, AtLeast(1.0);
        /// The policy is told the reward of its last turn.
        show_reward: bool = true;
    }
}

/// A game cannot be put into words.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum PromptingError {
    /// A setting is out of its range.
    #[error(transparent)]
    Range(#[from] OutOfRange),
    /// Nothing stands between actions.
    #[error("setting `action_separator` is \"\"; expected a non-empty text")]
    NoSeparator,
    /// An action would be cut in two.
    #[error(
        "setting `action_separator` is {separator:?}; expected a text that is in no action, and one is {action:?}"
    )]
    SeparatorInAction {
        /// The value given.
        separator: String,
        /// The first action that has it.
        action: String,
    },
}

/// What is left out of an answer before it is split.
const LEFTOVERS: [&str; 6] = ["<think>", "</think>", "<answer>", "</answer>", "<|im_start|>", "<|im_end|>"];

const WARNING: &str =
    "No valid action provided previously. Environment state remains the same. Please try again.\n";

/// A pattern that is written here and known to be one.
fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a regular expression")
}

static THINK_AND_ANSWER: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"(?s)<think>.*?</think>\s*<answer>(.*?)</answer>"));
static ANSWER: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?s)<answer>(.*?)</answer>"));

impl Prompting {
    fn check(&self, actions: &[String]) -> Result<(), PromptingError> {
        self.check_ranges()?;
        let separator = &self.action_separator;
        if separator.is_empty() {
            return Err(PromptingError::NoSeparator);
        }
        match actions.iter().find(|action| action.contains(separator)) {
            Some(action) => Err(PromptingError::SeparatorInAction {
                separator: separator.clone(),
                action: action.clone(),
            }),
            None => Ok(()),
        }
    }

    /// The actions that an answer names, valid or not: at most `max_actions_per_turn`, none where the answer has not
    /// the form that was asked for.
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

    /// The form that an answer should have, as the policy is told it.
    fn format(&self) -> &'static str {
        if self.think {
            "<think> [Your thoughts] </think> <answer> [your answer] </answer>"
        } else {
            "<answer> [your answer] </answer>"
        }
    }
}

/// The last turn, as the next message tells of it.
#[derive(Debug, Clone, Copy)]
struct LastTurn {
    reward: f64,
    num_actions: usize,
    has_valid: bool,
}

/// A game in words: an [`Environment`].
pub struct PromptedGame {
    game: Box<dyn Game>,
    prompting: Prompting,
    num_turns: usize,
    num_actions: usize,
    last_turn: Option<LastTurn>,
    end: Option<EpisodeEnd>,
}

impl PromptedGame {
    /// Puts a game at its start into words.
    ///
    /// # Errors
    /// A setting out of range, or a separator that is in one of the game's actions.
    pub fn new(game: Box<dyn Game>, prompting: Prompting) -> Result<Self, PromptingError> {
        prompting.check(&game.actions())?;
        Ok(Self { game, prompting, num_turns: 0, num_actions: 0, last_turn: None, end: None })
    }

    /// The game as it stands.
    pub fn game(&self) -> &dyn Game {
        &*self.game
    }

    /// What the policy is told once, before the first turn.
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

/// A reward as the policy reads it: `0` where nothing was done, else with a decimal point (`1.0`, `-0.1`), as Python
/// writes the sums.
fn reward_text(LastTurn { reward, num_actions, .. }: LastTurn) -> String {
    if num_actions == 0 {
        return "0".to_owned();
    }
    // Adding 0 makes -0 to 0.
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

    /// `info`: `action_is_valid` (whether an action was carried out), `action_is_effective` (whether the last of them
    /// changed anything), both 1 or 0; `num_actions`, those carried out; `format_penalty`, the part of the reward that
    /// is the penalty, 0 where there is none.
    fn act(&mut self, text: &str) -> TurnOutcome {
        if self.end.is_some() {
            return TurnOutcome { end: self.end, ..TurnOutcome::default() };
        }
        let names = self.game.actions();
        let (mut reward, mut num_actions, mut num_valid, mut num_invalid) = (0.0, 0, 0, 0);
        let (mut is_over, mut is_effective) = (false, false);
        for action in self.prompting.parse(text) {
            // What is not reached can be told valid or not by its name only.
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
            reward: reward + penalty,
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

    fn is_success(&self) -> bool {
        self.game.is_success()
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "exact by construction")]
mod tests {
    use proptest::prelude::*;

    use super::super::game::Played;
    use super::*;

    /// A place on a line from 0: `Right` earns 0.5, `Left` costs 0.1 and does nothing at 0; won at the goal, which
    /// earns 1 more. What was carried out stands in the state. Where `is_listed` is off it keeps its names to itself.
    #[derive(Clone)]
    struct Walk {
        place: usize,
        goal: usize,
        played: String,
        is_listed: bool,
    }

    impl Walk {
        fn new(goal: usize) -> Self {
            Self { place: 0, goal, played: String::new(), is_listed: true }
        }
    }

    impl Game for Walk {
        fn legend(&self) -> Vec<(String, String)> {
            vec![("o".to_owned(), "you".to_owned()), ("_".to_owned(), "ground".to_owned())]
        }

        fn actions(&self) -> Vec<String> {
            if self.is_listed { vec!["Left".to_owned(), "Right".to_owned()] } else { Vec::new() }
        }

        fn observe(&self) -> String {
            format!("{}o{}", "_".repeat(self.place), self.played)
        }

        fn play(&mut self, action: &str) -> Option<Played> {
            let before = self.place;
            let mut reward = if find_action(&["Left", "Right"], action)? == 0 {
                self.place = self.place.saturating_sub(1);
                self.played.push('L');
                -0.1
            } else {
                self.place += 1;
                self.played.push('R');
                0.5
            };
            let is_over = self.is_success();
            if is_over {
                reward += 1.0;
            }
            Some(Played { reward, is_over, is_effective: self.place != before })
        }

        fn is_success(&self) -> bool {
            self.place == self.goal
        }
    }

    fn prompted(goal: usize, prompting: Prompting) -> PromptedGame {
        PromptedGame::new(Box::new(Walk::new(goal)), prompting).expect("an environment")
    }

    fn loose() -> Prompting {
        Prompting { max_actions_per_turn: 100, max_actions: 100, max_turns: 100, ..Prompting::default() }
    }

    fn answer(actions: &str) -> String {
        format!("<think>So.</think><answer>{actions}</answer>")
    }

    fn info(outcome: &TurnOutcome) -> [f64; 4] {
        let names = ["action_is_valid", "action_is_effective", "num_actions", "format_penalty"];
        assert!(outcome.info.iter().map(|(name, _)| &**name).eq(names));
        [0, 1, 2, 3].map(|i| outcome.info[i].1)
    }

    #[track_caller]
    fn assert_near(actual: f64, expected: f64) {
        assert!((actual - expected).abs() < 1e-9, "{actual} is not {expected}");
    }

    #[test]
    fn texts_are_those_of_ragen() {
        let prompting = Prompting {
            instruction: "You are on a line. ".to_owned(),
            max_tokens: Some(100),
            ..Prompting::default()
        };
        let mut walk = prompted(3, prompting.clone());
        assert_eq!(
            walk.system_text(),
            "You're a helpful assistant. You are on a line. \nThe meaning of each symbol in the state is:\no: you, _: \
             ground\nYour available actions are:\nLeft, Right\nYou can make up to 10 actions, separated by the action \
             separator \" || \"\n"
        );
        assert_eq!(
            walk.observe(),
            "\nTurn 1:\nState:\no\nYou have 10 actions left. Always output: <think> [Your thoughts] </think> <answer> \
             [your answer] </answer> with no extra text. Strictly follow this format. Max response length: 100 words \
             (tokens).\n"
        );
        walk.act(&answer("Right || Left"));
        assert_eq!(
            walk.observe(),
            "Reward:\n0.4\n\nTurn 2:\nState:\noRL\nYou have 8 actions left. Always output: <think> [Your thoughts] \
             </think> <answer> [your answer] </answer> with no extra text. Strictly follow this format. Max response \
             length: 100 words (tokens).\n"
        );
        walk.act("Right");
        assert_eq!(
            walk.observe(),
            "Reward:\n0\n\nTurn 3:\nState:\noRL\nNo valid action provided previously. Environment state remains the \
             same. Please try again.\nYou have 8 actions left. Always output: <think> [Your thoughts] </think> <answer> \
             [your answer] </answer> with no extra text. Strictly follow this format. Max response length: 100 words \
             (tokens).\n"
        );
        let prompting = Prompting { think: false, show_reward: false, max_tokens: None, ..prompting };
        let mut walk = prompted(3, prompting.clone());
        walk.act("<answer>right</answer>");
        assert_eq!(
            walk.observe(),
            "\nTurn 2:\nState:\n_oR\nYou have 9 actions left. Always output: <answer> [your answer] </answer> with no \
             extra text. Strictly follow this format.\n"
        );
        // Actions that are not listed are the instruction's to explain.
        let unlisted =
            PromptedGame::new(Box::new(Walk { is_listed: false, ..Walk::new(3) }), prompting).expect("one");
        assert_eq!(
            unlisted.system_text(),
            "You're a helpful assistant. You are on a line. \nThe meaning of each symbol in the state is:\no: you, _: \
             ground"
        );
    }

    #[test]
    fn rewards_as_text() {
        let text = |reward, num_actions| reward_text(LastTurn { reward, num_actions, has_valid: true });
        assert_eq!(text(0.0, 0), "0");
        assert_eq!(text(0.0, 1), "0.0");
        assert_eq!(text(-0.0, 1), "0.0");
        assert_eq!(text(-0.1 - 0.1 - 0.1, 3), "-0.3");
        assert_eq!(text(10.9, 1), "10.9");
        assert_eq!(text(1.0, 1), "1.0");
        assert_eq!(text(f64::MAX, 1), format!("{:?}", f64::MAX));
    }

    #[test]
    fn answers_that_are_read() {
        let prompting = Prompting { max_actions_per_turn: 3, ..Prompting::default() };
        for (text, actions) in [
            ("<think>a</think><answer>Up</answer>", &["Up"][..]),
            ("Well. <think>a\nb</think>\n \n<answer> Up ||\nDown\n</answer> bye", &["Up", "Down"]),
            ("<think></think><answer>Up||||Up|| ||</answer>", &["Up", "Up"]),
            ("<think>a</think><answer>1||2||3||4</answer>", &["1", "2", "3"]),
            ("<think>a</think><answer>Up|Down</answer>", &["Up|Down"]),
            ("<think>é ü 我</think><answer>上 || 下</answer>", &["上", "下"]),
            // The first answer that follows thoughts counts.
            (
                "<answer>1</answer><think>a</think><answer>2</answer><think>b</think><answer>3</answer>",
                &["2"],
            ),
            ("<think>a<think>b</think><answer>1</answer>", &["1"]),
            ("<think>a</think> so <answer>1</answer></think><answer>2</answer>", &["2"]),
            ("<think>a</think><answer><answer>1</answer>", &["1"]),
            ("<think>a</think><answer><think>1</think> || 2<|im_end|></answer>", &["1", "2"]),
            ("<think>a</think><answer> </answer>", &[]),
            ("<think>a</think><answer>Up", &[]),
            ("<think>a<answer>Up</answer>", &[]),
            ("<answer>Up</answer>", &[]),
            ("a</think><answer>Up</answer>", &["Up"]),
            ("<THINK>a</THINK><ANSWER>Up</ANSWER>", &[]),
            ("", &[]),
        ] {
            assert_eq!(prompting.parse(text), actions, "{text}");
        }
    }

    #[test]
    fn answers_after_thoughts_that_the_template_has_opened() {
        let prompting = Prompting::default();
        for (text, actions) in [
            ("a</think><answer>Up</answer>", &["Up"][..]),
            ("</think><answer>Up</answer>", &["Up"]),
            ("<think>a</think><answer>Up</answer>", &["Up"]),
            ("<answer>Up</answer>", &[]),
        ] {
            assert_eq!(prompting.parse(text), actions, "{text}");
        }
        let prompting = Prompting { think: false, ..Prompting::default() };
        assert_eq!(prompting.parse("<think>a</think> b <answer>Up</answer>"), ["Up"]);
    }

    #[test]
    fn turns_by_hand() {
        let mut walk =
            prompted(5, Prompting { max_actions_per_turn: 4, max_turns: 9, ..Prompting::default() });
        // Valid ones are carried out beside an invalid one, which costs once and uses nothing up.
        let outcome = walk.act(&answer("RIGHT || jump || right || fly"));
        assert_near(outcome.reward, 0.5 + 0.5 - 0.1);
        assert_eq!((info(&outcome), outcome.end), ([1.0, 1.0, 2.0, -0.1], None));
        assert_eq!(walk.game().observe(), "__oRR");
        // Beyond the limit of a turn nothing is looked at.
        let outcome = walk.act(&answer("left || left || left || left || jump"));
        assert_near(outcome.reward, -0.4);
        assert_eq!((info(&outcome), outcome.end), ([1.0, 0.0, 4.0, 0.0], None));
        // None at all.
        for text in ["", "right", &answer(""), &answer("jump")] {
            let outcome = walk.act(text);
            assert_near(outcome.reward, -0.1);
            assert_eq!((info(&outcome), outcome.end), ([0.0, 0.0, 0.0, -0.1], None), "{text}");
        }
        assert_eq!(walk.game().observe(), "oRRLLLL");
        // Four actions are left of ten.
        let outcome = walk.act(&answer("right || right || left"));
        assert_eq!((info(&outcome), outcome.end), ([1.0, 1.0, 3.0, 0.0], None));
        let outcome = walk.act(&answer("right || right || right"));
        assert_near(outcome.reward, 0.5);
        assert_eq!((info(&outcome), outcome.end), ([1.0, 1.0, 1.0, 0.0], Some(EpisodeEnd::Truncated)));
        assert_eq!(walk.game().observe(), "__oRRLLLLRRLR");
        assert!(!walk.is_success());
    }

    #[test]
    fn ends() {
        // Won, with actions behind it: a valid one costs nothing, an unknown one the penalty.
        for (behind, penalty) in [("left", 0.0), ("jump", -0.1)] {
            let mut walk = prompted(1, loose());
            let outcome = walk.act(&answer(&format!("right || {behind}")));
            assert_near(outcome.reward, 1.5 + penalty);
            assert_eq!(
                (info(&outcome), outcome.end),
                ([1.0, 1.0, 1.0, penalty], Some(EpisodeEnd::Terminated))
            );
            assert!(walk.is_success());
            // Nothing happens after the end.
            let outcome = walk.act(&answer("left"));
            assert_eq!(outcome, TurnOutcome { end: Some(EpisodeEnd::Terminated), ..TurnOutcome::default() });
            assert_eq!(walk.game().observe(), "_oR");
        }
        // Won with the last action of the last turn: the world's end comes first.
        let mut walk = prompted(1, Prompting { max_actions: 1, max_turns: 1, ..Prompting::default() });
        assert_eq!(walk.act(&answer("right")).end, Some(EpisodeEnd::Terminated));
        let mut walk = prompted(9, Prompting { max_turns: 2, ..Prompting::default() });
        assert_eq!(walk.act("nothing").end, None);
        assert_eq!(walk.act("nothing").end, Some(EpisodeEnd::Truncated));
    }

    #[test]
    fn settings_out_of_range() {
        let fail = |prompting| {
            PromptedGame::new(Box::new(Walk::new(3)), prompting).err().expect("out of range").to_string()
        };
        let default = Prompting::default;
        for (prompting, message) in [
            (
                Prompting { max_turns: 0, ..default() },
                "setting `max_turns` is 0; expected a finite number, at least 1",
            ),
            (
                Prompting { max_actions: 0, ..default() },
                "setting `max_actions` is 0; expected a finite number, at least 1",
            ),
            (
                Prompting { max_actions_per_turn: 0, ..default() },
                "setting `max_actions_per_turn` is 0; expected a finite number, at least 1",
            ),
            (
                Prompting { format_penalty: 0.1, ..default() },
                "setting `format_penalty` is 0.1; expected a finite number, from -1000000 to 0",
            ),
            (
                Prompting { max_tokens: Some(0), ..default() },
                "setting `max_tokens` is 0; expected a finite number, at least 1",
            ),
            (
                Prompting { action_separator: String::new(), ..default() },
                "setting `action_separator` is \"\"; expected a non-empty text",
            ),
            (
                Prompting { action_separator: "i".to_owned(), ..default() },
                "setting `action_separator` is \"i\"; expected a text that is in no action, and one is \"Right\"",
            ),
        ] {
            assert_eq!(fail(prompting), message);
        }
        let read: Prompting =
            serde_json::from_str(r#"{"think": false, "max_tokens": 100}"#).expect("settings");
        assert_eq!(read, Prompting { think: false, max_tokens: Some(100), ..default() });
        assert!(serde_json::from_str::<Prompting>(r#"{"thinks": false}"#).is_err());
    }

    /// Texts of tags, actions and anything else.
    fn texts() -> impl Strategy<Value = String> {
        let pieces = prop_oneof![
            Just("<think>".to_owned()),
            Just("</think>".to_owned()),
            Just("<answer>".to_owned()),
            Just("</answer>".to_owned()),
            Just("<|im_end|>".to_owned()),
            Just(" || ".to_owned()),
            Just("Left".to_owned()),
            Just("right".to_owned()),
            Just("jump".to_owned()),
            Just("\n ".to_owned()),
            "\\PC{0,8}",
            any::<String>(),
        ];
        prop_oneof![
            proptest::collection::vec(pieces, 0..24).prop_map(|pieces| pieces.concat()),
            proptest::collection::vec("Left|RIGHT|jump|\\PC{0,3}", 0..12)
                .prop_map(|actions| answer(&actions.join(" || "))),
        ]
    }

    fn promptings() -> impl Strategy<Value = Prompting> {
        (any::<[bool; 2]>(), 1usize..6, 1usize..9, 1usize..9).prop_map(
            |([think, show_reward], max_actions_per_turn, max_actions, max_turns)| Prompting {
                think,
                max_actions_per_turn,
                max_actions,
                max_turns,
                show_reward,
                ..Prompting::default()
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// An episode of any texts whatsoever, against the rule written out anew.
        #[test]
        fn any_texts(texts in proptest::collection::vec(texts(), 1..10), prompting in promptings(), goal in 1usize..5, is_listed: bool) {
            let mut model = Walk { is_listed, ..Walk::new(goal) };
            let mut walk = PromptedGame::new(Box::new(model.clone()), prompting.clone()).expect("an environment");
            let mut left = prompting.max_actions;
            for (turn, text) in texts.iter().enumerate() {
                let before = walk.game().observe();
                let outcome = walk.act(text);
                let [is_valid, is_effective, num_actions, penalty] = info(&outcome);

                let named = prompting.parse(text);
                prop_assert!(named.len() <= prompting.max_actions_per_turn);
                let is_action = |name: &String| ["left", "right"].contains(&name.to_ascii_lowercase().as_str());
                let (mut sum, mut last, mut count) = (0.0, Played::default(), 0);
                for name in named.iter().filter(|name| is_action(name)) {
                    if left == 0 || last.is_over {
                        break;
                    }
                    last = model.play(name).expect("an action");
                    (sum, left, count) = (sum + last.reward, left - 1, count + 1);
                }
                prop_assert_eq!(walk.game().observe(), model.observe());
                prop_assert_eq!(num_actions, f64::from(count));
                prop_assert_eq!(is_valid > 0.0, count > 0);
                prop_assert_eq!(is_effective > 0.0, last.is_effective);
                prop_assert!((outcome.reward - sum - penalty).abs() < 1e-9);
                prop_assert!(penalty == 0.0 || penalty == -0.1);
                if is_listed {
                    prop_assert_eq!(penalty == 0.0, !named.is_empty() && named.iter().all(is_action));
                }
                if !named.iter().any(is_action) {
                    prop_assert_eq!(outcome.reward, -0.1);
                    prop_assert_eq!(walk.game().observe(), before);
                    prop_assert!(walk.observe().contains(WARNING));
                }
                let end = if last.is_over {
                    Some(EpisodeEnd::Terminated)
                } else {
                    (left == 0 || turn + 1 == prompting.max_turns).then_some(EpisodeEnd::Truncated)
                };
                prop_assert_eq!(outcome.end, end);
                prop_assert_eq!(walk.is_success(), model.is_success());
                if end.is_some() {
                    break;
                }
                prop_assert!(walk.observe().contains(&format!("\nTurn {}:\n", turn + 2)), "turns are counted");
            }
        }

        /// The pattern, written as a search by hand.
        #[test]
        fn answers_are_found_as_the_pattern_says(text in texts()) {
            let by_hand = || {
                let mut rest = text.split_once("<think>")?.1;
                loop {
                    rest = rest.split_once("</think>")?.1;
                    if let Some(answer) = rest.trim_start().strip_prefix("<answer>") {
                        return answer.split_once("</answer>").map(|(answer, _)| answer);
                    }
                }
            };
            let found = THINK_AND_ANSWER.captures(&text).and_then(|captures| captures.get(1)).map(|found| found.as_str());
            prop_assert_eq!(found, by_hand());
        }
    }
}
