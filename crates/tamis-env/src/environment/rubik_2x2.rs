//! `rubik_2x2`: the cube of 2x2x2.
//!
//! **State.** 24 stickers, four per face, in the order up, left, front, right, back, down, row by row. Each
//! face is seen from outside, with up above the four side faces, and front below up and above down.
//!
//! **Moves.** `U`, `R`, `F` turn a face a quarter clockwise, seen from outside; with a prime (`U'`)
//! counter-clockwise; with a 2 (`U2`) twice, if `doubles` is on. Up, right and front are enough to solve it,
//! because on this cube a turn of the left face equals a turn of the right face and of the whole cube. With
//! `faces: six` there are also `L`, `B` and `D`; without `doubles` these are RAGEN's twelve moves. The moves
//! are permutations of the stickers, computed by turning their positions in space.
//!
//! **Start.** A solved cube is turned `scramble_moves` times. The key draws each move among the allowed ones
//! on another axis than the one before, so no two moves in a row are equal to one. The result is never
//! solved, and can be solved in as many moves.
//!
//! **Rewards**, those of RAGEN: 1 for the move that solves it and 0 for every other. A cube with one colour
//! on each face is solved, in any orientation.

use std::sync::LazyLock;

use tamis_core::fault::Fault;
use tamis_core::random::Key;
use tamis_core::setting::Ranged;
use tamis_core::{choice, settings};

use super::game::{Game, Played, find_action};

/// The default instruction to a policy.
pub const INSTRUCTION: &str = "You are solving a Rubik's cube of 2x2x2. Turn its faces until each of them shows a single \
    colour. A letter turns a face a quarter clockwise as you look at it (U up, R right, F front, L left, B back, D \
    down), a letter with ' a quarter the other way, a letter with 2 a half. Each face is written row by row, as you look \
    at it. Example: <answer>R || U'</answer>";

const SOLVED_REWARD: f64 = 1.0;

choice! {
    /// Faces that can be turned.
    pub enum CubeFaces {
        /// Up, right and front, which are enough.
        Three = "three",
        /// All of them.
        Six = "six",
    }
}

settings! {
    /// The cube of 2x2x2.
    #[derive(Copy)]
    pub struct Rubik2x2Settings {
        /// Faces that can be turned.
        faces: CubeFaces = CubeFaces::Three;
        /// Allow half turns as single moves.
        doubles: bool = true;
        /// Number of moves of the scramble. Any cube can be solved in 11 moves with half turns and in 14
        /// without.
        scramble_moves: usize = 5, Between(1.0, 100.0);
    }
}

/// A face of the cube, in the order of the stickers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Face {
    Up,
    Left,
    Front,
    Right,
    Back,
    Down,
}

/// Places and directions in space: x to the right, y up, z towards the viewer.
type Vector = [i8; 3];

impl Face {
    const ALL: [Self; 6] = [Self::Up, Self::Left, Self::Front, Self::Right, Self::Back, Self::Down];

    /// The direction that it faces, and the directions of its columns and rows.
    const fn frame(self) -> [Vector; 3] {
        match self {
            Self::Up => [[0, 1, 0], [1, 0, 0], [0, 0, 1]],
            Self::Left => [[-1, 0, 0], [0, 0, 1], [0, -1, 0]],
            Self::Front => [[0, 0, 1], [1, 0, 0], [0, -1, 0]],
            Self::Right => [[1, 0, 0], [0, 0, -1], [0, -1, 0]],
            Self::Back => [[0, 0, -1], [-1, 0, 0], [0, -1, 0]],
            Self::Down => [[0, -1, 0], [1, 0, 0], [0, 0, -1]],
        }
    }

    const fn letter(self) -> &'static str {
        match self {
            Self::Up => "U",
            Self::Left => "L",
            Self::Front => "F",
            Self::Right => "R",
            Self::Back => "B",
            Self::Down => "D",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Up => "Up",
            Self::Left => "Left",
            Self::Front => "Front",
            Self::Right => "Right",
            Self::Back => "Back",
            Self::Down => "Down",
        }
    }

    /// Letter and name of its colour on a solved cube: white opposite yellow, orange opposite red, green
    /// opposite blue.
    const fn colour(self) -> (char, &'static str) {
        match self {
            Self::Up => ('W', "white"),
            Self::Left => ('O', "orange"),
            Self::Front => ('G', "green"),
            Self::Right => ('R', "red"),
            Self::Back => ('B', "blue"),
            Self::Down => ('Y', "yellow"),
        }
    }

    /// The axis that it turns about: 0, 1, 2.
    fn axis(self) -> usize {
        self.frame()[0].iter().position(|&part| part != 0).unwrap_or(0)
    }
}

