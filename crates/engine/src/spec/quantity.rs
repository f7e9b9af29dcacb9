//! Quantities as users write them: sizes, counts, processor shares and durations.
//!
//! Numbers are plain decimals: digits and at most one point. A sign, an exponent, `0x`, `_` and
//! `NaN` are errors, so a value always means what it looks like. This file never rounds a value
//! into its range: a value outside of the range is an error that names the limit.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Hint};
use crate::spec::shown::{bad, quoted};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The keeper and a shell do not fit into less, so a box with a smaller limit could not start.
pub const MEMORY_BYTES_MIN: u64 = 6 * MIB;
/// Room for the few directories that every box has.
pub const SCRATCH_BYTES_MIN: u64 = 64 * KIB;
pub const OUTPUT_BYTES_MIN: u64 = 1;
/// 2^63 - 1: the largest value of the kernel's own limits (`memory.max`, `off_t`).
pub const BYTES_MAX: u64 = i64::MAX as u64;

/// One process: the command. The keeper is not counted.
pub const PIDS_MIN: u32 = 1;
/// The kernel's upper limit of `pid_max` (`PID_MAX_LIMIT`), without the keeper.
pub const PIDS_MAX: u32 = 4_194_303;
/// A dynamic linker needs the standard streams and a few files; it does not start with fewer.
pub const NOFILE_MIN: u32 = 16;
/// The kernel's default upper limit (`fs.nr_open`).
pub const NOFILE_MAX: u32 = 1_048_576;

/// One percent of one processor: the kernel's smallest quota is 1 ms, in a period of 100 ms.
pub const CPUS_MILLI_MIN: u32 = 10;
/// More processors than tare's hosts have: a larger number is a mistake.
pub const CPUS_MILLI_MAX: u32 = 1024 * 1000;

pub const DURATION_MIN: Duration = Duration::from_millis(1);
/// Ten years. A larger value is a mistake, and sums with clocks stay far from an overflow.
pub const DURATION_MAX: Duration = Duration::from_secs(3650 * 24 * 60 * 60);

/// 2^64 has 20 digits.
const DIGITS_MAX: usize = 20;
const DECIMALS_MAX: usize = 9;

const BYTE_UNITS: [(&str, u64); 14] = [
    ("", 1),
    ("b", 1),
    ("k", KIB),
    ("kb", KIB),
    ("kib", KIB),
    ("m", MIB),
    ("mb", MIB),
    ("mib", MIB),
    ("g", 1 << 30),
    ("gb", 1 << 30),
    ("gib", 1 << 30),
    ("t", 1 << 40),
    ("tb", 1 << 40),
    ("tib", 1 << 40),
];
const SECOND_NS: u64 = 1_000_000_000;
/// From the largest to the smallest: the order in which the units of a duration may follow.
const TIME_UNITS: [(&str, u64); 5] = [
    ("d", 86_400 * SECOND_NS),
    ("h", 3_600 * SECOND_NS),
    ("m", 60 * SECOND_NS),
    ("s", SECOND_NS),
    ("ms", 1_000_000),
];

const CPUS_FORM: &str =
    "write a number from 0.01 to 1024 with at most three decimals, such as 0.5 or 2";
const DURATION_FORM: &str = "write a duration such as 30s, 500ms, 2m or 1h30m, from 1ms to 3650d";

/// A processor share in thousandths of a processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpus {
    pub milli: u32,
}

/// Reads a size: `512m`, `1g`, `64KiB`, `1.5g`, `1048576`. Units are binary, in either case, and
/// a fraction of a byte is cut off. Zero is a size.
pub fn bytes(text: &str) -> Result<u64, Error> {
    bytes_from(0, text)
}

pub fn memory_bytes(text: &str) -> Result<u64, Error> {
    bytes_from(MEMORY_BYTES_MIN, text)
}

pub fn scratch_bytes(text: &str) -> Result<u64, Error> {
    bytes_from(SCRATCH_BYTES_MIN, text)
}

pub fn output_bytes(text: &str) -> Result<u64, Error> {
    bytes_from(OUTPUT_BYTES_MIN, text)
}

pub fn pids(text: &str) -> Result<u32, Error> {
    count(text, "a number of processes", PIDS_MIN..=PIDS_MAX)
}

