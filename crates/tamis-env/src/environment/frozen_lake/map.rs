//! The ice: read from letters, or drawn with a path from start to goal.

use tamis_core::fault;
use tamis_core::fault::Fault;
use tamis_core::random::Key;

use super::LakePlaces;

/// Maps that are drawn before a path is cut into one.
pub const MAX_DRAWS: u64 = 1000;

/// Rows and columns of a lake, at most.
pub const MAX_SIZE: usize = 64;

/// Purposes of draws with the key of an attempt, so no two draws share numbers.
const CELLS: u64 = 1;
const PLACES: u64 = 2;
const CUT: u64 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cell {
    Start,
    Frozen,
    Hole,
    Goal,
}

impl Cell {
    pub(super) fn is_end(self) -> bool {
        matches!(self, Self::Hole | Self::Goal)
    }
}

/// A direction, in gymnasium's order: the perpendicular directions of one are its neighbours in the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LakeDirection {
    /// A column to the left.
    Left,
    /// A row down.
    Down,
    /// A column to the right.
    Right,
    /// A row up.
    Up,
}

impl LakeDirection {
    /// All, in the order of the actions.
    pub const ALL: [Self; 4] = [Self::Left, Self::Down, Self::Right, Self::Up];

    /// The name of its action.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Left => "Left",
            Self::Down => "Down",
            Self::Right => "Right",
            Self::Up => "Up",
        }
    }

    /// The direction a quarter turn on, in the order of [`LakeDirection::ALL`].
    pub(super) const fn next(self) -> Self {
        match self {
            Self::Left => Self::Down,
            Self::Down => Self::Right,
            Self::Right => Self::Up,
            Self::Up => Self::Left,
        }
    }
}

/// The ice: cells along the rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Map {
    pub(super) columns: usize,
    pub(super) cells: Vec<Cell>,
}

impl Map {
    /// The map of rows of letters.
    pub(super) fn read(rows: &[String]) -> Result<Self, Fault> {
        let columns = rows.first().map_or(0, |row| row.chars().count());
        let fits = |count| (1..=MAX_SIZE).contains(&count);
        if !(fits(rows.len()) && fits(columns)) || rows.len() * columns < 2 {
            return Err(fault!(
                "setting `map` has {rows} rows of {columns} cells; expected from 1 to {MAX_SIZE} of each, and 2 cells",
                rows = rows.len()
            ));
        }
        let mut cells = Vec::with_capacity(rows.len() * columns);
        for (row, letters) in rows.iter().enumerate() {
            let actual = letters.chars().count();
            if actual != columns {
                return Err(fault!(
                    "setting `map` has {actual} cells in row {row}; expected {columns}, as in the first row",
                    row = row + 1
                ));
            }
            for (column, symbol) in letters.chars().enumerate() {
                cells.push(match symbol {
                    'S' => Cell::Start,
                    'F' => Cell::Frozen,
                    'H' => Cell::Hole,
                    'G' => Cell::Goal,
                    _ => return Err(fault!("setting `map` has `{symbol}` in row {row}, column {column}; expected `S`, `F`, `H` or `G`", row = row + 1, column = column + 1)),
                });
            }
        }
        let map = Self { columns, cells };
        for (symbol, cell) in [('S', Cell::Start), ('G', Cell::Goal)] {
            if map.places(cell).next().is_none() {
                return Err(fault!("setting `map` has no `{symbol}`; expected at least one"));
            }
        }
        if let Some(start) = map.places(Cell::Start).find(|&start| !map.has_path(start)) {
            return Err(fault!(
                "setting `map` has no path from the start in row {row}, column {column} to a goal; expected one around the holes",
                row = start / columns + 1,
                column = start % columns + 1
            ));
        }
        Ok(map)
    }

    /// A square map with a path from start to goal. Each attempt has its own key.
    pub(super) fn draw(size: usize, frozen_prob: f64, places: LakePlaces, key: Key) -> Self {
        let mut attempt = 1;
        loop {
            let key = key.with(attempt);
            let (mut map, start, goal) = Self::draw_any(size, frozen_prob, places, key);
            if map.has_path(start) {
                return map;
            }
            if attempt == MAX_DRAWS {
                map.cut(start, goal, key.with(CUT).below(0, 2) == 0);
                return map;
            }
            attempt += 1;
        }
    }

    /// A square map, its start and its goal.
    fn draw_any(size: usize, frozen_prob: f64, places: LakePlaces, key: Key) -> (Self, usize, usize) {
        let count = size * size;
        let frozen = |cell: usize| key.with(CELLS).uniform(cell as u64) < frozen_prob;
        let mut cells: Vec<Cell> =
            (0..count).map(|cell| if frozen(cell) { Cell::Frozen } else { Cell::Hole }).collect();
        let (start, goal) = match places {
            LakePlaces::Corners => (0, count - 1),
            LakePlaces::Anywhere => {
                let key = key.with(PLACES);
                let start = key.below(0, count as u64) as usize;
                // One of the other cells.
                let goal = key.below(1, count as u64 - 1) as usize;
                (start, goal + usize::from(goal >= start))
            }
        };
        cells[start] = Cell::Start;
        cells[goal] = Cell::Goal;
        (Self { columns: size, cells }, start, goal)
    }

    /// Freezes the holes of a walk from start to goal with one turn.
    fn cut(&mut self, start: usize, goal: usize, is_row_first: bool) {
        let mut at = start;
        while at != goal {
            let (row, column) = (at / self.columns, at % self.columns);
            let (goal_row, goal_column) = (goal / self.columns, goal % self.columns);
            let is_along_row = column != goal_column && (is_row_first || row == goal_row);
            let direction = match is_along_row {
                true if column < goal_column => LakeDirection::Right,
                true => LakeDirection::Left,
                false if row < goal_row => LakeDirection::Down,
                false => LakeDirection::Up,
            };
            at = self.beside(at, direction);
            if self.cells[at] == Cell::Hole {
                self.cells[at] = Cell::Frozen;
            }
        }
    }

    pub(super) fn rows(&self) -> usize {
        self.cells.len() / self.columns
    }

    /// The cells of a kind, in order.
    pub(super) fn places(&self, kind: Cell) -> impl Iterator<Item = usize> {
        self.cells.iter().enumerate().filter(move |&(_, &cell)| cell == kind).map(|(place, _)| place)
    }

    pub(super) fn beside(&self, cell: usize, direction: LakeDirection) -> usize {
        let (row, column) = (cell / self.columns, cell % self.columns);
        let (row, column) = match direction {
            LakeDirection::Left => (row, column.saturating_sub(1)),
            LakeDirection::Down => ((row + 1).min(self.rows() - 1), column),
            LakeDirection::Right => (row, (column + 1).min(self.columns - 1)),
            LakeDirection::Up => (row.saturating_sub(1), column),
        };
        row * self.columns + column
    }

    /// Whether a goal can be reached around the holes.
    pub(super) fn has_path(&self, start: usize) -> bool {
        let mut is_seen = vec![false; self.cells.len()];
        let mut open = vec![start];
        while let Some(cell) = open.pop() {
            match self.cells[cell] {
                Cell::Goal => return true,
                Cell::Hole => continue,
                Cell::Start | Cell::Frozen => {}
            }
            if !std::mem::replace(&mut is_seen[cell], true) {
                open.extend(LakeDirection::ALL.map(|direction| self.beside(cell, direction)));
            }
        }
        false
    }
}
