//! What a box uses, `tare stats`, and what it may use from now on, `tare update`.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount};
use serde_json::Value;
use tare_harness::skip::is_root;
use tare_harness::{Running, Tare, eventually, skip, tare, unix_now, unix_seconds};

const MIB: u64 = 1 << 20;

/// What `tare stats` says about one box.
#[track_caller]
fn stats(tare: &Tare, id: &str) -> Value {
    let found = tare.json(["stats", "--json", id]);
    assert_eq!(found[0]["id"], id, "{found}");
    found[0].clone()
}

#[track_caller]
fn number(of: &Value, field: &str) -> u64 {
    let number = of[field].as_u64();
    number.unwrap_or_else(|| panic!("{field} is no number: {of}"))
}

/// A Python script in the box that says `ready` and then waits.
#[track_caller]
fn holding(tare: &Tare, id: &str, script: &str) -> Running {
    let script = format!("{script}\nprint('ready', flush=True)\nimport sys; sys.stdin.read()");
    let running = tare.spawn_call(["exec", id, "--", "python3", "-c", &script]);
    running.see("ready");
    running
}

#[test]
fn stats_measures_memory_processes_and_processor_time() {
    let tare = tare!();
    let id = tare.detached([
        "--memory",
        "256m",
        "--pids",
        "40",
        "--scratch",
        "64m",
        "--",
        "sleep",
        "1000",
    ]);
    let idle = stats(&tare, &id);
    assert_eq!(number(&idle, "memory_limit_bytes"), 256 * MIB);
    assert_eq!(number(&idle, "pids_limit"), 40);
    assert_eq!(number(&idle, "scratch_limit_bytes"), 64 * MIB);
    let grown = |field: &str| number(&stats(&tare, &id), field) - number(&idle, field);

    let hungry = holding(&tare, &id, "held = b'x' * (50 << 20)");
    let memory = grown("memory_bytes");
    assert!((50 * MIB..100 * MIB).contains(&memory), "{memory}");
    assert_eq!(grown("pids"), 1);
    assert_eq!(tare.look(&id)["pids"], number(&idle, "pids") + 1);
    hungry.wait().ok();

    let busy = "import time
while time.process_time() < 0.5: pass";
    holding(&tare, &id, busy).wait().ok();
    let cpu = grown("cpu_us");
    assert!((500_000..5_000_000).contains(&cpu), "{cpu}");

    let script = "head -c 10m /dev/zero > /tmp/fill";
    tare.exec(&id, ["sh", "-c", script]).ok();
    let scratch = grown("scratch_bytes");
    assert!((10 * MIB..11 * MIB).contains(&scratch), "{scratch}");
    tare.remove(&id);
}

#[test]
fn stats_counts_the_output_of_a_box() {
    let tare = tare!();
    let script = "head -c 100000 /dev/zero; echo >&2 error; echo end; sleep 1000";
    let id = tare.detached(["--", "sh", "-c", script]);
    tare.logged(&id, "end");
    assert_eq!(number(&stats(&tare, &id), "output_bytes"), 100_010);
    tare.remove(&id);
}

#[test]
fn without_a_box_all_that_live_are_measured() {
    let tare = tare!();
    let ids = [tare.idle_box(), tare.idle_box()];
    let ended = tare.detached(["--", "true"]);
    tare.ended(&ended);
    let found = tare.json(["stats", "--json"]);
    let found: Vec<&str> =
        found.as_array().unwrap().iter().map(|it| it["id"].as_str().unwrap()).collect();
    assert_eq!(found, ids);
    let table = tare.call(["stats"]).ok().said_nothing().stdout_text();
    assert_eq!(table.lines().count(), 3, "{table}");
    tare.call(["rm", "-f", "--all"]).ok();
}

/// A keeper that is stopped cannot answer, and the others are not delayed by it.
#[test]
fn stats_waits_once_for_all_stopped_keepers() {
    let tare = tare!();
    let ids = [tare.idle_box(), tare.idle_box(), tare.idle_box()];
    for id in &ids {
        let keeper = rustix::process::Pid::from_raw(tare.keeper(id).pid as i32).unwrap();
        rustix::process::kill_process(keeper, rustix::process::Signal::STOP).unwrap();
    }
    let output = tare.call(["stats"]).ok();
    // One keeper may be asked before it has stopped. Two waits would be 20 s.
    assert!(output.lasted < Duration::from_secs(18), "{output}");
    assert!(ids.iter().all(|id| output.stdout_text().contains(id.as_str())));
    ids.iter().for_each(|id| tare.remove(id));
}

/// Touches as many MiB as its argument says.
const HUNGRY: &str = "import sys
held = [b'x' * 1048576 for _ in range(int(sys.argv[1]))]";

#[test]
fn a_new_limit_of_memory_is_enforced() {
    let tare = tare!();
    let id = tare.detached(["--memory", "256m", "--", "sleep", "1000"]);
    let hungry = |mib: &str| tare.exec(&id, ["python3", "-c", HUNGRY, mib]);
    hungry("128").ok();
    tare.call(["update", "--memory", "64m", &id]).ok();
    assert_eq!(number(&stats(&tare, &id), "memory_limit_bytes"), 64 * MIB);
    hungry("128").exited(137);
    tare.call(["update", "--memory", "256m", &id]).ok();
    hungry("128").ok();
    assert_eq!(tare.state(&id), "running");
    tare.remove(&id);
}

