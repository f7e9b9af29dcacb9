//! A virtual machine: another kernel with another cgroup layout, a static busybox and the `tare`
//! under test.
//!
//! QEMU emulates it in software, without a device of the host and without privileges, from two
//! files: a kernel of Debian 12 that `./check` unpacks to `target/vm-cache` (`TARE_VM_KERNEL` names
//! another unpacked package), and an archive made here. It is a child of the test and ends with the
//! value that waits for it. If that value is lost, the machine shuts itself down.
//!
//! A machine can have KVM, because QEMU also emulates AMD's virtualisation. It boots Debian's generic
//! kernel of `target/kernel-package`, and sees the programs of this host.

mod archive;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tare_harness::skip::has_program;
use tare_harness::{TemporaryDirectory, fixture};

use archive::Archive;

const QEMU: &str = "qemu-system-x86_64";
/// Drivers that Debian builds as modules.
const MODULES: [&str; 2] = ["fs/overlayfs/overlay.ko", "drivers/block/loop.ko"];
/// Those of the generic kernel, each after those that it needs: files of the host, then KVM.
const MODULES_WITH_KVM: [&str; 15] = [
    "drivers/virtio/virtio_ring.ko",
    "drivers/virtio/virtio.ko",
    "drivers/virtio/virtio_pci_legacy_dev.ko",
    "drivers/virtio/virtio_pci_modern_dev.ko",
    "drivers/virtio/virtio_pci.ko",
    "fs/netfs/netfs.ko",
    "fs/fscache/fscache.ko",
    "net/9p/9pnet.ko",
    "net/9p/9pnet_virtio.ko",
    "fs/9p/9p.ko",
    "fs/overlayfs/overlay.ko",
    "drivers/crypto/ccp/ccp.ko",
    "virt/lib/irqbypass.ko",
    "arch/x86/kvm/kvm.ko",
    "arch/x86/kvm/kvm-amd.ko",
];
/// Several times what it takes on a loaded machine with two cores.
const ENDS_WITHIN: Duration = Duration::from_secs(240);

/// Where the machine's controllers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// All in the one v2 hierarchy.
    Pure,
    /// In v1 hierarchies, with an empty v2 beside them.
    Hybrid,
    /// In the one v2 hierarchy, which Debian's systemd manages.
    Systemd,
}

/// The parts of a machine that were found on this host.
#[derive(Debug)]
pub struct Machine {
    kernel: PathBuf,
    modules: Vec<PathBuf>,
    busybox: PathBuf,
    /// What it checks.
    checks: &'static str,
    memory_mib: u32,
    processors: &'static str,
    processor: &'static str,
    /// The directories of this host that it can mount, by name.
    shares: Vec<(&'static str, PathBuf)>,
}

/// The console output of a machine.
#[derive(Debug)]
pub struct Console(String);

impl Machine {
    /// Or what is missing for it.
    pub fn find() -> Result<Self, String> {
        if !has_program(QEMU) {
            return Err(format!("no {QEMU} here"));
        }
        let cache = target("vm-cache");
        let package = std::env::var_os("TARE_VM_KERNEL").map_or(cache, PathBuf::from);
        let (kernel, modules) = parts(&package, &MODULES)?;
        Ok(Self {
            kernel,
            modules,
            busybox: fixture::static_busybox().ok_or("no static busybox here")?.to_owned(),
            checks: include_str!("vm/checks.sh"),
            memory_mib: 768,
            processors: "2",
            processor: "qemu64",
            shares: Vec::new(),
        })
    }

    /// A machine with KVM, which has the kernels of this directory for machines in it.
    pub fn with_kvm(kernels: &Path) -> Result<Self, String> {
        let machine = Self::find()?;
        let (kernel, modules) = parts(&target("kernel-package/unpacked"), &MODULES_WITH_KVM)?;
        Ok(Self {
            kernel,
            modules,
            checks: include_str!("vm/kvm.sh"),
            memory_mib: 2048,
            // One is faster: two take turns.
            processors: "1",
            processor: "max,+svm,+npt",
            shares: vec![("usr", "/usr".into()), ("kernels", kernels.to_owned())],
            ..machine
        })
    }

    /// A machine for [`Layout::Systemd`].
    pub fn with_systemd() -> Result<Self, String> {
        if !target("systemd").exists() {
            return Err("no systemd in target: ./check fetches it".to_owned());
        }
        Ok(Self { checks: include_str!("vm/systemd.sh"), ..Self::find()? })
    }

