//! `tare sweep` removes every orphan and finishes every ended box, touches nothing else, and is not
//! delayed by a box that cannot be ended.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;
use tare_harness::skip::is_root;
use tare_harness::{
    Process, Tare, box_processes, eventually, hierarchies, skip, tare, unprivileged,
};

#[track_caller]
fn json(tare: &Tare, args: &[&str], code: i32) -> Value {
    let output = tare.call(args).exited(code);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output}"))
}

#[track_caller]
fn clean(tare: &Tare) {
    tare.reap_orphans();
    tare.call(["audit"]).ok().said_nothing();
    tare.call(["sweep"]).ok().printed("Nothing to sweep.\n");
}

/// The audit names it so and exits with 1, a sweep that only looks says the same, the
/// sweep does it, and then there is nothing any more.
#[track_caller]
fn orphan_is_swept(tare: &Tare, id: &str, kinds: &[&str]) {
    let audit = json(tare, &["audit", "--json"], 1);
    let orphans = audit["orphans"].as_array().expect("an array");
    let found: Vec<&str> = orphans.iter().map(|it| it["kind"].as_str().expect("a text")).collect();
    assert_eq!(found, kinds, "{audit}");
    assert!(orphans.iter().all(|it| it["id"] == id), "{audit}");
    let text = tare.call(["audit"]).exited(1).stdout_text();
    assert!(text.contains(id) && text.contains("'tare sweep'"), "{text}");
    let plan = json(tare, &["sweep", "--dry-run", "--json"], 0);
    assert_eq!(plan[0]["outcome"], "planned", "{plan}");
    let swept = json(tare, &["sweep", "--json"], 0);
    assert_eq!((&swept[0]["id"], &swept[0]["outcome"]), (&id.into(), &"done".into()));
    assert_eq!(swept[0]["would"], plan[0]["would"]);
    tare.assert_gone(id);
    clean(tare);
}

#[test]
fn sweep_ends_a_box_whose_record_was_removed_by_hand() {
    let tare = tare!();
    let id = tare.detached(["--name", "web", "--", "sleep", "1000"]);
    fs::remove_dir_all(tare.record(&id)).unwrap();
    let kinds: &[&str] = if is_root() { &["cgroup", "name"] } else { &["keeper", "name"] };
    orphan_is_swept(&tare, &id, kinds);
}

#[test]
fn sweep_ends_a_box_whose_state_root_was_removed() {
    let tare = tare!();
    if !is_root() {
        skip!("another test does this without privileges");
    }
    let id = tare.detached(["--name", "web", "--", "sleep", "1000"]);
    fs::remove_dir_all(tare.state_root()).unwrap();
    orphan_is_swept(&tare, &id, &["cgroup"]);
}

/// One hierarchy may have several names.
#[track_caller]
fn make(directories: &[PathBuf]) {
    for directory in directories {
        fs::create_dir_all(directory).expect("it is ours");
    }
}

#[test]
fn sweep_removes_cgroups_without_a_record() {
    let tare = tare!();
    if !is_root() {
        skip!("only root can make cgroups");
    }
    let id = tare.idle_box();
    let directories = tare.cgroups_of(&id);
    tare.remove(&id);
    make(&directories);
    orphan_is_swept(&tare, &id, &["cgroup"]);
}

#[test]
fn sweep_releases_a_name_without_a_box() {
    let tare = tare!();
    tare.run(["--", "true"]).ok();
    tare.forge_name("web", "aaaaaaaaaaaa");
    orphan_is_swept(&tare, "aaaaaaaaaaaa", &["name"]);
}

/// The names of each API key are in a directory of their own.
#[test]
fn a_name_of_an_api_key_without_a_box_is_reported_with_the_key_and_released() {
    let tare = tare!();
    tare.run(["--", "true"]).ok();
    let directory = tare.state_root().join("names/ci");
    for command in ["sweep", "ls"] {
        fs::create_dir_all(&directory).expect("the state root is ours");
        symlink("aaaaaaaaaaaa", directory.join("web")).expect("a new name");
        let told = tare.call(["audit"]).exited(1).stdout_text();
        assert!(told.contains("the name ci:web leads to box aaaaaaaaaaaa"), "{told}");
        tare.call([command]).ok();
        assert!(!directory.exists(), "{command}");
    }
}

