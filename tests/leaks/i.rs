//! I. Leases, timeouts, pools, cancellation.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tare_harness::record::change;
use tare_harness::skip::{has_program, is_root};
use tare_harness::{
    Freezer, Output, Running, Server, TemporaryDirectory, eventually, eventually_within, skip,
    unix_now, unix_seconds,
};

use crate::leaks::case::{Case, case, times};
use crate::library::{Library, assert_alone};

const DAY_SECONDS: i64 = 24 * 60 * 60;

/// A script that only SIGKILL ends.
const STUBBORN: &str =
    "trap '' TERM INT HUP; setsid sleep 1000 & echo up; while :; do sleep 1000; done";

/// I1, e2b: only a remote service enforced the lifetime of a box.
#[test]
fn a_lease_ends_the_box_without_any_tare_running() {
    let case = case();
    let started = Instant::now();
    let id = case.detached(["--lease", "1s", "--", "sh", "-c", STUBBORN]);
    let keeper = case.keeper(&id);
    // No tare command runs between the start and the end.
    eventually("everyone in the box is gone, the keeper too", || case.processes_in(&id).is_empty());
    assert!(started.elapsed() >= Duration::from_secs(1));
    let mut alive = tare_harness::processes().into_iter();
    assert!(!alive.any(|one| one.pid == keeper.pid && !one.is_zombie));
    let ended = case.ended(&id);
    assert_eq!(ended["cause"], "lease", "{ended}");
    assert!(ended["exit_code"].is_i64(), "{ended}");
    assert_eq!(case.cgroups_of(&id), [] as [&Path; 0]);
    case.remove(&id);
    case.nothing_left();
}

/// I3, e2b: a box stayed in the state `killing` forever after its client had hung up.
#[test]
fn a_stop_continues_when_its_caller_is_killed() {
    let case = case();
    let id = case.up(&["--name", "a"], STUBBORN);
    let caller = case.spawn_call(["stop", "-t", "1s", "a"]);
    eventually("the box is being stopped", || case.state(&id) == "stopping");
    caller.signal(Signal::KILL);
    caller.wait().exited(-9);
    // The keeper keeps the grace, not the tare that asked.
    eventually("everyone in the box is gone", || case.processes_in(&id).is_empty());
    assert_eq!(case.ended(&id)["cause"], "stopped");
    case.remove(&id);
}

/// I4, code-interpreter: a five-minute job kept running after its client was gone.
#[test]
fn a_client_that_hangs_up_ends_only_its_own_job() {
    let case = case();
    let id = case.idle_box();
    let (before, held) = (case.members(&id), case.keeper_descriptors(&id));
    let job = "setsid sleep 300 & echo up; sleep 300; echo never";
    for signal in [Signal::KILL, Signal::ABORT] {
        let client = case.spawn_call(["exec", &id, "--", "sh", "-c", job]);
        client.see("up").signal(signal);
        client.wait();
        eventually_within(Duration::from_secs(2), "its job is gone", || {
            case.members(&id) == before
        });
    }
    assert_eq!(case.keeper_descriptors(&id), held);
    case.remove(&id);
}

/// I7, microsandbox: a watchdog killed healthy boxes that were only busy.
#[test]
fn a_box_that_is_starved_or_silent_is_not_taken_for_dead() {
    let case = case();
    let busy = "for i in 1 2 3 4 5 6 7 8; do (while :; do :; done) & done; echo up; wait";
    let starved = case.up(&["--cpus", "0.05"], busy);
    let silent = case.idle_box();
    let keepers = [&starved, &silent].map(|id| case.keeper(id));
    // Its keeper does not answer.
    keepers[1].signal(Signal::STOP);
    for _ in 0..times(20, 2_000) {
        let listed = case.list();
        assert_eq!(listed.len(), 2);
        assert!(listed.iter().all(|one| one["state"] == "running"), "{listed:?}");
        case.run(["--", "true"]).ok();
    }
    keepers[1].signal(Signal::CONT);
    assert_eq!([&starved, &silent].map(|id| case.keeper(id)), keepers);
    assert_eq!(case.workload(&starved).len(), 9);
    case.exec(&silent, ["echo", "usable"]).ok().printed("usable\n");
    case.remove(&starved);
    case.remove(&silent);
}

