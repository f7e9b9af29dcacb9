//! Processes by identity: a pidfd and its inode, never a bare pid.
//!
//! `/proc/PID` is read only through [`Process::proc_directory`]. A mount of `/proc` belongs to
//! one PID namespace. In a mount of another namespace, our pid of a process is the pid of an
//! unrelated process, or of none.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{CWD, fstat};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, getpid, pidfd_open,
    pidfd_send_signal, waitid,
};

use crate::clock::timespec;
use crate::fds::{open_file, open_path, read_text};
use crate::step::step;

/// `statfs` magic of pidfs.
const PIDFS_MAGIC: u64 = 0x5049_4446;

/// System calls in which the creation of a box can block, for example on a file system.
const SYSTEM_CALLS: [(i64, &str); 14] = [
    (libc::SYS_pivot_root, "pivot_root"),
    (libc::SYS_mount, "mount"),
    (libc::SYS_umount2, "umount2"),
    (libc::SYS_fsopen, "fsopen"),
    (libc::SYS_fsconfig, "fsconfig"),
    (libc::SYS_fsmount, "fsmount"),
    (libc::SYS_open_tree, "open_tree"),
    (libc::SYS_move_mount, "move_mount"),
    (libc::SYS_mount_setattr, "mount_setattr"),
    (libc::SYS_openat, "openat"),
    (libc::SYS_openat2, "openat2"),
    (libc::SYS_mkdirat, "mkdirat"),
    (libc::SYS_unshare, "unshare"),
    (libc::SYS_execve, "execve"),
];

/// A process with a pidfd.
#[derive(Debug)]
pub struct Process {
    pidfd: OwnedFd,
    pid: i32,
}

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Exited(i32),
    Signaled(i32),
}

impl Process {
    pub(crate) fn from_child(pidfd: OwnedFd, pid: i32) -> Self {
        Self { pidfd, pid }
    }

    /// Opens the process that has this pid now. The caller then checks that it is the right
    /// one; the pidfd pins the pid.
    pub fn open(pid: i32) -> io::Result<Self> {
        let number = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
        let pidfd = step("open process", || pidfd_open(number, PidfdFlags::empty()))?;
        Ok(Self { pidfd, pid })
    }

    /// For messages, and for calls that need the pid while the pidfd pins it.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns the pidfd's inode, which is unique since boot. `None` before Linux 6.9, where
    /// all pidfds share one inode.
    pub fn inode(&self) -> io::Result<Option<u64>> {
        if self.is_on_pidfs()? { Ok(Some(fstat(&self.pidfd)?.st_ino)) } else { Ok(None) }
    }

    /// The answer is the same for every pidfd of a kernel.
    fn is_on_pidfs(&self) -> io::Result<bool> {
        static KNOWN: OnceLock<bool> = OnceLock::new();
        if let Some(known) = KNOWN.get() {
            return Ok(*known);
        }
        let found = rustix::fs::fstatfs(&self.pidfd)?.f_type as u64 == PIDFS_MAGIC;
        Ok(*KNOWN.get_or_init(|| found))
    }

    /// Returns its path in the cgroup v2 hierarchy, as this process sees it.
    pub fn cgroup(&self) -> io::Result<Option<String>> {
        let text = self.read_proc("cgroup")?;
        let path = text.lines().find_map(|line| line.strip_prefix("0::"));
        Ok(path.map(str::to_owned))
    }

    /// Returns the arguments that it was started with.
    pub fn arguments(&self) -> io::Result<Vec<String>> {
        let text = self.read_proc("cmdline")?;
        let words = text.split_terminator('\0');
        Ok(words.map(str::to_owned).collect())
    }

    /// Returns whether it is the first process of a PID namespace below ours.
    pub fn is_first_of_namespace(&self) -> io::Result<bool> {
        let numbers = self.numbers()?;
        Ok(numbers.len() > 1 && numbers.last() == Some(&1))
    }

    /// Opens the program that it runs.
    pub(crate) fn open_program(&self) -> io::Result<OwnedFd> {
        self.look(|directory| Ok(open_file(directory, c"exe")?))
    }

