//! Converts a whole configuration of another system.
//!
//! The words of a command are split into files, options of its launcher and keys. Each key becomes keys of
//! tamis by the system's table, with a note about the result.

use std::path::Path;

use tamis_config::load::{Layers, LoadPurpose, apply, drop_unread, read_native, read_source};
use tamis_config::override_argument::{Operation, Override};
use tamis_config::render;
use tamis_config::source::{Origin, Source, SourceKind};
use tamis_config::tree::{Node, Value, join};
use tamis_config::{ConfigErrors, Diagnostic, Note, NoteOutcome, Problem, table, yaml};

use crate::documents::{OWN_FILES, WRITTEN_BY, flatten, flatten_tree, is_native_tree};
use crate::invocation::{Invocation, Processes};
use crate::options::join_options;
use crate::owner::Owner;
use crate::supervised::{is_name_of, tables};
use crate::translate::{Translation, translate_whole};
use crate::translator::note_on;
use crate::words::OTHER_NAMES;
use crate::{entry, parse_argument};

/// TRL's number of processes, which is an option of its launcher.
const PROCESSES: &str = "num_processes";

/// A converted configuration.
#[derive(Debug, Clone)]
pub struct Import {
    /// The equivalent configuration of tamis. Each value has a comment with the key that it comes from.
    pub yaml: String,
    /// A note on each key's translation.
    pub notes: Vec<Note>,
    /// Findings about the result: the keys that it lacks, and surprises.
    pub remaining: Vec<Diagnostic>,
}

/// Converts the arguments of another system's command: `key=value`, `--key value`, and its YAML files (by
/// path, as EasyR1's `config=FILE`, as TRL's `--config FILE`, as Hydra's `--config-path DIR --config-name
/// NAME`). Words of the command itself (`python3 -m verl.trainer.main_ppo`) are skipped, except a launcher's
/// number of processes.
///
/// `folder` is the working directory of the command. Those systems take relative paths from there, including
/// the paths in their files. Such paths become absolute, so that the configuration can be put anywhere. With
/// an empty `folder` they stay as they are.
///
/// # Errors
/// Every unknown key, every refused key, and every value that a run would refuse. What the command leaves out
/// (such as the model) is not an error: it is in [`Import::remaining`].
pub fn import(arguments: &[String], folder: &Path) -> Result<Import, ConfigErrors> {
    let Words { parsed, native: files, trainer, mut notes, mut diagnostics } = Words::of(arguments);
    let (others, ours): (Vec<Override>, Vec<Override>) = parsed.into_iter().partition(|argument| {
        table::place(&argument.path).is_err() || files.is_empty() && is_name_of(trainer, &argument.path)
    });
    if others.is_empty() && ours.is_empty() && files.is_empty() && diagnostics.is_empty() {
        diagnostics.push(nothing_given(arguments));
    }
    let native = files.into_iter().reduce(|mut below, above| {
        below.merge(above, table::root());
        below
    });
    let mut translation = if native.is_none() {
        let typed = tree_of(None, ours.iter().cloned(), &mut Vec::new(), &mut Vec::new());
        translate_whole(&others, typed, trainer)
    } else {
        Translation::default()
    };
    diagnostics.extend(translation.diagnostics);
    if let (Some(tree), [first, ..]) = (&native, others.as_slice()) {
        let file = render::describe(tree);
        let hint = "import the one or the other; `tamis train FILE KEY=VALUE` takes both";
        let problem = Problem::rule_about(
            &[&first.path],
            format!("`{}` is no key of tamis, and {file} is a configuration of tamis", first.path),
            hint,
        );
        diagnostics.push(Diagnostic::error(problem, Some(first.origin.clone())));
    }
    for argument in &ours {
        let Operation::Set(node) = &argument.operation else { continue };
        let reason = format!("`{}` overrides it", argument.path);
        for path in list_leaves(node, &argument.path) {
            translation.notes.retain_mut(|note| note.forget(&path, &reason));
        }
    }
    let overrides = translation.overrides.into_iter().chain(ours);
    let tree = tree_of(native, overrides, &mut translation.notes, &mut diagnostics);
    if !diagnostics.is_empty() {
        return Err(ConfigErrors { diagnostics });
    }
    let yaml = render::with_origins(&tree, folder);
    let mut layers = Layers::new(OTHER_NAMES);
    layers.files.push(tree);
    let remaining = layers
        .assemble(LoadPurpose::Training)
        .map_or_else(|errors| errors.diagnostics, |loaded| loaded.warnings);
    // Errors are shown with the argument that they come from, which the rendered text no longer has.
    let mistakes: Vec<Diagnostic> = remaining.iter().filter(|found| found.is_mistake()).cloned().collect();
    if !mistakes.is_empty() {
        return Err(ConfigErrors { diagnostics: mistakes });
    }
    notes.splice(0..0, translation.notes);
    Ok(Import { yaml, notes, remaining })
}

