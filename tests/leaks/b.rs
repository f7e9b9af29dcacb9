//! B. The parent or the daemon dies. tare has no daemon, so these tests send SIGKILL to every
//! tare process; the next tare command takes the place of the restart.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use tare_harness::random::{Random, fresh_seed};
use tare_harness::scene::{Expected, Fate, Scene, in_lanes};
use tare_harness::skip::has_program;
use tare_harness::{
    Running, Server, TemporaryDirectory, eventually, eventually_within, in_boxes, skip, tare,
};

use crate::leaks::case::{Case, case, times, traced};

const SLEEPERS: &str =
    "for i in $(seq 20); do (trap '' TERM HUP INT; setsid sleep 1000) & done; echo ready; wait";

/// Calls by which a tare makes, changes and removes things on the host.
const CHANGING: &str = "mkdir,mkdirat,symlinkat,bind,fallocate,ftruncate,write,pwrite64,\
                        clone3,sendto,sendmsg,mount,move_mount,unlinkat,flock,openat";

/// More of them than any command makes.
const CHANGES_MAX: usize = 500;

/// B1, bubblewrap: the parent died between fork and prctl, and the child lived on.
#[test]
fn a_tare_killed_in_its_first_50_ms_leaves_a_complete_box_or_none() {
    let scene = Scene::new(tare!());
    let mut random = Random::seeded(fresh_seed());
    for _ in 0..times(150, 500) / 50 {
        let delays: Vec<(String, Duration)> = (0..50)
            .map(|number| (format!("box-{number}"), random.below(50_000)))
            .map(|(name, us)| (name, Duration::from_micros(us)))
            .collect();
        in_lanes(&delays, |(name, delay)| {
            let call = ["run", "-d", "--name", name, "--", "sleep", "1000"];
            let creator = scene.tare.spawn_call(call);
            tare_harness::let_pass(*delay);
            creator.signal(Signal::KILL);
            creator.wait();
        });
        let expected = delays
            .into_iter()
            .map(|(name, _)| Expected { name, fates: vec![Fate::Absent, Fate::Running] });
        scene.check(&expected.collect::<Vec<_>>());
        scene.clear();
    }
    drop(Case::of(scene.tare));
}

/// B3, bubblewrap: without a PID namespace, grandchildren outlived a killed launcher.
#[test]
fn a_killed_tare_takes_grandchildren_with_it() {
    let case = case();
    for options in [&[][..], &["--contain"]] {
        let mut call = options.to_vec();
        call.extend(["--name", "killed", "--", "sh", "-c", SLEEPERS]);
        let running = case.spawn(call);
        let pid = running.see("ready").pid();
        assert!(in_boxes(pid) > 20);
        running.signal(Signal::KILL);
        eventually_within(Duration::from_secs(2), "the box dies with tare", || in_boxes(pid) == 0);
        running.wait().exited(-9);
        // What has a name goes with the next call.
        case.run(["--", "true"]).ok();
        case.reap_orphans();
        case.nothing_left();
    }
}

/// Ten boxes, and clients of all kinds at work on each; then every tare gets SIGKILL.
#[track_caller]
fn ten_boxes_whose_tares_were_killed(case: &Case) -> Vec<String> {
    let boxes: Vec<String> = (0..10)
        .map(|number| {
            let name = format!("box-{number}");
            case.detached(["-i", "--name", &name, "--", "sh", "-c", "echo up; exec cat"])
        })
        .collect();
    let clients: Vec<Running> = boxes.iter().flat_map(|id| clients_of(case, id)).collect();
    clients.iter().for_each(|client| client.signal(Signal::KILL));
    clients.into_iter().for_each(|client| drop(client.wait()));
    boxes
}

fn clients_of(case: &Case, id: &str) -> Vec<Running> {
    let calls = [
        &["exec", id, "--", "sh", "-c", "echo up; sleep 1000 & sleep 1000"][..],
        &["logs", "-f", id],
        &["attach", id],
        &["wait", id],
    ];
    let clients: Vec<Running> = calls.iter().map(|call| case.spawn_call(*call)).collect();
    clients[0].see("up");
    clients
}

/// B4, e2b: after a restart of the orchestrator, virtual machines of its previous run kept
/// running.
#[test]
fn ten_boxes_are_unchanged_after_every_tare_was_killed() {
    let case = case();
    for id in ten_boxes_whose_tares_were_killed(&case) {
        assert_eq!(case.state(&id), "running");
        case.exec(&id, ["echo", "usable"]).ok().printed("usable\n");
        eventually("the clients are gone", || case.members(&id).len() == 2);
        case.remove(&id);
    }
}

