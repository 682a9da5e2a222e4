//! Sokoban: push every box onto a target. Boxes can be pushed, one at a time, and never pulled. A room is
//! drawn from a key by playing backwards from its solution ([`Room::generate`]), so every room can be solved.
//! Rules, rewards and symbols are those of `gym-sokoban` 0.0.6 as RAGEN wraps it:
//!
//! | event of an action | reward |
//! |---|---|
//! | every action, also one that is blocked | -0.1 |
//! | more boxes stand on targets than before | +1 |
//! | fewer boxes stand on targets than before | -1 |
//! | all boxes stand on targets | +10 |
//!
//! A room of one box that is solved in `n` actions is worth `11 - 0.1 n`. The game is over when it is solved,
//! or after `max_steps` actions.

mod observation;
mod room;
#[cfg(test)]
mod tests;

use std::collections::{HashSet, VecDeque};

use tamis_core::fault;
use tamis_core::fault::Fault;
use tamis_core::random::Key;
use tamis_core::setting::Ranged;
use tamis_core::{choice, settings};

use super::game::{Game, Played, find_action};

pub use room::{Cell, Direction, Room};

/// Reward of every action.
pub const STEP_REWARD: f64 = -0.1;
/// Reward of an action after which more boxes stand on targets; its negative is that of fewer.
pub const BOX_REWARD: f64 = 1.0;
/// Reward of an action after which all boxes stand on targets.
pub const SOLVED_REWARD: f64 = 10.0;

choice! {
    /// Content of an observation of Sokoban.
    pub enum SokobanObservation {
        /// The room as rows of symbols.
        Grid = "grid",
        /// Size of the room, and coordinates of targets, boxes and player.
        Coordinates = "coord",
        /// The coordinates, followed by the rows of symbols.
        GridAndCoordinates = "grid_coord",
    }
}

choice! {
    /// Symbols of Sokoban's cells.
    pub enum SokobanSymbols {
        /// `#` wall, `_` empty, `O` target, `√` box on target, `X` box, `P` player, `S` player on target.
        Shapes = "shapes",
        /// The same with a space on either side, so a tokenizer sees every cell separately.
        SpacedShapes = "spaced_shapes",
        /// `W` wall, `.` empty, `G` target, `C` box on target, `B` box, `A` player, `@` player on target.
        Letters = "letters",
    }
}

settings! {
    /// A room of Sokoban. The defaults are those of RAGEN's `SimpleSokoban`, which leaves `search_depth` at
    /// the 300 of its environment.
    pub struct SokobanSettings {
        /// Rows of the room, including the walls at its border.
        rows: usize = 6, Between(3.0, 100.0);
        /// Columns of the room, including the walls at its border.
        columns: usize = 6, Between(3.0, 100.0);
        /// Number of boxes and of targets.
        boxes: usize = 1, Between(1.0, 100.0);
        /// Number of actions after which the game ends, solved or not.
        max_steps: u32 = 100, Between(1.0, 1e6);
        /// Most moves by which the search for a room goes back from its solution. Two of them are spent on
        /// its ends, as in RAGEN. A small number makes easy rooms.
        search_depth: usize = 300, Between(3.0, 1e6);
        /// Content of an observation.
        observation: SokobanObservation = SokobanObservation::Grid;
        /// Symbols of the cells.
        symbols: SokobanSymbols = SokobanSymbols::Shapes;
    }
}

/// Most states of the search for a solution. Two boxes in a room of 8 x 8 have fewer.
const MOST_STATES: usize = 100_000;

impl SokobanSettings {
    /// Checks whether they can make a room, without making one.
    ///
    /// # Errors
    /// A number out of range, or numbers that contradict each other.
    pub fn validate(&self) -> Result<(), Fault> {
        self.check_ranges()?;
        let &Self { rows, columns, boxes, search_depth, .. } = self;
        if rows.max(columns) < 5 {
            return Err(fault!(
                "settings `rows` and `columns` are {rows} and {columns}; one of them must be at least 5, or no box can be pushed"
            ));
        }
        let floor = (rows - 2) * (columns - 2);
        if floor < boxes + 2 {
            return Err(fault!(
                "setting `boxes` is {boxes}; a room of {rows} x {columns} has {floor} cells within its walls, which hold {} at most",
                floor - 2
            ));
        }
        if search_depth < boxes + 2 {
            return Err(fault!(
                "setting `search_depth` is {search_depth}; expected at least {} for {boxes} box(es)",
                boxes + 2
            ));
        }
        Ok(())
    }
}

