//! Reads the cgroups of a box: what it uses, which processes are in it, whether it is frozen.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, statat};
use rustix::io::Errno;
use tare_kernel::cgroup::{Cgroup, Version, keyed_number};
use tare_kernel::cgroup_tree::{self, CgroupTree, Members};
use tare_kernel::clock::boot_ns;
use tare_kernel::fds::{open_file, read_text};
use tare_kernel::kernel_log;

use super::parents_of;
use crate::host::cgroups::{CgroupRoots, OpenRoot, OpenRoots, reclaimable};
use crate::host::layout::{self, BoxAt};
use crate::host::tag::TaggedId;
use crate::record::Record;
use crate::record::lines::Evidence;
use crate::spec::Limits;

/// What the kernel has counted; `None` where it does not count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CgroupUsage {
    pub memory_bytes: Option<u64>,
    /// Includes the keeper.
    pub pids: Option<u64>,
    pub cpu_us: Option<u64>,
}

/// Reads the cgroups of one box.
#[derive(Debug)]
pub struct CgroupReader<'a> {
    open: &'a OpenRoots,
    /// Where the box has its cgroups.
    parents: CgroupRoots,
    of: TaggedId<'a>,
}

impl<'a> CgroupReader<'a> {
    pub fn new(at: BoxAt<'a>, record: &Record) -> Self {
        let parents = parents_of(at, record);
        Self { open: &at.root.host.open_cgroups, parents, of: at.tagged_id() }
    }

    /// Returns its number of processes and the memory that they use.
    pub fn usage(&self) -> CgroupUsage {
        CgroupUsage { memory_bytes: self.memory(), pids: self.pids(), cpu_us: None }
    }

    /// Adds the processor time, which v2 counts even without a controller.
    pub fn usage_with_cpu(&self) -> CgroupUsage {
        let text = self.read_unified("cpu.stat").unwrap_or_default();
        CgroupUsage { cpu_us: keyed_number(&text, "usage_usec"), ..self.usage() }
    }

    /// Includes the keeper.
    pub fn pids(&self) -> Option<u64> {
        let text = match &self.parents.pids {
            Some(v1) => self.read(&self.open.pids, v1, "pids.current"),
            None => self.read_unified("pids.current"),
        };
        text.ok()?.trim().parse().ok()
    }

    /// Returns the memory that the kernel cannot reclaim at once, as a gauge counts it.
    pub fn memory_in_use(&self) -> Option<u64> {
        let (version, stat) = match &self.parents.memory {
            Some(v1) => (Version::V1, self.read(&self.open.memory, v1, "memory.stat")),
            None => (Version::V2, self.read_unified("memory.stat")),
        };
        Some(self.memory()?.saturating_sub(reclaimable(version, &stat.ok()?)))
    }

    pub fn memory(&self) -> Option<u64> {
        let text = match &self.parents.memory {
            Some(v1) => self.read(&self.open.memory, v1, "memory.usage_in_bytes"),
            None => self.read_unified("memory.current"),
        };
        text.ok()?.trim().parse().ok()
    }

    /// Returns what the kernel has counted about the box so far. `limits` are those that it has now.
    pub fn evidence(&self, limits: Option<&Limits>) -> Evidence {
        let number = |text: io::Result<String>| text.ok()?.trim().parse::<u64>().ok();
        let keyed = |text: &io::Result<String>, key| keyed_number(text.as_ref().ok()?, key);
        let memory = |file: &str| match &self.parents.memory {
            Some(v1) => self.read(&self.open.memory, v1, file),
            None => self.read_unified(file),
        };
        let pids = |file: &str| match &self.parents.pids {
            Some(v1) => self.read(&self.open.pids, v1, file),
            None => self.read_unified(file),
        };
        let (peak, reached, oom_kills) = if self.parents.memory.is_some() {
            let oom_kills = keyed(&memory("memory.oom_control"), "oom_kill");
            // The limit with swap is the same, and the kernel checks it first where it exists.
            let failures = ["memory.failcnt", "memory.memsw.failcnt"];
            let reached = failures.into_iter().filter_map(|file| number(memory(file))).max();
            (memory("memory.max_usage_in_bytes"), reached, oom_kills)
        } else {
            let events = memory("memory.events");
            (memory("memory.peak"), keyed(&events, "max"), keyed(&events, "oom_kill"))
        };
        // The kernel counts the keeper too. Kernels before 6.1 do not keep the peak.
        let pids_peak = number(pids("pids.peak")).or_else(|| self.pids());
        let pids_refused = keyed(&pids("pids.events"), "max");
        let pids_max = limits.map(|limits| u64::from(limits.pids.value()).saturating_add(1));
        let refused_above = || is_refused_above(|file| pids(file).ok(), pids_max);
        Evidence {
            memory_limit_bytes: limits.map(|limits| limits.memory_bytes.value()),
            memory_peak_bytes: number(peak).or_else(|| self.memory()),
            memory_limit_reached: reached,
            oom_kills,
            pids_limit: limits.map(|limits| u64::from(limits.pids.value())),
            pids_peak: pids_peak.map(|peak| peak.saturating_sub(1)),
            pids_refused,
            pids_refused_above: pids_refused.is_some_and(|it| it > 0) && refused_above(),
            cpu_us: keyed(&self.read_unified("cpu.stat"), "usage_usec"),
            cpu_throttled_us: limits
                .and_then(|limits| limits.cpus)
                .and_then(|_| self.throttled_us()),
            scratch_limit_bytes: limits.map(|limits| limits.scratch_bytes.value()),
            ..Evidence::default()
        }
    }

