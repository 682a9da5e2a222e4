//! What there is, by its name in the field: one entry per estimator, loss, filter and correction.
//!
//! Every module states its own [entries](crate::entry) beside the code that they describe; here they become one table. Help texts,
//! `tamis explain NAME` and the generated page `docs/algorithms.md` read this table and nothing else.

mod alias;

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

/// The entries of a name: usually one, several where families share it (`grpo` is a preset and an advantage) or where the word stands for
/// more than one part. Case, hyphens, underscores and dots do not matter, and names of the systems count: `Dr.GRPO` is `dr_grpo`, verl's
/// `vanilla` is `clip`.
///
/// ```
/// use tamis_core::catalogue::named;
/// assert_eq!(named("Dr.GRPO")[0].name, "dr_grpo");
/// assert_eq!(named("low_var_kl")[0].name, "k3");
/// ```
pub fn named(name: &str) -> Vec<&'static Entry> {
    let of = |holds: &dyn Fn(&Entry) -> bool| entries().filter(|entry| holds(entry)).collect::<Vec<_>>();
    let exact = of(&|entry| entry.name == name);
    if !exact.is_empty() {
        return exact;
    }
    let word = alias::plain(name);
    let spelt = of(&|entry| alias::plain(entry.name) == word);
    if spelt.is_empty() { alias::also_named(name) } else { spelt }
}

/// Whether a name is an entry's own, however it is spelt; otherwise [`named`] found it by what others call it.
pub fn is_own_name(name: &str, entry: &Entry) -> bool {
    alias::plain(entry.name) == alias::plain(name)
}

/// Names that `name` may have been meant for, the nearest first; at most three.
pub fn nearest(name: &str) -> Vec<&'static str> {
    let word = alias::plain(name);
    let own = nearest_of(&word, entries().map(|entry| (alias::plain(entry.name), entry.name)));
    if own.is_empty() { nearest_of(&word, alias::words()) } else { own }
}

/// The names whose words are nearest, without repetition; at most three.
fn nearest_of(word: &str, known: impl Iterator<Item = (String, &'static str)>) -> Vec<&'static str> {
    let length = word.chars().count();
    let mut near: Vec<_> = known
        .map(|(known, name)| (strsim::osa_distance(word, &known), known.len(), name))
        .filter(|(distance, known, _)| *distance <= 1.max(known / 3) && *distance < length)
        .map(|(distance, _, name)| (distance, name))
        .collect();
    near.sort_unstable();
    let mut names: Vec<&'static str> = Vec::new();
    for (_, name) in near {
        if names.len() < 3 && !names.contains(&name) {
            names.push(name);
        }
    }
    names
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
        assert_eq!(nearest("drgpro"), ["dr_grpo"]);
        assert_eq!(nearest("vanila"), ["clip"]);
    }

    #[test]
    fn spelling_does_not_matter_and_other_names_are_known() {
        let names = |name: &str| named(name).into_iter().map(|entry| entry.name).collect::<Vec<_>>();
        assert_eq!(names("TOP_K"), ["top_k"]);
        assert_eq!(names("Dr.GRPO"), ["dr_grpo", "dr_grpo"]);
        assert_eq!(names("DAPO"), ["dapo"]);
        assert_eq!(names("Clip-Higher"), ["clip", "dapo"]);
        assert_eq!(names("REINFORCE++-baseline"), ["reinforce_plus_plus_baseline"; 2]);
        assert_eq!(names("clip_cov"), names("CLIP-Cov"));
        assert_eq!(names("dynamic sampling"), ["variance", "dapo"]);
        // A whole algorithm, by its own entry where there is one, else by its parts.
        let ppo = names("PPO");
        assert!(ppo == ["ppo"] || ppo == ["gae", "clip", "value_loss"], "{ppo:?}");
        assert!(is_own_name("Dr.GRPO", named("Dr.GRPO")[0]) && !is_own_name("vanilla", named("vanilla")[0]));
    }

    #[test]
    fn the_page_has_every_entry_under_its_family() {
        let page = markdown();
        for entry in entries() {
            assert!(page.contains(&format!("### `{}`\n\n{}", entry.name, entry.meaning)), "{}", entry.name);
        }
    }
}
