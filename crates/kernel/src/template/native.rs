//! The native part of a template: a shared object without a C library of its own, which the
//! interpreter of a template loads. `build.rs` compiles it alone. Only clippy sees it as a module of this
//! crate.
//!
//! ```text
//! T  serve ── order ──▶ clone3 ─────────(waits until K executes or ends)─────────▶ next order
//!                          └▶ K  joins, go, root of its namespace, fork ─▶ executes the keeper
//!                                                                   └▶ W  waits, confines itself,
//!                                                                         returns to Python
//! ```
//!
//! T is the template, K the first process of a box, W the clone. K runs in the memory and below the
//! stack frame of T, which waits meanwhile, as with `vfork(2)`. Only W is a copy. The `fork` of the
//! interpreter's C library makes it, so that this library knows about it. Nothing here allocates,
//! and K calls nothing of the C library except `fork`, because K uses the memory of T.
#![cfg_attr(not(clippy), no_std)]
#![allow(unsafe_code)]

#[cfg(not(clippy))]
#[path = "orders.rs"]
mod orders;
#[cfg(clippy)]
use super::orders;

use core::arch::asm;
use core::mem::size_of;
use core::ptr;

use orders::{BirthAnswer, BirthHead, BirthStep, ConfineHead, ResourceLimit};

/// The most bytes of one order, and the most descriptors with it.
const ORDER_BYTES_MAX: usize = 64 << 10;
const DESCRIPTORS_MAX: usize = 64;

