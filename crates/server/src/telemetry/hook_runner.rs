//! The process between the server and a hook's program. It ends everything that the program has
//! started: after the timeout, when the program exits, and when the server is gone, even after
//! SIGKILL.
//!
//! It is the same binary under another name. As a subreaper (PR_SET_CHILD_SUBREAPER, prctl(2)) it
//! becomes the parent of every descendant whose own parent is gone, in any session. It kills its
//! children until it has none.

use std::ffi::{CStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, getppid, kill_process, set_child_subreaper,
    set_parent_process_death_signal, wait,
};
use tare_kernel::procfs::Procfs;
use tare_kernel::signals::{self, SignalFd};

/// The name of the process.
pub const NAME: &CStr = c"tare-hook";
/// The program was ended after its timeout, or because the server is gone.
pub const LATE: u8 = 124;
/// The program could not be started.
pub const NOT_STARTED: u8 = 125;
/// How long the processes of the program may take to die.
pub const ENDED_WITHIN: Duration = Duration::from_secs(5);
/// The time between two looks at the remaining processes.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// `tare-hook SERVER_PID TIMEOUT_MS PROGRAM [ARGUMENT...]`.
pub fn main(arguments: &[OsString]) -> ExitCode {
    ExitCode::from(run(arguments).unwrap_or(NOT_STARTED))
}

fn run(arguments: &[OsString]) -> io::Result<u8> {
    let [_, server, timeout_ms, program, arguments @ ..] = arguments else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let until = Instant::now() + Duration::from_millis(number(timeout_ms)?);
    rustix::thread::set_name(NAME)?;
    set_child_subreaper(Some(getpid()))?;
    // Before the spawn: SIGTERM would otherwise end this process and leave the program.
    let signals = SignalFd::open(&[Signal::TERM.as_raw(), Signal::CHILD.as_raw()])?;
    let mut program = Command::new(program);
    program.args(arguments).process_group(0);
    let program = signals::unblocked(&mut program).spawn()?;
    set_parent_process_death_signal(Some(Signal::TERM))?;
    let is_served = getppid().map(Pid::as_raw_pid) == Some(number(server)?);
    let code = if is_served {
        ended(&signals, program.id(), until)?
    } else {
        // The server died before this process asked the kernel to report its death.
        LATE
    };
    end_all(&signals)?;
    Ok(code)
}

fn number<T: std::str::FromStr>(text: &OsString) -> io::Result<T> {
    let text = text.to_str().and_then(|text| text.parse().ok());
    text.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// Waits for the program. Returns [`LATE`] after its timeout, and when the server is gone.
fn ended(signals: &SignalFd, program: u32, until: Instant) -> io::Result<u8> {
    loop {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid.as_raw_pid().cast_unsigned() == program {
                return Ok(code(ExitStatus::from_raw(status.as_raw())));
            }
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || is_terminated(signals, left)? {
            return Ok(LATE);
        }
    }
}

fn code(status: ExitStatus) -> u8 {
    let signal = || status.signal().map_or(LATE.into(), |signal| 128 + signal);
    u8::try_from(status.code().unwrap_or_else(signal)).unwrap_or(u8::MAX)
}

/// Waits for a signal. Returns whether SIGTERM arrived.
fn is_terminated(signals: &SignalFd, within: Duration) -> io::Result<bool> {
    let within = Timespec::try_from(within).map_err(io::Error::other)?;
    // The caller looks again after an interrupted wait.
    poll(&mut [PollFd::new(&signals.as_fd(), PollFlags::IN)], Some(&within)).ok();
    while let Some(signal) = signals.next()? {
        if signal == Signal::TERM.as_raw() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Kills children until there are none. The children of a dead child become children of this
/// process.
fn end_all(signals: &SignalFd) -> io::Result<()> {
    let until = Instant::now() + ENDED_WITHIN;
    while Instant::now() < until {
        for child in children()? {
            // It is not reaped yet, so the pid is its own.
            kill_process(child, Signal::KILL).ok();
        }
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_none) => return Ok(()),
            }
        }
        is_terminated(signals, LOOK_AGAIN)?;
    }
    Ok(())
}

fn children() -> io::Result<Vec<Pid>> {
    let (procfs, own) = (Procfs::open()?, getpid().as_raw_pid());
    let is_own = |pid: &i32| procfs.stat(*pid).is_ok_and(|it| it.parent == own);
    let pids = procfs.pids()?.into_iter().filter(is_own);
    Ok(pids.filter_map(Pid::from_raw).collect())
}