/// I9, ClickHouse: every failed spawn leaked a slot of the pool.
#[test]
fn failed_spawns_release_their_slots() {
    let case = case();
    let id = case.detached(["--pids", "3", "--", "sleep", "1000"]);
    let library = Library::open(&case, &id);
    let full = ["exec", "-d", &id, "--", "sleep", "1000"];
    let mut taken = 0;
    while case.call(full).code == 0 {
        taken += 1;
    }
    assert!((1..4).contains(&taken), "{taken}");
    // The keeper has 256 of them.
    for _ in 0..300 {
        library.is_refused(&["true"]);
    }
    let sleeper = case.workload(&id).into_iter().max_by_key(|one| one.pid);
    sleeper.expect("a process sleeps").signal(Signal::KILL);
    eventually("the next one works", || case.exec(&id, ["true"]).code == 0);
    assert_alone(&case, &id, 1 + taken);
    case.remove(&id);
}

/// I9, ClickHouse: a slot of the pool was lost when its process could not be started.
#[test]
fn a_pool_of_one_is_full_again_after_the_server_had_no_descriptors_left() {
    if !has_program("python3") || !has_program("prlimit") || !is_root() {
        skip!("this needs python3, prlimit and root");
    }
    let case = case();
    let server = Server::start_configured(&case, "[pool.python]\nwarm = 1\nmax = 1\n");
    let run = || {
        let body = json!({ "language": "python", "code": "print(1)" });
        server.post("/v1/run", &body)
    };
    let is_full = || {
        let metrics = server.get("/metrics").was(200).text();
        let of = |state: &str, count: usize| {
            metrics.contains(&format!(
                "tare_pool_members{{pool=\"python\",state=\"{state}\"}} {count}"
            ))
        };
        of("waiting", 1) && of("making", 0)
    };
    run().was(200);
    eventually("the pool is full", is_full);
    let pid = server.pid().to_string();
    let limit = |soft: &str| {
        let set =
            Command::new("prlimit").args(["--pid", &pid, &format!("--nofile={soft}:")]).status();
        assert!(set.is_ok_and(|it| it.success()));
    };
    for _time in 0..times(3, 30) {
        let before = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("it lives");
        let line = before.lines().find(|line| line.starts_with("Max open files")).expect("a limit");
        let usual = line.split_whitespace().nth(3).expect("a number").to_owned();
        let now = server.vitals().descriptors;
        // Enough for a connection, and not for a box.
        limit(&(now + 4).to_string());
        for _call in 0..3 {
            run();
        }
        limit(&usual);
        eventually("the pool is full again", || {
            run();
            is_full()
        });
    }
    let result = run().was(200).json();
    assert_eq!(result["warm"], "clone", "{result}");
    server.stop();
    case.nothing_left();
}

fn headers() -> [(&'static str, &'static str); 1] {
    [("Content-Type", "application/json")]
}

/// I8, centaur and hezo: warm boxes of a dead process were left behind, and claims on others were
/// never returned.
#[test]
fn boxes_that_wait_end_with_the_server_that_made_them() {
    let case = case();
    let config = "[pool.box]\nwarm = 3\n[pool.python]\nwarm = 2\nstart = 'at start'\n";
    for _ in 0..times(3, 20) {
        let server = Server::start_configured(&case, config);
        let warm = || {
            let listed = case.call(["ls", "-aq", "--filter", "state=warm"]).stdout_text();
            listed.lines().count()
        };
        // Of them, one is the template of the pool for Python.
        eventually("the pools are full", || warm() == 6);
        // One box is claimed when the server dies.
        let run = json!({ "command": ["sleep", "1000"] }).to_string();
        let _client = server.send("POST", "/v1/run", &headers(), run.as_bytes());
        eventually("one is claimed", || {
            case.call(["ls", "-q", "--filter", "state=running"]).stdout_text().lines().count() == 1
        });
        server.kill();
        // No command looks after them.
        eventually("everything of the boxes has ended", || {
            tare_harness::box_processes().iter().all(|one| one.is_zombie)
        });
        let server = Server::start(&case, &[]);
        eventually("it has looked", || server.log().contains("recovered"));
        assert_eq!(case.call(["ls", "-aq"]).ok().stdout_text(), "");
        server.stop();
    }
    // At any moment: while boxes are made, while they wait, while interpreters start.
    for number in 0..times(6, 60) {
        let server = Server::start_configured(&case, &config.replace("'at start'", "'on demand'"));
        let body = json!({ "language": "python", "code": "" }).to_string();
        let _client = server.send("POST", "/v1/run", &headers(), body.as_bytes());
        tare_harness::let_pass(Duration::from_millis(number as u64 * 31 % 190));
        server.kill();
        eventually("everything of the boxes has ended", || {
            tare_harness::box_processes().iter().all(|one| one.is_zombie)
        });
        case.call(["sweep"]).ok();
        case.call(["audit", "--wait"]).ok();
    }
    case.nothing_left();
}

