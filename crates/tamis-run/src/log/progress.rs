//! Output of a run at work: a progress bar and lines above it on a terminal, plain lines elsewhere.
//!
//! All messages pass through [`Console`], a handle that is cheap to clone. So lines never mix with the
//! bar, and `run.log` gets a copy of each. Progress goes to stderr; results go to stdout, elsewhere.
//! Control characters in messages (a completion may hold any) are shown as escapes, never passed on.

mod stage_lines;
mod text;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tamis_core::figure::counted;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

pub use self::stage_lines::StageLines;
pub use self::text::{duration, fit_to_stderr};
use self::text::{visible, wrap_at_stderr};
use crate::durable::DiskError;
use crate::log::run_log::{LineKind, RunLog};

/// Fewest columns with room for a gauge.
const WIDE: u16 = 72;

/// Lines of a step that a user's function may print, before they are only counted.
const PRINTED_LINES: usize = 20;

/// Characters of such a line.
const PRINTED_CHARACTERS: usize = 500;

/// Interval of the lines about what is done, if only warnings are kept.
const STAGE_EVERY: Duration = Duration::from_secs(5);

/// Fewest columns with room for more than words.
const NARROW: u16 = 32;

/// How many messages a terminal shows. `run.log`, and stderr that is not a terminal, get all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Verbosity {
    /// Only warnings, without a bar, even if stderr is not a terminal.
    Quiet,
    /// A line a step.
    #[default]
    Normal,
    /// All.
    Verbose,
}

/// The look of a line on a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weight {
    /// Shown if all is to be shown.
    Detail,
    Usual,
    /// The result of a measurement.
    Measured,
}

/// The run's voice; clones speak to the same screen and log.
#[derive(Debug, Clone)]
pub struct Console {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    screen: Screen,
    verbosity: Verbosity,
    run_log: Option<RunLog>,
    // The first failure of the run log: reported by `sync`, for saying something must not fail.
    failure: Option<DiskError>,
    total: Option<u64>,
    first: u64,
    done: u64,
    // Whether the steps have begun.
    has_begun: bool,
    started: Instant,
    // When `done` was reached.
    reached: Instant,
    // The present activity, in words; empty between two steps.
    stage: String,
    // Lines printed in the present step, by their source.
    printed: BTreeMap<String, Printed>,
}

/// Lines that a user's function printed in a step.
#[derive(Debug, Default)]
struct Printed {
    num_shown: usize,
    num_left_out: usize,
}

enum Screen {
    Bar(ProgressBar),
    Plain {
        writer: Box<dyn Write + Send>,
        /// Whether it is a terminal, whose lines are to be cut at words.
        is_terminal: bool,
    },
    /// The warnings so far, and a spinner if stderr is a terminal.
    Kept {
        warnings: Vec<String>,
        spinner: Option<ProgressBar>,
    },
}

impl std::fmt::Debug for Screen {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Bar(_) => "Bar",
            Self::Plain { .. } => "Plain",
            Self::Kept { .. } => "Kept",
        })
    }
}

impl Console {
    /// On stderr: a bar on a terminal that can move its cursor, plain lines otherwise. `total` is the
    /// number of training steps, if known; `done` the number before this session (in a resumed run).
    pub fn on_stderr(verbosity: Verbosity, total: Option<u64>, done: u64) -> Self {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let console = if std::io::stderr().is_terminal() && !dumb && verbosity != Verbosity::Quiet {
            let (_, columns) = console::Term::stderr().size();
            Self::with_target(ProgressDrawTarget::stderr(), columns, total, done)
        } else {
            Self::plain_stderr(total, done)
        };
        console.inner().verbosity = verbosity;
        console
    }

