//! The box's file system, from an empty tmpfs to its root directory.
//!
//! Two rules hold throughout. A path that an image or a user controls is resolved only beneath the
//! new root, by descriptor. And everything writable is one tmpfs, so that one size limits all of it
//! and the kernel frees it with the last process.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, ResolveFlags, Uid, chownat, mkdirat, openat, openat2,
    symlinkat,
};
use rustix::io::Errno;
use tare_control::{
    ExportPlan, Filesystem, HostEntry, HostFile, Identity, ProcPlan, Role, RootPlan, ScratchPlan,
    SetupStep, TreeSource, VolumePlan,
};
use tare_kernel::mount::{self, Attributes, NOSUID_NODEV, Reach};
use tare_kernel::step::step;

use crate::inherited::InheritedFds;
use crate::make::dev::{self, KvmNode};
use crate::make::mount_point::make_empty_file;
use crate::make::proc;
use crate::make::{Failing, Failure};

/// The sources of mounts: those that the creator made, and the box's own `/work`.
#[derive(Debug)]
pub struct Trees<'a> {
    inherited: &'a mut InheritedFds,
    /// For [`TreeSource::Work`].
    work: Option<OwnedFd>,
}

impl<'a> Trees<'a> {
    pub fn new(inherited: &'a mut InheritedFds) -> Self {
        Self { inherited, work: None }
    }

    /// Returns the creator's mount. A creator without the right to make mounts sends a path of the
    /// host instead. The keeper opens it with its own rights, which are the creator's, and makes
    /// the mount.
    fn take(&mut self, source: &TreeSource, writable: bool) -> std::io::Result<OwnedFd> {
        let path = match source {
            TreeSource::Inherited(number) => {
                let tree = self.inherited.take(Role::Tree(*number));
                return tree.ok_or(Errno::BADF.into());
            }
            TreeSource::HostPath(path) => path,
            TreeSource::Work => return self.work.take().ok_or(Errno::BADF.into()),
        };
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let found = openat2(CWD, path.as_slice(), flags, Mode::empty(), resolve)?;
        let tree = mount::detached_copy(found.as_fd(), c"", Reach::Recursive)?;
        let read_only = if writable { Attributes::empty() } else { Attributes::MOUNT_ATTR_RDONLY };
        mount::add_attributes(tree.as_fd(), NOSUID_NODEV | read_only, Reach::Recursive)?;
        Ok(tree)
    }

    /// Returns the creator's node of KVM. A creator without the right to make nodes uses the host's.
    fn kvm_node(&mut self) -> KvmNode {
        self.inherited.take(Role::KvmNode).map_or(KvmNode::Host, KvmNode::Own)
    }
}

/// The writable directories, made on the scratch space and mounted in the root under the same names. The
/// last one is only for boxes that have the kernel for themselves: system programs need it.
const WRITABLE: [(&CStr, u32); 4] =
    [(c"tmp", 0o1777), (c"work", 0o755), (SHARED_MEMORY, 0o1777), (RUN, 0o755)];
const RUN: &CStr = c"run";
const SHARED_MEMORY: &CStr = c"dev/shm";

/// A read-only directory of the host in which programs count processors.
const CPU_TOPOLOGY: &CStr = c"/sys/devices/system/cpu";
/// Its directories from the root on, for a root that is still empty.
const CPU_TOPOLOGY_POINT: [&CStr; 4] =
    [c"sys", c"sys/devices", c"sys/devices/system", c"sys/devices/system/cpu"];

/// The file system of the box.
#[derive(Debug)]
pub struct Built<'a> {
    root: OwnedFd,
    /// `/proc/sys` of the box. Only the keeper can write it.
    pub settings: OwnedFd,
    /// The volumes, each with the descriptor of its mount.
    pub volumes: Vec<(&'a VolumePlan, OwnedFd)>,
    pub rewritable: RewritableFiles,
}

/// Files of the box, open for writing, which the go may change.
#[derive(Debug, Default)]
pub struct RewritableFiles(Vec<(String, OwnedFd)>);

