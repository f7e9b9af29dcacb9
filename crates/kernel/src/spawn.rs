//! Starts a program as a child that begins its life in its cgroup and namespaces.
//!
//! `clone3` makes the child, its pidfd and its cgroup membership in one step, so the child
//! never exists outside of its cgroup. The child shares the parent's memory until it
//! executes, and waits for one byte (the go) before it goes on. If the parent dies first,
//! the pipe closes and the child exits.
#![allow(unsafe_code)]

use std::convert::Infallible;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, Uid, capabilities, configure_capability_in_ambient_set,
    set_capabilities, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

pub use crate::child::{Namespaces, SharedChild};

use crate::child::keep_only;
use crate::effective::as_user;
use crate::process::Process;
use crate::raw::{self, Strings};
use crate::step::{handed_down, once, step};

/// The child to make.
#[derive(Debug)]
pub struct SpawnOrder<'a> {
    pub namespaces: Namespaces,
    /// The cgroup v2 directory that the child starts in.
    pub cgroup: Option<BorrowedFd<'a>>,
    /// Open `tasks` files of v1 cgroups that the child joins by itself: a single thread
    /// that writes `0` there takes 50 us, a write to `cgroup.procs` takes 7 ms.
    pub tasks: &'a [BorrowedFd<'a>],
    /// Stays open here until the child has executed it. The process that closes a detached
    /// mount last waits for the kernel to take it apart, and the child has no time.
    pub executable: OwnedFd,
    /// The first one is the program's name.
    pub arguments: &'a [&'a CStr],
    /// Become the descriptors 0, 1, 2, ... of the program, which gets no others.
    pub descriptors: &'a [BorrowedFd<'a>],
    /// Open in the child until it executes or dies. With a lock on it, the lock is free
    /// only then.
    pub guard: Option<BorrowedFd<'a>>,
    pub privilege: Privilege,
}

/// How the child keeps the capabilities over its new user namespace across `execve`, which
/// takes them from every user but 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Privilege {
    /// The child has no new user namespace: nothing changes.
    Unchanged,
    /// The child becomes uid and gid 0 of the namespace. The namespace belongs to the host's
    /// uid `owner`, so what it uses of the host's limits counts against that user alone.
    BecomeRoot { owner: u32 },
    /// The child keeps its ids and makes its capabilities ambient.
    Ambient,
}

/// The step at which a child failed before it executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpawnStep {
    JoinCgroup = 1,
    /// The go never came.
    Abandoned = 2,
    Identity = 3,
    Descriptors = 4,
    Execute = 5,
}

impl SpawnStep {
    fn from_code(code: u32) -> Option<Self> {
        [Self::JoinCgroup, Self::Abandoned, Self::Identity, Self::Descriptors, Self::Execute]
            .into_iter()
            .find(|step| *step as u32 == code)
    }
}

/// The data that the child reads until it executes.
#[derive(Debug)]
pub struct ChildOrder {
    go: RawFd,
    tasks: Vec<RawFd>,
    executable: OwnedFd,
    arguments: Strings,
    environment: Strings,
    descriptors: Vec<RawFd>,
    guard: Option<RawFd>,
    privilege: Privilege,
    /// `step << 16 | errno`, written by the child before it exits.
    failure: AtomicU32,
}

/// A child that may have executed by now.
pub type Child = SharedChild<ChildOrder>;

/// A child that waits for its go. Dropping it makes the child exit.
#[derive(Debug)]
pub struct WaitingChild {
    go: OwnedFd,
    child: Child,
}

impl WaitingChild {
    /// A process that another one has made for us. It reads its go from the other end of `go`.
    pub fn adopted(process: Process, go: OwnedFd) -> Self {
        Self { go, child: Child::adopted(process) }
    }

    pub fn process(&self) -> &Process {
        &self.child.process
    }

    /// Makes the child exit. The caller still has to reap it.
    pub fn abandon(self) -> Child {
        self.child
    }

    /// Lets the child execute. If the child was killed meanwhile, this does not fail: the
    /// caller sees its death when it waits for the child.
    pub fn go(self) -> Child {
        step("send go", || rustix::io::write(&self.go, b"g")).ok();
        self.child
    }
}

impl Child {
    /// Why the child exited before it executed, if it did.
    pub fn failure(&self) -> Option<(SpawnStep, io::Error)> {
        let code = self.order()?.failure.load(Ordering::Acquire);
        let step = SpawnStep::from_code(code >> 16)?;
        let error = match (code & 0xffff) as i32 {
            // End of file instead of the go: no call failed.
            0 => io::ErrorKind::BrokenPipe.into(),
            errno => io::Error::from_raw_os_error(errno),
        };
        Some((step, error))
    }
}

