//! Mounts by descriptor: a mount is made detached, configured, and attached in one step.
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

/// No set-user-id programs and no devices: the attributes of every mount but `/dev`.
pub const NOSUID_NODEV: Attributes =
    Attributes::MOUNT_ATTR_NOSUID.union(Attributes::MOUNT_ATTR_NODEV);

/// Whether a call concerns one mount, or also the mounts below it.
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

/// Makes a detached mount of a new file system. An option without a value is a flag.
pub fn filesystem(
    kind: &CStr,
    options: &[(&str, &str)],
    attributes: Attributes,
) -> io::Result<OwnedFd> {
    step("make file system", || make_filesystem(kind, options, attributes))
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

/// Makes a detached copy of the mount at a path beneath `directory`.
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
    Ok(step("copy mount", copy)?)
}

/// Attaches a detached mount at a path beneath `directory`, or at `directory` itself if the path
/// is empty.
pub fn attach(mount: BorrowedFd<'_>, directory: BorrowedFd<'_>, path: &CStr) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    let attach = || move_mount(mount, c"", directory, path, flags);
    Ok(step("attach mount", attach)?)
}

/// Attaches a detached mount on top of the root directory, where only its descriptor reaches
/// it.
pub fn attach_over_root(mount: BorrowedFd<'_>) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    let attach = || move_mount(mount, c"", CWD, c"/", flags);
    Ok(step("attach mount over root", attach)?)
}

/// Unmounts what is mounted at a path, even if it is in use (`MNT_DETACH`). Does not follow a
/// symlink.
pub fn detach(path: &std::path::Path) -> io::Result<()> {
    let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    Ok(step("detach mount", || unmount(path, flags))?)
}

/// Binds the host's `source` with all mounts below it to `target`, which is relative to the
/// current directory.
pub fn bind(source: &CStr, target: &CStr) -> io::Result<()> {
    let bind = || mount_bind_recursive(source, target);
    Ok(step("bind mount", bind)?)
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

/// Maps the owners of a detached mount's files by the id map of a user namespace.
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
    // SAFETY: mount_setattr reads a path that ends with NUL, here an empty literal, and as many
    // bytes of the live `attr` as its last argument says.
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
    step("set mount attributes", || match set() {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    })
}

/// Stops the propagation of mounts in both directions.
pub fn make_everything_private() -> io::Result<()> {
    let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    Ok(step("make mounts private", || mount_change(c"/", flags))?)
}

/// Lets mounts of the host appear here, and stops propagation in the other direction.
pub fn make_everything_follow() -> io::Result<()> {
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    Ok(step("make mounts follow", || mount_change(c"/", flags))?)
}

/// How many mounts may be stacked on the old root. Each takes one unmount.
const STACKED_MAX: usize = 64;

/// Makes `root` the root directory and unmounts the old one.
pub fn enter_root(root: BorrowedFd<'_>) -> io::Result<()> {
    rustix::process::fchdir(root)?;
    step("change root", || rustix::process::pivot_root(c".", c"."))?;
    // The old root is now on top of the new one, below everything that was mounted over it.
    // Each unmount removes the topmost mount and the mounts in it. A mount that stayed could
    // be reached as `/..`.
    for _ in 0..STACKED_MAX {
        once("detach old root", || unmount(c".", UnmountFlags::DETACH))?;
        if mount_id(c".")? == mount_id(c"..")? {
            return Ok(rustix::process::chdir(c"/")?);
        }
    }
    Err(rustix::io::Errno::BUSY.into())
}

/// In a root directory, `..` is the topmost mount on it and `.` is the root itself.
fn mount_id(path: &CStr) -> io::Result<u64> {
    let found = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID)?;
    Ok(found.stx_mnt_id)
}
