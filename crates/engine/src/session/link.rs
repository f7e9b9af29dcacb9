//! A line to the keeper of a box: one call, and what it answers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use tare_control::{CALL_BYTES_MAX, Call, REQUEST_BYTES_MAX, Refusal, Report, Request, encode};
use tare_kernel::clock::{boot_ns, timespec};
use tare_kernel::fds::{peer_pid, send_with};
use tare_kernel::procfs::Procfs;
use tare_kernel::step::step;

use crate::error::{Error, ErrorKind};
use crate::record::Record;
use crate::session::reports::{Heard, Reports};
use crate::spec::BoxId;

/// How long a keeper may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct Line {
    socket: OwnedFd,
    /// When the first answer is late.
    until_ns: u64,
    pub reports: Reports,
}

impl Line {
    /// Calls the keeper, with descriptors if the call has some.
    pub fn call(
        record: &Record,
        id: &BoxId,
        call: &Call,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Self, Error> {
        let frame = encode(call, CALL_BYTES_MAX).map_err(|error| {
            Error::bad_request("the command and its environment are too large")
                .caused_by(error)
                .with_hint("pass large data through stdin or 'tare cp'")
        })?;
        let patience = patience(call);
        let until_ns = boot_ns() + patience.as_nanos() as u64;
        let socket =
            record.connect(patience).map_err(|error| unreachable_keeper(id, error, None))?;
        send_all(socket.as_fd(), &frame, fds)
            .map_err(|error| unreachable_keeper(id, error, Some(&socket)))?;
        Ok(Self { socket, until_ns, reports: Reports::default() })
    }

    /// What has come, without waiting.
    pub fn hear(&mut self) -> Heard {
        self.reports.hear(self.socket.as_fd())
    }

    pub fn request(&self, request: &Request) -> io::Result<()> {
        let frame = encode(request, REQUEST_BYTES_MAX).map_err(io::Error::other)?;
        step("request sent on", || send(&self.socket, &frame, SendFlags::NOSIGNAL))?;
        Ok(())
    }

    /// Hangs up, also for whoever still reads: the keeper ends what was called
    /// for.
    pub fn hang_up(&self) {
        // A line that is down already is as wanted.
        rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both).ok();
    }

    /// The next report, waited for.
    pub fn answer(&mut self, id: &BoxId) -> Result<Report, Error> {
        loop {
            match self.hear() {
                Heard::Report(report) => return Ok(report),
                Heard::Gone => return Err(ended_meanwhile(id)),
                Heard::Nothing => self.await_answer(id)?,
            }
        }
    }

    /// Waits for the first word, or the end of the line.
    pub fn await_answer(&self, id: &BoxId) -> Result<(), Error> {
        loop {
            let left = Duration::from_nanos(self.until_ns.saturating_sub(boot_ns()));
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut fds, Some(&timespec(left))) {
                Ok(1..) => return Ok(()),
                Ok(0) if left.is_zero() => return Err(silent(id, Some(&self.socket))),
                // An interrupted wait is one more look.
                Ok(_) | Err(_) => {}
            }
        }
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A command with a timeout is not worth waiting for longer than that.
fn patience(call: &Call) -> Duration {
    let timeout = match call {
        Call::Exec(exec) => exec.timeout_ns.map(Duration::from_nanos),
        Call::Signal(_)
        | Call::Stop { .. }
        | Call::Lease { .. }
        | Call::Freeze
        | Call::Resumed
        | Call::Usage
        | Call::Input => None,
    };
    // The kernel takes no time at all for no limit, socket(7).
    let least = Duration::from_millis(1);
    timeout.map_or(ANSWER_WITHIN, |timeout| timeout.clamp(least, ANSWER_WITHIN))
}

/// One call that is answered by one report.
pub fn ask(record: &Record, id: &BoxId, call: &Call) -> Result<(Report, Option<OwnedFd>), Error> {
    let mut line = Line::call(record, id, call, &[])?;
    let report = line.answer(id)?;
    if let Report::Refused(refusal) = report {
        return Err(refused(id, refusal));
    }
    Ok((report, line.reports.take_passed()))
}

/// One call that only has to be done.
pub fn tell(record: &Record, id: &BoxId, call: &Call) -> Result<(), Error> {
    if ask(record, id, call)?.0 == Report::Done { Ok(()) } else { Err(silent(id, None)) }
}

pub fn refused(id: &BoxId, refusal: Refusal) -> Error {
    let (why, hint) = match refusal {
        Refusal::Busy => {
            ("it runs as many processes for others as it can", "try again when one has ended")
        }
        Refusal::NoInput => (
            "its standard input is closed",
            "start a box with -d -i, or -d -t, to talk to it later",
        ),
        Refusal::NoLog => (
            "it is attached to the tare that started it and has no log",
            "leave -d out, or start the box with 'tare run -d'",
        ),
        Refusal::Paused => ("it is paused", "'tare resume' lets it go on"),
        Refusal::NoFreezer => ("it has no cgroup to be paused in", "see 'tare doctor'"),
        Refusal::Malformed => {
            ("its keeper does not understand", "was it started by another version of tare?")
        }
    };
    Error::conflict(format!("box {id} does not do what was asked for"))
        .caused_by(why)
        .with_hint(hint)
}

/// The descriptors go with the first byte.
fn send_all(socket: BorrowedFd<'_>, frame: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut sent = send_with(socket, frame, fds)?;
    while sent < frame.len() {
        sent += send(socket, &frame[sent..], SendFlags::NOSIGNAL)?;
    }
    Ok(())
}

fn unreachable_keeper(id: &BoxId, error: io::Error, socket: Option<&OwnedFd>) -> Error {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    match errno {
        Some(Errno::CONNREFUSED | Errno::NOENT | Errno::PIPE | Errno::CONNRESET) => {
            ended_meanwhile(id)
        }
        Some(Errno::AGAIN) => silent(id, socket),
        Some(_) | None => Error::failed(format!("cannot reach box {id}")).caused_by(error),
    }
}

fn ended_meanwhile(id: &BoxId) -> Error {
    Error::conflict(format!("box {id} has ended"))
        .with_hint("'tare ls -a' says how; 'tare run -d' starts another")
}

/// The keeper has said nothing in time. `socket` leads to it.
fn silent(id: &BoxId, socket: Option<&OwnedFd>) -> Error {
    let error = Error::new(ErrorKind::NoAnswer, format!("box {id} does not answer"));
    if socket.is_some_and(|socket| is_stopped(socket.as_fd())) {
        error
            .caused_by("its keeper is stopped, by a signal or by a debugger")
            .with_hint("continue the keeper with SIGCONT, or use 'tare rm -f'")
    } else {
        error.with_hint("'tare inspect' says what it is doing; 'tare rm -f' ends it in any case")
    }
}

/// `false` of a keeper that cannot be seen.
fn is_stopped(socket: BorrowedFd<'_>) -> bool {
    let (Ok(pid @ 1..), Ok(procfs)) = (peer_pid(socket), Procfs::open()) else {
        return false;
    };
    let stat = procfs.stat(pid).ok();
    stat.is_some_and(|stat| stat.is_stopped)
}
