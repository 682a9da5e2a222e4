//! RAGEN's kinds of environment with their `env_config`, and its tags: the table `ragen-environments.tsv`. A
//! line without a setting begins a kind. It has our kind, our settings without a name in RAGEN, RAGEN's
//! defaults, and a remark; or, if we have no such kind, what to do instead. A setting whose name ends in a
//! dot covers the entries of a mapping. Of the lines of a setting, the first whose `if` holds is used; `; `
//! separates `if` from other conditions:
//!
//! | becomes | condition | the setting |
//! |---|---|---|
//! | one of ours | | has the same value there |
//! | one of ours | `words A=B\|C` | has B for A, and the same word for C; other values are refused |
//! | one of ours | `file`, `complement` | is a file; is 1 without it |
//! | two of ours | `sides` | is both sides of a room |
//! | `a=1 b=2` | | sets these |
//! | `part of a` | | belongs to the translation of `a` |
//! | | | has no effect, for the reason in the note |
//! | | `unless A\|B`, `never` | is refused unless it has one of these values |
//! | | `entries A=B\|C=D` | is refused unless its entries are these |
//! | | `limit`, `symbol`, `legend` | is a limit of actions, a symbol of Sokoban's cells, the words for one |

use std::sync::LazyLock;

use super::symbols;
use crate::table::columns;
use tamis_config::render::scalar;

pub(super) struct Environments {
    pub(super) kinds: Vec<EnvType>,
    /// Kinds that RAGEN has and tamis does not, with what to do instead.
    pub(super) elsewhere: Vec<(&'static str, &'static str)>,
    pub(super) tags: Vec<Tag>,
}

/// The tag that RAGEN uses if none is named.
pub(super) const DEFAULT: &str = "CoordSokoban";

/// Settings that had another name in other versions of RAGEN.
pub(super) const OTHER_NAMES: &[(&str, &str)] = &[("board_size", "grid_size")];

type Settings = Vec<(&'static str, &'static str)>;

/// A kind of environment.
pub(super) struct EnvType {
    pub(super) name: &'static str,
    /// Our kind.
    pub(super) kind: &'static str,
    /// RAGEN's defaults that differ from ours.
    pub(super) defaults: Settings,
    /// Our settings without a name in RAGEN.
    pub(super) fixed: Settings,
    rows: Vec<Row>,
    /// A remark for the user.
    pub(super) remark: Option<&'static str>,
}

struct Row {
    setting: &'static str,
    becomes: &'static str,
    condition: &'static str,
    note: &'static str,
}

/// An environment of RAGEN's `envs.yaml`, with its numbers there.
pub(super) struct Tag {
    pub(super) name: &'static str,
    /// RAGEN's name of its kind.
    pub(super) env_type: &'static str,
    /// Its `max_actions_per_traj`.
    pub(super) max_actions: &'static str,
    pub(super) max_tokens: &'static str,
    /// Its `env_config`.
    pub(super) config: Settings,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Setting {
    pub(super) name: String,
    pub(super) value: String,
    /// The key that sets it; `None` for a value from the tag or RAGEN's default.
    pub(super) key: Option<String>,
}

/// The translation of one setting.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Outcome {
    /// Ours, below the environment's section.
    Set(Vec<(&'static str, String)>),
    /// Covered by the translation of another setting.
    PartOf(String),
    /// Nothing, for a reason.
    NoEffect(String),
    Limit(String),
    Refused(String),
    /// An unknown setting.
    Unknown,
}

/// The table.
pub(super) fn environments() -> &'static Environments {
    static ENVIRONMENTS: LazyLock<Environments> = LazyLock::new(read);
    &ENVIRONMENTS
}

fn read() -> Environments {
    let table = include_str!("../../tables/ragen-environments.tsv");
    let (settings, tags) = table.split_once("\n= tags\n").unwrap_or((table, ""));
    let (mut kinds, mut elsewhere): (Vec<EnvType>, Vec<_>) = (Vec::new(), Vec::new());
    for [name, setting, becomes, condition, note] in settings.lines().skip(1).map(columns) {
        match (kinds.last_mut(), setting, becomes) {
            (_, "", "") => elsewhere.push((name, note)),
            (_, "", ours) => {
                let (kind, fixed) = ours.split_once(' ').unwrap_or((ours, ""));
                let remark = Some(note).filter(|note| !note.is_empty());
                let (fixed, defaults) = (pairs(fixed), pairs(condition));
                kinds.push(EnvType { name, kind, defaults, fixed, rows: Vec::new(), remark });
            }
            (Some(kind), ..) => kind.rows.push(Row { setting, becomes, condition, note }),
            (None, ..) => {}
        }
    }
    let tag = |[name, env_type, max_actions, max_tokens, config]: [&'static str; 5]| Tag {
        name,
        env_type,
        max_actions,
        max_tokens,
        config: pairs(config),
    };
    Environments { kinds, elsewhere, tags: tags.lines().skip(1).map(columns).map(tag).collect() }
}

/// `a=1 b=2` as pairs.
fn pairs(text: &'static str) -> Settings {
    text.split(' ').filter_map(|pair| pair.split_once('=')).collect()
}

impl EnvType {
    /// The line for a setting, given all settings, and the rest of its name below a mapping.
    fn row<'n>(&self, name: &'n str, all: &[Setting]) -> Option<(&Row, &'n str)> {
        let holds = |term: &str| match term
            .strip_prefix("if ")
            .map(|term| term.split_once('=').unwrap_or((term, "")))
        {
            Some((name, value)) => {
                all.iter().any(|other| other.name == name && (value.is_empty() || other.value == value))
            }
            None => true,
        };
        self.rows.iter().find_map(|row| {
            let below = if row.setting.ends_with('.') { name.strip_prefix(row.setting)? } else { "" };
            let is_it = row.setting.ends_with('.') || row.setting == name;
            (is_it && row.condition.split("; ").all(holds)).then_some((row, below))
        })
    }

