//! The one error of this tool: a sentence for whoever ran it.
//!
//! Nothing here is handled by a caller, so there is no kind to match on: every
//! failure travels up to `main`, is printed once and ends the run.

use std::fmt;

/// What was being done, and why it could not be.
#[derive(Debug)]
pub struct Failure(String);

impl Failure {
    pub fn new(sentence: impl Into<String>) -> Self {
        Self(sentence.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Puts what was being done before why it failed.
pub trait Doing<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, Failure>;
}

impl<T, E: fmt::Display> Doing<T> for Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, Failure> {
        self.map_err(|why| Failure(format!("{}: {why}", what())))
    }
}
