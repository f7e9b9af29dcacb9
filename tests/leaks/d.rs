//! D. Cgroups.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use rustix::process::Signal;
use tare_harness::scene::in_lanes;
use tare_harness::skip::is_root;
use tare_harness::{TemporaryDirectory, eventually, hierarchies, skip, unprivileged};

use crate::case::{Case, case, times};

/// How many cgroups that are gone the kernel may keep: some hold pages that nobody has
/// wanted back yet. A leak is one for each box, or more.
const DYING_MAX: u64 = 20;

/// How many cgroups are gone and not freed (`nr_dying_descendants` of cgroup.stat).
fn dying() -> u64 {
    let stats = hierarchies().into_iter().filter_map(|root| {
        let stat = fs::read_to_string(root.join("cgroup.stat")).ok()?;
        let mut lines = stat.lines();
        lines.find_map(|line| {
            line.strip_prefix("nr_dying_descendants ")?
                .parse::<u64>()
                .ok()
        })
    });
    stats.sum()
}

/// No cgroup of a box is there, and few more than before are not freed yet, which the
/// kernel does in its own time.
#[track_caller]
fn assert_no_cgroup(case: &Case, dying_before: u64) {
    assert_eq!(case.footprint().cgroups, BTreeSet::new());
    // A zombie keeps its cgroups, and those of detached keepers came to us.
    case.reap_orphans();
    eventually("cgroups that are gone are freed", || {
        dying() <= dying_before + DYING_MAX
    });
}

/// D1, e2b, runc, containerd, gvisor and kata: a cgroup that was busy when it was to be
/// removed was forgotten.
#[test]
fn nested_cgroups_of_slow_workloads_are_removed_every_time() {
    let case = case();
    let Some(script) = case.nested_cgroups() else {
        skip!("boxes cannot make cgroups here");
    };
    let before = dying();
    for round in 0..times(20, 200) {
        let id = case.up(&["--contain"], &script);
        match round % 2 {
            0 => case.call(["kill", &id]).ok(),
            _ => case.call(["stop", "-t", "100ms", &id]).ok(),
        };
        case.assert_over(&id);
        case.remove(&id);
    }
    // And of a box that its timeout ends.
    case.run(["--contain", "--timeout", "1s", "--", "sh", "-c", &script])
        .exited(124)
        .printed("up\n");
    assert_no_cgroup(&case, before);
}

/// D2, boxlite: cgroups were made and never removed.
#[test]
fn no_cgroup_is_left_of_boxes_that_are_removed() {
    let case = case();
    let before = dying();
    let numbers: Vec<usize> = (0..times(150, 1000)).collect();
    in_lanes(&numbers, |_| case.remove(&case.idle_box()));
    assert_no_cgroup(&case, before);
}

/// D3, moby: 119,998 cgroups were left, and no more could be made.
#[test]
fn no_cgroup_is_left_of_runs_of_all_kinds() {
    let case = case();
    let before = dying();
    let numbers: Vec<usize> = (0..times(200, 10_000)).collect();
    in_lanes(&numbers, |number| match number % 4 {
        0 => case.run(["--", "true"]).ok(),
        1 => case.run(["--", "no-such-program"]).exited(127),
        2 => case
            .run(["--contain", "--", "sh", "-c", "sleep 1000 & exit 3"])
            .exited(3),
        _ => {
            let killed = case.spawn(["--", "sh", "-c", "echo up; sleep 1000"]);
            killed.see("up").signal(Signal::KILL);
            killed.wait()
        }
    });
    case.call(["ls"]).ok();
    assert_no_cgroup(&case, before);
}

