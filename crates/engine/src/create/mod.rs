//! Making a box, in named steps. What fails after the record exists goes through
//! the one way out.
//!
//! ```text
//! record ─▶ name ─▶ uid range ─▶ cgroups ─▶ scratch ─▶ trees ─▶ socket   (hold)
//!     ─▶ keeper ─▶ plan ─▶ identity on record ─▶ go ─▶ command           (bear)
//! ```

pub mod birth;
pub mod detach;
pub mod host_view;
pub mod plan;
pub mod seccomp;
pub mod trees;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use tare_control::{Channel, REQUEST_BYTES_MAX, Request};
use tare_kernel::cgroup::Cgroup;
use tare_kernel::clock::boot_ns;
use tare_kernel::spawn::Child;

use crate::care::tend;
use crate::create::birth::{IdMap, Inheritance, Unmade, Waiting};
use crate::create::plan::Trees;
use crate::create::trees::{Mapping, Tree};
use crate::engine::Engine;
use crate::error::{Context, Error};
use crate::holdings::cgroup::{self, CgroupHolding, WorkloadCgroup};
use crate::holdings::uids::UidRange;
use crate::holdings::{name, scratch, uids};
use crate::host::obstacle::{Step, explained};
use crate::record::Locked;
use crate::record::files::DetachedFiles;
use crate::record::lines::{KeeperIdentity, Lease};
use crate::session::stdio::{Owner, Stdin, Stdio, Streams};
use crate::session::{OwnedBox, Reserve, Session};
use crate::spec::{BoxId, DetachOptions, Isolation, Limit, Network, Spec, Terminal, quantity};
use crate::teardown::roll_back;

/// Who has the other ends of the command's standard streams.
#[derive(Debug, Clone, Copy)]
pub enum Ends<'a> {
    /// Whoever runs the box, and stays with it.
    Callers(Stdin),
    /// The keeper, of a box that is left to itself.
    Keepers(&'a DetachOptions),
}

impl<'a> Ends<'a> {
    fn options(&self) -> Option<&'a DetachOptions> {
        match self {
            Self::Callers(_) => None,
            Self::Keepers(options) => Some(options),
        }
    }
}

/// What a box is made of, before there is anybody in it.
#[derive(Debug)]
struct Held {
    range: UidRange,
    map: IdMap,
    cgroups: CgroupHolding,
    trees: Trees,
    stdio: Stdio,
    socket: OwnedFd,
    files: Option<DetachedFiles>,
}

/// Everything of a box that runs.
#[derive(Debug)]
pub struct Made {
    pub keeper: Child,
    pub control: Channel,
    pub cgroups: CgroupHolding,
    /// Held until the box was seen gone: its uids are not reused before.
    pub _claim: OwnedFd,
    pub streams: Streams,
    /// Of its uid range, if it has one.
    pub first_uid: Option<u32>,
    /// On the boot clock, as the keeper knows it.
    pub deadline_ns: Option<u64>,
    pub lease: Lease,
    pub notes: Vec<String>,
}

impl Made {
    /// The session of a box that stays with its creator.
    pub fn into_session(
        self,
        engine: &Engine,
        id: BoxId,
        record: Locked,
        reserve: Reserve,
        spec: &Spec,
    ) -> Session {
        let session = Session::new(id, self.control, self.streams, self.deadline_ns)
            .of_command(spec.command.first().cloned(), spec.workdir.clone());
        session.owning(OwnedBox {
            root: engine.root.clone(),
            record,
            keeper: self.keeper,
            cgroups: self.cgroups,
            _claim: self._claim,
            reserve: Some(reserve),
            notes: self.notes,
        })
    }
}

impl Engine {
    /// Makes the box; its command starts when the keeper's identity is on record.
    pub(crate) fn make(
        &self,
        spec: &Spec,
        ends: Ends<'_>,
        id: &BoxId,
        record: &mut Locked,
    ) -> Result<Made, Unmade> {
        let held = self.hold(spec, &ends, id, record)?;
        let made = self.bear(spec, &ends, id, record, held)?;
        if let Err(error) = self.commit(record, &made) {
            let error = explained(error, Step::StateRoot);
            return Err(Unmade::with(error, made.keeper));
        }
        // The keeper needs nothing of us for a while.
        self.cleaned();
        Ok(made)
    }

    /// Ends what could not be made whole, and returns why it could not. It may be
    /// others that are in its way. A failed roll-back is a note on that first error.
    pub(crate) fn unmake(&self, id: &BoxId, record: Locked, unmade: Unmade) -> Error {
        self.cleaned();
        let child = unmade.keeper.as_ref().map(|keeper| &keeper.process);
        roll_back(self.at(id), record, child, unmade.error)
    }

