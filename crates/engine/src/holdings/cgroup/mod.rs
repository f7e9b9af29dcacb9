//! A box's cgroup directories: one in the unified hierarchy for its identity
//! and its end, and where that one has no controllers, one in each v1 hierarchy
//! that enforces a limit.

mod live;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tare_kernel::cgroup::{self, Cgroup};

pub use crate::holdings::cgroup::live::{CgroupUsage, Lodging, Meters, Which, change, freeze};

use crate::error::{Context, Error, ErrorKind};
use crate::host::layout;
use crate::host::tag::Tagged;
use crate::host::{CgroupRoots, Host};
use crate::spec::{Cpus, Limits};

/// Why a box is stuck whose processes do not die; its record says so.
pub const STILL_POPULATED: &str = "processes are still alive in it";

/// How the kernel is told about a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Controller {
    Memory,
    Pids,
    Cpu,
}

/// Where the workload lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Residence {
    /// With the keeper.
    Shared,
    /// Below it, so that it can be frozen without the keeper, who enters its
    /// processes there as this uid of the host (`None`: as we are).
    Below { keeper_uid: Option<u32> },
}

/// What a box holds, and what could not be had.
#[derive(Debug, Default)]
pub struct CgroupHolding {
    pub unified: Option<Cgroup>,
    /// Below it, if the workload has one of its own.
    pub workload: Option<Cgroup>,
    /// Where kills for memory are counted, with the file that counts them.
    memory: Option<(Cgroup, &'static str)>,
    /// v1 `tasks` files that the keeper joins by itself.
    pub join: Vec<OwnedFd>,
    /// Whether these are enforced by cgroup.
    pub memory_enforced: bool,
    pub pids_enforced: bool,
}

const ALL: [Controller; 3] = [Controller::Memory, Controller::Pids, Controller::Cpu];

impl Controller {
    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
        }
    }

    fn v1_root(self, roots: &CgroupRoots) -> Option<&Path> {
        let root = match self {
            Self::Memory => &roots.memory,
            Self::Pids => &roots.pids,
            Self::Cpu => &roots.cpu,
        };
        root.as_deref()
    }

    /// A box that lives on has them all: a limit may be asked for later.
    fn wanted(self, limits: &Limits, residence: Residence) -> bool {
        match (self, residence) {
            (Self::Memory | Self::Pids, _) | (Self::Cpu, Residence::Below { .. }) => true,
            (Self::Cpu, Residence::Shared) => limits.cpus.is_some(),
        }
    }

    /// Whether there is anything to tell. Of processor time a fresh directory has no
    /// limit, and to be told so again the kernel looks at all groups of the host.
    fn limited(self, limits: &Limits) -> bool {
        match self {
            Self::Memory | Self::Pids => true,
            Self::Cpu => limits.cpus.is_some(),
        }
    }

    fn asked(self, limits: &Limits) -> bool {
        match self {
            Self::Memory => limits.memory_bytes.is_explicit(),
            // Without a cgroup a resource limit counts the processes of the
            // box's own user namespace: enforced all the same.
            Self::Pids => false,
            Self::Cpu => limits.cpus.is_some(),
        }
    }
}

/// Makes the directories and sets the limits. On an error the caller tears the
/// box down; what was made so far has derived names.
pub fn acquire(
    host: &Host,
    of: Tagged<'_>,
    limits: &Limits,
    residence: Residence,
) -> Result<CgroupHolding, Error> {
    let mut holding = CgroupHolding::default();
    let roots = &host.cgroups;
    if let Some(root) = &roots.unified {
        holding.unified = make(root, of)?;
    }
    if let Some(unified) = &holding.unified {
        bound_nesting(unified);
    }
    if let (Some(unified), Residence::Below { keeper_uid }) = (&holding.unified, residence) {
        let workload = unified.make_below(layout::WORKLOAD_CGROUP, keeper_uid);
        holding.workload =
            Some(workload.context(|| format!("cannot make box {} a cgroup", of.id))?);
    }
    let on_unified = match &holding.unified {
        Some(_) => unified_controllers(roots.unified.as_deref()),
        None => Vec::new(),
    };
    let wanted = ALL.into_iter().filter(|one| one.wanted(limits, residence));
    for controller in wanted {
        let enforced = if on_unified.contains(&controller) {
            enforce_unified(&mut holding, controller, limits, roots, of)?
        } else {
            enforce_v1(&mut holding, controller, limits, roots, of)?
        };
        if !enforced && controller.asked(limits) {
            return Err(cannot_enforce(controller));
        }
    }
    Ok(holding)
}

/// How many cgroups a box may make below its own, and how deep: teardown walks all of
/// them.
const NESTING_MAX: [(&str, &str); 2] =
    [("cgroup.max.descendants", "1000"), ("cgroup.max.depth", "32")];

