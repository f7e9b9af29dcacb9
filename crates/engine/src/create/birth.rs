//! The keeper's birth: everything between a plan and a process that has it.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::fs::{CWD, Mode, OFlags, openat};
use tare_control::{Channel, KEEPER_NAME, PLAN_BYTES_MAX, Plan, encode};
use tare_kernel::cgroup::Cgroup;
use tare_kernel::idmap::{Extent, SetGroups, write_maps};
use tare_kernel::mount::{self, Attributes, NOSUID_NODEV, Reach};
use tare_kernel::spawn::{Child, Namespaces, Privilege, SpawnOrder, WaitingChild, spawn};
use tare_kernel::step::step;

use crate::error::{Context, Error};
use crate::holdings::uids;
use crate::host::Host;
use crate::host::obstacle::{Step, explained};
use crate::host::tag::Tagged;
use crate::spec::{Isolation, Spec};

/// What the keeper gets at birth besides its control socket.
#[derive(Debug)]
pub struct Inheritance<'a> {
    pub stdio: [BorrowedFd<'a>; 3],
    pub claim: BorrowedFd<'a>,
    /// The box's own socket.
    pub socket: BorrowedFd<'a>,
    /// The locked record. Without cgroups nothing else shows that a keeper is about to
    /// start, or to end because its creator was killed: until then the box is busy.
    pub record: BorrowedFd<'a>,
    /// What the plan speaks of, in its order.
    pub planned: Vec<BorrowedFd<'a>>,
    pub unified: Option<&'a Cgroup>,
    pub join: &'a [OwnedFd],
}

/// A keeper that waits for its go, with our end of its control socket.
#[derive(Debug)]
pub struct Waiting {
    pub newborn: WaitingChild,
    pub control: Channel,
}

/// Why there is no box, and the keeper that goes with it, if there is one: our
/// child, to be reaped by nobody but us.
#[derive(Debug)]
pub struct Unmade {
    pub error: Error,
    pub keeper: Option<Child>,
}

impl Unmade {
    pub fn with(error: Error, keeper: Child) -> Self {
        Self { error, keeper: Some(keeper) }
    }
}

impl From<Error> for Unmade {
    fn from(error: Error) -> Self {
        Self { error, keeper: None }
    }
}

/// Who the box's ids are on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdMap {
    /// No user namespace of its own.
    Host,
    /// A whole range of its own.
    Range { first: u32 },
    /// The caller's own id, under the number that the workload wants.
    Single { uid: u32, gid: u32 },
}

impl IdMap {
    /// The host's id of the box's user 0, if that is nobody else.
    pub fn first_uid(self) -> Option<u32> {
        match self {
            Self::Range { first } => Some(first),
            Self::Host | Self::Single { .. } => None,
        }
    }
}

/// Makes the keeper, in its cgroup and namespaces, with its ids mapped.
pub fn bear(
    spec: &Spec,
    of: Tagged<'_>,
    host: &Host,
    map: IdMap,
    inheritance: &Inheritance<'_>,
) -> Result<Waiting, Unmade> {
    let (control, theirs) = step("control socket made", UnixStream::pair)
        .context(|| "cannot make a control socket".into())?;
    let program = program(host)
        .context(|| "cannot open the keeper's program".into())
        .map_err(|error| explained(error, Step::Keeper))?;
    let [stdin, stdout, stderr] = inheritance.stdio;
    let mut descriptors = vec![stdin, stdout, stderr, theirs.as_fd()];
    descriptors.extend([inheritance.claim, inheritance.socket]);
    descriptors.extend(&inheritance.planned);
    let arguments = arguments(of);
    let arguments: Vec<&CStr> = arguments.iter().map(CString::as_c_str).collect();
    let join: Vec<BorrowedFd<'_>> = inheritance.join.iter().map(AsFd::as_fd).collect();
    let birth = SpawnOrder {
        namespaces: namespaces(spec, map),
        cgroup: inheritance.unified.map(AsFd::as_fd),
        tasks: &join,
        executable: program,
        arguments: &arguments,
        descriptors: &descriptors,
        guard: Some(inheritance.record),
        privilege: match map {
            IdMap::Host => Privilege::Unchanged,
            IdMap::Range { first } => Privilege::BecomeRoot { owner: first },
            IdMap::Single { .. } => Privilege::Ambient,
        },
    };
    let newborn = spawn(birth)
        .context(|| "cannot start the box's keeper in new namespaces".into())
        .map_err(|error| explained(error, Step::Keeper))?;
    match write_id_maps(host, map, &newborn).context(|| "cannot map the box's user ids".into()) {
        Ok(()) => Ok(Waiting { newborn, control: Channel::new(control.into()) }),
        Err(error) => {
            let error = explained(error, Step::IdMap);
            Err(Unmade::with(error, newborn.abandon()))
        }
    }
}

