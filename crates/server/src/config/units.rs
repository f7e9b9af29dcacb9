//! Sizes and durations in `tare.toml`: texts with a unit, such as `512m` and `30s`.

use std::fmt;
use std::time::Duration;

use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer};
use tare_engine::spec::quantity;
use tare_engine::{Error, Hint};

/// A number of bytes: `512m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// A duration: `30s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period(pub Duration);

impl Period {
    pub const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        parsed(input, "512m", quantity::bytes).map(Self)
    }
}

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        parsed(input, "30s", quantity::duration).map(Self)
    }
}

/// Deserializes a text with a parser of the engine, and adds its hint to an error. The error for
/// a bare number shows an example in quotes.
pub fn parsed<'de, D: Deserializer<'de>, T>(
    input: D,
    example: &str,
    parse: impl FnOnce(&str) -> Result<T, Error>,
) -> Result<T, D::Error> {
    let text = input.deserialize_str(Text { example })?;
    parse(&text).map_err(|error| match error.hint() {
        Some(Hint::Text(hint)) => D::Error::custom(format!("{error} ({hint})")),
        Some(_) | None => D::Error::custom(format!("{error} (write a text such as {example:?})")),
    })
}

struct Text<'a> {
    example: &'a str,
}

impl Visitor<'_> for Text<'_> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a text in quotes, such as {:?}", self.example)
    }

    fn visit_str<E>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }
}
