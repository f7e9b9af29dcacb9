//! One Landlock domain for the whole box, put on the keeper so that everything
//! it ever starts shares it and can signal each other. A clone was not started by the
//! keeper: it gets a domain of its own with the same rules, and neither has a scope.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::CWD;
use tare_control::{LandlockPlan, VolumePlan};
use tare_kernel::fds::open_path;
use tare_kernel::landlock::{Ruleset, Scope, abi, access};

/// Restricts this process for good, and returns the rules. A kernel without Landlock changes nothing. A
/// volume is named by its mount, not by its path: another box may change a symlink in a volume that
/// both use.
pub fn restrict<'a>(
    plan: &LandlockPlan,
    has_kvm: bool,
    volumes: impl Iterator<Item = &'a (&'a VolumePlan, OwnedFd)>,
    scope: Scope,
) -> io::Result<Option<Ruleset>> {
    let abi = abi();
    if abi == 0 {
        return Ok(None);
    }
    let rules = Ruleset::new(abi, scope)?;
    let content = access::writes(abi) & !access::IOCTL_DEV;
    let file = access::FILE & !access::IOCTL_DEV;
    allow(&rules, b"/proc", file)?;
    allow(&rules, b"/dev", file)?;
    allow(&rules, b"/dev/pts", file | access::IOCTL_DEV)?;
    allow(&rules, b"/dev/tty", access::FILE)?;
    if has_kvm {
        allow(&rules, b"/dev/kvm", access::FILE)?;
    }
    let writable: &[&[u8]] =
        if plan.root_writable { &[b"/"] } else { &[b"/tmp", b"/work", b"/dev/shm"] };
    for path in writable {
        allow(&rules, path, content)?;
    }
    for (volume, mount) in volumes.filter(|(volume, _)| volume.writable) {
        let rights = if volume.is_directory { content } else { file };
        rules.allow(mount.as_fd(), rights)?;
    }
    rules.restrict_self()?;
    Ok(Some(rules))
}

fn allow(rules: &Ruleset, path: &[u8], rights: u64) -> io::Result<()> {
    let path = CString::new(path)?;
    rules.allow(open_path(CWD, path)?.as_fd(), rights)
}