/// The keeper's program is this one, under another name. A box can only reach it
/// through `/proc/1/exe`, which is closed to it: PID 1 is another user, not
/// dumpable, and invisible. Where we may make mounts it is on one of its own
/// besides, which is read-only for everyone.
fn program(host: &Host) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let open = || openat(CWD, c"/proc/self/exe", flags, Mode::empty());
    let opened = step("keeper's program opened", open)?;
    if !host.is_privileged() {
        return Ok(opened);
    }
    let alone = mount::detached_copy(opened.as_fd(), c"", Reach::One)?;
    let attributes = NOSUID_NODEV | Attributes::MOUNT_ATTR_RDONLY;
    mount::add_attributes(alone.as_fd(), attributes, Reach::One)?;
    Ok(alone)
}

/// Last the tag of its state root and its box, for whoever looks at the host's
/// processes.
fn arguments(of: Tagged<'_>) -> Vec<CString> {
    let of = [of.tag.as_str(), of.id.as_str()];
    let of = of.map(|word| CString::new(word).expect("neither has a NUL"));
    [CString::from(KEEPER_NAME)].into_iter().chain(of).collect()
}

fn namespaces(spec: &Spec, map: IdMap) -> Namespaces {
    let base = Namespaces::PID.and(Namespaces::MOUNT).and(Namespaces::IPC);
    let user = match map {
        IdMap::Host => base,
        IdMap::Range { .. } | IdMap::Single { .. } => base.and(Namespaces::USER),
    };
    // The network namespace takes longest to make: the keeper has it made beside
    // the rest.
    match spec.isolation {
        Isolation::Contain => user,
        Isolation::Full => user.and(Namespaces::UTS),
    }
}

fn write_id_maps(host: &Host, map: IdMap, newborn: &WaitingChild) -> io::Result<()> {
    let one = |inside: u32, outside: u32| Extent { inside, outside, count: 1 };
    match map {
        IdMap::Host => Ok(()),
        IdMap::Range { first } => {
            let range = Extent { inside: 0, outside: first, count: uids::COUNT };
            write_maps(newborn.process(), range, range, SetGroups::Allowed)
        }
        IdMap::Single { uid, gid } => {
            let (uids, gids) = (one(uid, host.uid), one(gid, host.gid));
            write_maps(newborn.process(), uids, gids, SetGroups::Denied)
        }
    }
}

/// Hands the plan over; the keeper reads while we write. One that is gone has said
/// why, or its death will.
pub fn send_plan(control: &Channel, plan: &Plan) -> Result<(), Error> {
    let frame = encode(plan, PLAN_BYTES_MAX).map_err(|error| {
        Error::bad_request("the command and its environment are too large")
            .caused_by(error)
            .with_hint("pass large data through stdin or a volume")
    })?;
    unless_gone(control.send_frame(&frame, &[]))
        .context(|| "cannot hand the plan to the keeper".into())
}

/// What was sent to a keeper that is gone is no failure of ours.
pub fn unless_gone(sent: io::Result<()>) -> io::Result<()> {
    let is_gone = |kind| matches!(kind, io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset);
    match sent {
        Err(error) if is_gone(error.kind()) => Ok(()),
        other => other,
    }
}
