//! Datasets: rows of files as prompts.
//!
//! Three layouts are recognised without configuration, row by row, from the columns that are there:
//!
//! | | prompt | ground truth | data source |
//! |---|---|---|---|
//! | verl | `prompt`, text or messages | `reward_model.ground_truth` | `data_source` |
//! | TRL | `prompt`, text or messages | `ground_truth`, `solution` or `answer` | |
//! | plain | `question` or `problem` | `answer` (or `ground_truth`, `solution`) | |
//!
//! The first name that a row has is used, in the order of [`PROMPT_COLUMNS`] and [`GROUND_TRUTH_COLUMNS`];
//! [`ColumnNames`] sets others. Rows of any layout may have [images](crate::image).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tamis_core::figure::{agreed, counted};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tamis_core::choice;
use tamis_core::fault;
use tamis_core::fault::Fault;
use tamis_core::faults;
use tamis_core::group::PromptId;
use thiserror::Error;

use crate::data_record::kind;
use crate::image::{IMAGE_COLUMNS, ImageColumn, ImagePlaces, PromptImage};
use crate::message::MessageFault;
use crate::prompt::{Message, Prompt, PromptContent, message_parts};
use crate::records::{DataRecord, RecordError, Records, RowFault, RowPlace, lookup};

/// Columns that may hold the prompt if none is configured, in this order.
pub const PROMPT_COLUMNS: [&str; 3] = ["prompt", "question", "problem"];
/// Columns that may hold the ground truth if none is configured, in this order.
pub const GROUND_TRUTH_COLUMNS: [&str; 4] =
    ["reward_model.ground_truth", "ground_truth", "answer", "solution"];
/// Column of the data source if none is configured.
pub const DATA_SOURCE_COLUMN: &str = "data_source";

/// Names of the columns (`data.columns`). `None`: as the module describes. Names may be dotted paths.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ColumnNames {
    /// The prompt.
    pub prompt: Option<String>,
    /// Column of the ground truth that rewards compare with. A configured column must be in every row (its
    /// value may be null).
    pub ground_truth: Option<String>,
    /// Column that names the verifier family.
    pub data_source: Option<String>,
    /// Column with the images. Some rows may lack it, but not all.
    pub images: Option<String>,
}

impl ColumnNames {
    /// Name and value of the column with a row's prompt.
    pub fn prompt_of<'a>(&'a self, row: &'a Map<String, Value>) -> Option<(&'a str, &'a Value)> {
        match &self.prompt {
            Some(column) => Some((column, lookup(row, column)?)),
            None => PROMPT_COLUMNS.iter().find_map(|&name| Some((name, row.get(name)?))),
        }
    }

    /// Name and value of the column with a row's images.
    fn images_of<'a>(&'a self, row: &'a Map<String, Value>) -> Option<(&'a str, &'a Value)> {
        match &self.images {
            Some(column) => Some((column, lookup(row, column)?)),
            None => IMAGE_COLUMNS
                .iter()
                .find_map(|&name| Some((name, row.get(name).filter(|value| !value.is_null())?))),
        }
    }
}

choice! {
    /// Treatment of a row that does not parse.
    pub enum BadRows {
        /// The run stops, naming file and row.
        Error = "error",
        /// The row is left out, and counted.
        Skip = "skip",
    }
}

choice! {
    /// What to do with bytes that are not text, such as an image, in columns of a Parquet file other than
    /// prompt, ground truth and data source.
    pub enum BinaryColumns {
        /// The row is refused (or left out, with `data.bad_rows: skip`).
        Error = "error",
        /// Every value of a column of bytes reaches reward functions in base64.
        Base64 = "base64",
    }
}

/// Settings for reading files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReadOptions {
    /// Column names.
    pub columns: ColumnNames,
    /// Rows that are no prompts.
    pub bad_rows: BadRows,
    /// Columns of bytes.
    pub binary_columns: BinaryColumns,
    /// The folders of images. `None`: columns of images are columns like any other.
    pub images: Option<ImagePlaces>,
}

/// Why a row is no prompt.
#[derive(Debug, Error)]
pub enum PromptFault {
    /// A configured column is missing.
    #[error("expected a column `{column}` (data.columns.{option}), but the row has {columns}")]
    NoColumn {
        /// The option that names it.
        option: &'static str,
        /// The column.
        column: String,
        /// Columns of the row.
        columns: String,
    },
    /// A column that must be text holds bytes that are not text.
    #[error(
        "`{column}` holds bytes that are not text (not UTF-8); write the column as text, or name another with data.columns.{option}"
    )]
    Binary {
        /// The option that names it.
        option: &'static str,
        /// The column.
        column: String,
    },
    /// Anything else.
    #[error(transparent)]
    Fault(#[from] Fault),
}

