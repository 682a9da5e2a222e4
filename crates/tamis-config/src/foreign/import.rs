//! Converting a whole configuration of another system.

use std::path::Path;

use super::translate::{Note, translate_whole};
use super::{ForeignProblem, is_foreign_name};
use crate::diagnostic::{ConfigErrors, Diagnostic, Problem};
use crate::load::{apply, load_sources};
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

/// Converts the arguments of another system's command: `key=value`, `--key value`, YAML files of its own, and words of the command itself
/// (`python3 -m verl.trainer.main_ppo`), which are skipped.
///
/// # Errors
/// Every key that is not known and every one that is refused.
pub fn import(arguments: &[String]) -> Result<Import, ConfigErrors> {
    let mut diagnostics = Vec::new();
    let parsed = parse(arguments, &mut diagnostics);
    let (others, native): (Vec<Override>, Vec<Override>) = parsed
        .into_iter()
        .partition(|argument| is_foreign_name(&argument.path) || table::place(&argument.path).is_err());
    let translation = translate_whole(&others);
    diagnostics.extend(translation.diagnostics);

    let source = Source::new(SourceKind::Argument, "");
    let mut tree = Node::empty_map(Origin::start_of(&source));
    for argument in translation.overrides.into_iter().chain(native) {
        // A list that is appended to must be there.
        if matches!(argument.operation, Operation::Add(_)) && tree.at(&argument.path).is_none() {
            let empty = Node { value: Value::List(Vec::new()), origin: argument.origin.clone() };
            let start = Override { operation: Operation::Set(empty), ..argument.clone() };
            apply(&mut tree, start, &mut diagnostics);
        }
        apply(&mut tree, argument, &mut diagnostics);
    }
    if !diagnostics.is_empty() {
        return Err(ConfigErrors { diagnostics });
    }
    let yaml = render::tree_with_origins(&tree);
    let source = Source::new(SourceKind::File("imported.yaml".into()), yaml.clone());
    let remaining = match load_sources(&[source], &[]) {
        Ok(loaded) => loaded.warnings,
        Err(errors) => errors.diagnostics,
    };
    Ok(Import { yaml, notes: translation.notes, remaining })
}

fn parse(arguments: &[String], diagnostics: &mut Vec<Diagnostic>) -> Vec<Override> {
    let mut parsed = Vec::new();
    let mut words = arguments.iter().map(String::as_str).filter(|word| !word.trim().is_empty()).peekable();
    while let Some(word) = words.next() {
        let is_yaml = Path::new(word).extension().is_some_and(|suffix| suffix == "yaml" || suffix == "yml");
        let argument = if let Some(option) = word.strip_prefix("--") {
            if option.is_empty() {
                continue;
            }
            if option.contains('=') {
                option.to_owned()
            } else if let Some(value) = words.next_if(|next| !next.starts_with("--")) {
                format!("{option}={value}")
            } else {
                format!("{option}=true")
            }
        } else if word.contains('=') {
            word.to_owned()
        } else if is_yaml {
            read_file(word, &mut parsed, diagnostics);
            continue;
        } else if is_command_word(word) {
            continue;
        } else {
            let problem = ForeignProblem::NoArgument { argument: word.to_owned() };
            let source = Source::new(SourceKind::Argument, word);
            diagnostics.push(Diagnostic::error(problem.into(), Some(Origin::start_of(&source))));
            continue;
        };
        // Hydra's own options say where its files are.
        if argument.starts_with("config-path=") || argument.starts_with("config-name=") {
            continue;
        }
        match Override::parse(&argument) {
            Ok(argument) => parsed.push(argument),
            Err(diagnostic) => diagnostics.push(diagnostic),
        }
    }
    parsed
}

/// Words that start a command and say nothing about the configuration.
fn is_command_word(word: &str) -> bool {
    let program = word.rsplit('/').next().unwrap_or(word);
    matches!(word, "-m" | "\\" | "trl" | "grpo" | "accelerate" | "launch" | "nohup")
        || program.starts_with("python")
        || word.starts_with("verl.")
        || word.starts_with("recipe.")
        || Path::new(word).extension().is_some_and(|suffix| suffix == "py")
}

fn read_file(path: &str, parsed: &mut Vec<Override>, diagnostics: &mut Vec<Diagnostic>) {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            let problem = Problem::Unreadable { path: path.into(), message: error.to_string() };
            diagnostics.push(Diagnostic::error(problem, None));
            return;
        }
    };
    match yaml::parse(&Source::new(SourceKind::File(path.into()), text)) {
        Ok(tree) => flatten("", tree, parsed),
        Err(found) => diagnostics.extend(found),
    }
}

fn flatten(path: &str, node: Node, parsed: &mut Vec<Override>) {
    match node.value {
        Value::Map(entries) if !entries.is_empty() => {
            for entry in entries {
                flatten(&crate::reader::join(path, &entry.key), entry.node, parsed);
            }
        }
        _ => {
            // Hydra's list of other files to compose with.
            if path != "defaults" && !path.is_empty() {
                let origin = node.origin.clone();
                parsed.push(Override { path: path.to_owned(), origin, operation: Operation::Set(node) });
            }
        }
    }
}
