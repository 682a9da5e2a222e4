//! What there is, by its name in the field: one entry per estimator, loss, filter and correction.
//!
//! Every module states its own [entries](crate::entry) beside the code that they describe; here they become one table. Help texts,
//! `tamis explain NAME` and the generated page `docs/algorithms.md` read this table and nothing else.

use std::fmt::Write;

pub use crate::entry::{Entry, Family};

/// All entries, family by family in the order of the modules.
pub fn entries() -> impl Iterator<Item = &'static Entry> {
    let one_by_one = [
        crate::correction::ENTRIES,
        crate::filter::ENTRIES,
        crate::early_stop::ENTRIES,
        crate::diagnostics::ENTRIES,
        crate::balance::ENTRIES,
    ];
    std::iter::once(crate::advantage::ENTRIES).chain(crate::objective::ENTRIES).chain(one_by_one).flatten()
}

/// The entries of a name: usually one, several where families share it (`grpo` is a preset and an advantage).
pub fn named(name: &str) -> Vec<&'static Entry> {
    entries().filter(|entry| entry.name == name).collect()
}

/// Names that `name` may have been meant for, the nearest first; at most three.
pub fn nearest(name: &str) -> Vec<&'static str> {
    let distance = |entry: &Entry| strsim::osa_distance(&name.to_lowercase(), entry.name);
    let mut near: Vec<_> = entries()
        .map(|entry| (distance(entry), entry.name))
        .filter(|(distance, known)| *distance <= 2 + known.len() / 4)
        .collect();
    near.sort_unstable();
    near.dedup_by_key(|(_, known)| *known);
    near.into_iter().map(|(_, known)| known).take(3).collect()
}

/// The whole catalogue as a page of Markdown.
pub fn markdown() -> String {
    let mut page = String::from(
        "# Algorithms by name\n\n<!-- Generated from the entries in crates/tamis-core/src by scripts/generate; do not edit. -->\n\n`tamis explain NAME` \
         prints any entry of this page.\n",
    );
    for family in Family::ALL {
        let mut entries = entries().filter(|entry| entry.family == family).peekable();
        if entries.peek().is_none() {
            continue;
        }
        // Writing to a string cannot fail.
        let _ = write!(page, "\n## {}\n", family.heading());
        for entry in entries {
            let _ = write!(page, "\n{}", entry.markdown(3));
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique_within_a_family_and_every_entry_says_what_it_is() {
        let mut seen = HashSet::new();
        for entry in entries() {
            assert!(seen.insert((entry.family, entry.name)), "{} twice", entry.name);
            assert!(Family::ALL.contains(&entry.family));
            for text in [entry.meaning, entry.formula, entry.source] {
                assert!(!text.is_empty() && !text.contains('\n'), "{}", entry.name);
            }
        }
    }

    #[test]
    fn an_entry_is_found_by_its_name() {
        assert!(named("grpo").iter().any(|entry| entry.family == Family::Advantage));
        assert!(named("nothing of that name").is_empty());
        assert_eq!(nearest("varience"), ["variance"]);
        assert!(nearest("something else altogether").is_empty());
    }

    #[test]
    fn the_page_has_every_entry_under_its_family() {
        let page = markdown();
        for entry in entries() {
            assert!(page.contains(&format!("### `{}`\n\n{}", entry.name, entry.meaning)), "{}", entry.name);
        }
    }
}
