//! TensorBoard event files, written by hand.
//!
//! A file is a sequence of TFRecords: length (`u64`), masked CRC-32C of it, the bytes of an `Event`,
//! masked CRC-32C of them (all little endian). An `Event` is a protobuf message: wall time (field 1,
//! double), step (2, varint) and one of file version (3), summary (5) or session log (7). A summary
//! holds values (1) of tag (1) and number (2, float), or of a histogram (5) or a tensor (8) with the
//! plug-in that shows it (9). The first event of a file names the version `brain.Event:2`.
//!
//! A resumed run begins a new file that opens with a session start at its first step. A running
//! TensorBoard then drops the later steps that it had read; one that starts afterwards finds the older
//! file already cut back.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::Logger;
use super::details::{Histogram, SampleText, StepDetails};
use crate::checksum::crc32c;
use crate::directory::{LogPositions, TENSORBOARD, position_name};
use crate::durable::{AppendFile, Disk, DiskError, DiskOperation};
use crate::metrics::Metrics;

const MARK: &str = "tfevents";

/// Writes an event file.
#[derive(Debug)]
pub struct TensorBoardLogger {
    file: AppendFile,
    // Lengths of the files of earlier sessions of the run, which no longer change.
    earlier: Vec<(OsString, u64)>,
    name: OsString,
    histograms: bool,
    num_samples: usize,
}

impl TensorBoardLogger {
    /// Begins a new event file in `folder` (created if missing) for steps from `first_step` on.
    pub fn open(disk: &Disk, folder: &Path, first_step: u64) -> Result<Self, DiskError> {
        disk.create_folder(folder)?;
        let files = event_files(folder)?;
        let mut earlier = Vec::new();
        for file in &files {
            let metadata =
                std::fs::metadata(file).map_err(|cause| DiskError::new(DiskOperation::Read, file, cause))?;
            earlier.push((file.file_name().unwrap_or_default().to_owned(), metadata.len()));
        }
        // Readers take the files in the order of their names: the second in the name must grow,
        // whatever the clock shows.
        let newest = files.iter().filter_map(|file| second_in(file)).max();
        let second = newest.map_or(seconds() as u64, |newest| (seconds() as u64).max(newest + 1));
        let name = OsString::from(format!("events.out.{MARK}.{second:010}.tamis.{}", std::process::id()));
        let mut file = disk.append_to(&folder.join(&name))?;
        file.append(&record(&version_event(seconds())))?;
        if !files.is_empty() {
            file.append(&record(&session_start(seconds(), first_step)))?;
        }
        Ok(Self { file, earlier, name, histograms: false, num_samples: 0 })
    }

    /// Shows histograms of each step, and this many of its completions.
    #[must_use]
    pub fn with_details(mut self, histograms: bool, num_samples: usize) -> Self {
        (self.histograms, self.num_samples) = (histograms, num_samples);
        self
    }
}

impl Logger for TensorBoardLogger {
    fn name(&self) -> &'static str {
        "tensorboard"
    }

    fn log(&mut self, step: u64, metrics: &Metrics) -> Result<(), DiskError> {
        self.file.append(&record(&scalars_event(seconds(), step, metrics)))
    }

    fn amend(&mut self, step: u64, added: &Metrics) -> Result<(), DiskError> {
        self.log(step, added)
    }

    fn shows_distributions(&self) -> bool {
        self.histograms
    }

    fn num_samples(&self) -> usize {
        self.num_samples
    }

    fn log_details(&mut self, step: u64, details: &StepDetails) -> Result<(), DiskError> {
        let mut summary = Message::default();
        for (name, histogram) in details.distributions.iter().filter(|_| self.histograms) {
            summary.bytes(1, &histogram_value(name, histogram).0);
        }
        for (place, sample) in details.samples.iter().take(self.num_samples).enumerate() {
            summary.bytes(1, &text_value(&format!("samples/{place}"), &sample_markdown(sample)).0);
        }
        if summary.0.is_empty() {
            return Ok(());
        }
        let mut event = event_at(seconds(), Some(step));
        event.bytes(5, &summary.0);
        self.file.append(&record(&event.0))
    }

    fn sync(&mut self, positions: &mut LogPositions) -> Result<(), DiskError> {
        self.file.sync()?;
        for (name, length) in &self.earlier {
            positions.record(position_name(TENSORBOARD, name), *length);
        }
        positions.record(position_name(TENSORBOARD, &self.name), self.file.length());
        Ok(())
    }
}

/// The event files of a folder, in the order in which TensorBoard reads them.
pub fn event_files(folder: &Path) -> Result<Vec<PathBuf>, DiskError> {
    let failed = |cause| DiskError::new(DiskOperation::Read, folder, cause);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().contains(MARK)) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn second_in(file: &Path) -> Option<u64> {
    file.file_name()?.to_str()?.split('.').find_map(|part| part.parse().ok())
}

