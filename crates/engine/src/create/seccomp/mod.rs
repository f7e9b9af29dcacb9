//! The system calls that a workload may make, as a classic BPF program.
//!
//! `table` gives every call a rule, `rule` says what a rule means in each profile, and `compile` makes
//! the instructions. This folder only computes. The keeper installs the program after all setup, just
//! before it starts the workload.
//!
//! These rules hold in every program:
//! - A call of another architecture kills the process. x32 calls do not exist (ENOSYS).
//! - A number that is not in the table does not exist (ENOSYS), so that libraries fall back instead of
//!   reporting a permission problem.
//! - Only the low 32 bits of an argument are compared, because the kernel uses only these. A comparison
//!   of 64 bits could be evaded with a high bit.
//!
//! The numbers are those of x86_64. On another architecture, the program kills the process that
//! installs it.

use tare_control::BpfInstruction;

use crate::create::seccomp::rule::{ENOSYS, Verdict};
use crate::spec::SeccompProfile;

mod compile;
mod rule;
mod table;
#[cfg(test)]
mod tests;

/// Whether set-user-id and set-group-id bits may be put on files.
///
/// They are denied to a box that writes to a volume as a user of the host: outside of the box, a
/// program with such a bit would run as that user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetIdBits {
    Allowed,
    Denied,
}

/// Returns the program for this profile. `Unconfined` has no program. With a writable volume it gets one
/// that allows everything except set-id bits, calls that could set them unseen, and unknown numbers.
pub fn program(profile: SeccompProfile, set_id_bits: SetIdBits) -> Option<Vec<BpfInstruction>> {
    match (profile, set_id_bits) {
        (SeccompProfile::Unconfined, SetIdBits::Allowed) => None,
        (SeccompProfile::Unconfined, SetIdBits::Denied)
        | (SeccompProfile::Default | SeccompProfile::Debug | SeccompProfile::Strict, _) => {
            Some(compile::program(&ranges(profile, set_id_bits)))
        }
    }
}

/// A range of numbers with one verdict: from `start` up to the start of the next range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    start: u32,
    verdict: Verdict,
}

/// Returns the ranges of all numbers from 0 to `u32::MAX`, as few as possible. The last range is
/// everything above the table, including x32, whose numbers have bit 30 set.
fn ranges(profile: SeccompProfile, set_id_bits: SetIdBits) -> Vec<Range> {
    let mut ranges = Vec::with_capacity(table::SYSCALLS.len() / 2);
    let mut next = 0;
    for &(number, _, rule) in &table::SYSCALLS {
        if next < number {
            extend(&mut ranges, next, Verdict::Errno(ENOSYS));
        }
        extend(&mut ranges, number, rule.verdict(profile, set_id_bits));
        next = number + 1;
    }
    extend(&mut ranges, next, Verdict::Errno(ENOSYS));
    ranges
}

fn extend(ranges: &mut Vec<Range>, start: u32, verdict: Verdict) {
    if ranges.last().is_none_or(|last| last.verdict != verdict) {
        ranges.push(Range { start, verdict });
    }
}
