//! A box in a machine: a native box whose only workload is a monitor, and the box inside.
//!
//! The outer box gets the limits, the volumes and the record. Its plan contains the plan of the box
//! in the machine, which is made from the spec of the user as for a native box. The keeper
//! assembles the root that the machine sees apart from the root of the monitor.
//!
//! Invariant: whatever the spec asks for, the monitor has no root rights, the default seccomp
//! filter and no network.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tare_control::{
    ExportPlan, GuestPlan, MACHINE_NAME, MachinePlan, Plan, Resource, Role, RootPlan, SharedTree,
    VolumePlan,
};
use tare_kernel::clock::{CounterRate, boot_ns};
use tare_kernel::kvm;

use crate::create::endow::Endowment;
use crate::create::plan::{self, TreeSources};
use crate::create::{Mode, NewBox, host_view};
use crate::error::{Context, Error, ErrorKind, Hint};
use crate::holdings::cgroup::CgroupHolding;
use crate::host::Host;
use crate::host::layout::BoxAt;
use crate::record::lines::MachineLine;
use crate::spec::{
    Accel, Accelerator, Access, Isolation, Limit, MachineSpec, Network, Privilege, SeccompProfile,
    Spec, Volume, quantity,
};
use crate::vm::kernels::BootKernel;
use crate::vm::monitor::{MachineOrder, Monitor, Share};
use crate::vm::qemu::Qemu;
use crate::vm::{MachinePart, MachineSettings, acceleration, initramfs};

/// The least memory limit: a kernel with its modules, a keeper and one command fit.
pub const MEMORY_BYTES_MIN: u64 = 256 << 20;
/// The least memory of a machine itself. With 96 MiB, Debian's kernel panics before its first process.
const GUEST_BYTES_MIN: u64 = 128 << 20;
/// The threads that QEMU starts for requests for files. It aborts if it cannot start one.
const REQUEST_THREADS: u32 = 64;
/// Enough for the keeper, and for every thread of the monitor that serves neither requests nor processors.
const OTHER_THREADS: u32 = 16;
const MONITOR_NOFILE: u32 = 1024;
/// The monitor writes no file.
const MONITOR_SCRATCH_BYTES: u64 = 1 << 20;
/// How long QEMU may take to answer, and KVM to run a guest that tries it. QEMU answers within a tenth of a
/// second. On a busy host that is a machine itself, it was seen to take three seconds.
const FOUND_WITHIN: Duration = Duration::from_secs(15);
const BOOT_WITHIN_KVM: Duration = Duration::from_secs(10);
const BOOT_WITHIN_EMULATED: Duration = Duration::from_secs(60);

/// The directory of everything that the machine sees, in the root of the monitor.
const SHARED: &str = "/machine";
/// The place of a monitor that is not in the view of the host, in the root of the monitor.
const MONITOR: &str = "/machine/monitor";
/// The share of the root and of all read-only volumes.
const FILES: &str = "files";

/// The machine of a box that is being made.
#[derive(Debug)]
pub struct Machine<'a> {
    /// What the user asked for.
    inner: &'a Spec,
    /// The native box around the monitor.
    pub outer: Spec,
    monitor: Qemu,
    accelerator: Accelerator,
    /// The node that the monitor opens, if it may not open the host's.
    kvm_node: Option<OwnedFd>,
    /// With `--accel auto`: the note that the machine is emulated, and why.
    pub note: Option<String>,
    kernel: BootKernel,
    initramfs: OwnedFd,
    counter_khz: u64,
    pub boot_within: Duration,
}

impl<'a> Machine<'a> {
    /// Finds everything that the machine of a spec needs.
    pub fn find(at: BoxAt<'_>, new: NewBox<'a>, wanted: &MachineSpec) -> Result<Self, Error> {
        let rate = CounterRate::start();
        check(new)?;
        let settings = at.root.machines.get().ok_or_else(|| {
            let message = "cannot find the directory of the kernels of machines";
            Error::new(ErrorKind::Unsupported, message).with_hint("set TARE_VM_DIR")
        })?;
        let wanted = (wanted, new.spec.privilege);
        let parts = parts(&settings, wanted, &at.root.host).map_err(|(_, why)| why)?;
        let Parts { monitor, power: Power { accelerator, kvm_node, note }, kernel } = parts;
        let overhead_bytes = overhead_bytes(&monitor, accelerator, new.mode);
        check_limit(
            new.spec.limits.memory_bytes.value(),
            GUEST_BYTES_MIN.saturating_add(overhead_bytes),
        )?;
        let initramfs = initramfs::make(&kernel.modules)
            .context(|| "cannot make the machine's first files".into())?;
        Ok(Self {
            inner: new.spec,
            outer: outer(new.spec, monitor.program()),
            monitor,
            accelerator,
            kvm_node,
            note,
            kernel,
            initramfs,
            counter_khz: rate.khz(),
            boot_within: settings.boot_within.unwrap_or(match accelerator {
                Accelerator::Kvm => BOOT_WITHIN_KVM,
                Accelerator::Tcg => BOOT_WITHIN_EMULATED,
            }),
        })
    }

