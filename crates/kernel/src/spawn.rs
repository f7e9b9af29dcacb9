//! Births: a process that starts its life inside its cgroup and namespaces.
//!
//! `clone3` gives the pidfd and the cgroup membership in the same instant, so
//! there is no window in which the child exists and is not where it belongs. The
//! child shares the parent's memory until it executes (no page tables to copy),
//! touches nothing but its [`Order`], and waits for one byte before it goes on:
//! if the parent dies first, the pipe closes and the child exits.
//!
//! The child closes every descriptor that it was not given before it waits. The
//! kernel copies the parent's whole descriptor table at `clone3`, and a parent with
//! several threads may have the write ends of other children's go pipes in it. Two
//! waiting children that held each other's write end would wait forever.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::effective::as_user;
use crate::process::Process;
use crate::raw::{CLONE_INTO_CGROUP, clone3, syscall, with_signals_blocked};
use crate::step::{handed_down, once, step};

/// Namespaces that a child is born into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Namespaces(u64);

impl Namespaces {
    pub const NONE: Self = Self(0);
    pub const USER: Self = Self(libc::CLONE_NEWUSER as u64);
    pub const MOUNT: Self = Self(libc::CLONE_NEWNS as u64);
    pub const PID: Self = Self(libc::CLONE_NEWPID as u64);
    pub const IPC: Self = Self(libc::CLONE_NEWIPC as u64);
    pub const UTS: Self = Self(libc::CLONE_NEWUTS as u64);

    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// What a child is to be.
#[derive(Debug)]
pub struct Birth<'a> {
    pub namespaces: Namespaces,
    /// The cgroup v2 directory that it is born in.
    pub cgroup: Option<BorrowedFd<'a>>,
    /// Open `tasks` files of v1 hierarchies that it joins by itself: a single
    /// thread writing `0` there takes 50 us where `cgroup.procs` takes 7 ms.
    pub join: &'a [BorrowedFd<'a>],
    /// Ours until the child is known to have executed it: whoever closes a detached
    /// mount last waits until the kernel has taken it apart, and the child has no time.
    pub executable: OwnedFd,
    /// Its name first.
    pub arguments: &'a [&'a CStr],
    /// Become descriptors 0, 1, 2, ... of the child; it has no others.
    pub descriptors: &'a [BorrowedFd<'a>],
    /// Open in the child until it executes or dies: a lock that is free only when it has.
    pub guard: Option<BorrowedFd<'a>>,
    pub privilege: Privilege,
}

/// How the child keeps its capabilities over its new user namespace across
/// `execve`, which takes them from everyone but uid 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Privilege {
    /// It has no new user namespace: nothing changes.
    Unchanged,
    /// It becomes uid and gid 0 of the namespace, which belongs to this uid of
    /// ours: what the namespace uses up of the host's limits counts against its
    /// owner, who is then nobody else.
    BecomeRoot { owner: u32 },
    /// It stays who it is and makes its capabilities ambient.
    Ambient,
}

/// The step at which a child gave up before it could execute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BirthStep {
    JoinCgroup = 1,
    Abandoned = 2,
    Identity = 3,
    Descriptors = 4,
    Execute = 5,
}

impl BirthStep {
    fn from_code(code: u32) -> Option<Self> {
        [Self::JoinCgroup, Self::Abandoned, Self::Identity, Self::Descriptors, Self::Execute]
            .into_iter()
            .find(|step| *step as u32 == code)
    }
}

/// Everything the child reads; it lives until the child has executed or died.
struct Order {
    go_read: RawFd,
    join: Vec<RawFd>,
    executable: OwnedFd,
    argv: Vec<*const c_char>,
    environ: Vec<*const c_char>,
    descriptors: Vec<RawFd>,
    guard: Option<RawFd>,
    privilege: Privilege,
    /// `step << 16 | errno`, written by the child before it exits.
    failure: AtomicU32,
    _arguments: Vec<CString>,
    _environment: Vec<CString>,
}

// SAFETY: the pointers lead to strings that the order itself owns and that nobody
// changes; which thread has it is the same to them.
unsafe impl Send for Order {}

/// The child's stack: it calls nothing deep.
const STACK_BYTES: usize = 32 << 10;

#[repr(align(16))]
struct Stack(#[allow(dead_code)] [u8; STACK_BYTES]);

/// A child that waits for its go. Dropping it makes the child exit.
#[derive(Debug)]
pub struct Newborn {
    go: OwnedFd,
    spawned: Spawned,
}

/// A child that may have executed by now, with the memory that it uses until
/// then.
pub struct Spawned {
    pub process: Process,
    /// `None`: the child is known to run in memory of its own.
    shared: Option<Shared>,
}

/// What the child reads and runs in.
struct Shared {
    order: Box<Order>,
    _stack: Box<MaybeUninit<Stack>>,
}

impl std::fmt::Debug for Spawned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Spawned").field(&self.process).finish()
    }
}