    fn plain_stderr(total: Option<u64>, done: u64) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        Self::new(Screen::Plain { writer: Box::new(std::io::stderr()), is_terminal }, total, done)
    }

    /// Plain lines on stderr, without a bar, for what has no steps.
    pub fn lines_on_stderr() -> Self {
        Self::plain_stderr(None, 0)
    }

    /// Plain lines to a writer.
    pub fn plain(writer: Box<dyn Write + Send>, total: Option<u64>, done: u64) -> Self {
        Self::new(Screen::Plain { writer, is_terminal: false }, total, done)
    }

    /// Keeps the warnings, for what reports them itself. On stderr it shows only what it announces.
    pub fn keeping_warnings() -> Self {
        Self::new(Screen::Kept { warnings: Vec::new(), spinner: None }, None, 0)
    }

    /// Keeps the warnings, for what reports them itself. On stderr it shows what it announces and, until the
    /// returned value is dropped, what is done at the time: beside a spinner on a terminal, otherwise in a
    /// line every 5 s.
    pub fn checking() -> (Self, StageLines) {
        let spinner = std::io::stderr().is_terminal().then(|| {
            let spinner = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}  {elapsed}") {
                spinner.set_style(style);
            }
            spinner.enable_steady_tick(Duration::from_millis(200));
            spinner
        });
        let console = Self::new(Screen::Kept { warnings: Vec::new(), spinner: spinner.clone() }, None, 0);
        let lines = StageLines::begin(&console, spinner, STAGE_EVERY, Box::new(std::io::stderr()));
        (console, lines)
    }

    /// The warnings that were kept.
    pub fn kept_warnings(&self) -> Vec<String> {
        match &self.inner().screen {
            Screen::Kept { warnings, .. } => warnings.clone(),
            Screen::Bar(_) | Screen::Plain { .. } => Vec::new(),
        }
    }

    /// Prints what begins and may take long, or starts or calls programs of the user. Shown also if only
    /// warnings are kept.
    pub fn announce(&self, text: &str) {
        let mut inner = self.inner();
        if let Screen::Kept { spinner, .. } = &inner.screen {
            let shown = visible(text);
            let print = || drop(writeln!(std::io::stderr(), "{}", fit_to_stderr(&shown)));
            spinner.as_ref().map_or_else(print, |spinner| spinner.suspend(print));
            inner.stage = shown;
            inner.redraw();
        } else {
            inner.speak(LineKind::Info, Weight::Usual, text, text);
        }
    }

    /// Prints how far long work is. If only warnings are kept, it is what is done at the time.
    pub fn progress(&self, text: &str) {
        if matches!(self.inner().screen, Screen::Kept { .. }) {
            self.stage(text);
        } else {
            self.say(text);
        }
    }

    /// A bar on a terminal of so many columns. If there is not room for all, text has priority over the
    /// gauge and the clock.
    pub fn with_target(target: ProgressDrawTarget, columns: u16, total: Option<u64>, done: u64) -> Self {
        let bar = ProgressBar::with_draw_target(total, target);
        // The library omits the colour if NO_COLOR is set.
        let template = match (total, columns) {
            (_, ..NARROW) => "{wide_msg}",
            (Some(_), WIDE..) => "{bar:20.cyan} {wide_msg}  {elapsed}",
            (Some(_), _) => "{wide_msg}  {elapsed}",
            (None, _) => "{spinner} {wide_msg}  {elapsed}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_position(done);
        bar.enable_steady_tick(Duration::from_millis(500));
        Self::new(Screen::Bar(bar), total, done)
    }

    fn new(screen: Screen, total: Option<u64>, done: u64) -> Self {
        let inner = Inner {
            screen,
            verbosity: Verbosity::Normal,
            run_log: None,
            failure: None,
            total,
            first: done,
            done,
            has_begun: false,
            started: Instant::now(),
            reached: Instant::now(),
            stage: String::new(),
            printed: BTreeMap::new(),
        };
        Self { inner: Arc::new(Mutex::new(inner)) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies all later messages to this log.
    pub fn copy_to(&self, run_log: RunLog) {
        self.inner().run_log = Some(run_log);
    }

    /// Number of training steps, if it is known.
    pub fn total_steps(&self) -> Option<u64> {
        self.inner().total
    }

    /// Prints a message.
    pub fn say(&self, text: &str) {
        self.inner().speak(LineKind::Info, Weight::Usual, text, text);
    }

    /// Prints a message that a terminal shows only in verbose mode.
    pub fn detail(&self, text: &str) {
        self.inner().speak(LineKind::Info, Weight::Detail, text, text);
    }

    /// Prints a measurement: a terminal shows it in bold.
    pub fn measured(&self, text: &str) {
        self.inner().speak(LineKind::Info, Weight::Measured, text, text);
    }

    /// Prints the line of a step; a terminal shows its short form unless it is verbose.
    pub fn say_step(&self, text: &str, short: &str) {
        self.inner().speak(LineKind::Info, Weight::Usual, text, short);
    }

    /// Prints a warning, marked `warning:`.
    pub fn warn(&self, text: &str) {
        self.inner().speak(LineKind::Warning, Weight::Usual, text, text);
    }

    /// Takes a line that a user's function printed. The run log gets it with its step; a screen shows it if
    /// everything is to be shown, or if there is no run log. Each `source` has 20 lines in a
    /// step, and then the number of lines left out.
    pub fn printed(&self, source: &str, line: &str) {
        let mut inner = self.inner();
        let printed = inner.printed.entry(source.to_owned()).or_default();
        if printed.num_shown == PRINTED_LINES {
            printed.num_left_out += 1;
            return;
        }
        printed.num_shown += 1;
        let num = line.chars().count();
        let mut text: String = line.chars().take(PRINTED_CHARACTERS).collect();
        if num > PRINTED_CHARACTERS {
            let _ = write!(text, " ... and {} more characters", num - PRINTED_CHARACTERS);
        }
        inner.pass_on(source, &text);
    }

    /// Writes only to the run log (for instance an error that the command line prints itself).
    pub fn note(&self, level: LineKind, text: &str) {
        self.inner().log(level, &visible(text));
    }

    /// Starts the clock of this session's steps: earlier work (a warm start, a validation) does not
    /// count towards their pace.
    pub fn steps_begin(&self) {
        let mut inner = self.inner();
        inner.end_printed();
        inner.has_begun = true;
        inner.started = Instant::now();
    }

    /// Shows the present activity beside the bar.
    pub fn stage(&self, name: &str) {
        let mut inner = self.inner();
        inner.stage = visible(name);
        inner.redraw();
    }

    /// Moves the bar to a step that is done.
    pub fn step(&self, step: u64) {
        let mut inner = self.inner();
        inner.end_printed();
        inner.done = step;
        inner.reached = Instant::now();
        inner.stage.clear();
        inner.redraw();
    }

    /// Whether no step of this session is done.
    pub fn is_first_step(&self) -> bool {
        let inner = self.inner();
        inner.done == inner.first
    }

    /// Time left, estimated from the steps of this session; `None` before the first, or if the number
    /// of steps is not known.
    pub fn time_left(&self) -> Option<Duration> {
        self.inner().time_left()
    }

    /// Takes the bar away at the end of a run.
    pub fn finish(&self) {
        self.inner().end_printed();
        if let Screen::Bar(bar) = &self.inner().screen {
            bar.finish_and_clear();
        }
    }

    /// Runs `act` with the bar off the screen, for what writes to the terminal itself.
    pub fn suspend<R>(&self, act: impl FnOnce() -> R) -> R {
        match &self.inner().screen {
            Screen::Bar(bar) => bar.suspend(act),
            Screen::Kept { spinner: Some(spinner), .. } => spinner.suspend(act),
            Screen::Plain { .. } | Screen::Kept { .. } => act(),
        }
    }

    /// Flushes the run log to the device; its length in bytes, 0 without one.
    ///
    /// # Errors
    /// The first failure to write the log since the last call: saying something never fails itself.
    pub fn sync(&self) -> Result<u64, DiskError> {
        let mut inner = self.inner();
        if let Some(failure) = inner.failure.take() {
            return Err(failure);
        }
        inner.run_log.as_mut().map_or(Ok(0), RunLog::sync)
    }
}

impl Inner {
    /// Passes on what a user's function printed.
    fn pass_on(&mut self, source: &str, text: &str) {
        // An evaluation has no log, and no steps.
        let step = match (&self.run_log, self.has_begun) {
            (None, _) => String::new(),
            (Some(_), true) => format!(", step {}", self.done + 1),
            (Some(_), false) => format!(", before step {}", self.done + 1),
        };
        let text = format!("{source}{step}: {text}");
        if self.verbosity == Verbosity::Verbose || self.run_log.is_none() {
            self.speak(LineKind::Info, Weight::Usual, &text, &text);
        } else {
            self.log(LineKind::Info, &visible(&text));
        }
    }

    /// Says of what was printed in a step how much was left out.
    fn end_printed(&mut self) {
        for (source, Printed { num_left_out, .. }) in std::mem::take(&mut self.printed) {
            if num_left_out > 0 {
                self.pass_on(&source, &format!("... and {}", counted(num_left_out, "more line")));
            }
        }
    }

    fn speak(&mut self, level: LineKind, weight: Weight, text: &str, short: &str) {
        let text = visible(text);
        self.log(level, &text);
        let mark = match level {
            LineKind::Info if self.verbosity == Verbosity::Quiet => return,
            LineKind::Info => "",
            LineKind::Warning => "warning: ",
            LineKind::Error => "error: ",
        };
        let shows_all = self.verbosity == Verbosity::Verbose;
        match &mut self.screen {
            Screen::Bar(_) if weight == Weight::Detail && !shows_all => {}
            // A closed terminal must not stop training.
            Screen::Bar(bar) => bar.suspend(|| {
                let shown = if shows_all { text } else { visible(short) };
                let shown = wrap_at_stderr(&format!("{mark}{shown}"));
                // Without colours if stderr has none, or NO_COLOR is set.
                let style = console::Style::new().for_stderr();
                let shown = match (shown.strip_prefix(mark), level, weight) {
                    (Some(rest), LineKind::Warning | LineKind::Error, _) => {
                        format!("{}{rest}", style.yellow().bold().apply_to(mark))
                    }
                    (_, _, Weight::Measured) => style.bold().apply_to(shown).to_string(),
                    _ => shown,
                };
                let _ = writeln!(std::io::stderr(), "{shown}");
            }),
            Screen::Kept { warnings, .. } => warnings.extend((level == LineKind::Warning).then_some(text)),
            Screen::Plain { writer, is_terminal } => {
                let text = format!("{mark}{text}");
                let text = if *is_terminal { wrap_at_stderr(&text) } else { text };
                let _ = writeln!(writer, "{text}").and_then(|()| writer.flush());
            }
        }
    }

    fn log(&mut self, level: LineKind, text: &str) {
        if let Some(run_log) = &mut self.run_log
            && let Err(error) = run_log.write(level, text)
            && self.failure.is_none()
        {
            self.failure = Some(error);
        }
    }

    fn redraw(&mut self) {
        if let Screen::Bar(bar) = &self.screen {
            bar.set_position(self.done);
            bar.set_message(self.message());
        }
        if let Screen::Kept { spinner: Some(spinner), .. } = &self.screen {
            spinner.set_message(self.stage.clone());
        }
    }

    fn message(&self) -> String {
        let mut message = format!("step {}", self.done);
        if let Some(total) = self.total {
            let _ = write!(message, "/{total}");
        }
        if !self.stage.is_empty() {
            let _ = write!(message, "  {}", self.stage);
        }
        if let Some(left) = self.time_left() {
            let _ = write!(message, "  {} left", duration(left));
        }
        message
    }

    fn time_left(&self) -> Option<Duration> {
        let steps = self.done.checked_sub(self.first).filter(|&steps| steps > 0)?;
        let left = self.total?.saturating_sub(self.done);
        let pace = self.reached.saturating_duration_since(self.started).as_secs_f64() / steps as f64;
        let left = Duration::try_from_secs_f64(pace * left as f64).ok()?;
        Some(left.saturating_sub(self.reached.elapsed()))
    }
}

#[cfg(test)]
mod tests;