fn dot(a: Vector, b: Vector) -> i8 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}

/// A vector turned a quarter about a direction, clockwise as seen from its tip: v × n + n (n · v).
fn turned(v: Vector, n: Vector) -> Vector {
    let along = dot(v, n);
    [
        v[1] * n[2] - v[2] * n[1] + n[0] * along,
        v[2] * n[0] - v[0] * n[2] + n[1] * along,
        v[0] * n[1] - v[1] * n[0] + n[2] * along,
    ]
}

/// Each sticker's corner (every part -1 or 1), and the direction that it faces.
fn stickers() -> Vec<(Vector, Vector)> {
    let mut stickers = Vec::with_capacity(24);
    for face in Face::ALL {
        let [normal, right, down] = face.frame();
        for (row, column) in [(-1, -1), (-1, 1), (1, -1), (1, 1)] {
            let corner = [0, 1, 2].map(|i| normal[i] + column * right[i] + row * down[i]);
            stickers.push((corner, normal));
        }
    }
    stickers
}

/// The source of each sticker in a turn.
type Permutation = [usize; 24];

/// A quarter turn of the chosen corners about a direction.
fn quarter(direction: Vector, is_turned: impl Fn(Vector) -> bool) -> Permutation {
    let stickers = stickers();
    let mut from: Permutation = std::array::from_fn(|i| i);
    for (i, &(corner, normal)) in stickers.iter().enumerate() {
        if is_turned(corner) {
            let goal = (turned(corner, direction), turned(normal, direction));
            if let Some(to) = stickers.iter().position(|&sticker| sticker == goal) {
                from[to] = i;
            }
        }
    }
    from
}

/// The quarter turn of each face, in the order of the stickers.
static QUARTERS: LazyLock<[Permutation; 6]> = LazyLock::new(|| {
    Face::ALL.map(|face| {
        let direction = face.frame()[0];
        quarter(direction, |corner| dot(corner, direction) > 0)
    })
});

/// Colours by sticker, each the face that has it on a solved cube.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cube([u8; 24]);

impl Cube {
    const SOLVED: Self = {
        let mut colours = [0; 24];
        let mut i = 0;
        while i < 24 {
            colours[i] = (i / 4) as u8;
            i += 1;
        }
        Self(colours)
    };

    fn permuted(self, from: &Permutation) -> Self {
        Self(from.map(|i| self.0[i]))
    }

    fn played(self, turn: Turn) -> Self {
        (0..turn.num_quarters).fold(self, |cube, _| cube.permuted(&QUARTERS[turn.face as usize]))
    }

    fn is_solved(self) -> bool {
        self.0.chunks(4).all(|face| face.iter().all(|&colour| colour == face[0]))
    }
}

/// A move: a face and its quarter turns clockwise, 1 to 3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Turn {
    face: Face,
    num_quarters: u8,
}

impl Turn {
    /// All that the settings allow, in the order in which they are listed.
    fn all(settings: &Rubik2x2Settings) -> Vec<Self> {
        let faces: &[Face] = match settings.faces {
            CubeFaces::Three => &[Face::Up, Face::Right, Face::Front],
            CubeFaces::Six => &[Face::Up, Face::Down, Face::Left, Face::Right, Face::Front, Face::Back],
        };
        let quarters: &[u8] = if settings.doubles { &[1, 3, 2] } else { &[1, 3] };
        let turns_of = |&face| quarters.iter().map(move |&num_quarters| Self { face, num_quarters });
        faces.iter().flat_map(turns_of).collect()
    }

    fn name(self) -> String {
        let quarters = match self.num_quarters {
            2 => "2",
            3 => "'",
            _ => "",
        };
        format!("{}{quarters}", self.face.letter())
    }
}

