//! Other spellings and other names: `Dr.GRPO` is `dr_grpo`, and verl's `vanilla` is `clip`.

use super::{Entry, entries};

/// Words of the field for things that have another name here, or several parts: spelt as by [`plain`], with
/// the entries' names.
const ALIASES: &[(&str, &[&str])] = &[
    ("critic", &["gae", "value_loss"]),
    ("dppo", &["dppo_tv", "dppo_kl"]),
    ("entropy", &["entropy_bonus", "adaptive_entropy", "top_entropy"]),
    ("kl", &["k1", "k2", "k3", "abs"]),
    ("mse", &["k2"]),
    ("ppo", &["gae", "clip", "value_loss"]),
    ("vanilla", &["clip"]),
];

/// A name without the parts that people spell differently: case, hyphens, underscores, dots, spaces and the
/// pluses of REINFORCE++.
pub(super) fn plain(name: &str) -> String {
    name.to_lowercase().replace('+', "plus").replace(['-', '_', '.', ' '], "")
}

/// The entries for a word that is no entry's own name: first by the field's words, then by the names and keys
/// of other systems.
pub(super) fn find_also(name: &str) -> Vec<&'static Entry> {
    let word = plain(name);
    if let Some((_, names)) = ALIASES.iter().find(|(alias, _)| *alias == word) {
        return names.iter().flat_map(|name| entries().filter(move |entry| entry.name == *name)).collect();
    }
    entries().filter(|entry| system_names(entry).any(|known| plain(known) == word)).collect()
}

/// Every word that [`find_also`] knows, with its entry.
pub(super) fn words() -> impl Iterator<Item = (String, &'static str)> {
    let aliases =
        ALIASES.iter().flat_map(|(alias, names)| names.iter().map(|name| ((*alias).to_owned(), *name)));
    let systems = entries().flat_map(|entry| system_names(entry).map(|known| (plain(known), entry.name)));
    aliases.chain(systems)
}

/// Names of an entry in other systems: the words of its list that are names, in full
/// (`algorithm.filter_groups`) and by their last part (`filter_groups`). A word without a separator is too
/// ambiguous.
fn system_names(entry: &'static Entry) -> impl Iterator<Item = &'static str> {
    entry
        .known_as
        .iter()
        .flat_map(|(_, names)| names.split(|c: char| c.is_whitespace() || ",|=;()`+".contains(c)))
        .flat_map(|word| [word, word.rsplit('.').next().unwrap_or(word)])
        .filter(|word| word.trim_matches('_').contains('_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_alias_stands_for_entries_there_are_and_for_no_entrys_own_name() {
        for (alias, names) in ALIASES {
            assert_eq!(*alias, plain(alias));
            for name in *names {
                assert!(entries().any(|entry| entry.name == *name), "{alias}: {name}");
            }
        }
        assert!(ALIASES.is_sorted(), "sorted, so that additions are seen to be new");
    }

    #[test]
    fn names_of_the_systems() {
        let names = |word: &str| find_also(word).into_iter().map(|entry| entry.name).collect::<Vec<_>>();
        assert_eq!(names("algorithm.filter_groups"), ["variance"]);
        assert_eq!(names("filter_groups"), ["variance"]);
        assert_eq!(names("rloo_vectorized"), ["rloo"]);
        assert_eq!(names("top_k_abs"), ["top_k"]);
        assert_eq!(names("with"), Vec::<&str>::new());
    }
}
