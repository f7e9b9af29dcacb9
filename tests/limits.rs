//! Limits: the kernel enforces them, and tare names the limit that was reached.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tare_harness::skip::is_root;
use tare_harness::{Output, Process, Tare, eventually, skip, tare};

/// A box that its timeout ends is gone well within this, on any machine.
const SOON: Duration = Duration::from_secs(15);

/// Touches as many MiB as its argument says.
const ANONYMOUS: &str = "import sys
held = [b'x' * 1048576 for _ in range(int(sys.argv[1]))]
print('held', len(held))";

const MEMFD: &str = "import os, sys
fd = os.memfd_create('held')
for _ in range(int(sys.argv[1])):
    os.write(fd, b'x' * 1048576)
print('held', os.fstat(fd).st_size >> 20)";

#[test]
fn exceeding_the_memory_limit_kills_and_names_the_limit() {
    let tare = tare!();
    for script in [ANONYMOUS, MEMFD] {
        tare.run(["--memory", "64m", "--", "python3", "-c", script, "1024"])
            .exited(137)
            .printed("")
            .said(&["memory", "64"]);
    }
}

#[test]
fn memory_within_the_limit_is_available() {
    let tare = tare!();
    for script in [ANONYMOUS, MEMFD] {
        tare.run(["--memory", "64m", "--", "python3", "-c", script, "32"])
            .ok()
            .printed("held 32\n")
            .said_nothing();
        tare.run(["--memory", "256m", "--", "python3", "-c", script, "128"])
            .ok()
            .printed("held 128\n");
    }
}

/// The command lives on, a child of it was killed: the exit code is the command's
/// and the line still names what happened.
#[test]
fn memory_of_a_child_is_counted_too() {
    let tare = tare!();
    let script = "python3 -c \"held = [b'x' * 1048576 for _ in range(1024)]\" & wait $!";
    let output = tare.run(["--memory", "64m", "--", "sh", "-c", script]);
    assert_eq!(output.code, 137, "{output}");
    assert!(output.stderr_text().contains("memory"), "{output}");
}

/// Forks until it may not, and says how often it could.
const FORK: &str = "import os, signal
made = 0
try:
    while made < 2000:
        if os.fork() == 0:
            signal.pause()
        made += 1
except BlockingIOError:
    print(made)";

fn forks_within(tare: &Tare, limit: u32) -> u32 {
    let limit = limit.to_string();
    let output = tare.run(["--pids", &limit, "--", "python3", "-c", FORK]).ok();
    output.stdout_text().trim().parse().unwrap_or_else(|_| panic!("{output}"))
}

#[test]
fn processes_beyond_the_limit_cannot_be_created() {
    let tare = tare!();
    let few = forks_within(&tare, 32);
    let more = forks_within(&tare, 128);
    // The keeper and the command count.
    assert!((24..32).contains(&few), "{few}");
    assert!((112..128).contains(&more), "{more}");
}

/// The keeper is not counted: the command has what was asked for.
#[test]
fn the_process_limit_can_be_one() {
    let tare = tare!();
    tare.run(["--pids", "1", "--", "echo", "alone"]).ok().printed("alone\n");
    let output = tare.run(["--pids", "1", "--", "sh", "-c", "ls; echo not reached"]);
    assert_ne!(output.code, 0, "{output}");
}

#[test]
fn threads_count_as_processes() {
    let tare = tare!();
    let script = "import threading, time
made = 0
try:
    while made < 2000:
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        made += 1
except RuntimeError:
    print(made)";
    let output = tare.run(["--pids", "32", "--", "python3", "-c", script]).ok();
    let made: u32 = output.stdout_text().trim().parse().unwrap();
    assert!((24..32).contains(&made), "{output}");
}

#[test]
fn a_fork_bomb_stops_at_its_limit_and_spares_the_host() {
    let tare = tare!();
    let bomb = "bomb() { bomb | bomb & }; bomb; sleep 1000";
    let output = tare
        .run(["--pids", "64", "--timeout", "2s", "--output-limit", "1m", "--", "sh", "-c", bomb])
        .exited(124);
    assert!(output.lasted < SOON, "{}", output.code);
    tare.run(["--", "true"]).ok();
}

#[test]
fn descriptors_beyond_the_limit_cannot_be_opened() {
    let tare = tare!();
    let script = "import os
opened = 0
try:
    while opened < 5000:
        os.open('/dev/null', os.O_RDONLY)
        opened += 1
except OSError as error:
    print(opened, error.strerror)";
    tare.run(["--nofile", "64", "--", "python3", "-c", script])
        .ok()
        .printed("61 Too many open files\n");
}

#[test]
fn the_descriptor_limit_cannot_be_raised_from_inside() {
    let tare = tare!();
    tare.run(["--nofile", "64", "--", "sh", "-c", "ulimit -n; ulimit -Hn"])
        .ok()
        .printed("64\n64\n");
    tare.run(["--", "sh", "-c", "ulimit -n"]).ok().printed("1024\n");
}

