//! D. Cgroups.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use tare_harness::scene::in_lanes;
use tare_harness::skip::is_root;
use tare_harness::{
    Server, TemporaryDirectory, eventually, hierarchies, in_boxes, skip, unified_hierarchy,
    unprivileged,
};

use crate::leaks::case::{Case, case, times};

/// How many removed cgroups the kernel may keep: some hold pages that were not reclaimed yet. A
/// leak would be at least one per box.
const DYING_MAX: u64 = 20;

/// How many cgroups are gone and not freed (`nr_dying_descendants` of cgroup.stat).
fn dying() -> u64 {
    let stats = hierarchies().into_iter().filter_map(|root| {
        let stat = fs::read_to_string(root.join("cgroup.stat")).ok()?;
        let mut lines = stat.lines();
        lines.find_map(|line| line.strip_prefix("nr_dying_descendants ")?.parse::<u64>().ok())
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
    eventually("cgroups that are gone are freed", || dying() <= dying_before + DYING_MAX);
}

/// D1, e2b, runc, containerd, gvisor and kata: a cgroup that was busy at removal was
/// forgotten.
#[test]
fn nested_cgroups_of_slow_workloads_are_always_removed() {
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

/// D2, boxlite: cgroups were created and never removed.
#[test]
fn removed_boxes_leave_no_cgroup() {
    let case = case();
    let before = dying();
    let numbers: Vec<usize> = (0..times(150, 1000)).collect();
    in_lanes(&numbers, |_| case.remove(&case.idle_box()));
    assert_no_cgroup(&case, before);
}

/// D3, moby: 119,998 cgroups were left behind until no more could be created.
#[test]
fn runs_of_every_kind_leave_no_cgroup() {
    let case = case();
    let before = dying();
    let numbers: Vec<usize> = (0..times(200, 10_000)).collect();
    in_lanes(&numbers, |number| match number % 4 {
        0 => case.run(["--", "true"]).ok(),
        1 => case.run(["--", "no-such-program"]).exited(127),
        2 => case.run(["--contain", "--", "sh", "-c", "sleep 1000 & exit 3"]).exited(3),
        _ => {
            let killed = case.spawn(["--", "sh", "-c", "echo up; sleep 1000"]);
            killed.see("up").signal(Signal::KILL);
            let output = killed.wait();
            // Thousands of zombies would slow down every look at /proc.
            case.reap_orphans();
            output
        }
    });
    case.call(["ls"]).ok();
    assert_no_cgroup(&case, before);
}

/// D5, kata: a helper ran outside its box's cgroup and outlived the box.
#[test]
fn every_process_that_serves_a_box_is_in_its_cgroups_and_ends_with_it() {
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
    eventually("all helpers are there", || case.members(&id).len() >= alone + 3);
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

/// D6, kata: processes could not be moved to a parent cgroup that may not contain any.
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

/// As many processes as the catalogue asks for, of the user that starts it; it says `up`,
/// and ends after all of them.
const CROWD: &str = "import os, signal
def started():
    pid = os.fork()
    if pid == 0:
        signal.pause()
    return pid
crowd = [started() for _ in range(2000)]
print('up', flush=True)
os.read(0, 1)
for pid in crowd:
    os.kill(pid, signal.SIGKILL)
for pid in crowd:
    os.waitpid(pid, 0)";

/// D8, boxlite: a process limit counted all processes of the user; a user with many
/// processes could start no box.
#[test]
fn the_process_limit_of_a_box_does_not_count_the_users_other_processes() {
    let case = Case::of(unprivileged!());
    let mut crowd = case.shell_command("exec python3 -c \"$0\"");
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
    let output = case.run(["--quiet", "--pids", "32", "--", "python3", "-c", script]).ok();
    let made: u32 = output.stdout_text().trim().parse().expect("a number");
    assert!((24..32).contains(&made), "{output}");
    crowd.write(b"\n");
    crowd.wait().ok();
}

/// A shell that starts itself, twice, for ever. The command itself waits: dash exits when it
/// cannot fork.
const BOMB: &str = "printf '#!/bin/sh\\n/work/bomb & /work/bomb & wait\\n' > /work/bomb
                    chmod +x /work/bomb; /work/bomb & exec sleep 1000";

/// The limits in the files of this name, in all cgroups of a box.
fn limits_in(cgroups: &[PathBuf], files: &[&str]) -> Vec<u64> {
    let files = cgroups.iter().flat_map(|one| files.iter().map(|file| one.join(file)));
    let texts = files.filter_map(|file| fs::read_to_string(file).ok());
    texts.filter_map(|text| text.trim().parse().ok()).collect()
}

/// Checks that the box has limits on processes and memory that a host survives.
#[track_caller]
fn assert_limited(cgroups: &[PathBuf]) {
    let pids = limits_in(cgroups, &["pids.max"]);
    assert!(pids.iter().any(|it| *it <= 4096), "{cgroups:?}: {pids:?}");
    let memory = limits_in(cgroups, &["memory.max", "memory.limit_in_bytes"]);
    assert!(memory.iter().any(|it| *it <= 4 << 30), "{cgroups:?}: {memory:?}");
}

/// Kernel memory that is not given back on demand, of the whole host.
fn slab_kib() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").expect("/proc is mounted");
    let line = text.lines().find_map(|line| line.strip_prefix("SUnreclaim:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.expect("as in proc_meminfo(5)")
}

/// How much kernel memory other tests may use meanwhile.
const SLAB_KIB_MAX: u64 = 256 << 10;

/// A one-shot that waits. The host is shared with other tests: a refusal for pressure
/// (503) is sent again.
fn waiting_run(server: &Server, body: &[u8]) -> TcpStream {
    let send = || {
        let stream = server.send("POST", "/v1/run", &[("Content-Type", "application/json")], body);
        stream.set_nonblocking(true).expect("a socket");
        stream
    };
    let mut run = send();
    let mut answer = [0; 1024];
    eventually("the one-shot runs", || {
        if let Ok(count) = run.peek(&mut answer) {
            let answer = String::from_utf8_lossy(&answer[..count]);
            assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
            run = send();
        }
        // The keeper and the command.
        in_boxes(server.pid()) == 2
    });
    run
}

/// D9, codex: without a process limit, a shell that started itself used up kernel memory,
/// and the host froze twice.
#[test]
fn the_default_process_limit_stops_a_self_starting_shell_and_the_host_recovers() {
    let case = case();
    if !is_root() {
        skip!("without root a box has no cgroup");
    }
    let server = Server::start(&case, &[]);
    let waiting = json!({"command": ["sleep", "1000"]});
    let made = server.post("/v1/boxes", &waiting).was(201).json();
    let id = made["id"].as_str().expect("an id");
    assert_limited(&case.cgroups_of(id));
    server.delete(&format!("/v1/boxes/{id}?force=true")).was(204);
    let run = waiting_run(&server, waiting.to_string().as_bytes());
    assert_limited(&case.footprint().cgroups.into_iter().collect::<Vec<_>>());
    drop(run);
    server.stop();
    let slab = slab_kib();
    let bombing = case.spawn(["--timeout", "60s", "--", "sh", "-c", BOMB]);
    eventually("it is refused more processes", || {
        bombing.stderr_so_far().to_lowercase().contains("cannot fork")
    });
    assert_limited(&case.footprint().cgroups.into_iter().collect::<Vec<_>>());
    bombing.signal(Signal::KILL);
    bombing.wait();
    eventually("no process is left", || case.footprint().processes.is_empty());
    case.call(["ls"]).ok();
    case.reap_orphans();
    eventually("the kernel's memory is free again", || slab_kib() <= slab + SLAB_KIB_MAX);
}

/// Counts into files of the directory `$OUT`, in cgroups that the box made below its own
/// and beside it; says `up`.
fn counting_in_cgroups(out: &TemporaryDirectory) -> Option<String> {
    let (point, _) = unified_hierarchy().filter(|_| is_root())?;
    Some(format!(
        "own=$(dirname \"$(grep -rlx $$ --include=cgroup.procs {point})\")
         mkdir -p $own/a/b $own/../beside
         count() {{ while :; do printf x >> {out}/$1; sleep 0.01; done; }}
         (sh -c 'echo $PPID' > $own/a/b/cgroup.procs; count below) &
         (sh -c 'echo $PPID' > $own/../beside/cgroup.procs; count beside) &
         echo up; count own",
        out = out.text()
    ))
}

/// D10, e2b: a pause froze the cgroups of the machine's agent but not those that the
/// customer had created.
#[test]
fn pause_freezes_every_cgroup_that_the_box_created() {
    let case = case();
    let counted = TemporaryDirectory::new();
    let Some(script) = counting_in_cgroups(&counted) else {
        skip!("boxes cannot make cgroups here");
    };
    let id = case.up(&["--contain"], &script);
    let count = |name: &str| fs::metadata(counted.join(name)).map_or(0, |file| file.len());
    let counts = || ["own", "below", "beside"].map(count);
    eventually("it counts everywhere", || counts().iter().all(|it| *it > 0));
    for _ in 0..3 {
        case.call(["pause", &id]).ok();
        let before = counts();
        tare_harness::let_pass(Duration::from_millis(200));
        assert_eq!(counts(), before);
        assert_eq!(case.state(&id), "paused");
        case.call(["resume", &id]).ok();
        eventually("it goes on everywhere", || {
            counts().iter().zip(before).all(|(now, then)| *now > then)
        });
    }
    case.call(["pause", &id]).ok();
    case.remove(&id);
}

/// D10, e2b: processes that had left the frozen cgroups kept running while the machine was
/// reported as paused.
#[test]
fn a_box_with_a_process_outside_its_cgroups_is_not_reported_as_paused() {
    let case = case();
    let Some((point, _)) = unified_hierarchy().filter(|_| is_root()) else {
        skip!("boxes cannot move between cgroups here");
    };
    let places = ["$(dirname $own)".to_owned(), point.to_owned()];
    for place in places {
        let script = format!(
            "own=$(dirname \"$(grep -rlx $$ --include=cgroup.procs {point})\")
             sleep 1000 & echo $! > {place}/cgroup.procs; echo up; wait"
        );
        let id = case.up(&["--contain"], &script);
        let refused = case.call(["pause", &id]).exited(1);
        refused.said(&["cannot pause box", "has moved to a cgroup that is not the box's"]);
        assert_eq!(case.state(&id), "running", "{place}");
        case.exec(&id, ["true"]).ok();
        case.remove(&id);
        eventually("no process is left", || case.footprint().processes.is_empty());
    }
}