    /// Gives the keeper what only the monitor needs.
    pub fn give_to<'b>(&'b self, endowment: &mut Endowment<'b>) {
        endowment.give(Role::Kernel, self.kernel.file.as_fd());
        endowment.give(Role::Initramfs, self.initramfs.as_fd());
        if let Some(node) = &self.kvm_node {
            endowment.give(Role::KvmNode, node.as_fd());
        }
    }

    /// Turns the plan of the outer box into the plan of a machine. `directories` says of each
    /// volume whether it is a directory.
    pub fn plan(
        &self,
        outer: &mut Plan,
        at: BoxAt<'_>,
        mode: Mode<'_>,
        (cgroups, directories): (&CgroupHolding, &[bool]),
    ) {
        self.export_root(outer);
        // Without a cgroup, a limit on the data of each process replaces the memory limit of the
        // box. The monitor would exceed it, because it maps files beside the memory of the machine.
        // The size of that memory bounds the monitor already.
        outer.profile.limits.retain(|limit| limit.resource != Resource::Data);
        let new = NewBox { spec: self.inner, mode };
        let sources = TreeSources::of_guest(directories);
        let mut plan = plan::plan(new, at.id, &at.root.host, cgroups, sources, Vec::new());
        plan::for_guest(&mut plan, self.inner);
        let shares = shares(&self.inner.volumes);
        let order = MachineOrder {
            accelerator: self.accelerator,
            memory_bytes: self.memory_bytes(mode),
            processors: processors(self.inner),
            shares: &shares,
            devices_on_command_line: self.kernel.devices_on_command_line,
            init: &MACHINE_NAME.to_string_lossy(),
            counter_khz: self.counter_khz,
        };
        let program = match self.monitor.program() {
            program if is_shown(program) => program.as_os_str().to_owned(),
            _ => MONITOR.into(),
        };
        let words = [program].into_iter().chain(self.monitor.arguments(&order));
        outer.machine = Some(Box::new(MachinePlan {
            monitor: words.map(OsString::into_vec).collect(),
            boot_ns: u64::try_from(self.boot_within.as_nanos()).unwrap_or(u64::MAX),
            memory_bytes: order.memory_bytes,
            set_memory: self.monitor.set_memory().to_owned(),
            guest: GuestPlan {
                plan,
                trees: trees(&self.inner.volumes),
                pids: self.inner.limits.pids.value(),
                now_ns: 0,
            },
        }));
    }

    /// Returns the memory of the machine: the memory limit without what the monitor and the log need.
    fn memory_bytes(&self, mode: Mode<'_>) -> u64 {
        let limit = self.inner.limits.memory_bytes.value();
        limit.saturating_sub(overhead_bytes(&self.monitor, self.accelerator, mode))
    }

    /// Returns what the record says about the machine.
    pub fn line(&self, mode: Mode<'_>) -> MachineLine {
        MachineLine {
            kernel: self.kernel.name.clone(),
            monitor: self.monitor.version().to_owned(),
            memory_bytes: self.memory_bytes(mode),
            boot_ms: u64::try_from(self.boot_within.as_millis()).ok(),
            at_ns: boot_ns(),
        }
    }

    /// Moves the root that the user asked for to the place that the machine sees. The root of the
    /// monitor has the programs of the host.
    fn export_root(&self, outer: &mut Plan) {
        let hostname = outer.hostname.clone().unwrap_or_default();
        let Some(filesystem) = &mut outer.filesystem else { return };
        let path = format!("{SHARED}/{FILES}/root");
        let entries = host_view::entries();
        let root = std::mem::replace(&mut filesystem.root, RootPlan::HostView(Vec::new()));
        match root {
            RootPlan::Overlay(source) => filesystem.volumes.insert(
                0,
                VolumePlan {
                    source,
                    target: path.into_bytes(),
                    is_directory: true,
                    writable: false,
                },
            ),
            RootPlan::HostView(_) => {
                let files = host_view::files(self.inner, &hostname);
                filesystem.export = Some(ExportPlan { path, entries: entries.clone(), files });
            }
        }
        filesystem.root = RootPlan::HostView(entries);
        filesystem.kvm = self.accelerator == Accelerator::Kvm;
        outer.landlock.iter_mut().for_each(|it| it.root_writable = false);
    }
}