/// A kernel without these files (before 4.14) sets no limit. Teardown does not rely on
/// it: the root of a contained box may raise it again.
fn bound_nesting(unified: &Cgroup) {
    for (file, most) in NESTING_MAX {
        unified.write(file, most).ok();
    }
}

/// `None` where the hierarchy is not ours to write.
fn make(root: &Path, of: Tagged<'_>) -> Result<Option<Cgroup>, Error> {
    let path = layout::cgroup(root, of);
    match Cgroup::create(&path) {
        Ok(cgroup) => Ok(Some(cgroup)),
        Err(error) if is_refusal(&error) => Ok(None),
        Err(error) => Err(error).context(|| format!("cannot make cgroup {}", path.display())),
    }
}

fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::NotFound
    )
}

/// The controllers that children of this root can have, switched on if need be.
fn unified_controllers(root: Option<&Path>) -> Vec<Controller> {
    let Some(cgroup) = root.and_then(|root| Cgroup::open(root).ok()) else {
        return Vec::new();
    };
    let listed = |file: &str| {
        let text = cgroup.read(file).unwrap_or_default();
        ALL.into_iter()
            .filter(|one| text.split_whitespace().any(|name| name == one.name()))
            .collect::<Vec<_>>()
    };
    let mut usable = listed("cgroup.controllers");
    if usable.is_empty() {
        return usable;
    }
    let switched_on = listed("cgroup.subtree_control");
    usable.retain(|one| {
        let switch_on = || cgroup.write("cgroup.subtree_control", &format!("+{}", one.name()));
        switched_on.contains(one) || (may_hand_down(&cgroup) && switch_on().is_ok())
    });
    usable
}

/// Whether switching a controller on leaves the children usable. In a cgroup with
/// processes of its own, such as a delegated one that we are in, the kernel
/// refuses the memory controller, but takes cpu and pids and makes every child
/// part of a threaded tree, where no process can be born (cgroup-v2.rst,
/// "Threads"). The hierarchy's root is exempt; only it has no `cgroup.type`.
fn may_hand_down(cgroup: &Cgroup) -> bool {
    let is_root = cgroup.read("cgroup.type").is_err();
    is_root || cgroup.read("cgroup.procs").is_ok_and(|pids| pids.is_empty())
}

fn enforce_unified(
    holding: &mut CgroupHolding,
    controller: Controller,
    limits: &Limits,
    roots: &CgroupRoots,
    of: Tagged<'_>,
) -> Result<bool, Error> {
    let Some(cgroup) = &holding.unified else {
        return Ok(false);
    };
    let mut settings = unified_settings(controller, limits);
    if controller == Controller::Memory && holding.workload.is_none() {
        // A box with one command ends as a whole; in one that lives on, the
        // kernel picks a process.
        settings.push(("memory.oom.group", "1".to_owned(), Presence::Optional));
    }
    if controller.limited(limits) {
        write_settings(cgroup, controller, &settings)?;
    }
    holding.note_enforced(controller);
    if controller == Controller::Memory {
        let path = roots.unified.as_deref().map(|root| layout::cgroup(root, of));
        let again = path.and_then(|path| Cgroup::open(&path).ok());
        holding.memory = again.map(|cgroup| (cgroup, "memory.events"));
    }
    Ok(true)
}

fn enforce_v1(
    holding: &mut CgroupHolding,
    controller: Controller,
    limits: &Limits,
    roots: &CgroupRoots,
    of: Tagged<'_>,
) -> Result<bool, Error> {
    // Without the unified directory nothing would be killed with it.
    let (Some(root), Some(_)) = (controller.v1_root(roots), &holding.unified) else {
        return Ok(false);
    };
    let Some(cgroup) = make(root, of)? else {
        return Ok(false);
    };
    if controller.limited(limits) {
        write_settings(&cgroup, controller, &v1_settings(controller, limits))?;
    }
    let tasks =
        cgroup.tasks().context(|| format!("cannot open the {} tasks", controller.name()))?;
    holding.join.push(tasks);
    holding.note_enforced(controller);
    if controller == Controller::Memory {
        holding.memory = Some((cgroup, "memory.oom_control"));
    }
    Ok(true)
}

/// A file, its value, and whether the kernel may not have it.
type Setting = (&'static str, String, Presence);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    Required,
    /// Only where swap is accounted, or on newer kernels.
    Optional,
}

fn unified_settings(controller: Controller, limits: &Limits) -> Vec<Setting> {
    match controller {
        Controller::Memory => vec![
            ("memory.max", limits.memory_bytes.value().to_string(), Presence::Required),
            ("memory.swap.max", "0".to_owned(), Presence::Optional),
        ],
        Controller::Pids => vec![("pids.max", pids(limits), Presence::Required)],
        Controller::Cpu => {
            let quota = limits.cpus.map(quota_us);
            let quota = quota.map_or("max".to_owned(), |quota| quota.to_string());
            vec![("cpu.max", format!("{quota} {PERIOD_US}"), Presence::Required)]
        }
    }
}

