//! `tamis serve` and `tamis learner` as child processes.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command};

use crate::tamis::Folder;

/// A process that listens, ended with the value.
pub(crate) struct Listening {
    pub(crate) child: Child,
    pub(crate) address: String,
}

impl Listening {
    /// `tamis serve` at a free port.
    pub(crate) fn serve(folder: &Folder, arguments: &[&str]) -> Self {
        Self::of(folder.start(&[&["serve"], arguments, &["--port", "0", "--threads", "1"]].concat()))
    }

    /// `tamis learner`.
    pub(crate) fn learner(folder: &Folder, arguments: &[&str]) -> Self {
        Self::of(folder.start(&[&["learner", "--threads", "1"], arguments].concat()))
    }

    /// A process that prints its address.
    pub(crate) fn of(mut child: Child) -> Self {
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let Some(address) = line.trim_end().strip_prefix("listening on ") else {
            let mut printed = String::new();
            child.stderr.take().unwrap().read_to_string(&mut printed).unwrap();
            panic!("{line:?}\n{printed}");
        };
        Self { address: address.to_owned(), child }
    }

    /// Sends a signal and returns the exit code.
    pub(crate) fn end(mut self, signal: &str) -> Option<i32> {
        let killed = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(killed.success());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
