//! Cgroup hierarchies, and one directory in them: create, read, write, kill, remove.
//!
//! A cgroup directory outlives this process, so callers pass only paths that they derived
//! from an id. A directory counts as a cgroup if its file system says so: on hybrid hosts
//! `/sys/fs/cgroup` is a writable tmpfs, where `mkdir` succeeds and makes no cgroup.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, chownat, fchmod, fstatfs, mkdirat, openat, statat, unlinkat,
};
use rustix::io::Errno;

use crate::fds::{open_directory, open_file, read_list, read_text};
use crate::process::Process;
use crate::step::step;
use crate::tree::subdirectories;

/// `statfs` magic of cgroup v2.
const CGROUP2_MAGIC: u64 = 0x6367_7270;
/// `statfs` magic of cgroup v1.
const CGROUP1_MAGIC: u64 = 0x0027_e0eb;

/// A mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    pub mount: PathBuf,
    /// The cgroup that the mount shows. In a container it is not the first one.
    pub root: PathBuf,
    /// The controllers of a v1 hierarchy. Empty for v2, where each directory has its own.
    pub controllers: Vec<String>,
    pub version: Version,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    V1,
    V2,
}

/// Returns the version of the hierarchy that a directory is in, if it is in one.
pub fn version_at(directory: &Path) -> Option<Version> {
    version(rustix::fs::statfs(directory).ok()?.f_type as u64)
}

fn version(magic: u64) -> Option<Version> {
    match magic {
        CGROUP2_MAGIC => Some(Version::V2),
        CGROUP1_MAGIC => Some(Version::V1),
        _ => None,
    }
}

/// Returns all cgroup hierarchies in the text of a `mountinfo`.
pub fn hierarchies(mountinfo: &str) -> Vec<Hierarchy> {
    mountinfo.lines().filter_map(hierarchy).collect()
}

fn hierarchy(line: &str) -> Option<Hierarchy> {
    let (mount_part, fs_part) = line.split_once(" - ")?;
    let mut places = mount_part.split(' ').skip(3);
    let root = PathBuf::from(unescape(places.next()?));
    let mount = PathBuf::from(unescape(places.next()?));
    let mut fields = fs_part.split(' ');
    let kind = fields.next()?;
    let options = fields.nth(1).unwrap_or_default();
    match kind {
        "cgroup2" => Some(Hierarchy { mount, root, controllers: Vec::new(), version: Version::V2 }),
        "cgroup" => Some(Hierarchy {
            mount,
            root,
            controllers: options.split(',').map(str::to_owned).collect(),
            version: Version::V1,
        }),
        _ => None,
    }
}

/// `mountinfo` has blanks and backslashes in octal (proc_pid_mountinfo(5)).
fn unescape(field: &str) -> String {
    field.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
}

/// An open cgroup directory.
#[derive(Debug)]
pub struct Cgroup {
    directory: OwnedFd,
}

impl Cgroup {
    /// Makes the directory, which must not exist.
    pub fn create(path: &Path) -> io::Result<Self> {
        step("make cgroup", || mkdirat(CWD, path, Mode::from_raw_mode(0o755)))?;
        Self::open(path)
    }

    /// Opens a directory, and fails if it is not a cgroup.
    pub fn open(path: &Path) -> io::Result<Self> {
        let directory = step("open cgroup", || open_directory(CWD, path))?;
        match version(fstatfs(&directory)?.f_type as u64) {
            Some(_) => Ok(Self { directory }),
            None => Err(io::Error::other("not a cgroup file system")),
        }
    }

    /// Makes a v2 directory below this one, and lets `uid` freeze it and move processes from
    /// here to there. The kernel requires the right to write both `cgroup.procs` files
    /// (cgroup-v2.rst, "Delegation").
    pub fn make_below(&self, name: &str, uid: Option<u32>) -> io::Result<Self> {
        let mode = Mode::from_raw_mode(0o755);
        step("make cgroup below", || mkdirat(&self.directory, name, mode))?;
        let open = || open_directory(&self.directory, name);
        let below = Self { directory: step("open cgroup below", open)? };
        if let Some(uid) = uid {
            let uid = Some(rustix::fs::Uid::from_raw(uid));
            for (directory, file) in [
                (&self.directory, "cgroup.procs"),
                (&below.directory, "cgroup.procs"),
                (&below.directory, "cgroup.freeze"),
            ] {
                let chown = || chownat(directory, file, uid, None, AtFlags::empty());
                step("give cgroup file away", chown)?;
            }
            // Our umask may have kept the user from reaching these files.
            step("open cgroup below up", || fchmod(&below.directory, mode))?;
        }
        Ok(below)
    }