/// I10, microsandbox: replacing a box that ignored TERM took 30 s and then failed.
#[test]
fn replacing_a_box_that_ignores_term_leaves_exactly_one() {
    let case = case();
    case.up(&["--name", "a"], STUBBORN);
    let replace = "\"$TARE\" rm -f a; exec \"$TARE\" run -d --name a -- sleep 1000";
    for _ in 0..5 {
        let others: Vec<Running> = (0..4).map(|_| case.spawn_script(replace)).collect();
        let ended: Vec<_> = others.into_iter().map(Running::wait).collect();
        let won = ended.iter().filter(|output| output.code == 0);
        assert!(won.count() >= 1, "{ended:?}");
        let listed = case.list();
        assert_eq!(listed.len(), 1, "{listed:?}");
        assert_eq!(listed[0]["state"], "running");
        assert_eq!(case.footprint().processes.len(), 2);
    }
    case.call(["rm", "-f", "a"]).ok();
    case.nothing_left();
}

/// When the lease of a box with these options ends, in seconds after it was made.
#[track_caller]
fn lease_of(case: &Case, options: &[&str]) -> Option<i64> {
    let id = case.detached(options.iter().chain(&["--", "sleep", "1000"]));
    let listed = case.look(&id);
    case.remove(&id);
    let created = unix_seconds(listed["created_at"].as_str().expect("a time"));
    assert!((created - unix_now()).abs() <= 10, "{listed}");
    let lease = listed["lease_ends_at"].as_str();
    lease.map(|text| unix_seconds(text) - created)
}

/// I11, harbor: without a lease, the box of a dead client was never ended.
#[test]
fn the_default_lease_is_24_hours() {
    let case = case();
    let is_about =
        |left: Option<i64>, seconds: i64| left.is_some_and(|it| (it - seconds).abs() <= 2);
    let left = lease_of(&case, &[]);
    assert!(is_about(left, DAY_SECONDS), "{left:?}");
    let left = lease_of(&case, &["--lease", "1h30m"]);
    assert!(is_about(left, 5400), "{left:?}");
    assert_eq!(lease_of(&case, &["--lease", "never"]), None);
}

/// Makes a box; which one.
type Make = fn(&Case) -> String;

/// I12, OpenShell: there was a state in which neither stop nor start was accepted.
#[test]
fn rm_force_works_in_every_state() {
    let case = case();
    let states: [(&str, Make); 5] = [
        ("running", |case| case.up(&["--name", "a"], STUBBORN)),
        ("paused", |case| {
            let id = case.up(&["--name", "a"], STUBBORN);
            case.call(["pause", "a"]).ok();
            id
        }),
        ("exited", |case| {
            let id = case.detached(["--name", "a", "--", "true"]);
            case.ended(&id);
            id
        }),
        ("stuck", |case| {
            let id = case.up(&["--name", "a"], STUBBORN);
            change(&case.record(&id), "keeper", &json!({"pid": 2_000_000}));
            id
        }),
        ("stopping", |case| {
            let id = case.up(&["--name", "a"], STUBBORN);
            let caller = case.spawn_call(["stop", "-t", "30s", "a"]);
            eventually("it is being stopped", || case.state(&id) == "stopping");
            caller.signal(Signal::KILL);
            caller.wait();
            id
        }),
    ];
    for (state, make) in states {
        let id = make(&case);
        assert_eq!(case.state(&id), state);
        case.remove(&id);
        case.nothing_left();
    }
    // A starting box: whichever command is first, both end and nothing is left.
    for step in 0..20 {
        let creator = case.spawn_call(["run", "-d", "--name", "a", "--", "sleep", "1000"]);
        tare_harness::let_pass(Duration::from_micros(500 * step));
        case.call(["rm", "-f", "a"]);
        creator.wait();
        case.call(["rm", "-f", "a"]);
        case.nothing_left();
    }
}