impl RewritableFiles {
    /// Opens the files through a mount of their own. The root of the box becomes read-only, which the
    /// kernel refuses while a file is open for writing through it (mount_setattr(2), EBUSY).
    fn open(root: BorrowedFd<'_>, files: &[HostFile]) -> std::io::Result<Self> {
        let mut files = files.iter().filter(|file| file.rewritable).peekable();
        if files.peek().is_none() {
            return Ok(Self::default());
        }
        let mount = mount::detached_copy(root, c".", Reach::One)?;
        let open = |file: &HostFile| {
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            let relative = file.path.trim_start_matches('/');
            Ok((file.path.clone(), openat(&mount, relative, flags, Mode::empty())?))
        };
        files.map(open).collect::<std::io::Result<_>>().map(Self)
    }

    /// Replaces the content of a file.
    pub fn rewrite(&self, file: &HostFile) -> rustix::io::Result<()> {
        let open = self.0.iter().find(|(path, _)| *path == file.path);
        let (_, open) = open.ok_or(Errno::BADF)?;
        rustix::fs::ftruncate(open, 0)?;
        write_all(open, &file.content)
    }
}

/// Builds the file system of the box.
pub fn build<'a>(
    plan: &'a Filesystem,
    trees: &mut Trees<'_>,
    owner: Option<Identity>,
) -> Result<Built<'a>, Failure> {
    mount::make_everything_private().failing(SetupStep::PrivateMounts, "/")?;
    let scratch = make_scratch(plan, trees, owner).failing(SetupStep::Scratch, "tmpfs")?;
    let copy = |name: &CStr| mount::detached_copy(scratch.as_fd(), name, Reach::One);
    let writable: Vec<_> = writable(plan).map(|(name, _)| (name, copy(name))).collect();
    if plan.volumes.iter().any(|one| one.source == TreeSource::Work) {
        trees.work = Some(copy(c"work").failing(SetupStep::Scratch, "work")?);
    }
    let dev = copy(c"dev").failing(SetupStep::Dev, "/dev")?;
    let masks = copy(c"proc").failing(SetupStep::Proc, "masks")?;
    let (root, rewritable) = match &plan.root {
        RootPlan::HostView(entries) => host_view(scratch, entries, plan)?,
        RootPlan::Overlay(source) => {
            let root = overlay(&scratch, trees.take(source, false), plan)?;
            (root, RewritableFiles::default())
        }
    };
    rustix::process::fchdir(&root).failing(SetupStep::Root, "/")?;
    match plan.proc {
        ProcPlan::Masked | ProcPlan::Whole => {
            dev::mount_dev(root.as_fd(), dev.as_fd(), plan.kvm.then(|| trees.kvm_node()))?;
        }
        ProcPlan::OwnKernel => dev::mount_every_device(root.as_fd())?,
    }
    for (name, tree) in writable {
        tree.and_then(|tree| attach_writable(tree.as_fd(), root.as_fd(), name))
            .failing(SetupStep::Scratch, &name.to_string_lossy())?;
    }
    let settings = proc::mount(plan.proc, root.as_fd(), masks.as_fd())?;
    let mut volumes = Vec::with_capacity(plan.volumes.len());
    for volume in &plan.volumes {
        let tree = trees.take(&volume.source, volume.writable);
        volumes.push((volume, attach_volume(root.as_fd(), volume, tree)?));
    }
    Ok(Built { root, settings, volumes, rewritable })
}

/// Returns the writable directories of a box with their modes.
fn writable(plan: &Filesystem) -> impl Iterator<Item = (&'static CStr, u32)> {
    let owns_kernel = plan.proc == ProcPlan::OwnKernel;
    WRITABLE.into_iter().filter(move |(name, _)| *name != RUN || owns_kernel)
}

/// Mounts a writable directory. Compilers run programs that they made in `/tmp` and `/work`. Nothing
/// has to run from shared memory.
fn attach_writable(tree: BorrowedFd<'_>, root: BorrowedFd<'_>, name: &CStr) -> std::io::Result<()> {
    if name == SHARED_MEMORY {
        mount::add_attributes(tree, Attributes::MOUNT_ATTR_NOEXEC, Reach::One)?;
    }
    mount::attach(tree, root, name)
}

/// Enters the new root and removes the host's from this mount namespace.
pub fn enter(built: &Built<'_>) -> Result<(), Failure> {
    mount::enter_root(built.root.as_fd()).failing(SetupStep::EnterRoot, "/")
}

