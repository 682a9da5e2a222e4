//! The layers of a configuration, from the bottom: defaults, preset, files from left to right, overrides from
//! left to right.
//!
//! ```text
//! defaults.yaml -> preset -> files -> keys of other systems -> overrides   (one raw tree, every value with its origin)
//!               -> Config                                                    (typed; every violation reported)
//!               -> rules                                                     (settings against each other)
//! ```

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::diagnostic::{ConfigErrors, Diagnostic, Problem, Severity};
use crate::foreign::{self, Lower, Note};
use crate::older;
use crate::override_argument::{Operation, Override};
use crate::preset;
use crate::preset_difference::{self, PresetDifference};
use crate::reader::Setting;
use crate::reader::{KnownNames, Reader};
use crate::rules::{self, LoadPurpose};
use crate::schema::{Config, Preset, TaskKind};
use crate::source::{Origin, Source, SourceKind};
use crate::table::{self, Place};
use crate::tree::{MapEntry, Node, Value, forget_other_kind, join};
use crate::yaml;
use tamis_core::setting::{KeySpec, Shape};
use tamis_env::reward::RewardKind;

/// The defaults of every key, as commented YAML.
pub const DEFAULTS_YAML: &str = include_str!("../defaults.yaml");

/// The names that an unknown key is compared with.
const KNOWN_NAMES: KnownNames =
    KnownNames { paths: table::suggestion_keys, owner_of: foreign::owner_of_section };

/// A configuration that is ready to run, with what there is to say about it.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// What the user may not expect, each with a hint.
    pub warnings: Vec<Diagnostic>,
    /// What each key of another system became.
    pub notes: Vec<Note>,
    /// What of the preset is overridden.
    pub preset_differences: Vec<PresetDifference>,
    pub(crate) tree: Node,
}

impl Loaded {
    /// Where a value was set, for messages of what is found with data and model at hand: the file and line,
    /// the command line, or the preset and where that was chosen. `None` for a default.
    pub fn place(&self, key: &str) -> Option<String> {
        let origin = self.origin(key)?;
        match (&origin.source.kind, self.origin("preset")) {
            (SourceKind::Default, _) => None,
            (SourceKind::Preset(_), Some(chosen)) => Some(format!("{chosen}, {origin}")),
            _ => Some(origin.to_string()),
        }
    }

    /// Where the value of a key comes from.
    pub fn origin(&self, key: &str) -> Option<&Origin> {
        self.tree.at(key).map(|node| &node.origin)
    }

    /// A setting that the run would be refused for, shown at the first of some keys that the user wrote
    /// (`reward[0].path`), else called by the first that there is.
    pub fn refused(&self, keys: &[String], message: &str, hint: Option<&str>) -> Diagnostic {
        let (key, origin) = self.blamed(keys);
        let hint = hint.map(str::to_owned);
        Diagnostic::error(Problem::Refused { key, message: message.to_owned(), hint }, origin)
    }

    /// A path that stands for one.
    pub fn placeholder(&self, key: &str, path: &str, is_refused: bool) -> Diagnostic {
        let (key, origin) = self.blamed(&[key.to_owned()]);
        let problem = Problem::Placeholder { key, path: path.to_owned() };
        if is_refused { Diagnostic::error(problem, origin) } else { Diagnostic::warning(problem, origin) }
    }

    /// The first of some keys that a user wrote, or a section around one; where none did, the first that
    /// there is.
    fn blamed(&self, keys: &[String]) -> (String, Option<Origin>) {
        let paths: Vec<String> = keys.iter().map(|key| key.replace('[', ".").replace(']', "")).collect();
        let written = |path: &str| {
            let own = self.tree.place_of(path).filter(|origin| origin.is_from_user());
            own.or_else(|| self.tree.at(path)?.first_written()).cloned()
        };
        let found = keys.iter().zip(&paths).find_map(|(key, path)| Some((key.clone(), written(path)?)));
        if let Some((key, origin)) = found {
            return (key, Some(origin));
        }
        let there = keys.iter().zip(&paths).find(|(_, path)| self.tree.at(path).is_some());
        let key = there.map(|(key, _)| key).or(keys.first()).cloned().unwrap_or_default();
        let around = |path: &String| path.match_indices('.').rev().find_map(|(dot, _)| written(&path[..dot]));
        (key, paths.first().and_then(around))
    }
}

