//! Every number, with every argument that could matter, against the model.

use std::collections::BTreeSet;

use crate::create::seccomp::tests::interpreter::{Answer, Call, X86_64, run, validate};
use crate::create::seccomp::tests::model::Model;
use crate::create::seccomp::tests::*;

const NUMBERS: u32 = 1024;

/// The kernel drops these bits, so no answer may depend on them.
const HIGH_WORDS: [u64; 3] = [0, 1 << 32, 0xffff_ffff << 32];

/// Every single bit, every value that a rule names, and their neighbours.
fn low_words() -> BTreeSet<u64> {
    let named = [0, 1, 2, 10, 16, 33, 40, 8, 0x20000, 0x20008, 0xffff_ffff];
    let requests = [0x5412, 0x541c, 0x5423];
    let masks = [0x7e02_0000, 0x4_0600, !0x4_0600_u32, 0o6000, 0o2000_0100];
    let bits = (0..32).map(|bit| 1 << bit);
    bits.chain(named)
        .chain(requests)
        .chain(masks)
        .flat_map(|value: u32| [value.wrapping_sub(1), value, value.wrapping_add(1)])
        .map(u64::from)
        .collect()
}

/// Each value in all arguments at once.
fn uniform_arguments() -> Vec<[u64; 6]> {
    let lows = low_words();
    let with_high = |high| lows.iter().map(move |low| [low | high; 6]);
    HIGH_WORDS.into_iter().flat_map(with_high).collect()
}

/// Each pair of values, laid out so that every two arguments which one rule looks
/// at (0 and 2, 1 and 2, 2 and 3) take every pair in both orders.
fn paired_arguments() -> Vec<[u64; 6]> {
    let lows: Vec<u64> = low_words().into_iter().collect();
    let mut pairs = Vec::with_capacity(2 * lows.len() * lows.len());
    for (index, &x) in lows.iter().enumerate() {
        for &y in &lows {
            let high = HIGH_WORDS[index % HIGH_WORDS.len()];
            pairs.push([x, y | high, x, y | high, x, y]);
            pairs.push([x | high, x, y, y | high, x, x]);
        }
    }
    pairs
}

#[test]
fn every_system_call_matches_the_model() {
    let (uniform, paired) = (uniform_arguments(), paired_arguments());
    for (profile, bits) in variants() {
        let program = confined(profile, bits);
        let model = Model::new(profile, bits);
        let check = |number, arguments: &[u64; 6]| {
            let call = Call { number, architecture: X86_64, arguments: *arguments };
            let run = run(&program, &call);
            assert_eq!(run.answer, model.answer(&call), "{profile:?} {bits:?} {call:x?}");
            run.read_arguments
        };
        for number in 0..NUMBERS {
            let mut depends = false;
            for arguments in &uniform {
                depends |= check(number, arguments);
            }
            // An answer that was given without looking cannot change with a pair.
            for arguments in paired.iter().filter(|_| depends) {
                check(number, arguments);
            }
        }
    }
}

#[test]
fn x32_and_numbers_beyond_the_table_do_not_exist() {
    for (profile, bits) in variants() {
        let program = confined(profile, bits);
        let x32 = (0..NUMBERS).map(|number| 0x4000_0000 + number);
        let beyond = [0x3fff_ffff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff];
        for number in x32.chain(beyond) {
            let call = Call { number, architecture: X86_64, arguments: [0; 6] };
            assert_eq!(run(&program, &call).answer, Answer::Errno(38), "{number:#x}");
        }
    }
}

#[test]
fn a_call_of_another_architecture_kills_the_process() {
    // i386, arm64, and x86_64 without its 64-bit and little-endian marks.
    let foreign = [0x4000_0003, 0xc000_00b7, 0x3e, 0x8000_003e, 0x4000_003e, 0];
    for (profile, bits) in variants() {
        let program = confined(profile, bits);
        for (architecture, number) in foreign.into_iter().flat_map(|each| [(each, 0), (each, 39)]) {
            let call = Call { number, architecture, arguments: [0; 6] };
            assert_eq!(run(&program, &call).answer, Answer::KillProcess);
        }
    }
}

#[test]
fn unconfined_has_no_program_unless_a_volume_needs_one() {
    let program = program(SeccompProfile::Unconfined, SetIdBits::Allowed);
    assert_eq!(program, None);
}

#[test]
fn the_kernel_would_accept_every_program() {
    for (profile, bits) in variants() {
        let program = confined(profile, bits);
        validate(&program);
        assert!(program.len() <= 4096);
    }
}
