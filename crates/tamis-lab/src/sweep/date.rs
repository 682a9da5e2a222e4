//! Month and day, as names of runs begin with them.

use std::time::{SystemTime, UNIX_EPOCH};

/// Month and day of today in UTC, as `0120`.
pub fn month_and_day() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    month_and_day_of(since.as_secs() / 86_400)
}

/// Month and day of a day, counted from 1 January 1970 (proleptic Gregorian calendar).
fn month_and_day_of(days: u64) -> String {
    // Years begin in March here, so that the leap day is the last of its year; an era is 400 years.
    let day_of_era = (days + 719_468) % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    format!("{month:02}{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `date -u -d '1970-01-01 + N days' +%m%d` prints them.
    #[test]
    fn days() {
        assert_eq!(month_and_day_of(0), "0101");
        assert_eq!(month_and_day_of(951_782_400 / 86_400), "0229");
        assert_eq!(month_and_day_of(1_709_251_200 / 86_400), "0301");
        assert_eq!(month_and_day_of(1_795_238_400 / 86_400), "1121");
        assert_eq!(month_and_day_of(4_107_542_399 / 86_400), "0228");
    }
}