/// Reads a configuration file: a regular one of a bounded size, in UTF-8.
///
/// # Errors
/// The finding; where the text is no UTF-8, with its place.
pub(crate) fn read_source(path: &Path, kind: SourceKind) -> Result<Arc<Source>, Diagnostic> {
    let bytes = tamis_file::read(path, tamis_file::MAX_CONFIGURATION).map_err(|error| {
        let problem = Problem::Unreadable { path: path.to_owned(), message: error.to_string() };
        Diagnostic::error(problem, None)
    })?;
    String::from_utf8(bytes).map(|text| Source::new(kind.clone(), text)).map_err(|error| {
        let byte = error.utf8_error().valid_up_to();
        let bytes = error.as_bytes();
        let is_utf16 = bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]);
        let before = bytes.get(..byte).unwrap_or_default();
        let line = before.split(|&byte| byte == b'\n').count();
        let start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |place| place + 1);
        let column = String::from_utf8_lossy(before.get(start..).unwrap_or_default()).chars().count() + 1;
        let text = String::from_utf8_lossy(bytes).into_owned();
        let origin = Origin { source: Source::new(kind, text), line, column, length: 1 };
        Diagnostic::error(Problem::NotUtf8 { byte, is_utf16 }, Some(origin))
    })
}

/// Loads a configuration from files and command-line overrides.
///
/// Keys of verl, EasyR1, RAGEN and TRL are taken among the overrides and translated, and so are whole files
/// of theirs (`config=FILE` too); see [`Loaded::notes`]. Over a configuration of ours they change what they
/// name. A file of theirs is a whole configuration of that system, and so are their keys where there is no
/// file of ours and one of them names the model: what is left out has that system's default.
///
/// # Errors
/// Every violation in all layers at once, and the warnings with them.
pub fn load(files: &[PathBuf], arguments: &[String]) -> Result<Loaded, ConfigErrors> {
    load_files(None, files, arguments, LoadPurpose::Training)
}

/// Loads the configuration of a run with further files and overrides over it, as [`load`] does; `own` is the
/// `config.yaml` that the run wrote.
///
/// # Errors
/// As [`load`].
pub fn load_of_run(own: &Path, files: &[PathBuf], arguments: &[String]) -> Result<Loaded, ConfigErrors> {
    load_files(Some(own), files, arguments, LoadPurpose::Training)
}

/// Loads a configuration as [`load`] does (that of a run where `run` is its `config.yaml`), for measuring a
/// policy: training prompts, the length of a run and the like may be missing, and nothing is said about what
/// only training reads.
///
/// # Errors
/// As [`load`].
pub fn load_for_evaluation(
    run: Option<&Path>,
    files: &[PathBuf],
    arguments: &[String],
) -> Result<Loaded, ConfigErrors> {
    load_files(run, files, arguments, LoadPurpose::Evaluation)
}

fn load_files(
    run: Option<&Path>,
    files: &[PathBuf],
    arguments: &[String],
    purpose: LoadPurpose,
) -> Result<Loaded, ConfigErrors> {
    let run = run.map(|own| (own, SourceKind::RunFile(own.to_owned())));
    let files = files.iter().map(|file| (file.as_path(), SourceKind::File(file.clone())));
    let mut sources = Vec::new();
    let mut diagnostics = Vec::new();
    for (path, kind) in run.into_iter().chain(files) {
        match read_source(path, kind) {
            Ok(source) => sources.push(source),
            Err(found) => diagnostics.push(found),
        }
    }
    load_layers(&sources, arguments, diagnostics, purpose)
}

/// Loads a configuration as [`load`] does, to look at it: what nobody has said yet, such as the model or the
/// data, stays an error in [`Loaded::warnings`] and refuses nothing.
///
/// # Errors
/// As [`load`], for what was said.
pub fn load_to_show(files: &[PathBuf], arguments: &[String]) -> Result<Loaded, ConfigErrors> {
    load_files(None, files, arguments, LoadPurpose::Showing)
}

/// Loads a configuration from texts and overrides, as [`load`] does from files.
///
/// # Errors
/// As [`load`].
pub fn load_sources(sources: &[Arc<Source>], arguments: &[String]) -> Result<Loaded, ConfigErrors> {
    load_layers(sources, arguments, Vec::new(), LoadPurpose::Training)
}

