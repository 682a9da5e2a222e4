//! A Python function of the user's as a loss or an advantage: where it is and how its process is kept.
//!
//! This crate calls no function. Whoever runs an objective calls it and passes the results as a column: the
//! values and derivatives of a loss ([`Columns::given`](crate::objective::Columns::given)), the advantages of
//! an estimator ([`AdvantageBatch::given`](crate::advantage::AdvantageBatch::given)).

use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json};

use crate::setting::{Program, TimeSpan};
use crate::settings;

settings! {
    /// A Python function, and how its process is kept. The process lives as long as the run.
    pub struct OwnFunction {
        /// Python file with the function, then a colon and the function's name: `my.py:name`. Without a name
        /// the function is called as its section, `loss` or `advantage`.
        path: PathBuf, NotEmpty;
        /// Further keyword arguments of every call.
        kwargs: Map<String, Json> = Map::new();
        /// Python interpreter. `run.python`: that of this key.
        python: Program = Program::of_run(), NotEmpty, Free;
        /// Longest time of one call.
        timeout: TimeSpan = TimeSpan::seconds(60), Any, Free;
        /// Time that the first call of a fresh process may take beyond `timeout` (imports).
        startup_timeout: TimeSpan = TimeSpan::seconds(120), Any, Free;
    }
}

impl OwnFunction {
    /// The function of a file, with defaults.
    pub fn of(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            kwargs: Map::new(),
            python: Program::of_run(),
            timeout: TimeSpan::seconds(60),
            startup_timeout: TimeSpan::seconds(120),
        }
    }

    /// The file, without the function's name.
    pub fn file(&self) -> PathBuf {
        split(&self.path).0
    }

    /// The function's name; `section` (`loss`, `advantage`) if the path has none.
    pub fn name(&self, section: &str) -> String {
        split(&self.path).1.unwrap_or_else(|| section.to_owned())
    }
}

/// A path and the name behind its last colon. Only a name that Python accepts is one.
fn split(path: &Path) -> (PathBuf, Option<String>) {
    let text = path.to_string_lossy();
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_alphanumeric() || c == '_')
    };
    match text.rsplit_once(':') {
        Some((file, name)) if !file.is_empty() && is_name(name) => (file.into(), Some(name.to_owned())),
        _ => (path.to_owned(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_follows_the_last_colon() {
        for (path, file, name) in [
            ("my.py:loss", "my.py", "loss"),
            ("a/b.py:my_loss2", "a/b.py", "my_loss2"),
            ("my.py", "my.py", "section"),
            ("C:/my.py", "C:/my.py", "section"),
            ("a:b/my.py:_f", "a:b/my.py", "_f"),
            ("my.py:2nd", "my.py:2nd", "section"),
            (":loss", ":loss", "section"),
        ] {
            let function = OwnFunction::of(path);
            assert_eq!((function.file(), function.name("section")), (file.into(), name.to_owned()), "{path}");
        }
    }
}