/// Facts about the interpreter. `template.py` fills it in.
#[repr(C)]
pub struct Interpreter {
    /// `PyOS_BeforeFork` and `PyOS_AfterFork_Child`.
    before: extern "C" fn(),
    after: extern "C" fn(),
    fork: extern "C" fn() -> i32,
    /// Where the C library registered its area of `rseq(2)`, from the thread pointer on. The size
    /// is 0 without one.
    rseq_offset: isize,
    rseq_bytes: u32,
    /// The memory that a clone writes.
    written: *const Pages,
    written_length: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Pages {
    start: usize,
    bytes: usize,
}

type Fd = i32;
/// An error number.
type Errno = i32;
type Result<T> = core::result::Result<T, Errno>;

const E2BIG: Errno = 7;
const EBADF: Errno = 9;
const EINTR: Errno = 4;
const EINVAL: Errno = 22;
const EPIPE: Errno = 32;

const CLONE_VM: u64 = 0x100;
const CLONE_VFORK: u64 = 0x4000;
const CLONE_PARENT: u64 = 0x8000;
const CLONE_NEWCGROUP: usize = 0x0200_0000;
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
const MADV_POPULATE_WRITE: usize = 23;
const MSG_CMSG_CLOEXEC: usize = 0x4000_0000;
const MSG_TRUNC: i32 = 0x20;
const MSG_CTRUNC: i32 = 0x8;
const SIGKILL: usize = 9;
const RSEQ_SIGNATURE: usize = 0x5305_3053;

/// Numbers of system calls.
mod nr {
    pub const READ: usize = 0;
    pub const WRITE: usize = 1;
    pub const CLOSE: usize = 3;
    pub const MADVISE: usize = 28;
    pub const RECVMSG: usize = 47;
    pub const CHDIR: usize = 80;
    pub const SETSID: usize = 112;
    pub const SETGROUPS: usize = 116;
    pub const SETRESUID: usize = 117;
    pub const SETRESGID: usize = 119;
    pub const CAPSET: usize = 126;
    pub const PRCTL: usize = 157;
    pub const EXIT_GROUP: usize = 231;
    pub const UNSHARE: usize = 272;
    pub const DUP3: usize = 292;
    pub const PRLIMIT: usize = 302;
    pub const SECCOMP: usize = 317;
    pub const EXECVEAT: usize = 322;
    pub const RSEQ: usize = 334;
    pub const CLONE3: usize = 435;
    pub const CLOSE_RANGE: usize = 436;
    pub const LANDLOCK_RESTRICT_SELF: usize = 446;
}

/// Options of `prctl(2)`.
mod pr {
    pub const SET_PDEATHSIG: usize = 1;
    pub const SET_DUMPABLE: usize = 4;
    pub const CAPBSET_DROP: usize = 24;
    pub const SET_SECUREBITS: usize = 28;
    pub const SET_NO_NEW_PRIVS: usize = 38;
    pub const CAP_AMBIENT: usize = 47;
    pub const CAP_AMBIENT_CLEAR_ALL: usize = 4;
}

/// The secure bits of `caps::lock_out_root`.
const LOCK_OUT_ROOT: usize = 0xef;

/// The last order that came. One process at a time uses it: K reads that of T, which waits.
static mut INBOX: Inbox = Inbox {
    bytes: [0; ORDER_BYTES_MAX / 8],
    control: [0; CONTROL_WORDS],
    fds: [0; DESCRIPTORS_MAX],
};
/// A header of two words, then the descriptors.
const CONTROL_WORDS: usize = 2 + DESCRIPTORS_MAX / 2;

struct Inbox {
    bytes: [u64; ORDER_BYTES_MAX / 8],
    control: [u64; CONTROL_WORDS],
    fds: [Fd; DESCRIPTORS_MAX],
}

/// An order with its descriptors.
#[derive(Clone, Copy)]
struct Order {
    bytes: &'static [u8],
    fds: &'static [Fd],
}

/// Makes a box for each order that comes from descriptor 0. Returns only in a clone, after it has
/// confined itself. The template exits when its socket is closed.
#[unsafe(no_mangle)]
pub extern "C" fn serve(interpreter: &Interpreter) {
    (interpreter.before)();
    let clone = loop {
        let Ok(order) = receive(0) else { exit(1) };
        if order.bytes.is_empty() {
            exit(0)
        }
        let Some(birth) = Birth::of(order, interpreter) else { exit(1) };
        match make(&birth) {
            Ok(Made::Box) => {}
            Ok(Made::Clone) => break birth.clone,
            Err(errno) => answer(birth.go, BirthStep::Clone, errno),
        }
        for fd in order.fds {
            close(*fd);
        }
    };
    copy_pages(interpreter);
    let confined = receive(clone).and_then(|order| confine(order, clone, interpreter));
    let errno = confined.err().unwrap_or(0);
    write(clone, &errno.to_ne_bytes()).ok();
    if errno != 0 {
        exit(1)
    }
    close(clone);
    (interpreter.after)();
}

/// Copies the memory that the clone will write, while the keeper makes the box. Without this, each
/// page costs a fault.
/// Memory that it only reads is not worth it: one fault brings sixteen pages of a file.
fn copy_pages(interpreter: &Interpreter) {
    let Interpreter { written, written_length, .. } = interpreter;
    // SAFETY: `written` points to `written_length` elements, which Python keeps while `serve` runs.
    let written = unsafe { core::slice::from_raw_parts(*written, *written_length) };
    for Pages { start, bytes } in written {
        // SAFETY: populating memory changes none of its content, and fails where there is none.
        unsafe { call(nr::MADVISE, [*start, *bytes, MADV_POPULATE_WRITE, 0, 0]) }.ok();
    }
}

/// A box to make.
struct Birth {
    interpreter: *const Interpreter,
    namespaces: u64,
    go: Fd,
    clone: Fd,
    cgroup: Fd,
    joins: &'static [Fd],
    keeper: &'static [Fd],
    program: Fd,
    words: &'static [u8],
}

impl Birth {
    fn of(order: Order, interpreter: &Interpreter) -> Option<Self> {
        let (head, words) = split::<BirthHead>(order.bytes)?;
        let (&[go, clone, cgroup], rest) = order.fds.split_first_chunk()?;
        let (joins, rest) = rest.split_at_checked(head.joins as usize)?;
        let (&program, keeper) = rest.split_last()?;
        let namespaces = head.namespaces;
        Some(Self { interpreter, namespaces, go, clone, cgroup, joins, keeper, program, words })
    }
}

enum Made {
    Box,
    /// This process is the clone.
    Clone,
}

/// `struct clone_args` (`linux/sched.h`).
#[repr(C)]
#[derive(Default)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// Makes K, and returns after it has executed or ended. Also returns in the clone.
fn make(birth: &Birth) -> Result<Made> {
    let arguments = CloneArguments {
        // K is a child of this process's parent.
        flags: birth.namespaces | CLONE_VM | CLONE_VFORK | CLONE_PARENT | CLONE_INTO_CGROUP,
        cgroup: birth.cgroup as u64,
        ..CloneArguments::default()
    };
    let result: isize;
    // SAFETY: with CLONE_VFORK this thread waits until K has left its memory. K calls
    // `first_process` below this frame, and leaves that function by `execveat` or `exit_group`: it
    // never uses this frame. Only W returns from the function. It has a copy of this frame as it is
    // now, and 0 in rax. The kernel overwrites rcx and r11; `clobber_abi` names what a function may
    // overwrite.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "mov rdi, r12",
            "call r13",
            "2:",
            in("r12") birth,
            in("r13") first_process as extern "C" fn(&Birth) -> isize,
            inlateout("rax") nr::CLONE3 as isize => result,
            inlateout("rdi") &raw const arguments => _,
            inlateout("rsi") size_of::<CloneArguments>() => _,
            clobber_abi("C"),
        );
    }
    match result {
        0 => Ok(Made::Clone),
        result if result < 0 => Err(-result as Errno),
        _ => Ok(Made::Box),
    }
}