    /// Returns how long the limit on processor time has kept the workload from running. v1 counts
    /// nanoseconds.
    fn throttled_us(&self) -> Option<u64> {
        let file = format!("{}/cpu.stat", layout::WORKLOAD_CGROUP);
        if let Some(v1) = &self.parents.cpu {
            let workload = layout::cgroup(v1, self.of).join(layout::WORKLOAD_CGROUP);
            let throttled = Cgroup::open(&workload).ok()?.read_key("cpu.stat", "throttled_time");
            return throttled.ok().flatten().map(|ns| ns / 1000);
        }
        let own = self.read_unified(&file).or_else(|_| self.read_unified("cpu.stat"));
        keyed_number(&own.ok()?, "throttled_usec")
    }

    /// Returns its v2 cgroup with everything below it. Empty if there is none.
    pub fn tree(&self) -> CgroupTree {
        let name = self.name();
        let name = name.to_str().unwrap_or_default();
        self.with_unified(|root| {
            cgroup_tree::read(root, name, layout::WORKLOAD_CGROUP, Members::Read)
        })
        .unwrap_or_default()
    }

    /// Returns the directory that the paths of [`Self::tree`] are relative to.
    pub fn unified_parent(&self) -> Option<&Path> {
        self.parents.unified.as_deref()
    }

    /// Returns whether the box has a v2 cgroup.
    pub fn exists(&self) -> bool {
        self.with_unified(|root| Ok(statat(root, self.name(), AtFlags::empty())?)).is_ok()
    }

