//! No reference vector is passed over: `tests/golden/COVERAGE.md` names for every file the tests that compare
//! it and every field of its cases.

#![allow(clippy::unwrap_used, reason = "a table or a folder that cannot be read has failed")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

const TABLE: &str = include_str!("../../../tests/golden/COVERAGE.md");

/// The parts of a case, in the order of the table's columns from the third on.
const PARTS: [&str; 3] = ["params", "inputs", "outputs"];

/// The rows of the table under a heading (the first table: `# Which`), each as its cells.
fn rows(heading: &str) -> Vec<Vec<&'static str>> {
    let lines = TABLE.lines().skip_while(|line| !line.starts_with(heading)).skip(1);
    lines
        .take_while(|line| !line.starts_with('#'))
        .filter(|line| line.starts_with('|'))
        .skip(2)
        .map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect())
        .collect()
}

/// Source of a row's tests, with the helpers in `main.rs` and beside a folder of tests.
fn sources(tests: &str) -> String {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut text = String::new();
    for test in tests.split(' ') {
        let path = crates.join(test);
        text += &std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{test}: {error}"));
        let folder = path.parent().unwrap();
        for helper in [folder.join("main.rs"), folder.join("../main.rs"), folder.with_extension("rs")] {
            text += &std::fs::read_to_string(helper).unwrap_or_default();
        }
    }
    text
}

/// Names of the reference files and folders that are there, without endings.
fn present() -> BTreeSet<String> {
    std::fs::read_dir(tamis_golden::folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !["README.md", "COVERAGE.md", "versions.txt", "make_sft.py"].contains(&name.as_str()))
        .map(|name| name.trim_end_matches(".gz").trim_end_matches(".json").to_owned())
        .collect()
}

/// Faults of one row, a line each.
fn faults(row: &[&str], unnamed: &[Vec<&str>]) -> String {
    let [file, tests, known @ ..] = row else { panic!("a row of two cells at least: {row:?}") };
    assert_eq!(known.len(), PARTS.len(), "{file}: a cell for each of {PARTS:?}");
    let text = sources(tests);
    let mut faults = String::new();
    if !text.contains(&format!("\"{file}\"")) {
        writeln!(faults, "{file}: {tests} does not read it").unwrap();
    }
    for (part, known) in PARTS.iter().zip(known) {
        let known: BTreeSet<&str> = known.split(' ').filter(|field| *field != "-").collect();
        let mut found = BTreeSet::new();
        for case in tamis_golden::cases(file) {
            found.extend(case[part].as_object().into_iter().flat_map(serde_json::Map::keys).cloned());
            let parts = case.as_object().unwrap();
            let extra = parts
                .keys()
                .find(|key| !PARTS.contains(&key.as_str()) && !["name", "dtype"].contains(&key.as_str()));
            assert!(extra.is_none(), "{file}: a case has a part `{}` that no test reads", extra.unwrap());
        }
        for field in &found {
            let excused = unnamed.iter().any(|row| row[0] == *file && row[1] == field);
            let named = text.contains(&format!("\"{field}\""));
            if !known.contains(field.as_str()) {
                writeln!(faults, "{file}: {part} `{field}` stands in no row").unwrap();
            } else if !named && !excused && field != "padded_len" {
                writeln!(faults, "{file}: {part} `{field}` is named by none of {tests}").unwrap();
            } else if named && excused {
                writeln!(faults, "{file}: {part} `{field}` is named after all: take its excuse out").unwrap();
            }
        }
        for field in known.iter().filter(|field| !found.contains(**field)) {
            writeln!(faults, "{file}: {part} `{field}` is in no case").unwrap();
        }
    }
    faults
}

#[test]
fn every_file_has_a_row_and_every_row_a_file() {
    let folders = rows("## Folders");
    let rows = rows("# Which");
    let listed: BTreeSet<String> = rows.iter().chain(&folders).map(|row| row[0].to_owned()).collect();
    assert_eq!(rows.len() + folders.len(), listed.len(), "a file in two rows");
    let present = present();
    let unknown: Vec<_> = present.difference(&listed).collect();
    assert!(unknown.is_empty(), "in the folder, in no row of tests/golden/COVERAGE.md: {unknown:?}");
    let missing: Vec<_> = rows.iter().map(|row| row[0]).filter(|file| !present.contains(*file)).collect();
    assert!(missing.is_empty(), "rows of tests/golden/COVERAGE.md without a file: {missing:?}");
}

#[test]
fn every_field_is_known_and_named_by_its_tests() {
    let unnamed = rows("## Fields");
    let faults: String = rows("# Which").iter().map(|row| faults(row, &unnamed)).collect();
    assert!(faults.is_empty(), "tests/golden/COVERAGE.md:\n{faults}");
}

#[test]
fn folders_are_read_by_their_tests() {
    for row in rows("## Folders").iter().filter(|row| !row[1].starts_with("nothing")) {
        let text = sources(row[1]);
        assert!(text.contains(row[0]), "{}: not named by {}", row[0], row[1]);
    }
}

/// The test above fails on what it is there for.
#[test]
fn an_unknown_field_and_an_unread_file_are_found() {
    let tests = "tamis-train/src/measure/batch_metrics/tests.rs";
    let row = |outputs| vec!["trl_nanstd", tests, "-", "values", outputs];
    assert_eq!(faults(&row("nanstd"), &[]), "");
    assert!(faults(&row("-"), &[]).contains("outputs `nanstd` stands in no row"));
    assert!(faults(&row("nanstd mean"), &[]).contains("outputs `mean` is in no case"));
    let elsewhere = vec!["trl_nanstd", "tamis-golden/src/lib.rs", "-", "values", "nanstd"];
    assert!(faults(&elsewhere, &[]).contains("does not read it"));
}

#[test]
fn every_case_has_a_name_of_its_own() {
    for row in rows("# Which") {
        let cases = tamis_golden::cases(row[0]);
        let names: BTreeSet<&str> = cases.iter().filter_map(|case| case["name"].as_str()).collect();
        assert_eq!(names.len(), cases.len(), "{}: two cases of one name, or one without", row[0]);
    }
}
