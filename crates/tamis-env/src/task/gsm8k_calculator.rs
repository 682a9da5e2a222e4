//! `gsm8k_calculator`: the calculator annotations `<<48/2=24>>` of files in GSM8K's format, JSONL or Parquet,
//! as prompts `48/2=` with their answers.
//!
//! Each row has a text `answer`. White space, `$` and commas inside an annotation are removed (they do not
//! change its value); an annotation in which any other character than digits, `.`, `+ - * / ( )` is left,
//! whose right side is not one decimal number, or which has no `=`, is counted as unparsable and skipped (a
//! percent sign among them: dropping it would change the value). Expressions are the same if they differ only
//! in the form of numbers (`.5*4`, `0.50*4`). Duplicates are dropped, and so are test expressions that occur
//! in train. Answers are canonical decimals: `12.00` becomes `12`. If two annotations of one expression
//! disagree (for example because one of them rounds), the one equal to the exact value wins, otherwise the
//! first; both are counted.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use tamis_core::figure::counted;

use serde_json::{Map, Value, json};
use tamis_core::fault;
use tamis_core::fault::Fault;
use tamis_core::group::PromptId;
use tamis_data::prompt::{Prompt, PromptContent};
use tamis_data::records::{DataRecord, FileFormat, RecordError, Records};

use super::{Task, TaskError, TaskPrompts, TaskSource, expression};
use crate::rational::{Rational, canonical_decimal};

/// Value of `data_source` of every prompt of this task.
pub const DATA_SOURCE: &str = "gsm8k_calculator";

/// Counts of the annotations of one side. `annotations = unparsable + duplicates + occurs_in_train + kept`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Lines read.
    pub rows: usize,
    /// Annotations found.
    pub annotations: usize,
    /// Skipped: no `=`, a right side that is no decimal number, or foreign characters.
    pub unparsable: usize,
    /// Skipped: the expression had occurred before on this side.
    pub duplicates: usize,
    /// Among the duplicates: their answer differed from the first one's as a number.
    pub conflicting: usize,
    /// Skipped: a test expression that occurs in train.
    pub occurs_in_train: usize,
    /// Prompts made.
    pub kept: usize,
    /// Among the kept: the answer is not the exact value (a rounded quotient, or a slip).
    pub inexact: usize,
}

/// The task: prompts of both sides and their counts.
#[derive(Debug, Clone)]
pub struct CalculatorTask {
    /// Training prompts; ids are row numbers from 0.
    pub train: Vec<Prompt>,
    /// Held-out prompts; ids are row numbers from 0.
    pub held_out: Vec<Prompt>,
    /// Counts of the training files.
    pub train_counts: Counts,
    /// Counts of the test files.
    pub held_out_counts: Counts,
}

struct Entry {
    key: String,
    expression: String,
    answer: String,
    is_exact: bool,
}

impl CalculatorTask {
    /// Reads training and test files. Fails on a file that cannot be read, a line that is no row, or a side
    /// without annotations.
    pub fn load(train: &[PathBuf], held_out: &[PathBuf]) -> Result<Self, TaskError> {
        let (entries, places, train_counts) = read_side(train, &HashMap::new())?;
        let (test_entries, _, held_out_counts) = read_side(held_out, &places)?;
        Ok(Self { train: prompts(entries), held_out: prompts(test_entries), train_counts, held_out_counts })
    }
}

/// The task as [`TaskKind`](super::TaskKind) registers it.
pub(super) struct Gsm8kCalculator;

impl Task for Gsm8kCalculator {
    fn reads_files(&self) -> bool {
        true
    }

