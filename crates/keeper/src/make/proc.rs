//! `/proc` of the box. It shows the box's own processes without the keeper, and no file that reveals
//! or changes something of the host.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, mkdirat};
use tare_control::{ProcPlan, SetupStep};
use tare_kernel::fds::open_path;
use tare_kernel::mount::{self, Attributes, Reach};
use tare_kernel::step::step;

use crate::make::mount_point::make_empty_file;
use crate::make::{Failing, Failure};

/// Files that read as empty and refuse writing.
const MASKED_FILES: [&CStr; 37] = [
    c"proc/kcore",
    c"proc/keys",
    c"proc/key-users",
    c"proc/timer_list",
    c"proc/timer_stats",
    c"proc/sched_debug",
    c"proc/schedstat",
    c"proc/latency_stats",
    c"proc/interrupts",
    c"proc/softirqs",
    c"proc/cmdline",
    c"proc/kmsg",
    c"proc/kallsyms",
    c"proc/modules",
    c"proc/iomem",
    c"proc/ioports",
    c"proc/vmallocinfo",
    c"proc/slabinfo",
    c"proc/pagetypeinfo",
    c"proc/zoneinfo",
    c"proc/buddyinfo",
    c"proc/kpagecount",
    c"proc/kpageflags",
    c"proc/kpagecgroup",
    c"proc/mtrr",
    c"proc/sysrq-trigger",
    c"proc/config.gz",
    c"proc/diskstats",
    c"proc/partitions",
    c"proc/swaps",
    c"proc/locks",
    c"proc/crypto",
    c"proc/consoles",
    c"proc/misc",
    c"proc/fb",
    c"proc/dma",
    c"proc/execdomains",
];

/// Directories that are empty.
const MASKED_DIRECTORIES: [&CStr; 7] = [
    c"proc/acpi",
    c"proc/asound",
    c"proc/bus",
    c"proc/driver",
    c"proc/fs",
    c"proc/scsi",
    c"proc/tty",
];

/// Directories that a box can read and that no user in it can write.
const READ_ONLY: [&CStr; 3] = [c"proc/sys", c"proc/irq", c"proc/pressure"];

const NOTHING: Attributes = Attributes::MOUNT_ATTR_NOSUID
    .union(Attributes::MOUNT_ATTR_NODEV)
    .union(Attributes::MOUNT_ATTR_NOEXEC);

/// Returns a mount that shows all processes of this PID namespace.
pub fn mount_plain() -> io::Result<OwnedFd> {
    mount::filesystem(c"proc", &[], NOTHING)
}

/// Mounts `/proc` in a root that is the current directory, and `/sys` if the box has the kernel for
/// itself. Returns `sys` of `/proc` while it is still writable; most boxes see it read-only.
pub fn mount(
    plan: ProcPlan,
    root: BorrowedFd<'_>,
    masks: BorrowedFd<'_>,
) -> Result<OwnedFd, Failure> {
    let proc = mount::filesystem(c"proc", &[("hidepid", "invisible")], NOTHING)
        .failing(SetupStep::Proc, "/proc")?;
    mount::attach(proc.as_fd(), root, c"proc").failing(SetupStep::Proc, "/proc")?;
    let settings = open_path(&proc, c"sys").failing(SetupStep::Proc, "sys")?;
    match plan {
        ProcPlan::Masked => {
            mask(masks).failing(SetupStep::Proc, "masks")?;
            for path in READ_ONLY {
                make_read_only(root, path).failing(SetupStep::Proc, &path.to_string_lossy())?;
            }
        }
        ProcPlan::Whole => {}
        ProcPlan::OwnKernel => {
            for (kind, place) in [(c"sysfs", c"sys"), (c"cgroup2", c"sys/fs/cgroup")] {
                let mounted = mount::filesystem(kind, &[], NOTHING);
                mounted
                    .and_then(|it| mount::attach(it.as_fd(), root, place))
                    .failing(SetupStep::Proc, &place.to_string_lossy())?;
            }
        }
    }
    Ok(settings)
}

/// Makes the file and the directory that cover others. They are on the scratch space, where `/proc`
/// is mounted over them later.
pub fn make_masks(scratch: BorrowedFd<'_>) -> rustix::io::Result<()> {
    step("make a directory for masks", || mkdirat(scratch, c"proc", Mode::from_raw_mode(0o555)))?;
    make_empty_file(scratch, c"proc/file")?;
    mkdirat(scratch, c"proc/directory", Mode::from_raw_mode(0o555))
}

/// Covers each name with a file or directory that was made for this box and that no process can
/// write. For this, both are mounted over the host's `/proc` of this mount namespace, which is
/// removed with the old root.
fn mask(masks: BorrowedFd<'_>) -> io::Result<()> {
    mount::add_attributes(masks, NOTHING | Attributes::MOUNT_ATTR_RDONLY, Reach::One)?;
    mount::attach(masks, CWD, c"/proc")?;
    for name in MASKED_FILES {
        cover(c"/proc/file", name)?;
    }
    for name in MASKED_DIRECTORIES {
        cover(c"/proc/directory", name)?;
    }
    Ok(())
}

/// Covers one name. A name that this kernel does not have needs no mask.
fn cover(mask: &CStr, name: &CStr) -> io::Result<()> {
    match mount::bind(mask, name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn make_read_only(root: BorrowedFd<'_>, path: &CStr) -> io::Result<()> {
    let tree = match mount::detached_copy(root, path, Reach::One) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    let attributes = NOTHING | Attributes::MOUNT_ATTR_RDONLY;
    mount::add_attributes(tree.as_fd(), attributes, Reach::One)?;
    mount::attach(tree.as_fd(), root, path)
}
