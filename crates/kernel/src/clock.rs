//! The boot clock: deadlines survive suspend and nobody can set it.
#![allow(unsafe_code)]

use std::time::Duration;

use rustix::time::Timespec;

/// Nanoseconds since boot, time asleep included. By the C library, which found its
/// way around the system call when it started; rustix has to ask the kernel for it
/// once in each process (`PR_GET_AUXV`).
pub fn boot_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: clock_gettime(2) writes one timespec, which `now` has room for. It
    // cannot fail: the clock is there since Linux 2.6.39.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A duration as the kernel takes it.
pub fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}