/// The paths that a value sets: those of a mapping's keys, otherwise only its own.
fn list_leaves(node: &Node, path: &str) -> Vec<String> {
    match &node.value {
        Value::Map(entries) => {
            entries.iter().flat_map(|entry| list_leaves(&entry.node, &join(path, &entry.key))).collect()
        }
        _ => vec![path.to_owned()],
    }
}

/// One tree of a file and the overrides after it, in order.
pub(crate) fn tree_of(
    file: Option<Node>,
    overrides: impl Iterator<Item = Override>,
    notes: &mut Vec<Note>,
    diagnostics: &mut Vec<Diagnostic>,
) -> Node {
    let mut tree =
        file.unwrap_or_else(|| Node::empty_map(Origin::start_of(&Source::new(SourceKind::Argument, ""))));
    for argument in overrides {
        // A list must exist before something is appended to it.
        if matches!(argument.operation, Operation::Add(_)) && tree.at(&argument.path).is_none() {
            let empty = Node { value: Value::List(Vec::new()), origin: argument.origin.clone() };
            let start = Override { operation: Operation::Set(empty), ..argument.clone() };
            apply(&mut tree, start, OTHER_NAMES, diagnostics);
        }
        apply(&mut tree, argument, OTHER_NAMES, diagnostics);
    }
    drop_unread(&mut tree, notes, diagnostics);
    tree
}

/// The content of a command's words.
#[derive(Default)]
struct Words {
    /// Its arguments. As in all of those systems, files come before typed arguments.
    parsed: Vec<Override>,
    /// Files of tamis.
    native: Vec<Node>,
    /// The supervised trainer that the command starts, if it does.
    trainer: Option<Owner>,
    notes: Vec<Note>,
    diagnostics: Vec<Diagnostic>,
}

impl Words {
    fn of(arguments: &[String]) -> Self {
        let (mut found, mut typed) = (Self::default(), Vec::new());
        let mut hydra = HydraOptions::default();
        let invocation = Invocation::of(arguments);
        found.trainer = invocation.trainer;
        let trainer = found.trainer;
        let words: Vec<String> =
            invocation.arguments.iter().map(|word| HydraOptions::in_full(word)).collect();
        let words = join_options(&words, |_| false);
        for word in words.iter().map(String::as_str).filter(|word| !word.trim().is_empty()) {
            if is_command_word(word) || hydra.take(word) {
                continue;
            }
            if let Some(path) = config_file(word) {
                let own = found.read_file(Path::new(path));
                found.native.extend(own);
            } else if word.contains('=') || word.starts_with(['~', '+']) {
                match parse_argument(trainer, word) {
                    Ok(argument) => flatten(argument, &tables(trainer), &mut typed),
                    Err(diagnostic) => found.diagnostics.push(diagnostic),
                }
            } else if Path::new(word).extension().is_some_and(|suffix| suffix == "sh" || suffix == "bash") {
                found.diagnostics.push(problem_with(word, script_given(word)));
            } else {
                let problem = Problem::rule(
                    format!("`{word}` is neither `key=value` nor a YAML file"),
                    "for example: tamis config import -- data.train_batch_size=512",
                );
                found.diagnostics.push(problem_with(word, problem));
            }
        }
        if let Some(first) = hydra.read(&mut found) {
            found.native.insert(0, first);
        }
        found.parsed.extend(typed);
        let is_of_trl = |argument: &Override| entry(Owner::Trl, &argument.path).is_some();
        if (trainer.is_some() || found.parsed.iter().any(is_of_trl))
            && !found.parsed.iter().any(|argument| argument.path == PROCESSES)
        {
            found.add_processes(&invocation);
        }
        found
    }

