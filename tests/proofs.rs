//! The proof of a keeper's identity: every tare recognises every keeper, whatever its version,
//! cgroup, clock and namespace, and mistakes no other process for one.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tare_harness::skip::{has_program, is_root};
use tare_harness::witness::assert_untouched;
use tare_harness::{
    Output, Process, Running, Server, Tare, TemporaryDirectory, box_processes, eventually,
    eventually_within, skip, tare, unified_hierarchy, unprivileged,
};

/// `sh -c SCRIPT sh ARGS`, all streams pipes.
#[track_caller]
fn start(tare: &Tare, script: &str, args: &[&str]) -> Running {
    let mut command: Command = tare.shell_command(script);
    command.arg("sh").args(args);
    command.stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    tare.start_command(command)
}

#[track_caller]
fn call(tare: &Tare, script: &str, args: &[&str]) -> Output {
    start(tare, script, args).wait()
}

#[track_caller]
fn parsed(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output}"))
}

fn child_of(parent: u32) -> Option<Process> {
    box_processes().into_iter().find(|it| it.parent == parent)
}

fn is_there(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

fn state_of(pid: u32) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let (_, fields) = stat.rsplit_once(") ").unwrap_or_default();
    fields.chars().take(1).collect()
}

/// Stops a newborn keeper before it has closed the descriptors that it inherited: it has
/// the lock of its record too.
const STOPPED_BIRTH: &str =
    "exec strace -f -e trace=dup3 -e inject=dup3:signal=STOP:when=1 -o \"$@\"";

#[track_caller]
fn newborn_dies_with_its_creator(tare: &Tare) {
    let directory = TemporaryDirectory::new();
    let trace = directory.join("trace");
    fs::write(&trace, "").expect("a fresh directory takes a file");
    fs::set_permissions(&trace, Permissions::from_mode(0o666)).expect("it is ours");
    let (program, trace) = (tare.program().display(), trace.display());
    let (program, trace) = (program.to_string(), trace.to_string());
    let run = [&trace, &program, "run", "-d", "--quiet", "--", "sleep", "1000"];
    let mut strace = tare.shell_command(STOPPED_BIRTH);
    strace.arg("sh").args(run).stdin(Stdio::null());
    // The newborn has its creator's streams open for as long as it exists.
    strace.stdout(Stdio::null()).stderr(Stdio::null());
    let strace = tare.start_command(strace);
    eventually("the newborn was stopped", || {
        let trace = fs::read_to_string(&trace).expect("it was made");
        trace.contains("stopped by SIGSTOP")
    });
    let creator = child_of(strace.pid()).expect("it waits");
    let newborn = child_of(creator.pid).expect("it was stopped");
    assert!(matches!(&*state_of(newborn.pid), "T" | "t"));
    // The creator lives, so nothing is left over.
    tare.call(["audit"]).ok();
    creator.signal(Signal::KILL);
    strace.wait();
    tare.reap_orphans();
    assert!(!is_there(newborn.pid));
    tare.call(["ls", "-a", "-q"]).ok().printed("");
    tare.call(["audit"]).ok();
}

#[test]
fn a_stopped_newborn_keeper_dies_with_its_creator() {
    let tare = tare!();
    if !has_program("strace") {
        skip!("strace is not installed");
    }
    newborn_dies_with_its_creator(&tare);
}

#[test]
fn without_privileges_a_stopped_newborn_keeper_dies_with_its_creator() {
    let tare = unprivileged!();
    if !has_program("strace") {
        skip!("strace is not installed");
    }
    newborn_dies_with_its_creator(&tare);
}

