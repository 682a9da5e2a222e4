//! Rooms: their cells, a step in them, and how one is drawn. A room is drawn in three stages. A walk of
//! random turns stamps small patches of floor into solid wall. Player and targets are put on floor at random,
//! a box on every target: this is the solved room. Then the game is played backwards: the player pulls a box
//! as it steps away. A depth-first search over the reachable rooms keeps the room whose boxes are farthest
//! from their targets, weighted by the number of changes from one box to another. Played forwards, the same
//! moves solve it.

use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::str::FromStr;

use tamis_core::fault;
use tamis_core::fault::Fault;
use tamis_core::random::Key;

use super::observation::symbol;
use super::{SokobanSettings, SokobanSymbols};

/// Probability that the walk through the walls turns before a step.
const TURN_PROB: f64 = 0.35;

/// Steps of that walk for each row and column.
const STEPS_PER_SIDE: f64 = 1.7;

/// Patches of floor that the walk stamps around itself: three rows of three cells, the highest bit at the
/// left.
const PATCHES: [[u8; 3]; 5] = [
    [0b000, 0b111, 0b000],
    [0b010, 0b010, 0b010],
    [0b000, 0b110, 0b010],
    [0b000, 0b110, 0b110],
    [0b000, 0b011, 0b010],
];

/// Most states of one search.
const MAX_STATES: usize = 300_000;

/// Most rooms that are tried for a key.
const MAX_TRIES: u64 = 10_000;

/// Most states of all searches for a key. It matters if large rooms have no solution.
const MAX_STATES_IN_ALL: usize = 100 * MAX_STATES;

/// A direction of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// To the row above.
    Up,
    /// To the row below.
    Down,
    /// To the column on the left.
    Left,
    /// To the column on the right.
    Right,
}

impl Direction {
    /// All four, in the order in which actions are listed.
    pub const ALL: [Self; 4] = [Self::Up, Self::Down, Self::Left, Self::Right];

    /// Its name, as an action.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Up => "Up",
            Self::Down => "Down",
            Self::Left => "Left",
            Self::Right => "Right",
        }
    }

    /// From a cell's place in a room to that of its neighbour.
    fn offset(self, columns: usize) -> isize {
        match self {
            Self::Up => -(columns as isize),
            Self::Down => columns as isize,
            Self::Left => -1,
            Self::Right => 1,
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

/// Content of a cell; the numbers are those of `gym-sokoban`, as RAGEN shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cell {
    /// A wall.
    Wall = 0,
    /// Free floor.
    Empty = 1,
    /// A free target.
    Target = 2,
    /// A box that stands on a target.
    BoxOnTarget = 3,
    /// A box that does not.
    Box = 4,
    /// The player on plain floor.
    Player = 5,
    /// The player on a target.
    PlayerOnTarget = 6,
}

const FLOOR: u8 = 1;
const TARGET: u8 = 2;
const BOX: u8 = 4;

/// A room: walls, targets, boxes and the player. Its border is wall, so a step never leaves it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Room {
    columns: usize,
    player: usize,
    num_boxes: usize,
    num_boxes_on_target: usize,
    /// Row by row. A wall is 0; all other cells have `FLOOR`, and `TARGET` and `BOX` if there is one.
    cells: Vec<u8>,
}

impl Room {
    /// Rows.
    pub fn rows(&self) -> usize {
        self.cells.len() / self.columns
    }

    /// Columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Boxes.
    pub fn num_boxes(&self) -> usize {
        self.num_boxes
    }

    /// Boxes that stand on targets.
    pub fn num_boxes_on_target(&self) -> usize {
        self.num_boxes_on_target
    }

    /// The player's row and column.
    pub fn player(&self) -> (usize, usize) {
        (self.player / self.columns, self.player % self.columns)
    }

    /// Content of a cell.
    ///
    /// # Panics
    /// Outside the room.
    pub fn cell(&self, row: usize, column: usize) -> Cell {
        let place = row * self.columns + column;
        let cell = self.cells[place];
        let is_target = cell & TARGET != 0;
        match (cell & BOX != 0, place == self.player) {
            (true, _) if is_target => Cell::BoxOnTarget,
            (true, _) => Cell::Box,
            (_, true) if is_target => Cell::PlayerOnTarget,
            (_, true) => Cell::Player,
            _ if cell == 0 => Cell::Wall,
            _ if is_target => Cell::Target,
            _ => Cell::Empty,
        }
    }

