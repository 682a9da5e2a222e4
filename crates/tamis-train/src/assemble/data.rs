//! Prompts of both splits.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value};
use tamis_config::{
    Config, DataConfig, DataSource, DataSources, EnvironmentConfig, ModelSource, TokenizerSource,
    two_of_one_name,
};
use tamis_core::fault;
use tamis_core::figure::counted;
use tamis_data::curriculum::Curriculum;
use tamis_data::dataset::{ColumnNames, Dataset, DatasetError, PromptFault, ReadOptions, no_prompts};
use tamis_data::image::ImagePlaces;
use tamis_data::prompt::{Message, Prompt, PromptContent};
use tamis_data::prompt_format::{FormatFault, Formatter, PromptFormat};
use tamis_data::sft_rows::{SftRow, SftTarget};
use tamis_env::task::environment::{environment_of, set_environment};
use tamis_env::task::{TaskKind, TaskPrompts, TaskSource};
use tamis_rollout::PreparedPrompt;
use tamis_text::template::{ChatTemplate, TemplateError};

use super::check_purpose::CheckPurpose;
use super::hold_out::hold_out;
use super::policy;
use crate::checkpoint::CHECKSUMS;
use crate::error::AssembleError;
use crate::prompts::codec::{Codec, CodecError, unprepared};
use crate::prompts::foreign;

/// The prompts of a run before they are tokenized.
#[derive(Debug, Clone, Default)]
pub struct Prompts {
    /// Training prompts, ids from 0.
    pub train: Vec<Prompt>,
    /// Validation prompts, ids from 0.
    pub validation: Vec<Prompt>,
    /// Lines for the log: what was read, skipped and left out.
    pub notes: Vec<String>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
    task: Option<TaskKind>,
    /// Characters that a task's completions may need beyond those of its prompts and answers.
    alphabet: String,
}

/// Reads or makes the prompts that the configuration names.
pub fn prompts(config: &Config) -> Result<Prompts, AssembleError> {
    let prompts = all_prompts(config, true)?;
    if prompts.train.is_empty() {
        return Err(AssembleError::setting(
            "there are no training prompts",
            "set data.train to one or more JSONL or Parquet files, or data.task to a built-in task",
        ));
    }
    Ok(prompts)
}

/// Reads or makes only the validation prompts. Files of training prompts need not exist, except those of the
/// task `gsm8k_calculator`, whose expressions are left out of what is held out.
pub fn validation_prompts(config: &Config) -> Result<Prompts, AssembleError> {
    let prompts = all_prompts(config, false)?;
    Ok(Prompts { train: Vec::new(), ..prompts })
}

fn all_prompts(config: &Config, for_training: bool) -> Result<Prompts, AssembleError> {
    let data = &config.data;
    let mut prompts = match data.task {
        Some(TaskKind::Environment) => levels(config)?,
        Some(task) => {
            let TaskPrompts { train, held_out, notes, alphabet } =
                task.prompts(&task_source(config, &TaskFiles::of(data)), usize::MAX)?;
            Prompts { train, validation: held_out, notes, task: data.task, alphabet, ..Prompts::default() }
        }
        None => files(config, for_training)?,
    };
    if config.environments().any(|environment| !environment.maker().is_game()) {
        // Anything that environments, tools and programs may write.
        prompts.alphabet.extend((' '..='~').chain(['\n']));
    }
    if let Some(limit) = config.validate.max_prompts {
        // Each environment keeps its share.
        let share = limit.div_ceil(config.environments().count().max(1));
        let mut kept = BTreeMap::<usize, usize>::new();
        prompts.validation.retain(|prompt| {
            let count = kept.entry(environment_of(prompt)).or_default();
            *count += 1;
            *count <= share
        });
        prompts.validation.truncate(limit);
    }
    fill_all(&mut prompts, data)?;
    Ok(prompts)
}

