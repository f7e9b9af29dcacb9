//! Namespaces that processes are in.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, openat, readlinkat_raw};

use super::{Look, ShownProcess, inode};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NamespaceKind {
    Cgroup,
    Ipc,
    Mount,
    Network,
    Pid,
    User,
    Uts,
}

/// All that a box has; nobody here makes one of time.
pub const NAMESPACE_KINDS: [NamespaceKind; 7] = [
    NamespaceKind::Cgroup,
    NamespaceKind::Ipc,
    NamespaceKind::Mount,
    NamespaceKind::Network,
    NamespaceKind::Pid,
    NamespaceKind::User,
    NamespaceKind::Uts,
];

impl NamespaceKind {
    /// As the kernel calls it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cgroup => "cgroup",
            Self::Ipc => "ipc",
            Self::Mount => "mnt",
            Self::Network => "net",
            Self::Pid => "pid",
            Self::User => "user",
            Self::Uts => "uts",
        }
    }
}

/// The longest name of a kind, a number of 20 digits, and what is around them.
const LINK_BYTES: usize = 32;

impl ShownProcess<'_> {
    /// The inodes of the namespaces of these kinds, in their order. A process
    /// that has exited but for its number has none.
    pub fn namespaces(&self, kinds: &[NamespaceKind]) -> Look<Vec<u64>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = match openat(&self.directory, c"ns", flags, Mode::empty()) {
            Ok(directory) => directory,
            Err(errno) => return Look::of(Err(errno)),
        };
        let mut inodes = Vec::with_capacity(kinds.len());
        let mut link = [MaybeUninit::uninit(); LINK_BYTES];
        for kind in kinds {
            // Read, not followed: that takes half the time.
            match readlinkat_raw(&directory, kind.as_str(), &mut link) {
                Ok((target, _)) => inodes.push(number_in(target)),
                Err(errno) => return Look::of(Err(errno)),
            }
        }
        let known: Option<Vec<u64>> = inodes.into_iter().collect();
        known.map_or(Look::Hidden, Look::Seen)
    }

    /// Its mount namespace.
    pub fn mount_namespace(&self) -> Look<MountNamespace> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let opened = openat(&self.directory, c"ns/mnt", flags, Mode::empty());
        Look::of(opened).and_then(|fd| {
            Look::of(inode(&fd)).map(|inode| MountNamespace { inode, mounts: mounts_in(&fd) })
        })
    }
}

/// What is known of a mount namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MountNamespace {
    pub inode: u64,
    /// How many mounts it has; `None` before Linux 6.12, which does not say.
    pub mounts: Option<u64>,
}

/// `mnt:[4026531832]`
fn number_in(link: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(link).ok()?;
    let (_, number) = text.split_once(":[")?;
    number.strip_suffix(']')?.parse().ok()
}

/// `struct mnt_ns_info` of linux/nsfs.h.
#[repr(C)]
struct MountNamespaceInfo {
    size: u32,
    mounts: u32,
    id: u64,
}

/// `NS_MNT_GET_INFO` of linux/nsfs.h: `_IOR(0xb7, 10, struct mnt_ns_info)`.
const GET_INFO: u64 = 2 << 30 | (size_of::<MountNamespaceInfo>() as u64) << 16 | 0xb7 << 8 | 10;

/// The kernel's own count, a fortieth of what its list of them costs.
fn mounts_in(namespace: &OwnedFd) -> Option<u64> {
    let mut info = MaybeUninit::<MountNamespaceInfo>::zeroed();
    // SAFETY: the kernel writes at most the size that is part of the number,
    // which is that of `info`.
    let result = unsafe { libc::ioctl(namespace.as_raw_fd(), GET_INFO as _, info.as_mut_ptr()) };
    // SAFETY: all zeroes is a value of it, and the kernel wrote integers.
    let info = unsafe { info.assume_init() };
    (result == 0 && info.size > 0).then_some(u64::from(info.mounts))
}

#[cfg(test)]
mod tests {
    use super::super::Procfs;
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn namespaces_are_known_by_their_inodes() {
        let procfs = Procfs::open().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let shown = procfs.process(own).seen().unwrap();
        let inodes = shown.namespaces(&NAMESPACE_KINDS).seen().unwrap();
        for (kind, inode) in NAMESPACE_KINDS.iter().zip(inodes) {
            let path = format!("/proc/self/ns/{}", kind.as_str());
            assert_eq!(inode, std::fs::metadata(path).unwrap().ino());
        }
    }

    #[test]
    fn the_short_way_to_count_mounts_agrees_with_the_long_one() {
        let procfs = Procfs::open().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let shown = procfs.process(own).seen().unwrap();
        let namespace = shown.mount_namespace().seen().unwrap();
        if let Some(mounts) = namespace.mounts {
            assert_eq!(Look::Seen(mounts), shown.listed_mounts());
        }
    }

    #[test]
    fn only_a_whole_link_has_a_number() {
        assert_eq!(number_in(b"mnt:[12]"), Some(12));
        for link in ["mnt:[12", "mnt:12]", "", "mnt:[x]"] {
            assert_eq!(number_in(link.as_bytes()), None, "{link}");
        }
    }
}
