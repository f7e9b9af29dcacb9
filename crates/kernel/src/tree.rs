//! Removes a directory tree beneath a descriptor and lists directories. Never follows a
//! symlink.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, chmodat, openat, renameat_with,
    unlinkat,
};
use rustix::io::Errno;

use crate::fds::open_directory;
use crate::step::{once, step};

/// Removes `name` beneath `parent`: a file, or a directory with everything in it. The
/// directory may be of any depth and have any modes, but must belong to our user. Succeeds
/// if `name` does not exist.
///
/// A directory is moved to the top before its parent is removed, so two descriptors are
/// enough for any depth.
pub fn remove(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    if is_removed(parent, name)? {
        return Ok(());
    }
    let top = open_for_removal(parent, name)?;
    let mut moved = 0;
    while flatten(top.as_fd(), &mut moved)? {}
    let remove = || unlinkat(parent, name, AtFlags::REMOVEDIR);
    match step("remove directory", remove) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Removes every entry of the top directory, after moving the directories that are in it to
/// the top. Returns `false` if the top was empty.
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
                // Moving a directory needs the right to write it.
                open_for_removal(directory.as_fd(), &below)?;
                move_up(directory.as_fd(), &below, top, moved)?;
            }
        }
        let remove = || unlinkat(top, &name, AtFlags::REMOVEDIR);
        match step("remove directory beneath", remove) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(found)
}

/// Removes a file. Returns `false` if it is a directory.
fn is_removed(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<bool> {
    let remove = || unlinkat(parent, name, AtFlags::empty());
    match step("remove file", remove) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::ISDIR | Errno::PERM) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Moves a directory to the top, under a name that is free there.
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
        match once("move directory up", rename) {
            Err(Errno::EXIST) => {}
            other => return Ok(other?),
        }
    }
}

/// Opens a directory and gives its owner all rights, which its mode may deny.
fn open_for_removal(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = openat(parent, name, flags, Mode::empty())?;
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    let open_up = || chmodat(CWD, &path, Mode::RWXU, AtFlags::empty());
    step("open directory up", open_up)?;
    Ok(open_directory(found, c".")?)
}

/// Returns the names in a directory, without "." and "..".
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

/// Returns the names of the directories in a directory.
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
        let mut directory = open_directory(CWD, &top).unwrap();
        for _ in 0..3000 {
            rustix::fs::mkdirat(&directory, "d", Mode::RWXU).unwrap();
            directory = open_directory(&directory, "d").unwrap();
        }
        let parent = open_directory(CWD, &home).unwrap();
        remove(parent.as_fd(), c"top").unwrap();
        remove(parent.as_fd(), c"top").unwrap();
        let left: Vec<_> = fs::read_dir(&home).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
        fs::remove_dir_all(home).unwrap();
    }
}