#[test]
fn sweep_ends_a_keeper_without_cgroup_and_record() {
    let tare = unprivileged!();
    let id = tare.detached(["--quiet", "--", "sh", "-c", "setsid sleep 1000 & sleep 1000"]);
    fs::remove_dir_all(tare.record(&id)).unwrap();
    orphan_is_swept(&tare, &id, &["keeper"]);
    eventually("everyone is gone", || {
        tare.reap_orphans();
        let own = std::process::id();
        !box_processes().iter().any(|it| it.parent == own)
    });
}

#[test]
fn sweep_removes_remains_of_an_ended_box_and_keeps_its_record() {
    let tare = tare!();
    if !is_root() {
        skip!("only root can make cgroups");
    }
    let id = tare.idle_box();
    let directories = tare.cgroups_of(&id);
    tare.call(["stop", "-t", "0", &id]).ok();
    let code = tare.ended(&id)["exit_code"].clone();
    make(&directories);
    let audit = json(&tare, &["audit", "--json"], 1);
    assert_eq!(audit["orphans"][0]["kind"], "remains", "{audit}");
    tare.call(["sweep"]).ok().said_nothing();
    assert!(tare.cgroups_of(&id).is_empty());
    assert_eq!(tare.look(&id)["exit_code"], code);
    clean(&tare);
    tare.remove(&id);
}

/// Starts a box that ends, and waits for its end without running tare.
#[track_caller]
fn over(tare: &Tare, options: &[&str]) -> String {
    let command = ["--quiet", "--", "sh", "-c", "echo out; exit 3"];
    let id = tare.detached(options.iter().chain(&command));
    eventually("it is over", || tare.processes_in(&id).is_empty());
    id
}

#[test]
fn sweep_finishes_an_ended_box_and_keeps_it_until_its_retention_has_passed() {
    let tare = tare!();
    if !is_root() {
        skip!("without cgroups the processes of a box are not known");
    }
    let id = over(&tare, &["--retention", "1h"]);
    tare.call(["audit"]).ok();
    let swept = json(&tare, &["sweep", "--json"], 0);
    assert_eq!((&swept[0]["would"], &swept[0]["outcome"]), (&"finish".into(), &"done".into()));
    assert!(tare.cgroups_of(&id).is_empty());
    clean(&tare);
    assert_eq!(tare.look(&id)["exit_code"], 3);
    tare.call(["logs", &id]).ok().printed("out\n");
    tare.remove(&id);
    for options in [&["--rm"][..], &["--retention", "1ms"]] {
        let id = over(&tare, options);
        tare.call(["sweep"]).ok();
        tare.call(["sweep"]).ok();
        tare.assert_gone(&id);
    }
}

#[test]
fn sweep_removes_a_damaged_record_only_if_no_process_of_its_box_lives() {
    let tare = tare!();
    let (dead, alive) = (tare.idle_box(), tare.idle_box());
    tare.call(["stop", "-t", "0", &dead]).ok();
    for id in [&dead, &alive] {
        fs::write(tare.record(id).join("record.json"), "garbage\n").unwrap();
    }
    let swept = json(&tare, &["sweep", "--json"], 1);
    let outcome = |id: &str| {
        let all = swept.as_array().unwrap().iter();
        all.clone().find(|it| it["id"] == id).unwrap()["outcome"].clone()
    };
    assert_eq!(outcome(&dead), "done", "{swept}");
    assert_eq!(outcome(&alive), "left", "{swept}");
    tare.assert_gone(&dead);
    let text = tare.call(["sweep"]).exited(1).stdout_text();
    assert!(text.starts_with("left ") && text.contains("'tare rm -f' ends it"), "{text}");
    tare.remove(&alive);
}

/// `rm -f` refuses such a directory, so the sweep must not suggest it.
#[test]
fn sweep_says_what_to_do_about_a_foreign_directory_among_the_records() {
    let tare = tare!();
    tare.run(["--", "true"]).ok();
    let foreign = tare.record("aaaaaaaaaaaa");
    fs::create_dir_all(&foreign).unwrap();
    fs::write(foreign.join("mine"), "mine").unwrap();
    let told = tare.call(["audit"]).exited(1).stdout_text();
    let swept = tare.call(["sweep"]).exited(1).stdout_text();
    for text in [told, swept] {
        assert!(text.contains("move it elsewhere"), "{text}");
        assert!(!text.contains("rm -f"), "{text}");
    }
    tare.call(["rm", "-f", "aaaaaaaaaaaa"]).exited(1).said(&["move it elsewhere"]);
    assert_eq!(fs::read_to_string(foreign.join("mine")).unwrap(), "mine");
    fs::remove_dir_all(foreign).unwrap();
}

