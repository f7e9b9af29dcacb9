//! C. Identity, recovery, state.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::Signal;
use serde_json::{Value, json};
use tare_harness::account::change;
use tare_harness::random::{Random, fresh_seed};
use tare_harness::skip::is_root;
use tare_harness::witness::{assert_untouched, stranger};
use tare_harness::{Output, Running, TemporaryDirectory, eventually, eventually_within, skip};

use crate::case::{Case, case, times};

/// A box on the network of the host that listens on a port; which one.
#[track_caller]
fn listener(case: &Case) -> (String, u16) {
    let script = "import socket, time
server = socket.create_server(('127.0.0.1', 0))
print('port', server.getsockname()[1], 'is open', flush=True)
time.sleep(1000)";
    let call = ["--quiet", "--net", "host", "--", "python3", "-c", script];
    let id = case.detached(call);
    case.logged(&id, "is open");
    let log = case.call(["logs", &id]).ok().stdout_text();
    let port = log.split(' ').nth(1).and_then(|word| word.parse().ok());
    (id, port.expect("it says a number"))
}

fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}

/// C1, boxlite: liveness was asked of a command line, so that a live box was marked as
/// stopped and its shim kept the port.
#[test]
fn a_live_box_is_running_whoever_looks_and_its_port_is_free_after_rm() {
    let case = case();
    let (id, port) = listener(&case);
    let keeper = case.keeper(&id);
    for locale in ["C", "de_DE.UTF-8", "tr_TR.UTF-8", "", "nonsense"] {
        for _ in 0..2 {
            let mut ls = case.command(["ls", "--json"]);
            let output = ls
                .env("LC_ALL", locale)
                .output()
                .expect("it can be started");
            let listed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            assert_eq!(listed[0]["state"], "running", "{locale}: {listed}");
        }
    }
    assert_eq!(case.keeper(&id), keeper);
    assert!(!is_free(port));
    case.remove(&id);
    assert!(is_free(port));
}

/// The number of the keeper, as another tare tells it.
fn keeper_on_record(case: &Case, id: &str) -> Option<u32> {
    let details = case.json(["inspect", id]);
    let holdings = details[0]["holdings"].as_array().expect("an array").clone();
    let keeper = holdings.iter().find(|one| one["kind"] == "keeper")?;
    keeper["what"].as_str()?.strip_prefix("pid ")?.parse().ok()
}

/// C2, boxlite: a save from stale memory overwrote the pid that another had written.
#[test]
fn the_keeper_stays_on_record_whatever_is_saved() {
    let case = case();
    let id = case.idle_box();
    let keeper = case.keeper(&id).pid;
    assert_eq!(keeper_on_record(&case, &id), Some(keeper));
    let saves: [&[&str]; 4] = [
        &["update", "--pids", "50", &id],
        &["rename", &id, "renamed"],
        &["pause", &id],
        &["resume", &id],
    ];
    for _ in 0..5 {
        let calls = saves.map(|save| case.spawn_call(save));
        calls.into_iter().for_each(|call| drop(call.wait()));
        assert_eq!(keeper_on_record(&case, &id), Some(keeper));
    }
    case.remove(&id);
}

/// C3, boxlite, background-agents and Hugging Face: a pid that somebody else had by then
/// was killed.
#[test]
fn a_stranger_with_the_pid_on_record_is_not_killed_and_the_box_is_gone() {
    let case = case();
    for end in [&["stop"][..], &["kill"], &["rm", "-f"], &["ls"]] {
        let id = case.idle_box();
        case.keeper(&id).signal(Signal::KILL);
        eventually("the box is gone", || case.processes_in(&id).is_empty());
        let stranger = stranger(&case, "sh", "");
        change(&case.record(&id), "keeper", &json!({"pid": stranger.pid()}));
        case.call(end.iter().chain(&[&*id]));
        assert_untouched(stranger);
        if case.record(&id).exists() {
            assert_eq!(case.state(&id), "exited");
            case.remove(&id);
        }
    }
}

/// `tare run` and `tare run -d` on a state root of these mount options.
#[track_caller]
fn on_a_disk(case: &Case, options: &str, flags: MountFlags) -> [Output; 2] {
    let directory = TemporaryDirectory::new();
    let options = std::ffi::CString::new(options).expect("it has no zero");
    let path = directory.path();
    mount("none", path, "tmpfs", flags, Some(options.as_c_str())).expect("root may mount");
    let outputs = [&["--", "echo", "up"][..], &["-d", "--", "sleep", "1000"]].map(|args| {
        let mut command = case.command(["run", "--quiet", "--name", "full"]);
        command.args(args).env("TARE_STATE_ROOT", path);
        let output = case.start_piped(command).wait();
        let mut remove = case.command(["rm", "-f", "--all"]);
        let removed = remove.env("TARE_STATE_ROOT", path).output();
        assert!(removed.is_ok());
        let records = fs::read_dir(path.join("boxes")).map_or(0, Iterator::count);
        assert_eq!(records, 0, "{options:?}: {output}");
        output
    });
    unmount(path, UnmountFlags::empty()).expect("nobody holds it");
    outputs
}