    /// Moves the player, and the box in front if it can be pushed. Returns whether the player moved.
    pub fn step(&mut self, direction: Direction) -> bool {
        let offset = direction.offset(self.columns);
        let to = self.player.wrapping_add_signed(offset);
        if self.cells[to] == 0 {
            return false;
        }
        if self.cells[to] & BOX != 0 {
            let beyond = to.wrapping_add_signed(offset);
            if !matches!(self.cells[beyond] & (FLOOR | BOX), FLOOR) {
                return false;
            }
            self.num_boxes_on_target -= usize::from(self.cells[to] & TARGET != 0);
            self.num_boxes_on_target += usize::from(self.cells[beyond] & TARGET != 0);
            self.cells[to] ^= BOX;
            self.cells[beyond] ^= BOX;
        }
        self.player = to;
        true
    }

    /// The room of a key: the same settings and key give the same room in every process.
    /// A try that leaves too little floor, or no way to move every box off its target, is followed by the
    /// next, which draws from the key narrowed by its number. Too many of them are an error.
    pub fn generate(settings: &SokobanSettings, key: Key) -> Result<Self, Fault> {
        settings.validate()?;
        let mut search = Search::new(settings);
        let mut tries = 0;
        while tries < MAX_TRIES && search.num_states < MAX_STATES_IN_ALL {
            if let Some(room) = Self::attempt(settings, &mut search, Draws::new(key.with(tries))) {
                return Ok(room);
            }
            tries += 1;
        }
        let &SokobanSettings { rows, columns, boxes, search_depth, .. } = settings;
        Err(fault!(
            "settings `rows` x `columns` {rows} x {columns}, `boxes` {boxes} and `search_depth` {search_depth} made no room in {tries} tries; expected fewer boxes, a larger room or a deeper search"
        ))
    }

    fn attempt(settings: &SokobanSettings, search: &mut Search, mut draws: Draws) -> Option<Self> {
        let &SokobanSettings { rows, columns, boxes: num_boxes, .. } = settings;
        let mut cells = carve(rows, columns, &mut draws);
        let mut free: Vec<usize> = (0..cells.len()).filter(|&place| cells[place] != 0).collect();
        if free.len() <= num_boxes + 1 {
            return None;
        }
        let player = free.remove(draws.below(free.len()));
        let mut targets: Vec<usize> = (0..num_boxes).map(|_| free.remove(draws.below(free.len()))).collect();
        targets.sort_unstable();
        for &target in &targets {
            cells[target] |= TARGET;
        }
        let start = search.play_backwards(&cells, &targets, player)?;
        for &place in &start.boxes {
            cells[place] |= BOX;
        }
        let player = stroll(&cells, columns, &start, &mut draws);
        Some(Self { columns, player, num_boxes, num_boxes_on_target: 0, cells })
    }
}

/// Numbers drawn one after the other from a key.
struct Draws {
    key: Key,
    counter: u64,
}

impl Draws {
    fn new(key: Key) -> Self {
        Self { key, counter: 0 }
    }

    fn next(&mut self) -> u64 {
        self.counter += 1;
        self.counter - 1
    }

    fn below(&mut self, bound: usize) -> usize {
        let counter = self.next();
        self.key.below(counter, bound as u64) as usize
    }

    fn happens(&mut self, probability: f64) -> bool {
        let counter = self.next();
        self.key.uniform(counter) < probability
    }

    fn direction(&mut self) -> Direction {
        Direction::ALL[self.below(Direction::ALL.len())]
    }
}

/// Walls with floor in them: a walk of random turns stamps a random patch at every step.
fn carve(rows: usize, columns: usize, draws: &mut Draws) -> Vec<u8> {
    let mut cells = vec![0; rows * columns];
    let mut direction = draws.direction();
    let (mut row, mut column) = (1 + draws.below(rows - 1), 1 + draws.below(columns - 1));
    let num_steps = (STEPS_PER_SIDE * (rows + columns) as f64) as usize;
    for _ in 0..num_steps {
        if draws.happens(TURN_PROB) {
            direction = draws.direction();
        }
        match direction {
            Direction::Up => row -= 1,
            Direction::Down => row += 1,
            Direction::Left => column -= 1,
            Direction::Right => column += 1,
        }
        (row, column) = (row.clamp(1, rows - 2), column.clamp(1, columns - 2));
        let patch = PATCHES[draws.below(PATCHES.len())];
        for (i, bits) in patch.into_iter().enumerate() {
            for j in (0..3).filter(|j| bits & (0b100 >> j) != 0) {
                let (row, column) = (row + i - 1, column + j - 1);
                if (1..rows - 1).contains(&row) && (1..columns - 1).contains(&column) {
                    cells[row * columns + column] = FLOOR;
                }
            }
        }
    }
    cells
}

