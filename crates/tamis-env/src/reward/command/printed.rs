//! The output of a reward's processes: passed on line by line, and all of it kept in a file of a run.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::process::lock;
use crate::reward::listener::{Listener, PrintedLines};

/// Size of a file in bytes after which it is renamed and a new one is begun.
const FILE_BYTES: u64 = 64 << 20;

/// The file of the output.
#[derive(Default)]
enum Kept {
    /// Nothing was printed yet.
    #[default]
    Nothing,
    Open(File),
    /// It cannot be written, which was reported.
    Failed,
}

/// Takes what one reward, or another function of the user's, prints: its processes to their standard error,
/// and a Python function at all. The processes of a pool share it.
pub struct Printed {
    /// Its reward or section, and the name of its file.
    source: String,
    listener: Arc<dyn Listener>,
    path: Option<PathBuf>,
    kept: Mutex<Kept>,
}

impl Printed {
    /// Passes output to the listener, and into a file if there is one. `source`:
    /// ``reward `mine` (reward.py)``.
    pub fn to(path: Option<PathBuf>, source: &str, listener: &Arc<dyn Listener>) -> Self {
        Self { source: source.to_owned(), listener: Arc::clone(listener), path, kept: Mutex::default() }
    }

    /// Receives the standard error of a process that belongs to this alone.
    pub fn copy(self: &Arc<Self>) -> tamis_process::Copy {
        let mut writer = PrintedWriter::to(&Arc::new(Mutex::new(vec![Arc::clone(self)])));
        Box::new(move |bytes| writer.write(bytes))
    }

    fn keep(&self, path: &Path, bytes: &[u8]) {
        let mut kept = lock(&self.kept);
        if matches!(*kept, Kept::Nothing) {
            *kept = self.open(path);
            if matches!(*kept, Kept::Open(_)) {
                self.listener.say(&format!("{} prints: see {}", self.source, path.display()));
            }
        }
        let is_full = |file: &File| file.metadata().is_ok_and(|found| found.len() >= FILE_BYTES);
        if matches!(&*kept, Kept::Open(file) if is_full(file)) {
            let _ = std::fs::rename(path, path.with_extension("log.1"));
            *kept = self.open(path);
        }
        if let Kept::Open(file) = &mut *kept
            && let Err(error) = file.write_all(bytes)
        {
            self.give_up(path, &error);
            *kept = Kept::Failed;
        }
    }

    fn open(&self, path: &Path) -> Kept {
        match OpenOptions::new().create(true).append(true).open(path) {
            Ok(file) => Kept::Open(file),
            Err(error) => {
                self.give_up(path, &error);
                Kept::Failed
            }
        }
    }

    fn give_up(&self, path: &Path, error: &std::io::Error) {
        self.listener.warn(&format!(
            "{}: what it prints cannot be saved in {}: {error}",
            self.source,
            path.display()
        ));
    }
}

/// The beginning of a line of standard error by which the shipped program for Python files reports that
/// another function prints from here on; its number and a line break follow.
const MARK: &[u8] = b"\x1etamis-reward ";

/// Longest number in such a line.
const MARK_DIGITS: usize = 6;

/// What the bytes after the first of [`MARK`] are.
#[derive(Debug, PartialEq, Eq)]
enum Marked {
    /// A whole mark: the function, and its length.
    Function(usize, usize),
    /// It may still become one.
    Open,
    /// Something that was printed.
    Not,
}

fn read_mark(bytes: &[u8]) -> Marked {
    let Some(rest) = bytes.strip_prefix(MARK) else {
        return if MARK.starts_with(bytes) { Marked::Open } else { Marked::Not };
    };
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits > MARK_DIGITS {
        return Marked::Not;
    }
    let number = || std::str::from_utf8(&rest[..digits]).ok()?.parse().ok();
    match rest.get(digits) {
        None => Marked::Open,
        Some(b'\n') => {
            number().map_or(Marked::Not, |number| Marked::Function(number, MARK.len() + digits + 1))
        }
        Some(_) => Marked::Not,
    }
}

