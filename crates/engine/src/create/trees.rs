//! Opens the host directories and files that a box gets, once and without following a symlink, and
//! makes detached mounts of them.
//!
//! A detached mount ends with its descriptor, so it needs no record.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, Stat, fstat, fstatfs, openat2};
use rustix::io::Errno;
use tare_kernel::files::Kind;
use tare_kernel::idmap::{Extent, id_map_namespace};
use tare_kernel::mount::{self, Attributes, NOSUID_NODEV, Reach};

use crate::error::{Context, Error, ErrorKind};
use crate::holdings::{Place, Tree, uids};
use crate::spec::{Access, Driver, User, Volume};

/// How the mounts are made, and how ids are mapped in them.
#[derive(Debug, Clone, Copy)]
pub enum Mapping {
    /// As root: detached mounts, mapped to the box's uid range, which begins at `first`.
    Range { first: u32, user: User },
    /// Without privileges: the keeper mounts the path with its own rights.
    Own,
}

/// Returns the tree below the box's overlay. Files of the host's root belong to the box's root.
pub fn root(path: &Path, state_root: &Path, mapping: Mapping) -> Result<Tree, Error> {
    let doing = || format!("cannot use {} as the root", path.display());
    let opened = open(path).map_err(|error| refused("--rootfs", path, error))?;
    keep_apart(path, state_root, doing)?;
    let stat = fstat(&opened).context(doing)?;
    if !Kind::is_directory(&stat) {
        return Err(unusable(doing()).caused_by("it is not a directory"));
    }
    let Mapping::Range { first, .. } = mapping else {
        return Ok(by_path(path, true));
    };
    let whole = Extent { inside: 0, outside: first, count: uids::COUNT };
    let mounted = detach(&opened, Access::ReadOnly, Some((whole, whole))).context(doing).map_err(
        |error| {
            // A tmpfs supports them from Linux 6.3 on. Without a map, its files would belong to the
            // overflow id.
            error.with_hint("its file system may not support id-mapped mounts; copy it to a disk")
        },
    )?;
    Ok(inherited(mounted, true))
}

/// Returns the tree of a volume, on which the box's user acts as its owner.
pub fn volume(
    volume: &Volume,
    driver: Driver,
    state_root: &Path,
    mapping: Mapping,
) -> Result<Tree, Error> {
    let path = &volume.host;
    let doing = || format!("cannot bind {} into the box", path.display());
    let opened = open(path).map_err(|error| refused("-v", path, error))?;
    keep_apart(path, state_root, doing)?;
    let stat = fstat(&opened).context(doing)?;
    let not_bindable = |kind: &str| {
        unusable(doing())
            .caused_by(format!("it is a {kind}"))
            .with_hint("only directories and regular files can be bound")
    };
    let is_directory = match Kind::of(&stat) {
        Kind::Directory => true,
        Kind::File => false,
        Kind::Symlink => return Err(not_bindable("symlink")),
        Kind::Special(kind) => return Err(not_bindable(kind)),
    };
    if let Some(socket) = live_socket_beneath(path) {
        return Err(unusable(doing())
            .caused_by(format!("{} is a socket on which a process listens", socket.display()))
            .with_hint(
                "the box could talk to a service of the host; bind a directory without one",
            ));
    }
    if driver == Driver::Vm && volume.access == Access::ReadWrite {
        refuse_memory(&opened, doing)?;
    }
    let Mapping::Range { first, user } = mapping else {
        return Ok(by_path(path, is_directory));
    };
    let mounted = match detach(&opened, volume.access, Some(owner_map(&stat, first, user))) {
        // Not every file system can map ids. Reading works without a map.
        Err(_) if volume.access == Access::ReadOnly => detach(&opened, volume.access, None),
        other => other,
    };
    let mounted = mounted.context(doing).map_err(|error| {
        error.with_hint("its file system may not support id-mapped mounts; ':ro' needs none")
    })?;
    Ok(inherited(mounted, is_directory))
}

/// File systems whose files are memory: tmpfs, ramfs and hugetlbfs (statfs(2)).
const MEMORY: [i64; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6];

/// Refuses memory as a volume that a machine can write. The kernel charges it to the monitor, and cannot
/// reclaim it. A machine that fills the volume would make the kernel kill the monitor.
fn refuse_memory(opened: &OwnedFd, doing: impl Fn() -> String) -> Result<(), Error> {
    let file_system = fstatfs(opened).map_err(io::Error::from).context(&doing)?.f_type;
    if !MEMORY.contains(&file_system) {
        return Ok(());
    }
    Err(unusable(doing())
        .caused_by("its files are in memory, and would use up the memory limit of the machine")
        .with_hint("bind a directory on a disk, or add ':ro'"))
}

