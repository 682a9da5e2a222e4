//! Lines about what takes long, for a console that shows nothing else.

use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use super::Console;
use super::text::duration;

/// Shows what a console that keeps warnings does at the time, until it is dropped.
pub struct StageLines {
    spinner: Option<ProgressBar>,
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl StageLines {
    /// Lines to a writer, unless a spinner shows the stage.
    pub(super) fn begin(
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
