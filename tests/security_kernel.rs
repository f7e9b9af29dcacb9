//! How much of the kernel a box can reach.
//!
//! Every refusal has its control: the same call on the host, without the filter or in a wider
//! profile, must give another result. Otherwise the refusal proves nothing.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use tare_harness::skip::is_root;
use tare_harness::{Running, Tare, box_processes, skip, tare};

const CALLS: &str = include_str!("probes/calls.py");
const EVERY_CALL: &str = include_str!("probes/every_call.py");
/// What the default filter does with each system call.
const GOLDEN: &str = include_str!("../crates/engine/src/create/seccomp/default.golden");

/// Makes these calls in a box with these options, and returns the results.
#[track_caller]
fn answers(tare: &Tare, options: &[&str], calls: &[&str]) -> Vec<String> {
    let mut call = options.to_vec();
    call.extend(["--", "python3", "-I", "-S", "-c", CALLS]);
    call.extend(calls);
    let output = tare.run(call).ok();
    output.stdout_text().lines().map(str::to_owned).collect()
}

#[track_caller]
fn answers_on_the_host(calls: &[&str]) -> Vec<String> {
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-I", "-S", "-c", CALLS]).args(calls);
    let output = command.output().expect("python3 runs");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("names are ASCII");
    text.lines().map(str::to_owned).collect()
}

/// In a box each call is refused with this errno, on the host with none of them.
#[track_caller]
fn refused_unlike_on_the_host(tare: &Tare, errno: &str, calls: &[&str]) {
    let inside = answers(tare, &[], calls);
    let outside = answers_on_the_host(calls);
    for ((call, inside), outside) in calls.iter().zip(inside).zip(outside) {
        assert_eq!(inside, errno, "{call}");
        assert_ne!(outside, errno, "{call} on the host");
    }
}

/// A user namespace of its own is the gateway to most of the kernel.
#[test]
fn a_box_cannot_create_or_enter_a_namespace() {
    let tare = tare!();
    let new_user = "272,0x10000000"; // unshare
    let refused = [
        new_user,
        "272,0x40000000",    // unshare, a network
        "56,0x10000011,0,0", // clone with SIGCHLD
        "56,0x7e020011,0,0", // clone, all of them
        "308,0,0",           // setns
    ];
    assert_eq!(answers(&tare, &[], &refused), ["EPERM"; 5]);
    // clone3 has its flags in memory, where no filter sees them.
    assert_eq!(answers(&tare, &[], &["435,0,0"]), ["ENOSYS"]);
    let unconfined = ["--seccomp", "unconfined"];
    assert_eq!(answers(&tare, &unconfined, &["435,0,0"]), ["EINVAL"]);
    assert_eq!(answers(&tare, &unconfined, &[new_user]), ["ok"]);
    // What concerns only the caller's own threads stays possible.
    assert_eq!(answers(&tare, &[], &["272,0x40600"]), ["ok"]);
}

/// A box has the three common socket families and the netlink protocol for its own addresses.
#[test]
fn a_box_has_only_the_sockets_of_everyday_use() {
    let tare = tare!();
    const TYPES: [u32; 5] = [1, 2, 3, 5, 10]; // stream datagram raw seqpacket packet
    let sockets: Vec<(u32, u32)> =
        (0..48).flat_map(|family| TYPES.map(|kind| (family, kind))).collect();
    let calls: Vec<String> = sockets.iter().map(|(f, k)| format!("41,{f},{k},0")).collect();
    let calls: Vec<&str> = calls.iter().map(String::as_str).collect();
    let modules = loaded_modules();
    let answers = answers(&tare, &[], &calls);
    let made = |answers: &[String]| -> Vec<(u32, u32)> {
        let both = sockets.iter().zip(answers);
        both.filter(|(_, answer)| *answer == "ok").map(|(socket, _)| *socket).collect()
    };
    // A raw socket of the unix family is a datagram one.
    let expected =
        [(1, 1), (1, 2), (1, 3), (1, 5), (2, 1), (2, 2), (10, 1), (10, 2), (16, 2), (16, 3)];
    assert_eq!(made(&answers), expected);
    assert_eq!(loaded_modules(), modules);
    let refused = sockets.iter().zip(&answers);
    for ((family, kind), answer) in
        refused.filter(|((family, _), _)| ![1, 2, 10, 16].contains(family))
    {
        assert_eq!(answer, "EAFNOSUPPORT", "family {family}, type {kind}");
    }
    if is_root() {
        let outside = made(&answers_on_the_host(&calls));
        assert!(outside.len() > expected.len(), "{outside:?}");
    }
}