/// Refuses a path that contains the state root or is in it. A box that could write there could end
/// other boxes, and a box that could read there would learn their specs.
fn keep_apart(path: &Path, state_root: &Path, doing: impl Fn() -> String) -> Result<(), Error> {
    // Compares the real paths: `..` or a link in one could hide the other.
    let real = |path: &Path| fs::canonicalize(path).context(&doing);
    let (path, state_root) = (real(path)?, real(state_root)?);
    let own = fs::metadata(&path).context(&doing)?;
    // Compares inodes too: a bind mount gives a directory another path.
    let is_same = |above: &Path| {
        let above = fs::metadata(above);
        above.is_ok_and(|above| (above.dev(), above.ino()) == (own.dev(), own.ino()))
    };
    if !path.starts_with(&state_root) && !state_root.ancestors().any(is_same) {
        return Ok(());
    }
    let why = format!("tare keeps its own state in {}", state_root.display());
    Err(unusable(doing())
        .caused_by(why)
        .with_hint("give a directory beside it, or choose another state root"))
}

/// Finds a socket below a directory on which a process listens. A box could connect to it, because
/// read-only mounts and network namespaces do not prevent that. The kernel's list has the sockets of
/// our network namespace, with the paths that they were bound to. From Landlock's ABI 9 on, a box
/// cannot connect to any socket that was made outside of it. With an older kernel, sockets that are
/// not in the list can be reached (docs/security.md).
fn live_socket_beneath(directory: &Path) -> Option<PathBuf> {
    let list = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    socket_paths(&list).find(|path| path.starts_with(directory))
}

/// Returns the paths in the list: the text from the first slash after a blank on. No field before the
/// path has a slash, and an abstract name begins with `@`.
fn socket_paths(list: &str) -> impl Iterator<Item = PathBuf> {
    let name = |line: &str| line.find(" /").map(|at| PathBuf::from(&line[at + 1..]));
    list.lines().filter_map(name)
}

fn open(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(CWD, path, flags, Mode::empty(), resolve)
}

fn unusable(message: String) -> Error {
    Error::new(ErrorKind::HostPath, message)
}

fn refused(option: &str, path: &Path, errno: Errno) -> Error {
    let shown = path.display();
    let error = |why: &str, hint: &str| {
        unusable(format!("cannot use {shown} for {option}")).caused_by(why).with_hint(hint)
    };
    match errno {
        Errno::NOENT => error("it does not exist", "make it first: tare never creates it"),
        Errno::LOOP => {
            error("its path contains a symlink", "give the resolved path: realpath says which")
        }
        other => error(&io::Error::from(other).to_string(), "check the path and its permissions"),
    }
}

/// Maps the owner on disk to the box's user. All other ids stay unmapped.
fn owner_map(stat: &Stat, first: u32, user: User) -> (Extent, Extent) {
    let one = |inside: u32, outside: u32| Extent { inside, outside, count: 1 };
    (one(stat.st_uid, first + user.uid), one(stat.st_gid, first + user.gid))
}

fn detach(opened: &OwnedFd, access: Access, map: Option<(Extent, Extent)>) -> io::Result<OwnedFd> {
    let tree = mount::detached_copy(opened.as_fd(), c"", Reach::One)?;
    let read_only = match access {
        Access::ReadOnly => Attributes::MOUNT_ATTR_RDONLY,
        Access::ReadWrite => Attributes::empty(),
    };
    mount::add_attributes(tree.as_fd(), NOSUID_NODEV | read_only, Reach::One)?;
    if let Some((uids, gids)) = map {
        let namespace = id_map_namespace(uids, gids)?;
        mount::map_ids(tree.as_fd(), namespace.as_fd())?;
    }
    Ok(tree)
}

fn inherited(mount: OwnedFd, is_directory: bool) -> Tree {
    Tree { place: Place::Mount(mount), is_directory }
}

fn by_path(path: &Path, is_directory: bool) -> Tree {
    Tree { place: Place::HostPath(path.as_os_str().as_bytes().to_owned()), is_directory }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A live socket beneath a volume is found by the kernel's own list.
    #[test]
    fn only_live_sockets_beneath_the_directory_are_found() {
        let directory = std::env::temp_dir().join(format!("tare-sockets-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        assert_eq!(live_socket_beneath(&directory), None);
        let path = directory.join("with blank.sock");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(live_socket_beneath(&directory), Some(path));
        drop(listener);
        fs::remove_dir_all(directory).unwrap();
    }
}
