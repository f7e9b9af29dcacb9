//! The face of long-lived boxes, with nothing behind it: what the command line
//! is built on until the engine itself is merged.
#![allow(unused_variables, missing_debug_implementations)]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};
use tare_kernel::process::Process;

use crate::logs::Logs;
use crate::spec::{Cpus, Name, Spec, Terminal, User};
use crate::timestamp::Timestamp;
use crate::{BoxId, Engine, Error, ErrorKind, Event, Stdin, Streams};

fn stub() -> ! {
    panic!("the engine of long-lived boxes is not merged")
}

impl Serialize for BoxId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl Timestamp {
    /// How much later this is; nothing when it is not.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.as_ms().saturating_sub(earlier.as_ms()))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Starting,
    Running,
    Paused,
    Stopping,
    Exited,
    Stuck,
}

const STATES: [(State, &str); 6] = [
    (State::Starting, "starting"),
    (State::Running, "running"),
    (State::Paused, "paused"),
    (State::Stopping, "stopping"),
    (State::Exited, "exited"),
    (State::Stuck, "stuck"),
];

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = STATES.iter().find(|(state, _)| state == self);
        f.pad(found.map_or("", |(_, name)| name))
    }
}

impl FromStr for State {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = STATES.iter().find(|(_, name)| *name == text);
        found.map(|(state, _)| *state).ok_or_else(|| {
            let quoted = crate::spec::received::quoted(text);
            Error::new(ErrorKind::BadRequest, format!("{quoted} is not a state"))
                .with_hint("a box is starting, running, paused, stopping, exited or stuck")
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EndedBy {
    Command,
    Timeout,
    Lease,
    Stop,
    Kill,
    Output,
}

#[derive(Debug, Clone, Serialize)]
pub struct Status {
    pub id: BoxId,
    pub name: Option<String>,
    pub state: State,
    pub created_at: Timestamp,
    pub lease_ends_at: Option<Timestamp>,
    pub command: Vec<String>,
    pub labels: BTreeMap<String, String>,
    pub pids: Option<u64>,
    pub memory_bytes: Option<u64>,
    pub exit_code: Option<u8>,
    pub attached: bool,
    pub ended_at: Option<Timestamp>,
    pub ended_by: Option<EndedBy>,
    pub oom: bool,
    pub stuck_on: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct Usage {
    pub memory_bytes: Option<u64>,
    pub memory_limit_bytes: Option<u64>,
    pub cpu_us: Option<u64>,
    pub pids: Option<u64>,
    pub pids_limit: Option<u64>,
    pub scratch_bytes: Option<u64>,
    pub scratch_limit_bytes: Option<u64>,
    pub output_bytes: Option<u64>,
    pub output_dropped_bytes: Option<u64>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Holding {
    pub kind: String,
    pub what: String,
}

#[derive(Debug, Clone, Serialize)]
pub struct Details {
    #[serde(flatten)]
    pub status: Status,
    pub spec: serde_json::Value,
    pub usage: Option<Usage>,
    pub holdings: Vec<Holding>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetachOptions {
    /// `None`: never.
    pub lease: Option<Duration>,
    pub retention: Duration,
    pub remove: bool,
    pub keep: bool,
    pub log_bytes_max: u64,
    pub kill_past_log: bool,
    pub stdin: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecSpec {
    pub command: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
    pub workdir: Option<PathBuf>,
    pub user: Option<User>,
    pub terminal: Terminal,
    pub timeout: Option<Duration>,
    pub detached: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    pub memory_bytes: Option<u64>,
    pub pids: Option<u32>,
    pub cpus: Option<Cpus>,
    pub lease: Option<Option<Duration>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    pub exit_code: Option<u8>,
    pub ended_by: Option<EndedBy>,
    pub oom: bool,
}

pub struct Started {
    pub id: BoxId,
    pub notes: Vec<String>,
}

/// A command in a box beside its first; an attached one ends when this is
/// dropped.
pub struct Executed(#[allow(dead_code)] Option<OwnedFd>);

impl Executed {
    pub fn streams(&mut self) -> Streams {
        stub()
    }

    pub fn events_fd(&self) -> BorrowedFd<'_> {
        stub()
    }

    pub fn next_event(&mut self) -> Option<Event> {
        stub()
    }

    pub fn signal(&mut self, signal: i32) -> Result<(), Error> {
        stub()
    }

    pub fn kill(&self) {
        stub()
    }

    pub fn overdue_in(&self) -> Option<Duration> {
        stub()
    }
}

pub struct Attachment {
    /// From now on.
    pub logs: Logs,
    /// `None` when the box has ended.
    pub keeper: Option<Process>,
    /// The pipe of its stdin, or its terminal's master side.
    pub input: Option<OwnedFd>,
    pub is_terminal: bool,
}

impl Attachment {
    pub fn signal(&self, signal: i32) -> Result<(), Error> {
        stub()
    }
}

/// What a path in a box is, symlinks followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    Missing,
    /// Whatever is not a directory.
    File,
    Directory,
}

/// A tar stream to or from a box.
pub struct Copying {
    pub stream: OwnedFd,
    pub found: Found,
}

impl Copying {
    /// Closes the stream and waits for what the box says about its side.
    pub fn finish(self) -> Result<(), Error> {
        stub()
    }
}

impl Engine {
    pub fn start(&self, spec: &Spec, options: &DetachOptions) -> Result<Started, Error> {
        stub()
    }

    pub fn find(&self, reference: &str) -> Result<BoxId, Error> {
        stub()
    }

    /// Oldest first.
    pub fn list(&self) -> Result<Vec<Status>, Error> {
        stub()
    }

    pub fn status(&self, id: &BoxId) -> Result<Status, Error> {
        stub()
    }

    pub fn details(&self, id: &BoxId) -> Result<Details, Error> {
        stub()
    }

    pub fn usage(&self, id: &BoxId) -> Result<Usage, Error> {
        stub()
    }

    pub fn exec(&self, id: &BoxId, spec: &ExecSpec, stdin: Stdin) -> Result<Executed, Error> {
        stub()
    }

    pub fn signal(&self, id: &BoxId, signal: i32) -> Result<(), Error> {
        stub()
    }

    pub fn kill(&self, id: &BoxId) -> Result<(), Error> {
        stub()
    }

    pub fn stop(&self, id: &BoxId, grace: Duration) -> Result<(), Error> {
        stub()
    }

    pub fn remove(&self, id: &BoxId, force: bool) -> Result<(), Error> {
        stub()
    }

    pub fn pause(&self, id: &BoxId) -> Result<(), Error> {
        stub()
    }

    pub fn resume(&self, id: &BoxId) -> Result<(), Error> {
        stub()
    }

    pub fn rename(&self, id: &BoxId, name: &Name) -> Result<(), Error> {
        stub()
    }

    pub fn update(&self, id: &BoxId, changes: &Changes) -> Result<(), Error> {
        stub()
    }

    pub fn wait(&self, id: &BoxId) -> Result<Ended, Error> {
        stub()
    }

    pub fn attach(&self, id: &BoxId) -> Result<Attachment, Error> {
        stub()
    }

    pub fn logs(&self, id: &BoxId) -> Result<(Logs, Option<Process>), Error> {
        stub()
    }

    /// The archive of what is at `path`; its top is called as the last component
    /// of the path, or `.` where that is no name (`/`, `.`, `..`). A path that is
    /// missing is an error.
    pub fn copy_out(&self, id: &BoxId, path: &Path) -> Result<Copying, Error> {
        stub()
    }

    /// Takes an archive into the directory `path`, or where that is none, into
    /// the directory that it is in; that must exist. What is in the way of a file
    /// is replaced, unless it is a directory.
    pub fn copy_in(&self, id: &BoxId, path: &Path) -> Result<Copying, Error> {
        stub()
    }
}