/// A game of Sokoban.
///
/// ```
/// use tamis_core::random::{Key, Purpose};
/// use tamis_env::environment::game::Game;
/// use tamis_env::environment::sokoban::{Room, Sokoban, SokobanSettings};
///
/// let room: Room = "######\n#PX_O#\n######".parse()?;
/// let mut game = Sokoban::of_room(room, &SokobanSettings::default());
/// game.play("Right");
/// assert_eq!(game.observe(), "######\n#_PXO#\n######");
/// let last = game.play("right").expect("an action");
/// assert!(last.is_over && game.is_success());
/// assert_eq!(last.reward, -0.1 + 1.0 + 10.0);
///
/// let key = Key::new(7, Purpose::Task);
/// let drawn = Sokoban::new(&SokobanSettings::default(), key)?;
/// assert_eq!(drawn.observe(), Sokoban::new(&SokobanSettings::default(), key)?.observe());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sokoban {
    room: Room,
    num_on_target: usize,
    num_steps: u32,
    max_steps: u32,
    observation: SokobanObservation,
    symbols: SokobanSymbols,
}

impl Sokoban {
    /// A game in the room of a key; an error if many tries give no room ([`Room::generate`]).
    pub fn new(settings: &SokobanSettings, key: Key) -> Result<Self, Fault> {
        Ok(Self::of_room(Room::generate(settings, key)?, settings))
    }

    /// A game in this room. Of the settings, only `max_steps`, `observation` and `symbols` count.
    pub fn of_room(room: Room, settings: &SokobanSettings) -> Self {
        Self {
            num_on_target: room.num_boxes_on_target(),
            room,
            num_steps: 0,
            max_steps: settings.max_steps,
            observation: settings.observation,
            symbols: settings.symbols,
        }
    }

    /// The room in its present state.
    pub fn room(&self) -> &Room {
        &self.room
    }

    /// Takes one step, which pushes a box in the way if it can be pushed.
    pub fn step(&mut self, direction: Direction) -> Played {
        self.num_steps += 1;
        let is_effective = self.room.step(direction);
        let before = std::mem::replace(&mut self.num_on_target, self.room.num_boxes_on_target());
        let mut reward = STEP_REWARD;
        if self.num_on_target > before {
            reward += BOX_REWARD;
        } else if self.num_on_target < before {
            reward -= BOX_REWARD;
        }
        let is_solved = self.is_success();
        if is_solved {
            reward += SOLVED_REWARD;
        }
        Played { reward, is_over: is_solved || self.num_steps >= self.max_steps, is_effective }
    }
}

impl Game for Sokoban {
    fn legend(&self) -> Vec<(String, String)> {
        observation::legend(self.symbols)
    }

    fn actions(&self) -> Vec<String> {
        Direction::ALL.iter().map(Direction::to_string).collect()
    }

    fn observe(&self) -> String {
        observation::render(&self.room, self.observation, self.symbols)
    }

    fn play(&mut self, action: &str) -> Option<Played> {
        let direction = find_action(&Direction::ALL.map(Direction::as_str), action)?;
        Some(self.step(Direction::ALL[direction]))
    }

    /// The first step of a shortest solution; `None` if the search does not find one within 100,000 states.
    fn expert(&self) -> Option<String> {
        let mut seen = HashSet::from([self.room.clone()]);
        let mut open: VecDeque<(Room, Option<Direction>)> = VecDeque::from([(self.room.clone(), None)]);
        while let Some((room, first)) = open.pop_front() {
            if room.num_boxes_on_target() == room.num_boxes() {
                return first.map(|direction| direction.to_string());
            }
            for direction in Direction::ALL {
                let mut next = room.clone();
                if next.step(direction) && seen.len() < MOST_STATES && seen.insert(next.clone()) {
                    open.push_back((next, first.or(Some(direction))));
                }
            }
        }
        None
    }

    fn is_success(&self) -> bool {
        self.num_on_target == self.room.num_boxes()
    }
}