pub fn nofile(text: &str) -> Result<u32, Error> {
    count(text, "a number of descriptors", NOFILE_MIN..=NOFILE_MAX)
}

/// Reads a number of log lines; zero is allowed.
pub fn lines(text: &str) -> Result<u32, Error> {
    count(text, "a number of lines", 0..=u32::MAX)
}

/// Reads a processor share: `0.5`, `2`, `1.25`.
pub fn cpus(text: &str) -> Result<Cpus, Error> {
    let milli = scaled(text, 1000, 3);
    let show = |milli: u64| format!("{}.{:03}", milli / 1000, milli % 1000);
    let show = |milli| show(milli).trim_end_matches('0').trim_end_matches('.').to_owned();
    let range = CPUS_MILLI_MIN.into()..=CPUS_MILLI_MAX.into();
    let milli = within(text, milli, "a number of processors", range, show, CPUS_FORM)?;
    Ok(Cpus { milli: u32::try_from(milli).expect("the range ends within 32 bits") })
}

/// Reads a duration: `30s`, `500ms`, `2m`, `1h30m`, `1d`, `0.5s`, or a bare number of seconds.
pub fn duration(text: &str) -> Result<Duration, Error> {
    let ns = scaled(text, SECOND_NS, DECIMALS_MAX).or_else(|| terms_ns(text));
    let range = ns_of(DURATION_MIN)..=ns_of(DURATION_MAX);
    let show = |ns| show_duration(Duration::from_nanos(ns));
    within(text, ns, "a duration", range, show, DURATION_FORM).map(Duration::from_nanos)
}

/// Refuses a size below the least one, with this message about it.
pub fn check_memory(
    bytes: u64,
    least: u64,
    message: impl FnOnce(&str) -> String,
) -> Result<(), Error> {
    if bytes >= least {
        return Ok(());
    }
    let error = Error::bad_request(message(&show_bytes(bytes)));
    Err(error.with_hint(format!("the least is {}", show_bytes(least))))
}

/// Shows a size in the largest unit that needs at most one decimal, else in bytes: `64 MiB`,
/// `1.5 GiB`, `1000 bytes`.
pub fn show_bytes(bytes: u64) -> String {
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        let size = 1_u64 << shift;
        let tenths = u128::from(bytes) * 10;
        if bytes < size || !tenths.is_multiple_of(u128::from(size)) {
            continue;
        }
        return match (bytes / size, tenths / u128::from(size) % 10) {
            (whole, 0) => format!("{whole} {unit}"),
            (whole, tenth) => format!("{whole}.{tenth} {unit}"),
        };
    }
    match bytes {
        1 => "1 byte".to_owned(),
        _ => format!("{bytes} bytes"),
    }
}

/// Shows a duration in the form that [`duration`] reads: `1h30m`, `30s`, `2s500ms`.
pub fn show_duration(duration: Duration) -> String {
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

fn bytes_from(least: u64, text: &str) -> Result<u64, Error> {
    let (number, suffix) = split_number(text);
    let unit = unit_named(&mut BYTE_UNITS.iter(), suffix);
    let bytes = unit.and_then(|unit| scaled(number, unit, DECIMALS_MAX));
    within(text, bytes, "a size", least..=BYTES_MAX, show_bytes, Hint::SizeForm)
}

fn count(text: &str, what: &str, range: RangeInclusive<u32>) -> Result<u32, Error> {
    let form = format!("write a whole number from {} to {}", range.start(), range.end());
    let range = (*range.start()).into()..=(*range.end()).into();
    let number = within(text, scaled(text, 1, 0), what, range, |number| number.to_string(), form)?;
    Ok(u32::try_from(number).expect("the range ends within 32 bits"))
}

/// Checks a value that was read from `text`. `None` means that the text is not `what` at all.
fn within(
    text: &str,
    value: Option<u128>,
    what: &str,
    range: RangeInclusive<u64>,
    show: impl Fn(u64) -> String,
    form: impl Into<Hint>,
) -> Result<u64, Error> {
    let why = match value.map(u64::try_from) {
        Some(Ok(value)) if range.contains(&value) => return Ok(value),
        Some(Ok(value)) if value < *range.start() => {
            format!("is too small, the least is {}", show(*range.start()))
        }
        Some(Ok(_) | Err(_)) => format!("is too large, the most is {}", show(*range.end())),
        None => format!("is not {what}"),
    };
    Err(bad(format!("{} {why}", quoted(text)), form))
}

/// Sums the terms of a duration. No unit may come twice or after a smaller one.
fn terms_ns(text: &str) -> Option<u128> {
    let mut rest = text;
    let mut units = TIME_UNITS.iter();
    let mut sum = 0_u128;
    while !rest.is_empty() {
        let (number, after) = split_number(rest);
        let end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (suffix, next) = after.split_at(end);
        let unit = unit_named(&mut units, suffix)?;
        sum = sum.checked_add(scaled(number, unit, DECIMALS_MAX)?)?;
        rest = next;
    }
    (!text.is_empty()).then_some(sum)
}

/// Takes units from the iterator until one has this name.
fn unit_named<'a>(units: &mut impl Iterator<Item = &'a (&'a str, u64)>, name: &str) -> Option<u64> {
    units.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, unit)| *unit)
}