/// The player's cell after up to three steps over free cells, none of them twice. Otherwise it would always
/// be beside the box that it pulled last.
fn stroll(cells: &[u8], columns: usize, start: &Start, draws: &mut Draws) -> usize {
    let mut path = vec![start.player];
    let mut goes_on = draws.happens(if start.displacement == 1 { 0.8 } else { 0.5 });
    while goes_on {
        let here = path[path.len() - 1];
        let ways: Vec<usize> = Direction::ALL
            .iter()
            .map(|direction| here.wrapping_add_signed(direction.offset(columns)))
            .filter(|to| cells[*to] & (FLOOR | BOX) == FLOOR && !path.contains(to))
            .collect();
        if ways.is_empty() {
            break;
        }
        path.push(ways[draws.below(ways.len())]);
        goes_on = path.len() <= 3 && draws.happens(0.5);
    }
    path[path.len() - 1]
}

/// The best room that a search has found.
struct Start {
    player: usize,
    boxes: Vec<usize>,
    /// Sum of the boxes' distances from their targets.
    displacement: usize,
    score: usize,
}

/// A move of a search that can be taken back.
struct Move {
    direction: Direction,
    /// Number of the box that it pulled, counted from 1; 0: none.
    pulled: u8,
    /// Directions after it that have been tried.
    num_tried: u8,
    /// The box that was pulled last, as `pulled`.
    last_pulled: u8,
    /// Number of changes to another box, up to and including this move.
    num_changes: usize,
}

/// The identity instead of a hash, because states are already well-mixed numbers.
#[derive(Default)]
struct Unmixed(u64);

impl Hasher for Unmixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

/// The search backwards from a solved room. A state (places of player and boxes) is identified by the
/// exclusive or of one random number for each place and kind. A collision would only lose a state.
struct Search {
    columns: usize,
    depth: usize,
    player_codes: Vec<u64>,
    box_codes: Vec<u64>,
    seen: HashSet<u64, BuildHasherDefault<Unmixed>>,
    moves: Vec<Move>,
    num_states: usize,
}

impl Search {
    fn new(settings: &SokobanSettings) -> Self {
        let codes = |kind| {
            let kind = Key::from_bits(0).with(kind);
            (0..settings.rows * settings.columns).map(|place| kind.with(place as u64).to_bits()).collect()
        };
        Self {
            columns: settings.columns,
            depth: settings.search_depth,
            player_codes: codes(0),
            box_codes: codes(1),
            seen: HashSet::default(),
            moves: Vec::new(),
            num_states: 0,
        }
    }

