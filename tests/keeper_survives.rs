//! The keeper survives everything that its box and its clients do: thousands of processes, clients
//! that disappear, hostile peers, full disks.

use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::hostile;
use crate::library::{GROWTH_BYTES_MAX, Library, PRIVATE_BYTES_MAX, assert_alone, assert_cheap};
use rustix::process::Signal;
use tare_harness::random::shown_seed;
use tare_harness::skip::is_root;
use tare_harness::{Random, Tare, eventually, skip, tare};

/// Some programs are not found; others leave orphans and zombies.
#[test]
fn two_thousand_execs_that_fail_or_leave_orphans_leave_nothing_in_the_keeper() {
    let tare = tare!();
    let id = tare.idle_box();
    let library = Library::open(&tare, &id);
    let mut after_first = 0;
    for round in 0..10 {
        for _ in 0..100 {
            let script = "(true & true & exec true) & sh -c 'true & exit 3'";
            assert_eq!(library.run(&["sh", "-c", script]), 3);
        }
        for _ in 0..100 {
            library.is_refused(&["no-such-program"]);
        }
        if round == 0 {
            after_first = tare.keeper_private_bytes(&id);
        }
    }
    assert_alone(&tare, &id, 2);
    let after = tare.keeper_private_bytes(&id);
    assert!(after <= after_first + GROWTH_BYTES_MAX, "{after_first} {after}");
    assert_cheap(&tare, &id);
    tare.remove(&id);
}

#[test]
fn two_hundred_concurrent_execs_are_all_served_and_forgotten() {
    let tare = tare!();
    let id = tare.idle_box();
    let library = Library::open(&tare, &id);
    let idle = tare.keeper_descriptors(&id);
    std::thread::scope(|scope| {
        let run = |number: usize| {
            let library = &library;
            move || {
                let code = number % 256;
                let script = format!("sleep 0.2 & exit {code}");
                (code, usize::from(library.run(&["sh", "-c", &script])))
            }
        };
        let threads: Vec<_> = (0..200).map(|number| scope.spawn(run(number))).collect();
        for thread in threads {
            let (expected, code) = thread.join().expect("it does not panic");
            assert_eq!(code, expected);
        }
    });
    assert_alone(&tare, &id, 2);
    eventually("its descriptors are back", || tare.keeper_descriptors(&id) == idle);
    assert_cheap(&tare, &id);
    tare.remove(&id);
}

/// The client is killed at random moments.
#[test]
fn a_client_killed_at_any_moment_leaves_no_process_and_no_connection() {
    let tare = tare!();
    let id = tare.idle_box();
    let idle = tare.keeper_descriptors(&id);
    let mut random = Random::seeded(shown_seed("TARE_SEED"));
    let script = "setsid sleep 1000 & head -c 3000000 /dev/zero; exec sleep 1000";
    for _ in 0..100 {
        let client = tare.spawn_call(["exec", &id, "--", "sh", "-c", script]);
        tare_harness::let_pass(Duration::from_micros(random.below(15_000)));
        client.signal(Signal::KILL);
        client.wait().exited(-9);
    }
    assert_alone(&tare, &id, 2);
    eventually("its descriptors are back", || tare.keeper_descriptors(&id) == idle);
    tare.exec(&id, ["echo", "usable"]).ok().printed("usable\n");
    tare.remove(&id);
}

/// Several kinds of clients that do not read.
#[test]
fn a_client_that_does_not_read_delays_no_other_client() {
    let tare = tare!();
    let script = "while read line; do echo $line; head -c 2000000 /dev/zero; done; sleep 1000";
    let id = tare.detached(["-i", "--", "sh", "-c", script]);
    let follower = tare.spawn_call(["logs", "-f", &id]);
    let attached = tare.spawn_call(["attach", &id]);
    let loud = "yes | head -c 50000000; sleep 1000";
    let deaf = tare.spawn_call(["exec", &id, "--", "sh", "-c", loud]);
    deaf.see("y");
    for one in [&follower, &attached, &deaf] {
        one.signal(Signal::STOP);
    }
    let mut teller = tare.spawn_call(["attach", &id]);
    for _ in 0..5 {
        teller.write(b"go\n");
        tare.exec(&id, ["echo", "usable"]).ok().printed("usable\n");
    }
    let output = |id: &str| tare.json(["stats", "--json", id])[0]["output_bytes"].as_u64();
    eventually("all of the output was taken", || output(&id) >= Some(10_000_000));
    assert_eq!(tare.state(&id), "running");
    drop(teller);
    tare.remove(&id);
    for one in [follower, attached, deaf] {
        one.signal(Signal::CONT);
        one.signal(Signal::KILL);
        one.wait();
    }
}

