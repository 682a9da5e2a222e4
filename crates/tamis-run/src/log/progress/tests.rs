//! What a console shows and logs.

use super::text::wrap;
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
    assert!(screen.text().contains("half of it (") && !screen.text().contains("shown"), "{}", screen.text());
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
    let long = format!("info environment (game.py), step 1: {} ... and 3 more characters", "x".repeat(500));
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
        drawn.into_iter().rev().find(|line| line.contains("generating")).expect("drawn").trim_end().to_owned()
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
    let shown =
        [0, 59, 60, 185, 3600, 7620, 86_399, 93_600].map(|seconds| duration(Duration::from_secs(seconds)));
    assert_eq!(shown, ["0s", "59s", "1m 00s", "3m 05s", "1h 00m", "2h 07m", "23h 59m", "1d 02h"]);
}
