//! `tare audit` shows what every box holds, as the kernel reports it, and changes nothing.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tare_harness::skip::{has_program, is_root};
use tare_harness::{Tare, TemporaryDirectory, eventually, skip, tare, unprivileged};

/// Runs `tare audit --json`, checks its exit code and returns its output.
#[track_caller]
fn audit(tare: &Tare, code: i32) -> Value {
    let output = tare.call(["audit", "--json"]).exited(code).said_nothing();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output}"))
}

/// Runs an audit, which must be clean, and returns its entry for one box.
#[track_caller]
fn audited(tare: &Tare, id: &str) -> Value {
    let audit = audit(tare, 0);
    let boxes = audit["boxes"].as_array().expect("an array");
    let found = boxes.iter().find(|one| one["id"] == id);
    found.unwrap_or_else(|| panic!("{id} is not in {audit}")).clone()
}

/// Starts a box that runs a Python script, and waits until the script prints that it is ready.
#[track_caller]
fn python_box(tare: &Tare, options: &[&str], script: &str) -> String {
    let script = format!("{script}\nprint('ready', flush=True)\nimport time\ntime.sleep(1000)");
    let command = ["--quiet", "--", "python3", "-c", &script];
    let id = tare.detached(options.iter().chain(&command));
    tare.logged(&id, "ready");
    id
}

fn number(of: &Value) -> u64 {
    of.as_u64().unwrap_or_else(|| panic!("{of} is no number"))
}

#[test]
fn audit_of_a_missing_state_root_is_clean_and_does_not_create_it() {
    let tare = tare!();
    fs::remove_dir(tare.state_root()).unwrap();
    let output = tare.call(["audit"]).ok().said_nothing();
    assert!(output.stdout_text().starts_with("0 boxes. "), "{output}");
    let found = audit(&tare, 0);
    for list in ["boxes", "orphans", "lost"] {
        assert_eq!(found[list], Value::Array(vec![]), "{list}");
    }
    tare.call(["audit", "--wait"]).ok();
    assert!(!tare.state_root().exists());
    fs::create_dir(tare.state_root()).unwrap();
}

#[test]
fn audit_shows_the_processes_and_threads_that_the_kernel_shows() {
    let tare = tare!();
    if !has_program("python3") {
        skip!("python3 is not installed");
    }
    let script = "import threading, subprocess, time
for _ in range(3): threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
subprocess.Popen(['setsid', 'sleep', '1000'])";
    let id = python_box(&tare, &[], script);
    eventually("everyone is there", || tare.processes_in(&id).len() == 3);
    let found = audited(&tare, &id);
    let mut pids: Vec<u64> = tare.processes_in(&id).iter().map(|it| it.pid.into()).collect();
    pids.sort_unstable();
    let listed = found["processes"].as_array().unwrap().iter();
    assert_eq!(listed.map(|it| number(&it["pid"])).collect::<Vec<_>>(), pids);
    // Keeper, sleep, and Python with three more.
    assert_eq!(found["threads"], 6, "{found}");
    assert_eq!(found["kept_by"]["pid"], tare.keeper(&id).pid);
    assert_eq!(found["kept_by"]["kind"], "keeper");
    tare.remove(&id);
}

/// Opens descriptors of each kind and compares the counts before and after.
#[test]
fn audit_counts_descriptors_by_kind() {
    let tare = tare!();
    if !has_program("python3") {
        skip!("python3 is not installed");
    }
    let opens = "import os, socket, select
held = [os.pipe() for _ in range(2)] + [socket.socket() for _ in range(3)]
held += [select.epoll(), os.eventfd(0), os.eventfd(0), os.memfd_create('x')]
held += [open('/etc/passwd') for _ in range(5)] + [os.pidfd_open(os.getpid())]
held += [os.open('/proc/self/ns/uts', os.O_RDONLY)]";
    let (plain, id) = (python_box(&tare, &[], ""), python_box(&tare, &[], opens));
    let before = audited(&tare, &plain)["descriptors"].clone();
    let after = audited(&tare, &id)["descriptors"].clone();
    let more = |kind: &str| {
        let count = |of: &Value| of[kind].as_u64().unwrap_or(0);
        count(&after) - count(&before)
    };
    for (kind, count) in [
        ("pipe", 4),
        ("socket", 3),
        ("epoll", 1),
        ("eventfd", 2),
        ("memfd", 1),
        ("file", 5),
        ("pidfd", 1),
        ("namespace", 1),
    ] {
        assert_eq!(more(kind), count, "{kind}: {before} {after}");
    }
    let found = audited(&tare, &id);
    let each = found["processes"].as_array().unwrap().iter();
    let sum: u64 = each.map(|it| number(&it["descriptors"])).sum();
    let kinds = after.as_object().unwrap().values().map(number).sum::<u64>();
    assert_eq!(sum, kinds);
    for id in [plain, id] {
        tare.remove(&id);
    }
}

