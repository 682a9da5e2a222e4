//! Converting a whole configuration of another system.

use std::path::Path;

use super::options::join_options;
use super::translate::{Note, translate_whole};
use super::{ForeignProblem, Owner, is_foreign, is_foreign_name};
use crate::diagnostic::{ConfigErrors, Diagnostic, Problem, Severity};
use crate::load::{apply, load_tree, read_config_file};
use crate::override_argument::{Operation, Override};
use crate::render;
use crate::source::{Origin, Source, SourceKind};
use crate::table;
use crate::tree::{Node, Value};
use crate::yaml;

/// A converted configuration.
#[derive(Debug, Clone)]
pub struct Import {
    /// The equivalent configuration of tamis, each value with the key it is from.
    pub yaml: String,
    /// What each key became.
    pub notes: Vec<Note>,
    /// What is still to be said about the result: what it lacks, and what may surprise.
    pub remaining: Vec<Diagnostic>,
}

/// Converts the arguments of another system's command: `key=value`, `--key value`, YAML files of its own (as they are, as EasyR1's
/// `config=FILE`, as TRL's `--config FILE`), and words of the command itself (`python3 -m verl.trainer.main_ppo`), which are skipped.
///
/// # Errors
/// Every key that is not known, every one that is refused, and every value that a run would refuse. What the command does not say
/// (where the model is, say) is no error: it is in [`Import::remaining`].
pub fn import(arguments: &[String]) -> Result<Import, ConfigErrors> {
    let mut diagnostics = Vec::new();
    let parsed = parse(arguments, &mut diagnostics);
    let (others, native): (Vec<Override>, Vec<Override>) = parsed
        .into_iter()
        .partition(|argument| is_foreign_name(&argument.path) || table::place(&argument.path).is_err());
    let translation = translate_whole(&others);
    diagnostics.extend(translation.diagnostics);
    let tree = tree_of(translation.overrides.into_iter().chain(native), &mut diagnostics);
    if !diagnostics.is_empty() {
        return Err(ConfigErrors { diagnostics });
    }
    let yaml = render::tree_with_origins(&tree);
    let remaining = load_tree(tree).map_or_else(|errors| errors.diagnostics, |loaded| loaded.warnings);
    // What is wrong is told with the argument that it is from, which the rendered text has no longer.
    let mistakes: Vec<Diagnostic> = remaining.iter().filter(|found| is_mistake(found)).cloned().collect();
    if !mistakes.is_empty() {
        return Err(ConfigErrors { diagnostics: mistakes });
    }
    Ok(Import { yaml, notes: translation.notes, remaining })
}

/// Whether a finding is about what was said, and not about what was left unsaid.
fn is_mistake(found: &Diagnostic) -> bool {
    use crate::conflict::Conflict;
    let is_unsaid = matches!(
        *found.problem,
        Problem::Conflict(
            Conflict::NoModel
                | Conflict::NoTrainingData
                | Conflict::NoReward
                | Conflict::NoEnd
                | Conflict::NoHorizon { .. }
                | Conflict::NoValidationData
        )
    );
    found.severity == Severity::Error && !is_unsaid
}

/// One tree of what overrides set, one after the other.
fn tree_of(overrides: impl Iterator<Item = Override>, diagnostics: &mut Vec<Diagnostic>) -> Node {
    let source = Source::new(SourceKind::Argument, "");
    let mut tree = Node::empty_map(Origin::start_of(&source));
    for argument in overrides {
        // A list that is appended to must be there.
        if matches!(argument.operation, Operation::Add(_)) && tree.at(&argument.path).is_none() {
            let empty = Node { value: Value::List(Vec::new()), origin: argument.origin.clone() };
            let start = Override { operation: Operation::Set(empty), ..argument.clone() };
            apply(&mut tree, start, diagnostics);
        }
        apply(&mut tree, argument, diagnostics);
    }
    tree
}

/// The arguments of a command; what its files say comes before what is typed, as in every one of those systems.
fn parse(arguments: &[String], diagnostics: &mut Vec<Diagnostic>) -> Vec<Override> {
    let (mut parsed, mut typed) = (Vec::new(), Vec::new());
    let words = join_options(without_launcher(arguments), |_| false);
    for word in words.iter().map(String::as_str).filter(|word| !word.trim().is_empty()) {
        if is_command_word(word) {
            continue;
        }
        if let Some(path) = config_file(word) {
            read_file(path, &mut parsed, diagnostics);
        } else if word.contains('=') || word.starts_with(['~', '+']) {
            match Override::parse(word) {
                // Hydra's own options say where its files are.
                Ok(argument) if matches!(argument.path.as_str(), "config-path" | "config-name") => {}
                Ok(argument) => flatten(argument, &mut typed),
                Err(diagnostic) => diagnostics.push(diagnostic),
            }
        } else {
            let problem = ForeignProblem::NoArgument { argument: word.to_owned() };
            let source = Source::new(SourceKind::Argument, word);
            diagnostics.push(Diagnostic::error(problem.into(), Some(Origin::start_of(&source))));
        }
    }
    parsed.extend(typed);
    parsed
}

