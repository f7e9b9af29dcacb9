//! The filter against its written profile, a model of it, and the kernel.

use crate::create::seccomp::*;

mod exhaustive;
mod golden;
mod interpreter;
mod kernel;
mod model;
mod shape;

const PROFILES: [SeccompProfile; 3] =
    [SeccompProfile::Default, SeccompProfile::Debug, SeccompProfile::Strict];
const SET_ID_BITS: [SetIdBits; 2] = [SetIdBits::Allowed, SetIdBits::Denied];

/// Every pair that has a program.
fn variants() -> impl Iterator<Item = (SeccompProfile, SetIdBits)> {
    PROFILES
        .into_iter()
        .flat_map(|profile| SET_ID_BITS.map(|bits| (profile, bits)))
        .chain([(SeccompProfile::Unconfined, SetIdBits::Denied)])
}

fn confined(profile: SeccompProfile, set_id_bits: SetIdBits) -> Vec<BpfInstruction> {
    program(profile, set_id_bits).expect("this profile has a program")
}

/// A line for the person who runs the tests: what was not tested, and why.
#[expect(clippy::print_stderr, reason = "a skip is said aloud")]
fn skip(why: &str) {
    eprintln!("SKIPPED: {why}");
}
