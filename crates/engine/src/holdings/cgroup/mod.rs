//! The cgroups of a box: made before its keeper, emptied and removed at its end.
//!
//! A box has one directory in the unified (v2) hierarchy, which identifies its processes and
//! ends them. Where that hierarchy has no controllers, the box also has one directory in each
//! v1 hierarchy that enforces a limit. The limit on processor time is one level below, in `work`,
//! with the workload and without the keeper. This folder never decides when a box ends.

mod settings;
mod usage;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tare_kernel::cgroup::{self, Cgroup, Version, version_at};

pub use settings::Controller;
pub use usage::{CgroupReader, CgroupUsage, LimitWatch, evidence};

use crate::error::{Context, Error, ErrorKind, Hint};
use crate::holdings::{Ends, Found, Holding, Sight, is_missing};
use crate::host::cgroups::CALLER_CGROUP;
use crate::host::layout::{self, BoxAt, Layout, StateRoot};
use crate::host::tag::TaggedId;
use crate::host::{CgroupRoots, parents};
use crate::record::Record;
use crate::spec::{Isolation, Limits, Spec};
use settings::CONTROLLERS;
use usage::oom_kills_in;

/// The reason in the record of a box whose processes do not die.
pub const STILL_POPULATED: &str = "processes are still alive in it";

/// Whether the workload of a box always has a v2 cgroup of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkloadCgroup {
    /// No: an attached box, which has one only for a processor limit. When memory runs out, the
    /// kernel kills the whole box.
    Shared,
    /// Yes: a detached box, whose workload can be frozen without its keeper. When memory runs out,
    /// the kernel kills one process.
    Own,
}

/// The cgroups of a new box.
#[derive(Debug, Default)]
pub struct CgroupHolding {
    pub unified: Option<Cgroup>,
    /// Below `unified`, if the workload is not in the keeper's cgroup.
    pub workload: Option<Cgroup>,
    /// The `tasks` file of the workload's v1 directory with the cpu controller, which each process
    /// joins by itself.
    pub workload_tasks: Option<OwnedFd>,
    /// The v1 directory with the memory controller.
    v1_memory: Option<Cgroup>,
    /// The `tasks` files of v1 directories, which the keeper joins by itself.
    pub join: Vec<OwnedFd>,
    /// Whether cgroups enforce these limits.
    pub memory_enforced: bool,
    pub pids_enforced: bool,
}

impl CgroupHolding {
    /// Returns how many processes of the box the kernel has killed for its memory limit.
    pub fn oom_kills(&self) -> u64 {
        let counting = self.v1_memory.as_ref().or(self.unified.as_ref());
        counting.and_then(oom_kills_in).unwrap_or(0)
    }
}

/// The user of the host that may put processes into a cgroup of the box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupUser {
    /// The keeper, into the workload's own.
    Keeper(Option<u32>),
    /// The interpreter of a template, into the directory of its pool, which is made with the box.
    Template(u32),
    /// The template that makes the box, into the box's.
    Maker,
}

