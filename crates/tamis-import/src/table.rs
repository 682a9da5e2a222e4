//! Reads the table of a system: `tables/SYSTEM.tsv`.
//!
//! A row is a key with its default there and what becomes of it, in columns that a tab divides:
//!
//! | becomes | condition | note | the key |
//! |---|---|---|---|
//! | a key of ours | | | has the same value there |
//! | keys of ours | `by RULE` | | sets them together with related keys, by a rule |
//! | | | a reason | has no effect |
//! | | `unless A|B` | a reason | is refused unless it has one of these values |
//! | | `never` | a reason | is refused |
//!
//! `@name` in place of a note stands for the note of the line that begins with it. After the rows come the
//! rules that are rows themselves, see [`crate::steps`].

use std::collections::HashMap;

use super::key::{Becomes, ForeignKey, Rule};
use super::owner::Owner;

/// The table of a system.
pub(crate) struct Table {
    /// Its keys.
    pub(crate) rows: Vec<ForeignKey>,
    /// The steps that take the defaults of a whole configuration.
    pub(crate) defaults: Rule,
}

/// Reads the table of a system; `rules` are functions that its conditions name beside the rules in it.
pub(crate) fn read(owner: Owner, table: &'static str, rules: &[Rule]) -> Table {
    let mut blocks = table.split("\n= ");
    let rows = blocks.next().unwrap_or_default();
    let in_table: Vec<Rule> = blocks
        .map(|block| {
            let (heading, steps) = block.split_once('\n').unwrap_or((block, ""));
            let [name, stage, ..] = columns(heading);
            Rule::of_steps(owner, stage.parse().unwrap_or(u8::MAX), name, steps.trim_end_matches('\n'))
        })
        .collect();
    let rule = |name: &str| in_table.iter().chain(rules).find(|rule| rule.name == name).copied();
    let (notes, rows): (Vec<_>, Vec<_>) =
        rows.lines().skip(1).map(columns).partition(|row| row[0].starts_with('@'));
    let notes: HashMap<&str, &'static str> = notes.into_iter().map(|[name, .., note]| (name, note)).collect();
    let of_columns = |[key, default, ours, condition, note]: [&'static str; 5]| {
        let note = notes.get(note).copied().unwrap_or(note);
        let becomes = match condition.split_once(' ').unwrap_or((condition, "")) {
            ("by", name) => {
                Becomes::By(rule(name).unwrap_or_else(|| unreachable!("{key}: no rule `{name}`")), ours)
            }
            ("unless", values) => Becomes::Unless(values.split('|').collect(), note),
            ("never", _) => Becomes::Unless(Vec::new(), note),
            _ if ours.is_empty() => Becomes::NoEffect(note),
            _ => Becomes::Key(ours),
        };
        ForeignKey { key, default, becomes }
    };
    let rows = rows.into_iter().map(of_columns).collect();
    Table { rows, defaults: rule("defaults").unwrap_or_else(|| unreachable!("{owner} has no defaults")) }
}

/// The five columns of a line; those that it ends without are empty.
pub(crate) fn columns(line: &'static str) -> [&'static str; 5] {
    let mut columns = line.split('\t');
    std::array::from_fn(|_| columns.next().unwrap_or_default())
}