/// D5, kata: a helper ran outside of the cgroup of its box, and outlived it.
#[test]
fn whoever_works_for_a_box_is_in_its_cgroups_and_ends_with_it() {
    let case = case();
    if !is_root() {
        skip!("without root a box has no cgroup");
    }
    let directory = TemporaryDirectory::new();
    directory.write("file", vec![0; 4 << 20]);
    let id = case.up(&["--name", "a"], "echo up; sleep 1000");
    let alone = case.members(&id).len();
    let exec = case.spawn_call(["exec", "a", "--", "sh", "-c", "echo up; sleep 1000"]);
    exec.see("up");
    // Its side in the box waits for a stream that does not come.
    let copy = case.spawn_call(["cp", "-", "a:/work"]);
    eventually("all helpers are there", || {
        case.members(&id).len() >= alone + 3
    });
    for one in case.members(&id) {
        let is_inside = |path: &String| path.split('/').any(|part| part.ends_with(&id));
        let outside: Vec<_> = one.cgroups.iter().filter(|path| !is_inside(path)).collect();
        // Hierarchies in which a box has no directory show the cgroup of its creator.
        let own = case.keeper(&id).cgroups;
        assert!(one.cgroups.iter().any(is_inside), "{one:?}");
        assert!(outside.iter().all(|path| own.contains(path)), "{one:?}");
    }
    case.call(["stop", "-t", "0", "a"]).ok();
    case.assert_over(&id);
    for client in [exec, copy] {
        client.wait();
    }
    case.remove(&id);
}

/// D6, kata: processes could not be moved out of the way, to a parent that may have none.
#[test]
fn a_box_that_delegates_its_cgroups_is_cleaned_up() {
    let case = case();
    let Some(script) = case.nested_cgroups() else {
        skip!("boxes cannot make cgroups here");
    };
    // Whatever controllers there are go down to the deepest, so that no cgroup above
    // it may have processes.
    let delegating = script.replace(
        "sh -c 'trap",
        "for at in $own $own/a $own/a/b; do
             for one in $(cat $at/cgroup.controllers); do
                 echo +$one > $at/cgroup.subtree_control
             done 2>/dev/null
         done
         sh -c 'trap",
    );
    for end in [&["stop", "-t", "100ms"][..], &["kill"], &["rm", "-f"]] {
        let id = case.up(&["--contain"], &delegating);
        assert!(deepest(&case, &id).is_some_and(|it| it.join("d").exists()));
        case.call(end.iter().chain(&[&*id])).ok();
        case.assert_over(&id);
        case.call(["rm", "-f", &id]);
    }
    case.nothing_left();
}

/// The cgroup of the box's workload, of version 2.
fn deepest(case: &Case, id: &str) -> Option<PathBuf> {
    let has_nested = |path: &PathBuf| path.join("a/b/c").is_dir();
    let mut cgroups = case.cgroups_of(id).into_iter();
    cgroups.find_map(|it| [it.join("work"), it].into_iter().find(has_nested))
}

/// As many processes as the catalogue asks for, of whoever starts it; it says `up`.
const CROWD: &str = "import os, signal
for _ in range(2000):
    if os.fork() == 0:
        signal.pause()
print('up', flush=True)
os.read(0, 1)
os.killpg(0, signal.SIGKILL)";

/// D8, boxlite: a limit of processes counted all that the user had, and with many of
/// them no box could start.
#[test]
fn a_user_with_two_thousand_processes_gets_a_box_with_a_limit_of_its_own() {
    let case = Case::of(unprivileged!());
    let mut crowd = case.shell_command("exec setsid python3 -c \"$0\"");
    crowd.arg(CROWD);
    let mut crowd = case.start_piped(crowd);
    crowd.see("up");
    let script = "import os, signal
made = 0
try:
    while made < 500:
        if os.fork() == 0:
            signal.pause()
        made += 1
except BlockingIOError:
    print(made)";
    let output = case
        .run(["--quiet", "--pids", "32", "--", "python3", "-c", script])
        .ok();
    let made: u32 = output.stdout_text().trim().parse().expect("a number");
    assert!((24..32).contains(&made), "{output}");
    crowd.write(b"\n");
    crowd.wait().exited(-9);
}
