//! How a box, run or exec ended: the only place where an end is named.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Why a box, run or exec ended. Records, `ls`, `inspect`, `run --json`, `explain`, HTTP answers,
/// events and metrics all use these words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The command exited by itself.
    Exited,
    /// A signal ended the command.
    Signalled,
    /// The timeout passed.
    Timeout,
    /// The lease passed.
    Lease,
    /// The command failed, and the kernel had killed a process of the box at its memory limit.
    Memory,
    /// The output exceeded a limit that ends the command.
    OutputLimit,
    /// A client asked it to stop, whether or not the command ended within the grace.
    Stopped,
    /// A client killed it.
    Killed,
    /// The process that it belonged to ended: its `tare`, or the client of its request.
    ClientGone,
    /// The server that it belonged to shut down.
    ServerStopping,
    /// The keeper died without a report, and tare did not kill it.
    KeeperLost,
    /// The command never ran.
    StartFailed,
}

impl Cause {
    pub const ALL: [Self; 12] = [
        Self::Exited,
        Self::Signalled,
        Self::Timeout,
        Self::Lease,
        Self::Memory,
        Self::OutputLimit,
        Self::Stopped,
        Self::Killed,
        Self::ClientGone,
        Self::ServerStopping,
        Self::KeeperLost,
        Self::StartFailed,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exited => "exited",
            Self::Signalled => "signalled",
            Self::Timeout => "timeout",
            Self::Lease => "lease",
            Self::Memory => "memory",
            Self::OutputLimit => "output_limit",
            Self::Stopped => "stopped",
            Self::Killed => "killed",
            Self::ClientGone => "client_gone",
            Self::ServerStopping => "server_stopping",
            Self::KeeperLost => "keeper_lost",
            Self::StartFailed => "start_failed",
        }
    }

    /// Whether a kill at the memory limit explains the end better.
    fn yields_to_memory(self) -> bool {
        match self {
            Self::Exited | Self::Signalled | Self::KeeperLost | Self::Memory => true,
            Self::Timeout
            | Self::Lease
            | Self::OutputLimit
            | Self::Stopped
            | Self::Killed
            | Self::ClientGone
            | Self::ServerStopping
            | Self::StartFailed => false,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Cause {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|one| one.as_str() == text).ok_or(())
    }
}

/// The end of a box, run or exec: its cause, and the result of its command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    pub cause: Cause,
    /// As wait(2) gives it.
    pub wait_status: i32,
    /// Whether the kernel killed a process of the box at its memory limit.
    pub oom: bool,
}

/// The exit code after a timeout or a lease, as in `timeout(1)`.
const TIMED_OUT: u8 = 124;
const SIGNALLED: u8 = 128;
const SIGKILL: i32 = 9;

impl End {
    /// The end of a command by itself or by a signal.
    pub fn of_command(wait_status: i32) -> Self {
        let cause = if signal_of(wait_status).is_some() { Cause::Signalled } else { Cause::Exited };
        Self { cause, wait_status, oom: false }
    }

    /// The end by SIGKILL for this cause.
    pub fn killed(cause: Cause) -> Self {
        Self { cause, wait_status: SIGKILL, oom: false }
    }

    /// The same end, if the kernel killed a process of the box at its memory limit. That is the
    /// cause if the command failed and nothing stronger explains it.
    pub fn with_oom(self, oom: bool) -> Self {
        let is_cause = oom && !self.is_success() && self.cause.yields_to_memory();
        Self { cause: if is_cause { Cause::Memory } else { self.cause }, oom, ..self }
    }

    pub fn is_success(self) -> bool {
        self.cause == Cause::Exited && self.wait_status == 0
    }

    /// Returns the exit code: the command's own, 128+N after signal N, 124 after a timeout or a
    /// lease.
    pub fn code(self) -> u8 {
        match (self.is_deadline(), signal_of(self.wait_status)) {
            (true, _) => TIMED_OUT,
            (false, Some(signal)) => {
                u8::try_from(signal).map_or(u8::MAX, |signal| SIGNALLED.saturating_add(signal))
            }
            (false, None) => ((self.wait_status >> 8) & 0xff) as u8,
        }
    }

    /// Returns the signal that ended the command, unless a deadline did.
    pub fn signal(self) -> Option<i32> {
        signal_of(self.wait_status).filter(|_| !self.is_deadline())
    }

    fn is_deadline(self) -> bool {
        matches!(self.cause, Cause::Timeout | Cause::Lease)
    }
}

/// The signal in a status of wait(2).
fn signal_of(wait_status: i32) -> Option<i32> {
    Some(wait_status & 0x7f).filter(|signal| *signal != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_is_known_by_its_word() {
        for cause in Cause::ALL {
            assert_eq!(cause.as_str().parse(), Ok(cause));
        }
    }

    #[test]
    fn a_wait_status_is_a_code_or_a_signal() {
        let result = |wait_status| {
            let end = End::of_command(wait_status);
            (end.cause, end.code(), end.signal())
        };
        assert_eq!(result(0x2500), (Cause::Exited, 37, None));
        assert_eq!(result(9), (Cause::Signalled, 137, Some(9)));
        assert_eq!(result(0x8b), (Cause::Signalled, 139, Some(11)), "with a core dump");
    }

    #[test]
    fn a_deadline_is_124_and_a_signal_128_and_its_number() {
        for (cause, code, signal) in [
            (Cause::Timeout, 124, None),
            (Cause::Lease, 124, None),
            (Cause::Killed, 137, Some(9)),
            (Cause::KeeperLost, 137, Some(9)),
        ] {
            let end = End::killed(cause);
            assert_eq!((end.code(), end.signal()), (code, signal), "{cause}");
        }
    }

    #[test]
    fn memory_is_the_cause_of_a_failure_that_nothing_stronger_explains() {
        for cause in Cause::ALL {
            let yields = [Cause::Exited, Cause::Signalled, Cause::KeeperLost].contains(&cause);
            let expected = if yields { Cause::Memory } else { cause };
            let end = End { wait_status: 256, ..End::killed(cause) }.with_oom(true);
            assert_eq!((end.cause, end.oom), (expected, true));
            assert_eq!(End::killed(cause).with_oom(false), End::killed(cause));
        }
        let end = End::of_command(0).with_oom(true);
        assert_eq!((end.cause, end.oom), (Cause::Exited, true), "another process was killed");
    }
}
