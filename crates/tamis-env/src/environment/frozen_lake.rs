//! `frozen_lake`: a walk over ice to a goal, around holes, on ground that may carry the walker sideways.
//!
//! The law of transitions and the rewards are those of `FrozenLake-v1` in gymnasium 1.4.0
//! ([`FrozenLake::transitions`] equals its `env.P`); the drawn text, the names of the actions and the
//! defaults are RAGEN's. With `is_slippery` an action moves in its own direction with probability
//! `success_rate`, and in each of the two perpendicular directions with half of the rest. A step off the map
//! does not move. Reward 1 on the goal, 0 everywhere else.
//!
//! **Two keys.** The map and the start are drawn from the key *start*, which all members of a group share;
//! slips are drawn from the key *luck*, which differs between members, because otherwise members with the
//! same actions would slip alike. Slip number `n`, counting actions from 0, is a function of *luck* and `n`.
//!
//! # Differs from
//! gymnasium and RAGEN draw maps again until one has a path. Here drawing ends after [`MAX_DRAWS`] maps, and
//! a path is cut into the last one, so settings with rare paths cannot hang. RAGEN has no `max_steps`; 100 is
//! gymnasium's limit for a 4x4 lake.

mod map;

use std::collections::VecDeque;

use std::fmt::Write as _;

use tamis_core::fault;
use tamis_core::fault::Fault;
use tamis_core::random::Key;
use tamis_core::setting::Ranged;
use tamis_core::{choice, settings};

use self::map::{Cell, Map};
pub use self::map::{LakeDirection, MAX_DRAWS, MAX_SIZE};
use super::game::{Game, Played, find_action};

/// Purposes of draws, so no two draws share numbers.
const MAP: u64 = 1;
const START: u64 = 2;
const SLIPS: u64 = 3;

choice! {
    /// Where start and goal of a drawn lake lie.
    pub enum LakePlaces {
        /// On any two cells, as RAGEN draws them.
        Anywhere = "anywhere",
        /// The start at the upper left, the goal at the lower right, as gymnasium draws them.
        Corners = "corners",
    }
}

choice! {
    /// How a lake is shown.
    pub enum LakeView {
        /// The map, a symbol a cell.
        Grid = "grid",
        /// Coordinates of start, goal, player and holes, row first, from 0.
        Coordinates = "coord",
        /// Coordinates, followed by the map.
        Both = "grid_coord",
    }
}

settings! {
    /// The environment `frozen_lake`. RAGEN calls `frozen_prob` `p`.
    pub struct FrozenLakeSettings {
        /// Rows and columns of a drawn lake.
        size: usize = 4, Between(2.0, 64.0);
        /// Probability that a cell of a drawn lake is frozen and not a hole.
        frozen_prob: f64 = 0.9, Probability;
        /// Where start and goal of a drawn lake lie.
        places: LakePlaces = LakePlaces::Anywhere;
        /// The lake, one text per row: `S` start, `F` frozen, `H` hole, `G` goal. Empty: the lake is drawn.
        /// If there are several starts, one is drawn.
        map: Vec<String> = Vec::new();
        /// The ice may carry the player sideways.
        is_slippery: bool = true;
        /// Probability of moving in the action's direction, on slippery ice.
        success_rate: f64 = 0.8, Between(0.0, 1.0);
        /// Number of actions after which an episode ends.
        max_steps: usize = 100, AtLeast(1.0);
        /// How the lake is shown.
        observation_format: LakeView = LakeView::Grid;
    }
}

/// A possible result of an action.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transition {
    /// Its probability.
    pub prob: f64,
    /// The cell that it leads to, counted along the rows from 0.
    pub cell: usize,
    /// Its reward.
    pub reward: f64,
    /// Whether it ends the episode.
    pub is_over: bool,
}

/// A lake with a player on it.
///
/// ```
/// use tamis_core::random::{Key, Purpose};
/// use tamis_env::environment::{frozen_lake::*, game::Game};
/// let settings = FrozenLakeSettings {
///     map: ["SF", "HG"].map(str::to_owned).to_vec(),
///     is_slippery: false,
///     ..FrozenLakeSettings::default()
/// };
/// let key = Key::new(1, Purpose::Task);
/// let mut lake = FrozenLake::new(&settings, key.with(0), key.with(1))?;
/// assert_eq!(lake.observe(), "P_\nOG");
/// lake.play("right");
/// assert_eq!(lake.play("down").map(|played| (played.reward, played.is_over)), Some((1.0, true)));
/// assert_eq!(lake.observe(), "__\nO√");
/// # Ok::<(), tamis_core::fault::Fault>(())
/// ```
#[derive(Debug, Clone)]
pub struct FrozenLake {
    map: Map,
    view: LakeView,
    /// Probability of moving in the action's direction; `None` on ice that does not slip.
    success_rate: Option<f64>,
    max_steps: usize,
    slips: Key,
    cell: usize,
    steps: usize,
}

