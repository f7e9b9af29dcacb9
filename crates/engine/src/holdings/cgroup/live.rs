//! The cgroups of a box that lives: what it uses, and what can be changed.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use tare_kernel::cgroup::Cgroup;

use super::{ALL, Controller, cannot_enforce, unified_settings, v1_settings, write_settings};
use crate::error::{Doing, Error, ErrorKind};
use crate::host::CgroupRoots;
use crate::id::BoxId;
use crate::layout;
use crate::spec::Limits;

/// What the kernel has counted; `None` where it does not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CgroupUsage {
    pub memory_bytes: Option<u64>,
    /// The keeper included.
    pub pids: Option<u64>,
    pub cpu_us: Option<u64>,
}

/// How many processes there are and what memory they use, as a list shows it.
pub fn usage(roots: &CgroupRoots, id: &BoxId) -> CgroupUsage {
    let unified = open(roots.unified.as_deref(), id);
    let number = |root: Option<&Path>, v1_file: &str, v2_file: &str| {
        let (cgroup, file) = match open(root, id) {
            Some(cgroup) => (Some(cgroup), v1_file),
            None => (None, v2_file),
        };
        let cgroup = cgroup.as_ref().or(unified.as_ref())?;
        cgroup.read(file).ok()?.trim().parse().ok()
    };
    CgroupUsage {
        memory_bytes: number(
            roots.memory.as_deref(),
            "memory.usage_in_bytes",
            "memory.current",
        ),
        pids: number(roots.pids.as_deref(), "pids.current", "pids.current"),
        cpu_us: None,
    }
}

/// The same with the processor's time, which v2 counts in any case.
pub fn usage_with_cpu(roots: &CgroupRoots, id: &BoxId) -> CgroupUsage {
    let unified = open(roots.unified.as_deref(), id);
    let cpu = unified.and_then(|cgroup| cgroup.read_key("cpu.stat", "usage_usec").ok());
    CgroupUsage {
        cpu_us: cpu.flatten(),
        ..usage(roots, id)
    }
}

fn open(root: Option<&Path>, id: &BoxId) -> Option<Cgroup> {
    Cgroup::open(&layout::cgroup(root?, id)).ok()
}

/// Whether the workload is stopped; a box without cgroups never is.
pub fn is_frozen(roots: &CgroupRoots, id: &BoxId) -> bool {
    let workload = workload(roots, id);
    workload.is_some_and(|cgroup| cgroup.is_frozen().unwrap_or(false))
}

/// The cgroup of the workload: of an attached box, with its keeper.
fn workload(roots: &CgroupRoots, id: &BoxId) -> Option<Cgroup> {
    let path = layout::cgroup(roots.unified.as_deref()?, id);
    let below = Cgroup::open(&path.join(layout::WORKLOAD_CGROUP));
    below.or_else(|_| Cgroup::open(&path)).ok()
}

/// How long processes may take to stop: they do when they next leave the kernel.
const FREEZE_WITHIN: Duration = Duration::from_secs(10);
/// Between looks; the kernel's own notice can be late.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// Stops or continues the workload; returns once that was seen. What cannot be
/// stopped in time goes on.
pub fn freeze(roots: &CgroupRoots, id: &BoxId, frozen: bool) -> Result<(), Error> {
    let doing = || match frozen {
        true => format!("cannot pause box {id}"),
        false => format!("cannot resume box {id}"),
    };
    let Some(workload) = workload(roots, id) else {
        return Err(Error::new(ErrorKind::Unsupported, doing())
            .because("it has no cgroup: none is writable here")
            .with_hint("see 'tare doctor'"));
    };
    workload.freeze(frozen).doing(doing)?;
    let start = Instant::now();
    while workload.is_frozen().doing(doing)? != frozen {
        if start.elapsed() >= FREEZE_WITHIN {
            workload.freeze(!frozen).doing(doing)?;
            let why = "a process in it hangs in the kernel";
            return Err(Error::new(ErrorKind::Failed, doing()).because(why));
        }
        // A bounded look-again: ends at `FREEZE_WITHIN`.
        std::thread::sleep(LOOK_AGAIN);
    }
    Ok(())
}

/// Which limits are to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Which {
    pub memory: bool,
    pub pids: bool,
    pub cpu: bool,
}

/// Sets limits anew. One that cannot be enforced is an error.
pub fn change(roots: &CgroupRoots, id: &BoxId, limits: &Limits, which: Which) -> Result<(), Error> {
    let asked = |one: &Controller| match one {
        Controller::Memory => which.memory,
        Controller::Pids => which.pids,
        Controller::Cpu => which.cpu,
    };
    for controller in ALL.into_iter().filter(asked) {
        set(roots, id, limits, controller)?;
    }
    Ok(())
}

fn set(
    roots: &CgroupRoots,
    id: &BoxId,
    limits: &Limits,
    controller: Controller,
) -> Result<(), Error> {
    if let Some(cgroup) = open(controller.v1_root(roots), id) {
        let mut settings = v1_settings(controller, limits);
        // Memory with swap can never be less than memory without: whichever way
        // it goes, one order is refused.
        if write_settings(&cgroup, controller, &settings).is_ok() {
            return Ok(());
        }
        settings.reverse();
        return write_settings(&cgroup, controller, &settings);
    }
    let file = match controller {
        Controller::Memory => "memory.max",
        Controller::Pids => "pids.max",
        Controller::Cpu => "cpu.max",
    };
    let unified = open(roots.unified.as_deref(), id);
    match unified.filter(|cgroup| has(cgroup, file)) {
        Some(cgroup) => write_settings(&cgroup, controller, &unified_settings(controller, limits)),
        None => Err(cannot_enforce(controller)),
    }
}

fn has(cgroup: &Cgroup, file: &str) -> bool {
    !matches!(cgroup.read(file), Err(error) if error.kind() == io::ErrorKind::NotFound)
}
