//! Limits, counts and clocks of machines: what a box uses, what its execs reach, and what `update` changes.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use serde_json::Value;
use tare_harness::{Tare, TemporaryDirectory, eventually, eventually_within, let_pass};

use crate::machines::{Machines, machines};

/// Uses more memory than any machine of these tests has.
const FILL: &str = "x = bytearray(10**9)\nfor i in range(0, 10**9, 4096): x[i] = 1";

/// Sees in `ls`, `inspect` and `explain` that the machine of a box boots.
fn see_boot(tare: &Tare, name: &str) {
    eventually("its machine boots", || {
        let listed = tare.list().into_iter().find(|it| it["name"] == name);
        listed.is_some_and(|it| it["state"] == "starting" && it["booting"] == true)
    });
    let table = tare.call(["ls"]).ok().stdout_text();
    assert!(table.contains("starting(its machine boots)"), "{table}");
    let inspected = tare.json(["inspect", name])[0].clone();
    assert_eq!(inspected["booting"], true, "{inspected}");
    let explained = tare.call(["explain", name]).ok().stdout_text();
    assert!(explained.contains("machine started with"), "{explained}");
    assert!(!explained.contains("the keeper in the machine answered"), "{explained}");
}

/// Sees that it has booted.
fn see_booted(tare: &Tare, name: &str) {
    eventually_within(Duration::from_secs(60), "its machine has booted", || {
        tare.list().iter().any(|it| it["name"] == name && it["state"] == "running")
    });
    let explained = tare.call(["explain", name]).ok().stdout_text();
    assert!(explained.contains("the keeper in the machine answered"), "{explained}");
}

#[test]
fn an_attached_machine_boots_a_kernel_file_and_shows_that_it_boots() {
    let machines = machines!();
    let tare = &machines.tare;
    let release = fs::read_link(machines.kernels().join(".chosen")).expect("a kernel is chosen");
    let kernel = machines.kernels().join(release);
    let kernel = kernel.to_str().expect("the path is ASCII");
    let args = ["--name", "att", "--cpus", "0.9", "--kernel", kernel, "--", "sleep", "1000"];
    let running = machines.run(&args);
    see_boot(tare, "att");
    see_booted(tare, "att");
    let vm = tare.json(["inspect", "att"])[0]["vm"].clone();
    assert_eq!(vm["kernel"], kernel, "{vm}");
    running.signal(Signal::TERM);
    running.wait().exited(143);
    let directory = TemporaryDirectory::new();
    let text = directory.write("text", "not a kernel");
    let nothing = directory.join("nothing");
    for (file, why) in [
        (text.to_str().unwrap(), "kernel"),
        (nothing.to_str().unwrap(), "No such file"),
        ("/", "tare vm kernel use"),
    ] {
        machines.run(&["--kernel", file, "--", "true"]).wait().exited(125).said(&[file, why]);
    }
}

/// The monitor is in the cgroup that has the limit.
fn its_processor_time_is_limited(tare: &Tare, id: &str) {
    let limited = tare.cgroups_of(id).into_iter().map(|cgroup| cgroup.join("work")).find(|work| {
        let limit = |file| fs::read_to_string(work.join(file)).unwrap_or_default();
        limit("cpu.max").starts_with("90000 ") || limit("cpu.cfs_quota_us") == "90000\n"
    });
    let procs = limited.expect("a cgroup has the limit").join("cgroup.procs");
    let procs = fs::read_to_string(procs).expect("the box lives");
    let monitor = procs.trim();
    let program = fs::read_to_string(format!("/proc/{monitor}/comm")).unwrap_or_default();
    assert!(program.starts_with("qemu"), "{program:?} of {procs:?}");
}

#[test]
fn limits_of_a_detached_machine_act_in_it_and_can_be_changed() {
    let machines = machines!();
    let tare = &machines.tare;
    let limits = ["--memory", "448m", "--pids", "20", "--cpus", "0.9"];
    let create = [&["-d", "--name", "box"], &limits[..], &["--", "sleep", "1000"]].concat();
    let creating = machines.run(&create);
    see_boot(tare, "box");
    let id = creating.wait().ok().stdout_text().trim().to_owned();
    see_booted(tare, "box");
    its_processor_time_is_limited(tare, &id);
    counts_its_processes(tare);
    an_exec_ends_with_its_tree(&machines);
    memory_is_given_back(tare, &id);
    the_clock_survives_a_pause(tare);
    changes_its_limits(&machines);
    // Its kernel stays while the box lives.
    let release = tare.json(["inspect", "box"])[0]["vm"]["kernel"].clone();
    let remove = ["vm", "kernel", "rm", release.as_str().expect("it has a name")];
    machines.call(&remove).exited(1).said(&[&id, "tare rm -f"]);
    tare.remove(&id);
    machines.call(&remove).ok();
}

fn usage(tare: &Tare) -> Value {
    tare.json(["stats", "--json", "box"])[0].clone()
}

