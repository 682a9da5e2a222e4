//! `environment`: levels of a game, to be played turn by turn. **Partition.** The side of a level depends
//! only on its first observation: it is held out if and only if a fixed hash of that text is below
//! [`HELD_OUT_SHARE`]. So no training level has the same first observation as a held-out one.
//!
//! **Determinism.** Level n of a side is a function of (seed, settings, side, n).

use serde_json::{Map, Value};
use tamis_core::fault;
use tamis_core::fault::Fault;
use tamis_core::figure::counted;
use tamis_core::group::PromptId;
use tamis_core::random::{Key, Purpose};
use tamis_data::prompt::{Message, Prompt, PromptContent};

use super::arithmetic::HELD_OUT_SHARE;
use super::{Split, Task, TaskError, TaskPrompts, TaskSource};
use crate::environment::Environment;
use crate::environment::context::Context;
use crate::environment::kind::EnvironmentMaker;

/// The column with the key of a level.
const LEVEL: &str = "level";

/// The column with the number of a level's environment, if that is not the first.
const ENVIRONMENT: &str = "environment_of_level";

/// The number of a prompt's environment among those of a run.
pub fn environment_of(prompt: &Prompt) -> usize {
    prompt.columns.get(ENVIRONMENT).and_then(Value::as_u64).unwrap_or(0) as usize
}

/// Sets the number of a prompt's environment.
pub fn set_environment(prompt: &mut Prompt, number: usize) {
    if number > 0 {
        prompt.columns.insert(ENVIRONMENT.to_owned(), number.into());
    }
}

/// Most draws for a level; after that an environment counts as having too few different starts.
const MOST_DRAWS: u64 = 1000;

/// The levels of an environment.
#[derive(Debug, Clone, PartialEq)]
pub struct EnvironmentLevels {
    /// The environment.
    pub maker: EnvironmentMaker,
    /// Its name; `None`: that of the kind.
    pub name: Option<String>,
    /// Number among the environments of a run.
    pub number: usize,
    /// The part of an episode that the policy sees.
    pub context: Context,
    /// Number of training levels.
    pub train_size: usize,
    /// Number of held-out levels.
    pub val_size: usize,
    /// Probability that a demonstration takes a perfect player's action.
    pub expert_prob: f64,
}

/// The environment of a prompt of this task; `None` for a prompt of another task.
pub fn begin(
    maker: &EnvironmentMaker,
    prompt: &Prompt,
    luck: Key,
) -> Result<Option<Box<dyn Environment>>, Fault> {
    start_of(prompt).map(|start| maker.begin(start, luck)).transpose()
}

fn start_of(prompt: &Prompt) -> Option<Key> {
    prompt.columns.get(LEVEL)?.as_str()?.parse().ok()
}

/// The task: one row for each level.
pub(super) struct EnvironmentTask;

/// Whether a level with this first observation is held out.
fn is_held_out(opening: &str) -> bool {
    let key = opening.bytes().fold(Key::new(0, Purpose::Environment), |key, byte| key.with(u64::from(byte)));
    key.uniform(0) < HELD_OUT_SHARE
}

impl EnvironmentLevels {
    /// The level of a number on a side, and whether its first observation is on that side.
    fn level(&self, seed: u64, split: Split, number: u64, most_draws: u64) -> Result<(Prompt, bool), Fault> {
        let side = Key::new(seed, Purpose::Environment).with(u64::from(split == Split::HeldOut));
        let side = if self.number > 0 { side.with(u64::MAX).with(self.number as u64) } else { side };
        let mut draw = 0;
        loop {
            let start = side.with(number).with(draw);
            let opening = self.maker.open(start)?;
            let is_right = is_held_out(&opening.observation) == (split == Split::HeldOut);
            draw += 1;
            if !is_right && draw < most_draws {
                continue;
            }
            let message = |role: &str, content: String| Message::new(role, content);
            let content = match opening.system {
                Some(system) => PromptContent::Messages(vec![
                    message("system", system),
                    message("user", opening.observation),
                ]),
                None => PromptContent::Text(opening.observation),
            };
            let prompt = Prompt {
                id: PromptId(number),
                content,
                ground_truth: None,
                data_source: self.name.clone().unwrap_or_else(|| self.maker.kind.as_str().to_owned()),
                columns: Map::from_iter([(LEVEL.to_owned(), Value::String(start.to_string()))]),
                images: Vec::new(),
                place: None,
            };
            return Ok((prompt, is_right));
        }
    }

    /// Turns of a script that plays a prompt's level: each answer, and the observation after it (`None` after
    /// the last). Empty if the game has no script.
    pub fn demonstrate(&self, prompt: &Prompt, key: Key) -> Vec<(String, Option<String>)> {
        let mut turns = Vec::new();
        let Some(start) = start_of(prompt) else { return turns };
        let luck = key.with(0);
        let (Ok(mut game), Ok(mut environment)) =
            (self.maker.game(start, luck), self.maker.begin(start, luck))
        else {
            return turns;
        };
        for turn in 0_u64.. {
            let draw = key.with(1).with(turn);
            let expert = if draw.uniform(0) < self.expert_prob { game.expert() } else { None };
            let Some(action) = expert.or_else(|| game.guess(draw)) else { break };
            let answer = self.maker.answer(std::slice::from_ref(&action));
            game.play(&action);
            let is_over = environment.act(&answer).end.is_some();
            turns.push((answer, (!is_over).then(|| environment.observe())));
            if is_over {
                break;
            }
        }
        turns
    }

