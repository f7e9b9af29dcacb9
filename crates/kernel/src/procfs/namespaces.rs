//! The namespaces of a process.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::readlinkat_raw;

use super::{ProcessDir, inode};
use crate::fds::{open_file, open_path};

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

/// The kinds that a box has. tare makes no time namespaces.
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
    /// The name of the kind in `/proc/PID/ns`.
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

/// The longest name of a kind, a number of 20 digits, and `:[]` around it.
const LINK_BYTES: usize = 32;

impl ProcessDir<'_> {
    /// Returns the inodes of the namespaces of these kinds, in their order. An error for a
    /// zombie, which has left its namespaces.
    pub fn namespaces(&self, kinds: &[NamespaceKind]) -> io::Result<Vec<u64>> {
        let directory = open_path(&self.directory, c"ns")?;
        let inode = |kind: &NamespaceKind| {
            let mut link = [MaybeUninit::uninit(); LINK_BYTES];
            // Reading a link takes half the time of following it.
            let (target, _) = readlinkat_raw(&directory, kind.as_str(), &mut link)?;
            number_in(target).ok_or_else(|| io::Error::other("a namespace without a number"))
        };
        kinds.iter().map(inode).collect()
    }

    pub fn mount_namespace(&self) -> io::Result<MountNamespace> {
        let fd = open_file(&self.directory, c"ns/mnt")?;
        Ok(MountNamespace { inode: inode(&fd)?, mounts: mounts_in(&fd) })
    }
}

/// A mount namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MountNamespace {
    pub inode: u64,
    /// How many mounts it has; `None` before Linux 6.12.
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

/// Asks the kernel for the number of mounts, which takes a fortieth of the time of reading
/// the list.
fn mounts_in(namespace: &OwnedFd) -> Option<u64> {
    let mut info = MaybeUninit::<MountNamespaceInfo>::zeroed();
    // SAFETY: this ioctl writes at most as many bytes as its number says, and that is the size
    // of `info`.
    let result = unsafe { libc::ioctl(namespace.as_raw_fd(), GET_INFO as _, info.as_mut_ptr()) };
    // SAFETY: assume_init needs initialised memory: it was zeroed, which is a valid value, and
    // the kernel writes integers.
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
        let shown = procfs.process(own).unwrap();
        let inodes = shown.namespaces(&NAMESPACE_KINDS).unwrap();
        for (kind, inode) in NAMESPACE_KINDS.iter().zip(inodes) {
            let path = format!("/proc/self/ns/{}", kind.as_str());
            assert_eq!(inode, std::fs::metadata(path).unwrap().ino());
        }
    }

    #[test]
    fn the_kernels_count_of_mounts_agrees_with_its_list() {
        let procfs = Procfs::open().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let shown = procfs.process(own).unwrap();
        let namespace = shown.mount_namespace().unwrap();
        if let Some(mounts) = namespace.mounts {
            assert_eq!(mounts, shown.listed_mounts().unwrap());
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
