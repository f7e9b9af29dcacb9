//! Processes by identity: a pidfd, its inode, never a bare number.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};

use crate::clock::timespec;
use crate::step::step;

/// `statfs` magic of pidfs.
const PIDFS_MAGIC: u64 = 0x5049_4446;

/// A process that we hold a pidfd of.
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

    /// The process that has this number now; whether it is the one that was
    /// meant, the caller checks afterwards while the pidfd is held.
    pub fn open(pid: i32) -> io::Result<Self> {
        let number = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
        let pidfd = step("process opened", || pidfd_open(number, PidfdFlags::empty()))?;
        Ok(Self { pidfd, pid })
    }

    /// For messages and `/proc` paths of unreaped children only.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The pidfd's inode, never used twice since boot. Before Linux 6.9 all
    /// pidfds share one inode that says nothing: `None`.
    pub fn inode(&self) -> io::Result<Option<u64>> {
        match self.is_on_pidfs()? {
            true => Ok(Some(rustix::fs::fstat(&self.pidfd)?.st_ino)),
            false => Ok(None),
        }
    }

    /// One pidfd of a kernel is as good as any other.
    fn is_on_pidfs(&self) -> io::Result<bool> {
        static KNOWN: OnceLock<bool> = OnceLock::new();
        if let Some(known) = KNOWN.get() {
            return Ok(*known);
        }
        let found = rustix::fs::fstatfs(&self.pidfd)?.f_type as u64 == PIDFS_MAGIC;
        Ok(*KNOWN.get_or_init(|| found))
    }

    /// When it was born, in ticks since boot, and which cgroup v2 path it is in:
    /// what is left to tell processes apart where [`Self::inode`] says nothing.
    /// A process that has died meanwhile has neither, and its number may be
    /// somebody else's: then this is an error.
    pub fn birth_tick(&self) -> io::Result<u64> {
        let stat = self.read_proc("stat")?;
        // Behind the name, which may hold anything, the 20th field (proc(5)).
        let fields = stat.rsplit_once(')').map(|(_, rest)| rest);
        let tick = fields.and_then(|rest| rest.split_whitespace().nth(19)?.parse().ok());
        tick.ok_or_else(|| io::Error::other("a stat file without its fields"))
    }

    /// Its path in the cgroup v2 hierarchy, as this process sees it.
    pub fn cgroup(&self) -> io::Result<Option<String>> {
        let text = self.read_proc("cgroup")?;
        let path = text.lines().find_map(|line| line.strip_prefix("0::"));
        Ok(path.map(str::to_owned))
    }

    /// The arguments that it was started with.
    pub fn arguments(&self) -> io::Result<Vec<String>> {
        let text = self.read_proc("cmdline")?;
        let words = text.split_terminator('\0');
        Ok(words.map(str::to_owned).collect())
    }

    /// Whether it is the first process of a PID namespace below ours (`NSpid` of
    /// proc_pid_status(5): its number in each, the innermost last).
    pub fn is_first_of_namespace(&self) -> io::Result<bool> {
        let status = self.read_proc("status")?;
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        let numbers = numbers.map_or_else(Vec::new, |text| text.split_whitespace().collect());
        Ok(numbers.len() > 1 && numbers.last() == Some(&"1"))
    }

    /// The pidfd pins the number for as long as the process is there, so what is
    /// read while it is seen alive afterwards was its own.
    fn read_proc(&self, file: &str) -> io::Result<String> {
        let path = format!("/proc/{}/{file}", self.pid);
        let text = std::fs::read(path)?;
        match self.wait_dead(Duration::ZERO)? {
            true => Err(io::ErrorKind::NotFound.into()),
            false => Ok(String::from_utf8_lossy(&text).into_owned()),
        }
    }

    /// SIGKILL; a process that is already dead is as wanted.
    pub fn kill(&self) -> io::Result<()> {
        match step("process killed", || {
            pidfd_send_signal(&self.pidfd, Signal::KILL)
        }) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether it was seen dead within the time.
    pub fn wait_dead(&self, bound: Duration) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        match step("process waited for", || {
            poll(&mut fds, Some(&timespec(bound)))
        }) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The same process, known a second time.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            pidfd: self.pidfd.try_clone()?,
            pid: self.pid,
        })
    }

    /// Reaps a child that is dead; `None` while it lives or when it is not ours.
    pub fn reap(&self) -> io::Result<Option<Status>> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        match step("process reaped", || {
            waitid(WaitId::PidFd(self.pidfd.as_fd()), options)
        }) {
            Ok(Some(status)) => Ok(Some(match status.exit_status() {
                Some(code) => Status::Exited(code),
                None => Status::Signaled(status.terminating_signal().unwrap_or(0)),
            })),
            Ok(None) | Err(rustix::io::Errno::CHILD) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}
