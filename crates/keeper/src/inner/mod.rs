//! The first process of a machine. It makes the machine usable, starts an ordinary keeper in
//! namespaces of its own as its creator, and relays between that keeper and the one outside.
//!
//! ```text
//! modules ─▶ root on a tmpfs ─▶ port ─▶ hello ─▶ plan from outside ─▶ shares ─▶ keeper ─▶ relay
//! ```
//!
//! It runs as root of the machine's kernel. It turns the machine off when the outer keeper closes
//! the first connection, when the port fails, and when it cannot make the machine usable. It does
//! not watch its own keeper: the outer keeper reads over the port that the command has ended. What
//! it prints goes to the console, whose last lines the outer keeper keeps.

mod mounts;

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use rustix::event::poll;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::system::{RebootCommand, reboot};
use rustix::time::{ClockId, Timespec, clock_settime};
use tare_control::{Channel, GuestPlan, KEEPER_NAME, MACHINE_NAME, PLAN_BYTES_MAX, ProcPlan, Role};
use tare_kernel::cgroup::Cgroup;
use tare_kernel::clock::{boot_ns, timespec};
use tare_kernel::fds::{open_null, open_path};
use tare_kernel::launch;
use tare_kernel::network::{self, Links};
use tare_kernel::spawn::{Namespaces, Privilege, SpawnOrder, spawn};

use crate::relay::inner::{InnerMachine, serve};

/// The name of the port on which the outer keeper listens.
const PORT: &str = "tare";
const PORTS: &str = "/sys/class/virtio-ports";
/// How long the port may take to appear after its driver was loaded.
const PORT_WITHIN_NS: u64 = 20_000_000_000;
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// The socket of the keeper. No path in the box leads to it.
const CONTROL: &str = "/control";
const CGROUPS: &str = "/sys/fs/cgroup";
const BOX_CGROUP: &str = "box";
/// With `--root`, the keeper and its processes are in this cgroup. The box may make others beside it.
const FIRST_CGROUP: &str = "init";
const CONTROLLERS: &str = "cgroup.subtree_control";

/// The whole life of the first process of a machine.
pub fn main() -> ExitCode {
    if let Err(error) = run() {
        say(&format!("tare: cannot start the machine: {error}"));
    }
    rustix::fs::sync();
    // A machine without its first process panics, which ends it too.
    reboot(RebootCommand::PowerOff).ok();
    reboot(RebootCommand::Restart).ok();
    ExitCode::FAILURE
}

fn run() -> io::Result<()> {
    let program = open_path(CWD, MACHINE_NAME)?;
    mounts::enter_own_root()?;
    let port = open_port()?;
    serve(port, &mut Starter { program })
}

/// Writes a line to the console.
fn say(line: &str) {
    rustix::io::write(rustix::stdio::stderr(), format!("{line}\n").as_bytes()).ok();
}

fn open_port() -> io::Result<OwnedFd> {
    let until_ns = boot_ns().saturating_add(PORT_WITHIN_NS);
    while boot_ns() < until_ns {
        for entry in fs::read_dir(PORTS).into_iter().flatten().flatten() {
            let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
            if name.trim_end() == PORT {
                let path = Path::new("/dev").join(entry.file_name());
                let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
                return Ok(openat(CWD, path, flags, Mode::empty())?);
            }
        }
        poll(&mut [], Some(&timespec(LOOK_AGAIN))).ok();
    }
    Err(io::Error::new(io::ErrorKind::NotFound, "there is no port of tare"))
}

/// Starts the keeper of the box.
#[derive(Debug)]
pub struct Starter {
    program: OwnedFd,
}