    fn hold(
        &self,
        spec: &Spec,
        ends: &Ends<'_>,
        id: &BoxId,
        record: &Locked,
    ) -> Result<Held, Error> {
        check_memory(spec)?;
        let in_state_root = |error| explained(error, Step::StateRoot);
        if let Some(wanted) = &spec.name {
            // A name of a box that nobody wants any more is free.
            tend::settle_name_owner(&self.root, wanted)?;
            name::acquire(&self.root.layout, wanted, id).map_err(in_state_root)?;
        }
        let range = uids::acquire(&self.root.layout).map_err(in_state_root)?;
        let map = self.id_map(spec, range.first);
        let tagged = self.at(id).tagged();
        let workload = workload_cgroup(ends);
        let keeper_uid = map.first_uid();
        let cgroups = cgroup::acquire(&self.root.host, tagged, &spec.limits, workload, keeper_uid)?;
        check_scratch(spec, &cgroups)?;
        let scratch = self.kept_scratch(spec, ends, id, record, map)?;
        Ok(Held {
            range,
            map,
            cgroups,
            trees: self.trees(spec, map, scratch)?,
            stdio: stdio(spec, ends, map)?,
            socket: record
                .bind_control()
                .context(|| format!("cannot make a socket for box {id}"))
                .map_err(in_state_root)?,
            files: detached_files(ends, record)?,
        })
    }

    /// From here on the box has a keeper, who builds it while the rest is done.
    fn bear(
        &self,
        spec: &Spec,
        ends: &Ends<'_>,
        id: &BoxId,
        record: &Locked,
        mut held: Held,
    ) -> Result<Made, Unmade> {
        let Waiting { newborn, control } = birth::bear(
            spec,
            self.at(id).tagged(),
            &self.root.host,
            held.map,
            &held.inheritance(record),
        )?;
        let keeper = newborn.go();
        held.cgroups.join.clear();
        let lease = Lease::of(ends.options().and_then(|options| options.lease));
        let detached = ends.options().map(|options| (options, lease));
        let plan = plan::plan(spec, id, &self.root.host, &held.cgroups, &held.trees, detached);
        if let Err(error) = birth::send_plan(&control, &plan) {
            return Err(Unmade::with(error, keeper));
        }
        Ok(Made {
            keeper,
            control,
            notes: self.notes(spec, &held.cgroups),
            cgroups: held.cgroups,
            _claim: held.range.claim,
            streams: held.stdio.ours,
            first_uid: held.map.first_uid(),
            deadline_ns: plan.deadline_ns,
            lease,
        })
    }

    /// The keeper makes its box meanwhile, which dies with it; the command
    /// starts only after its identity is on record.
    fn commit(&self, record: &mut Locked, made: &Made) -> Result<(), Error> {
        let doing = || "cannot record the keeper's identity".to_owned();
        let process = &made.keeper.process;
        let cgroup_inode = made.cgroups.unified.as_ref().map(Cgroup::inode);
        let identity = KeeperIdentity {
            boot_id: self.root.host.boot_id.clone(),
            pid: process.pid(),
            pidfd_inode: process.inode().context(doing)?,
            cgroup_inode: cgroup_inode.transpose().context(doing)?,
            first_uid: made.first_uid,
            lease: made.lease,
            at_ns: boot_ns(),
        };
        record.add_keeper(identity).context(doing)?;
        let go = made.control.send(&Request::Go, REQUEST_BYTES_MAX, &[]);
        birth::unless_gone(go).context(|| "cannot tell the keeper to go".into())
    }

    fn id_map(&self, spec: &Spec, first: u32) -> IdMap {
        match (spec.isolation, self.root.host.is_privileged()) {
            (Isolation::Full, true) => IdMap::Range { first },
            (Isolation::Contain, true) => IdMap::Host,
            (Isolation::Full, false) => IdMap::Single { uid: spec.user.uid, gid: spec.user.gid },
            (Isolation::Contain, false) => {
                IdMap::Single { uid: self.root.host.uid, gid: self.root.host.gid }
            }
        }
    }

    fn trees(&self, spec: &Spec, map: IdMap, scratch: Option<Tree>) -> Result<Trees, Error> {
        let mapping = match map {
            IdMap::Range { first } => Mapping::Range { first, user: spec.user },
            IdMap::Host | IdMap::Single { .. } => Mapping::Own,
        };
        let state_root = self.root.layout.root();
        let root = plan::wants_root_tree(spec).map(|path| trees::root(path, state_root, mapping));
        let volumes = spec.volumes.iter().map(|volume| trees::volume(volume, state_root, mapping));
        Ok(Trees { scratch, root: root.transpose()?, volumes: volumes.collect::<Result<_, _>>()? })
    }

