//! One error: what was being done to what, why it failed, what to do about it.

use std::error::Error as StdError;
use std::{fmt, io, iter};

use rustix::io::Errno;

/// Who can do something about an error; decides exit codes and statuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request is wrong: a value, a path that does not exist.
    BadRequest,
    /// There is no such box.
    NoSuchBox,
    /// It cannot be done to this box now, or not beside another one.
    Conflict,
    /// The keeper of the box does not answer. It may later.
    NoAnswer,
    /// The host cannot do what was asked for.
    Unsupported,
    /// The command is not in the box.
    CommandNotFound,
    /// The command is there but cannot be executed.
    CommandNotExecutable,
    /// Another process is changing the box, and did not finish in time.
    Busy,
    /// Something of a box could not be ended. It stays on record as stuck, and tare
    /// tries again.
    Stuck,
    /// Something that should have worked did not.
    Failed,
}

#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    hint: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, source: None }
    }

    pub fn because(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds to the hint that something else failed on the way, and what to do about it.
    pub fn with_note(self, other: &Self, hint: &str) -> Self {
        let why = StdError::source(other).map(|why| format!(": {}", reason(why)));
        let note = format!("{other}{}; {hint}", why.unwrap_or_default());
        let hint = match &self.hint {
            Some(hint) => format!("{hint}; also, {note}"),
            None => format!("also, {note}"),
        };
        self.with_hint(hint)
    }

    /// The same error for a box that is stuck because of it.
    pub(crate) fn stuck(mut self) -> Self {
        self.kind = ErrorKind::Stuck;
        self
    }

    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// The number of the system call that failed, if that is where the error began.
    pub fn errno(&self) -> Option<Errno> {
        let of_one = |cause: &(dyn StdError + 'static)| {
            let of_io = cause.downcast_ref().and_then(io::Error::raw_os_error);
            // A keeper may report any number, and rustix panics on one that is no errno.
            let of_io = of_io.filter(|number| (1..4096).contains(number));
            let errno = cause.downcast_ref::<Errno>().copied();
            errno.or(of_io.map(Errno::from_raw_os_error))
        };
        iter::successors(self.source(), |&cause| cause.source()).find_map(of_one)
    }
}

/// The message alone; the chain of sources says why.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// The kernel's reason without its number, which says the same again.
pub fn reason(cause: &dyn StdError) -> String {
    let text = cause.to_string();
    match text.rsplit_once(" (os error ") {
        Some((reason, _)) => reason.to_owned(),
        None => text,
    }
}

/// `result.doing(|| format!("cannot make cgroup {path}"))`.
pub trait Doing<T> {
    fn doing(self, message: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T, E: Into<Box<dyn StdError + Send + Sync>>> Doing<T> for Result<T, E> {
    fn doing(self, message: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|source| Error::new(ErrorKind::Failed, message()).because(source))
    }
}