/// A sweep that waited for its own lock would block every creation.
#[test]
fn a_file_in_the_place_of_a_record_is_removed_and_delays_nothing() {
    let tare = tare!();
    let alive = tare.idle_box();
    let beside = |id: &str| tare.record(&alive).with_file_name(id);
    fs::write(beside("aaaaaaaaaaaa"), "not a directory").unwrap();
    symlink("/nowhere", beside("bbbbbbbbbbbb")).unwrap();
    symlink(std::env::temp_dir(), beside("cccccccccccc")).unwrap();
    let swept = json(&tare, &["sweep", "--json"], 0);
    let all = swept.as_array().unwrap();
    assert!(all.len() == 3 && all.iter().all(|it| it["outcome"] == "done"), "{swept}");
    clean(&tare);
    tare.call(["run", "--", "true"]).ok();
    tare.remove(&alive);
}

/// Boxes that are alive, starting, paused or of another state root.
#[test]
fn sweep_leaves_live_and_foreign_boxes_alone() {
    let tare = tare!();
    let running = tare.idle_box();
    let attached = tare.spawn(["--", "sh", "-c", "echo up; read line; exit 4"]);
    attached.see("up");
    let paused = tare.detached(["--name", "paused", "--", "sleep", "1000"]);
    let is_paused = tare.call(["pause", "paused"]).code == 0;
    // Such a name and another tag, and such a name and no id.
    let strangers: Vec<PathBuf> = if is_root() {
        hierarchies()
            .iter()
            .flat_map(|root| ["tare-aaaaaaaa-aaaaaaaaaaaa", "tare-x"].map(|name| root.join(name)))
            .filter(|path| fs::create_dir(path).is_ok())
            .collect()
    } else {
        Vec::new()
    };
    let before = tare.footprint();
    tare.call(["audit"]).ok();
    tare.call(["sweep"]).ok().printed("Nothing to sweep.\n");
    assert_eq!(tare.footprint(), before);
    strangers.iter().for_each(|it| fs::remove_dir(it).unwrap());
    let mut attached = attached;
    attached.write(b"\n");
    attached.wait().exited(4);
    assert_eq!(tare.state(&running), "running");
    assert!(!is_paused || tare.state(&paused) == "paused");
    for id in [running, paused] {
        tare.remove(&id);
    }
}

/// A cgroup of the v1 freezer: a frozen process in it cannot be killed.
struct Freezer(PathBuf);

impl Freezer {
    fn make() -> Option<Self> {
        let mut roots = hierarchies().into_iter();
        let root = roots.find(|root| root.ends_with("freezer"))?;
        let path = root.join("test-of-a-sweep");
        fs::create_dir(&path).ok().map(|()| Self(path))
    }

    #[track_caller]
    fn freeze(&self, process: &Process) {
        fs::write(self.0.join("cgroup.procs"), process.pid.to_string()).expect("it is ours");
        fs::write(self.0.join("freezer.state"), "FROZEN").expect("it is ours");
        let state = self.0.join("freezer.state");
        eventually("it is frozen", || {
            fs::read_to_string(&state).expect("it is ours") == "FROZEN\n"
        });
    }

    fn thaw(&self) {
        fs::write(self.0.join("freezer.state"), "THAWED").expect("it is ours");
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.thaw();
        eventually("the freezer can be removed", || fs::remove_dir(&self.0).is_ok());
    }
}

fn stuck_lines(record: &Path) -> usize {
    let text = fs::read_to_string(record.join("record.json")).expect("it is ours");
    text.lines().filter(|line| line.starts_with("{\"stuck\"")).count()
}

#[track_caller]
fn kill(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("it is ours");
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).expect("it is ours");
    pidfd_send_signal(pidfd, Signal::KILL).expect("it is ours");
}