    /// Containment has no scratch space of its own to keep.
    fn kept_scratch(
        &self,
        spec: &Spec,
        ends: &Ends<'_>,
        id: &BoxId,
        record: &Locked,
        map: IdMap,
    ) -> Result<Option<Tree>, Error> {
        let keep = ends.options().is_some_and(|options| options.keep);
        if !keep || spec.isolation == Isolation::Contain {
            return Ok(None);
        }
        let first_uid = map.first_uid();
        let record = AsFd::as_fd(&**record);
        let tree = scratch::acquire(&self.root.layout, record, id, &spec.limits, first_uid)?;
        Ok(Some(tree))
    }

    fn notes(&self, spec: &Spec, cgroups: &CgroupHolding) -> Vec<String> {
        let mut notes = Vec::new();
        if !cgroups.memory_enforced {
            notes.push(
                "no writable cgroup here: the default limits on memory and processes hold for \
                 each process and user, not for the box as a whole"
                    .to_owned(),
            );
        }
        if spec.isolation == Isolation::Full && !self.root.host.is_privileged() {
            notes.push(
                "running without privileges: the box's one user is you on the host, not a range \
                 of its own"
                    .to_owned(),
            );
        }
        if spec.isolation == Isolation::Full && spec.network == Network::Host {
            notes.push(
                "the box is on the host's network: it reaches what listens on this host, and \
                 what listens in it is reached from there"
                    .to_owned(),
            );
        }
        notes
    }
}

impl Held {
    fn inheritance<'a>(&'a self, record: &'a Locked) -> Inheritance<'a> {
        Inheritance {
            stdio: self.stdio.theirs(),
            claim: self.range.claim.as_fd(),
            socket: self.socket.as_fd(),
            record: record.as_fd(),
            planned: self.planned(),
            unified: self.cgroups.unified.as_ref(),
            join: &self.cgroups.join,
        }
    }

    /// What the keeper inherits by its plan, in the plan's order.
    fn planned(&self) -> Vec<BorrowedFd<'_>> {
        let workload = self.cgroups.workload.iter().map(AsFd::as_fd);
        let files = self.files.iter();
        let files = files.flat_map(|files| [&files.life, &files.log[0], &files.log[1]]);
        let mounts = self.trees.all().filter_map(|tree| tree.mount.as_ref());
        workload.chain(files.map(AsFd::as_fd)).chain(mounts.map(AsFd::as_fd)).collect()
    }
}

/// The configuration of a server may set any limit. The process that makes a box enters the
/// box's cgroup for a moment, and the kernel would kill it there.
fn check_memory(spec: &Spec) -> Result<(), Error> {
    let memory = spec.limits.memory_bytes.value();
    if memory >= quantity::MEMORY_BYTES_MIN {
        return Ok(());
    }
    let (memory, least) =
        (quantity::show_bytes(memory), quantity::show_bytes(quantity::MEMORY_BYTES_MIN));
    let message = format!("a memory limit of {memory} is too small for a box");
    Err(Error::bad_request(message).with_hint(format!("the least is {least}")))
}

/// What a box writes to its scratch space is memory of the box. A size that was asked
/// for and that cannot be used up is refused; the default is only an upper bound.
fn check_scratch(spec: &Spec, cgroups: &CgroupHolding) -> Result<(), Error> {
    let memory = spec.limits.memory_bytes.value();
    match spec.limits.scratch_bytes {
        Limit::Asked(scratch)
            if scratch > memory && cgroups.memory_enforced && spec.isolation == Isolation::Full =>
        {
            let (scratch, memory) = (quantity::show_bytes(scratch), quantity::show_bytes(memory));
            let message = format!("a scratch space of {scratch} is more than the box can fill");
            Err(Error::bad_request(message)
                .caused_by(format!("it counts as memory of the box, which is {memory}"))
                .with_hint("give less --scratch, or more --memory"))
        }
        Limit::Asked(_) | Limit::Default(_) => Ok(()),
    }
}

fn detached_files(ends: &Ends<'_>, record: &Locked) -> Result<Option<DetachedFiles>, Error> {
    match ends {
        Ends::Callers(_) => Ok(None),
        Ends::Keepers(_) => {
            let files = record.make_detached_files();
            Ok(Some(files.context(|| "cannot make the box's log".into())?))
        }
    }
}

/// With a terminal, and in a detached box, the keeper opens the streams itself.
fn stdio(spec: &Spec, ends: &Ends<'_>, map: IdMap) -> Result<Stdio, Error> {
    let owner = Owner::of(map.first_uid(), spec.user);
    let made = match (spec.terminal, ends) {
        (Terminal::Pty { .. }, _) | (_, Ends::Keepers(_)) => Stdio::nothing(),
        (Terminal::Pipes, Ends::Callers(stdin)) => Stdio::pipes(*stdin, owner),
    };
    made.context(|| "cannot make pipes for the command".into())
}

fn workload_cgroup(ends: &Ends<'_>) -> WorkloadCgroup {
    match ends {
        Ends::Callers(_) => WorkloadCgroup::Shared,
        Ends::Keepers(_) => WorkloadCgroup::Own,
    }
}