    pub(super) fn outcome(&self, setting: &Setting, all: &[Setting]) -> Outcome {
        let Some((row, below)) = self.row(&setting.name, all) else { return Outcome::Unknown };
        let (ours, value) = (row.becomes, setting.value.as_str());
        let form = row.condition.split("; ").find(|term| !term.starts_with("if ")).unwrap_or_default();
        let (form, words) = form.split_once(' ').unwrap_or((form, ""));
        let words: Settings =
            words.split('|').map(|word| word.split_once('=').unwrap_or((word, word))).collect();
        let is_so = match form {
            "unless" => words.contains(&(value, value)),
            "entries" => words.contains(&(below, value)),
            _ => false,
        };
        let set = |value: &str| Outcome::Set(vec![(ours, value.to_owned())]);
        match form {
            _ if is_so => Outcome::NoEffect("this is how tamis works without the key".to_owned()),
            "unless" | "never" | "entries" => Outcome::Refused(row.note.to_owned()),
            "words" => match words.iter().find(|(theirs, _)| *theirs == value) {
                Some((_, word)) => set(word),
                None => Outcome::Refused(one_of(&words)),
            },
            "file" if value == "null" => Outcome::NoEffect("null leaves the default".to_owned()),
            "file" => set(&scalar(value)),
            "complement" => match value.parse::<f64>() {
                // Without rounding, 1 - 0.9 is 0.09999999999999998.
                Ok(prob) => set(&(((1.0 - prob) * 1e12).round() / 1e12).to_string()),
                Err(_) => Outcome::Refused("it must be a number".to_owned()),
            },
            "sides" => {
                let sides: Vec<&str> = value.trim_matches(['[', ']']).split(',').map(str::trim).collect();
                match (ours.split_once(' '), &sides[..]) {
                    (Some((first, second)), [rows, columns]) => {
                        Outcome::Set(vec![(first, (*rows).to_owned()), (second, (*columns).to_owned())])
                    }
                    _ => Outcome::Refused("it must be two numbers, such as [6, 6]".to_owned()),
                }
            }
            "limit" => Outcome::Limit(value.to_owned()),
            "symbol" => symbols::of_cell(setting, all),
            "legend" => symbols::of_legend(below, value, all),
            _ if ours.is_empty() => Outcome::NoEffect(row.note.to_owned()),
            _ => match ours.strip_prefix("part of ") {
                Some(whole) => Outcome::PartOf(whole.to_owned()),
                None if ours.contains('=') => Outcome::Set(
                    pairs(ours).into_iter().map(|(ours, value)| (ours, value.to_owned())).collect(),
                ),
                None => set(value),
            },
        }
    }

    pub(super) fn names(&self) -> Vec<&'static str> {
        let mut names: Vec<_> = self.rows.iter().map(|row| row.setting).collect();
        names.dedup();
        names.into_iter().map(|name| name.trim_end_matches('.')).collect()
    }
}

fn one_of(words: &[(&str, &str)]) -> String {
    let names: Vec<&str> = words.iter().map(|(theirs, _)| *theirs).collect();
    match names.split_last() {
        Some((last, first)) if !first.is_empty() => format!("it must be {} or {last}", first.join(", ")),
        _ => format!("it must be {}", names.concat()),
    }
}