impl Newborn {
    pub fn process(&self) -> &Process {
        &self.spawned.process
    }

    /// Makes the child exit; it is still to be reaped.
    pub fn give_up(self) -> Spawned {
        self.spawned
    }

    /// Lets the child go on to execute. One that was killed meanwhile cannot be
    /// told; whoever waits for it will see that.
    pub fn go(self) -> Spawned {
        step("go", || rustix::io::write(&self.go, b"g")).ok();
        self.spawned
    }
}

impl Spawned {
    /// Why the child gave up before it executed, if it did.
    pub fn failure(&self) -> Option<(BirthStep, io::Error)> {
        let code = self.shared.as_ref()?.order.failure.load(Ordering::Acquire);
        let step = BirthStep::from_code(code >> 16)?;
        let error = match (code & 0xffff) as i32 {
            // Its go never came, and no call failed.
            0 => io::ErrorKind::BrokenPipe.into(),
            errno => io::Error::from_raw_os_error(errno),
        };
        Some((step, error))
    }

    /// The program that the child executed has been heard from.
    pub fn has_executed(&mut self) {
        self.shared = None;
    }
}

impl Drop for Spawned {
    /// The child runs in this memory until it has executed. If that is not known, it
    /// is certain only when it is seen dead; else the memory is left to it.
    fn drop(&mut self) {
        if let Some(shared) = self.shared.take()
            && !matches!(self.process.wait_dead(Duration::ZERO), Ok(true))
        {
            std::mem::forget(shared);
        }
    }
}

/// Makes the child. The caller must not have SIGCHLD ignored: an unreaped child
/// is what keeps its pid from being someone else's.
pub fn spawn(birth: Birth<'_>) -> io::Result<Newborn> {
    let (go_read, go_write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let arguments: Vec<CString> = birth.arguments.iter().map(|one| CString::from(*one)).collect();
    let pointers = arguments.iter().map(|one| one.as_ptr());
    let environment = handed_down();
    let environ = environment.iter().map(|one| one.as_ptr());
    let order = Box::new(Order {
        go_read: go_read.as_raw_fd(),
        join: birth.join.iter().map(AsRawFd::as_raw_fd).collect(),
        executable: birth.executable,
        argv: pointers.chain([ptr::null()]).collect(),
        environ: environ.chain([ptr::null()]).collect(),
        descriptors: birth.descriptors.iter().map(AsRawFd::as_raw_fd).collect(),
        guard: birth.guard.map(|fd| fd.as_raw_fd()),
        privilege: birth.privilege,
        failure: AtomicU32::new(0),
        _arguments: arguments,
        _environment: environment,
    });
    // Untouched: it costs no page that the child does not use.
    let mut stack = Box::<Stack>::new_uninit();
    let (namespaces, cgroup) = (birth.namespaces, birth.cgroup);
    let mut clone = || clone_child(namespaces, cgroup, &order, &mut stack);
    let bear = || match order.privilege {
        Privilege::BecomeRoot { owner } => as_user(owner, clone),
        Privilege::Unchanged | Privilege::Ambient => clone(),
    };
    let process = once("process born", || with_signals_blocked(bear))?;
    Ok(Newborn {
        go: go_write,
        spawned: Spawned { process, shared: Some(Shared { order, _stack: stack }) },
    })
}

fn clone_child(
    namespaces: Namespaces,
    cgroup: Option<BorrowedFd<'_>>,
    order: &Order,
    stack: &mut MaybeUninit<Stack>,
) -> io::Result<Process> {
    let mut pidfd: RawFd = -1;
    let cgroup_flag = cgroup.map_or(0, |_| CLONE_INTO_CGROUP);
    let arguments = libc::clone_args {
        flags: namespaces.0 | cgroup_flag | (libc::CLONE_PIDFD | libc::CLONE_VM) as u64,
        pidfd: &raw mut pidfd as u64,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: libc::SIGCHLD as u64,
        stack: ptr::from_mut(stack) as u64,
        stack_size: STACK_BYTES as u64,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: cgroup.map_or(0, |fd| fd.as_raw_fd() as u64),
    };
    let argument = ptr::from_ref(order).cast_mut().cast();
    // SAFETY: the stack and the order outlive the child's use of them: both are
    // kept in `Spawned`.
    let result = unsafe { clone3(&arguments, child_main, argument) };
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result as i32));
    }
    // SAFETY: clone3 succeeded with CLONE_PIDFD, so the kernel stored a new
    // descriptor here that nobody else owns.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Process::from_child(pidfd, result as i32))
}

/// The child, from its first instruction to `execve`: system calls only.
extern "C" fn child_main(order: *mut libc::c_void) -> ! {
    // SAFETY: `clone_child` passed a live `Order`, which nobody changes but for
    // its atomic.
    let order = unsafe { &*order.cast::<Order>() };
    let (step, errno) = match prepare_and_execute(order) {
        Ok(never) => match never {},
        Err(failure) => failure,
    };
    let code = (step as u32) << 16 | errno;
    order.failure.store(code, Ordering::Release);
    loop {
        call(libc::SYS_exit_group, [127, 0, 0, 0, 0]).ok();
    }
}

