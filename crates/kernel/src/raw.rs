//! System calls that neither the C library nor rustix can make for us.
//!
//! A child that shares its parent's memory must not call the C library: `errno` and the
//! locks there belong to a thread of the parent. Such a child uses rustix, which makes
//! its system calls without a C library, and the calls of this file, which rustix lacks.
#![allow(unsafe_code)]

use std::arch::asm;
use std::ffi::{CStr, c_char};
use std::os::fd::RawFd;
use std::ptr;

use rustix::io::{Errno, Result};

/// Makes one system call.
///
/// # Safety
/// The arguments must meet what the call requires: pointers valid for what it reads or
/// writes, and no effect that breaks what the owner of a descriptor or of memory assumes.
pub unsafe fn syscall(number: libc::c_long, args: [usize; 5]) -> Result<usize> {
    let result: isize;
    // SAFETY: the x86_64 convention of syscall(2): the number and the result are in rax,
    // the kernel overwrites rcx and r11. The caller answers for the arguments.
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
    checked(result)
}

/// Makes a child by `clone3(2)`; the child runs `entry(argument)`. Returns its pid.
///
/// # Safety
/// A stack that `arguments` names must be used by nothing else. With `CLONE_VM`, that
/// stack and what `argument` points to must live until the child has executed or ended.
pub unsafe fn clone3(
    arguments: &libc::clone_args,
    entry: extern "C" fn(*mut libc::c_void) -> !,
    argument: *mut libc::c_void,
) -> Result<usize> {
    let result: isize;
    // SAFETY: the parent continues behind the block with the result in rax. The child
    // may begin on an empty stack, so it only calls: `entry` never returns, and a zero
    // frame pointer ends a backtrace. Both inputs of the child are in registers that the
    // kernel preserves; the compiler could choose the frame pointer's for an `in(reg)`.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r8",
            "call r9",
            "ud2",
            "2:",
            in("r8") argument,
            in("r9") entry,
            inlateout("rax") libc::SYS_clone3 as isize => result,
            in("rdi") arguments,
            in("rsi") size_of::<libc::clone_args>(),
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    checked(result)
}

fn checked(result: isize) -> Result<usize> {
    usize::try_from(result).map_err(|_| Errno::from_raw_os_error(-result as i32))
}

/// `execveat(2)` of an open program; returns only the reason why it failed.
pub fn execute_fd(program: RawFd, argv: &Strings, env: &Strings) -> Errno {
    let (argv, env) = (argv.pointers.as_ptr() as usize, env.pointers.as_ptr() as usize);
    let (path, flags) = (c"".as_ptr() as usize, libc::AT_EMPTY_PATH as usize);
    // SAFETY: execveat needs a path that ends with NUL, and two arrays of such strings that
    // end with a null pointer: `Strings` owns such an array and the strings in it.
    let result = unsafe { syscall(libc::SYS_execveat, [program as usize, path, argv, env, flags]) };
    result.err().unwrap_or(Errno::INVAL)
}

/// `execve(2)`; returns only the reason why it failed.
pub fn execute(path: &CStr, argv: &Strings, env: &Strings) -> Errno {
    let (argv, env) = (argv.pointers.as_ptr() as usize, env.pointers.as_ptr() as usize);
    // SAFETY: execve needs a path that ends with NUL, and two arrays of such strings that end with a
    // null pointer: `path` is a `CStr`, and `Strings` owns such an array and the strings in it.
    let result = unsafe { syscall(libc::SYS_execve, [path.as_ptr() as usize, argv, env, 0, 0]) };
    result.err().unwrap_or(Errno::INVAL)
}

/// Strings in the form that `execve(2)` takes: pointers to them, then a null pointer.
#[derive(Debug)]
pub struct Strings {
    pointers: Vec<*const c_char>,
    _owned: Vec<std::ffi::CString>,
}

// SAFETY: the pointers lead to heap memory that the value itself owns and that nothing
// changes, so any thread may own or read it.
unsafe impl Send for Strings {}
// SAFETY: Sync needs shared references that any thread may use: nothing changes the strings.
unsafe impl Sync for Strings {}

impl Strings {
    pub fn new(strings: Vec<std::ffi::CString>) -> Self {
        let pointers = strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect();
        Self { pointers, _owned: strings }
    }
}

/// Ends this process at once, without running destructors (`exit_group(2)`).
pub fn exit(code: u8) -> ! {
    loop {
        // SAFETY: exit_group takes a number, and nothing of this process runs afterwards.
        unsafe { syscall(libc::SYS_exit_group, [usize::from(code), 0, 0, 0, 0]) }.ok();
    }
}

/// Makes `from` the descriptor `to` as well (`dup3(2)`).
///
/// # Safety
/// Nothing in this process may own `to`, which is closed if it was open.
pub unsafe fn duplicate_to(from: RawFd, to: RawFd, flags: libc::c_int) -> Result<()> {
    let args = [from as usize, to as usize, flags as usize, 0, 0];
    // SAFETY: dup3 takes no pointers; the caller answers for the owner of `to`.
    unsafe { syscall(libc::SYS_dup3, args) }.map(drop)
}

/// Closes every descriptor from `first` on, or marks it with `CLOSE_RANGE_CLOEXEC`
/// (`close_range(2)`).
///
/// # Safety
/// Without the flag, nothing in this process may use a descriptor from `first` on again.
pub unsafe fn close_range(first: RawFd, flags: libc::c_uint) -> Result<()> {
    let args = [first as usize, u32::MAX as usize, flags as usize, 0, 0];
    // SAFETY: close_range takes no pointers; the caller answers for the owners.
    unsafe { syscall(libc::SYS_close_range, args) }.map(drop)
}

/// Sets which signals this thread blocks, bit N-1 for signal N, and returns the former set.
/// The C library would leave out the signals that it uses itself.
pub fn set_signal_mask(mask: u64) -> u64 {
    let mut former = 0u64;
    let (new, old) = (&raw const mask as usize, &raw mut former as usize);
    let args = [libc::SIG_SETMASK as usize, new, old, size_of::<u64>(), 0];
    // SAFETY: rt_sigprocmask reads 8 bytes at the second argument and writes 8 bytes at the
    // third one; both are live `u64`s.
    unsafe { syscall(libc::SYS_rt_sigprocmask, args) }.expect("the arguments are valid");
    former
}

/// Sets what a signal does to its default (`rt_sigaction(2)`).
pub fn reset_signal(signal: usize) {
    // The kernel's `struct sigaction` is the default if it is all zero.
    let default = [0u64; 4];
    let args = [signal, default.as_ptr() as usize, 0, size_of::<u64>(), 0];
    // SAFETY: rt_sigaction reads the four live words of `default`, and writes nothing to a
    // null pointer. It fails for KILL and STOP, which are always at their default.
    unsafe { syscall(libc::SYS_rt_sigaction, args) }.ok();
}
