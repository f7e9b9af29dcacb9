//! Makes the keeper's plan and the first exec from a spec. All decisions are made here and none in the
//! box. The functions are pure, except that they read which directories the host has.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::process::getrlimit;
use tare_control::{
    Capabilities, Claim, DetachedPlan, Exec, ExecStreams, Filesystem, Identity, LandlockPlan, Plan,
    ProcPlan, Profile, Program, Resource, ResourceLimit, Role, RootPlan, ScratchPlan, TerminalPlan,
    TreeSource, VolumePlan,
};
use tare_kernel::clock;

use crate::create::endow::Endowment;
use crate::create::seccomp::{self, SetIdBits};
use crate::create::{Mode, NewBox, host_view};
use crate::holdings::Tree;
use crate::holdings::cgroup::CgroupHolding;
use crate::holdings::scratch::scratch_inodes;
use crate::host::Host;
use crate::spec::{
    Access, BoxId, Isolation, Network, Privilege, Root, SeccompProfile, Spec, Terminal,
};

/// The trees of one box.
#[derive(Debug, Default)]
pub struct Trees {
    /// The scratch space, if it outlives the box.
    pub scratch: Option<Tree>,
    pub root: Option<Tree>,
    pub volumes: Vec<Tree>,
}

/// How the plan names the trees.
#[derive(Debug)]
pub struct TreeSources {
    scratch: Option<TreeSource>,
    root: Option<TreeSource>,
    /// Each volume, and whether it is a directory.
    volumes: Vec<(TreeSource, bool)>,
}

impl TreeSources {
    /// The trees of a box in a machine: its root comes first, then its volumes.
    pub fn of_guest(directories: &[bool]) -> Self {
        let volumes = (1..).zip(directories);
        Self {
            scratch: None,
            root: Some(TreeSource::Inherited(0)),
            volumes: volumes.map(|(number, it)| (TreeSource::Inherited(number), *it)).collect(),
        }
    }
}

impl Trees {
    pub fn give_to<'a>(&'a self, endowment: &mut Endowment<'a>) -> TreeSources {
        let mut give = |tree: &'a Tree| endowment.give_tree(tree);
        TreeSources {
            scratch: self.scratch.as_ref().map(&mut give),
            root: self.root.as_ref().map(&mut give),
            volumes: self.volumes.iter().map(|tree| (give(tree), tree.is_directory)).collect(),
        }
    }
}

/// Returns the plan of a box.
pub fn plan(
    new: NewBox<'_>,
    id: &BoxId,
    host: &Host,
    cgroups: &CgroupHolding,
    trees: TreeSources,
    roles: Vec<Role>,
) -> Plan {
    let spec = new.spec;
    let isolated = spec.isolation == Isolation::Full;
    let hostname = spec.name.as_ref().map_or(id.as_str(), |name| name.as_str());
    let profile = profile(spec, host, resource_limits(spec, cgroups, &trees));
    Plan {
        roles,
        clock_offset_ns: clock::namespace_offset_ns(),
        own_network: has_own_network(spec),
        detached: new.mode.options().map(|options| DetachedPlan {
            log_bytes_max: options.log_bytes_max.value(),
            kill_past_log: options.kill_past_log,
        }),
        hostname: isolated.then(|| hostname.to_owned()),
        landlock: isolated.then_some(LandlockPlan { root_writable: trees.root.is_some() }),
        filesystem: isolated.then(|| filesystem(spec, hostname, trees)),
        profile,
        machine: None,
        in_machine: false,
    }
}

/// Changes the plan for the box of a template. Its processes have a user of the host that no other
/// process has, `uid`. They have neither a seccomp filter nor a Landlock domain: the boxes that the
/// template makes would inherit them, and could not be made. The cgroups of the box limit it.
///
/// The kernel counts some resources of all clones together, for the user of the template, and limits
/// them by what the template's process may use (user_namespaces(7)). So that process has no such limits.
pub fn for_template(plan: &mut Plan, uid: u32) {
    use Resource::{LockedMemory, MessageQueues, Processes, QueuedSignals};
    plan.landlock = None;
    plan.profile.identity = Some(Identity { uid, gid: uid });
    let counted = [LockedMemory, MessageQueues, Processes, QueuedSignals];
    let unlimited = |resource| ResourceLimit { resource, value: u64::MAX };
    plan.profile.limits = counted.map(unlimited).to_vec();
    plan.profile.seccomp.clear();
    if let Some(filesystem) = &mut plan.filesystem {
        filesystem.proc = ProcPlan::Whole;
    }
}