/// B5, e2b: a killed daemon left sockets, pipes and packet filter rules behind.
#[test]
fn killed_tares_leave_no_name_and_no_packet_filter_rule() {
    let case = case();
    let outside = TemporaryDirectory::new();
    let before = (names_of_the_host(), rules());
    let boxes = ten_boxes_whose_tares_were_killed(&case);
    for _ in 0..20 {
        let path = format!("{}:/work", boxes[0]);
        let copy = case.spawn_call(["cp", outside.text(), &path]);
        let run = case.spawn(["--net", "host", "--", "sleep", "1000"]);
        for one in [copy, run] {
            one.signal(Signal::KILL);
            one.wait();
        }
    }
    case.call(["rm", "-f", "--all"]).ok();
    case.reap_orphans();
    case.nothing_left();
    assert_eq!((names_of_the_host(), rules()), before);
}

/// Names in the directories where programs leave sockets and pipes, and abstract sockets.
fn names_of_the_host() -> BTreeSet<String> {
    let directories = ["/tmp", "/run", "/var/tmp", "/dev/shm", "/var/run/netns", "/dev/mqueue"];
    let entries = directories.iter().flat_map(fs::read_dir).flatten();
    let paths = entries.flatten().map(|entry| entry.path());
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let sockets = sockets.lines().filter_map(|line| line.split_whitespace().nth(7));
    let named = paths.map(|path| path.display().to_string());
    named.chain(sockets.map(str::to_owned)).collect()
}

/// The rules of the packet filter, by each of the tools that are here.
fn rules() -> Vec<Vec<u8>> {
    let tools = [&["nft", "list", "ruleset"][..], &["iptables-save"], &["ip", "rule"]];
    let present = tools.into_iter().filter(|tool| has_program(tool[0]));
    let output = |tool: &[&str]| Command::new(tool[0]).args(&tool[1..]).output();
    present.map(|tool| output(tool).expect("it can be started").stdout).collect()
}

/// B6, containerd: a crash between two steps of a create left what the first step had made.
#[test]
fn a_create_killed_at_any_change_leaves_a_complete_box_or_none() {
    let case = case();
    if !has_program("strace") {
        skip!("strace is not installed");
    }
    let call = ["run", "-d", "--keep", "--name", "a", "--", "sleep", "1000"];
    for number in 1..CHANGES_MAX {
        let fault = format!("inject={CHANGING}:signal=KILL:when={number}");
        let ended = traced(&case, &["-e", &fault], &call);
        let mut boxes = Vec::new();
        // A keeper whose creator was killed needs a moment to die.
        eventually("each box runs or is gone", || {
            boxes = case.list();
            boxes.iter().all(|one| one["state"] == "running")
        });
        assert!(ended.code == -9 || boxes.len() == 1, "{ended}");
        case.call(["rm", "-f", "--all"]).ok();
        case.nothing_left();
        if ended.code == 0 {
            assert!(number > 20, "only {number} changes were met");
            return;
        }
    }
    panic!("{call:?} makes more than {CHANGES_MAX} changes");
}

/// B7, containerd: a workload that exited while the daemon was down was never noticed.
#[test]
fn a_box_that_ends_without_any_tare_running_keeps_its_exit_code_and_no_keeper() {
    let case = case();
    let id = case.detached(["-i", "--name", "a", "--", "sh", "-c", "read line; exit 7"]);
    let mut last = case.spawn_call(["attach", "a"]);
    last.write(b"end\n");
    eventually("everyone in the box is gone, the keeper too", || case.processes_in(&id).is_empty());
    last.signal(Signal::KILL);
    last.wait();
    let look = case.look(&id);
    assert_eq!((&look["state"], &look["exit_code"]), (&"exited".into(), &7.into()));
    assert_eq!(look["cause"], "exited", "{look}");
    case.remove(&id);
}

/// B8, iii: 19 helpers in their own sessions outlived a killed engine.
#[test]
fn nineteen_attached_keepers_end_with_their_creators() {
    let case = case();
    let call = ["--", "sh", "-c", "setsid sleep 1000 & echo ready; sleep 1000"];
    let tares: Vec<Running> = (0..19).map(|_| case.spawn(call)).collect();
    for one in &tares {
        one.see("ready");
    }
    tares.iter().for_each(|one| one.signal(Signal::KILL));
    tares.into_iter().for_each(|one| drop(one.wait()));
    eventually("all keepers are gone without any tare command", || {
        case.footprint().processes.is_empty()
    });
    case.call(["ls"]).ok();
    case.reap_orphans();
    case.nothing_left();
}

