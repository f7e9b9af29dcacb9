//! One call to the keeper of a box, over a connection of its own.
//!
//! The keeper has a bounded time for its first answer. What it sends is not trusted.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tare_control::{
    CALL_BYTES_MAX, Call, Channel, FrameError, REPORT_BYTES_MAX, Received, Refusal, Report,
    Versioned, encode,
};
use tare_kernel::clock::{boot_ns, timespec};
use tare_kernel::fds::peer_pid;
use tare_kernel::procfs::Procfs;

use crate::error::{Error, ErrorKind, Hint};
use crate::observe::view::has_ended;
use crate::record::Record;
use crate::spec::BoxId;

/// How long a keeper may take to answer.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// On a busy host, a keeper may need longer than a short timeout to answer. The timeout of the command
/// itself begins when it starts.
const ANSWER_WITHIN_AT_LEAST: Duration = Duration::from_secs(1);

/// A connection on which a call was sent.
#[derive(Debug)]
pub struct KeeperLink {
    pub channel: Channel,
    /// The boot-clock time at which the first answer is late.
    until_ns: u64,
}

impl KeeperLink {
    /// Connects to the keeper and sends the call, with its descriptors.
    pub fn open(
        record: &Record,
        id: &BoxId,
        call: &Call,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Self, Error> {
        Self::open_for(record, id, (call, fds), patience(record, call))
    }

    fn open_for(
        record: &Record,
        id: &BoxId,
        (call, fds): (&Call, &[BorrowedFd<'_>]),
        patience: Duration,
    ) -> Result<Self, Error> {
        let frame = encode(&Versioned::new(call), CALL_BYTES_MAX).map_err(too_large)?;
        let until_ns = boot_ns() + patience.as_nanos() as u64;
        let socket = record.connect(patience).map_err(|error| {
            if error.kind() == io::ErrorKind::NotFound && record.exists() {
                // The box may live: its socket was deleted.
                return Error::conflict(format!("box {id} cannot be reached"))
                    .caused_by("its control socket is missing")
                    .with_hint(Hint::InspectOrForce);
            }
            unreachable_keeper(id, error, None)
        })?;
        let channel = Channel::new(socket);
        channel
            .send_frame(&frame, fds)
            .map_err(|error| unreachable_keeper(id, error, Some(channel.as_fd())))?;
        Ok(Self { channel, until_ns })
    }

    /// Waits for the keeper's first report.
    fn answer(&mut self, id: &BoxId) -> Result<Report, Error> {
        loop {
            match self.channel.receive(REPORT_BYTES_MAX) {
                Received::Message(report) => return Ok(report),
                Received::Closed => return Err(has_ended(id)),
                Received::Nothing => self.await_answer(id)?,
            }
        }
    }

    /// Waits until there is something to receive: a report, or the end of the connection.
    pub fn await_answer(&self, id: &BoxId) -> Result<(), Error> {
        loop {
            let left = Duration::from_nanos(self.until_ns.saturating_sub(boot_ns()));
            let mut fds = [PollFd::new(&self.channel, PollFlags::IN)];
            match poll(&mut fds, Some(&timespec(left))) {
                Ok(1..) => return Ok(()),
                Ok(0) if left.is_zero() => return Err(silent(id, Some(self.channel.as_fd()))),
                // After an interrupted wait the loop waits for the rest.
                Ok(_) | Err(_) => {}
            }
        }
    }
}

/// How long to wait for the keeper's answer. An exec waits no longer than its own timeout, and at least
/// a second. A machine may need longer than that to start a process, or still boot.
fn patience(record: &Record, call: &Call) -> Duration {
    let timeout = match call {
        Call::Exec(_) if record.is_machine() => return ANSWER_WITHIN,
        Call::Exec(exec) => exec.timeout_ns.map(Duration::from_nanos),
        Call::Signal(_)
        | Call::Stop { .. }
        | Call::Lease { .. }
        | Call::Freeze
        | Call::Resumed
        | Call::Usage
        | Call::Input
        | Call::MachineMemory { .. }
        | Call::MachinePids(_) => None,
    };
    timeout.map_or(ANSWER_WITHIN, |timeout| timeout.clamp(ANSWER_WITHIN_AT_LEAST, ANSWER_WITHIN))
}

/// Makes a call that is answered by one report. Returns that report and the descriptor
/// that came with it.
pub fn call(record: &Record, id: &BoxId, call: &Call) -> Result<(Report, Option<OwnedFd>), Error> {
    call_within(ANSWER_WITHIN, record, id, call)
}

/// Makes such a call, and waits no longer than this for its answer.
pub fn call_within(
    most: Duration,
    record: &Record,
    id: &BoxId,
    call: &Call,
) -> Result<(Report, Option<OwnedFd>), Error> {
    let patience = patience(record, call).min(most);
    let mut link = KeeperLink::open_for(record, id, (call, &[]), patience)?;
    let report = link.answer(id)?;
    if let Report::Refused(refusal) = report {
        return Err(refused(id, refusal));
    }
    Ok((report, link.channel.take_passed().pop()))
}

/// Makes a call whose only answer is that it was done.
pub fn call_done(record: &Record, id: &BoxId, what: &Call) -> Result<(), Error> {
    if call(record, id, what)?.0 == Report::Done { Ok(()) } else { Err(silent(id, None)) }
}

/// Returns the error for a command that does not fit into a frame.
pub fn too_large(error: FrameError) -> Error {
    Error::bad_request("the command and its environment are too large")
        .caused_by(error)
        .with_hint(Hint::PassLargeDataOtherwise)
}

pub fn refused(id: &BoxId, refusal: Refusal) -> Error {
    let error = Error::conflict(format!("box {id} refuses the request"));
    let (why, hint) = match refusal {
        Refusal::NoFreezer => {
            return Error::conflict(format!("box {id} cannot be paused"))
                .caused_by("this host gives you no cgroup")
                .with_hint(Hint::SeeDoctor);
        }
        Refusal::Paused => return error.caused_by("it is paused").with_hint(Hint::Resume),
        Refusal::Busy => {
            ("it already runs as many execs as it can", "try again when one has ended")
        }
        Refusal::NoInput => (
            "its standard input is closed",
            "start a box with -d -i, or -d -t, to talk to it later",
        ),
        Refusal::NoLog => {
            return error
                .caused_by("it is attached to the process that started it and has no log")
                .with_hint(Hint::CreateDetached("to start detached execs in it"));
        }
        Refusal::NoJournal => {
            ("its keeper cannot write its journal", "does the disk of the state root work?")
        }
        Refusal::NoMonitor => {
            return error
                .caused_by("its monitor takes no commands")
                .with_hint(Hint::InspectOrForce);
        }
        Refusal::Malformed => (
            "its keeper does not understand the request",
            "was it started by another version of tare?",
        ),
    };
    error.caused_by(why).with_hint(hint)
}

fn unreachable_keeper(id: &BoxId, error: io::Error, socket: Option<BorrowedFd<'_>>) -> Error {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    match errno {
        Some(Errno::CONNREFUSED | Errno::NOENT | Errno::PIPE | Errno::CONNRESET) => has_ended(id),
        Some(Errno::AGAIN) => silent(id, socket),
        Some(_) | None => Error::failed(format!("cannot reach box {id}"))
            .caused_by(error)
            .with_hint(Hint::InspectOrForce),
    }
}

/// Returns the error for a keeper that has not answered in time. `socket` is connected to it.
fn silent(id: &BoxId, socket: Option<BorrowedFd<'_>>) -> Error {
    let error = Error::new(ErrorKind::NoAnswer, format!("box {id} does not answer"));
    if socket.is_some_and(is_stopped) {
        error
            .caused_by("its keeper is stopped, by a signal or by a debugger")
            .with_hint(Hint::ContinueKeeperOrForce)
    } else {
        error.with_hint(Hint::InspectOrForce)
    }
}

/// Returns whether the keeper at the other end is stopped. `false` if it cannot be seen.
fn is_stopped(socket: BorrowedFd<'_>) -> bool {
    let (Ok(pid @ 1..), Ok(procfs)) = (peer_pid(socket), Procfs::open()) else {
        return false;
    };
    let stat = procfs.stat(pid).ok();
    stat.is_some_and(|stat| stat.is_stopped)
}
