//! QEMU as the monitor of machines. Nothing outside of this file knows its arguments.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use tare_control::MonitorFd;

use crate::error::{Context, Error, ErrorKind};
use crate::spec::Accelerator;
use crate::vm::monitor::{MachineOrder, Monitor, Share};

pub const PROGRAM: &str = "qemu-system-x86_64";
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// A QEMU on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Qemu {
    pub path: PathBuf,
    pub version: String,
    /// Whether it can use KVM, and whether it can emulate a processor.
    pub has_kvm: bool,
    pub has_tcg: bool,
}

impl Qemu {
    /// Asks a monitor for its version: `named`, or else the first in PATH. Fails if there is none,
    /// if it is not QEMU, and if it does not answer by `until`.
    pub fn find(named: Option<PathBuf>, until: Instant) -> Result<Self, Error> {
        let path = match named {
            Some(path) => path,
            None => in_path(std::env::var_os("PATH")).ok_or_else(|| {
                Error::new(ErrorKind::Unsupported, format!("there is no {PROGRAM} in PATH"))
                    .with_hint("install the package qemu-system-x86")
            })?,
        };
        // If the path does not lead to a file, the start fails and says why.
        let path = path.canonicalize().unwrap_or(path);
        let said = answer(path.as_os_str(), &["--version"], until)?;
        let version = said.strip_prefix("QEMU emulator version ").ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, format!("{} is not QEMU", path.display()))
                .with_hint(format!("TARE_VM_MONITOR names a {PROGRAM}"))
        })?;
        let version = version.split([' ', '(', '\n']).next().unwrap_or_default().to_owned();
        let accelerators = answer(path.as_os_str(), &["-accel", "help"], until)?;
        let has = |name| accelerators.lines().any(|line| line.trim() == name);
        Ok(Self { has_kvm: has("kvm"), has_tcg: has("tcg"), path, version })
    }
}

/// How much memory QEMU uses for translated code.
const TRANSLATED_BYTES: u64 = 32 << 20;
/// What QEMU needs beside the memory of the machine and translated code: 47 MB were measured.
const OWN_BYTES: u64 = 64 << 20;

