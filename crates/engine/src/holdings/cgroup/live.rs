//! The cgroups of a box that lives: what it uses, and what can be changed.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, statat};
use rustix::io::Errno;
use tare_kernel::cgroup::{Cgroup, keyed_number};
use tare_kernel::cgroup_tree::{self as tree, CgroupTree, Members};
use tare_kernel::fds::read_text;

use crate::error::{Context, Error, ErrorKind};
use crate::holdings::cgroup::{
    ALL, Controller, cannot_enforce, unified_settings, v1_settings, write_settings,
};
use crate::host::CgroupRoots;
use crate::host::layout;
use crate::host::tag::Tagged;
use crate::spec::Limits;

/// What the kernel has counted; `None` where it does not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CgroupUsage {
    pub memory_bytes: Option<u64>,
    /// The keeper included.
    pub pids: Option<u64>,
    pub cpu_us: Option<u64>,
}

/// The hierarchies' roots, each opened once: a list reads the files of thousands of
/// boxes, and looking a path up from its beginning is most of what that takes.
#[derive(Debug)]
pub struct Meters {
    unified: Root,
    memory: Root,
    pids: Root,
}

/// A hierarchy that the host may not have. Only a success is remembered: a server that
/// had no descriptor left once would otherwise never see a box in its cgroup again.
#[derive(Debug)]
struct Root {
    path: Option<PathBuf>,
    opened: OnceLock<OwnedFd>,
}

impl Root {
    fn of(path: &Option<PathBuf>) -> Self {
        Self { path: path.clone(), opened: OnceLock::new() }
    }

    fn open(&self) -> io::Result<BorrowedFd<'_>> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened.as_fd());
        }
        let path = self.path.as_deref().ok_or(io::ErrorKind::NotFound)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat(CWD, path, flags, Mode::empty())?;
        Ok(self.opened.get_or_init(|| opened).as_fd())
    }
}

/// Where the workload of a box is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lodging {
    /// With its keeper.
    Shared,
    Below,
}

impl Meters {
    pub fn new(roots: &CgroupRoots) -> Self {
        Self {
            unified: Root::of(&roots.unified),
            memory: Root::of(&roots.memory),
            pids: Root::of(&roots.pids),
        }
    }

