//! Looking at boxes: `ls`, `inspect`, `wait`, and how a box is found. Looking
//! changes nothing.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use serde_json::{Value, json};
use tare_harness::skip::is_root;
use tare_harness::{Output, Tare, TemporaryDirectory, eventually, skip, tare, unix_seconds};

/// A box of this name that only waits.
#[track_caller]
fn named(tare: &Tare, name: &str) -> String {
    tare.detached(["--name", name, "--", "sleep", "1000"])
}

#[track_caller]
fn lines(output: Output) -> Vec<String> {
    let text = output.ok().said_nothing().stdout_text();
    text.lines().map(str::to_owned).collect()
}

fn names(boxes: &Value) -> Vec<&str> {
    let boxes = boxes.as_array().expect("an array");
    let mut names: Vec<&str> = boxes.iter().filter_map(|one| one["name"].as_str()).collect();
    names.sort_unstable();
    names
}

#[test]
fn ls_of_an_empty_state_root_is_empty() {
    let tare = tare!();
    assert_eq!(tare.json(["ls", "--json"]), json!([]));
    assert_eq!(tare.json(["ls", "-a", "--json"]), json!([]));
    tare.call(["ls", "-q"]).ok().printed("").said_nothing();
    for (call, columns) in [
        (&["ls"][..], "ID NAME STATE AGE LEASE COMMAND PROCESSES MEMORY"),
        (&["ls", "-a"], "ID NAME KEY STATE AGE LEASE COMMAND PROCESSES MEMORY"),
    ] {
        let table = lines(tare.call(call));
        assert_eq!(table.len(), 1, "{table:?}");
        assert_eq!(table[0].split_whitespace().collect::<Vec<_>>().join(" "), columns);
    }
}

#[test]
fn ls_a_lists_ended_boxes() {
    let tare = tare!();
    let running = named(&tare, "running");
    let ended = tare.detached(["--name", "ended", "--", "true"]);
    tare.ended(&ended);
    for command in ["ls", "ps"] {
        assert_eq!(lines(tare.call([command, "-q"])), [running.as_str()]);
        assert_eq!(lines(tare.call([command, "-a", "-q"])), [&*running, &*ended]);
        let table = lines(tare.call([command, "-a"]));
        assert_eq!(table.len(), 3, "{table:?}");
        let of = |id: &str| table.iter().find(|line| line.starts_with(id)).cloned();
        let line = of(&running).expect("it is in the table");
        for word in ["running", "sleep 1000"] {
            assert!(line.contains(word), "{word} is not in {line:?}");
        }
        let line = of(&ended).expect("it is in the table");
        assert!(line.contains("exited") && line.contains("true"), "{line:?}");
    }
    tare.remove(&running);
    tare.remove(&ended);
}

#[test]
fn filters_must_all_match() {
    let tare = tare!();
    for (name, label) in [("a", "team=red"), ("b", "team=blue"), ("c", "other=red")] {
        tare.detached(["--name", name, "--label", label, "--", "sleep", "1000"]);
    }
    let ended = tare.detached(["--name", "d", "--label", "team=red", "--", "true"]);
    tare.ended(&ended);
    let filtered = |filters: &[&str]| {
        let mut call = vec!["ls", "-a", "--json"];
        filters.iter().for_each(|one| call.extend(["--filter", one]));
        let found = tare.json(call);
        names(&found).join(" ")
    };
    assert_eq!(filtered(&[]), "a b c d");
    assert_eq!(filtered(&["name=a"]), "a");
    assert_eq!(filtered(&["label=team"]), "a b d");
    assert_eq!(filtered(&["label=team=red"]), "a d");
    assert_eq!(filtered(&["state=running"]), "a b c");
    assert_eq!(filtered(&["label=team=red", "state=exited"]), "d");
    assert_eq!(filtered(&["label=team=red", "label=other"]), "");
    for bad in ["", "nonsense", "colour=red", "state=nonsense", "=", "name"] {
        let output = tare.call(["ls", "--filter", bad]).exited(2).printed("");
        assert!(output.stderr_text().contains("--filter"), "{output}");
    }
    tare.call(["rm", "-f", "--all"]).ok();
}