#[test]
fn a_fork_bomb_with_a_timeout_leaves_the_box_usable() {
    let tare = tare!();
    let id = tare.detached(["--pids", "200", "--", "sleep", "1000"]);
    // The first shell forks once, before the bomb takes every process, and waits. The
    // second kind has a parent for the shortest time only.
    let tree = "bomb() { bomb | bomb & }; (bomb) & exec sleep 1000";
    let comet = "import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def fork():
    try: return os.fork()
    except OSError: return None
for _ in range(20):
    if fork() == 0:
        while True:
            if fork(): os._exit(0)
signal.pause()";
    for command in [["sh", "-c", tree], ["python3", "-c", comet]] {
        let call = ["exec", "--timeout", "1s", &id, "--"];
        let output = tare.call(call.iter().chain(&command)).exited(124);
        assert!(output.lasted < Duration::from_secs(20), "{output}");
        assert_alone(&tare, &id, 2);
        tare.exec(&id, ["echo", "usable"]).ok().printed("usable\n");
    }
    assert_cheap(&tare, &id);
    tare.remove(&id);
}

/// A small disk, mounted where the state root is.
struct SmallDisk<'a>(&'a Tare);

impl<'a> SmallDisk<'a> {
    fn mount(tare: &'a Tare) -> Self {
        let options = ["-t", "tmpfs", "-o", "size=256k,mode=0700", "tare-test"];
        let mut command = Command::new("mount");
        let status = command.args(options).arg(tare.state_root()).status();
        assert!(status.expect("it can be started").success());
        Self(tare)
    }

    /// Not one more byte.
    fn fill(&self) {
        let filler = self.0.state_root().join("filler");
        fs::write(filler, vec![0; 1 << 20]).expect_err("the disk is full");
    }
}

impl Drop for SmallDisk<'_> {
    /// After a failed test, removes its boxes while their records are visible, without hiding the
    /// failure.
    fn drop(&mut self) {
        let failed = std::thread::panicking();
        if failed {
            self.0.sweep();
        }
        let status = Command::new("umount").arg(self.0.state_root()).status();
        let is_done = status.is_ok_and(|status| status.success());
        assert!(is_done || failed, "a process still uses it");
    }
}

/// Says something, writes more than a small disk takes, waits, says its last.
const LOUD: &str = "echo begin; read line
head -c 3000000 /dev/zero | tr '\\0' x; echo; echo end
read line; exit 7";
/// All of that: `begin`, the long line, `end`.
const LOUD_BYTES: usize = 6 + 3_000_000 + 1 + 4;

/// Checks that all output is in the log or reported as lost.
#[track_caller]
fn assert_missing_is_told(tare: &Tare) {
    let output = tare.call(["logs", "a"]).ok();
    let said = output.stderr_text();
    let numbers = said.split_whitespace().filter_map(|it| it.parse::<usize>().ok());
    let missing_bytes: usize = numbers.sum();
    let kept_bytes = output.stdout_text().len();
    assert_eq!(kept_bytes + missing_bytes, LOUD_BYTES, "{said}");
    assert!(missing_bytes > 0, "{said}");
}

