//! The live view: reads what was appended, draws it, and repeats until a key or a signal.
//!
//! The terminal is restored however the view ends: by a key, an error, a signal or a panic.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::view::{Look, draw};
use super::{Watch, WatchedRun};

/// Longest time until a signal is noticed.
const LONGEST_WAIT: Duration = Duration::from_millis(200);

/// The terminal, as long as the view uses it.
struct Screen {
    terminal: DefaultTerminal,
}

impl Screen {
    /// Prepares the terminal for the view. A panic restores it before it is printed.
    fn take() -> io::Result<Self> {
        match ratatui::try_init() {
            Ok(terminal) => Ok(Self { terminal }),
            Err(error) => {
                // What was switched before the failure is switched back.
                let _ = ratatui::try_restore();
                Err(error)
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = ratatui::try_restore();
    }
}

/// Why the view was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// A key.
    Quit,
    /// The flag was set.
    Stopped,
}

/// What a key means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    Quit,
    LookNow,
    /// The next sampled completion.
    Sample,
    /// Back to the figures; from the figures, quit.
    Back,
    Redraw,
}

/// Shows a run until the user quits or `stop` is set.
///
/// # Errors
/// As the terminal's.
pub fn follow(mut watch: Watch, interval: Duration, look: Look, stop: &AtomicBool) -> io::Result<Closed> {
    let mut screen = Screen::take()?;
    let wishes = listen();
    let mut summary = watch.summary();
    let mut due = Instant::now() + interval;
    let (mut sample, mut num_samples) = (None, 0);
    loop {
        screen.terminal.draw(|frame| draw(frame, &summary, sample.as_ref(), look))?;
        if stop.load(Ordering::Relaxed) {
            return Ok(Closed::Stopped);
        }
        let wait = due.saturating_duration_since(Instant::now()).min(LONGEST_WAIT);
        match wishes.recv_timeout(wait) {
            Ok(Ok(Wish::Quit)) => return Ok(Closed::Quit),
            Ok(Ok(Wish::Back)) => {
                if sample.take().is_none() {
                    return Ok(Closed::Quit);
                }
            }
            Ok(Ok(Wish::Sample)) => {
                sample = Some(watch.sample(num_samples));
                num_samples += 1;
            }
            Ok(Ok(Wish::LookNow)) => due = Instant::now(),
            Ok(Err(error)) => return Err(error),
            // After an error, which was reported, the channel is closed.
            Ok(Ok(Wish::Redraw)) | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
        if Instant::now() >= due {
            summary = next(&mut watch);
            due = Instant::now() + interval;
        }
    }
}

/// The present state. A file that cannot be read at the moment gives a note.
fn next(watch: &mut Watch) -> WatchedRun {
    let failure = watch.follow().err();
    let mut summary = watch.summary();
    if let Some(error) = failure.or_else(|| watch.check_understood().err()) {
        let cause = std::error::Error::source(&error).map_or_else(String::new, |cause| format!(": {cause}"));
        summary.notes.insert(0, format!("{error}{cause}"));
    }
    summary
}

/// The keys that the user presses, from now on. A thread reads the events. If the terminal has gone, that
/// reading never returns (crossterm 0.29 reads the end of its input again and again), and a signal or a
/// failed drawing ends the view.
fn listen() -> Receiver<io::Result<Wish>> {
    let (sender, wishes) = mpsc::channel();
    std::thread::spawn(move || {
        loop {
            let wish = match event::read() {
                Ok(Event::Key(key)) if key.kind == KeyEventKind::Press => wish_of(key).map(Ok),
                Ok(Event::Resize(..)) => Some(Ok(Wish::Redraw)),
                Ok(_) => None,
                Err(error) => Some(Err(error)),
            };
            let failed = matches!(wish, Some(Err(_)));
            if wish.is_some_and(|wish| sender.send(wish).is_err()) || failed {
                return;
            }
        }
    });
    wishes
}

fn wish_of(key: KeyEvent) -> Option<Wish> {
    match key.code {
        KeyCode::Char('q' | 'Q') => Some(Wish::Quit),
        KeyCode::Esc => Some(Wish::Back),
        KeyCode::Char('s' | 'S') => Some(Wish::Sample),
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(Wish::Quit),
        KeyCode::Char('r' | 'R') => Some(Wish::LookNow),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys() {
        let wish = |code, modifiers| wish_of(KeyEvent::new(code, modifiers));
        assert_eq!(wish(KeyCode::Char('q'), KeyModifiers::NONE), Some(Wish::Quit));
        assert_eq!(wish(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Wish::Quit));
        assert_eq!(wish(KeyCode::Char('c'), KeyModifiers::NONE), None);
        assert_eq!(wish(KeyCode::Char('r'), KeyModifiers::NONE), Some(Wish::LookNow));
        assert_eq!(wish(KeyCode::Char('s'), KeyModifiers::NONE), Some(Wish::Sample));
        assert_eq!(wish(KeyCode::Esc, KeyModifiers::NONE), Some(Wish::Back));
    }
}