fn make_scratch(
    plan: &Filesystem,
    trees: &mut Trees<'_>,
    owner: Option<Identity>,
) -> std::io::Result<OwnedFd> {
    let scratch = match &plan.scratch {
        ScratchPlan::Kept(source) => trees.take(source, true)?,
        ScratchPlan::Own { bytes, inodes } => {
            let options = [
                ("size", &*bytes.to_string()),
                ("nr_inodes", &*inodes.to_string()),
                ("mode", "0755"),
            ];
            mount::filesystem(c"tmpfs", &options, NOSUID_NODEV)?
        }
    };
    mount::attach_over_root(scratch.as_fd())?;
    dev::make_dev(scratch.as_fd(), plan.kvm)?;
    proc::make_masks(scratch.as_fd())?;
    for (name, mode) in writable(plan) {
        make_directory(scratch.as_fd(), name, mode)?;
    }
    if let Some(Identity { uid, gid }) = owner {
        let owner = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        chownat(&scratch, c"work", owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(scratch)
}

fn make_directory(parent: BorrowedFd<'_>, name: &CStr, mode: u32) -> rustix::io::Result<()> {
    step("make a directory of the box", || mkdirat(parent, name, Mode::from_raw_mode(mode)))
}

/// Makes the scratch space the root, with entries of the host bound into it, all read-only.
fn host_view(
    scratch: OwnedFd,
    entries: &[HostEntry],
    plan: &Filesystem,
) -> Result<(OwnedFd, RewritableFiles), Failure> {
    rustix::process::fchdir(&scratch).failing(SetupStep::Root, "/")?;
    for entry in entries {
        show_host_entry(entry)?;
    }
    for file in &plan.files {
        write_file(file).failing(SetupStep::Root, &file.path)?;
    }
    if let Some(export) = &plan.export {
        show_in(scratch.as_fd(), export)?;
    }
    make_volume_points(scratch.as_fd(), scratch.as_fd(), plan)?;
    for directory in CPU_TOPOLOGY_POINT {
        make_directories(directory).failing(SetupStep::Root, "/sys")?;
    }
    show_cpu_topology(scratch.as_fd())?;
    let rewritable = RewritableFiles::open(scratch.as_fd(), &plan.files)
        .failing(SetupStep::Root, "files for the go")?;
    let attributes = NOSUID_NODEV | Attributes::MOUNT_ATTR_RDONLY;
    mount::add_attributes(scratch.as_fd(), attributes, Reach::Recursive)
        .failing(SetupStep::Root, "read-only")?;
    Ok((scratch, rewritable))
}

/// Assembles the root of a machine in a directory of this root.
fn show_in(scratch: BorrowedFd<'_>, export: &ExportPlan) -> Result<(), Failure> {
    let failing = |errno: Errno| Failure::of(SetupStep::Root, &export.path, errno);
    let path = CString::new(export.path.as_str()).map_err(|_| failing(Errno::INVAL))?;
    let place = open_or_make(scratch, &path, Kind::Directory, ResolveFlags::NO_SYMLINKS);
    rustix::process::fchdir(place.map_err(failing)?).map_err(failing)?;
    for entry in &export.entries {
        show_host_entry(entry)?;
    }
    for file in &export.files {
        write_file(file).failing(SetupStep::Root, &file.path)?;
    }
    rustix::process::fchdir(scratch).map_err(failing)
}

/// Binds or links one entry. The current directory is the new root, in which no other process
/// controls anything yet.
fn show_host_entry(entry: &HostEntry) -> Result<(), Failure> {
    let (path, target) = match entry {
        HostEntry::Directory(path) | HostEntry::File(path) => (path, None),
        HostEntry::Symlink { path, target } => (path, Some(target)),
    };
    let failing = |errno: Errno| Failure::of(SetupStep::Root, path, errno);
    let host = CString::new(path.as_str()).map_err(|_| failing(Errno::INVAL))?;
    let relative = CString::new(path.trim_start_matches('/')).map_err(|_| failing(Errno::INVAL))?;
    match (entry, target) {
        (HostEntry::Symlink { .. }, Some(target)) => {
            return below_parent(path, || symlinkat(target.as_str(), CWD, &*relative))
                .failing(SetupStep::Root, path);
        }
        (HostEntry::Directory(_), _) => make_directories(&relative),
        (HostEntry::File(_) | HostEntry::Symlink { .. }, _) => {
            below_parent(path, || make_empty_file(CWD, &relative))
        }
    }
    .map_err(failing)?;
    mount::bind(&host, &relative).failing(SetupStep::Root, path)
}

/// Makes an entry of this path below the current directory, and its parents if they are missing.
fn below_parent<T>(path: &str, make: impl Fn() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    match (make(), path.trim_start_matches('/').rsplit_once('/')) {
        (Err(Errno::NOENT), Some((parent, _))) => {
            make_directories(&CString::new(parent).map_err(|_| Errno::INVAL)?)?;
            make()
        }
        (made, _) => made,
    }
}

/// `mkdir -p` below the current directory.
fn make_directories(relative: &CStr) -> rustix::io::Result<()> {
    let make = || mkdirat(CWD, relative, Mode::from_raw_mode(0o755));
    match below_parent(&relative.to_string_lossy(), make) {
        Err(Errno::EXIST) => Ok(()),
        made => made,
    }
}

fn write_file(file: &HostFile) -> rustix::io::Result<()> {
    let relative = file.path.trim_start_matches('/');
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let make = || openat(CWD, relative, flags, Mode::from_raw_mode(0o644));
    write_all(&below_parent(&file.path, make)?, &file.content)
}

/// Writes a file from its beginning.
fn write_all(file: &OwnedFd, content: &[u8]) -> rustix::io::Result<()> {
    let mut done = 0;
    while done < content.len() {
        done += rustix::io::pwrite(file, &content[done..], done as u64)?;
    }
    Ok(())
}

/// Makes an overlay the root: the creator's tree below, changes on the scratch space.
fn overlay(
    scratch: &OwnedFd,
    tree: std::io::Result<OwnedFd>,
    plan: &Filesystem,
) -> Result<OwnedFd, Failure> {
    let tree = tree.failing(SetupStep::Root, "--rootfs")?;
    for name in [c"lower", c"upper", c"index", c"root"] {
        make_directory(scratch.as_fd(), name, 0o755).failing(SetupStep::Root, "overlay")?;
    }
    mount::attach(tree.as_fd(), scratch.as_fd(), c"lower").failing(SetupStep::Root, "lower")?;
    // The layers are relative paths, because the scratch space has no other name.
    rustix::process::fchdir(scratch).failing(SetupStep::Root, "/")?;
    let layers =
        [("lowerdir", "lower"), ("upperdir", "upper"), ("workdir", "index"), ("userxattr", "")];
    let root =
        mount::filesystem(c"overlay", &layers, NOSUID_NODEV).failing(SetupStep::Root, "overlay")?;
    mount::attach(root.as_fd(), scratch.as_fd(), c"root").failing(SetupStep::Root, "root")?;
    make_mount_points(root.as_fd(), scratch.as_fd(), plan)?;
    show_cpu_topology(root.as_fd())?;
    Ok(root)
}

/// Makes every mount point. Those of tare's own mounts must be real directories: an image whose
/// `/proc` is a symlink is refused.
fn make_mount_points(
    root: BorrowedFd<'_>,
    scratch: BorrowedFd<'_>,
    plan: &Filesystem,
) -> Result<(), Failure> {
    let writable = writable(plan).map(|(name, _)| name).filter(|name| *name != SHARED_MEMORY);
    for path in [c"proc", c"dev", c"sys"].into_iter().chain(writable) {
        open_or_make(root, path, Kind::Directory, ResolveFlags::NO_SYMLINKS)
            .failing(SetupStep::Root, &path.to_string_lossy())?;
    }
    make_volume_points(root, scratch, plan)
}

/// Makes the places of volumes. A place below a writable directory is made on the scratch space, which
/// covers that directory of the root.
fn make_volume_points(
    root: BorrowedFd<'_>,
    scratch: BorrowedFd<'_>,
    plan: &Filesystem,
) -> Result<(), Failure> {
    let is_writable = |path: &CStr| {
        let relative = path.to_bytes().strip_prefix(b"/").unwrap_or_default();
        let rest = |name: &CStr| relative.strip_prefix(name.to_bytes());
        writable(plan).any(|(name, _)| rest(name).is_some_and(|rest| rest.starts_with(b"/")))
    };
    for volume in &plan.volumes {
        let (path, subject) = volume_path(volume)?;
        let beneath = if is_writable(&path) { scratch } else { root };
        open_or_make(beneath, &path, volume_kind(volume), ResolveFlags::empty())
            .failing(SetupStep::Volume, &subject)?;
    }
    Ok(())
}

fn show_cpu_topology(root: BorrowedFd<'_>) -> Result<(), Failure> {
    let Ok(tree) = mount::detached_copy(CWD, CPU_TOPOLOGY, Reach::One) else {
        return Ok(());
    };
    let subject = CPU_TOPOLOGY.to_string_lossy();
    let attributes = NOSUID_NODEV | Attributes::MOUNT_ATTR_RDONLY | Attributes::MOUNT_ATTR_NOEXEC;
    mount::add_attributes(tree.as_fd(), attributes, Reach::One)
        .failing(SetupStep::Root, &subject)?;
    let place = open_or_make(root, CPU_TOPOLOGY, Kind::Directory, ResolveFlags::NO_SYMLINKS)
        .failing(SetupStep::Root, &subject)?;
    mount::attach(tree.as_fd(), place.as_fd(), c"").failing(SetupStep::Root, &subject)
}

fn attach_volume(
    root: BorrowedFd<'_>,
    volume: &VolumePlan,
    tree: std::io::Result<OwnedFd>,
) -> Result<OwnedFd, Failure> {
    let (path, subject) = volume_path(volume)?;
    let tree = tree.failing(SetupStep::Volume, &subject)?;
    let place = open_place(root, &path).failing(SetupStep::Volume, &subject)?;
    mount::attach(tree.as_fd(), place.as_fd(), c"").failing(SetupStep::Volume, &subject)?;
    Ok(tree)
}

/// Opens the place of a volume. Only symlinks of the root's own file system are followed, and only
/// while they stay in it. An earlier box may have left a symlink in another volume, and no symlink may
/// put a volume over `/proc`, `/dev` or `/sys`.
fn open_place(root: BorrowedFd<'_>, path: &CStr) -> rustix::io::Result<OwnedFd> {
    match open_beneath(root, path, ResolveFlags::NO_SYMLINKS) {
        Err(Errno::LOOP) => match open_beneath(root, path, ResolveFlags::NO_XDEV) {
            Err(Errno::XDEV) => Err(Errno::LOOP),
            other => other,
        },
        other => other,
    }
}

fn volume_path(volume: &VolumePlan) -> Result<(CString, String), Failure> {
    let subject = String::from_utf8_lossy(&volume.target).into_owned();
    let path = CString::new(volume.target.as_slice())
        .map_err(|_| Failure::of(SetupStep::Volume, &subject, Errno::INVAL))?;
    Ok((path, subject))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Directory,
    File,
}

fn volume_kind(volume: &VolumePlan) -> Kind {
    if volume.is_directory { Kind::Directory } else { Kind::File }
}

/// Opens a path of the box. No symlink in it can lead out of the root.
fn open_beneath(
    root: BorrowedFd<'_>,
    path: &CStr,
    resolve: ResolveFlags,
) -> rustix::io::Result<OwnedFd> {
    let resolve = resolve | ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// Opens a path of the box, and makes the parts of it that are missing.
fn open_or_make(
    root: BorrowedFd<'_>,
    path: &CStr,
    kind: Kind,
    resolve: ResolveFlags,
) -> rustix::io::Result<OwnedFd> {
    match open_beneath(root, path, resolve) {
        Ok(found) => return Ok(found),
        Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno),
    }
    let bytes = path.to_bytes();
    let (parent, name) = match bytes.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&bytes[..at.max(1)], &bytes[at + 1..]),
        None => (&b"/"[..], bytes),
    };
    let parent = CString::new(parent).map_err(|_| Errno::INVAL)?;
    let name = CString::new(name).map_err(|_| Errno::INVAL)?;
    let parent = open_or_make(root, &parent, Kind::Directory, resolve)?;
    match kind {
        Kind::Directory => mkdirat(&parent, &name, Mode::from_raw_mode(0o755))?,
        Kind::File => make_empty_file(parent.as_fd(), &name)?,
    }
    open_beneath(root, path, resolve)
}
