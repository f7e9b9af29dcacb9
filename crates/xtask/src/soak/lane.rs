//! Runs the driver of a soak in a lane (`tests/in-lane`): in namespaces, cgroups and
//! directories of its own, so that only the soak is counted.
//!
//! The lane ends everything that is left and removes its cgroups, also those of a naive
//! supervisor. It fails if tare has left a process or a cgroup. The driver stops in order
//! when its stdin closes, which happens when this process ends or is killed.

use super::count::OWN_LEAF;
use super::driver::{self, Orders};
use super::series::{Event, Series};
use super::subject::Kind;
use crate::failure::{Context, Failure};
use crate::lane::cgroup_roots;
use crate::workspace::Workspace;
use clap::Args;
use rustix::mount::{MountFlags, mount};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Limits for the whole soak, which keep the host usable. A naive supervisor stops long before
/// them, and a fork bomb in a box has a limit of its own.
const LIMITS: [(&str, &str); 3] =
    [("pids.max", "6000"), ("memory.max", "4294967296"), ("memory.limit_in_bytes", "4294967296")];

/// Runs one subject in a lane and returns its samples.
pub fn run(workspace: &Workspace, orders: &Orders) -> Result<Series, Failure> {
    let program = std::env::current_exe().context(|| "cannot find this program".into())?;
    let text = serde_json::to_string(orders).context(|| "cannot write the orders".into())?;
    let mut child = Command::new(workspace.workspace_root.join("tests/in-lane"))
        .arg(program)
        .args(["soak-inside", &text])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context(|| "cannot start a lane".into())?;
    let _keeps_it_running = child.stdin.take();
    let events = child.stdout.take().expect("it was requested as a pipe");
    let mut series = Series::new(orders);
    for line in BufReader::new(events).lines() {
        series.note(Event::from_json(&line.context(|| "cannot read from the driver".into())?)?);
    }
    let status = child.wait().context(|| "cannot wait for the lane".into())?;
    match orders.subject {
        _ if !series.is_complete() => {
            Err(Failure::new(format!("the driver ended early: {status}")))
        }
        Kind::Tare | Kind::LibreChat if !status.success() => {
            Err(Failure::new(format!("the lane failed: {status}")))
        }
        Kind::Tare | Kind::LibreChat | Kind::Bwrap => Ok(series),
    }
}

/// (internal) the driver, inside of the lane
#[derive(Debug, Args)]
pub struct Inside {
    orders: String,
}

pub fn serve_inside(inside: &Inside) -> Result<(), Failure> {
    let orders: Orders = serde_json::from_str(&inside.orders)
        .context(|| "cannot read the orders of the soak".into())?;
    driver::drive(&Site::prepare(orders)?)
}

/// The directories and cgroups that the driver works in.
#[derive(Debug)]
pub struct Site {
    pub roots: Vec<PathBuf>,
    pub orders: Orders,
}

impl Site {
    /// Moves this process into a cgroup of the lane and mounts two file systems in memory.
    fn prepare(orders: Orders) -> Result<Self, Failure> {
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