    /// TRL's sizes are per process, and the launcher sets the number of processes.
    fn add_processes(&mut self, invocation: &Invocation<'_>) {
        match invocation.processes() {
            Ok(Processes::NoLauncher) => {}
            Ok(Processes::Number(number)) => match parse_argument(None, &format!("{PROCESSES}={number}")) {
                Ok(argument) => self.parsed.push(argument),
                Err(diagnostic) => self.diagnostics.push(diagnostic),
            },
            Ok(Processes::Elsewhere(place)) => {
                let reason = format!(
                    "the number of processes {place}: 1 is assumed, and the batch is that many times as large; add `{PROCESSES}=N`"
                );
                let owner = self.trainer.unwrap_or(Owner::Trl);
                self.notes.push(note_on(owner, PROCESSES, None, NoteOutcome::Ignored(reason)));
            }
            Err(argument) => {
                let message =
                    format!("`{argument}` does not give the number of processes, on which the batch depends");
                let option = argument.split('=').next().unwrap_or_default();
                let hint = format!("write the number, such as `{option}=8`");
                self.diagnostics.push(problem_with(&argument, Problem::rule(message, hint)));
            }
        }
    }

    /// Reads a file. Arguments of another system are added; a file of tamis is returned, with its paths
    /// relative to its folder.
    fn read_file(&mut self, path: &Path) -> Option<Node> {
        let tree = read_source(path, SourceKind::TranslatedFile(path.into()))
            .map_err(|found| vec![found])
            .and_then(|source| yaml::parse(&source));
        match tree {
            // The kind of the source matters: unread keys of other systems are dropped, unread keys of ours
            // are errors.
            Ok(tree) if is_native_tree(&tree, self.trainer) => Some(read_native(path).unwrap_or(tree)),
            Ok(tree) => {
                self.notes.extend(flatten_tree(tree, &tables(self.trainer), &mut self.parsed));
                None
            }
            Err(found) => {
                self.diagnostics.extend(found);
                None
            }
        }
    }
}

/// Why a script of the shell is not a configuration, and what to type instead.
fn script_given(path: &str) -> Problem {
    let message = format!("`{path}` is a script of the shell, and none is run here");
    let shown =
        format!("`tamis train {path} --dry-run` finds the command in it, and without --dry-run runs it");
    let is_exported = read_source(Path::new(path), SourceKind::TranslatedFile(path.into()))
        .is_ok_and(|source| source.text.contains(WRITTEN_BY));
    let hint = if is_exported {
        format!(
            "it was written {WRITTEN_BY}: give its command, as in `tamis config import -- python3 -m verl.trainer.main_ppo ...`; {shown}"
        )
    } else {
        format!("{shown}; `tamis config import -- COMMAND` translates that command")
    };
    Problem::rule(message, hint)
}

/// Why a command without arguments is not a configuration.
fn nothing_given(words: &[String]) -> Diagnostic {
    let script = words.iter().find(|word| Path::new(word).extension().is_some_and(|suffix| suffix == "py"));
    let problem = match script {
        Some(script) => Problem::rule(
            format!("`{script}` has no arguments here, and what it sets by itself is not read"),
            format!(
                "`tamis train {script} --dry-run` runs it with a stand-in for its trainer, and prints the configuration"
            ),
        ),
        None => Problem::rule(
            "the command has no arguments",
            "give its `key=value` or `--key value` too, as in `tamis config import -- python3 -m verl.trainer.main_ppo \
             data.train_batch_size=512`",
        ),
    };
    problem_with(&words.join(" "), problem)
}

fn problem_with(word: &str, problem: Problem) -> Diagnostic {
    let source = Source::new(SourceKind::Argument, word);
    Diagnostic::error(problem, Some(Origin::start_of(&source)))
}

#[derive(Default)]
pub(crate) struct HydraOptions {
    folders: Vec<String>,
    name: Option<String>,
}