/// Words that start a command and say nothing about the configuration.
fn is_command_word(word: &str) -> bool {
    let program = word.rsplit('/').next().unwrap_or(word);
    if let Some((name, _)) = word.split_once('=') {
        // A variable of the environment, or a key.
        return name.contains(|c: char| c.is_ascii_uppercase())
            && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    }
    matches!(word, "-m" | "--" | "\\" | "trl" | "grpo" | "nohup" | "env" | "&")
        || program.starts_with("python")
        || word.starts_with("verl.")
        || word.starts_with("recipe.")
        || Path::new(word).extension().is_some_and(|suffix| suffix == "py")
}

/// A command without the launcher before its script, whose options are about processes.
fn without_launcher(words: &[String]) -> &[String] {
    let launches =
        |word: &String| matches!(word.rsplit('/').next(), Some("accelerate" | "torchrun" | "deepspeed"));
    let is_script = |word: &String| Path::new(word).extension().is_some_and(|suffix| suffix == "py");
    match words.iter().position(launches) {
        Some(start) => {
            let script = words.iter().skip(start).position(is_script).map_or(start, |after| start + after);
            words.get(script + 1..).unwrap_or_default()
        }
        None => words,
    }
}

/// The file that a word names: a YAML file itself, or EasyR1's and TRL's `config`.
pub(crate) fn config_file(word: &str) -> Option<&str> {
    if let Some(path) = word.strip_prefix("config=") {
        return Some(path);
    }
    let is_yaml = Path::new(word).extension().is_some_and(|suffix| suffix == "yaml" || suffix == "yml");
    (is_yaml && !word.contains('=')).then_some(word)
}

fn read_file(path: &str, parsed: &mut Vec<Override>, diagnostics: &mut Vec<Diagnostic>) {
    match read_config_file(Path::new(path))
        .map_err(|found| vec![found])
        .and_then(|source| yaml::parse(&source))
    {
        Ok(tree) => flatten_tree(tree, parsed),
        Err(found) => diagnostics.extend(found),
    }
}

/// The keys of a file of another system.
pub(crate) fn flatten_tree(tree: Node, parsed: &mut Vec<Override>) {
    let Value::Map(entries) = tree.value else { return };
    for entry in entries {
        // Hydra's list of other files to compose with.
        if entry.key != "defaults" {
            let origin = entry.node.origin.clone();
            flatten(Override { path: entry.key, origin, operation: Operation::Set(entry.node) }, parsed);
        }
    }
}

/// A mapping for a key that is none itself is one argument for each key below it.
pub(crate) fn flatten(argument: Override, parsed: &mut Vec<Override>) {
    let Override { path, origin, operation } = argument;
    match operation {
        Operation::Set(Node { value: Value::Map(entries), .. })
        | Operation::Add(Node { value: Value::Map(entries), .. })
            if !entries.is_empty() && is_section(&path) =>
        {
            for entry in entries {
                let path = crate::reader::join(&path, &entry.key);
                let origin = entry.node.origin.clone();
                flatten(Override { path, origin, operation: Operation::Set(entry.node) }, parsed);
            }
        }
        operation => parsed.push(Override { path, origin, operation }),
    }
}

/// Whether a key is a section of another system: one with keys below it, or one that nobody knows as a key.
fn is_section(path: &str) -> bool {
    let (below, free) = (format!("{path}."), format!("{path}.*"));
    let keys = || Owner::ALL.iter().flat_map(|owner| owner.keys());
    keys().any(|entry| entry.key.starts_with(&below) && entry.key != free)
        || !is_foreign_name(path) && table::place(path).is_err()
}

/// Whether a file is one of another system: it has keys of theirs, and none that only tamis has.
pub(crate) fn is_foreign_tree(tree: &Node) -> bool {
    let Value::Map(entries) = &tree.value else { return false };
    let is_native = |key: &str| table::place(key).is_ok();
    let is_ours_alone = |key: &str| {
        let below = format!("{key}.");
        is_native(key)
            // `rollout` is another system's in one experimental trainer of verl alone.
            && (key == "rollout"
                || !Owner::ALL.iter().flat_map(|owner| owner.keys()).any(|entry| entry.key.starts_with(&below)))
    };
    entries.iter().any(|entry| !is_native(&entry.key) && is_foreign(&entry.key))
        && !entries.iter().any(|entry| is_ours_alone(&entry.key))
}