/// Seconds since 1970, with fractions.
fn seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |elapsed| elapsed.as_secs_f64())
}

/// Frames the bytes of an event.
fn record(event: &[u8]) -> Vec<u8> {
    let length = (event.len() as u64).to_le_bytes();
    let mut bytes = Vec::with_capacity(event.len() + 16);
    bytes.extend_from_slice(&length);
    bytes.extend_from_slice(&mask_checksum(crc32c(&length)).to_le_bytes());
    bytes.extend_from_slice(event);
    bytes.extend_from_slice(&mask_checksum(crc32c(event)).to_le_bytes());
    bytes
}

/// The checksum as TFRecord stores it: rotated and shifted, so that a checksum of checksums keeps its
/// strength.
fn mask_checksum(checksum: u32) -> u32 {
    checksum.rotate_right(15).wrapping_add(0xA282_EAD8)
}

fn event_at(wall_time: f64, step: Option<u64>) -> Message {
    let mut event = Message::default();
    event.double(1, wall_time);
    if let Some(step) = step {
        event.varint(2, step);
    }
    event
}

fn version_event(wall_time: f64) -> Vec<u8> {
    let mut event = event_at(wall_time, None);
    event.bytes(3, b"brain.Event:2");
    event.0
}

fn session_start(wall_time: f64, first_step: u64) -> Vec<u8> {
    let mut session = Message::default();
    session.varint(1, 1);
    let mut event = event_at(wall_time, Some(first_step));
    event.bytes(7, &session.0);
    event.0
}

fn scalars_event(wall_time: f64, step: u64, metrics: &Metrics) -> Vec<u8> {
    let mut summary = Message::default();
    for (name, value) in metrics.iter() {
        let mut entry = Message::default();
        entry.bytes(1, name.as_bytes());
        entry.float(2, value as f32);
        summary.bytes(1, &entry.0);
    }
    let mut event = event_at(wall_time, Some(step));
    event.bytes(5, &summary.0);
    event.0
}

/// A value of a summary that is a histogram: smallest and largest value, number, sum and sum of squares (1 to
/// 5, doubles), upper edges of the buckets (6) and counts (7), both packed doubles.
fn histogram_value(tag: &str, histogram: &Histogram) -> Message {
    let mut content = Message::default();
    let figures =
        [histogram.min, histogram.max, histogram.num() as f64, histogram.sum, histogram.sum_squares];
    for (field, figure) in (1..).zip(figures) {
        content.double(field, figure);
    }
    let packed =
        |values: &mut dyn Iterator<Item = f64>| -> Vec<u8> { values.flat_map(f64::to_le_bytes).collect() };
    // A reader's first bucket begins at the lowest number: an empty one before ours gives it an edge.
    content.bytes(6, &packed(&mut histogram.edges.iter().copied()));
    let counts = histogram.counts.iter().map(|&count| count as f64);
    content.bytes(7, &packed(&mut std::iter::once(0.0).chain(counts)));
    let mut value = Message::default();
    value.bytes(1, tag.as_bytes());
    value.bytes(5, &content.0);
    value
}

/// A value of a summary that the plug-in `text` shows: a tensor of type string (7) and shape \[1\], with
/// metadata that names the plug-in (1) and the class of data, tensor (4: 2).
fn text_value(tag: &str, markdown: &str) -> Message {
    let (mut dimension, mut shape, mut tensor) = (Message::default(), Message::default(), Message::default());
    dimension.varint(1, 1);
    shape.bytes(2, &dimension.0);
    tensor.varint(1, 7);
    tensor.bytes(2, &shape.0);
    tensor.bytes(8, markdown.as_bytes());
    let (mut plugin, mut metadata) = (Message::default(), Message::default());
    plugin.bytes(1, b"text");
    metadata.bytes(1, &plugin.0);
    metadata.varint(4, 2);
    let mut value = Message::default();
    value.bytes(1, tag.as_bytes());
    value.bytes(8, &tensor.0);
    value.bytes(9, &metadata.0);
    value
}

/// A completion as Markdown. Its texts are indented, so that no part of them is read as Markdown.
fn sample_markdown(sample: &SampleText) -> String {
    let indented = |text: &str| -> String { text.lines().flat_map(|line| ["    ", line, "\n"]).collect() };
    let reward = sample.reward.map_or_else(|| "unscored".to_owned(), |reward| format!("reward {reward}"));
    format!(
        "{reward}, {}\n\nPrompt:\n\n{}\nCompletion:\n\n{}",
        sample.verdict,
        indented(&sample.prompt),
        indented(&sample.completion)
    )
}

