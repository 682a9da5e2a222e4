//! `sudoku`: fill a grid so that every row, column and box holds each number once.
//!
//! **Puzzles** have exactly one solution, which a solver ensures. A full grid is drawn. Its cells are emptied
//! in a drawn order, each only if the solution stays unique, until the required number is empty. If that
//! fails, the next full grid is drawn. Everything is a function of the key. A 4x4 puzzle takes microseconds,
//! a 9x9 puzzle about a millisecond, and about 30 with 57 empty cells.
//!
//! **Actions** follow a rule: `place 3 at 1 2` puts a 3 into row 1, column 2, both counted from 1.
//! `place 3 at row 1 col 2` and `1,2,3` (row, column, number) are also read. Case and spaces are ignored.
//!
//! **Rewards**, those of RAGEN: +1 for a right number, and +10 more for the one that completes the grid; -0.1
//! for a wrong number, for a filled cell, and for a place or number outside the grid, all of which leave the
//! grid unchanged. So a grid is never wrong, only unfinished, and the game ends when it is complete.

use tamis_core::fault;
use tamis_core::fault::Fault;
use tamis_core::random::Key;
use tamis_core::setting::Ranged;
use tamis_core::{choice, settings};

use super::game::{Game, Played};

/// The default instruction to a policy.
pub const INSTRUCTION: &str = "You are solving a Sudoku puzzle. Fill the grid so that every row, every column and every box \
    holds each number exactly once. Put a number into an empty cell by place NUMBER at ROW COLUMN, with rows and columns \
    counted from 1 at the top left. Example: <answer>place 3 at 1 2</answer>";

/// For a number in its right place.
const PLACEMENT_REWARD: f64 = 1.0;
/// In addition, for the number that completes the grid.
const COMPLETION_REWARD: f64 = 10.0;
/// For anything that is not placed.
const WRONG_REWARD: f64 = -0.1;

/// Most full grids that are tried for a puzzle. About half of the 9x9 grids give a puzzle with 57 empty cells
/// (117 of 200 measured), and all give one with 51; all 4x4 grids give one with 10.
const MAX_GRIDS: u64 = 2000;

choice! {
    /// Size of a Sudoku.
    pub enum SudokuSize {
        /// Numbers 1 to 4 in boxes of 2x2.
        Four = "4x4",
        /// Numbers 1 to 9 in boxes of 3x3.
        Nine = "9x9",
    }
}

impl SudokuSize {
    fn box_size(self) -> usize {
        match self {
            Self::Four => 2,
            Self::Nine => 3,
        }
    }

    /// Most empty cells, as in RAGEN's hard puzzles.
    const fn max_empty(self) -> usize {
        match self {
            Self::Four => 10,
            Self::Nine => 57,
        }
    }
}

settings! {
    /// Sudoku.
    #[derive(Copy)]
    pub struct SudokuSettings {
        /// Size of the grid.
        size: SudokuSize = SudokuSize::Four;
        /// Number of empty cells: up to 10 of 16, or up to 57 of 81. RAGEN's easy, medium and hard are 6, 7,
        /// 10 and 45, 51, 57.
        empty_cells: usize = 6, AtLeast(1.0);
    }
}

/// A Sudoku at some point of play.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sudoku {
    box_size: usize,
    /// Row by row; 0: empty.
    cells: Vec<u8>,
    solution: Vec<u8>,
}

/// A number and its place, as written: counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Placement {
    row: usize,
    column: usize,
    number: usize,
}

impl Placement {
    fn parse(text: &str) -> Option<Self> {
        let text = text.to_ascii_lowercase().replace(',', " ");
        let words: Vec<&str> = text.split_whitespace().collect();
        let (["place", number, "at", row, column]
        | ["place", number, "at", "row", row, "col" | "column", column]
        | [row, column, number]) = words[..]
        else {
            return None;
        };
        // `parse` alone would take `+3`.
        let count =
            |word: &str| word.bytes().all(|c| c.is_ascii_digit()).then(|| word.parse().ok()).flatten();
        Some(Self { row: count(row)?, column: count(column)?, number: count(number)? })
    }
}