    fn read_proc(&self, file: &str) -> io::Result<String> {
        let text = self.look(|directory| {
            let mut file = std::fs::File::from(open_file(directory, file)?);
            let mut text = Vec::new();
            io::Read::read_to_end(&mut file, &mut text)?;
            Ok(text)
        })?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Returns the system call that it is in: the name of those in [`SYSTEM_CALLS`], otherwise
    /// the number. `None` where the kernel does not show it (proc_pid_syscall(5)).
    pub fn system_call(&self) -> Option<String> {
        let text = self.read_proc("syscall").ok()?;
        let number: i64 = text.split_whitespace().next()?.parse().ok()?;
        let known = SYSTEM_CALLS.iter().find(|(it, _)| *it == number);
        Some(known.map_or_else(|| format!("system call {number}"), |(_, name)| (*name).to_owned()))
    }

    /// Reads from `/proc/PID`. The pidfd pins the pid while the process lives, so if the process
    /// is alive afterwards, `read` has seen no other.
    fn look<T>(&self, read: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>) -> io::Result<T> {
        let read = read(self.proc_directory()?.as_fd())?;
        if self.wait_dead(Duration::ZERO)? { Err(io::ErrorKind::NotFound.into()) } else { Ok(read) }
    }

    /// Opens `/proc/PID`. An error if this `/proc` belongs to another PID namespace.
    pub(crate) fn proc_directory(&self) -> io::Result<OwnedFd> {
        if OWN_PROC.load(Ordering::Relaxed) {
            return Ok(open_path(CWD, format!("/proc/{}", self.pid))?);
        }
        match self.numbers()?.first() {
            // It was reaped.
            Some(-1) => Err(io::ErrorKind::NotFound.into()),
            Some(number) if *number == self.pid => Ok(open_path(CWD, format!("/proc/{number}"))?),
            Some(_) | None => Err(foreign_proc()),
        }
    }

    /// Returns its pids: first in the PID namespace of this `/proc`, then in each one below, down
    /// to its own (`NSpid` of a pidfd's fdinfo, see pidfd_open(2)).
    fn numbers(&self) -> io::Result<Vec<i32>> {
        let path = format!("/proc/self/fdinfo/{}", self.pidfd.as_raw_fd());
        let text = read_text(open_file(CWD, path)?.as_fd())?;
        let line = text.lines().find_map(|line| line.strip_prefix("NSpid:"));
        let numbers = line.unwrap_or_default().split_whitespace();
        Ok(numbers.filter_map(|it| it.parse().ok()).collect())
    }

    /// Sends SIGKILL. Succeeds if the process is already dead.
    pub fn kill(&self) -> io::Result<()> {
        match step("kill process", || pidfd_send_signal(&self.pidfd, Signal::KILL)) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Waits for its death. Returns `false` if the bound passed first.
    pub fn wait_dead(&self, bound: Duration) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        match step("wait for process", || poll(&mut fds, Some(&timespec(bound)))) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Returns a second handle on the same process.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { pidfd: self.pidfd.try_clone()?, pid: self.pid })
    }

    /// Reaps a child that is dead. `None` while it lives, and for a process that is not a child
    /// of this one.
    pub fn reap(&self) -> io::Result<Option<Status>> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        match step("reap process", || waitid(WaitId::PidFd(self.pidfd.as_fd()), options)) {
            Ok(status) => Ok(status.as_ref().map(Status::of)),
            Err(Errno::CHILD) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Waits for the end of a child of this process, and reaps it.
    pub(crate) fn wait(&self) -> io::Result<Status> {
        let wait = || waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED);
        let status = rustix::io::retry_on_intr(wait)?;
        status.as_ref().map(Status::of).ok_or_else(|| Errno::CHILD.into())
    }
}

impl Status {
    fn of(status: &WaitIdStatus) -> Self {
        match status.exit_status() {
            Some(code) => Self::Exited(code),
            None => Self::Signaled(status.terminating_signal().unwrap_or(0)),
        }
    }
}

/// Set when [`check_proc`] has succeeded.
static OWN_PROC: AtomicBool = AtomicBool::new(false);

/// Checks that `/proc` belongs to our own PID namespace. Only there, its pids are those that
/// system calls take.
pub fn check_proc() -> io::Result<()> {
    let own = getpid();
    let this =
        Process { pidfd: pidfd_open(own, PidfdFlags::empty())?, pid: own.as_raw_nonzero().get() };
    match this.numbers() {
        Ok(numbers) if numbers == [this.pid] => {
            OWN_PROC.store(true, Ordering::Relaxed);
            Ok(())
        }
        // In a `/proc` of a PID namespace that we are not in, `/proc/self` does not exist.
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(_) | Err(_) => Err(foreign_proc()),
    }
}

fn foreign_proc() -> io::Error {
    io::Error::other("/proc belongs to another PID namespace")
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}