#[test]
fn a_box_has_only_the_netlink_protocol_for_addresses() {
    let tare = tare!();
    let calls: Vec<String> = (0..32).map(|protocol| format!("41,16,3,{protocol}")).collect();
    let calls: Vec<&str> = calls.iter().map(String::as_str).collect();
    let inside = answers(&tare, &[], &calls);
    assert_eq!(inside[0], "ok");
    assert!(inside[1..].iter().all(|answer| answer == "EAFNOSUPPORT"), "{inside:?}");
    let made = |answers: &[String]| answers.iter().filter(|answer| *answer == "ok").count();
    assert!(made(&answers(&tare, &["--seccomp", "unconfined"], &calls)) > 1);
}

#[test]
fn a_box_cannot_create_raw_sockets_even_as_its_root() {
    let tare = tare!();
    let raw = ["41,2,3,1", "41,2,3,255", "41,10,3,58", "41,17,3,768"];
    let expected = ["EPERM", "EPERM", "EPERM", "EAFNOSUPPORT"];
    assert_eq!(answers(&tare, &[], &raw), expected);
    assert_eq!(answers(&tare, &["--root"], &raw), expected);
    if is_root() {
        assert_eq!(answers_on_the_host(&raw[..3]), ["ok"; 3]);
    }
}

/// No name of a file system or an algorithm makes the host load a module.
#[test]
fn a_box_cannot_name_file_systems_or_algorithms() {
    let tare = tare!();
    let modules = loaded_modules();
    let calls = [
        "430,@ext4,0",                   // fsopen
        "430,@nosuchfilesystem,0",       // fsopen
        "165,@none,@/tmp,@overlay,0,0",  // mount
        "165,@none,@/tmp,@nosuchfs,0,0", // mount
        "313,0,@,0",                     // finit_module
        "175,0,0,@",                     // init_module
    ];
    assert_eq!(answers(&tare, &[], &calls), ["EPERM"; 6]);
    assert_eq!(answers(&tare, &[], &["41,38,5,0"]), ["EAFNOSUPPORT"]);
    assert_eq!(loaded_modules(), modules);
    if is_root() {
        assert_eq!(answers_on_the_host(&calls[1..2]), ["ENODEV"]);
    }
}

/// A kernel without modules has no such file, and none loaded.
fn loaded_modules() -> Vec<String> {
    let text = fs::read_to_string("/proc/modules").unwrap_or_default();
    let names = text.lines().filter_map(|line| line.split(' ').next());
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort();
    names
}

/// System calls that io_uring makes are not seen by any filter.
#[test]
fn a_box_has_no_io_uring() {
    let tare = tare!();
    let calls = ["425,0,0", "426,0,0,0,0,0,0", "427,0,0,0,0"];
    if answers_on_the_host(&calls).contains(&"ENOSYS".to_owned()) {
        skip!("this kernel has no io_uring, so its absence proves nothing");
    }
    refused_unlike_on_the_host(&tare, "ENOSYS", &calls);
}

#[test]
fn a_box_has_no_keyrings() {
    let tare = tare!();
    let calls = [
        "248,0,0,0,0,0", // add_key
        "249,0,0,0,0",   // request_key
        "250,99,0,0,0",  // keyctl
    ];
    refused_unlike_on_the_host(&tare, "EPERM", &calls);
    tare.run(["--", "cat", "/proc/keys", "/proc/key-users"]).ok().printed("");
    let users = fs::read_to_string("/proc/key-users").expect("this kernel has keyrings");
    assert!(!users.is_empty());
}