impl Sudoku {
    /// The puzzle of a key.
    ///
    /// ```
    /// use tamis_core::random::{Key, Purpose};
    /// use tamis_env::environment::game::Game;
    /// use tamis_env::environment::sudoku::{Sudoku, SudokuSettings};
    /// let puzzle = Sudoku::new(&SudokuSettings::default(), Key::new(1, Purpose::Task))?;
    /// assert_eq!(puzzle.observe().matches('.').count(), 6);
    /// # Ok::<(), tamis_core::fault::Fault>(())
    /// ```
    ///
    /// # Errors
    /// More empty cells than the size allows, or none.
    pub fn new(settings: &SudokuSettings, key: Key) -> Result<Self, Fault> {
        settings.check_ranges()?;
        let SudokuSettings { size, empty_cells } = *settings;
        let (box_size, max) = (size.box_size(), size.max_empty());
        if empty_cells > max {
            return Err(fault!(
                "setting `empty_cells` is {empty_cells}; expected from 1 to {max} with `size: {size}`"
            ));
        }
        (0..MAX_GRIDS).find_map(|grid| Self::draw(box_size, empty_cells, key.with(grid))).ok_or_else(|| {
            fault!(
                "none of {MAX_GRIDS} grids has {empty_cells} cells (`empty_cells`) that leave one solution"
            )
        })
    }

    /// The puzzle of one full grid; `None` if too few cells can be emptied. One pass is enough: a cell whose
    /// number was needed is needed all the more when others are gone.
    fn draw(box_size: usize, empty_cells: usize, key: Key) -> Option<Self> {
        let side = box_size * box_size;
        let mut filler = Solver::new(box_size, &vec![0; side * side]);
        filler.shuffle(key.with(0));
        let solution = filler.solve(1).1?;
        let mut cells = solution.clone();
        let mut left = empty_cells;
        for cell in key.with(1).permutation(side * side) {
            if left == 0 {
                break;
            }
            let number = std::mem::take(&mut cells[cell]);
            if Solver::new(box_size, &cells).solve(2).0 == 1 {
                left -= 1;
            } else {
                cells[cell] = number;
            }
        }
        (left == 0).then_some(Self { box_size, cells, solution })
    }

    fn side(&self) -> usize {
        self.box_size * self.box_size
    }

    fn placement(&self, cell: usize, number: u64) -> String {
        format!("place {number} at {} {}", cell / self.side() + 1, cell % self.side() + 1)
    }

    /// The empty cell that a placement is right for.
    fn target(&self, Placement { row, column, number }: Placement) -> Option<usize> {
        let range = 1..=self.side();
        if !(range.contains(&row) && range.contains(&column)) {
            return None;
        }
        let cell = (row - 1) * self.side() + column - 1;
        (self.cells[cell] == 0 && usize::from(self.solution[cell]) == number).then_some(cell)
    }
}

impl Game for Sudoku {
    fn legend(&self) -> Vec<(String, String)> {
        vec![(".".to_owned(), "empty cell".to_owned())]
    }

    fn actions(&self) -> Vec<String> {
        Vec::new()
    }

    fn letters(&self) -> String {
        "0123456789, place at".to_owned()
    }

    fn observe(&self) -> String {
        let side = self.side();
        let mut text = String::new();
        for (row, cells) in self.cells.chunks(side).enumerate() {
            if row > 0 {
                text.push('\n');
            }
            if row > 0 && row % self.box_size == 0 {
                // The first and the last box have a space on one side only.
                let is_inner = |i: usize| i > 0 && i + 1 < self.box_size;
                let dashes = |i: usize| "-".repeat(2 * self.box_size + usize::from(is_inner(i)));
                text.push_str(&(0..self.box_size).map(dashes).collect::<Vec<_>>().join("+"));
                text.push('\n');
            }
            for (column, &number) in cells.iter().enumerate() {
                match column {
                    0 => {}
                    _ if column % self.box_size == 0 => text.push_str(" | "),
                    _ => text.push(' '),
                }
                text.push(
                    char::from_digit(u32::from(number), 10).filter(|&digit| digit != '0').unwrap_or('.'),
                );
            }
        }
        text
    }

    fn play(&mut self, action: &str) -> Option<Played> {
        let placement = Placement::parse(action)?;
        let Some(cell) = self.target(placement) else {
            return Some(Played { reward: WRONG_REWARD, is_over: false, is_effective: false });
        };
        self.cells[cell] = self.solution[cell];
        let is_over = self.is_success();
        let reward = PLACEMENT_REWARD + if is_over { COMPLETION_REWARD } else { 0.0 };
        Some(Played { reward, is_over, is_effective: true })
    }

    fn expert(&self) -> Option<String> {
        let cell = self.cells.iter().position(|&number| number == 0)?;
        Some(self.placement(cell, self.solution[cell].into()))
    }

