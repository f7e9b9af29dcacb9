//! A receipt agrees with a look at the host that does not use tare, for each kind of removal. It
//! never says that something is gone which still exists.

mod host_look;

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::process::{PidfdGetfdFlags, Signal, pidfd_getfd};
use serde_json::Value;
use tare_harness::scene::pidfd;
use tare_harness::skip::{has_program, is_root};
use tare_harness::{Freezer, Tare, TemporaryDirectory, eventually, skip, tare, unprivileged};

pub use host_look::{HostLook, boot_ns, item};

/// Two processes, and a file in the scratch space.
const SCRIPT: &str = "echo x > /work/file; sleep 1000 & echo ready; wait";

/// Starts a detached box with two processes, and looks at the host.
fn started(tare: &Tare, options: &[&str]) -> (String, HostLook) {
    let id = tare.detached(options.iter().chain(&["--", "sh", "-c", SCRIPT]));
    tare.logged(&id, "ready");
    let look = HostLook::at(tare, &id);
    assert_eq!(look.processes.len(), 2, "{look:?}");
    (id, look)
}

/// The id of the box that has this name.
#[track_caller]
fn id_named(tare: &Tare, name: &str) -> String {
    let found = tare.list().into_iter().find(|one| one["name"] == name);
    found.expect("it is listed")["id"].as_str().expect("a text").to_owned()
}

fn receipt_of(tare: &Tare, reference: &str) -> Value {
    tare.json(["receipt", reference, "--json"])
}

/// Removes a box, and returns the receipt that `rm` prints. `tare receipt` shows the same.
#[track_caller]
fn removed(tare: &Tare, args: &[&str]) -> Value {
    let printed = tare.json(args);
    let [receipt] = printed.as_array().expect("an array").as_slice() else {
        panic!("{printed}");
    };
    assert_eq!(receipt_of(tare, receipt["id"].as_str().expect("a text")), *receipt);
    receipt.clone()
}

/// The second line has only what tare saw after it had removed the record.
#[test]
fn the_history_of_a_box_with_a_receipt_is_stored_once() {
    let tare = tare!();
    let id = tare.idle_box();
    tare.remove(&id);
    let stored = fs::read_to_string(tare.state_root().join("histories/1")).unwrap();
    let lines: Vec<&str> = stored.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(lines.len(), 2, "{stored}");
    assert_eq!(stored.matches("\"intent\"").count(), 1, "{stored}");
    assert!(lines[1].len() < 600, "{}: {}", lines[1].len(), lines[1]);
    assert_eq!(tare.json(["receipt", &id, "--json"])["complete"], true);
}

#[test]
fn the_receipt_of_a_running_box_names_what_the_host_showed() {
    let tare = tare!();
    let before = boot_ns();
    let (id, look) = started(&tare, &["--name", "web"]);
    let receipt = removed(&tare, &["rm", "-f", "--json", "web"]);
    look.agrees(&tare, &receipt, before);
    assert_eq!((&receipt["id"], &receipt["name"]), (&id.into(), &"web".into()));
    assert_eq!(receipt["why"], "requested");
    look.is_gone(&tare);
}

#[test]
fn stop_kill_and_rm_make_one_receipt_together() {
    let tare = tare!();
    for (number, end) in [&["stop", "-t", "0"][..], &["kill"]].into_iter().enumerate() {
        let before = boot_ns();
        let name = format!("box{number}");
        let (id, look) = started(&tare, &["--name", &name]);
        tare.call(end.iter().chain(&[&*id])).ok();
        // The record is left, and everything else is gone.
        let refused = tare.call(["receipt", &name]).exited(1);
        refused.said(&[&format!("box {name} is not removed, so it has no receipt")]);
        let ended = boot_ns();
        let receipt = removed(&tare, &["rm", "--json", &id]);
        look.agrees(&tare, &receipt, before);
        for kind in ["keeper", "process", "cgroup", "uid_range"] {
            let seen = item(&receipt, kind)["gone"]["boot_ns"].as_u64().unwrap();
            assert!(seen < ended, "{kind}: {receipt}");
        }
        let seen = item(&receipt, "record")["gone"]["boot_ns"].as_u64().unwrap();
        assert!(seen > ended, "{receipt}");
        look.is_gone(&tare);
    }
}

