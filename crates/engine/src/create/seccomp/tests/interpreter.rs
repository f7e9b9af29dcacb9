//! Classic BPF as the kernel checks it and runs it for seccomp.
//!
//! The constants are written out again, not imported: a wrong one in the compiler
//! must not be repeated here.

use crate::create::seccomp::tests::*;

/// `struct seccomp_data`, without the instruction pointer.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    pub number: u32,
    pub architecture: u32,
    pub arguments: [u64; 6],
}

pub const X86_64: u32 = 0xc000_003e;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Allow,
    Errno(u32),
    KillProcess,
}

/// What a run of the program found out.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    pub answer: Answer,
    /// If not, the answer is the same for all arguments.
    pub read_arguments: bool,
    pub instructions: usize,
}

/// What `bpf_check_classic` and `seccomp_check_filter` demand, but for the limit
/// of 4,096 instructions.
pub fn validate(program: &[BpfInstruction]) {
    for (at, instruction) in program.iter().enumerate() {
        let behind = program.len() - at - 1;
        match instruction.code {
            0x20 => assert!(instruction.k < 64 && instruction.k % 4 == 0, "load at {at}"),
            0x05 => assert!((instruction.k as usize) < behind, "jump at {at}"),
            0x15 | 0x35 | 0x45 => {
                assert!(usize::from(instruction.jump_true) < behind, "jump at {at}");
                assert!(usize::from(instruction.jump_false) < behind, "jump at {at}");
            }
            0x06 => {}
            code => panic!("instruction {at} has code {code:#x}"),
        }
    }
    assert_eq!(program.last().map(|last| last.code), Some(0x06));
}

pub fn run(program: &[BpfInstruction], call: &Call) -> Run {
    let (mut at, mut accumulator, mut read_arguments) = (0, 0, false);
    for instructions in 1..=program.len() {
        let BpfInstruction { code, jump_true, jump_false, k } = program[at];
        at += 1;
        let branch = |taken| usize::from(if taken { jump_true } else { jump_false });
        match code {
            0x20 => {
                accumulator = word(call, k);
                read_arguments |= k >= 16;
            }
            0x05 => at += k as usize,
            0x15 => at += branch(accumulator == k),
            0x35 => at += branch(accumulator >= k),
            0x45 => at += branch(accumulator & k != 0),
            _ => {
                return Run { answer: answer(k), read_arguments, instructions };
            }
        }
    }
    unreachable!("a validated program returns")
}

fn word(call: &Call, offset: u32) -> u32 {
    match offset {
        0 => call.number,
        4 => call.architecture,
        8 | 12 => panic!("the filter depends on the instruction pointer"),
        _ => {
            let argument = call.arguments[(offset as usize - 16) / 8];
            (argument >> (offset % 8 * 8)) as u32
        }
    }
}

fn answer(returned: u32) -> Answer {
    match (returned & 0xffff_0000, returned & 0xffff) {
        (0x7fff_0000, 0) => Answer::Allow,
        (0x0005_0000, errno) => Answer::Errno(errno),
        (0x8000_0000, 0) => Answer::KillProcess,
        _ => panic!("the filter returned {returned:#x}"),
    }
}
