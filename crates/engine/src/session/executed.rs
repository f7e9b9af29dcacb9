//! Another process in a live box: started by its keeper, over pipes or a
//! terminal that were made for it.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use tare_control::{Call, Exec, ExecStreams, Identity, Program, Report, Request, TerminalPlan};
use tare_kernel::clock::boot_ns;

use crate::engine::Engine;
use crate::error::{Context, Error};
use crate::record::Record;
use crate::session::attached::{Event, GRACE, Streams, event};
use crate::session::failure;
use crate::session::link::{self, Line};
use crate::session::reports::Heard;
use crate::session::stdio::{Owner, Stdin, Stdio};
use crate::spec::{BoxId, Isolation, Terminal, User};
use crate::time::from_now;

/// What is to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecSpec {
    /// Never empty; no element holds a NUL.
    pub command: Vec<OsString>,
    /// Over the environment of the box.
    pub env: Vec<(OsString, OsString)>,
    /// `None`: as the box's command.
    pub workdir: Option<PathBuf>,
    pub user: Option<User>,
    pub terminal: Terminal,
    pub timeout: Option<Duration>,
    /// It does not need its client, and its output goes to the box's log.
    pub detached: bool,
}

impl ExecSpec {
    /// A command over pipes, all else as the box's own.
    pub fn of<S: Into<OsString>>(command: impl IntoIterator<Item = S>) -> Self {
        Self {
            command: command.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            workdir: None,
            user: None,
            terminal: Terminal::Pipes,
            timeout: None,
            detached: false,
        }
    }

    fn streams(&self) -> ExecStreams {
        match (self.detached, self.terminal) {
            (true, _) => ExecStreams::Log,
            (false, Terminal::Pty { rows, columns }) => {
                ExecStreams::Terminal(TerminalPlan { rows, columns })
            }
            (false, Terminal::Pipes) => ExecStreams::Passed,
        }
    }

    fn request(&self) -> Exec {
        let words = self.command.iter().map(|word| word.as_bytes().to_owned());
        let workdir = self.workdir.as_ref().map(|path| path.as_os_str());
        let pairs = self.env.iter();
        Exec {
            program: Program::Command(words.collect()),
            env: pairs
                .map(|(key, value)| [key.as_bytes(), b"=", value.as_bytes()].concat())
                .collect(),
            workdir: workdir.map(|path| path.as_bytes().to_owned()),
            identity: self.user.map(|User { uid, gid }| Identity { uid, gid }),
            streams: self.streams(),
            timeout_ns: self
                .timeout
                .map(|timeout| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX)),
        }
    }
}

/// A process that ends with this value, unless it was started detached.
#[derive(Debug)]
pub struct Executed {
    id: BoxId,
    line: Line,
    streams: Streams,
    command: Option<OsString>,
    workdir: Option<PathBuf>,
    deadline_ns: Option<u64>,
    over: bool,
}

impl Engine {
    /// Starts another process in a live box; how that went comes as events. A keeper
    /// that says nothing at all is an error.
    pub fn exec(&self, id: &BoxId, spec: &ExecSpec, stdin: Stdin) -> Result<Executed, Error> {
        let record = self.awake(id)?;
        refuse_user(&record, id, spec)?;
        let deadline_ns = spec.timeout.map(from_now);
        let executed = Executed::start(&record, id, spec.request(), spec.user, stdin)?;
        executed.line.await_answer(id)?;
        Ok(Executed {
            command: spec.command.first().cloned(),
            workdir: spec.workdir.clone(),
            deadline_ns,
            ..executed
        })
    }
}

impl Executed {
    /// `user`: who it is to be, if not who the box's command is.
    pub(crate) fn start(
        record: &Record,
        id: &BoxId,
        exec: Exec,
        user: Option<User>,
        stdin: Stdin,
    ) -> Result<Self, Error> {
        let stdio = match exec.streams {
            ExecStreams::Passed => {
                let made = Stdio::pipes(stdin, owner(record, user));
                Some(made.context(|| "cannot make pipes for the command".into())?)
            }
            ExecStreams::Terminal(_) | ExecStreams::Log => None,
        };
        let passed = stdio.as_ref().map(Stdio::theirs);
        let passed: &[BorrowedFd<'_>] = passed.as_ref().map_or(&[], |streams| streams);
        let line = Line::call(record, id, &Call::Exec(exec), passed)?;
        Ok(Self {
            id: id.clone(),
            line,
            streams: stdio.map(|stdio| stdio.ours).unwrap_or_default(),
            command: None,
            workdir: None,
            deadline_ns: None,
            over: false,
        })
    }

    /// The host's ends; empty when called again.
    pub fn streams(&mut self) -> Streams {
        std::mem::take(&mut self.streams)
    }

    /// Readable (or hung up) when [`Self::next_event`] has something to say.
    pub fn events_fd(&self) -> BorrowedFd<'_> {
        self.line.as_fd()
    }

    /// The next event, without waiting; `None` when there is none yet. After
    /// `Exited`, `TimedOut`, `Failed` or `Gone` nothing more comes.
    pub fn next_event(&mut self) -> Option<Event> {
        if self.over {
            return None;
        }
        let event = match self.line.hear() {
            Heard::Nothing => return None,
            Heard::Gone => Event::Gone,
            Heard::Report(Report::Refused(refusal)) => {
                Event::Failed(link::refused(&self.id, refusal))
            }
            Heard::Report(report) => {
                let subject = failure::Subject {
                    command: self.command.as_ref(),
                    workdir: self.workdir.as_deref(),
                };
                event(report, &mut self.line.reports, subject)
            }
        };
        self.over = !matches!(event, Event::Started | Event::Terminal(_));
        Some(event)
    }

    /// How long until the keeper is late with the timeout that it keeps.
    pub fn overdue_in(&self) -> Option<Duration> {
        let deadline = Duration::from_nanos(self.deadline_ns?);
        Some((deadline + GRACE).saturating_sub(Duration::from_nanos(boot_ns())))
    }

    /// Passes a signal to the process.
    pub fn signal(&mut self, signal: i32) -> Result<(), Error> {
        self.line
            .request(&Request::Signal(signal))
            .context(|| format!("cannot pass signal {signal} into box {}", self.id))
    }

    /// Ends the process and everyone that it started.
    pub fn kill(&self) {
        self.line.hang_up();
    }
}

/// Containment changes nobody's ids.
fn refuse_user(record: &Record, id: &BoxId, spec: &ExecSpec) -> Result<(), Error> {
    let intent = record.account.intent.as_ref();
    let contained = intent.is_some_and(|intent| intent.spec.isolation == Isolation::Contain);
    if spec.user.is_none() || !contained {
        return Ok(());
    }
    Err(Error::bad_request(format!("box {id} has no users of its own"))
        .caused_by("it was started with --contain")
        .with_hint("leave -u out"))
}

/// Who the process is on the host.
fn owner(record: &Record, user: Option<User>) -> Owner {
    let account = &record.account;
    let first_uid = account.keeper.as_ref().and_then(|keeper| keeper.first_uid);
    let box_user = account.intent.as_ref().map(|intent| intent.spec.user);
    match user.or(box_user) {
        Some(user) => Owner::of(first_uid, user),
        None => Owner::of(None, User { uid: 0, gid: 0 }),
    }
}
