//! The live view: what was written since the last look, drawn again and again until a key or a signal.
//!
//! The terminal is put back whatever ends the view: a key, an error, a signal, a panic.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tamis_report::monitor::{Watch, WatchedRun};

use super::view::{Look, draw};
use crate::failure::{FAILED, Failure, INTERRUPTED};

/// A signal is noticed after so long at the latest.
const LONGEST_WAIT: Duration = Duration::from_millis(200);

/// The terminal, as long as it is ours.
struct Screen {
    terminal: DefaultTerminal,
}

impl Screen {
    /// Takes the terminal over; a panic puts it back before it is printed.
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

/// What the user wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    Quit,
    LookNow,
    Redraw,
}

/// Shows a run until the user has seen enough.
pub(super) fn follow(mut watch: Watch, interval: Duration, look: Look) -> Result<u8, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    ctrlc::set_handler(move || stopped.store(true, Ordering::Relaxed))
        .map_err(|error| Failure::new(FAILED, format!("error: failed to listen for signals: {error}")))?;
    let failed = |error: io::Error| {
        Failure::new(
            FAILED,
            format!("error: failed to use the terminal: {error}\n  hint: `--once` prints the same as text"),
        )
    };
    let mut screen = Screen::take().map_err(failed)?;
    let mut summary = watch.summary();
    let mut due = Instant::now() + interval;
    loop {
        screen.terminal.draw(|frame| draw(frame, &summary, look)).map_err(failed)?;
        if stop.load(Ordering::Relaxed) {
            return Ok(INTERRUPTED);
        }
        let wait = due.saturating_duration_since(Instant::now()).min(LONGEST_WAIT);
        match wish(wait).map_err(failed)? {
            Some(Wish::Quit) => return Ok(0),
            Some(Wish::LookNow) => due = Instant::now(),
            Some(Wish::Redraw) | None => {}
        }
        if Instant::now() >= due {
            summary = next(&mut watch);
            due = Instant::now() + interval;
        }
    }
}

/// What is known now; a file that cannot be read for the moment is a note.
fn next(watch: &mut Watch) -> WatchedRun {
    let failure = watch.follow().err();
    let mut summary = watch.summary();
    if let Some(error) = failure.or_else(|| watch.check_understood().err()) {
        let cause = std::error::Error::source(&error).map_or_else(String::new, |cause| format!(": {cause}"));
        summary.notes.insert(0, format!("{error}{cause}"));
    }
    summary
}

fn wish(wait: Duration) -> io::Result<Option<Wish>> {
    if !event::poll(wait)? {
        return Ok(None);
    }
    Ok(match event::read()? {
        Event::Key(key) if key.kind == KeyEventKind::Press => wish_of(key),
        Event::Resize(..) => Some(Wish::Redraw),
        _ => None,
    })
}

fn wish_of(key: KeyEvent) -> Option<Wish> {
    match key.code {
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => Some(Wish::Quit),
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
    }
}