/// I14, code-interpreter: the response with the id was lost, and the machine with it.
#[test]
fn a_box_whose_id_was_lost_is_found_by_name_and_created_once() {
    let case = case();
    let make = ["run", "-d", "--name", "job-7", "--label", "job=7", "--", "sleep", "1000"];
    for lost in [LostAnswer::ClosedPipe, LostAnswer::NoDescriptor] {
        let mut command = match lost {
            LostAnswer::ClosedPipe => case.command(make),
            LostAnswer::NoDescriptor => {
                let mut shell = case.shell_command("exec \"$TARE\" \"$@\" >&-");
                shell.arg("sh").args(make);
                shell
            }
        };
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        command.stdin(Stdio::null()).stdout(writer);
        let creator = case.start_command(command).wait();
        let listed = case.list();
        // There is a box that can be found, or there is none; the same again makes one.
        assert!(listed.len() <= 1, "{lost:?}: {listed:?}");
        let again = case.call(make);
        assert_eq!(again.code == 0, listed.is_empty(), "{lost:?}: {again}");
        let found = case.call(["ls", "-q", "--filter", "label=job=7"]).ok();
        assert_eq!(found.stdout_text().lines().count(), 1, "{lost:?}: {creator}");
        case.call(["rm", "-f", "job-7"]).ok();
        case.nothing_left();
    }
}

/// How an answer does not arrive.
#[derive(Debug, Clone, Copy)]
enum LostAnswer {
    ClosedPipe,
    NoDescriptor,
}

/// I15, agent-sandbox: the time to live began at the end, so boxes that never ended, or
/// were restarted, had none.
#[test]
fn every_box_has_a_deadline_from_its_creation() {
    let case = case();
    let server = Server::start(&case, &[]);
    let made = server.post("/v1/boxes", &json!({"command": ["sleep", "1000"]}));
    let made = made.was(201).json();
    let deadline = |listed: &Value| {
        let ends = unix_seconds(listed["lease_ends_at"].as_str().expect("it has a deadline"));
        ends - unix_seconds(listed["created_at"].as_str().expect("a time"))
    };
    let left = deadline(&made);
    assert!((left - DAY_SECONDS).abs() <= 2, "{made}");
    // None is longer than the operator allows, and none has no end.
    let forever = json!({"command": ["true"], "lease_ms": 3_155_759_999_999_u64});
    assert_eq!(server.post("/v1/boxes", &forever).status, 400);
    let never = json!({"command": ["sleep", "1000"], "lease_ms": null});
    let made = server.post("/v1/boxes", &never).was(201).json();
    assert!((deadline(&made) - DAY_SECONDS).abs() <= 2, "{made}");
    server.stop();
    // One that never ends, whatever is done to it on the way.
    let id = case.detached(["--name", "a", "--lease", "3s", "--", "sh", "-c", STUBBORN]);
    let ends = case.look(&id)["lease_ends_at"].clone();
    for change in ["pause", "resume"] {
        // Without cgroups a box cannot be paused.
        case.call([change, "a"]);
    }
    case.call(["rename", "a", "b"]).ok();
    case.exec(&id, ["true"]).ok();
    assert_eq!(case.look(&id)["lease_ends_at"], ends);
    eventually("its lease ends it", || case.processes_in(&id).is_empty());
    assert_eq!(case.ended(&id)["cause"], "lease");
    case.call(["rm", "-f", "--all"]).ok();
}

/// `tare ARGS` with nothing around it: no network, no variable but its state root, no
/// terminal, no input. What it asked of any network is in the second.
#[track_caller]
fn alone(case: &Case, args: &[&str]) -> (Output, String) {
    let trace = TemporaryDirectory::new();
    let path = trace.join("trace");
    let mut command = Command::new("unshare");
    command.env_clear().env("TARE_STATE_ROOT", case.state_root());
    command.args(["--net", "--", "/usr/bin/setsid", "--wait", "/usr/bin/strace", "-f", "-o"]);
    command.arg(&path).args(["-e", "trace=socket,connect", "--"]);
    command.arg(case.program()).args(args);
    let output = case.start_piped(command).wait();
    let asked = std::fs::read_to_string(&path).expect("strace writes it");
    (output, asked)
}