    fn keys(&self) -> &'static [&'static str] {
        &["data.train", "data.val", "data"]
    }

    fn prompts(&self, source: &TaskSource<'_>, most: usize) -> Result<TaskPrompts, TaskError> {
        let CalculatorTask { mut train, mut held_out, train_counts, held_out_counts } =
            CalculatorTask::load(source.train, source.held_out)?;
        let note = |split, counts: Counts| {
            let Counts { rows, annotations, unparsable, duplicates, occurs_in_train, kept, .. } = counts;
            format!(
                "gsm8k_calculator, {split}: {} in {}, {unparsable} unparsable, {duplicates} repeated, \
                 {occurs_in_train} also in train, {}",
                counted(annotations, "annotation"),
                counted(rows, "row"),
                counted(kept, "prompt")
            )
        };
        let notes = vec![note("training", train_counts), note("held-out", held_out_counts)];
        train.truncate(most);
        held_out.truncate(most);
        Ok(TaskPrompts { train, held_out, notes, alphabet: String::new() })
    }
}

fn prompts(entries: Vec<Entry>) -> Vec<Prompt> {
    let prompt = |(row, entry): (usize, Entry)| {
        let text = format!("{}=", entry.expression);
        let mut columns = Map::new();
        columns.insert("prompt".to_owned(), json!(text));
        columns.insert("answer".to_owned(), json!(entry.answer));
        columns.insert("is_exact".to_owned(), json!(entry.is_exact));
        Prompt {
            id: PromptId(row as u64),
            content: PromptContent::Text(text),
            ground_truth: Some(entry.answer),
            data_source: DATA_SOURCE.to_owned(),
            columns,
            images: Vec::new(),
            place: None,
        }
    };
    entries.into_iter().enumerate().map(prompt).collect()
}

/// Keys of expressions with their place among the entries of a side.
type Places = HashMap<String, usize>;

fn read_side(paths: &[PathBuf], train: &Places) -> Result<(Vec<Entry>, Places, Counts), TaskError> {
    let mut counts = Counts::default();
    let mut entries: Vec<Entry> = Vec::new();
    let mut places = Places::new();
    for path in paths {
        for answer in answers(path)? {
            counts.rows += 1;
            for annotation in annotations(&answer) {
                counts.annotations += 1;
                let Some(entry) = parse(annotation) else {
                    counts.unparsable += 1;
                    continue;
                };
                if train.contains_key(&entry.key) {
                    counts.occurs_in_train += 1;
                } else if let Some(first) = places.get(&entry.key).and_then(|&place| entries.get_mut(place)) {
                    counts.duplicates += 1;
                    if first.answer != entry.answer {
                        counts.conflicting += 1;
                        if entry.is_exact {
                            *first = Entry { expression: first.expression.clone(), ..entry };
                        }
                    }
                } else {
                    places.insert(entry.key.clone(), entries.len());
                    entries.push(entry);
                }
            }
        }
    }
    if entries.is_empty() {
        let path = paths.first().map_or_else(|| PathBuf::from("(no file)"), Clone::clone);
        let beside = match counts.occurs_in_train {
            0 => String::new(),
            count => format!(" that is not also in the training files ({count} are)"),
        };
        let fault = fault!("no usable calculator annotation like <<48/2=24>> in {}{beside}", path.display());
        return Err(TaskError { fault, path: Some(path) });
    }
    counts.kept = entries.len();
    counts.inexact = entries.iter().filter(|entry| !entry.is_exact).count();
    Ok((entries, places, counts))
}

/// The answers of a file, row by row.
fn answers(path: &Path) -> Result<Vec<String>, TaskError> {
    let of_file = |fault| TaskError { fault, path: Some(path.to_owned()) };
    let refused = |line: usize, reason: String| {
        let path = path.display();
        of_file(fault!("{path}, line {line}: expected a JSON object with a text field `answer`: {reason}"))
    };
    // For a missing file, the text reader reports the error.
    if matches!(FileFormat::of(path), Ok(FileFormat::Parquet)) {
        let rows = Records::open(path).map_err(Fault::of)?.enumerate();
        let answer = |(index, row): (usize, Result<DataRecord, RecordError>)| {
            answer_of(&Value::Object(row.map_err(Fault::of)?.values))
                .map_err(|reason| refused(index + 1, reason))
        };
        return rows.map(answer).collect();
    }
    let text = tamis_file::read_text(path, tamis_file::MAX_TASK)
        .map_err(|source| of_file(fault!("failed to read {}", path.display()).with_source(source)))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let answer = |(index, line): (usize, &str)| {
        let row = serde_json::from_str(line).map_err(|error| error.to_string());
        row.and_then(|row| answer_of(&row)).map_err(|reason| refused(index + 1, reason))
    };
    lines.map(answer).collect()
}