#[test]
fn an_attached_box_whose_keeper_does_not_die_is_recorded_as_stuck() {
    let tare = tare!();
    let Some(freezer) = Freezer::make() else {
        skip!("there is no freezer of cgroup v1 that we may use");
    };
    let script = "echo up; sleep 1000";
    let attached = tare.spawn(["--name", "frozen", "--timeout", "3s", "--", "sh", "-c", script]);
    attached.see("up");
    let id = tare.list()[0]["id"].as_str().unwrap().to_owned();
    freezer.freeze(&tare.workload(&id)[0]);
    let said = attached.wait().stderr_text();
    assert!(said.contains("does not die"), "{said}");
    assert_eq!(stuck_lines(&tare.record(&id)), 1);
    drop(freezer);
    tare.call(["rm", "-f", "frozen"]).ok();
    tare.assert_gone(&id);
}

/// A process of the box is frozen from outside, so that it receives no signal.
#[test]
fn a_stuck_box_delays_no_other_and_is_retried_less_and_less_often() {
    let tare = tare!();
    let Some(freezer) = Freezer::make() else {
        skip!("there is no freezer of cgroup v1 that we may use");
    };
    let short = |_| tare.detached(["--rm", "--", "sleep", "1000"]);
    let done: Vec<String> = (0..5).map(short).collect();
    let attached = tare.spawn(["--name", "frozen", "--", "sh", "-c", "echo up; sleep 1000"]);
    attached.see("up");
    let listed = tare.list();
    let frozen = listed.iter().find(|it| it["name"] == "frozen").unwrap();
    let id = frozen["id"].as_str().unwrap().to_owned();
    freezer.freeze(&tare.workload(&id)[0]);
    let keepers: Vec<u32> = done.iter().map(|id| tare.keeper(id).pid).collect();
    keepers.into_iter().for_each(kill);
    done.iter().for_each(|id| {
        eventually("it is over", || tare.processes_in(id).is_empty());
    });
    kill(attached.pid());
    attached.wait().exited(-9);
    let swept = json(&tare, &["sweep", "--json"], 1);
    let all = swept.as_array().unwrap();
    assert_eq!(all.len(), 6, "{swept}");
    for one in all {
        let expected = if one["id"] == *id { "stuck" } else { "done" };
        assert_eq!(one["outcome"], expected, "{swept}");
    }
    done.iter().for_each(|id| tare.assert_gone(id));
    let stuck = all.iter().find(|one| one["id"] == *id).unwrap();
    let said = (stuck["step"].as_str().unwrap(), stuck["reason"].as_str().unwrap());
    assert!(said.0.starts_with("cannot end the keeper"), "{stuck}");
    assert!(said.1.ends_with("does not die"), "{stuck}");
    let listed = tare.look(&id);
    assert_eq!(listed["state"], "stuck");
    assert!(listed["stuck_on"].as_str().unwrap().contains("does not die"), "{listed}");
    // Each would try it, and say so, if it were its turn.
    let before = stuck_lines(&tare.record(&id));
    for _ in 0..20 {
        tare.call(["ls"]).ok();
    }
    let tries = stuck_lines(&tare.record(&id)) - before;
    assert!(tries < 10, "{tries} of 20");
    let text = tare.call(["audit"]).exited(1).stdout_text();
    assert!(text.contains("Stuck; later commands try again"), "{text}");
    assert!(text.contains("does not die"), "{text}");
    freezer.thaw();
    eventually("the box has no process", || tare.processes_in(&id).is_empty());
    let swept = json(&tare, &["sweep", "--json"], 0);
    assert_eq!(swept[0]["outcome"], "done", "{swept}");
    tare.assert_gone(&id);
    clean(&tare);
}

/// A removal that is killed between the record and the name leaves a name that leads to no box.
/// Other commands look at a few names, and `ls` at all of them.
#[test]
fn ls_releases_every_name_that_leads_to_no_box() {
    let tare = tare!();
    let id = tare.detached(["--name", "a", "--", "sleep", "1000"]);
    for number in 0..40 {
        tare.forge_name(&format!("lost-{number}"), "aaaaaaaaaaaa");
    }
    tare.call(["ls"]).ok();
    let left: Vec<String> = tare.footprint().names.into_iter().collect();
    assert_eq!(left, ["a"]);
    tare.remove(&id);
}
