//! Faults that the environment requests, in a build with the feature `faults`.
//!
//! ```text
//! TARE_FAULT=kill@7    dies after the seventh step of this process, as of SIGKILL
//! TARE_FAULT=twice@7   does the seventh step twice
//! TARE_FAULT=28@7      makes the seventh step fail with this errno, and does not do it
//! TARE_FAULT_KEEPER    the same for a keeper that this process starts
//! TARE_FAULT_LOG=FILE  appends the name of each step as a line; those of the keeper go to
//!                      FILE.keeper
//! ```
#![allow(unsafe_code)]

use std::env;
use std::ffi::{CString, OsString};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_process};

const PLAN: &str = "TARE_FAULT";
const KEEPERS_PLAN: &str = "TARE_FAULT_KEEPER";
const LOG: &str = "TARE_FAULT_LOG";

/// The fault that a test injects into one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Done,
    Last,
    Twice,
    Failed(Errno),
}

pub fn repeatable<T, E: From<Errno>>(
    name: &'static str,
    action: &mut impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    match next(name) {
        Fate::Twice => {
            drop(action());
            action()
        }
        fate @ (Fate::Done | Fate::Last | Fate::Failed(_)) => suffer(fate, action),
    }
}

pub fn single<T, E: From<Errno>>(
    name: &'static str,
    action: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    suffer(next(name), action)
}

fn suffer<T, E: From<Errno>>(fate: Fate, action: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    match fate {
        Fate::Done | Fate::Twice => action(),
        Fate::Failed(errno) => Err(errno.into()),
        Fate::Last => {
            let _done = action();
            die()
        }
    }
}

/// Counts this step, logs its name and returns what happens to it.
fn next(name: &'static str) -> Fate {
    static PASSED: AtomicUsize = AtomicUsize::new(0);
    static PLANNED: OnceLock<Option<(Fate, usize)>> = OnceLock::new();
    let number = PASSED.fetch_add(1, Ordering::Relaxed) + 1;
    if let Some(mut log) = log() {
        // If this fails, the test that reads the log sees that a step is missing.
        log.write_all(format!("{name}\n").as_bytes()).ok();
    }
    let planned = PLANNED.get_or_init(|| {
        let plan = env::var(PLAN).ok()?;
        Some(parse(&plan).unwrap_or_else(|| panic!("not a fault: {plan}")))
    });
    match planned {
        Some((fate, at)) if *at == number => *fate,
        Some(_) | None => Fate::Done,
    }
}

/// Opened at the first step: a keeper cannot reach the file later.
fn log() -> Option<&'static File> {
    static OPENED: OnceLock<Option<File>> = OnceLock::new();
    let opened = OPENED.get_or_init(|| {
        let path = env::var_os(LOG)?;
        OpenOptions::new().append(true).open(path).ok()
    });
    opened.as_ref()
}

fn parse(plan: &str) -> Option<(Fate, usize)> {
    let (what, at) = plan.split_once('@')?;
    let fate = match what {
        "kill" => Fate::Last,
        "twice" => Fate::Twice,
        errno => Fate::Failed(Errno::from_raw_os_error(errno.parse().ok()?)),
    };
    Some((fate, at.parse().ok()?))
}

/// Dies as of SIGKILL. The first process of a PID namespace cannot kill itself, so it exits;
/// other processes see no difference.
fn die() -> ! {
    kill_process(getpid(), Signal::KILL).ok();
    // SAFETY: _exit(2) takes a number; nothing of this process runs afterwards.
    unsafe { libc::_exit(128 + libc::SIGKILL) }
}

pub fn handed_down() -> Vec<CString> {
    let pair = |name: &str, value: Option<OsString>, suffix: &str| {
        let value = value?.into_vec();
        CString::new([name.as_bytes(), b"=", &value, suffix.as_bytes()].concat()).ok()
    };
    let plan = pair(PLAN, env::var_os(KEEPERS_PLAN), "");
    let log = pair(LOG, env::var_os(LOG), ".keeper");
    plan.into_iter().chain(log).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_a_fate_and_a_number() {
        assert_eq!(parse("kill@3"), Some((Fate::Last, 3)));
        assert_eq!(parse("twice@1"), Some((Fate::Twice, 1)));
        assert_eq!(parse("28@12"), Some((Fate::Failed(Errno::NOSPC), 12)));
        assert_eq!(parse("kill"), None);
        assert_eq!(parse("nothing@1"), None);
    }
}