#[test]
fn timeout_and_lease_leave_a_box_whose_receipt_agrees_with_the_host() {
    let tare = tare!();
    for option in ["--timeout", "--lease"] {
        let before = boot_ns();
        let (id, look) = started(&tare, &[option, "2s"]);
        eventually("the box is over", || tare.processes_in(&id).is_empty());
        tare.ended(&id);
        let receipt = removed(&tare, &["rm", "--json", &id]);
        // The keeper ended the box, so tare did not look before.
        assert_eq!(receipt["looked"], Value::Null, "{receipt}");
        look.agrees_after_the_end(&tare, &receipt, before);
        look.is_gone(&tare);
    }
}

#[test]
fn a_box_that_keeps_nothing_has_a_receipt_after_its_end() {
    let tare = tare!();
    let before = boot_ns();
    let wait = "echo ready; while [ ! -e /work/go ]; do sleep 0.01; done";
    let id = tare.detached(["--rm", "--name", "web", "--", "sh", "-c", wait]);
    tare.logged(&id, "ready");
    let look = HostLook::at(&tare, &id);
    tare.exec(&id, ["touch", "/work/go"]);
    eventually("it is removed", || tare.listed(&id).is_none());
    let receipt = receipt_of(&tare, "web");
    assert_eq!(receipt["why"], "remove_after_end");
    look.agrees_after_the_end(&tare, &receipt, before);
    look.is_gone(&tare);
}

#[test]
fn a_box_past_its_retention_has_a_receipt_while_the_history_is_kept() {
    let tare = tare!();
    let before = boot_ns();
    let (id, look) = started(&tare, &["--retention", "2s"]);
    tare.call(["kill", &id]).ok();
    eventually("it is removed", || {
        tare.call(["sweep"]).ok();
        !tare.record(&id).exists()
    });
    let receipt = receipt_of(&tare, &id);
    assert_eq!(receipt["why"], "expired", "{receipt}");
    look.agrees(&tare, &receipt, before);
    look.is_gone(&tare);
    eventually("the history is over", || tare.call(["receipt", &id]).code == 1);
    let refused = tare.call(["receipt", &id]).exited(1);
    refused.said(&["there is no box", "kept for its retention"]);
}

#[test]
fn a_box_whose_creator_was_killed_has_a_receipt() {
    let tare = tare!();
    let before = boot_ns();
    let running = tare.spawn(["--name", "web", "--", "sh", "-c", SCRIPT]);
    running.see("ready");
    let id = id_named(&tare, "web");
    let look = HostLook::at(&tare, &id);
    running.signal(Signal::KILL);
    running.wait();
    tare.call(["sweep"]).ok();
    let receipt = receipt_of(&tare, &id);
    assert_eq!(receipt["why"], "abandoned", "{receipt}");
    look.agrees_after_the_end(&tare, &receipt, before);
    look.is_gone(&tare);
}

#[test]
fn an_attached_box_that_another_command_ends_has_a_receipt() {
    let tare = tare!();
    let before = boot_ns();
    let running = tare.spawn(["--name", "web", "--", "sh", "-c", SCRIPT]);
    running.see("ready");
    let look = HostLook::at(&tare, &id_named(&tare, "web"));
    let receipt = removed(&tare, &["rm", "-f", "--json", "web"]);
    running.wait().exited(137);
    look.agrees(&tare, &receipt, before);
    look.is_gone(&tare);
}

#[test]
fn a_run_prints_its_receipt_where_it_was_asked_to() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let file = directory.join("receipt.json");
    let option = format!("--receipt={}", file.display());
    let parsed = |text: &str| -> Value {
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
    };
    let output = tare
        .run(["--receipt", "--quiet", "--", "sh", "-c", "echo out; echo err >&2; exit 3"])
        .exited(3);
    assert_eq!(output.stdout_text(), "out\n");
    let text = output.stderr_text();
    let on_stderr = parsed(text.strip_prefix("err\n").unwrap_or_else(|| panic!("{text}")));
    let output = tare.run(["--receipt", "--json", "--", "true"]).ok().said_nothing();
    let in_result = parsed(&output.stdout_text())["receipt"].clone();
    let output = tare.run([&*option, "--quiet", "--", "true"]).ok().said_nothing();
    assert_eq!(output.stdout_text(), "");
    let in_file = parsed(&fs::read_to_string(&file).unwrap());
    for receipt in [on_stderr, in_result, in_file] {
        assert_eq!(receipt["complete"], true, "{receipt}");
        assert_eq!(receipt["why"], "by_creator", "{receipt}");
        assert_eq!(receipt_of(&tare, receipt["id"].as_str().unwrap()), receipt);
    }
    // Without the option, there is none.
    let id = parsed(&tare.run(["--json", "--", "true"]).ok().stdout_text());
    assert_eq!(id["receipt"], Value::Null);
    tare.call(["receipt", id["id"].as_str().unwrap()]).exited(1);
    let missing = format!("--receipt={}", directory.join("no/file").display());
    tare.run([&*missing, "--", "true"]).exited(125).said(&["cannot write the receipt to"]);
    tare.run(["-d", "--receipt", "--", "true"]).exited(125);
}

