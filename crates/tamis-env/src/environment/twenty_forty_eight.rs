//! `twenty_forty_eight`: 2048, the game of sliding tiles that merge in pairs.
//!
//! A move slides every tile as far as it goes. Two equal tiles that collide become one of twice the value;
//! each tile merges once per move, those nearest to the target edge first. After each move that changes
//! something, a new tile appears in an empty cell: a 4 with probability `four_prob`, otherwise a 2. The game
//! starts with two tiles.
//!
//! **Luck** is a function of the key and of the number of the tile, counted from the first: the policy's
//! moves only decide which cells are empty. A move that changes nothing draws nothing.
//!
//! **Rewards**, those of RAGEN: `0.1 · log2(m + 1)`, where m is the sum of the tiles that a move's merges
//! made (0 without one), and -0.1 for a move that changes nothing. The game is won if a tile reaches
//! `target`, and over if no move changes anything.

use tamis_core::fault;
use tamis_core::fault::Fault;
use tamis_core::random::Key;
use tamis_core::setting::Ranged;
use tamis_core::settings;

use super::game::{Game, Played, find_action};

/// The default instruction to a policy.
pub const INSTRUCTION: &str = "You are playing 2048. Every move slides all tiles of the grid up, down, left or right; two \
    equal tiles that meet merge into one of twice the value, and then a new tile appears. Make the largest tile that you \
    can. A move that changes nothing costs a little. Example: <answer>Up</answer>";

/// Names of the moves; [`lines`] depends on their order.
const ACTIONS: [&str; 4] = ["Up", "Down", "Left", "Right"];

const USELESS_REWARD: f64 = -0.1;
const MERGE_FACTOR: f64 = 0.1;

settings! {
    /// The game 2048.
    #[derive(Copy)]
    pub struct TwentyFortyEightSettings {
        /// Rows and columns of the grid.
        size: usize = 4, Between(2.0, 8.0);
        /// Probability that a new tile is a 4.
        four_prob: f64 = 0.1, Between(0.0, 1.0);
        /// Tile that wins: a power of two from 8 that fits into the grid.
        target: u64 = 2048, AtLeast(8.0);
        /// End the game when it is won. False: it continues as long as there is a move.
        ends_at_target: bool = false;
    }
}

/// A game of 2048 at some point of play.
#[derive(Debug, Clone, PartialEq)]
pub struct TwentyFortyEight {
    settings: TwentyFortyEightSettings,
    key: Key,
    /// Row by row, as powers of two; 0: empty.
    cells: Vec<u8>,
    num_tiles: u64,
    /// Sum of all merged tiles: the game's own score.
    score: f64,
    is_won: bool,
}

/// The lines that a move slides tiles along, each from the edge that they move towards.
fn lines(size: usize, action: usize) -> impl Iterator<Item = Vec<usize>> {
    (0..size).map(move |line| {
        let along = |i: usize| match action {
            0 => i * size + line,
            1 => (size - 1 - i) * size + line,
            2 => line * size + i,
            _ => line * size + size - 1 - i,
        };
        (0..size).map(along).collect()
    })
}

/// A line after its tiles slid to the front, with the powers of two of the tiles that merged.
fn slide(line: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let (mut slid, mut merged) = (Vec::with_capacity(line.len()), Vec::new());
    let mut tiles = line.iter().copied().filter(|&tile| tile > 0).peekable();
    while let Some(tile) = tiles.next() {
        if tiles.next_if_eq(&tile).is_some() {
            slid.push(tile + 1);
            merged.push(tile + 1);
        } else {
            slid.push(tile);
        }
    }
    slid.resize(line.len(), 0);
    (slid, merged)
}

impl TwentyFortyEight {
    /// The game of a key, with its first two tiles.
    ///
    /// # Errors
    /// A setting out of range: a target that is no tile, or none that the grid can hold.
    pub fn new(settings: &TwentyFortyEightSettings, key: Key) -> Result<Self, Fault> {
        settings.check_ranges()?;
        let TwentyFortyEightSettings { size, target, four_prob, .. } = *settings;
        if !target.is_power_of_two() {
            return Err(fault!("setting `target` is {target}; expected a power of two"));
        }
        // A full grid of 2^n, 2^(n-1), ..., 8, 4 and another 4 to set the chain off; with no 4 to come, one
        // step less.
        let largest = size * size + usize::from(four_prob > 0.0);
        if target.trailing_zeros() as usize > largest {
            return Err(fault!(
                "setting `target` is {target}; expected at most 2^{largest}, the largest tile with `size: {size}`"
            ));
        }
        let mut game = Self {
            settings: *settings,
            key,
            cells: vec![0; size * size],
            num_tiles: 0,
            score: 0.0,
            is_won: false,
        };
        game.add_tile();
        game.add_tile();
        Ok(game)
    }

    fn add_tile(&mut self) {
        let empty: Vec<usize> = (0..self.cells.len()).filter(|&cell| self.cells[cell] == 0).collect();
        let key = self.key.with(self.num_tiles);
        if let Some(&cell) = empty.get(key.below(0, empty.len() as u64) as usize) {
            self.cells[cell] = if key.uniform(1) < self.settings.four_prob { 2 } else { 1 };
            self.num_tiles += 1;
        }
    }