/// C6, boxlite: a machine was made, could not be written down, and nobody knew of it.
#[test]
fn a_box_that_cannot_be_written_down_is_not_made() {
    let case = case();
    if !is_root() {
        skip!("only root may mount");
    }
    let mut refused = 0;
    // Inodes for the root, `boxes`, ... up to a whole record and a few more.
    for inodes in 1..12 {
        let options = format!("nr_inodes={inodes},mode=700");
        for output in on_a_disk(&case, &options, MountFlags::empty()) {
            if output.code != 0 {
                refused += 1;
                let output = output.exited(125).printed("");
                output.said(&["No space left on device"]);
            }
        }
        case.reap_orphans();
        case.nothing_left();
    }
    assert!(refused > 6, "{refused}");
    for output in on_a_disk(&case, "mode=700", MountFlags::RDONLY) {
        output.exited(125).printed("").said(&["Read-only"]);
    }
    case.nothing_left();
}

/// C7, boxlite: a boot that failed deleted the record of a live machine.
#[test]
fn a_start_that_fails_says_why_has_nothing_and_spares_the_box_that_lives() {
    let case = case();
    let id = case.detached(["--name", "a", "--", "sleep", "1000"]);
    let before = (case.footprint(), case.record_files(&id));
    let starts: [(&[&str], i32, &str); 4] = [
        (&["--name", "a", "--", "sleep", "1000"], 125, "taken"),
        (
            &["--name", "b", "--", "no-such-program"],
            127,
            "no-such-program",
        ),
        (&["--name", "b", "--", "/etc/passwd"], 126, "/etc/passwd"),
        (
            &["--name", "b", "-w", "/no/such", "--", "true"],
            125,
            "/no/such",
        ),
    ];
    for (args, code, why) in starts {
        let output = case.run(["-d"].iter().chain(args));
        output.exited(code).printed("").said(&[why]);
        assert_eq!((case.footprint(), case.record_files(&id)), before);
    }
    case.exec("a", ["true"]).ok();
    case.remove(&id);
}

/// C8, boxlite: that a supervisor had crashed was noticed by the next operation only.
#[test]
fn a_box_whose_keeper_is_killed_gives_all_back_without_a_call() {
    let case = case();
    let (id, port) = listener(&case);
    assert_eq!(case.uid_claims(), 1);
    case.keeper(&id).signal(Signal::KILL);
    eventually_within(Duration::from_secs(2), "nobody is there", || {
        case.processes_in(&id).is_empty()
    });
    eventually_within(Duration::from_secs(2), "its port is free", || is_free(port));
    assert_eq!(case.uid_claims(), 0);
    let ended = case.look(&id);
    assert_eq!(
        (&ended["state"], &ended["ended_by"]),
        (&"exited".into(), &"kill".into())
    );
    case.exec(&id, ["true"]).exited(125);
    case.remove(&id);
}

/// C9, boxlite: locks of the dead were in the way of the recovery.
#[test]
fn thirty_eight_boxes_are_all_there_after_their_tares_were_killed_with_the_locks() {
    let case = case();
    let boxes: Vec<String> = (0..38).map(|_| case.idle_box()).collect();
    let mut random = Random::seeded(fresh_seed());
    for id in &boxes {
        let update = case.spawn_call(["update", "--lease", "1h", id]);
        // Not a wait for something, and bounded: the moment itself is the input.
        std::thread::sleep(Duration::from_micros(random.below(8_000)));
        update.signal(Signal::KILL);
        update.wait();
    }
    let listed = case.list();
    assert_eq!(listed.len(), boxes.len());
    assert!(listed.iter().all(|one| one["state"] == "running"));
    let update = ["update", "--lease", "2h"].into_iter();
    let all: Vec<&str> = update.chain(boxes.iter().map(String::as_str)).collect();
    case.call(all).ok();
    case.call(["rm", "-f", "--all"]).ok();
    case.nothing_left();
}