/// K, from its first instruction to the keeper's. Returns in W only.
extern "C" fn first_process(birth: &Birth) -> isize {
    dies_with_parent();
    for file in birth.joins {
        if let Err(errno) = write(*file, b"0") {
            answer(birth.go, BirthStep::Join, errno);
            exit(1)
        }
    }
    answer(birth.go, BirthStep::Order, 0);
    let mut go = [0];
    if !matches!(read(birth.go, &mut go), Ok(1)) || assume(0, 0).is_err() {
        exit(1)
    }
    // A change of ids clears the signal of the parent's death.
    dies_with_parent();
    // SAFETY: the call takes a number. A cgroup namespace, whose root is where K is now, changes nothing
    // in memory.
    if unsafe { call(nr::UNSHARE, [CLONE_NEWCGROUP, 0, 0, 0, 0]) }.is_err() {
        exit(1)
    }
    // SAFETY: `birth` came from `serve`, whose reference lives as long as this process.
    let interpreter = unsafe { &*birth.interpreter };
    match (interpreter.fork)() {
        0 => {
            // The clone keeps its own socket. Those of T are closed when it gets its streams.
            let clone = birth.clone as usize;
            close_range(3, clone.saturating_sub(1));
            close_range(clone + 1, u32::MAX as usize);
            0
        }
        1.. => become_keeper(birth),
        _ => exit(1),
    }
}

fn dies_with_parent() {
    prctl(pr::SET_PDEATHSIG, SIGKILL).ok();
}

/// Takes these ids, and no other groups.
fn assume(uid: u32, gid: u32) -> Result<()> {
    let (uid, gid) = (uid as usize, gid as usize);
    // SAFETY: a list of no groups is not read.
    unsafe { call(nr::SETGROUPS, [0; 5]) }?;
    // SAFETY: the call takes numbers.
    unsafe { call(nr::SETRESGID, [gid, gid, gid, 0, 0]) }?;
    // SAFETY: the call takes numbers.
    unsafe { call(nr::SETRESUID, [uid, uid, uid, 0, 0]) }?;
    Ok(())
}

/// The most arguments and variables of a keeper.
const WORDS_MAX: usize = 32;

fn become_keeper(birth: &Birth) -> ! {
    // Each number is smaller than those of all descriptors that are still to be moved: T has none
    // but 0 to 2, and those of the order came in this order.
    for (number, fd) in (0..).zip(birth.keeper) {
        if number >= *fd || number >= birth.program || duplicate(*fd, number).is_err() {
            exit(1)
        }
    }
    let mut arguments = [ptr::null(); WORDS_MAX];
    let mut environment = [ptr::null(); WORDS_MAX];
    let Some(rest) = strings(birth.words, &mut arguments) else { exit(1) };
    if strings(rest, &mut environment).is_none() {
        exit(1)
    }
    const AT_EMPTY_PATH: usize = 0x1000;
    let (path, argv, env) = (c"".as_ptr(), arguments.as_ptr(), environment.as_ptr());
    let args = [birth.program as usize, path as usize, argv as usize, env as usize, AT_EMPTY_PATH];
    // SAFETY: the words are in the inbox, each with a NUL, and the two lists of pointers to them end with
    // null. All live until the program is replaced.
    unsafe { call(nr::EXECVEAT, args) }.ok();
    exit(1)
}

