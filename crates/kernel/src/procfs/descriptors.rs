//! Counts the descriptors of a process by kind.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Dir, RawDir, readlinkat_raw, statat};

use super::ProcessDir;
use crate::fds::open_directory;

/// The kind of object that a descriptor is open on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DescriptorKind {
    /// A file, directory or device: its link is a path.
    File,
    Pipe,
    Socket,
    /// Memory with a descriptor (memfd_create(2)).
    Memfd,
    Epoll,
    Eventfd,
    Inotify,
    IoUring,
    Namespace,
    Pidfd,
    Signalfd,
    Timerfd,
    Other,
}

impl DescriptorKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Pipe => "pipe",
            Self::Socket => "socket",
            Self::Memfd => "memfd",
            Self::Epoll => "epoll",
            Self::Eventfd => "eventfd",
            Self::Inotify => "inotify",
            Self::IoUring => "io_uring",
            Self::Namespace => "namespace",
            Self::Pidfd => "pidfd",
            Self::Signalfd => "signalfd",
            Self::Timerfd => "timerfd",
            Self::Other => "other",
        }
    }
}

/// The descriptors of one process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Descriptors {
    pub kinds: BTreeMap<DescriptorKind, u64>,
    /// The inodes of its sockets.
    pub sockets: Vec<u64>,
}

impl Descriptors {
    pub fn total(&self) -> u64 {
        self.kinds.values().sum()
    }
}

impl ProcessDir<'_> {
    /// Returns the number of its descriptors. Every user may know it where the size of the
    /// directory is that number.
    pub fn descriptor_count(&self) -> io::Result<u64> {
        if self.procfs.counts_descriptors {
            let stat = statat(&self.directory, c"fd", AtFlags::empty())?;
            return Ok(u64::try_from(stat.st_size).unwrap_or(0));
        }
        let entries = Dir::read_from(open_directory(&self.directory, c"fd")?)?;
        let entries = entries.filter_map(Result::ok);
        Ok(entries.filter(|it| is_number(it.file_name())).count() as u64)
    }

    /// Returns what its descriptors are open on. The links are read and never followed: a file
    /// system whose server is in the box could make us wait.
    pub fn descriptors(&self) -> io::Result<Descriptors> {
        Ok(read_all(&open_directory(&self.directory, c"fd")?)?)
    }
}

fn read_all(directory: &OwnedFd) -> rustix::io::Result<Descriptors> {
    let mut found = Descriptors::default();
    let mut names = [MaybeUninit::uninit(); LIST_BYTES];
    let mut link = [MaybeUninit::uninit(); LINK_BYTES];
    let mut entries = RawDir::new(directory, &mut names);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        if !is_number(entry.file_name()) {
            continue;
        }
        // A descriptor that was closed meanwhile is not counted.
        if let Ok((target, _)) = readlinkat_raw(directory, entry.file_name(), &mut link) {
            found.note(target);
        }
    }
    Ok(found)
}

/// One read of the directory: about a hundred names.
const LIST_BYTES: usize = 4096;
/// The beginning of a link, which is enough to tell the kind.
const LINK_BYTES: usize = 64;

fn is_number(name: &CStr) -> bool {
    name.to_bytes().iter().all(u8::is_ascii_digit)
}

impl Descriptors {
    fn note(&mut self, target: &[u8]) {
        let (kind, socket) = kind(target);
        *self.kinds.entry(kind).or_default() += 1;
        self.sockets.extend(socket);
    }
}

/// Returns the kind of a descriptor by the target of its link, and the inode of a socket
/// (proc_pid_fd(5)). A path begins with `/`; the kernel chooses all other targets.
fn kind(target: &[u8]) -> (DescriptorKind, Option<u64>) {
    if target.starts_with(b"/memfd:") {
        return (DescriptorKind::Memfd, None);
    }
    if target.starts_with(b"/") {
        return (DescriptorKind::File, None);
    }
    let text = String::from_utf8_lossy(target);
    let Some((class, rest)) = text.split_once(':') else {
        return (DescriptorKind::Other, None);
    };
    let inside = rest.trim_start_matches('[').trim_end_matches(']');
    let kind = match class {
        "pipe" => DescriptorKind::Pipe,
        "socket" => return (DescriptorKind::Socket, inside.parse().ok()),
        "cgroup" | "ipc" | "mnt" | "net" | "pid" | "time" | "user" | "uts" => {
            DescriptorKind::Namespace
        }
        "anon_inode" => anonymous(inside),
        _ => DescriptorKind::Other,
    };
    (kind, None)
}

fn anonymous(name: &str) -> DescriptorKind {
    match name {
        "eventfd" => DescriptorKind::Eventfd,
        "eventpoll" => DescriptorKind::Epoll,
        // Since Linux 6.19 it has brackets, as the others do.
        "inotify" => DescriptorKind::Inotify,
        "io_uring" => DescriptorKind::IoUring,
        // Before Linux 6.9; since then pidfds have a file system of their own.
        "pidfd" => DescriptorKind::Pidfd,
        "signalfd" => DescriptorKind::Signalfd,
        "timerfd" => DescriptorKind::Timerfd,
        _ => DescriptorKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Procfs;
    use super::*;

    #[test]
    fn a_descriptor_is_known_by_its_link() {
        for (target, expected) in [
            ("/dev/null", DescriptorKind::File),
            ("/a:b", DescriptorKind::File),
            ("/memfd:x (deleted)", DescriptorKind::Memfd),
            ("pipe:[12]", DescriptorKind::Pipe),
            ("anon_inode:[eventpoll]", DescriptorKind::Epoll),
            ("anon_inode:inotify", DescriptorKind::Inotify),
            ("anon_inode:[pidfd]", DescriptorKind::Pidfd),
            ("anon_inode:\u{1b}[2J", DescriptorKind::Other),
            ("net:[4026531833]", DescriptorKind::Namespace),
            ("nonsense", DescriptorKind::Other),
        ] {
            assert_eq!(kind(target.as_bytes()), (expected, None), "{target}");
        }
        assert_eq!(kind(b"socket:[77]"), (DescriptorKind::Socket, Some(77)));
    }

    #[test]
    fn our_own_descriptors_are_counted_by_kind() {
        let procfs = Procfs::open().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let shown = procfs.process(own).unwrap();
        let of = |kind| {
            let found = shown.descriptors().unwrap();
            found.kinds.get(&kind).copied().unwrap_or(0)
        };
        let pipes = of(DescriptorKind::Pipe);
        let pair = io::pipe().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(of(DescriptorKind::Pipe) >= pipes + 2);
        let inode = super::super::inode(&listener).unwrap();
        assert!(shown.descriptors().unwrap().sockets.contains(&inode));
        assert!(shown.descriptor_count().unwrap() >= 3);
        drop((pair, listener));
    }
}