/// Makes the directories and sets the limits. After an error the caller tears the box down: the names
/// of the directories are derived from its id.
pub fn acquire(
    at: BoxAt<'_>,
    record: &Record,
    spec: &Spec,
    workload: WorkloadCgroup,
    user: CgroupUser,
) -> Result<CgroupHolding, Error> {
    let limits = &spec.limits;
    let parents = parents_of(at, record);
    if let CgroupUser::Template(uid) = user {
        make_pool(at, &parents, uid)?;
    }
    check_parent(at.root, &parents)?;
    let mut holding = CgroupHolding::default();
    let mut on_unified = Vec::new();
    if let Some(root) = &parents.unified
        && let Some(unified) = make(at, root)?
    {
        if spec.isolation != Isolation::Full {
            bound_nesting(&unified);
        }
        if user == CgroupUser::Maker {
            let maker = Cgroup::open(root).and_then(|pool| pool.may_enter());
            maker
                .and_then(|maker| unified.let_enter(maker))
                .context(|| format!("cannot let a template enter the cgroup of box {}", at.id))?;
        }
        // A controller with a v1 hierarchy is not in v2.
        if CONTROLLERS.iter().any(|it| it.v1_root(&parents).is_none()) {
            on_unified = unified_controllers(&at.root.layout, root)?;
        }
        // A clone exists before its workload has a cgroup, and is in that of its box.
        let is_threaded = on_unified.contains(&Controller::Cpu)
            && spec.isolation == Isolation::Full
            && user != CgroupUser::Maker;
        if workload == WorkloadCgroup::Own || (is_threaded && limits.cpus.is_some()) {
            let keeper = match user {
                CgroupUser::Keeper(uid) => uid,
                CgroupUser::Template(_) | CgroupUser::Maker => None,
            };
            let own = unified.make_below(layout::WORKLOAD_CGROUP, keeper);
            let own = own.context(|| format!("cannot make box {} a cgroup", at.id))?;
            if is_threaded {
                make_threaded(&own);
            }
            holding.workload = Some(own);
        }
        holding.unified = Some(unified);
    }
    for controller in CONTROLLERS.into_iter().filter(|it| it.needs_cgroup(limits, workload)) {
        let enforced = if on_unified.contains(&controller) {
            holding.enforce_v2(controller, limits, workload)?
        } else {
            holding.enforce_v1(controller, limits, &parents, at)?
        };
        if !enforced && controller.is_explicit(limits) {
            return Err(controller.cannot("enforce"));
        }
        holding.memory_enforced |= enforced && controller == Controller::Memory;
        holding.pids_enforced |= enforced && controller == Controller::Pids;
    }
    Ok(holding)
}

impl CgroupHolding {
    /// Sets a limit in the unified directory. Returns whether it is enforced.
    fn enforce_v2(
        &self,
        controller: Controller,
        limits: &Limits,
        workload: WorkloadCgroup,
    ) -> Result<bool, Error> {
        let Some(unified) = &self.unified else {
            return Ok(false);
        };
        let limited = match controller {
            Controller::Cpu if limits.cpus.is_some() => throttled(unified, self.workload.as_ref()),
            Controller::Cpu | Controller::Memory | Controller::Pids => unified,
        };
        controller.set(limited, Version::V2, limits)?;
        if controller == Controller::Memory && workload == WorkloadCgroup::Shared {
            // A box with one command ends as a whole. In a detached box the kernel picks a process.
            unified.write("memory.oom.group", "1").ok();
        }
        Ok(true)
    }

    /// Makes a v1 directory and sets a limit in it. Returns whether it is enforced. Without the
    /// unified directory nothing would end the processes in a v1 directory, so none is made.
    fn enforce_v1(
        &mut self,
        controller: Controller,
        limits: &Limits,
        parents: &CgroupRoots,
        at: BoxAt<'_>,
    ) -> Result<bool, Error> {
        let root = controller.v1_root(parents).filter(|_| self.unified.is_some());
        let Some(cgroup) = root.map(|root| make(at, root)).transpose()?.flatten() else {
            return Ok(false);
        };
        let opening = || format!("cannot open the {} tasks", controller.name());
        self.join.push(cgroup.tasks().context(opening)?);
        if controller == Controller::Cpu {
            let own = cgroup.make_below(layout::WORKLOAD_CGROUP, None);
            let own = own.context(|| format!("cannot make box {} a cgroup", at.id))?;
            controller.set(&own, Version::V1, limits)?;
            self.workload_tasks = Some(own.tasks().context(opening)?);
        } else {
            controller.set(&cgroup, Version::V1, limits)?;
        }
        if controller == Controller::Memory {
            self.v1_memory = Some(cgroup);
        }
        Ok(true)
    }
}

/// Lets the workload's cgroup have the cpu controller although the keeper is in the cgroup above
/// it: v2 allows that for threaded cgroups only (cgroup-v2.rst, "Threads"). A contained box gets no
/// threaded cgroup, because container engines in it could make no usable cgroup below. If the
/// kernel refuses, the keeper shares the limit on processor time.
fn make_threaded(workload: &Cgroup) {
    workload.write("cgroup.type", "threaded").ok();
}

