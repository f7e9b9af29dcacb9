//! Below which cgroup boxes are made: attached boxes below that of their caller, so that its limits
//! count them, and detached boxes where the user says. `audit` and `sweep` look everywhere.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::{Value, json};
use tare_harness::{Scope, Server, Tare, eventually, skip, tare};

use crate::serve::configured;

fn only_box(tare: &Tare) -> String {
    tare.footprint().records.first().expect("a record").clone()
}

fn listed(tare: &Tare) -> usize {
    fs::read_dir(tare.state_root().join("parents")).map_or(0, |entries| entries.count())
}

fn parents(tare: &Tare, id: &str) -> Vec<PathBuf> {
    let details = tare.json(["inspect", id]);
    let parents = details[0]["cgroup_parents"].as_array().expect("an array").clone();
    let mut parents: Vec<PathBuf> =
        parents.iter().map(|it| it.as_str().expect("a path").into()).collect();
    parents.sort();
    parents
}

#[test]
fn an_attached_box_is_made_below_the_cgroup_of_its_caller() {
    let tare = tare!();
    let Some(scope) = Scope::of_caller("caller") else {
        skip!("a caller of an ordinary user, or with v2 alone, has no boxes below its cgroup");
    };
    let mut running = scope.run(&tare, "-i -- sh -c 'echo up; cat'");
    running.see("up");
    let id = only_box(&tare);
    scope.has_in_each(&id);
    assert_eq!(parents(&tare, &id), scope.directories);
    assert_eq!(listed(&tare), scope.directories.len());
    tare.call(["audit"]).ok();
    running.close_stdin();
    running.wait();
    assert_eq!(scope.boxes(), Vec::<PathBuf>::new());
    let doctor = tare.shell(&format!("{} \"$TARE\" doctor", scope.enter())).ok();
    let pids = scope.with("pids.max");
    let pids = pids.parent().expect("a cgroup").display();
    assert!(doctor.stdout_text().contains(&format!("{pids}")), "{doctor}");
    tare.nothing_left();
}

/// The incident: 39 boxes of 22 processes, and a gauge that read 15 of 300.
#[test]
fn a_limit_of_the_callers_cgroup_holds_for_its_boxes() {
    let tare = tare!();
    let Some(scope) = Scope::of_caller("limited") else {
        skip!("a caller of an ordinary user, or with v2 alone, has no boxes below its cgroup");
    };
    fs::write(scope.with("pids.max"), "12").expect("it is ours");
    let forks = "i=0; while [ $i -lt 30 ]; do sleep 5 & i=$((i+1)); done; echo all";
    let mut running = scope.run(&tare, &format!("-- sh -c '{forks}'"));
    running.close_stdin();
    let output = running.wait();
    assert!(!output.stdout_text().contains("all"), "{output}");
    assert!(output.stderr_text().to_lowercase().contains("fork"), "{output}");
    tare.nothing_left();
}

#[test]
fn a_limit_above_the_box_is_not_named_as_its_own() {
    let tare = tare!();
    let Some(scope) = Scope::new("above") else {
        skip!("only root can make cgroups here");
    };
    let in_v1 = scope.directories.iter().any(|it| it.join("memory.limit_in_bytes").exists());
    let memory = if in_v1 { "memory.limit_in_bytes" } else { "memory.max" };
    fs::write(scope.with(memory), "67108864").expect("it is ours");
    let parent = ["--cgroup-parent", &scope.name, "--memory", "512m", "--pids", "100", "--"];
    let start = |command: &[&str]| tare.detached(parent.iter().chain(command));
    let sentence = |id: &str| {
        tare.call(["wait", id]);
        tare.json(["explain", "--json", id])["sentence"].as_str().expect("it ended").to_owned()
    };
    let greedy = ["python3", "-c", "held = [b'x' * 1048576 for _ in range(256)]"];
    let killed = sentence(&start(&greedy));
    assert!(killed.contains("a cgroup above the box ran out of memory"), "{killed}");
    assert!(!killed.contains("Raise"), "{killed}");
    let id = start(&["sleep", "1000"]);
    let exec = tare.call(["exec", &id].iter().chain(&greedy)).exited(137);
    assert!(!exec.stderr_text().contains("memory limit"), "{exec}");
    tare.remove(&id);
    fs::write(scope.with("pids.max"), "12").expect("it is ours");
    let forks = "i=0; while [ $i -lt 30 ]; do sleep 5 & i=$((i+1)); done";
    let refused = sentence(&start(&["sh", "-c", forks]));
    assert!(!refused.contains("of 100") && !refused.contains("Raise"), "{refused}");
    tare.call(["rm", "-f", "--all"]).ok();
    tare.nothing_left();
}

