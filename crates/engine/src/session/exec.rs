//! Starts another process in a live box. The keeper starts it with its own pipes or its own terminal.

use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use tare_control::{Call, Exec, ExecStreams, Identity, Program, TerminalPlan};

use crate::care::tend::awake_after_boot;
use crate::error::{Context, Error, Hint};
use crate::holdings::cgroup::{self, LimitWatch};
use crate::host::layout::BoxAt;
use crate::record::Record;
use crate::session::Session;
use crate::session::link::{ANSWER_WITHIN, KeeperLink};
use crate::session::stdio::{Owner, Stdin, Stdio};
use crate::spec::BoxId;
use crate::spec::{Isolation, Terminal, User};
use crate::time::from_now;

/// The process to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecSpec {
    /// Not empty. No element has a NUL.
    pub command: Vec<OsString>,
    /// In addition to the environment of the box.
    pub env: Vec<(OsString, OsString)>,
    /// `None` for that of the box's command.
    pub workdir: Option<PathBuf>,
    pub user: Option<User>,
    pub terminal: Terminal,
    pub timeout: Option<Duration>,
    /// Whether it outlives its client, with its output in the box's log.
    pub detached: bool,
}

impl ExecSpec {
    /// Returns the spec of a command with pipes, and otherwise the settings of the box's command.
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
            (true, _) => ExecStreams::Log { keep_stdin: false },
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

/// Starts another process in a live box. Whether it started comes as an event; a keeper that does
/// not answer in time is an error.
pub fn exec(at: BoxAt<'_>, spec: &ExecSpec, stdin: Stdin) -> Result<Session, Error> {
    let record = awake_after_boot(at)?;
    refuse_user(&record, at.id, spec)?;
    let limits = LimitWatch::new(&cgroup::roots_of(at, &record), at.tagged_id());
    exec_recorded(at, &record, (spec, spec.request()), (stdin, limits))
}

/// Starts the first process in a new box of a pool, which this process owns.
pub fn exec_in(owner: &Session, spec: &ExecSpec, stdin: Stdin) -> Result<Session, Error> {
    first_exec(owner, (spec, spec.request()), stdin)
}

/// Starts the clone in the box of a pool, which this process owns.
pub fn exec_clone(owner: &Session, stdin: Stdin) -> Result<Session, Error> {
    let spec = ExecSpec::of(["clone"]);
    let exec = Exec { program: Program::Clone, ..spec.request() };
    first_exec(owner, (&spec, exec), stdin)
}

fn first_exec(owner: &Session, exec: (&ExecSpec, Exec), stdin: Stdin) -> Result<Session, Error> {
    let Some(owned) = &owner.owned else {
        return Err(Error::failed("cannot start a process in a box that another process owns"));
    };
    let at = owned.root.at(owner.id());
    let limits = LimitWatch::of_new_box(&cgroup::roots_of(at, &owned.record), at.tagged_id());
    exec_recorded(at, &owned.record, exec, (stdin, limits))
}

fn exec_recorded(
    at: BoxAt<'_>,
    record: &Record,
    (spec, exec): (&ExecSpec, Exec),
    (stdin, limits): (Stdin, LimitWatch),
) -> Result<Session, Error> {
    // A command in a machine may start late. Its timeout counts from its start.
    let in_machine = record.is_machine();
    let late = if in_machine { ANSWER_WITHIN } else { Duration::ZERO };
    let deadline_ns = spec.timeout.map(|timeout| from_now(timeout + late));
    let (link, stdio) = start(record, at.id, exec, spec.user, stdin)?;
    link.await_answer(at.id)?;
    let streams = stdio.map(|stdio| stdio.ours).unwrap_or_default();
    let session = Session::new(at.id.clone(), link.channel, streams, deadline_ns)
        .of_command(spec.command.first().cloned(), spec.workdir.clone())
        .booting(Duration::ZERO, spec.timeout)
        .watching(limits);
    Ok(if in_machine { session.in_machine() } else { session })
}

/// Asks the keeper to start a process. `user` is its user, if not that of the box's command. Returns
/// the pipes that were made for it.
pub(crate) fn start(
    record: &Record,
    id: &BoxId,
    exec: Exec,
    user: Option<User>,
    stdin: Stdin,
) -> Result<(KeeperLink, Option<Stdio>), Error> {
    let stdio = match exec.streams {
        ExecStreams::Passed => {
            let made = Stdio::pipes(stdin, owner(record, user));
            Some(made.context(|| "cannot make pipes for the command".into())?)
        }
        ExecStreams::Terminal(_) | ExecStreams::Log { .. } | ExecStreams::Inherited => None,
    };
    let passed = stdio.as_ref().map(Stdio::theirs);
    let passed: &[BorrowedFd<'_>] = passed.as_ref().map_or(&[], |streams| streams);
    let link = KeeperLink::open(record, id, &Call::Exec(exec), passed)?;
    Ok((link, stdio))
}

/// Refuses another user in a contained box, where users do not change.
fn refuse_user(record: &Record, id: &BoxId, spec: &ExecSpec) -> Result<(), Error> {
    let created = record.lines.created.as_ref();
    let contained = created.is_some_and(|created| created.spec.isolation == Isolation::Contain);
    if spec.user.is_none() || !contained {
        return Ok(());
    }
    Err(Error::bad_request(format!("box {id} has no users of its own"))
        .caused_by("its isolation is contain")
        .with_hint(Hint::ContainedHasOneUser))
}

/// Returns the user and group of the process on the host.
fn owner(record: &Record, user: Option<User>) -> Owner {
    let lines = &record.lines;
    let first_uid = lines.keeper.as_ref().and_then(|keeper| keeper.first_uid);
    let box_user = lines.created.as_ref().map(|created| created.spec.user);
    match user.or(box_user) {
        Some(user) => Owner::of(first_uid, user),
        None => Owner::of(None, User { uid: 0, gid: 0 }),
    }
}
