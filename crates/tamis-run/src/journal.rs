//! The append-only, checksummed journal.
//!
//! Everything that is not a function of the random keys (answers of external rewards and servers,
//! time-outs) is written here before it is used. A replay after a crash reads it instead of asking
//! again.
//!
//! The file is the 8 bytes `TAMISJ1\n`, then records: length of the payload (`u32`, little endian),
//! CRC-32 of these four bytes and the payload (`u32`, little endian), payload. Opening reads the
//! records in order up to the first incomplete one, and cuts the file there: that is the tail which a
//! crash tore. If whole records follow it, no crash did it: the file is damaged, and refused with the
//! byte. The reader names the position from which it needs the records (a checkpoint's position).
//! Earlier bytes are neither read nor checked, and a file that ends before the position is an error.
//!
//! Records that no checkpoint needs any more are removed from the front of a file that has grown large
//! ([`Journal::shorten`]); positions do not change. Such a file begins with `TAMISJ2\n` and the
//! position of its first record (`u64`, little endian).

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::checksum::crc32;
use crate::durable::{AppendFile, Disk, DiskError};

const MAGIC: &[u8; 8] = b"TAMISJ1\n";
/// First bytes of a file whose first records were removed; their end follows.
const SHORTENED: &[u8; 8] = b"TAMISJ2\n";
const FRAME: usize = 8;

/// Least number of bytes that is removed from the front of a file.
const LEAST_REMOVED: u64 = 16 << 20;

/// When appended records are flushed to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SyncPolicy {
    /// After every record: it survives a loss of power before it is used.
    #[default]
    EveryRecord,
    /// Only by [`Journal::sync`]: records survive a killed process at once, a loss of power from the next
    /// sync on.
    OnDemand,
}

/// Why a journal could not be opened or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The file does not begin like a journal.
    #[error("read `{}`: not a journal of tamis (it does not begin with `TAMISJ1` or `TAMISJ2`)", path.display())]
    NotAJournal {
        /// The file.
        path: PathBuf,
    },
    /// The file is shorter than it was when the checkpoint was written.
    #[error(
        "read `{}`: it ends at byte {length}, but had {promised} bytes when the checkpoint was written", path.display()
    )]
    TooShort {
        /// The file.
        path: PathBuf,
        /// Length of the file in bytes.
        length: u64,
        /// Length when the checkpoint was written.
        promised: u64,
    },
    /// Records that are needed were removed.
    #[error("read `{}`: it begins at byte {first}, but the checkpoint needs it from byte {from}", path.display())]
    Removed {
        /// The file.
        path: PathBuf,
        /// The position of its first record.
        first: u64,
        /// The position from which it is needed.
        from: u64,
    },
    /// A record is damaged: whole ones follow it.
    #[error("read `{}`: the record at byte {at} is damaged, and whole records follow it", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Position of the record in the file.
        at: u64,
    },
    /// A whole record that is not what this build writes.
    #[error("read `{}`: this build of tamis cannot read the record at byte {at}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Position of the record in the file.
        at: u64,
        /// The underlying error.
        source: serde_json::Error,
    },
    /// A record longer than the format holds.
    #[error("write `{}`: a record of {length} bytes, but the format holds at most 4294967295", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Length of the payload in bytes.
        length: usize,
    },
}

impl JournalError {
    /// The fix, if one is known.
    pub fn hint(&self) -> Option<String> {
        let fixed = match self {
            Self::Disk(error) => error.hint()?,
            Self::NotAJournal { .. } | Self::TooShort { .. } => {
                "the file was changed, truncated or lost: restore it"
            }
            Self::Removed { .. } => "resume from a later checkpoint, which does not need the missing part",
            Self::Damaged { path, at } => {
                return Some(format!(
                    "nothing was changed: restore a copy of the file, or truncate it there (`truncate -s {at} {}`): that record and all \
                    later ones are then requested again",
                    path.display()
                ));
            }
            Self::Unreadable { .. } => "continue the run with the version of tamis that started it",
            Self::TooLong { .. } => {
                "return fewer or shorter values from the reward function (`log_extra`, named scores), or train on smaller batches"
            }
        };
        Some(fixed.to_owned())
    }
}