/// Whether the value is of the kind that is documented for the field.
fn is_documented(field: &str, value: &Value) -> bool {
    let is_time = |value: &Value| value.as_str().is_some_and(|it| unix_seconds(it) > 0);
    match field {
        "id" | "state" => value.is_string(),
        "name" | "key" | "driver" | "cause" | "stuck_on" => value.is_null() || value.is_string(),
        "created_at" => is_time(value),
        "lease_ends_at" | "ended_at" | "ended_after" => value.is_null() || is_time(value),
        "command" => value.as_array().is_some_and(|it| it.iter().all(Value::is_string)),
        "labels" => value.as_object().is_some_and(|it| it.values().all(Value::is_string)),
        "pids" | "memory_bytes" | "exit_code" => value.is_null() || value.is_u64(),
        "attached" | "oom" => value.is_boolean(),
        _ => panic!("{field} is not documented"),
    }
}

const FIELDS: [&str; 18] = [
    "id",
    "name",
    "key",
    "state",
    "driver",
    "created_at",
    "lease_ends_at",
    "command",
    "labels",
    "pids",
    "memory_bytes",
    "exit_code",
    "attached",
    "ended_at",
    "ended_after",
    "cause",
    "oom",
    "stuck_on",
];

#[test]
fn every_documented_field_is_there_and_of_its_kind() {
    let tare = tare!();
    let options = ["--name", "a", "--label", "k=v", "--label", "empty="];
    let command = ["--", "sh", "-c", "sleep 1000; true"];
    let running = tare.detached(options.iter().chain(&command));
    let ended = tare.detached(["--lease", "never", "--", "sh", "-c", "exit 3"]);
    tare.ended(&ended);
    for one in tare.list() {
        let object = one.as_object().expect("an object");
        for field in FIELDS {
            let value = object.get(field).unwrap_or_else(|| panic!("no {field}: {one}"));
            assert!(is_documented(field, value), "{field} is {value}");
        }
        assert_eq!(object.len(), FIELDS.len(), "{one}");
    }
    let one = tare.look(&running);
    assert_eq!((&one["name"], &one["state"]), (&json!("a"), &json!("running")));
    assert_eq!(one["command"], json!(["sh", "-c", "sleep 1000; true"]));
    assert_eq!(one["labels"], json!({"k": "v", "empty": ""}));
    assert_eq!(one["attached"], false);
    assert!(one["pids"].as_u64() >= Some(1), "{one}");
    for field in ["exit_code", "ended_at", "cause", "stuck_on"] {
        assert_eq!(one[field], Value::Null, "{field}");
    }
    let one = tare.look(&ended);
    assert_eq!((&one["name"], &one["exit_code"]), (&Value::Null, &json!(3)));
    assert_eq!(one["lease_ends_at"], Value::Null);
    tare.call(["rm", "-f", "--all"]).ok();
}

/// Whatever a command is called, JSON stays JSON and a line a line.
#[test]
fn hostile_words_of_a_command_do_no_harm() {
    let tare = tare!();
    let word = "a\nb\x1b[31m\"\\é\x7f\u{9b}31m\u{202e}";
    let id = tare.detached(["--label", "k=v", "--", "sh", "-c", "sleep 1000", word]);
    let command = tare.look(&id)["command"].clone();
    assert_eq!(command, json!(["sh", "-c", "sleep 1000", word]));
    let table = tare.call(["ls"]).ok().stdout_text();
    assert_eq!(table.lines().count(), 2, "{table:?}");
    let json = tare.call(["ls", "--json"]).ok().stdout_text();
    let details = tare.call(["inspect", &id]).ok().stdout_text();
    for printed in [table, json, details] {
        let is_obeyed = |it: char| (it.is_control() && it != '\n') || it == '\u{202e}';
        assert!(!printed.contains(is_obeyed), "{printed:?}");
    }
    tare.remove(&id);
}

#[test]
fn inspect_says_everything() {
    let tare = tare!();
    let limits = ["--memory", "64m", "--pids", "40", "-e", "TOKEN=s3cret"];
    let command = ["--name", "a", "--", "sleep", "1000"];
    let id = tare.detached(limits.iter().chain(&command));
    let other = named(&tare, "b");
    let found = tare.json(["inspect", "--json", "a", &other]);
    let ids = [found[0]["id"].clone(), found[1]["id"].clone()];
    assert_eq!(ids, [json!(id), json!(other)]);
    let one = &found[0];
    for field in FIELDS {
        assert!(is_documented(field, &one[field]), "{field} is {}", one[field]);
    }
    for field in ["spec", "usage", "holdings"] {
        assert!(!one[field].is_null(), "no {field}: {one}");
    }
    assert_eq!(one["usage"]["memory_limit_bytes"], 64 << 20, "{one}");
    assert_eq!(one["usage"]["pids_limit"], 40, "{one}");
    let holdings = one["holdings"].to_string();
    assert!(holdings.contains("cgroup"), "{holdings}");
    assert!(!found.to_string().contains("s3cret"), "{found}");
    let output = tare.call(["inspect", "nothing", "a"]).exited(1);
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON all the same");
    assert_eq!(found[0]["id"], id);
    output.said(&["there is no box 'nothing'"]);
    tare.call(["rm", "-f", "a", "b"]).ok();
}