faults!(PromptFault: RowFault);

/// A dataset could not be read.
#[derive(Debug, Error)]
pub enum DatasetError {
    /// A row is no prompt.
    #[error("{place}: {fault}")]
    Row {
        /// Location of the row.
        place: RowPlace,
        /// The reason.
        fault: PromptFault,
    },
    /// Anything else.
    #[error(transparent)]
    Fault(#[from] Fault),
}

faults!(DatasetError: RecordError);

fn list(files: &[PathBuf]) -> String {
    files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// The error if the files hold no prompt.
pub fn no_prompts(files: &[PathBuf], num_skipped: usize) -> Fault {
    none_in("prompts", files, num_skipped)
}

/// The error if the files hold none of something.
pub(crate) fn none_in(what: &str, files: &[PathBuf], num_skipped: usize) -> Fault {
    fault!("no {what} in {}{}", list(files), skipped_note(num_skipped))
}

fn skipped_note(num_skipped: usize) -> String {
    if num_skipped == 0 {
        return String::new();
    }
    format!(" ({} {} skipped as broken)", counted(num_skipped, "row"), agreed(num_skipped, "was", "were"))
}

/// Prompts in the order of files and rows.
#[derive(Debug, Default)]
pub struct Dataset {
    prompts: Vec<Prompt>,
    skipped: Vec<DatasetError>,
}

impl Dataset {
    /// Reads files one after another. A prompt's id is its row number over all files, from 0. Skipped rows
    /// count, blank lines do not.
    pub fn read<P: AsRef<Path>>(files: &[P], options: &ReadOptions) -> Result<Self, DatasetError> {
        if files.is_empty() {
            return Err(fault!("no data file is named").into());
        }
        let mut dataset = Self::default();
        for file in files {
            dataset.read_file(file.as_ref(), options, |_| true)?;
        }
        if let Some(column) = options.columns.images.as_ref().filter(|_| options.images.is_some())
            && !dataset.prompts.is_empty()
            && dataset.prompts.iter().all(|prompt| lookup(&prompt.columns, column).is_none())
        {
            return Err(fault!("no row has the column `{column}` that data.columns.images names for images; correct the name, or remove the setting").into());
        }
        if dataset.prompts.is_empty() {
            let files: Vec<PathBuf> = files.iter().map(|file| file.as_ref().to_owned()).collect();
            return Err(no_prompts(&files, dataset.skipped.len()).into());
        }
        Ok(dataset)
    }

    /// Reads the first rows of a file, at most `max_rows` and for at most `max_time`, to see what it
    /// contains. Also returns whether those are all its rows. Here a file without rows is an empty dataset,
    /// not an error.
    pub fn first_rows(
        file: &Path,
        options: &ReadOptions,
        max_rows: usize,
        max_time: Duration,
    ) -> Result<(Self, bool), DatasetError> {
        let mut dataset = Self::default();
        let begun = Instant::now();
        let is_whole = dataset.read_file(file, options, |dataset| {
            dataset.num_rows() < max_rows && begun.elapsed() < max_time
        })?;
        Ok((dataset, is_whole))
    }

    fn num_rows(&self) -> usize {
        self.prompts.len() + self.skipped.len()
    }

    /// Adds the rows of a file while `goes_on`. Returns whether it reached the end.
    fn read_file(
        &mut self,
        file: &Path,
        options: &ReadOptions,
        goes_on: impl Fn(&Self) -> bool,
    ) -> Result<bool, DatasetError> {
        let first = self.num_rows() as u64;
        for (id, record) in (first..).zip(Records::open(file)?) {
            if !goes_on(self) {
                return Ok(false);
            }
            let prompt = match record {
                Ok(record) => {
                    let place = record.place.clone();
                    match to_prompt(PromptId(id), record, options, file) {
                        Ok(prompt) => Ok(Prompt { place: Some(place), ..prompt }),
                        Err(fault) => Err(DatasetError::Row { place, fault }),
                    }
                }
                Err(RecordError::Row { place, fault }) => {
                    Err(DatasetError::Row { place, fault: fault.into() })
                }
                Err(error) => return Err(error.into()),
            };
            match prompt {
                Ok(prompt) => self.prompts.push(prompt),
                Err(error) if options.bad_rows == BadRows::Error => return Err(error),
                Err(error) => self.skipped.push(error),
            }
        }
        Ok(true)
    }

    /// The prompts, ids increasing.
    pub fn prompts(&self) -> &[Prompt] {
        &self.prompts
    }

    /// The prompts themselves, ids increasing.
    pub fn into_prompts(self) -> Vec<Prompt> {
        self.prompts
    }

    /// Their ids.
    pub fn ids(&self) -> Vec<PromptId> {
        self.prompts.iter().map(|prompt| prompt.id).collect()
    }

    /// A prompt by id.
    pub fn get(&self, id: PromptId) -> Option<&Prompt> {
        let index = self.prompts.binary_search_by_key(&id, |prompt| prompt.id).ok()?;
        self.prompts.get(index)
    }

    /// Removes prompts, for example too long ones. The others keep their ids.
    pub fn retain(&mut self, keep: impl FnMut(&Prompt) -> bool) {
        self.prompts.retain(keep);
    }

    /// Rows skipped as broken, each with its place and reason.
    pub fn skipped_rows(&self) -> &[DatasetError] {
        &self.skipped
    }

    /// A number that changes when a prompt is added, removed, reordered or reworded, or gets another ground
    /// truth (FNV-1a over ids, contents and ground truths). A resumed run compares it, because its position
    /// in the data means nothing in other data.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut feed = |bytes: &[u8]| {
            for byte in bytes.iter().chain(&[0xff]) {
                hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            }
        };
        for prompt in &self.prompts {
            feed(&prompt.id.0.to_le_bytes());
            match &prompt.content {
                PromptContent::Text(text) => feed(text.as_bytes()),
                PromptContent::Messages(messages) => {
                    for message in messages {
                        feed(message.role.as_bytes());
                        feed(message.content.as_bytes());
                        if !message.given().is_empty() {
                            feed(message.to_value().to_string().as_bytes());
                        }
                    }
                }
            }
            for (name, value) in prompt.template_columns() {
                feed(name.as_bytes());
                feed(value.to_string().as_bytes());
            }
            feed(prompt.ground_truth.as_deref().unwrap_or("\0").as_bytes());
            prompt.images.iter().for_each(|image| feed(image.name().as_bytes()));
        }
        hash
    }
}

