//! `--cpus N`: a share of processor time, `0.5`, `2`, `1.25`.

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::spec::decimal::Decimal;
use crate::spec::received::{bad, quoted};

/// One percent of one processor: less than the kernel's least quota (1 ms) in
/// a period of 100 ms cannot be enforced.
pub const CPUS_MILLI_MIN: u32 = 10;
/// More than any machine here has; past it a number is a mistake.
pub const CPUS_MILLI_MAX: u32 = 1024 * 1000;

/// Processor share in thousandths, at least 10.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpus {
    pub milli: u32,
}

pub fn parse(text: &str) -> Result<Cpus, Error> {
    let refused = |why: &str| {
        bad(
            format!("{} {why}", quoted(text)),
            "write a number from 0.01 to 1024 with at most three decimals, such as 0.5 or 2",
        )
    };
    let number = Decimal::parse(text).ok_or_else(|| refused("is not a number of processors"))?;
    let milli = number.exactly(1000).ok_or_else(|| refused("has more than three decimals"))?;
    u32::try_from(milli)
        .ok()
        .filter(|milli| (CPUS_MILLI_MIN..=CPUS_MILLI_MAX).contains(milli))
        .map(|milli| Cpus { milli })
        .ok_or_else(|| refused("is outside 0.01 to 1024"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_kept_in_thousandths() {
        for (text, milli) in [
            ("1", 1000),
            ("0.01", 10),
            ("0.5", 500),
            (".25", 250),
            ("1.125", 1125),
            ("1.1250", 1125),
            ("1024", CPUS_MILLI_MAX),
        ] {
            assert_eq!(parse(text).unwrap(), Cpus { milli }, "{text}");
        }
    }

    /// B017
    #[test]
    fn what_is_not_a_share_is_refused() {
        for (text, why) in [
            ("0", "outside"),
            ("0.009", "outside"),
            ("1025", "outside"),
            ("99999999999999999999", "outside"),
            ("0.0001", "three decimals"),
            ("NaN", "not a number"),
            ("inf", "not a number"),
            ("Infinity", "not a number"),
            ("-1", "not a number"),
            ("1e1", "not a number"),
            ("0x1", "not a number"),
            ("1_0", "not a number"),
            ("", "not a number"),
            ("all", "not a number"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.to_string().contains(why), "{text}: {error}");
            assert!(error.hint().unwrap().contains("0.01 to 1024"));
        }
    }
}