    /// Returns whether a process lives in its v2 cgroup; false if there is no such cgroup. An
    /// error means that the cgroup cannot be read.
    pub fn is_populated(&self) -> io::Result<bool> {
        match self.read_unified("cgroup.events") {
            Ok(text) => Ok(keyed_number(&text, "populated") == Some(1)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            // The directory was removed while the file was open.
            Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns whether the workload is frozen or being frozen; false without a cgroup.
    pub fn is_frozen(&self) -> bool {
        let file = format!("{}/cgroup.freeze", layout::WORKLOAD_CGROUP);
        self.read_unified(&file).is_ok_and(|text| text.trim() == "1")
    }

    fn read_unified(&self, file: &str) -> io::Result<String> {
        let parent = self.parents.unified.as_deref().ok_or(io::ErrorKind::NotFound)?;
        self.read(&self.open.unified, parent, file)
    }

    fn read(&self, root: &OpenRoot, parent: &Path, file: &str) -> io::Result<String> {
        root.with(parent, |open| read_text(open_file(open, self.name().join(file))?.as_fd()))
    }

    fn with_unified<T>(&self, read: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>) -> io::Result<T> {
        let parent = self.parents.unified.as_deref().ok_or(io::ErrorKind::NotFound)?;
        self.open.unified.with(parent, read)
    }

    fn name(&self) -> PathBuf {
        layout::cgroup(Path::new(""), self.of)
    }
}

/// Returns what the kernel has counted about a box so far. Its log may name processes that it killed
/// for memory.
pub fn evidence(at: BoxAt<'_>, record: &Record) -> Evidence {
    let created = record.lines.created.as_ref();
    let limits = created.map(|created| &created.spec.limits);
    let mut evidence = CgroupReader::new(at, record).evidence(limits);
    // It may have reached the limit that it had before. The limit of a machine is in the machine.
    evidence.pids_refused_above &= record.lines.updates == 0 && !record.is_machine();
    if !evidence.pressure().oom {
        return evidence;
    }
    let limit = evidence.memory_limit_bytes.unwrap_or(u64::MAX);
    let is_full = evidence.memory_peak_bytes.is_some_and(|peak| peak >= limit);
    let reached = evidence.memory_limit_reached.map(|reached| reached > 0 || is_full);
    with_oom_kills(evidence, reached, &layout::cgroup(Path::new(""), at.tagged_id()), 0)
}

/// Adds the processes in the cgroup of a box that the kernel killed for memory since this time of the
/// boot clock. The counter of kills (`oom_kill`) does not say whose memory was used up. The kernel's log
/// does, and without it whether the box has reached its limit.
fn with_oom_kills(
    evidence: Evidence,
    has_reached_limit: Option<bool>,
    cgroup: &Path,
    since_ns: u64,
) -> Evidence {
    let name = cgroup.file_name().unwrap_or_default().to_string_lossy();
    let kills = kernel_log::oom_killed(&name, since_ns);
    let is_own = if kills.is_empty() {
        has_reached_limit.unwrap_or(true)
    } else {
        kills.iter().any(|kill| kill.at_own_limit)
    };
    Evidence {
        oom_above: !is_own,
        oom_killed_ns: kills.first().map(|kill| kill.boot_ns),
        oom_killed: kills.into_iter().map(|kill| kill.name).collect(),
        ..evidence
    }
}

/// Returns whether the limit of a cgroup above refused a new process: the box never had as many as
/// `max`, its own limit. v2 of Linux 6.11 and later has `pids.events.local`, and counts in `pids.events`
/// only what the limit of the box refused. Other kernels count each refusal there.
fn is_refused_above(text: impl Fn(&str) -> Option<String>, max: Option<u64>) -> bool {
    let peak = || text("pids.peak")?.trim().parse::<u64>().ok();
    text("pids.events.local").is_none() && max.zip(peak()).is_some_and(|(max, peak)| peak < max)
}

/// Notices limits that a box reaches from now on.
#[derive(Debug)]
pub struct LimitWatch {
    cgroups: Vec<PathBuf>,
    before: Counted,
    began_ns: u64,
}

/// How many processes of a box the kernel has killed for memory, how often the box reached its limit of
/// memory, and how many new processes the kernel refused.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    oom_kills: u64,
    memory_reached: u64,
    pids_refused: u64,
}

impl LimitWatch {
    pub fn new(roots: &[PathBuf], of: TaggedId<'_>) -> Self {
        let cgroups: Vec<_> = roots.iter().map(|root| layout::cgroup(root, of)).collect();
        let before = counted(&cgroups);
        Self { cgroups, before, began_ns: boot_ns() }
    }

    /// As [`Self::new`], for a box that this process has just made. The kernel has counted nothing.
    pub fn of_new_box(roots: &[PathBuf], of: TaggedId<'_>) -> Self {
        let cgroups = roots.iter().map(|root| layout::cgroup(root, of)).collect();
        Self { cgroups, before: Counted::default(), began_ns: boot_ns() }
    }

    /// Returns what the kernel has counted since then.
    pub fn evidence(&self) -> Evidence {
        let (now, before) = (counted(&self.cgroups), self.before);
        let since = |now: u64, before: u64| now.checked_sub(before).filter(|risen| *risen > 0);
        let oom_kills = since(now.oom_kills, before.oom_kills);
        let pids_refused = since(now.pids_refused, before.pids_refused);
        let evidence = Evidence {
            oom_kills,
            pids_refused,
            pids_refused_above: pids_refused.is_some() && self.is_refused_above(),
            ..Evidence::default()
        };
        match self.cgroups.first().filter(|_| oom_kills.is_some()) {
            Some(cgroup) => {
                let reached = now.memory_reached > before.memory_reached;
                with_oom_kills(evidence, Some(reached), cgroup, self.began_ns)
            }
            None => evidence,
        }
    }

    fn is_refused_above(&self) -> bool {
        self.cgroups.iter().filter_map(|path| Cgroup::open(path).ok()).any(|cgroup| {
            let text = |file: &str| cgroup.read(file).ok();
            is_refused_above(text, text("pids.max").and_then(|max| max.trim().parse().ok()))
        })
    }
}

fn counted(cgroups: &[PathBuf]) -> Counted {
    let open = cgroups.iter().filter_map(|path| Cgroup::open(path).ok());
    open.fold(Counted::default(), |so_far, cgroup| {
        let refused = cgroup.read_key("pids.events", "max").ok().flatten();
        Counted {
            oom_kills: so_far.oom_kills.max(oom_kills_in(&cgroup).unwrap_or(0)),
            memory_reached: so_far.memory_reached.max(memory_reached_in(&cgroup)),
            pids_refused: so_far.pids_refused.max(refused.unwrap_or(0)),
        }
    })
}

/// How often a cgroup reached its limit of memory: in v2, then in v1.
fn memory_reached_in(cgroup: &Cgroup) -> u64 {
    let failures = |file: &str| cgroup.read(file).ok()?.trim().parse::<u64>().ok();
    let in_v2 = cgroup.read_key("memory.events", "max").ok().flatten();
    let in_v1 = || failures("memory.failcnt").max(failures("memory.memsw.failcnt"));
    in_v2.or_else(in_v1).unwrap_or(0)
}

/// The count of one directory; `None` if it has no memory controller.
pub fn oom_kills_in(cgroup: &Cgroup) -> Option<u64> {
    let count = |file: &str| cgroup.read_key(file, "oom_kill").ok().flatten();
    // v2, then v1.
    count("memory.events").or_else(|| count("memory.oom_control"))
}