/// Finds the strings before an empty one, and returns what follows. The last pointer stays null.
fn strings<'a>(mut bytes: &'a [u8], into: &mut [*const u8; WORDS_MAX]) -> Option<&'a [u8]> {
    for pointer in &mut into[..WORDS_MAX - 1] {
        let end = bytes.iter().position(|byte| *byte == 0)?;
        let (string, rest) = bytes.split_at_checked(end + 1)?;
        bytes = rest;
        if end == 0 {
            return Some(rest);
        }
        *pointer = string.as_ptr();
    }
    None
}

/// Takes the clone's streams and drops its rights, in the order of `confine` in the keeper. Two steps
/// are its own. It becomes dumpable, as after `execve`: it may open its own files in /proc. And it
/// enters a Landlock domain, which other processes inherit from their keeper.
fn confine(order: Order, clone: Fd, interpreter: &Interpreter) -> Result<()> {
    let (head, rest) = split::<ConfineHead>(order.bytes).ok_or(EINVAL)?;
    let (&streams, ruleset) = order.fds.split_first_chunk::<3>().ok_or(EBADF)?;
    // SAFETY: the call has no arguments.
    unsafe { call(nr::SETSID, [0; 5]) }?;
    for (number, stream) in (0..).zip(streams) {
        duplicate(stream, number)?;
    }
    let rest = set_limits(head.limits, rest)?;
    let filter_bytes = head.filter as usize * 8;
    let (filter, workdir) = rest.split_at_checked(filter_bytes).ok_or(EINVAL)?;
    give_up_privileges(head.uid, head.gid)?;
    prctl(pr::SET_DUMPABLE, 1)?;
    enter_directory(workdir)?;
    prctl(pr::SET_NO_NEW_PRIVS, 1)?;
    if let [ruleset] = ruleset {
        // SAFETY: the call takes numbers.
        unsafe { call(nr::LANDLOCK_RESTRICT_SELF, [*ruleset as usize, 0, 0, 0, 0]) }?;
    }
    for fd in order.fds.iter().filter(|fd| **fd != clone) {
        close(*fd);
    }
    register_rseq(interpreter)?;
    install(filter, head.filter)
}

fn enter_directory(path: &[u8]) -> Result<()> {
    if path.last() != Some(&0) {
        return Err(EINVAL);
    }
    // SAFETY: the path ends with a NUL.
    unsafe { call(nr::CHDIR, [path.as_ptr() as usize, 0, 0, 0, 0]) }.map(drop)
}