    fn side(&self, seed: u64, split: Split, number: usize) -> Result<(Vec<Prompt>, usize), Fault> {
        let (mut prompts, mut num_wrong) = (Vec::with_capacity(number), 0);
        for number in 0..number as u64 {
            // A game with only one start always has it.
            let is_one = num_wrong > 3 && num_wrong == prompts.len();
            let most_draws = if is_one { 1 } else { MOST_DRAWS };
            let (prompt, is_right) = self.level(seed, split, number, most_draws)?;
            num_wrong += usize::from(!is_right);
            prompts.push(prompt);
        }
        Ok((prompts, num_wrong))
    }
}

impl Task for EnvironmentTask {
    fn verifier(&self) -> &'static str {
        "environment"
    }

    fn reads_files(&self) -> bool {
        false
    }

    fn keys(&self) -> &'static [&'static str] {
        &["environment"]
    }

    fn prompts(&self, source: &TaskSource<'_>, most: usize) -> Result<TaskPrompts, TaskError> {
        let levels = source
            .environment
            .as_ref()
            .ok_or_else(|| fault!("data.task is environment, but `environment` is not set"))?;
        if levels.maker.foreign().is_some() {
            // They are requested later, from the running environment.
            let (train, held_out, notes) = (Vec::new(), Vec::new(), Vec::new());
            return Ok(TaskPrompts { train, held_out, notes, alphabet: String::new() });
        }
        let (train, num_wrong_train) = levels.side(source.seed, Split::Train, levels.train_size.min(most))?;
        let (held_out, num_wrong) = levels.side(source.seed, Split::HeldOut, levels.val_size.min(most))?;
        let alphabet = levels.maker.alphabet(source.seed)? + levels.context.alphabet();
        let mut notes = vec![format!(
            "{}: {} training and {}",
            levels.name.as_deref().unwrap_or(levels.maker.kind.as_str()),
            train.len(),
            counted(held_out.len(), "held-out level")
        )];
        for (num_wrong, side, other) in
            [(num_wrong_train, "training", "held-out"), (num_wrong, "held-out", "training")]
        {
            if num_wrong > 0 {
                notes.push(format!(
                    "{num_wrong} of the {side} levels start like {other} levels: the game has too few starting positions"
                ));
            }
        }
        Ok(TaskPrompts { train, held_out, notes, alphabet })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::kind::{EnvironmentKind, EnvironmentStyle};
    use crate::environment::prompting::Prompting;

    fn levels(kind: &str, expert_prob: f64) -> EnvironmentLevels {
        let kind: EnvironmentKind = serde_json::from_value(serde_json::json!({"kind": kind})).unwrap();
        let prompting = Prompting { max_turns: 8, ..Prompting::default() };
        EnvironmentLevels {
            maker: EnvironmentMaker { kind, style: EnvironmentStyle::Plain, prompting },
            name: None,
            number: 0,
            context: Context::default(),
            train_size: 8,
            val_size: 0,
            expert_prob,
        }
    }

    /// Prompts of some training levels, each with the script's answers there.
    #[expect(clippy::type_complexity, reason = "prompts with what is shown of them")]
    fn demonstrated(levels: &EnvironmentLevels) -> Vec<(Prompt, Vec<(String, Option<String>)>)> {
        let (prompts, _) = levels.side(1, Split::Train, levels.train_size).unwrap();
        let key = Key::new(1, Purpose::Sft);
        let play = |prompt: Prompt| {
            let turns = levels.demonstrate(&prompt, key.with(prompt.id.0));
            (prompt, turns)
        };
        prompts.into_iter().map(play).collect()
    }

    #[test]
    fn a_script_plays_every_game_in_letters_of_its_alphabet() {
        for kind in
            ["bandit", "countdown", "frozen_lake", "rubik_2x2", "sokoban", "sudoku", "twenty_forty_eight"]
        {
            let levels = levels(kind, 0.5);
            for (prompt, turns) in demonstrated(&levels) {
                assert!(!turns.is_empty(), "{kind}");
                // A run has the letters of its prompts as well.
                let alphabet = levels.maker.alphabet(1).unwrap() + prompt.content.question();
                for (answer, _) in turns {
                    assert!(answer.chars().all(|letter| alphabet.contains(letter)), "{kind}: {answer}");
                }
            }
        }
    }

    #[test]
    fn an_expert_solves_what_is_written_by_a_rule() {
        for kind in ["countdown", "sudoku"] {
            for (prompt, turns) in demonstrated(&levels(kind, 1.0)) {
                let maker = levels(kind, 1.0).maker;
                let mut played = begin(&maker, &prompt, Key::new(0, Purpose::Environment)).unwrap().unwrap();
                for (answer, _) in &turns {
                    played.act(answer);
                }
                assert_eq!(played.is_success(), Some(true), "{kind}: {turns:?}");
            }
        }
    }
}