/// What a machine is made of.
#[derive(Debug)]
struct Parts {
    monitor: Qemu,
    power: Power,
    kernel: BootKernel,
}

/// Finds the monitor, the accelerator and the kernel of a machine, or says which of them cannot be
/// used. A user who asks for what this host lacks has made a wrong request.
fn parts(
    settings: &MachineSettings,
    (wanted, privilege): (&MachineSpec, Privilege),
    host: &Host,
) -> Result<Parts, (MachinePart, Error)> {
    let lacks = |part| {
        move |error: Error| {
            if error.kind() == ErrorKind::Unsupported {
                (part, error.of_kind(ErrorKind::BadRequest))
            } else {
                (part, error)
            }
        }
    };
    let until = Instant::now() + FOUND_WITHIN;
    let monitor = Qemu::find(settings.monitor.clone(), until);
    let monitor = monitor.map_err(lacks(MachinePart::Monitor))?;
    let power = power(wanted.accel, &monitor, host, until).map_err(lacks(MachinePart::Accel))?;
    let kernel = settings.kernels.boot(wanted.kernel.as_deref(), privilege);
    Ok(Parts { monitor, power, kernel: kernel.map_err(lacks(MachinePart::Kernel))? })
}

/// Checks that such machines can be made here, without making one.
pub fn check_host(
    settings: &MachineSettings,
    wanted: &MachineSpec,
    host: &Host,
) -> Result<(), (MachinePart, Error)> {
    parts(settings, (wanted, Privilege::Unprivileged), host).map(drop)
}

/// Returns whether a program is in the view of the host.
fn is_shown(program: &Path) -> bool {
    program.starts_with("/usr")
}

/// Refuses what a machine cannot do.
fn check(NewBox { spec, mode }: NewBox<'_>) -> Result<(), Error> {
    let refused = |what: &str, hint: Hint| {
        let message = format!("a box in a machine cannot have {what}");
        Err(Error::bad_request(message).with_hint(hint))
    };
    if !cfg!(target_arch = "x86_64") {
        let message = "machines exist only for x86-64";
        return Err(Error::bad_request(message).with_hint(Hint::NativeDriver));
    }
    if spec.isolation == Isolation::Contain {
        return refused("the host's files", Hint::ContainOfMachine);
    }
    if spec.network == Network::Host {
        return refused("the host's network", Hint::NetworkOfMachine);
    }
    if mode.options().is_some_and(|options| options.keep) {
        return refused("files that outlive it", Hint::FilesOfMachine);
    }
    check_memory(spec.limits.memory_bytes.value())
}

/// Refuses a memory limit with which no machine works.
pub fn check_memory(bytes: u64) -> Result<(), Error> {
    check_limit(bytes, MEMORY_BYTES_MIN)
}

fn check_limit(bytes: u64, least: u64) -> Result<(), Error> {
    quantity::check_memory(bytes, least, |bytes| {
        format!("a memory limit of {bytes} is too small for this machine")
    })
}

/// Returns how much of the memory limit the machine does not get: what the monitor and the log need.
fn overhead_bytes(monitor: &Qemu, accelerator: Accelerator, mode: Mode<'_>) -> u64 {
    let log_bytes = mode.options().map_or(0, |options| options.log_bytes_max.value());
    monitor.overhead_bytes(accelerator).saturating_add(log_bytes)
}

/// What runs the instructions of a machine.
#[derive(Debug)]
struct Power {
    accelerator: Accelerator,
    kvm_node: Option<OwnedFd>,
    note: Option<String>,
}

/// Decides what runs the machine. Emulation has to be asked for: it is not a security boundary.
fn power(wanted: Accel, monitor: &Qemu, host: &Host, until: Instant) -> Result<Power, Error> {
    let emulated = |note| {
        if monitor.has(Accelerator::Tcg) {
            Ok(Power { accelerator: Accelerator::Tcg, kvm_node: None, note })
        } else {
            let message = "the monitor cannot emulate a processor";
            Err(Error::new(ErrorKind::Unsupported, message).with_hint(Hint::InstallEmulator))
        }
    };
    if wanted == Accel::Tcg {
        return emulated(None);
    }
    let why = match with_kvm(monitor, host, until) {
        Ok(power) => return Ok(power),
        Err(why) => why,
    };
    if wanted == Accel::Auto {
        let note = format!("KVM cannot be used: {why}. The machine is emulated, which is slow");
        return emulated(Some(note));
    }
    let error = Error::new(ErrorKind::Unsupported, "cannot run a machine with KVM");
    Err(error.caused_by(why).with_hint(Hint::Emulate))
}

