//! Whole numbers with a range: `--pids`, `--nofile`, `--tail`.

use std::ops::RangeInclusive;

use crate::error::Error;
use crate::spec::received::{bad, quoted};

/// The command itself; the keeper is not counted.
pub const PIDS_MIN: u32 = 1;
/// The kernel's own ceiling of `pid_max` (`PID_MAX_LIMIT`).
pub const PIDS_MAX: u32 = 4_194_304;
/// Standard streams, the loader's files and a few more; with less, not even a
/// dynamic linker starts reliably.
pub const NOFILE_MIN: u32 = 16;
/// The kernel's default ceiling (`fs.nr_open`).
pub const NOFILE_MAX: u32 = 1_048_576;

pub fn pids(text: &str) -> Result<u32, Error> {
    within(text, PIDS_MIN..=PIDS_MAX, "processes")
}

pub fn nofile(text: &str) -> Result<u32, Error> {
    within(text, NOFILE_MIN..=NOFILE_MAX, "descriptors")
}

/// Of a log; none is a number too.
pub fn lines(text: &str) -> Result<u32, Error> {
    within(text, 0..=u32::MAX, "lines")
}

fn within(text: &str, range: RangeInclusive<u32>, what: &str) -> Result<u32, Error> {
    let (least, most) = (range.start(), range.end());
    let refused = |why: String| {
        bad(
            format!("{} {why}", quoted(text)),
            format!("write a whole number from {least} to {most}"),
        )
    };
    // `u32::from_str` alone would accept a leading `+`.
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(refused(format!("is not a number of {what}")));
    }
    text.parse()
        .ok()
        .filter(|number| range.contains(number))
        .ok_or_else(|| refused(format!("is outside {least} to {most}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_within_their_range_are_taken() {
        assert_eq!(pids("1").unwrap(), PIDS_MIN);
        assert_eq!(pids("4194304").unwrap(), PIDS_MAX);
        assert_eq!(nofile("16").unwrap(), NOFILE_MIN);
        assert_eq!(nofile("1048576").unwrap(), NOFILE_MAX);
        assert_eq!(lines("0").unwrap(), 0);
        assert_eq!(lines("4294967295").unwrap(), u32::MAX);
    }

    /// B017
    #[test]
    fn counts_outside_their_range_name_it() {
        for text in ["0", "4194305", "9223372036854775808", "18446744073709551616"] {
            let error = pids(text).unwrap_err();
            assert_eq!(error.to_string(), format!("'{text}' is outside 1 to 4194304"));
        }
        for text in
            ["", "-1", "+5", "NaN", "Infinity", "1e400", "true", "0x10", "1_000", "5.0", " 5"]
        {
            let error = nofile(text).unwrap_err();
            assert!(error.to_string().ends_with("is not a number of descriptors"), "{error}");
            assert!(error.hint().unwrap().contains("16 to 1048576"));
        }
    }
}
