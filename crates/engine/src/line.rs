//! A line to the keeper of a box: one call, and what it answers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use tare_control::{CALL_BYTES_MAX, Call, REQUEST_BYTES_MAX, Refusal, Report, Request, encode};
use tare_kernel::clock::{boot_ns, timespec};
use tare_kernel::fds::send_with;
use tare_kernel::step::step;

use crate::error::{Error, ErrorKind};
use crate::id::BoxId;
use crate::record::Record;
use crate::reports::{Heard, Reports};

/// How long a keeper may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct Line {
    socket: OwnedFd,
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
            Error::new(
                ErrorKind::BadRequest,
                "the command and its environment are too large",
            )
            .because(error)
            .with_hint("pass large data through stdin or 'tare cp'")
        })?;
        let line = record
            .connect()
            .and_then(|socket| {
                send_all(socket.as_fd(), &frame, fds)?;
                Ok(Self {
                    socket,
                    reports: Reports::default(),
                })
            })
            .map_err(|error| unreachable_keeper(id, error))?;
        Ok(line)
    }

    /// What has come, without waiting.
    pub fn hear(&mut self) -> Heard {
        self.reports.hear(self.socket.as_fd())
    }

    pub fn request(&self, request: &Request) -> io::Result<()> {
        let frame = encode(request, REQUEST_BYTES_MAX).map_err(io::Error::other)?;
        step("request sent on", || {
            send(&self.socket, &frame, SendFlags::NOSIGNAL)
        })?;
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
        let until_ns = within(ANSWER_WITHIN);
        loop {
            match self.hear() {
                Heard::Report(report) => return Ok(report),
                Heard::Gone => return Err(ended_meanwhile(id)),
                Heard::Nothing => self.wait(id, until_ns)?,
            }
        }
    }

    /// Waits for the first word, or the end of the line.
    pub fn await_answer(&self, id: &BoxId) -> Result<(), Error> {
        self.wait(id, within(ANSWER_WITHIN))
    }

    fn wait(&self, id: &BoxId, until_ns: u64) -> Result<(), Error> {
        loop {
            let left = Duration::from_nanos(until_ns.saturating_sub(boot_ns()));
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut fds, Some(&timespec(left))) {
                Ok(1..) => return Ok(()),
                Ok(0) if left.is_zero() => return Err(silent(id)),
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

fn within(bound: Duration) -> u64 {
    boot_ns() + bound.as_nanos() as u64
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
    match ask(record, id, call)?.0 == Report::Done {
        true => Ok(()),
        false => Err(silent(id)),
    }
}

pub fn refused(id: &BoxId, refusal: Refusal) -> Error {
    let (why, hint) = match refusal {
        Refusal::Busy => (
            "it runs as many processes for others as it can",
            "try again when one has ended",
        ),
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
        Refusal::Malformed => (
            "its keeper does not understand",
            "was it started by another version of tare?",
        ),
    };
    Error::new(
        ErrorKind::Conflict,
        format!("box {id} does not do what was asked for"),
    )
    .because(why)
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

fn unreachable_keeper(id: &BoxId, error: io::Error) -> Error {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    match errno {
        Some(Errno::CONNREFUSED | Errno::NOENT | Errno::PIPE | Errno::CONNRESET) => {
            ended_meanwhile(id)
        }
        Some(Errno::AGAIN) => silent(id),
        Some(_) | None => {
            Error::new(ErrorKind::Failed, format!("cannot reach box {id}")).because(error)
        }
    }
}

fn ended_meanwhile(id: &BoxId) -> Error {
    Error::new(ErrorKind::Conflict, format!("box {id} has ended"))
        .with_hint("'tare ls -a' says how; 'tare run -d' starts another")
}

fn silent(id: &BoxId) -> Error {
    Error::new(ErrorKind::Failed, format!("box {id} does not answer"))
        .with_hint("'tare inspect' says what it is doing; 'tare rm -f' ends it in any case")
}
