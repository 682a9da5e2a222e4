//! Text for the console: durations, and lines as wide as the terminal.

use std::io::IsTerminal;
use std::time::Duration;

use tamis_core::printable::lines;

/// `47s`, `3m 05s`, `2h 07m`, `1d 02h`.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h {:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d {:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// The text with its lines cut at words if stderr is a terminal, which would cut them anywhere.
pub fn fit_to_stderr(text: &str) -> String {
    if std::io::stderr().is_terminal() { wrap_at_stderr(text) } else { text.to_owned() }
}

pub(super) fn wrap_at_stderr(text: &str) -> String {
    let (_, columns) = console::Term::stderr().size();
    wrap(text, columns.into())
}

/// The text with lines of at most so many characters, cut at spaces; continuation lines are indented by
/// 2. A longer word stays whole, as do the columns of a table, which two spaces separate.
pub(super) fn wrap(text: &str, columns: usize) -> String {
    let mut lines = Vec::new();
    for line in text.split('\n') {
        let mut rest = line.to_owned();
        // Marks under a line of source stay below what they mark.
        let is_source = line.trim_start_matches(|c: char| c == ' ' || c.is_ascii_digit()).starts_with('|');
        while !is_source && rest.chars().count() > columns {
            let indent = rest.len() - rest.trim_start().len();
            let end = rest.char_indices().nth(columns).map_or(rest.len(), |(at, _)| at);
            let fits = rest.get(..=end).unwrap_or(&rest);
            let after = |from: usize| rest.get(from..)?.find(' ').map(|at| from + at);
            let Some(at) = fits.rfind(' ').filter(|at| *at > indent).or_else(|| after(indent)) else { break };
            let next = format!("  {}", rest.get(at..).unwrap_or_default().trim_start());
            rest.truncate(at);
            lines.push(std::mem::replace(&mut rest, next).trim_end().to_owned());
        }
        lines.push(rest);
    }
    lines.join("\n")
}

/// The text as it may be printed, without ends of line after it.
pub(super) fn visible(text: &str) -> String {
    lines(text.trim_end_matches('\n'))
}