/// Sets the limits, each at most at the present hard limit. Returns what follows them in the order.
fn set_limits(count: u32, mut rest: &'static [u8]) -> Result<&'static [u8]> {
    for _ in 0..count {
        let (limit, after) = split::<ResourceLimit>(rest).ok_or(EINVAL)?;
        rest = after;
        let resource = limit.resource as usize;
        let mut present = [0u64; 2];
        // SAFETY: the kernel writes the two numbers of `struct rlimit64` to `present`.
        unsafe { call(nr::PRLIMIT, [0, resource, 0, present.as_mut_ptr() as usize, 0]) }?;
        let value = limit.value.min(present[1]);
        let new = [value; 2];
        // SAFETY: the kernel reads the two numbers of `struct rlimit64` from `new`.
        unsafe { call(nr::PRLIMIT, [0, resource, new.as_ptr() as usize, 0, 0]) }?;
    }
    Ok(rest)
}

fn give_up_privileges(uid: u32, gid: u32) -> Result<()> {
    // Up to the last capability of this kernel.
    for capability in 0..64 {
        if prctl(pr::CAPBSET_DROP, capability).is_err() {
            break;
        }
    }
    prctl(pr::CAP_AMBIENT, pr::CAP_AMBIENT_CLEAR_ALL)?;
    prctl(pr::SET_SECUREBITS, LOCK_OUT_ROOT)?;
    assume(uid, gid)?;
    // Version 3 of the header, this process, and three sets of nothing.
    let (header, nothing) = ([0x2008_0522u32, 0], [0u32; 6]);
    let args = [header.as_ptr() as usize, nothing.as_ptr() as usize, 0, 0, 0];
    // SAFETY: version 3 has a header of two numbers, and two times three numbers of capabilities.
    unsafe { call(nr::CAPSET, args) }.map(drop)
}

/// Registers the area of `rseq(2)` again. The kernel drops it in K, because K shares the memory of
/// T, so W has none. Without it, the C library would return an old answer of `sched_getcpu` for
/// ever.
fn register_rseq(interpreter: &Interpreter) -> Result<()> {
    const BYTES: usize = 32;
    if interpreter.rseq_bytes == 0 {
        return Ok(());
    }
    let thread: isize;
    // SAFETY: the C library has the thread pointer in the first word that fs points to (x86_64
    // ABI).
    unsafe { asm!("mov {}, fs:0", out(reg) thread, options(nostack, readonly)) };
    let area = (thread + interpreter.rseq_offset) as usize;
    // SAFETY: the C library reserves this area of its thread for the kernel.
    unsafe { call(nr::RSEQ, [area, BYTES, 0, RSEQ_SIGNATURE, 0]) }.map(drop)
}

fn install(filter: &[u8], count: u32) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    const SET_MODE_FILTER: usize = 1;
    // `struct sock_fprog`: a 16-bit length, padding, a pointer.
    let program = [u64::from(count), filter.as_ptr() as u64];
    let args = [SET_MODE_FILTER, 0, program.as_ptr() as usize, 0, 0];
    // SAFETY: `filter` has `count` instructions of 8 bytes, as `confine` has split it.
    unsafe { call(nr::SECCOMP, args) }.map(drop)
}

/// `struct iovec` and `struct msghdr`.
#[repr(C)]
struct Buffer {
    start: *mut u8,
    length: usize,
}

#[repr(C)]
struct Message {
    name: *mut u8,
    name_length: u32,
    buffers: *mut Buffer,
    buffers_length: usize,
    control: *mut u8,
    control_length: usize,
    flags: i32,
}

/// Receives one order with its descriptors.
fn receive(socket: Fd) -> Result<Order> {
    let inbox = &raw mut INBOX;
    // SAFETY: a projection into the static `INBOX`, which is always live.
    let bytes = unsafe { &raw mut (*inbox).bytes }.cast::<u8>();
    // SAFETY: a projection into the static `INBOX`, which is always live.
    let control = unsafe { &raw mut (*inbox).control }.cast::<u64>();
    // SAFETY: a projection into the static `INBOX`, which is always live.
    let fds = unsafe { &raw mut (*inbox).fds }.cast::<Fd>();
    let mut buffer = Buffer { start: bytes, length: ORDER_BYTES_MAX };
    let mut message = Message {
        name: ptr::null_mut(),
        name_length: 0,
        buffers: &raw mut buffer,
        buffers_length: 1,
        control: control.cast(),
        control_length: CONTROL_WORDS * 8,
        flags: 0,
    };
    let args = [socket as usize, &raw mut message as usize, MSG_CMSG_CLOEXEC, 0, 0];
    // SAFETY: `message` names the two buffers of the inbox with their lengths.
    let length = retry(|| unsafe { call(nr::RECVMSG, args) })?;
    if message.flags & (MSG_TRUNC | MSG_CTRUNC) != 0 {
        return Err(E2BIG);
    }
    // A control message is its length in bytes, then its level and kind, then the descriptors.
    let count = match message.control_length {
        0 => 0,
        // SAFETY: the kernel has written a header to `control`.
        _ => ((unsafe { *control } as usize).saturating_sub(16) / 4).min(DESCRIPTORS_MAX),
    };
    // The descriptors begin behind the header of two words.
    let passed = control.wrapping_add(2).cast::<Fd>();
    // SAFETY: the kernel has written `count` descriptors there, and `fds` has room for as many as
    // `control` has. The two do not overlap.
    unsafe { ptr::copy_nonoverlapping(passed, fds, count) };
    // SAFETY: the kernel has written `length` bytes to a static, which nothing changes before the next
    // call. By then the slice is not used any more: an order is over when the next one is received.
    let bytes = unsafe { core::slice::from_raw_parts(bytes, length) };
    // SAFETY: the lines above have written `count` descriptors to a static, as for the bytes.
    let fds = unsafe { core::slice::from_raw_parts(fds, count) };
    Ok(Order { bytes, fds })
}

