//! The cgroups of a box that lives: what it uses, and what can be changed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, statat};
use tare_kernel::cgroup::tree::{self, CgroupTree, Members};
use tare_kernel::cgroup::{Cgroup, keyed_number};
use tare_kernel::fds::read_text;

use super::{ALL, Controller, cannot_enforce, unified_settings, v1_settings, write_settings};
use crate::error::{Doing, Error, ErrorKind};
use crate::host::CgroupRoots;
use crate::layout;
use crate::spec::Limits;
use crate::tag::Tagged;

/// What the kernel has counted; `None` where it does not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CgroupUsage {
    pub memory_bytes: Option<u64>,
    /// The keeper included.
    pub pids: Option<u64>,
    pub cpu_us: Option<u64>,
}

/// The hierarchies' roots, opened once: a list reads the files of thousands of
/// boxes, and looking a path up from its beginning is most of what that takes.
#[derive(Debug)]
pub struct Meters {
    unified: Option<OwnedFd>,
    memory: Option<OwnedFd>,
    pids: Option<OwnedFd>,
}

/// Where the workload of a box is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lodging {
    /// With its keeper.
    Shared,
    Below,
}

impl Meters {
    pub fn open(roots: &CgroupRoots) -> Self {
        let open = |root: &Option<PathBuf>| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            openat(CWD, root.as_deref()?, flags, Mode::empty()).ok()
        };
        Self {
            unified: open(&roots.unified),
            memory: open(&roots.memory),
            pids: open(&roots.pids),
        }
    }

    /// How many processes a box has and what memory they use.
    pub fn usage(&self, of: Tagged<'_>) -> CgroupUsage {
        CgroupUsage {
            memory_bytes: self.memory(of),
            pids: self.number(of, &self.pids, "pids.current", "pids.current"),
            cpu_us: None,
        }
    }

    /// What memory a box uses.
    pub fn memory(&self, of: Tagged<'_>) -> Option<u64> {
        self.number(of, &self.memory, "memory.usage_in_bytes", "memory.current")
    }

    fn number(
        &self,
        of: Tagged<'_>,
        v1_root: &Option<OwnedFd>,
        v1_file: &str,
        v2_file: &str,
    ) -> Option<u64> {
        let text = match v1_root {
            Some(_) => read(v1_root, of, v1_file),
            None => read(&self.unified, of, v2_file),
        };
        text?.trim().parse().ok()
    }

    /// The same with the processor's time, which v2 counts in any case.
    pub fn usage_with_cpu(&self, of: Tagged<'_>) -> CgroupUsage {
        let text = read(&self.unified, of, "cpu.stat").unwrap_or_default();
        CgroupUsage {
            cpu_us: keyed_number(&text, "usage_usec"),
            ..self.usage(of)
        }
    }

    /// Its cgroup with all that is below it, and who is in there; nothing where
    /// there is none.
    pub fn tree(&self, of: Tagged<'_>) -> CgroupTree {
        let Some(root) = &self.unified else {
            return CgroupTree::default();
        };
        let name = layout::cgroup(Path::new(""), of);
        let name = name.to_str().unwrap_or_default();
        let read = tree::read(root.as_fd(), name, layout::WORKLOAD_CGROUP, Members::Read);
        read.unwrap_or_default()
    }

    /// The root of the unified hierarchy.
    pub fn unified(&self) -> Option<BorrowedFd<'_>> {
        self.unified.as_ref().map(AsFd::as_fd)
    }

    /// Whether it has a cgroup.
    pub fn has(&self, of: Tagged<'_>) -> bool {
        let path = layout::cgroup(Path::new(""), of);
        let unified = self.unified.as_ref();
        unified.is_some_and(|root| statat(root, path, AtFlags::empty()).is_ok())
    }

    /// Whether anybody is alive in it; nobody where there is no such cgroup.
    pub fn is_populated(&self, of: Tagged<'_>) -> bool {
        let text = read(&self.unified, of, "cgroup.events");
        text.is_some_and(|text| keyed_number(&text, "populated") == Some(1))
    }

    /// Whether the workload is to stand still; a box without cgroups never is.
    pub fn is_frozen(&self, of: Tagged<'_>, lodging: Lodging) -> bool {
        let text = match lodging {
            Lodging::Shared => read(&self.unified, of, "cgroup.freeze"),
            Lodging::Below => {
                let file = format!("{}/cgroup.freeze", layout::WORKLOAD_CGROUP);
                read(&self.unified, of, &file)
            }
        };
        text.is_some_and(|text| text.trim() == "1")
    }
}

fn read(root: &Option<OwnedFd>, of: Tagged<'_>, file: &str) -> Option<String> {
    let path = layout::cgroup(Path::new(""), of).join(file);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = openat(root.as_ref()?, path, flags, Mode::empty()).ok()?;
    read_text(file.as_fd()).ok()
}

fn open(root: Option<&Path>, of: Tagged<'_>) -> Option<Cgroup> {
    Cgroup::open(&layout::cgroup(root?, of)).ok()
}

/// The cgroup of the workload: of an attached box, with its keeper.
fn workload(roots: &CgroupRoots, of: Tagged<'_>) -> io::Result<Option<Cgroup>> {
    let Some(root) = roots.unified.as_deref() else {
        return Ok(None);
    };
    let path = layout::cgroup(root, of);
    let is_missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    for one in [path.join(layout::WORKLOAD_CGROUP), path] {
        match Cgroup::open(&one) {
            Err(error) if is_missing(&error) => {}
            other => return other.map(Some),
        }
    }
    Ok(None)
}

/// How long processes may take to stop: they do when they next leave the kernel.
const FREEZE_WITHIN: Duration = Duration::from_secs(10);
/// Between looks; the kernel's own notice can be late.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// Stops or continues the workload; returns once that was seen. What cannot be
/// stopped in time goes on.
pub fn freeze(roots: &CgroupRoots, of: Tagged<'_>, frozen: bool) -> Result<(), Error> {
    let doing = || match frozen {
        true => format!("cannot pause box {}", of.id),
        false => format!("cannot resume box {}", of.id),
    };
    let Some(workload) = workload(roots, of).doing(doing)? else {
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
pub fn change(
    roots: &CgroupRoots,
    of: Tagged<'_>,
    limits: &Limits,
    which: Which,
) -> Result<(), Error> {
    let asked = |one: &Controller| match one {
        Controller::Memory => which.memory,
        Controller::Pids => which.pids,
        Controller::Cpu => which.cpu,
    };
    for controller in ALL.into_iter().filter(asked) {
        set(roots, of, limits, controller)?;
    }
    Ok(())
}

fn set(
    roots: &CgroupRoots,
    of: Tagged<'_>,
    limits: &Limits,
    controller: Controller,
) -> Result<(), Error> {
    if let Some(cgroup) = open(controller.v1_root(roots), of) {
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
    let unified = open(roots.unified.as_deref(), of);
    match unified.filter(|cgroup| has(cgroup, file)) {
        Some(cgroup) => write_settings(&cgroup, controller, &unified_settings(controller, limits)),
        None => Err(cannot_enforce(controller)),
    }
}

fn has(cgroup: &Cgroup, file: &str) -> bool {
    !matches!(cgroup.read(file), Err(error) if error.kind() == io::ErrorKind::NotFound)
}
