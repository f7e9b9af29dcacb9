//! How long a detached box may run.

use std::time::Duration;

use tare_engine::Error;
use tare_engine::spec::{defaults, quantity};

/// The default lease of a box.
pub const DEFAULT: Lease = Lease::For(defaults::LEASE);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lease {
    Never,
    For(Duration),
}

impl Lease {
    /// `None`: the box may live without limit.
    pub fn duration(self) -> Option<Duration> {
        match self {
            Self::Never => None,
            Self::For(duration) => Some(duration),
        }
    }
}

/// Parses a duration, or `never`.
pub fn parse(text: &str) -> Result<Lease, Error> {
    match text {
        "never" => Ok(Lease::Never),
        _ => quantity::duration(text).map(Lease::For).map_err(|error| {
            error.with_hint("write a duration such as 30m or 8h, or 'never' for no lease")
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_a_duration_or_never() {
        let hour = Duration::from_secs(3600);
        assert_eq!(parse("1h").unwrap().duration(), Some(hour));
        assert_eq!(parse("never").unwrap().duration(), None);
        assert_eq!(DEFAULT.duration(), Some(hour * 24));
        for text in ["", "Never", "always", "0", "-1h"] {
            let error = parse(text).unwrap_err();
            assert!(format!("{:?}", error.hint()).contains("'never'"), "{text}");
        }
    }
}