#[test]
fn audit_counts_a_volume_as_one_mount() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let volume = format!("{}:/mnt/it", directory.text());
    let plain = tare.idle_box();
    let id = tare.detached(["-v", &volume, "--", "sleep", "1000"]);
    let mounts = |id: &str| audited(&tare, id)["mounts"].clone();
    assert_eq!(number(&mounts(&id)), number(&mounts(&plain)) + 1);
    let table = format!("/proc/{}/mountinfo", tare.keeper(&id).pid);
    let lines = fs::read_to_string(table).unwrap().lines().count();
    assert_eq!(number(&mounts(&id)), lines as u64);
    for id in [plain, id] {
        tare.remove(&id);
    }
}

#[test]
fn audit_shows_the_memory_and_scratch_that_the_box_has_filled() {
    let tare = tare!();
    if !is_root() || !has_program("python3") {
        skip!("it takes python3, and root to look into a box");
    }
    let fill = "open('/work/large', 'wb').write(bytes(9 << 20))";
    let id = python_box(&tare, &["--scratch", "64m"], fill);
    let found = audited(&tare, &id);
    assert!((9 << 20..11 << 20).contains(&number(&found["scratch_bytes"])), "{found}");
    let listed = number(&tare.look(&id)["memory_bytes"]);
    let told = number(&found["memory_bytes"]);
    assert!(told > 9 << 20 && told.abs_diff(listed) < 1 << 20, "{listed}: {found}");
    tare.remove(&id);
}

/// A contained box has no `/work` of its own.
#[test]
fn audit_shows_no_scratch_space_for_a_contained_box() {
    let tare = tare!();
    let id = tare.detached(["--contain", "--quiet", "--", "sleep", "1000"]);
    let found = audited(&tare, &id);
    assert_eq!(found["scratch_bytes"], Value::Null, "{found}");
    assert_eq!(found["processes"].as_array().map(Vec::len), Some(2));
    tare.remove(&id);
}

#[test]
fn audit_names_cgroups_and_namespaces() {
    let tare = tare!();
    if !is_root() {
        skip!("namespaces of others are shown to root");
    }
    let id = tare.idle_box();
    let found = audited(&tare, &id);
    let text = |of: &Value| of.as_str().expect("a path").to_owned();
    let listed: Vec<String> = found["cgroups"].as_array().unwrap().iter().map(text).collect();
    for directory in tare.cgroups_of(&id) {
        assert!(listed.contains(&directory.display().to_string()), "{listed:?}");
    }
    assert!(listed.iter().all(|path| Path::new(path).is_dir()), "{listed:?}");
    assert!(listed.iter().any(|path| path.ends_with("/work")), "{listed:?}");
    let keeper = tare.keeper(&id).pid;
    for one in found["namespaces"].as_array().unwrap() {
        let kind = one["kind"].as_str().unwrap();
        let inode = fs::metadata(format!("/proc/{keeper}/ns/{kind}")).unwrap().ino();
        assert_eq!(number(&one["inode"]), inode, "{kind}");
        let pids: Vec<u64> = one["pids"].as_array().unwrap().iter().map(number).collect();
        assert!(pids.contains(&keeper.into()) && pids.len() == 2, "{one}");
    }
    assert_eq!(found["namespaces"].as_array().unwrap().len(), 7);
    tare.remove(&id);
}

#[test]
fn audit_shows_ports_of_the_host_with_the_processes_that_hold_them() {
    let tare = tare!();
    if !has_program("python3") {
        skip!("python3 is not installed");
    }
    let listen = "import socket
tcp = socket.create_server(('127.0.0.1', 0))
udp = socket.socket(type=socket.SOCK_DGRAM); udp.bind(('127.0.0.1', 0))
print(tcp.getsockname()[1], udp.getsockname()[1], flush=True)";
    let id = python_box(&tare, &["--net", "host"], listen);
    let private = python_box(&tare, &[], listen);
    let said = tare.call(["logs", &id]).ok().stdout_text();
    let numbers: Vec<&str> = said.lines().next().unwrap().split(' ').collect();
    let found = audited(&tare, &id);
    let ports = found["ports"].as_array().unwrap();
    assert_eq!(ports.len(), 2, "{found}");
    for (transport, number) in [("tcp", numbers[0]), ("udp", numbers[1])] {
        let is_it = |it: &&Value| {
            it["transport"] == transport && it["address"] == format!("127.0.0.1:{number}")
        };
        let port = ports.iter().find(is_it).unwrap_or_else(|| panic!("{found}"));
        assert_eq!(port["pids"][0], tare.workload(&id)[0].pid, "{port}");
    }
    // What a box listens on in a network of its own is no port of the host.
    assert_eq!(audited(&tare, &private)["ports"], Value::Array(vec![]));
    for id in [id, private] {
        tare.remove(&id);
    }
}

