//! `run.log`: every message of the run, each line with its time (UTC) and its kind.

use std::path::Path;
use std::time::SystemTime;

use chrono::{DateTime, SecondsFormat, Utc};

use crate::durable::{AppendFile, Disk, DiskError};

/// Kind of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineKind {
    /// News of the run.
    Info,
    /// A warning for the user.
    Warning,
    /// Why the run ends.
    Error,
}

impl LineKind {
    fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// The log, open for appending.
#[derive(Debug)]
pub struct RunLog {
    file: AppendFile,
}

impl RunLog {
    /// Opens the log, creating it if it does not exist.
    pub fn open(disk: &Disk, path: &Path) -> Result<Self, DiskError> {
        Ok(Self { file: disk.append_to(path)? })
    }

    /// Appends a text, each of its lines with the time.
    pub fn write(&mut self, level: LineKind, text: &str) -> Result<(), DiskError> {
        self.file.append(stamp_lines(SystemTime::now(), level, text).as_bytes())
    }

    /// Flushes to the device; returns the length in bytes.
    pub fn sync(&mut self) -> Result<u64, DiskError> {
        self.file.sync()?;
        Ok(self.file.length())
    }
}

fn stamp_lines(now: SystemTime, level: LineKind, text: &str) -> String {
    let time = DateTime::<Utc>::from(now).to_rfc3339_opts(SecondsFormat::Millis, true);
    text.lines().fold(String::new(), |stamped, line| stamped + &time + " " + level.name() + " " + line + "\n")
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn each_line_is_stamped() {
        let text = stamp_lines(UNIX_EPOCH + Duration::from_millis(61_007), LineKind::Warning, "one\ntwo");
        assert_eq!(text, "1970-01-01T00:01:01.007Z warning one\n1970-01-01T00:01:01.007Z warning two\n");
    }
}
