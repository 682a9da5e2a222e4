//! `tamis serve` as a child process.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command};

use crate::tamis::Folder;

/// A server, ended with the value.
pub(crate) struct Serving {
    pub(crate) child: Child,
    pub(crate) address: String,
}

impl Serving {
    pub(crate) fn begin(folder: &Folder, arguments: &[&str]) -> Self {
        let mut child = folder.start(&[&["serve"], arguments, &["--port", "0", "--threads", "1"]].concat());
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let Some(address) = line.trim_end().strip_prefix("listening on ") else {
            let mut told = String::new();
            child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
            panic!("{line:?}\n{told}");
        };
        Self { address: address.to_owned(), child }
    }

    /// Sends a signal, and the exit code that it comes to.
    pub(crate) fn end(mut self, signal: &str) -> Option<i32> {
        let killed = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(killed.success());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
