//! Output of a run at work: a progress bar and lines above it on a terminal, plain lines elsewhere.
//!
//! All messages pass through [`Console`], a handle that is cheap to clone. So lines never mix with the
//! bar, and `run.log` gets a copy of each. Progress goes to stderr; results go to stdout, elsewhere.
//! Control characters in messages (a completion may hold any) are shown as escapes, never passed on.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tamis_core::figure::counted;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tamis_core::printable::lines;

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

/// Shows what a console that keeps warnings does at the time, until it is dropped.
pub struct StageLines {
    spinner: Option<ProgressBar>,
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl StageLines {
    /// Lines to a writer, unless a spinner shows the stage.
    fn begin(
        console: &Console,
        spinner: Option<ProgressBar>,
        every: Duration,
        mut writer: Box<dyn Write + Send>,
    ) -> Self {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let (console, stopped, began) = (console.clone(), Arc::clone(&stop), Instant::now());
        let write = move || {
            let (is_over, over) = &*stopped;
            let mut guard = is_over.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                let waited = over.wait_timeout_while(guard, every, |is_over| !*is_over);
                guard = waited.unwrap_or_else(PoisonError::into_inner).0;
                if *guard {
                    return;
                }
                let stage = console.inner().stage.clone();
                if !stage.is_empty() {
                    let _ = writeln!(writer, "{stage} ({})", duration(began.elapsed()));
                }
            }
        };
        let thread = spinner.is_none().then(|| std::thread::spawn(write));
        Self { spinner, stop, thread }
    }
}