    /// The grid after a move, and the tiles that merged.
    fn moved(&self, action: usize) -> (Vec<u8>, Vec<u8>) {
        let (mut cells, mut merged) = (self.cells.clone(), Vec::new());
        for places in lines(self.settings.size, action) {
            let line: Vec<u8> = places.iter().map(|&cell| self.cells[cell]).collect();
            let (slid, of_line) = slide(&line);
            merged.extend(of_line);
            for (&cell, tile) in places.iter().zip(slid) {
                cells[cell] = tile;
            }
        }
        (cells, merged)
    }

    fn has_move(&self) -> bool {
        self.cells.contains(&0) || (0..ACTIONS.len()).any(|action| self.moved(action).0 != self.cells)
    }
}

impl Game for TwentyFortyEight {
    fn legend(&self) -> Vec<(String, String)> {
        vec![(".".to_owned(), "empty cell".to_owned())]
    }

    fn actions(&self) -> Vec<String> {
        ACTIONS.map(str::to_owned).to_vec()
    }

    fn observe(&self) -> String {
        let text = |&tile: &u8| if tile == 0 { ".".to_owned() } else { (1u128 << tile).to_string() };
        let cells: Vec<String> = self.cells.iter().map(text).collect();
        let width = cells.iter().map(String::len).max().unwrap_or(1);
        let row = |cells: &[String]| {
            cells.iter().map(|cell| format!("{cell:>width$}")).collect::<Vec<_>>().join(" ")
        };
        let mut rows: Vec<String> = cells.chunks(self.settings.size).map(row).collect();
        rows.push(format!("Score: {}", self.score));
        rows.join("\n")
    }

    fn play(&mut self, action: &str) -> Option<Played> {
        let (cells, merged) = self.moved(find_action(&ACTIONS, action)?);
        if cells == self.cells {
            return Some(Played { reward: USELESS_REWARD, is_over: false, is_effective: false });
        }
        self.cells = cells;
        let sum: f64 = merged.iter().map(|&tile| f64::from(tile).exp2()).sum();
        self.score += sum;
        self.is_won |= merged.iter().any(|&tile| u32::from(tile) >= self.settings.target.trailing_zeros());
        self.add_tile();
        let is_over = (self.is_won && self.settings.ends_at_target) || !self.has_move();
        Some(Played { reward: MERGE_FACTOR * (sum + 1.0).log2(), is_over, is_effective: true })
    }

    fn is_success(&self) -> bool {
        self.is_won
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "exact by construction")]
mod tests {
    use proptest::prelude::*;
    use tamis_core::random::Purpose;

    use super::*;

    fn game(settings: TwentyFortyEightSettings, seed: u64) -> TwentyFortyEight {
        TwentyFortyEight::new(&settings, Key::new(seed, Purpose::Task)).expect("a game")
    }

    /// A game with these powers of two.
    fn board(cells: &[u8], settings: TwentyFortyEightSettings) -> TwentyFortyEight {
        TwentyFortyEight { cells: cells.to_vec(), ..game(settings, 1) }
    }

    fn total(game: &TwentyFortyEight) -> u64 {
        game.cells.iter().filter(|&&tile| tile > 0).map(|&tile| 1u64 << tile).sum()
    }

    #[test]
    fn lines_slide_by_hand() {
        assert_eq!(slide(&[0, 1, 0, 1]), (vec![2, 0, 0, 0], vec![2]));
        // Those nearest the edge first, and each tile once a move.
        assert_eq!(slide(&[1, 1, 1, 0]), (vec![2, 1, 0, 0], vec![2]));
        assert_eq!(slide(&[1, 1, 1, 1]), (vec![2, 2, 0, 0], vec![2, 2]));
        assert_eq!(slide(&[2, 1, 1, 0]), (vec![2, 2, 0, 0], vec![2]));
        assert_eq!(slide(&[1, 2, 3, 4]), (vec![1, 2, 3, 4], vec![]));
        assert_eq!(slide(&[0, 0, 0, 0]), (vec![0, 0, 0, 0], vec![]));
    }

    #[test]
    fn moves_go_where_they_say() {
        let settings = TwentyFortyEightSettings { size: 2, target: 8, ..TwentyFortyEightSettings::default() };
        let start = board(&[1, 0, 0, 2], settings);
        for (action, cells) in ACTIONS.iter().zip([[1, 2, 0, 0], [0, 0, 1, 2], [1, 0, 2, 0], [0, 1, 0, 2]]) {
            assert_eq!(start.moved(find_action(&ACTIONS, action).expect("a move")).0, cells, "{action}");
        }
    }