/// Result of opening a journal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recovered {
    /// Position of the first record that was looked for.
    pub from: u64,
    /// Payloads of the whole records from there on, in order, each with the position after it.
    pub records: Vec<(u64, Vec<u8>)>,
    /// Bytes of a torn tail that were cut, 0 as a rule.
    pub cut: u64,
}

/// A journal open for appending.
#[derive(Debug)]
pub struct Journal {
    disk: Disk,
    file: AppendFile,
    policy: SyncPolicy,
    head: Head,
}

#[derive(Debug, Clone, Copy)]
struct Head {
    /// Length of the header in bytes.
    length: u64,
    /// The position of the first record.
    first: u64,
}

impl Head {
    /// Header of a file with these first bytes; `None` if it is not a journal.
    fn of(bytes: &[u8]) -> Option<Self> {
        if let Some((magic, rest)) = bytes.split_first_chunk::<8>()
            && magic == SHORTENED
        {
            let first = u64::from_le_bytes(*rest.first_chunk::<8>()?);
            return Some(Self { length: 16, first });
        }
        let length = MAGIC.len() as u64;
        let is_journal =
            if bytes.len() < MAGIC.len() { MAGIC.starts_with(bytes) } else { bytes.starts_with(MAGIC) };
        is_journal.then_some(Self { length, first: length })
    }

    /// Offset in the file of a position.
    fn offset(self, position: u64) -> u64 {
        position.saturating_sub(self.first) + self.length
    }

    /// The position of a place in the file.
    fn position(self, offset: u64) -> u64 {
        offset.saturating_sub(self.length) + self.first
    }
}

impl Journal {
    /// Opens a journal, creating it if it does not exist, and cuts a torn tail. `from` is the position
    /// of the first record that is needed (0: all of them); before it only the file's first eight bytes
    /// are read.
    ///
    /// # Errors
    /// The disk; a file that is not a journal; one that ends before `from`; a damaged record with whole
    /// ones after it.
    pub fn open(
        disk: &Disk,
        path: &Path,
        policy: SyncPolicy,
        from: u64,
    ) -> Result<(Self, Recovered), JournalError> {
        let (first_bytes, length) =
            if path.exists() { (disk.read_part(path, 0, 16)?, disk.length(path)?) } else { (Vec::new(), 0) };
        let Some(head) = Head::of(&first_bytes) else {
            return Err(JournalError::NotAJournal { path: path.to_owned() });
        };
        let has_head = length >= head.length;
        let promised = if from > head.first { head.offset(from) } else { 0 };
        if length < promised {
            let length = if has_head { head.position(length) } else { length };
            return Err(JournalError::TooShort { path: path.to_owned(), length, promised: from });
        }
        if 0 < from && from < head.first {
            return Err(JournalError::Removed { path: path.to_owned(), first: head.first, from });
        }
        let from = from.max(head.first);
        let rest = if has_head { disk.read_part(path, head.offset(from), u64::MAX)? } else { Vec::new() };
        let records = records(&rest, from);
        let num_whole = records.last().map_or(0, |&(end, _)| (end - from) as usize);
        if is_followed(&rest[num_whole..]) {
            let at = head.offset(from) + num_whole as u64;
            return Err(JournalError::Damaged { path: path.to_owned(), at });
        }
        let end = match records.last() {
            Some(&(end, _)) => head.offset(end),
            None if has_head => head.offset(from),
            None => 0,
        };
        let cut = length - end;
        if cut > 0 {
            disk.cut_file(path, end)?;
        }
        let mut file = disk.append_to(path)?;
        if end == 0 {
            file.append(MAGIC)?;
            file.sync()?;
        }
        let records = records.into_iter().map(|(end, payload)| (end, payload.to_vec())).collect();
        Ok((Self { disk: disk.clone(), file, policy, head }, Recovered { from, records, cut }))
    }