fn v1_settings(controller: Controller, limits: &Limits) -> Vec<Setting> {
    let memory = limits.memory_bytes.value().to_string();
    match controller {
        Controller::Memory => vec![
            ("memory.limit_in_bytes", memory.clone(), Presence::Required),
            ("memory.memsw.limit_in_bytes", memory, Presence::Optional),
        ],
        Controller::Pids => vec![("pids.max", pids(limits), Presence::Required)],
        Controller::Cpu => vec![
            ("cpu.cfs_period_us", PERIOD_US.to_string(), Presence::Required),
            (
                "cpu.cfs_quota_us",
                limits.cpus.map_or("-1".to_owned(), |cpus| quota_us(cpus).to_string()),
                Presence::Required,
            ),
        ],
    }
}

const PERIOD_US: u64 = 100_000;

fn quota_us(cpus: Cpus) -> u64 {
    u64::from(cpus.milli) * PERIOD_US / 1000
}

/// The keeper is one of them and not the user's.
fn pids(limits: &Limits) -> String {
    (u64::from(limits.pids.value()) + 1).to_string()
}

fn write_settings(
    cgroup: &Cgroup,
    controller: Controller,
    settings: &[Setting],
) -> Result<(), Error> {
    let name = controller.name();
    for (file, value, presence) in settings {
        let doing = || format!("cannot set {file} to {value}");
        match cgroup.write(file, value) {
            Err(_) if *presence == Presence::Optional => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                return Err(error).context(doing).map_err(|error| {
                    error.with_hint(format!("is the {name} limit in the host's range?"))
                });
            }
            other => other.context(doing)?,
        }
    }
    Ok(())
}

fn cannot_enforce(controller: Controller) -> Error {
    let name = controller.name();
    let option = match controller {
        Controller::Memory => "--memory",
        Controller::Pids => "--pids",
        Controller::Cpu => "--cpus",
    };
    Error::new(ErrorKind::Unsupported, format!("cannot enforce {option} on this host"))
        .caused_by(format!("no writable cgroup with the {name} controller"))
        .with_hint(format!(
            "run as root or with a delegated cgroup, or leave {option} out; see 'tare doctor'"
        ))
}

impl CgroupHolding {
    fn note_enforced(&mut self, controller: Controller) {
        match controller {
            Controller::Memory => self.memory_enforced = true,
            Controller::Pids => self.pids_enforced = true,
            Controller::Cpu => {}
        }
    }

    /// Processes of the box that the kernel has killed for memory.
    pub fn oom_kills(&self) -> u64 {
        let Some((cgroup, file)) = &self.memory else {
            return 0;
        };
        cgroup.read_key(file, "oom_kill").ok().flatten().unwrap_or(0)
    }
}

/// Whether a path in the hierarchy is that of a box, and not of one below it.
pub fn is_of(path: &Path, of: Tagged<'_>) -> bool {
    path == layout::cgroup(path.parent().unwrap_or(Path::new("/")), of)
}

/// Processes of a box that the kernel has killed for memory, wherever it counts
/// them; 0 where the directories are gone.
pub fn oom_kills(roots: &[PathBuf], of: Tagged<'_>) -> u64 {
    let counted = roots.iter().filter_map(|root| {
        let cgroup = Cgroup::open(&layout::cgroup(root, of)).ok()?;
        let in_file = |file: &str| cgroup.read_key(file, "oom_kill").ok().flatten();
        in_file("memory.events").or_else(|| in_file("memory.oom_control"))
    });
    counted.max().unwrap_or(0)
}

/// A directory can stay busy for a moment after its last process is gone.
const REMOVE_WITHIN: Duration = Duration::from_secs(2);

/// Kills whoever is left and removes the directories; returns once all of it
/// was seen gone, or could not be within the time. Absent and half-made are as
/// good as whole.
pub fn release(roots: &[PathBuf], of: Tagged<'_>, within: Duration) -> Result<(), Error> {
    let mut left: Vec<PathBuf> = roots.iter().map(|root| layout::cgroup(root, of)).collect();
    // The kernel removes none that is not empty, and most are empty by now.
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
        other => other?,
    };
    match cgroup::kill_until_empty(&cgroup, within) {
        Ok(true) => Ok(()),
        Ok(false) => Err(io::Error::other(STILL_POPULATED)),
        // A v1 directory has no `cgroup.events`; its members are those of the
        // unified one, which was seen empty.
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
                std::thread::sleep(Duration::from_micros(200));
            }
            other => return other,
        }
    }
}
