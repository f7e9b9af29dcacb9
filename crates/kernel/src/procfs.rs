//! Processes as `/proc` shows them, by descriptors: one for `/proc` itself, one
//! for each process while it is looked at. An open `/proc/PID` stands for that
//! process and no other: when it is gone, everything below it is.
//!
//! Only reads. What is a box's own doing (names of files, of programs) is never
//! handed on, only kinds and counts.

mod descriptors;
mod namespaces;

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, fstat, openat, openat2, statat};
use rustix::fs::{ResolveFlags, StatFs, fstatfs};
use rustix::io::Errno;

use crate::fds::read_list;

pub use descriptors::{DescriptorKind, Descriptors};
pub use namespaces::{NAMESPACE_KINDS, NamespaceKind};

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// What became of a look at a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look<T> {
    Seen(T),
    /// The kernel does not show it to us.
    Hidden,
    /// The process is gone.
    Gone,
}

impl<T> Look<T> {
    fn of(result: rustix::io::Result<T>) -> Self {
        match result {
            Ok(seen) => Self::Seen(seen),
            Err(Errno::NOENT | Errno::SRCH) => Self::Gone,
            Err(_) => Self::Hidden,
        }
    }

    pub fn seen(self) -> Option<T> {
        match self {
            Self::Seen(seen) => Some(seen),
            Self::Hidden | Self::Gone => None,
        }
    }

    fn map<U>(self, change: impl FnOnce(T) -> U) -> Look<U> {
        match self {
            Self::Seen(seen) => Look::Seen(change(seen)),
            Self::Hidden => Look::Hidden,
            Self::Gone => Look::Gone,
        }
    }
}

/// An open `/proc`.
#[derive(Debug)]
pub struct Procfs {
    directory: OwnedFd,
    /// Whether the size of `/proc/PID/fd` is the number of descriptors, which it
    /// is since Linux 6.2; before, it is 0.
    counts_descriptors: bool,
}

impl Procfs {
    pub fn open() -> io::Result<Self> {
        let directory = openat(CWD, c"/proc", DIRECTORY, Mode::empty())?;
        // We have at least that one open.
        let own = statat(&directory, c"self/fd", AtFlags::empty())?;
        Ok(Self { directory, counts_descriptors: own.st_size > 0 })
    }

    /// The numbers of all processes that are there now.
    pub fn pids(&self) -> io::Result<Vec<i32>> {
        let entries = Dir::read_from(&self.directory)?.filter_map(Result::ok);
        let number = |entry: rustix::fs::DirEntry| entry.file_name().to_str().ok()?.parse().ok();
        Ok(entries.filter_map(number).collect())
    }

    /// The process that has this number now.
    pub fn process(&self, pid: i32) -> Look<ShownProcess<'_>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat(&self.directory, pid.to_string(), flags, Mode::empty());
        Look::of(opened).map(|directory| ShownProcess { directory, procfs: self })
    }

    /// What everybody may know of the process that has this number now, without
    /// a longer look at it.
    pub fn stat(&self, pid: i32) -> Look<Stat> {
        read_stat(&self.directory, &format!("{pid}/stat"))
    }

    /// The arguments of a process, if the first of them is this one: of others no
    /// more is read than that.
    pub fn arguments_behind(&self, pid: i32, first: &CStr) -> Option<String> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let path = format!("{pid}/cmdline");
        let file = openat(&self.directory, path, flags, Mode::empty()).ok()?;
        let mut beginning = [0; FIRST_ARGUMENT_BYTES];
        let length = rustix::io::pread(&file, &mut beginning, 0).ok()?;
        let is_it = beginning[..length].starts_with(first.to_bytes_with_nul());
        is_it.then(|| read_list(file.as_fd()).ok())?
    }

    /// A file of `/proc` itself, or of a process, as text.
    pub fn text(&self, path: &str) -> io::Result<String> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        read_list(openat(&self.directory, path, flags, Mode::empty())?.as_fd())
    }
}

/// The work that is done by threads of the kernel.
impl Procfs {
    /// Whether the kernel is at work on the queue of this name just now: threads
    /// that do such work have it in their names, behind a plus while they do.
    /// `None` where the kernel's threads are not shown.
    pub fn is_at_work(&self, queue: &str) -> Option<bool> {
        let first = self.text("2/comm").ok()?;
        if first.trim_end() != "kthreadd" {
            return None;
        }
        let threads = self.text("2/task/2/children").ok()?;
        let wanted = format!("+{queue}");
        let names =
            threads.split_whitespace().filter_map(|pid| self.text(&format!("{pid}/comm")).ok());
        let mut names = names.filter(|name| name.starts_with("kworker/"));
        Some(names.any(|name| name.trim_end().ends_with(&wanted)))
    }
}

/// One process, for as long as it is looked at.
#[derive(Debug)]
pub struct ShownProcess<'a> {
    directory: OwnedFd,
    procfs: &'a Procfs,
}

/// No first argument that anybody asks for is longer.
const FIRST_ARGUMENT_BYTES: usize = 64;

/// A name of at most 64 bytes and 51 numbers of at most 20 digits.
const STAT_BYTES_MAX: usize = 2048;

/// x86_64 counts in no others.
const PAGE_BYTES: u64 = 4096;

