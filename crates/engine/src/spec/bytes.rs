//! Sizes: `512m`, `1g`, `64KiB`, `1.5g`, `1048576`. Suffixes are binary, in
//! either case, with or without a `b` or `iB` behind them.

use std::ops::RangeInclusive;

use crate::error::Error;
use crate::spec::decimal::{Decimal, split_number};
use crate::spec::received::{bad, quoted};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Below this the keeper and a shell do not fit; a smaller limit would be a
/// box that cannot start.
pub const MEMORY_BYTES_MIN: u64 = 6 * MIB;
/// Room for the few directories that every box has.
pub const SCRATCH_BYTES_MIN: u64 = 64 * KIB;
pub const OUTPUT_BYTES_MIN: u64 = 1;
/// 2^63 - 1: what the kernel's own limits (`memory.max`, `off_t`) can hold.
pub const BYTES_MAX: u64 = i64::MAX as u64;

const FORMS: &str = "write a size such as 64k, 512m, 1.5g or 1048576";

/// Any size up to [`BYTES_MAX`], zero included. A fraction of a byte is cut off.
pub fn parse(text: &str) -> Result<u64, Error> {
    let (number, suffix) = split_number(text);
    let (Some(number), Some(unit)) = (Decimal::parse(number), unit_bytes(suffix)) else {
        return Err(bad(format!("{} is not a size", quoted(text)), FORMS));
    };
    number
        .times(unit)
        .and_then(|bytes| u64::try_from(bytes).ok())
        .filter(|bytes| *bytes <= BYTES_MAX)
        .ok_or_else(|| {
            let message = format!("{} is more than 2^63 - 1 bytes", quoted(text));
            bad(message, FORMS)
        })
}

pub fn memory(text: &str) -> Result<u64, Error> {
    within(text, MEMORY_BYTES_MIN..=BYTES_MAX)
}

pub fn scratch(text: &str) -> Result<u64, Error> {
    within(text, SCRATCH_BYTES_MIN..=BYTES_MAX)
}

pub fn output_limit(text: &str) -> Result<u64, Error> {
    within(text, OUTPUT_BYTES_MIN..=BYTES_MAX)
}

/// `64 MiB`, `1.5 GiB`, `1000 bytes`: in the largest unit that loses nothing
/// with one decimal, else in bytes.
pub fn show(bytes: u64) -> String {
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        let size = 1_u64 << shift;
        if bytes < size {
            continue;
        }
        if bytes.is_multiple_of(size) {
            return format!("{} {unit}", bytes / size);
        }
        let tenths = u128::from(bytes) * 10;
        if tenths.is_multiple_of(u128::from(size)) {
            let tenths = tenths / u128::from(size);
            return format!("{}.{} {unit}", tenths / 10, tenths % 10);
        }
    }
    match bytes {
        1 => "1 byte".to_owned(),
        _ => format!("{bytes} bytes"),
    }
}

fn within(text: &str, range: RangeInclusive<u64>) -> Result<u64, Error> {
    let bytes = parse(text)?;
    if range.contains(&bytes) {
        return Ok(bytes);
    }
    let least = show(*range.start());
    Err(bad(format!("{} is too small, the least is {least}", quoted(text)), FORMS))
}

fn unit_bytes(suffix: &str) -> Option<u64> {
    let shift = match suffix.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return None,
    };
    Some(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary_in_every_spelling() {
        for (text, bytes) in [
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
            assert_eq!(parse(text).unwrap(), bytes, "{text}");
        }
    }

    /// B017
    #[test]
    fn what_is_not_a_plain_size_is_refused() {
        for text in [
            "", "banana", "NaN", "Infinity", "-1", "-1m", "+1m", "1e400", "1e3", "0x10", "1_000",
            "true", "\"10\"", "10 m", " 10m", "10m ", "m", "10mm", "10p", "1.m", "1\n",
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.to_string().ends_with("is not a size"), "{error}");
            assert!(error.hint().is_some());
        }
    }

    /// B017
    #[test]
    fn a_size_past_what_the_kernel_can_hold_is_refused() {
        for text in
            ["9223372036854775808", "18446744073709551616", "8388608t", "99999999999999999999t"]
        {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains("2^63"), "{error}");
        }
    }

    /// B020
    #[test]
    fn a_size_below_the_minimum_names_the_minimum() {
        for text in ["0", "1", "4k", "10", "6291455"] {
            let error = memory(text).unwrap_err().to_string();
            assert_eq!(error, format!("'{text}' is too small, the least is 6 MiB"));
        }
        assert_eq!(memory("6m").unwrap(), MEMORY_BYTES_MIN);
        assert!(scratch("65535").unwrap_err().to_string().contains("64 KiB"));
        assert!(output_limit("0").unwrap_err().to_string().contains("1 byte"));
        assert_eq!(output_limit("1").unwrap(), 1);
    }

    #[test]
    fn sizes_are_shown_as_people_write_them() {
        for (bytes, shown) in [
            (0, "0 bytes"),
            (1, "1 byte"),
            (1000, "1000 bytes"),
            (64 * MIB, "64 MiB"),
            (3 << 29, "1.5 GiB"),
            (MIB + 1, "1048577 bytes"),
            (1 << 40, "1 TiB"),
        ] {
            assert_eq!(show(bytes), shown);
        }
    }
}
