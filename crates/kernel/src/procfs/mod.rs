//! Reads facts about processes from `/proc`.
//!
//! An open `/proc/PID` ([`ProcessDir`]) belongs to one process. After that process is gone,
//! every read below it fails with `ENOENT` or `ESRCH`, even if its pid is used again. Other
//! errors mean that the kernel does not show the fact to us.
//!
//! A box chooses the names of its files and programs. They are never returned, only kinds
//! and counts.

mod descriptors;
mod namespaces;

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, ResolveFlags, StatFs};
use rustix::fs::{fstat, fstatfs, openat2, statat};

use crate::fds::{open_directory, open_file, open_path, read_list};

pub use descriptors::{DescriptorKind, Descriptors};
pub use namespaces::{NAMESPACE_KINDS, NamespaceKind};

/// An open `/proc`.
#[derive(Debug)]
pub struct Procfs {
    directory: OwnedFd,
    /// Whether the size of `/proc/PID/fd` is the number of descriptors: since Linux 6.2.
    /// Before, the size is 0.
    counts_descriptors: bool,
}

impl Procfs {
    pub fn open() -> io::Result<Self> {
        let directory = open_directory(CWD, c"/proc")?;
        // This process has at least that one open.
        let own = statat(&directory, c"self/fd", AtFlags::empty())?;
        Ok(Self { directory, counts_descriptors: own.st_size > 0 })
    }

    /// Returns the pids of all processes.
    pub fn pids(&self) -> io::Result<Vec<i32>> {
        let entries = Dir::read_from(&self.directory)?.filter_map(Result::ok);
        let number = |entry: rustix::fs::DirEntry| entry.file_name().to_str().ok()?.parse().ok();
        Ok(entries.filter_map(number).collect())
    }

    /// Opens the process that has this pid now.
    pub fn process(&self, pid: i32) -> io::Result<ProcessDir<'_>> {
        let directory = open_path(&self.directory, pid.to_string())?;
        Ok(ProcessDir { directory, procfs: self })
    }

    /// Reads the `stat` file of the process that has this pid now.
    pub fn stat(&self, pid: i32) -> io::Result<Stat> {
        read_stat(&self.directory, &format!("{pid}/stat"))
    }

    /// Returns whether a process is about to be gone: it exits, or a SIGKILL waits for it. A process
    /// that is gone counts.
    pub fn is_dying(&self, pid: i32) -> bool {
        let Ok(stat) = self.stat(pid) else { return true };
        let status = || self.text(&format!("{pid}/status")).unwrap_or_default();
        stat.is_zombie || stat.is_exiting || has_pending_kill(&status())
    }

    /// Returns the arguments of a process if the first one is `first`. Of other processes only
    /// the first argument is read.
    pub fn arguments_behind(&self, pid: i32, first: &CStr) -> Option<String> {
        let file = open_file(&self.directory, format!("{pid}/cmdline")).ok()?;
        let mut beginning = [0; FIRST_ARGUMENT_BYTES];
        let length = rustix::io::pread(&file, &mut beginning, 0).ok()?;
        let is_it = beginning[..length].starts_with(first.to_bytes_with_nul());
        is_it.then(|| read_list(file.as_fd()).ok())?
    }

    /// Reads a file of `/proc` itself, or of a process.
    pub fn text(&self, path: &str) -> io::Result<String> {
        read_list(open_file(&self.directory, path)?.as_fd())
    }
}

/// The open `/proc/PID` of one process.
#[derive(Debug)]
pub struct ProcessDir<'a> {
    directory: OwnedFd,
    procfs: &'a Procfs,
}

/// No first argument that tare looks for is longer.
const FIRST_ARGUMENT_BYTES: usize = 64;

/// A `stat` file: a name of at most 64 bytes and 51 numbers of at most 20 digits.
const STAT_BYTES_MAX: usize = 2048;

/// The page size of x86_64.
const PAGE_BYTES: u64 = 4096;

/// Facts of a `stat` file, which every user may read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    pub parent: i32,
    pub threads: u64,
    pub resident_bytes: u64,
    pub is_zombie: bool,
    /// It executes no more of its program, and releases what it has.
    pub is_exiting: bool,
    /// By a signal or by a debugger.
    pub is_stopped: bool,
}

impl ProcessDir<'_> {
    /// Returns the number of its threads: the links of `task`, without the two that every
    /// directory has.
    pub fn threads(&self) -> io::Result<u64> {
        let stat = statat(&self.directory, c"task", AtFlags::empty())?;
        Ok(stat.st_nlink.saturating_sub(2))
    }

    pub fn stat(&self) -> io::Result<Stat> {
        read_stat(&self.directory, "stat")
    }

    /// Counts the mounts that it sees, by reading the list. Slower than
    /// [`Self::mount_namespace`], but open to every user.
    pub fn listed_mounts(&self) -> io::Result<u64> {
        Ok(count_lines(&open_file(&self.directory, c"mountinfo")?)?)
    }

    /// Returns how full the file system is that it sees at `path` below its root. Symlinks are
    /// not followed, so the box cannot redirect us.
    pub fn space_at(&self, path: &str) -> io::Result<StatFs> {
        let root = open_path(&self.directory, c"root")?;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        Ok(fstatfs(openat2(&root, path, flags, Mode::empty(), resolve)?)?)
    }
}