/// strace holds the keeper in a system call, also when it is killed. A busy host takes as long.
#[test]
fn a_box_whose_creator_was_killed_is_never_stuck_while_its_keeper_dies() {
    let tare = tare!();
    if !has_program("strace") || !is_root() {
        skip!("strace is not installed, or may not trace a keeper");
    }
    let hang = "inject=pivot_root:delay_enter=3000000";
    let script = format!(
        "exec strace -D -f -o /dev/null -e trace=pivot_root -e {hang} \
         \"$TARE\" run -d --quiet -- sleep 1000"
    );
    let running = tare.spawn_script(&script);
    let record = || {
        let boxes = fs::read_dir(tare.state_root().join("boxes")).into_iter().flatten();
        let path = boxes.flatten().next()?.path().join("record.json");
        fs::read_to_string(path).ok()
    };
    eventually("its keeper is on record", || record().is_some_and(|it| it.contains("\"keeper\"")));
    running.signal(Signal::KILL);
    let mut states = Vec::new();
    eventually_within(Duration::from_secs(30), "the box is gone", || {
        states.extend(tare.list().iter().map(|one| one["state"].clone()));
        record().is_none()
    });
    assert!(!states.iter().any(|state| state == "stuck"), "{states:?}");
    running.wait();
}

/// A process that runs tare's binary and is not a keeper belongs to the user.
#[test]
fn audit_reports_no_living_tare_command() {
    let tare = tare!();
    let id = tare.idle_box();
    let server = Server::start(&tare, &[]);
    let commands: [&[&str]; 4] = [
        &["run", "--", "sleep", "1000"],
        &["exec", &id, "sleep", "1000"],
        &["logs", "-f", &id],
        &["wait", &id],
    ];
    let mut living: Vec<Running> = commands.iter().map(|it| tare.spawn_call(*it)).collect();
    // The first process of a container may be tare.
    let first = "exec unshare --pid --fork --kill-child --mount-proc \"$TARE\" run sleep 1000";
    living.push(start(&tare, first, &[]));
    eventually("all boxes run", || {
        let boxes = tare.list();
        boxes.len() == 3 && boxes.iter().all(|one| one["state"] == "running")
    });
    for _look in 0..5 {
        tare.call(["audit"]).ok();
        tare.call(["sweep"]).ok().printed("Nothing to sweep.\n");
    }
    assert!(living.iter().all(|it| !it.has_ended()));
    for one in living {
        one.signal(Signal::KILL);
        one.wait();
    }
    server.stop().ok();
    tare.call(["rm", "-f", "--all"]).ok();
    // Nothing waits for the processes of the container, which die after their first one.
    eventually("the container is gone", || box_processes().iter().all(|it| it.is_zombie));
}

/// Root without cgroups: keepers without a record are found by their name and program.
const WITHOUT_CGROUPS: &str = "exec unshare --mount --propagation private \
     sh -c 'umount -lR /sys/fs/cgroup && exec \"$@\"' sh \"$@\"";

/// After an upgrade the file of the program is another one.
#[test]
fn a_keeper_of_another_tare_binary_is_found_without_its_record() {
    let tare = tare!();
    if !is_root() {
        skip!("without privileges the program of a keeper is not shown");
    }
    let directory = TemporaryDirectory::new();
    let before = directory.join("tare").display().to_string();
    fs::copy(tare.program(), &before).expect("a fresh directory takes a file");
    let run = [&before, "run", "-d", "--quiet", "--", "sleep", "1000"];
    let id = call(&tare, WITHOUT_CGROUPS, &run).ok().stdout_text();
    let id = id.trim();
    // It came to us when its creator ended. No cgroup tells whose it is.
    let keeper = child_of(std::process::id()).expect("the keeper lives");
    fs::remove_dir_all(tare.record(id)).expect("it is ours");
    let program = tare.program().display().to_string();
    let audit = call(&tare, WITHOUT_CGROUPS, &[&program, "audit", "--json"]).exited(1);
    let audit = parsed(&audit);
    let orphan = &audit["orphans"][0];
    assert_eq!((&orphan["kind"], &orphan["id"]), (&json!("keeper"), &json!(id)), "{audit}");
    call(&tare, WITHOUT_CGROUPS, &[&program, "sweep"]).ok();
    tare.reap_orphans();
    assert!(!is_there(keeper.pid));
}