#[test]
fn a_box_has_no_bpf_and_no_perf() {
    let tare = tare!();
    if !is_root() {
        skip!("the host refuses these to its users as well");
    }
    let calls = [
        "321,99,0,0",    // bpf
        "298,0,0,0,0,0", // perf_event_open
    ];
    refused_unlike_on_the_host(&tare, "EPERM", &calls);
}

/// Urgent bytes on unix sockets were a way from a renderer to the kernel.
#[test]
fn a_strict_box_has_no_urgent_bytes_and_no_system_v_objects() {
    let tare = tare!();
    let script = "import socket
left, right = socket.socketpair()
print(left.send(b'x'))
left.send(b'x', socket.MSG_OOB)
print('sent')";
    let run = |profile: &str| tare.run(["--seccomp", profile, "--", "python3", "-c", script]);
    run("default").ok().printed("1\nsent\n");
    let refused = run("strict").exited(1).printed("1\n");
    assert!(refused.stderr_text().contains("PermissionError"), "{refused}");
    let get_memory = "29,0,4096,0x3ff"; // shmget, private
    assert_eq!(answers(&tare, &["--seccomp", "strict"], &[get_memory]), ["EPERM"]);
    assert_eq!(answers(&tare, &[], &[get_memory]), ["ok"]);
}

/// The kernel looks at the low half of these arguments, and so must a filter.
#[test]
fn high_bits_of_an_argument_do_not_bypass_the_filter() {
    let tare = tare!();
    let calls = [
        "41,0x100000028,1,0",        // socket of the hypervisor's family
        "41,0xffffffff00000028,1,0", // the same
        "41,16,3,0x100000009",       // netlink, audit
        "16,0,0x100005412,0",        // ioctl, typing into a terminal
        "16,0,0x10000541c,0",        // ioctl, the console
        "16,0,0x100005423,0",        // ioctl, the line discipline
        "56,0x110000011,0,0",        // clone, a user namespace
        "272,0x110000000",           // unshare, a user namespace
        "135,0x100400000",           // personality, everything executable
    ];
    let expected = [
        "EAFNOSUPPORT",
        "EAFNOSUPPORT",
        "EAFNOSUPPORT",
        "EPERM",
        "EPERM",
        "EPERM",
        "EPERM",
        "EPERM",
        "EPERM",
    ];
    assert_eq!(answers(&tare, &[], &calls), expected);
    // Without the filter the kernel does ignore those bits.
    let unconfined =
        answers(&tare, &["--seccomp", "unconfined"], &["41,0x100000001,1,0", "135,0x1ffffffff"]);
    assert_eq!(unconfined, ["ok", "ok"]);
}

/// Every number there is. What the table refuses is refused by exactly the
/// errno it says, what no table knows does not exist, and no number of the native
/// kind kills: programs probe for calls and must be able to fall back.
#[test]
fn every_system_call_returns_what_the_table_says() {
    let tare = tare!();
    let told: BTreeMap<u32, &str> = GOLDEN.lines().map(golden_line).collect();
    let output = tare.run(["--timeout", "55s", "--", "python3", "-c", EVERY_CALL]).ok();
    let text = output.stdout_text();
    let came: BTreeMap<u32, &str> = text.lines().map(numbered).collect();
    assert_eq!(came.len(), 1024, "{output}");
    for (number, answer) in &came {
        let expected = told.get(number).copied().unwrap_or("ENOSYS");
        // From Linux 6.14 on the kernel hides these two from every filter, and
        // refuses by itself every caller that is not the trampoline of a probe.
        let is_probe = [335, 336].contains(number);
        match expected {
            "EPERM" | "ENOSYS" if is_probe => assert_ne!(*answer, "ok", "{number}"),
            "EPERM" | "ENOSYS" => assert_eq!(*answer, expected, "{number}"),
            _ => assert_ne!(*answer, "killed 31", "{number}"),
        }
    }
    // The control: what is allowed does get through.
    assert_eq!(came[&39], "ok", "getpid");
    assert_eq!(came[&34], "blocked", "pause");
}

