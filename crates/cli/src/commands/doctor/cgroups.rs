//! Which cgroups there are (pure v2, hybrid, v1, none), and which limits boxes get from them.
//!
//! The engine finds the hierarchies. This file only reads what they offer: the engine tries it when
//! it makes a box.

use std::fs;
use std::path::{Path, PathBuf};

use tare_engine::CgroupRoots;

use crate::commands::doctor::{Check, Status};

/// The controllers of tare's limits.
const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];

pub fn check(roots: &CgroupRoots) -> Check {
    let name = name(roots);
    let limits: Vec<&str> = CONTROLLERS.into_iter().filter(|it| can_limit(roots, it)).collect();
    let found = if limits.is_empty() {
        format!("{name}, no controller for boxes")
    } else {
        format!("{name}, {} can be limited", limits.join(", "))
    };
    if limits.len() == CONTROLLERS.len() {
        let how = "every limit is enforced by the kernel";
        return Check::new("cgroups", Status::Ok, found, how);
    }
    let how = "a limit that is asked for and cannot be enforced is refused; \
               the PID namespace still ends every box whole";
    Check::new("cgroups", Status::Warn, found, how)
}

/// Where new boxes are made. `own` is `/proc/self/cgroup`.
pub fn parents(roots: &CgroupRoots, own: &str) -> Check {
    let attached = roots.of_caller(own, roots.clone());
    let (own_cgroups, known) = (attached.all(), roots.all());
    let own_cgroups: Vec<String> = own_cgroups
        .into_iter()
        .filter(|it| !known.contains(it))
        .map(|it| it.display().to_string())
        .collect();
    let is_in_root = own.lines().all(|line| line.ends_with(":/"));
    let (found, how) = if !own_cgroups.is_empty() {
        let found = format!("attached boxes are made below {}", own_cgroups.join(", "));
        (found, "they count where this process counts")
    } else if is_in_root {
        ("at the root of each hierarchy".to_owned(), "this process has no cgroup of its own")
    } else {
        (
            "at the root of each hierarchy".to_owned(),
            "boxes cannot have limits below the cgroup of this process",
        )
    };
    let how = format!("{how}; detached boxes are made at the root, or below --cgroup-parent");
    Check::new("cgroup parent", Status::Ok, found, &how)
}

/// The limit on processes of the cgroup that this process is in. `own` is `/proc/self/cgroup`.
pub fn pids_max(roots: &CgroupRoots, own: &str) -> Option<u64> {
    let (root, controller) = match &roots.pids {
        Some(root) => (root, "pids"),
        None => (roots.unified.as_ref()?, ""),
    };
    let group = own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let names = parts.next()?;
        names.split(',').any(|name| name == controller).then_some(parts.next()?)
    })?;
    // The engine's root may be the cgroup of this process already.
    let inside = root.join(group.trim_start_matches('/'));
    let place = if inside.exists() { inside } else { root.clone() };
    read(&place, "pids.max")?.parse().ok()
}

fn name(roots: &CgroupRoots) -> &'static str {
    match (&roots.unified, v1(roots).into_iter().any(Option::is_some)) {
        (Some(_), false) => "pure v2",
        (Some(_), true) => "hybrid (v1 controllers beside v2)",
        (None, true) => "v1 only",
        (None, false) => "none",
    }
}

/// The v1 roots, in the order of [`CONTROLLERS`].
fn v1(roots: &CgroupRoots) -> [&Option<PathBuf>; 3] {
    [&roots.memory, &roots.pids, &roots.cpu]
}

/// Whether boxes get a limit of this controller. Without v2 a box has no cgroups at all.
fn can_limit(roots: &CgroupRoots, controller: &str) -> bool {
    let can_write = |path: &Path| rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok();
    let Some(unified) = roots.unified.as_deref().filter(|it| can_write(it)) else {
        return false;
    };
    let index = CONTROLLERS.iter().position(|it| *it == controller);
    match index.and_then(|index| v1(roots)[index].as_deref()) {
        Some(legacy) => can_write(legacy),
        None => has(unified, "cgroup.controllers", controller) && hands_down(unified, controller),
    }
}

/// Whether boxes get the controller from this cgroup. One with processes of its own, as in a
/// container, hands down only what it does already. The first cgroup is an exception: it alone has
/// no `cgroup.type` (cgroup-v2.rst, "No Internal Process").
fn hands_down(root: &Path, controller: &str) -> bool {
    has(root, "cgroup.subtree_control", controller)
        || read(root, "cgroup.type").is_none()
        || read(root, "cgroup.procs").is_some_and(|pids| pids.is_empty())
}