pub(crate) fn names(row: &Map<String, Value>) -> String {
    if row.is_empty() {
        return "no columns".to_owned();
    }
    row.keys().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// The shortest text of a number. pandas makes floats of integers if a value is missing; then `72.0` becomes
/// `72`, because no model answers `72.0`.
pub(crate) fn number_text(number: &serde_json::Number) -> String {
    // Above this, not every whole number is a double.
    const LARGEST: f64 = 9_007_199_254_740_992.0;
    match number.as_f64().filter(|value| number.is_f64() && value.fract() == 0.0 && value.abs() <= LARGEST) {
        // Negative zero has a sign.
        Some(whole) => format!("{}", whole + 0.0),
        None => number.to_string(),
    }
}

fn to_prompt(
    id: PromptId,
    record: DataRecord,
    options: &ReadOptions,
    file: &Path,
) -> Result<Prompt, PromptFault> {
    let text = |option: &'static str, column: &str| {
        let column = column.to_owned();
        if record.is_binary(&column) { Err(PromptFault::Binary { option, column }) } else { Ok(()) }
    };
    let row = &record.values;
    let configured = |option: &'static str, column: &Option<String>| match column {
        None => Ok(None),
        Some(column) => match lookup(row, column) {
            Some(value) => Ok(Some(value)),
            None => Err(PromptFault::NoColumn { option, column: column.clone(), columns: names(row) }),
        },
    };
    let columns = &options.columns;
    configured("prompt", &columns.prompt)?;
    let (column, value) =
        columns.prompt_of(row).ok_or_else(|| fault!("expected a column `prompt` (text or messages), `question` or `problem`, but the row has {columns}; \
             name it with data.columns.prompt", columns = names(row)))?;
    text("prompt", column)?;
    let image_column = options.images.as_ref().and_then(|places| Some((places, columns.images_of(row)?)));
    let content = to_content(column, value, image_column.is_some())?;
    let ground_truth = match configured("ground_truth", &columns.ground_truth)? {
        Some(value) => Some((columns.ground_truth.as_deref().unwrap_or_default(), value)),
        None => GROUND_TRUTH_COLUMNS
            .iter()
            .filter(|&&name| name != column)
            .find_map(|&name| Some((name, lookup(row, name)?))),
    };
    if let Some((column, _)) = ground_truth {
        text("ground_truth", column)?;
    }
    let truth_column = ground_truth.map(|(column, _)| column);
    let ground_truth = match ground_truth.map(|(_, value)| value) {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Number(number)) => Some(number_text(number)),
        Some(other) => Some(other.to_string()),
    };
    let source_column = columns.data_source.as_deref().unwrap_or(DATA_SOURCE_COLUMN);
    let data_source = match configured("data_source", &columns.data_source)? {
        Some(value) => Some(value),
        None => row.get(DATA_SOURCE_COLUMN),
    };
    let data_source = match data_source {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(source)) => {
            text("data_source", source_column)?;
            source.clone()
        }
        Some(other) => {
            return Err(fault!("`{source_column}` must be text, got {actual}", actual = kind(other)).into());
        }
    };
    let mut images = Vec::new();
    let mut shown_images = None;
    if let Some((places, (name, value))) = image_column {
        let found = ImageColumn {
            value,
            encoded: lookup(&record.encoded, name),
            is_binary: record.binary.iter().any(|path| path == name),
        };
        let had_bytes;
        (images, had_bytes) = places
            .images(found, file)
            .map_err(|(place, fault)| fault!("image {number} of `{name}`: {fault}", number = place + 1))?;
        check_places(&content, column, images.len())?;
        // Reward functions get paths, too.
        shown_images = Some(name.to_owned()).filter(|name| had_bytes && !name.contains('.'));
    }
    let image_name = image_column.map(|(_, (name, _))| name);
    let read = [Some(column), truth_column, Some(source_column), image_name]
        .map(|path| path.and_then(|path| path.split('.').next()));
    let is_of_images =
        |path: &&String| image_name.is_some_and(|name| path.strip_prefix(name).is_some_and(is_below));
    let encoded = match (options.binary_columns, record.binary.iter().find(|path| !is_of_images(path))) {
        (BinaryColumns::Error, Some(column)) => {
            return Err(fault!("`{column}` holds bytes that are not text (not UTF-8), but reward functions get every column of a row as \
                JSON; set data.binary_columns=base64 to pass such columns in base64, or remove the \
             column from the file").into());
        }
        (BinaryColumns::Error, None) => Map::new(),
        (BinaryColumns::Base64, _) => {
            record.encoded.into_iter().filter(|(name, _)| !read.contains(&Some(name))).collect()
        }
    };
    let mut columns = record.values;
    columns.extend(encoded);
    if let Some(name) = shown_images {
        columns.insert(name, images.iter().map(|image: &PromptImage| image.path.as_str()).collect());
    }
    Ok(Prompt { id, content, ground_truth, data_source, columns, images, place: None })
}

