//! Locks on files and directories of the state root. Every wait for one has a bound:
//! a process that is stopped keeps its locks.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, Stat, flock, fstat, major, minor, openat};
use rustix::io::Errno;
use tare_kernel::fds::read_list;
use tare_kernel::step::step;

/// How long a command waits for a lock that another process holds.
pub const LOCK_WITHIN: Duration = Duration::from_secs(10);
/// Between looks at a lock that another process holds.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    Shared,
    Exclusive,
}

/// Takes a lock (`flock(2)`). If another process holds it for longer than the bound, the
/// error is of the kind `WouldBlock` and names the lock and that process.
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
            let why = held(file.as_fd());
            return Err(io::Error::new(io::ErrorKind::WouldBlock, why));
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "bounded by the deadline; a blocking flock cannot be given up"
        )]
        std::thread::sleep(LOOK_AGAIN);
    }
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
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let locks = openat(CWD, c"/proc/locks", flags, Mode::empty()).ok()?;
    let locks = read_list(locks.as_fd()).ok()?;
    locks.lines().find_map(|line| holder_in(line, &stat))
}

/// A line such as `3: FLOCK  ADVISORY  WRITE 4711 00:1b:2053 0 EOF` (proc_locks(5)). One
/// with an arrow behind its number is of a process that waits.
fn holder_in(line: &str, stat: &Stat) -> Option<i32> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, "FLOCK", _, _, pid, place, ..] = fields[..] else {
        return None;
    };
    let (major, minor) = (major(stat.st_dev), minor(stat.st_dev));
    let wanted = format!("{major:02x}:{minor:02x}:{}", stat.st_ino);
    (place == wanted).then(|| pid.parse().ok())?
}