/// Checks a configuration that is a tree already.
pub(crate) fn load_tree(tree: Node) -> Result<Loaded, ConfigErrors> {
    let mut layers = Layers::new(Vec::new());
    layers.files.push(tree);
    layers.assemble(LoadPurpose::Training)
}

fn load_layers(
    sources: &[Arc<Source>],
    arguments: &[String],
    diagnostics: Vec<Diagnostic>,
    purpose: LoadPurpose,
) -> Result<Loaded, ConfigErrors> {
    let mut layers = Layers::new(diagnostics);
    for source in sources {
        layers.add_file(source);
    }
    layers.add_arguments(arguments);
    layers.assemble(purpose)
}

/// The layers above the defaults and the preset, as they are read.
struct Layers {
    files: Vec<Node>,
    overrides: Vec<Override>,
    /// What files of other systems say.
    others: Vec<Override>,
    notes: Vec<Note>,
    diagnostics: Vec<Diagnostic>,
    /// A layer that is missing as a whole would only bring errors about what it holds.
    is_whole: bool,
}

impl Layers {
    fn new(diagnostics: Vec<Diagnostic>) -> Self {
        let is_whole = diagnostics.is_empty();
        Self {
            files: Vec::new(),
            overrides: Vec::new(),
            others: Vec::new(),
            notes: Vec::new(),
            diagnostics,
            is_whole,
        }
    }

    fn add_file(&mut self, source: &Arc<Source>) {
        let (tree, found) = yaml::parse_on(source);
        self.diagnostics.extend(found);
        let Some(mut tree) = tree else {
            self.is_whole = false;
            return;
        };
        if foreign::is_foreign_tree(&tree) {
            // Its paths are taken from elsewhere than ours.
            let tree = match &source.kind {
                SourceKind::File(path) => {
                    let kind = SourceKind::ForeignFile(path.clone());
                    yaml::parse_on(&Source::new(kind, source.text.clone())).0.unwrap_or(tree)
                }
                _ => tree,
            };
            self.notes.extend(foreign::flatten_tree(tree, &mut self.others));
            return;
        }
        if tree.is_null() {
            tree = Node::empty_map(tree.origin);
        }
        prune_empty_sections(&mut tree, table::root());
        let place = |section: &str| tree.place_of(section).cloned();
        let origin =
            place("objective.advantage").or_else(|| place("objective.loss")).or_else(|| place("filter"));
        let older::Conversion { is_older, faults } = older::convert(&mut tree);
        let is_refused = !faults.is_empty();
        self.diagnostics.extend(faults);
        if is_older && !is_refused {
            let message = "the configuration is of an older form: each kind of an advantage, a loss and a filter now has its own \
                           keys, and `estimator` is called `objective.advantage.kind`";
            self.diagnostics.push(match &source.kind {
                SourceKind::RunFile(_) => {
                    let problem =
                        Problem::rule(message, "it is read as it was meant: there is nothing to do");
                    Diagnostic::warning(problem, origin)
                }
                kind => {
                    let file = kind.file().map_or_else(|| "old.yaml".into(), |file| file.to_string_lossy());
                    let hint = format!("`tamis config import {file}` prints it in the form of today");
                    Diagnostic::error(Problem::rule(message, hint), origin)
                }
            });
        }
        self.files.push(tree);
    }