#[test]
fn an_unknown_box_is_an_error_that_says_so() {
    let tare = tare!();
    let commands: [&[&str]; 9] = [
        &["inspect"],
        &["stats"],
        &["logs"],
        &["wait"],
        &["stop"],
        &["kill"],
        &["rm"],
        &["pause"],
        &["resume"],
    ];
    for command in commands {
        for unknown in ["nothing", "aaaaaaaaaaaa", "..", "a/b", "é", ""] {
            let output = tare.call(command.iter().chain(&[unknown])).exited(1);
            let expected = format!("there is no box '{unknown}'");
            assert!(output.stderr_text().contains(&expected), "{output}");
            assert_eq!(output.stderr_text().lines().count(), 1, "{output}");
        }
        if command != ["stats"] {
            tare.call(command).exited(2).printed("");
        }
    }
    tare.call(["attach", "nothing"]).exited(125).said(&["there is no box 'nothing'"]);
    tare.call(["attach"]).exited(125).printed("");
    tare.call(["rename", "nothing", "b"]).exited(1).said(&["there is no box 'nothing'"]);
    tare.call(["update", "--pids", "9", "nothing"]).exited(1).said(&["there is no box 'nothing'"]);
}

#[test]
fn a_prefix_finds_its_box_where_it_is_the_only_one() {
    let tare = tare!();
    let mut ids: Vec<String> = Vec::new();
    // There are 32 first letters: 33 boxes have two that begin alike.
    let twin = loop {
        let id = tare.idle_box();
        let twin = ids.iter().find(|one| one[..1] == id[..1]).cloned();
        ids.push(id);
        if let Some(twin) = twin {
            break twin;
        }
    };
    let id = ids.last().expect("at least two").clone();
    let output = tare.call(["inspect", &id[..1]]).exited(1);
    output.said(&[&id, &twin]);
    let same = id.bytes().zip(twin.bytes()).take_while(|(a, b)| a == b);
    let enough = same.count() + 1;
    for one in [&id, &twin] {
        assert_eq!(tare.json(["inspect", &one[..enough]])[0]["id"], **one);
    }
    // A name wins over a prefix.
    tare.call(["rename", &twin, &id[..enough]]).ok();
    assert_eq!(tare.json(["inspect", &id[..enough]])[0]["id"], *twin);
    assert_eq!(tare.json(["inspect", &id])[0]["id"], *id);
    tare.call(["rm", "-f", "--all"]).ok();
}

#[test]
fn a_command_continues_after_a_box_that_fails() {
    let tare = tare!();
    let steps: [&[&str]; 6] = [
        &["pause"],
        &["resume"],
        &["update", "--pids", "50"],
        &["kill", "-s", "USR2"],
        &["stop", "-t", "0"],
        &["rm"],
    ];
    // USR2 is ignored: a command that it would kill could not be stopped after.
    for name in ["a", "b"] {
        let script = "trap '' USR2; echo up; while :; do sleep 1000; done";
        let id = tare.detached(["--name", name, "--", "sh", "-c", script]);
        tare.logged(&id, "up");
    }
    for command in steps {
        let call = command.iter().chain(&["a", "nothing", "b"]);
        tare.call(call).exited(1).printed("a\nb\n").said(&["there is no box 'nothing'"]);
    }
    assert_eq!(tare.list(), [] as [Value; 0]);
}

/// The failure of another runtime: its every command "recovered" live boxes.
#[test]
fn looking_never_changes_a_box() {
    let tare = tare!();
    let id = tare.detached(["--name", "a", "--", "sh", "-c", "echo up; sleep 1000"]);
    tare.logged(&id, "up");
    let (before, keeper) = (tare.record_files(&id), tare.keeper(&id));
    let locales = ["C", "C.utf8", "de_DE.UTF-8", "tr_TR.UTF-8", "ja_JP.eucJP", "no-such", ""];
    for (round, locale) in (0..50).zip(locales.iter().cycle()) {
        let mut command = tare.command(["ls", "-a", "--json"]);
        command.env_clear().env("TARE_STATE_ROOT", tare.state_root());
        command.env("LC_ALL", locale).env("LANG", locale).env("TZ", "Asia/Kathmandu");
        command.current_dir(["/", "/tmp"][round % 2]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let listed: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&listed[0]["id"], &listed[0]["state"]), (&json!(id), &json!("running")));
    }
    assert_eq!(tare.record_files(&id), before);
    assert_eq!(tare.keeper(&id), keeper);
    tare.exec("a", ["echo", "usable"]).ok().printed("usable\n");
    tare.remove(&id);
}