    fn guess(&self, draw: Key) -> Option<String> {
        let empty: Vec<usize> = (0..self.cells.len()).filter(|&cell| self.cells[cell] == 0).collect();
        let cell = *empty.get(draw.below(1, empty.len() as u64) as usize)?;
        Some(self.placement(cell, 1 + draw.below(2, self.side() as u64)))
    }

    fn is_success(&self) -> bool {
        !self.cells.contains(&0)
    }
}

/// Search by the cell with the fewest numbers left. Sets of numbers are bits: number `n` is bit `n - 1`.
struct Solver {
    box_size: usize,
    cells: Vec<u8>,
    rows: [u16; 9],
    columns: [u16; 9],
    boxes: [u16; 9],
    /// Order in which the numbers of each cell are tried; empty: 1, 2, 3, ...
    orders: Vec<Vec<usize>>,
}

impl Solver {
    /// The cells must not contradict one another.
    fn new(box_size: usize, cells: &[u8]) -> Self {
        let mut solver = Self {
            box_size,
            cells: cells.to_vec(),
            rows: [0; 9],
            columns: [0; 9],
            boxes: [0; 9],
            orders: Vec::new(),
        };
        for (cell, &number) in cells.iter().enumerate() {
            if number > 0 {
                solver.toggle(cell, usize::from(number) - 1);
            }
        }
        solver
    }

    fn shuffle(&mut self, key: Key) {
        let side = self.box_size * self.box_size;
        self.orders = (0..self.cells.len()).map(|cell| key.with(cell as u64).permutation(side)).collect();
    }

    fn place(&self, cell: usize) -> (usize, usize, usize) {
        let side = self.box_size * self.box_size;
        let (row, column) = (cell / side, cell % side);
        (row, column, row / self.box_size * self.box_size + column / self.box_size)
    }

    /// Marks a number as used around a cell, or as free again.
    fn toggle(&mut self, cell: usize, bit: usize) {
        let (row, column, in_box) = self.place(cell);
        self.rows[row] ^= 1 << bit;
        self.columns[column] ^= 1 << bit;
        self.boxes[in_box] ^= 1 << bit;
    }

    fn candidates(&self, cell: usize) -> u16 {
        let (row, column, in_box) = self.place(cell);
        !(self.rows[row] | self.columns[column] | self.boxes[in_box])
            & ((1 << (self.box_size * self.box_size)) - 1)
    }

    /// The number of solutions, counted no further than a limit, and the first of them.
    fn solve(&mut self, limit: usize) -> (usize, Option<Vec<u8>>) {
        let mut found = (0, None);
        self.search(limit, &mut found);
        found
    }

    fn search(&mut self, limit: usize, found: &mut (usize, Option<Vec<u8>>)) {
        let mut tightest: Option<(u32, usize)> = None;
        for cell in 0..self.cells.len() {
            if self.cells[cell] == 0 {
                let count = self.candidates(cell).count_ones();
                if tightest.is_none_or(|(fewest, _)| count < fewest) {
                    tightest = Some((count, cell));
                }
                if count <= 1 {
                    break;
                }
            }
        }
        let Some((_, cell)) = tightest else {
            found.0 += 1;
            found.1.get_or_insert_with(|| self.cells.clone());
            return;
        };
        let candidates = self.candidates(cell);
        for nth in 0..self.box_size * self.box_size {
            let bit = self.orders.get(cell).map_or(nth, |order| order[nth]);
            if candidates & (1 << bit) == 0 {
                continue;
            }
            self.cells[cell] = bit as u8 + 1;
            self.toggle(cell, bit);
            self.search(limit, found);
            self.toggle(cell, bit);
            self.cells[cell] = 0;
            if found.0 >= limit {
                return;
            }
        }
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "exact by construction")]
mod tests {
    use proptest::prelude::*;
    use tamis_core::random::Purpose;

    use super::*;

    fn puzzle(size: SudokuSize, empty_cells: usize, seed: u64) -> Sudoku {
        Sudoku::new(&SudokuSettings { size, empty_cells }, Key::new(seed, Purpose::Task)).expect("a puzzle")
    }

    /// `(row, column, number)` of every empty cell, from 1.
    fn missing(puzzle: &Sudoku) -> Vec<(usize, usize, u8)> {
        let side = puzzle.side();
        (0..side * side)
            .filter(|&cell| puzzle.cells[cell] == 0)
            .map(|cell| (cell / side + 1, cell % side + 1, puzzle.solution[cell]))
            .collect()
    }

