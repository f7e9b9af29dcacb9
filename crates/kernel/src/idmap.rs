//! User namespaces: their id maps, and namespaces that exist only to carry one.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, openat};

use crate::process::Process;
use crate::step::{once, step};

/// `count` ids from `inside` on are `outside` on in the parent namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub inside: u32,
    pub outside: u32,
    pub count: u32,
}

impl Extent {
    fn line(self) -> String {
        format!("{} {} {}\n", self.inside, self.outside, self.count)
    }
}

/// Whether the namespace may use `setgroups`; an unprivileged writer of a map
/// has to give it up first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetGroups {
    Allowed,
    Denied,
}

/// Writes the maps of an unreaped child's new user namespace. The directory is proven to
/// be the child's: a map that another process got would change who that process is.
pub fn write_maps(
    child: &Process,
    uids: Extent,
    gids: Extent,
    groups: SetGroups,
) -> io::Result<()> {
    let directory = child.proc_directory()?;
    let write = |name: &str, text: &str| -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        step("id map written", || {
            let file = openat(&directory, name, flags, Mode::empty())?;
            File::from(file).write_all(text.as_bytes())
        })
    };
    if groups == SetGroups::Denied {
        write("setgroups", "deny")?;
    }
    write("uid_map", &uids.line())?;
    write("gid_map", &gids.line())
}

/// Whether this process is in the first user namespace of the host, by the inode that the
/// kernel gives to no other (`PROC_USER_INIT_INO`). The id map does not tell: another
/// namespace can map every id to itself, as those of systemd's `PrivateUsers=full` do.
pub fn is_in_first_user_namespace() -> bool {
    const PROC_USER_INIT_INO: u64 = 0xEFFF_FFFD;
    rustix::fs::stat(c"/proc/self/ns/user").is_ok_and(|it| it.st_ino == PROC_USER_INIT_INO)
}

/// A user namespace that nobody lives in, to hang an id-mapped mount on. It
/// lives as long as the descriptor or the mount.
pub fn carrier(uids: Extent, gids: Extent) -> io::Result<OwnedFd> {
    let child = once("carrier of a map born", paused_child)?;
    let made = write_maps(&child, uids, gids, SetGroups::Allowed).and_then(|()| {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let directory = child.proc_directory()?;
        Ok(openat(directory, c"ns/user", flags, Mode::empty())?)
    });
    child.kill()?;
    while !child.wait_dead(std::time::Duration::from_secs(1))? {}
    child.reap()?;
    made
}

/// A child in a new user namespace that does nothing until it is killed. It is
/// in no box: it dies here, a few lines above.
fn paused_child() -> io::Result<Process> {
    let mut pidfd: i32 = -1;
    let parent = rustix::process::getpid();
    let arguments = libc::clone_args {
        flags: (libc::CLONE_NEWUSER | libc::CLONE_PIDFD) as u64,
        pidfd: &raw mut pidfd as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..zeroed_clone_args()
    };
    // SAFETY: without CLONE_VM and without a stack this is a fork: the child
    // goes on here with a copy of everything.
    let pid = unsafe {
        libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<libc::clone_args>())
    };
    match pid {
        0 => pause_until_killed(parent),
        pid if pid > 0 => {
            // SAFETY: clone3 stored a new descriptor here that nobody else owns.
            let pidfd = unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(pidfd) };
            Ok(Process::from_child(pidfd, pid as i32))
        }
        _ => Err(io::Error::last_os_error()),
    }
}

fn zeroed_clone_args() -> libc::clone_args {
    libc::clone_args {
        flags: 0,
        pidfd: 0,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: 0,
        stack: 0,
        stack_size: 0,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: 0,
    }
}

fn pause_until_killed(parent: rustix::process::Pid) -> ! {
    // If the parent is killed first, so are we; if it was already, getppid says so:
    // then it is whoever takes orphans in, which need not be the first process (this
    // child is in its parent's PID namespace).
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).ok();
    let orphaned = rustix::process::getppid() != Some(parent);
    loop {
        if orphaned {
            // SAFETY: ends this process at once, running no destructor.
            unsafe { libc::_exit(0) };
        }
        rustix::event::pause();
    }
}