/// What everybody may know of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    pub parent: i32,
    pub threads: u64,
    pub resident_bytes: u64,
    pub is_zombie: bool,
    /// By a signal or by a debugger.
    pub is_stopped: bool,
    /// Whether it runs what it executed itself, not what its parent runs.
    pub has_executed: bool,
}

impl ShownProcess<'_> {
    /// The number of its threads: the links of its directory of them, beside the
    /// two that every directory has.
    pub fn threads(&self) -> Look<u64> {
        let stat = statat(&self.directory, c"task", AtFlags::empty());
        Look::of(stat).map(|stat| stat.st_nlink.saturating_sub(2))
    }

    pub fn stat(&self) -> Look<Stat> {
        read_stat(&self.directory, "stat")
    }

    /// How many mounts it sees, by the length of the list: the long way, which is
    /// open to everybody (see [`Self::mount_namespace`] for the short one).
    pub fn listed_mounts(&self) -> Look<u64> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let opened = openat(&self.directory, c"mountinfo", flags, Mode::empty());
        Look::of(opened).and_then(|file| Look::of(count_lines(&file)))
    }

    /// How full the file system is that it has at `path`, a name below its root
    /// with no link on the way: nobody in there can lead us elsewhere.
    pub fn space_at(&self, path: &str) -> Look<StatFs> {
        let open = || {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let root = openat(&self.directory, c"root", flags, Mode::empty())?;
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            let found = openat2(&root, path, flags, Mode::empty(), resolve)?;
            fstatfs(&found)
        };
        match open() {
            Ok(space) => Look::Seen(space),
            // The path may be missing as well as the process.
            Err(Errno::SRCH) => Look::Gone,
            Err(_) => Look::Hidden,
        }
    }
}

impl<T> Look<T> {
    fn and_then<U>(self, next: impl FnOnce(T) -> Look<U>) -> Look<U> {
        match self {
            Self::Seen(seen) => next(seen),
            Self::Hidden => Look::Hidden,
            Self::Gone => Look::Gone,
        }
    }
}

fn read_stat(directory: &OwnedFd, path: &str) -> Look<Stat> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    Look::of(openat(directory, path, flags, Mode::empty())).and_then(|file| {
        // Its name may be anything, and need not be text.
        let mut bytes = [0; STAT_BYTES_MAX];
        let read = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut bytes));
        Look::of(read).and_then(|length| {
            let text = String::from_utf8_lossy(&bytes[..length]);
            parse_stat(&text).map_or(Look::Hidden, Look::Seen)
        })
    })
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

/// Flag of a process that was forked and has not executed (the kernel's `sched.h`).
const PF_FORKNOEXEC: u64 = 0x40;

/// proc_pid_stat(5). The name in its parentheses may hold anything; behind the
/// last one are state, parent, and as the 7th, 18th and 22nd field flags, threads and
/// resident pages.
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
        is_stopped: matches!(state, "T" | "t"),
        has_executed: flags & PF_FORKNOEXEC == 0,
    })
}

/// The inode of an open file, the kernel's own number of a namespace.
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
        let shown = procfs.process(own).seen().unwrap();
        let stat = shown.stat().seen().unwrap();
        assert_eq!(u32::try_from(stat.parent).unwrap(), std::os::unix::process::parent_id());
        assert!(stat.resident_bytes > 0 && !stat.is_zombie);
        let short = procfs.stat(own).seen().unwrap();
        assert_eq!(short.parent, stat.parent);
        let lines = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert_eq!(shown.listed_mounts(), Look::Seen(lines.lines().count() as u64));
        assert!(shown.space_at("proc").seen().is_some());
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
        let threads = || procfs.process(own).seen().unwrap().threads().seen().unwrap();
        let before = threads();
        let other = std::thread::spawn(move || receiver.recv().is_ok());
        assert!(threads() > before);
        drop(sender);
        other.join().unwrap();
    }

    #[test]
    fn a_process_that_is_gone_is_gone() {
        let procfs = Procfs::open().unwrap();
        let mut child = sleeping();
        let pid = i32::try_from(child.id()).unwrap();
        let shown = procfs.process(pid).seen().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(shown.threads(), Look::Gone);
        assert_eq!(shown.stat(), Look::Gone);
        assert!(matches!(procfs.process(pid), Look::Gone));
    }

    /// Whoever gives itself such a name is not to be hidden by it.
    #[test]
    fn a_process_whose_name_is_no_text_is_shown_too() {
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
        let stat = procfs.process(pid).seen().unwrap().stat().seen();
        child.kill().unwrap();
        child.wait().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!(stat.map(|stat| (stat.parent, stat.threads)), Some((own, 1)));
    }

    #[test]
    fn a_name_in_a_stat_file_may_hold_anything() {
        let text = "7 (a) R 1) Z 3 7 7 0 -1 64 0 0 0 0 0 0 0 0 20 0 5 0 1234 999 10 0 0";
        let stat = parse_stat(text).unwrap();
        assert_eq!((stat.parent, stat.threads, stat.is_zombie), (3, 5, true));
        assert!(!stat.has_executed);
        assert_eq!(stat.resident_bytes, 10 * PAGE_BYTES);
        assert_eq!(parse_stat("7 (a) R"), None);
    }
}