    /// Like [`Journal::open`], for JSON records; each with its position. A record that is not this JSON
    /// is an error.
    pub fn open_json<T: DeserializeOwned>(
        disk: &Disk,
        path: &Path,
        policy: SyncPolicy,
        from: u64,
    ) -> Result<(Self, Vec<(u64, T)>), JournalError> {
        let (journal, recovered) = Self::open(disk, path, policy, from)?;
        let mut start = recovered.from;
        let mut entries = Vec::with_capacity(recovered.records.len());
        for (end, payload) in recovered.records {
            let entry = serde_json::from_slice(&payload).map_err(|source| {
                let at = journal.head.offset(start);
                JournalError::Unreadable { path: path.to_owned(), at, source }
            })?;
            entries.push((start, entry));
            start = end;
        }
        Ok((journal, entries))
    }

    /// Removes everything before a position, if that is most of a large file. It is not needed again. The
    /// file is rewritten, whole or not at all. The time depends on what it keeps, so this is done only if at
    /// least as much is removed. If the file cannot be written it stays as it is.
    pub fn shorten(&mut self, position: u64) -> Result<(), JournalError> {
        self.shorten_from(position, LEAST_REMOVED)
    }

    fn shorten_from(&mut self, position: u64, least: u64) -> Result<(), JournalError> {
        let position = position.min(self.position());
        let removed = position.saturating_sub(self.head.first);
        if removed < least.max(self.position() - position) {
            return Ok(());
        }
        let path = self.file.path().to_owned();
        let kept = self.disk.read_part(&path, self.head.offset(position), u64::MAX)?;
        let written = self.disk.write_file_with(&path, |out| {
            out.write_all(SHORTENED)?;
            out.write_all(&position.to_le_bytes())?;
            out.write_all(&kept)
        });
        let head = Head { length: 16, first: position };
        let is_new = |bytes: Vec<u8>| Head::of(&bytes).is_some_and(|found| found.first == position);
        if written.is_err() && !self.disk.read_part(&path, 0, head.length).is_ok_and(is_new) {
            // It stays long: the next checkpoint tries again.
            return Ok(());
        }
        self.file = self.disk.append_to(&path)?;
        self.head = head;
        Ok(written?)
    }

    /// Removes everything from a position on, which no checkpoint needs.
    pub fn cut(&mut self, position: u64) -> Result<(), JournalError> {
        Ok(self.file.cut(self.head.offset(position))?)
    }

    /// Appends a record, and flushes it if the policy asks for it. After a failure the journal is as
    /// before, or has a torn tail that the next opening cuts.
    pub fn append(&mut self, payload: &[u8]) -> Result<(), JournalError> {
        let Ok(length) = u32::try_from(payload.len()) else {
            return Err(JournalError::TooLong { path: self.file.path().to_owned(), length: payload.len() });
        };
        let mut record = Vec::with_capacity(FRAME + payload.len());
        record.extend_from_slice(&length.to_le_bytes());
        record.extend_from_slice(&[0; 4]);
        record.extend_from_slice(payload);
        let checksum = record_checksum(&record);
        record[4..FRAME].copy_from_slice(&checksum.to_le_bytes());
        self.file.append(&record)?;
        if self.policy == SyncPolicy::EveryRecord {
            self.file.sync()?;
        }
        Ok(())
    }

    /// Flushes all records to the device.
    pub fn sync(&mut self) -> Result<(), JournalError> {
        Ok(self.file.sync()?)
    }

    /// Position after the last record, in bytes.
    pub fn position(&self) -> u64 {
        self.head.position(self.file.length())
    }
}

/// CRC-32 of a record without its checksum field.
fn record_checksum(record: &[u8]) -> u32 {
    let mut covered = Vec::with_capacity(record.len());
    covered.extend_from_slice(&record[..4]);
    covered.extend_from_slice(&record[FRAME..]);
    crc32(&covered)
}

