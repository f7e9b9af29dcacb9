//! The real kernel takes the programs and agrees.
//!
//! The calls are chosen so that they change nothing and leave nothing, whether the
//! filter stops them or not; where the answer without the filter is the same on
//! every host it is the control.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

use crate::create::seccomp::tests::*;

const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const ESRCH: i32 = 3;
const EBADF: i32 = 9;
const EINVAL: i32 = 22;
const ENOSYS: i32 = 38;
const EAFNOSUPPORT: i32 = 97;
const SIGSYS: i32 = 31;

fn probe(program: &[BpfInstruction], calls: &[&str]) -> Output {
    Command::new("/usr/bin/python3")
        .args(["-I", "-S", "-c", include_str!("probe.py"), &hex(program)])
        .args(calls)
        .output()
        .expect("python3 runs")
}

/// As the bytes of an array of `struct sock_filter`.
fn hex(program: &[BpfInstruction]) -> String {
    let bytes = program.iter().flat_map(|each| {
        let [c0, c1] = each.code.to_le_bytes();
        let [k0, k1, k2, k3] = each.k.to_le_bytes();
        [c0, c1, each.jump_true, each.jump_false, k0, k1, k2, k3]
    });
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

fn errnos(program: &[BpfInstruction], calls: &[&str]) -> Vec<i32> {
    let output = probe(program, calls);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

/// (call, errno with the filter)
fn assert_answers(profile: SeccompProfile, bits: SetIdBits, expected: &[(&str, i32)]) {
    let calls: Vec<_> = expected.iter().map(|(call, _)| *call).collect();
    let answers = errnos(&confined(profile, bits), &calls);
    let answers: Vec<_> = calls.into_iter().zip(answers).collect();
    assert_eq!(answers, expected, "{profile:?} {bits:?}");
}

#[test]
fn the_kernel_refuses_calls_that_the_default_profile_refuses() {
    let expected = [
        ("39", 0),                           // getpid()
        ("272,268435456", EPERM),            // unshare(CLONE_NEWUSER)
        ("272,0", 0),                        // unshare(0)
        ("56,268435473,0", EPERM),           // clone(CLONE_NEWUSER | SIGCHLD)
        ("435,0,0", ENOSYS),                 // clone3
        ("425,0,0", ENOSYS),                 // io_uring_setup
        ("41,40,1,0", EAFNOSUPPORT),         // socket(AF_VSOCK)
        ("41,4294967336,1,0", EAFNOSUPPORT), // socket(AF_VSOCK | 1 << 32)
        ("41,1,1,0", 0),                     // socket(AF_UNIX)
        ("41,4294967297,1,0", 0),            // socket(AF_UNIX | 1 << 32)
        ("16,0,21522,0", EPERM),             // ioctl(TIOCSTI)
        ("16,0,4294988818,0", EPERM),        // ioctl(TIOCSTI | 1 << 32)
        ("135,4194304", EPERM),              // personality(READ_IMPLIES_EXEC)
        ("135,4294967295", 0),               // personality(tell me)
        ("302,1,7,0,0", EPERM),              // prlimit64(the keeper, RLIMIT_NOFILE)
        ("302,0,7,0,0", 0),                  // prlimit64(ourselves, RLIMIT_NOFILE)
        ("101,16,0,0,0", EPERM),             // ptrace(PTRACE_ATTACH)
        ("337", ENOSYS),                     // a hole
        ("1000", ENOSYS),                    // beyond the table
        ("1073741863", ENOSYS),              // getpid() of x32
    ];
    assert_answers(SeccompProfile::Default, SetIdBits::Allowed, &expected);
}

#[test]
fn without_a_filter_the_kernel_answers_otherwise() {
    let calls = ["435,0,0", "135,4194304", "90,@/nonexistent,2541"];
    assert_eq!(errnos(&[], &calls), [EINVAL, 0, ENOENT]);
}

#[test]
fn the_kernel_lets_debug_trace_and_refuses_sysv_and_oob_in_strict() {
    let attach_to_nobody = ("101,16,0,0,0", ESRCH);
    assert_answers(SeccompProfile::Debug, SetIdBits::Allowed, &[attach_to_nobody]);
    let expected = [
        ("29,1952543333,0,0", EPERM),       // shmget(some key)
        ("44,4294967295,0,0,1,0,0", EPERM), // sendto(-1, MSG_OOB)
        ("44,4294967295,0,0,0,0,0", EBADF), // sendto(-1)
    ];
    assert_answers(SeccompProfile::Strict, SetIdBits::Allowed, &expected);
}

#[test]
fn the_kernel_refuses_set_id_bits_where_they_are_denied() {
    let expected = [
        ("90,@/nonexistent,2541", EPERM),        // chmod(04755)
        ("90,@/nonexistent,493", ENOENT),        // chmod(0755)
        ("2,@/nonexistent/x,65,2541", EPERM),    // open(O_CREAT | O_WRONLY, 04755)
        ("2,@/nonexistent/x,65,493", ENOENT),    // open(O_CREAT | O_WRONLY, 0755)
        ("2,@/nonexistent/x,0,2541", ENOENT),    // open(O_RDONLY, garbage)
        ("2,@/nonexistent,4259842,2541", EPERM), // open(O_TMPFILE | O_RDWR, 04755)
        ("437,0,0,0,0", ENOSYS),                 // openat2
    ];
    for (profile, _) in variants().filter(|(_, bits)| *bits == SetIdBits::Denied) {
        assert_answers(profile, SetIdBits::Denied, &expected);
    }
}

#[test]
fn the_kernel_kills_a_process_that_enters_as_i386() {
    if !probe(&[], &["i386"]).status.success() {
        return skip("this kernel has no 32-bit entry");
    }
    let program = confined(SeccompProfile::Default, SetIdBits::Allowed);
    assert_eq!(probe(&program, &["i386"]).status.signal(), Some(SIGSYS));
}