/// The levels of all environments, one after the other.
fn levels(config: &Config) -> Result<Prompts, AssembleError> {
    let mut all = Prompts { task: Some(TaskKind::Environment), ..Prompts::default() };
    for (environment, of_game) in config.environments().zip(config.levels()) {
        let number = of_game.number;
        let made = if let Some(spec) = environment.maker().foreign() {
            foreign::levels(config, environment, &spec)?
        } else {
            let files = TaskFiles::of(&config.data);
            let source = TaskSource { environment: Some(of_game), ..task_source(config, &files) };
            TaskKind::Environment.prompts(&source, usize::MAX)?
        };
        for (prompts, own) in [(&mut all.train, made.train), (&mut all.validation, made.held_out)] {
            let start = prompts.len() as u64;
            prompts.extend(own.into_iter().map(|mut prompt| {
                prompt.id.0 += start;
                set_environment(&mut prompt, number);
                prompt
            }));
        }
        all.notes.extend(made.notes);
        all.alphabet.push_str(&made.alphabet);
    }
    check_names(&all)?;
    Ok(all)
}

/// Checks that no two environments have one name in metrics. An environment elsewhere may choose the name of
/// another.
fn check_names(all: &Prompts) -> Result<(), AssembleError> {
    let mut of_name = BTreeMap::<&str, usize>::new();
    for prompt in all.train.iter().chain(&all.validation) {
        let number = environment_of(prompt);
        if *of_name.entry(&prompt.data_source).or_insert(number) != number {
            let (message, hint) = two_of_one_name(&prompt.data_source);
            return Err(AssembleError::setting(message, hint));
        }
    }
    Ok(())
}

/// Puts `data.prompt_template` around all prompts.
fn fill_all(prompts: &mut Prompts, data: &DataConfig) -> Result<(), AssembleError> {
    if let Some(path) = &data.prompt_template {
        let template = prompt_template(path)?;
        for (split, prompts) in [("training", &mut prompts.train), ("validation", &mut prompts.validation)] {
            for prompt in prompts {
                fill(path, &template, prompt).map_err(|source| unprepared(prompt, split, source))?;
            }
        }
    }
    Ok(())
}

/// Puts `data.prompt_template` around the prompts in text of pairs.
pub(super) fn fill_pairs(rows: &mut [SftRow], data: &DataConfig) -> Result<(), AssembleError> {
    let Some(path) = &data.prompt_template else { return Ok(()) };
    let template = prompt_template(path)?;
    for row in rows {
        if matches!((&row.prompt.content, &row.target), (PromptContent::Text(_), SftTarget::Completion(_))) {
            fill(path, &template, &mut row.prompt)?;
        }
    }
    Ok(())
}

/// Faults of the first prompts of the data: those of the first files, up to `num_prompts` of each split.
#[derive(Debug)]
pub(super) struct Unfit {
    /// The keys that may be to blame, the likeliest first.
    pub(super) keys: Vec<String>,
    pub(super) error: AssembleError,
}

/// The first prompts of a file, or of a task.
struct First {
    split: &'static str,
    prompts: Vec<Prompt>,
    alphabet: String,
}

/// Rows that a check reads of each file.
const FIRST_ROWS: usize = 100;
/// Time limit for that.
const FIRST_ROWS_TIME: Duration = Duration::from_secs(2);
/// Prompts of each file that a check renders.
const FIRST_PROMPTS: usize = 5;
/// Number of prompts that a check draws from a task. They include every level.
const FIRST_DRAWN: usize = 1000;

