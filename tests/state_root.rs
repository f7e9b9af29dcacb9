//! A state root that other programs disturb: a lock that a stopped process holds, files of the
//! wrong type, foreign directories, a record that cannot be removed. tare reports them within a
//! bound, and continues when they are gone.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use rustix::process::Signal;
use tare_harness::skip::is_root;
use tare_harness::{Output, Running, Tare, eventually, skip, tare};

/// Twice what a command waits for a lock, for a busy machine.
const BOUND: Duration = Duration::from_secs(60);

/// One wait for a lock and some time for a busy machine, but not two waits.
const ONCE: Duration = Duration::from_secs(18);

/// A process that holds the lock on a directory and is stopped.
#[track_caller]
fn stopped_holder(tare: &Tare, directory: &Path) -> Running {
    let script = "import fcntl, os, signal, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print('held', flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
";
    let mut command = tare.shell_command("exec python3 -c \"$1\" \"$2\"");
    command.arg("sh").arg(script).arg(directory);
    command.stdout(std::process::Stdio::piped());
    let holder = tare.start_command(command);
    holder.see("held");
    holder
}

#[track_caller]
fn names_holder(output: Output, holder: &Running, lock: &Path) {
    let pid = holder.pid().to_string();
    assert!(output.lasted < BOUND, "{output}");
    output.said(&[&format!("process {pid} (python3)"), lock.to_str().expect("a path of ours")]);
}

#[track_caller]
fn end(holder: Running) {
    holder.signal(Signal::KILL);
    holder.wait();
}

#[test]
fn rm_beside_a_stopped_holder_of_the_names_lock_fails_within_a_bound_and_names_it() {
    let tare = tare!();
    let id = tare.detached(["--name", "web", "--", "sleep", "1000"]);
    let names = tare.state_root().join("names");
    let holder = stopped_holder(&tare, &names);
    let output = tare.call(["rm", "-f", "web"]).exited(1);
    names_holder(output, &holder, &names);
    end(holder);
    tare.call(["rm", "-f", "web"]).ok();
    tare.assert_gone(&id);
}

/// The bounds of the steps of one command do not add up.
#[test]
fn ls_and_rename_beside_a_stopped_holder_of_the_names_lock_wait_once() {
    let tare = tare!();
    let id = tare.detached(["--name", "web", "--", "sleep", "1000"]);
    let over = tare.detached(["--name", "over", "--rm", "--", "sleep", "1000"]);
    let names = tare.state_root().join("names");
    let holder = stopped_holder(&tare, &names);
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(tare.keeper(&over).pid as i32).unwrap(),
        Signal::KILL,
    )
    .unwrap();
    eventually("its keeper is dead", || tare.processes_in(&over).is_empty());
    let output = tare.call(["ls"]).ok();
    assert!(output.lasted < ONCE, "{output}");
    // The name of a box that should be gone, and then one that is free.
    for wanted in ["over", "other"] {
        let output = tare.call(["rename", &id, wanted]).exited(1);
        assert!(output.lasted < ONCE, "{output}");
        names_holder(output, &holder, &names);
    }
    end(holder);
    tare.call(["rename", &id, "last"]).ok();
    assert_eq!(tare.look(&id)["name"], "last");
    tare.call(["rm", "-f", "last"]).ok();
    tare.assert_gone(&id);
    assert_eq!(tare.list().len(), 0);
    assert_eq!(fs::read_dir(&names).unwrap().count(), 0);
}

#[test]
fn run_beside_a_stopped_holder_of_the_records_lock_fails_within_a_bound_and_names_it() {
    let tare = tare!();
    tare.run(["--", "true"]).ok();
    let boxes = tare.state_root().join("boxes");
    let holder = stopped_holder(&tare, &boxes);
    for call in [&["--", "true"][..], &["-d", "--", "true"]] {
        names_holder(tare.run(call).exited(125), &holder, &boxes);
    }
    tare.call(["ls"]).ok();
    end(holder);
    tare.run(["--", "true"]).ok();
}

#[test]
fn stop_beside_a_stopped_holder_of_the_record_lock_fails_within_a_bound_and_names_it() {
    let tare = tare!();
    let id = tare.idle_box();
    let holder = stopped_holder(&tare, &tare.record(&id));
    let output = tare.call(["stop", "-t", "0", &id]).exited(1);
    names_holder(output, &holder, &tare.record(&id));
    end(holder);
    tare.call(["rm", "-f", &id]).ok();
}

