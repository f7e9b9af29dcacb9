//! C. Identity, recovery, state.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::Signal;
use serde_json::{Value, json};
use tare_harness::random::{Random, fresh_seed};
use tare_harness::record::{change, write_lines};
use tare_harness::skip::{has_program, is_root};
use tare_harness::witness::{assert_untouched, stranger};
use tare_harness::{
    Output, Running, Server, TemporaryDirectory, eventually, eventually_within, skip, unprivileged,
};

use crate::leaks::case::{Case, case, times, traced};

/// A box on the network of the host that listens on a port; which one.
#[track_caller]
pub fn listener(case: &Case) -> (String, u16) {
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

pub fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}

/// C1, boxlite: liveness was judged by a command line; a live box was marked as stopped
/// while its shim kept the port.
#[test]
fn every_observer_sees_a_live_box_as_running_and_rm_frees_its_port() {
    let case = case();
    let (id, port) = listener(&case);
    let keeper = case.keeper(&id);
    for locale in ["C", "de_DE.UTF-8", "tr_TR.UTF-8", "", "nonsense"] {
        for _ in 0..2 {
            let mut ls = case.command(["ls", "--json"]);
            let output = ls.env("LC_ALL", locale).output().expect("it can be started");
            let listed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            assert_eq!(listed[0]["state"], "running", "{locale}: {listed}");
        }
    }
    assert_eq!(case.keeper(&id), keeper);
    assert!(!is_free(port));
    case.remove(&id);
    assert!(is_free(port));
}

/// The pid of the keeper, from `tare inspect`.
fn keeper_on_record(case: &Case, id: &str) -> Option<u32> {
    let details = case.json(["inspect", id]);
    let holdings = details[0]["holdings"].as_array().expect("an array").clone();
    let keeper = holdings.iter().find(|one| one["kind"] == "keeper")?;
    keeper["what"].as_str()?.strip_prefix("pid ")?.parse().ok()
}