/// B9, h5i, deepagents and llxprt-code: only an orderly exit of the client cleaned up.
#[test]
fn an_attached_box_ends_however_its_client_ends() {
    let case = case();
    let script = "trap '' TERM; setsid sleep 1000 & echo ready; while :; do sleep 1000; done";
    for signal in [Signal::TERM, Signal::KILL, Signal::ABORT, Signal::HUP] {
        let client = case.spawn(["--timeout", "1s", "--", "sh", "-c", script]);
        client.see("ready").signal(signal);
        client.wait();
        eventually("the box is gone", || case.footprint().processes.is_empty());
        case.call(["ls"]).ok();
        case.reap_orphans();
        case.nothing_left();
    }
    // And where the client is long gone, the lease ends it.
    let id = case.up(&["--rm", "--lease", "1s"], "echo up; sleep 1000");
    eventually("the box is gone", || case.processes_in(&id).is_empty());
    case.call(["ls"]).ok();
    case.assert_gone(&id);
}

/// B11, boxlite: detached boxes died with the process that had launched them.
#[test]
fn a_box_outlives_its_creator() {
    let case = case();
    let id = case.idle_box();
    // The creator was reaped; its keeper became a child of the process that adopts orphans.
    assert_eq!(case.keeper(&id).parent, std::process::id());
    case.exec(&id, ["echo", "alive"]).ok().printed("alive\n");
    assert_eq!(case.state(&id), "running");
    case.remove(&id);
}

/// B13, eve and hermes: only a dead process knew what had to be cleaned up.
#[test]
fn a_new_process_finds_boxes_that_it_did_not_create() {
    let case = case();
    for number in 0..5 {
        let name = format!("box-{number}");
        case.detached(["--name", &name, "--", "sleep", "1000"]);
    }
    // Names help people; nothing depends on them.
    fs::remove_dir_all(case.state_root().join("names")).expect("the state root is ours");
    assert_eq!(case.list().len(), 5);
    let mut stranger = case.command(["rm", "-f", "--all"]);
    stranger.env_clear().env("TARE_STATE_ROOT", case.state_root());
    let output = stranger.current_dir("/").output().expect("it can be started");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(case.footprint().processes, []);
    assert!(case.list().is_empty());
    case.nothing_left();
}

/// B15, OpenShell: the row that named the owning server outlived the server, and every new
/// server was refused for 260 s.
#[test]
fn the_next_server_uses_a_box_at_once_however_the_previous_one_ended() {
    let case = case();
    let before = case.uid_claims();
    for signal in [Signal::TERM, Signal::KILL] {
        let server = Server::start(&case, &[]);
        let made = server.post("/v1/boxes", &json!({"command": ["sleep", "1000"]}));
        let id = made.was(201).json()["id"].as_str().expect("an id").to_owned();
        // It ends in the middle of a change and of an exec.
        let path = format!("/v1/boxes/{id}");
        let lease = server.send("POST", &format!("{path}/lease"), &[JSON], LEASE);
        let exec = server.send("POST", &format!("{path}/exec"), &[JSON], SLEEPING);
        server.signal(signal);
        match signal {
            Signal::KILL => drop(server.kill()),
            _ => drop(server.stop()),
        }
        drop((lease, exec));
        let next = Server::start(&case, &[]);
        let asked = Instant::now();
        let used = next.post(&format!("/v1/boxes/{id}/exec"), &json!({"command": ["true"]}));
        assert_eq!(used.was(200).json()["exit_code"], 0);
        assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
        next.delete(&format!("/v1/boxes/{id}?force=true"));
        case.assert_gone(&id);
        next.stop();
    }
    assert_eq!(case.uid_claims(), before);
}

const JSON: (&str, &str) = ("Content-Type", "application/json");
const LEASE: &[u8] = br#"{"lease_ms":60000}"#;
const SLEEPING: &[u8] = br#"{"command":["sleep","1000"]}"#;

/// B16, CubeSandbox: the process that paused a box had to renew the pause; stopping that
/// process for 30 s thawed the box.
#[test]
fn a_box_stays_paused_while_the_server_that_paused_it_is_stopped_or_killed() {
    let case = case();
    let counted = TemporaryDirectory::new();
    fs::set_permissions(counted.path(), fs::Permissions::from_mode(0o777)).expect("it is ours");
    let volume = format!("{}:/out", counted.text());
    let script = "echo up; while :; do printf x >> /out/count; sleep 0.01; done";
    let id = case.up(&["-v", &volume], script);
    let count = || fs::metadata(counted.join("count")).map_or(0, |file| file.len());
    let server = Server::start(&case, &[]);
    let paused = server.post(&format!("/v1/boxes/{id}/pause"), &json!({}));
    if paused.status == 422 {
        case.remove(&id);
        skip!("boxes cannot be paused here: {}", paused.text());
    }
    assert!(paused.status < 300, "{}", paused.text());
    let before = count();
    server.signal(Signal::STOP);
    tare_harness::let_pass(Duration::from_secs(times(1, 60) as u64));
    assert_eq!(count(), before);
    server.signal(Signal::CONT);
    server.kill();
    assert_eq!((case.state(&id).as_str(), count()), ("paused", before));
    case.call(["resume", &id]).ok();
    eventually("it goes on where it was", || count() > before);
    case.remove(&id);
}
