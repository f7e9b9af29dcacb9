//! tare, its keeper or its box is killed, stopped or frozen: the box still ends, and nothing is
//! left.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;
use tare_harness::skip::is_root;
use tare_harness::{
    Process, Running, box_processes, eventually, hierarchies, in_boxes, skip, tare,
};

const SLEEPERS: &str =
    "for i in $(seq 20); do (trap '' TERM HUP INT; setsid sleep 1000) & done; echo ready; wait";

/// The keeper of the one box that `tare` has.
#[track_caller]
fn keeper(tare: &Running) -> Process {
    let child = |process: &Process| process.parent == tare.pid();
    let mut children = box_processes().into_iter().filter(child);
    let keeper = children.next().expect("a running tare has a keeper");
    assert!(children.next().is_none(), "tare has more children than its keeper");
    keeper
}

#[test]
fn a_killed_keeper_ends_its_box_and_its_tare_run() {
    let tare = tare!();
    for options in [&[][..], &["--contain"]] {
        let mut call = options.to_vec();
        call.extend(["--", "sh", "-c", SLEEPERS]);
        let running = tare.spawn(call);
        keeper(running.see("ready")).signal(Signal::KILL);
        let output = running.wait();
        assert!(output.code >= 125, "{output}");
        tare.nothing_left();
    }
}

/// The keeper holds the lease, not the tare that started it.
#[test]
fn a_stopped_tare_run_does_not_delay_the_timeout() {
    let tare = tare!();
    let running = tare.spawn(["--timeout", "1s", "--", "sh", "-c", SLEEPERS]);
    running.see("ready").signal(Signal::STOP);
    eventually("the box ends by itself", || in_boxes(running.pid()) == 0);
    running.signal(Signal::CONT);
    running.wait().exited(124);
    tare.nothing_left();
}

#[test]
fn a_stopped_keeper_does_not_delay_the_timeout() {
    let tare = tare!();
    let running = tare.spawn(["--timeout", "1s", "--", "sh", "-c", SLEEPERS]);
    keeper(running.see("ready")).signal(Signal::STOP);
    running.wait().exited(124);
    tare.nothing_left();
}

#[test]
fn a_frozen_box_ends_at_its_timeout() {
    let tare = tare!();
    if !is_root() {
        skip!("only root can freeze cgroups");
    }
    let running = tare.spawn(["--timeout", "1s", "--", "sh", "-c", SLEEPERS]);
    let keeper = keeper(running.see("ready"));
    let Some(freezer) = freezer(&keeper) else {
        skip!("boxes have no cgroup of version 2 here");
    };
    fs::write(freezer, "1").unwrap();
    running.wait().exited(124);
    tare.nothing_left();
}

/// The freezer file of this keeper's cgroup.
fn freezer(keeper: &Process) -> Option<PathBuf> {
    let paths = keeper.cgroups.iter().filter_map(|path| path.rsplit('/').next());
    let name = paths.into_iter().find(|name| name.starts_with("tare-"))?;
    let mut roots = hierarchies().into_iter();
    roots.find_map(|root| {
        let file = root.join(name).join("cgroup.freeze");
        file.exists().then_some(file)
    })
}

/// A removal that is killed must not leave the keeper's journal without the record file: that
/// would be a damaged record, which no command touches by itself.
#[test]
fn rm_removes_the_record_file_after_the_journal() {
    if !is_root() {
        skip!("only root can mount");
    }
    let tare = tare!();
    let id = tare.detached(["--", "true"]);
    tare.call(["wait", &id]).ok();
    let journal = tare.record(&id).join("journal");
    // The removal fails at the journal: nothing removes a mount point.
    fs::remove_file(&journal).unwrap();
    fs::create_dir(&journal).unwrap();
    let mount = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&journal).status();
    assert!(mount.unwrap().success());
    tare.call(["rm", &id]).exited(1);
    assert!(tare.record(&id).join("record.json").exists());
    assert!(Command::new("umount").arg(&journal).status().unwrap().success());
    // A removal that is killed right after this step is continued by the next command.
    fs::remove_dir(&journal).unwrap();
    fs::remove_file(tare.record(&id).join("record.json")).unwrap();
    tare.call(["ls"]).ok();
    assert!(!tare.record(&id).exists());
}