/// Text without the marks of functions in it.
pub(super) fn without_marks(text: &str) -> String {
    let is_mark = |line: &&str| {
        let number = line.as_bytes().strip_prefix(MARK);
        !number.is_some_and(|number| number.iter().all(u8::is_ascii_digit))
    };
    text.split('\n').filter(is_mark).collect::<Vec<_>>().join("\n")
}

/// One process's part of what is printed: to the place of the function that prints.
pub(super) struct PrintedWriter {
    places: Arc<Mutex<Vec<Arc<Printed>>>>,
    to: Option<(Arc<Printed>, PrintedLines)>,
    /// The beginning of what may be a mark.
    held: Vec<u8>,
}

impl PrintedWriter {
    /// To the first of some places, which is that of the function that a process begins with.
    pub(super) fn to(places: &Arc<Mutex<Vec<Arc<Printed>>>>) -> Self {
        let mut writer = Self { places: Arc::clone(places), to: None, held: Vec::new() };
        writer.turn_to(0);
        writer
    }

    fn turn_to(&mut self, function: usize) {
        let place = lock(&self.places).get(function).cloned();
        if let Some(place) = place {
            let lines = PrintedLines::new(&place.source, &place.listener);
            self.to = Some((place, lines));
        }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
        while !self.held.is_empty() {
            let length = match self.held.iter().position(|byte| byte == &MARK[0]) {
                Some(0) => match read_mark(&self.held) {
                    Marked::Function(function, length) => {
                        self.held.drain(..length);
                        self.turn_to(function);
                        continue;
                    }
                    Marked::Open => return,
                    Marked::Not => 1,
                },
                Some(start) => start,
                None => self.held.len(),
            };
            self.pass_on(length);
        }
    }

    /// Passes on the first of the bytes that are held.
    fn pass_on(&mut self, length: usize) {
        if length == 0 {
            return;
        }
        let bytes: Vec<u8> = self.held.drain(..length).collect();
        if let Some((place, lines)) = &mut self.to {
            if let Some(path) = &place.path {
                place.keep(path, &bytes);
            }
            lines.write(&bytes);
        }
    }
}

impl Drop for PrintedWriter {
    fn drop(&mut self) {
        self.pass_on(self.held.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_whole_and_nothing_else_is_one() {
        assert_eq!(read_mark(b"\x1etamis-reward 12\nmore"), Marked::Function(12, 17));
        for open in [&b"\x1e"[..], b"\x1etamis", b"\x1etamis-reward ", b"\x1etamis-reward 1"] {
            assert_eq!(read_mark(open), Marked::Open);
        }
        for not in
            [&b"\x1ex"[..], b"\x1etamis-reward \n", b"\x1etamis-reward 1x", b"\x1etamis-reward 1234567"]
        {
            assert_eq!(read_mark(not), Marked::Not);
        }
        assert_eq!(without_marks("a\n\x1etamis-reward 1\nb"), "a\nb");
        assert_eq!(without_marks("a\x1eb"), "a\x1eb");
    }

    #[test]
    fn each_function_has_its_own_lines_however_the_bytes_come() {
        use crate::reward::listener::Heard;

        let text = b"import\n\x1etamis-reward 1\none\x1e\n\x1etamis-reward 0\nnone\x1etamis-reward 9\nlost";
        for size in 1..text.len() {
            let heard = Arc::new(Heard::default());
            let listener: Arc<dyn Listener> = heard.clone();
            let place = |name: &str| Arc::new(Printed::to(None, name, &listener));
            let places = Arc::new(Mutex::new(vec![place("f"), place("g")]));
            let mut writer = PrintedWriter::to(&places);
            text.chunks(size).for_each(|bytes| writer.write(bytes));
            drop(writer);
            assert_eq!(heard.text(), "f: import\ng: one\x1e\nf: nonelost", "chunks of {size} bytes");
        }
    }
}