impl FrozenLake {
    /// The lake of a start, with slips of a luck.
    ///
    /// # Errors
    /// Settings out of their ranges or without effect, a map that cannot be read or played to its goal.
    pub fn new(settings: &FrozenLakeSettings, start: Key, luck: Key) -> Result<Self, Fault> {
        settings.check_ranges()?;
        settings.check_idle()?;
        let map = if settings.map.is_empty() {
            Map::draw(settings.size, settings.frozen_prob, settings.places, start.with(MAP))
        } else {
            Map::read(&settings.map)?
        };
        let starts: Vec<usize> = map.places(Cell::Start).collect();
        let cell = starts[start.with(START).below(0, starts.len() as u64) as usize];
        Ok(Self {
            map,
            view: settings.observation_format,
            success_rate: settings.is_slippery.then_some(settings.success_rate),
            max_steps: settings.max_steps,
            slips: luck.with(SLIPS),
            cell,
            steps: 0,
        })
    }

    /// The cell that the player is on, counted along the rows from 0.
    pub fn cell(&self) -> usize {
        self.cell
    }

    /// Number of cells.
    pub fn num_cells(&self) -> usize {
        self.map.cells.len()
    }

    /// All possible results of an action on a cell, in the order and with the numbers of gymnasium's
    /// `env.P[cell][action]`. On slippery ice these are the direction before, the intended one and the one
    /// after; two of them may lead to the same cell. On holes and goals, and on ice that does not slip, there
    /// is one.
    ///
    /// # Panics
    /// If `cell` is not below [`FrozenLake::num_cells`].
    pub fn transitions(&self, cell: usize, direction: LakeDirection) -> Vec<Transition> {
        if self.map.cells[cell].is_end() {
            return vec![Transition { prob: 1.0, cell, reward: 0.0, is_over: true }];
        }
        let transition = |prob, direction| {
            let cell = self.map.beside(cell, direction);
            let kind = self.map.cells[cell];
            let reward = if kind == Cell::Goal { 1.0 } else { 0.0 };
            Transition { prob, cell, reward, is_over: kind.is_end() }
        };
        match self.success_rate {
            None => vec![transition(1.0, direction)],
            Some(success_rate) => {
                let fail_rate = (1.0 - success_rate) / 2.0;
                let before = direction.next().next().next();
                vec![
                    transition(fail_rate, before),
                    transition(success_rate, direction),
                    transition(fail_rate, direction.next()),
                ]
            }
        }
    }

    fn grid(&self) -> String {
        let symbol = |place: usize| match (self.map.cells[place], place == self.cell) {
            (Cell::Start | Cell::Frozen, false) => '_',
            (Cell::Start | Cell::Frozen, true) => 'P',
            (Cell::Hole, false) => 'O',
            (Cell::Hole, true) => 'X',
            (Cell::Goal, false) => 'G',
            (Cell::Goal, true) => '√',
        };
        let row = |row: usize| {
            (0..self.map.columns).map(|column| symbol(row * self.map.columns + column)).collect()
        };
        (0..self.map.rows()).map(row).collect::<Vec<String>>().join("\n")
    }

    fn coordinates(&self) -> String {
        let columns = self.map.columns;
        let mut text = format!("Board size: {} rows x {columns} cols (zero-indexed).", self.map.rows());
        let player = match self.map.cells[self.cell] {
            Cell::Start | Cell::Frozen => "Player",
            Cell::Goal => "Player on goal",
            Cell::Hole => "Player in hole",
        };
        for (name, places) in [
            ("Start", self.map.places(Cell::Start).collect()),
            ("Goal", self.map.places(Cell::Goal).collect()),
            (player, vec![self.cell]),
            ("Holes", self.map.places(Cell::Hole).collect::<Vec<_>>()),
        ] {
            let places: Vec<String> =
                places.iter().map(|place| format!("({}, {})", place / columns, place % columns)).collect();
            if !places.is_empty() {
                // Writing to text does not fail.
                let _ = write!(text, "\n{name}: {}", places.join(", "));
            }
        }
        text
    }
}