/// A cube at some point of play.
#[derive(Debug, Clone)]
pub struct Rubik2x2 {
    turns: Vec<Turn>,
    names: Vec<String>,
    cube: Cube,
}

impl Rubik2x2 {
    /// The scrambled cube of a key.
    ///
    /// ```
    /// use tamis_core::random::{Key, Purpose};
    /// use tamis_env::environment::game::Game;
    /// use tamis_env::environment::rubik_2x2::{Rubik2x2, Rubik2x2Settings};
    /// let settings = Rubik2x2Settings { scramble_moves: 1, doubles: false, ..Rubik2x2Settings::default() };
    /// let start = Rubik2x2::new(&settings, Key::new(1, Purpose::Task))?;
    /// assert_eq!(start.actions(), ["U", "U'", "R", "R'", "F", "F'"]);
    /// let solves = |action: &String| start.clone().play(action).is_some_and(|played| played.reward == 1.0);
    /// assert_eq!(start.actions().iter().filter(|action| solves(action)).count(), 1);
    /// # Ok::<(), tamis_core::fault::Fault>(())
    /// ```
    pub fn new(settings: &Rubik2x2Settings, key: Key) -> Result<Self, Fault> {
        settings.check_ranges()?;
        let turns = Turn::all(settings);
        let mut attempt = 0;
        let cube = loop {
            let cube = scramble(&turns, settings.scramble_moves, key.with(attempt));
            // One in millions of long scrambles is the identity, such as `R2 U2 R2 U2 R2 U2`.
            if !cube.is_solved() {
                break cube;
            }
            attempt += 1;
        };
        let names = turns.iter().map(|turn| turn.name()).collect();
        Ok(Self { turns, names, cube })
    }
}

fn scramble(turns: &[Turn], num_moves: usize, key: Key) -> Cube {
    let mut cube = Cube::SOLVED;
    let mut axis = None;
    for nth in 0..num_moves {
        let allowed: Vec<Turn> =
            turns.iter().copied().filter(|turn| Some(turn.face.axis()) != axis).collect();
        let turn = allowed[key.below(nth as u64, allowed.len() as u64) as usize];
        axis = Some(turn.face.axis());
        cube = cube.played(turn);
    }
    cube
}

impl Game for Rubik2x2 {
    fn legend(&self) -> Vec<(String, String)> {
        let colours = Face::ALL.map(|face| {
            let (letter, name) = face.colour();
            (letter.to_string(), name.to_owned())
        });
        colours.into_iter().chain([("/".to_owned(), "end of a row".to_owned())]).collect()
    }

    fn actions(&self) -> Vec<String> {
        self.names.clone()
    }

    fn observe(&self) -> String {
        let face = |face: Face| {
            let first = 4 * face as usize;
            let [a, b, c, d] =
                [0, 1, 2, 3].map(|i| Face::ALL[usize::from(self.cube.0[first + i])].colour().0);
            format!("{} ({}): {a} {b} / {c} {d}", face.name(), face.letter())
        };
        Face::ALL.map(face).join("\n")
    }

    fn play(&mut self, action: &str) -> Option<Played> {
        let turn = self.turns[find_action(&self.names, action)?];
        self.cube = self.cube.played(turn);
        let is_over = self.is_success();
        // No turn of a face leaves all stickers as they are: no two of its corners have the same colours.
        Some(Played { reward: if is_over { SOLVED_REWARD } else { 0.0 }, is_over, is_effective: true })
    }

    fn is_success(&self) -> bool {
        self.cube.is_solved()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet, VecDeque};

    use proptest::prelude::*;
    use tamis_core::random::Purpose;

    use super::*;

    const ALL: Rubik2x2Settings =
        Rubik2x2Settings { faces: CubeFaces::Six, doubles: true, scramble_moves: 5 };

    /// The cube after moves by name.
    fn after(cube: Cube, moves: &str) -> Cube {
        let turns = Turn::all(&ALL);
        moves.split_whitespace().fold(cube, |cube, name| {
            cube.played(*turns.iter().find(|turn| turn.name() == name).expect("a move"))
        })
    }

    /// A cube whose stickers all differ, so that nothing hides behind equal colours.
    fn told_apart() -> Cube {
        Cube(std::array::from_fn(|i| i as u8))
    }