/// I16, agent-glovebox: removing a machine required a login that was not possible.
#[test]
fn ending_a_box_needs_no_network_and_no_credentials() {
    let case = case();
    if !is_root() || !Path::new("/usr/bin/strace").exists() {
        skip!("only root can make a network alone, and strace is needed");
    }
    for end in [&["rm", "-f"][..], &["stop", "-t", "0"], &["kill"], &["sweep"]] {
        let id = case.detached(["--name", "a", "--lease", "1s", "--", "sh", "-c", STUBBORN]);
        let args = match end {
            ["sweep"] => {
                let keeper = case.keeper(&id);
                keeper.signal(Signal::STOP);
                eventually("its lease is over for long", || {
                    let listed = case.look(&id);
                    let ends = listed["lease_ends_at"].as_str().map(unix_seconds);
                    ends.is_none_or(|ends| unix_now() > ends + 3)
                });
                end.to_vec()
            }
            _ => [end, &["a"]].concat(),
        };
        let (output, asked) = alone(&case, &args);
        output.ok();
        assert!(!asked.contains("AF_INET"), "{args:?}: {asked}");
        case.assert_over(&id);
        case.call(["rm", "-f", &id]);
    }
}

/// I20, boxlite: boxes that should have removed themselves did so only for some clients.
#[test]
fn a_box_with_rm_removes_itself_however_its_client_ends() {
    let case = case();
    let clients: [(&[&str], &str); 4] = [
        (&["run"], "exit 3"),
        (&["run"], "echo up; sleep 1000"),
        (&["run", "-d", "--rm"], "exit 3"),
        (&["run", "-d", "--rm", "--lease", "2s"], "echo up; sleep 1000"),
    ];
    for (call, script) in clients {
        for signal in [Signal::KILL, Signal::TERM] {
            let command = ["--name", "a", "--", "sh", "-c", script];
            let client = case.spawn_call(call.iter().chain(&command));
            if call.len() == 1 && script.starts_with("echo") {
                client.see("up");
            }
            client.signal(signal);
            client.wait();
            eventually("everyone is gone", || case.footprint().processes.is_empty());
            case.call(["ls"]).ok();
            assert_eq!(case.list().len(), 0, "{call:?} {script}");
            assert_eq!(case.footprint().records.len(), 0, "{call:?} {script}");
        }
    }
    case.reap_orphans();
    case.nothing_left();
}

/// I20, boxlite: a box with automatic removal was removed locally, but not over the API.
#[test]
fn a_box_with_remove_removes_itself_over_http_when_its_client_is_gone() {
    let case = case();
    let server = Server::start(&case, &[]);
    let headers = [("Content-Type", "application/json")];
    let detached = json!({ "command": ["sleep", "0.2"], "remove": true }).to_string();
    let attached = json!({ "command": ["sleep", "1000"] }).to_string();
    for waits_for_record in [false, true] {
        for (path, body) in [("/v1/boxes", &detached), ("/v1/run", &attached)] {
            let client = server.send("POST", path, &headers, body.as_bytes());
            if waits_for_record {
                eventually("it is made", || !case.footprint().records.is_empty());
            }
            drop(client);
        }
        // A request that came before its client was gone is served first.
        server.post("/v1/run", &json!({ "command": ["true"] })).was(200);
        eventually("no box is left", || case.footprint().records.is_empty());
    }
    server.stop().ok();
}

/// I21, ml-intern: a failed delete was logged and forgotten; 2,310 boxes were left behind.
#[test]
fn a_failed_removal_is_reported_listed_and_retried_until_it_succeeds() {
    let case = case();
    let Some(freezer) = Freezer::new() else {
        skip!("there is no freezer of cgroup version 1");
    };
    let server = Server::start(&case, &[]);
    let request = json!({ "command": ["sleep", "1000"], "name": "a" });
    let made = server.post("/v1/boxes", &request).was(201).json();
    let id = made["id"].as_str().expect("an id");
    freezer.freeze(case.workload(id)[0].pid);
    for _ in 0..times(2, 4) {
        server.delete("/v1/boxes/a?force=true").refused(503, "stuck");
        let listed = server.get("/v1/boxes?state=stuck").was(200).json();
        assert_eq!(listed["boxes"][0]["name"], "a", "{listed}");
        let why = listed["boxes"][0]["stuck_on"].as_str().expect("a reason");
        assert!(why.ends_with("does not die"), "{why}");
    }
    assert!(server.log().contains("teardown_stuck"), "{}", server.log());
    let metrics = server.get("/metrics").was(200).text();
    assert!(!metrics.contains("tare_teardowns_stuck_total 0\n"), "{metrics}");
    freezer.thaw();
    // No command and no request helps the server here.
    eventually("nothing of it is left", || case.footprint().records.is_empty());
    case.assert_gone(id);
    server.stop().ok();
}