/// Reads the first rows of the files that `is_real` and renders the first prompts of each, as a run does with
/// all of them. Does the same for the first prompts of a built-in task.
pub(super) fn check_first_rows(
    config: &Config,
    purpose: CheckPurpose<'_>,
    is_real: impl Fn(&Path) -> bool,
) -> Result<(), Unfit> {
    let data = &config.data;
    let firsts = match data.task {
        Some(task) => first_of_task(config, task, &is_real)?,
        None => first_of_files(config, purpose, &is_real)?,
    };
    let unfit = |keys: &[&str], error: AssembleError| Unfit {
        keys: keys.iter().map(|&key| key.to_owned()).collect(),
        error,
    };
    let mut all = Vec::new();
    for First { split, prompts, alphabet } in firsts {
        let mut of_file = Prompts { task: data.task, alphabet, ..Prompts::default() };
        if split == "train" {
            of_file.train = prompts;
        } else {
            of_file.validation = prompts;
        }
        fill_all(&mut of_file, data).map_err(|error| unfit(&["data.prompt_template"], error))?;
        all.push(of_file);
    }
    let checkpoint = match purpose {
        CheckPurpose::Resume(checkpoint) => checkpoint,
        CheckPurpose::Begin | CheckPurpose::Evaluate => None,
    };
    let model = config.model.path.as_ref().filter(|_| checkpoint.is_none());
    let path = model.map(ModelSource::folder);
    let path = path.as_deref();
    if model.is_some_and(|model| !model.is_local())
        || path.is_some_and(|path| !is_real(path))
        || config.model.chat_template.as_ref().is_some_and(|path| !is_real(path))
    {
        return Ok(());
    }
    let model = ["model.chat_template", "model.path", "model.init.tokenizer", "model"];
    let alphabet = || {
        let prompts = all.iter().flat_map(|prompts| prompts.train.iter().chain(&prompts.validation));
        let alphabet = all.iter().map(|prompts| prompts.alphabet.as_str()).collect();
        Prompts { train: prompts.cloned().collect(), task: data.task, alphabet, ..Prompts::default() }
            .alphabet()
    };
    let codec = match checkpoint {
        Some(folder) => policy::codec_of(config, folder),
        None => policy::unverified_codec(config, alphabet),
    };
    let codec = match codec {
        Ok(codec) => codec,
        // The checksums of a checkpoint of tamis show whether it is as it was saved.
        Err(_) if checkpoint.or(path).is_some_and(|path| path.join(CHECKSUMS).is_file()) => return Ok(()),
        Err(error) => return Err(unfit(&model, error)),
    };
    let form = ["data.prompt_format", "data.system_prompt", "model.chat_template", "data.train", "data"];
    // The alphabet of a character tokenizer is made from all rows. The first rows have it only if a task
    // defines it.
    let is_made = path.is_none()
        && checkpoint.is_none()
        && (config.model.init.as_ref())
            .is_some_and(|init| matches!(init.tokenizer, TokenizerSource::Character));
    let has_alphabet = !is_made || data.task.is_some_and(|task| !task.reads_files());
    for prompts in all {
        let prompts = prompts.format_prompts(config, &codec).map_err(|error| unfit(&form, error))?;
        for (split, prompts) in [("training", &prompts.train), ("validation", &prompts.validation)] {
            for prompt in prompts {
                let checked =
                    if has_alphabet { codec.check_tokens(prompt) } else { codec.check_rendering(prompt) };
                checked.map_err(|source| unfit(&model, unprepared(prompt, split, source).into()))?;
            }
        }
    }
    Ok(())
}

/// The first prompts of every file.
fn first_of_files(
    config: &Config,
    purpose: CheckPurpose<'_>,
    is_real: &impl Fn(&Path) -> bool,
) -> Result<Vec<First>, Unfit> {
    let data = &config.data;
    let options = read_options(data, None);
    let mut firsts = Vec::new();
    let splits = [("train", &data.train.0), ("val", &data.val.0)];
    for (split, sources) in splits.into_iter().skip(usize::from(!purpose.reads_train(config))) {
        let (mut is_empty, mut num_skipped) = (!sources.is_empty(), 0);
        let files = sources.iter().enumerate().flat_map(|(index, source)| {
            let is_there = source.is_local();
            source.files().into_iter().map(move |path| (index, is_there, path))
        });
        for (index, is_there, path) in files {
            if !is_there || !is_real(&path) {
                is_empty = false;
                continue;
            }
            let read = Dataset::first_rows(&path, &options, FIRST_ROWS, FIRST_ROWS_TIME);
            let (dataset, is_whole) = read.map_err(|error| {
                let mut keys = vec![format!("data.{split}[{index}]"), format!("data.{split}")];
                if let DatasetError::Row { fault, .. } = &error
                    && let PromptFault::NoColumn { option, .. } | PromptFault::Binary { option, .. } = fault
                {
                    keys.insert(0, format!("data.columns.{option}"));
                }
                Unfit { keys, error: error.into() }
            })?;
            is_empty &= is_whole && dataset.prompts().is_empty();
            num_skipped += dataset.skipped_rows().len();
            firsts.push(First {
                split,
                alphabet: String::new(),
                prompts: dataset.into_prompts().into_iter().take(FIRST_PROMPTS).collect(),
            });
        }
        if is_empty {
            let error = DatasetError::from(no_prompts(&DataSources(sources.clone()).files(), num_skipped));
            return Err(Unfit { keys: vec![format!("data.{split}")], error: error.into() });
        }
    }
    Ok(firsts)
}