fn counts_its_processes(tare: &Tare) {
    let listed = tare.listed("box").or_else(|| tare.list().pop()).expect("it is listed");
    assert_eq!(listed["pids"], 1, "{listed}");
    tare.call(["exec", "-d", "box", "--", "sh", "-c", "sleep 1000 & sleep 1000"]).ok();
    eventually("all processes of the machine count", || usage(tare)["pids"] == 4);
    tare.call(["exec", "box", "--", "sh", "-c", "head -c 5000000 /dev/zero > /work/file"]).ok();
    let used = usage(tare);
    assert!(used["scratch_bytes"].as_u64() >= Some(5_000_000), "{used}");
    tare.call(["exec", "box", "--", "rm", "/work/file"]).ok();
}

/// A timeout ends the whole tree before it is reported. Memory ends an exec, and not the box.
fn an_exec_ends_with_its_tree(machines: &Machines) {
    let tree = "setsid sleep 4321 & sleep 4322";
    machines.call(&["exec", "--timeout", "1s", "box", "--", "sh", "-c", tree]).exited(124);
    let look = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -cE 'sleep 43[2][12]' || true";
    machines.call(&["exec", "box", "--", "sh", "-c", look]).ok().printed("0\n");
    let full = machines.call(&["exec", "box", "--", "python3", "-c", FILL]);
    full.exited(137).said(&["memory limit"]);
    // The keeper answers first, and writes its journal afterwards.
    eventually("explain says that memory ran out", || {
        let explained = machines.tare.json(["explain", "--json", "box"]);
        let mut steps = explained["steps"].as_array().expect("it has steps").iter();
        let ended = steps.rfind(|step| step["event"] == "exec_ended").expect("an exec has ended");
        let text = ended["text"].as_str().expect("a text");
        (&ended["cause"], &ended["exit_code"]) == (&"memory".into(), &137.into())
            && text.contains("memory ran out")
    });
    machines.call(&["exec", "box", "--", "echo", "usable"]).ok().printed("usable\n");
}

/// What the machine of the test frees, the host gets back.
fn memory_is_given_back(tare: &Tare, id: &str) {
    let charged = || usage(tare)["memory_bytes"].as_u64().expect("the kernel counts it");
    let fill = "x = bytearray(120 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\nprint('full')\ninput()";
    let mut exec = tare.spawn_call(["exec", "-i", id, "--", "python3", "-c", fill]);
    exec.see("full");
    let full = charged();
    exec.close_stdin();
    exec.wait();
    // The kernel of the machine reports free memory after two seconds.
    eventually_within(Duration::from_secs(30), "freed memory returns to the host", || {
        charged() + (80 << 20) < full
    });
}

fn the_clock_survives_a_pause(tare: &Tare) {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64();
    let is_right = || {
        let before = now();
        let shown = tare.call(["exec", "box", "--", "date", "+%s.%N"]).ok().stdout_text();
        let shown: f64 = shown.trim().parse().expect("a number");
        assert!((before - 1.0..now() + 1.0).contains(&shown), "{before} {shown} {}", now());
    };
    is_right();
    tare.call(["pause", "box"]).ok();
    let paused = tare.call(["update", "--memory", "384m", "box"]).exited(1);
    paused.said(&["cannot lower the memory", "it is paused", "tare resume"]);
    let_pass(Duration::from_secs(3));
    tare.call(["resume", "box"]).ok();
    is_right();
}

fn changes_its_limits(machines: &Machines) {
    let total = || {
        let said = machines.call(&["exec", "box", "--", "grep", "MemTotal", "/proc/meminfo"]).ok();
        let said = said.stdout_text();
        let kib = said.split_whitespace().nth(1).expect("a number");
        kib.parse::<u64>().expect("a number") >> 10
    };
    let before = total();
    machines.call(&["update", "--memory", "384m", "box"]).ok();
    assert!(total() <= before - 62, "{before} {}", total());
    assert_eq!(usage(&machines.tare)["memory_limit_bytes"], 384 << 20);
    // The machine may not have taken its memory back when it is lowered again.
    machines.call(&["update", "--memory", "448m", "box"]).ok();
    machines.call(&["update", "--memory", "384m", "box"]).ok();
    assert!(total() <= before - 62, "{before} {}", total());
    // A change that cannot be recorded leaves all as it was.
    machines.call(&["update", "--memory", "448m", "box"]).ok();
    let unrecorded = "trap '' XFSZ; ulimit -f 0; exec \"$TARE\" update --memory 384m box";
    machines.tare.shell(unrecorded).exited(1).said(&["File too large"]);
    eventually("the machine has all its memory again", || total() == before);
    assert_eq!(usage(&machines.tare)["memory_limit_bytes"], 448 << 20);
    machines.call(&["update", "--memory", "384m", "box"]).ok();
    // Less memory is a limit: the machine kills a process, and lives on.
    machines.call(&["exec", "box", "--", "python3", "-c", FILL]).exited(137);
    machines.call(&["update", "--memory", "448m", "--pids", "6", "box"]).ok();
    eventually("the machine has all its memory again", || total() == before);
    // A refused change changes nothing else either.
    let more = machines.call(&["update", "--memory", "449m", "--pids", "60", "box"]).exited(1);
    more.said(&["448 MiB", "make a new box"]);
    let many = "for i in 1 2 3 4 5 6; do sleep 1000 & done; echo too many";
    let refused = machines.call(&["exec", "--timeout", "30s", "box", "--", "sh", "-c", many]);
    refused.exited(2).printed("").said(&["annot fork"]);
    machines.call(&["update", "--memory", "255m", "box"]).exited(1).said(&["256 MiB"]);
}
