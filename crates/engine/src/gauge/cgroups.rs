//! The gauges of the cgroups that this process is in: its own and those around it, because the
//! limit of each of them applies to it.
//!
//! A process can be moved, so each measurement asks where it is. The files of the cgroups are
//! opened again only if it was moved.
//!
//! Used memory is what the kernel cannot reclaim at once. A cgroup in which files are read is at its
//! limit all the time, and nothing is wrong with it. MemAvailable of the host means the same. Swap
//! is not counted. Pressure shows a lack of memory for caches, and the effect of `memory.high`.

use std::path::{Path, PathBuf};

use tare_kernel::cgroup::{Hierarchy, Version, hierarchies, version_at};

use crate::gauge::reading::{Counts, Gauge, Reading};
use crate::gauge::reserve::OpenFile;
use crate::gauge::sources::pressure;
use crate::host::cgroups::{own_cgroup, reclaimable, shown_at};
use crate::host::layout::StateRoot;
use crate::host::{CgroupRoots, mount_table};

/// How many cgroups are measured, from the nearest one up. Service managers do not nest deeper, and
/// each cgroup costs descriptors.
const DEPTH_MAX: usize = 8;

/// The cgroups of this process, with their files open.
#[derive(Debug)]
pub struct OwnCgroups {
    roots: CgroupRoots,
    /// Where detached boxes are made.
    detached: CgroupRoots,
    /// The text of `/proc/self/cgroup` when the cgroups were found; empty if they were not.
    found_for: String,
    own: Option<OpenFile>,
    pids: Vec<LimitedCgroup>,
    memory: Vec<LimitedCgroup>,
    /// The pressure of the nearest cgroup; v2 only.
    memory_pressure: Option<OpenFile>,
}

/// A cgroup that counts something, and may limit it.
#[derive(Debug)]
struct LimitedCgroup {
    version: Version,
    used: OpenFile,
    limit: OpenFile,
    /// What memory is used for.
    stat: Option<OpenFile>,
    limit_is: String,
    counts: Counts,
}

impl OwnCgroups {
    pub fn open(root: &StateRoot) -> Self {
        let mut cgroups = Self {
            roots: root.host.cgroups.clone(),
            detached: root.parents_of_detached(),
            found_for: String::new(),
            own: OpenFile::open("/proc/self/cgroup"),
            pids: Vec::new(),
            memory: Vec::new(),
            memory_pressure: None,
        };
        cgroups.follow();
        cgroups
    }

    /// Measures every cgroup that has a limit. `host_bytes` is the memory of the host: v1 shows
    /// "no limit" as a limit that is larger.
    pub fn read(&mut self, host_bytes: Option<u64>) -> Vec<Reading> {
        self.follow();
        let pids = self.pids.iter().filter_map(|it| it.read_pids());
        let memory = self.memory.iter().filter_map(|it| it.read_memory(host_bytes?));
        let waited = self.memory_pressure.as_ref().and_then(OpenFile::text);
        let waited = waited.and_then(|text| pressure(&[text]));
        let waited = waited.map(|value| value.reading(Gauge::MemoryPressureCgroup));
        pids.chain(memory).chain(waited).collect()
    }

    /// Finds the cgroups again if the process was moved. The old files are closed first, so that
    /// there are descriptors for the new ones.
    fn follow(&mut self) {
        let now = self.own.as_ref().and_then(OpenFile::text);
        let Some(now) = now.filter(|now| *now != self.found_for) else {
            return;
        };
        self.found_for.clear();
        self.pids.clear();
        self.memory.clear();
        self.memory_pressure = None;
        let mounted = visible(hierarchies(&mount_table()));
        if mounted.is_empty() {
            return;
        }
        let attached = self.roots.of_caller(&now, self.detached.clone());
        let parents = [&attached, &self.detached];
        let boxes = parents.map(|it| it.pids.as_deref().or(it.unified.as_deref()));
        let files = |_| ["pids.current", "pids.max", ""];
        self.pids = open_all(&around(&now, &mounted, "pids"), boxes, files);
        let memory = around(&now, &mounted, "memory");
        let nearest = memory.first();
        self.memory_pressure =
            nearest.and_then(|(_, nearest)| OpenFile::open(nearest.join("memory.pressure")));
        let boxes = parents.map(|it| it.memory.as_deref().or(it.unified.as_deref()));
        self.memory = open_all(&memory, boxes, |version| match version {
            Version::V1 => ["memory.usage_in_bytes", "memory.limit_in_bytes", "memory.stat"],
            Version::V2 => ["memory.current", "memory.max", "memory.stat"],
        });
        self.found_for = now;
    }
}