#[test]
fn audit_shows_that_retention_keeps_an_ended_box() {
    let tare = tare!();
    let options = ["--retention", "2h", "--keep", "--quiet"];
    let command = ["--", "sh", "-c", "head -c 5m /dev/zero > large"];
    let id = tare.detached(options.iter().chain(&command));
    let ended = tare.ended(&id);
    let found = audited(&tare, &id);
    assert_eq!(found["kept_by"]["kind"], "retention", "{found}");
    let (until, at) = (&found["kept_by"]["until"], &ended["ended_at"]);
    assert!(until.as_str() > at.as_str(), "{until} {at}");
    assert_eq!(found["processes"], Value::Array(vec![]));
    assert_eq!(found["cgroups"], Value::Array(vec![]));
    if is_root() {
        let scratch = tare.record(&id).join("scratch");
        assert_eq!(found["host_mounts"][0], scratch.to_str().unwrap());
        assert!(number(&found["scratch_bytes"]) >= 5 << 20, "{found}");
    }
    let text = tare.call(["audit"]).ok().stdout_text();
    assert!(text.contains("retention, 2h left"), "{text}");
    tare.remove(&id);
}

#[test]
fn a_box_that_has_ended_and_waits_for_its_cleanup_is_not_a_difference() {
    let tare = tare!();
    for number in 0..20 {
        let options: &[&str] = match number % 2 {
            0 => &[],
            _ => &["--rm"],
        };
        let id = tare.detached(options.iter().chain(&["--", "sh", "-c", "exit 3"]));
        let output = tare.call(["audit"]);
        assert_eq!(output.code, 0, "{output}");
        eventually("it is over", || tare.processes_in(&id).is_empty());
        let output = tare.call(["audit"]);
        assert_eq!(output.code, 0, "{output}");
        let plan = tare.call(["sweep", "--dry-run"]).stdout_text();
        assert!(plan.contains(&id), "{plan}");
        tare.call(["sweep"]).ok();
    }
    tare.call(["rm", "-f", "--all"]).ok();
}

/// Such a box is not a difference, and audit shows what keeps it.
#[test]
fn a_box_past_its_retention_waits_for_a_sweep() {
    let tare = tare!();
    let id = tare.detached(["--retention", "1ms", "--", "true"]);
    eventually("it is over", || tare.processes_in(&id).is_empty());
    tare.call(["sweep"]).ok();
    eventually("its time has passed", || {
        let text = tare.call(["audit"]).ok().stdout_text();
        text.contains("retention, until a sweep")
    });
    tare.call(["sweep"]).ok();
    tare.assert_gone(&id);
}

/// Inode, times and size of every path below `root`: any change to the tree changes these values.
fn marks(root: &Path) -> BTreeMap<PathBuf, (u64, i64, i64, u64)> {
    let mut found = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        let it = path.symlink_metadata().expect("it is ours");
        if it.is_dir() {
            pending.extend(
                fs::read_dir(&path).expect("it is ours").flatten().map(|entry| entry.path()),
            );
        }
        found.insert(path, (it.ino(), it.ctime(), it.ctime_nsec(), it.len()));
    }
    found
}

#[test]
fn audit_names_rm_force_for_unreadable_records() {
    let tare = tare!();
    let id = tare.idle_box();
    fs::write(tare.record(&id).join("record.json"), "no record").unwrap();
    let audit = tare.call(["audit"]).exited(1).stdout_text();
    let said = "leaves it alone ('tare rm -f' ends it)";
    assert!(audit.contains(said), "{audit}");
    tare.call(["rm", "-f", &id]).ok();
    tare.call(["audit"]).ok();
}

#[test]
fn audit_and_ls_modify_no_state() {
    let tare = tare!();
    let (live, orphan) = (tare.idle_box(), tare.idle_box());
    // A keeper writes its own events down, a moment after they were.
    for id in [&live, &orphan] {
        tare.keeper_descriptors(id);
    }
    // The end of it is on no record yet.
    let over = tare.detached(["--name", "over", "--", "true"]);
    eventually("its keeper is gone", || tare.processes_in(&over).is_empty());
    let aside = tare.state_root().join("aside");
    fs::rename(tare.record(&orphan), &aside).unwrap();
    tare.forge_name("lost", "aaaaaaaaaaaa");
    let look = || (marks(&tare.state_root()), tare.footprint());
    let before = look();
    for call in [
        &["audit"][..],
        &["audit", "--json"],
        &["audit", "--wait"],
        &["sweep", "--dry-run"],
        &["sweep", "--dry-run", "--json"],
    ] {
        let code = i32::from(call[0] == "audit");
        tare.call(call).exited(code).said_nothing();
        assert!(look() == before, "{call:?} changed {:?}", look());
    }
    fs::rename(aside, tare.record(&orphan)).unwrap();
    fs::remove_file(tare.name("lost")).unwrap();
    for id in [live, over, orphan] {
        tare.remove(&id);
    }
}

