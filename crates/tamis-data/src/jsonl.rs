//! JSON lines: one object per line.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};
use tamis_core::fault;
use tamis_core::figure;

use crate::data_record::{DataRecord, RowPlace, kind};
use crate::file_format::{open, read_error};
use crate::record_error::{RecordError, RowFault};

/// Reads line by line. Blank lines are counted but give no row.
#[derive(Debug)]
pub(crate) struct JsonLines {
    path: Arc<Path>,
    reader: BufReader<File>,
    line: u64,
    done: bool,
}

impl JsonLines {
    pub(crate) fn open(path: &Path) -> Result<Self, RecordError> {
        let mut lines = Self {
            path: path.into(),
            reader: BufReader::with_capacity(1 << 20, open(path)?),
            line: 0,
            done: false,
        };
        let start = lines.reader.fill_buf().map_err(|source| read_error(path, source))?;
        if start.starts_with(&[0x1f, 0x8b]) || start.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
            return Err(fault!(
                "{} is compressed as a whole (gzip or zstd); decompress it first",
                path.display()
            )
            .into());
        }
        if start.starts_with(&[0xff, 0xfe]) || start.starts_with(&[0xfe, 0xff]) {
            let shown = path.display();
            return Err(fault!(
                "{shown} is in UTF-16; write it in UTF-8: iconv -f UTF-16 -t UTF-8 {shown} > rows.jsonl"
            )
            .into());
        }
        let is_table = path.extension().is_some_and(|ending| ending == "csv" || ending == "tsv");
        if is_table && start.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
            let shown = path.display();
            return Err(fault!(
                "{shown} is a table; write one JSON object per line: python3 -c \"import pandas; \
                 pandas.read_csv('{shown}', sep=None, engine='python').to_json('rows.jsonl', orient='records', lines=True)\""
            )
            .into());
        }
        let bom = if start.starts_with(&[0xef, 0xbb, 0xbf]) { 3 } else { 0 };
        if start.iter().skip(bom).find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[') {
            return Err(RecordError::JsonArray { path: path.to_owned() });
        }
        lines.reader.consume(bom);
        Ok(lines)
    }

    /// The next line that is not blank, with its own line break.
    pub(crate) fn next_line(&mut self) -> Result<Option<(u64, Vec<u8>)>, RecordError> {
        let mut bytes = Vec::new();
        while !self.done {
            bytes.clear();
            let mut line = self.reader.by_ref().take(tamis_file::MAX_LINE + 1);
            let length = line.read_until(b'\n', &mut bytes).map_err(|source| {
                self.done = true;
                read_error(&self.path, source)
            })?;
            if length as u64 > tamis_file::MAX_LINE {
                self.done = true;
                let place = RowPlace { file: self.path.clone(), row: self.line + 1, is_line: true };
                return Err(fault!(
                    "{place}: the line has more than {}; write one object per line",
                    figure::bytes(tamis_file::MAX_LINE)
                )
                .into());
            }
            if length == 0 {
                self.done = true;
                break;
            }
            self.line += 1;
            if !bytes.iter().all(u8::is_ascii_whitespace) {
                return Ok(Some((self.line, bytes)));
            }
        }
        Ok(None)
    }
}

impl Iterator for JsonLines {
    type Item = Result<DataRecord, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.next_line() {
            Err(error) => Some(Err(error)),
            Ok(None) => None,
            Ok(Some((line, bytes))) => {
                let place = RowPlace { file: self.path.clone(), row: line, is_line: true };
                Some(match parse(&bytes) {
                    Ok(values) => Ok(DataRecord { place, values, binary: Vec::new(), encoded: Map::new() }),
                    Err(fault) => Err(RecordError::Row { place, fault }),
                })
            }
        }
    }
}

fn parse(bytes: &[u8]) -> Result<Map<String, Value>, RowFault> {
    // Without the line break, every error is on the parser's first line, and its column is the column of the
    // file's line.
    match serde_json::from_slice(bytes.trim_ascii_end()) {
        Ok(Value::Object(values)) => Ok(values),
        Ok(other) => Err(fault!("expected a JSON object, got {actual}", actual = kind(&other)).into()),
        Err(error) => {
            if let Some((column, literal)) = python_number(bytes, error.column()) {
                return Err(fault!("not valid JSON at column {column}: `{literal}` is not a JSON number; write null if there is no value \
                    (Python: json.dumps(row, allow_nan=False) refuses such numbers)").into());
            }
            let text = error.to_string();
            let detail = text.rsplit_once(" at line ").map_or(text.as_str(), |(detail, _)| detail).to_owned();
            Err(RowFault::Json { column: error.column(), detail })
        }
    }
}

/// A non-finite number as Python's `json` writes it, at a column counted from 1, and the column where it
/// begins. The parser may report a column just behind the beginning.
fn python_number(bytes: &[u8], column: usize) -> Option<(usize, &'static str)> {
    (column.saturating_sub(2)..=column).find_map(|start| {
        let rest = bytes.get(start..)?;
        let literal =
            ["NaN", "Infinity", "-Infinity"].into_iter().find(|word| rest.starts_with(word.as_bytes()))?;
        Some((start + 1, literal))
    })
}