    /// How often a sequence of moves must be repeated to change nothing.
    fn order(moves: &str) -> usize {
        let start = told_apart();
        let mut cube = after(start, moves);
        let mut num_repeats = 1;
        while cube != start {
            cube = after(cube, moves);
            num_repeats += 1;
        }
        num_repeats
    }

    /// Turns of the whole cube about the axes of right, up and front.
    fn rotations() -> [Permutation; 3] {
        [Face::Right, Face::Up, Face::Front].map(|face| quarter(face.frame()[0], |_| true))
    }

    /// The cube as held in each way.
    fn orientations(cube: Cube) -> HashSet<[u8; 24]> {
        let (mut seen, mut next) = (HashSet::from([cube.0]), vec![cube]);
        while let Some(cube) = next.pop() {
            for rotation in &rotations() {
                let turned = cube.permuted(rotation);
                if seen.insert(turned.0) {
                    next.push(turned);
                }
            }
        }
        seen
    }

    #[test]
    fn laws_of_the_group() {
        for turn in Turn::all(&ALL) {
            assert_eq!(order(&turn.name()), if turn.num_quarters == 2 { 2 } else { 4 }, "{}", turn.name());
        }
        for face in ["U", "D", "L", "R", "F", "B"] {
            assert_eq!(after(told_apart(), &format!("{face} {face}'")), told_apart());
            assert_eq!(
                after(told_apart(), &format!("{face} {face}")),
                after(told_apart(), &format!("{face}2"))
            );
            assert_eq!(
                after(told_apart(), &format!("{face} {face} {face}")),
                after(told_apart(), &format!("{face}'"))
            );
        }
        // Opposite faces commute, neighbours do not.
        assert_eq!(after(told_apart(), "R L"), after(told_apart(), "L R"));
        assert_ne!(after(told_apart(), "R U"), after(told_apart(), "U R"));
        // Known from the 3x3x3 cube: the commutator of two neighbours has order 6. Their product has order
        // 105, with 7 from its edges and 15 from its corners. The product of their half turns has order 6,
        // with 3 from the corners.
        assert_eq!(order("R U R' U'"), 6);
        assert_eq!(order("R U"), 15);
        assert_eq!(order("R2 U2"), 3);
        assert!(after(Cube::SOLVED, "R2 U2 R2 U2 R2 U2").is_solved());
    }

    #[test]
    fn a_turn_goes_clockwise() {
        // U takes the front's upper row to the left; R the front's right column up; F the upper face's lower
        // row to the right.
        let colours = |moves: &str| after(Cube::SOLVED, moves).0;
        let [up, left, front, right, back, down] = [0, 1, 2, 3, 4, 5];
        let turned = colours("U");
        assert_eq!([turned[4], turned[5], turned[8], turned[9]], [front, front, right, right]);
        assert_eq!([turned[12], turned[13], turned[16], turned[17]], [back, back, left, left]);
        let turned = colours("R");
        assert_eq!([turned[1], turned[3], turned[9], turned[11]], [front, front, down, down]);
        assert_eq!([turned[16], turned[18], turned[21], turned[23]], [up, up, back, back]);
        let turned = colours("F");
        assert_eq!([turned[12], turned[14], turned[20], turned[21]], [up, up, right, right]);
        assert_eq!([turned[2], turned[3], turned[5], turned[7]], [left, left, down, down]);
        // Looked at, the face itself turns clockwise: upper left goes to upper right.
        for (face, letter) in Face::ALL.iter().zip(["U", "L", "F", "R", "B", "D"]) {
            let first = 4 * *face as usize;
            let turned = after(told_apart(), letter).0.map(usize::from);
            assert_eq!(turned[first..first + 4], [first + 2, first, first + 3, first + 1], "{letter}");
        }
    }

    #[test]
    fn solved_however_it_is_held() {
        let held = orientations(Cube::SOLVED);
        assert_eq!(held.len(), 24);
        assert!(held.iter().all(|&colours| Cube(colours).is_solved()));
        // Turning both opposite faces the same way in space turns the whole cube.
        assert!(held.contains(&after(Cube::SOLVED, "R L'").0));
        assert!(after(Cube::SOLVED, "R L' U D'").is_solved());
        for moves in ["U", "R2", "F'", "R U R' U'"] {
            assert!(
                orientations(after(Cube::SOLVED, moves)).iter().all(|&colours| !Cube(colours).is_solved()),
                "{moves}"
            );
        }
    }