/// Returns the v2 directory that gets the limit on processor time: the workload's if it can have
/// the cpu controller, so that the keeper can enforce deadlines in time. Otherwise the box's.
fn throttled<'a>(unified: &'a Cgroup, workload: Option<&'a Cgroup>) -> &'a Cgroup {
    let is_threaded =
        |it: &&Cgroup| it.read("cgroup.type").is_ok_and(|kind| kind.trim() == "threaded");
    let has_cpu = |_: &&Cgroup| unified.write("cgroup.subtree_control", "+cpu").is_ok();
    workload.filter(is_threaded).filter(has_cpu).unwrap_or(unified)
}

/// How many cgroups a contained box may make below its own, and how deep. Teardown walks all of them.
/// Other boxes see no cgroups.
const NESTING_MAX: [(&str, &str); 2] =
    [("cgroup.max.descendants", "1000"), ("cgroup.max.depth", "32")];

/// Kernels before 4.14 have no such files. Teardown does not rely on the limits: the root user
/// of a contained box can raise them.
fn bound_nesting(unified: &Cgroup) {
    for (file, most) in NESTING_MAX {
        unified.write(file, most).ok();
    }
}

/// Makes the directory of a template's pool, which the template may put processes into: the kernel
/// requires that of the directory that the template's own and those of its boxes have in common.
fn make_pool(at: BoxAt<'_>, parents: &CgroupRoots, uid: u32) -> Result<(), Error> {
    let above = parents.unified.as_deref().and_then(Path::parent);
    let above = above.ok_or_else(|| Error::failed("a template needs cgroup v2"))?;
    check_parent(at.root, &CgroupRoots { unified: Some(above.to_owned()), ..parents.clone() })?;
    unified_controllers(&at.root.layout, above)?;
    let pool = make(at, above)?.ok_or_else(|| Error::failed("a template needs cgroup v2"))?;
    pool.let_enter(uid).context(|| format!("cannot give box {} the cgroup of its pool", at.id))
}

/// Makes a directory. `None` if we may not write the hierarchy.
fn make(at: BoxAt<'_>, parent: &Path) -> Result<Option<Cgroup>, Error> {
    use io::ErrorKind::{NotFound, PermissionDenied, ReadOnlyFilesystem};
    let path = layout::cgroup(parent, at.tagged_id());
    match Cgroup::create(&path) {
        Ok(cgroup) => Ok(Some(cgroup)),
        Err(error) if error.kind() == NotFound && !at.root.host.cgroups.all().contains(&parent) => {
            Err(no_parent(parent))
        }
        Err(error) if matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem | NotFound) => {
            Ok(None)
        }
        Err(error) => Err(error).context(|| format!("cannot make cgroup {}", path.display())),
    }
}

/// Returns the controllers that directories below this root can use, and enables them.
fn unified_controllers(layout: &Layout, root: &Path) -> Result<Vec<Controller>, Error> {
    let Ok(cgroup) = Cgroup::open(root) else {
        return Ok(Vec::new());
    };
    let mut usable = listed(&cgroup, "cgroup.controllers");
    let enabled = listed(&cgroup, "cgroup.subtree_control");
    if enabled != usable && is_alone_in(&cgroup) {
        step_aside(layout, root)?;
    }
    usable.retain(|one| {
        let enable = || cgroup.write("cgroup.subtree_control", &format!("+{}", one.name()));
        enabled.contains(one) || (may_enable(&cgroup) && enable().is_ok())
    });
    Ok(usable)
}

/// Returns whether this process is the only one in a cgroup that is not the root.
fn is_alone_in(cgroup: &Cgroup) -> bool {
    let own = std::process::id().to_string();
    let is_root = cgroup.read("cgroup.type").is_err();
    !is_root && cgroup.read("cgroup.procs").is_ok_and(|pids| pids.trim() == own)
}

