//! RAGEN's kinds of environment and their `env_config`: what each setting becomes.

use super::symbols;
use crate::translator::quote;

/// A kind of environment.
pub(super) struct EnvType {
    /// RAGEN's name.
    pub(super) name: &'static str,
    /// Ours.
    pub(super) kind: &'static str,
    /// Settings that RAGEN has and nothing says, where they are not our defaults.
    pub(super) defaults: &'static [(&'static str, &'static str)],
    /// Settings of ours that RAGEN has no name for.
    pub(super) fixed: &'static [(&'static str, &'static str)],
    /// The settings. A name with `.` at its end stands for the entries of a mapping.
    pub(super) settings: &'static [(&'static str, Meaning)],
    /// Something to know about it.
    pub(super) remark: Option<&'static str>,
}

/// What a setting of RAGEN's means.
#[derive(Clone, Copy)]
pub(super) enum Meaning {
    /// One of ours, with the same value.
    Same(&'static str),
    /// One of ours, with other words for its values.
    Words(&'static str, &'static [(&'static str, &'static str)]),
    /// One of ours that is a file.
    File(&'static str),
    /// Nothing, for a reason.
    NoEffect(&'static str),
    /// Refused, for a reason, unless it has one of these values.
    Unless(&'static [&'static str], &'static str),
    /// Entries of a mapping, which are so here, and refused where they differ, for a reason.
    Entries(&'static [(&'static str, &'static str)], &'static str),
    /// A limit of actions.
    Limit,
    /// One of the two sides of a room, which are read together; ours, and the other side.
    Side(&'static str, &'static str),
    /// Both sides.
    Sides,
    /// A symbol of Sokoban's cells.
    Symbol,
    /// The words for such a symbol.
    Legend,
    /// One of ours, which is 1 without it.
    Complement(&'static str),
    /// Difficulty of a Sudoku.
    Difficulty,
    /// The name of a bandit's arm.
    Arm,
}

use Meaning::{
    Arm, Complement, Difficulty, Entries, File, Legend, Limit, NoEffect, Same, Side, Sides, Symbol, Unless,
    Words,
};

/// A setting as the run has it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Setting {
    /// Name, without what it stands in.
    pub(super) name: String,
    /// Value as it would be typed.
    pub(super) value: String,
    /// The key that says it; `None` where the tag or RAGEN's default does.
    pub(super) key: Option<String>,
}

/// What one setting becomes.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Outcome {
    /// Ours, below the environment's section.
    Set(Vec<(&'static str, String)>),
    /// Part of what another setting becomes.
    PartOf(String),
    /// Nothing, for a reason.
    NoEffect(String),
    /// A limit of actions.
    Limit(String),
    /// Refused, for a reason.
    Refused(String),
    /// No setting that is known.
    Unknown,
}

const IS_TEXT: Meaning =
    Unless(&["text", "null"], "an environment is shown as text: take one that is, such as SimpleSokoban");
const SO_NAMED: &str = "actions have these names here, and no others";
const VIEWS: &[(&str, &str)] = &[("grid", "grid"), ("coord", "coord"), ("grid_coord", "grid_coord")];
const BY_SEED: &str = "RAGEN sets it anew at every start; `run.seed` keys the levels here";

/// Settings that RAGEN has called otherwise at another time.
pub(super) const OTHER_NAMES: &[(&str, &str)] = &[("board_size", "grid_size")];

/// The kinds that are here, too.
pub(super) const ENV_TYPES: &[EnvType] = &[
    EnvType {
        name: "sokoban",
        kind: "sokoban",
        defaults: &[("num_boxes", "3")],
        fixed: &[],
        settings: &[
            ("dim_x", Side("rows", "dim_y")),
            ("dim_y", Side("columns", "dim_x")),
            ("dim_room", Sides),
            ("num_boxes", Same("boxes")),
            ("max_steps", Same("max_steps")),
            ("search_depth", Same("search_depth")),
            ("observation_format", Words("observation", VIEWS)),
            ("render_mode", IS_TEXT),
            ("grid_lookup.", Symbol),
            ("grid_vocab.", Legend),
            (
                "action_lookup.",
                Entries(&[("1", "Up"), ("2", "Down"), ("3", "Left"), ("4", "Right")], SO_NAMED),
            ),
            (
                "min_solution_steps",
                Unless(
                    &["null"],
                    "rooms are not chosen by the length of their solutions: see `environment.search_depth`",
                ),
            ),
            ("max_reset_tries", NoEffect("rooms are not chosen by the length of their solutions")),
            (
                "ignore_gym_reward",
                Unless(
                    &["False", "false"],
                    "the rewards are gym-sokoban's; whether a room was solved is `acc`, which filters \
                     and metrics can look at",
                ),
            ),
            ("success_reward", NoEffect("RAGEN reads it where ignore_gym_reward is on")),
        ],
        remark: None,
    },
    EnvType {
        name: "frozen_lake",
        kind: "frozen_lake",
        defaults: &[],
        fixed: &[],
        settings: &[
            ("size", Same("size")),
            ("p", Same("frozen_prob")),
            ("is_slippery", Same("is_slippery")),
            ("success_rate", Same("success_rate")),
            ("observation_format", Words("observation_format", VIEWS)),
            ("map_seed", NoEffect(BY_SEED)),
            ("render_mode", IS_TEXT),
            (
                "grid_lookup.",
                Entries(
                    &[("0", "P"), ("1", "_"), ("2", "O"), ("3", "G"), ("4", "X"), ("5", "√")],
                    "a lake has these symbols here, and no others",
                ),
            ),
            (
                "grid_vocab.",
                Entries(
                    &[
                        ("P", "player"),
                        ("_", "empty"),
                        ("O", "hole"),
                        ("G", "goal"),
                        ("X", "player in hole"),
                        ("√", "player on goal"),
                    ],
                    "a lake has these symbols here, and no others",
                ),
            ),
            (
                "action_lookup.",
                Entries(&[("1", "Left"), ("2", "Down"), ("3", "Right"), ("4", "Up")], SO_NAMED),
            ),
            ("action_map.", Entries(&[("1", "0"), ("2", "1"), ("3", "2"), ("4", "3")], SO_NAMED)),
        ],
        remark: None,
    },
    EnvType {
        name: "bandit",
        kind: "bandit",
        defaults: &[],
        fixed: &[],
        settings: &[
            ("split", Words("names", &[("train", "train"), ("test", "test")])),
            ("lo_arm_score", Same("safe_reward")),
            ("hi_arm_loscore", Same("miss_reward")),
            ("hi_arm_hiscore", Same("hit_reward")),
            ("hi_arm_hiscore_prob", Same("hit_prob")),
            ("lo_arm_name", Arm),
            ("hi_arm_name", Arm),
            ("action_space_start", NoEffect("an arm is chosen by its name")),
            ("action_lookup", Unless(&["null"], "an arm is chosen by its name")),
            ("render_mode", IS_TEXT),
        ],
        remark: None,
    },
    EnvType {
        name: "countdown",
        kind: "countdown",
        defaults: &[],
        fixed: &[],
        settings: &[
            ("train_path", File("file")),
            ("max_instances", Same("train_size")),
            ("score", Unless(&["1", "1.0"], "an answer that is right earns 1")),
            ("format_score", Unless(&["0.1"], "the right numbers with a wrong value earn 0.1")),
            ("render_mode", IS_TEXT),
        ],
        remark: Some("tasks are drawn like those of RAGEN's file; `environment.file` reads them from it"),
    },
    EnvType {
        name: "sudoku",
        kind: "sudoku",
        defaults: &[("grid_size", "9"), ("difficulty", "easy")],
        fixed: &[],
        settings: &[
            ("grid_size", Words("size", &[("4", "4x4"), ("9", "9x9")])),
            ("difficulty", Difficulty),
            ("max_steps", Limit),
            ("render_mode", IS_TEXT),
            ("render_format", NoEffect("a grid is shown as it stands")),
            (
                "show_conflicts",
                NoEffect(
                    "a number that is not the solution's is not put down: there are no conflicts to show",
                ),
            ),
            (
                "show_valid_numbers",
                NoEffect("a grid is shown as it stands, without what is possible in its cells"),
            ),
            (
                "show_candidates",
                NoEffect("a grid is shown as it stands, without what is possible in its cells"),
            ),
            ("correct_placement_score", Unless(&["1", "1.0"], "a number that is right earns 1")),
            ("invalid_action_score", Unless(&["-0.1"], "what is not put down costs 0.1")),
            ("completion_bonus", Unless(&["10", "10.0"], "a complete grid earns 10 more")),
        ],
        remark: Some("a grid is shown as it stands: RAGEN adds what is possible in each cell"),
    },
    EnvType {
        name: "game_2048",
        kind: "twenty_forty_eight",
        defaults: &[],
        fixed: &[],
        settings: &[
            ("size", Same("size")),
            ("two_prob", Complement("four_prob")),
            ("use_log_reward", Unless(&["True", "true"], "a merge earns its logarithm")),
            ("render_mode", IS_TEXT),
            ("action_lookup", Unless(&["null"], SO_NAMED)),
            (
                "action_lookup.",
                Entries(&[("0", "Up"), ("1", "Right"), ("2", "Down"), ("3", "Left")], SO_NAMED),
            ),
        ],
        remark: None,
    },
    EnvType {
        name: "rubikscube",
        kind: "rubik_2x2",
        defaults: &[],
        fixed: &[("faces", "six"), ("doubles", "false")],
        settings: &[
            ("scramble_depth", Same("scramble_moves")),
            ("max_steps", Limit),
            ("render_mode", IS_TEXT),
            ("action_lookup", Unless(&["null"], SO_NAMED)),
        ],
        remark: None,
    },
];

impl EnvType {
    /// What RAGEN means by a setting, and the part of its name below a mapping's.
    fn meaning<'n>(&self, name: &'n str) -> Option<(Meaning, &'n str)> {
        self.settings.iter().find_map(|(known, meaning)| {
            let below = if known.ends_with('.') { name.strip_prefix(known)? } else { "" };
            (known.ends_with('.') || *known == name).then_some((*meaning, below))
        })
    }

    /// What one of some settings becomes.
    pub(super) fn outcome(&self, setting: &Setting, all: &[Setting]) -> Outcome {
        let Some((meaning, below)) = self.meaning(&setting.name) else { return Outcome::Unknown };
        let value = setting.value.as_str();
        let find = |name: &str| all.iter().find(|other| other.name == name);
        let one_of = |words: &[&str]| match words.split_last() {
            Some((last, [])) => format!("it must be {last}"),
            Some((last, first)) => format!("it must be {} or {last}", first.join(", ")),
            None => String::new(),
        };
        let so_anyway = || Outcome::NoEffect("this is how tamis works without the key".to_owned());
        match meaning {
            Same(ours) => Outcome::Set(vec![(ours, value.to_owned())]),
            Words(ours, words) => match words.iter().find(|(theirs, _)| *theirs == value) {
                Some((_, word)) => Outcome::Set(vec![(ours, (*word).to_owned())]),
                None => {
                    Outcome::Refused(one_of(&words.iter().map(|(theirs, _)| *theirs).collect::<Vec<_>>()))
                }
            },
            File(_) if value == "null" => Outcome::NoEffect("null leaves the default".to_owned()),
            File(ours) => Outcome::Set(vec![(ours, quote(value))]),
            NoEffect(reason) => Outcome::NoEffect(reason.to_owned()),
            Unless(allowed, _) if allowed.contains(&value) => so_anyway(),
            Entries(entries, _) if entries.contains(&(below, value)) => so_anyway(),
            Unless(_, reason) | Entries(_, reason) => Outcome::Refused(reason.to_owned()),
            Limit => Outcome::Limit(value.to_owned()),
            Side(ours, other) => match find(other) {
                Some(_) => Outcome::Set(vec![(ours, value.to_owned())]),
                None => Outcome::Refused(format!("RAGEN reads both sides or none: give {other} beside it")),
            },
            Sides if find("dim_x").is_some() && find("dim_y").is_some() => {
                Outcome::NoEffect("dim_x and dim_y go before it".to_owned())
            }
            Sides => {
                let sides: Vec<&str> = value.trim_matches(['[', ']']).split(',').map(str::trim).collect();
                match sides[..] {
                    [rows, columns] => {
                        Outcome::Set(vec![("rows", rows.to_owned()), ("columns", columns.to_owned())])
                    }
                    _ => Outcome::Refused("it must be two numbers, such as [6, 6]".to_owned()),
                }
            }
            Symbol => symbols::of_cell(setting, all),
            Legend => symbols::of_legend(below, value, all),
            Complement(ours) => match value.parse::<f64>() {
                // Without the rounding 1 - 0.9 is 0.09999999999999998.
                Ok(prob) => Outcome::Set(vec![(ours, (((1.0 - prob) * 1e12).round() / 1e12).to_string())]),
                Err(_) => Outcome::Refused("it must be a number".to_owned()),
            },
            Difficulty => {
                let is_small = find("grid_size").is_some_and(|size| size.value == "4");
                match (value, is_small) {
                    ("easy", true) => Outcome::Set(vec![("empty_cells", "6".to_owned())]),
                    ("medium", true) => Outcome::Set(vec![("empty_cells", "7".to_owned())]),
                    ("hard", true) => Outcome::Set(vec![("empty_cells", "10".to_owned())]),
                    ("easy", false) => Outcome::Set(vec![("empty_cells", "45".to_owned())]),
                    ("medium", false) => Outcome::Set(vec![("empty_cells", "51".to_owned())]),
                    ("hard", false) => Outcome::Set(vec![("empty_cells", "57".to_owned())]),
                    _ => Outcome::Refused(one_of(&["easy", "medium", "hard"])),
                }
            }
            Arm => {
                let name = |name| find(name).map(|arm| arm.value.as_str());
                match (name("lo_arm_name"), name("hi_arm_name")) {
                    (Some("Phoenix"), Some("Dragon")) if setting.name == "lo_arm_name" => {
                        Outcome::Set(vec![("names", "legend".to_owned())])
                    }
                    (Some("Dragon"), Some("Phoenix")) if setting.name == "lo_arm_name" => {
                        Outcome::Set(vec![("names", "legend".to_owned()), ("is_reversed", "true".to_owned())])
                    }
                    (Some("Phoenix"), Some("Dragon")) | (Some("Dragon"), Some("Phoenix")) => {
                        Outcome::PartOf("lo_arm_name".to_owned())
                    }
                    _ => Outcome::Refused(
                        "the arms are Phoenix and Dragon, both named, or those of `split`".to_owned(),
                    ),
                }
            }
        }
    }

    /// The names of its settings.
    pub(super) fn names(&self) -> Vec<&'static str> {
        self.settings.iter().map(|(name, _)| name.trim_end_matches('.')).collect()
    }
}
