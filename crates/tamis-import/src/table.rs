//! Reads the table of a system: `tables/SYSTEM.tsv`.
//!
//! A row has a key, its default in its system, and its translation, in columns separated by tabs:
//!
//! | becomes | condition | note | the key |
//! |---|---|---|---|
//! | a key of ours | | | has the same value there |
//! | keys of ours | `by RULE` | | sets them together with related keys, by a rule |
//! | | | a reason | has no effect |
//! | | `unless A|B` | a reason | is refused unless it has one of these values |
//! | | `never` | a reason | is refused |
//!
//! A rule is one of this table or of the table that it builds on ([`Owner::base`]).
//!
//! `@name` in place of a note repeats the note of the line that begins with it. After the rows come the
//! rules, see [`crate::steps`], and at the end two blocks: `= values`, and `= export`, see [`crate::export`].
//!
//! The block `= values` has the values that a key takes in its system, if tamis or its import knows others
//! too: the key, its values, and those of older versions and of forks, which an import takes and an export
//! never writes. Any other value is refused.

use std::collections::HashMap;

use super::key::{Becomes, ForeignKey, Rule};
use super::owner::Owner;

pub(crate) struct Table {
    pub(crate) rows: Vec<ForeignKey>,
    pub(crate) rules: Vec<Rule>,
    values: Vec<Values>,
    /// The rows of the block `= export`.
    back: Vec<[&'static str; 5]>,
}

/// The values of a key in its system.
#[derive(Debug)]
pub(crate) struct Values {
    key: &'static str,
    /// Those of the version that the table is of.
    pub(crate) taken: Vec<&'static str>,
    /// Those of older versions and of forks.
    pub(crate) others: Vec<&'static str>,
}

impl Table {
    /// The row of the block `= export` for a key.
    pub(crate) fn back(&self, key: &str) -> Option<&[&'static str; 5]> {
        self.back.iter().find(|row| row[0] == key)
    }

    /// The values that a key takes in its system, if these are listed.
    pub(crate) fn values(&self, key: &str) -> Option<&Values> {
        self.values.iter().find(|values| values.key == key)
    }

    /// The rule of this name. The table must have it.
    pub(crate) fn rule(&self, name: &str) -> Rule {
        find(&self.rules, name)
    }
}

fn find(rules: &[Rule], name: &str) -> Rule {
    rules.iter().find(|rule| rule.name == name).copied().unwrap_or_else(|| unreachable!("no rule `{name}`"))
}

/// `base` is the table of the system whose rules the rows may name, too.
pub(crate) fn read(owner: Owner, table: &'static str, base: Option<&Table>) -> Table {
    let (table, back) = table.split_once("\n= export\n").unwrap_or((table, ""));
    let (table, values) = table.split_once("\n= values\n").unwrap_or((table, ""));
    let mut blocks = table.split("\n= ");
    let rows = blocks.next().unwrap_or_default();
    let rules: Vec<Rule> = blocks
        .map(|block| {
            let (heading, steps) = block.split_once('\n').unwrap_or((block, ""));
            let [name, stage, beginnings, ..] = columns(heading);
            let steps = steps.trim_end_matches('\n');
            let for_each = |beginning: &str| steps.replace('%', beginning);
            let steps = if beginnings.is_empty() {
                steps
            } else {
                beginnings.split('|').map(for_each).collect::<Vec<_>>().join("\n").leak()
            };
            // A rule without a stage is only used by other rules.
            let stage = if stage.is_empty() { Ok(u8::MAX) } else { stage.parse() };
            let stage = stage.unwrap_or_else(|_| unreachable!("the stage of the rule `{name}` is no number"));
            Rule { owner, stage, name, steps }
        })
        .collect();
    let (notes, rows): (Vec<_>, Vec<_>) =
        rows.lines().skip(1).map(columns).partition(|row| row[0].starts_with('@'));
    let notes: HashMap<&str, &'static str> = notes.into_iter().map(|[name, .., note]| (name, note)).collect();
    let of_base = base.map_or(&[][..], |base| &base.rules);
    let has = |rules: &[Rule], name: &str| rules.iter().any(|rule| rule.name == name);
    let of_columns = |[key, default, ours, condition, note]: [&'static str; 5]| {
        let note = notes.get(note).copied().unwrap_or(note);
        let becomes = match condition.split_once(' ').unwrap_or((condition, "")) {
            ("by", name) => Becomes::By(find(if has(&rules, name) { &rules } else { of_base }, name), ours),
            ("unless", values) => Becomes::Unless(values.split('|').collect(), note),
            ("never", _) => Becomes::Unless(Vec::new(), note),
            _ if ours.is_empty() => Becomes::NoEffect(note),
            _ => Becomes::Key(ours),
        };
        ForeignKey { key, default, becomes }
    };
    let rows = rows.into_iter().map(of_columns).collect();
    let listed = |text: &'static str| text.split('|').filter(|value| !value.is_empty()).collect();
    let values = values.lines().map(columns).map(|[key, taken, others, ..]| Values {
        key,
        taken: listed(taken),
        others: listed(others),
    });
    Table { rows, rules, values: values.collect(), back: back.lines().map(columns).collect() }
}

/// The five columns of a line. Missing ones at the end are empty.
pub(crate) fn columns(line: &'static str) -> [&'static str; 5] {
    let mut columns = line.split('\t');
    std::array::from_fn(|_| columns.next().unwrap_or_default())
}
