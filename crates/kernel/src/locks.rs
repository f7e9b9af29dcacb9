//! Locks on files and directories. Every wait has a bound: a stopped process keeps its
//! locks.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FlockOperation, Stat, flock, fstat, major, minor};
use rustix::io::Errno;

use crate::fds::{open_file, read_list};
use crate::step::step;

/// How long a command waits for a lock that another process holds.
pub const LOCK_WITHIN: Duration = Duration::from_secs(10);
/// Pause between two attempts to take a lock that another process holds.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    Shared,
    Exclusive,
}

/// Takes a lock (`flock(2)`). If another process holds it for longer than the bound, the
/// error is of the kind `WouldBlock` and names the file and that process.
pub fn lock_within(
    name: &'static str,
    file: impl AsFd,
    lock: Lock,
    bound: Duration,
) -> io::Result<()> {
    let operation = match lock {
        Lock::Shared => FlockOperation::NonBlockingLockShared,
        Lock::Exclusive => FlockOperation::NonBlockingLockExclusive,
    };
    let start = Instant::now();
    loop {
        match step(name, || flock(&file, operation)) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) => {}
            Err(errno) => return Err(errno.into()),
        }
        if start.elapsed() >= bound {
            return Err(io::Error::new(io::ErrorKind::WouldBlock, held(file.as_fd())));
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "bounded by the deadline; a blocking flock cannot be given up"
        )]
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Claims one byte of a file, for as long as a duplicate of this descriptor is open in any
/// process (`F_OFD_SETLK`, fcntl_locking(2)). Returns `false` if another one has the byte.
pub fn claim_byte(file: BorrowedFd<'_>, at: u64) -> io::Result<bool> {
    let lock = byte_lock(at)?;
    // SAFETY: F_OFD_SETLK reads one `flock` at its argument, the live `lock`.
    let set = || unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    let claimed = step("claim byte", || match set() {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    });
    match claimed {
        Ok(()) => Ok(true),
        Err(error) => match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EACCES) => Ok(false),
            _ => Err(error),
        },
    }
}

/// Returns whether no process claims this byte (`F_OFD_GETLK`). The answer is about claims through
/// other open file descriptions than that of `file`.
pub fn is_byte_free(file: BorrowedFd<'_>, at: u64) -> io::Result<bool> {
    let mut lock = byte_lock(at)?;
    // SAFETY: F_OFD_GETLK reads and writes one `flock` at its argument, the live `lock`.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } {
        0 => Ok(lock.l_type == libc::F_UNLCK as libc::c_short),
        _ => Err(io::Error::last_os_error()),
    }
}

/// An exclusive lock on one byte.
fn byte_lock(at: u64) -> io::Result<libc::flock> {
    Ok(libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: i64::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?,
        l_len: 1,
        l_pid: 0,
    })
}

fn held(file: BorrowedFd<'_>) -> String {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let path = path.unwrap_or_else(|_| PathBuf::from("a file of the state root"));
    let holder = match holder(file) {
        Some(pid) => match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
            Ok(name) => format!("process {pid} ({})", name.trim_end().escape_debug()),
            Err(_) => format!("process {pid}, or a child of it,"),
        },
        None => "another process".to_owned(),
    };
    format!("{holder} holds the lock on {}", path.display())
}

/// The process that took the lock, where `/proc/locks` shows it.
fn holder(file: BorrowedFd<'_>) -> Option<i32> {
    let stat = fstat(file).ok()?;
    let locks = read_list(open_file(CWD, c"/proc/locks").ok()?.as_fd()).ok()?;
    locks.lines().find_map(|line| holder_in(line, &stat))
}

/// Reads a line such as `3: FLOCK  ADVISORY  WRITE 4711 00:1b:2053 0 EOF` (proc_locks(5)).
/// A line with an arrow behind its number is of a process that waits.
fn holder_in(line: &str, stat: &Stat) -> Option<i32> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, "FLOCK", _, _, pid, place, ..] = fields[..] else {
        return None;
    };
    let (major, minor) = (major(stat.st_dev), minor(stat.st_dev));
    let wanted = format!("{major:02x}:{minor:02x}:{}", stat.st_ino);
    (place == wanted).then(|| pid.parse().ok())?
}