    /// Boots it, runs the checks on `tare` in it, and waits for its end.
    pub fn run(&self, tare: &Path, layout: Layout) -> Console {
        let directory = TemporaryDirectory::new();
        let archive = directory.join("archive");
        fs::write(&archive, self.archive(tare, layout)).expect("the directory is ours");
        let console = directory.join("console");
        let mut running = Running(self.boot(&archive, &console, layout));
        let ended = running.ends_within(ENDS_WITHIN);
        drop(running);
        let text = fs::read(console).expect("the directory is ours");
        let text = String::from_utf8_lossy(&text).replace('\r', "");
        if ended {
            Console(text)
        } else {
            panic!("the machine did not end within {ENDS_WITHIN:?}:\n{text}")
        }
    }

    fn boot(&self, archive: &Path, console: &Path, layout: Layout) -> Child {
        let layout = match layout {
            Layout::Pure => "pure",
            Layout::Hybrid => "hybrid",
            Layout::Systemd => "systemd",
        };
        // An emulated machine needs no protection of its caches, and its kernel no self-tests of
        // cryptography: one of them once did not end.
        let shares = if self.shares.is_empty() { "" } else { " vm_shares" };
        let words = format!(
            "console=ttyS0 quiet panic=-1 mitigations=off cryptomgr.notests vm_layout={layout}{shares}"
        );
        let devices = self.shares.iter().flat_map(|(name, path)| {
            let path = path.display();
            let files = format!(
                "local,id={name},path={path},readonly=on,security_model=none,multidevs=remap"
            );
            let device = format!("virtio-9p-pci,fsdev={name},mount_tag={name}");
            ["-fsdev".to_owned(), files, "-device".to_owned(), device]
        });
        let output = fs::File::create(console).expect("the directory is ours");
        let errors = output.try_clone().expect("a descriptor is left");
        Command::new(QEMU)
            .args(["-nodefaults", "-no-user-config", "-no-reboot"])
            // With a thread for each processor, QEMU 7.2 can go on for ever with a breakpoint that the
            // kernel has already replaced in its own code, and the machine hangs.
            .args(["-accel", "tcg,thread=single", "-smp", self.processors])
            .args(["-cpu", self.processor])
            .args(["-m", &self.memory_mib.to_string()])
            .args(devices)
            .args(["-display", "none", "-serial", "stdio"])
            .args([OsStr::new("-kernel"), self.kernel.as_os_str()])
            .args([OsStr::new("-initrd"), archive.as_os_str()])
            .args(["-append", &words])
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .expect("QEMU can be started")
    }