impl FrozenLakeSettings {
    /// Whether every setting that was changed has an effect.
    fn check_idle(&self) -> Result<(), Fault> {
        let default = Self::default();
        let ignored = |key, value: String, because| {
            Err(fault!("setting `{key}` is {value}, and {because}; leave it out"))
        };
        if !self.map.is_empty() {
            let because = "`map` is given";
            if self.size != default.size {
                return ignored("size", self.size.to_string(), because);
            }
            if self.frozen_prob.total_cmp(&default.frozen_prob).is_ne() {
                return ignored("frozen_prob", self.frozen_prob.to_string(), because);
            }
            if self.places != default.places {
                return ignored("places", self.places.to_string(), because);
            }
        }
        let rates = [default.success_rate, 1.0];
        if !self.is_slippery && !rates.iter().any(|rate| self.success_rate.total_cmp(rate).is_eq()) {
            return ignored("success_rate", self.success_rate.to_string(), "`is_slippery` is false");
        }
        Ok(())
    }
}

impl Game for FrozenLake {
    fn legend(&self) -> Vec<(String, String)> {
        let symbols = [
            ("P", "player"),
            ("_", "empty"),
            ("O", "hole"),
            ("G", "goal"),
            ("X", "player in hole"),
            ("√", "player on goal"),
        ];
        match self.view {
            LakeView::Coordinates => Vec::new(),
            LakeView::Grid | LakeView::Both => {
                symbols.map(|(symbol, meaning)| (symbol.to_owned(), meaning.to_owned())).to_vec()
            }
        }
    }

    fn actions(&self) -> Vec<String> {
        LakeDirection::ALL.map(|direction| direction.as_str().to_owned()).to_vec()
    }

    fn observe(&self) -> String {
        match self.view {
            LakeView::Grid => self.grid(),
            LakeView::Coordinates => self.coordinates(),
            LakeView::Both => format!("Coordinates: \n{}\nGrid Map: \n{}", self.coordinates(), self.grid()),
        }
    }

    fn play(&mut self, action: &str) -> Option<Played> {
        let direction =
            LakeDirection::ALL[find_action(&LakeDirection::ALL.map(LakeDirection::as_str), action)?];
        let transitions = self.transitions(self.cell, direction);
        let mut rest = self.slips.uniform(self.steps as u64);
        let chosen = transitions.iter().find(|transition| {
            rest -= transition.prob;
            rest < 0.0
        });
        // Rounding may leave a remainder, which belongs to the last possible result.
        let chosen = *chosen.or(transitions.iter().rfind(|transition| transition.prob > 0.0))?;
        let is_effective = chosen.cell != self.cell;
        self.cell = chosen.cell;
        self.steps += 1;
        let is_over = chosen.is_over || self.steps >= self.max_steps;
        Some(Played { reward: chosen.reward, is_over, is_effective })
    }

    /// The first step of a shortest path around the holes, as if the ice did not slip.
    fn expert(&self) -> Option<String> {
        let mut first: Vec<Option<LakeDirection>> = vec![None; self.num_cells()];
        let mut open = VecDeque::from([(self.cell, None)]);
        while let Some((cell, begun)) = open.pop_front() {
            if self.map.cells[cell] == Cell::Goal {
                return begun.map(|direction: LakeDirection| direction.as_str().to_owned());
            }
            for direction in LakeDirection::ALL {
                let next = self.map.beside(cell, direction);
                let is_new = next != self.cell && first[next].is_none();
                if is_new && self.map.cells[next] != Cell::Hole {
                    first[next] = begun.or(Some(direction));
                    open.push_back((next, first[next]));
                }
            }
        }
        None
    }

