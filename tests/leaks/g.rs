//! G. Networks, ports, addresses, devices. Of these a tare box has ports of the host
//! (`--net host`), an unnamed network namespace, and a range of user ids.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use rustix::process::Signal;
use tare_harness::random::{Random, fresh_seed};
use tare_harness::skip::{has_program, is_root};
use tare_harness::{Process, Running, Tare, eventually, skip};

use crate::leaks::case::{case, times, traced};

/// Listens on the port that it is given, for ever; an error ends it.
const SERVER: &str = "import socket, sys, time
server = socket.create_server(('127.0.0.1', int(sys.argv[1])))
print('port', server.getsockname()[1], 'is open', flush=True)
time.sleep(1000)";

/// A box that listens on this port of the host, or with 0 on any.
#[track_caller]
fn server(tare: &Tare, port: u16) -> String {
    let options = ["--quiet", "--net", "host", "--", "python3", "-c", SERVER];
    let id = tare.detached(options.iter().chain(&[port.to_string().as_str()]));
    tare.logged(&id, "is open");
    id
}

/// G1, boxlite: an orphan held the port; the next box had no network and reported nothing.
#[test]
fn a_port_is_free_again_at_once_and_repeatedly() {
    let case = case();
    let first = server(&case, 0);
    let log = case.call(["logs", &first]).ok().stdout_text();
    let port = log.split(' ').nth(1).and_then(|word| word.parse().ok());
    let port = port.expect("it says a number");
    case.remove(&first);
    for round in 0..times(12, 50) {
        let id = server(&case, port);
        match round % 3 {
            0 => case.remove(&id),
            1 => {
                case.call(["stop", "-t", "0", &id]).ok();
            }
            _ => {
                case.call(["kill", &id]).ok();
            }
        }
    }
    case.call(["rm", "-f", "--all"]).ok();
    case.nothing_left();
}

/// Calls by which a network is made, each with a reason to fail.
const NETWORK_FAULTS: [&str; 5] = [
    "unshare:error=ENOSPC:when=1",
    "setns:error=EINVAL:when=1",
    "socket:error=EMFILE:when=1",
    "ioctl:error=EPERM:when=1",
    "sendto:error=ENOBUFS:when=1",
];

/// G2, e2b: a box that failed during network set-up kept its slot.
#[test]
fn a_failed_network_set_up_fails_the_box_and_frees_its_slot() {
    let case = case();
    if !has_program("strace") || !is_root() {
        skip!("strace is not installed, or may not trace a keeper");
    }
    // Says whether it has a loopback that is up.
    let command = ["run", "--", "grep", "-q", "127.0.0.1", "/proc/net/fib_trie"];
    case.call(command).ok();
    let mut failed = 0;
    for fault in NETWORK_FAULTS {
        let inject = format!("inject={fault}");
        for _ in 0..times(3, 30) {
            let output = traced(&case, &["-f", "-e", &inject], &command);
            // Never a box without.
            assert!([0, 125].contains(&output.code), "{fault}: {output}");
            failed += usize::from(output.code == 125);
            assert_eq!(case.uid_claims(), 0, "{fault}");
            case.nothing_left();
        }
    }
    assert!(failed > 0, "no network failed");
}

/// G3, e2b: slots returned while the pool was closing were lost, or caused a panic.
#[test]
fn a_hundred_interrupted_stops_lose_no_slot() {
    let case = case();
    let boxes: Vec<String> = (0..100).map(|_| case.idle_box()).collect();
    let stop = |id: &String| case.spawn_call(["stop", "-t", "0", id]);
    let stops: Vec<Running> = boxes.iter().map(stop).collect();
    for (number, stop) in stops.iter().enumerate() {
        let signals = [Signal::TERM, Signal::KILL, Signal::INT, Signal::HUP];
        stop.signal(signals[number % signals.len()]);
    }
    for stop in stops {
        let output = stop.wait();
        assert!(!output.stderr_text().contains("panicked"), "{output}");
    }
    case.call(["rm", "-f", "--all"]).ok();
    assert_eq!(case.uid_claims(), 0);
    case.nothing_left();
}

/// The uid map of the box, which begins with its first uid on the host.
fn first_uid(tare: &Tare, id: &str) -> String {
    let map = format!("/proc/{}/uid_map", tare.keeper(id).pid);
    fs::read_to_string(map).expect("the keeper is ours to look at")
}

