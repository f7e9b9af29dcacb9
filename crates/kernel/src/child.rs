//! The only place that calls `clone3`.
//!
//! A shared child uses the memory of this process: there are no page tables to copy,
//! however large the process is. The child runs on a stack of its own and may only make
//! system calls (see `raw.rs`). [`SharedChild`] owns the stack and the order that the
//! child reads, and frees both only after the child has executed or ended.
//!
//! A child that waits closes all descriptors but its own first ([`keep_only`]). The kernel
//! copies the whole descriptor table at `clone3`, and another thread of the parent may
//! have the pipe of another waiting child in it. Two waiting children that held each
//! other's pipe would wait forever after the parent was killed.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::time::Duration;

use crate::process::{Process, Status};
use crate::raw;

/// `linux/sched.h`; the libc crate's constant is too narrow for its value.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Stack of a shared child. Pages that it does not touch cost nothing.
const STACK_BYTES: usize = 64 << 10;

/// Namespaces that a child is created in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Namespaces(u64);

impl Namespaces {
    pub const NONE: Self = Self(0);
    pub const USER: Self = Self(libc::CLONE_NEWUSER as u64);
    pub const MOUNT: Self = Self(libc::CLONE_NEWNS as u64);
    pub const PID: Self = Self(libc::CLONE_NEWPID as u64);
    pub const IPC: Self = Self(libc::CLONE_NEWIPC as u64);
    pub const UTS: Self = Self(libc::CLONE_NEWUTS as u64);
    pub const NETWORK: Self = Self(libc::CLONE_NEWNET as u64);

    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// As flags of `clone3(2)`.
    pub const fn flags(self) -> u64 {
        self.0
    }
}

/// A child that may still use memory of this process.
pub struct SharedChild<T> {
    pub process: Process,
    /// `None` after the child has executed or ended.
    memory: Option<NonNull<Memory<T>>>,
}

/// The order that a child with shared memory reads, and the stack that it runs on.
struct Memory<T> {
    order: T,
    main: fn(&T),
    /// Only its capacity is used.
    _stack: Vec<u128>,
}

// SAFETY: the memory belongs to this value alone, apart from the child, which does not
// care which thread of its parent frees it.
unsafe impl<T: Send> Send for SharedChild<T> {}

impl<T> SharedChild<T> {
    /// Starts a child that runs `main` with `order`, in the cgroup v2 directory `cgroup` or
    /// where its parent is. Every signal is blocked in it. If `main` returns, the child
    /// exits with 127.
    ///
    /// # Safety
    /// `main` may only make system calls: it must not allocate, lock, or call the C
    /// library. It shares `order` with the parent, so `order` must be `Sync` in effect:
    /// atomics, or values that the parent does not touch before the child has gone.
    pub unsafe fn start(
        namespaces: Namespaces,
        cgroup: Option<BorrowedFd<'_>>,
        order: T,
        main: fn(&T),
    ) -> io::Result<Self> {
        let mut stack = Vec::with_capacity(STACK_BYTES / size_of::<u128>());
        let arguments = libc::clone_args {
            stack: stack.as_mut_ptr() as u64,
            stack_size: STACK_BYTES as u64,
            ..arguments(namespaces.0 | libc::CLONE_VM as u64, cgroup)
        };
        let memory = NonNull::from(Box::leak(Box::new(Memory { order, main, _stack: stack })));
        // SAFETY: clone3 needs a stack of the child's own, and needs it and `memory` to live
        // until the child has executed or ended: `SharedChild` frees them only then.
        match unsafe { clone(arguments, enter::<T>, memory.as_ptr().cast()) } {
            Ok(process) => Ok(Self { process, memory: Some(memory) }),
            Err(error) => {
                // SAFETY: from_raw needs a pointer from a box, owned by nothing else: it was
                // leaked above, and there is no child.
                drop(unsafe { Box::from_raw(memory.as_ptr()) });
                Err(error)
            }
        }
    }

    /// A process that another one has made. It uses no memory of this process.
    pub(crate) fn adopted(process: Process) -> Self {
        Self { process, memory: None }
    }

    /// The order that the child was started with; `None` after [`Self::has_executed`].
    pub(crate) fn order(&self) -> Option<&T> {
        // SAFETY: as_ref needs a live `Memory` that is not changed meanwhile: it is freed
        // through `&mut self` only, and the child gets a shared reference too.
        self.memory.map(|memory| &unsafe { memory.as_ref() }.order)
    }

    /// Frees the memory. Call it only after the child is known to have executed, for
    /// example because its program has sent something.
    pub fn has_executed(&mut self) {
        if let Some(memory) = self.memory.take() {
            // SAFETY: from_raw needs a pointer from a box, owned by nothing else: `start`
            // leaked the box, `take` makes this happen once, and the child has left it.
            drop(unsafe { Box::from_raw(memory.as_ptr()) });
        }
    }

