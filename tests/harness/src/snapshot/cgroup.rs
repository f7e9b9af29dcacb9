//! Cgroup directories of tare, in every mounted hierarchy.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::{Things, mount};

pub fn observe() -> Things {
    hierarchies()
        .iter()
        .flat_map(|root| directories(root))
        .map(|directory| format!("cgroup {}", directory.display()))
        .collect()
}

/// Where the cgroup hierarchies are mounted, version 1 and 2.
pub fn hierarchies() -> Vec<PathBuf> {
    let is_cgroup = |mount: &mount::Mount| matches!(mount.kind.as_str(), "cgroup" | "cgroup2");
    let mounts = mount::mounts().into_iter().filter(is_cgroup);
    let points: BTreeSet<PathBuf> = mounts.map(|mount| mount.point).collect();
    points.into_iter().collect()
}

/// Whether a directory of this path was made by tare, or lies in one that was.
pub fn is_of_tare(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str().as_encoded_bytes().starts_with(b"tare"))
}

fn directories(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![root.to_owned()];
    while let Some(directory) = pending.pop() {
        let below = directory.strip_prefix(root).unwrap_or(&directory);
        if is_of_tare(below) {
            found.push(directory.clone());
        }
        // A cgroup may disappear while it is read. Then it does not count.
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                pending.push(entry.path());
            }
        }
    }
    found
}
