//! A box whose creator stays with it.
use crate::error::Error;
use crate::id::BoxId;
use std::os::fd::{BorrowedFd, OwnedFd};

/// The host's ends of the command's standard streams. With a terminal they are
/// all absent: its master side comes as [`Event::Terminal`].
#[derive(Debug, Default)]
pub struct Streams {
    pub stdin: Option<OwnedFd>,
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Code(u8),
    Signal(i32),
}

#[derive(Debug)]
pub enum Event {
    /// The master side of the box's pseudo-terminal.
    Terminal(OwnedFd),
    /// The command's `execve` succeeded.
    Started,
    /// The command ended, and the box with it.
    Exited(Exit),
    /// `Spec::timeout` passed; the box ends.
    TimedOut,
    /// The box could not be made or the command not be started.
    Failed(Error),
    /// The keeper is gone without having said how the command ended (for
    /// example killed for memory together with it).
    Gone,
}

/// What the one way out observed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// Processes of the box that the kernel killed for the memory limit.
    pub oom_kills: u64,
}

#[derive(Debug)]
pub struct Attached {}

impl Attached {
    pub fn id(&self) -> &BoxId {
        unimplemented!()
    }

    /// Defaults that this host cannot enforce, a sentence each.
    pub fn notes(&self) -> &[String] {
        unimplemented!()
    }

    /// The host's ends; empty when called again.
    pub fn streams(&mut self) -> Streams {
        unimplemented!()
    }

    /// Readable (or hung up) when [`Self::next_event`] has something to say.
    pub fn events_fd(&self) -> BorrowedFd<'_> {
        unimplemented!()
    }

    /// The next event, without waiting; `None` when there is none yet. After
    /// `Exited`, `TimedOut`, `Failed` or `Gone` nothing more comes.
    pub fn next_event(&mut self) -> Option<Event> {
        unimplemented!()
    }

    /// Passes a signal to the command.
    pub fn signal(&mut self, signal: i32) -> Result<(), Error> {
        let _ = signal;
        unimplemented!()
    }

    /// SIGKILL to the whole box, now; [`Self::end`] is still to be called.
    pub fn kill(&self) {
        unimplemented!()
    }

    /// The one way out: returns after emptiness was observed.
    pub fn end(self) -> Result<Ending, Error> {
        unimplemented!()
    }
}
