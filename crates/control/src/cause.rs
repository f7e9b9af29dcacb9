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
    /// The command failed, and the kernel had killed a process of the box for memory.
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
    // New causes come last: keepers send the number of a cause.
    /// The command failed, and the kernel had refused the box another process.
    Pids,
    /// The command failed, and the scratch space was full at the end.
    ScratchFull,
    /// The host was restarted while the box lived.
    HostRebooted,
    /// The machine of the box ended before its command: its monitor was killed, or its kernel panicked,
    /// restarted or turned it off.
    MachineLost,
}

impl Cause {
    pub const ALL: [Self; 16] = [
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
        Self::Pids,
        Self::ScratchFull,
        Self::HostRebooted,
        Self::MachineLost,
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
            Self::Pids => "pids",
            Self::ScratchFull => "scratch_full",
            Self::HostRebooted => "host_rebooted",
            Self::MachineLost => "machine_lost",
        }
    }
}

/// The limits that a box had reached by its end, as far as the kernel counts that.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pressure {
    /// The kernel killed a process of the box for memory.
    pub oom: bool,
    /// The kernel refused the box another process.
    pub pids: bool,
    /// The scratch space was full at the end.
    pub scratch_full: bool,
}

impl Pressure {
    pub const OOM: Self = Self { oom: true, pids: false, scratch_full: false };

    /// The limit that explains a failure best.
    fn cause(self) -> Option<Cause> {
        let reached = [
            (self.oom, Cause::Memory),
            (self.pids, Cause::Pids),
            (self.scratch_full, Cause::ScratchFull),
        ];
        reached.into_iter().find(|(is_reached, _)| *is_reached).map(|(_, cause)| cause)
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
    /// Whether the kernel killed a process of the box for memory.
    pub oom: bool,
}

/// The exit code after a timeout or a lease, as in `timeout(1)`.
const TIMED_OUT: u8 = 124;
const SIGNALLED: u8 = 128;
const SIGABRT: i32 = 6;
const SIGBUS: i32 = 7;
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

    /// Returns this end with its cause corrected by the limits that the box reached. This table is the order of causes:
    /// an act of tare explains an end better than a limit, and a limit better than a mere signal or
    /// exit code. A process that the kernel killed for memory explains every failure. A refused
    /// process and full scratch space explain failures that a program reports itself: an exit code,
    /// and the signals with which libraries and the kernel end a program that cannot go on.
    pub fn under(self, pressure: Pressure) -> Self {
        let oom = self.oom || pressure.oom;
        let pressure = Pressure { oom, ..pressure };
        let memory = oom.then_some(Cause::Memory);
        let better = match self.cause {
            Cause::Timeout
            | Cause::Lease
            | Cause::OutputLimit
            | Cause::Stopped
            | Cause::Killed
            | Cause::ClientGone
            | Cause::ServerStopping
            | Cause::HostRebooted
            | Cause::StartFailed
            | Cause::Memory => None,
            Cause::KeeperLost | Cause::MachineLost => memory,
            Cause::Signalled => match signal_of(self.wait_status) {
                Some(SIGABRT | SIGBUS) => pressure.cause(),
                Some(_) | None => memory,
            },
            Cause::Exited if self.wait_status == 0 => None,
            Cause::Exited | Cause::Pids | Cause::ScratchFull => pressure.cause(),
        };
        Self { cause: better.unwrap_or(self.cause), oom, ..self }
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
            (Cause::MachineLost, 137, Some(9)),
        ] {
            let end = End::killed(cause);
            assert_eq!((end.code(), end.signal()), (code, signal), "{cause}");
        }
    }

    /// Every cause, with every kind of result, under every combination of limits.
    fn combinations() -> impl Iterator<Item = (End, Pressure)> {
        let results = [0, 256, 137 << 8, SIGABRT, SIGBUS, SIGKILL, 11, 15];
        let ends = Cause::ALL.into_iter().flat_map(move |cause| {
            results.map(|wait_status| End { cause, wait_status, oom: false })
        });
        let bits = [false, true];
        let pressures: Vec<Pressure> = bits
            .into_iter()
            .flat_map(|oom| bits.map(|pids| (oom, pids)))
            .flat_map(|(oom, pids)| bits.map(|scratch_full| Pressure { oom, pids, scratch_full }))
            .collect();
        ends.flat_map(move |end| pressures.clone().into_iter().map(move |it| (end, it)))
    }

    #[test]
    fn an_act_of_tare_explains_an_end_better_than_any_limit() {
        let acts = [
            Cause::Timeout,
            Cause::Lease,
            Cause::OutputLimit,
            Cause::Stopped,
            Cause::Killed,
            Cause::ClientGone,
            Cause::ServerStopping,
            Cause::HostRebooted,
            Cause::StartFailed,
        ];
        for (end, pressure) in combinations().filter(|(end, _)| acts.contains(&end.cause)) {
            assert_eq!(end.under(pressure).cause, end.cause, "{end:?} {pressure:?}");
        }
    }

    #[test]
    fn memory_is_the_cause_of_a_failure_that_nothing_stronger_explains() {
        let weaker = [
            Cause::Signalled,
            Cause::KeeperLost,
            Cause::MachineLost,
            Cause::Pids,
            Cause::ScratchFull,
        ];
        for (end, pressure) in combinations().filter(|(_, pressure)| pressure.oom) {
            let failed = end.cause == Cause::Exited && end.wait_status != 0;
            let expected =
                if failed || weaker.contains(&end.cause) { Cause::Memory } else { end.cause };
            let under = end.under(pressure);
            assert_eq!((under.cause, under.oom), (expected, true), "{end:?} {pressure:?}");
        }
        let end = End::of_command(0).under(Pressure::OOM);
        assert_eq!((end.cause, end.oom), (Cause::Exited, true), "another process was killed");
    }

    #[test]
    fn a_refused_process_and_full_scratch_explain_a_failure_that_the_program_reports() {
        for (end, pressure) in combinations().filter(|(_, pressure)| !pressure.oom) {
            let status = end.wait_status;
            let reports = (end.cause == Cause::Exited && status != 0)
                || (end.cause == Cause::Signalled && [SIGABRT, SIGBUS].contains(&status))
                || [Cause::Pids, Cause::ScratchFull].contains(&end.cause);
            let expected = match (reports, pressure.pids, pressure.scratch_full) {
                (true, true, _) => Cause::Pids,
                (true, false, true) => Cause::ScratchFull,
                _ => end.cause,
            };
            assert_eq!(end.under(pressure).cause, expected, "{end:?} {pressure:?}");
        }
    }

    #[test]
    fn no_limit_changes_the_exit_code_and_a_second_look_changes_nothing() {
        for (end, pressure) in combinations() {
            let once = end.under(pressure);
            assert_eq!(once.wait_status, end.wait_status);
            assert_eq!(once.under(pressure), once, "{end:?} {pressure:?}");
            assert_eq!(end.under(Pressure::default()), end);
        }
    }
}
