//! Compiles ranges of numbers to classic BPF.
//!
//! The program is a balanced tree of "is the number at least k" with the verdicts as its leaves: about
//! seven comparisons for any call. Each verdict is emitted once and shared.
//!
//! The program is written backwards, last instruction first. Jumps only go forward, so the target of a
//! jump is already there, at a known distance.
//!
//! The program has only instructions that the kernel can evaluate in advance (`seccomp_is_const_allow`,
//! since 5.11). The kernel finds the calls that are allowed with any arguments, and later lets them
//! pass with one bit test.

use tare_control::BpfInstruction;

use crate::create::seccomp::Range;
use crate::create::seccomp::rule::{Check, EAFNOSUPPORT, EPERM, Verdict};

/// From linux/bpf_common.h.
const LOAD_WORD: u16 = 0x20;
const JUMP_ALWAYS: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_AT_LEAST: u16 = 0x35;
const JUMP_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

/// The return values of a filter, from linux/seccomp.h.
const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0000;
const KILL_PROCESS: u32 = 0x8000_0000;

/// AUDIT_ARCH_X86_64 of linux/audit.h.
const ARCHITECTURE: u32 = 0xc000_003e;

/// Offsets in `struct seccomp_data`.
const NUMBER_OFFSET: u32 = 0;
const ARCHITECTURE_OFFSET: u32 = 4;
const ARGUMENTS_OFFSET: u32 = 16;

/// The domains of a socket and the one protocol of AF_NETLINK, NETLINK_ROUTE,
/// without which no program can list the interfaces.
const SOCKET_DOMAINS: [u32; 3] = [1, 2, 10];
const AF_NETLINK: u32 = 16;
const NETLINK_ROUTE: u32 = 0;

/// CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET. Not
/// NEWTIME: its bit is part of the exit signal here.
const CLONE_NAMESPACES: u32 = 0x7e02_0000;
/// CLONE_FS, CLONE_FILES and CLONE_SYSVSEM.
const UNSHARE_ALLOWED: u32 = 0x0004_0600;
/// TIOCSTI, TIOCLINUX and TIOCSETD.
const IOCTLS_DENIED: [u32; 3] = [0x5412, 0x541c, 0x5423];
/// PER_LINUX and PER_LINUX32, each also with UNAME26, and "tell me".
const PERSONALITIES: [u32; 5] = [0, 8, 0x2_0000, 0x2_0008, 0xffff_ffff];
const MSG_OOB: u32 = 1;
/// S_ISUID and S_ISGID.
const SET_ID: u32 = 0o6000;
/// O_CREAT and __O_TMPFILE, the bit that tells O_TMPFILE from O_DIRECTORY: the
/// kernel reads a mode if either is set (`WILL_CREATE` in fs/open.c).
const CREATES: u32 = 0o2000_0100;

/// Returns the program that gives every number the verdict of its range. The ranges ascend, and the
/// first one starts at 0.
pub fn program(ranges: &[Range]) -> Vec<BpfInstruction> {
    let mut assembler = ReverseAssembler::default();
    let tree = assembler.tree(ranges);
    let native = assembler.load(NUMBER_OFFSET, tree);
    let foreign = assembler.emit(RETURN, KILL_PROCESS);
    let start = assembler.jump(JUMP_EQUAL, ARCHITECTURE, native, foreign);
    assembler.load(ARCHITECTURE_OFFSET, start);
    assembler.code.reverse();
    assembler.code
}

/// An instruction, counted from the end of the program.
type Label = usize;

/// A program that grows at its front.
#[derive(Default)]
struct ReverseAssembler {
    code: Vec<BpfInstruction>,
    /// The verdicts that are already there.
    verdicts: Vec<(Verdict, Label)>,
}

impl ReverseAssembler {
    fn tree(&mut self, ranges: &[Range]) -> Label {
        if let [range] = ranges {
            return self.verdict(range.verdict);
        }
        let (below, above) = ranges.split_at(ranges.len() / 2);
        let yes = self.tree(above);
        let no = self.tree(below);
        self.jump(JUMP_AT_LEAST, above[0].start, yes, no)
    }

    fn verdict(&mut self, verdict: Verdict) -> Label {
        let known = self.verdicts.iter().find(|(known, _)| *known == verdict);
        if let Some((_, label)) = known {
            return *label;
        }
        let label = match verdict {
            Verdict::Allow => self.emit(RETURN, ALLOW),
            Verdict::Errno(errno) => self.emit(RETURN, ERRNO | u32::from(errno)),
            Verdict::Check(check) => self.check(check),
        };
        self.verdicts.push((verdict, label));
        label
    }