    /// Lets `uid` put new processes into this v2 directory (`CLONE_INTO_CGROUP`). The kernel also
    /// requires the right to do so in the closest directory above this one and the user's own.
    pub fn let_enter(&self, uid: u32) -> io::Result<()> {
        let uid = Some(rustix::fs::Uid::from_raw(uid));
        let chown = || chownat(&self.directory, "cgroup.procs", uid, None, AtFlags::empty());
        Ok(step("let a user enter a cgroup", chown)?)
    }

    /// Returns the user that may put processes into this directory.
    pub fn may_enter(&self) -> io::Result<u32> {
        Ok(statat(&self.directory, "cgroup.procs", AtFlags::empty())?.st_uid)
    }

    /// Tells the kernel to freeze or continue every process here and below. Does not wait.
    pub fn freeze(&self, frozen: bool) -> io::Result<()> {
        self.write("cgroup.freeze", if frozen { "1" } else { "0" })
    }

    /// Returns whether every process here and below is frozen.
    pub fn is_frozen(&self) -> io::Result<bool> {
        Ok(self.read_key("cgroup.events", "frozen")? == Some(1))
    }

    /// The inode, which is the kernel's id of a v2 cgroup.
    pub fn inode(&self) -> io::Result<u64> {
        Ok(rustix::fs::fstat(&self.directory)?.st_ino)
    }

    pub fn write(&self, file: &str, value: &str) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        step("write cgroup file", || {
            let fd = openat(&self.directory, file, flags, Mode::empty())?;
            rustix::io::write(&fd, value.as_bytes()).map(drop)
        })
        .map_err(io::Error::from)
    }

    /// Reads a small file.
    pub fn read(&self, file: &str) -> io::Result<String> {
        let fd = step("open cgroup file", || open_file(&self.directory, file))?;
        read_text(fd.as_fd())
    }

    /// Reads the number of a key in a flat keyed file such as `cgroup.events`.
    pub fn read_key(&self, file: &str, key: &str) -> io::Result<Option<u64>> {
        Ok(keyed_number(&self.read(file)?, key))
    }

    /// Opens the v1 `tasks` file, in which a single thread can enter itself.
    pub fn tasks(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let open = || openat(&self.directory, "tasks", flags, Mode::empty());
        Ok(step("open cgroup tasks", open)?)
    }

    /// Returns whether a process that is not a zombie is in it or below it.
    pub fn is_populated(&self) -> io::Result<bool> {
        Ok(self.read_key("cgroup.events", "populated")? == Some(1))
    }

    /// Sends SIGKILL to the processes in it and below. The kernel misses a process whose main
    /// thread has exited, so do not rely on this alone.
    pub fn kill(&self) -> io::Result<()> {
        self.write("cgroup.kill", "1")
    }
}

impl AsFd for Cgroup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// Returns the number of a key in the text of a flat keyed file.
pub fn keyed_number(text: &str, key: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))
        .and_then(|value| value.trim().parse().ok())
}

/// Pause between two checks of a cgroup that is not empty yet. The kernel's notification
/// comes 13 ms late for short-lived boxes.
const LOOK_AGAIN: Duration = Duration::from_micros(200);
/// How long `cgroup.kill` gets before survivors are killed one by one.
const ESCALATE_AFTER: Duration = Duration::from_millis(20);

/// Kills all processes in a v2 cgroup, and waits until it is empty. Returns `false` if the
/// bound passed first. Needs one descriptor at a time and no fork.
pub fn kill_until_empty(cgroup: &Cgroup, bound: Duration) -> io::Result<bool> {
    if !cgroup.is_populated()? {
        return Ok(true);
    }
    cgroup.kill()?;
    let start = Instant::now();
    while cgroup.is_populated()? {
        if start.elapsed() > bound {
            return Ok(false);
        }
        if start.elapsed() > ESCALATE_AFTER {
            kill_members(cgroup)?;
        }
        #[expect(clippy::disallowed_methods, reason = "bounded by `bound`")]
        std::thread::sleep(LOOK_AGAIN);
    }
    Ok(true)
}

