//! The ground that a soak stands on: a PID namespace, a mount namespace, a part
//! of each cgroup hierarchy and two file systems in memory, all of its own.
//!
//! Inside, that part of a hierarchy is mounted where the whole of it is outside,
//! so that tare makes its cgroups in there and can be counted by itself. The first
//! process inside reaps and does nothing else. When it ends, the kernel ends all
//! that is left, mounts and file systems go with it, and the janitor of the
//! [`Footprint`] takes the cgroup directories: also if the soak was killed.
//! What a naive supervisor leaves is thereby never left on the host.

use super::count::{OWN_LEAF, used_by_tare};
use super::driver::{self, Orders};
use super::series::{Event, Series};
use crate::bench::footprint::Footprint;
use crate::failure::{Doing, Failure};
use clap::{Args, ValueEnum};
use rustix::mount::{MountFlags, mount, mount_bind};
use rustix::process::{WaitOptions, wait};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// What is made has this name, and the number of the process that made it.
const NAME: &str = "soak-of-tare";

/// However wild the mix is, the host keeps the rest: a naive supervisor stops
/// long before it, and a fork bomb of tare's has a limit of its own.
const PIDS_MAX: &str = "6000";
const MEMORY_BYTES_MAX: &str = "4294967296";

/// A new PID namespace needs a new `/proc`, and both a first process that does
/// not outlive whoever started it.
const UNSHARE: [&str; 7] =
    ["--mount", "--propagation=private", "--pid", "--fork", "--kill-child", "--mount-proc", "--"];

#[derive(Debug)]
pub struct Ground {
    footprint: Footprint,
    roots: Vec<PathBuf>,
}

impl Ground {
    pub fn acquire() -> Result<Self, Failure> {
        let ground = Self { footprint: Footprint::acquire_as(NAME, None)?, roots: used_by_tare() };
        match ground.make_cgroups() {
            Ok(()) => Ok(ground),
            Err(failure) => ground.release().and(Err(failure)),
        }
    }

    fn make_cgroups(&self) -> Result<(), Failure> {
        for root in &self.roots {
            // v2 hands on only what was switched on; v1 has no such file.
            for controller in ["+memory", "+pids", "+cpu"] {
                let _ = fs::write(root.join("cgroup.subtree_control"), controller);
            }
            let own = root.join(self.footprint.name());
            fs::create_dir_all(own.join(OWN_LEAF))
                .doing(|| format!("cannot make {}", own.display()))?;
            let limits = [
                ("pids.max", PIDS_MAX),
                ("memory.max", MEMORY_BYTES_MAX),
                ("memory.limit_in_bytes", MEMORY_BYTES_MAX),
            ];
            for (file, value) in limits.map(|(file, value)| (own.join(file), value)) {
                if file.exists() {
                    fs::write(&file, value).doing(|| format!("cannot set {}", file.display()))?;
                }
            }
        }
        Ok(())
    }

    /// Drives the subject in here, and tells how far it is.
    pub fn run(&self, orders: &Orders) -> Result<Series, Failure> {
        // Of its own: a build meanwhile must not put another one in its place.
        let mut orders = orders.clone();
        let tare = self.footprint.directory().join("tare");
        fs::copy(&orders.tare, &tare).doing(|| format!("cannot copy to {}", tare.display()))?;
        orders.tare = tare;
        let inside = Orientation {
            name: self.footprint.name().to_owned(),
            directory: self.footprint.directory(),
            roots: self.roots.clone(),
            orders,
        };
        let mut child = Command::new("unshare")
            .args(UNSHARE)
            .arg(own_program()?)
            .args(["soak-inside", "first", &inside.to_json()?])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .doing(|| "cannot start unshare".into())?;
        let events = child.stdout.take().expect("it was asked to be a pipe");
        let mut series = Series::new(&inside.orders);
        let mut heard = Ok(());
        for line in BufReader::new(events).lines() {
            let event =
                line.doing(|| "cannot hear the driver".into()).and_then(|it| Event::from_json(&it));
            match event {
                Ok(event) => series.note(event),
                Err(failure) => heard = Err(failure),
            }
        }
        let status = child.wait().doing(|| "cannot wait for unshare".into())?;
        heard?;
        if status.success() && series.is_complete() {
            Ok(series)
        } else {
            Err(Failure::new(format!("the driver ended early: {status}")))
        }
    }

    /// Returns when the cgroup directories were seen to be gone.
    pub fn release(self) -> Result<(), Failure> {
        self.footprint.release()
    }
}

fn own_program() -> Result<PathBuf, Failure> {
    std::env::current_exe().doing(|| "cannot find this program".into())
}

/// What one has to know inside.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Orientation {
    pub name: String,
    pub directory: PathBuf,
    pub roots: Vec<PathBuf>,
    pub orders: Orders,
}

impl Orientation {
    fn to_json(&self) -> Result<String, Failure> {
        serde_json::to_string(self).doing(|| "cannot write down the orders".into())
    }

    /// A file system that holds tare's state and nothing else.
    pub fn state(&self) -> PathBuf {
        self.directory.join("state")
    }

    /// tare makes it, and for itself alone.
    pub fn state_root(&self) -> PathBuf {
        self.state().join("root")
    }

    /// Another one, for what commands say.
    pub fn said(&self) -> PathBuf {
        self.directory.join("said")
    }
}

/// (internal) a process inside the ground
#[derive(Debug, Args)]
pub struct Inside {
    role: Role,
    orientation: String,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Role {
    First,
    Driver,
}

pub fn serve_inside(inside: &Inside) -> Result<(), Failure> {
    let orientation: Orientation = serde_json::from_str(&inside.orientation)
        .doing(|| "cannot read the orders of the soak".into())?;
    match inside.role {
        Role::First => {
            settle_in(&orientation)?;
            reap_until_done(&inside.orientation)
        }
        Role::Driver => driver::drive(&orientation),
    }
}

fn settle_in(orientation: &Orientation) -> Result<(), Failure> {
    for root in &orientation.roots {
        let own = root.join(&orientation.name);
        let doing = || format!("cannot enter {}", own.display());
        fs::write(own.join(OWN_LEAF).join("cgroup.procs"), "0").doing(doing)?;
        mount_bind(&own, root).doing(doing)?;
    }
    for directory in [orientation.state(), orientation.said()] {
        let doing = || format!("cannot mount {}", directory.display());
        fs::create_dir(&directory).doing(doing)?;
        mount("soak", &directory, "tmpfs", MountFlags::empty(), None).doing(doing)?;
    }
    Ok(())
}

/// Orphans come to the first process of a PID namespace, and are zombies until it
/// has reaped them.
fn reap_until_done(orientation: &str) -> Result<(), Failure> {
    let driver = Command::new(own_program()?)
        .args(["soak-inside", "driver", orientation])
        .spawn()
        .doing(|| "cannot start the driver".into())?;
    loop {
        let reaped = wait(WaitOptions::empty()).doing(|| "cannot reap".into())?;
        let is_driver = |pid: i32| u32::try_from(pid) == Ok(driver.id());
        match reaped {
            Some((pid, status)) if is_driver(pid.as_raw_nonzero().get()) => {
                return match status.exit_status() {
                    Some(0) => Ok(()),
                    code => Err(Failure::new(format!("the driver ended with {code:?}"))),
                };
            }
            Some(_) | None => {}
        }
    }
}