/// Forks until it may not, and says how often it could.
const FORK: &str = "import os, signal
if os.getpgid(0) != os.getpid(): os.setpgid(0, 0)
made = 0
try:
    while made < 500:
        if os.fork() == 0: signal.pause()
        made += 1
except BlockingIOError:
    pass
print(made, flush=True)
os.killpg(0, signal.SIGKILL)";

#[test]
fn a_new_limit_of_processes_is_enforced() {
    let tare = tare!();
    let id = tare.detached(["--pids", "100", "--", "sleep", "1000"]);
    let forks = || {
        let idle = number(&stats(&tare, &id), "pids");
        let output = tare.exec(&id, ["python3", "-c", FORK]).exited(137);
        let made: u64 = output.stdout_text().trim().parse().unwrap();
        eventually("they are gone", || number(&stats(&tare, &id), "pids") == idle);
        made
    };
    let made = forks();
    assert!((90..100).contains(&made), "{made}");
    tare.call(["update", "--pids", "20", &id]).ok();
    let made = forks();
    assert!((10..20).contains(&made), "{made}");
    tare.remove(&id);
}

/// Says the share of one processor that it got.
const BURN: &str = "import os, time
start = time.monotonic()
while time.monotonic() - start < 1.5: pass
times = os.times()
print((times.user + times.system) / (time.monotonic() - start))";

#[test]
fn a_new_share_of_processors_is_enforced() {
    let tare = tare!();
    let id = tare.idle_box();
    let share = || {
        let output = tare.exec(&id, ["python3", "-c", BURN]).ok();
        output.stdout_text().trim().parse::<f64>().unwrap()
    };
    let free = share();
    tare.call(["update", "--cpus", "0.2", &id]).ok();
    let limited = share();
    assert!(limited < 0.4, "{limited} against a limit of 0.2");
    assert!(limited < free, "{free} without, {limited} with the limit");
    tare.remove(&id);
}

#[test]
fn a_new_lease_is_kept_by_the_box_itself() {
    let tare = tare!();
    let id = tare.idle_box();
    tare.call(["update", "--lease", "never", &id]).ok();
    assert_eq!(tare.look(&id)["lease_ends_at"], Value::Null);
    tare.call(["update", "--lease", "1h", &id]).ok();
    let text = tare.look(&id)["lease_ends_at"].clone();
    let left = unix_seconds(text.as_str().expect("a time")) - unix_now();
    assert!((3590..=3602).contains(&left), "{left}");
    let asked = Instant::now();
    tare.call(["update", "--lease", "1s", &id]).ok();
    eventually("everyone in the box is gone", || tare.processes_in(&id).is_empty());
    assert!(asked.elapsed() >= Duration::from_secs(1));
    assert_eq!(tare.ended(&id)["cause"], "lease");
    tare.call(["update", "--lease", "1h", &id]).exited(1).said(&[&id]);
    tare.remove(&id);
}

#[test]
fn bad_changes_are_refused_and_change_nothing() {
    let tare = tare!();
    let id = tare.detached(["--memory", "64m", "--pids", "40", "--", "sleep", "1000"]);
    for (option, value) in [
        ("--memory", "x"),
        ("--memory", "1"),
        ("--memory", "-1"),
        ("--pids", "0"),
        ("--pids", "1.5"),
        ("--cpus", "NaN"),
        ("--cpus", "0"),
        ("--lease", ""),
        ("--lease", "-1h"),
    ] {
        let output = tare.call(["update", option, value, &id]).exited(2).printed("");
        assert!(output.stderr_text().contains(option), "{output}");
    }
    tare.call(["update", &id]).exited(2).printed("");
    let now = stats(&tare, &id);
    assert_eq!(number(&now, "memory_limit_bytes"), 64 * MIB);
    assert_eq!(number(&now, "pids_limit"), 40);
    tare.remove(&id);
}

/// A file that cannot be written is in the way of the second limit.
#[test]
fn an_update_that_fails_leaves_every_limit_as_it_was() {
    let tare = tare!();
    if !is_root() {
        skip!("only root can mount");
    }
    let id = tare.detached(["--memory", "64m", "--", "sleep", "1000"]);
    let files = |name: &str| -> Vec<PathBuf> {
        let paths = tare.cgroups_of(&id).into_iter().map(|path| path.join(name));
        paths.filter(|path| path.exists()).collect()
    };
    let memory = [files("memory.max"), files("memory.limit_in_bytes")].concat();
    let memory = || -> Vec<String> {
        memory.iter().map(|path| fs::read_to_string(path).expect("a limit")).collect()
    };
    let (before, pids) = (memory(), files("pids.max"));
    for path in &pids {
        mount_bind(path, path).expect("root can mount");
        mount_remount(path, MountFlags::BIND | MountFlags::RDONLY, "").expect("root can mount");
    }
    tare.call(["update", "--memory", "128m", "--pids", "9", &id]).exited(1);
    assert_eq!(memory(), before);
    for path in &pids {
        unmount(path, UnmountFlags::empty()).expect("no process uses it");
    }
    tare.call(["update", "--memory", "128m", "--pids", "9", &id]).ok();
    assert_ne!(memory(), before);
    tare.remove(&id);
}
