//! `strftime_now`.

use std::fmt::Write;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// C's `strftime` for a time in UTC, English names; `%-d` drops the leading zero; an unknown directive stays
/// as it is.
pub(super) fn strftime(format: &str, seconds: i64) -> String {
    let days = seconds.div_euclid(86_400);
    let second_of_day = seconds.rem_euclid(86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);
    // 1970-01-01 was a Thursday.
    let weekday = (days + 3).rem_euclid(7);
    let day_of_year = days - days_from_civil(year, 1, 1) + 1;
    let hour12 = if hour % 12 == 0 { 12 } else { hour % 12 };
    let name = |names: &[&'static str], index: i64| {
        usize::try_from(index).ok().and_then(|index| names.get(index)).copied().unwrap_or_default()
    };
    let short = |name: &'static str| name.get(..3).unwrap_or(name);
    let mut out = String::new();
    let mut characters = format.chars().peekable();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let bare = characters.next_if_eq(&'-').is_some();
        let Some(directive) = characters.next() else {
            out.push('%');
            break;
        };
        let mut padded = |value: i64, width: usize| {
            let _ = if bare { write!(out, "{value}") } else { write!(out, "{value:0width$}") };
        };
        match directive {
            'Y' => padded(year, 4),
            'y' => padded(year.rem_euclid(100), 2),
            'm' => padded(month, 2),
            'd' => padded(day, 2),
            'H' => padded(hour, 2),
            'I' => padded(hour12, 2),
            'M' => padded(minute, 2),
            'S' => padded(second, 2),
            'j' => padded(day_of_year, 3),
            'u' => padded(weekday + 1, 1),
            'w' => padded((weekday + 1) % 7, 1),
            's' => padded(seconds, 1),
            'e' => {
                let _ = write!(out, "{day:2}");
            }
            'B' => out.push_str(name(&MONTHS, month - 1)),
            'b' | 'h' => out.push_str(short(name(&MONTHS, month - 1))),
            'A' => out.push_str(name(&DAYS, weekday)),
            'a' => out.push_str(short(name(&DAYS, weekday))),
            'p' => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            'Z' => out.push_str("UTC"),
            'z' => out.push_str("+0000"),
            'F' => out.push_str(&strftime("%Y-%m-%d", seconds)),
            'T' | 'X' => out.push_str(&strftime("%H:%M:%S", seconds)),
            'R' => out.push_str(&strftime("%H:%M", seconds)),
            'D' | 'x' => out.push_str(&strftime("%m/%d/%y", seconds)),
            'c' => out.push_str(&strftime("%a %b %e %H:%M:%S %Y", seconds)),
            'n' => out.push('\n'),
            't' => out.push('\t'),
            '%' => out.push('%'),
            other => {
                out.push('%');
                if bare {
                    out.push('-');
                }
                out.push(other);
            }
        }
    }
    out
}

/// Year, month and day of a day count from 1970-01-01 (Gregorian), by 400-year eras that begin in March.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let shifted_month = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
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