#[test]
fn the_receipt_of_a_run_names_what_the_host_showed() {
    let tare = tare!();
    let before = boot_ns();
    let script = "echo ready; read line";
    let mut running =
        tare.spawn(["--receipt", "--quiet", "--name", "web", "-i", "--", "sh", "-c", script]);
    running.see("ready");
    let look = HostLook::at(&tare, &id_named(&tare, "web"));
    running.write(b"\n");
    running.close_stdin();
    let output = running.wait().ok();
    let receipt: Value = serde_json::from_str(&output.stderr_text()).unwrap();
    look.agrees(&tare, &receipt, before);
    look.is_gone(&tare);
}

#[test]
fn a_receipt_names_ports_kept_scratch_and_volumes() {
    let tare = tare!();
    if !is_root() || !has_program("python3") {
        skip!("it takes python3, and root for a kept scratch space with a size");
    }
    let before = boot_ns();
    let volume = TemporaryDirectory::new();
    volume.write("file", "mine");
    let mapped = format!("{}:/mnt/it", volume.text());
    let listen = "import socket, time
tcp = socket.create_server(('127.0.0.1', 0))
open('/work/large', 'wb').write(bytes(3 << 20))
print('port', tcp.getsockname()[1], flush=True)
time.sleep(1000)";
    let options =
        ["--keep", "--net", "host", "--quiet", "-v", &mapped, "--", "python3", "-c", listen];
    let id = tare.detached(options);
    tare.logged(&id, "port");
    let look = HostLook::at(&tare, &id);
    assert_eq!(look.ports.len(), 1, "{look:?}");
    let receipt = removed(&tare, &["rm", "-f", "--json", &id]);
    look.agrees(&tare, &receipt, before);
    look.is_gone(&tare);
    let port = item(&receipt, "port")["what"][0].as_str().unwrap().to_owned();
    let number = look.ports.iter().next().unwrap();
    assert!(port.starts_with(&format!("tcp 127.0.0.1:{number}, socket ")), "{port}");
    let scratch = item(&receipt, "scratch");
    assert_eq!(scratch["what"][0], tare.record(&id).join("scratch").to_str().unwrap());
    assert!(scratch["bytes"].as_u64().unwrap() >= 3 << 20, "{scratch}");
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&id), "{mounts}");
    assert_eq!(receipt["left_alone"][0]["kind"], "volume", "{receipt}");
    assert_eq!(receipt["left_alone"][0]["what"][0], volume.text());
    assert_eq!(fs::read_to_string(volume.join("file")).unwrap(), "mine");
}

/// Duplicates a descriptor of a process, so that the object behind it outlives the process.
fn duplicate(of: u32, is_it: impl Fn(&Path) -> bool) -> OwnedFd {
    let entries = fs::read_dir(format!("/proc/{of}/fd")).expect("it lives").flatten();
    let mut its = entries.filter(|entry| fs::read_link(entry.path()).is_ok_and(|it| is_it(&it)));
    let number = its.next().and_then(|entry| entry.file_name().to_str()?.parse().ok());
    let pidfd = pidfd(of).expect("it lives");
    let number = number.expect("it is open");
    pidfd_getfd(pidfd, number, PidfdGetfdFlags::empty()).expect("root may duplicate it")
}

/// The test keeps the lock on the uid range and the listening socket of a box.
#[test]
fn a_receipt_does_not_claim_that_objects_are_gone_which_another_process_holds() {
    let tare = tare!();
    if !is_root() || !has_program("python3") {
        skip!("it takes python3, and root to take descriptors of the box");
    }
    let listen = "import socket, time
tcp = socket.create_server(('127.0.0.1', 0))
print('port', tcp.getsockname()[1], flush=True)
time.sleep(1000)";
    let id = tare.detached(["--net", "host", "--quiet", "--", "python3", "-c", listen]);
    tare.logged(&id, "port");
    let claims = tare.state_root().join("claims");
    let claim = duplicate(tare.keeper(&id).pid, |it| it.starts_with(&claims));
    let is_socket = |it: &Path| it.to_str().is_some_and(|it| it.starts_with("socket:"));
    let socket = duplicate(tare.workload(&id)[0].pid, is_socket);
    let receipt = removed(&tare, &["rm", "-f", "--json", &id]);
    drop((claim, socket));
    assert_eq!(receipt["complete"], false, "{receipt}");
    for item in receipt["held"].as_array().unwrap() {
        let is_held = ["uid_range", "port"].contains(&item["kind"].as_str().unwrap());
        let is_settled = item["gone"].is_object() || item["not_observed"].is_string();
        assert_eq!(is_settled, !is_held, "{item}");
    }
    let text = tare.call(["receipt", &id]).ok().stdout_text();
    assert!(text.contains("not seen gone") && text.contains("Not everything was seen gone."));
    tare.assert_gone(&id);
}

