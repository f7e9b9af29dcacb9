//! Landlock (landlock(7)): a second barrier around what a box may write, and the only one
//! around abstract sockets and signals where the network namespace is shared.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Access rights of `landlock.h`. tare restricts neither reading nor executing.
pub mod access {
    pub const WRITE_FILE: u64 = 1 << 1;
    pub const REMOVE_DIR: u64 = 1 << 4;
    pub const REMOVE_FILE: u64 = 1 << 5;
    pub const MAKE_CHAR: u64 = 1 << 6;
    pub const MAKE_DIR: u64 = 1 << 7;
    pub const MAKE_REG: u64 = 1 << 8;
    pub const MAKE_SOCK: u64 = 1 << 9;
    pub const MAKE_FIFO: u64 = 1 << 10;
    pub const MAKE_BLOCK: u64 = 1 << 11;
    pub const MAKE_SYM: u64 = 1 << 12;
    /// From ABI 2.
    pub const REFER: u64 = 1 << 13;
    /// From ABI 3.
    pub const TRUNCATE: u64 = 1 << 14;
    /// From ABI 5.
    pub const IOCTL_DEV: u64 = 1 << 15;
    /// From ABI 9 (Linux 7.1): connecting to a socket by its path. Sockets that were made in
    /// the same domain do not need this right.
    pub const RESOLVE_UNIX: u64 = 1 << 16;

    /// The rights that apply to a file that is not a directory.
    pub const FILE: u64 = WRITE_FILE | TRUNCATE | IOCTL_DEV;

    /// All rights to change a file system that this ABI knows.
    pub const fn writes(abi: u32) -> u64 {
        let first = WRITE_FILE
            | REMOVE_DIR
            | REMOVE_FILE
            | MAKE_CHAR
            | MAKE_DIR
            | MAKE_REG
            | MAKE_SOCK
            | MAKE_FIFO
            | MAKE_BLOCK
            | MAKE_SYM;
        first
            | if abi >= 2 { REFER } else { 0 }
            | if abi >= 3 { TRUNCATE } else { 0 }
            | if abi >= 5 { IOCTL_DEV } else { 0 }
    }

    /// The rights that a domain denies unless a rule allows them. No rule allows sockets outside
    /// of the domain, so they are not among [`writes`].
    pub const fn handled(abi: u32) -> u64 {
        writes(abi) | if abi >= 9 { RESOLVE_UNIX } else { 0 }
    }
}

const CREATE_RULESET_VERSION: u32 = 1;
const RULE_PATH_BENEATH: u32 = 1;
/// Abstract unix sockets and signals, from ABI 6.
const SCOPES: u64 = 0b11;

#[repr(C)]
struct RulesetAttr {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

#[repr(C, packed)]
struct PathBeneathAttr {
    allowed_access: u64,
    parent_fd: i32,
}

/// Returns the Landlock version of this kernel, 0 if it has none.
pub fn abi() -> u32 {
    // SAFETY: with this flag, landlock_create_ruleset needs a null attribute of size 0, and
    // only returns a number.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<RulesetAttr>(),
            0usize,
            CREATE_RULESET_VERSION,
        )
    };
    u32::try_from(version).unwrap_or(0)
}

/// A ruleset: nothing may be written, except what [`Ruleset::allow`] allows.
#[derive(Debug)]
pub struct Ruleset {
    fd: OwnedFd,
    handled: u64,
}

/// Whether a domain also keeps signals and connections to abstract sockets in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    Domain,
    /// No: the namespaces of the box do that, and its processes are in more than one domain.
    Open,
}

impl Ruleset {
    pub fn new(abi: u32, scope: Scope) -> io::Result<Self> {
        let handled = access::handled(abi);
        let scoped = if scope == Scope::Domain { SCOPES } else { 0 };
        let attr = RulesetAttr { handled_access_fs: handled, handled_access_net: 0, scoped };
        // Older kernels reject a structure that is longer than theirs.
        let size: usize = match abi {
            0..=3 => 8,
            4..=5 => 16,
            _ => size_of::<RulesetAttr>(),
        };
        // SAFETY: landlock_create_ruleset reads `size` bytes of the live `attr`, which is at
        // least that large.
        let fd = unsafe {
            libc::syscall(libc::SYS_landlock_create_ruleset, &raw const attr, size, 0u32)
        };
        let fd = i32::try_from(fd).map_err(|_| io::ErrorKind::InvalidData)?;
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: from_raw_fd needs an open descriptor that nothing else owns: the call above
        // has just made it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, handled })
    }

    /// Allows these rights at an open path and beneath it.
    pub fn allow(&self, path: BorrowedFd<'_>, rights: u64) -> io::Result<()> {
        let attr =
            PathBeneathAttr { allowed_access: rights & self.handled, parent_fd: path.as_raw_fd() };
        // SAFETY: landlock_add_rule reads one packed attribute at its third argument, the live
        // `attr`.
        let result = unsafe {
            libc::syscall(
                libc::SYS_landlock_add_rule,
                self.fd.as_raw_fd(),
                RULE_PATH_BENEATH,
                &raw const attr,
                0u32,
            )
        };
        check(result)
    }

    /// Applies the rules to this thread and its descendants from now on.
    pub fn restrict_self(&self) -> io::Result<()> {
        // SAFETY: landlock_restrict_self takes two numbers and reads no memory.
        let result =
            unsafe { libc::syscall(libc::SYS_landlock_restrict_self, self.fd.as_raw_fd(), 0u32) };
        check(result)
    }
}

impl AsFd for Ruleset {
    /// Another process can restrict itself with this descriptor.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::access::{RESOLVE_UNIX, handled, writes};

    /// An older kernel rejects a ruleset with a right that it does not know.
    #[test]
    fn sockets_by_path_are_forbidden_from_abi_9_on_and_never_allowed() {
        for abi in 1..=12 {
            assert_eq!(handled(abi) & RESOLVE_UNIX != 0, abi >= 9, "{abi}");
            assert_eq!(writes(abi) & RESOLVE_UNIX, 0, "{abi}");
        }
    }
}