fn has(root: &Path, file: &str, word: &str) -> bool {
    read(root, file).unwrap_or_default().split_whitespace().any(|it| it == word)
}

fn read(root: &Path, file: &str) -> Option<String> {
    let text = fs::read_to_string(root.join(file)).ok()?;
    Some(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tare_harness::TemporaryDirectory;

    const NONE: CgroupRoots = CgroupRoots { unified: None, memory: None, pids: None, cpu: None };

    fn pure(directory: &TemporaryDirectory) -> CgroupRoots {
        CgroupRoots { unified: Some(directory.join("")), ..NONE }
    }

    #[test]
    fn each_cgroup_layout_is_recognised() {
        let place = || Some(PathBuf::from("/nowhere"));
        for (roots, expected) in [
            (CgroupRoots { unified: place(), ..NONE }, "pure v2"),
            (CgroupRoots { memory: place(), ..NONE }, "v1 only"),
            (
                CgroupRoots { unified: place(), pids: place(), ..NONE },
                "hybrid (v1 controllers beside v2)",
            ),
            (NONE, "none"),
        ] {
            assert_eq!(name(&roots), expected);
        }
    }

    #[test]
    fn every_controller_of_a_writable_root_can_be_limited() {
        let directory = TemporaryDirectory::new();
        directory.write("cgroup.controllers", "cpuset cpu io memory pids");
        fs::create_dir(directory.join("user.slice")).unwrap();
        directory.write("user.slice/pids.max", "500\n");
        let check = check(&pure(&directory));
        assert_eq!(check.status, Status::Ok);
        assert_eq!(check.found, "pure v2, memory, pids, cpu can be limited");
        assert_eq!(pids_max(&pure(&directory), "0::/user.slice"), Some(500));
    }

    /// The first process of a container is in the cgroup that the container sees.
    #[test]
    fn a_v2_cgroup_with_processes_hands_down_only_enabled_controllers() {
        let limits = |pids: &str, switched_on: &str| {
            let directory = TemporaryDirectory::new();
            directory.write("cgroup.controllers", "cpu memory pids");
            directory.write("cgroup.type", "domain");
            directory.write("cgroup.procs", pids);
            directory.write("cgroup.subtree_control", switched_on);
            check(&pure(&directory)).found
        };
        assert_eq!(limits("1\n7", ""), "pure v2, no controller for boxes");
        assert_eq!(limits("1\n7", "pids"), "pure v2, pids can be limited");
        assert_eq!(limits("", ""), "pure v2, memory, pids, cpu can be limited");
    }

    #[test]
    fn only_a_cgroup_whose_children_can_have_limits_is_a_parent() {
        let directory = TemporaryDirectory::new();
        for below in ["unified/a", "memory/b", "pids/c", "cpu"] {
            fs::create_dir_all(directory.join(below)).unwrap();
        }
        let root = |name: &str| Some(directory.join(name));
        let roots = CgroupRoots {
            unified: root("unified"),
            memory: root("memory"),
            pids: root("pids"),
            cpu: root("cpu"),
        };
        let hybrid = parents(&roots, "4:memory:/b\n3:pids:/c\n2:cpu:/\n0::/a");
        let below = ["memory/b", "pids/c", "unified/a"];
        assert!(below.iter().all(|it| hybrid.found.contains(it)), "{}", hybrid.found);
        assert!(!hybrid.found.contains("cpu"), "{}", hybrid.found);
        let pure = CgroupRoots { unified: root("unified"), ..NONE };
        let own = parents(&pure, "0::/a");
        assert_eq!(own.found, "at the root of each hierarchy");
        assert!(own.tare.starts_with("boxes cannot have limits"));
        assert!(parents(&pure, "0::/").tare.starts_with("this process has no cgroup"));
    }

    #[test]
    fn without_v2_nothing_is_limited() {
        let directory = TemporaryDirectory::new();
        let place = || Some(directory.join(""));
        let roots = CgroupRoots { memory: place(), pids: place(), ..NONE };
        assert_eq!(check(&roots).found, "v1 only, no controller for boxes");
        assert_eq!(check(&NONE).status, Status::Warn);
        assert_eq!(pids_max(&NONE, "0::/"), None);
    }
}
