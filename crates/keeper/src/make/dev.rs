//! `/dev`: six nodes of the host, a terminal multiplexer of its own, shared
//! memory, and the usual links. The monitor of a machine also has the node of KVM. Nothing else, unless
//! the box has the kernel for itself.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, mkdirat, symlinkat};
use rustix::io::Errno;
use tare_control::SetupStep;
use tare_kernel::mount::{self, Attributes, Reach};
use tare_kernel::step::step;

use crate::make::mount_point::make_empty_file;
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

const KVM: &CStr = c"dev/kvm";
const PTS: &CStr = c"dev/pts";

/// The node of KVM.
#[derive(Debug)]
pub enum KvmNode {
    /// In a file system that the creator made.
    Own(OwnedFd),
    /// The host's, which the user of the box may open.
    Host,
}

/// Mounts `/dev`, made by [`make_dev`], in a root that is the current directory.
/// `/dev` is read-only. The host's nodes are bound into it one by one, so writing to a node still works.
pub fn mount_dev(
    root: BorrowedFd<'_>,
    dev: BorrowedFd<'_>,
    kvm: Option<KvmNode>,
) -> Result<(), Failure> {
    mount::attach(dev, root, c"dev").failing(SetupStep::Dev, "/dev")?;
    for (host, node) in NODES {
        mount::bind(host, node).failing(SetupStep::Dev, &host.to_string_lossy())?;
    }
    if let Some(node) = kvm {
        mount_kvm(root, &node).failing(SetupStep::Dev, "/dev/kvm")?;
    }
    let attributes = NOSUID_NOEXEC | Attributes::MOUNT_ATTR_RDONLY;
    mount::add_attributes(dev, attributes, Reach::Recursive).failing(SetupStep::Dev, "/dev")?;
    mount_pts(root).failing(SetupStep::Dev, "/dev/pts")
}

/// Before Linux 6.15, only a part of an attached file system can be bound. So a file system with a node
/// is attached first, in the place of the terminals, which then cover it.
fn mount_kvm(root: BorrowedFd<'_>, node: &KvmNode) -> std::io::Result<()> {
    match node {
        KvmNode::Own(filesystem) => {
            mount::attach(filesystem.as_fd(), root, PTS)?;
            mount::bind(c"dev/pts/kvm", KVM)
        }
        KvmNode::Host => mount::bind(c"/dev/kvm", KVM),
    }
}

/// Mounts all devices of the kernel in a root that is the current directory. Drivers add nodes to them.
pub fn mount_every_device(root: BorrowedFd<'_>) -> Result<(), Failure> {
    let dev = mount::filesystem(c"devtmpfs", &[], NOSUID_NOEXEC);
    dev.and_then(|dev| mount::attach(dev.as_fd(), root, c"dev")).failing(SetupStep::Dev, "/dev")?;
    for name in [c"dev/pts", c"dev/shm"] {
        let made = mkdirat(root, name, Mode::from_raw_mode(0o755));
        made.or_else(unless_there).failing(SetupStep::Dev, &name.to_string_lossy())?;
    }
    for (target, name) in LINKS {
        let made = symlinkat(target, root, name);
        made.or_else(unless_there).failing(SetupStep::Dev, &name.to_string_lossy())?;
    }
    mount_pts(root).failing(SetupStep::Dev, "/dev/pts")
}

fn unless_there(errno: Errno) -> rustix::io::Result<()> {
    if errno == Errno::EXIST { Ok(()) } else { Err(errno) }
}

/// The directory on the scratch space, with its links and empty places for the
/// nodes and for what is mounted in it.
pub fn make_dev(scratch: BorrowedFd<'_>, has_kvm: bool) -> rustix::io::Result<()> {
    for name in [c"dev", PTS] {
        step("make a directory in /dev", || mkdirat(scratch, name, Mode::from_raw_mode(0o755)))?;
    }
    for (_, node) in NODES {
        make_empty_file(scratch, node)?;
    }
    if has_kvm {
        make_empty_file(scratch, KVM)?;
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
    mount::attach(pts.as_fd(), root, PTS)
}