#[test]
fn a_killed_run_below_the_cgroup_of_its_caller_is_removed_by_the_next_command() {
    let tare = tare!();
    let Some(scope) = Scope::of_caller("killed") else {
        skip!("a caller of an ordinary user, or with v2 alone, has no boxes below its cgroup");
    };
    let running = scope.run(&tare, "-- sh -c 'echo up; sleep 1000'");
    running.see("up");
    running.signal(Signal::KILL);
    running.wait();
    scope.has_in_each(&only_box(&tare));
    eventually("the next command removes it", || {
        tare.call(["ls"]).ok();
        scope.boxes().is_empty()
    });
    tare.reap_orphans();
    tare.nothing_left();
}

#[test]
fn audit_and_sweep_find_what_no_record_explains_below_a_listed_parent() {
    let tare = tare!();
    let Some(scope) = Scope::new("orphans") else {
        skip!("only root can make cgroups here");
    };
    let parent = ["--cgroup-parent", &scope.name];
    let id = tare.detached(parent.into_iter().chain(["--", "sleep", "1000"]));
    scope.has_in_each(&id);
    let record = tare.state_root().join("boxes").join(&id);
    fs::remove_dir_all(&record).expect("it is there");
    let audit = tare.call(["audit"]).exited(1);
    for directory in scope.boxes() {
        assert!(audit.stdout_text().contains(&id), "{audit} lacks {}", directory.display());
    }
    tare.call(["sweep"]).ok();
    assert_eq!(scope.boxes(), Vec::<PathBuf>::new());
    assert_eq!(listed(&tare), 0);
    tare.nothing_left();
}

/// Alone in a delegated v2 cgroup, tare moves itself one down. The virtual machine with v2 alone
/// shows the move (`tests/vm/checks.sh`); this is what happens to the cgroup afterwards.
#[test]
fn an_empty_cgroup_that_tare_was_in_is_found_and_removed() {
    let tare = tare!();
    let Some(scope) = Scope::new("delegated") else {
        skip!("only root can make cgroups here");
    };
    let id = tare.detached(["--cgroup-parent", &scope.name, "--", "sleep", "1000"]);
    let events = scope.with("cgroup.events");
    let caller = events.parent().expect("a cgroup").join("tare");
    fs::create_dir(&caller).expect("it is ours");
    tare.call(["audit"]).ok();
    tare.call(["sweep"]).ok();
    assert!(caller.exists(), "a box is next to it, so tare may be about to enter it");
    let script = format!("echo 0 >{}/cgroup.procs; echo in; cat", caller.display());
    let mut command = tare.shell_command(&script);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut inside = tare.start_command(command);
    inside.see("in");
    tare.call(["rm", "-f", &id]).ok();
    tare.call(["audit"]).ok();
    tare.call(["sweep"]).ok();
    assert!(caller.exists() && listed(&tare) > 0, "a process is in it");
    inside.close_stdin();
    inside.wait();
    let audit: Value =
        serde_json::from_slice(&tare.call(["audit", "--json"]).exited(1).stdout).expect("an audit");
    assert_eq!(audit["orphans"][0]["kind"], "caller", "{audit}");
    assert_eq!(audit["orphans"][0]["path"], caller.to_str().expect("a text"), "{audit}");
    tare.call(["sweep"]).ok();
    assert!(!caller.exists());
    assert_eq!(listed(&tare), 0);
    tare.call(["audit"]).ok();
    tare.nothing_left();
}

