//! `run.log`: everything the run said, each line with its time (UTC) and its kind.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

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

/// Texts of the last line of a run's log, by how the run ended; that of one that failed is an error.
pub mod end {
    /// All that was planned is done.
    pub const FINISHED: &str = "the run ends: all of its steps are done";
    /// An early stop ended it.
    pub const STOPPED_EARLY: &str = "the run ends: stopped early";
    /// It can be resumed.
    pub const INTERRUPTED: &str = "the run ends: interrupted";
}

/// The log, open for appending.
#[derive(Debug)]
pub struct RunLog {
    file: AppendFile,
}

impl RunLog {
    /// Opens the log, creating it where it is not there.
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
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = timestamp(since.as_secs(), since.subsec_millis());
    text.lines().fold(String::new(), |stamped, line| stamped + &time + " " + level.name() + " " + line + "\n")
}

/// `2026-11-21T05:12:33.123Z` from seconds since 1970 (proleptic Gregorian calendar).
fn timestamp(seconds: u64, millis: u32) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that the leap day is the last of its year; an era is 400 years.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// As `date -u -d @<seconds>` prints them.
    #[test]
    fn timestamps() {
        assert_eq!(timestamp(0, 0), "1970-01-01T00:00:00.000Z");
        assert_eq!(timestamp(951_782_399, 999), "2000-02-28T23:59:59.999Z");
        assert_eq!(timestamp(951_782_400, 1), "2000-02-29T00:00:00.001Z");
        assert_eq!(timestamp(1_709_251_200, 0), "2024-03-01T00:00:00.000Z");
        assert_eq!(timestamp(1_795_238_400, 0), "2026-11-21T05:20:00.000Z");
        assert_eq!(timestamp(4_107_542_399, 0), "2100-02-28T23:59:59.000Z");
        assert_eq!(timestamp(4_107_542_400, 0), "2100-03-01T00:00:00.000Z");
    }

    #[test]
    fn each_line_is_stamped() {
        let text = stamp_lines(UNIX_EPOCH + Duration::from_millis(61_007), LineKind::Warning, "one\ntwo");
        assert_eq!(text, "1970-01-01T00:01:01.007Z warning one\n1970-01-01T00:01:01.007Z warning two\n");
    }
}
