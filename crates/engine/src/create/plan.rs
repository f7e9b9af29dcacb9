//! From a spec to the keeper's plan: every decision is taken here, none inside
//! the box. Pure but for reading which host entries exist.

use std::os::unix::ffi::OsStrExt;

use tare_control::{
    Capabilities, DetachedPlan, Filesystem, Identity, LandlockPlan, Plan, ResourceLimit, RootPlan,
    ScratchPlan, TerminalPlan, TreeSource, VolumePlan, Workload,
};

use crate::create::host_view;
use crate::create::seccomp::{self, SetIdBits};
use crate::create::trees::Tree;
use crate::holdings::cgroup::CgroupHolding;
use crate::host::Host;
use crate::record::lines::Lease;
use crate::spec::{
    Access, BoxId, DetachOptions, Isolation, Network, Privilege, Root, Spec, Terminal,
};
use crate::time::from_now;

/// The trees of one box, in the order in which the keeper inherits them.
#[derive(Debug, Default)]
pub struct Trees {
    /// A scratch space that is to be kept.
    pub scratch: Option<Tree>,
    pub root: Option<Tree>,
    pub volumes: Vec<Tree>,
}

impl Trees {
    pub fn all(&self) -> impl Iterator<Item = &Tree> {
        let first = self.scratch.iter().chain(&self.root);
        first.chain(&self.volumes)
    }
}

pub fn plan(
    spec: &Spec,
    id: &BoxId,
    host: &Host,
    cgroups: &CgroupHolding,
    trees: &Trees,
    detached: Option<(&DetachOptions, Lease)>,
) -> Plan {
    let isolated = spec.isolation == Isolation::Full;
    let hostname = spec.name.as_ref().map_or(id.as_str(), |name| name.as_str());
    let inherited = trees.all();
    Plan {
        own_network: has_own_network(spec),
        workload_cgroup: cgroups.workload.is_some(),
        detached: detached.map(|(options, lease)| detached_plan(options, lease)),
        inherited_trees: inherited.filter(|tree| tree.mount.is_some()).count() as u32,
        filesystem: isolated.then(|| filesystem(spec, hostname, trees)),
        hostname: isolated.then(|| hostname.to_owned()),
        landlock: isolated.then_some(LandlockPlan { root_writable: trees.root.is_some() }),
        terminal: match spec.terminal {
            Terminal::Pipes => None,
            Terminal::Pty { rows, columns } => Some(TerminalPlan { rows, columns }),
        },
        deadline_ns: spec.timeout.map(from_now),
        workload: workload(spec, host, cgroups),
    }
}

pub fn has_own_network(spec: &Spec) -> bool {
    match (spec.isolation, spec.network) {
        (Isolation::Full, Network::None) => true,
        (Isolation::Full, Network::Host) | (Isolation::Contain, _) => false,
    }
}

fn detached_plan(options: &DetachOptions, lease: Lease) -> DetachedPlan {
    DetachedPlan {
        log_bytes_max: options.log_bytes_max.value(),
        kill_past_log: options.kill_past_log,
        stdin: options.stdin,
        lease_ns: lease.ends_ns(),
    }
}

/// A scratch space full of empty files is as full as one full of bytes.
const BYTES_PER_INODE: u64 = 1024;
const INODES_MIN: u64 = 1024;

/// How many names a scratch space of this size may have.
pub fn scratch_inodes(bytes: u64) -> u64 {
    (bytes / BYTES_PER_INODE).max(INODES_MIN)
}

fn filesystem(spec: &Spec, hostname: &str, trees: &Trees) -> Filesystem {
    let (root, files) = match &trees.root {
        Some(tree) => (RootPlan::Overlay(tree.source.clone()), Vec::new()),
        None => (RootPlan::HostView(host_view::entries()), host_view::files(spec, hostname)),
    };
    let volumes = spec.volumes.iter().zip(&trees.volumes);
    let scratch_bytes = spec.limits.scratch_bytes.value();
    Filesystem {
        root,
        files,
        scratch: match &trees.scratch {
            Some(tree) => ScratchPlan::Kept(tree.source.clone()),
            None => {
                ScratchPlan::Own { bytes: scratch_bytes, inodes: scratch_inodes(scratch_bytes) }
            }
        },
        volumes: workspace(spec)
            .into_iter()
            .chain(volumes.map(|(volume, tree)| VolumePlan {
                source: tree.source.clone(),
                target: volume.target.as_os_str().as_bytes().to_owned(),
                is_directory: tree.is_directory,
                writable: volume.access == Access::ReadWrite,
            }))
            .collect(),
    }
}