/// The first prompts of a built-in task; none if one of its files does not exist yet.
fn first_of_task(
    config: &Config,
    task: TaskKind,
    is_real: &impl Fn(&Path) -> bool,
) -> Result<Vec<First>, Unfit> {
    let data = &config.data;
    let is_there = |source: &DataSource| source.is_local() && source.files().iter().all(|path| is_real(path));
    if task.reads_files() && !data.train.0.iter().chain(&data.val.0).all(is_there) {
        return Ok(Vec::new());
    }
    let files = TaskFiles::of(data);
    let made = task.prompts(&task_source(config, &files), FIRST_DRAWN).map_err(|error| {
        let mut keys: Vec<String> = task.keys().iter().map(|&key| key.to_owned()).collect();
        let names = |DataSources(sources): &DataSources| {
            sources.iter().any(|source| source.files().iter().any(|file| Some(file) == error.path.as_ref()))
        };
        if names(&data.val) && !names(&data.train) {
            keys.sort_by_key(|key| key != "data.val");
        }
        Unfit { keys, error: error.into() }
    })?;
    let alphabet = made.alphabet;
    let first = |split, prompts: Vec<Prompt>| First {
        split,
        alphabet: alphabet.clone(),
        prompts: prompts.into_iter().take(FIRST_PROMPTS).collect(),
    };
    Ok(vec![first("train", made.train), first("val", made.held_out)])
}

/// An order of training prompts by one of their numbers.
pub(crate) struct CurriculumOrder {
    /// The rank of each prompt.
    pub(crate) ranks: Vec<usize>,
    /// Number of passes over the data that follow it; `None`: all.
    pub(crate) epochs: Option<u64>,
}

/// The order of `data.curriculum`; `None` without one.
///
/// # Errors
/// A prompt has no number in the curriculum's column.
pub(crate) fn curriculum(
    config: &Config,
    prompts: &[PreparedPrompt],
) -> Result<Option<CurriculumOrder>, AssembleError> {
    let Some(settings) = &config.data.curriculum else { return Ok(None) };
    let curriculum = Curriculum {
        column: settings.column.clone(),
        descending: settings.descending,
        bands: settings.bands,
        epochs: settings.epochs.map(|epochs| epochs as u64),
    };
    let ranks = curriculum.ranks(prompts.iter().map(|prepared| &*prepared.prompt)).map_err(|error| {
        AssembleError::setting(
            format!("data.curriculum: {error}"),
            "name a column in which every row has a number, or set data.curriculum=null",
        )
    })?;
    Ok(Some(CurriculumOrder { ranks, epochs: curriculum.epochs }))
}

/// The template of `data.prompt_template`. As in EasyR1, white space around it is not part of it.
fn prompt_template(path: &Path) -> Result<ChatTemplate, AssembleError> {
    let source = tamis_file::read_text(path, tamis_file::MAX_TEMPLATE)
        .map_err(|source| CodecError::PromptTemplateFile { path: path.to_owned(), source })?;
    let template = ChatTemplate::new(source.trim(), &BTreeMap::new());
    Ok(template.map_err(|source| unfilled(path, source))?)
}

fn unfilled(path: &Path, source: TemplateError) -> CodecError {
    fault!("data.prompt_template {} cannot be filled in", path.display()).with_source(source).into()
}

fn fill(path: &Path, template: &ChatTemplate, prompt: &mut Prompt) -> Result<(), CodecError> {
    match &mut prompt.content {
        PromptContent::Text(text) => {
            let content = Map::from_iter([("content".to_owned(), Value::from(std::mem::take(text)))]);
            let filled = template.render::<Message>(&[], &content);
            *text = filled.map_err(|source| unfilled(path, source))?;
            Ok(())
        }
        PromptContent::Messages(_) => Err(fault!(
            "data.prompt_template goes around text, but this prompt is a list of messages: remove \
            the setting, or give prompts as text"
        )
        .into()),
    }
}

