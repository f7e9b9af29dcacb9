//! A variable that a caller gives to a box or an exec is visible only to its processes. It is in no
//! arguments and no environment of tare's own processes, in no file, and in no output of tare.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tare_harness::{Process, Running, Tare, TemporaryDirectory, eventually, processes, tare};

/// A unique secret, so that the test finds only its own traces.
fn secret(what: &str) -> String {
    format!("s3cret-{what}-{}", std::process::id())
}

fn contains(bytes: &[u8], text: &str) -> bool {
    let mut windows = bytes.windows(text.len());
    windows.any(|window| window == text.as_bytes())
}

/// All processes of the host whose arguments or environment contain this text, except the test.
fn holders_of(text: &str) -> BTreeSet<u32> {
    let has = |process: &Process, file: &str| {
        let path = format!("/proc/{}/{file}", process.pid);
        contains(&fs::read(path).unwrap_or_default(), text)
    };
    let all = processes().into_iter();
    let holders = all.filter(|one| has(one, "environ") || has(one, "cmdline"));
    holders.map(|one| one.pid).filter(|pid| *pid != std::process::id()).collect()
}

/// Everything below a directory, and the directory.
fn all_below(directory: &Path) -> Vec<PathBuf> {
    let mut found = vec![directory.to_owned()];
    for entry in fs::read_dir(directory).expect("it is ours").flatten() {
        if entry.file_type().expect("it is there").is_dir() {
            found.extend(all_below(&entry.path()))
        } else {
            found.push(entry.path())
        }
    }
    found
}

#[track_caller]
fn assert_not_in_state_root(tare: &Tare, secret: &str) {
    for path in all_below(&tare.state_root()) {
        let is_file = path.symlink_metadata().expect("it is there").is_file();
        let name = path.to_string_lossy();
        assert!(!name.contains(secret), "{name} is called so");
        if is_file {
            let content = fs::read(&path).expect("it is ours");
            assert!(!contains(&content, secret), "{name} has a secret");
        }
    }
}

/// Everything that tare says about a box, in every way that it can.
#[track_caller]
fn assert_not_said(tare: &Tare, id: &str, secret: &str) {
    for call in [
        &["inspect", id][..],
        &["explain", id],
        &["explain", id, "--json"],
        &["ls", "-a"],
        &["ls", "-a", "--json"],
        &["stats", "--json"],
        &["logs", id],
        &["logs", "--timestamps", id],
        &["exec", id, "--", "no-such-program"],
        &["exec", "-w", "/no/such", id, "--", "true"],
        &["update", "--pids", "100", id],
    ] {
        let output = tare.call(call);
        assert!(!contains(&output.stdout, secret), "{output}");
        assert!(!contains(&output.stderr, secret), "{output}");
    }
}

/// The ways of giving a variable: by value, by file, and from one's own
/// environment.
fn given(directory: &TemporaryDirectory, secret: &str) -> [Vec<String>; 2] {
    let file = directory.write("variables", format!("TOKEN={secret}\n"));
    [
        vec!["-e".to_owned(), format!("TOKEN={secret}")],
        vec!["--env-file".to_owned(), file.display().to_string()],
    ]
}

fn words<'a>(parts: &[&'a [String]], rest: &[&'a str]) -> Vec<&'a str> {
    let parts = parts.iter().flat_map(|part| part.iter().map(String::as_str));
    parts.chain(rest.iter().copied()).collect()
}

#[test]
fn only_processes_of_a_box_see_its_environment() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let secret = secret("box");
    for option in given(&directory, &secret) {
        let script = "test -n \"$TOKEN\" && echo set; sleep 1000; true";
        let id = tare.detached(words(&[&option], &["--name", "a", "--", "sh", "-c", script]));
        tare.logged(&id, "set");
        let workload: BTreeSet<u32> = tare.workload(&id).iter().map(|one| one.pid).collect();
        let holders = holders_of(&secret);
        assert!(!holders.is_empty() && holders.is_subset(&workload), "{holders:?}");
        assert_not_in_state_root(&tare, &secret);
        assert_not_said(&tare, &id, &secret);
        tare.exec("a", ["sh", "-c", "echo ${TOKEN%%-*}"]).ok().printed("s3cret\n");
        tare.call(["stop", "-t", "0", "a"]).ok();
        assert_not_in_state_root(&tare, &secret);
        assert_not_said(&tare, &id, &secret);
        assert_eq!(holders_of(&secret), BTreeSet::new());
        tare.remove(&id);
    }
}

