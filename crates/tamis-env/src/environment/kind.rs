//! The kinds of environments by name, as a configuration chooses them. One line registers a kind.

use tamis_core::fault;
use tamis_core::fault::Fault;
use tamis_core::random::{Key, Purpose};
use tamis_core::{choice, tagged};

use super::Environment;
use super::bandit::{Bandit, BanditSettings};
use super::countdown::{Countdown, CountdownSettings};
use super::foreign::settings::{
    CommandEnvironmentSettings, ForeignSettings, ForeignSpec, GymnasiumSettings, HttpEnvironmentSettings,
    PythonEnvironmentSettings, VerifiersSettings,
};
use super::frozen_lake::{FrozenLake, FrozenLakeSettings};
use super::game::Game;
use super::plain::Plain;
use super::program::ProgramEnvironmentSettings;
use super::prompting::{PromptedGame, Prompting};
use super::rubik_2x2::{Rubik2x2, Rubik2x2Settings};
use super::sokoban::{Sokoban, SokobanSettings};
use super::sudoku::{Sudoku, SudokuSettings};
use super::tools::ToolSettings;
use super::twenty_forty_eight::{TwentyFortyEight, TwentyFortyEightSettings};

/// The sorts of environments.
pub enum World<'a> {
    /// A built-in game.
    Game(&'a dyn GameSettings),
    /// An external environment.
    Foreign(ForeignSpec),
    /// Tools, with which any prompt is answered.
    Tools(&'a ToolSettings),
    /// A program that plays any prompt and calls the policy itself.
    Program(&'a ProgramEnvironmentSettings),
}

/// The settings of a kind of environment.
pub trait KindSettings {
    /// Its sort.
    fn world(&self) -> World<'_>;
}

/// The settings of one game.
pub trait GameSettings {
    /// The game at its start. Members of a group have the same `start`, and each has its own `luck`.
    fn begin(&self, start: Key, luck: Key) -> Result<Box<dyn Game>, Fault>;

    /// The default instruction to the policy about the game.
    fn instruction(&self) -> &'static str;
}

macro_rules! games {
    ($($settings:ty, $instruction:expr, |$own:ident, $start:ident, $luck:ident| $made:expr;)*) => {$(
        impl GameSettings for $settings {
            fn begin(&self, $start: Key, $luck: Key) -> Result<Box<dyn Game>, Fault> {
                let $own = self;
                Ok(Box::new($made?))
            }

            fn instruction(&self) -> &'static str {
                $instruction
            }
        }

        impl KindSettings for $settings {
            fn world(&self) -> World<'_> {
                World::Game(self)
            }
        }
    )*};
}

macro_rules! elsewhere {
    ($($settings:ty),*) => {$(
        impl KindSettings for $settings {
            fn world(&self) -> World<'_> {
                World::Foreign(self.spec())
            }
        }
    )*};
}

impl KindSettings for ToolSettings {
    fn world(&self) -> World<'_> {
        World::Tools(self)
    }
}

impl KindSettings for ProgramEnvironmentSettings {
    fn world(&self) -> World<'_> {
        World::Program(self)
    }
}

elsewhere!(
    GymnasiumSettings,
    VerifiersSettings,
    PythonEnvironmentSettings,
    CommandEnvironmentSettings,
    HttpEnvironmentSettings
);

games! {
    BanditSettings,
        "You are playing a bandit game. Choose one of two arms, named after professions; what an arm pays may depend on \
         luck, and you want the one that pays more on average.",
        |own, start, luck| Bandit::new(own, start, luck);
    CountdownSettings,
        "You are given some numbers and a target. Write an expression that uses every number exactly once, with +, -, * \
         and /, and equals the target.",
        |own, start, _luck| Countdown::new(own, start);
    FrozenLakeSettings,
        "You are solving the FrozenLake puzzle. Reach the goal without falling into a hole; the ice may be slippery.",
        |own, start, luck| FrozenLake::new(own, start, luck);
    Rubik2x2Settings, super::rubik_2x2::INSTRUCTION, |own, start, _luck| Rubik2x2::new(own, start);
    SokobanSettings,
        "You are solving the Sokoban puzzle. You are the player and need to push all boxes onto targets; a box can be \
         pushed and not pulled, and two cannot be pushed at once.",
        |own, start, _luck| Sokoban::new(own, start);
    SudokuSettings, super::sudoku::INSTRUCTION, |own, start, _luck| Sudoku::new(own, start);
    TwentyFortyEightSettings, super::twenty_forty_eight::INSTRUCTION,
        |own, start, _luck| TwentyFortyEight::new(own, start);
}