/// The files of both splits, for a built-in task.
pub(super) struct TaskFiles {
    train: Vec<PathBuf>,
    held_out: Vec<PathBuf>,
}

impl TaskFiles {
    pub(super) fn of(data: &DataConfig) -> Self {
        Self { train: data.train.files(), held_out: data.val.files() }
    }
}

/// The settings that a built-in task reads of the configuration.
pub(super) fn task_source<'c>(config: &'c Config, files: &'c TaskFiles) -> TaskSource<'c> {
    let TaskFiles { train, held_out } = files;
    let environment = config.played().map(EnvironmentConfig::levels);
    TaskSource { seed: config.run.seed, arithmetic: &config.data.arithmetic, environment, train, held_out }
}

fn columns(data: &DataConfig) -> ColumnNames {
    ColumnNames {
        prompt: data.columns.prompt.clone(),
        ground_truth: data.columns.ground_truth.clone(),
        data_source: data.columns.data_source.clone(),
        images: data.columns.images.clone(),
    }
}

/// `store` is the folder for images that come as bytes; `None` for checks, which write nothing.
fn read_options(data: &DataConfig, store: Option<PathBuf>) -> ReadOptions {
    ReadOptions {
        columns: columns(data),
        bad_rows: data.bad_rows,
        binary_columns: data.binary_columns,
        images: data.images.then(|| ImagePlaces { folder: data.image_folder.clone(), store }),
    }
}

/// Folder of the images that come as bytes. It is below the folder of all runs, so a resumed run finds them
/// at the same path, and other runs on the same data share them.
const IMAGE_FOLDER: &str = ".images";

/// Where they are.
pub(crate) fn image_folder(config: &Config) -> PathBuf {
    config.run.dir.join(IMAGE_FOLDER)
}

fn files(config: &Config, for_training: bool) -> Result<Prompts, AssembleError> {
    let data = &config.data;
    let options = read_options(data, Some(image_folder(config)));
    let mut notes = Vec::new();
    let mut read = |split: &str, paths: &[PathBuf]| -> Result<Vec<Prompt>, AssembleError> {
        if paths.is_empty() {
            return Ok(Vec::new());
        }
        let dataset = Dataset::read(paths, &options)?;
        let prompts = counted(dataset.prompts().len(), "prompt");
        notes.push(format!("{split}: {prompts} from {}", counted(paths.len(), "file")));
        if let Some(first) = dataset.skipped_rows().first() {
            notes.push(format!(
                "{split}: skipped {} that could not be parsed; the first: {first}",
                counted(dataset.skipped_rows().len(), "row"),
            ));
        }
        Ok(dataset.into_prompts())
    };
    let reads_train = for_training || config.holds_out();
    let train = if reads_train { read("training data", &data.train.files())? } else { Vec::new() };
    let validation = read("validation data", &data.val.files())?;
    let Some(fraction) = data.val_fraction else {
        return Ok(Prompts { train, validation, notes, ..Prompts::default() });
    };
    let num_prompts = train.len();
    let (train, validation) = hold_out(train, fraction);
    if train.is_empty() || validation.is_empty() {
        return Err(AssembleError::setting(
            format!("data.val_fraction: {num_prompts} training prompts cannot be split"),
            "give at least two prompts of different texts, or set data.val_fraction=null",
        ));
    }
    notes.push(format!(
        "validation data: {} of them are held out (data.val_fraction: {fraction}), {} are trained on",
        validation.len(),
        train.len()
    ));
    Ok(Prompts { train, validation, notes, ..Prompts::default() })
}

/// Characters seen. Those of ASCII have a table, so that a million prompts are read in less than a second.
struct Alphabet {
    ascii: [bool; 128],
    others: BTreeSet<char>,
}

impl Default for Alphabet {
    fn default() -> Self {
        Self { ascii: [false; 128], others: BTreeSet::new() }
    }
}

impl Extend<char> for Alphabet {
    fn extend<I: IntoIterator<Item = char>>(&mut self, characters: I) {
        for character in characters {
            match self.ascii.get_mut(character as usize) {
                Some(seen) => *seen = true,
                None => {
                    self.others.insert(character);
                }
            }
        }
    }
}