/// Moves this process one cgroup down. It is alone in a delegated one, such as a scope of
/// `systemd-run -p Delegate=yes`: while it is in there, boxes below can have no limits (cgroup-v2.rst,
/// "No Internal Process Constraint"). The list of parents explains the new cgroup. It ends with the
/// delegated one, when a manager finds that empty, or with a sweep. If the kernel refuses the move,
/// boxes have no limits.
fn step_aside(layout: &Layout, delegated: &Path) -> Result<(), Error> {
    parents::add(layout, delegated)?;
    let below = delegated.join(CALLER_CGROUP);
    let below = Cgroup::create(&below).or_else(|_| Cgroup::open(&below));
    below.and_then(|it| it.write("cgroup.procs", &std::process::id().to_string())).ok();
    Ok(())
}

/// Returns the controllers that a file of a cgroup lists.
fn listed(cgroup: &Cgroup, file: &str) -> Vec<Controller> {
    let text = cgroup.read(file).unwrap_or_default();
    let has = |one: &Controller| text.split_whitespace().any(|name| name == one.name());
    CONTROLLERS.into_iter().filter(has).collect()
}

/// Returns whether enabling a controller leaves the children usable. In a cgroup with processes
/// of its own, such as a delegated one that we are in, the kernel rejects the memory controller.
/// It accepts cpu and pids, but then every child is part of a threaded tree, where no process can
/// be started (cgroup-v2.rst, "Threads"). The root of the hierarchy is exempt; only it has no
/// `cgroup.type`.
fn may_enable(cgroup: &Cgroup) -> bool {
    let is_root = cgroup.read("cgroup.type").is_err();
    is_root || cgroup.read("cgroup.procs").is_ok_and(|pids| pids.is_empty())
}

/// Checks the cgroup that the user chose for boxes, if these parents are its directories: it must
/// exist in every hierarchy, and its children must be able to have limits.
pub fn check_parent(root: &StateRoot, parents: &CgroupRoots) -> Result<(), Error> {
    if root.cgroup_parent.is_none() {
        return Ok(());
    }
    if let Some(missing) = parents.all().into_iter().find(|it| version_at(it).is_none()) {
        return Err(no_parent(missing));
    }
    let chosen =
        root.parents_of_detached().unified.filter(|it| parents.unified.as_ref() == Some(it));
    let Some(unified) = chosen else {
        return Ok(());
    };
    let can_limit = |it: Cgroup| {
        let enabled = listed(&it, "cgroup.subtree_control");
        enabled == listed(&it, "cgroup.controllers") || may_enable(&it) || is_alone_in(&it)
    };
    if Cgroup::open(&unified).is_ok_and(can_limit) {
        return Ok(());
    }
    Err(cannot_use_parent(&unified)
        .caused_by("it has processes of its own, so boxes below it cannot have limits")
        .with_hint("choose a cgroup without processes, such as a slice of systemd"))
}

fn no_parent(parent: &Path) -> Error {
    let hint = format!(
        "make it first, in every hierarchy of cgroups: 'mkdir {}', or a slice of systemd",
        parent.display()
    );
    cannot_use_parent(parent).caused_by("there is no such cgroup").with_hint(hint)
}

fn cannot_use_parent(parent: &Path) -> Error {
    let message = format!("cannot make boxes below the cgroup {}", parent.display());
    Error::new(ErrorKind::CgroupParent, message)
}

/// Which limits to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Which {
    pub memory: bool,
    pub pids: bool,
    pub cpu: bool,
}

/// Changes limits of a box. A limit that cannot be enforced is an error.
pub fn change(
    roots: &CgroupRoots,
    of: TaggedId<'_>,
    limits: &Limits,
    which: Which,
) -> Result<(), Error> {
    let is_changed = |one: &Controller| match one {
        Controller::Memory => which.memory,
        Controller::Pids => which.pids,
        Controller::Cpu => which.cpu,
    };
    let open = |root: Option<&Path>| Cgroup::open(&layout::cgroup(root?, of)).ok();
    let open_workload = |root: Option<&Path>| {
        Cgroup::open(&layout::cgroup(root?, of).join(layout::WORKLOAD_CGROUP)).ok()
    };
    for controller in CONTROLLERS.into_iter().filter(is_changed) {
        let is_cpu = controller == Controller::Cpu;
        if let Some(cgroup) = open(controller.v1_root(roots)) {
            let workload = open_workload(controller.v1_root(roots)).filter(|_| is_cpu);
            controller.reset(&workload.unwrap_or(cgroup), Version::V1, limits)?;
            continue;
        }
        let unified = open(roots.unified.as_deref()).filter(|cgroup| controller.is_in(cgroup));
        let unified = unified.ok_or_else(|| controller.cannot("change"))?;
        let workload = open_workload(roots.unified.as_deref()).filter(|_| is_cpu);
        controller.reset(throttled(&unified, workload.as_ref()), Version::V2, limits)?;
    }
    Ok(())
}