    /// Parses the overrides and translates those of other systems, which come before the native ones.
    fn add_arguments(&mut self, arguments: &[String]) {
        let num_found = self.diagnostics.len();
        let mut parsed = Vec::new();
        for argument in arguments {
            if let Some(path) = argument.strip_prefix("config=") {
                match read_source(Path::new(path), SourceKind::File(path.into())) {
                    Ok(source) => self.add_file(&source),
                    Err(found) => self.diagnostics.push(found),
                }
                continue;
            }
            match Override::parse(argument, foreign::value_form) {
                Ok(argument) => parsed.push(argument),
                Err(diagnostic) => self.diagnostics.push(diagnostic),
            }
        }
        let is_theirs = |argument: &Override| {
            table::place(&argument.path).is_err() && foreign::is_foreign(&argument.path)
        };
        let names_model = |argument: &Override| foreign::names_model(&argument.path);
        let whole = !self.others.is_empty() || (self.files.is_empty() && parsed.iter().any(names_model));
        let mut others = std::mem::take(&mut self.others);
        for argument in parsed {
            // In a whole command of theirs what nobody knows is theirs too.
            let is_other =
                || foreign::is_foreign_name(&argument.path) || table::place(&argument.path).is_err();
            if is_theirs(&argument) || (whole && is_other()) {
                foreign::flatten(argument, &mut others);
            } else {
                self.overrides.push(argument);
            }
        }
        if !others.is_empty() {
            // A file of another system may hold keys that both have, and that only ours understands.
            let (others, ours): (Vec<Override>, Vec<Override>) = others.into_iter().partition(|argument| {
                foreign::is_foreign_name(&argument.path) || table::place(&argument.path).is_err()
            });
            let translation = if whole {
                foreign::translate_whole(&others, self.native_tree())
            } else {
                foreign::translate(&others, self.lower())
            };
            self.diagnostics.extend(translation.diagnostics);
            self.notes.extend(translation.notes);
            let mut native = std::mem::take(&mut self.overrides);
            // What is added to a list of rewards comes after the list.
            let num_first = native.iter().rposition(sets_rewards).map_or(0, |index| index + 1);
            let changes_rewards = |argument: &Override| {
                num_first > 0 && !sets_rewards(argument) && argument.path.starts_with("reward")
            };
            let (late, early): (Vec<Override>, Vec<Override>) =
                translation.overrides.into_iter().partition(changes_rewards);
            let last = native.split_off(num_first);
            self.overrides = early.into_iter().chain(ours).chain(native).chain(late).chain(last).collect();
        }
        self.is_whole &= self.diagnostics.len() == num_found;
    }

    /// The defaults, the preset, the files and the overrides of ours, without the keys of other systems.
    fn native_tree(&self) -> Node {
        let mut tree = default_tree().clone();
        if let Some(preset) = chosen_preset(&self.files, &self.overrides) {
            tree.merge(preset.settings().clone(), table::root());
        }
        for file in &self.files {
            tree.merge(file.clone(), table::root());
        }
        for argument in &self.overrides {
            // What is wrong with it is reported when all layers are put together.
            apply(&mut tree, argument.clone(), &mut Vec::new());
        }
        tree
    }

    /// What keys of other systems may have to change below them.
    fn lower(&self) -> Lower {
        let typed = self.overrides.iter().rev().find(|argument| sets_rewards(argument));
        let rewards = typed
            .and_then(Override::value)
            .or_else(|| self.files.iter().rev().find_map(|file| file.get("reward")));
        Lower {
            overlong_rewards: rewards.map(preset::overlong_rewards).unwrap_or_default(),
            is_overlong_in_preset: chosen_preset(&self.files, &self.overrides)
                .is_some_and(Preset::adds_overlong),
            tree: Some(self.native_tree()),
        }
    }

    fn assemble(self, purpose: LoadPurpose) -> Result<Loaded, ConfigErrors> {
        let Self { files, overrides, mut notes, mut diagnostics, mut is_whole, .. } = self;
        let mut tree = default_tree().clone();
        let preset = chosen_preset(&files, &overrides);
        let mut shaping = None;
        if let Some(preset) = preset {
            let mut layer = preset.settings().clone();
            shaping = take(&mut layer, "reward");
            tree.merge(layer, table::root());
        }
        for file in files {
            if matches!(file.value, Value::Map(_)) {
                tree.merge(file, table::root());
            } else {
                diagnostics.push(Diagnostic::error(Problem::NotAMapping, Some(file.origin)));
                is_whole = false;
            }
        }
        for argument in overrides {
            apply(&mut tree, argument, &mut diagnostics);
        }
        drop_unread(&mut tree, &mut notes, &mut diagnostics);
        complete_rewards(&mut tree, shaping);
        complete_working_folders(&mut tree);

        let mut reader = Reader::new(KNOWN_NAMES);
        let config = Config::read(&tree, "", &mut reader);
        let mut found = Vec::new();
        if let (Some(config), true) = (&config, is_whole) {
            found = rules::check(config, &tree, &reader, purpose);
        }
        diagnostics.extend(reader.into_diagnostics());
        diagnostics.extend(found);
        let refuses = |found: &Diagnostic| match purpose {
            LoadPurpose::Showing => found.is_mistake(),
            LoadPurpose::Training | LoadPurpose::Evaluation => found.severity == Severity::Error,
        };
        match config {
            Some(config) if !diagnostics.iter().any(refuses) => {
                let preset_differences = preset_difference::differences(&config, &tree);
                Ok(Loaded { config, warnings: diagnostics, notes, preset_differences, tree })
            }
            _ => Err(ConfigErrors { diagnostics }),
        }
    }
}