type Failure = (BirthStep, u32);

fn prepare_and_execute(order: &Order) -> Result<std::convert::Infallible, Failure> {
    for &tasks in &order.join {
        let zero = b"0";
        call(libc::SYS_write, [tasks as usize, zero.as_ptr() as usize, 1, 0, 0])
            .map_err(|errno| (BirthStep::JoinCgroup, errno))?;
    }
    let places = arrange_descriptors(order).map_err(|errno| (BirthStep::Descriptors, errno))?;
    wait_for_go(places.go)?;
    match order.privilege {
        Privilege::Unchanged => Ok(()),
        Privilege::BecomeRoot { .. } => become_root(),
        Privilege::Ambient => make_capabilities_ambient(),
    }
    .map_err(|errno| (BirthStep::Identity, errno))?;
    // After the ids: changing them clears the parent-death signal.
    let kill = libc::SIGKILL as usize;
    call(libc::SYS_prctl, [libc::PR_SET_PDEATHSIG as usize, kill, 0, 0, 0]).ok();
    let empty = c"";
    call(
        libc::SYS_execveat,
        [
            places.executable,
            empty.as_ptr() as usize,
            order.argv.as_ptr() as usize,
            order.environ.as_ptr() as usize,
            libc::AT_EMPTY_PATH as usize,
        ],
    )
    .map_err(|errno| (BirthStep::Execute, errno))?;
    Err((BirthStep::Execute, 0))
}

fn wait_for_go(go: usize) -> Result<(), Failure> {
    let mut byte = 0u8;
    let buffer = &raw mut byte as usize;
    match call(libc::SYS_read, [go, buffer, 1, 0, 0]) {
        Ok(1) => Ok(()),
        Ok(_) => Err((BirthStep::Abandoned, 0)),
        Err(errno) => Err((BirthStep::Abandoned, errno)),
    }
}

fn become_root() -> Result<(), u32> {
    call(libc::SYS_setresgid, [0; 5])?;
    // Refused where the namespace denies setgroups (a single-id map); the
    // groups are unmapped there and mean nothing inside.
    call(libc::SYS_setgroups, [0; 5]).ok();
    call(libc::SYS_setresuid, [0; 5])?;
    Ok(())
}

fn make_capabilities_ambient() -> Result<(), u32> {
    /// `_LINUX_CAPABILITY_VERSION_3`, then this process.
    const HEADER: [u32; 2] = [0x2008_0522, 0];
    let mut sets = [[0u32; 3]; 2];
    let (header, data) = (HEADER.as_ptr() as usize, sets.as_mut_ptr() as usize);
    call(libc::SYS_capget, [header, data, 0, 0, 0])?;
    for [_, permitted, inheritable] in &mut sets {
        *inheritable = *permitted;
    }
    call(libc::SYS_capset, [header, data, 0, 0, 0])?;
    let (ambient, raise) = (libc::PR_CAP_AMBIENT as usize, libc::PR_CAP_AMBIENT_RAISE as usize);
    for number in 0..u64::BITS as usize {
        // Refused for a number that this kernel does not know.
        call(libc::SYS_prctl, [ambient, raise, number, 0, 0]).ok();
    }
    Ok(())
}

/// Where the child's own descriptors are, behind those that it was given.
struct Places {
    executable: usize,
    go: usize,
}

/// Moves the descriptors to 0, 1, 2, ..., the executable, the go pipe and the guard right
/// behind them, and closes all others.
fn arrange_descriptors(order: &Order) -> Result<Places, u32> {
    let own = [order.executable.as_raw_fd(), order.go_read];
    let given = order.descriptors.len();
    let sources = || {
        let given = order.descriptors.iter();
        given.chain(&own).chain(&order.guard).copied()
    };
    let count = sources().count();
    // First above every final place, so that no move overwrites a source.
    let base = sources().fold(0, i32::max) as usize;
    let base = base.max(count) + 1;
    for (index, fd) in sources().enumerate() {
        call(libc::SYS_dup3, [fd as usize, base + index, 0, 0, 0])?;
    }
    for index in 0..count {
        // The executed program gets what it was given, and nothing behind that.
        let flags = if index < given { 0 } else { libc::O_CLOEXEC as usize };
        call(libc::SYS_dup3, [base + index, index, flags, 0, 0])?;
    }
    call(libc::SYS_close_range, [count, u32::MAX as usize, 0, 0, 0])?;
    Ok(Places { executable: given, go: given + 1 })
}

fn call(number: libc::c_long, args: [usize; 5]) -> Result<usize, u32> {
    // SAFETY: only called in the child, on its own descriptor table and
    // identity, with pointers into the order or the child's own stack.
    let result = unsafe { syscall(number, args) };
    usize::try_from(result).map_err(|_| -result as u32)
}
