//! Starts interpreters in boxes of a pool. Every function here blocks its thread.

use std::io::PipeReader;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tare_engine::{
    Cause, Circumstances, Context as _, End, Engine, Error, ExecSpec, Session, Stdin, Subject,
};
use tare_kernel::fds::send_with;
use tare_kernel::template::native;

use crate::telemetry::LogEvent;
use crate::telemetry::journal::Journal;

/// How long an interpreter may take to start and to import its modules.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// After this time the log says what an interpreter imports.
const SLOW_AFTER: Duration = Duration::from_secs(5);
/// The byte that an interpreter writes when it is ready.
const READY: u8 = 0;
/// An interpreter begins a line with this byte, and ends it with the name of a module, before it imports
/// that module.
const IMPORTS: u8 = 1;
/// The longest name of a module that an error shows.
const NAME_BYTES_MAX: usize = 200;
/// How the line of an interpreter begins that could not import a module.
const CANNOT_IMPORT: &str = "cannot import ";
/// The most that is kept of what an interpreter wrote before it failed: the last bytes.
const ERROR_BYTES_MAX: usize = 64 << 10;

/// How an interpreter begins to wait in its box.
#[derive(Debug)]
pub enum StartAs<'a> {
    Exec(&'a ExecSpec),
    /// As a template, which loads its native part.
    Template(&'a ExecSpec),
    /// As the clone that was made with its box.
    Clone,
}

/// Why an interpreter did not start.
#[derive(Debug)]
pub struct NotStarted {
    pub error: Error,
    /// Its box, if it could not be ended.
    pub stuck: Option<Box<Session>>,
}

impl From<Error> for NotStarted {
    fn from(error: Error) -> Self {
        Self { error, stuck: None }
    }
}

/// What a thread needs to make boxes of a pool.
#[derive(Debug, Clone)]
pub struct Maker {
    pub engine: Arc<Engine>,
    pub journal: Arc<Journal>,
    /// Hangs up when the server stops. Then no thread waits for an interpreter any more.
    pub closing: Arc<PipeReader>,
}

/// Starts an interpreter in a box without a command, and waits until it is ready.
pub fn start(maker: &Maker, session: &mut Session, how: StartAs<'_>) -> Result<Session, Error> {
    session.wait_started()?;
    let mut process = match &how {
        StartAs::Exec(spec) => maker.engine.exec_in(session, spec, Stdin::Pipe)?,
        StartAs::Template(spec) => maker.engine.exec_in(session, spec, Stdin::Socket)?,
        StartAs::Clone => maker.engine.exec_clone(session, Stdin::Pipe)?,
    };
    process.wait_started()?;
    if let (StartAs::Template(_), Some(socket)) = (how, &process.its_streams().stdin) {
        let sent = native().and_then(|it| send_with(socket.as_fd(), b"native", &[it.as_fd()]));
        sent.context(|| "cannot pass a template its native part".into())?;
    }
    await_ready(&process, maker)?;
    Ok(process)
}

/// Ends the box of an interpreter that did not start, and returns the reason. Only the end of the
/// box shows that it ran out of memory.
pub fn give_up(mut session: Session, error: Error) -> NotStarted {
    let is_stuck = session.end().is_err();
    let error = out_of_memory(&session).unwrap_or(error);
    NotStarted { error, stuck: is_stuck.then(|| Box::new(session)) }
}

/// Returns the error for an interpreter that ran out of memory, if it did.
fn out_of_memory(session: &Session) -> Option<Error> {
    let evidence = &session.ended()?.evidence;
    let end = End::killed(Cause::KeeperLost).under(evidence.pressure());
    let of = Circumstances { evidence: Some(evidence), ..Circumstances::of(end, Subject::Box) };
    let error = || Error::failed("the interpreter did not start").caused_by(of.sentence().text);
    (end.cause == Cause::Memory).then(error)
}

/// Waits until an interpreter has written that it is ready. Discards what modules print when they
/// are imported: it is not for a client.
fn await_ready(process: &Session, maker: &Maker) -> Result<(), Error> {
    let streams = process.its_streams();
    let (Some(stdout), Some(stderr)) = (&streams.stdout, &streams.stderr) else {
        return Err(Error::failed("an interpreter has no output"));
    };
    let began = Instant::now();
    let mut bounds = [began + SLOW_AFTER, began + READY_WITHIN].into_iter().peekable();
    let fds = [stdout.as_fd(), stderr.as_fd(), process.events_fd(), maker.closing.as_fd()];
    let (mut line, mut importing, mut said) = (Vec::new(), None, Vec::new());
    while let Some(bound) = bounds.peek() {
        let Some([of_stdout, of_stderr, ..]) = are_ready(fds, *bound)? else {
            if bounds.next().is_some() && bounds.peek().is_some() {
                let why = still(began.elapsed(), importing.as_deref());
                let box_id = process.id().as_str();
                maker.journal.record(&LogEvent::PoolSlow { box_id, why: &why });
            }
            continue;
        };
        let mut byte = [0];
        if of_stdout && read(stdout.as_fd(), &mut byte)? > 0 {
            match byte[0] {
                READY => return Ok(()),
                b'\n' => {
                    importing = name_in(&line).or(importing);
                    line.clear();
                }
                other if line.len() < NAME_BYTES_MAX => line.push(other),
                _too_long => {}
            }
        } else if of_stdout || !of_stderr || !add_part(stderr.as_fd(), &mut said) {
            // What it wrote is in the pipe. A process that it started may keep the pipe open.
            let now = Instant::now();
            while let Some(_) = are_ready([stderr.as_fd()], now)?
                && add_part(stderr.as_fd(), &mut said)
            {}
            return Err(failure(&String::from_utf8_lossy(&said), importing.as_deref()));
        }
    }
    let why = still(READY_WITHIN, importing.as_deref());
    Err(Error::failed("the interpreter did not start in time").caused_by(why))
}

/// Returns the name of the module in a line that says what an interpreter imports.
fn name_in(line: &[u8]) -> Option<String> {
    let name = line.strip_prefix(&[IMPORTS])?;
    Some(String::from_utf8_lossy(name).into_owned())
}

fn still(time: Duration, importing: Option<&str>) -> String {
    let does = importing.map_or("starts".to_owned(), |name| format!("imports {name}"));
    format!("after {} s it still {does}", time.as_secs())
}

/// Returns the error for an interpreter that ended: the last line that it wrote about an error. Node
/// writes its own version after the error.
fn failure(said: &str, importing: Option<&str>) -> Error {
    let is_said = |line: &&str| !line.trim().is_empty() && !line.starts_with("Node.js v");
    let names_it = |line: &&str| line.split(':').next().is_some_and(|it| it.ends_with("Error"));
    let last = said.lines().rfind(|line| line.starts_with(CANNOT_IMPORT));
    let last = last.or_else(|| said.lines().rfind(names_it));
    let why = match (last.or_else(|| said.lines().rfind(is_said)), importing) {
        (Some(line), Some(name)) if !line.contains(name) => {
            format!("{CANNOT_IMPORT}{name}: {line}")
        }
        (Some(line), _) => line.to_owned(),
        (None, Some(name)) => format!("it ended while it imported {name}"),
        (None, None) => "it ended without an error".to_owned(),
    };
    Error::failed("the interpreter did not start").caused_by(why)
}

/// Waits until one of the descriptors is readable, and returns which are. `None` after this time.
fn are_ready<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    until: Instant,
) -> Result<Option<[bool; N]>, Error> {
    let left = until.saturating_duration_since(Instant::now());
    let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let count = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&timeout)));
    let count = count.context(|| "cannot wait for an interpreter".into())?;
    Ok((count > 0).then(|| fds.map(|fd| !fd.revents().is_empty())))
}

/// Adds what is in a pipe to a text of limited length. Returns false at the end of the pipe.
fn add_part(from: BorrowedFd<'_>, said: &mut Vec<u8>) -> bool {
    let mut part = [0; 4096];
    let count = read(from, &mut part).unwrap_or(0);
    said.extend_from_slice(&part[..count]);
    said.drain(..said.len().saturating_sub(ERROR_BYTES_MAX));
    count > 0
}

fn read(from: BorrowedFd<'_>, into: &mut [u8]) -> Result<usize, Error> {
    rustix::io::retry_on_intr(|| rustix::io::read(from, &mut *into))
        .context(|| "cannot read what an interpreter wrote".into())
}