/// The parsed defaults.
pub(crate) fn default_tree() -> &'static Node {
    static TREE: OnceLock<Node> = OnceLock::new();
    TREE.get_or_init(|| {
        let source = Source::new(SourceKind::Default, DEFAULTS_YAML);
        yaml::parse(&source).unwrap_or_else(|_| Node::empty_map(Origin::start_of(&source)))
    })
}

/// `section:` with nothing below it says nothing; it must not wipe out what lower layers hold.
fn prune_empty_sections(node: &mut Node, shape: &Shape) {
    let Value::Map(entries) = &mut node.value else { return };
    if !matches!(shape, Shape::Section { .. }) {
        return;
    }
    entries.retain_mut(|entry| {
        let shape = shape.of_key(&entry.key);
        let is_section = matches!(shape, Shape::Section { .. } | Shape::Tagged { .. });
        prune_empty_sections(&mut entry.node, &shape);
        !(is_section && entry.node.is_null())
    });
}

/// Takes out what other systems say of keys that the kind of a section does not have, for their keys stand
/// for all kinds at once: the values are checked as some kind that has the key reads them, and the notes say
/// that they have no effect.
pub(crate) fn drop_unread(tree: &mut Node, notes: &mut Vec<Note>, diagnostics: &mut Vec<Diagnostic>) {
    let mut reader = Reader::new(KNOWN_NAMES);
    drop_unread_below(tree, "", table::root(), &mut reader, notes);
    diagnostics.extend(reader.into_diagnostics());
}

fn drop_unread_below(node: &mut Node, path: &str, shape: &Shape, reader: &mut Reader, notes: &mut Vec<Note>) {
    let shape = shape.without_null();
    let Shape::Tagged { common, variants, default, .. } = shape else {
        if let Value::Map(entries) = &mut node.value {
            for entry in entries {
                let shape = shape.of_key(&entry.key);
                drop_unread_below(&mut entry.node, &join(path, &entry.key), &shape, reader, notes);
            }
        }
        return;
    };
    let kind = node.get("kind").and_then(Node::as_text).or(*default);
    let Some(variant) = variants.iter().find(|variant| Some(variant.name) == kind) else { return };
    let unread: Vec<(String, Vec<KeySpec>)> = (node.entries().iter())
        .filter(|entry| entry.node.origin.source.kind.is_foreign())
        .filter(|entry| !common.iter().chain(&variant.keys).any(|spec| spec.name == entry.key))
        .map(|entry| {
            let keys = variants.iter().flat_map(|other| &other.keys);
            (entry.key.clone(), keys.filter(|spec| spec.name == entry.key).cloned().collect())
        })
        .filter(|(_, specs): &(String, Vec<KeySpec>)| !specs.is_empty())
        .collect();
    let reason = format!("`{path}.kind: {}` does not read it", variant.name);
    for (key, specs) in unread {
        reader.check_one_of(node, path, &specs);
        notes.retain_mut(|note| note.forget(&join(path, &key), &reason));
        take(node, &key);
    }
}

/// The preset that the topmost layer names; whether it exists is found when the whole is read.
fn chosen_preset(files: &[Node], overrides: &[Override]) -> Option<Preset> {
    let by_override = overrides.iter().rev().find(|argument| argument.path == "preset").map(Override::value);
    let node = match by_override {
        Some(value) => value?,
        None => files.iter().rev().find_map(|file| file.get("preset"))?,
    };
    Preset::read(node, "preset", &mut Reader::default())
}

/// Whether an override replaces the list of rewards.
fn sets_rewards(argument: &Override) -> bool {
    argument.path == "reward" && matches!(argument.operation, Operation::Set(_))
}