    #[test]
    fn rewards_by_hand() {
        let mut game =
            board(&[2, 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], TwentyFortyEightSettings::default());
        let before = game.clone();
        let useless = Some(Played { reward: -0.1, is_over: false, is_effective: false });
        assert_eq!(game.play("Up"), useless);
        assert_eq!(game.play("jump"), None);
        assert_eq!(game, before);
        // 8 and 4: log2(13) / 10 = 0.3700.
        let played = game.play(" left ").expect("a move");
        assert!((played.reward - 0.370_044).abs() < 1e-6, "{}", played.reward);
        assert_eq!((played.is_over, played.is_effective, game.score), (false, true, 12.0));
        assert_eq!(&game.cells[..2], [3, 2]);
        // No merge: log2(1) = 0.
        let mut game =
            board(&[2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], TwentyFortyEightSettings::default());
        assert_eq!(game.play("DOWN"), Some(Played { reward: 0.0, is_over: false, is_effective: true }));
    }

    #[test]
    fn won_at_the_target_and_over_without_a_move() {
        let settings = TwentyFortyEightSettings {
            size: 2,
            target: 16,
            four_prob: 0.0,
            ..TwentyFortyEightSettings::default()
        };
        let mut game = board(&[3, 3, 0, 0], settings);
        assert!(!game.is_success());
        assert_eq!(game.play("Left").map(|played| played.is_over), Some(false));
        assert!(game.is_success());
        let mut game = board(&[3, 3, 0, 0], TwentyFortyEightSettings { ends_at_target: true, ..settings });
        assert_eq!(game.play("Left").map(|played| played.is_over), Some(true));
        // 2 . / 8 4 moved right: . 2 / 8 4, and the new 2 leaves a pair; 4 in the corner leaves none.
        let mut game = board(&[1, 0, 3, 2], settings);
        assert_eq!(game.play("Right").map(|played| played.is_over), Some(false));
        let mut game = board(&[2, 0, 3, 1], settings);
        assert_eq!(game.play("Right").map(|played| played.is_over), Some(true));
        assert!(!game.is_success());
    }

    #[test]
    fn grid_as_text() {
        let game = TwentyFortyEight {
            score: 20.0,
            ..board(&[11, 0, 1, 3, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 7], TwentyFortyEightSettings::default())
        };
        insta::assert_snapshot!(game.observe(), @r"
        2048    .    2    8
           .    .    .    .
           .    .    .    .
           4    .    .  128
        Score: 20
        ");
    }

    #[test]
    fn settings_out_of_range() {
        let fail = |settings| {
            TwentyFortyEight::new(&settings, Key::from_bits(0)).expect_err("out of range").to_string()
        };
        let default = TwentyFortyEightSettings::default();
        assert_eq!(
            fail(TwentyFortyEightSettings { target: 2000, ..default }),
            "setting `target` is 2000; expected a power of two"
        );
        assert_eq!(
            fail(TwentyFortyEightSettings { size: 2, target: 64, ..default }),
            "setting `target` is 64; expected at most 2^5, the largest tile with `size: 2`"
        );
    }

    #[test]
    fn new_tiles_are_drawn_as_often_as_they_should() {
        let num_games = 4000;
        let mut fours = 0;
        let mut starts = [0; 16];
        for seed in 0..num_games {
            let game = game(TwentyFortyEightSettings::default(), seed);
            assert_eq!(game.cells.iter().filter(|&&tile| tile > 0).count(), 2);
            fours += game.cells.iter().map(|&tile| usize::from(tile == 2)).sum::<usize>();
            for (count, &tile) in starts.iter_mut().zip(&game.cells) {
                *count += usize::from(tile > 0);
            }
        }
        // 800 of 8000 expected, with a standard deviation of 27; 500 in each cell, with one of 21.
        assert!((700..900).contains(&fours), "{fours}");
        assert!(starts.iter().all(|count| (410..590).contains(count)), "{starts:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn laws_of_a_whole_game(seed: u64, policy: u64, size in 2usize..5, four_prob in 0.0..=1.0f64) {
            let settings = TwentyFortyEightSettings { size, four_prob, target: 16, ends_at_target: false };
            let (mut first, mut again) = (game(settings, seed), game(settings, seed));
            for step in 0..400 {
                let action = ACTIONS[Key::from_bits(policy).below(step, 4) as usize];
                let before = first.clone();
                let played = first.play(action).expect("a move");
                prop_assert_eq!(Some(played), again.play(&action.to_lowercase()));
                prop_assert_eq!(&first, &again);
                if played.is_effective {
                    // Merging keeps the sum of tiles; a 2 or a 4 is new.
                    let new = total(&first) - total(&before);
                    prop_assert!(new == 2 || new == 4);
                    prop_assert_eq!(first.num_tiles, before.num_tiles + 1);
                    prop_assert!(played.reward >= 0.0);
                    prop_assert!((played.reward - 0.1 * (first.score - before.score + 1.0).log2()).abs() < 1e-9);
                } else {
                    prop_assert_eq!(played.reward, -0.1);
                    prop_assert_eq!(&first, &before);
                }
                let is_stuck = ACTIONS.iter().all(|action| {
                    !first.clone().play(action).expect("a move").is_effective
                });
                prop_assert_eq!(played.is_over, is_stuck);
                let largest = first.cells.iter().copied().max().unwrap_or(0);
                prop_assert_eq!(first.is_success(), largest >= 4);
                if played.is_over {
                    break;
                }
            }
        }
    }
}
