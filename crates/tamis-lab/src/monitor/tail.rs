//! Reads what was appended to a file since the last look, whole lines at a time.
//!
//! A file may shrink (a resumed run cuts its logs back; a log is emptied in place), be replaced (a log is
//! rotated), have its last line written anew, vanish and come back. A line is passed on once its end is
//! written; an incomplete one waits.

use std::fs::{File, Metadata};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Bytes read at once.
const CHUNK: usize = 1 << 18;
/// Number of bytes at the beginning, and before the position that was read to, by which a file is recognised.
const KNOWN: usize = 256;
/// A longer line does not belong to a log. The rest of it is left out.
const LONGEST: usize = 1 << 20;

/// What the latest check of a file found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// The file has only grown.
    Appended,
    /// The file is shorter or otherwise changed, with the same beginning: it is read again from there.
    Rewritten,
    /// The path has another file, or the file other content, which continues what was read.
    Replaced,
    /// There is no file now.
    Absent,
}

/// A file that is read as it grows.
#[derive(Debug)]
pub(super) struct Tail {
    path: PathBuf,
    file: Option<File>,
    offset: u64,
    head: Vec<u8>,
    last: Vec<u8>,
    torn: Vec<u8>,
    is_too_long: bool,
    /// Whether it holds bytes that no text has.
    pub(super) has_binary: bool,
}

impl Tail {
    pub(super) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            file: None,
            offset: 0,
            head: Vec::new(),
            last: Vec::new(),
            torn: Vec::new(),
            is_too_long: false,
            has_binary: false,
        }
    }

    /// The file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The start of a line whose end is not written yet.
    pub(super) fn torn(&self) -> Option<String> {
        (!self.torn.is_empty()).then(|| String::from_utf8_lossy(&self.torn).into_owned())
    }

    /// When the file was last written, if it exists.
    pub(super) fn modified(&self) -> Option<std::time::SystemTime> {
        std::fs::metadata(&self.path).and_then(|found| found.modified()).ok()
    }

    /// Checks whether the file is still the one that was read, and reads what is new, line by line. `forget`
    /// is called before the first line if the file is read from its start again.
    ///
    /// # Errors
    /// It exists and cannot be read.
    pub(super) fn follow<T>(
        &mut self,
        into: &mut T,
        forget: impl Fn(&mut T, Change),
        mut line: impl FnMut(&mut T, &str),
    ) -> std::io::Result<Change> {
        let found = match std::fs::metadata(&self.path) {
            Ok(found) => found,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                // What was written before the file went can still be read.
                self.read_on(into, &mut line)?;
                return Ok(Change::Absent);
            }
            Err(error) => return Err(error),
        };
        let mut change = Change::Appended;
        if let Some(held) = &self.file {
            if is_same(&held.metadata()?, &found) {
                if found.len() < self.offset || !self.is_as_read()? {
                    change = self.begin_again()?;
                }
            } else {
                self.read_on(into, &mut line)?;
                self.file = None;
                change = self.begin_again()?;
            }
        } else {
            self.open()?;
        }
        if change != Change::Appended {
            forget(into, change);
        }
        self.read_on(into, &mut line)?;
        Ok(change)
    }

    fn open(&mut self) -> std::io::Result<()> {
        self.file = Some(tamis_file::open(&self.path)?);
        Ok(())
    }

    /// Starts over with what is at the path now.
    fn begin_again(&mut self) -> std::io::Result<Change> {
        if self.file.is_none() {
            self.open()?;
        }
        let known = std::mem::take(&mut self.head);
        let mut head = vec![0; known.len()];
        let length = self.read_at(0, &mut head)?;
        let is_same = length > 0 && head.get(..length) == known.get(..length);
        self.offset = 0;
        self.last.clear();
        self.torn.clear();
        self.is_too_long = false;
        Ok(if is_same { Change::Rewritten } else { Change::Replaced })
    }

    /// Whether the bytes before the position that was read to are those that were read.
    fn is_as_read(&mut self) -> std::io::Result<bool> {
        let mut found = vec![0; self.last.len()];
        let length = self.read_at(self.offset - self.last.len() as u64, &mut found)?;
        Ok(length == found.len() && found == self.last)
    }

    fn read_at(&mut self, offset: u64, into: &mut [u8]) -> std::io::Result<usize> {
        let Some(file) = &mut self.file else { return Ok(0) };
        file.seek(SeekFrom::Start(offset))?;
        let mut length = 0;
        while length < into.len() {
            let Some(rest) = into.get_mut(length..) else { break };
            match file.read(rest)? {
                0 => break,
                read => length += read,
            }
        }
        Ok(length)
    }

    /// Reads to the end of the file.
    fn read_on<T>(&mut self, into: &mut T, line: &mut impl FnMut(&mut T, &str)) -> std::io::Result<()> {
        let mut chunk = vec![0; CHUNK];
        loop {
            let length = self.read_at(self.offset, &mut chunk)?;
            let Some(bytes) = chunk.get(..length).filter(|bytes| !bytes.is_empty()) else { return Ok(()) };
            self.offset += length as u64;
            let missing = KNOWN.saturating_sub(self.head.len()).min(length);
            self.head.extend(bytes.iter().take(missing));
            self.last.extend(bytes.iter().skip(length.saturating_sub(KNOWN)));
            self.last.drain(..self.last.len().saturating_sub(KNOWN));
            self.has_binary |= bytes.contains(&0);
            // A progress bar ends its lines with a carriage return.
            for part in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
                let (text, is_whole) = match part {
                    [text @ .., b'\n' | b'\r'] => (text, true),
                    text => (text, false),
                };
                let room = LONGEST.saturating_sub(self.torn.len()).min(text.len());
                self.is_too_long |= room < text.len();
                self.torn.extend(text.iter().take(room));
                if is_whole {
                    if !self.is_too_long && !self.torn.is_empty() {
                        line(into, &String::from_utf8_lossy(&self.torn));
                    }
                    self.torn.clear();
                    self.is_too_long = false;
                }
            }
        }
    }
}

#[cfg(unix)]
fn is_same(held: &Metadata, found: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    (held.dev(), held.ino()) == (found.dev(), found.ino())
}

/// On other systems a file is recognised only by its content.
#[cfg(not(unix))]
fn is_same(_held: &Metadata, _found: &Metadata) -> bool {
    true
}