/// G4, CubeSandbox: a paused machine had to be resumed to be deleted, and its address was
/// reassigned while it lived.
#[test]
fn a_paused_box_is_removed_without_resuming_and_keeps_its_slot_until_then() {
    let case = case();
    if !is_root() {
        skip!("without root a box is not paused and has no user ids of its own");
    }
    let id = case.up(&["--name", "a"], "echo up; while :; do :; done");
    case.call(["pause", "a"]).ok();
    let held = first_uid(&case, &id);
    let others: Vec<String> = (0..5).map(|_| case.idle_box()).collect();
    let ranges: BTreeSet<String> = others.iter().map(|it| first_uid(&case, it)).collect();
    assert_eq!(ranges.len(), others.len());
    assert!(!ranges.contains(&held));
    assert_eq!(case.uid_claims(), others.len() + 1);
    case.remove(&id);
    assert_eq!(case.uid_claims(), others.len());
    case.call(["rm", "-f", "--all"]).ok();
    case.nothing_left();
}

/// G5, e2b: no request was served for half an hour, until all leftovers were reclaimed.
#[test]
fn no_command_waits_for_the_recovery_of_leftovers() {
    let case = case();
    let count = times(100, 2_000);
    for _ in 0..count {
        case.detached(["--rm", "--", "sleep", "1000"]);
    }
    // Their keepers came to us.
    let is_keeper = |one: &&Process| one.parent == std::process::id();
    let processes = case.footprint().processes;
    for keeper in processes.iter().filter(is_keeper) {
        keeper.signal(Signal::KILL);
    }
    eventually("all boxes are dead", || case.footprint().processes.is_empty());
    assert_eq!(case.footprint().records.len(), count);
    // Each command does what it was asked to. With thousands of boxes only one in several cleans
    // up, and that one cleans up a part.
    eventually("a command has cleaned up a part", || {
        case.run(["--", "echo", "served"]).ok().printed("served\n");
        case.footprint().records.len() < count
    });
    let left = case.footprint().records.len();
    assert!(left > count / 2, "{left} of {count} are left");
    case.call(["ls"]).ok();
    assert_eq!(case.footprint().records.len(), 0);
    case.nothing_left();
}

/// G6, mirendev: a process that was cancelled between taking an address and recording it
/// kept the address.
#[test]
fn create_killed_before_record_frees_its_uid_range() {
    let case = case();
    let mut random = Random::seeded(fresh_seed());
    for _ in 0..times(40, 600) {
        let creator = case.spawn(["--name", "wanted", "--", "sleep", "1000"]);
        tare_harness::let_pass(Duration::from_micros(random.below(12_000)));
        creator.signal(Signal::KILL);
        creator.wait();
        eventually("its user ids are free", || case.uid_claims() == 0);
        // And so is its name.
        case.run(["--name", "wanted", "--", "true"]).ok();
    }
    case.reap_orphans();
    case.nothing_left();
}

/// G11, A3S Box: a sweep deleted the directory that held the record of a device before the
/// device was released.
#[test]
fn a_dead_box_with_an_unreadable_record_keeps_its_holdings_until_it_is_readable() {
    let case = case();
    if !is_root() {
        skip!("without root no mount outlives a box");
    }
    let id = case.detached(["--keep", "--name", "a", "--", "sleep", "1000"]);
    let scratch = case.record(&id).join("scratch");
    let is_mounted = || {
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted");
        mounts.contains(scratch.to_str().expect("a path of ours"))
    };
    assert!(is_mounted());
    case.keeper(&id).signal(Signal::KILL);
    eventually("the box is dead", || case.processes_in(&id).is_empty());
    let (record, hidden) = (case.record(&id).join("record.json"), case.record(&id).join("hidden"));
    fs::rename(&record, &hidden).expect("the record is ours");
    // What is there instead can be opened, and not read.
    fs::create_dir(&record).expect("the record is ours");
    for call in [&["ls", "-a"][..], &["run", "--", "true"]] {
        case.call(call).ok();
        assert!(is_mounted() && hidden.exists(), "{call:?}");
        assert_eq!(case.state(&id), "stuck", "{call:?}");
    }
    fs::remove_dir(&record).expect("the record is ours");
    fs::rename(&hidden, &record).expect("the record is ours");
    assert_eq!(case.state(&id), "exited");
    case.remove(&id);
    assert!(!is_mounted());
}