/// Fills the directories of its arguments and says how many KiB went in.
const FILL: &str = "import errno, os, sys
total = 0
for directory in sys.argv[1:]:
    fd = os.open(directory + '/fill', os.O_CREAT | os.O_WRONLY)
    try:
        while total < 1 << 30:
            total += os.write(fd, b'x' * 65536)
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
print(total >> 10)";

fn filled_kib(output: &Output) -> u32 {
    output.stdout_text().trim().parse().unwrap_or_else(|_| panic!("{output}"))
}

#[test]
fn scratch_space_is_limited_in_size() {
    let tare = tare!();
    for directories in [&["/tmp"][..], &["."], &["/tmp", "."]] {
        let mut call = vec!["--scratch", "16m", "--", "python3", "-c", FILL];
        call.extend(directories);
        let output = tare.run(call).ok();
        let filled = filled_kib(&output);
        assert!((8 * 1024..=16 * 1024).contains(&filled), "{directories:?}: {output}");
    }
    let output = tare.run(["--scratch", "64m", "--", "python3", "-c", FILL, "/tmp"]).ok();
    assert!(filled_kib(&output) > 32 * 1024, "{output}");
}

/// Databases, disk images and CPython's tests make sparse files. They take only the space that is
/// written.
#[test]
fn a_sparse_file_may_be_longer_than_the_scratch_space() {
    let tare = tare!();
    let script = "import errno, os
fd = os.open('sparse', os.O_CREAT | os.O_RDWR)
os.truncate(fd, 4 << 30)
os.pwrite(fd, b'end', (4 << 30) - 3)
assert os.pread(fd, 3, (4 << 30) - 3) == b'end'
written = 0
try:
    while written < 64 << 20:
        written += os.pwrite(fd, b'x' * 65536, written)
except OSError as error:
    assert error.errno == errno.ENOSPC, error
print(written >> 10)";
    for options in [&[][..], &["-v", "/usr/bin:/mnt:ro"], &["--root"]] {
        let call = [&["--scratch", "16m"], options, &["--", "python3", "-c", script]].concat();
        let output = tare.run(call).ok();
        assert!((8 * 1024..=16 * 1024).contains(&filled_kib(&output)), "{output}");
    }
    let call = ["--keep", "--scratch", "16m", "--", "python3", "-c", script];
    let id = tare.detached(call);
    assert_eq!(tare.ended(&id)["exit_code"], 0);
    tare.remove(&id);
}

#[test]
fn a_scratch_size_larger_than_the_memory_limit_is_refused_with_both_values() {
    let tare = tare!();
    if !is_root() {
        skip!("without cgroups memory is not limited");
    }
    for (options, scratch, memory) in [
        (&["--scratch", "1g"][..], "1 GiB", "512 MiB"),
        (&["--scratch", "65m", "--memory", "64m"], "65 MiB", "64 MiB"),
    ] {
        for detached in [&[][..], &["-d"]] {
            let call = detached.iter().chain(options).chain(&["--", "true"]);
            tare.run(call).exited(125).said(&[scratch, memory, "--memory"]);
        }
    }
    tare.run(["--memory", "64m", "--", "true"]).ok();
    tare.run(["--scratch", "64m", "--memory", "64m", "--", "true"]).ok();
}

#[test]
fn scratch_space_is_limited_in_number_of_files() {
    let tare = tare!();
    let script = "import errno, os
made = 0
try:
    while made < 300000:
        os.close(os.open('/tmp/%d' % made, os.O_CREAT | os.O_WRONLY))
        made += 1
except OSError as error:
    assert error.errno == errno.ENOSPC, error
print(made)";
    let output = tare.run(["--scratch", "4m", "--", "python3", "-c", script]).ok();
    let made: u32 = output.stdout_text().trim().parse().unwrap();
    assert!((100..300_000).contains(&made), "{output}");
}

/// Four processes that want all processors; says the share of one that they got.
const BURN: &str = "import os, time
start = time.monotonic()
for _ in range(4):
    if os.fork() == 0:
        while time.monotonic() - start < 1.5:
            pass
        os._exit(0)
for _ in range(4):
    os.wait()
times = os.times()
print((times.children_user + times.children_system) / (time.monotonic() - start))";

fn share(output: &Output) -> f64 {
    output.stdout_text().trim().parse().unwrap_or_else(|_| panic!("{output}"))
}

#[test]
fn processor_time_is_limited_to_its_share() {
    let tare = tare!();
    let limited = share(&tare.run(["--cpus", "0.25", "--", "python3", "-c", BURN]).ok());
    let free = share(&tare.run(["--", "python3", "-c", BURN]).ok());
    assert!(limited < 0.45, "{limited} of one processor against a limit of 0.25");
    assert!(free > limited, "{free} without, {limited} with the limit");
}

