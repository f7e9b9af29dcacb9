//! Proof that a process is the keeper of a box.
//!
//! All code that signals a process, or calls a box dead, uses [`find`]. A pid, a start time or a
//! command line proves nothing. These kernel objects do:
//!
//! | proof | relies on | from |
//! |---|---|---|
//! | pidfd inode | pidfs never reuses an inode within a boot | Linux 6.9 |
//! | cgroup inode | only the box's processes are in its cgroup; the PID 1 of a PID namespace among them is its keeper | Linux 6.1 |
//! | control socket | only the keeper listens on the socket in the box's 0700 record | Linux 6.1 |
//!
//! This file only reads. It never waits for a process if its caller only looks, never signals and never changes a record.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use tare_control::KEEPER_NAME;
use tare_kernel::cgroup::Cgroup;
use tare_kernel::fds::peer_pid;
use tare_kernel::process::Process;
use tare_kernel::program;

use crate::holdings::cgroup;
use crate::host::layout::{self, BoxAt};
use crate::host::processes::{all_pids, keeper_candidates};
use crate::record::Record;
use crate::record::lines::KeeperLine;

/// What is known about the keeper of a box.
#[derive(Debug)]
pub enum KeeperState {
    /// The record names no keeper, and none was found. The box is being created, or its creator
    /// died before it sent the go; a keeper without a go exits by itself.
    NotRecorded,
    /// The keeper runs. Signal it through this pidfd.
    Alive(Keeper),
    /// The keeper is proven to be gone.
    Dead,
    /// The keeper may run, but cannot be inspected from here: its PID namespace is not visible,
    /// or the kernel could not answer (no descriptor left). Callers never treat this as dead.
    Unknown { why: String },
}

/// A process that is proven to be the box's keeper.
#[derive(Debug)]
pub struct Keeper {
    pub process: Process,
    pub proof: Proof,
}

/// The kernel object that identified the keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    PidfdInode,
    CgroupInode,
    ControlSocket,
}

impl KeeperState {
    /// The keeper, if it is alive.
    pub fn alive(&self) -> Option<&Process> {
        match self {
            Self::Alive(keeper) => Some(&keeper.process),
            Self::NotRecorded | Self::Dead | Self::Unknown { .. } => None,
        }
    }

    /// The keeper, if it is alive.
    pub fn into_alive(self) -> Option<Process> {
        match self {
            Self::Alive(keeper) => Some(keeper.process),
            Self::NotRecorded | Self::Dead | Self::Unknown { .. } => None,
        }
    }
}

/// Finds the keeper of a box that has a record.
///
/// If the recorded objects do not prove that the keeper runs, this function also tries the box's
/// own socket: a box that answers is not dead, even if a damaged or copied record says so. Only a
/// caller that acts on the answer waits for the socket, [`CONNECT_WITHIN`] at most.
pub fn find(at: BoxAt<'_>, record: &Record, within: Duration) -> KeeperState {
    let (checked, otherwise) = match record.lines.keeper.as_ref() {
        Some(identity) => (check(at, record, identity), KeeperState::Dead),
        None => (Ok(None), KeeperState::NotRecorded),
    };
    match checked {
        Ok(Some(keeper)) => KeeperState::Alive(keeper),
        Ok(None) => by_socket(at, record, within).unwrap_or(otherwise),
        Err(error) => by_socket(at, record, within)
            .unwrap_or_else(|| KeeperState::Unknown { why: error.to_string() }),
    }
}

/// Finds the keeper of a box whose record does not name it, among these processes.
///
/// A keeper's name alone is only a hint. The process must also be PID 1 of a PID namespace below
/// ours and run a tare binary, in whatever version.
pub fn find_unrecorded(at: BoxAt<'_>, pids: impl IntoIterator<Item = i32>) -> Option<Process> {
    let opened = pids.into_iter().filter_map(|pid| Process::open(pid).ok());
    let is_alive = |process: &Process| matches!(process.wait_dead(Duration::ZERO), Ok(false));
    opened.into_iter().find(|process| is_keeper_of(process, at) && is_alive(process))
}

/// Finds the keeper of a box whose record does not name it, among all processes of the host. Without
/// a cgroup, only the arguments of a process tell which box it belongs to.
pub fn find_anywhere(at: BoxAt<'_>) -> Option<Process> {
    let candidates = keeper_candidates(&all_pids(), at.root.layout.tag()).into_iter();
    find_unrecorded(at, candidates.filter(|(id, _)| id == at.id).map(|(_, pid)| pid))
}