impl HydraOptions {
    fn in_full(word: &str) -> String {
        match word {
            "-cp" => "--config-path",
            "-cn" => "--config-name",
            "-cd" => "--config-dir",
            other => other,
        }
        .to_owned()
    }

    /// Whether a word is one of these options. If so, takes it.
    fn take(&mut self, word: &str) -> bool {
        match word.split_once('=') {
            Some(("config-name", name)) => self.name = Some(name.to_owned()),
            Some(("config-path" | "config-dir", folder)) => self.folders.push(folder.to_owned()),
            _ => return false,
        }
        true
    }

    /// Replaces Hydra's options by the file that they name. A system's own file is left out, because its
    /// defaults apply anyway.
    pub(crate) fn resolved(arguments: &[String]) -> Vec<String> {
        let (mut hydra, mut others) = (Self::default(), Vec::new());
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let option = Self::in_full(word);
            let is_hydra = |name: &&str| ["--config-name", "--config-path", "--config-dir"].contains(name);
            match option.split('=').next().filter(is_hydra).and_then(|name| name.strip_prefix("--")) {
                None => others.push(word.clone()),
                Some(name) => {
                    let value = option.split_once('=').map(|(_, value)| value);
                    let value = value.or_else(|| words.next().map(String::as_str)).unwrap_or_default();
                    hydra.take(&format!("{name}={value}"));
                }
            }
        }
        let stem = hydra.name.as_deref().map(|name| name.strip_suffix(".yaml").unwrap_or(name));
        if let Some(stem) = stem.filter(|stem| !OWN_FILES.iter().any(|(own, _)| own == stem)) {
            let mut paths = hydra.folders.iter().map(|folder| Path::new(folder).join(format!("{stem}.yaml")));
            let first = paths.next().unwrap_or_else(|| format!("{stem}.yaml").into());
            let path = if first.exists() { first } else { paths.find(|path| path.exists()).unwrap_or(first) };
            others.insert(0, path.display().to_string());
        }
        others
    }

    /// Reads the file that the options name, which comes before all others. A file of tamis is returned.
    fn read(&self, found: &mut Words) -> Option<Node> {
        let name = self.name.as_ref()?;
        let stem = name.strip_suffix(".yaml").unwrap_or(name);
        let own = OWN_FILES.iter().find(|(own, _)| *own == stem);
        let path = self.folders.iter().map(|folder| Path::new(folder).join(format!("{stem}.yaml")));
        let (owner, outcome) = match (own, path.into_iter().find(|path| path.exists())) {
            (Some((_, owner)), _) => {
                (*owner, NoteOutcome::NoEffect("it is the owner's own, whose defaults are taken".to_owned()))
            }
            (None, Some(path)) => {
                let others = std::mem::take(&mut found.parsed);
                let own = found.read_file(&path);
                found.parsed.extend(others);
                return own;
            }
            (None, None) => (
                Owner::Verl,
                NoteOutcome::Ignored(format!(
                    "`--config-name={name}` was not read: give its file as an argument"
                )),
            ),
        };
        found.notes.push(note_on(owner, "--config-name", Some(name.clone()), outcome));
        None
    }
}

/// Words that start a command and do not concern the configuration.
fn is_command_word(word: &str) -> bool {
    if let Some((name, _)) = word.split_once('=') {
        // An environment variable, or a key.
        return name.contains(|c: char| c.is_ascii_uppercase())
            && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    }
    matches!(word, "-m" | "--" | "\\" | "trl" | "grpo" | "sft" | "nohup" | "env" | "bash" | "sh")
        || word.starts_with("verl.")
        || word.starts_with("recipe.")
        || Path::new(word).extension().is_some_and(|suffix| suffix == "py")
}

/// The file that a word names: a YAML file itself, or EasyR1's and TRL's `config`.
pub(crate) fn config_file(word: &str) -> Option<&str> {
    if let Some(path) = word.strip_prefix("config=") {
        return Some(path);
    }
    let is_yaml = Path::new(word).extension().is_some_and(|suffix| suffix == "yaml" || suffix == "yml");
    (is_yaml && !word.contains('=')).then_some(word)
}