/// The whole records of a journal's bytes from position `from` on, each with the position after it, up to the
/// first that is not whole.
fn records(bytes: &[u8], from: u64) -> Vec<(u64, &[u8])> {
    let mut found = Vec::new();
    let mut start = 0;
    while let Some((record, checksum)) = framed(&bytes[start..])
        && record_checksum(record) == checksum
    {
        start += record.len();
        found.push((from + start as u64, &record[FRAME..]));
    }
    found
}

/// The bytes of the first record, by its length, and its checksum; `None` if they end before it.
fn framed(bytes: &[u8]) -> Option<(&[u8], u32)> {
    let (&[l0, l1, l2, l3, c0, c1, c2, c3], _) = bytes.split_first_chunk::<FRAME>()?;
    let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    let record = bytes.get(..FRAME.checked_add(length)?)?;
    Some((record, u32::from_le_bytes([c0, c1, c2, c3])))
}

/// Whether a whole record begins anywhere behind the first one, which is not whole. Its length may be
/// damaged, so every byte is tried. Few look like a length: payloads are text, and four characters are
/// a number beyond any journal. If a file has many that do, it is not a torn tail either.
fn is_followed(bytes: &[u8]) -> bool {
    let mut budget = 64 * bytes.len() as u64 + (1 << 20);
    for start in 1..bytes.len() {
        let Some((record, checksum)) = framed(&bytes[start..]) else { continue };
        let Some(left) = budget.checked_sub(record.len() as u64) else { return true };
        budget = left;
        if record_checksum(record) == checksum {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durable::DiskFault;

    /// Positions do not change, whatever is removed before them, even by several processes in turn.
    #[test]
    fn what_no_checkpoint_needs_is_removed() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("journal");
        let open = |from| Journal::open(&Disk::without_flush(), &path, SyncPolicy::OnDemand, from);
        let (mut journal, _) = open(0).expect("new");
        let mut positions = vec![journal.position()];
        let record = |number: u8| vec![number; 50 + usize::from(number)];
        for number in 0..40 {
            journal.append(&record(number)).expect("append");
            positions.push(journal.position());
            // At least as much is removed as is kept.
            if number % 10 == 9 {
                let from = positions[usize::from(number) - 3];
                let before = std::fs::metadata(&path).expect("file").len();
                journal.shorten_from(from, 200).expect("shortened");
                assert!(std::fs::metadata(&path).expect("file").len() < before / 2 + 16);
                assert_eq!(Some(&journal.position()), positions.last());
                let (again, recovered) = open(from).expect("open");
                journal = again;
                let expected: Vec<Vec<u8>> = (number - 3..=number).map(record).collect();
                assert_eq!((recovered.from, payloads(&recovered)), (from, expected));
                assert_eq!(
                    recovered.records.iter().map(|(end, _)| *end).collect::<Vec<_>>(),
                    positions[positions.len() - 4..]
                );
            }
        }
        let before = std::fs::metadata(&path).expect("file").len();
        journal.shorten_from(positions[37], 1_000_000).expect("left");
        journal.shorten_from(positions[36], 0).expect("left");
        assert_eq!(std::fs::metadata(&path).expect("file").len(), before);
        // A reader that needs removed records gets an error; one without a position gets what is there.
        assert!(
            matches!(open(positions[30]), Err(JournalError::Removed { first, .. }) if first == positions[36])
        );
        assert_eq!(open(0).expect("open").1.from, positions[36]);
        let end = *positions.last().expect("some");
        assert!(
            matches!(open(end + 1), Err(JournalError::TooShort { length, promised, .. }) if (length, promised) == (end, end + 1))
        );
        // A torn tail is cut as usual, and so are records that no checkpoint counts.
        let bytes = std::fs::read(&path).expect("read");
        std::fs::write(&path, &bytes[..bytes.len() - 3]).expect("write");
        let (mut journal, recovered) = open(positions[38]).expect("open");
        assert_eq!((payloads(&recovered), journal.position()), (vec![record(38)], positions[39]));
        journal.cut(positions[38]).expect("cut");
        journal.append(b"other").expect("append");
        assert_eq!(payloads(&open(positions[38]).expect("open").1), [b"other"]);
    }

    fn payloads(recovered: &Recovered) -> Vec<Vec<u8>> {
        recovered.records.iter().map(|(_, payload)| payload.clone()).collect()
    }

    fn three() -> Vec<Vec<u8>> {
        vec![b"first".to_vec(), Vec::new(), vec![7; 300]]
    }

    fn written(path: &Path) -> u64 {
        let (mut journal, recovered) =
            Journal::open(&Disk::without_flush(), path, SyncPolicy::EveryRecord, 0).expect("new");
        assert_eq!(recovered, Recovered { from: 8, ..Recovered::default() });
        for payload in three() {
            journal.append(&payload).expect("append");
        }
        journal.position()
    }

    #[test]
    fn records_come_back_in_order() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("journal");
        let end = written(&path);
        assert_eq!(end, 8 + (8 + 5) + 8 + (8 + 300), "hand-counted");
        let open =
            |from| Journal::open(&Disk::without_flush(), &path, SyncPolicy::OnDemand, from).expect("open");
        let (mut journal, recovered) = open(0);
        assert_eq!(payloads(&recovered), three());
        assert_eq!(recovered.records.iter().map(|(end, _)| *end).collect::<Vec<_>>(), [21, 29, 337]);
        journal.append(b"fourth").expect("append");
        for (from, whole) in [(21, 3), (29, 2), (end, 1), (end + 14, 0)] {
            let (_, recovered) = open(from);
            let ends: Vec<u64> = recovered.records.iter().map(|(end, _)| *end).collect();
            assert_eq!((recovered.from, ends.as_slice()), (from, &[29, 337, 351][3 - whole..]));
            assert!(whole == 0 || payloads(&recovered).last().map(Vec::as_slice) == Some(&b"fourth"[..]));
        }
    }

    #[test]
    fn a_tail_torn_anywhere_is_cut_to_the_last_whole_record() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("journal");
        let end = written(&path);
        let bytes = std::fs::read(&path).expect("read");
        for length in 0..=bytes.len() {
            std::fs::write(&path, &bytes[..length]).expect("write");
            let (mut journal, recovered) =
                Journal::open(&Disk::without_flush(), &path, SyncPolicy::OnDemand, 0).expect("open");
            let whole = [21, 29, 337].iter().filter(|&&end| end <= length).count();
            assert_eq!(payloads(&recovered), three()[..whole], "{length} bytes");
            // Records appended after that are found again.
            journal.append(b"after").expect("append");
            let (_, recovered) =
                Journal::open(&Disk::without_flush(), &path, SyncPolicy::OnDemand, 0).expect("open");
            assert_eq!(recovered.records.len(), whole + 1);
            assert_eq!(recovered.cut, 0);
        }
        assert_eq!(end as usize, bytes.len());
    }

    #[test]
    fn a_flipped_bit_anywhere_is_found() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("journal");
        let end = written(&path);
        let bytes = std::fs::read(&path).expect("read");
        for place in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[place] ^= 1 << (place % 8);
            std::fs::write(&path, &damaged).expect("write");
            let open = |from| Journal::open(&Disk::without_flush(), &path, SyncPolicy::OnDemand, from);
            if place < 8 {
                assert!(matches!(open(end), Err(JournalError::NotAJournal { .. })));
                continue;
            }
            // Records before the checkpoint's position are not checked.
            let (_, recovered) = open(end).expect("whole from there on");
            assert_eq!((recovered.records, recovered.cut), (Vec::new(), 0));
            assert_eq!(std::fs::read(&path).expect("read"), damaged, "nothing is cut");
            let ends = [8, 21, 29, 337];
            let whole = ends.iter().filter(|&&end| end <= place).count() - 1;
            if whole < 2 {
                // Whole records follow: nothing is cut, and the place is named.
                let error = open(0).expect_err("damaged");
                let begins = ends[whole] as u64;
                assert!(
                    matches!(error, JournalError::Damaged { at, .. } if at == begins),
                    "byte {place}: {error}"
                );
                assert_eq!(std::fs::read(&path).expect("read"), damaged);
                // If the file is cut as the hint suggests, the rest is done again.
                std::fs::OpenOptions::new()
                    .write(true)
                    .open(&path)
                    .expect("file")
                    .set_len(begins)
                    .expect("cut");
            }
            // The last record may have been torn: the earlier ones are read, and it is done again.
            let (_, recovered) = open(0).expect("cut");
            assert_eq!(payloads(&recovered), three()[..whole], "byte {place}");
        }
    }

    /// Several bytes that are wrong, as a bad block leaves them: over a length, a checksum and a payload, and
    /// with the tail torn off besides.
    #[test]
    fn damage_of_any_length_is_no_torn_tail() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("journal");
        let (mut journal, _) =
            Journal::open(&Disk::without_flush(), &path, SyncPolicy::OnDemand, 0).expect("new");
        for number in 0..40 {
            let payload = format!(r#"{{"key": "rollout/{number}/0", "answer": {{"reward": 0.5}}}}"#);
            journal.append(payload.as_bytes()).expect("append");
        }
        drop(journal);
        let bytes = std::fs::read(&path).expect("read");
        let record = (bytes.len() - 8) / 40;
        for (wrong, torn) in [(1, 0), (7, 3), (60, record / 2), (900, record + 5)] {
            for begin in [8, 8 + record, 11 + 3 * record, 8 + 5 * record + 20] {
                let mut damaged = bytes.clone();
                damaged[begin..begin + wrong].iter_mut().for_each(|byte| *byte ^= 0x5A);
                damaged.truncate(bytes.len() - torn);
                std::fs::write(&path, &damaged).expect("write");
                let error = Journal::open(&Disk::without_flush(), &path, SyncPolicy::OnDemand, 0);
                let error = error.map(|_| ()).expect_err("damaged");
                assert!(
                    matches!(error, JournalError::Damaged { at, .. } if at <= begin as u64 && (begin as u64) < at + 2 * record as u64),
                    "{wrong} bytes from {begin} on: {error}"
                );
            }
        }
        // A long tail of zeros, which a loss of power leaves, is cut.
        let mut torn = bytes.clone();
        torn.truncate(bytes.len() - 10);
        torn.resize(bytes.len() + 5000, 0);
        std::fs::write(&path, &torn).expect("write");
        let (_, recovered) =
            Journal::open(&Disk::without_flush(), &path, SyncPolicy::OnDemand, 0).expect("cut");
        assert_eq!(recovered.records.len(), 39);
        // Bytes that all look like lengths of something take no longer than they are long.
        let pattern = [0, 0, 1, 0].repeat(1 << 18);
        assert!(is_followed(&pattern));
    }

    #[test]
    fn a_record_of_another_build_is_refused_with_its_place() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("journal");
        let (mut journal, _) =
            Journal::open(&Disk::without_flush(), &path, SyncPolicy::OnDemand, 0).expect("new");
        journal.append(b"7").expect("append");
        journal.append(b"[8]").expect("append");
        let open =
            |from| Journal::open_json::<u64>(&Disk::without_flush(), &path, SyncPolicy::OnDemand, from);
        let error = open(0).expect_err("a list");
        assert!(error.to_string().ends_with("cannot read the record at byte 17"), "{error}");
        journal.cut(17).expect("cut");
        journal.append(b"9").expect("append");
        assert_eq!(open(0).expect("numbers").1, [(8, 7), (17, 9)]);
        assert_eq!(open(17).expect("numbers").1, [(17, 9)]);
    }

    #[test]
    fn records_appended_without_error_survive_a_failure_at_any_operation() {
        for fault in [
            DiskFault::DiskFull,
            DiskFault::ShortWrite,
            DiskFault::ReadOnly,
            DiskFault::Killed,
            DiskFault::PowerLoss,
            DiskFault::PowerLossAfterRename,
        ] {
            for at in 0..40 {
                let folder = tempfile::tempdir().expect("folder");
                let path = folder.path().join("journal");
                let disk = Disk::with_fault(at, fault);
                let mut kept = Vec::new();
                let outcome = (|| -> Result<(), JournalError> {
                    let (mut journal, _) = Journal::open(&disk, &path, SyncPolicy::EveryRecord, 0)?;
                    for payload in three() {
                        journal.append(&payload)?;
                        kept.push(payload);
                    }
                    Ok(())
                })();
                let (_, recovered) = Journal::open(&Disk::without_flush(), &path, SyncPolicy::EveryRecord, 0)
                    .expect("recovers");
                let found = payloads(&recovered);
                assert!(found.starts_with(&kept), "{fault:?} at {at}: {} of {}", found.len(), kept.len());
                assert!(three().starts_with(&found), "{fault:?} at {at}: nothing else is found");
                if disk.num_operations() <= at {
                    assert!(outcome.is_ok());
                    break;
                }
                outcome.expect_err("a fault was met");
            }
        }
    }

    #[test]
    fn messages() {
        let folder = tempfile::tempdir().expect("folder");
        let shown =
            |error: JournalError| error.to_string().replace(&folder.path().display().to_string(), "DIR");
        let path = folder.path().join("journal");
        std::fs::write(&path, "{\"step\": 1}\n").expect("write");
        let open = |promised| Journal::open(&Disk::without_flush(), &path, SyncPolicy::OnDemand, promised);
        insta::assert_snapshot!(shown(open(0).expect_err("no journal")), @"read `DIR/journal`: not a journal \
             of tamis (it does not begin with `TAMISJ1` or `TAMISJ2`)");
        std::fs::remove_file(&path).expect("remove");
        let end = written(&path);
        std::fs::write(&path, &std::fs::read(&path).expect("read")[..40]).expect("write");
        insta::assert_snapshot!(shown(open(end).expect_err("cut")), @"read `DIR/journal`: it ends at byte 40, but had 337 bytes when the checkpoint was written");
        std::fs::remove_file(&path).expect("remove");
        insta::assert_snapshot!(shown(open(end).expect_err("gone")), @"read `DIR/journal`: it ends at byte 0, but had 337 bytes when the checkpoint was written");
        let full = Journal::open(
            &Disk::with_fault(0, DiskFault::DiskFull),
            &folder.path().join("new"),
            SyncPolicy::OnDemand,
            0,
        )
        .expect_err("full");
        insta::assert_snapshot!(full.hint().unwrap_or_default(), @"no space is left there: free some and \
             continue with `--resume`, keep fewer checkpoints (`checkpoint.keep_last`), or name a folder on \
             another disk (`run.dir`); files written before are whole");
        insta::assert_snapshot!(tamis_core::fault::chain(&full).replace(&folder.path().display().to_string(), "DIR"), @"create `DIR/new`: No space left on device (os error 28)");
        let removed = JournalError::Removed { path: "journal".into(), first: 900, from: 80 };
        insta::assert_snapshot!(shown(removed), @"read `journal`: it begins at byte 900, but the checkpoint needs it from byte 80");
        let damaged = JournalError::Damaged { path: "journal".into(), at: 80 };
        insta::assert_snapshot!(damaged.to_string(), @"read `journal`: the record at byte 80 is damaged, and whole records follow it");
        insta::assert_snapshot!(damaged.hint().unwrap_or_default(), @"nothing was changed: restore a copy of the file, or truncate it there (`truncate -s 80 journal`): that record and all later ones are then requested again");
        let too_long = JournalError::TooLong { path: "journal".into(), length: 5_000_000_000 };
        insta::assert_snapshot!(shown(too_long), @"write `journal`: a record of 5000000000 bytes, but the format holds at most 4294967295");
    }
}