/// Takes the head of an order.
fn split<T: Copy>(bytes: &[u8]) -> Option<(T, &[u8])> {
    let (head, rest) = bytes.split_at_checked(size_of::<T>())?;
    // SAFETY: `head` has as many bytes as a `T`, of any alignment. The types of `orders` are
    // numbers, so all bytes are valid.
    Some((unsafe { head.as_ptr().cast::<T>().read_unaligned() }, rest))
}

fn answer(go: Fd, step: BirthStep, errno: Errno) {
    let BirthAnswer { step, errno } = BirthAnswer { step: step as u32, errno };
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&step.to_ne_bytes());
    bytes[4..].copy_from_slice(&errno.to_ne_bytes());
    write(go, &bytes).ok();
}

fn read(fd: Fd, into: &mut [u8]) -> Result<usize> {
    let args = [fd as usize, into.as_mut_ptr() as usize, into.len(), 0, 0];
    // SAFETY: the kernel writes at most `into.len()` bytes to `into`.
    retry(|| unsafe { call(nr::READ, args) })
}

fn write(fd: Fd, bytes: &[u8]) -> Result<()> {
    let args = [fd as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0];
    // SAFETY: the kernel reads `bytes.len()` bytes from `bytes`.
    match retry(|| unsafe { call(nr::WRITE, args) })? {
        count if count == bytes.len() => Ok(()),
        _ => Err(EPIPE),
    }
}

fn duplicate(from: Fd, to: Fd) -> Result<()> {
    // SAFETY: the call takes numbers. Descriptors belong to orders, and none of Python's is open but 0
    // to 2, which the caller replaces.
    unsafe { call(nr::DUP3, [from as usize, to as usize, 0, 0, 0]) }.map(drop)
}

fn close(fd: Fd) {
    // SAFETY: the call takes a number. Callers close only descriptors that came with an order.
    unsafe { call(nr::CLOSE, [fd as usize, 0, 0, 0, 0]) }.ok();
}

fn close_range(first: usize, last: usize) {
    // SAFETY: the call takes numbers. A clone has no descriptors of its own but 0 to 2 and its socket.
    unsafe { call(nr::CLOSE_RANGE, [first, last, 0, 0, 0]) }.ok();
}

fn prctl(option: usize, argument: usize) -> Result<()> {
    // SAFETY: the options in `pr` take numbers.
    unsafe { call(nr::PRCTL, [option, argument, 0, 0, 0]) }.map(drop)
}

fn exit(code: usize) -> ! {
    loop {
        // SAFETY: the call takes a number, and does not return.
        unsafe { call(nr::EXIT_GROUP, [code, 0, 0, 0, 0]) }.ok();
    }
}

fn retry(mut make: impl FnMut() -> Result<usize>) -> Result<usize> {
    loop {
        match make() {
            Err(EINTR) => {}
            other => return other,
        }
    }
}

/// Makes one system call. The C library would write the error number to the memory of T.
///
/// # Safety
/// The arguments must meet what the call requires: pointers valid for what it reads or writes, and no
/// effect that breaks what the owner of a descriptor or of memory assumes.
unsafe fn call(number: usize, args: [usize; 5]) -> Result<usize> {
    let result: isize;
    // SAFETY: the x86_64 convention of syscall(2): the number and the result are in rax, and the kernel
    // overwrites rcx and r11. The caller answers for the arguments.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    usize::try_from(result).map_err(|_| -result as Errno)
}

#[cfg(not(clippy))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    exit(127)
}