#[test]
fn boxes_of_another_state_root_are_neither_listed_nor_orphans() {
    let tare = tare!();
    let other = TemporaryDirectory::new();
    let root = other.join("state");
    let root = root.to_str().unwrap();
    let start = ["--state-root", root, "run", "-d", "--", "sleep", "1000"];
    let theirs = tare.spawn_call(start).wait().ok().stdout_text();
    let found = audit(&tare, 0);
    assert_eq!(found["boxes"], Value::Array(vec![]), "{found}");
    tare.call(["sweep"]).ok().printed("Nothing to sweep.\n");
    let listed = tare.json(["--state-root", root, "audit", "--json"]);
    assert_eq!(listed["boxes"][0]["id"], theirs.trim_end());
    assert_eq!(listed["boxes"][0]["state"], "running");
    tare.call(["--state-root", root, "rm", "-f", "--all"]).ok();
}

#[test]
fn a_user_without_privileges_sees_what_its_boxes_hold() {
    let tare = unprivileged!();
    let script = "sleep 1000 & setsid sleep 1000 & echo ready; wait";
    let id = tare.detached(["--quiet", "--", "sh", "-c", script]);
    tare.logged(&id, "ready");
    let found = audited(&tare, &id);
    // By their descent: there is no cgroup to ask.
    assert_eq!(found["processes"].as_array().unwrap().len(), 4, "{found}");
    assert_eq!(found["threads"], 4, "{found}");
    assert_eq!(found["kept_by"]["kind"], "keeper");
    tare.remove(&id);
}

/// Another program may have put it there. tare reports it, and does not touch it.
#[test]
fn files_that_tare_did_not_make_in_names_and_claims_are_reported() {
    let tare = tare!();
    let id = tare.detached(["--name", "web", "--", "sleep", "1000"]);
    let names = tare.state_root().join("names");
    let claims = tare.state_root().join("claims");
    fs::create_dir_all(&claims).unwrap();
    let foreign =
        [names.join("file"), tare.name("dangling"), claims.join("99"), names.join("not a key")];
    fs::write(&foreign[0], "mine").unwrap();
    std::os::unix::fs::symlink("/nowhere", &foreign[1]).unwrap();
    fs::write(&foreign[3], "mine").unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &foreign[2], fifo, mode, 0).unwrap();
    let orphans = audit(&tare, 1)["orphans"].clone();
    for path in &foreign {
        let is_it =
            |one: &&Value| one["kind"] == "foreign" && one["path"] == path.to_str().unwrap();
        let found = orphans.as_array().unwrap().iter().find(is_it);
        let found = found.unwrap_or_else(|| panic!("{path:?} is not reported: {orphans}"));
        assert_eq!(found["would"], "leave", "{found}");
    }
    let text = tare.call(["audit"]).exited(1).stdout_text();
    assert!(
        text.contains("was not made by tare; 'tare sweep' leaves it alone (move it elsewhere)")
            && !text.contains("to clean up")
    );
    tare.call(["sweep"]).ok();
    assert!(foreign.iter().all(|path| path.symlink_metadata().is_ok()));
    foreign.iter().for_each(|path| fs::remove_file(path).unwrap());
    tare.call(["audit"]).ok();
    tare.remove(&id);
}

/// Without the link, another box could take the name, and this one could be found only by its id.
#[test]
fn audit_reports_a_recorded_name_that_is_gone() {
    let tare = tare!();
    let id = tare.detached(["--name", "web", "--", "sleep", "1000"]);
    assert_eq!(audit(&tare, 0)["lost"], json!([]));
    fs::remove_file(tare.name("web")).expect("it has a name");
    let lost = &audit(&tare, 1)["lost"][0];
    assert_eq!((&lost["kind"], &lost["name"]), (&json!("name"), &json!("web")), "{lost}");
    let told = tare.call(["audit"]).exited(1).stdout_text();
    assert!(told.contains("has the recorded name web, which does not lead to it"), "{told}");
    tare.call(["rename", &id, "site"]).ok();
    assert_eq!(audit(&tare, 0)["lost"], json!([]));
    tare.remove(&id);
}