    fn is_success(&self) -> bool {
        self.map.cells[self.cell] == Cell::Goal
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tamis_core::random::Purpose;

    fn key(seed: u64) -> Key {
        Key::new(seed, Purpose::Task)
    }

    fn given(rows: &[&str]) -> FrozenLakeSettings {
        FrozenLakeSettings {
            map: rows.iter().map(|&row| row.to_owned()).collect(),
            ..FrozenLakeSettings::default()
        }
    }

    fn still(rows: &[&str]) -> FrozenLakeSettings {
        FrozenLakeSettings { is_slippery: false, ..given(rows) }
    }

    fn lake(settings: &FrozenLakeSettings) -> FrozenLake {
        FrozenLake::new(settings, key(0), key(1)).unwrap()
    }

    #[test]
    fn a_walk_into_a_hole() {
        let mut lake = lake(&still(&["SFG", "FFF", "FHF"]));
        assert_eq!(lake.observe(), "P_G\n___\n_O_");
        let effect = |is_effective| Some(Played { is_effective, ..Played::default() });
        assert_eq!(lake.play("Left"), effect(false), "the edge");
        assert_eq!(lake.play(" rIGHT "), effect(true));
        assert_eq!(lake.play("Down"), effect(true));
        assert_eq!(lake.observe(), "__G\n_P_\n_O_");
        assert_eq!(lake.play("Down"), Some(Played { reward: 0.0, is_over: true, is_effective: true }));
        assert_eq!(lake.observe(), "__G\n___\n_X_");
        assert!(!lake.is_success());
    }

    #[test]
    fn an_expert_walks_around_the_holes() {
        let mut lake = lake(&still(&["SHG", "FHF", "FFF"]));
        let mut way = Vec::new();
        while !lake.is_success() {
            way.push(lake.expert().unwrap());
            lake.play(way.last().unwrap());
        }
        assert_eq!(way, ["Down", "Down", "Right", "Right", "Up", "Up"]);
    }

    #[test]
    fn steps_run_out() {
        let mut lake = lake(&FrozenLakeSettings { max_steps: 2, ..still(&["SFG"]) });
        assert_eq!(lake.play("Left"), Some(Played::default()));
        assert_eq!(lake.play("Up"), Some(Played { is_over: true, ..Played::default() }));
        assert!(!lake.is_success());
    }

    #[test]
    fn views() {
        let show = |observation_format| {
            let mut lake = lake(&FrozenLakeSettings { observation_format, ..still(&["SFH", "HFG"]) });
            lake.play("Right");
            lake
        };
        insta::assert_snapshot!(show(LakeView::Both).observe(), @r"
        Coordinates: 
        Board size: 2 rows x 3 cols (zero-indexed).
        Start: (0, 0)
        Goal: (1, 2)
        Player: (0, 1)
        Holes: (0, 2), (1, 0)
        Grid Map: 
        _PO
        O_G
        ");
        let mut coordinates = show(LakeView::Coordinates);
        coordinates.play("Down");
        coordinates.play("Right");
        insta::assert_snapshot!(coordinates.observe(), @r"
        Board size: 2 rows x 3 cols (zero-indexed).
        Start: (0, 0)
        Goal: (1, 2)
        Player on goal: (1, 2)
        Holes: (0, 2), (1, 0)
        ");
        assert_eq!((coordinates.legend().len(), show(LakeView::Grid).legend().len()), (0, 6));
    }

    #[test]
    fn errors() {
        let refused = |settings: FrozenLakeSettings| {
            FrozenLake::new(&settings, key(0), key(1)).unwrap_err().to_string()
        };
        let default = FrozenLakeSettings::default;
        insta::assert_snapshot!(refused(FrozenLakeSettings { size: 5, ..given(&["SG"]) }), @"setting `size` is 5, and `map` is given; leave it out");
        insta::assert_snapshot!(refused(FrozenLakeSettings { is_slippery: false, success_rate: 0.5, ..default() }), @"setting `success_rate` is 0.5, and `is_slippery` is false; leave it out");
        insta::assert_snapshot!(refused(given(&["S"])), @"setting `map` has 1 rows of 1 cells; expected from 1 to 64 of each, and 2 cells");
        insta::assert_snapshot!(refused(given(&["SF", "G"])), @"setting `map` has 1 cells in row 2; expected 2, as in the first row");
        insta::assert_snapshot!(refused(given(&["SF", "xG"])), @"setting `map` has `x` in row 2, column 1; expected `S`, `F`, `H` or `G`");
        insta::assert_snapshot!(refused(given(&["FF", "FG"])), @"setting `map` has no `S`; expected at least one");
        insta::assert_snapshot!(refused(given(&["SF", "FF"])), @"setting `map` has no `G`; expected at least one");
        insta::assert_snapshot!(refused(given(&["SFG", "HHH", "HSH"])), @"setting `map` has no path from the start in row 3, column 2 to a goal; expected one around the holes");
    }

    #[test]
    fn a_path_is_cut_where_none_is_drawn() {
        for seed in 0..6 {
            let lake = FrozenLake::new(
                &FrozenLakeSettings {
                    size: 9,
                    frozen_prob: 0.02,
                    places: LakePlaces::Corners,
                    ..FrozenLakeSettings::default()
                },
                key(seed),
                key(1),
            )
            .unwrap();
            assert!(lake.map.has_path(0), "{}", lake.observe());
            assert!(lake.map.places(Cell::Hole).count() > 40, "{}", lake.observe());
        }
    }

    /// Numbers of holes in drawn 3x3 maps with corners follow the law: the share of each map with a path is
    /// proportional to its probability, counted over all 128 maps.
    #[test]
    fn maps_follow_their_law() {
        let frozen_prob: f64 = 0.7;
        let mut expected = [0.0; 8];
        for bits in 0..128_u32 {
            let mut cells = vec![Cell::Start];
            cells.extend((0..7).map(|i| if bits >> i & 1 == 1 { Cell::Hole } else { Cell::Frozen }));
            cells.push(Cell::Goal);
            let holes = bits.count_ones() as i32;
            if (Map { columns: 3, cells }).has_path(0) {
                expected[holes as usize] += frozen_prob.powi(7 - holes) * (1.0 - frozen_prob).powi(holes);
            }
        }
        let total: f64 = expected.iter().sum();
        let num_maps = 20_000;
        let mut counts = [0.0; 8];
        for seed in 0..num_maps {
            let map = Map::draw(3, frozen_prob, LakePlaces::Corners, key(7).with(seed));
            counts[map.places(Cell::Hole).count()] += 1.0;
        }
        for (holes, count) in counts.iter().enumerate() {
            let share = expected[holes] / total;
            let spread = (share * (1.0 - share) / num_maps as f64).sqrt();
            let found = count / num_maps as f64;
            assert!((found - share).abs() <= 4.5 * spread, "{holes} holes: {found}, expected {share}");
        }
    }

    #[test]
    fn any_two_cells_are_start_and_goal() {
        let mut seen = std::collections::HashSet::new();
        for seed in 0..600 {
            let map = Map::draw(2, 1.0, LakePlaces::Anywhere, key(3).with(seed));
            seen.insert((map.places(Cell::Start).next(), map.places(Cell::Goal).next()));
        }
        assert_eq!(seen.len(), 12);
    }

    fn any_settings() -> impl Strategy<Value = FrozenLakeSettings> {
        (2_usize..8, 0.3..1.0_f64, any::<bool>(), any::<bool>(), 0.0..=1.0_f64, 1_usize..30).prop_map(
            |(size, frozen_prob, is_anywhere, is_slippery, success_rate, max_steps)| FrozenLakeSettings {
                size,
                frozen_prob,
                places: if is_anywhere { LakePlaces::Anywhere } else { LakePlaces::Corners },
                is_slippery,
                success_rate: if is_slippery { success_rate } else { 1.0 },
                max_steps,
                ..FrozenLakeSettings::default()
            },
        )
    }

    /// States and results of the actions, up to the end of the episode or of the actions.
    fn replay(lake: &mut FrozenLake, actions: &[&str]) -> Vec<(String, Option<Played>)> {
        let mut seen = Vec::new();
        for action in actions {
            let played = lake.play(action);
            seen.push((lake.observe(), played));
            if played.is_some_and(|played| played.is_over) {
                break;
            }
        }
        seen
    }

    proptest! {
        #[test]
        fn an_unknown_action_changes_nothing(settings in any_settings(), seed in any::<u64>(), action in "\\PC{0,8}") {
            prop_assume!(find_action(&["Left", "Down", "Right", "Up"], &action).is_none());
            let mut lake = FrozenLake::new(&settings, key(seed), key(1)).unwrap();
            let mut other = lake.clone();
            prop_assert_eq!(other.play(&action), None);
            prop_assert_eq!(other.observe(), lake.observe());
            prop_assert_eq!(other.play("Down"), lake.play("Down"));
            prop_assert_eq!(other.observe(), lake.observe());
        }

        #[test]
        fn it_is_won_where_the_reward_says_so(
            settings in any_settings(),
            seed in any::<u64>(),
            actions in prop::collection::vec(prop::sample::select(vec!["Left", "Down", "Right", "Up"]), 30),
        ) {
            let mut lake = FrozenLake::new(&settings, key(seed), key(1)).unwrap();
            prop_assert!(lake.map.has_path(lake.cell));
            prop_assert!(!lake.is_success());
            let seen = replay(&mut lake, &actions);
            let total: f64 = seen.iter().filter_map(|(_, played)| *played).map(|played| played.reward).sum();
            prop_assert_eq!(total.to_string(), if lake.is_success() { "1" } else { "0" });
            prop_assert!(seen.len() <= settings.max_steps);
        }
    }
}