/// Changes the plan for a clone: it may make as many processes as the processes of other boxes, which
/// inherit this limit from the server.
pub fn for_clone(plan: &mut Plan) {
    let value = getrlimit(rustix::process::Resource::Nproc).current.unwrap_or(u64::MAX);
    plan.profile.limits.push(ResourceLimit { resource: Resource::Processes, value });
}

/// Changes the plan of a box that waits until a request gives it a name.
pub fn for_name_later(plan: &mut Plan) {
    let files = plan.filesystem.iter_mut().flat_map(|filesystem| &mut filesystem.files);
    files.for_each(|file| file.rewritable = host_view::has_hostname(file));
}

/// Changes the plan for a box in a machine. The network of the machine is its own. With `--root`, so is
/// the whole kernel, and only the machine confines the command: it has every capability, and no filter
/// but one that the user asked for.
pub fn for_guest(plan: &mut Plan, spec: &Spec) {
    plan.in_machine = true;
    plan.detached = None;
    plan.own_network = false;
    if spec.privilege == Privilege::Unprivileged {
        return;
    }
    plan.landlock = None;
    plan.profile.capabilities = Capabilities::Untouched;
    plan.profile.no_new_privs = false;
    if spec.seccomp == SeccompProfile::Default {
        plan.profile.seccomp.clear();
    }
    if let Some(filesystem) = &mut plan.filesystem {
        filesystem.proc = ProcPlan::OwnKernel;
    }
}

/// Returns what a request decides about a box that has waited.
pub fn claim(spec: &Spec) -> Claim {
    let hostname = spec.name.as_ref().map(ToString::to_string);
    let in_files = hostname.iter().filter(|_| wants_root_tree(spec).is_none());
    let files = in_files.flat_map(|hostname| host_view::files(spec, hostname));
    Claim {
        env: environment(spec),
        workdir: workdir(spec),
        files: files.filter(host_view::has_hostname).collect(),
        hostname,
    }
}

/// Returns the command of a box as its first exec, or `None` for a box without a command.
pub fn first_exec(new: NewBox<'_>) -> Option<Exec> {
    let spec = new.spec;
    let words = spec.command.iter().map(|one| one.as_bytes().to_owned());
    (!spec.command.is_empty()).then(|| Exec {
        program: Program::Command(words.collect()),
        env: Vec::new(),
        workdir: None,
        identity: None,
        streams: match (spec.terminal, new.mode) {
            (Terminal::Pty { rows, columns }, _) => {
                ExecStreams::Terminal(TerminalPlan { rows, columns })
            }
            (Terminal::Pipes, Mode::Attached(_) | Mode::Template | Mode::Clone(_)) => {
                ExecStreams::Inherited
            }
            (Terminal::Pipes, Mode::Detached(options)) => {
                ExecStreams::Log { keep_stdin: options.stdin }
            }
        },
        timeout_ns: None,
    })
}

/// The variables of a spec, as `KEY=VALUE`.
pub fn environment(spec: &Spec) -> Vec<Vec<u8>> {
    let pairs = spec.env.iter();
    pairs.map(|(key, value)| [key.as_bytes(), b"=", value.as_bytes()].concat()).collect()
}

pub fn has_own_network(spec: &Spec) -> bool {
    match (spec.isolation, spec.network) {
        (Isolation::Full, Network::None) => true,
        (Isolation::Full, Network::Host) | (Isolation::Contain, _) => false,
    }
}

fn filesystem(spec: &Spec, hostname: &str, trees: TreeSources) -> Filesystem {
    let (root, files) = match trees.root {
        Some(source) => (RootPlan::Overlay(source), Vec::new()),
        None => (RootPlan::HostView(host_view::entries()), host_view::files(spec, hostname)),
    };
    let volumes = spec.volumes.iter().zip(trees.volumes);
    let volumes = volumes.map(|(volume, (source, is_directory))| VolumePlan {
        source,
        target: volume.target.as_os_str().as_bytes().to_owned(),
        is_directory,
        writable: volume.access == Access::ReadWrite,
    });
    let mut volumes: Vec<VolumePlan> = workspace(spec).into_iter().chain(volumes).collect();
    // A volume inside another one is mounted after it.
    volumes.sort_by_key(|volume| Path::new(OsStr::from_bytes(&volume.target)).components().count());
    let scratch_bytes = spec.limits.scratch_bytes.value();
    Filesystem {
        root,
        proc: ProcPlan::Masked,
        files,
        scratch: match trees.scratch {
            Some(source) => ScratchPlan::Kept(source),
            None => {
                ScratchPlan::Own { bytes: scratch_bytes, inodes: scratch_inodes(scratch_bytes) }
            }
        },
        volumes,
        export: None,
        kvm: false,
    }
}