impl InnerMachine for Starter {
    fn start(&mut self, guest: GuestPlan) -> io::Result<OwnedFd> {
        let GuestPlan { mut plan, trees, pids, now_ns } = guest;
        self.set_clock(now_ns);
        // As in a native box, a process may allocate more memory than there is. The kernel kills a
        // process that uses it.
        fs::write("/proc/sys/vm/overcommit_memory", "1").ok();
        let trees = mounts::share(&trees)?;
        // The box has the network of the machine, which is loopback.
        network::set_up_own(open_path(CWD, c"/proc/sys")?.as_fd(), Links::Addable)?;
        let owns_kernel = plan.filesystem.as_ref().is_some_and(|it| it.proc == ProcPlan::OwnKernel);
        let cgroup =
            if owns_kernel { delegated_cgroup(pids)? } else { cgroup(pids, "+pids +memory")? };
        let listener: OwnedFd = UnixListener::bind(CONTROL)?.into();
        let (ours, theirs) = UnixStream::pair()?;
        let uid_lock = open_null()?;
        // The command's streams come with the go.
        let mut descriptors = vec![uid_lock.as_fd(); 3];
        descriptors.extend([theirs.as_fd(), uid_lock.as_fd(), listener.as_fd()]);
        descriptors.extend(trees.iter().map(AsFd::as_fd));
        plan.roles = vec![Role::UidLock, Role::Listener];
        plan.roles.extend((0..).zip(&trees).map(|(number, _)| Role::Tree(number)));
        let arguments: [&CStr; 1] = [KEEPER_NAME];
        let own = [Namespaces::MOUNT, Namespaces::IPC, Namespaces::UTS];
        let child = spawn(SpawnOrder {
            namespaces: own.into_iter().fold(Namespaces::PID, Namespaces::and),
            cgroup: Some(cgroup.as_fd()),
            tasks: &[],
            executable: self.program.try_clone()?,
            arguments: &arguments,
            descriptors: &descriptors,
            guard: None,
            privilege: Privilege::Unchanged,
        })?;
        // The child uses this memory until it has executed. There is one child, so the memory is
        // never freed.
        std::mem::forget(child.go());
        let channel = Channel::new(ours.into());
        channel.send(&plan, PLAN_BYTES_MAX, &[])?;
        Ok(channel.into_socket())
    }

    fn connect(&mut self) -> io::Result<OwnedFd> {
        Ok(UnixStream::connect(CONTROL)?.into())
    }

    fn sync(&mut self) {
        rustix::fs::sync();
    }

    fn set_clock(&mut self, now_ns: u64) {
        let seconds = i64::try_from(now_ns / 1_000_000_000).unwrap_or(i64::MAX);
        let now = Timespec { tv_sec: seconds, tv_nsec: (now_ns % 1_000_000_000) as i64 };
        clock_settime(ClockId::Realtime, now).ok();
    }

    fn set_pids(&mut self, pids: u32) {
        let own = Cgroup::open(&Path::new(CGROUPS).join(BOX_CGROUP));
        own.and_then(|own| own.write("pids.max", &with_keeper(pids))).ok();
    }
}

/// Returns a limit of processes that has room for the keeper too.
fn with_keeper(pids: u32) -> String {
    u64::from(pids).saturating_add(1).to_string()
}

/// Makes the cgroup of the box, which limits its processes.
fn cgroup(pids: u32, controllers: &str) -> io::Result<Cgroup> {
    let root = Cgroup::open(Path::new(CGROUPS))?;
    root.write(CONTROLLERS, controllers)?;
    let own = root.make_below(BOX_CGROUP, None)?;
    own.write("pids.max", &with_keeper(pids))?;
    Ok(own)
}

/// Makes the cgroup of a box whose programs may make cgroups of their own. They see it as the root of
/// all. The processes of the box are one below: the kernel gives controllers to the cgroups below one
/// only if it has no processes itself (cgroups(7)).
fn delegated_cgroup(pids: u32) -> io::Result<Cgroup> {
    let root = Cgroup::open(Path::new(CGROUPS))?;
    let all = root.read("cgroup.controllers")?;
    let all: Vec<String> = all.split_whitespace().map(|it| format!("+{it}")).collect();
    let own = cgroup(pids, &all.join(" "))?;
    // The root of a cgroup namespace is the cgroup of the process that makes it (cgroup_namespaces(7)).
    own.write("cgroup.procs", "0")?;
    launch::own_cgroup_namespace()?;
    root.write("cgroup.procs", "0")?;
    let first = own.make_below(FIRST_CGROUP, None)?;
    own.write(CONTROLLERS, &all.join(" "))?;
    Ok(first)
}
