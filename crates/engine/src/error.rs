//! The engine's only error type: what failed and on what (the message), why (the source), and
//! what the user can do about it (the hint).
//!
//! The message never repeats its source. The engine never prints an error: the command line and
//! the server show it once, at the edge.

use std::error::Error as StdError;
use std::{fmt, io, iter};

use rustix::io::Errno;

pub use crate::hint::{Also, Hint, LimitName};

/// The class of an error. It decides the exit code and the HTTP status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request is wrong: for example a bad value, or a path that does not exist.
    BadRequest,
    /// A path of the host that a box should use cannot be used. Clients of a server do not choose such
    /// paths, and must not see them.
    HostPath,
    /// The cgroup below which boxes are to be made is missing, or its children cannot have limits.
    CgroupParent,
    /// There is no such box.
    NoSuchBox,
    /// The request conflicts with the state of this box or with another box.
    Conflict,
    /// The box waits in a pool, and takes no requests of users.
    Warm,
    /// The keeper of the box does not answer. A later request may succeed.
    NoAnswer,
    /// This host cannot do what was requested.
    Unsupported,
    /// The command does not exist in the box.
    CommandNotFound,
    /// The command exists but is not executable.
    CommandNotExecutable,
    /// The machine of the box did not start.
    Boot(BootFailure),
    /// Another process is changing the box, and did not finish in time.
    Busy,
    /// Part of a box could not be removed. The box stays on record as stuck, and tare tries again.
    Stuck,
    /// Anything else: an operation that should have worked failed.
    Failed,
}

impl ErrorKind {
    /// Returns whether the clients of a server see the reason of such an error. Others can name paths and
    /// processes of the host.
    pub fn is_for_clients(self) -> bool {
        match self {
            Self::HostPath | Self::CgroupParent | Self::Stuck | Self::Failed => false,
            Self::BadRequest
            | Self::NoSuchBox
            | Self::Conflict
            | Self::Warm
            | Self::NoAnswer
            | Self::Unsupported
            | Self::CommandNotFound
            | Self::CommandNotExecutable
            | Self::Boot(_)
            | Self::Busy => true,
        }
    }
}

/// Why a machine did not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BootFailure {
    /// The keeper in the machine did not answer in time.
    Timeout,
    /// The monitor of the machine could not be started, or ended.
    MonitorEnded,
    /// The first process of the machine is not this tare's.
    Protocol,
    /// The first process of the machine could not set it up.
    Setup,
}

impl BootFailure {
    pub const ALL: [Self; 4] = [Self::Timeout, Self::MonitorEnded, Self::Protocol, Self::Setup];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::MonitorEnded => "monitor_ended",
            Self::Protocol => "protocol",
            Self::Setup => "setup",
        }
    }
}

#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    hint: Option<Hint>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, source: None }
    }

    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Failed, message)
    }

    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Conflict, message)
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::BadRequest, message)
    }

    /// Sets the source: the reason why the operation failed.
    pub fn caused_by(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    pub(crate) fn of_kind(self, kind: ErrorKind) -> Self {
        Self { kind, ..self }
    }

    pub fn with_hint(mut self, hint: impl Into<Hint>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds a second failure and its own hint to the hint, for example that a roll-back failed too.
    pub fn with_note(mut self, other: &Self, advice: impl Into<Hint>) -> Self {
        let why = StdError::source(other).map(|why| format!(": {}", reason(why)));
        let failure = format!("{other}{}", why.unwrap_or_default());
        let (first, advice) = (self.hint.take(), advice.into());
        self.with_hint(Hint::Also(Box::new(Also { first, failure, advice })))
    }

    /// Names a box by its name instead of its id, in this error and in the errors that caused it.
    pub fn naming(mut self, id: &str, name: &str) -> Self {
        let (by_id, by_name) = (format!("box {id}"), format!("box {name}"));
        let mut next = Some(&mut self);
        while let Some(error) = next {
            error.message = error.message.replace(&by_id, &by_name);
            error.hint.iter_mut().for_each(|hint| hint.replace(&by_id, &by_name));
            next = error.source.as_mut().and_then(|source| source.downcast_mut::<Self>());
        }
        self
    }

    /// Changes the kind to [`ErrorKind::Stuck`].
    pub(crate) fn stuck(mut self) -> Self {
        self.kind = ErrorKind::Stuck;
        self
    }

    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub fn hint(&self) -> Option<&Hint> {
        self.hint.as_ref()
    }

    /// Returns the message with all sources.
    pub fn in_full(&self) -> String {
        let sources = iter::successors(self.source(), |&cause| cause.source());
        sources.fold(self.to_string(), |text, cause| format!("{text}: {}", reason(cause)))
    }

    /// Returns the errno in the chain of sources, if a system call failed.
    pub fn errno(&self) -> Option<Errno> {
        let of_one = |cause: &(dyn StdError + 'static)| {
            let of_io = cause.downcast_ref().and_then(io::Error::raw_os_error);
            // A keeper may report any number, and rustix panics on a number that is not an errno.
            let of_io = of_io.filter(|number| (1..4096).contains(number));
            let errno = cause.downcast_ref::<Errno>().copied();
            errno.or(of_io.map(Errno::from_raw_os_error))
        };
        iter::successors(self.source(), |&cause| cause.source()).find_map(of_one)
    }
}

/// Shows the message without its sources.
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

/// Returns the text of a source without the `(os error N)` that std appends.
pub fn reason(cause: &dyn StdError) -> String {
    let text = cause.to_string();
    match text.rsplit_once(" (os error ") {
        Some((reason, _)) => reason.to_owned(),
        None => text,
    }
}

/// Adds a message to an error: `result.context(|| format!("cannot make cgroup {path}"))`.
pub trait Context<T> {
    fn context(self, message: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T, E: Into<Box<dyn StdError + Send + Sync>>> Context<T> for Result<T, E> {
    fn context(self, message: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|source| Error::failed(message()).caused_by(source))
    }
}