/// C2, boxlite: a save from stale memory overwrote the pid that another process had
/// written.
#[test]
fn no_later_save_overwrites_the_recorded_keeper() {
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

/// C3, boxlite, background-agents and Hugging Face: a pid that the kernel had reused for
/// another process was killed.
#[test]
fn a_reused_pid_on_record_is_not_killed_and_the_box_is_removed() {
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
    unmount(path, UnmountFlags::empty()).expect("nothing holds it");
    outputs
}

/// C6, boxlite: a virtual machine was created, its record could not be written, and nothing
/// tracked it.
#[test]
fn a_box_whose_record_cannot_be_written_is_not_created() {
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

/// C7, boxlite: a failed boot deleted the record of a live virtual machine.
#[test]
fn a_failed_start_reports_why_leaves_nothing_and_spares_the_live_box() {
    let case = case();
    let id = case.detached(["--name", "a", "--", "sleep", "1000"]);
    let before = (case.footprint(), case.record_files(&id));
    let starts: [(&[&str], i32, &str); 4] = [
        (&["--name", "a", "--", "sleep", "1000"], 125, "taken"),
        (&["--name", "b", "--", "no-such-program"], 127, "no-such-program"),
        (&["--name", "b", "--", "/etc/passwd"], 126, "/etc/passwd"),
        (&["--name", "b", "-w", "/no/such", "--", "true"], 125, "/no/such"),
    ];
    for (args, code, why) in starts {
        let output = case.run(["-d"].iter().chain(args));
        output.exited(code).printed("").said(&[why]);
        assert_eq!((case.footprint(), case.record_files(&id)), before);
    }
    case.exec("a", ["true"]).ok();
    case.remove(&id);
}

/// C8, boxlite: a crashed supervisor was noticed only by the next operation.
#[test]
fn a_box_whose_keeper_is_killed_releases_everything_without_any_command() {
    let case = case();
    let (id, port) = listener(&case);
    assert_eq!(case.uid_claims(), 1);
    case.keeper(&id).signal(Signal::KILL);
    eventually_within(Duration::from_secs(2), "no process is left", || {
        case.processes_in(&id).is_empty()
    });
    eventually_within(Duration::from_secs(2), "its port is free", || is_free(port));
    assert_eq!(case.uid_claims(), 0);
    let ended = case.look(&id);
    assert_eq!((&ended["state"], &ended["cause"]), (&"exited".into(), &"keeper_lost".into()));
    case.exec(&id, ["true"]).exited(125);
    case.remove(&id);
}

/// C9, boxlite: locks of dead processes blocked the recovery.
#[test]
fn recovery_finds_all_38_boxes_after_lock_holders_were_killed() {
    let case = case();
    let boxes: Vec<String> = (0..38).map(|_| case.idle_box()).collect();
    let mut random = Random::seeded(fresh_seed());
    for id in &boxes {
        let update = case.spawn_call(["update", "--lease", "1h", id]);
        tare_harness::let_pass(Duration::from_micros(random.below(8_000)));
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

/// C11, containerd: a live container that had created cgroups was treated as a leak.
#[test]
fn a_box_with_nested_cgroups_is_one_box_and_stays_alive() {
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

/// C12, hezo: a sweep with an incomplete list destroyed live boxes.
#[test]
fn sweep_leaves_starting_and_paused_boxes_alone() {
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
    let states: BTreeSet<String> = case.list().iter().map(|one| one["state"].to_string()).collect();
    assert_eq!(states.len(), 2, "{states:?}");
    assert!(["\"running\"", "\"paused\""].iter().all(|it| states.contains(*it)));
    assert_eq!(case.list().len(), times(10, 100) + 1);
    case.call(["rm", "-f", "--all"]).ok();
}

/// C14, e2b: several boxes had the same id; the later one overwrote the earlier one, which
/// kept running.
#[test]
fn exactly_one_of_ten_concurrent_boxes_gets_a_name() {
    let case = case();
    for _ in 0..3 {
        let start = |_| case.spawn_call(["run", "-d", "--name", "a", "--", "sleep", "1000"]);
        let calls: Vec<Running> = (0..10).map(start).collect();
        let outputs = calls.into_iter().map(Running::wait);
        let (won, lost): (Vec<_>, Vec<_>) = outputs.partition(|output| output.code == 0);
        assert_eq!(won.len(), 1, "{won:?}");
        for output in lost {
            output.exited(125).printed("").said(&["the name a is taken"]);
        }
        let listed = case.list();
        assert_eq!(listed.len(), 1, "{listed:?}");
        assert_eq!(listed[0]["id"], won[0].stdout_text().trim());
        assert_eq!(listed[0]["name"], "a");
        case.call(["rm", "-f", "a"]).ok();
        case.nothing_left();
    }
}

/// C15, mirendev: boxes of an earlier version or specification were no longer seen.
#[test]
fn a_box_with_any_damaged_record_is_listed_and_removed() {
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

/// Checks `ls` and `sweep` on a box that they cannot observe, as root and without privileges
/// (without cgroups).
#[track_caller]
fn assert_unseen_boxes_stay(case: &Case) {
    let kept = case.detached(["--quiet", "--", "sleep", "1000"]);
    let removed = case.detached(["--quiet", "--rm", "--", "sleep", "1000"]);
    let before = case.footprint();
    // The first process that a tare opens is itself: without that it refuses to work.
    let mut faults = vec![
        "pidfd_open:error=EMFILE:when=2+".to_owned(),
        "pidfd_open:error=EPERM:when=2+".to_owned(),
        "pidfd_open,socket:error=EMFILE:when=2+".to_owned(),
        "pidfd_open,connect:error=EAGAIN:when=2+".to_owned(),
    ];
    // From so many descriptors on there is none left.
    let steps = (1..DESCRIPTORS_MAX).step_by(times(5, 1));
    faults.extend(steps.map(|it| format!("{OPENING}:error=EMFILE:when={it}+")));
    for fault in faults {
        let inject = format!("inject={fault}");
        for call in [&["sweep"][..], &["ls", "-a"]] {
            let output = traced(case, &["-e", &inject], call);
            assert_eq!(case.footprint(), before, "{fault}: {output}");
            let said = output.stdout_text() + &output.stderr_text();
            assert!(!said.contains("exited"), "{fault}: {output}");
            if fault.starts_with("pidfd_open") {
                let is_named = [&kept, &removed].iter().all(|id| said.contains(&***id));
                assert!(is_named, "{fault}: {output}");
            }
        }
    }
    for id in [kept, removed] {
        assert_eq!(case.state(&id), "running");
        case.exec(&id, ["true"]).ok();
        case.call(["rm", "-f", &id]).ok();
    }
}

/// Calls that take a descriptor.
const OPENING: &str = "open,openat,openat2,pidfd_open,socket";

/// More than `ls` and `sweep` take of them.
const DESCRIPTORS_MAX: usize = 80;

/// C21, vm0: a collector without free descriptors took a process that it could not see for
/// dead, and deleted the directory of a live virtual machine.
#[test]
fn a_sweep_that_cannot_see_a_live_box_leaves_it_and_names_it() {
    if !has_program("strace") {
        skip!("strace is not installed");
    }
    assert_unseen_boxes_stay(&case());
    assert_unseen_boxes_stay(&Case::of(unprivileged!()));
}

/// `tare ARGS` as the user that owns the boxes, where `/proc` shows a user only the
/// processes that it may trace (proc(5)). A keeper is not one of them.
#[track_caller]
fn where_keepers_are_hidden(case: &Case, args: &[&str]) -> Output {
    let owner = fs::metadata(case.state_root()).expect("it is there");
    let (uid, gid) = (owner.uid().to_string(), owner.gid().to_string());
    let mut command = Command::new("unshare");
    let script = "mount -t proc -o hidepid=2 proc /proc && exec setpriv \"$@\"";
    command.args(["--mount", "--", "sh", "-c", script, "sh"]);
    command.args(["--clear-groups", "--reuid", &uid, "--regid", &gid, "--"]);
    command.arg(case.program()).args(args);
    command.env("TARE_STATE_ROOT", case.state_root());
    case.start_piped(command).wait()
}

/// C21, vm0: a collector took processes that were hidden from it for dead.
#[test]
fn a_box_whose_keeper_is_hidden_from_its_owner_is_listed_kept_and_removed() {
    if !is_root() {
        skip!("only root may hide processes");
    }
    let case = Case::of(unprivileged!());
    let id = case.detached(["--quiet", "--", "sleep", "1000"]);
    let before = case.footprint();
    for call in [&["sweep"][..], &["ls", "-a"], &["audit"]] {
        let output = where_keepers_are_hidden(&case, call);
        assert_eq!(case.footprint(), before, "{output}");
    }
    assert_eq!(case.state(&id), "running");
    let removed = where_keepers_are_hidden(&case, &["rm", "-f", &id]);
    // It ends the box, or says that it cannot; a box that lives keeps its record.
    let left = case.footprint();
    match removed.code {
        0 => assert!(left.processes.is_empty() && left.records.is_empty(), "{removed}"),
        _ => assert_eq!(left, before, "{removed}"),
    }
    case.call(["rm", "-f", "--all"]).ok();
}

/// Runs tare as the first process of a PID namespace, as a container does.
const FIRST: &str = "exec unshare --pid --fork --kill-child --mount-proc \"$TARE\" \"$@\"";

/// C23, gominimal: directories were named after their creator's pid, which in a container
/// is 1 before and after a restart, so nothing was ever reclaimed.
#[test]
fn a_restarted_server_with_pid_1_reclaims_only_dead_boxes() {
    let case = case();
    if !is_root() {
        skip!("only root can make a PID namespace alone");
    }
    let live = case.idle_box();
    let mut dead: Vec<String> = Vec::new();
    for _life in 0..3 {
        let mut command = case.shell_command(FIRST);
        command.args(["sh", "serve", "--listen", "127.0.0.1:0"]);
        let server = Server::start_command(&case, command);
        for id in &dead {
            let path = format!("/v1/boxes/{id}");
            eventually("the box of an earlier life is over", || {
                server.get(&path).json()["state"] == "exited"
            });
        }
        let made = server.post("/v1/boxes", &json!({"command": ["sleep", "1000"]}));
        let id = made.was(201).json()["id"].as_str().expect("an id").to_owned();
        assert_eq!(case.processes_in(&id).len(), 2);
        server.kill();
        eventually("its namespace is gone", || case.processes_in(&id).is_empty());
        dead.push(id);
    }
    assert_eq!(case.state(&live), "running");
    case.exec(&live, ["true"]).ok();
    eventually("only the live box holds user ids", || case.uid_claims() == 1);
    case.call(["rm", "-f", "--all"]).ok();
}

/// C28, opengeni: writing the tag of a virtual machine failed silently, and the sweep
/// killed the machine because it had no tag.
#[test]
fn a_box_that_cannot_be_tagged_is_not_created() {
    let case = case();
    if !has_program("strace") {
        skip!("strace is not installed");
    }
    let call = ["run", "-d", "--name", "a", "--", "sleep", "1000"];
    let mut failed = 0;
    for number in 1..=MARKS_MAX {
        for fault in ["write,pwrite64:error=ENOSPC", "mkdir,mkdirat,symlinkat:error=ENOSPC"] {
            let inject = format!("inject={fault}:when={number}");
            let output = traced(&case, &["-e", &inject], &call);
            let listed = case.list();
            match output.code {
                0 => {
                    let id = output.stdout_text().trim().to_owned();
                    assert!(keeper_on_record(&case, &id).is_some(), "{inject}");
                    assert_eq!(listed[0]["name"], "a", "{inject}");
                    case.remove(&id);
                }
                _ => {
                    failed += 1;
                    assert!(listed.is_empty(), "{inject}: {output}");
                }
            }
            case.nothing_left();
        }
    }
    assert!(failed > 4, "only {failed} marks were met");
}

/// More than a creator makes of them.
const MARKS_MAX: usize = 12;

/// C28, opengeni: the sweep killed a live virtual machine because it was old.
#[test]
fn sweep_never_ends_a_box_because_of_its_age() {
    let case = case();
    let old = case.detached(["--lease", "never", "--", "sleep", "1000"]);
    let unmarked = case.idle_box();
    let birth = json!({"created_at": "2001-01-01T00:00:00.000Z", "created_ns": 1});
    change(&case.record(&old), "intent", &birth);
    write_lines(&case.record(&unmarked), &[]);
    let touched = case.shell("find \"$TARE_STATE_ROOT\" -exec touch -d 2001-01-01 {} +");
    touched.ok();
    let before = case.footprint();
    for call in [&["sweep"][..], &["ls", "-a"], &["run", "--", "true"]] {
        case.call(call);
        assert_eq!(case.footprint(), before, "{call:?}");
    }
    assert_eq!(case.state(&old), "running");
    assert_eq!(case.state(&unmarked), "stuck");
    case.remove(&old);
    case.remove(&unmarked);
}

/// C19, Hugging Face: killing an id that did not exist reported success.
#[test]
fn ending_an_unknown_box_is_an_error() {
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

/// C27, e2b: one index was swept; a second one kept boxes that were gone.
#[test]
fn a_record_that_vanishes_under_the_server_is_dropped_from_every_count() {
    let case = case();
    // The key is `secret`.
    let key = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
    let text = format!("[[keys]]\nname = 'ci'\nsha256 = '{key}'\nboxes = 1\nadmin = true\n");
    let server = Server::start_configured(&case, &text);
    let ask = |method: &str, path: &str, body: &str| {
        let headers = [("Content-Type", "application/json"), ("X-API-Key", "secret")];
        server.ask(method, path, &headers, body.as_bytes())
    };
    let create = || ask("POST", "/v1/boxes", r#"{"name":"a","command":["sleep","1000"]}"#);
    let live = |count: &str| {
        let metrics = ask("GET", "/metrics", "").was(200).text();
        metrics.lines().any(|line| line == format!("tare_boxes_live {count}"))
    };
    for _ in 0..3 {
        let made = create().was(201).json();
        let id = made["id"].as_str().expect("an id");
        let exec = r#"{"command":["sleep","1000"],"detach":true}"#;
        let exec = ask("POST", "/v1/boxes/a/exec", exec).was(202).json();
        let exec = exec["id"].as_str().expect("an id").to_owned();
        eventually("it is counted", || live("1"));
        create().refused(429, "quota_boxes");
        fs::remove_dir_all(case.record(id)).expect("it is there");
        ask("POST", "/v1/sweep", "{}").was(200);
        eventually("it is not counted", || live("0"));
        let listed = ask("GET", "/v1/boxes?all=true", "").was(200).json();
        assert_eq!(listed["boxes"], json!([]));
        ask("GET", &format!("/v1/boxes/{id}/execs/{exec}"), "").refused(404, "no_such_box");
        case.assert_over(id);
    }
    server.stop().ok();
}

/// C16, OpenSandbox: after a restart, a used box was returned to the pool.
#[test]
fn a_pool_after_a_restart_has_only_new_boxes() {
    let case = case();
    let config = "[pool.box]\nwarm = 2\n";
    let warm = || -> BTreeSet<String> {
        let listed = case.call(["ls", "-aq", "--filter", "state=warm"]).ok().stdout_text();
        listed.lines().map(str::to_owned).collect()
    };
    let mut seen = BTreeSet::new();
    for _ in 0..times(3, 20) {
        let server = Server::start_configured(&case, config);
        eventually("the pool is full", || warm().len() == 2);
        let before = warm();
        assert!(seen.is_disjoint(&before), "{before:?}");
        let answer = server.post("/v1/run", &json!({ "command": ["true"] })).was(200).json();
        assert_eq!(answer["warm"], "box");
        eventually("the pool is full again", || warm().len() == 2);
        seen.extend(before);
        seen.extend(warm());
        server.kill();
    }
    case.call(["ls"]).ok();
    case.nothing_left();
}

/// C25, agent-sandbox: a pool member was looked up under the name of its claim; "not found" was
/// taken for "gone".
#[test]
fn a_claimed_box_is_found_by_the_id_that_it_waited_with() {
    let case = case();
    let server = Server::start_configured(&case, "[pool.box]\nwarm = 1\n");
    let listed = |state: &str| {
        let filter = format!("state={state}");
        case.call(["ls", "-aq", "--filter", &filter]).ok().stdout_text().trim().to_owned()
    };
    let mut waits = String::new();
    eventually("a box waits", || {
        waits = listed("warm");
        !waits.is_empty()
    });
    let run = json!({ "command": ["sleep", "1000"] }).to_string();
    let headers = [("Content-Type", "application/json")];
    let client = server.send("POST", "/v1/run", &headers, run.as_bytes());
    eventually("it runs under its id", || listed("running") == waits);
    eventually("another one waits", || !listed("warm").is_empty());
    drop(client);
    eventually("it is gone, and the other one stays", || {
        listed("running").is_empty() && !listed("warm").is_empty()
    });
    server.stop();
    case.nothing_left();
}