impl Monitor for Qemu {
    fn program(&self) -> &Path {
        &self.path
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn has(&self, accelerator: Accelerator) -> bool {
        match accelerator {
            Accelerator::Kvm => self.has_kvm,
            Accelerator::Tcg => self.has_tcg,
        }
    }

    fn overhead_bytes(&self, accelerator: Accelerator) -> u64 {
        match accelerator {
            Accelerator::Kvm => OWN_BYTES,
            Accelerator::Tcg => OWN_BYTES + TRANSLATED_BYTES,
        }
    }

    /// The machine has no firmware, no bus but virtio's, and no network. QEMU reads no file of
    /// configuration, and may start no process.
    fn arguments(&self, order: &MachineOrder<'_>) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = Vec::new();
        let mut add = |words: &[&str]| arguments.extend(words.iter().map(OsString::from));
        let acpi = if order.devices_on_command_line { "off" } else { "on" };
        add(&["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
        add(&["-sandbox"]);
        add(&["on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"]);
        add(&["-M", &format!("microvm,acpi={acpi},rtc=on")]);
        match order.accelerator {
            Accelerator::Kvm => add(&["-accel", "kvm", "-cpu", "host"]),
            Accelerator::Tcg => {
                let translated = TRANSLATED_BYTES >> 20;
                // With a thread for each processor, QEMU 7.2 can go on for ever with a breakpoint that
                // the kernel has already replaced in its own code, and the machine hangs.
                add(&["-accel", &format!("tcg,thread=single,tb-size={translated}")]);
                // QEMU 7.2 emulates cmpxchg16b wrongly. Boxes get it from version 10 on.
                let is_old = self.version.split('.').next().is_none_or(|it| it.len() < 2);
                add(&["-cpu", if is_old { "qemu64,-cx16" } else { "qemu64" }]);
            }
        }
        add(&["-m", &format!("{}M", order.memory_bytes >> 20)]);
        add(&["-smp", &order.processors.to_string()]);
        add(&["-kernel", &format!("/proc/self/fd/{}", MonitorFd::Kernel as i32)]);
        add(&["-initrd", &format!("/proc/self/fd/{}", MonitorFd::Initramfs as i32)]);
        add(&["-append", &command_line(order)]);
        add(&["-chardev", &format!("socket,id=console,fd={}", MonitorFd::Console as i32)]);
        add(&["-serial", "chardev:console", "-device", "virtio-serial-device"]);
        add(&["-chardev", &format!("socket,id=port,fd={}", MonitorFd::Port as i32)]);
        add(&["-device", "virtserialport,chardev=port,name=tare"]);
        for Share { name, path, writable } in order.shares {
            let read_only = if *writable { "off" } else { "on" };
            add(&[
                "-fsdev",
                &format!(
                    "local,id={name},path={path},readonly={read_only},security_model=none,multidevs=remap"
                ),
            ]);
            add(&["-device", &format!("virtio-9p-device,fsdev={name},mount_tag={name}")]);
        }
        // Memory that the machine gave back stays given back, even if the machine runs out of memory: the
        // memory limit of the box counts on that.
        add(&["-device", "virtio-balloon-device,free-page-reporting=on,deflate-on-oom=off"]);
        add(&["-chardev", &format!("socket,id=commands,fd={}", MonitorFd::Commands as i32)]);
        add(&["-mon", "chardev=commands,mode=readline"]);
        arguments
    }

    fn set_memory(&self) -> &'static str {
        "balloon {}\n"
    }
}

/// Returns the kernel's command line. An emulated machine gets the rate of its counter, because a
/// kernel that cannot measure the rate hangs. It has to trust the counter, because otherwise its
/// clock is late under load and loses the time of every pause.
fn command_line(order: &MachineOrder<'_>) -> String {
    let clock = match order.accelerator {
        Accelerator::Kvm => String::new(),
        Accelerator::Tcg => format!(" tsc_early_khz={} tsc=reliable", order.counter_khz),
    };
    format!("console=ttyS0 quiet panic=-1 rdinit={}{clock}", order.init)
}

fn in_path(path: Option<OsString>) -> Option<PathBuf> {
    let path = path?;
    let mut candidates = std::env::split_paths(&path).map(|directory| directory.join(PROGRAM));
    candidates.find(|it| it.is_file())
}

/// Returns what a program prints. A program that does not end in time is killed.
fn answer(program: &OsStr, arguments: &[&str], until: Instant) -> Result<String, Error> {
    let shown = program.to_string_lossy();
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| {
        Error::new(ErrorKind::Unsupported, format!("cannot start {shown}"))
            .caused_by(error)
            .with_hint(format!("TARE_VM_MONITOR names a {PROGRAM}"))
    })?;
    let stdout = child.stdout.take().expect("it is a pipe");
    let (report, reported) = mpsc::channel();
    let read = move || {
        let mut text = Vec::new();
        let read = stdout.take(ANSWER_BYTES_MAX).read_to_end(&mut text);
        drop(report.send(read.map(|_| String::from_utf8_lossy(&text).into_owned())));
    };
    let started = thread::Builder::new().spawn(read);
    let within = until.saturating_duration_since(Instant::now());
    let said = started.map(|_| reported.recv_timeout(within));
    // The program has ended or has answered, or its time is over.
    child.kill().ok();
    child.wait().context(|| format!("cannot wait for {shown}"))?;
    match said.context(|| "cannot start a thread".to_owned())? {
        Ok(said) => said.context(|| format!("cannot read what {shown} prints")),
        Err(_) => Err(Error::new(ErrorKind::Unsupported, format!("{shown} does not answer"))
            .with_hint(format!("TARE_VM_MONITOR names a {PROGRAM}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use tare_harness::TemporaryDirectory;

    #[test]
    fn a_monitor_that_does_not_answer_in_time_is_an_error_and_is_ended() {
        let directory = TemporaryDirectory::new();
        let silent = directory.write("silent", "#!/bin/sh\nexec sleep 1000\n");
        fs::set_permissions(&silent, Permissions::from_mode(0o755)).unwrap();
        let children = || fs::read_to_string("/proc/thread-self/children").unwrap();
        let before = children();
        let error = Qemu::find(Some(silent), Instant::now()).unwrap_err();
        assert!(error.to_string().ends_with("silent does not answer"), "{error}");
        assert_eq!(children(), before);
    }
}
