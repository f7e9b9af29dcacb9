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

/// How long an interpreter may take to start and to import its modules.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// The byte that an interpreter writes when it is ready.
const READY: [u8; 1] = [0];
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
    await_ready(&process, &maker.closing)?;
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
fn await_ready(process: &Session, closing: &PipeReader) -> Result<(), Error> {
    let streams = process.its_streams();
    let (Some(stdout), Some(stderr)) = (&streams.stdout, &streams.stderr) else {
        return Err(Error::failed("an interpreter has no output"));
    };
    let until = Instant::now() + READY_WITHIN;
    let ends = [process.events_fd(), closing.as_fd()];
    let mut said = Vec::new();
    loop {
        let [of_stdout, of_stderr, ..] =
            are_ready([stdout.as_fd(), stderr.as_fd(), ends[0], ends[1]], until)?;
        let mut byte = [1];
        if of_stdout && read(stdout.as_fd(), &mut byte)? > 0 {
            if byte == READY {
                return Ok(());
            }
        } else if of_stdout || !of_stderr || !add_part(stderr.as_fd(), &mut said) {
            break;
        }
    }
    // What it wrote is in the pipe. A process that it started may keep the pipe open.
    let now = Instant::now();
    while are_ready([stderr.as_fd()], now).is_ok() && add_part(stderr.as_fd(), &mut said) {}
    Err(failure(&String::from_utf8_lossy(&said)))
}

/// Returns the error for an interpreter that ended: the last line that it wrote. Node writes its
/// own version after the error.
fn failure(said: &str) -> Error {
    let is_said = |line: &&str| !line.trim().is_empty() && !line.starts_with("Node.js v");
    let names_it = |line: &&str| line.split(':').next().is_some_and(|it| it.ends_with("Error"));
    let last = said.lines().rfind(names_it).or_else(|| said.lines().rfind(is_said));
    let why = last.unwrap_or("it ended without an error").to_owned();
    Error::failed("the interpreter did not start").caused_by(why)
}

/// Waits until one of the descriptors is readable, and returns which are.
fn are_ready<const N: usize>(fds: [BorrowedFd<'_>; N], until: Instant) -> Result<[bool; N], Error> {
    let left = until.saturating_duration_since(Instant::now());
    let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let count = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&timeout)));
    if count.context(|| "cannot wait for an interpreter".into())? == 0 {
        let why = format!("it took more than {} s", READY_WITHIN.as_secs());
        return Err(Error::failed("the interpreter did not start in time").caused_by(why));
    }
    Ok(fds.map(|fd| !fd.revents().is_empty()))
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
