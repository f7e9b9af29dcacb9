//! The processor time of a child, which the kernel reports when the child is reaped. Only
//! benchmarks of tare's own commands use this.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::Duration;

/// Waits for the end of a child. Returns its user and system time, including all its threads
/// and the children that it has reaped (getrusage(2)).
pub fn reap(child: Child) -> io::Result<(ExitStatus, Duration)> {
    let pid = libc::pid_t::try_from(child.id()).map_err(io::Error::other)?;
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    loop {
        // SAFETY: wait4 writes an `int` and a `rusage` to its pointers: both locals have these
        // types. This function owns the child, so nothing else reaps its pid.
        let reaped = unsafe { libc::wait4(pid, &mut status, 0, usage.as_mut_ptr()) };
        if reaped == pid {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    // SAFETY: assume_init needs initialised memory: wait4 returned the pid, so it has written
    // the usage.
    let usage = unsafe { usage.assume_init() };
    let cpu = duration(usage.ru_utime) + duration(usage.ru_stime);
    Ok((ExitStatus::from_raw(status), cpu))
}

fn duration(time: libc::timeval) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let micros = u64::try_from(time.tv_usec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_micros(micros)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Instant;

    fn shell(script: &str) -> (ExitStatus, Duration) {
        let child = Command::new("/bin/sh").args(["-c", script]).spawn();
        reap(child.unwrap()).unwrap()
    }

    #[test]
    fn the_exit_code_and_the_signal_are_those_of_the_child() {
        assert_eq!(shell("exit 37").0.code(), Some(37));
        assert_eq!(shell("kill -9 $$").0.signal(), Some(9));
    }

    #[test]
    fn processor_time_is_counted_and_sleep_is_not() {
        let start = Instant::now();
        let (_, asleep) = shell("sleep 0.2");
        let wall = start.elapsed();
        let (_, at_work) = shell("i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done");
        assert!(asleep < wall / 2, "{asleep:?} of {wall:?}");
        assert!(at_work > asleep, "{at_work:?}, {asleep:?}");
    }
}