fn read_stat(directory: &OwnedFd, path: &str) -> io::Result<Stat> {
    let file = open_file(directory, path)?;
    let mut bytes = [0; STAT_BYTES_MAX];
    let length = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut bytes))?;
    // The name of a process need not be text.
    parse_stat(&String::from_utf8_lossy(&bytes[..length]))
        .ok_or_else(|| io::Error::other("a stat file without its fields"))
}

fn count_lines(file: &OwnedFd) -> rustix::io::Result<u64> {
    let mut buffer = vec![0; 64 << 10];
    let mut lines = 0;
    loop {
        let length = rustix::io::retry_on_intr(|| rustix::io::read(file, &mut buffer))?;
        if length == 0 {
            return Ok(lines);
        }
        let ends = buffer[..length].iter().filter(|byte| **byte == b'\n');
        lines += ends.count() as u64;
    }
}

/// Parses a `stat` file (proc_pid_stat(5)). The name in parentheses can contain anything.
/// `PF_EXITING` (linux/sched.h).
const EXITING: u64 = 4;

/// Behind the last parenthesis come the state, the parent, and as the 7th, 18th and 22nd field
/// the flags, the threads and the resident pages.
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let flags: u64 = fields.nth(4)?.parse().ok()?;
    let threads = fields.nth(10)?.parse().ok()?;
    let pages: u64 = fields.nth(3)?.parse().ok()?;
    Some(Stat {
        parent,
        threads,
        resident_bytes: pages * PAGE_BYTES,
        is_zombie: matches!(state, "Z" | "X"),
        is_exiting: flags & EXITING != 0,
        is_stopped: matches!(state, "T" | "t"),
    })
}

/// Reads the signals that wait for the process or its first thread (proc_pid_status(5)).
fn has_pending_kill(status: &str) -> bool {
    let masks = status.lines().filter_map(|line| {
        let mask = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    });
    let mut pending = masks.map(|mask| mask & (1 << (libc::SIGKILL - 1)) != 0);
    pending.any(|is_pending| is_pending)
}

/// The inode of an open file. For a namespace it is the kernel's id.
fn inode(fd: impl AsFd) -> rustix::io::Result<u64> {
    Ok(fstat(fd)?.st_ino)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_shown_as_it_is() {
        let procfs = Procfs::open().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(procfs.pids().unwrap().contains(&own));
        let shown = procfs.process(own).unwrap();
        let stat = shown.stat().unwrap();
        assert_eq!(u32::try_from(stat.parent).unwrap(), std::os::unix::process::parent_id());
        assert!(stat.resident_bytes > 0 && !stat.is_zombie);
        let short = procfs.stat(own).unwrap();
        assert_eq!(short.parent, stat.parent);
        let lines = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert_eq!(shown.listed_mounts().unwrap(), lines.lines().count() as u64);
        assert!(shown.space_at("proc").is_ok());
    }

    fn sleeping() -> std::process::Child {
        let mut command = std::process::Command::new("sleep");
        command.arg("100").spawn().unwrap()
    }

    #[test]
    fn the_arguments_of_others_are_not_read() {
        let procfs = Procfs::open().unwrap();
        let mut child = sleeping();
        let pid = i32::try_from(child.id()).unwrap();
        let behind = |first| procfs.arguments_behind(pid, first);
        // It has become another program a moment before it has that one's arguments.
        let begun = std::time::Instant::now();
        while behind(c"sleep").is_none() && begun.elapsed().as_secs() < 10 {
            std::thread::yield_now();
        }
        assert_eq!(behind(c"sleep").as_deref(), Some("sleep\x00100\0"));
        assert_eq!(behind(c"slee"), None);
        assert_eq!(behind(c"sleep 100"), None);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(behind(c"sleep"), None);
    }

    #[test]
    fn threads_are_counted() {
        let procfs = Procfs::open().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let threads = || procfs.process(own).unwrap().threads().unwrap();
        let before = threads();
        let other = std::thread::spawn(move || receiver.recv().is_ok());
        assert!(threads() > before);
        drop(sender);
        other.join().unwrap();
    }

    #[test]
    fn reads_of_a_process_that_is_gone_fail() {
        let procfs = Procfs::open().unwrap();
        let mut child = sleeping();
        let pid = i32::try_from(child.id()).unwrap();
        let shown = procfs.process(pid).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let is_gone =
            |error: io::Error| matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH));
        assert!(is_gone(shown.threads().unwrap_err()));
        assert!(is_gone(shown.stat().unwrap_err()));
        assert!(is_gone(procfs.process(pid).unwrap_err()));
    }

    /// A process must not be able to hide by its name.
    #[test]
    fn a_process_whose_name_is_not_text_is_shown_too() {
        use std::io::{BufRead, BufReader};
        let rename = r"printf '\377) R\n1' > /proc/$$/comm; echo renamed; read line";
        let mut child = std::process::Command::new("sh")
            .args(["-c", rename])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let procfs = Procfs::open().unwrap();
        let stat = procfs.process(pid).unwrap().stat();
        child.kill().unwrap();
        child.wait().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!(stat.map(|stat| (stat.parent, stat.threads)).unwrap(), (own, 1));
    }

    #[test]
    fn a_name_in_a_stat_file_may_hold_anything() {
        let text = "7 (a) R 1) Z 3 7 7 0 -1 64 0 0 0 0 0 0 0 0 20 0 5 0 1234 999 10 0 0";
        let stat = parse_stat(text).unwrap();
        assert_eq!((stat.parent, stat.threads, stat.is_zombie), (3, 5, true));
        assert_eq!(stat.resident_bytes, 10 * PAGE_BYTES);
        assert_eq!(parse_stat("7 (a) R"), None);
    }
}