#[test]
fn a_program_that_only_calls_itself_a_keeper_is_left_alone() {
    let tare = tare!();
    if !is_root() {
        skip!("only root makes PID namespaces alone");
    }
    let id = tare.idle_box();
    let arguments = fs::read_to_string(format!("/proc/{}/cmdline", tare.keeper(&id).pid));
    let arguments = arguments.expect("the keeper is there");
    let words: Vec<&str> = arguments.split_terminator('\0').collect();
    tare.remove(&id);
    let [name, .., tag, of] = words[..] else {
        panic!("{words:?}");
    };
    let script = "exec unshare --pid --fork --kill-child \
         python3 -c 'import os, sys; os.execv(\"/bin/sh\", sys.argv[1:])' \"$@\"";
    let witness = "echo up; while read line; do echo here; done";
    let stranger = start(&tare, script, &[name, "-c", witness, "sh", tag, of]);
    stranger.see("up");
    let program = tare.program().display().to_string();
    for command in ["audit", "sweep"] {
        call(&tare, WITHOUT_CGROUPS, &[&program, command]).ok();
    }
    assert_untouched(stranger);
}

/// A cgroup beside those of tare, in every hierarchy.
struct Elsewhere(Vec<PathBuf>);

impl Elsewhere {
    fn make(roots: &[PathBuf]) -> Self {
        let make = |root: &PathBuf| {
            let path = root.join("elsewhere");
            fs::create_dir_all(&path).expect("the lane's cgroups are ours");
            path
        };
        Self(roots.iter().map(make).collect())
    }

    fn take(&self, processes: &[Process]) {
        for directory in &self.0 {
            for process in processes {
                let procs = directory.join("cgroup.procs");
                fs::write(procs, process.pid.to_string()).expect("it can be moved");
            }
        }
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        for directory in self.0.iter().filter(|_| !std::thread::panicking()) {
            eventually("it is empty", || fs::remove_dir(directory).is_ok());
        }
    }
}

/// A service manager moved the box, and its socket is gone: only the pidfd's inode is left
/// to prove which process is its keeper.
#[track_caller]
fn moved_box_is_removed(tare: &Tare, script: &str, is_moved_in: impl Fn(&Path) -> bool) {
    let program = tare.program().display().to_string();
    let run = [&program, "run", "-d", "--quiet", "--", "sleep", "1000"];
    let id = call(tare, script, &run).ok().stdout_text();
    let id = id.trim();
    let keeper = tare.keeper(id);
    let directories = tare.cgroups_of(id).into_iter();
    let roots = directories.filter_map(|it| it.parent().map(Path::to_owned));
    let roots: Vec<PathBuf> = roots.filter(|it| is_moved_in(it)).collect();
    let elsewhere = Elsewhere::make(&roots);
    elsewhere.take(&tare.processes_in(id));
    fs::remove_file(tare.record(id).join("control")).expect("it was made");
    let removed = call(tare, script, &[&program, "rm", "-f", id]);
    tare.reap_orphans();
    assert!(!is_there(keeper.pid), "the keeper lives: {removed}");
    removed.ok();
    tare.assert_gone(id);
}

#[test]
fn a_box_that_was_moved_to_another_cgroup_is_removed_without_its_socket() {
    let tare = tare!();
    let Some((unified, _)) = unified_hierarchy().filter(|_| is_root()) else {
        skip!("only root can move processes to other cgroups");
    };
    let plain = "exec \"$@\"";
    moved_box_is_removed(&tare, plain, |root| root == Path::new(&unified));
    moved_box_is_removed(&tare, plain, |_| true);
}