#[test]
fn a_stuck_box_has_no_receipt_until_it_is_gone() {
    let tare = tare!();
    let Some(freezer) = Freezer::new() else {
        skip!("there is no freezer of cgroup version 1");
    };
    let before = boot_ns();
    let (id, look) = started(&tare, &["--name", "web"]);
    freezer.freeze(tare.workload(&id)[0].pid);
    let output = tare.call(["rm", "-f", "--json", &id]).exited(1);
    assert_eq!(output.stdout_text(), "[]\n", "{output}");
    tare.call(["receipt", &id]).exited(1).said(&["is not removed, so it has no receipt"]);
    freezer.thaw();
    eventually("it is removed", || {
        tare.call(["sweep"]);
        !tare.record(&id).exists()
    });
    let receipt = receipt_of(&tare, "web");
    look.agrees(&tare, &receipt, before);
    look.is_gone(&tare);
}

#[test]
fn the_receipt_of_a_box_with_a_thousand_processes_is_small() {
    let tare = tare!();
    let script = "for i in $(seq 1000); do sleep 1000 & done; echo ready; wait";
    let options = ["--pids", "1100", "--memory", "2g", "--quiet", "--", "sh", "-c", script];
    let id = tare.detached(options);
    tare.logged(&id, "ready");
    let count = tare.workload(&id).len();
    assert_eq!(count, 1001);
    let receipt = removed(&tare, &["rm", "-f", "--json", &id]);
    assert_eq!(item(&receipt, "process")["count"], count, "{receipt}");
    assert_eq!(item(&receipt, "process")["what"].as_array().unwrap().len(), 32);
    assert_eq!(receipt["complete"], true, "{receipt}");
    assert!(receipt.to_string().len() < 8 << 10, "{}", receipt.to_string().len());
    tare.assert_gone(&id);
}

#[test]
fn a_user_without_privileges_gets_receipts() {
    let tare = unprivileged!();
    let before = boot_ns();
    let script = "sleep 1000 & echo ready; wait";
    let id = tare.detached(["--quiet", "--", "sh", "-c", script]);
    tare.logged(&id, "ready");
    let receipt = removed(&tare, &["rm", "-f", "--json", &id]);
    assert_eq!(receipt["complete"], true, "{receipt}");
    assert_eq!(item(&receipt, "process")["count"], 2, "{receipt}");
    let seen = item(&receipt, "keeper")["gone"]["boot_ns"].as_u64().unwrap();
    assert!((before..boot_ns()).contains(&seen), "{receipt}");
    tare.assert_gone(&id);
}

/// The box is removed by the next command. Its receipt says what it held, whichever step it was.
#[test]
fn a_receipt_survives_a_crash_of_rm_at_every_step() {
    let tare = tare!();
    let Some(faulty) = crate::crash_steps::faulty_tare() else {
        skip!("tests/build-faults did not run");
    };
    for step in 1.. {
        let id = tare.detached(["--name", "web", "--", "sleep", "1000"]);
        let keeper = format!("pid {}", tare.keeper(&id).pid);
        let mut rm = std::process::Command::new(&faulty);
        rm.args(["rm", "-f", &id]).env("TARE_STATE_ROOT", tare.state_root());
        rm.env("TARE_FAULT", format!("kill@{step}"));
        rm.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::piped());
        let output = tare.start_command({
            rm.stderr(std::process::Stdio::piped());
            rm
        });
        let code = output.wait().code;
        if tare.record(&id).exists() {
            tare.call(["rm", "-f", &id]).ok();
        } else {
            tare.call(["sweep"]).ok();
        }
        tare.reap_orphans();
        tare.assert_gone(&id);
        let receipt = receipt_of(&tare, &id);
        assert_eq!(item(&receipt, "keeper")["what"][0], keeper, "step {step}: {receipt}");
        assert!(item(&receipt, "cgroup")["gone"].is_object(), "step {step}: {receipt}");
        if code == 0 {
            assert_eq!(receipt["complete"], true, "{receipt}");
            return;
        }
    }
}