    fn check(&mut self, check: Check) -> Label {
        let allow = self.verdict(Verdict::Allow);
        let refuse = self.verdict(Verdict::Errno(EPERM));
        match check {
            Check::SocketDomain => self.socket_domain(allow),
            Check::CloneFlags => self.any_bit(0, CLONE_NAMESPACES, refuse, allow),
            Check::UnshareFlags => self.any_bit(0, !UNSHARE_ALLOWED, refuse, allow),
            Check::IoctlRequest => self.one_of(1, &IOCTLS_DENIED, refuse, allow),
            Check::Personality => self.one_of(0, &PERSONALITIES, allow, refuse),
            Check::OwnProcess(process) => self.one_of(process, &[0], allow, refuse),
            Check::MessageFlags(flags) => self.any_bit(flags, MSG_OOB, refuse, allow),
            Check::FileMode(mode) => self.any_bit(mode, SET_ID, refuse, allow),
            Check::OpenMode(flags) => {
                let mode = self.verdict(Verdict::Check(Check::FileMode(flags + 1)));
                self.any_bit(flags, CREATES, mode, allow)
            }
        }
    }

    fn socket_domain(&mut self, allow: Label) -> Label {
        let refuse = self.verdict(Verdict::Errno(EAFNOSUPPORT));
        let netlink = self.one_of(2, &[NETLINK_ROUTE], allow, refuse);
        let other = self.one_of(0, &[AF_NETLINK], netlink, refuse);
        self.one_of(0, &SOCKET_DOMAINS, allow, other)
    }

    /// Tests whether the argument is one of the values.
    fn one_of(&mut self, argument: u8, values: &[u32], yes: Label, no: Label) -> Label {
        let compare = |next, value: &u32| self.jump(JUMP_EQUAL, *value, yes, next);
        let first = values.iter().rev().fold(no, compare);
        self.load_argument(argument, first)
    }

    /// Tests whether the argument has a bit of the mask.
    fn any_bit(&mut self, argument: u8, mask: u32, yes: Label, no: Label) -> Label {
        let test = self.jump(JUMP_ANY_BIT, mask, yes, no);
        self.load_argument(argument, test)
    }

    /// The low word comes first on this architecture.
    fn load_argument(&mut self, argument: u8, next: Label) -> Label {
        self.load(ARGUMENTS_OFFSET + 8 * u32::from(argument), next)
    }

    /// A load continues with the instruction behind it, so that one must be `next`.
    fn load(&mut self, offset: u32, next: Label) -> Label {
        if self.distance(next) > 0 {
            self.trampoline(next);
        }
        self.emit(LOAD_WORD, offset)
    }

    fn jump(&mut self, code: u16, k: u32, yes: Label, no: Label) -> Label {
        let yes = self.within_reach(yes);
        let no = self.within_reach(no);
        let offset = |to| {
            u8::try_from(self.distance(to))
                .expect("within_reach has left both within a byte's reach")
        };
        let (jump_true, jump_false) = (offset(yes), offset(no));
        self.push(BpfInstruction { code, jump_true, jump_false, k })
    }

    /// Returns the label if a jump can still reach it after one more instruction, which the other target
    /// of the same jump may need. Otherwise adds an instruction that leads there.
    fn within_reach(&mut self, label: Label) -> Label {
        if self.distance(label) < usize::from(u8::MAX) {
            return label;
        }
        self.trampoline(label)
    }

    /// Adds an instruction that does the same as the one at the label: a copy of a return, or a jump.
    fn trampoline(&mut self, label: Label) -> Label {
        let target = self.code[label];
        if target.code == RETURN {
            return self.push(target);
        }
        let distance = u32::try_from(self.distance(label)).expect("a program has few instructions");
        self.emit(JUMP_ALWAYS, distance)
    }

    /// Returns the number of instructions between the label and the next one to be pushed.
    fn distance(&self, label: Label) -> usize {
        self.code.len() - 1 - label
    }

    fn emit(&mut self, code: u16, k: u32) -> Label {
        self.push(BpfInstruction { code, jump_true: 0, jump_false: 0, k })
    }

    fn push(&mut self, instruction: BpfInstruction) -> Label {
        self.code.push(instruction);
        self.code.len() - 1
    }
}
