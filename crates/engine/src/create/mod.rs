//! Makes a box from a spec, in steps. A step that fails is rolled back by teardown.
//!
//! ```text
//! record ─▶ name ─▶ uid range ─▶ parents listed ─▶ cgroups ─▶ scratch ─▶ trees ─▶ socket   (acquire)
//!     ─▶ keeper ─▶ plan ─▶ identity on record                            (prepare)
//!     ─▶ go ─▶ command                                                   (go)
//! ```
//!
//! The plan describes the box, and the go says what runs in it. In between, the keeper makes the box
//! and waits.
//!
//! This folder ends only boxes that it could not make.

pub mod birth;
pub mod clone;
pub mod detach;
pub mod endow;
pub mod host_view;
pub mod machine;
pub mod plan;
pub mod seccomp;
pub mod trees;
pub mod warm;

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use tare_control::{
    CALL_BYTES_MAX, Channel, Claim, Exec, Go, PLAN_BYTES_MAX, Request, Role, encode,
};
use tare_kernel::cgroup::Cgroup;
use tare_kernel::clock::boot_ns;
use tare_kernel::fds::message_pair;
use tare_kernel::process::Process;
use tare_kernel::spawn::{Child, Namespaces};

use crate::care::parents::{Forget, forget_parents};
use crate::care::tend;
use crate::create::birth::{BirthOrder, CreateFailed, IdMap};
use crate::create::clone::FromTemplate;
use crate::create::endow::Endowment;
use crate::create::machine::Machine;
use crate::create::plan::{TreeSources, Trees};
use crate::create::trees::Mapping;
use crate::error::{Context, Error, Hint, LimitName};
use crate::holdings::cgroup::{self, CgroupHolding, CgroupUser, Controller, WorkloadCgroup};
use crate::holdings::uids::UidRange;
use crate::holdings::{Tree, name, scratch, uids};
use crate::host::layout::{BoxAt, StateRoot};
use crate::host::obstacle::{FailedStep, explained};
use crate::host::{Host, parents};
use crate::record::LockedRecord;
use crate::record::files::DetachedFiles;
use crate::record::lines::{KeeperLine, Lease, Line};
use crate::session::link::too_large;
use crate::session::stdio::{Owner, Stdin, Stdio, Streams};
use crate::session::{OwnedBox, Session, TeardownFds, WantedReceipt};
use crate::spec::{BoxId, DetachOptions, Isolation, Limit, Network, Spec, Terminal, quantity};
use crate::teardown::{Own, forget, roll_back};
use crate::time::from_now;

/// The box to make.
#[derive(Debug, Clone, Copy)]
pub struct NewBox<'a> {
    pub spec: &'a Spec,
    pub mode: Mode<'a>,
}

/// Whether the box stays with its creator, which has its streams, or is detached.
#[derive(Debug, Clone, Copy)]
pub enum Mode<'a> {
    Attached(Stdin),
    Detached(&'a DetachOptions),
    /// Attached, without a user namespace: an interpreter that makes boxes runs in it.
    Template,
    /// Attached, made by a template.
    Clone(TemplateOf<'a>),
}

/// The template that makes a box.
#[derive(Debug, Clone, Copy)]
pub struct TemplateOf<'a> {
    /// The box that the template is in.
    pub id: &'a BoxId,
    /// The socket that it takes orders from.
    pub socket: BorrowedFd<'a>,
}

impl<'a> Mode<'a> {
    fn options(&self) -> Option<&'a DetachOptions> {
        match self {
            Self::Attached(_) | Self::Template | Self::Clone(_) => None,
            Self::Detached(options) => Some(options),
        }
    }
}

/// A box whose keeper has its plan, is on record and waits for the go.
#[derive(Debug)]
pub struct Prepared {
    session: Session,
    timeout: Option<Duration>,
    lease: Lease,
    /// The command waits for its machine, and its timeout counts from its start.
    boots: bool,
}

impl Prepared {
    pub fn id(&self) -> &BoxId {
        self.session.id()
    }

    /// Returns the keeper, which lives as long as the box.
    pub fn keeper(&self) -> Result<Process, Error> {
        self.session.keeper()
    }

    /// Returns whether the keeper was seen dead. Needs no descriptor and does not wait.
    pub fn is_keeper_dead(&self) -> bool {
        self.session.is_keeper_dead()
    }