tagged! {
    /// The environment. Each kind has its own keys.
    pub enum EnvironmentKind: KindSettings {
        /// A two-armed bandit: one turn, one pull. The arm that pays more on average pays rarely.
        Bandit(BanditSettings) = "bandit",
        /// Numbers and a target: the answer is an expression of all the numbers that equals the target.
        /// Reward 0, 0.1 or 1.
        Countdown(CountdownSettings) = "countdown",
        /// A walk over ice with holes, as gymnasium's `FrozenLake`. Reward 1 at the goal.
        FrozenLake(FrozenLakeSettings) = "frozen_lake",
        /// A 2x2x2 cube. Reward 1 if it is solved.
        Rubik2x2(Rubik2x2Settings) = "rubik_2x2",
        /// Boxes to push onto targets, as `gym-sokoban`. Reward -0.1 per step, ±1 per box, +10 at the end.
        Sokoban(SokobanSettings) = "sokoban",
        /// Sudoku, one placement per turn.
        Sudoku(SudokuSettings) = "sudoku",
        /// 2048.
        TwentyFortyEight(TwentyFortyEightSettings) = "twenty_forty_eight",
        /// An environment of Gymnasium, in Python workers.
        Gymnasium(GymnasiumSettings) = "gymnasium",
        /// An environment of the package verifiers (the Environments Hub), in Python workers.
        Verifiers(VerifiersSettings) = "verifiers",
        /// A Python class of your own with `reset` and `step`, in Python workers.
        Python(PythonEnvironmentSettings) = "python",
        /// A program of your own that speaks `tamis-environment/1` in JSON lines.
        Command(CommandEnvironmentSettings) = "command",
        /// A server that speaks `tamis-environment/1` over HTTP.
        Http(HttpEnvironmentSettings) = "http",
        /// Tools that the policy calls in its answers, with prompts of any task or file.
        Tools(ToolSettings) = "tools",
        /// An agent: a program that calls OpenAI's API, with prompts of any task or file.
        Program(ProgramEnvironmentSettings) = "program",
    }
}

choice! {
    /// Format of an environment's messages to the policy.
    pub enum EnvironmentStyle {
        /// A conversation in RAGEN's form: instruction (in tamis's own words), legend, turns and actions
        /// left, `<think>` and `<answer>`.
        Ragen = "ragen",
        /// Only the state, as bare text. An answer is the name of one action. For models without language.
        Plain = "plain",
    }
}

/// A kind of environment with the format of its messages.
#[derive(Debug, Clone, PartialEq)]
pub struct EnvironmentMaker {
    /// The game.
    pub kind: EnvironmentKind,
    /// Format of its messages.
    pub style: EnvironmentStyle,
    /// The texts of style `ragen`, and the limits on turns and actions.
    pub prompting: Prompting,
}

/// The texts that a policy sees before its first answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opening {
    /// The text before everything else; `None` if there is none.
    pub system: Option<String>,
    /// The first observation.
    pub observation: String,
}

impl EnvironmentMaker {
    /// The environment at its start.
    pub fn begin(&self, start: Key, luck: Key) -> Result<Box<dyn Environment>, Fault> {
        Ok(match self.style {
            EnvironmentStyle::Ragen => Box::new(self.prompted(start, luck)?),
            EnvironmentStyle::Plain => Box::new(self.plain(start, luck)?),
        })
    }

    /// The texts that the policy sees at this start.
    pub fn open(&self, start: Key) -> Result<Opening, Fault> {
        Ok(match self.style {
            EnvironmentStyle::Ragen => {
                let prompted = self.prompted(start, start)?;
                Opening { system: Some(prompted.system_text()), observation: prompted.observe() }
            }
            EnvironmentStyle::Plain => {
                Opening { system: None, observation: self.plain(start, start)?.observe() }
            }
        })
    }

