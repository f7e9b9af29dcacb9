//! Lists and objects of a JSON body with a limit on their length. Parsing stops at the first value
//! beyond the limit. So a body of many small values cannot fill the heap, whose memory does not
//! always return to the system.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// The arguments of a command: more than the kernel takes (execve(2)).
pub const ARGUMENTS_MAX: usize = 100_000;

/// A list of at most `MAX` values.
#[derive(Debug)]
pub struct List<T, const MAX: usize>(pub Vec<T>);

/// An object of texts with at most `MAX` fields.
#[derive(Debug, Default)]
pub struct Texts<const MAX: usize>(pub BTreeMap<String, String>);

impl<T, const MAX: usize> Default for List<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for List<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        input.deserialize_seq(Self::default())
    }
}

impl<'de, const MAX: usize> Deserialize<'de> for Texts<MAX> {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        input.deserialize_map(Self::default())
    }
}

/// Fills an empty list.
impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for List<T, MAX> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MAX}")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<Self, A::Error> {
        while let Some(one) = list.next_element()? {
            if self.0.len() == MAX {
                return Err(A::Error::invalid_length(MAX + 1, &self));
            }
            self.0.push(one);
        }
        Ok(self)
    }
}

/// Fills an empty object.
impl<'de, const MAX: usize> Visitor<'de> for Texts<MAX> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object of at most {MAX} fields")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut fields: A) -> Result<Self, A::Error> {
        while let Some((key, value)) = fields.next_entry()? {
            if self.0.len() == MAX {
                return Err(A::Error::invalid_length(MAX + 1, &self));
            }
            self.0.insert(key, value);
        }
        Ok(self)
    }
}