/// Sends SIGKILL to each process in a cgroup and below: `cgroup.kill` misses some.
fn kill_members(cgroup: &Cgroup) -> io::Result<()> {
    kill_direct_members(cgroup.as_fd())?;
    let top = cgroup.directory.try_clone()?;
    walk_below(top, kill_direct_members, |_, _| Ok(()))
}

fn kill_direct_members(directory: BorrowedFd<'_>) -> io::Result<()> {
    let members = || read_list(open_file(directory, c"cgroup.procs")?.as_fd());
    let listed = members().unwrap_or_default();
    for pid in listed.lines().filter_map(|line| line.parse::<i32>().ok()) {
        let Ok(process) = Process::open(pid) else {
            continue;
        };
        // The pidfd pins the pid: if the pid is still listed, this process is a member.
        if members()?.lines().any(|line| line.parse() == Ok(pid)) {
            process.kill()?;
        }
    }
    Ok(())
}

/// Removes an empty cgroup directory, and those that a box made below it. Succeeds if it
/// does not exist.
pub fn remove(path: &Path) -> io::Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    let remove = || unlinkat(CWD, &name, AtFlags::REMOVEDIR);
    match step("remove cgroup", remove) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        // The kernel fails before it looks for the name (`mnt_want_write`).
        Err(Errno::ROFS) if is_absent(CWD, &name) => return Ok(()),
        Err(Errno::BUSY) => {}
        Err(errno) => return Err(errno.into()),
    }
    let top = open_directory(CWD, &name)?;
    walk_below(
        top,
        |_| Ok(()),
        |parent, name| {
            let remove = || unlinkat(parent, name, AtFlags::REMOVEDIR);
            match step("remove cgroup below", remove) {
                Ok(()) | Err(Errno::NOENT) => Ok(()),
                Err(errno) => Err(errno.into()),
            }
        },
    )?;
    Ok(step("remove emptied cgroup", remove)?)
}

/// Walks all directories below `top`. Calls `enter` with each directory before those below
/// it, and `leave` with its parent and its name after them.
///
/// A box decides how deep the tree is. So the walk has one directory open at a time, and
/// returns to the parent by `..`: a cgroup never moves to another parent.
fn walk_below(
    top: OwnedFd,
    mut enter: impl FnMut(BorrowedFd<'_>) -> io::Result<()>,
    mut leave: impl FnMut(BorrowedFd<'_>, &CStr) -> io::Result<()>,
) -> io::Result<()> {
    let mut current = top;
    let mut siblings = subdirectories(current.as_fd())?;
    let mut above: Vec<(CString, Vec<CString>)> = Vec::new();
    loop {
        if let Some(name) = siblings.pop() {
            let below = match open_directory(current.as_fd(), &name) {
                Ok(below) => below,
                // It was removed since it was listed.
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(errno.into()),
            };
            enter(below.as_fd())?;
            let names = subdirectories(below.as_fd())?;
            current = below;
            above.push((name, std::mem::replace(&mut siblings, names)));
        } else {
            let Some((name, rest)) = above.pop() else {
                return Ok(());
            };
            current = open_directory(current.as_fd(), c"..")?;
            leave(current.as_fd(), &name)?;
            siblings = rest;
        }
    }
}

fn is_absent(parent: BorrowedFd<'_>, name: &CStr) -> bool {
    let found = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
    found.is_err_and(|errno| errno == Errno::NOENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hybrid_host_has_its_v1_controllers_and_a_v2_hierarchy() {
        let found = hierarchies(
            "30 20 0:26 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
             31 20 0:27 /part /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw\n\
             32 20 0:28 / /with\\040blank rw shared:3 - tmpfs tmpfs rw\n",
        );
        assert_eq!(found.len(), 2);
        assert!(found[0].controllers.contains(&"cpu".to_owned()));
        assert_eq!(found[1].version, Version::V2);
        assert_eq!(found[1].root, Path::new("/part"));
    }

    #[test]
    fn a_key_is_matched_whole() {
        assert_eq!(keyed_number("oom_kill 3\noom 1\n", "oom"), Some(1));
        assert_eq!(keyed_number("populated 1\nfrozen 0\n", "popul"), None);
    }

    /// `mkdir` succeeds on a tmpfs, but makes no cgroup.
    #[test]
    fn a_directory_of_another_file_system_is_refused() {
        assert!(Cgroup::open(Path::new("/tmp")).is_err());
    }
}