/// C11, containerd: a live container that had made cgroups was taken for a leak.
#[test]
fn a_box_with_cgroups_of_its_own_is_one_box_and_lives() {
    let case = case();
    let Some(script) = case.nested_cgroups() else {
        skip!("boxes cannot make cgroups here");
    };
    let id = case.up(&["--contain", "--name", "a"], &script);
    let (keeper, workload) = (case.keeper(&id), case.workload(&id));
    for _ in 0..10 {
        case.run(["--", "true"]).ok();
        assert_eq!(case.state(&id), "running");
    }
    assert_eq!((case.keeper(&id), case.workload(&id)), (keeper, workload));
    case.run(["-d", "--name", "a", "--", "true"]).exited(125);
    case.exec("a", ["echo", "usable"]).ok().printed("usable\n");
    case.remove(&id);
}

/// C12, hezo: a sweep whose list was incomplete destroyed live boxes.
#[test]
fn a_box_that_is_being_made_or_is_paused_is_not_swept_away() {
    let case = case();
    let paused = case.idle_box();
    case.call(["pause", &paused]).ok();
    for round in 0..times(10, 100) {
        let name = format!("box-{round}");
        let make = ["run", "-d", "--name", &name, "--", "sleep", "1000"];
        let maker = case.spawn_call(make);
        let sweepers: Vec<Running> = (0..4).map(|_| case.spawn_call(["ls", "-a"])).collect();
        let id = maker.wait().ok().stdout_text().trim().to_owned();
        sweepers.into_iter().for_each(|one| drop(one.wait().ok()));
        case.exec(&id, ["true"]).ok();
    }
    let states: BTreeSet<String> = case
        .list()
        .iter()
        .map(|one| one["state"].to_string())
        .collect();
    assert_eq!(states.len(), 2, "{states:?}");
    assert!(
        ["\"running\"", "\"paused\""]
            .iter()
            .all(|it| states.contains(*it))
    );
    assert_eq!(case.list().len(), times(10, 100) + 1);
    case.call(["rm", "-f", "--all"]).ok();
}

/// C14, e2b: of several boxes of one id the later overwrote the earlier, which ran on.
#[test]
fn of_ten_concurrent_boxes_of_one_name_exactly_one_wins() {
    let case = case();
    for _ in 0..3 {
        let start = |_| case.spawn_call(["run", "-d", "--name", "a", "--", "sleep", "1000"]);
        let calls: Vec<Running> = (0..10).map(start).collect();
        let outputs = calls.into_iter().map(Running::wait);
        let (won, lost): (Vec<_>, Vec<_>) = outputs.partition(|output| output.code == 0);
        assert_eq!(won.len(), 1, "{won:?}");
        for output in lost {
            output
                .exited(125)
                .printed("")
                .said(&["the name a is taken"]);
        }
        let listed = case.list();
        assert_eq!(listed.len(), 1, "{listed:?}");
        assert_eq!(listed[0]["id"], won[0].stdout_text().trim());
        assert_eq!(listed[0]["name"], "a");
        case.call(["rm", "-f", "a"]).ok();
        case.nothing_left();
    }
}

/// C15, mirendev: boxes of an earlier version or specification were not seen any more.
#[test]
fn a_box_is_listed_and_removed_whatever_its_record_has_become() {
    let case = case();
    let update = ["update", "--pids", "50", "--memory", "64m", "--lease", "1h"];
    let id = case.detached(["--name", "a", "--label", "team=blue", "--", "sleep", "1000"]);
    case.call(update.iter().chain(&["a"])).ok();
    case.call(["rename", "a", "b"]).ok();
    assert_eq!(case.look(&id)["name"], "b");
    case.remove(&id);
    for version in [0, 2, 99] {
        let id = case.idle_box();
        change(&case.record(&id), "intent", &json!({"version": version}));
        assert!(case.listed(&id).is_some(), "version {version}");
        assert_eq!(case.processes_in(&id).len(), 2, "version {version}");
        case.remove(&id);
    }
    case.nothing_left();
}

/// C19, Hugging Face: to kill an id that did not exist was a success.
#[test]
fn who_ends_what_is_not_there_is_told_so() {
    let case = case();
    let id = case.idle_box();
    for end in ["stop", "kill", "rm"] {
        let output = case.call([end, "aaaabbbbcccc"]).exited(1);
        output.printed("").said(&["there is no box 'aaaabbbbcccc'"]);
    }
    // Of several, those are named that were.
    let output = case.call(["kill", "nothing", &id]).exited(1);
    output.printed(&format!("{id}\n")).said(&["'nothing'"]);
    case.assert_over(&id);
    case.call(["kill", &id]).exited(1).printed("");
    case.remove(&id);
    case.call(["rm", "-f", &id]).exited(1).printed("");
}
