//! Commands of other systems in `commands/*.txt`, and a snapshot of each file's translation.
//!
//! ```text
//! + WORDS       before the first command: all commands of the file have these words too; then: those of the section
//! # HEADING     a section
//! own YAML      the words are typed over this configuration of tamis, as `train` and `check` take them
//! whole  WORDS  a command of which the whole configuration is shown
//! WORDS         a command; two blanks lie between words, `file {..}` is a file with this text
//! ```
//! For the first words, the snapshot shows the whole translation. For each command it shows the difference
//! from that: a note on a key, `-KEY` for a note that is gone, after `=` the values that no note has, after
//! `!` a finding, and errors.

use std::fmt::Write as _;
use std::path::Path;

use insta::assert_snapshot;
use tamis_config::source::{Source, SourceKind};
use tamis_config::{Loaded, Note, Severity};
use tamis_import::Becomes;
use tamis_import::{Owner, import, load_sources};

const VERL: &str = include_str!("commands/verl.txt");
const SCRIPTS: &str = include_str!("commands/scripts.txt");
const EASYR1: &str = include_str!("commands/easyr1.txt");
const RAGEN: &str = include_str!("commands/ragen.txt");
const TRL: &str = include_str!("commands/trl.txt");
const OWN: &str = include_str!("commands/own.txt");

/// The translation of a command.
#[derive(Default)]
struct Told {
    /// Keys with the note on each.
    notes: Vec<(String, String)>,
    /// Values that are set, as `path: value`.
    values: Vec<String>,
    /// Findings about the result, or errors.
    findings: Vec<String>,
    yaml: String,
}

impl Told {
    fn new(notes: &[Note], yaml: String, findings: impl Iterator<Item = String>) -> Self {
        let notes = notes.iter().map(|note| (note.key.clone(), note.to_string())).collect();
        Self {
            notes,
            values: values(&yaml),
            findings: findings.map(|found| format!("! {found}")).collect(),
            yaml,
        }
    }

    /// Errors, with their hints unless these only point to help.
    fn refused(errors: &impl ToString) -> Self {
        let text = errors.to_string();
        let is_told = |line: &&str| {
            line.starts_with("error: ") || line.contains("  hint: ") && !line.contains("config explain")
        };
        let findings = text.lines().filter(is_told).map(|line| line.trim_start().to_owned()).collect();
        Self { findings, ..Self::default() }
    }

    /// What this one has and the other one lacks.
    fn beside(&self, other: &Self) -> String {
        let mut text = String::new();
        let mut put = |line: &str| writeln!(text, "    {line}").unwrap_or_default();
        let notes: Vec<&str> = self
            .notes
            .iter()
            .filter(|note| !other.notes.contains(note))
            .map(|(_, note)| note.as_str())
            .collect();
        for note in &notes {
            put(note);
        }
        for (key, _) in other.notes.iter().filter(|_| !self.notes.is_empty()) {
            if !self.notes.iter().any(|(own, _)| own == key) {
                put(&format!("-{key}"));
            }
        }
        let is_new = |value: &&String| {
            !other.values.contains(value) && !notes.iter().any(|note| note.contains(value.as_str()))
        };
        let values: Vec<&str> = self.values.iter().filter(is_new).map(String::as_str).collect();
        if !values.is_empty() {
            put(&format!("= {}", values.join(", ")));
        }
        self.findings.iter().filter(|found| !other.findings.contains(found)).for_each(|found| put(found));
        text
    }
}

/// The lines of a YAML text as `path: value`, without its comments.
fn values(yaml: &str) -> Vec<String> {
    let (mut sections, mut found): (Vec<&str>, Vec<String>) = Default::default();
    for line in yaml.lines() {
        let text = line.split("  # ").next().unwrap_or(line);
        let name = text.trim_start();
        if name.starts_with('#') {
            continue;
        }
        sections.truncate((text.len() - name.len()) / 2);
        match name.strip_suffix(':') {
            Some(section) => sections.push(section),
            None => {
                found.push([&sections[..], &[name]].concat().join("."));
            }
        }
    }
    found
}

