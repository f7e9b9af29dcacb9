//! The cgroups that this process is in, with what they count: its own and those around
//! it, because the limit of any of them is a limit for it.
//!
//! Which these are is asked at each measurement, because a process can be moved; their
//! files are found and opened anew only when it was.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use tare_kernel::cgroup::{Hierarchy, Version, hierarchies, version_at};
use tare_kernel::fds::read_list;

use crate::gauge::held::HeldFile;

/// The nearest ones are looked at. Nothing that starts services nests deeper, and
/// each costs descriptors.
const DEPTH_MAX: usize = 8;

#[derive(Debug)]
pub struct Membership {
    /// What it was when the cgroups were found; empty: they are to be found.
    known: String,
    told: Option<HeldFile>,
    pub pids: Vec<Counted>,
    pub memory: Vec<Counted>,
    /// Of the nearest one, where the kernel has it: v2 only.
    pub memory_pressure: Option<HeldFile>,
}

/// A cgroup that counts something, and may limit it.
#[derive(Debug)]
pub struct Counted {
    pub directory: PathBuf,
    pub version: Version,
    used: HeldFile,
    limit: HeldFile,
    /// Of memory: what it is used for.
    pub parts: Option<HeldFile>,
}

impl Membership {
    pub fn open() -> Self {
        let mut membership = Self {
            known: String::new(),
            told: HeldFile::open("/proc/self/cgroup"),
            pids: Vec::new(),
            memory: Vec::new(),
            memory_pressure: None,
        };
        membership.follow();
        membership
    }

    /// Finds the cgroups anew if the process was moved. What was open is closed first:
    /// so there are descriptors for it when there are no others.
    pub fn follow(&mut self) {
        let now = self.told.as_ref().and_then(HeldFile::text);
        let Some(now) = now.filter(|now| *now != self.known) else {
            return;
        };
        self.known.clear();
        self.pids.clear();
        self.memory.clear();
        self.memory_pressure = None;
        let Some(mounted) = mounted() else {
            return;
        };
        self.pids = around(&now, &mounted, "pids");
        self.memory = around(&now, &mounted, "memory");
        let nearest = self.memory.first();
        let pressure = |it: &Counted| HeldFile::open(it.directory.join("memory.pressure"));
        self.memory_pressure = nearest.and_then(pressure);
        self.known = now;
    }
}

impl Counted {
    /// `None` where the cgroup does not count that: the first of a hierarchy, or one
    /// that was not given the controller.
    fn open(directory: &Path, version: Version, controller: &str) -> Option<Self> {
        let (used, limit, parts) = match (controller, version) {
            ("pids", Version::V1 | Version::V2) => ("pids.current", "pids.max", None),
            (_, Version::V2) => ("memory.current", "memory.max", Some("memory.stat")),
            (_, Version::V1) => {
                ("memory.usage_in_bytes", "memory.limit_in_bytes", Some("memory.stat"))
            }
        };
        Some(Self {
            directory: directory.to_owned(),
            version,
            used: HeldFile::open(directory.join(used))?,
            limit: HeldFile::open(directory.join(limit))?,
            parts: parts.and_then(|parts| HeldFile::open(directory.join(parts))),
        })
    }

    pub fn used(&self) -> Option<u64> {
        self.used.number()
    }

    /// `None`: it has none.
    pub fn limit(&self) -> Option<u64> {
        self.limit.number()
    }
}

fn mounted() -> Option<Vec<Hierarchy>> {
    let table = File::open("/proc/self/mountinfo").and_then(|file| read_list(file.as_fd()));
    Some(visible(hierarchies(&table.ok()?)))
}

/// What is mounted later at the same place hides what was there.
fn visible(all: Vec<Hierarchy>) -> Vec<Hierarchy> {
    let mut visible: Vec<Hierarchy> = Vec::new();
    for one in all {
        visible.retain(|earlier| earlier.mount != one.mount);
        visible.push(one);
    }
    visible
}

/// The cgroups that this process is in and that count, nearest first.
fn around(membership: &str, mounted: &[Hierarchy], controller: &str) -> Vec<Counted> {
    let Some((version, path)) = own(membership, controller) else {
        return Vec::new();
    };
    let of_it = mounted.iter().filter(|one| {
        one.version == version
            && (version == Version::V2 || one.controllers.iter().any(|it| it == controller))
    });
    let seen = of_it.map(|hierarchy| chain(hierarchy, path));
    let seen = seen.filter(|chain| chain.first().and_then(|it| version_at(it)) == Some(version));
    // Where several mounts show it, one shows the most.
    let chain = seen.max_by_key(Vec::len).unwrap_or_default().into_iter();
    let counted = chain.filter_map(|it| Counted::open(&it, version, controller));
    counted.take(DEPTH_MAX).collect()
}

/// Where the process is in the hierarchy that has this controller, by the text of
/// `/proc/self/cgroup` (cgroups(7)).
fn own<'a>(membership: &'a str, controller: &str) -> Option<(Version, &'a str)> {
    let lines = || membership.lines().filter_map(|line| line.split_once(':'));
    let v1 = lines().find_map(|(_, rest)| {
        let (controllers, path) = rest.split_once(':')?;
        let is_bound = controllers.split(',').any(|it| it == controller);
        is_bound.then_some((Version::V1, path))
    });
    let v2 = || {
        let of_v2 =
            lines().find_map(|(number, rest)| rest.strip_prefix(':').filter(|_| number == "0"));
        of_v2.map(|path| (Version::V2, path))
    };
    v1.or_else(v2)
}

/// The directories of a cgroup and of those around it, as far as they are seen at this
/// mount.
fn chain(hierarchy: &Hierarchy, path: &str) -> Vec<PathBuf> {
    let path = Path::new(path);
    // What is outside of our cgroup namespace is told as a way up, and not seen.
    let is_outside = |path: &Path| path.components().any(|it| it.as_os_str() == "..");
    if is_outside(path) || is_outside(&hierarchy.root) {
        return Vec::new();
    }
    let Ok(below) = path.strip_prefix(&hierarchy.root) else {
        return Vec::new();
    };
    let ancestors = below.ancestors();
    ancestors.map(|it| hierarchy.mount.join(it)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "8:pids:/a/b\n5:cpu,memory:/m\n0::/u/v\n";

    fn at(mount: &str, root: &str) -> Hierarchy {
        Hierarchy {
            mount: mount.into(),
            root: root.into(),
            controllers: Vec::new(),
            version: Version::V2,
        }
    }

    #[test]
    fn a_controller_of_v1_is_where_it_is_bound_and_any_other_is_in_v2() {
        assert_eq!(own(HYBRID, "pids"), Some((Version::V1, "/a/b")));
        assert_eq!(own(HYBRID, "memory"), Some((Version::V1, "/m")));
        assert_eq!(own(HYBRID, "io"), Some((Version::V2, "/u/v")));
        assert_eq!(own("0::/with:colon\n", "pids"), Some((Version::V2, "/with:colon")));
        assert_eq!(own("3:cpu:/\n", "pids"), None);
    }

    #[test]
    fn the_cgroups_around_are_told_up_to_what_is_mounted() {
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
    fn a_mount_hides_what_was_mounted_there_before() {
        let all = vec![at("/c", "/"), at("/d", "/"), at("/c", "/part")];
        assert_eq!(visible(all), [at("/d", "/"), at("/c", "/part")]);
    }
}
