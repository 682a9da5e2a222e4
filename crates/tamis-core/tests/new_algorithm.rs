//! The example of a new algorithm runs, the page that explains it shows its code, and no other source matches
//! on an algorithm by name.

use std::collections::BTreeSet;
use std::path::Path;

#[allow(unreachable_pub, reason = "it is a program of its own too")]
#[path = "../examples/new_algorithm.rs"]
mod example;

const PAGE: &str = include_str!("../../../docs/adding-an-algorithm.md");
const CODE: &str = include_str!("../examples/new_algorithm.rs");

#[test]
fn the_example_runs() -> Result<(), Box<dyn std::error::Error>> {
    example::main()
}

#[test]
fn the_page_shows_the_code_of_the_example() {
    let (_, rest) = CODE.split_once("// [loss]\n").expect("the part begins");
    let (code, _) = rest.split_once("// [/loss]").expect("the part ends");
    assert!(
        PAGE.contains(&format!("```rust\n{code}```\n")),
        "docs/adding-an-algorithm.md shows another loss"
    );
}

/// Places where sources name one algorithm, with the reason.
const NAMED: [(&str, &str); 10] = [
    // A function of the user's: its process, its check, its file in the headline, the column of its results.
    ("tamis-train/src/own_function/mod.rs", "Advantage::"),
    ("tamis-train/src/own_function/mod.rs", "PolicyLoss::"),
    ("tamis-train/src/assemble/check/paths.rs", "Advantage::"),
    ("tamis-train/src/assemble/check/paths.rs", "PolicyLoss::"),
    ("tamis-train/src/assemble/headline.rs", "Advantage::"),
    ("tamis-train/src/assemble/headline.rs", "PolicyLoss::"),
    ("tamis-train/src/assemble/advantage.rs", "Advantage::"),
    // The estimators that verl has, and its differences in some.
    ("tamis-import/src/shared/advantage.rs", "Advantage::"),
    // Errors about the keys that only `cpo` has.
    ("tamis-config/src/rules/objective.rs", "Advantage::"),
    // Errors about the keys of single filters.
    ("tamis-config/src/rules/filter.rs", "GroupFilter::"),
];

/// A contributor who adds an algorithm would have to find every `match` on algorithms in other files. So
/// other files call methods of the trait.
#[test]
fn no_other_source_asks_for_an_algorithm_by_name() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of the crates");
    let mut found = BTreeSet::new();
    for folder in std::fs::read_dir(crates).expect("the crates") {
        visit(&folder.expect("a crate").path().join("src"), &mut |path| {
            let text = std::fs::read_to_string(path).expect("a source");
            let (code, _) = text.split_once("#[cfg(test)]\nmod ").unwrap_or((&text, ""));
            let path = path.strip_prefix(crates).expect("within").to_string_lossy().into_owned();
            let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            for family in ["Advantage::", "Shaping::", "PolicyLoss::", "GroupFilter::"] {
                if lines.clone().any(|line| names_one(line, family)) {
                    found.insert((path.clone(), family));
                }
            }
        });
    }
    // The kernel is also built and tested without any satellite.
    let is_here = |(path, _): &(&str, &str)| crates.join(path.split('/').next().unwrap_or(path)).exists();
    let allowed = NAMED.into_iter().filter(is_here).map(|(path, family)| (path.to_owned(), family));
    assert_eq!(
        found,
        allowed.collect::<BTreeSet<_>>(),
        "sources that name an algorithm, against those that may"
    );
}

/// Whether a line names a variant of an enum, as in `Advantage::Grpo`.
fn names_one(line: &str, family: &str) -> bool {
    line.match_indices(family).any(|(at, _)| {
        let is_whole = !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let mut name = line[at + family.len()..].chars();
        is_whole && name.next().is_some_and(char::is_uppercase) && name.next().is_some_and(char::is_lowercase)
    })
}

/// Visits every source below a folder that is no test.
fn visit(folder: &Path, see: &mut dyn FnMut(&Path)) {
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let is_test = name == "tests" || name == "laws" || name.ends_with("_tests");
        if path.is_dir() && !is_test {
            visit(&path, see);
        } else if !is_test && path.extension().is_some_and(|ending| ending == "rs") {
            see(&path);
        }
    }
}