impl Prompts {
    /// Characters of all prompts and answers, for the character tokenizer: the task's own alphabet, or all
    /// characters of the data.
    pub fn alphabet(&self) -> String {
        let mut alphabet = Alphabet::default();
        if self.task.is_some() {
            alphabet.extend("0123456789+-*/=.".chars());
        }
        alphabet.extend(self.alphabet.chars());
        for prompt in self.train.iter().chain(&self.validation) {
            match &prompt.content {
                PromptContent::Text(text) => alphabet.extend(text.chars()),
                PromptContent::Messages(messages) => {
                    for message in messages {
                        alphabet.extend(message.content.chars());
                        // Any other characters that the template may write.
                        alphabet.extend(
                            message
                                .given()
                                .values()
                                .flat_map(|value| value.to_string().chars().collect::<Vec<_>>()),
                        );
                    }
                    for (_, value) in prompt.template_columns() {
                        alphabet.extend(value.to_string().chars());
                    }
                }
            }
            alphabet.extend(prompt.ground_truth.iter().flat_map(|truth| truth.chars()));
        }
        alphabet.others.extend((0_u8..128).filter(|&code| alphabet.ascii[usize::from(code)]).map(char::from));
        alphabet.others.into_iter().collect()
    }

    /// Adds characters of other texts that the model sees.
    pub(crate) fn add_alphabet(&mut self, letters: &str) {
        self.alphabet.push_str(letters);
    }

    /// The prompts in the form that `data.prompt_format` gives them for the model of this codec, with
    /// `data.system_prompt`.
    ///
    /// # Errors
    /// The first prompt that cannot have that form.
    pub fn format_prompts(mut self, config: &Config, codec: &Codec) -> Result<Self, AssembleError> {
        let data = &config.data;
        let formatter = Formatter {
            format: data.prompt_format,
            system: data.system_prompt.clone(),
            has_template: codec.has_template(),
        };
        let columns = columns(data);
        let splits = [("training", &mut self.train), ("validation", &mut self.validation)];
        let (mut num_texts, mut num_prompts, mut unseen) = (0_usize, 0_usize, BTreeSet::new());
        for (split, prompts) in splits {
            num_prompts += prompts.len();
            for prompt in prompts {
                // A built-in task asks questions, whatever the name of their column.
                let is_question = self.task.is_some()
                    || columns.prompt_of(&prompt.columns).is_none_or(|(column, _)| column != "prompt");
                let content = std::mem::replace(&mut prompt.content, PromptContent::Text(String::new()));
                prompt.content = formatter
                    .apply(content, is_question)
                    .map_err(|fault| misfit(fault, &prompt.named_in(split), codec))?;
                if matches!(prompt.content, PromptContent::Text(_)) {
                    num_texts += 1;
                    unseen.extend(prompt.template_columns().map(|(name, _)| name));
                }
            }
        }
        for name in unseen {
            self.warnings.push(format!(
                "the column `{name}` is for the chat template, but rows that have it are sent as bare text: it has no effect there"
            ));
        }
        if num_texts > 0 && formatter.format == PromptFormat::Auto && formatter.has_template {
            self.warnings.push(format!(
                "{num_texts} of {num_prompts} prompts are the text of a column `prompt` and are sent without the model's chat template: \
                 data.prompt_format=chat makes each a user message, data.prompt_format=text confirms that this is intended"
            ));
        }
        Ok(self)
    }
}

/// Why a prompt cannot have the requested form, and what to do.
fn misfit(fault: FormatFault, prompt: &str, codec: &Codec) -> AssembleError {
    let give_template = "add chat_template.jinja to the model's folder or name one with model.chat_template";
    let hint = match fault {
        FormatFault::Messages => {
            "set data.prompt_format=auto (or chat) to render messages with the chat template".to_owned()
        }
        FormatFault::NoTemplate => format!("{give_template}, or set data.prompt_format=text"),
        FormatFault::NoPlaceForSystem if codec.has_template() => {
            "set data.prompt_format=chat, which makes a user message of every text, or remove data.system_prompt".to_owned()
        }
        FormatFault::NoPlaceForSystem => {
            format!("the model has no chat template: {give_template}, or remove data.system_prompt")
        }
    };
    AssembleError::setting(format!("{prompt}: {fault}"), hint)
}
