//! Attaches to a detached box: its output from now on, and the write end of its input.

use std::os::fd::OwnedFd;

use rustix::fs::{FileType, fstat};
use tare_control::{Call, Report};
use tare_kernel::process::Process;

use crate::care::tend::{awake_after_boot, observe_tended};
use crate::error::{Error, Hint};
use crate::host::layout::BoxAt;
use crate::observe::Observation;
use crate::observe::view::{State, is_waiting};
use crate::session::link;
use crate::session::logs::Logs;
use crate::spec::BoxId;

/// The handles of a client that attaches to a running box.
#[derive(Debug)]
pub struct Attachment {
    /// The output from now on.
    pub logs: Logs,
    /// The keeper, which lives as long as the box.
    pub keeper: Option<Process>,
    /// The pipe of its standard input, or the master side of its terminal. The terminal may be written
    /// and resized, but not read: the keeper reads it.
    pub input: Option<OwnedFd>,
    pub is_terminal: bool,
}

/// Returns the log of a box, and its keeper if it lives.
pub fn logs(at: BoxAt<'_>) -> Result<(Logs, Option<Process>), Error> {
    let observed = observe_tended(at)?;
    let logs = open_logs(&observed, at.id)?;
    Ok((logs, observed.keeper.into_alive()))
}

/// Attaches to a live box.
pub fn attach(at: BoxAt<'_>) -> Result<Attachment, Error> {
    let record = awake_after_boot(at)?;
    let observed = observe_tended(at)?;
    if observed.is_attached() {
        return Err(Error::bad_request(format!("cannot attach to box {}", at.id))
            .caused_by("another tare holds its terminal")
            .with_hint(Hint::CreateDetached("to attach to it")));
    }
    let mut logs = open_logs(&observed, at.id)?;
    logs.tail(0)?;
    let (input, is_terminal) = match link::call(&record, at.id, &Call::Input) {
        Ok((Report::Input { is_terminal: true }, Some(fd))) => (Some(fd), true),
        Ok((Report::Input { is_terminal: false }, fd)) => (fd.filter(is_pipe), false),
        // Its input was never open, or the box has just ended. The end of the keeper shows that.
        Ok(_) | Err(_) => (None, false),
    };
    Ok(Attachment { logs, keeper: observed.keeper.into_alive(), input, is_terminal })
}

fn open_logs(observed: &Observation, id: &BoxId) -> Result<Logs, Error> {
    if observed.state() == State::Warm {
        return Err(is_waiting(id));
    }
    if observed.is_attached() {
        let message = format!("box {id} has no log");
        return Err(Error::bad_request(message)
            .caused_by("its output goes to the tare that started it")
            .with_hint(Hint::CreateDetached("to have its output kept")));
    }
    Logs::open(rustix::fd::AsFd::as_fd(&observed.record))
}

/// A keeper may pass any descriptor.
fn is_pipe(fd: &OwnedFd) -> bool {
    fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo)
}