#[test]
fn a_detached_box_is_made_where_the_user_says_and_otherwise_at_the_root() {
    let tare = tare!();
    let Some(scope) = Scope::new("chosen") else {
        skip!("only root can make cgroups here");
    };
    let script = format!("{} exec \"$TARE\" run -d -- sleep 1000", scope.enter());
    let at_root = tare.shell(&script).ok().stdout_text().trim().to_owned();
    assert_eq!(scope.boxes(), Vec::<PathBuf>::new());
    let roots = scope.directories.iter().filter_map(|it| it.parent());
    assert_eq!(parents(&tare, &at_root), roots.map(Path::to_owned).collect::<Vec<_>>());
    let id =
        tare.detached(["--cgroup-parent", &scope.name, "--name", "web", "--", "sleep", "1000"]);
    scope.has_in_each(&id);
    assert_eq!(parents(&tare, &id), scope.directories);
    assert_eq!(tare.list().len(), 2);
    let usage = tare.json(["inspect", "web"])[0]["usage"].clone();
    assert_eq!(usage["pids"], 1, "{usage}");
    tare.call(["pause", "web"]).ok();
    assert_eq!(tare.state(&id), "paused");
    tare.call(["resume", "web"]).ok();
    tare.call(["update", "--pids", "7", "web"]).ok();
    let below = scope.boxes().into_iter().map(|it| it.join("pids.max"));
    let below: Vec<PathBuf> = below.filter(|it| it.exists()).collect();
    assert_eq!(fs::read_to_string(&below[0]).expect("a limit").trim(), "8");
    tare.call(["audit"]).ok();
    tare.call(["rm", "-f", "web", &at_root]).ok();
    assert_eq!(scope.boxes(), Vec::<PathBuf>::new());
    tare.nothing_left();
}

#[test]
fn a_parent_that_cannot_be_used_is_one_error_with_a_hint() {
    let tare = tare!();
    tare.call(["run", "-d", "--cgroup-parent", "../up", "--", "true"]).exited(125).said(&["../up"]);
    tare.call(["run", "--cgroup-parent", "x", "--", "true"]).exited(125).said(&["--detach"]);
    let missing = tare.call(["run", "-d", "--cgroup-parent", "no-such", "--", "true"]).exited(125);
    missing.said(&["/no-such: there is no such cgroup", "mkdir"]);
    let (_directory, config) = configured("[boxes]\ncgroup_parent = 'no-such'\n");
    let refused = tare.call(["serve", "--listen", "127.0.0.1:0", "--config", &config]).exited(1);
    refused.said(&["/no-such: there is no such cgroup"]);
    tare.nothing_left();
}

#[test]
fn a_parent_that_disappears_is_an_error_for_each_box_and_works_again_when_it_is_back() {
    let tare = tare!();
    let Some(scope) = Scope::new("fleeting") else {
        skip!("only root can make cgroups here");
    };
    let (_directory, config) = configured(&format!("[boxes]\ncgroup_parent = '{}'\n", scope.name));
    let server = Server::start(&tare, &["--config", &config]);
    let create = || server.post("/v1/boxes", &json!({ "command": ["sleep", "1000"] }));
    let run = || server.post("/v1/run", &json!({ "command": ["true"] }));
    // The server is in no cgroup of its own, so its runs are below the chosen one too.
    run().was(200);
    let made: Value = create().was(201).json();
    let id = made["id"].as_str().expect("an id").to_owned();
    scope.has_in_each(&id);
    tare.remove(&id);
    scope.directories.iter().for_each(|it| fs::remove_dir(it).expect("it is empty"));
    for answer in [create(), run()] {
        let refused = answer.refused(503, "cgroup_parent").json();
        assert!(!refused.to_string().contains(&scope.name), "{refused}");
    }
    eventually("the log says why", || server.log().contains("there is no such cgroup"));
    scope.directories.iter().for_each(|it| fs::create_dir(it).expect("it is gone"));
    run().was(200);
    server.stop().ok();
    tare.nothing_left();
}

#[test]
fn a_parent_that_is_gone_is_taken_off_the_list_when_another_is_listed() {
    let tare = tare!();
    let (Some(first), Some(second)) = (Scope::new("first"), Scope::new("second")) else {
        skip!("only root can make cgroups here");
    };
    let start = |scope: &Scope| {
        let id = tare.detached(["--cgroup-parent", &scope.name, "--", "sleep", "1000"]);
        tare.remove(&id);
    };
    start(&first);
    let each = first.directories.len();
    assert_eq!(listed(&tare), each);
    drop(first);
    start(&second);
    assert_eq!(listed(&tare), each);
    tare.nothing_left();
}
