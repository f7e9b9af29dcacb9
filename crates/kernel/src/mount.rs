//! Mounts by descriptor: made detached, changed, then attached in one step.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount,
    fsopen, mount_bind_recursive, mount_change, move_mount, open_tree, unmount,
};

pub use rustix::mount::MountAttrFlags as Attributes;

use crate::step::{once, step};

/// No set-user-id, no devices: what every mount but `/dev` has.
pub const NOSUID_NODEV: Attributes =
    Attributes::MOUNT_ATTR_NOSUID.union(Attributes::MOUNT_ATTR_NODEV);

/// How far a change reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    One,
    Recursive,
}

#[repr(C)]
#[derive(Default)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// A new file system, mounted nowhere yet. Options are `key=value`, or a bare key.
pub fn filesystem(
    kind: &CStr,
    options: &[(&str, &str)],
    attributes: Attributes,
) -> io::Result<OwnedFd> {
    step("file system made", || make_filesystem(kind, options, attributes))
}

fn make_filesystem(
    kind: &CStr,
    options: &[(&str, &str)],
    attributes: Attributes,
) -> io::Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        match *value {
            "" => fsconfig_set_flag(context.as_fd(), *key)?,
            value => fsconfig_set_string(context.as_fd(), *key, value)?,
        }
    }
    fsconfig_create(context.as_fd())?;
    Ok(fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// A detached copy of the mount at a path beneath `directory` (all mounts below
/// it too, when recursive).
pub fn detached_copy(directory: BorrowedFd<'_>, path: &CStr, reach: Reach) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    let recursive = match reach {
        Reach::One => OpenTreeFlags::empty(),
        Reach::Recursive => OpenTreeFlags::AT_RECURSIVE,
    };
    let copy = || open_tree(directory, path, flags | recursive);
    Ok(step("mount copied", copy)?)
}

/// Attaches a detached mount at a path beneath `directory` (an empty path: at
/// the open directory or file itself).
pub fn attach(mount: BorrowedFd<'_>, directory: BorrowedFd<'_>, path: &CStr) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    let attach = || move_mount(mount, c"", directory, path, flags);
    Ok(step("mount attached", attach)?)
}

/// Attaches a detached mount on top of the root directory: out of everyone's
/// way, reachable through its descriptor only.
pub fn attach_over_root(mount: BorrowedFd<'_>) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    let attach = || move_mount(mount, c"", CWD, c"/", flags);
    Ok(step("mount attached over the root", attach)?)
}

/// Lets go of what is mounted at a path, whoever still uses it; never through a
/// link.
pub fn detach(path: &std::path::Path) -> io::Result<()> {
    let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    Ok(step("mount let go of", || unmount(path, flags))?)
}

/// The host's `source` seen at `target` as well, mounts below it included; the
/// target is relative to the current directory.
pub fn bind(source: &CStr, target: &CStr) -> io::Result<()> {
    let bind = || mount_bind_recursive(source, target);
    Ok(step("mount bound", bind)?)
}

/// Adds attributes to a mount.
pub fn add_attributes(
    mount: BorrowedFd<'_>,
    attributes: MountAttrFlags,
    reach: Reach,
) -> io::Result<()> {
    let attr = MountAttr { attr_set: u64::from(attributes.bits()), ..MountAttr::default() };
    set_attributes(mount, &attr, reach)
}

/// Shows a detached mount's files as owned by whom the user namespace says.
pub fn map_ids(mount: BorrowedFd<'_>, user_namespace: BorrowedFd<'_>) -> io::Result<()> {
    let attr = MountAttr {
        attr_set: MOUNT_ATTR_IDMAP,
        userns_fd: user_namespace.as_raw_fd() as u64,
        ..MountAttr::default()
    };
    set_attributes(mount, &attr, Reach::One)
}

const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;

fn set_attributes(mount: BorrowedFd<'_>, attr: &MountAttr, reach: Reach) -> io::Result<()> {
    let recursive = match reach {
        Reach::One => 0,
        Reach::Recursive => libc::AT_RECURSIVE,
    };
    // SAFETY: the kernel reads `size_of::<MountAttr>()` bytes of the live `attr`
    // and an empty path, whose flag says that the descriptor itself is meant.
    let set = || unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | recursive,
            std::ptr::from_ref(attr),
            size_of::<MountAttr>(),
        )
    };
    step("mount's attributes set", || match set() {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    })
}

/// Nothing mounted here is seen elsewhere, and nothing from elsewhere here.
pub fn make_everything_private() -> io::Result<()> {
    let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    Ok(step("mounts made private", || mount_change(c"/", flags))?)
}

/// What the host mounts later still appears here, nothing goes back.
pub fn make_everything_follow() -> io::Result<()> {
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    Ok(step("mounts made to follow", || mount_change(c"/", flags))?)
}

/// What may be mounted over the old root; each takes one unmount.
const STACKED_MAX: usize = 64;

/// Makes `root` the root directory and lets the old one go, for good.
pub fn enter_root(root: BorrowedFd<'_>) -> io::Result<()> {
    rustix::process::fchdir(root)?;
    step("root changed", || rustix::process::pivot_root(c".", c"."))?;
    // The old root now lies on top of the new one, and on top of it whatever was
    // mounted over it. Each unmount takes away the topmost, with all below it in
    // the tree; what stayed could be reached as `/..`.
    for _ in 0..STACKED_MAX {
        once("old root let go of", || unmount(c".", UnmountFlags::DETACH))?;
        if mount_id(c".")? == mount_id(c"..")? {
            return Ok(rustix::process::chdir(c"/")?);
        }
    }
    Err(rustix::io::Errno::BUSY.into())
}

/// `..` of a root directory is the topmost mount on it, `.` is the root itself.
fn mount_id(path: &CStr) -> io::Result<u64> {
    let found = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID)?;
    Ok(found.stx_mnt_id)
}