    /// Returns the session that owns the box, so that the caller can end it unclaimed.
    pub fn into_session(self) -> Session {
        self.session
    }

    /// Starts the command. A box without a command waits for execs.
    pub fn go(self, mut exec: Option<Exec>, claim: Option<Claim>) -> Result<Session, Error> {
        let deadline_ns = self.timeout.filter(|_| !self.boots).map(from_now);
        if let (true, Some(exec), Some(timeout)) = (self.boots, &mut exec, self.timeout) {
            exec.timeout_ns = Some(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        }
        let go = Go { exec, deadline_ns, lease_ns: self.lease.ends_ns(), claim };
        let session = self.session.until(deadline_ns);
        let sent = encode(&Request::Go(Box::new(go)), CALL_BYTES_MAX).map_err(too_large);
        let sent = sent.and_then(|frame| {
            unless_gone(session.channel().send_frame(&frame, &[]))
                .context(|| "cannot tell the keeper to go".into())
                .map_err(|error: Error| error.with_hint(Hint::SeeDoctor))
        });
        match sent {
            Ok(()) => Ok(session),
            Err(error) => Err(session.abandon(error)),
        }
    }
}

/// Makes a box that ends with the returned session, or with this process. `tend` looks after other
/// boxes: while the keeper works, and before a failure is final.
pub fn run(
    root: &StateRoot,
    spec: &Spec,
    stdin: Stdin,
    tend: &dyn Fn(&BoxId),
) -> Result<Session, Error> {
    let id = BoxId::random();
    let reserve = TeardownFds::take().context(|| "cannot reserve descriptors".into())?;
    let new = NewBox { spec, mode: Mode::Attached(stdin) };
    let record = record(root.at(&id), new, tend)?;
    make(root.at(&id), record, reserve, new, tend)
}

/// Makes a box and starts its command. A failure leaves nothing.
fn make(
    at: BoxAt<'_>,
    record: LockedRecord,
    reserve: TeardownFds,
    new: NewBox<'_>,
    tend: &dyn Fn(&BoxId),
) -> Result<Session, Error> {
    let session = prepare(at, record, reserve, new, tend)?.go(plan::first_exec(new), None)?;
    // The keeper works by itself now, so there is time for this.
    tend(at.id);
    Ok(session)
}

/// Makes the record of a new box. If that fails, cleans up after other boxes, which may have used up
/// space.
fn record(at: BoxAt<'_>, new: NewBox<'_>, tend: &dyn Fn(&BoxId)) -> Result<LockedRecord, Error> {
    let parents = match new.mode {
        Mode::Attached(_) => at.root.parents_of_attached(),
        Mode::Detached(_) => at.root.parents_of_detached(),
        Mode::Template => at.root.parents_in_pool(at.id),
        Mode::Clone(template) => at.root.parents_in_pool(template.id),
    };
    let of_host = (&at.root.host, &parents, &at.root.creator);
    let options = new.mode.options();
    let made = LockedRecord::create(&at.root.layout, at.id, of_host, new.spec, options);
    made.map_err(|error| {
        tend(at.id);
        explained(error, FailedStep::StateRoot)
    })
}

/// Removes the record of a box that is not made, and returns the error for the user.
fn abandon(at: BoxAt<'_>, record: LockedRecord, why: Error, tend: &dyn Fn(&BoxId)) -> Error {
    tend(at.id);
    forget(at, record, why)
}

/// Makes a box up to the point where its keeper waits for the go. A failure leaves
/// nothing: `tend` cleans up after boxes that may be in the way of the roll-back.
pub fn prepare(
    at: BoxAt<'_>,
    mut record: LockedRecord,
    reserve: TeardownFds,
    new: NewBox<'_>,
    tend: &dyn Fn(&BoxId),
) -> Result<Prepared, Error> {
    let machine = new.spec.machine.as_ref().map(|wanted| Machine::find(at, new, wanted));
    let made = machine.transpose().map_err(CreateFailed::from).and_then(|machine| {
        let around = machine.as_ref().map_or(new, |it| NewBox { spec: &it.outer, ..new });
        let acquired = acquire(at, &record, around)?;
        if let Some(machine) = &machine {
            let line = Line::Machine(machine.line(new.mode));
            record.add(line).context(|| "cannot record the machine".to_owned())?;
        }
        let made = start_keeper(at, &mut record, around, acquired, machine.as_ref())?;
        Ok((made, machine.map(|it| it.boot_within)))
    });
    match made {
        Ok((made, boot_within)) => {
            let lease = made.lease;
            let timeout = new.spec.timeout;
            let session = made.into_session(at, record, reserve, new.spec);
            let session = match boot_within {
                Some(within) => session.booting(within, timeout),
                None => session,
            };
            Ok(Prepared { session, timeout, lease, boots: boot_within.is_some() })
        }
        Err(CreateFailed { error, child }) => {
            drop(reserve);
            tend(at.id);
            let own = |child| Own { child, claim: None, held: None };
            Err(roll_back(at, record, child.as_ref().map(|child| own(&child.process)), error))
        }
    }
}

/// Everything that was acquired for a box before its keeper is started.
#[derive(Debug)]
struct Acquired {
    range: UidRange,
    map: IdMap,
    cgroups: CgroupHolding,
    trees: Trees,
    stdio: Stdio,
    listener: OwnedFd,
    files: Option<DetachedFiles>,
    /// The socket between the keeper and the clone in its box: the keeper's end first.
    clone: Option<(OwnedFd, OwnedFd)>,
}

fn acquire(at: BoxAt<'_>, record: &LockedRecord, new: NewBox<'_>) -> Result<Acquired, Error> {
    let NewBox { spec, mode } = new;
    let (layout, host) = (&at.root.layout, &at.root.host);
    check_memory(spec)?;
    let in_state_root = |error| explained(error, FailedStep::StateRoot);
    take_name(at, spec)?;
    let range = uids::acquire(layout).map_err(in_state_root)?;
    let map = id_map(new, host, range.first);
    let workload = workload_cgroup(mode);
    let is_new = parents::list(at.root, &cgroup::parents_of(at, record)).map_err(in_state_root)?;
    if is_new {
        forget_parents(at.root, Forget::Gone);
    }
    let user = match mode {
        Mode::Attached(_) | Mode::Detached(_) => CgroupUser::Keeper(map.first_uid()),
        Mode::Template => CgroupUser::Template(range.first),
        Mode::Clone(_) => CgroupUser::Maker,
    };
    let cgroups = cgroup::acquire(at, record, spec, workload, user)?;
    check_pids(spec, map, &cgroups)?;
    check_scratch(spec, &cgroups)?;
    let scratch = kept_scratch(at, record, new, map)?;
    Ok(Acquired {
        range,
        map,
        cgroups,
        trees: trees(at, spec, map, scratch)?,
        stdio: stdio(spec, mode, map)?,
        listener: record
            .bind_control()
            .context(|| format!("cannot make a socket for box {}", at.id))
            .map_err(in_state_root)?,
        files: detached_files(mode, record)?,
        clone: match mode {
            Mode::Clone(_) => {
                Some(message_pair().context(|| "cannot make a socket for a clone".into())?)
            }
            Mode::Attached(_) | Mode::Detached(_) | Mode::Template => None,
        },
    })
}

/// Takes the name of the spec for a box. The name of a box whose owner is gone is free.
fn take_name(at: BoxAt<'_>, spec: &Spec) -> Result<(), Error> {
    let Some(wanted) = &spec.name else { return Ok(()) };
    tend::settle_name_owner(at.root, &spec.tenant, wanted)?;
    let taken = name::acquire(&at.root.layout, &spec.tenant, wanted, at.id);
    taken.map_err(|error| explained(error, FailedStep::StateRoot))
}

impl Acquired {
    /// The descriptors of the keeper, and how the plan names the trees among them.
    fn endowment(&self) -> (Endowment<'_>, TreeSources) {
        let mut endowment = Endowment::default();
        endowment.give(Role::UidLock, self.range.claim.as_fd());
        endowment.give(Role::Listener, self.listener.as_fd());
        if let Some(workload) = &self.cgroups.workload {
            endowment.give(Role::WorkloadCgroup, workload.as_fd());
        }
        if let Some(tasks) = &self.cgroups.workload_tasks {
            endowment.give(Role::WorkloadTasks, tasks.as_fd());
        }
        if let Some(files) = &self.files {
            endowment.give(Role::Journal, files.journal.as_fd());
            endowment.give(Role::Log(0), files.log[0].as_fd());
            endowment.give(Role::Log(1), files.log[1].as_fd());
        }
        if let Some((keepers, _)) = &self.clone {
            endowment.give(Role::Clone, keepers.as_fd());
        }
        let sources = self.trees.give_to(&mut endowment);
        (endowment, sources)
    }
}

/// Starts the keeper, sends it the plan and writes its identity to the record. Meanwhile the keeper
/// makes the box, which ends with it.
fn start_keeper(
    at: BoxAt<'_>,
    record: &mut LockedRecord,
    new: NewBox<'_>,
    mut acquired: Acquired,
    machine: Option<&Machine<'_>>,
) -> Result<StartedKeeper, CreateFailed> {
    let host = &at.root.host;
    let (mut endowment, sources) = acquired.endowment();
    if let Some(machine) = machine {
        machine.give_to(&mut endowment);
    }
    let order = BirthOrder {
        namespaces: namespaces(new, acquired.map),
        cgroup: acquired.cgroups.unified.as_ref().map(AsFd::as_fd),
        tasks: &acquired.cgroups.join,
        stdio: acquired.stdio.theirs(),
        endowment: &endowment,
        record: (**record).as_fd(),
        map: acquired.map,
        of: at.tagged_id(),
    };
    let keeper = match (new.mode, &acquired.clone) {
        (Mode::Clone(template), Some((_, clone))) => {
            let template = template.socket;
            clone::keeper(host, &order, FromTemplate { template, clone: clone.as_fd() })
        }
        _ => birth::spawn_keeper(host, &order),
    }?;
    let (child, link) = (keeper.child.go(), keeper.link);
    let mut plan = plan::plan(new, at.id, host, &acquired.cgroups, sources, endowment.roles());
    match new.mode {
        Mode::Template => plan::for_template(&mut plan, acquired.range.first),
        Mode::Clone(_) => plan::for_clone(&mut plan),
        Mode::Attached(_) | Mode::Detached(_) => {}
    }
    if let (Mode::Detached(_), Some(_)) = (new.mode, &record.lines.pool) {
        plan::for_name_later(&mut plan);
    }
    if let Some(machine) = machine {
        let directories: Vec<_> = acquired.trees.volumes.iter().map(|it| it.is_directory).collect();
        machine.plan(&mut plan, at, new.mode, (&acquired.cgroups, &directories));
    }
    acquired.cgroups.join.clear();
    acquired.cgroups.workload_tasks = None;
    let lease = Lease::of(new.mode.options().and_then(|options| options.lease));
    let made = StartedKeeper {
        child,
        link,
        notes: notes(new.spec, host, acquired.map, &acquired.cgroups)
            .into_iter()
            .chain(machine.and_then(|machine| machine.note.clone()))
            .collect(),
        cgroups: acquired.cgroups,
        claim: acquired.range.claim,
        streams: acquired.stdio.ours,
        first_uid: acquired.map.first_uid(),
        lease,
    };
    let sent = send_plan(&made.link, &plan);
    match sent.and_then(|()| made.write_identity(record, host)) {
        Ok(()) => Ok(made),
        Err(error) => Err(CreateFailed { error, child: Some(made.child) }),
    }
}

/// A box whose keeper was started.
#[derive(Debug)]
struct StartedKeeper {
    child: Child,
    link: Channel,
    cgroups: CgroupHolding,
    claim: OwnedFd,
    streams: Streams,
    /// The first id of its uid range, if it has one.
    first_uid: Option<u32>,
    lease: Lease,
    notes: Vec<String>,
}

impl StartedKeeper {
    /// Writes the keeper's identity to the record. Nothing runs in the box before that.
    fn write_identity(&self, record: &mut LockedRecord, host: &Host) -> Result<(), Error> {
        let identity = self.identity(host).and_then(|identity| record.add_keeper(identity));
        identity
            .context(|| "cannot record the keeper's identity".to_owned())
            .map_err(|error| explained(error, FailedStep::StateRoot))
    }