impl Drop for StageLines {
    fn drop(&mut self) {
        *self.stop.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Some(spinner) = &self.spinner {
            spinner.finish_and_clear();
        }
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

fn wrap_at_stderr(text: &str) -> String {
    let (_, columns) = console::Term::stderr().size();
    wrap(text, columns.into())
}

/// The text with lines of at most so many characters, cut at spaces; continuation lines are indented by
/// 2. A longer word stays whole, as do the columns of a table, which two spaces separate.
fn wrap(text: &str, columns: usize) -> String {
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
fn visible(text: &str) -> String {
    lines(text.trim_end_matches('\n'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durable::{Disk, DiskFault};
    use crate::log::captured::Captured;
    use crate::log::console::{StepView, line};

    /// What takes long is never done in silence, and quick work shows nothing.
    #[test]
    fn a_console_that_keeps_warnings_shows_what_takes_long() {
        let kept = || Console::new(Screen::Kept { warnings: Vec::new(), spinner: None }, None, 0);
        let (console, screen) = (kept(), Captured::default());
        console.stage("reading the data");
        let every = Duration::from_millis(20);
        let lines = StageLines::begin(&console, None, every, Box::new(screen.clone()));
        let wait_for = |words: &str| {
            let limit = Instant::now() + Duration::from_secs(60);
            while !screen.text().contains(words) && Instant::now() < limit {
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        wait_for("reading the data (0s)\n");
        console.progress("half of it");
        console.say("not shown");
        console.warn("kept");
        wait_for("half of it (");
        drop(lines);
        assert!(
            screen.text().contains("half of it (") && !screen.text().contains("shown"),
            "{}",
            screen.text()
        );
        assert_eq!(console.kept_warnings(), ["kept"]);
        let quick = Captured::default();
        console.stage("soon over");
        drop(StageLines::begin(&console, None, Duration::from_secs(60), Box::new(quick.clone())));
        assert_eq!(quick.text(), "");
    }

    #[test]
    fn plain_lines_hold_no_control_characters() {
        let screen = Captured::default();
        let progress = Console::plain(Box::new(screen.clone()), Some(4), 0);
        progress.say("round 1: 12 of 32 kept");
        progress.stage("training");
        progress.warn("filter on a shaped sum");
        progress.say("sample: \u{1b}[31mred\u{7}\r\ttext\nsecond line\n");
        let view = StepView { reward: Some(0.5), accuracy: Some(0.25), ..StepView::default() };
        progress.say(&line(1, progress.total_steps(), &view, None));
        progress.finish();
        let text = screen.text();
        assert!(text.chars().all(|character| character == '\n' || !character.is_control()));
        insta::assert_snapshot!(text, @r"
        round 1: 12 of 32 kept
        warning: filter on a shaped sum
        sample: \u{1b}[31mred\u{7}\r    text
        second line
        step 1/4  reward 0.500  accuracy 25.0%
        ");
    }

    #[test]
    fn what_functions_print_is_in_the_log_with_its_step_and_bounded() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("run.log");
        let screen = Captured::default();
        let console = Console::plain(Box::new(screen.clone()), None, 0);
        console.copy_to(RunLog::open(&Disk::without_flush(), &path).expect("open"));
        let source = "reward `mine` (mine.py)";
        console.printed(source, "loaded");
        console.steps_begin();
        for at in 0..PRINTED_LINES + 7 {
            console.printed(source, &format!("line {at}"));
        }
        console.printed("environment (game.py)", &"x".repeat(PRINTED_CHARACTERS + 3));
        console.step(1);
        console.printed(source, "again");
        console.finish();
        let text = std::fs::read_to_string(&path).expect("read");
        let lines: Vec<&str> = text.lines().map(|line| &line[25..]).collect();
        assert_eq!(lines[0], "info reward `mine` (mine.py), before step 1: loaded");
        assert_eq!(lines[1], "info reward `mine` (mine.py), step 1: line 0");
        assert_eq!(lines[PRINTED_LINES], "info reward `mine` (mine.py), step 1: line 19");
        let long =
            format!("info environment (game.py), step 1: {} ... and 3 more characters", "x".repeat(500));
        assert_eq!(
            lines[PRINTED_LINES + 1..],
            [
                &*long,
                "info reward `mine` (mine.py), step 1: ... and 7 more lines",
                "info reward `mine` (mine.py), step 2: again",
            ]
        );
        assert_eq!(screen.text(), "", "the screen shows it if all is to be shown");
        console.inner().verbosity = Verbosity::Verbose;
        console.printed(source, "seen");
        assert_eq!(screen.text(), "reward `mine` (mine.py), step 2: seen\n");
    }

    #[test]
    fn the_run_log_gets_a_stamped_copy() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("run.log");
        let progress = Console::plain(Box::new(std::io::sink()), None, 0);
        assert_eq!(progress.sync().expect("no log yet"), 0);
        progress.copy_to(RunLog::open(&Disk::without_flush(), &path).expect("open"));
        progress.say("one\ntwo");
        progress.warn("three");
        progress.note(LineKind::Error, "four");
        let text = std::fs::read_to_string(&path).expect("read");
        assert_eq!(progress.sync().expect("sync"), text.len() as u64);
        let without_time: Vec<&str> = text.lines().map(|line| &line[25..]).collect();
        assert_eq!(without_time, ["info one", "info two", "warning three", "error four"]);
    }

    #[test]
    fn a_log_that_cannot_be_written_is_told_once_and_by_name() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("run.log");
        let disk = Disk::with_fault(2, DiskFault::DiskFull);
        let screen = Captured::default();
        let progress = Console::plain(Box::new(screen.clone()), None, 0);
        progress.copy_to(RunLog::open(&disk, &path).expect("open"));
        progress.say("still said");
        assert_eq!(screen.text(), "still said\n");
        assert_eq!(progress.sync().expect_err("full").path, path);
        assert!(std::fs::read(&path).expect("read").is_empty());
    }

    #[test]
    fn the_bar_shows_steps_and_what_is_being_done() {
        let progress = Console::with_target(ProgressDrawTarget::hidden(), 80, Some(200), 50);
        let position = || match &progress.inner().screen {
            Screen::Bar(bar) => bar.position(),
            Screen::Plain { .. } | Screen::Kept { .. } => unreachable!("a bar"),
        };
        assert_eq!(progress.inner().message(), "step 50/200");
        assert_eq!(progress.time_left(), None, "no step of this session yet");
        progress.stage("generating round 2: 12/32");
        assert_eq!(progress.inner().message(), "step 50/200  generating round 2: 12/32");
        assert_eq!(position(), 50);
        // A warm start of a quarter of an hour.
        progress.inner().started = Instant::now().checked_sub(Duration::from_secs(900)).expect("a past");
        progress.steps_begin();
        let begun = progress.inner().started;
        progress.inner().started = begun.checked_sub(Duration::from_secs(10)).expect("a past");
        progress.step(60);
        assert_eq!(position(), 60);
        // 10 steps in 10 s, 140 to go.
        let message = progress.inner().message();
        assert!(message.starts_with("step 60/200  2m ") && message.ends_with("s left"), "{message}");
        assert!(progress.time_left().is_some_and(|left| (135..=140).contains(&left.as_secs())));
        progress.finish();
    }

    /// A terminal that remembers the lines that were drawn.
    #[derive(Debug, Clone)]
    struct Terminal {
        columns: u16,
        drawn: Arc<Mutex<Vec<String>>>,
    }

    impl indicatif::TermLike for Terminal {
        fn width(&self) -> u16 {
            self.columns
        }

        fn move_cursor_up(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }

        fn move_cursor_down(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }

        fn move_cursor_right(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }

        fn move_cursor_left(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }

        fn write_line(&self, line: &str) -> std::io::Result<()> {
            self.write_str(line)
        }

        fn write_str(&self, text: &str) -> std::io::Result<()> {
            self.drawn.lock().expect("lock").push(console::strip_ansi_codes(text).into_owned());
            Ok(())
        }

        fn clear_line(&self) -> std::io::Result<()> {
            Ok(())
        }

        fn flush(&self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_narrow_terminal_shows_words_before_the_gauge_and_never_a_second_line() {
        let last = |columns: u16, total: Option<u64>| {
            let terminal = Terminal { columns, drawn: Arc::default() };
            let target = ProgressDrawTarget::term_like_with_hz(Box::new(terminal.clone()), 255);
            let progress = Console::with_target(target, columns, total, 50);
            progress.stage("generating round 1: 0/64");
            std::thread::sleep(Duration::from_millis(20));
            progress.stage("generating round 2: 0/64");
            let drawn = terminal.drawn.lock().expect("lock").clone();
            for line in &drawn {
                assert!(line.chars().count() <= usize::from(columns), "{columns}: {line:?}");
            }
            drawn
                .into_iter()
                .rev()
                .find(|line| line.contains("generating"))
                .expect("drawn")
                .trim_end()
                .to_owned()
        };
        let line = last(40, Some(200));
        assert!(line.starts_with("step 50/200  generating round 2:"), "{line}");
        let line = last(40, None);
        assert!(line.contains("step 50  generating round 2:"), "{line}");
        assert_eq!(last(24, Some(200)), "step 50/200  generating");
        assert!(last(100, Some(200)).starts_with("=====> "), "{}", last(100, Some(200)));
    }

    #[test]
    fn lines_are_wrapped_at_words() {
        let text = "run directory runs/a\nobjective: preset dapo; clip 0.2/0.28\n";
        assert_eq!(wrap(text, 80), text);
        assert_eq!(wrap(text, 20), "run directory runs/a\nobjective: preset\n  dapo; clip\n  0.2/0.28\n");
        assert_eq!(wrap("/a/path/that/is/longer and more", 10), "/a/path/that/is/longer\n  and more");
        assert_eq!(wrap("äöü äöü äöü", 7), "äöü äöü\n  äöü");
        assert_eq!(wrap("12 | a: 1, b: 2\n   |       ^^^^", 9), "12 | a: 1, b: 2\n   |       ^^^^");
        assert_eq!(wrap("  in two", 5), "  in\n  two");
        for columns in 0..40 {
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(words(&wrap(text, columns)), words(text));
        }
    }

    #[test]
    fn a_quiet_console_says_warnings_and_logs_all() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("run.log");
        let screen = Captured::default();
        let progress = Console::plain(Box::new(screen.clone()), None, 0);
        progress.inner().verbosity = Verbosity::Quiet;
        progress.copy_to(RunLog::open(&Disk::without_flush(), &path).expect("open"));
        progress.say("one");
        progress.detail("two");
        progress.measured("three");
        progress.say_step("four, in full", "four");
        progress.warn("five");
        assert_eq!(screen.text(), "warning: five\n");
        let log = std::fs::read_to_string(&path).expect("read");
        let logged: Vec<&str> = log.lines().map(|line| &line[25..]).collect();
        assert_eq!(logged, ["info one", "info two", "info three", "info four, in full", "warning five"]);
    }

    #[test]
    fn a_quiet_terminal_shows_warnings_cut_at_words() {
        let screen = Captured::default();
        let plain = Screen::Plain { writer: Box::new(screen.clone()), is_terminal: true };
        let progress = Console::new(plain, None, 0);
        progress.inner().verbosity = Verbosity::Quiet;
        progress.warn("word ".repeat(300).trim_end());
        let (_, columns) = console::Term::stderr().size();
        let text = screen.text();
        assert!(text.lines().count() > 1, "{text}");
        for line in text.lines() {
            assert!(line.chars().count() <= usize::from(columns) && line.ends_with("word"), "{line:?}");
        }
    }

    #[test]
    fn what_is_no_terminal_gets_all() {
        let screen = Captured::default();
        let progress = Console::plain(Box::new(screen.clone()), None, 0);
        progress.detail("round 1: 12 of 32 kept");
        progress.say_step("step 1  reward 0.500  entropy 0.2", "step 1  reward 0.500");
        assert_eq!(screen.text(), "round 1: 12 of 32 kept\nstep 1  reward 0.500  entropy 0.2\n");
    }

    #[test]
    fn durations() {
        let shown = [0, 59, 60, 185, 3600, 7620, 86_399, 93_600]
            .map(|seconds| duration(Duration::from_secs(seconds)));
        assert_eq!(shown, ["0s", "59s", "1m 00s", "3m 05s", "1h 00m", "2h 07m", "23h 59m", "1d 02h"]);
    }
}