/// How long processes may take to freeze: a process freezes when it next leaves the kernel.
const FREEZE_WITHIN: Duration = Duration::from_secs(10);
/// Pause between two checks. The kernel's notification can be late.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// Freezes or continues the workload, and waits until that is done. If it cannot be frozen in
/// time, it continues.
pub fn freeze(roots: &CgroupRoots, of: TaggedId<'_>, frozen: bool) -> Result<(), Error> {
    let verb = if frozen { "pause" } else { "resume" };
    let doing = || format!("cannot {verb} box {}", of.id);
    let mut cgroups = workloads(roots, of).context(doing)?;
    if cgroups.is_empty() {
        return Err(Error::new(ErrorKind::Unsupported, doing())
            .caused_by("it has no cgroup: none is writable here")
            .with_hint(Hint::SeeDoctor));
    }
    let start = Instant::now();
    loop {
        let done = set_frozen(&cgroups, frozen).context(doing)?;
        // A process that still ran may have made another cgroup and moved there.
        let now = workloads(roots, of).context(doing)?;
        if done && now == cgroups {
            return Ok(());
        }
        cgroups = now;
        if start.elapsed() >= FREEZE_WITHIN {
            set_frozen(&cgroups, !frozen).context(doing)?;
            return Err(Error::failed(doing())
                .caused_by("a process in it waits in the kernel, as for a file system that does not answer")
                .with_hint(Hint::SeeProcesses));
        }
        #[expect(clippy::disallowed_methods, reason = "bounded by FREEZE_WITHIN")]
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Returns the cgroups that contain the workload. For an attached box it is the box's own, with
/// the keeper in it. For a detached box it is each one below that: the box may have made more
/// (`--contain`).
fn workloads(roots: &CgroupRoots, of: TaggedId<'_>) -> io::Result<Vec<PathBuf>> {
    let Some(root) = roots.unified.as_deref() else {
        return Ok(Vec::new());
    };
    let path = layout::cgroup(root, of);
    let entries = match fs::read_dir(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut below = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            below.push(entry.path());
        }
    }
    if path.join(layout::WORKLOAD_CGROUP).is_dir() { Ok(below) } else { Ok(vec![path]) }
}

/// Returns whether all of them are in the requested state now. A cgroup that is gone counts as
/// done.
fn set_frozen(cgroups: &[PathBuf], frozen: bool) -> io::Result<bool> {
    let mut done = true;
    for path in cgroups {
        let set = Cgroup::open(path).and_then(|it| {
            it.freeze(frozen)?;
            it.is_frozen()
        });
        match set {
            Ok(now) => done &= now == frozen,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// The cgroup directories of a box.
pub const HOLDING: Holding = Holding {
    kind: "cgroup",
    ends: Ends::AtEnd(|at, record, within| {
        let roots = roots_of(at, record);
        release(&roots, at.tagged_id(), within)?;
        // Nothing can be below the directory of a pool any more.
        for pool in roots.iter().filter(|root| is_of(root, at.tagged_id())) {
            parents::remove(&at.root.layout, pool).ok();
        }
        Ok(())
    }),
    probe: |look| Found::paths(directories(look.at, look.record)),
    sight: Sight::Check {
        word: "cgroup_path",
        is_gone: |at, record, _| own_paths(at, record).iter().all(|path| is_missing(path)),
    },
};

/// The directories of the box that exist. The kernel removes none that has others below it.
fn directories(at: BoxAt<'_>, record: &Record) -> Vec<PathBuf> {
    own_paths(at, record).into_iter().filter(|path| path.exists()).collect()
}

fn own_paths(at: BoxAt<'_>, record: &Record) -> Vec<PathBuf> {
    paths(&roots_of(at, record), at.tagged_id())
}

/// The directories of a box: one in each hierarchy, and behind that of a template the one of its pool,
/// which contains it.
fn paths(roots: &[PathBuf], of: TaggedId<'_>) -> Vec<PathBuf> {
    let own =
        |root: &PathBuf| [Some(layout::cgroup(root, of)), is_of(root, of).then(|| root.clone())];
    roots.iter().flat_map(own).flatten().collect()
}

/// The directories in which the box may have a cgroup: as its record says, or all.
pub fn roots_of(at: BoxAt<'_>, record: &Record) -> Vec<PathBuf> {
    let created = record.lines.created.as_ref();
    let recorded = created.map(|created| created.cgroup_roots.clone());
    recorded.unwrap_or_else(|| parents::all(at.root))
}

/// The directory of each hierarchy in which the box has its cgroup: as its record says, or where a
/// cgroup of it is found.
pub fn parents_of(at: BoxAt<'_>, record: &Record) -> CgroupRoots {
    let known = &at.root.host.cgroups;
    match &record.lines.created {
        Some(created) => known.recorded(&created.cgroup_roots),
        None => {
            let has_box = |parent: &PathBuf| layout::cgroup(parent, at.tagged_id()).is_dir();
            let found: Vec<PathBuf> = parents::all(at.root).into_iter().filter(has_box).collect();
            known.recorded(&found)
        }
    }
}

/// Returns whether a path in the hierarchy is the cgroup of a box, and not one below it.
pub fn is_of(path: &Path, of: TaggedId<'_>) -> bool {
    path == layout::cgroup(path.parent().unwrap_or(Path::new("/")), of)
}

/// Lifts the limit on processor time of a box that is about to be killed. A process needs
/// processor time to die, and hundreds of them at a hundredth of a processor would take minutes.
pub fn unthrottle(roots: &[PathBuf], of: TaggedId<'_>) {
    let own = roots.iter().map(|root| layout::cgroup(root, of));
    let all = own.flat_map(|own| [own.join(layout::WORKLOAD_CGROUP), own]);
    for cgroup in all.filter_map(|path| Cgroup::open(&path).ok()) {
        for (file, unlimited) in [("cpu.max", "max"), ("cpu.cfs_quota_us", "-1")] {
            // Each directory has one of these files or none.
            cgroup.write(file, unlimited).ok();
        }
    }
}

/// A directory can stay busy for a moment after its last process is gone.
const REMOVE_WITHIN: Duration = Duration::from_secs(2);

/// Kills the remaining processes and removes the directories. Returns after all are gone, or
/// an error if that takes too long. Accepts directories that are absent or half made.
pub fn release(roots: &[PathBuf], of: TaggedId<'_>, within: Duration) -> Result<(), Error> {
    let mut left = paths(roots, of);
    // Most are empty by now. The kernel does not remove one that is not.
    left.retain(|path| cgroup::remove(path).is_err());
    for path in &left {
        empty(path, within).context(|| format!("cannot empty cgroup {}", path.display()))?;
    }
    for path in &left {
        remove(path, within.min(REMOVE_WITHIN))
            .context(|| format!("cannot remove cgroup {}", path.display()))?;
    }
    Ok(())
}

fn empty(path: &Path, within: Duration) -> io::Result<()> {
    let cgroup = match Cgroup::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    match cgroup::kill_until_empty(&cgroup, within) {
        Ok(true) => Ok(()),
        Ok(false) => Err(io::Error::other(STILL_POPULATED)),
        // A v1 directory has no `cgroup.events`. Its processes are those of the unified
        // directory, which is empty.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn remove(path: &Path, within: Duration) -> io::Result<()> {
    let start = Instant::now();
    loop {
        match cgroup::remove(path) {
            Err(error)
                if error.kind() == io::ErrorKind::ResourceBusy && start.elapsed() < within =>
            {
                #[expect(clippy::disallowed_methods, reason = "bounded by `within`")]
                std::thread::sleep(LOOK_AGAIN);
            }
            removed => return removed,
        }
    }
}