/// Compares the recorded kernel objects with the process that has the recorded pid now.
///
/// Opening the pidfd first pins the pid. If the process is still alive after a read of
/// `/proc/PID`, the data read was its own. An error, such as EMFILE, proves nothing.
fn check(at: BoxAt<'_>, record: &Record, identity: &KeeperLine) -> io::Result<Option<Keeper>> {
    // A record of another boot names a dead process.
    if identity.boot_id != at.root.host.boot_id {
        return Ok(None);
    }
    let Some(process) = open_process(identity.pid)? else {
        return Ok(None);
    };
    let (matches, proof) = match (identity.pidfd_inode, identity.cgroup_inode) {
        // Every keeper is the first of its namespace. A record that was edited may have the inode
        // of another process.
        (Some(recorded), _) => (
            process.inode()? == Some(recorded) && process.is_first_of_namespace()?,
            Proof::PidfdInode,
        ),
        (None, Some(recorded)) => {
            let parent = cgroup::parents_of(at, record).unified;
            (is_first_in_cgroup(at, parent.as_deref(), &process, recorded)?, Proof::CgroupInode)
        }
        // Before Linux 6.9 and without a cgroup, only the box's socket is a proof.
        (None, None) => return Ok(None),
    };
    let is_alive = matches && !process.wait_dead(Duration::ZERO)?;
    Ok(is_alive.then_some(Keeper { process, proof }))
}

/// Opens the process that has this pid. Returns `None` if there is no such process.
fn open_process(pid: i32) -> io::Result<Option<Process>> {
    match Process::open(pid) {
        Ok(process) => Ok(Some(process)),
        // What pidfd_open(2) says of a number that no process has.
        Err(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::SRCH | Errno::INVAL | Errno::NOENT) | None => Ok(None),
            Some(_) => Err(error),
        },
    }
}

/// Returns whether the process is PID 1 of its PID namespace and in the box's own cgroup.
///
/// The cgroup's path is derived from the box id, and the directory must have the recorded inode.
/// A directory with the same name that was created later proves nothing.
fn is_first_in_cgroup(
    at: BoxAt<'_>,
    parent: Option<&Path>,
    process: &Process,
    recorded: u64,
) -> io::Result<bool> {
    let Some(root) = parent else {
        return Ok(false);
    };
    let cgroup = match Cgroup::open(&layout::cgroup(root, at.tagged_id())) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        cgroup => cgroup?,
    };
    let members = cgroup.read("cgroup.procs")?;
    let pid = process.pid().to_string();
    Ok(cgroup.inode()? == recorded
        && members.lines().any(|member| member == pid)
        && process.is_first_of_namespace()?)
}

/// Identifies the process that listens on the socket in the box's record. Returns `None` if no
/// keeper listens.
///
/// The kernel records the listener's credentials at `listen` (unix(7)), and the keeper itself
/// calls `listen`. The process that has this pid now must be the keeper of this very box, so a
/// reused pid proves nothing.
fn by_socket(at: BoxAt<'_>, record: &Record, within: Duration) -> Option<KeeperState> {
    let unknown = |why: &dyn std::fmt::Display| KeeperState::Unknown { why: why.to_string() };
    let connection = match record.connect(within) {
        Ok(connection) => connection,
        Err(error) if is_shortage(&error) => return Some(unknown(&error)),
        // The socket file is missing, or its listener is dead.
        Err(_) => return None,
    };
    let process = match peer_pid(connection.as_fd()) {
        Ok(0) => {
            return Some(unknown(&"its keeper is in a PID namespace that is not visible here"));
        }
        Ok(pid) => open_process(pid),
        Err(error) => Err(error),
    };
    match process {
        // Another program may have bound the name.
        Ok(process) => process
            .filter(|process| is_keeper_of(process, at))
            .map(|process| KeeperState::Alive(Keeper { process, proof: Proof::ControlSocket })),
        Err(error) => Some(unknown(&error)),
    }
}

/// How long a caller that acts waits for a connection to a keeper. A keeper that is stopped and has a
/// full backlog does not accept.
pub const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Returns whether a call failed for want of something on our side, which says nothing about the
/// process that it was about. `EAGAIN` of a connection means that its listener lives, and has not
/// accepted in time.
fn is_shortage(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS | Errno::AGAIN))
}

/// Returns whether the process is what only the keeper of this box is: PID 1 of a PID namespace
/// that runs tare's program under a keeper's name, with the box last in its arguments. Any process
/// can choose such arguments, but not tare's program.
fn is_keeper_of(process: &Process, at: BoxAt<'_>) -> bool {
    let named = process.arguments().is_ok_and(|arguments| has_keeper_arguments(&arguments, at));
    named && process.is_first_of_namespace().unwrap_or(false) && may_be_tare(process)
}

fn has_keeper_arguments(arguments: &[String], at: BoxAt<'_>) -> bool {
    let last = [at.root.layout.tag().as_str(), at.id.as_str()];
    let first = arguments.first().map(String::as_bytes);
    first == Some(KEEPER_NAME.to_bytes()) && arguments.ends_with(&last.map(str::to_owned))
}

/// A keeper is not dumpable, so without privileges the kernel does not show its program. It shows
/// the program of every other process of the same user.
fn may_be_tare(process: &Process) -> bool {
    match program::is_tare(process) {
        Ok(is_tare) => is_tare,
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
    }
}
