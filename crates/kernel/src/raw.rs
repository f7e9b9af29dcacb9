//! System calls without a C library, for code that runs where there is none to
//! use: between `clone3` and `execve` in a process that shares its parent's
//! memory, where `errno` and every lock belong to someone else.
#![allow(unsafe_code)]

use std::arch::asm;

/// `linux/sched.h`; the libc crate's constant is too narrow for its value.
pub const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// One system call; negative results are `-errno`.
///
/// # Safety
/// The arguments must meet what the named call asks of them: pointers valid for
/// what it reads or writes, and no effect that breaks an owner's assumptions.
pub unsafe fn syscall(number: libc::c_long, args: [usize; 5]) -> isize {
    let result: isize;
    // SAFETY: the x86_64 convention: rax in and out, rcx and r11 clobbered; the
    // caller vouches for the arguments.
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
    result
}

/// `clone3` for a child with a stack of its own, which runs `entry(argument)`.
///
/// # Safety
/// `arguments` must describe a stack that nobody else uses and that, like what
/// `argument` points to, lives until the child has executed or exited.
pub unsafe fn clone3(
    arguments: &libc::clone_args,
    entry: extern "C" fn(*mut libc::c_void) -> !,
    argument: *mut libc::c_void,
) -> isize {
    let result: isize;
    // SAFETY: the parent falls through with the result in rax; the child starts
    // on its own empty stack, so it only may call, with a zero frame pointer to
    // end a backtrace, and `entry` never returns. Its two inputs are in registers that
    // the kernel leaves alone, and not in any: that could be the frame pointer's.
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
    result
}

/// No handler of ours may run in a child that shares our memory: every signal
/// is blocked while it is made. The child inherits that and sets its own mask.
pub fn with_signals_blocked<T>(act: impl FnOnce() -> T) -> T {
    let everything = u64::MAX;
    let mut before = 0u64;
    let set = |new: &u64, old: *mut u64| {
        let how = libc::SIG_SETMASK as usize;
        // SAFETY: rt_sigprocmask reads 8 bytes at `new` and writes 8 at `old`,
        // both of which are live `u64`s (or null).
        unsafe {
            syscall(
                libc::SYS_rt_sigprocmask,
                [how, std::ptr::from_ref(new) as usize, old as usize, 8, 0],
            )
        }
    };
    set(&everything, &raw mut before);
    let result = act();
    set(&before, std::ptr::null_mut());
    result
}