#[test]
fn another_user_cannot_look_and_changes_nothing() {
    let tare = tare!();
    if !is_root() {
        skip!("only root can become another user");
    }
    let id = named(&tare, "a");
    let directory = TemporaryDirectory::new();
    let program = directory.join("tare");
    fs::copy(tare.program(), &program).unwrap();
    let before = tare.record_files(&id);
    for args in [&["ls", "-a"][..], &["rm", "-f", "a"], &["exec", "a", "true"]] {
        let mut command = std::process::Command::new(&program);
        command.args(args).env("TARE_STATE_ROOT", tare.state_root());
        command.uid(65533).gid(65533).current_dir("/");
        let output = command.output().unwrap();
        assert!(!output.status.success(), "{args:?}: {output:?}");
    }
    assert_eq!(tare.record_files(&id), before);
    assert_eq!(tare.state(&id), "running");
    tare.remove(&id);
}

#[test]
fn wait_prints_exit_codes_in_the_order_of_its_arguments() {
    let tare = tare!();
    let before = tare.detached(["--name", "before", "--", "sh", "-c", "exit 4"]);
    tare.ended(&before);
    let trap = "trap 'exit 5' TERM; echo up; while :; do sleep 0.02; done";
    let after = tare.detached(["--name", "after", "--", "sh", "-c", trap]);
    tare.logged(&after, "up");
    let waiting = tare.spawn_call(["wait", "after", "before", &after]);
    let alone = tare.spawn_call(["wait", &after]);
    // Whether they have begun to wait or not, they give the same answer.
    assert!(!waiting.has_ended() && !alone.has_ended());
    tare.call(["kill", "-s", "TERM", "after"]).ok();
    waiting.wait().ok().printed("5\n4\n5\n").said_nothing();
    alone.wait().ok().printed("5\n");
    tare.call(["wait", "before", "nothing", "after"])
        .exited(1)
        .printed("4\n5\n")
        .said(&["nothing"]);
    tare.call(["rm", "before", "after"]).ok();
}

#[test]
fn an_attached_box_is_listed_too() {
    let tare = tare!();
    let attached = tare.spawn(["--name", "a", "--", "sh", "-c", "echo up; sleep 1000"]);
    attached.see("up");
    let listed = tare.list();
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!(listed[0]["attached"], true, "{listed:?}");
    let refused = tare.call(["attach", "a"]).exited(125).printed("");
    refused.said(&["cannot attach to box a: another tare holds its terminal"]);
    assert_eq!(listed[0]["state"], "running", "{listed:?}");
    assert_eq!(tare.json(["inspect", "a"])[0]["name"], "a");
    tare.call(["logs", "a"]).exited(1).printed("").said(&["a"]);
    tare.call(["kill", "a"]).ok().printed("a\n");
    attached.wait().exited(137);
    assert_eq!(tare.list(), [] as [Value; 0]);
}

#[test]
fn a_box_that_is_renamed_often_keeps_a_short_record() {
    let tare = tare!();
    let id = tare.detached(["--name", "first", "--", "sleep", "1000"]);
    for number in 0..100 {
        tare.call(["rename", &id, &format!("name-{number}")]).ok();
    }
    let record = fs::read_to_string(tare.record(&id).join("record.json")).expect("a record");
    let names = record.lines().filter(|line| line.contains("\"renamed\"")).count();
    assert!(names <= 64, "{names} names");
    tare.call(["inspect", "name-99"]).ok();
    tare.call(["inspect", "name-98"]).exited(1);
    tare.remove(&id);
    for name in ["first", "name-90", "name-99"] {
        tare.call(["explain", name]).ok();
    }
    tare.call(["audit"]).ok();
}

