//! The environments that RAGEN's `envs.yaml` has by name, with the numbers that it gives them.

/// An environment by RAGEN's name for it.
pub(super) struct Tag {
    pub(super) name: &'static str,
    /// Which environment of RAGEN's it is.
    pub(super) env_type: &'static str,
    /// Its `max_actions_per_traj`.
    pub(super) max_actions: &'static str,
    /// Its `max_tokens`.
    pub(super) max_tokens: &'static str,
    /// Its `env_config`.
    pub(super) config: &'static [(&'static str, &'static str)],
}

/// The one that RAGEN plays where nobody names another.
pub(super) const DEFAULT: &str = "CoordSokoban";

const fn tag(
    name: &'static str,
    env_type: &'static str,
    [max_actions, max_tokens]: [&'static str; 2],
    config: &'static [(&'static str, &'static str)],
) -> Tag {
    Tag { name, env_type, max_actions, max_tokens, config }
}

pub(super) const TAGS: &[Tag] = &[
    tag(
        "SimpleSokoban",
        "sokoban",
        ["10", "100"],
        &[("dim_x", "6"), ("dim_y", "6"), ("num_boxes", "1"), ("max_steps", "100")],
    ),
    tag(
        "LargerSokoban",
        "sokoban",
        ["10", "100"],
        &[("dim_x", "8"), ("dim_y", "8"), ("num_boxes", "2"), ("max_steps", "100"), ("search_depth", "10")],
    ),
    tag(
        "SokobanDifferentGridVocab",
        "sokoban",
        ["10", "100"],
        &[
            ("dim_x", "6"),
            ("dim_y", "6"),
            ("num_boxes", "1"),
            ("max_steps", "100"),
            ("search_depth", "30"),
            ("grid_lookup.0", "W"),
            ("grid_lookup.1", "."),
            ("grid_lookup.2", "G"),
            ("grid_lookup.3", "C"),
            ("grid_lookup.4", "B"),
            ("grid_lookup.5", "A"),
            ("grid_lookup.6", "@"),
        ],
    ),
    tag(
        DEFAULT,
        "sokoban",
        ["10", "120"],
        &[
            ("dim_x", "6"),
            ("dim_y", "6"),
            ("num_boxes", "1"),
            ("max_steps", "100"),
            ("observation_format", "grid_coord"),
        ],
    ),
    tag(
        "VisualSimpleSokoban",
        "sokoban",
        ["10", "100"],
        &[
            ("dim_x", "6"),
            ("dim_y", "6"),
            ("num_boxes", "1"),
            ("max_steps", "100"),
            ("render_mode", "rgb_array"),
        ],
    ),
    tag("Countdown", "countdown", ["1", "100"], &[]),
    tag("Bandit", "bandit", ["1", "100"], &[("split", "train")]),
    tag("BanditTest", "bandit", ["1", "100"], &[("split", "test")]),
    tag("FrozenLake", "frozen_lake", ["10", "100"], &[]),
    tag("CoordFrozenLake", "frozen_lake", ["10", "120"], &[("observation_format", "grid_coord")]),
    tag(
        "SimpleSudoku",
        "sudoku",
        ["20", "150"],
        &[("grid_size", "9"), ("difficulty", "easy"), ("max_steps", "81")],
    ),
    tag(
        "MediumSudoku",
        "sudoku",
        ["30", "150"],
        &[("grid_size", "9"), ("difficulty", "medium"), ("max_steps", "81")],
    ),
    tag("game_2048", "game_2048", ["700", "8192"], &[]),
    tag("rubikscube", "rubikscube", ["20", "96"], &[("scramble_depth", "1"), ("max_steps", "20")]),
    tag("MetamathQA", "metamathqa", ["1", "100"], &[]),
    tag("WebShop", "webshop", ["9", "200"], &[]),
    tag("Alfworld", "alfworld", ["10", "200"], &[]),
    tag("ALFWorld", "alfworld", ["10", "200"], &[]),
    tag("Lean", "lean", ["30", "512"], &[]),
    tag("SearchQA", "search", ["10", "300"], &[]),
    tag("SearchQAMock", "search", ["10", "300"], &[]),
    tag("DeepCoder", "deepcoder", ["1", "400"], &[]),
    tag("Spatial", "spatial", ["1", "100"], &[]),
];

/// What RAGEN plays and tamis does not, with what to do instead.
pub(super) const ELSEWHERE: &[(&str, &str)] = &[
    (
        "metamathqa",
        "questions are no environment here: give them as `data.train`, with `reward=[{kind: math}]` and one answer \
         each; for several tries a question write a class, `environment: {kind: python, path: FILE.py:CLASS}`",
    ),
    (
        "webshop",
        "the shop is a program of its own: play it by a class around it, `environment: {kind: python, path: \
         FILE.py:CLASS}`, or as a server, `environment: {kind: http, url: URL}`",
    ),
    (
        "alfworld",
        "ALFWorld is a program of its own: play it by a class around it, `environment: {kind: python, path: \
         FILE.py:CLASS}`, in an interpreter that has the package (`environment.python`)",
    ),
    (
        "lean",
        "Lean is a program of its own: play it by a program around it, `environment: {kind: command, argv: \
         [PROGRAM]}`, or a class, `environment: {kind: python, path: FILE.py:CLASS}`",
    ),
    (
        "search",
        "a search is a tool here: give the questions as `data.train`, and a function that asks your server, \
         `environment: {kind: tools, functions: [FILE.py:FUNCTION]}`",
    ),
    (
        "deepcoder",
        "programs are scored by a reward here: give the problems with their tests as `data.train`, and \
         `reward=[{kind: code}]`, which runs the tests in a sandbox",
    ),
    (
        "spatial",
        "there is no such environment here: play RAGEN's by a class around it, `environment: {kind: python, path: \
         FILE.py:CLASS}`",
    ),
];
