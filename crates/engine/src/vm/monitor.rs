//! The monitor: the program that runs a machine. It is QEMU.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Context, Error, ErrorKind};

pub const PROGRAM: &str = "qemu-system-x86_64";
/// A loaded host starts QEMU within a second.
const ANSWERS_WITHIN: Duration = Duration::from_secs(3);
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// A monitor on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Monitor {
    pub path: PathBuf,
    pub version: String,
    /// Whether it can use KVM, and whether it can emulate a processor.
    pub has_kvm: bool,
    pub has_tcg: bool,
}

impl Monitor {
    /// Asks a monitor for its version: `named`, or else the first in PATH. The error says what is
    /// wrong with it. A monitor that does not answer by `until` is one of the errors.
    pub fn find(named: Option<PathBuf>, until: Instant) -> Result<Self, Error> {
        let path = match named {
            Some(path) => path,
            None => in_path(std::env::var_os("PATH")).ok_or_else(|| {
                Error::new(ErrorKind::Unsupported, format!("there is no {PROGRAM} in PATH"))
                    .with_hint("install the package qemu-system-x86")
            })?,
        };
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
    let within = until.saturating_duration_since(Instant::now()).min(ANSWERS_WITHIN);
    let said = started.map(|_| reported.recv_timeout(within));
    // It has ended, or has answered, or had its time.
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
        let error = Monitor::find(Some(silent), Instant::now()).unwrap_err();
        assert!(error.to_string().ends_with("silent does not answer"), "{error}");
        assert_eq!(children(), before);
    }
}