/// Makes the child. SIGCHLD must not be ignored in this process: only an unreaped child
/// keeps its pid from being used again.
pub fn spawn(order: SpawnOrder<'_>) -> io::Result<WaitingChild> {
    let (go_read, go_write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let numbers = |fds: &[BorrowedFd<'_>]| fds.iter().map(AsRawFd::as_raw_fd).collect();
    let for_child = ChildOrder {
        go: go_read.as_raw_fd(),
        tasks: numbers(order.tasks),
        executable: order.executable,
        arguments: Strings::new(order.arguments.iter().map(|one| CString::from(*one)).collect()),
        environment: Strings::new(handed_down()),
        descriptors: numbers(order.descriptors),
        guard: order.guard.map(|fd| fd.as_raw_fd()),
        privilege: order.privilege,
        failure: AtomicU32::new(0),
    };
    // SAFETY: `start` needs a main function that only makes system calls, and an order that
    // both may share: `run` makes them by rustix and `raw`, and of the order only an atomic
    // is ever changed.
    let start = || unsafe { Child::start(order.namespaces, order.cgroup, for_child, run) };
    let child = once("make child", || match order.privilege {
        Privilege::BecomeRoot { owner } => as_user(owner, start),
        Privilege::Unchanged | Privilege::Ambient => start(),
    })?;
    Ok(WaitingChild { go: go_write, child })
}

/// The child, from its first instruction to `execve`.
fn run(order: &ChildOrder) {
    let Err((step, errno)) = prepare_and_execute(order);
    let errno = errno.map_or(0, Errno::raw_os_error) as u32;
    order.failure.store((step as u32) << 16 | errno, Ordering::Release);
}

type Failure = (SpawnStep, Option<Errno>);

fn prepare_and_execute(order: &ChildOrder) -> Result<Infallible, Failure> {
    let at = |step: SpawnStep| move |errno: Errno| (step, Some(errno));
    // The child dies with its parent even while it is stopped. A parent that died before this call
    // is noticed below, by the end of the go pipe.
    set_parent_process_death_signal(Some(Signal::KILL)).ok();
    for tasks in &order.tasks {
        rustix::io::write(own(*tasks), b"0").map_err(at(SpawnStep::JoinCgroup))?;
    }
    let given = order.descriptors.len() as RawFd;
    let (executable, go) = (given, given + 1);
    let private = [order.executable.as_raw_fd(), order.go];
    let kept = order.descriptors.iter().chain(&private).chain(&order.guard).copied();
    // SAFETY: keep_only needs a process in which nothing owns a descriptor: the owners are in
    // the parent, whose table is another one.
    unsafe { keep_only(kept, given) }.map_err(at(SpawnStep::Descriptors))?;
    match rustix::io::read(own(go), &mut [0u8]) {
        Ok(1) => {}
        Ok(_) => return Err((SpawnStep::Abandoned, None)),
        Err(errno) => return Err((SpawnStep::Abandoned, Some(errno))),
    }
    match order.privilege {
        Privilege::Unchanged => Ok(()),
        Privilege::BecomeRoot { .. } => become_root(),
        Privilege::Ambient => make_capabilities_ambient(),
    }
    .map_err(at(SpawnStep::Identity))?;
    // Once more, because a change of ids clears the parent-death signal.
    set_parent_process_death_signal(Some(Signal::KILL)).ok();
    let errno = raw::execute_fd(executable, &order.arguments, &order.environment);
    Err((SpawnStep::Execute, Some(errno)))
}

/// A descriptor of the child.
fn own(fd: RawFd) -> BorrowedFd<'static> {
    // SAFETY: borrow_raw needs a descriptor that stays open: the child closes none after
    // `keep_only`, and uses no number from before it.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

fn become_root() -> rustix::io::Result<()> {
    set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT)?;
    // Fails where the namespace denies setgroups (a single-id map). The groups are unmapped
    // there and mean nothing inside.
    set_thread_groups(&[]).ok();
    set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)
}

fn make_capabilities_ambient() -> rustix::io::Result<()> {
    let sets = capabilities(None)?;
    set_capabilities(None, CapabilitySets { inheritable: sets.permitted, ..sets })?;
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        // Fails for a number that this kernel does not know.
        configure_capability_in_ambient_set(capability, true).ok();
    }
    Ok(())
}