/// There, nothing of a box that was moved is left in its own cgroup.
#[test]
fn on_pure_v2_rm_does_not_succeed_while_a_process_of_the_box_lives() {
    let tare = tare!();
    let Some((unified, _)) = unified_hierarchy().filter(|_| is_root()) else {
        skip!("only root can move processes to other cgroups");
    };
    let pure = format!(
        "exec unshare --mount --propagation private \
         sh -c 'mount --bind {unified} /sys/fs/cgroup && exec \"$@\"' sh \"$@\""
    );
    moved_box_is_removed(&tare, &pure, |_| true);
}

/// A time namespace whose boot clock is a hundred days ahead.
const LATER: &str = "exec unshare --time --boottime 8640000 --fork \"$@\"";

#[test]
fn a_lease_is_judged_by_the_same_clock_in_every_time_namespace() {
    let tare = tare!();
    if !call(&tare, LATER, &["true"]).stderr.is_empty() || !is_root() {
        skip!("unshare(1) or the kernel makes no time namespaces here");
    }
    let program = tare.program().display().to_string();
    let id = tare.detached(["--lease", "1h", "--", "sleep", "1000"]);
    let keeper = tare.keeper(&id);
    for command in [&["ls", "-a"][..], &["sweep"], &["run", "--", "true"], &["audit"]] {
        let words: Vec<&str> = [&[program.as_str()], command].concat();
        call(&tare, LATER, &words).ok();
        assert_eq!(tare.keeper(&id), keeper, "{command:?}");
    }
    assert_eq!(tare.state(&id), "running");
    // What is set from there holds for the keeper, which has another clock.
    call(&tare, LATER, &[&program, "update", "--lease", "1s", &id]).ok();
    eventually("its lease ends it", || tare.state(&id) == "exited");
    tare.remove(&id);
    let run = [&program, "run", "--timeout", "1s", "--", "sleep", "1000"];
    call(&tare, LATER, &run).exited(124);
    let run = [&program, "run", "-d", "--lease", "1h", "--", "sleep", "1000"];
    let id = call(&tare, LATER, &run).ok().stdout_text();
    assert_eq!(tare.state(id.trim()), "running");
    tare.remove(id.trim());
}

/// There the number of our child is that of an unrelated process, which would get its id
/// map.
#[test]
fn tare_refuses_the_proc_of_another_pid_namespace() {
    let tare = tare!();
    if !is_root() {
        skip!("only root makes PID namespaces alone");
    }
    let foreign = "exec unshare --pid --fork \"$TARE\" \"$@\"";
    for (command, code) in [
        (&["run", "--", "true"][..], 125),
        (&["run", "--contain", "--", "true"], 125),
        (&["ls"], 1),
        (&["audit"], 1),
        (&["sweep"], 1),
        (&["rm", "-f", "--all"], 1),
    ] {
        let refused = call(&tare, foreign, command).exited(code);
        refused.said(&["/proc belongs to another PID namespace", "mount -t proc proc /proc"]);
    }
}

/// systemd makes such namespaces for services with `PrivateUsers=full`.
#[test]
fn in_a_user_namespace_that_maps_every_id_to_itself_volumes_are_writable() {
    let tare = tare!();
    if !is_root() {
        skip!("only root can map every id");
    }
    let directory = TemporaryDirectory::new();
    let volume = format!("{}:/data", directory.join(".").display());
    let script = "exec unshare --user sh -c 'echo up; read mapped; exec \"$@\"' sh \"$@\"";
    let command = "echo written > /data/file";
    let program = tare.program().display().to_string();
    let run = [&program, "run", "--quiet", "-v", &volume, "--", "sh", "-c", command];
    let mut running = start(&tare, script, &run);
    running.see("up");
    for map in ["uid_map", "gid_map"] {
        let path = format!("/proc/{}/{map}", running.pid());
        fs::write(path, "0 0 4294967295").expect("root maps every id");
    }
    running.write(b"\n");
    running.wait().ok();
    let written = fs::read_to_string(directory.join("file"));
    assert_eq!(written.expect("the box wrote it"), "written\n");
}