    fn identity(&self, host: &Host) -> io::Result<KeeperLine> {
        let process = &self.child.process;
        Ok(KeeperLine {
            boot_id: host.boot_id.clone(),
            pid: process.pid(),
            pidfd_inode: process.inode()?,
            cgroup_inode: self.cgroups.unified.as_ref().map(Cgroup::inode).transpose()?,
            first_uid: self.first_uid,
            lease: self.lease,
            at_ns: boot_ns(),
        })
    }

    fn into_session(
        self,
        at: BoxAt<'_>,
        record: LockedRecord,
        reserve: TeardownFds,
        spec: &Spec,
    ) -> Session {
        Session::new(at.id.clone(), self.link, self.streams, None)
            .of_command(spec.command.first().cloned(), spec.workdir.clone())
            .owning(OwnedBox {
                root: at.root.clone(),
                record,
                keeper: self.child,
                cgroups: self.cgroups,
                claim: RefCell::new(Some(self.claim)),
                receipt: WantedReceipt::No,
                reserve: Some(reserve),
                notes: self.notes,
            })
    }
}

/// Sends the plan. The keeper reads while we write.
fn send_plan(link: &Channel, plan: &tare_control::Plan) -> Result<(), Error> {
    let frame = encode(plan, PLAN_BYTES_MAX).map_err(too_large)?;
    unless_gone(link.send_frame(&frame, &[]))
        .context(|| "cannot hand the plan to the keeper".into())
        .map_err(|error: Error| error.with_hint(Hint::SeeDoctor))
}

/// Ignores that the keeper has died: its report or its death gives the reason later.
fn unless_gone(sent: io::Result<()>) -> io::Result<()> {
    let is_gone = |kind| matches!(kind, io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset);
    match sent {
        Err(error) if is_gone(error.kind()) => Ok(()),
        other => other,
    }
}

fn namespaces(new: NewBox<'_>, map: IdMap) -> Namespaces {
    let base = Namespaces::PID.and(Namespaces::MOUNT).and(Namespaces::IPC);
    let user = match map {
        IdMap::Host => base,
        IdMap::Range { .. } | IdMap::Single { .. } => base.and(Namespaces::USER),
    };
    // Without the network namespace: it takes longest to make, so the keeper makes it in parallel.
    let all = match new.spec.isolation {
        Isolation::Contain => user,
        Isolation::Full => user.and(Namespaces::UTS),
    };
    match new.mode {
        // The clone cannot follow its keeper into another one.
        Mode::Clone(_) if plan::has_own_network(new.spec) => all.and(Namespaces::NETWORK),
        Mode::Attached(_) | Mode::Detached(_) | Mode::Template | Mode::Clone(_) => all,
    }
}

fn id_map(NewBox { spec, mode }: NewBox<'_>, host: &Host, first: u32) -> IdMap {
    if let Mode::Template = mode {
        return IdMap::Host;
    }
    match (spec.isolation, host.is_privileged()) {
        (Isolation::Full, true) => IdMap::Range { first },
        (Isolation::Contain, true) => IdMap::Host,
        (Isolation::Full, false) => IdMap::Single { uid: spec.user.uid, gid: spec.user.gid },
        (Isolation::Contain, false) => IdMap::Single { uid: host.uid, gid: host.gid },
    }
}

fn trees(at: BoxAt<'_>, spec: &Spec, map: IdMap, scratch: Option<Tree>) -> Result<Trees, Error> {
    let mapping = match map {
        IdMap::Range { first } => Mapping::Range { first, user: spec.user },
        IdMap::Host | IdMap::Single { .. } => Mapping::Own,
    };
    let state_root = at.root.layout.root();
    let root = plan::wants_root_tree(spec).map(|path| trees::root(path, state_root, mapping));
    let driver = spec.driver();
    let volumes = spec.volumes.iter();
    let volumes = volumes.map(|volume| trees::volume(volume, driver, state_root, mapping));
    Ok(Trees { scratch, root: root.transpose()?, volumes: volumes.collect::<Result<_, _>>()? })
}

/// Makes the scratch space that outlives the box. A contained box has none.
fn kept_scratch(
    at: BoxAt<'_>,
    record: &LockedRecord,
    new: NewBox<'_>,
    map: IdMap,
) -> Result<Option<Tree>, Error> {
    let keep = new.mode.options().is_some_and(|options| options.keep);
    if !keep || new.spec.isolation == Isolation::Contain {
        return Ok(None);
    }
    let record = AsFd::as_fd(&**record);
    let limits = &new.spec.limits;
    let tree = scratch::acquire(&at.root.layout, record, at.id, limits, map.first_uid())?;
    Ok(Some(tree))
}

/// Returns a sentence for each default that this host cannot enforce.
fn notes(spec: &Spec, host: &Host, map: IdMap, cgroups: &CgroupHolding) -> Vec<String> {
    let mut notes = Vec::new();
    if !cgroups.memory_enforced {
        notes.push(
            "no writable cgroup here: the default memory limit holds for each process, not for \
             the box as a whole"
                .to_owned(),
        );
    }
    if map == IdMap::Host && !cgroups.pids_enforced {
        notes.push("no writable cgroup here: the number of processes is not limited".to_owned());
    }
    if spec.isolation == Isolation::Full && !host.is_privileged() {
        notes.push(
            "running without privileges: the box's one user is you on the host, not a range \
             of its own"
                .to_owned(),
        );
    }
    if spec.isolation == Isolation::Full && spec.network == Network::Host {
        notes.push(
            "the box shares the host's network: it can reach every service on this host, and \
             the host can reach its ports"
                .to_owned(),
        );
    }
    notes
}

/// Refuses a memory limit in which a keeper cannot start. The command line has checked the limit; the
/// configuration of a server may set any value.
fn check_memory(spec: &Spec) -> Result<(), Error> {
    let bytes = spec.limits.memory_bytes.value();
    quantity::check_memory(bytes, quantity::MEMORY_BYTES_MIN, |bytes| {
        format!("a memory limit of {bytes} is too small for a box")
    })
}

/// Refuses a process limit that nothing enforces. Without a cgroup, `RLIMIT_NPROC` limits the
/// processes of a box. A contained box of root runs as the host's root user, to which the kernel
/// does not apply `RLIMIT_NPROC`.
fn check_pids(spec: &Spec, map: IdMap, cgroups: &CgroupHolding) -> Result<(), Error> {
    if map == IdMap::Host && spec.limits.pids.is_explicit() && !cgroups.pids_enforced {
        return Err(Controller::Pids.cannot("enforce"));
    }
    Ok(())
}

/// Refuses a requested scratch size that is larger than the memory limit. Files on the scratch space
/// count as memory of the box, so it could never be filled. The default size is only an upper bound.
fn check_scratch(spec: &Spec, cgroups: &CgroupHolding) -> Result<(), Error> {
    let memory = spec.limits.memory_bytes.value();
    match spec.limits.scratch_bytes {
        Limit::Asked(scratch)
            if scratch > memory && cgroups.memory_enforced && spec.isolation == Isolation::Full =>
        {
            let (scratch, memory) = (quantity::show_bytes(scratch), quantity::show_bytes(memory));
            let message = format!("a scratch space of {scratch} does not fit");
            let why = format!("its files count as memory, and the memory limit is {memory}");
            Err(Error::bad_request(message)
                .caused_by(why)
                .with_hint(Hint::LessOrMoreMemory(LimitName::Scratch)))
        }
        Limit::Asked(_) | Limit::Default(_) => Ok(()),
    }
}

fn detached_files(mode: Mode<'_>, record: &LockedRecord) -> Result<Option<DetachedFiles>, Error> {
    match mode {
        Mode::Attached(_) | Mode::Template | Mode::Clone(_) => Ok(None),
        Mode::Detached(_) => {
            let files = record.make_detached_files();
            Ok(Some(files.context(|| "cannot make the box's log".into())?))
        }
    }
}

/// Makes the pipes of the command. With a terminal, and in a detached box, the keeper opens the
/// streams itself.
fn stdio(spec: &Spec, mode: Mode<'_>, map: IdMap) -> Result<Stdio, Error> {
    let owner = Owner::of(map.first_uid(), spec.user);
    let made = match (spec.terminal, mode) {
        (Terminal::Pty { .. }, _) | (_, Mode::Detached(_) | Mode::Template | Mode::Clone(_)) => {
            Stdio::nothing()
        }
        (Terminal::Pipes, Mode::Attached(stdin)) => Stdio::pipes(stdin, owner),
    };
    made.context(|| "cannot make pipes for the command".into())
}

fn workload_cgroup(mode: Mode<'_>) -> WorkloadCgroup {
    match mode {
        Mode::Attached(_) | Mode::Template | Mode::Clone(_) => WorkloadCgroup::Shared,
        Mode::Detached(_) => WorkloadCgroup::Own,
    }
}
