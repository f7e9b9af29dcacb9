//! The boot clock, which goes on while the host is suspended and cannot be set.
#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::time::Duration;

use rustix::time::Timespec;

/// Returns nanoseconds since the host was booted, including the time that it was suspended.
/// The value is the same in every time namespace, so processes can compare their values.
pub fn boot_ns() -> u64 {
    shown_ns().saturating_add_signed(namespace_offset_ns().saturating_neg())
}

static OFFSET: OnceLock<i64> = OnceLock::new();

/// Sets what [`namespace_offset_ns`] returns, for a process that cannot read it: a keeper has
/// the time namespace of its creator, and no `/proc` of the host.
pub fn set_namespace_offset(offset_ns: i64) {
    // The first value stays, and no process has two.
    OFFSET.set(offset_ns).ok();
}

/// Returns what the time namespace adds to the boot clock (time_namespaces(7)). Read once: a
/// process leaves its time namespace only when it executes.
pub fn namespace_offset_ns() -> i64 {
    *OFFSET.get_or_init(|| {
        // A kernel without time namespaces has no such file.
        let text = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
        boottime_offset_ns(&text).unwrap_or(0)
    })
}

/// Parses the line `boottime SECONDS NANOSECONDS`. Only the seconds can be negative.
fn boottime_offset_ns(text: &str) -> Option<i64> {
    let line = text.lines().find_map(|it| it.strip_prefix("boottime"))?;
    let mut numbers = line.split_whitespace().map(|it| it.parse::<i64>());
    let (seconds, nanoseconds) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds)
}

/// Returns the boot clock as this process sees it. The C library reads it without a system
/// call; rustix needs one per process to find out how (`PR_GET_AUXV`).
fn shown_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime writes one `timespec` to its second argument, the live `now`. It
    // cannot fail: every kernel since Linux 2.6.39 has the clock.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Measures how fast the processor's time stamp counter counts.
#[derive(Debug)]
pub struct CounterRate {
    ticks: u64,
    at_ns: u64,
}

/// Over this time, the result is right to a few parts in a million.
const MEASURED_NS: u64 = 5_000_000;

impl CounterRate {
    /// Begins to measure.
    pub fn start() -> Self {
        Self { ticks: counter(), at_ns: shown_ns() }
    }

    /// Ends the measurement, which takes at least some milliseconds.
    pub fn khz(&self) -> u64 {
        loop {
            let (ticks, ns) = (counter() - self.ticks, shown_ns() - self.at_ns);
            if ns >= MEASURED_NS {
                return (u128::from(ticks) * 1_000_000 / u128::from(ns)) as u64;
            }
            std::hint::spin_loop();
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has this instruction, and it touches no memory.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> u64 {
    shown_ns()
}

/// Converts a duration for the kernel.
pub fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_of_a_time_namespace_is_read_in_nanoseconds() {
        let offset = |line: &str| boottime_offset_ns(&format!("monotonic  7 7\n{line}\n"));
        assert_eq!(offset("boottime   0 0"), Some(0));
        assert_eq!(offset("boottime   86400 5"), Some(86_400_000_000_005));
        assert_eq!(offset("boottime   -2 500000000"), Some(-1_500_000_000));
        assert_eq!(offset("boottime"), None);
    }
}