    fn archive(&self, tare: &Path, layout: Layout) -> Vec<u8> {
        let mut archive = Archive::default();
        for path in ["usr", "usr/bin", "usr/lib", "etc", "etc/vm", "mnt", "dev"] {
            archive.directory(path);
        }
        for (path, target) in [("bin", "usr/bin"), ("sbin", "usr/bin"), ("lib", "usr/lib")] {
            archive.symlink(path, target);
        }
        archive.console("dev/console");
        archive.program("usr/bin/busybox", &read(&self.busybox));
        archive.program("usr/bin/tare", &read(tare));
        let users = b"root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/tmp:/bin/sh\n\
            messagebus:x:100:100::/:/bin/false\n";
        archive.file("etc/passwd", users);
        archive.file("etc/group", b"root:x:0:\nuser:x:1000:\nmessagebus:x:100:\nkvm:x:104:\n");
        match layout {
            Layout::Systemd => add_systemd(&mut archive),
            Layout::Pure | Layout::Hybrid if self.shares.is_empty() => add_python(&mut archive),
            Layout::Pure | Layout::Hybrid => archive.symlink("lib64", "usr/lib64"),
        }
        for path in ["init", "etc/vm/init"] {
            archive.program(path, include_bytes!("vm/init.sh"));
        }
        let checks = [include_str!("vm/checking.sh"), self.checks].concat();
        archive.file("etc/vm/checks", checks.as_bytes());
        archive.file("etc/vm/living", include_bytes!("vm/living.sh"));
        for (number, module) in self.modules.iter().enumerate() {
            let name = module.file_name().expect("it ends in .ko");
            archive.file(&format!("etc/vm/{number:02}-{}", name.display()), &read(module));
        }
        archive.finish()
    }
}

/// Adds the Python that `./check` unpacks to `target/pythons`, with what a server needs to clone it. The
/// checks that use it are left out without it.
fn add_python(archive: &mut Archive) {
    let root = target("pythons/3.13");
    if !root.exists() {
        return;
    }
    archive.symlink("lib64", "usr/lib64");
    archive.symlink("usr/bin/python3", "python3.13");
    archive.program("usr/bin/python3.13", &read(&root.join("usr/bin/python3.13")));
    let library = "usr/lib/python3.13";
    let modules = ["encodings", "collections", "importlib", "re", "ctypes", "lib-dynload"];
    let directories = modules.map(|name| format!("{library}/{name}"));
    let system = ["usr/lib64", "usr/lib/x86_64-linux-gnu", library].map(str::to_owned);
    for directory in system.iter().chain(&directories) {
        archive.directory(directory);
        for entry in fs::read_dir(root.join(directory)).expect("it was unpacked").flatten() {
            // Links too: they lead to files in the same root.
            let content = fs::read(entry.path());
            if let Ok(content) = content {
                let path = format!("{directory}/{}", entry.file_name().display());
                archive.program(&path, &content);
            }
        }
    }
}

/// Adds the systemd that `./check` unpacks, with a manager for the user.
fn add_systemd(archive: &mut Archive) {
    for path in ["usr", "etc", "lib64"] {
        add_tree(archive, &target("systemd"), path);
    }
    let units = "etc/systemd/system";
    archive.file(&format!("{units}/checks.service"), include_bytes!("vm/systemd/checks.service"));
    let runtime = include_bytes!("vm/systemd/user-runtime-dir@.service");
    archive.file(&format!("{units}/user-runtime-dir@.service"), runtime);
    let changes: [(&str, &[u8]); 3] = [
        ("user@.service", include_bytes!("vm/systemd/user.conf")),
        ("dbus.service", include_bytes!("vm/systemd/dbus.conf")),
        ("dbus.socket", include_bytes!("vm/systemd/dbus.conf")),
    ];
    for (unit, change) in changes {
        archive.directory(&format!("{units}/{unit}.d"));
        archive.file(&format!("{units}/{unit}.d/vm.conf"), change);
    }
}

/// Adds a file, a link, or a directory with everything below it.
fn add_tree(archive: &mut Archive, root: &Path, path: &str) {
    let source = root.join(path);
    let kind = source.symlink_metadata().expect("it was unpacked").file_type();
    if kind.is_symlink() {
        let target = fs::read_link(&source).expect("it is a link");
        archive.symlink(path, target.to_str().expect("Debian's names are text"));
    } else if kind.is_dir() {
        archive.directory(path);
        for entry in fs::read_dir(&source).expect("it was unpacked").flatten() {
            let name = entry.file_name().into_string().expect("Debian's names are text");
            add_tree(archive, root, &format!("{path}/{name}"));
        }
    } else {
        archive.program(path, &read(&source));
    }
}

impl Console {
    /// `CHECK` lines, with what went wrong below those that failed.
    pub fn report(&self) -> String {
        let wanted = |line: &&str| line.starts_with("CHECK ") || line.starts_with("    ");
        let lines = self.0.lines().filter(wanted);
        lines.map(|line| format!("{line}\n")).collect()
    }

    pub fn passed(&self) -> usize {
        let ok = |line: &&str| line.starts_with("CHECK ") && line.contains(" ok ");
        self.0.lines().filter(ok).count()
    }

    pub fn failed(&self) -> usize {
        let failed = |line: &&str| line.starts_with("CHECK ") && line.ends_with(" FAILED");
        self.0.lines().filter(failed).count()
    }

    /// Whether the checks came to their end.
    pub fn is_complete(&self) -> bool {
        self.0.lines().any(|line| line == "VM done 0")
    }

    pub fn text(&self) -> &str {
        &self.0
    }
}

/// The machine's process: dead and reaped once this is dropped.
#[derive(Debug)]
struct Running(Child);

impl Running {
    fn ends_within(&mut self, bound: Duration) -> bool {
        let pid = Pid::from_child(&self.0);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).expect("an unreaped child has a pidfd");
        let end = Instant::now() + bound;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).expect("the bound is small");
            match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&left)) {
                Err(rustix::io::Errno::INTR) => {}
                other => return other.expect("a pidfd can be polled") > 0,
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Already dead is as wanted; it is reaped either way.
        self.0.kill().ok();
        self.0.wait().expect("a child can be waited for");
    }
}

fn target(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target").join(name)
}

/// Returns the kernel of an unpacked package and these of its modules, or what is missing.
fn parts(package: &Path, names: &[&str]) -> Result<(PathBuf, Vec<PathBuf>), String> {
    let missing = |what: &str| format!("no {what} in {}: ./check fetches it", package.display());
    let kernel = entry(&package.join("boot"), "vmlinuz-").ok_or(missing("kernel"))?;
    let drivers = entry(&package.join("lib/modules"), "").ok_or(missing("modules"))?;
    let modules: Vec<_> = names.iter().map(|name| drivers.join("kernel").join(name)).collect();
    match modules.iter().find(|module| !module.exists()) {
        Some(module) => Err(missing(&module.to_string_lossy())),
        None => Ok((kernel, modules)),
    }
}

/// The last entry of a directory with this prefix.
fn entry(directory: &Path, beginning: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(directory).ok()?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let named = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().starts_with(beginning)
    };
    paths.filter(named).max()
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()))
}
