//! Reads times as tare prints them, without tare's code.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970 of `2024-01-31T12:34:56Z`, with or without fractions of a
/// second (RFC 3339, in UTC); fails the test on anything else.
#[track_caller]
pub fn unix_seconds(text: &str) -> i64 {
    parsed(text).unwrap_or_else(|| panic!("not a time of RFC 3339 in UTC: {text:?}"))
}

pub fn unix_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let seconds = since.expect("it is later than 1970").as_secs();
    i64::try_from(seconds).expect("it is not the end of time")
}

fn parsed(text: &str) -> Option<i64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, second] = numbers(time.split('.').next()?, ':')?;
    Some(days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second)
}

fn numbers(text: &str, separator: char) -> Option<[i64; 3]> {
    let parts = text.split(separator).map(|part| part.parse().ok());
    let parts: Option<Vec<i64>> = parts.collect();
    parts?.try_into().ok()
}

/// Days since 1970 in the Gregorian calendar, years counted from March so that
/// the leap day is the last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = match month {
        1 | 2 => (year - 1, month + 9),
        _ => (year, month - 3),
    };
    let of_year = (153 * month + 2) / 5 + day - 1;
    365 * year + year / 4 - year / 100 + year / 400 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_read_as_seconds() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T12:00:00Z", 951_825_600),
            ("2024-12-31T23:59:59.5Z", 1_735_689_599),
            ("2026-03-01T00:00:00Z", 1_772_323_200),
        ] {
            assert_eq!(unix_seconds(text), seconds, "{text}");
        }
        for text in ["", "2024-12-31", "2024-12-31T23:59:59+01:00", "yesterday"] {
            assert_eq!(parsed(text), None, "{text}");
        }
    }
}