    /// Opens the roots that this host has. One that cannot be opened now is tried again
    /// when it is needed.
    pub fn open(&self) {
        for root in [&self.unified, &self.memory, &self.pids] {
            root.open().ok();
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

    fn number(&self, of: Tagged<'_>, v1_root: &Root, v1_file: &str, v2_file: &str) -> Option<u64> {
        let text = match v1_root.path {
            Some(_) => read(v1_root, of, v1_file),
            None => read(&self.unified, of, v2_file),
        };
        text.ok()?.trim().parse().ok()
    }

    /// The same with the processor's time, which v2 counts in any case.
    pub fn usage_with_cpu(&self, of: Tagged<'_>) -> CgroupUsage {
        let text = read(&self.unified, of, "cpu.stat").unwrap_or_default();
        CgroupUsage { cpu_us: keyed_number(&text, "usage_usec"), ..self.usage(of) }
    }

    /// Its cgroup with all that is below it, and who is in there; nothing where
    /// there is none.
    pub fn tree(&self, of: Tagged<'_>) -> CgroupTree {
        let Some(root) = self.unified() else {
            return CgroupTree::default();
        };
        let name = layout::cgroup(Path::new(""), of);
        let name = name.to_str().unwrap_or_default();
        let read = tree::read(root, name, layout::WORKLOAD_CGROUP, Members::Read);
        read.unwrap_or_default()
    }

    /// The root of the unified hierarchy.
    pub fn unified(&self) -> Option<BorrowedFd<'_>> {
        self.unified.open().ok()
    }

    /// Whether it has a cgroup.
    pub fn has(&self, of: Tagged<'_>) -> bool {
        let path = layout::cgroup(Path::new(""), of);
        let unified = self.unified();
        unified.is_some_and(|root| statat(root, path, AtFlags::empty()).is_ok())
    }

    /// Whether a process lives in the cgroup; false if there is no such cgroup. An error means
    /// that it cannot be seen.
    pub fn is_populated(&self, of: Tagged<'_>) -> io::Result<bool> {
        match read(&self.unified, of, "cgroup.events") {
            Ok(text) => Ok(keyed_number(&text, "populated") == Some(1)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            // The directory went while the file was open.
            Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => Ok(false),
            Err(error) => Err(error),
        }
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
        text.is_ok_and(|text| text.trim() == "1")
    }
}

fn read(root: &Root, of: Tagged<'_>, file: &str) -> io::Result<String> {
    let path = layout::cgroup(Path::new(""), of).join(file);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    read_text(openat(root.open()?, path, flags, Mode::empty())?.as_fd())
}

fn open(root: Option<&Path>, of: Tagged<'_>) -> Option<Cgroup> {
    Cgroup::open(&layout::cgroup(root?, of)).ok()
}

/// The cgroups that hold the workload: of an attached box its own, with the keeper; of a
/// detached one all below its own, which the box may have added to (`--contain`).
fn workloads(roots: &CgroupRoots, of: Tagged<'_>) -> io::Result<Vec<PathBuf>> {
    let Some(root) = roots.unified.as_deref() else {
        return Ok(Vec::new());
    };
    let path = layout::cgroup(root, of);
    let entries = match fs::read_dir(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let directories = entries.filter(|it| !matches!(it, Ok(it) if !is_directory(it)));
    let below: Vec<PathBuf> =
        directories.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    if path.join(layout::WORKLOAD_CGROUP).is_dir() { Ok(below) } else { Ok(vec![path]) }
}

fn is_directory(entry: &fs::DirEntry) -> bool {
    entry.file_type().is_ok_and(|kind| kind.is_dir())
}

/// How long processes may take to stop: they do when they next leave the kernel.
const FREEZE_WITHIN: Duration = Duration::from_secs(10);
/// Between looks; the kernel's own notice can be late.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// Stops or continues the workload; returns once that was seen. What cannot be
/// stopped in time goes on.
pub fn freeze(roots: &CgroupRoots, of: Tagged<'_>, frozen: bool) -> Result<(), Error> {
    let doing = || {
        if frozen {
            format!("cannot pause box {}", of.id)
        } else {
            format!("cannot resume box {}", of.id)
        }
    };
    let mut cgroups = workloads(roots, of).context(doing)?;
    if cgroups.is_empty() {
        return Err(Error::new(ErrorKind::Unsupported, doing())
            .caused_by("it has no cgroup: none is writable here")
            .with_hint("see 'tare doctor'"));
    }
    let start = Instant::now();
    loop {
        let stand_still = set_frozen(&cgroups, frozen).context(doing)?;
        // A process that still ran may have made one more and moved there.
        let now = workloads(roots, of).context(doing)?;
        if stand_still && now == cgroups {
            return Ok(());
        }
        cgroups = now;
        if start.elapsed() >= FREEZE_WITHIN {
            set_frozen(&cgroups, !frozen).context(doing)?;
            let why = "a process in it hangs in the kernel";
            return Err(Error::failed(doing()).caused_by(why));
        }
        #[expect(clippy::disallowed_methods, reason = "bounded by FREEZE_WITHIN")]
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Whether all of them are seen to be so by now. One that is gone is as wanted.
fn set_frozen(cgroups: &[PathBuf], frozen: bool) -> io::Result<bool> {
    let mut are_so = true;
    for path in cgroups {
        let set = Cgroup::open(path).and_then(|it| {
            it.freeze(frozen)?;
            it.is_frozen()
        });
        match set {
            Ok(now) => are_so &= now == frozen,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(are_so)
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
