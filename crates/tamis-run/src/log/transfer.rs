//! The display of a download: a bar of bytes on a terminal, otherwise a line from time to time.

use std::io::{IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{BinaryBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use tamis_core::printable::lines;

/// Longest silence without a bar.
const SILENCE: Duration = Duration::from_secs(30);

/// The display of one download after another.
#[derive(Debug)]
pub struct Transfer {
    inner: Mutex<Inner>,
}

struct Inner {
    /// Target of the bars; `None`: only lines.
    target: Option<fn() -> ProgressDrawTarget>,
    out: Box<dyn Write + Send>,
    silence: Duration,
    name: String,
    bytes: Option<u64>,
    bar: Option<ProgressBar>,
    said: Instant,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Inner").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Transfer {
    /// On stderr: bars on a terminal that can move its cursor.
    pub fn on_stderr() -> Self {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let has_bar = std::io::stderr().is_terminal() && !dumb;
        Self::new(has_bar.then_some(ProgressDrawTarget::stderr), Box::new(std::io::stderr()), SILENCE)
    }

    fn new(
        target: Option<fn() -> ProgressDrawTarget>,
        out: Box<dyn Write + Send>,
        silence: Duration,
    ) -> Self {
        let (name, bytes, bar, said) = (String::new(), None, None, Instant::now());
        Self { inner: Mutex::new(Inner { target, out, silence, name, bytes, bar, said }) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A download begins; `bytes` is its size, if known.
    pub fn begin(&self, name: &str, bytes: Option<u64>) {
        let mut inner = self.inner();
        (inner.name, inner.bytes, inner.said) = (name.to_owned(), bytes, Instant::now());
        let size = bytes.map_or_else(String::new, |bytes| format!(" ({})", BinaryBytes(bytes)));
        let line = format!("downloading {name}{size}");
        inner.say(&line);
        inner.bar = inner.target.map(|target| {
            let bar = ProgressBar::with_draw_target(bytes, target());
            let template = match bytes {
                Some(_) => {
                    "{bar:20.cyan} {binary_bytes} of {binary_total_bytes}  {binary_bytes_per_sec}  {eta} left"
                }
                None => "{spinner} {binary_bytes}  {binary_bytes_per_sec}",
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar
        });
    }

    /// Sets the number of bytes that have arrived.
    pub fn at(&self, bytes: u64) {
        let mut inner = self.inner();
        if let Some(bar) = &inner.bar {
            let is_first = bar.position() == 0;
            bar.set_position(bytes);
            if is_first {
                // Bytes of an earlier attempt do not count towards the speed.
                bar.reset_eta();
            }
        } else if inner.said.elapsed() >= inner.silence {
            let total = inner.bytes.map_or_else(String::new, |total| format!(" of {}", BinaryBytes(total)));
            let line = format!("{}: {}{total}", inner.name, BinaryBytes(bytes));
            inner.say(&line);
            inner.said = Instant::now();
        }
    }

    /// The download ended, well or not.
    pub fn end(&self) {
        if let Some(bar) = self.inner().bar.take() {
            bar.finish_and_clear();
        }
    }

    /// Prints a message.
    pub fn say(&self, text: &str) {
        self.inner().say(text);
    }

    /// Prints a warning, marked `warning:`.
    pub fn warn(&self, text: &str) {
        self.inner().say(&format!("warning: {text}"));
    }
}

impl Inner {
    fn say(&mut self, text: &str) {
        let (out, text) = (&mut self.out, lines(text));
        // A closed terminal must not stop a download.
        let mut write = || {
            let _ = writeln!(out, "{text}").and_then(|()| out.flush());
        };
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::captured::Captured;

    fn told(target: Option<fn() -> ProgressDrawTarget>, silence: Duration) -> String {
        let screen = Captured::default();
        let transfer = Transfer::new(target, Box::new(screen.clone()), silence);
        transfer.begin("org/model\u{1b}[31m", Some(3 << 20));
        transfer.at(1 << 20);
        transfer.warn("slow");
        transfer.end();
        transfer.begin("org/data", None);
        transfer.at(5);
        transfer.end();
        screen.text()
    }

    #[test]
    fn lines_come_where_there_is_no_bar() {
        insta::assert_snapshot!(told(None, Duration::ZERO), @r#"
downloading org/model\u{1b}[31m (3.00 MiB)
org/model\u{1b}[31m: 1.00 MiB of 3.00 MiB
warning: slow
downloading org/data
org/data: 5 B
"#);
        insta::assert_snapshot!(told(None, SILENCE), @r#"
downloading org/model\u{1b}[31m (3.00 MiB)
warning: slow
downloading org/data
"#);
        // The bar shows the progress.
        assert_eq!(told(Some(ProgressDrawTarget::hidden), Duration::ZERO), told(None, SILENCE));
    }
}