    /// Whether it is a built-in game.
    pub fn is_game(&self) -> bool {
        matches!(self.kind.world(), World::Game(_))
    }

    /// Whether it is a game that knows a perfect player's next action. It is true for a game that cannot be
    /// made.
    pub fn has_expert(&self) -> bool {
        let start = Key::new(0, Purpose::Environment);
        self.is_game() && self.game(start, start).map_or(true, |game| game.expert().is_some())
    }

    /// Whether a setting of [`Prompting`] has an effect. External environments have their own texts, and
    /// games of style `plain` have none.
    pub fn reads_prompting(&self, name: &str) -> bool {
        match (self.kind.world(), self.style) {
            (World::Game(_), EnvironmentStyle::Ragen) => true,
            (World::Game(_), EnvironmentStyle::Plain) => matches!(name, "max_turns" | "format_penalty"),
            (World::Foreign(_) | World::Tools(_) | World::Program(_), _) => name == "max_turns",
        }
    }

    /// Whether its levels may have something to imitate: a script's episodes or gold answers.
    pub fn may_be_imitated(&self) -> bool {
        !matches!(self.kind, EnvironmentKind::Gymnasium(_))
    }

    /// Whether it is a program, which plays an episode by itself.
    pub fn is_program(&self) -> bool {
        matches!(self.kind.world(), World::Program(_))
    }

    /// Whether it plays prompts of any task or file and has none of its own.
    pub fn plays_any_prompt(&self) -> bool {
        matches!(self.kind.world(), World::Tools(_) | World::Program(_))
    }

    /// How to reach it, if it is external.
    pub fn foreign(&self) -> Option<ForeignSpec> {
        match self.kind.world() {
            World::Game(_) | World::Tools(_) | World::Program(_) => None,
            World::Foreign(spec) => Some(spec),
        }
    }

    fn game_settings(&self) -> Result<&dyn GameSettings, Fault> {
        match self.kind.world() {
            World::Game(game) => Ok(game),
            _ => Err(fault!(
                "`{kind}` is not a built-in game: what it shows is known only when it runs",
                kind = self.kind.as_str()
            )),
        }
    }

    /// The game without its messages.
    pub fn game(&self, start: Key, luck: Key) -> Result<Box<dyn Game>, Fault> {
        self.game_settings()?.begin(start, luck)
    }

    /// Characters of its observations and answers.
    pub fn alphabet(&self, seed: u64) -> Result<String, Fault> {
        let key = Key::new(seed, Purpose::Environment);
        let game = self.game(key, key)?;
        let symbols = game.legend().into_iter().map(|(symbol, _)| symbol);
        let mut words = vec![game.letters(), self.answer(&[]), "\n0123456789-.".to_owned()];
        // The observations after an unusable answer and after a usable one.
        let mut environment = self.begin(key, key)?;
        for answer in [String::new(), self.answer(game.actions().get(..1).unwrap_or_default())] {
            words.push(environment.observe());
            if environment.act(&answer).end.is_some() {
                break;
            }
            words.push(environment.observe());
        }
        Ok(symbols.chain(words).collect())
    }

    /// An answer with these actions, in the style's format.
    pub fn answer(&self, actions: &[String]) -> String {
        match self.style {
            EnvironmentStyle::Plain => actions.first().cloned().unwrap_or_default(),
            EnvironmentStyle::Ragen => {
                let actions = actions.join(&format!(" {} ", self.prompting.action_separator));
                let thoughts = if self.prompting.think { "<think></think>" } else { "" };
                format!("{thoughts}<answer>{actions}</answer>")
            }
        }
    }

    fn prompted(&self, start: Key, luck: Key) -> Result<PromptedGame, Fault> {
        let mut prompting = self.prompting.clone();
        if prompting.instruction.is_empty() {
            self.game_settings()?.instruction().clone_into(&mut prompting.instruction);
        }
        PromptedGame::new(self.game(start, luck)?, prompting)
    }

    fn plain(&self, start: Key, luck: Key) -> Result<Plain, Fault> {
        let Prompting { max_turns, format_penalty, .. } = self.prompting;
        Ok(Plain::new(self.game(start, luck)?, max_turns, format_penalty))
    }
}