#[test]
fn run_with_fifos_in_place_of_lock_files_fails_and_does_not_wait() {
    let tare = tare!();
    tare.run(["--", "true"]).ok();
    let claims = tare.state_root().join("claims");
    for number in 0..16 {
        let file = claims.join(number.to_string());
        fs::remove_file(&file).ok();
        mknodat(CWD, &file, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    }
    for call in [&["--", "true"][..], &["-d", "--", "true"]] {
        let output = tare.run(call).exited(125);
        assert!(output.lasted < BOUND, "{output}");
        output.said(&["claims", "not a regular file"]);
    }
    assert_eq!(tare.list().len(), 0);
    fs::remove_dir_all(&claims).unwrap();
    tare.run(["--", "true"]).ok();
}

/// Twelve letters, as an id has.
const LIKE_AN_ID: &str = "aaaabbbbcccc";

#[test]
fn a_foreign_directory_named_like_an_id_is_reported_and_keeps_its_contents() {
    let tare = tare!();
    tare.run(["--", "true"]).ok();
    let foreign = tare.state_root().join("boxes").join(LIKE_AN_ID);
    fs::create_dir_all(foreign.join("photos")).unwrap();
    // A file of that name is no mark: other programs have one too.
    fs::write(foreign.join("record.json"), "{\"mine\":true}\n").unwrap();
    fs::write(foreign.join("photos/1"), "mine").unwrap();
    let is_whole = || fs::read_to_string(foreign.join("photos/1")).unwrap() == "mine";
    for call in [&["ls"][..], &["sweep"], &["run", "--", "true"]] {
        tare.call(call);
        assert!(is_whole(), "{call:?}");
    }
    let listed = tare.look(LIKE_AN_ID);
    assert_eq!(listed["state"], "stuck", "{listed}");
    let why = listed["stuck_on"].as_str().unwrap();
    assert!(why.contains("not a record of tare"), "{why}");
    let audit = tare.call(["audit"]).exited(1).stdout_text();
    assert!(audit.contains("not a record of tare"), "{audit}");
    for call in [&["rm", "-f", LIKE_AN_ID][..], &["stop", LIKE_AN_ID], &["rm", "-f", "--all"]] {
        tare.call(call).exited(1).said(&["photos", "move it elsewhere"]);
        assert!(is_whole(), "{call:?}");
    }
    fs::remove_dir_all(&foreign).unwrap();
    tare.call(["audit"]).ok();
}

/// Files with the names of a record's files are not a mark of tare.
#[test]
fn a_foreign_directory_with_tares_file_names_is_reported_and_keeps_its_contents() {
    let tare = tare!();
    tare.run(["--", "true"]).ok();
    let foreign = tare.state_root().join("boxes").join(LIKE_AN_ID);
    fs::create_dir_all(foreign.join("scratch")).unwrap();
    for (name, content) in [("log.0", "mine"), ("scratch/1", "mine"), ("record.json", "mine")] {
        fs::write(foreign.join(name), content).unwrap();
    }
    let is_whole = || fs::read_to_string(foreign.join("scratch/1")).unwrap() == "mine";
    for call in [&["ls"][..], &["sweep"], &["run", "--", "true"], &["rm", "-f", LIKE_AN_ID]] {
        tare.call(call);
        assert!(is_whole(), "{call:?}");
    }
    assert_eq!(tare.look(LIKE_AN_ID)["state"], "stuck");
    let audit = tare.call(["audit"]).exited(1).stdout_text();
    assert!(audit.contains("not a record of tare"), "{audit}");
    fs::remove_dir_all(&foreign).unwrap();
    tare.call(["audit"]).ok();
}

/// A creator that is killed at once leaves an empty directory without a record file.
#[test]
fn an_empty_directory_named_like_an_id_is_removed() {
    let tare = tare!();
    tare.run(["--", "true"]).ok();
    let half_made = tare.state_root().join("boxes").join(LIKE_AN_ID);
    fs::create_dir(&half_made).unwrap();
    tare.call(["ls"]).ok();
    assert!(!half_made.exists());
}

#[test]
fn a_box_whose_removal_failed_keeps_its_name_and_its_record() {
    let tare = tare!();
    if !is_root() {
        skip!("only root can mount something in a record");
    }
    // A mount point cannot be removed: one in the record, and the record itself.
    for place in ["log.0", ""] {
        let id = tare.detached(["--keep", "--name", "web", "--", "sleep", "1000"]);
        let created = tare.look(&id)["created_at"].clone();
        let point = tare.record(&id).join(place);
        mount_bind(&point, &point).unwrap();
        tare.call(["rm", "-f", "web"]).exited(1);
        tare.call(["inspect", "web"]).ok();
        let listed = tare.look(&id);
        assert_eq!(listed["name"], "web", "{listed}");
        assert_eq!(listed["state"], "stuck", "{listed}");
        assert_eq!(listed["created_at"], created, "{listed}");
        tare.call(["rm", "web"]).exited(1);
        unmount(&point, UnmountFlags::DETACH).unwrap();
        tare.call(["rm", "-f", "web"]).ok();
        tare.assert_gone(&id);
        assert!(!tare.name("web").is_symlink());
    }
}

#[test]
fn a_name_that_outlived_its_record_is_released_by_the_next_command() {
    let tare = tare!();
    tare.run(["--name", "web", "--", "true"]).ok();
    tare.forge_name("web", LIKE_AN_ID);
    tare.call(["ls"]).ok();
    assert!(!tare.name("web").is_symlink());
}

/// A creator that is killed before it takes the name, or a removal after it released the last one,
/// leaves an empty directory.
#[test]
fn the_directory_of_a_tenant_goes_with_its_last_name() {
    let tare = tare!();
    let names = tare.state_root().join("names");
    let left = || fs::read_dir(&names).expect("names are there").count();
    tare.run(["--name", "web", "--", "true"]).ok();
    assert_eq!(left(), 0);
    let boxes = ["a", "b"].map(|name| tare.detached(["--name", name, "--", "sleep", "1000"]));
    tare.remove(&boxes[0]);
    assert_eq!(left(), 1, "b has a name");
    tare.call(["rename", "b", "c"]).ok();
    tare.remove(&boxes[1]);
    assert_eq!(left(), 0);
    for tenant in ["-", "ci"] {
        fs::create_dir(names.join(tenant)).expect("it is ours");
    }
    tare.call(["ls"]).ok();
    assert_eq!(left(), 0);
}

/// Each creation may meet the removal of the directory that it was about to use.
#[test]
fn names_are_taken_while_the_directory_of_their_tenant_comes_and_goes() {
    let tare = tare!();
    for _round in 0..20 {
        let name = |number: usize| format!("box-{number}");
        let run = |number: usize| tare.spawn_call(["run", "--name", &name(number), "--", "true"]);
        let runs: Vec<_> = (0..8).map(run).collect();
        for run in runs {
            run.wait().ok();
        }
    }
    assert_eq!(fs::read_dir(tare.state_root().join("names")).expect("a directory").count(), 0);
}
