//! Times. [`Timestamp`] is a moment of the wall clock, as users and JSON see it: RFC 3339 in UTC
//! with milliseconds, `2026-11-15T22:09:05.123Z`. [`from_now`] is a moment of the boot clock.
//!
//! Deadlines are on the boot clock (`CLOCK_BOOTTIME`), in nanoseconds: it also counts while the
//! host sleeps, and it cannot be set. A timestamp is only shown and compared with other timestamps.
//! It never ends a box.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tare_kernel::clock::boot_ns;

use crate::error::Error;
use crate::spec::quantity;
use crate::spec::shown::quoted;

/// A moment of the wall clock, in milliseconds since 1970. Its year has four digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Timestamp {
    since_epoch_ms: u64,
}

/// 9999-12-31T23:59:59.999Z, the last moment that RFC 3339 can express.
const SINCE_EPOCH_MS_MAX: u64 = 253_402_300_799_999;
const FORM: &str = "write it as 2026-11-15T22:09:05Z";
const MS_PER_DAY: u64 = 86_400_000;

/// Returns the moment of the boot clock that is `duration` from now, in nanoseconds.
pub fn from_now(duration: Duration) -> u64 {
    boot_ns().saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

/// One moment on both clocks.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// In UTC, by the wall clock.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub at: Timestamp,
    /// Nanoseconds of the boot clock.
    pub boot_ns: u64,
}

impl Moment {
    pub fn now() -> Self {
        Self { at: Timestamp::now(), boot_ns: boot_ns() }
    }

    /// Returns the wall-clock time of a moment of the same boot that is not before this one. Setting
    /// the clock in between changes nothing.
    pub fn at_ns(self, boot_ns: u64) -> Timestamp {
        self.at.after(Duration::from_nanos(boot_ns.saturating_sub(self.boot_ns)))
    }
}

impl Timestamp {
    pub const MAX: Self = Self { since_epoch_ms: SINCE_EPOCH_MS_MAX };

    pub fn now() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let since_epoch_ms = since_epoch.unwrap_or_default().as_millis();
        Self::from_ms(u64::try_from(since_epoch_ms).unwrap_or(u64::MAX))
    }

    /// Moments after the year 9999 become its end.
    pub fn from_ms(since_epoch_ms: u64) -> Self {
        Self { since_epoch_ms: since_epoch_ms.min(SINCE_EPOCH_MS_MAX) }
    }

    pub fn as_ms(self) -> u64 {
        self.since_epoch_ms
    }

    /// Returns an earlier moment, at the earliest the beginning of 1970.
    pub fn before(self, duration: Duration) -> Self {
        let earlier_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Self::from_ms(self.since_epoch_ms.saturating_sub(earlier_ms))
    }

    /// Returns a later moment, at the latest the end of the year 9999.
    pub fn after(self, duration: Duration) -> Self {
        let later_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Self::from_ms(self.since_epoch_ms.saturating_add(later_ms))
    }

    /// Returns the time from `earlier` to this moment, and zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.since_epoch_ms.saturating_sub(earlier.since_epoch_ms))
    }

    /// Reads a moment as in [`Self::parse`], or a duration before now, such as `10m`.
    pub fn parse_or_ago(text: &str) -> Result<Self, Error> {
        if let Ok(ago) = quantity::duration(text) {
            return Ok(Self::now().before(ago));
        }
        Self::parse(text).map_err(|_| {
            let message = format!("{} is neither a duration nor a time", quoted(text));
            Error::bad_request(message)
                .with_hint("write 10m for ten minutes ago, or 2026-11-15T22:09:05Z")
        })
    }

    /// Reads RFC 3339 with any offset and any number of decimals. It drops decimals past the
    /// third.
    pub fn parse(text: &str) -> Result<Self, Error> {
        parse_ms(text).map(Self::from_ms).ok_or_else(|| {
            let message = format!("{} is not a time since 1970", quoted(text));
            Error::bad_request(message).with_hint(FORM)
        })
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = date_of(self.since_epoch_ms / MS_PER_DAY);
        let in_day_ms = self.since_epoch_ms % MS_PER_DAY;
        let (in_day_s, ms) = (in_day_ms / 1000, in_day_ms % 1000);
        let (hour, minute, second) = (in_day_s / 3600, in_day_s / 60 % 60, in_day_s % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
    }
}

impl From<Timestamp> for String {
    fn from(timestamp: Timestamp) -> Self {
        timestamp.to_string()
    }
}

impl TryFrom<String> for Timestamp {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        Self::parse(&text)
    }
}

