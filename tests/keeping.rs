//! `--keep`: the files of a box after its end.

use std::fs;
use std::os::unix::fs::symlink;

use tare_harness::{Tare, TemporaryDirectory, skip, tare, unprivileged};

const WRITES: &str = "mkdir -p deep/er; echo kept > deep/er/file; echo too > /tmp/other
mkdir closed; echo x > closed/in; chmod 500 closed; ln -s /etc link; exit 3";

#[track_caller]
fn ended_box(tare: &Tare, options: &[&str]) -> String {
    let command = ["--quiet", "--keep", "--name", "a", "--", "sh", "-c", WRITES];
    let id = tare.detached(options.iter().chain(&command));
    tare.ended(&id);
    assert_eq!(tare.look(&id)["exit_code"], 3);
    id
}

/// The directory of the kept files, from `inspect`.
#[track_caller]
fn kept(tare: &Tare, id: &str) -> std::path::PathBuf {
    let details = tare.json(["inspect", id]);
    let holdings = details[0]["holdings"].as_array().expect("an array").clone();
    let scratch = holdings.iter().find(|one| one["kind"] == "scratch");
    let path = scratch.expect("it has one")["what"].clone();
    path.as_str().expect("a path").into()
}

#[test]
fn keep_preserves_files_until_the_box_is_removed() {
    let tare = tare!();
    let id = ended_box(&tare, &[]);
    let scratch = kept(&tare, &id);
    assert_eq!(fs::read_to_string(scratch.join("work/deep/er/file")).unwrap(), "kept\n");
    assert_eq!(tare.processes_in(&id).len(), 0);
    tare.remove(&id);
    assert!(!scratch.exists());
}

#[test]
fn cp_reads_kept_files_by_their_names_in_the_box() {
    let tare = tare!();
    let id = ended_box(&tare, &[]);
    let out = TemporaryDirectory::new();
    let to = out.join("out");
    let to = to.to_str().unwrap();
    tare.call(["cp", "a:/work/deep", to]).ok().said_nothing();
    assert_eq!(fs::read_to_string(out.join("out/er/file")).unwrap(), "kept\n");
    let inside = out.join("inside");
    tare.call(["cp", "a:/work/deep/.", inside.to_str().unwrap()]).ok();
    assert!(inside.join("er/file").exists());
    tare.call(["cp", "a:/tmp/other", to]).ok();
    assert_eq!(fs::read_to_string(out.join("out/other")).unwrap(), "too\n");
    tare.call(["cp", "a:/etc/passwd", to]).exited(1).said(&["/etc/passwd", "kept"]);
    tare.remove(&id);
}

#[test]
fn cp_from_an_ended_box_without_kept_files_names_keep() {
    let tare = tare!();
    let id = tare.detached(["--name", "a", "--", "true"]);
    tare.ended(&id);
    tare.call(["cp", "a:/work", "/nowhere"]).exited(1).said(&["its files are gone", "--keep"]);
    tare.remove(&id);
}

/// A link that the box left leads nowhere on the host.
#[test]
fn cp_copies_a_kept_symlink_and_never_follows_it() {
    let tare = tare!();
    let id = ended_box(&tare, &[]);
    let out = TemporaryDirectory::new();
    let to = out.path().to_str().unwrap();
    tare.call(["cp", "a:/work/link/passwd", to]).exited(1);
    tare.call(["cp", "a:/work/link", to]).ok();
    assert_eq!(fs::read_link(out.join("link")).unwrap().to_str(), Some("/etc"));
    // Whatever it is replaced by, only what is the box's own is removed.
    let victim = TemporaryDirectory::new();
    let precious = victim.write("precious", "precious\n");
    let deep = kept(&tare, &id).join("work/deep");
    fs::remove_dir_all(&deep).unwrap();
    symlink(victim.path(), &deep).unwrap();
    tare.remove(&id);
    assert_eq!(fs::read_to_string(precious).unwrap(), "precious\n");
}

#[test]
fn a_kept_scratch_space_has_the_requested_size() {
    let tare = tare!();
    if !skip::is_root() {
        skip!("without privileges it is a directory");
    }
    let fill = "head -c 64m /dev/zero > /work/large; test $(stat -c %s /work/large) -lt 17000000";
    let options = ["--keep", "--scratch", "16m", "--", "sh", "-c", fill];
    let id = tare.detached(options);
    tare.ended(&id);
    assert_eq!(tare.look(&id)["exit_code"], 0, "{}", tare.look(&id));
    tare.remove(&id);
}

#[test]
fn keep_works_without_privileges() {
    let tare = unprivileged!();
    let id = ended_box(&tare, &[]);
    assert!(kept(&tare, &id).join("work/deep/er/file").exists());
    tare.remove(&id);
    let asked = ["-d", "--quiet", "--keep", "--scratch", "16m", "--", "true"];
    tare.run(asked).exited(125).said(&["--scratch", "--keep"]);
}

/// The directory has no size, so each file in it has one.
#[test]
fn a_file_of_a_kept_directory_cannot_be_longer_than_the_scratch_size() {
    let tare = unprivileged!();
    let script = "truncate -s 200m fits && truncate -s 300m sparse";
    let id = tare.detached(["--quiet", "--keep", "--", "sh", "-c", script]);
    // The kernel sends SIGXFSZ (setrlimit(2)).
    assert_eq!(tare.ended(&id)["exit_code"], 128 + 25);
    let length = |name: &str| fs::metadata(kept(&tare, &id).join(name)).map(|it| it.len());
    assert_eq!(length("work/fits").unwrap(), 200 << 20);
    assert_eq!(length("work/sparse").unwrap(), 0);
    tare.remove(&id);
}

#[test]
fn the_kept_scratch_space_of_a_removed_or_killed_box_is_gone() {
    let tare = tare!();
    for round in 0..3 {
        let options = ["--keep", "--name", "a", "--", "sleep", "1000"];
        let id = tare.detached(options);
        match round {
            0 => tare.call(["rm", "-f", "a"]).ok(),
            1 => {
                tare.call(["kill", "a"]).ok();
                tare.call(["rm", "a"]).ok()
            }
            _ => {
                fs::write(tare.record(&id).join("record.json"), "garbage").unwrap();
                tare.call(["rm", "-f", &id]).ok()
            }
        };
        let left = tare.difference_now();
        let left: Vec<_> = left.iter().filter(|line| !line.contains("zombie")).collect();
        assert!(left.is_empty(), "round {round}: {left:?}");
    }
}

#[test]
fn contain_and_keep_are_mutually_exclusive() {
    let tare = tare!();
    tare.run(["-d", "--contain", "--keep", "--", "true"])
        .exited(125)
        .said(&["--contain", "--keep"]);
}