/// A protobuf message being written: each field is its key (number and wire type) and its content.
#[derive(Debug, Default)]
struct Message(Vec<u8>);

impl Message {
    fn raw_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn key(&mut self, field: u64, wire_type: u64) {
        self.raw_varint(field << 3 | wire_type);
    }

    fn varint(&mut self, field: u64, value: u64) {
        self.key(field, 0);
        self.raw_varint(value);
    }

    fn double(&mut self, field: u64, value: f64) {
        self.key(field, 1);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, content: &[u8]) {
        self.key(field, 2);
        self.raw_varint(content.len() as u64);
        self.0.extend_from_slice(content);
    }

    fn float(&mut self, field: u64, value: f32) {
        self.key(field, 5);
        self.0.extend_from_slice(&value.to_le_bytes());
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A field of a message as read back: number, and the number or the bytes in it.
    #[derive(Debug, Clone, PartialEq)]
    enum Field {
        Number(u64, f64),
        Bytes(u64, Vec<u8>),
    }

    fn varint(bytes: &[u8], at: &mut usize) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = bytes[*at];
            *at += 1;
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return value;
            }
        }
        unreachable!("ends with its last byte")
    }

    fn fields(bytes: &[u8]) -> Vec<Field> {
        let (mut at, mut found) = (0, Vec::new());
        while at < bytes.len() {
            let key = varint(bytes, &mut at);
            let mut take = |length: usize| {
                at += length;
                bytes[at - length..at].to_vec()
            };
            found.push(match key & 7 {
                0 => Field::Number(key >> 3, varint(bytes, &mut at) as f64),
                1 => Field::Number(key >> 3, f64::from_le_bytes(take(8).try_into().expect("eight"))),
                5 => {
                    Field::Number(key >> 3, f64::from(f32::from_le_bytes(take(4).try_into().expect("four"))))
                }
                2 => {
                    let length = varint(bytes, &mut at) as usize;
                    at += length;
                    Field::Bytes(key >> 3, bytes[at - length..at].to_vec())
                }
                other => panic!("wire type {other}"),
            });
        }
        found
    }

    /// Events of a file, framing and checksums checked.
    fn events(mut bytes: &[u8]) -> Vec<Vec<Field>> {
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight")) as usize;
            let crc = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
            assert_eq!(crc(8), mask_checksum(crc32c(&bytes[..8])));
            let event = &bytes[12..12 + length];
            assert_eq!(crc(12 + length), mask_checksum(crc32c(event)));
            found.push(fields(event));
            bytes = &bytes[16 + length..];
        }
        found
    }

    /// (step, tag, value) of all summaries of a file.
    pub(in crate::log) fn scalars(bytes: &[u8]) -> Vec<(u64, String, f32)> {
        let mut found = Vec::new();
        for event in events(bytes) {
            let step = event.iter().find_map(|field| match field {
                Field::Number(2, step) => Some(*step as u64),
                _ => None,
            });
            for field in &event {
                let Field::Bytes(5, summary) = field else { continue };
                for value in fields(summary) {
                    let Field::Bytes(1, value) = value else { panic!("only values") };
                    let [Field::Bytes(1, tag), Field::Number(2, number)] = &fields(&value)[..] else {
                        panic!("tag and number")
                    };
                    let tag = String::from_utf8(tag.clone()).expect("text");
                    found.push((step.expect("a step"), tag, *number as f32));
                }
            }
        }
        found
    }

    /// Values of `masked_crc32c` of the package tensorboard 2.21.
    #[test]
    fn masking() {
        assert_eq!(mask_checksum(crc32c(&[0; 8])), 0x0798_0329);
        assert_eq!(mask_checksum(crc32c(b"tamis")), 0x1CD2_C726);
    }

    /// Bytes worked out by hand from the protobuf encoding.
    #[test]
    fn an_event_byte_for_byte() {
        let mut metrics = Metrics::new();
        metrics.set("loss", 1.0);
        #[rustfmt::skip]
        let expected = [
            0x09, 0, 0, 0, 0, 0, 0, 0xF0, 0x3F, // 1: double 1.0
            0x10, 0xAC, 0x02, // 2: varint 300
            0x2A, 13, // 5: summary of 13 bytes
            0x0A, 11, // 1: value of 11 bytes
            0x0A, 4, b'l', b'o', b's', b's', // 1: tag
            0x15, 0, 0, 0x80, 0x3F, // 2: float 1.0
        ];
        assert_eq!(scalars_event(1.0, 300, &metrics), expected);
    }

    #[test]
    fn a_file_reads_back() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("tensorboard");
        let mut metrics = Metrics::new();
        metrics.set("actor/lr", 0.5);
        metrics.set("critic/rewards/mean", f64::NAN);
        let mut logger = TensorBoardLogger::open(&Disk::without_flush(), &path, 1).expect("open");
        for step in [1, 200] {
            logger.log(step, &metrics).expect("log");
        }
        let mut positions = LogPositions::default();
        logger.sync(&mut positions).expect("sync");
        let files = event_files(&path).expect("list");
        let bytes = std::fs::read(&files[0]).expect("read");
        let events = events(&bytes);
        assert_eq!(events[0][1], Field::Bytes(3, b"brain.Event:2".to_vec()));
        let found = scalars(&bytes);
        assert_eq!(found.len(), 4);
        assert_eq!((found[2].0, found[2].1.as_str(), found[2].2), (200, "actor/lr", 0.5));
        assert!(found[3].2.is_nan());
        assert_eq!(positions.files.values().copied().collect::<Vec<_>>(), [bytes.len() as u64]);
    }

    #[test]
    fn a_resumed_run_begins_a_later_file_with_a_session_start() {
        let folder = tempfile::tempdir().expect("folder");
        let disk = Disk::without_flush();
        for first_step in [1, 41, 81] {
            let mut logger = TensorBoardLogger::open(&disk, folder.path(), first_step).expect("open");
            let mut positions = LogPositions::default();
            logger.sync(&mut positions).expect("sync");
            assert_eq!(positions.files.len() as u64, 1 + first_step / 40, "earlier files are recorded too");
        }
        let files = event_files(folder.path()).expect("list");
        assert_eq!(files.len(), 3, "within one second too, each has its name, in order");
        let last = events(&std::fs::read(&files[2]).expect("read"));
        assert_eq!(last[1][1], Field::Number(2, 81.0));
        assert_eq!(last[1][2], Field::Bytes(7, vec![8, 1]), "session log: status START");
    }

    /// Bytes worked out by hand from the protobuf encoding.
    #[test]
    fn histograms_and_texts_byte_for_byte() {
        let histogram = Histogram::of([2.0]).expect("a number");
        let double = |value: f64| value.to_le_bytes().to_vec();
        let mut content = Vec::new();
        for (key, value) in [(0x09, 2.0), (0x11, 2.0), (0x19, 1.0), (0x21, 2.0), (0x29, 4.0)] {
            content.extend([vec![key], double(value)].concat());
        }
        content.extend([vec![0x32, 16], double(1.5), double(2.5)].concat());
        content.extend([vec![0x3A, 16], double(0.0), double(1.0)].concat());
        let length = content.len() as u8;
        assert_eq!(histogram_value("a", &histogram).0, [vec![0x0A, 1, b'a', 0x2A, length], content].concat());
        #[rustfmt::skip]
        let expected = [
            0x0A, 1, b't', // 1: tag
            0x42, 10, 0x08, 7, 0x12, 4, 0x12, 2, 0x08, 1, 0x42, 0, // 8: string tensor of shape [1]
            0x4A, 10, 0x0A, 6, 0x0A, 4, b't', b'e', b'x', b't', 0x20, 2, // 9: plug-in text, data class tensor
        ];
        assert_eq!(text_value("t", "").0, expected);
    }

    #[test]
    fn details_are_one_event_after_the_figures() {
        let folder = tempfile::tempdir().expect("folder");
        let logger = TensorBoardLogger::open(&Disk::without_flush(), folder.path(), 1).expect("open");
        let mut logger = logger.with_details(true, 1);
        let sample = |completion: &str| SampleText {
            prompt: "1 + 1 =".to_owned(),
            completion: completion.to_owned(),
            reward: Some(0.5),
            verdict: "trained".to_owned(),
        };
        let details = StepDetails {
            distributions: vec![("response_length", Histogram::of([1.0, 3.0]).expect("numbers"))],
            samples: vec![sample("# 2\nindeed"), sample("3")],
            ..StepDetails::default()
        };
        logger.log_details(5, &details).expect("log");
        let file = &event_files(folder.path()).expect("list")[0];
        let events = events(&std::fs::read(file).expect("read"));
        assert_eq!(events.len(), 2, "the version, and one event");
        let Field::Bytes(5, summary) = &events[1][2] else { panic!("a summary") };
        let values = fields(summary);
        assert_eq!(values.len(), 2, "one histogram, and one sample of two");
        let text = String::from_utf8_lossy(summary).into_owned();
        assert!(
            text.contains(
                "reward 0.5, trained\n\nPrompt:\n\n    1 + 1 =\n\nCompletion:\n\n    # 2\n    indeed\n"
            ),
            "{text}"
        );
    }
}