/// `  2 open                    allow`
fn golden_line(line: &'static str) -> (u32, &'static str) {
    let mut words = line.split_whitespace();
    let number = words.next().and_then(|number| number.parse().ok());
    (number.expect("a number"), words.nth(1).expect("a verdict"))
}

fn numbered(line: &str) -> (u32, &str) {
    let (number, answer) = line.split_once(' ').expect("a number and an answer");
    (number.parse().expect("a number"), answer)
}

#[test]
fn a_box_cannot_change_how_the_processor_or_memory_work() {
    let tare = tare!();
    let calls = [
        "135,0x400000",           // personality, everything executable
        "154,0,0,0",              // modify_ldt
        "172,0",                  // iopl
        "173,0,0,0",              // ioperm
        "278,0xffffffff,0,0,0",   // vmsplice
        "440,0xffffffff,0,0,0,0", // process_madvise
        "312,0,0,99,0,0",         // kcmp
        "323,0",                  // userfaultfd
    ];
    refused_unlike_on_the_host(&tare, "EPERM", &calls);
}

/// The lines of `/proc/PID/status` that say what a process may become.
fn powers(pid: u32) -> BTreeMap<String, String> {
    const FIELDS: [&str; 8] =
        ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Groups"];
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the box runs");
    let fields = status.lines().filter_map(|line| line.split_once(':'));
    fields
        .filter(|(name, _)| FIELDS.contains(name))
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect()
}

/// All processes of the box without its keeper, which has capabilities in its own user namespace.
fn members(running: &Running) -> Vec<u32> {
    let all = box_processes();
    let keeper = all.iter().find(|one| one.parent == running.pid());
    let keeper = keeper.expect("the box runs");
    let others = all.iter().filter(|one| one.pid != keeper.pid);
    others.filter(|one| one.pid_namespace == keeper.pid_namespace).map(|one| one.pid).collect()
}

/// Seen from the host, for every process of the box and not only the first.
#[test]
fn no_process_of_a_box_has_a_capability() {
    let tare = tare!();
    let script = "sleep 1000 & setsid sh -c 'sleep 1000 & echo up; wait' & python3 -c 'import os
if os.fork() == 0: os.setsid()
print(\"up\", flush=True)
os.read(0, 1)'";
    let running = tare.spawn(["--timeout", "30s", "--", "sh", "-c", script]);
    running.see("up\nup\nup\n");
    let members = members(&running);
    assert!(members.len() >= 6, "{members:?}");
    for pid in members {
        let powers = powers(pid);
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(powers[set], "0000000000000000", "{set} of {pid}");
        }
        assert_eq!(powers["NoNewPrivs"], "1", "{pid}");
        assert_eq!(powers["Seccomp"], "2", "{pid}");
        assert_eq!(powers["Groups"], "", "{pid}");
    }
    // The control: ourselves.
    assert_eq!(powers(std::process::id())["Seccomp"], "0");
    running.wait().ok();
}

/// `--root` adds five capabilities inside and nothing else.
#[test]
fn a_boxs_root_has_five_capabilities_and_no_way_to_more() {
    let tare = tare!();
    let running =
        tare.spawn(["--root", "--timeout", "30s", "--", "sh", "-c", "echo up; cat; true"]);
    running.see("up");
    // CHOWN, DAC_OVERRIDE, FOWNER, SETGID, SETUID.
    let five = format!("{:016x}", 1 | 1 << 1 | 1 << 3 | 1 << 6 | 1 << 7);
    for pid in members(&running) {
        let powers = powers(pid);
        for set in ["CapPrm", "CapEff", "CapBnd"] {
            assert_eq!(powers[set], five, "{set} of {pid}");
        }
        assert_eq!(powers["CapAmb"], "0000000000000000");
        assert_eq!((&*powers["NoNewPrivs"], &*powers["Seccomp"]), ("1", "2"));
        let map = fs::read_to_string(format!("/proc/{pid}/uid_map")).expect("the box runs");
        let first = map.split_whitespace().nth(1);
        assert!(first != Some("0"), "host root is mapped: {map}");
    }
    running.wait().ok();
}