    /// The best room from which the solved one can be reached; `None` if not every box can leave its target.
    /// Depth first, directions in their order; a state that was seen is not entered again. The score is the
    /// sum of the boxes' distances from their own targets times the changes from box to box, and 0 as long as
    /// a target is covered by a box or the player; among equal ones the first wins.
    fn play_backwards(&mut self, cells: &[u8], targets: &[usize], mut player: usize) -> Option<Start> {
        let (columns, is_target) = (self.columns, |place: usize| cells[place] & TARGET != 0);
        let distance =
            |a: usize, b: usize| (a / columns).abs_diff(b / columns) + (a % columns).abs_diff(b % columns);
        let mut boxes = targets.to_vec();
        // Number of the box there, counted from 1.
        let mut standing = vec![0_u8; cells.len()];
        for (number, &place) in (1..).zip(targets) {
            standing[place] = number;
        }
        let mut num_on_target = boxes.len();
        let mut displacement = 0;
        let mut state =
            boxes.iter().fold(self.player_codes[player], |sum, &place| sum ^ self.box_codes[place]);
        let mut best: Option<Start> = None;

        self.seen.clear();
        self.seen.insert(state);
        self.moves.clear();
        let (mut num_tried, mut last_pulled, mut num_changes) = (0, 0, 0);
        loop {
            if num_tried == 4 {
                // Takes back the last move.
                let Some(taken) = self.moves.pop() else { break };
                let offset = taken.direction.offset(columns);
                let from = player.wrapping_add_signed(-offset);
                state ^= self.player_codes[player] ^ self.player_codes[from];
                if taken.pulled != 0 {
                    let behind = from.wrapping_add_signed(-offset);
                    let target = targets[usize::from(taken.pulled) - 1];
                    state ^= self.box_codes[from] ^ self.box_codes[behind];
                    standing[from] = 0;
                    standing[behind] = taken.pulled;
                    boxes[usize::from(taken.pulled) - 1] = behind;
                    num_on_target =
                        num_on_target - usize::from(is_target(from)) + usize::from(is_target(behind));
                    displacement = displacement + distance(behind, target) - distance(from, target);
                }
                player = from;
                (num_tried, last_pulled, num_changes) =
                    (taken.num_tried, taken.last_pulled, taken.num_changes);
                continue;
            }
            let direction = Direction::ALL[usize::from(num_tried)];
            num_tried += 1;
            let offset = direction.offset(columns);
            let to = player.wrapping_add_signed(offset);
            if cells[to] == 0 || standing[to] != 0 || self.moves.len() + 2 >= self.depth {
                continue;
            }
            if self.seen.len() >= MAX_STATES {
                break;
            }
            let behind = player.wrapping_add_signed(-offset);
            let pulled = standing[behind];
            let mut next = state ^ self.player_codes[player] ^ self.player_codes[to];
            if pulled != 0 {
                next ^= self.box_codes[behind] ^ self.box_codes[player];
            }
            if !self.seen.insert(next) {
                continue;
            }
            self.moves.push(Move { direction, pulled, num_tried, last_pulled, num_changes });
            state = next;
            if pulled != 0 {
                let target = targets[usize::from(pulled) - 1];
                standing[behind] = 0;
                standing[player] = pulled;
                boxes[usize::from(pulled) - 1] = player;
                num_on_target =
                    num_on_target - usize::from(is_target(behind)) + usize::from(is_target(player));
                displacement = displacement + distance(player, target) - distance(behind, target);
                num_changes += usize::from(pulled != last_pulled);
                last_pulled = pulled;
            }
            player = to;
            num_tried = 0;
            let is_open = num_on_target == 0 && !is_target(player);
            let score = if is_open { displacement * num_changes } else { 0 };
            if score > best.as_ref().map_or(0, |best| best.score) {
                let boxes = boxes.clone();
                best = Some(Start { player, boxes, displacement, score });
            }
        }
        self.num_states += self.seen.len();
        best
    }
}

/// Reads rows of the symbols of [`SokobanSymbols::Shapes`].
impl FromStr for Room {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let columns = text.lines().next().map_or(0, |line| line.chars().count());
        if columns == 0 {
            return Err(fault!("a room has at least one cell"));
        }
        let (mut cells, mut players) = (Vec::new(), Vec::new());
        for (line, row) in (1..).zip(text.lines()) {
            let found = row.chars().count();
            if found != columns {
                return Err(fault!("line {line} has {found} cells, expected {columns}"));
            }
            for symbol in row.chars() {
                cells.push(match symbol {
                    '#' => 0,
                    '_' | 'P' => FLOOR,
                    'O' | 'S' => FLOOR | TARGET,
                    'X' => FLOOR | BOX,
                    '√' => FLOOR | TARGET | BOX,
                    _ => {
                        return Err(fault!(
                            "line {line} has the symbol {symbol:?}, expected one of # _ O √ X P S"
                        ));
                    }
                });
                if matches!(symbol, 'P' | 'S') {
                    players.push(cells.len() - 1);
                }
            }
        }
        let last = cells.len() / columns - 1;
        for (row, of_row) in cells.chunks(columns).enumerate() {
            let is_closed = match row {
                0 => of_row.iter().all(|&cell| cell == 0),
                row if row == last => of_row.iter().all(|&cell| cell == 0),
                _ => of_row[0] == 0 && of_row[columns - 1] == 0,
            };
            if !is_closed {
                return Err(fault!(
                    "line {line} is open to the outside; expected walls all around",
                    line = row + 1
                ));
            }
        }
        let &[player] = players.as_slice() else {
            return Err(fault!("there are {} players, expected one", players.len()));
        };
        let count = |bits: u8| cells.iter().filter(|&&cell| cell & bits == bits).count();
        let (boxes, targets) = (count(BOX), count(TARGET));
        if boxes != targets || boxes == 0 {
            return Err(fault!(
                "there are {boxes} boxes and {targets} targets, expected as many of each and at least one"
            ));
        }
        Ok(Self { columns, player, num_boxes: boxes, num_boxes_on_target: count(BOX | TARGET), cells })
    }
}

/// Rows of the symbols of [`SokobanSymbols::Shapes`], as [`Room::from_str`] reads them.
impl fmt::Display for Room {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in 0..self.rows() {
            if row > 0 {
                formatter.write_str("\n")?;
            }
            for column in 0..self.columns {
                formatter.write_str(symbol(self.cell(row, column), SokobanSymbols::Shapes))?;
            }
        }
        Ok(())
    }
}
