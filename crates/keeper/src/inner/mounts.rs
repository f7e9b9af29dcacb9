//! The file systems of the machine's first process: its own root, the modules, and the directories
//! that the monitor shares. Nothing here is undone: all mounts end with the machine.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Mode, mkdirat, unlinkat};
use rustix::system::finit_module;
use tare_control::SharedTree;
use tare_kernel::fds::{open_directory, open_file};
use tare_kernel::mount::{self, Attributes, NOSUID_NODEV, Reach};

/// The modules that the machine needs, which are loaded in the order of their names.
const MODULES: &CStr = c"/modules";
/// The modules that only programs in the box need.
const MORE_MODULES: &CStr = c"/more-modules";
const SHARES: &str = "/shares";

/// No set-id bits, no devices, no programs.
const NOTHING: Attributes = NOSUID_NODEV.union(Attributes::MOUNT_ATTR_NOEXEC);

/// Loads the modules, and moves to a root of its own on a tmpfs: the keeper could not leave the
/// root into which the kernel unpacks the first files by pivot_root(2).
pub fn enter_own_root() -> io::Result<()> {
    load_modules(MODULES)?;
    // The machine works without them.
    if let Err(error) = load_modules(MORE_MODULES) {
        super::say(&format!("tare: {error}"));
    }
    let root = mount::filesystem(c"tmpfs", &[("mode", "0755"), ("size", "1m")], NOSUID_NODEV)?;
    for name in [c"proc", c"sys", c"dev", c"shares"] {
        mkdirat(&root, name, Mode::from_raw_mode(0o755))?;
    }
    mount::attach_over_root(root.as_fd())?;
    rustix::process::fchdir(&root)?;
    rustix::process::chroot(c".")?;
    let nosuid_noexec = Attributes::MOUNT_ATTR_NOSUID | Attributes::MOUNT_ATTR_NOEXEC;
    for (kind, place, attributes) in [
        (c"proc", c"proc", NOTHING),
        (c"sysfs", c"sys", NOTHING),
        (c"devtmpfs", c"dev", nosuid_noexec),
        (c"cgroup2", c"sys/fs/cgroup", NOTHING),
    ] {
        let made = mount::filesystem(kind, &[], attributes)?;
        mount::attach(made.as_fd(), CWD, place)?;
    }
    Ok(())
}

/// Loads every module of a directory, and frees the memory of its file. Returns the first error.
fn load_modules(place: &CStr) -> io::Result<()> {
    let directory = open_directory(CWD, place)?;
    let path = place.to_string_lossy();
    let names = fs::read_dir(&*path)?.map(|entry| Ok(entry?.file_name()));
    let mut names = names.collect::<io::Result<Vec<_>>>()?;
    names.sort();
    let mut loaded = Ok(());
    for name in names {
        let file = File::from(open_file(&directory, &name)?);
        let result = finit_module(&file, c"", 0).map_err(|errno| {
            io::Error::other(format!("module {}: {errno}", name.to_string_lossy()))
        });
        unlinkat(&directory, &name, AtFlags::empty())?;
        loaded = loaded.and(result);
    }
    loaded
}

/// Mounts the shares, and returns their trees as detached mounts.
pub fn share(trees: &[SharedTree]) -> io::Result<Vec<OwnedFd>> {
    let shares: BTreeSet<(&str, bool)> =
        trees.iter().map(|tree| (tree.share.as_str(), tree.writable)).collect();
    for (share, writable) in shares {
        mount_share(share, writable)
            .map_err(|error| io::Error::other(format!("share {share}: {error}")))?;
    }
    trees.iter().map(tree).collect()
}

/// Mounts a share of the monitor. Set-id bits of its files do not count: the programs would run as
/// other users of the machine.
fn mount_share(share: &str, writable: bool) -> io::Result<()> {
    let options = [
        ("source", share),
        ("trans", "virtio"),
        ("version", "9p2000.L"),
        ("cache", "loose"),
        ("msize", "524288"),
        ("access", "any"),
    ];
    let read_only = if writable { Attributes::empty() } else { Attributes::MOUNT_ATTR_RDONLY };
    let made = mount::filesystem(c"9p", &options, NOSUID_NODEV | read_only)?;
    let place = CString::new(format!("{SHARES}/{share}"))?;
    mkdirat(CWD, &place, Mode::from_raw_mode(0o755))?;
    mount::attach(made.as_fd(), CWD, &place)
}

fn tree(tree: &SharedTree) -> io::Result<OwnedFd> {
    let path = CString::new(format!("{SHARES}/{}/{}", tree.share, tree.path))?;
    mount::detached_copy(CWD, &path, Reach::One)
}
