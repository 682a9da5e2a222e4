//! The lines of a pipe, with a limit on their length.

use std::io::{BufRead as _, BufReader, Read};

/// A large limit: a line of an environment holds whole observations.
pub const LONGEST_LINE: usize = 64 << 20;

/// A line, without its line break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line<'l> {
    /// A whole line.
    Ended(&'l [u8]),
    /// The last line: the pipe ended without a line break.
    Unended(&'l [u8]),
    /// The beginning of a line above the limit. The rest of it follows.
    TooLong(&'l [u8]),
}

/// Reads a pipe line by line.
#[derive(Debug)]
pub struct Lines<R> {
    reader: BufReader<R>,
    longest: usize,
    line: Vec<u8>,
}

impl<R: Read> Lines<R> {
    /// Lines of at most this many bytes, not counting the line break.
    pub fn new(pipe: R, longest: usize) -> Self {
        Self { reader: BufReader::new(pipe), longest, line: Vec::new() }
    }

    /// The next line; `None` at the end of the pipe, or if it cannot be read.
    pub fn next_line(&mut self) -> Option<Line<'_>> {
        self.line.clear();
        let most = (self.longest as u64).saturating_add(1);
        let read = self.reader.by_ref().take(most).read_until(b'\n', &mut self.line);
        match (read, self.line.as_slice()) {
            (Ok(0) | Err(_), _) => None,
            (_, [line @ .., b'\n']) => Some(Line::Ended(line)),
            (_, line) if line.len() > self.longest => Some(Line::TooLong(line)),
            (_, line) => Some(Line::Unended(line)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_at_breaks_at_the_end_and_at_the_bound() {
        let mut lines = Lines::new(&b"one\n\nthree\r\nlonger\nx"[..], 6);
        let expected = ["one", "", "three\r", "longer"];
        for line in expected {
            assert_eq!(lines.next_line(), Some(Line::Ended(line.as_bytes())));
        }
        assert_eq!(lines.next_line(), Some(Line::Unended(b"x")));
        assert_eq!(lines.next_line(), None);
        let mut lines = Lines::new(&b"longer.\nx"[..], 6);
        assert_eq!(lines.next_line(), Some(Line::TooLong(b"longer.")));
    }
}
