//! Durations: `30s`, `500ms`, `2m`, `1h30m`, `1d`, `0.5s`, and bare seconds.

use std::time::Duration;

use crate::error::Error;
use crate::spec::decimal::{Decimal, split_number};
use crate::spec::received::{bad, quoted};

pub const DURATION_MIN: Duration = Duration::from_millis(1);
/// Ten years; past it a number is a mistake, and sums of clocks stay far from
/// overflowing.
pub const DURATION_MAX: Duration = Duration::from_secs(3650 * 24 * 60 * 60);

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Units from the largest to the smallest, the order in which they may follow
/// each other.
const UNITS: [(&str, u64); 5] = [
    ("d", 86_400 * NANOS_PER_SECOND),
    ("h", 3_600 * NANOS_PER_SECOND),
    ("m", 60 * NANOS_PER_SECOND),
    ("s", NANOS_PER_SECOND),
    ("ms", 1_000_000),
];

const FORMS: &str = "write a duration such as 30s, 500ms, 2m or 1h30m, from 1ms to 3650d";

pub fn parse(text: &str) -> Result<Duration, Error> {
    let nanos =
        nanos(text).ok_or_else(|| bad(format!("{} is not a duration", quoted(text)), FORMS))?;
    let range = DURATION_MIN.as_nanos()..=DURATION_MAX.as_nanos();
    match u64::try_from(nanos) {
        Ok(whole) if range.contains(&nanos) => Ok(Duration::from_nanos(whole)),
        Ok(_) | Err(_) => Err(bad(format!("{} is outside 1ms to 3650d", quoted(text)), FORMS)),
    }
}

/// `1h30m`, `30s`, `1m0.5s`: the form that [`parse`] reads back.
pub fn show(duration: Duration) -> String {
    let mut rest = duration.as_secs();
    let mut shown = String::new();
    for (unit, seconds) in [("d", 86_400), ("h", 3_600), ("m", 60)] {
        if rest >= seconds {
            shown += &format!("{}{unit}", rest / seconds);
            rest %= seconds;
        }
    }
    match (rest, duration.subsec_millis()) {
        (0, 0) if !shown.is_empty() => {}
        (seconds, 0) => shown += &format!("{seconds}s"),
        (0, millis) => shown += &format!("{millis}ms"),
        (seconds, millis) => shown += &format!("{seconds}s{millis}ms"),
    }
    shown
}

/// `None` for what is not a duration at all.
fn nanos(text: &str) -> Option<u128> {
    if let Some(seconds) = Decimal::parse(text) {
        return seconds.times(NANOS_PER_SECOND);
    }
    let mut rest = text;
    let mut units = UNITS.iter();
    let mut sum = 0_u128;
    while !rest.is_empty() {
        let (number, after) = split_number(rest);
        let end =
            after.find(|character: char| !character.is_ascii_alphabetic()).unwrap_or(after.len());
        let (suffix, next) = after.split_at(end);
        let suffix = suffix.to_ascii_lowercase();
        // `find` moves the iterator on, so that no unit comes twice or late.
        let (_, unit) = units.find(|(name, _)| *name == suffix)?;
        sum = sum.checked_add(Decimal::parse(number)?.times(*unit)?)?;
        rest = next;
    }
    (!text.is_empty()).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_in_every_spelling() {
        for (text, millis) in [
            ("30", 30_000),
            ("0.5", 500),
            ("30s", 30_000),
            ("0.5s", 500),
            ("500ms", 500),
            ("1ms", 1),
            ("2m", 120_000),
            ("2M", 120_000),
            ("1h30m", 5_400_000),
            ("1.5h", 5_400_000),
            ("1m500ms", 60_500),
            ("1d", 86_400_000),
            ("3650d", 3650 * 86_400_000),
        ] {
            assert_eq!(parse(text).unwrap(), Duration::from_millis(millis), "{text}");
        }
    }

    /// B017
    #[test]
    fn what_is_not_a_duration_is_refused() {
        for text in [
            "", "banana", "NaN", "Infinity", "inf", "-1", "-1s", "+1s", "1e400", "0x10", "1_000",
            "true", "1y", "s", "30 s", " 30s", "1m1h", "1s1s", "30s5", "1..5s", "1s\n",
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.ends_with("is not a duration"), "{error}");
        }
    }

    /// B021
    #[test]
    fn durations_outside_the_range_name_it() {
        for text in
            ["0", "0s", "0.0001", "0.9ms", "3651d", "1000000000000000000", "99999999999999999999d"]
        {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.ends_with("is outside 1ms to 3650d"), "{error}");
        }
    }

    #[test]
    fn what_is_shown_reads_back() {
        for shown in ["30s", "500ms", "1h30m", "1d", "1m5s", "2s500ms", "1h500ms"] {
            assert_eq!(show(parse(shown).unwrap()), shown);
        }
        assert_eq!(show(Duration::ZERO), "0s");
    }
}
