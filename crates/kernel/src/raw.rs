//! System calls without a C library, for code that runs where there is none to
//! use: between `clone3` and `execve` in a process that shares its parent's
//! memory, where `errno` and every lock belong to someone else.
#![allow(unsafe_code)]

use std::arch::asm;

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
