//! Reads the cgroups of a box: what it uses, which processes are in it, whether it is frozen.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, statat};
use rustix::io::Errno;
use tare_kernel::cgroup::{Cgroup, Version, keyed_number};
use tare_kernel::cgroup_tree::{self, CgroupTree, Members};
use tare_kernel::fds::{open_file, read_text};

use super::WorkloadCgroup;
use crate::host::Host;
use crate::host::cgroups::{OpenRoot, OpenRoots, reclaimable};
use crate::host::layout::{self, BoxAt};
use crate::host::tag::Tagged;

/// What the kernel has counted; `None` where it does not count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CgroupUsage {
    pub memory_bytes: Option<u64>,
    /// Includes the keeper.
    pub pids: Option<u64>,
    pub cpu_us: Option<u64>,
}

/// Reads the cgroups of one box.
#[derive(Debug, Clone, Copy)]
pub struct CgroupReader<'a> {
    roots: &'a OpenRoots,
    of: Tagged<'a>,
}

impl<'a> CgroupReader<'a> {
    pub fn new(host: &'a Host, of: Tagged<'a>) -> Self {
        Self { roots: &host.open_cgroups, of }
    }

    pub fn at(at: BoxAt<'a>) -> Self {
        Self::new(&at.root.host, at.tagged())
    }

    /// Returns its number of processes and the memory that they use.
    pub fn usage(self) -> CgroupUsage {
        CgroupUsage { memory_bytes: self.memory(), pids: self.pids(), cpu_us: None }
    }

    /// Adds the processor time, which v2 counts even without a controller.
    pub fn usage_with_cpu(self) -> CgroupUsage {
        let text = self.read(&self.roots.unified, "cpu.stat").unwrap_or_default();
        CgroupUsage { cpu_us: keyed_number(&text, "usage_usec"), ..self.usage() }
    }

    /// Includes the keeper.
    pub fn pids(self) -> Option<u64> {
        self.number(&self.roots.pids, "pids.current", "pids.current")
    }

    /// Returns the memory that the kernel cannot reclaim at once, as a gauge counts it.
    pub fn memory_in_use(self) -> Option<u64> {
        let (version, root) = if self.roots.memory.exists() {
            (Version::V1, &self.roots.memory)
        } else {
            (Version::V2, &self.roots.unified)
        };
        let stat = self.read(root, "memory.stat").ok()?;
        Some(self.memory()?.saturating_sub(reclaimable(version, &stat)))
    }

    pub fn memory(self) -> Option<u64> {
        self.number(&self.roots.memory, "memory.usage_in_bytes", "memory.current")
    }

    /// Returns its v2 cgroup with everything below it. Empty if there is none.
    pub fn tree(self) -> CgroupTree {
        let Ok(root) = self.roots.unified.open() else {
            return CgroupTree::default();
        };
        let name = self.name();
        let name = name.to_str().unwrap_or_default();
        let read = cgroup_tree::read(root, name, layout::WORKLOAD_CGROUP, Members::Read);
        read.unwrap_or_default()
    }

    /// Returns whether the box has a v2 cgroup.
    pub fn exists(self) -> bool {
        let root = self.roots.unified.open();
        root.is_ok_and(|root| statat(root, self.name(), AtFlags::empty()).is_ok())
    }

    /// Returns whether a process lives in its v2 cgroup; false if there is no such cgroup. An
    /// error means that the cgroup cannot be read.
    pub fn is_populated(self) -> io::Result<bool> {
        match self.read(&self.roots.unified, "cgroup.events") {
            Ok(text) => Ok(keyed_number(&text, "populated") == Some(1)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            // The directory was removed while the file was open.
            Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns whether the workload is frozen or being frozen; false without a cgroup.
    pub fn is_frozen(self, workload: WorkloadCgroup) -> bool {
        let file = match workload {
            WorkloadCgroup::Shared => "cgroup.freeze".to_owned(),
            WorkloadCgroup::Own => format!("{}/cgroup.freeze", layout::WORKLOAD_CGROUP),
        };
        self.read(&self.roots.unified, &file).is_ok_and(|text| text.trim() == "1")
    }

    /// The v1 file on a host that has the v1 hierarchy, otherwise the v2 file.
    fn number(self, v1_root: &OpenRoot, v1_file: &str, v2_file: &str) -> Option<u64> {
        let text = if v1_root.exists() {
            self.read(v1_root, v1_file)
        } else {
            self.read(&self.roots.unified, v2_file)
        };
        text.ok()?.trim().parse().ok()
    }

    fn read(self, root: &OpenRoot, file: &str) -> io::Result<String> {
        read_text(open_file(root.open()?, self.name().join(file))?.as_fd())
    }

    fn name(self) -> PathBuf {
        layout::cgroup(Path::new(""), self.of)
    }
}

/// Counts the processes of a box that the kernel kills at its memory limit, from now on.
#[derive(Debug)]
pub struct OomWatch {
    cgroups: Vec<PathBuf>,
    before: u64,
}

impl OomWatch {
    pub fn new(roots: &[PathBuf], of: Tagged<'_>) -> Self {
        let cgroups: Vec<_> = roots.iter().map(|root| layout::cgroup(root, of)).collect();
        let before = counted(&cgroups);
        Self { cgroups, before }
    }

    pub fn has_counted(&self) -> bool {
        counted(&self.cgroups) > self.before
    }
}

/// Returns how many processes of a box the kernel has killed for its memory limit; 0 if its
/// cgroups are gone.
pub fn oom_kills(roots: &[PathBuf], of: Tagged<'_>) -> u64 {
    OomWatch::new(roots, of).before
}

fn counted(cgroups: &[PathBuf]) -> u64 {
    let open = cgroups.iter().filter_map(|path| Cgroup::open(path).ok());
    open.filter_map(|cgroup| oom_kills_in(&cgroup)).max().unwrap_or(0)
}

/// The count of one directory; `None` if it has no memory controller.
pub fn oom_kills_in(cgroup: &Cgroup) -> Option<u64> {
    let count = |file: &str| cgroup.read_key(file, "oom_kill").ok().flatten();
    // v2, then v1.
    count("memory.events").or_else(|| count("memory.oom_control"))
}