    /// The 4x4 grid of the examples: 1 is missing at (1, 2), 4 at (4, 4).
    fn example() -> Sudoku {
        let solution = vec![2, 1, 4, 3, 3, 4, 1, 2, 4, 3, 2, 1, 1, 2, 3, 4];
        let mut cells = solution.clone();
        (cells[1], cells[15]) = (0, 0);
        Sudoku { box_size: 2, cells, solution }
    }

    #[test]
    fn solver_counts_known_grids() {
        // 288 Sudokus of 4x4 exist.
        assert_eq!(Solver::new(2, &[0; 16]).solve(1000).0, 288);
        assert_eq!(Solver::new(3, &[0; 81]).solve(2).0, 2);
        // One of 17 givens, the fewest that a 9x9 puzzle can have (Royle's list).
        let givens = "000000010400000000020000000000050407008000300001090000300400200050100000000806000";
        let cells: Vec<u8> = givens.bytes().map(|digit| digit - b'0').collect();
        let (count, solution) = Solver::new(3, &cells).solve(2);
        assert_eq!(count, 1);
        let text: String = solution.expect("one").iter().map(u8::to_string).collect();
        assert_eq!(text, "693784512487512936125963874932651487568247391741398625319475268856129743274836159");
        // Row 1 holds 1, 2, 3; column 4 holds 4.
        let mut cells = [0; 16];
        (cells[0], cells[1], cells[2], cells[7]) = (1, 2, 3, 4);
        assert_eq!(Solver::new(2, &cells).solve(2), (0, None));
    }

    #[test]
    fn grid_as_text() {
        insta::assert_snapshot!(example().observe(), @r"
        2 . | 4 3
        3 4 | 1 2
        ----+----
        4 3 | 2 1
        1 2 | 3 .
        ");
        let nine = puzzle(SudokuSize::Nine, 1, 3);
        let text = nine.observe();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 11);
        assert_eq!(lines[3], "------+-------+------");
        assert!(lines.iter().all(|line| line.len() == 21), "{text}");
        assert!(lines[0].char_indices().filter(|&(_, c)| c == '|').map(|(i, _)| i).eq([6, 14]), "{text}");
        assert!(lines[3].char_indices().filter(|&(_, c)| c == '+').map(|(i, _)| i).eq([6, 14]), "{text}");
    }

    #[test]
    fn rewards_by_hand() {
        let mut puzzle = example();
        let wrong = Some(Played { reward: -0.1, is_over: false, is_effective: false });
        for action in [
            "place 2 at 1 2",
            "place 1 at 1 1",
            "place 1 at 5 2",
            "place 1 at 0 2",
            "place 9 at 1 2",
            "1,2,0",
        ] {
            assert_eq!(puzzle.play(action), wrong, "{action}");
        }
        assert_eq!(puzzle, example());
        assert_eq!(
            puzzle.play("place 1 at 1 2"),
            Some(Played { reward: 1.0, is_over: false, is_effective: true })
        );
        assert_eq!(puzzle.play("place 1 at 1 2"), wrong);
        assert!(!puzzle.is_success());
        assert_eq!(puzzle.play("4,4,4"), Some(Played { reward: 11.0, is_over: true, is_effective: true }));
        assert!(puzzle.is_success());
    }

    #[test]
    fn an_expert_completes_it_and_others_fill_empty_cells_with_anything() {
        let mut puzzle = example();
        let mut guessed: Vec<String> =
            (0..200).map(|i| puzzle.guess(Key::new(i, Purpose::Task)).unwrap()).collect();
        guessed.sort();
        guessed.dedup();
        let at = |place: &str, number: usize| format!("place {number} at {place}");
        let mut expected: Vec<String> = (1..=4).flat_map(|n| [at("1 2", n), at("4 4", n)]).collect();
        expected.sort();
        assert_eq!(guessed, expected);
        let mut written = Vec::new();
        while let Some(action) = puzzle.expert() {
            puzzle.play(&action);
            written.push(action);
        }
        assert_eq!(written, ["place 1 at 1 2", "place 4 at 4 4"]);
        assert!(puzzle.is_success());
        assert_eq!(puzzle.guess(Key::new(0, Purpose::Task)), None);
        assert!(guessed.concat().chars().all(|letter| puzzle.letters().contains(letter)));
    }