fn take(node: &mut Node, key: &str) -> Option<Node> {
    let Value::Map(entries) = &mut node.value else { return None };
    let index = entries.iter().position(|entry| entry.key == key)?;
    Some(entries.remove(index).node)
}

/// Completes the list of rewards: after the user's own the task's verifier where they have none, and what the
/// preset adds unless they have its kind.
fn complete_rewards(tree: &mut Node, shaping: Option<Node>) {
    let task = match tree.at("data.task") {
        Some(Node { value: Value::Scalar { text, .. }, .. }) => text.clone(),
        _ => String::new(),
    };
    let default_origin = default_tree().origin.clone();
    let Value::Map(entries) = &mut tree.value else { return };
    let Some(rewards) = entries.iter_mut().find(|entry| entry.key == "reward") else { return };
    let Value::List(items) = &mut rewards.node.value else { return };
    let kind_of = |item: &Node| match item.get("kind") {
        Some(Node { value: Value::Scalar { text, .. }, .. }) => text.clone(),
        _ => String::new(),
    };
    let is_verifier = |item| RewardKind::of_name(&kind_of(item)).is_some_and(|kind| kind.is_verifier());
    let has_verifier = items.iter().any(is_verifier);
    let task = TaskKind::ALL.iter().find(|kind| kind.as_str() == task);
    if let Some(task) = task.filter(|_| !has_verifier) {
        let pair = |key: &str, value: &str| MapEntry {
            key: key.to_owned(),
            origin: default_origin.clone(),
            node: Node::plain(value, default_origin.clone()),
        };
        let value = Value::Map(vec![pair("kind", task.verifier()), pair("weight", "1.0")]);
        items.push(Node { value, origin: default_origin.clone() });
    }
    if let Some(Node { value: Value::List(added), .. }) = shaping {
        for item in added {
            if !items.iter().any(|other| kind_of(other) == kind_of(&item)) {
                items.push(item);
            }
        }
    }
}

/// Says of every reward program where it is started, for its arguments may name files: in the folder of the
/// file that it stands in.
fn complete_working_folders(tree: &mut Node) {
    let Value::Map(entries) = &mut tree.value else { return };
    let Some(rewards) = entries.iter_mut().find(|entry| entry.key == "reward") else { return };
    let Value::List(items) = &mut rewards.node.value else { return };
    for item in items {
        complete_working_folder(item);
    }
}

/// The same of one reward, and of those that it names by data source.
fn complete_working_folder(reward: &mut Node) {
    let Value::Map(entries) = &mut reward.value else { return };
    if let Some(sources) = entries.iter_mut().find(|entry| entry.key == "sources")
        && let Value::Map(sources) = &mut sources.node.value
    {
        for source in sources {
            complete_working_folder(&mut source.node);
        }
    }
    let is_command = matches!(reward.get("kind"), Some(Node { value: Value::Scalar { text, .. }, .. }) if text == "command");
    let Some(argv) = reward.get("argv").filter(|_| is_command) else { return };
    if reward.get("working_dir").is_some_and(|folder| !folder.is_null()) {
        return;
    }
    let folder = match &argv.origin.source.kind {
        SourceKind::File(file) => file.parent().map(|folder| folder.to_string_lossy().into_owned()),
        _ => None,
    };
    let folder = folder.filter(|folder| !folder.is_empty()).unwrap_or_else(|| ".".to_owned());
    let origin = default_tree().origin.clone();
    let Value::Map(entries) = &mut reward.value else { return };
    entries.retain(|entry| entry.key != "working_dir");
    let node = Node::text(folder, origin.clone());
    entries.push(MapEntry { key: "working_dir".to_owned(), origin, node });
}