    /// Waits until the child has ended, reaps it, and frees the memory.
    pub(crate) fn wait(mut self) -> io::Result<Status> {
        let status = self.process.wait()?;
        self.has_executed();
        Ok(status)
    }
}

impl<T> Drop for SharedChild<T> {
    /// Frees the memory of a child that is dead. A living child may still run in it: then
    /// the memory is leaked.
    fn drop(&mut self) {
        if self.memory.is_some() && matches!(self.process.wait_dead(Duration::ZERO), Ok(true)) {
            self.has_executed();
        }
    }
}

impl<T> fmt::Debug for SharedChild<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedChild").field(&self.process).finish()
    }
}

/// Starts a child with a copy of this process's memory. It exits with what `main` returns.
/// This process must have one thread: the copy has no other, and their locks stay locked.
pub fn fork<F: FnOnce() -> u8>(cgroup: Option<BorrowedFd<'_>>, main: F) -> io::Result<Process> {
    let mut main = Some(main);
    let argument = (&raw mut main).cast();
    // SAFETY: without a stack and without CLONE_VM, clone3 requires nothing: the child
    // continues on its copy of this stack, with its copy of `main`.
    unsafe { clone(arguments(0, cgroup), enter_copy::<F>, argument) }
}

/// A child with a pidfd, whose end is announced by SIGCHLD.
fn arguments(flags: u64, cgroup: Option<BorrowedFd<'_>>) -> libc::clone_args {
    let into_cgroup = cgroup.map_or(0, |_| CLONE_INTO_CGROUP);
    libc::clone_args {
        flags: flags | into_cgroup | libc::CLONE_PIDFD as u64,
        pidfd: 0,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: libc::SIGCHLD as u64,
        stack: 0,
        stack_size: 0,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: cgroup.map_or(0, |fd| fd.as_raw_fd() as u64),
    }
}

/// Every signal is blocked meanwhile: a handler of ours must not run in a child that
/// shares our memory. The child keeps that mask.
///
/// # Safety
/// As for [`raw::clone3`].
unsafe fn clone(
    mut arguments: libc::clone_args,
    entry: extern "C" fn(*mut c_void) -> !,
    argument: *mut c_void,
) -> io::Result<Process> {
    let mut pidfd: RawFd = -1;
    arguments.pidfd = &raw mut pidfd as u64;
    let former = raw::set_signal_mask(u64::MAX);
    // SAFETY: clone3 needs a stack and an `argument` that live long enough: the caller promises it,
    // see above.
    let cloned = unsafe { raw::clone3(&arguments, entry, argument) };
    raw::set_signal_mask(former);
    let pid = cloned? as i32;
    // SAFETY: from_raw_fd needs an open descriptor that nothing else owns: clone3
    // succeeded, so the kernel stored a new one here (CLONE_PIDFD).
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Process::from_child(pidfd, pid))
}

/// First function of a shared child. A panic aborts it: it is `extern "C"`.
extern "C" fn enter<T>(memory: *mut c_void) -> ! {
    // SAFETY: the dereference needs a live `Memory<T>`: `start` passed one, and keeps it
    // until this child has executed or ended.
    let memory = unsafe { &*memory.cast::<Memory<T>>() };
    (memory.main)(&memory.order);
    raw::exit(127)
}

/// First function of a child with a copy of the memory.
extern "C" fn enter_copy<F: FnOnce() -> u8>(main: *mut c_void) -> ! {
    // SAFETY: the dereference needs a live `Option<F>` that nothing else uses: `fork`
    // passed one, and this is the child's own copy of it.
    let main = unsafe { &mut *main.cast::<Option<F>>() };
    raw::exit(main.take().map_or(127, |main| main()))
}

/// Moves the descriptors `own` to the numbers 0, 1, 2, ... and closes all others. Those
/// from the number `given` on are closed when the child executes.
///
/// # Safety
/// Only for a child: nothing in its process may own a descriptor.
pub unsafe fn keep_only(
    own: impl Iterator<Item = RawFd> + Clone,
    given: RawFd,
) -> rustix::io::Result<()> {
    let count = own.clone().count() as RawFd;
    // First to numbers above all final ones, so that no move overwrites a source.
    let base = own.clone().fold(count, RawFd::max) + 1;
    for (index, fd) in (0..).zip(own) {
        // SAFETY: duplicate_to needs a target that nothing owns: the caller promises that this process
        // owns no descriptor.
        unsafe { raw::duplicate_to(fd, base + index, 0) }?;
    }
    for index in 0..count {
        let flags = if index < given { 0 } else { libc::O_CLOEXEC };
        // SAFETY: duplicate_to needs a target that nothing owns: the caller promises that this process
        // owns no descriptor.
        unsafe { raw::duplicate_to(base + index, index, flags) }?;
    }
    // SAFETY: close_range needs descriptors that nothing uses again: the caller promises that this
    // process owns no descriptor, and those that it keeps have smaller numbers.
    unsafe { raw::close_range(count, 0) }
}
