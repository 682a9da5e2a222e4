//! `strftime_now`.

use std::fmt::Write;

use chrono::DateTime;

/// C's `strftime` for a time in UTC, English names; `%-d` drops the leading zero; an unknown directive stays
/// as it is.
pub(super) fn strftime(format: &str, seconds: i64) -> String {
    let time = DateTime::from_timestamp(seconds, 0).unwrap_or_default();
    let mut out = String::new();
    let mut characters = format.chars().peekable();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let bare = if characters.next_if_eq(&'-').is_some() { "-" } else { "" };
        let _ = match characters.next() {
            Some(number) if "YymdHIMSjuw".contains(number) => {
                write!(out, "{}", time.format(&format!("%{bare}{number}")))
            }
            Some(part) if "seBbhAapZzFTXRDxcnt%".contains(part) => {
                write!(out, "{}", time.format(&format!("%{part}")))
            }
            Some(other) => write!(out, "%{bare}{other}"),
            None => write!(out, "%"),
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        // 2024-02-29 23:05:09 UTC, a Thursday, day 60 of its year.
        let seconds = 1_709_247_909;
        assert_eq!(
            strftime("%d %b %Y|%Y-%m-%d|%A %-d. %B|%j|%I:%M %p|%S|%%|%Q", seconds),
            "29 Feb 2024|2024-02-29|Thursday 29. February|060|11:05 PM|09|%|%Q"
        );
        assert_eq!(strftime("%F %T %a", 0), "1970-01-01 00:00:00 Thu");
        assert_eq!(strftime("%F %-H", -1), "1969-12-31 23");
        assert_eq!(strftime("100%", 0), "100%");
    }
}