    /// Jaap Scherphuis, "Mini Cube": 1, 9, 54, 321 and 1847 positions at 0 to 4 moves with doubles, and 1, 6,
    /// 27, 120 and 534 without.
    #[test]
    fn as_many_positions_at_each_distance_as_published() {
        for (doubles, published) in [(true, [1, 9, 54, 321, 1847]), (false, [1, 6, 27, 120, 534])] {
            let turns = Turn::all(&Rubik2x2Settings { doubles, ..Rubik2x2Settings::default() });
            let mut distances = HashMap::from([(Cube::SOLVED.0, 0)]);
            let mut next = VecDeque::from([Cube::SOLVED]);
            let mut counts = [0; 5];
            while let Some(cube) = next.pop_front() {
                let distance = distances[&cube.0];
                counts[distance] += 1;
                if distance == 4 {
                    continue;
                }
                for &turn in &turns {
                    let turned = cube.played(turn);
                    distances.entry(turned.0).or_insert_with(|| {
                        next.push_back(turned);
                        distance + 1
                    });
                }
            }
            assert_eq!(counts, published);
        }
    }

    #[test]
    fn faces_as_text() {
        let game = |cube| Rubik2x2 { cube, ..Rubik2x2::new(&ALL, Key::from_bits(0)).expect("a cube") };
        insta::assert_snapshot!(game(after(Cube::SOLVED, "F")).observe(), @r"
        Up (U): W W / O O
        Left (L): O Y / O Y
        Front (F): G G / G G
        Right (R): W R / W R
        Back (B): B B / B B
        Down (D): R R / Y Y
        ");
        let mut game = game(after(Cube::SOLVED, "F"));
        assert_eq!(game.play("X"), None);
        assert_eq!(game.play("f"), Some(Played { reward: 0.0, is_over: false, is_effective: true }));
        assert_eq!(game.play(" F2 "), Some(Played { reward: 1.0, is_over: true, is_effective: true }));
        assert!(game.is_success());
    }

    #[test]
    fn moves_are_named() {
        let settings = Rubik2x2Settings { doubles: false, scramble_moves: 1, ..ALL };
        let cube = Rubik2x2::new(&settings, Key::from_bits(0)).expect("a cube");
        assert_eq!(cube.actions().join(", "), "U, U', D, D', L, L', R, R', F, F', B, B'");
    }

    proptest! {
        #[test]
        fn moves_undone_backwards_lead_back(moves in proptest::collection::vec(0usize..18, 0..30)) {
            let turns = Turn::all(&ALL);
            let mut cube = told_apart();
            for &i in &moves {
                cube = cube.played(turns[i]);
            }
            for &i in moves.iter().rev() {
                cube = cube.played(Turn { num_quarters: 4 - turns[i].num_quarters, ..turns[i] });
            }
            prop_assert_eq!(cube, told_apart());
        }

        #[test]
        fn scrambles_depend_on_the_key_and_can_be_undone(seed: u64, scramble_moves in 1usize..4, is_six: bool, doubles: bool) {
            let faces = if is_six { CubeFaces::Six } else { CubeFaces::Three };
            let settings = Rubik2x2Settings { faces, doubles, scramble_moves };
            let key = Key::new(seed, Purpose::Task);
            let game = Rubik2x2::new(&settings, key).expect("a cube");
            prop_assert_eq!(game.cube, Rubik2x2::new(&settings, key).expect("a cube").cube);
            prop_assert!(!game.is_success());
            let mut reached = vec![game.cube];
            for _ in 0..scramble_moves {
                reached = reached.iter().flat_map(|cube| game.turns.iter().map(|&turn| cube.played(turn))).collect();
            }
            prop_assert!(reached.iter().any(|cube| cube.is_solved()));
        }

        #[test]
        fn every_colour_has_four_stickers(seed: u64) {
            let mut colours = Rubik2x2::new(&ALL, Key::new(seed, Purpose::Task)).expect("a cube").cube.0;
            colours.sort_unstable();
            prop_assert_eq!(colours, Cube::SOLVED.0);
        }
    }
}
