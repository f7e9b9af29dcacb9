//! `/dev`: six nodes of the host, a terminal multiplexer of its own, shared
//! memory, and the usual links. Nothing else.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, mkdirat, openat, symlinkat};
use tare_control::SetupStep;
use tare_kernel::mount::{self, Attributes, Reach};

use crate::setup::{Failing, Failure};

/// The host's nodes and where they appear, relative to the root.
const NODES: [(&CStr, &CStr); 6] = [
    (c"/dev/null", c"dev/null"),
    (c"/dev/zero", c"dev/zero"),
    (c"/dev/full", c"dev/full"),
    (c"/dev/random", c"dev/random"),
    (c"/dev/urandom", c"dev/urandom"),
    (c"/dev/tty", c"dev/tty"),
];

const LINKS: [(&CStr, &CStr); 5] = [
    (c"/proc/self/fd", c"fd"),
    (c"/proc/self/fd/0", c"stdin"),
    (c"/proc/self/fd/1", c"stdout"),
    (c"/proc/self/fd/2", c"stderr"),
    (c"pts/ptmx", c"ptmx"),
];

const NOSUID_NOEXEC: Attributes =
    Attributes::MOUNT_ATTR_NOSUID.union(Attributes::MOUNT_ATTR_NOEXEC);

/// Mounts `/dev` in a root that is the current directory.
pub fn mount_dev(root: BorrowedFd<'_>) -> Result<(), Failure> {
    let dev = make_dev().failing(SetupStep::Dev, "/dev")?;
    mount::attach(dev.as_fd(), root, c"dev").failing(SetupStep::Dev, "/dev")?;
    for (host, node) in NODES {
        mount::bind(host, node).failing(SetupStep::Dev, &host.to_string_lossy())?;
    }
    mount::add_attributes(dev.as_fd(), NOSUID_NOEXEC, Reach::Recursive)
        .failing(SetupStep::Dev, "/dev")?;
    mount_pts(root).failing(SetupStep::Dev, "/dev/pts")?;
    mount_shm(root).failing(SetupStep::Dev, "/dev/shm")
}

/// The directory with its links and empty places for the nodes.
fn make_dev() -> std::io::Result<OwnedFd> {
    let options = [("size", "64k"), ("nr_inodes", "64"), ("mode", "0755")];
    let dev = mount::filesystem(c"tmpfs", &options, NOSUID_NOEXEC)?;
    let create = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    for (host, _) in NODES {
        let name = &host.to_bytes()[b"/dev/".len()..];
        openat(&dev, name, create, Mode::from_raw_mode(0o666))?;
    }
    for name in [c"pts", c"shm"] {
        mkdirat(&dev, name, Mode::from_raw_mode(0o755))?;
    }
    for (target, name) in LINKS {
        symlinkat(target, &dev, name)?;
    }
    Ok(dev)
}

/// Terminals of this box only; each `devpts` mount is an instance of its own.
fn mount_pts(root: BorrowedFd<'_>) -> std::io::Result<()> {
    let options = [("ptmxmode", "0666"), ("mode", "0620")];
    let pts = mount::filesystem(c"devpts", &options, NOSUID_NOEXEC)?;
    mount::attach(pts.as_fd(), root, c"dev/pts")
}

fn mount_shm(root: BorrowedFd<'_>) -> std::io::Result<()> {
    let options = [("size", "64m"), ("nr_inodes", "65536"), ("mode", "1777")];
    let attributes = NOSUID_NOEXEC | Attributes::MOUNT_ATTR_NODEV;
    let shm = mount::filesystem(c"tmpfs", &options, attributes)?;
    mount::attach(shm.as_fd(), root, c"dev/shm")
}