/// Fails with the reason.
fn with_kvm(monitor: &Qemu, host: &Host, until: Instant) -> Result<Power, String> {
    if let Some(why) = acceleration::obstacle(acceleration::probe(until)) {
        return Err(why);
    }
    if !monitor.has(Accelerator::Kvm) {
        return Err("the monitor was built without it".to_owned());
    }
    // Without privileges, the monitor has the user and the groups of the caller.
    let node = host.is_privileged().then(kvm::own_node).transpose();
    let kvm_node =
        node.map_err(|error| format!("cannot make a device node for the monitor: {error}"))?;
    Ok(Power { accelerator: Accelerator::Kvm, kvm_node, note: None })
}

/// Returns the native box around the monitor. Its user, its volumes, and its limits of memory and
/// processor time are those of the spec.
fn outer(spec: &Spec, monitor: &Path) -> Spec {
    let volumes = spec.volumes.iter().enumerate();
    let volumes =
        volumes.map(|(number, volume)| Volume { target: place(number, volume), ..volume.clone() });
    let monitor = (!is_shown(monitor)).then(|| Volume {
        host: monitor.to_owned(),
        target: MONITOR.into(),
        access: Access::ReadOnly,
    });
    Spec {
        env: vec![("PATH".into(), "/usr/bin:/bin".into())],
        workdir: Some("/".into()),
        workspace: None,
        privilege: Privilege::Unprivileged,
        seccomp: SeccompProfile::Default,
        limits: crate::spec::Limits {
            pids: Limit::Default(monitor_pids()),
            nofile: MONITOR_NOFILE,
            scratch_bytes: Limit::Default(MONITOR_SCRATCH_BYTES),
            ..spec.limits.clone()
        },
        volumes: volumes.chain(monitor).collect(),
        ..spec.clone()
    }
}

/// Returns the place of a volume in the root of the monitor.
fn place(number: usize, volume: &Volume) -> PathBuf {
    let Share { path, .. } = share(number, volume);
    PathBuf::from(path).join(path_in_share(number, volume))
}

fn share(number: usize, volume: &Volume) -> Share {
    match volume.access {
        Access::ReadOnly => files(),
        Access::ReadWrite => {
            let name = format!("v{number}");
            Share { path: format!("{SHARED}/{name}"), name, writable: true }
        }
    }
}

fn files() -> Share {
    Share { name: FILES.to_owned(), path: format!("{SHARED}/{FILES}"), writable: false }
}

fn path_in_share(number: usize, volume: &Volume) -> String {
    match volume.access {
        Access::ReadOnly => format!("volumes/{number}"),
        Access::ReadWrite => "volume".to_owned(),
    }
}

fn shares(volumes: &[Volume]) -> Vec<Share> {
    let own = volumes.iter().enumerate().map(|(number, volume)| share(number, volume));
    [files()].into_iter().chain(own.filter(|share| share.writable)).collect()
}

/// Returns the trees of the box in the machine: its root, then its volumes.
fn trees(volumes: &[Volume]) -> Vec<SharedTree> {
    let root = SharedTree { share: FILES.into(), path: "root".into(), writable: false };
    let volumes = volumes.iter().enumerate().map(|(number, volume)| {
        let Share { name, writable, .. } = share(number, volume);
        SharedTree { share: name, path: path_in_share(number, volume), writable }
    });
    [root].into_iter().chain(volumes).collect()
}

/// Returns as many processors as the limit of processor time needs, and the host has.
fn processors(spec: &Spec) -> u32 {
    let needed = spec.limits.cpus.map_or(1, |cpus| cpus.milli.div_ceil(1000));
    needed.min(host_processors())
}

fn host_processors() -> u32 {
    let host = std::thread::available_parallelism().map_or(1, |it| it.get());
    u32::try_from(host).unwrap_or(u32::MAX)
}

/// Returns how many processes and threads the box around a machine may have.
pub fn monitor_pids() -> u32 {
    (REQUEST_THREADS + OTHER_THREADS).saturating_add(host_processors())
}
