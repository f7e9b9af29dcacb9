//! Plain decimal numbers: digits, at most one point, nothing else. No sign, no
//! exponent, no `0x`, no `_`, no NaN: what a person reads is what is meant.

/// More digits than this are refused; 2^64 has 20.
const DIGITS_MAX: usize = 20;
const PLACES_MAX: usize = 9;

/// `digits / 10^places`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Decimal {
    digits: u128,
    places: u32,
}

impl Decimal {
    /// `None` for anything that is not a plain decimal.
    pub fn parse(text: &str) -> Option<Self> {
        let (whole, fraction) = match text.split_once('.') {
            Some((_, "")) => return None,
            Some(parts) => parts,
            None => (text, ""),
        };
        let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        let fits = whole.len() <= DIGITS_MAX && fraction.len() <= PLACES_MAX;
        if text.is_empty() || !fits || !all_digits(whole) || !all_digits(fraction) {
            return None;
        }
        // At most 29 digits, which a u128 holds.
        let digits = format!("{whole}{fraction}").parse().ok()?;
        Some(Self { digits, places: u32::try_from(fraction.len()).ok()? })
    }

    /// The number in a smaller unit, `None` when that is not a whole number.
    pub fn exactly(self, units: u64) -> Option<u128> {
        let product = self.digits.checked_mul(u128::from(units))?;
        let scale = 10_u128.pow(self.places);
        product.is_multiple_of(scale).then_some(product / scale)
    }

    /// The number in a smaller unit, rounded down.
    pub fn times(self, units: u64) -> Option<u128> {
        let product = self.digits.checked_mul(u128::from(units))?;
        Some(product / 10_u128.pow(self.places))
    }
}

/// The leading number of `text` and what follows it.
pub(super) fn split_number(text: &str) -> (&str, &str) {
    let end = text
        .find(|character: char| !character.is_ascii_digit() && character != '.')
        .unwrap_or(text.len());
    text.split_at(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B017
    #[test]
    fn only_plain_decimals_are_numbers() {
        for text in [
            "",
            ".",
            "1.",
            "-1",
            "+1",
            "NaN",
            "inf",
            "1e3",
            "0x10",
            "1_000",
            " 1",
            "1 ",
            "1.2.3",
            "true",
            "\"10\"",
            "٣",
            "111111111111111111111",
            "0.1234567890",
        ] {
            assert_eq!(Decimal::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn numbers_scale_without_rounding_errors() {
        let half = Decimal::parse(".5").unwrap();
        assert_eq!(half.exactly(1000), Some(500));
        assert_eq!(half.exactly(1), None);
        assert_eq!(half.times(1), Some(0));
        assert_eq!(Decimal::parse("0.1").unwrap().exactly(10), Some(1));
        assert_eq!(split_number("1.5h30m"), ("1.5", "h30m"));
    }
}
