//! How a command finished, and what it wrote.

use std::time::Duration;

use tare_engine::{BoxId, Exit};

const SIGKILL: i32 = 9;
/// The exit code of timeout(1).
const TIMED_OUT: u8 = 124;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    Exited(Exit),
    TimedOut,
    /// The command wrote more than it may, where that ends it.
    OutputLimit,
    /// The keeper is gone, and every process of the box with it.
    KeeperGone,
}

impl Finish {
    pub fn exit(self) -> Exit {
        match self {
            Self::Exited(exit) => exit,
            Self::TimedOut => Exit::Code(TIMED_OUT),
            Self::OutputLimit | Self::KeeperGone => Exit::Signal(SIGKILL),
        }
    }

    /// The command's own code, 124 after its timeout, 128+N after signal N.
    pub fn exit_code(self) -> u8 {
        self.exit().code()
    }

    pub fn signal(self) -> Option<i32> {
        match self.exit() {
            Exit::Code(_) => None,
            Exit::Signal(signal) => Some(signal),
        }
    }

    pub fn timed_out(self) -> bool {
        self == Self::TimedOut
    }
}

/// One output stream, up to its limit.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Captured {
    pub bytes: Vec<u8>,
    pub truncated: bool,
}

/// The result of a run, or of a process in a box.
#[derive(Debug)]
pub struct RunOutput<T = ()> {
    pub id: BoxId,
    pub finish: Finish,
    /// Whether the kernel killed a process of the box for its memory limit. Known for runs.
    pub oom: bool,
    pub stdout: Captured,
    pub stderr: Captured,
    /// `None` if nothing was to be collected, or the box was gone.
    pub collected: Option<T>,
    pub duration: Duration,
}