/// Returns `None` for text that is not RFC 3339, for a day that is not in the calendar, and for
/// moments outside 1970 to 9999.
fn parse_ms(text: &str) -> Option<u64> {
    let (date, rest) = text.split_at_checked("2026-11-15".len())?;
    let (clock, rest) = rest.strip_prefix(['T', 't', ' '])?.split_at_checked("22:09:05".len())?;
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let [hour, minute, second] = numbers(clock, ':', [2, 2, 2])?;
    let is_date = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && date_of(days_before(year, month, day)) == (year, month, day);
    // A leap second is the first moment of the next minute, as in the kernel.
    if !is_date || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let (ms, offset) = split_ms(rest)?;
    let seconds = hour * 3600 + minute * 60 + second;
    let local_ms = days_before(year, month, day) * MS_PER_DAY + seconds * 1000 + ms;
    let utc_ms = local_ms.checked_add_signed(-offset_ms(offset)?)?;
    (utc_ms <= SINCE_EPOCH_MS_MAX).then_some(utc_ms)
}

/// Reads three numbers with exactly these numbers of digits: `2026-11-15`, `22:09:05`.
fn numbers(text: &str, separator: char, digits: [usize; 3]) -> Option<[u64; 3]> {
    let mut parts = text.split(separator);
    let mut values = [0; 3];
    for (value, digits) in values.iter_mut().zip(digits) {
        *value = number(parts.next()?, digits)?;
    }
    parts.next().is_none().then_some(values)
}

/// Checks the digits itself, because `parse` accepts a sign.
fn number(text: &str, digits: usize) -> Option<u64> {
    let is_number = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

/// Returns the milliseconds of an optional fraction, and the text behind it.
fn split_ms(rest: &str) -> Option<(u64, &str)> {
    let Some(fraction) = rest.strip_prefix('.') else {
        return Some((0, rest));
    };
    let end = fraction.find(|character: char| !character.is_ascii_digit());
    let (digits, rest) = fraction.split_at(end?);
    let ms: String = digits.chars().chain("000".chars()).take(3).collect();
    (!digits.is_empty()).then_some((ms.parse().ok()?, rest))
}

/// Reads how far local time is ahead of UTC: `Z`, `+01:00`, `-05:30`.
fn offset_ms(offset: &str) -> Option<i64> {
    if matches!(offset, "Z" | "z") {
        return Some(0);
    }
    let (sign, clock) = match offset.split_at_checked(1)? {
        ("+", clock) => (1, clock),
        ("-", clock) => (-1, clock),
        _ => return None,
    };
    let (hours, minutes) = clock.split_once(':')?;
    let (hours, minutes) = (number(hours, 2)?, number(minutes, 2)?);
    let ms = i64::try_from((hours * 60 + minutes) * 60_000).ok()?;
    (hours < 24 && minutes < 60).then_some(sign * ms)
}

/// The days from 0000-03-01 to 1970-01-01. Both functions below count years from March, so that the
/// leap day is the last day of a year. 400 years have 146,097 days.
const EPOCH_DAYS: u64 = 719_468;
const ERA_DAYS: u64 = 146_097;

/// Returns the days from 1970-01-01 to this date.
fn days_before(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, of_era) = (year / 400, year % 400);
    // The months from March on have 31, 30, 31, 30, 31 days, again and again.
    let of_year = (153 * month + 2) / 5 + day - 1;
    era * ERA_DAYS + of_era * 365 + of_era / 4 - of_era / 100 + of_year - EPOCH_DAYS
}