#[test]
fn only_an_exec_sees_its_own_environment() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let id = tare.idle_box();
    let secret = secret("exec");
    for option in given(&directory, &secret) {
        let script = "test -n \"$TOKEN\" && echo set; read line";
        let rest = [&*id, "--", "sh", "-c", script];
        let start = ["exec".to_owned()];
        let mut client: Running = tare.spawn_call(words(&[&start, &option], &rest));
        client.see("set");
        let mut holders = holders_of(&secret);
        // What the caller typed is in what the caller started.
        assert_eq!(holders.remove(&client.pid()), option[0] == "-e");
        let keeper = tare.keeper(&id).pid;
        assert!(!holders.contains(&keeper), "the keeper shows it");
        let workload: BTreeSet<u32> = tare.workload(&id).iter().map(|one| one.pid).collect();
        assert!(!holders.is_empty() && holders.is_subset(&workload), "{holders:?}");
        assert_not_in_state_root(&tare, &secret);
        assert_not_said(&tare, &id, &secret);
        // The next process does not have it.
        tare.exec(&id, ["sh", "-c", "echo \"<$TOKEN>\""]).ok().printed("<>\n");
        client.write(b"\n");
        client.wait().ok();
    }
    assert_eq!(holders_of(&secret), BTreeSet::new());
    // Nor does one that outlives its client leave it anywhere.
    let variable = format!("TOKEN={secret}");
    tare.call(["exec", "-d", "-e", &variable, &id, "--", "sleep", "999"]).ok();
    eventually("it runs", || tare.workload(&id).len() == 2);
    assert_not_in_state_root(&tare, &secret);
    assert_not_said(&tare, &id, &secret);
    tare.remove(&id);
}

/// The type, mode and owner of a path.
fn described(path: &Path) -> (&'static str, u32, u32) {
    let metadata = path.symlink_metadata().expect("it is there");
    let kind = match metadata.file_type() {
        kind if kind.is_dir() => "directory",
        kind if kind.is_symlink() => "link",
        kind if kind.is_socket() => "socket",
        kind if kind.is_file() => "file",
        _ => "something else",
    };
    let mode = metadata.permissions().mode() & 0o7777;
    (kind, mode, metadata.uid())
}

/// The test has boxes in every state and callers with different umasks.
#[test]
fn only_its_owner_can_read_the_state_root() {
    let tare = tare!();
    let root = tare.state_root().join("deeper");
    for mask in ["000", "022", "077"] {
        let script = format!(
            "umask {mask}; export TARE_STATE_ROOT=$TARE_STATE_ROOT/deeper
            $TARE run -d --keep --name running -- sleep 1000
            $TARE run -d --name ended -- true
            $TARE run -d -i -t --name terminal -- sleep 1000
            $TARE rename running renamed; $TARE update --pids 50 renamed; $TARE pause terminal
            $TARE wait ended; $TARE run --name attached -- true"
        );
        let output = tare.spawn_script(&script).wait();
        let mut all = all_below(&root);
        // What is in the scratch space is the box's own.
        all.retain(|path| !path.iter().any(|part| part == "scratch"));
        let described: Vec<_> = all.iter().map(|path| (path, described(path))).collect();
        let end = "TARE_STATE_ROOT=$TARE_STATE_ROOT/deeper $TARE rm -f --all";
        tare.shell(end).ok();
        fs::remove_dir_all(&root).expect("it is ours");
        assert_eq!(output.stdout_text().lines().count(), 7, "{output}");
        let mut kinds = BTreeSet::new();
        for (path, (kind, mode, uid)) in described {
            let expected = match kind {
                "directory" => 0o700,
                "link" => 0o777,
                _ => 0o600,
            };
            assert_eq!(mode, expected, "{kind} {} with {mask}", path.display());
            assert_eq!(uid, rustix::process::geteuid().as_raw());
            kinds.insert(kind);
        }
        let expected = ["directory", "file", "link", "socket"];
        assert_eq!(kinds, BTreeSet::from(expected));
    }
}
