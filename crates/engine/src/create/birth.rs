//! Starts a keeper: a process that waits for its go in its cgroup and namespaces, with its descriptors
//! and its id maps.
//!
//! [`BirthOrder`] contains every decision. This file reads neither specs nor records.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::fs::CWD;
use tare_control::{Channel, KEEPER_NAME};
use tare_kernel::fds::open_path;
use tare_kernel::idmap::{Extent, SetGroups, write_maps};
use tare_kernel::mount::{self, Attributes, NOSUID_NODEV, Reach};
use tare_kernel::process::Process;
use tare_kernel::spawn::{Child, Namespaces, Privilege, SpawnOrder, WaitingChild, spawn};
use tare_kernel::step::step;

use crate::create::endow::Endowment;
use crate::error::{Context, Error};
use crate::holdings::uids;
use crate::host::Host;
use crate::host::obstacle::{FailedStep, explained};
use crate::host::tag::TaggedId;

/// The keeper to start.
#[derive(Debug)]
pub struct BirthOrder<'a> {
    pub namespaces: Namespaces,
    /// The cgroup v2 directory that it starts in.
    pub cgroup: Option<BorrowedFd<'a>>,
    /// The `tasks` files of cgroup v1 directories, which it joins.
    pub tasks: &'a [OwnedFd],
    /// Its descriptors 0, 1 and 2.
    pub stdio: [BorrowedFd<'a>; 3],
    pub endowment: &'a Endowment<'a>,
    /// The record, which the child keeps locked until it executes or dies. On a host without cgroups
    /// this lock is the only sign of a child that has not become a keeper yet.
    pub record: BorrowedFd<'a>,
    pub map: IdMap,
    /// The box, whose id is the last of the keeper's arguments.
    pub of: TaggedId<'a>,
}

impl<'a> BirthOrder<'a> {
    /// Returns its descriptors, in the order of their numbers. `link` is its end of its socket.
    pub fn descriptors(&self, link: BorrowedFd<'a>) -> Vec<BorrowedFd<'a>> {
        let mut descriptors = Vec::with_capacity(16);
        descriptors.extend(self.stdio);
        descriptors.push(link);
        descriptors.extend(self.endowment.fds());
        descriptors
    }
}

/// A keeper that waits for its go, with our end of its socket.
#[derive(Debug)]
pub struct WaitingKeeper {
    pub child: WaitingChild,
    pub link: Channel,
}

/// Why the box could not be made, and the keeper if one was started. The keeper is a child of this
/// process, and no other process can reap it.
#[derive(Debug)]
pub struct CreateFailed {
    pub error: Error,
    pub child: Option<Child>,
}

impl From<Error> for CreateFailed {
    fn from(error: Error) -> Self {
        Self { error, child: None }
    }
}

/// The ids of the host that the box's ids are mapped to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdMap {
    /// The same ids: the box has no user namespace.
    Host,
    /// A whole range that no other box has.
    Range { first: u32 },
    /// The caller's own ids, under the numbers of the box's user.
    Single { uid: u32, gid: u32 },
}

impl IdMap {
    /// Returns the host's id of the box's user 0, if it belongs to this box alone.
    pub fn first_uid(self) -> Option<u32> {
        match self {
            Self::Range { first } => Some(first),
            Self::Host | Self::Single { .. } => None,
        }
    }
}

/// Starts the keeper. It waits for its go.
pub fn spawn_keeper(host: &Host, order: &BirthOrder<'_>) -> Result<WaitingKeeper, CreateFailed> {
    let (ours, theirs) = step("make the keeper's socket", UnixStream::pair)
        .context(|| "cannot make a control socket".into())?;
    let program = program(host, order.map)
        .context(|| "cannot open the keeper's program".into())
        .map_err(|error| explained(error, FailedStep::Keeper))?;
    let descriptors = order.descriptors(theirs.as_fd());
    let arguments = arguments(order.of);
    let arguments: Vec<&CStr> = arguments.iter().map(CString::as_c_str).collect();
    let tasks: Vec<BorrowedFd<'_>> = order.tasks.iter().map(AsFd::as_fd).collect();
    let spawned = SpawnOrder {
        namespaces: order.namespaces,
        cgroup: order.cgroup,
        tasks: &tasks,
        executable: program,
        arguments: &arguments,
        descriptors: &descriptors,
        guard: Some(order.record),
        privilege: match order.map {
            IdMap::Host => Privilege::Unchanged,
            IdMap::Range { first } => Privilege::BecomeRoot { owner: first },
            IdMap::Single { .. } => Privilege::Ambient,
        },
    };
    let child = spawn(spawned)
        .context(|| "cannot start the box's keeper in new namespaces".into())
        .map_err(|error| explained(error, FailedStep::Keeper))?;
    match write_id_maps(host, order.map, child.process()) {
        Ok(()) => Ok(WaitingKeeper { child, link: Channel::new(ours.into()) }),
        Err(error) => {
            let error = Error::failed("cannot map the box's user ids").caused_by(error);
            let error = explained(error, FailedStep::IdMap);
            Err(CreateFailed { error, child: Some(child.abandon()) })
        }
    }
}

/// Opens the keeper's program: this binary. A box could reach it only through `/proc/1/exe`, which is
/// closed to it, because PID 1 has another user, is not dumpable and is invisible. A box with ids of
/// its own could not write it either. Without them, the program is also on a read-only mount of its own,
/// if tare may make mounts. Others do without it, because the kernel waits for a grace period of RCU
/// when it takes a detached mount apart.
pub fn program(host: &Host, map: IdMap) -> io::Result<OwnedFd> {
    let opened = step("open the keeper's program", || open_path(CWD, c"/proc/self/exe"))?;
    if map != IdMap::Host || !host.is_privileged() {
        return Ok(opened);
    }
    let alone = mount::detached_copy(opened.as_fd(), c"", Reach::One)?;
    let attributes = NOSUID_NODEV | Attributes::MOUNT_ATTR_RDONLY;
    mount::add_attributes(alone.as_fd(), attributes, Reach::One)?;
    Ok(alone)
}

/// Returns the keeper's arguments. They contain the tag of the state root and the id of the box, by
/// which tare finds keepers without a record.
pub fn arguments(of: TaggedId<'_>) -> [CString; 3] {
    let of = [of.tag.as_str(), of.id.as_str()];
    let [tag, id] = of.map(|word| CString::new(word).expect("neither has a NUL"));
    [CString::from(KEEPER_NAME), tag, id]
}

pub fn write_id_maps(host: &Host, map: IdMap, child: &Process) -> io::Result<()> {
    let one = |inside: u32, outside: u32| Extent { inside, outside, count: 1 };
    match map {
        IdMap::Host => Ok(()),
        IdMap::Range { first } => {
            let range = Extent { inside: 0, outside: first, count: uids::COUNT };
            write_maps(child, range, range, SetGroups::Allowed)
        }
        IdMap::Single { uid, gid } => {
            let (uids, gids) = (one(uid, host.uid), one(gid, host.gid));
            write_maps(child, uids, gids, SetGroups::Denied)
        }
    }
}