/// Returns the year, month and day: the inverse of [`days_before`].
fn date_of(days: u64) -> (u64, u64, u64) {
    let days = days + EPOCH_DAYS;
    let (era, of_era) = (days / ERA_DAYS, days % ERA_DAYS);
    // 1,460 days are four years, 36,524 a century, and 146,096 an era, each without its leap day.
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (year * 365 + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let year = era * 400 + year;
    if month < 10 { (year, month + 3, day) } else { (year + 1, month - 9, day) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed with `date -u -d @...`.
    const KNOWN: [(u64, &str); 8] = [
        (0, "1970-01-01T00:00:00.000Z"),
        (951_782_399_999, "2000-02-28T23:59:59.999Z"),
        (951_782_400_000, "2000-02-29T00:00:00.000Z"),
        (1_709_251_199_001, "2024-02-29T23:59:59.001Z"),
        (1_794_780_545_123, "2026-11-15T22:09:05.123Z"),
        (1_798_761_599_999, "2026-12-31T23:59:59.999Z"),
        (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        (SINCE_EPOCH_MS_MAX, "9999-12-31T23:59:59.999Z"),
    ];

    #[test]
    fn moments_are_shown_and_read_back() {
        for (ms, text) in KNOWN {
            assert_eq!(Timestamp::from_ms(ms).to_string(), text);
            assert_eq!(Timestamp::parse(text).unwrap().as_ms(), ms, "{text}");
        }
    }

    /// The calendar repeats itself after 400 years.
    #[test]
    fn every_day_of_400_years_follows_the_day_before_and_reads_back() {
        let mut previous = (1969, 12, 31);
        for days in 0..=400 * 365 + 97 {
            let (year, month, day) = date_of(days);
            assert_eq!(days_before(year, month, day), days);
            let (last_year, last_month, last_day) = previous;
            let follows = [
                (last_year, last_month, last_day + 1),
                (last_year, last_month + 1, 1),
                (last_year + 1, 1, 1),
            ];
            assert!(follows.contains(&(year, month, day)), "{previous:?}");
            assert!(month <= 12 && day <= 31, "{year}-{month}-{day}");
            previous = (year, month, day);
        }
        assert_eq!(previous, (2370, 1, 1));
    }

    #[test]
    fn other_spellings_of_a_moment_are_read() {
        for text in [
            "2026-11-15T22:09:05.123000999Z",
            "2026-11-15t22:09:05.123z",
            "2026-11-15 22:09:05.123Z",
            "2026-11-15T23:09:05.123+01:00",
            "2026-11-15T16:39:05.123-05:30",
            "2026-11-16T22:08:05.123+23:59",
        ] {
            let parsed = Timestamp::parse(text).unwrap().to_string();
            assert_eq!(parsed, "2026-11-15T22:09:05.123Z", "{text}");
        }
        let short = Timestamp::parse("2026-11-15T22:09:05.1Z").unwrap();
        assert_eq!(short.to_string(), "2026-11-15T22:09:05.100Z");
        let leap = Timestamp::parse("2016-12-31T23:59:60Z").unwrap();
        assert_eq!(leap.to_string(), "2017-01-01T00:00:00.000Z");
    }

    #[test]
    fn an_invalid_time_is_refused() {
        for text in [
            "",
            "yesterday",
            "2026-11-15",
            "2026-11-15T22:09:05",
            "2026-11-15T22:09Z",
            "2026-11-15T22:09:05.Z",
            "2026-11-15T22:09:05.123",
            "2026-11-15T22:09:05Z ",
            "2026-11-15T22:09:05+1:00",
            "2026-11-15T22:09:05+24:00",
            "2026-11-15T22:09:05\u{2212}01:00",
            "2026-13-15T22:09:05Z",
            "2026-00-15T22:09:05Z",
            "2026-02-29T22:09:05Z",
            "2026-11-00T22:09:05Z",
            "2026-11-15T24:00:00Z",
            "2026-11-15T22:60:05Z",
            "2026-11-15T22:09:61Z",
            "+026-11-15T22:09:05Z",
            "2026-+1-15T22:09:05Z",
            "1969-12-31T23:59:59Z",
            "1970-01-01T00:00:00+00:01",
            "9999-12-31T23:59:59-00:01",
            "２026-11-15T22:09:05Z",
        ] {
            let error = Timestamp::parse(text).unwrap_err();
            assert!(error.to_string().ends_with("is not a time since 1970"));
        }
    }

    #[test]
    fn arithmetic_stops_at_the_ends_of_the_calendar() {
        let (first, last) = (Timestamp::from_ms(5), Timestamp::from_ms(u64::MAX));
        assert_eq!(first.before(Duration::from_millis(3)).as_ms(), 2);
        assert_eq!(first.before(Duration::MAX).as_ms(), 0);
        assert_eq!(first.after(Duration::from_secs(1)).as_ms(), 1005);
        assert_eq!(last.after(Duration::MAX), last);
        assert_eq!(last.to_string(), "9999-12-31T23:59:59.999Z");
    }

    #[test]
    fn json_holds_the_text() {
        let moment = Timestamp::from_ms(1_794_780_545_123);
        let json = serde_json::to_string(&moment).unwrap();
        assert_eq!(json, "\"2026-11-15T22:09:05.123Z\"");
        assert_eq!(serde_json::from_str::<Timestamp>(&json).unwrap(), moment);
        assert!(serde_json::from_str::<Timestamp>("17").is_err());
    }
}