/// Returns `number` times `unit`, rounded down. `None` if `number` is not a plain decimal.
fn scaled(number: &str, unit: u64, decimals_max: usize) -> Option<u128> {
    let (whole, fraction) = match number.split_once('.') {
        Some((_, "")) => return None,
        Some(parts) => parts,
        None => (number, ""),
    };
    let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let fits = whole.len() <= DIGITS_MAX && fraction.len() <= decimals_max;
    if number.is_empty() || !fits || !all_digits(whole) || !all_digits(fraction) {
        return None;
    }
    // At most 29 digits, which a u128 holds.
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    Some(digits.checked_mul(unit.into())? / scale)
}

/// Splits the leading number from what follows it.
fn split_number(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    text.split_at(end)
}

fn ns_of(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts that are no plain decimal, with or without a unit.
    const NO_QUANTITY: [&str; 24] = [
        "",
        "banana",
        "NaN",
        "inf",
        "Infinity",
        "-1",
        "+1",
        "1e3",
        "1e400",
        "0x10",
        "1_000",
        " 1",
        "1 ",
        "1\n",
        "1.",
        ".",
        "1.2.3",
        "true",
        "\"10\"",
        "٣",
        "1m1h",
        "10mm",
        "10p5",
        "111111111111111111111",
    ];

    #[test]
    fn no_text_but_a_plain_decimal_with_a_known_unit_is_a_quantity() {
        for text in NO_QUANTITY {
            for error in [bytes(text).unwrap_err(), duration(text).unwrap_err()] {
                let message = error.to_string();
                assert!(
                    message.ends_with("is not a size") || message.ends_with("is not a duration"),
                    "{message}"
                );
            }
            assert!(cpus(text).unwrap_err().to_string().ends_with("is not a number of processors"));
            assert!(pids(text).unwrap_err().to_string().ends_with("is not a number of processes"));
        }
    }

    #[test]
    fn sizes_are_binary_in_every_spelling() {
        for (text, expected) in [
            ("0", 0),
            ("1048576", MIB),
            ("64k", 64 * KIB),
            ("64KiB", 64 * KIB),
            ("64kb", 64 * KIB),
            ("512m", 512 * MIB),
            ("512M", 512 * MIB),
            ("1g", 1 << 30),
            ("1.5g", 3 << 29),
            (".5k", 512),
            ("2T", 2 << 40),
            ("10b", 10),
            ("9223372036854775807", BYTES_MAX),
        ] {
            assert_eq!(bytes(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn a_size_with_another_unit_is_refused() {
        for text in ["-1m", "+1m", "10 m", " 10m", "10m ", "m", "10p", "1.m", "30s"] {
            let error = bytes(text).unwrap_err();
            assert!(error.to_string().ends_with("is not a size"), "{error}");
            assert!(error.hint().is_some());
        }
    }

    #[test]
    fn a_size_beyond_the_kernels_range_is_refused() {
        for text in
            ["9223372036854775808", "18446744073709551616", "8388608t", "99999999999999999999t"]
        {
            let error = bytes(text).unwrap_err().to_string();
            assert!(error.ends_with("the most is 9223372036854775807 bytes"), "{error}");
        }
    }

    #[test]
    fn a_size_below_the_minimum_names_the_minimum() {
        for text in ["0", "1", "4k", "10", "6291455"] {
            let error = memory_bytes(text).unwrap_err().to_string();
            assert_eq!(error, format!("'{text}' is too small, the least is 6 MiB"));
        }
        assert_eq!(memory_bytes("6m").unwrap(), MEMORY_BYTES_MIN);
        assert!(scratch_bytes("65535").unwrap_err().to_string().contains("64 KiB"));
        assert!(output_bytes("0").unwrap_err().to_string().contains("1 byte"));
        assert_eq!(output_bytes("1").unwrap(), 1);
    }

    #[test]
    fn sizes_are_shown_as_users_write_them() {
        for (bytes, shown) in [
            (0, "0 bytes"),
            (1, "1 byte"),
            (1000, "1000 bytes"),
            (64 * MIB, "64 MiB"),
            (3 << 29, "1.5 GiB"),
            (MIB + 1, "1048577 bytes"),
            (1 << 40, "1 TiB"),
        ] {
            assert_eq!(show_bytes(bytes), shown);
        }
    }

    #[test]
    fn counts_within_their_range_are_accepted() {
        assert_eq!(pids("1").unwrap(), PIDS_MIN);
        assert_eq!(pids("4194303").unwrap(), PIDS_MAX);
        assert_eq!(nofile("16").unwrap(), NOFILE_MIN);
        assert_eq!(nofile("1048576").unwrap(), NOFILE_MAX);
        assert_eq!(lines("0").unwrap(), 0);
        assert_eq!(lines("4294967295").unwrap(), u32::MAX);
    }

    #[test]
    fn counts_outside_their_range_name_its_end() {
        assert_eq!(pids("0").unwrap_err().to_string(), "'0' is too small, the least is 1");
        for text in ["4194305", "9223372036854775808", "18446744073709551616"] {
            let error = pids(text).unwrap_err().to_string();
            assert_eq!(error, format!("'{text}' is too large, the most is 4194303"));
        }
        let error = nofile("5.0").unwrap_err();
        assert!(error.to_string().ends_with("is not a number of descriptors"), "{error}");
        assert!(format!("{:?}", error.hint()).contains("16 to 1048576"));
    }

    #[test]
    fn processor_shares_are_kept_in_thousandths() {
        for (text, milli) in [
            ("1", 1000),
            ("0.01", 10),
            ("0.5", 500),
            (".25", 250),
            ("1.125", 1125),
            ("1024", CPUS_MILLI_MAX),
        ] {
            assert_eq!(cpus(text).unwrap(), Cpus { milli }, "{text}");
        }
        for (text, why) in [
            ("0", "the least is 0.01"),
            ("0.009", "the least is 0.01"),
            ("1025", "the most is 1024"),
            ("99999999999999999999", "the most is 1024"),
            ("0.0001", "is not a number of processors"),
        ] {
            let error = cpus(text).unwrap_err();
            assert!(error.to_string().ends_with(why), "{text}: {error}");
            assert!(format!("{:?}", error.hint()).contains("at most three decimals"));
        }
    }

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
            assert_eq!(duration(text).unwrap(), Duration::from_millis(millis), "{text}");
        }
    }

    #[test]
    fn an_invalid_duration_is_refused() {
        for text in ["-1s", "+1s", "1y", "s", "30 s", " 30s", "1s1s", "30s5", "1..5s", "1s\n"] {
            let error = duration(text).unwrap_err().to_string();
            assert!(error.ends_with("is not a duration"), "{error}");
        }
    }

    #[test]
    fn durations_outside_the_range_name_its_end() {
        for text in ["0", "0s", "0.0001", "0.9ms"] {
            let error = duration(text).unwrap_err().to_string();
            assert!(error.ends_with("the least is 1ms"), "{error}");
        }
        for text in ["3651d", "1000000000000000000", "99999999999999999999d"] {
            let error = duration(text).unwrap_err().to_string();
            assert!(error.ends_with("the most is 3650d"), "{error}");
        }
    }

    #[test]
    fn a_shown_duration_reads_back() {
        for shown in ["30s", "500ms", "1h30m", "1d", "1m5s", "2s500ms", "1h500ms"] {
            assert_eq!(show_duration(duration(shown).unwrap()), shown);
        }
        assert_eq!(show_duration(Duration::ZERO), "0s");
    }
}