/// Whether `rest`, the text after a column's name, is empty or leads into the column.
fn is_below(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with('.')
}

/// Refuses images without a place in the prompt. The places are looked for after text has become a message.
fn check_places(content: &PromptContent, column: &str, num_images: usize) -> Result<(), PromptFault> {
    let num_places = content.num_placeholders();
    let fits = match content {
        PromptContent::Text(_) => num_places == 0 || num_places == num_images,
        PromptContent::Messages(messages) => message_parts(messages, num_images).is_some(),
    };
    if num_images == 0 || fits {
        return Ok(());
    }
    Err(fault!("`{column}` has {num_places} `<image>` for {num_images} images; write one for each, or none: then they go \
             before the text of the user's first message, which must be there").into())
}

pub(crate) fn to_content(
    column: &str,
    value: &Value,
    has_images: bool,
) -> Result<PromptContent, PromptFault> {
    let empty = || fault!("`{column}` is empty").into();
    match value {
        Value::String(text) if text.is_empty() => Err(empty()),
        Value::String(text) => Ok(PromptContent::Text(text.clone())),
        Value::Array(items) if items.is_empty() => Err(empty()),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .map(|(index, item)| to_message(column, index, item, has_images))
            .collect::<Result<_, _>>()
            .map(PromptContent::Messages),
        other => {
            Err(fault!("`{column}` must be text or a list of messages, got {actual}", actual = kind(other))
                .into())
        }
    }
}

fn to_message(column: &str, index: usize, value: &Value, has_images: bool) -> Result<Message, PromptFault> {
    Message::read(value, has_images).map_err(|fault| {
        let column = column.to_owned();
        match fault {
            MessageFault::NotText { what } => fault!("message {index} of `{column}` holds {what}, but only text is supported").into(),
            MessageFault::Shape => {
                let text = value.to_string();
                let mut actual: String = text.chars().take(80).collect();
                if actual.len() < text.len() {
                    actual.push('…');
                }
                fault!("message {index} of `{column}` must be an object with `role` as text and `content` as text, a list of text parts or null, got {actual}").into()
            }
        }
    })
}

#[cfg(test)]
mod tests;
