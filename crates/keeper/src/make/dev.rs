//! `/dev`: six nodes of the host, a terminal multiplexer of its own, shared
//! memory, and the usual links. Nothing else.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{Mode, mkdirat, symlinkat};
use tare_control::SetupStep;
use tare_kernel::mount::{self, Attributes, Reach};
use tare_kernel::step::step;

use crate::make::files::make_empty_file;
use crate::make::{Failing, Failure};

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
    (c"/proc/self/fd", c"dev/fd"),
    (c"/proc/self/fd/0", c"dev/stdin"),
    (c"/proc/self/fd/1", c"dev/stdout"),
    (c"/proc/self/fd/2", c"dev/stderr"),
    (c"pts/ptmx", c"dev/ptmx"),
];

const NOSUID_NOEXEC: Attributes =
    Attributes::MOUNT_ATTR_NOSUID.union(Attributes::MOUNT_ATTR_NOEXEC);

/// Mounts `/dev`, made by [`make_dev`], in a root that is the current directory.
/// `/dev` is read-only. The host's nodes are bound into it one by one, so writing to a node still works.
pub fn mount_dev(root: BorrowedFd<'_>, dev: BorrowedFd<'_>) -> Result<(), Failure> {
    mount::attach(dev, root, c"dev").failing(SetupStep::Dev, "/dev")?;
    for (host, node) in NODES {
        mount::bind(host, node).failing(SetupStep::Dev, &host.to_string_lossy())?;
    }
    let attributes = NOSUID_NOEXEC | Attributes::MOUNT_ATTR_RDONLY;
    mount::add_attributes(dev, attributes, Reach::Recursive).failing(SetupStep::Dev, "/dev")?;
    mount_pts(root).failing(SetupStep::Dev, "/dev/pts")
}

/// The directory on the scratch space, with its links and empty places for the
/// nodes and for what is mounted in it.
pub fn make_dev(scratch: BorrowedFd<'_>) -> rustix::io::Result<()> {
    for name in [c"dev", c"dev/pts"] {
        step("make a directory in /dev", || mkdirat(scratch, name, Mode::from_raw_mode(0o755)))?;
    }
    for (_, node) in NODES {
        make_empty_file(scratch, node)?;
    }
    for (target, name) in LINKS {
        step("make a link in /dev", || symlinkat(target, scratch, name))?;
    }
    Ok(())
}

/// Terminals of this box only; each `devpts` mount is an instance of its own.
fn mount_pts(root: BorrowedFd<'_>) -> std::io::Result<()> {
    let options = [("ptmxmode", "0666"), ("mode", "0620")];
    let pts = mount::filesystem(c"devpts", &options, NOSUID_NOEXEC)?;
    mount::attach(pts.as_fd(), root, c"dev/pts")
}