    #[test]
    fn spellings() {
        let meant = Some(Placement { row: 1, column: 2, number: 3 });
        for text in [
            "place 3 at 1 2",
            "  PLACE 3  At 1,2 ",
            "place 3 at row 1 col 2",
            "Place 3 at row 1, column 2",
            "1,2,3",
            "1, 2, 3",
            "1 2 3",
        ] {
            assert_eq!(Placement::parse(text), meant, "{text}");
        }
        for text in [
            "",
            "3",
            "1,2",
            "1,2,3,4",
            "place three at 1 2",
            "place +3 at 1 2",
            "1,2,-3",
            "1;2;3",
            "place 3 in 1 2",
            "1,2,99999999999999999999999",
        ] {
            assert_eq!(Placement::parse(text), None, "{text}");
            assert_eq!(example().play(text), None, "{text}");
        }
    }

    #[test]
    fn settings_out_of_range() {
        let fail = |size, empty_cells| {
            Sudoku::new(&SudokuSettings { size, empty_cells }, Key::from_bits(0))
                .expect_err("out of range")
                .to_string()
        };
        assert_eq!(
            fail(SudokuSize::Four, 11),
            "setting `empty_cells` is 11; expected from 1 to 10 with `size: 4x4`"
        );
        assert_eq!(
            fail(SudokuSize::Nine, 58),
            "setting `empty_cells` is 58; expected from 1 to 57 with `size: 9x9`"
        );
    }

    #[test]
    fn the_emptiest_puzzles_are_found() {
        for seed in 0..20 {
            for (size, empty_cells) in [(SudokuSize::Four, 10), (SudokuSize::Nine, 57)] {
                let puzzle = puzzle(size, empty_cells, seed);
                assert_eq!(missing(&puzzle).len(), empty_cells);
                assert_eq!(Solver::new(puzzle.box_size, &puzzle.cells).solve(2), (1, Some(puzzle.solution)));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn puzzles_have_one_solution_and_depend_on_the_key_alone(seed: u64, is_nine: bool, share in 0.0..1.0f64) {
            let (size, most) = if is_nine { (SudokuSize::Nine, 50.0) } else { (SudokuSize::Four, 10.0) };
            let empty_cells = 1 + (share * most) as usize;
            let empty_cells = empty_cells.min(size.max_empty());
            let drawn = puzzle(size, empty_cells, seed);
            prop_assert_eq!(&drawn, &puzzle(size, empty_cells, seed));
            // Two of the 6.7e21 grids.
            prop_assert!(!is_nine || drawn.solution != puzzle(size, 1, seed ^ 1).solution);
            prop_assert_eq!(missing(&drawn).len(), empty_cells);
            prop_assert_eq!(
                Solver::new(drawn.box_size, &drawn.cells).solve(2),
                (1, Some(drawn.solution.clone()))
            );
            let side = drawn.side();
            for unit in 0..side {
                let cells: Vec<usize> = (0..side * side).collect();
                for of in 0..3 {
                    let solver = Solver::new(drawn.box_size, &vec![0; side * side]);
                    let mut numbers: Vec<u8> = cells
                        .iter()
                        .filter(|&&cell| { let (row, column, in_box) = solver.place(cell); [row, column, in_box][of] == unit })
                        .map(|&cell| drawn.solution[cell])
                        .collect();
                    numbers.sort_unstable();
                    prop_assert_eq!(numbers, (1..=side as u8).collect::<Vec<_>>());
                }
            }
        }

        #[test]
        fn a_solved_game_earns_one_a_cell_and_ten(seed: u64, order_seed: u64) {
            let mut puzzle = puzzle(SudokuSize::Four, 8, seed);
            let missing = missing(&puzzle);
            let mut sum = 0.0;
            for (nth, i) in Key::from_bits(order_seed).permutation(8).into_iter().enumerate() {
                let (row, column, number) = missing[i];
                prop_assert!(!puzzle.is_success());
                let played = puzzle.play(&format!("place {number} at {row} {column}")).expect("an action");
                prop_assert_eq!((played.is_effective, played.is_over), (true, nth == 7));
                sum += played.reward;
            }
            prop_assert!(puzzle.is_success());
            prop_assert!((sum - 18.0_f64).abs() < 1e-9);
        }

        #[test]
        fn any_text_leaves_a_consistent_grid(text in "\\PC{0,20}|[0-9, ]{0,9}|place [0-9] at [0-9] [0-9]") {
            let (before, mut after) = (example(), example());
            match after.play(&text) {
                Some(Played { is_effective: true, reward, .. }) => {
                    prop_assert!(reward >= 1.0);
                    prop_assert_eq!(missing(&after).len() + 1, missing(&before).len());
                }
                Some(played) => {
                    prop_assert_eq!(played.reward, -0.1);
                    prop_assert_eq!(after, before);
                }
                None => prop_assert_eq!(after, before),
            }
        }
    }
}