/// First, so that a volume may be mounted in it.
fn workspace(spec: &Spec) -> Option<VolumePlan> {
    let path = spec.workspace.as_ref()?;
    Some(VolumePlan {
        source: TreeSource::Work,
        target: path.as_os_str().as_bytes().to_owned(),
        is_directory: true,
        writable: true,
    })
}

fn workload(spec: &Spec, host: &Host, cgroups: &CgroupHolding) -> Workload {
    let contained = spec.isolation == Isolation::Contain;
    let workdir = spec
        .workdir
        .as_deref()
        .or(spec.workspace.as_deref())
        .map_or(&b"/work"[..], |path| path.as_os_str().as_bytes());
    Workload {
        argv: spec.command.iter().map(|one| one.as_bytes().to_owned()).collect(),
        env: spec
            .env
            .iter()
            .map(|(key, value)| [key.as_bytes(), b"=", value.as_bytes()].concat())
            .collect(),
        workdir: workdir.to_owned(),
        identity: (!contained).then_some(Identity { uid: spec.user.uid, gid: spec.user.gid }),
        capabilities: match (contained, spec.privilege) {
            // Without privileges the keeper has capabilities over its own user
            // namespace that its caller never had; nobody gets those.
            (true, _) if host.is_privileged() => Capabilities::Untouched,
            (true, _) | (false, Privilege::Unprivileged) => Capabilities::None,
            (false, Privilege::BoxRoot) => Capabilities::BoxRoot,
        },
        limits: resource_limits(spec, cgroups),
        seccomp: if contained {
            Vec::new()
        } else {
            seccomp::program(spec.seccomp, set_id_bits(spec)).unwrap_or_default()
        },
        no_new_privs: !contained,
    }
}

/// A set-user-id file on a volume would belong to a user of the host.
fn set_id_bits(spec: &Spec) -> SetIdBits {
    if has_writable_volume(spec) { SetIdBits::Denied } else { SetIdBits::Allowed }
}

fn has_writable_volume(spec: &Spec) -> bool {
    spec.volumes.iter().any(|volume| volume.access == Access::ReadWrite)
}

/// `RLIMIT_*` numbers of x86_64.
mod resource {
    pub const FSIZE: u32 = 1;
    pub const DATA: u32 = 2;
    pub const CORE: u32 = 4;
    pub const NPROC: u32 = 6;
    pub const NOFILE: u32 = 7;
    pub const MEMLOCK: u32 = 8;
    pub const MSGQUEUE: u32 = 12;
    pub const NICE: u32 = 13;
    pub const RTPRIO: u32 = 14;
}

fn resource_limits(spec: &Spec, cgroups: &CgroupHolding) -> Vec<ResourceLimit> {
    let limit = |resource: u32, value: u64| ResourceLimit { resource, soft: value, hard: value };
    let limits = &spec.limits;
    let mut set = vec![limit(resource::CORE, 0), limit(resource::NOFILE, u64::from(limits.nofile))];
    if spec.isolation == Isolation::Full {
        set.push(limit(resource::MEMLOCK, 64 << 10));
        for resource in [resource::MSGQUEUE, resource::NICE, resource::RTPRIO] {
            set.push(limit(resource, 0));
        }
        if !has_writable_volume(spec) {
            set.push(limit(resource::FSIZE, limits.scratch_bytes.value()));
        }
    }
    if !cgroups.memory_enforced {
        set.push(limit(resource::DATA, limits.memory_bytes.value()));
    }
    if !cgroups.pids_enforced {
        // One more for the keeper, who may be the same user.
        set.push(limit(resource::NPROC, u64::from(limits.pids.value()) + 1));
    }
    set
}

/// Whether the spec brings a root of its own.
pub fn wants_root_tree(spec: &Spec) -> Option<&std::path::Path> {
    match &spec.root {
        Root::HostView => None,
        Root::Directory(path) => Some(path),
    }
}