#[test]
fn a_full_disk_loses_output_and_nothing_else() {
    let tare = tare!();
    if !is_root() {
        skip!("only root can mount a small disk");
    }
    let disk = SmallDisk::mount(&tare);
    let id = tare.detached(["-i", "--name", "a", "--", "sh", "-c", LOUD]);
    tare.logged(&id, "begin");
    let mut attached = tare.spawn_call(["attach", "a"]);
    attached.write(b"go\n");
    let stats = || tare.json(["stats", "--json", "a"])[0].clone();
    eventually("all of its output was taken", || stats()["output_bytes"] == LOUD_BYTES);
    assert!(stats()["output_dropped_bytes"].as_u64() >= Some(1), "{}", stats());
    disk.fill();
    tare.exec("a", ["echo", "usable"]).ok().printed("usable\n");
    assert_eq!(tare.state(&id), "running");
    assert_missing_is_told(&tare);
    attached.write(b"go\n");
    tare.call(["wait", "a"]).ok().printed("7\n");
    attached.wait().exited(7);
    // No keeper is left to ask.
    assert_missing_is_told(&tare);
    assert_eq!(tare.look(&id)["exit_code"], 7);
    tare.call(["exec", "a", "--", "true"]).exited(125);
    tare.call(["rm", "a"]).ok();
    assert_eq!(tare.list(), [] as [serde_json::Value; 0]);
}

/// A box cannot be made where nothing can be written, and says so.
#[test]
fn a_create_refused_by_a_full_disk_leaves_nothing() {
    let tare = tare!();
    if !is_root() {
        skip!("only root can mount a small disk");
    }
    let disk = SmallDisk::mount(&tare);
    let id = tare.idle_box();
    disk.fill();
    let output = tare.call(["run", "-d", "--name", "b", "--", "sleep", "1000"]);
    output.exited(125).printed("").said(&["No space left on device"]);
    assert_eq!(tare.list().len(), 1);
    for command in [&["pause"][..], &["resume"], &["stop", "-t", "0"], &["rm"]] {
        tare.call(command.iter().chain(&[&*id])).ok();
    }
    tare.assert_gone(&id);
}

#[test]
fn the_box_answers_after_every_hostile_peer() {
    let tare = tare!();
    let id = tare.idle_box();
    let library = Library::open(&tare, &id);
    let keeper = tare.keeper(&id);
    let idle = tare.keeper_descriptors(&id);
    for (name, attack) in hostile::ATTACKS {
        let peer = hostile::Peer::of(&tare.record(&id).join("control"));
        let held = attack(&peer);
        assert_eq!(library.run(&["true"]), 0, "{name}");
        hostile::hang_up(&held);
        drop(held);
        eventually(&format!("its descriptors are back after {name}"), || {
            tare.keeper_descriptors(&id) == idle
        });
        assert_eq!(tare.keeper(&id), keeper, "{name}");
        assert_alone(&tare, &id, 2);
        let bytes = tare.keeper_private_bytes(&id);
        let bytes_max = if name.contains("variables") {
            // Small pieces stay with the allocator, for the next who needs them.
            16 << 20
        } else {
            PRIVATE_BYTES_MAX
        };
        assert!(bytes <= bytes_max, "{name}: {bytes} bytes are left");
    }
    tare.remove(&id);
}

/// While they all talk at once, random bytes among them.
#[test]
fn concurrent_hostile_peers_do_not_stop_other_clients() {
    let tare = tare!();
    let id = tare.idle_box();
    let library = Library::open(&tare, &id);
    let idle = tare.keeper_descriptors(&id);
    let control = tare.record(&id).join("control");
    let mut random = Random::seeded(shown_seed("TARE_SEED"));
    let seeds: Vec<u64> = (0..8).map(|_| random.below(u64::MAX)).collect();
    std::thread::scope(|scope| {
        for seed in seeds {
            let control = &control;
            scope.spawn(move || hostile::nonsense(control, Random::seeded(seed), 200));
        }
        for _ in 0..50 {
            assert_eq!(library.run(&["true"]), 0);
        }
    });
    assert_alone(&tare, &id, 2);
    eventually("its descriptors are back", || tare.keeper_descriptors(&id) == idle);
    tare.remove(&id);
}
