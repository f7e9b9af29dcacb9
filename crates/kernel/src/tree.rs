//! Removing a directory tree beneath a descriptor, following no symlink.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, chmodat, openat, renameat_with,
    unlinkat,
};
use rustix::io::Errno;

use crate::step::{once, step};

/// Records are shallow; anything deeper is not one of ours.
const DEPTH_MAX: usize = 8;

/// Removes `name` beneath `parent` with everything in it. Absent is as wanted.
pub fn remove(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    remove_at_depth(parent, name, DEPTH_MAX)
}

fn remove_at_depth(parent: BorrowedFd<'_>, name: &CStr, depth: usize) -> io::Result<()> {
    match step("file removed", || unlinkat(parent, name, AtFlags::empty())) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(errno) => return Err(errno.into()),
    }
    if depth == 0 {
        return Err(io::Error::from(Errno::LOOP));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = match openat(parent, name, flags, Mode::empty()) {
        Ok(directory) => directory,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    };
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        if entry.file_name() != c"." && entry.file_name() != c".." {
            remove_at_depth(directory.as_fd(), entry.file_name(), depth - 1)?;
        }
    }
    match step("directory removed", || unlinkat(parent, name, AtFlags::REMOVEDIR)) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Removes a directory that somebody else has filled, however deep, and whatever
/// its directories' modes are; it must belong to us. Absent is as wanted.
///
/// Directories are moved up to the top before their parent goes, so that two
/// descriptors are enough for any depth.
pub fn remove_deep(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    if is_removed(parent, name)? {
        return Ok(());
    }
    let top = open_for_removal(parent, name)?;
    let mut moved = 0;
    while flatten(top.as_fd(), &mut moved)? {}
    let remove = || unlinkat(parent, name, AtFlags::REMOVEDIR);
    match step("deep directory removed", remove) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Removes all that is at the top, but for the directories beneath, which then
/// are there; `false` when it was empty.
fn flatten(top: BorrowedFd<'_>, moved: &mut u64) -> io::Result<bool> {
    let mut found = false;
    for name in names(top)? {
        found = true;
        if is_removed(top, &name)? {
            continue;
        }
        let directory = open_for_removal(top, &name)?;
        for below in names(directory.as_fd())? {
            if !is_removed(directory.as_fd(), &below)? {
                // A directory is only moved by who may write it.
                open_for_removal(directory.as_fd(), &below)?;
                move_up(directory.as_fd(), &below, top, moved)?;
            }
        }
        let remove = || unlinkat(top, &name, AtFlags::REMOVEDIR);
        match step("directory beneath removed", remove) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(found)
}

/// `false` for a directory.
fn is_removed(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<bool> {
    let remove = || unlinkat(parent, name, AtFlags::empty());
    match step("file beneath removed", remove) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::ISDIR | Errno::PERM) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Under a name that nothing there has.
fn move_up(
    from: BorrowedFd<'_>,
    name: &CStr,
    top: BorrowedFd<'_>,
    moved: &mut u64,
) -> io::Result<()> {
    loop {
        let new = format!("tare.{moved}");
        *moved += 1;
        let rename = || renameat_with(from, name, top, &new, RenameFlags::NOREPLACE);
        match once("directory moved up", rename) {
            Err(Errno::EXIST) => {}
            other => return Ok(other?),
        }
    }
}

/// With the rights to read and change it, which its mode may deny to its owner.
fn open_for_removal(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = openat(parent, name, OFlags::PATH | flags, Mode::empty())?;
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    let open_up = || chmodat(CWD, &path, Mode::RWXU, AtFlags::empty());
    step("directory opened up", open_up)?;
    Ok(openat(found, c".", OFlags::RDONLY | flags, Mode::empty())?)
}

/// The names in a directory, without "." and "..".
pub fn names(directory: BorrowedFd<'_>) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if entry.file_name() != c"." && entry.file_name() != c".." {
            names.push(entry.file_name().to_owned());
        }
    }
    Ok(names)
}

/// The names of the directories in a directory.
pub fn subdirectories(directory: BorrowedFd<'_>) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if entry.file_type() == FileType::Directory && name != c"." && name != c".." {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_tree_of_thousands_of_levels_and_any_mode_is_removed_and_nothing_else() {
        let home = std::env::temp_dir().join(format!("tare-tree-{}", std::process::id()));
        fs::create_dir(&home).unwrap();
        fs::write(home.join("precious"), "precious").unwrap();
        let top = home.join("top");
        fs::create_dir(&top).unwrap();
        fs::create_dir(top.join("tare.0")).unwrap();
        symlink(&home, top.join("link")).unwrap();
        fs::create_dir(top.join("closed")).unwrap();
        fs::create_dir(top.join("closed/inside")).unwrap();
        fs::write(top.join("closed/inside/file"), "x").unwrap();
        fs::set_permissions(top.join("closed/inside"), fs::Permissions::from_mode(0o555)).unwrap();
        fs::set_permissions(top.join("closed"), fs::Permissions::from_mode(0o0)).unwrap();
        let mut directory = openat(CWD, &top, OFlags::RDONLY, Mode::empty()).unwrap();
        for _ in 0..3000 {
            rustix::fs::mkdirat(&directory, "d", Mode::RWXU).unwrap();
            directory = openat(&directory, "d", OFlags::RDONLY, Mode::empty()).unwrap();
        }
        let parent = openat(CWD, &home, OFlags::RDONLY, Mode::empty()).unwrap();
        remove_deep(parent.as_fd(), c"top").unwrap();
        remove_deep(parent.as_fd(), c"top").unwrap();
        let left: Vec<_> = fs::read_dir(&home).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
        fs::remove_dir_all(home).unwrap();
    }
}