/// Every name of a field in a value, and in what is in it.
fn fields(of: &Value, found: &mut BTreeSet<String>) {
    match of {
        Value::Object(fields_of) => {
            for (name, value) in fields_of {
                found.insert(name.clone());
                // Its fields are kinds of descriptors.
                if name != "descriptors" {
                    fields(value, found);
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| fields(value, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn every_field_of_audits_and_receipts_is_documented() {
    let tare = tare!();
    let volume = TemporaryDirectory::new();
    let mapped = format!("{}:/mnt/it", volume.text());
    let (id, _) = started(&tare, &["-v", &mapped]);
    tare.remove(&id);
    let (live, _) = started(&tare, &["--name", "live"]);
    let ended = tare.detached(["--", "true"]);
    tare.ended(&ended);
    tare.forge_name("lost", "aaaaaaaaaaaa");
    let output = tare.call(["audit", "--since", "1h", "--json"]).exited(1);
    let audit: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(audit["removed"][0]["receipt"], receipt_of(&tare, &id));
    let mut found = BTreeSet::new();
    fields(&audit, &mut found);
    let documented = include_str!("../docs/json.md");
    let is_documented = |name: &&String| {
        documented.contains(&format!("`{name}`"))
            || documented.contains(&format!("`{{\"kind\": \"retention\", \"{name}\""))
    };
    let missing = found.iter().filter(|name| !is_documented(name));
    assert_eq!(missing.collect::<Vec<_>>(), [""; 0], "not in docs/json.md");
    // Every kind and every check has a row in docs/audit.md.
    let page = include_str!("../docs/audit.md");
    for item in audit["removed"][0]["receipt"]["held"].as_array().unwrap() {
        let words = [&item["kind"], &item["gone"]["check"]].into_iter().filter_map(Value::as_str);
        for word in words {
            assert!(page.contains(&format!("`{word}`")), "{word}");
        }
    }
    fs::remove_file(tare.name("lost")).unwrap();
    for id in [live, ended] {
        tare.remove(&id);
    }
}

#[test]
fn an_audit_since_a_time_lists_the_boxes_that_were_removed_since() {
    let tare = tare!();
    let (first, _) = started(&tare, &["--name", "web"]);
    tare.remove(&first);
    let audit = tare.json(["audit", "--since", "1h", "--json"]);
    assert_eq!((&audit["version"], &audit["clean"]), (&1.into(), &true.into()), "{audit}");
    let [removed] = audit["removed"].as_array().unwrap().as_slice() else {
        panic!("{audit}");
    };
    assert_eq!((&removed["id"], &removed["name"]), (&(*first).into(), &"web".into()));
    assert_eq!(removed["cause"], "killed");
    assert_eq!(removed["receipt"], receipt_of(&tare, &first));
    let at = removed["removed_at"].as_str().unwrap().to_owned();
    let audit = tare.json(["audit", "--since", "9000-01-01T00:00:00Z", "--json"]);
    assert_eq!(audit["removed"], Value::Array(Vec::new()));
    assert_eq!(tare.json(["audit", "--since", &at, "--json"])["removed"][0]["id"], *first);
    assert_eq!(tare.json(["audit", "--json"])["removed"], Value::Null);
    let text = tare.call(["audit", "--since", "1h"]).ok().stdout_text();
    assert!(text.contains("Removed since then: 1 box\n"), "{text}");
    assert!(text.contains(&format!("{first} (web) at {at}; everything seen gone")), "{text}");
    tare.call(["audit", "--since", "banana"]).exited(2).said(&["neither a duration nor a time"]);
}

#[test]
fn a_receipt_is_complete_by_each_name_that_the_box_had() {
    let tare = tare!();
    let id = tare.detached(["--name", "old", "--", "sleep", "1000"]);
    tare.call(["rename", "old", "new"]).ok();
    tare.call(["rm", "-f", "new"]).ok();
    for reference in ["old", "new", &id] {
        assert_eq!(receipt_of(&tare, reference)["complete"], true, "{reference}");
    }
}

#[test]
fn an_unknown_box_has_no_receipt() {
    let tare = tare!();
    tare.call(["receipt", "nothing"]).exited(1).said(&["there is no box 'nothing'"]);
    tare.call(["receipt"]).exited(2);
}