/// The scratch space at a place that the user chose.
fn workspace(spec: &Spec) -> Option<VolumePlan> {
    let path = spec.workspace.as_ref()?;
    Some(VolumePlan {
        source: TreeSource::Work,
        target: path.as_os_str().as_bytes().to_owned(),
        is_directory: true,
        writable: true,
    })
}

fn profile(spec: &Spec, host: &Host, limits: Vec<ResourceLimit>) -> Profile {
    let contained = spec.isolation == Isolation::Contain;
    Profile {
        env: environment(spec),
        workdir: workdir(spec),
        identity: (!contained).then_some(Identity { uid: spec.user.uid, gid: spec.user.gid }),
        capabilities: match (contained, spec.privilege) {
            // Without privileges the keeper has capabilities over its own user
            // namespace that its caller never had. No box gets those.
            (true, _) if host.is_privileged() => Capabilities::Untouched,
            (true, _) | (false, Privilege::Unprivileged) => Capabilities::None,
            (false, Privilege::BoxRoot) => Capabilities::BoxRoot,
        },
        limits,
        seccomp: if contained {
            Vec::new()
        } else {
            seccomp::program(spec.seccomp, set_id_bits(spec)).unwrap_or_default()
        },
        no_new_privs: !contained,
    }
}

fn workdir(spec: &Spec) -> Vec<u8> {
    let chosen = spec.workdir.as_deref().or(spec.workspace.as_deref());
    chosen.map_or(&b"/work"[..], |path| path.as_os_str().as_bytes()).to_owned()
}

/// A set-user-id file on a volume would belong to a user of the host.
fn set_id_bits(spec: &Spec) -> SetIdBits {
    if has_writable_volume(spec) { SetIdBits::Denied } else { SetIdBits::Allowed }
}

fn has_writable_volume(spec: &Spec) -> bool {
    spec.volumes.iter().any(|volume| volume.access == Access::ReadWrite)
}

/// All clones of a template count against one limit of the host, which is some ten thousand. POSIX timers
/// count too.
const QUEUED_SIGNALS_MAX: u64 = 1024;

fn resource_limits(
    spec: &Spec,
    cgroups: &CgroupHolding,
    trees: &TreeSources,
) -> Vec<ResourceLimit> {
    let limit = |resource, value| ResourceLimit { resource, value };
    let limits = &spec.limits;
    let mut set =
        vec![limit(Resource::Core, 0), limit(Resource::OpenFiles, u64::from(limits.nofile))];
    if spec.isolation == Isolation::Full {
        set.push(limit(Resource::LockedMemory, 64 << 10));
        set.push(limit(Resource::QueuedSignals, QUEUED_SIGNALS_MAX));
        for resource in [Resource::MessageQueues, Resource::Nice, Resource::RealtimePriority] {
            set.push(limit(resource, 0));
        }
        if is_scratch_unlimited(trees) && !has_writable_volume(spec) {
            set.push(limit(Resource::FileSize, limits.scratch_bytes.value()));
        }
    }
    if !cgroups.memory_enforced {
        set.push(limit(Resource::Data, limits.memory_bytes.value()));
    }
    if !cgroups.pids_enforced {
        // One more for the keeper, which may run as the same user.
        set.push(limit(Resource::Processes, u64::from(limits.pids.value()) + 1));
    }
    set
}

/// Whether the scratch space is a directory of the host, which has no size. Then each file in it has
/// one. A tmpfs has its own size, and a sparse file in it may be longer than that.
fn is_scratch_unlimited(trees: &TreeSources) -> bool {
    matches!(trees.scratch, Some(TreeSource::HostPath(_)))
}

/// Returns the directory that the box has as its root, if it does not have the host's view.
pub fn wants_root_tree(spec: &Spec) -> Option<&Path> {
    match &spec.root {
        Root::HostView => None,
        Root::Directory(path) => Some(path),
    }
}
