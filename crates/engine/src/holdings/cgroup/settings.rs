//! The limits of a box as files of its cgroups: one table for new boxes and for changes.

use std::io;
use std::path::Path;

use tare_kernel::cgroup::{Cgroup, Version};

use super::WorkloadCgroup;
use crate::error::{Context, Error, ErrorKind, Hint, LimitName};
use crate::host::CgroupRoots;
use crate::spec::Limits;

/// A kernel controller that enforces one of the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Controller {
    Memory,
    Pids,
    Cpu,
}

pub const CONTROLLERS: [Controller; 3] = [Controller::Memory, Controller::Pids, Controller::Cpu];

/// A file, its value, and whether every kernel has the file.
type Setting = (&'static str, String, Presence);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    Required,
    /// Exists only where swap is accounted.
    Optional,
}

impl Controller {
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
        }
    }

    /// The root of the v1 hierarchy that has the controller.
    pub fn v1_root(self, roots: &CgroupRoots) -> Option<&Path> {
        let root = match self {
            Self::Memory => &roots.memory,
            Self::Pids => &roots.pids,
            Self::Cpu => &roots.cpu,
        };
        root.as_deref()
    }

    /// Returns whether the box needs a cgroup with this controller. A detached box needs all of
    /// them, because `update` may set a limit later.
    pub fn needs_cgroup(self, limits: &Limits, workload: WorkloadCgroup) -> bool {
        self.has_limit(limits) || workload == WorkloadCgroup::Own
    }

    /// Returns whether a new box has this limit. Only processor time can be without one.
    fn has_limit(self, limits: &Limits) -> bool {
        match self {
            Self::Memory | Self::Pids => true,
            Self::Cpu => limits.cpus.is_some(),
        }
    }

    /// Returns whether the user set the limit and only a cgroup can enforce it. Without a cgroup,
    /// a resource limit counts the processes in the box's own user namespace.
    pub fn is_explicit(self, limits: &Limits) -> bool {
        match self {
            Self::Memory => limits.memory_bytes.is_explicit(),
            Self::Pids => false,
            Self::Cpu => limits.cpus.is_some(),
        }
    }

    fn settings(self, version: Version, limits: &Limits) -> Vec<Setting> {
        use Presence::{Optional, Required};
        use Version::{V1, V2};
        let memory = limits.memory_bytes.value().to_string();
        // The keeper is one more process, which the user does not count.
        let pids = (u64::from(limits.pids.value()) + 1).to_string();
        let quota_us = limits.cpus.map(|cpus| u64::from(cpus.milli) * PERIOD_US / 1000);
        let quota = |none: &str| quota_us.map_or(none.to_owned(), |quota| quota.to_string());
        match (self, version) {
            (Self::Memory, V2) => vec![
                ("memory.max", memory, Required),
                ("memory.swap.max", "0".to_owned(), Optional),
            ],
            (Self::Memory, V1) => vec![
                ("memory.limit_in_bytes", memory.clone(), Required),
                ("memory.memsw.limit_in_bytes", memory, Optional),
            ],
            (Self::Pids, V1 | V2) => vec![("pids.max", pids, Required)],
            (Self::Cpu, V2) => {
                vec![("cpu.max", format!("{} {PERIOD_US}", quota("max")), Required)]
            }
            (Self::Cpu, V1) => vec![
                ("cpu.cfs_period_us", PERIOD_US.to_string(), Required),
                ("cpu.cfs_quota_us", quota("-1"), Required),
            ],
        }
    }

    /// Sets the limit of a new directory, if there is one to set. Setting no limit on processor
    /// time again would make the kernel walk all groups of the host.
    pub fn set(self, cgroup: &Cgroup, version: Version, limits: &Limits) -> Result<(), Error> {
        if self.has_limit(limits) {
            self.write(cgroup, &self.settings(version, limits))?;
        }
        Ok(())
    }

    /// Sets the limit of a directory that has another one. The kernel rejects memory with swap
    /// that is below memory without, so for v1 one of the two orders fails.
    pub fn reset(self, cgroup: &Cgroup, version: Version, limits: &Limits) -> Result<(), Error> {
        let mut settings = self.settings(version, limits);
        self.write(cgroup, &settings).or_else(|error| match version {
            Version::V2 => Err(error),
            Version::V1 => {
                settings.reverse();
                self.write(cgroup, &settings)
            }
        })
    }

    /// Returns whether a v2 directory has the controller.
    pub fn is_in(self, cgroup: &Cgroup) -> bool {
        let file = match self {
            Self::Memory => "memory.max",
            Self::Pids => "pids.max",
            Self::Cpu => "cpu.max",
        };
        !matches!(cgroup.read(file), Err(error) if error.kind() == io::ErrorKind::NotFound)
    }

    fn write(self, cgroup: &Cgroup, settings: &[Setting]) -> Result<(), Error> {
        for (file, value, presence) in settings {
            let setting = || format!("cannot set {file} to {value}");
            match cgroup.write(file, value) {
                Err(_) if *presence == Presence::Optional => {}
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    let hint = format!("is the {} limit in the host's range?", self.name());
                    return Err(error).context(setting).map_err(|error| error.with_hint(hint));
                }
                written => written.context(setting)?,
            }
        }
        Ok(())
    }

    /// The error for a limit that only a cgroup can `what`: enforce or change.
    pub fn cannot(self, what: &str) -> Error {
        let name = self.name();
        let limit = match self {
            Self::Memory => LimitName::Memory,
            Self::Pids => LimitName::Pids,
            Self::Cpu => LimitName::Cpus,
        };
        Error::new(ErrorKind::Unsupported, format!("cannot {what} the {name} limit on this host"))
            .caused_by(format!("no writable cgroup with the {name} controller"))
            .with_hint(Hint::LeaveLimitOut(limit))
    }
}

const PERIOD_US: u64 = 100_000;