/// Converts a command. Checks that no key has two notes, that the result loads, and that `train` and `check`
/// read it alike.
fn imported(words: &[String]) -> Told {
    let import = match import(words, Path::new("")) {
        Ok(import) => import,
        Err(errors) => return Told::refused(&errors),
    };
    let mut keys: Vec<&str> = import.notes.iter().map(|note| note.key.as_str()).collect();
    keys.sort_unstable();
    assert_eq!(keys.windows(2).find(|pair| pair[0] == pair[1]), None, "two notes: {words:?}");
    let source = Source::new(SourceKind::File("imported.yaml".into()), import.yaml.clone());
    match load_sources(&[source], &[]) {
        Ok(written) if words.iter().all(|word| word.contains('=')) => {
            let direct = load_sources(&[], words).unwrap_or_else(|errors| panic!("{words:?}: {errors}"));
            assert_eq!(direct.values(), written.values(), "{words:?}");
        }
        Ok(_) => {}
        Err(errors) => {
            let is_told = import.remaining.iter().any(|found| found.severity == Severity::Error);
            assert!(is_told, "{words:?}\n{errors}\n{}", import.yaml);
        }
    }
    Told::new(&import.notes, import.yaml, import.remaining.iter().map(|found| found.problem.to_string()))
}

/// Keys over a configuration of ours.
fn over(own: &str, words: &[String]) -> Told {
    let told = |loaded: Loaded| {
        let found = loaded.warnings.iter().map(|found| found.problem.to_string());
        Told::new(&loaded.notes, loaded.show(), found)
    };
    let source = Source::new(SourceKind::File("own.yaml".into()), own);
    load_sources(&[source], words).map_or_else(|errors| Told::refused(&errors), told)
}

/// The common words of commands, and their translation.
#[derive(Default)]
struct Base<'f> {
    own: Option<&'f str>,
    words: Vec<String>,
    told: Told,
}

impl<'f> Base<'f> {
    fn with(&self, more: Vec<String>) -> Base<'f> {
        let words = [self.words.clone(), more].concat();
        let told = self.own.map_or_else(|| imported(&words), |own| over(own, &words));
        Base { own: self.own, words, told }
    }
}

/// The translation of each command of a file.
fn become_of(file: &str) -> String {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("theirs.yaml").to_str().expect("a path in UTF-8").to_owned();
    let word = |word: &str| match word.strip_prefix("file ") {
        Some(yaml) => {
            std::fs::write(&path, yaml).expect("written");
            path.clone()
        }
        None => word.to_owned(),
    };
    let words = |line: &str| line.split("  ").filter(|word| !word.is_empty()).map(word).collect();
    let file = file.replace("  \\\n", "");
    let (mut text, mut of_file, mut of_section) = (String::new(), Base::default(), None::<Base>);
    for line in file.lines().filter(|line| !line.is_empty()) {
        let gap = if line.starts_with('#') { "\n" } else { "" };
        text += gap;
        text += line;
        text += "\n";
        let base = of_section.as_ref().unwrap_or(&of_file);
        if line.starts_with("# ") {
            of_section = None;
        } else if let Some(own) = line.strip_prefix("own ") {
            of_file = Base { own: Some(own), ..Base::default() }.with(Vec::new());
        } else if let Some(more) = line.strip_prefix("+ ") {
            let longer = base.with(words(more));
            text += &longer.told.beside(&base.told);
            let is_first = of_file.words.is_empty() && of_file.own.is_none() && !text.starts_with('#');
            *(if is_first { &mut of_file } else { of_section.insert(Base::default()) }) = longer;
        } else if let Some(more) = line.strip_prefix("whole  ") {
            let whole = base.with(words(more)).told;
            text += &whole.beside(&base.told);
            text += &whole.yaml;
        } else {
            text += &base.with(words(line)).told.beside(&base.told);
        }
    }
    text.replace(&path, "theirs.yaml")
}

#[test]
fn commands_of_verl() {
    assert_snapshot!(become_of(VERL));
}

#[test]
fn scripts_of_verl() {
    assert_snapshot!(become_of(SCRIPTS));
}

#[test]
fn commands_of_easyr1() {
    assert_snapshot!(become_of(EASYR1));
}

#[test]
fn commands_of_ragen() {
    assert_snapshot!(become_of(RAGEN));
}

#[test]
fn commands_of_trl() {
    assert_snapshot!(become_of(TRL));
}

#[test]
fn keys_over_a_configuration_of_tamis() {
    assert_snapshot!(become_of(OWN));
}

/// No key of a rule is left out.
#[test]
fn every_key_of_a_rule_is_in_a_command() {
    let files = [VERL, SCRIPTS, EASYR1, RAGEN, TRL, OWN, include_str!("distillation.rs")].concat();
    let words: Vec<&str> = files.split([' ', '\n', '+', '{', ',', '"']).collect();
    let mut missing = Vec::new();
    for owner in Owner::ALL {
        for entry in owner.keys().iter().filter(|entry| matches!(entry.becomes, Becomes::By(..))) {
            let key = entry.key.trim_end_matches('*');
            if !words.iter().any(|word| word.starts_with(key)) {
                missing.push(format!("{owner}: {key}"));
            }
        }
    }
    assert_eq!(missing, Vec::<String>::new());
}
