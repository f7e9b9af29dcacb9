//! Where the driver of a soak works: cgroups and file systems of its lane.

use super::count::OWN_LEAF;
use super::orders::Orders;
use crate::failure::{Context, Failure};
use crate::lane::cgroup_roots;
use rustix::mount::{MountFlags, mount};
use std::fs;
use std::path::{Path, PathBuf};

/// Limits for the whole soak, which keep the host usable. A naive supervisor stops long before
/// them, and a fork bomb in a box has a limit of its own.
const LIMITS: [(&str, &str); 3] =
    [("pids.max", "6000"), ("memory.max", "4294967296"), ("memory.limit_in_bytes", "4294967296")];

/// The directories and cgroups that the driver works in.
#[derive(Debug)]
pub struct Site {
    pub roots: Vec<PathBuf>,
    pub orders: Orders,
}

impl Site {
    /// Moves this process into a cgroup of the lane and mounts two file systems in memory.
    pub fn prepare(orders: Orders) -> Result<Self, Failure> {
        let mut site = Self { roots: cgroup_roots(), orders };
        for root in &site.roots {
            enter(root).context(|| format!("cannot enter a cgroup in {}", root.display()))?;
        }
        for directory in [site.state(), site.output()] {
            let doing = || format!("cannot mount {}", directory.display());
            fs::create_dir_all(&directory).context(doing)?;
            mount("soak", &directory, "tmpfs", MountFlags::empty(), None).context(doing)?;
        }
        // A build must not replace the binary while the soak runs.
        let tare = Path::new(DIRECTORY).join("tare");
        fs::copy(&site.orders.tare, &tare).context(|| format!("cannot copy {}", tare.display()))?;
        site.orders.tare = tare;
        Ok(site)
    }

    /// A file system that contains tare's state and nothing else.
    pub fn state(&self) -> PathBuf {
        Path::new(DIRECTORY).join("state")
    }

    /// tare creates it.
    pub fn state_root(&self) -> PathBuf {
        self.state().join("root")
    }

    /// Another file system, for the output of commands.
    pub fn output(&self) -> PathBuf {
        Path::new(DIRECTORY).join("output")
    }
}

/// In the lane, `/run` is an empty file system in memory.
const DIRECTORY: &str = "/run/soak";

fn enter(root: &Path) -> std::io::Result<()> {
    for (file, value) in LIMITS.map(|(file, value)| (root.join(file), value)) {
        if file.exists() {
            fs::write(file, value)?;
        }
    }
    let leaf = root.join(OWN_LEAF);
    fs::create_dir_all(&leaf)?;
    fs::write(leaf.join("cgroup.procs"), "0")
}