#[test]
fn rename_moves_the_name() {
    let tare = tare!();
    let id = named(&tare, "old");
    let other = named(&tare, "other");
    tare.call(["rename", "old", "new"]).ok();
    assert_eq!(tare.look(&id)["name"], "new");
    tare.call(["inspect", "old"]).exited(1);
    tare.exec("new", ["true"]).ok();
    tare.call(["rename", "new", "other"]).exited(1).said(&["the name other is taken"]);
    for bad in ["", "..", "a/b", "-x", "a b", "é"] {
        tare.call(["rename", "--", "new", bad]).exited(2).printed("");
    }
    assert_eq!(tare.look(&id)["name"], "new");
    // The old name is free, the new one goes with its box.
    let third = named(&tare, "old");
    tare.remove(&id);
    let fourth = named(&tare, "new");
    for id in [other, third, fourth] {
        tare.remove(&id);
    }
}

#[test]
fn watching_goes_on_until_it_is_ended() {
    let tare = tare!();
    let id = named(&tare, "a");
    for command in [&["ls", "--watch"][..], &["stats", "--watch"]] {
        let watching = tare.spawn_call(command);
        watching.see(&id);
        eventually("it goes on", || !watching.has_ended());
        watching.signal(rustix::process::Signal::INT);
        watching.wait();
    }
    tare.remove(&id);
}

/// What is no text is shown, and breaks nothing.
#[test]
fn paths_and_arguments_that_are_no_text_are_listed_and_inspected() {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let raw = |text: &[u8]| OsString::from_vec(text.to_vec());
    let mut volume = directory.path().as_os_str().to_owned();
    volume.push(raw(b":/tmp/b\xffd"));
    let id = tare.detached([
        raw(b"-w"),
        raw(b"/tmp/b\xffd"),
        raw(b"-v"),
        volume,
        raw(b"--"),
        raw(b"sh"),
        raw(b"-c"),
        raw(b"sleep 1000; : \xff"),
    ]);
    let details = &tare.json(["inspect", &id])[0];
    assert_eq!(details["spec"]["workdir"], "/tmp/b\u{fffd}d");
    assert_eq!(tare.look(&id)["command"][2], "sleep 1000; : \u{fffd}");
    tare.remove(&id);
}

#[test]
fn the_lease_of_an_idle_box_is_always_shown_as_the_same_time() {
    let tare = tare!();
    let id = tare.idle_box();
    let seen: std::collections::BTreeSet<String> =
        (0..20).map(|_| tare.look(&id)["lease_ends_at"].to_string()).collect();
    assert_eq!(seen.len(), 1, "{seen:?}");
    tare.remove(&id);
    let output = tare.call(["stats", "--json", "nosuch"]).exited(1);
    assert_eq!(output.stdout_text(), "[]\n");
}

/// In another PID namespace a keeper has no number, and its cgroups may not be shown
/// there; without /proc not even this boot is known.
#[test]
fn a_box_that_a_command_cannot_see_is_not_judged_dead() {
    let tare = tare!();
    if !is_root() {
        skip!("only root can make such places");
    }
    let id = named(&tare, "web");
    for (place, codes) in [
        ("mount -t tmpfs none /sys/fs/cgroup", [0, 1, 1, 0]),
        ("mount -t tmpfs none /proc", [1, 1, 1, 1]),
    ] {
        for (command, code) in ["ls -a", "sweep", "rm -f web", "ls -a"].iter().zip(codes) {
            let inside = format!("{place} && exec \"$TARE\" {command}");
            let script = "exec unshare --pid --fork --mount-proc sh -c \"$1\"";
            let mut looking = tare.shell_command(script);
            looking.args(["sh", &inside]).stdin(Stdio::null());
            looking.stdout(Stdio::piped()).stderr(Stdio::piped());
            tare.start_command(looking).wait().exited(code);
        }
        assert_eq!(tare.json(["inspect", &id])[0]["state"], "running", "{place}");
        tare.call(["exec", &id, "true"]).ok();
    }
    tare.remove(&id);
}

#[test]
fn errors_call_a_box_as_the_user_typed_it() {
    let tare = tare!();
    let id = tare.detached(["--name", "web", "--", "true"]);
    tare.ended(&id);
    let calls: [&[&str]; 6] = [
        &["exec", "web", "--", "true"],
        &["pause", "web"],
        &["kill", "web"],
        &["update", "--lease", "1h", "web"],
        &["kill", "-s", "HUP", "web"],
        &["cp", "web:/etc/hostname", "/tmp"],
    ];
    for call in calls {
        let output = tare.call(call);
        let said = output.stderr_text();
        assert!(said.contains("box web") && !said.contains(&id), "{call:?}: {said}");
    }
    let said = tare.call(["pause", &id[..6]]).exited(1).stderr_text();
    assert!(said.contains(&format!("box {}", &id[..6])), "{said}");
    tare.remove(&id);
}
