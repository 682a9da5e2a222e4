//! TensorBoard event files, written by hand.
//!
//! A file is a sequence of TFRecords: length (`u64`), masked CRC-32C of it, the bytes of an `Event`, masked
//! CRC-32C of them (all little endian). An `Event` is a protobuf message: wall time (field 1, double), step
//! (2, varint) and one of file version (3), summary (5) or session log (7). A summary holds values (1) of tag
//! (1) and number (2, float). The first event of a file names the version `brain.Event:2`.
//!
//! A resumed run begins a new file that opens with a session start at its first step: a TensorBoard that is
//! running drops what it had read from that step on, and one that starts later finds the older file cut back
//! already.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::Logger;
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
}

impl TensorBoardLogger {
    /// Begins a new event file in `folder` (made where it is not there) for steps from `first_step` on.
    pub fn open(disk: &Disk, folder: &Path, first_step: u64) -> Result<Self, DiskError> {
        disk.create_folder(folder)?;
        let files = event_files(folder)?;
        let mut earlier = Vec::new();
        for file in &files {
            let metadata =
                std::fs::metadata(file).map_err(|cause| DiskError::new(DiskOperation::Read, file, cause))?;
            earlier.push((file.file_name().unwrap_or_default().to_owned(), metadata.len()));
        }
        // Readers take the files in the order of their names: the second in it must grow, whatever the clock
        // says.
        let newest = files.iter().filter_map(|file| second_in(file)).max();
        let second = newest.map_or(seconds() as u64, |newest| (seconds() as u64).max(newest + 1));
        let name = OsString::from(format!("events.out.{MARK}.{second:010}.tamis.{}", std::process::id()));
        let mut file = disk.append_to(&folder.join(&name))?;
        file.append(&record(&version_event(seconds())))?;
        if !files.is_empty() {
            file.append(&record(&session_start(seconds(), first_step)))?;
        }
        Ok(Self { file, earlier, name })
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

    /// As `masked_crc32c` of the package tensorboard 2.21 gives them.
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
}