/// The directory of a box in the hierarchy with the cpu controller, and the file with the limit.
fn cpu_cgroup(tare: &Tare, id: &str) -> Option<(PathBuf, &'static str)> {
    tare.cgroups_of(id).into_iter().find_map(|directory| {
        let has = |file: &&str| directory.join(file).exists();
        let file = ["cpu.max", "cpu.cfs_quota_us"].into_iter().find(has)?;
        Some((directory, file))
    })
}

/// A keeper without processor time would enforce timeout and lease too late.
#[test]
fn the_limit_on_processor_time_spares_the_keeper() {
    let tare = tare!();
    if !is_root() {
        skip!("only root can limit processor time");
    }
    let is_unlimited = |text: &str| text.starts_with("max") || text.starts_with("-1");
    let check = |id: &str| {
        let (own, file) = cpu_cgroup(&tare, id).expect("the box has a cgroup with cpu");
        let read = |path: PathBuf| fs::read_to_string(path).expect("a file of the cgroup");
        let members = if file == "cpu.max" { "cgroup.threads" } else { "tasks" };
        let has = |directory: &Path, process: &Process| {
            read(directory.join(members)).lines().any(|line| line == process.pid.to_string())
        };
        let (keeper, command) = (tare.keeper(id), tare.workload(id).remove(0));
        assert!(is_unlimited(&read(own.join(file))), "the keeper is limited");
        assert!(!is_unlimited(&read(own.join("work").join(file))), "the command is not limited");
        assert!(has(&own, &keeper) && !has(&own, &command));
        assert!(has(&own.join("work"), &command) && !has(&own.join("work"), &keeper));
    };
    let id = tare.detached(["--cpus", "0.5", "--", "sleep", "1000"]);
    check(&id);
    tare.remove(&id);
    let id = tare.detached(["--", "sleep", "1000"]);
    tare.call(["update", "--cpus", "0.5", &id]).ok();
    check(&id);
    tare.remove(&id);
    let running = tare.spawn(["--cpus", "0.5", "--name", "attached", "--", "sleep", "1000"]);
    eventually("the command runs", || {
        let listed = tare.call(["ls", "-q", "--filter", "name=attached"]).stdout_text();
        let id = listed.trim();
        !id.is_empty() && tare.workload(id).iter().any(|one| one.name == "sleep")
    });
    check(tare.call(["ls", "-q", "--filter", "name=attached"]).ok().stdout_text().trim());
    tare.call(["rm", "-f", "attached"]).ok();
    running.wait();
    tare.nothing_left();
}

/// Each of them needs processor time to die.
#[test]
fn hundreds_of_processes_with_almost_no_processor_time_end_with_their_box() {
    let tare = tare!();
    let busy = "for _ in $(seq 200); do sh -c 'while :; do :; done' & done; echo up; wait";
    let limits = ["--cpus", "0.01", "--timeout", "2s", "--", "sh", "-c", busy];
    tare.run(limits).exited(124).said(&["2s"]);
    let id = tare.detached(["--", "sh", "-c", busy]);
    tare.logged(&id, "up");
    tare.call(["update", "--cpus", "0.01", &id]).ok();
    tare.call(["rm", "-f", &id]).ok();
    tare.nothing_left();
}

#[test]
fn a_timeout_ends_the_box_with_124_and_a_message() {
    let tare = tare!();
    let output = tare.run(["--timeout", "500ms", "--", "sleep", "1000"]);
    assert!(output.lasted < SOON, "{output}");
    output.exited(124).printed("").said(&["500"]);
}

#[test]
fn a_timeout_that_is_not_reached_changes_nothing() {
    let tare = tare!();
    tare.run(["--timeout", "30s", "--", "sh", "-c", "echo done; exit 4"])
        .exited(4)
        .printed("done\n")
        .said_nothing();
}

#[test]
fn output_before_the_timeout_is_kept() {
    let tare = tare!();
    tare.run(["--timeout", "1s", "--", "sh", "-c", "echo before; sleep 1000"])
        .exited(124)
        .printed("before\n");
}

#[test]
fn output_beyond_the_limit_is_cut_and_the_command_continues() {
    let tare = tare!();
    let output = tare
        .run(["--output-limit", "1m", "--", "sh", "-c", "head -c 3000000 /dev/zero; exit 5"])
        .exited(5);
    assert_eq!(output.stdout.len(), 1 << 20);
    output.said(&["output"]);
}

#[test]
fn output_within_the_limit_is_complete() {
    let tare = tare!();
    let output = tare
        .run(["--output-limit", "1m", "--", "head", "-c", "1048576", "/dev/zero"])
        .ok()
        .said_nothing();
    assert_eq!(output.stdout.len(), 1 << 20);
}

#[test]
fn output_beyond_the_limit_ends_the_box_with_output_kill() {
    let tare = tare!();
    let output = tare.run(["--output-limit", "1m", "--output-kill", "--", "yes"]);
    assert_ne!(output.code, 0, "exit code");
    assert!(output.lasted < SOON, "{:?}", output.lasted);
    assert_eq!(output.stdout.len(), 1 << 20);
    output.said(&["output"]);
}