/// Applies one override to the tree.
pub(crate) fn apply(tree: &mut Node, argument: Override, diagnostics: &mut Vec<Diagnostic>) {
    let Override { path, origin, operation } = argument;
    let place = match table::place(&path) {
        Ok(place) => place,
        Err(unknown) => {
            let problem = unknown.into_problem(foreign::owner_of_section(&path));
            diagnostics.push(Diagnostic::error(problem, Some(origin)));
            return;
        }
    };
    let parts: Vec<&str> = path.split('.').collect();
    if let (Operation::Reset, Some((last, above))) = (&operation, parts.split_last())
        && let Ok(index) = last.parse::<usize>()
        && let Some(Node { value: Value::List(items), .. }) = slot_of_existing(tree, above)
    {
        if index < items.len() {
            items.remove(index);
        } else {
            let problem = Problem::NoSuchItem { key: above.join("."), length: items.len(), index };
            diagnostics.push(Diagnostic::error(problem, Some(origin)));
        }
        return;
    }
    let around = parts.iter().rev().skip(1).rev().fold(table::root().clone(), |shape, part| {
        match shape.without_null() {
            Shape::List(item) => (**item).clone(),
            shape => shape.of_key(part),
        }
    });
    if let (Operation::Set(kind), Some(("kind", above))) =
        (&operation, parts.split_last().map(|(last, above)| (*last, above)))
        && let Some(Node { value: Value::Map(entries), .. }) = slot_of_existing(tree, above)
    {
        forget_other_kind(entries, kind, &around);
    }
    // The default of a key is that of the kind which the section has in the end.
    if let (Operation::Reset, Shape::Tagged { default, .. }, Some((last, above))) =
        (&operation, around.without_null(), parts.split_last())
        && let Some(node) = slot_of_existing(tree, above)
    {
        if let (&"kind", Value::Map(entries)) = (last, &mut node.value) {
            forget_other_kind(entries, &Node::plain(default.unwrap_or_default(), origin), &around);
        }
        take(node, last);
        return;
    }
    let shape = parts.last().map_or(Shape::Free, |part| around.of_key(part));
    let slot = match slot(tree, &parts, &origin) {
        Ok(slot) => slot,
        Err(problem) => {
            diagnostics.push(Diagnostic::error(problem, Some(origin)));
            return;
        }
    };
    match operation {
        Operation::Set(node) => slot.merge(node, &shape),
        Operation::Add(node) => match (&mut slot.value, node) {
            (Value::List(items), Node { value: Value::List(more), .. }) => {
                items.extend(more);
                slot.origin = origin;
            }
            (Value::List(items), node) => {
                items.push(node);
                slot.origin = origin;
            }
            (_, node) => slot.merge(node, &shape),
        },
        Operation::Reset => {
            *slot = default_tree().at(&path).cloned().unwrap_or_else(|| match place {
                Place::Key(spec) => yaml::parse(&Source::new(SourceKind::Default, &*spec.default))
                    .unwrap_or_else(|_| Node::plain(&*spec.default, origin.clone())),
                Place::Item | Place::Free => Node::plain("null", origin.clone()),
            });
        }
    }
}

fn slot_of_existing<'n>(tree: &'n mut Node, parts: &[&str]) -> Option<&'n mut Node> {
    parts.iter().try_fold(tree, |node, part| match &mut node.value {
        Value::Map(entries) => {
            entries.iter_mut().find(|entry| entry.key == *part).map(|entry| &mut entry.node)
        }
        Value::List(items) => part.parse::<usize>().ok().and_then(|index| items.get_mut(index)),
        Value::Scalar { .. } => None,
    })
}

/// The node at a path, made where it is not there.
fn slot<'n>(tree: &'n mut Node, parts: &[&str], origin: &Origin) -> Result<&'n mut Node, Problem> {
    let mut node = tree;
    for (depth, part) in parts.iter().enumerate() {
        if matches!(node.value, Value::Scalar { .. }) {
            node.value = Value::Map(Vec::new());
            node.origin = origin.clone();
        }
        node = match &mut node.value {
            Value::List(items) => {
                let (key, length) = (parts.get(..depth).unwrap_or_default().join("."), items.len());
                let index = part.parse::<usize>().unwrap_or(usize::MAX);
                items.get_mut(index).ok_or(Problem::NoSuchItem { key, length, index })?
            }
            Value::Map(entries) => {
                let index = entries.iter().position(|entry| entry.key == *part).unwrap_or_else(|| {
                    let node = Node::plain("null", origin.clone());
                    entries.push(MapEntry { key: (*part).to_owned(), origin: origin.clone(), node });
                    entries.len() - 1
                });
                &mut entries[index].node
            }
            Value::Scalar { .. } => unreachable!("made a mapping above"),
        };
    }
    Ok(node)
}