/// Opens the cgroups that count. The root of a hierarchy does not count, nor does a cgroup without
/// the controller. `boxes` is where attached and detached boxes are made. `files` names the files with
/// what is used, the limit, and the details.
fn open_all(
    cgroups: &[(Version, PathBuf)],
    boxes: [Option<&Path>; 2],
    files: fn(Version) -> [&'static str; 3],
) -> Vec<LimitedCgroup> {
    let open = |(version, directory): &(Version, PathBuf)| {
        let [used, limit, stat] = files(*version);
        let [attached, detached] =
            boxes.map(|parent| parent.is_some_and(|it| it.starts_with(directory)));
        Some(LimitedCgroup {
            version: *version,
            used: OpenFile::open(directory.join(used))?,
            limit: OpenFile::open(directory.join(limit))?,
            stat: if stat.is_empty() { None } else { OpenFile::open(directory.join(stat)) },
            limit_is: format!("{limit} of the cgroup {}", directory.display()),
            counts: Counts { attached, detached },
        })
    };
    cgroups.iter().filter_map(open).take(DEPTH_MAX).collect()
}

impl LimitedCgroup {
    fn read_pids(&self) -> Option<Reading> {
        let (used, limit) = (self.used.number()?, self.limit.number()?);
        Some(self.reading(Gauge::PidsCgroup, used, limit))
    }

    fn read_memory(&self, host_bytes: u64) -> Option<Reading> {
        let limit = self.limit.number().filter(|limit| *limit <= host_bytes)?;
        let reclaimable = reclaimable(self.version, &self.stat.as_ref()?.text()?);
        let used = self.used.number()?.saturating_sub(reclaimable);
        Some(self.reading(Gauge::MemoryCgroup, used, limit))
    }

    fn reading(&self, gauge: Gauge, used: u64, limit: u64) -> Reading {
        Reading { counts: self.counts, ..Reading::new(gauge, used, limit, &self.limit_is) }
    }
}

/// Removes mounts that a later mount at the same place hides.
fn visible(all: Vec<Hierarchy>) -> Vec<Hierarchy> {
    let mut visible: Vec<Hierarchy> = Vec::new();
    for one in all {
        visible.retain(|earlier| earlier.mount != one.mount);
        visible.push(one);
    }
    visible
}

/// Returns the cgroups that this process is in, in the hierarchy of this controller, nearest first.
fn around(own_text: &str, mounted: &[Hierarchy], controller: &str) -> Vec<(Version, PathBuf)> {
    let Some((version, path)) = own_cgroup(own_text, controller) else {
        return Vec::new();
    };
    let of_it = mounted.iter().filter(|one| {
        one.version == version
            && (version == Version::V2 || one.controllers.iter().any(|it| it == controller))
    });
    let seen = of_it.map(|hierarchy| chain(hierarchy, path));
    let seen = seen.filter(|chain| chain.first().and_then(|it| version_at(it)) == Some(version));
    // If several mounts show the hierarchy, take the one that shows the most.
    let chain = seen.max_by_key(Vec::len).unwrap_or_default();
    chain.into_iter().map(|directory| (version, directory)).collect()
}

/// Returns the directories of a cgroup and of those around it, as far as this mount shows them.
fn chain(hierarchy: &Hierarchy, path: &str) -> Vec<PathBuf> {
    let Some(own) = shown_at(hierarchy, path) else {
        return Vec::new();
    };
    let ancestors = own.ancestors().take_while(|it| it.starts_with(&hierarchy.mount));
    ancestors.map(Path::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(mount: &str, root: &str) -> Hierarchy {
        Hierarchy {
            mount: mount.into(),
            root: root.into(),
            controllers: Vec::new(),
            version: Version::V2,
        }
    }

    #[test]
    fn parent_cgroups_are_listed_up_to_the_mount() {
        let found = chain(&at("/sys/fs/cgroup", "/"), "/system.slice/tare.service");
        let paths = ["/system.slice/tare.service", "/system.slice", "/"];
        let expected = paths.map(|it| PathBuf::from(format!("/sys/fs/cgroup{it}")));
        assert_eq!(found, expected);
    }

    #[test]
    fn in_a_container_the_mount_is_the_cgroup_itself() {
        let found = chain(&at("/sys/fs/cgroup/pids", "/docker/x"), "/docker/x");
        assert_eq!(found, [Path::new("/sys/fs/cgroup/pids")]);
    }

    #[test]
    fn a_cgroup_that_is_not_below_the_mount_is_not_seen() {
        for (root, path) in [("/docker/x", "/docker/xy"), ("/", "/../y"), ("/..", "/")] {
            let found = chain(&at("/sys/fs/cgroup", root), path);
            assert!(found.is_empty(), "{root} {path}: {found:?}");
        }
    }

    #[test]
    fn a_later_mount_hides_an_earlier_one() {
        let all = vec![at("/c", "/"), at("/d", "/"), at("/c", "/part")];
        assert_eq!(visible(all), [at("/d", "/"), at("/c", "/part")]);
    }
}