fn answer_of(row: &Value) -> Result<String, String> {
    match row.get("answer") {
        Some(Value::String(answer)) => Ok(answer.clone()),
        Some(_) => Err("`answer` is not text".to_owned()),
        None => Err("there is no field `answer`".to_owned()),
    }
}

/// The insides of `<<...>>`, left to right; an opening without a close ends the search.
fn annotations(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let start = rest.find("<<")? + 2;
        let end = start + rest.get(start..)?.find(">>")?;
        let inside = &rest[start..end];
        rest = &rest[end + 2..];
        Some(inside)
    })
}

fn parse(annotation: &str) -> Option<Entry> {
    let (left, right) = annotation.rsplit_once('=')?;
    let expression = expression::clean(left)?;
    let answer = canonical_decimal(&expression::clean(right)?)?;
    let unsigned = Rational::decimal(answer.trim_start_matches('-'));
    let written = if answer.starts_with('-') { unsigned.and_then(Rational::checked_neg) } else { unsigned };
    let is_exact = written.is_some() && written == expression::value(&expression);
    Some(Entry { key: expression::with_canonical_numbers(&expression), expression, answer, is_exact })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::io::Write as _;
    use std::sync::Arc;

    fn file(answers: &[&str]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        for answer in answers {
            writeln!(file, "{}", json!({"question": "q", "answer": answer})).unwrap();
        }
        file
    }

    fn rows(prompts: &[Prompt]) -> Vec<String> {
        prompts
            .iter()
            .map(|prompt| {
                let PromptContent::Text(text) = &prompt.content else { panic!("text") };
                format!("{text}{}", prompt.ground_truth.as_deref().unwrap())
            })
            .collect()
    }

    #[test]
    fn annotations_become_prompts() {
        let train = file(&[
            "a <<48/2=24>>24 and <<.5*4=2.00>> b",
            "<<0.50*4=2>> <<$1,200 * 2 = $2,400>> <<50%*2=1>> <<x=3>> <<1+1>> <<3/4=3/4>> <<10/3=3.3>> \
                <<10/3=3.33>> <<2/4=0.51>> <<2/4=.5>> << unclosed",
        ]);
        let test = file(&["<<48/2=24>> <<7-9=-2>> <<7-9=-2>> <<0.5*4.0=2>>"]);
        let task = CalculatorTask::load(&[train.path().into()], &[test.path().into()]).unwrap();
        assert_eq!(rows(&task.train), ["48/2=24", ".5*4=2", "1200*2=2400", "10/3=3.3", "2/4=0.5"]);
        assert_eq!(rows(&task.held_out), ["7-9=-2"]);
        let counts = Counts {
            rows: 2,
            annotations: 12,
            unparsable: 4,
            duplicates: 3,
            conflicting: 2,
            occurs_in_train: 0,
            kept: 5,
            inexact: 1,
        };
        assert_eq!(task.train_counts, counts);
        let counts = Counts {
            rows: 1,
            annotations: 4,
            unparsable: 0,
            duplicates: 1,
            conflicting: 0,
            occurs_in_train: 2,
            kept: 1,
            inexact: 0,
        };
        assert_eq!(task.held_out_counts, counts);
    }

    #[test]
    fn a_parquet_file_has_the_rows_of_its_lines() {
        use parquet::data_type::{ByteArray, ByteArrayType};
        use parquet::file::writer::SerializedFileWriter;
        let texts = ["<<1+1=2>> and <<2*3=6>>", "<<1+1=2>>"];
        let lines = file(&texts);
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, texts: &[&str]| {
            let path = folder.path().join(name);
            let schema = "message rows { REQUIRED BYTE_ARRAY answer (UTF8); }";
            let schema = parquet::schema::parser::parse_message_type(schema).unwrap().into();
            let out = std::fs::File::create(&path).unwrap();
            let mut writer = SerializedFileWriter::new(out, schema, Arc::default()).unwrap();
            let mut group = writer.next_row_group().unwrap();
            let mut column = group.next_column().unwrap().unwrap();
            let texts: Vec<ByteArray> = texts.iter().map(|&text| text.into()).collect();
            column.typed::<ByteArrayType>().write_batch(&texts, None, None).unwrap();
            column.close().unwrap();
            group.close().unwrap();
            writer.close().unwrap();
            path
        };
        let (train, test) = (write("train.parquet", &texts), file(&["<<3-1=2>>"]));
        let test = [test.path().to_owned()];
        let of_parquet = CalculatorTask::load(&[train], &test).unwrap();
        let of_lines = CalculatorTask::load(&[lines.path().to_owned()], &test).unwrap();
        assert_eq!(of_parquet.train_counts, of_lines.train_counts);
        assert_eq!((of_parquet.train_counts.rows, of_parquet.train_counts.kept), (2, 2));
    }

    #[test]
    fn errors() {
        let folder = tempfile::tempdir().unwrap();
        let message = |text: Option<&str>| {
            let path = folder.path().join("rows.jsonl");
            let _ = std::fs::remove_file(&path);
            if let Some(text) = text {
                std::fs::write(&path, text).unwrap();
            }
            let error = {
                let files = std::slice::from_ref(&path);
                CalculatorTask::load(files, files)
            }
            .unwrap_err();
            error.fault.to_string().replace(&path.display().to_string(), "rows.jsonl")
        };
        insta::assert_snapshot!(message(None), @"failed to read rows.jsonl");
        insta::assert_snapshot!(message(Some("{\"answer\": \"<<1+1=2>>\"}\n{\"answer\": 3}")), @"rows.jsonl, line 2: expected a JSON object with a text field `answer`: `answer` is not text");
        insta::assert_snapshot!(message(Some("\n{\"answer\": ")), @"rows.jsonl, line 2: expected a JSON object with a text field `answer`: EOF while parsing a value at line 1 column 11");
        insta::assert_snapshot!(message(Some("{\"question\": \"q\"}")), @"rows.jsonl, line 1: expected a JSON object with a text field `answer`: there is no field `answer`");
        insta::assert_snapshot!(message(Some("{\"answer\": \"no annotation\"}")), @"no usable calculator annotation like <<48/2=24>> in rows.jsonl");
        insta::assert_snapshot!(message(Some("{\"answer\": \"<<1+1=2>>, <<2*2=4>>\"}")), @"no usable calculator annotation like <<48/2=24>> in rows.jsonl that is not also in the training files (2 are)");
    }

    #[test]
    fn runs_on_gsm8k() {
        let Some(folder) = tamis_golden::data("gsm8k") else { return };
        let task = CalculatorTask::load(&[folder.join("train.jsonl")], &[folder.join("test.jsonl")]).unwrap();
        println!("train {:?}\nheld out {:?}", task.train_counts, task.held_out_counts);
        for (counts, prompts) in [(task.train_counts, &task.train), (task.held_out_counts, &task.held_out)] {
            assert_eq!(
                counts.annotations,
                counts.unparsable + counts.duplicates + counts.occurs_in_train + counts.kept
            );
            assert_eq!(counts.kept, prompts.len());
            assert!(counts.unparsable * 1000 < counts.annotations && counts.kept > 100);
        }
        let train: HashSet<String> = rows(&task.train).into_iter().collect();
        assert!(rows(&task.held_out).iter().all(|row| !train.contains(row)));
    }
}
