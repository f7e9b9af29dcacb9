//! The system calls a workload may make, as a classic BPF program.
//!
//! `table` says for every call which rule it follows, `rule` says what a rule
//! means in each profile, `compile` turns the answer into instructions. This room
//! only computes: the keeper installs the program, after all setup and before the
//! first byte of the workload's code.
//!
//! What holds in every program:
//! - another architecture's entry kills the process; x32 does not exist (ENOSYS);
//! - a number that is not in the table does not exist (ENOSYS), so that libraries
//!   fall back instead of reporting a permission problem;
//! - an argument is judged by its low 32 bits, which is all that the kernel uses
//!   of it: a comparison of 64 is passed by setting a high bit.
//!
//! The numbers are those of x86_64. Elsewhere the program kills whatever installs
//! it: it fails closed.

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
/// Denied to a box that writes to a volume as a user of the host: a program with
/// such a bit left there would run as that user, outside of the box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetIdBits {
    Allowed,
    Denied,
}

/// The program for this profile. `Unconfined` has none, unless there is a writable volume to
/// protect: then the program refuses set-id bits, calls that could set them unseen, and unknown
/// call numbers, and allows everything else.
pub fn program(profile: SeccompProfile, set_id_bits: SetIdBits) -> Option<Vec<BpfInstruction>> {
    match (profile, set_id_bits) {
        (SeccompProfile::Unconfined, SetIdBits::Allowed) => None,
        (SeccompProfile::Unconfined, SetIdBits::Denied)
        | (SeccompProfile::Default | SeccompProfile::Debug | SeccompProfile::Strict, _) => {
            Some(compile::program(&ranges(profile, set_id_bits)))
        }
    }
}

/// The numbers from `start` up to the next range's start share a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    start: u32,
    verdict: Verdict,
}

/// All numbers from 0 to `u32::MAX`, as few ranges as possible. The last one is
/// everything above the table, and with it x32, whose numbers have bit 30 set.
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
