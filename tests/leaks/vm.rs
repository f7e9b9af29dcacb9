//! Cases of every letter, for boxes in virtual machines. A boot takes some seconds of processor time, so each
//! machine is the place of many cases.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tare_harness::scene::in_lanes;
use tare_harness::{Process, Tare, TemporaryDirectory, eventually, eventually_within};

use crate::leaks::case::times;
use crate::machines::{Machines, machines};

/// How long the host may see anything of a machine that has ended.
const GONE_WITHIN: Duration = Duration::from_secs(30);
const FILES: usize = 400;

/// Waits until nothing of a box is left but its record. Runs no tare command meanwhile.
#[track_caller]
fn is_over(tare: &Tare, id: &str, monitor: i32) {
    let is_alive = |one: &Process| one.pid.cast_signed() == monitor && !one.is_zombie;
    eventually_within(GONE_WITHIN, "no process is left", || {
        tare.processes_in(id).is_empty() && !tare_harness::processes().iter().any(is_alive)
    });
}

#[track_caller]
fn nothing_is_left(tare: &Tare) {
    tare.reap_orphans();
    tare.call(["audit"]).ok();
}

/// A10, kata and firecracker-containerd: a killed launcher left its virtual machine and the machine's directory
/// behind.
///
/// A1, e2b: a stop reached a wrapper in the machine, and not the wrapper's children.
///
/// A2, boxlite: a machine was ended, and the processes in its own PID namespace kept running.
///
/// C8, boxlite: a crashed monitor was noticed only by the next operation.
#[test]
fn a_machine_ends_as_a_whole_however_it_ends() {
    let machines = machines!();
    let ends = [End::Stop, End::LauncherKilled, End::MonitorKilled, End::Remove];
    for _ in 0..times(1, 5) {
        in_lanes(&ends, |end| end.happen(&machines));
    }
    nothing_is_left(&machines.tare);
}

#[derive(Debug, Clone, Copy)]
enum End {
    Stop,
    Remove,
    LauncherKilled,
    MonitorKilled,
}

impl End {
    fn happen(self, machines: &Machines) {
        let tare = &machines.tare;
        let name = format!("{self:?}").to_lowercase();
        // A chain of wrappers, and a child that has left them all.
        let chain = "setsid sleep 1000 & sh -c 'sh -c \"echo up; sleep 1000; :\"; :'; :";
        let args = ["--name", &name, "--memory", "256m", "--", "sh", "-c", chain];
        let running = machines.run(&args);
        running.see("up");
        let id = tare.list().iter().find(|it| it["name"] == *name).map(|it| it["id"].clone());
        let id = id.as_ref().and_then(Value::as_str).expect("it is listed").to_owned();
        let monitor = machines.monitor(&id);
        match self {
            Self::Stop => drop(machines.call(&["stop", &name]).ok()),
            Self::Remove => drop(machines.call(&["rm", "-f", &name]).ok()),
            Self::LauncherKilled => running.signal(Signal::KILL),
            Self::MonitorKilled => {
                let monitor = Pid::from_raw(monitor).expect("a pid");
                kill_process(monitor, Signal::KILL).expect("it lives");
            }
        }
        is_over(tare, &id, monitor);
        let code = running.wait().code;
        assert!(code != 0, "{self:?}: {code}");
        eventually("its cgroups are gone", || {
            // Only after a killed launcher another command has to remove them.
            tare.call(["ls"]).ok();
            tare.cgroups_of(&id).is_empty()
        });
    }
}

/// B11, boxlite: detached machines died with the process that had launched them.
///
/// C1, boxlite: liveness was judged by a command line; a live machine was marked as stopped.
///
/// C7, boxlite: a failed boot deleted the record of a live virtual machine.
///
/// D5, kata: a helper of a machine ran outside its box's cgroup and outlived the box.
///
/// E2, microsandbox: without free descriptors of the monitor, files seemed to vanish and close was blocked.
///
/// G8, e2b: free block devices could not be acquired, and a process that waited for one could not be stopped.
///
/// H2, kata: processes that crashed repeatedly left their mounts in the machine.
///
/// I1, e2b: only a remote service enforced the lifetime of a machine.
///
/// K2, microsandbox: a loop over a directory grew the memory of the monitor.
///
/// K3, vm0 and CubeSandbox: the memory of a machine stayed at its highest mark.
#[test]
fn a_machine_that_lives_costs_the_host_no_more_with_time_and_its_lease_ends_it() {
    let machines = machines!();
    let tare = &machines.tare;
    let files = TemporaryDirectory::new();
    (0..FILES).for_each(|number| drop(files.write(&format!("f{number}"), "x")));
    let volume = format!("{}:/r:ro", files.text());
    let before = (host_mounts(), block_devices());
    let limits = ["--memory", "384m", "--nofile", "4096"];
    let args = [&["--name", "a", "-v", &volume][..], &limits, &["--", "sleep", "1000"]].concat();
    let id = machines.detached(&args);
    let monitor = machines.monitor(&id);
    every_process_is_in_its_cgroups(tare, &id, monitor);
    every_command_sees_it(&machines, &id, monitor);
    failed_boots_spare_it(&machines, &id);
    crashes_leave_no_mount(tare);
    directories_cost_no_memory(tare, monitor);
    few_descriptors_are_an_accurate_error(tare, monitor);
    freed_memory_returns(tare);
    assert_eq!((host_mounts(), block_devices()), before);
    let open = fs::read_dir(format!("/proc/{monitor}/fd")).expect("it lives").flatten();
    let open: Vec<PathBuf> = open.filter_map(|it| fs::read_link(it.path()).ok()).collect();
    let is_device = |path: &PathBuf| path.starts_with("/dev") && path != Path::new("/dev/null");
    assert!(!open.iter().any(is_device), "{open:?}");
    assert_eq!(machines.monitor(&id), monitor);
    tare.call(["update", "--lease", "1s", "a"]).ok();
    eventually("its lease ends it", || tare.processes_in(&id).is_empty());
    assert_eq!(tare.ended(&id)["cause"], "lease");
    tare.remove(&id);
    nothing_is_left(tare);
}

fn host_mounts() -> usize {
    fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted").lines().count()
}

/// Loop and network block devices that have a file behind them.
fn block_devices() -> Vec<String> {
    let names = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let names = names.map(|it| it.file_name().to_string_lossy().into_owned());
    let is_used = |name: &String| {
        let of = |file: &str| Path::new("/sys/block").join(name).join(file).exists();
        of("loop/backing_file") || name.starts_with("nbd") && of("pid")
    };
    names.filter(is_used).collect()
}

#[track_caller]
fn every_process_is_in_its_cgroups(tare: &Tare, id: &str, monitor: i32) {
    // The keeper and the monitor are all there is.
    let processes: Vec<u32> = tare.processes_in(id).iter().map(|it| it.pid).collect();
    assert_eq!(processes.len(), 2, "{processes:?}");
    assert!(processes.contains(&monitor.cast_unsigned()));
    for process in processes {
        let own = fs::read_to_string(format!("/proc/{process}/cgroup")).expect("it lives");
        assert!(own.contains(id), "{process}: {own}");
    }
}

#[track_caller]
fn every_command_sees_it(machines: &Machines, id: &str, monitor: i32) {
    let keeper = machines.tare.keeper(id);
    for locale in ["C", "de_DE.UTF-8", "tr_TR.UTF-8", "", "nonsense"] {
        for _ in 0..2 {
            let mut ls = machines.command(&["ls", "--json"]);
            let output = ls.env("LC_ALL", locale).output().expect("it can be started");
            let listed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            assert_eq!((&listed[0]["id"], &listed[0]["state"]), (&id.into(), &"running".into()));
        }
    }
    assert_eq!(machines.tare.keeper(id), keeper);
    assert_eq!(machines.monitor(id), monitor);
}

#[track_caller]
fn failed_boots_spare_it(machines: &Machines, id: &str) {
    let tare = &machines.tare;
    let before = (tare.footprint(), tare.record_files(id));
    for (name, why) in [("a", "taken"), ("b", "did not answer within")] {
        let args = ["run", "-d", "--driver", "vm", "--accel", "tcg", "--name", name, "--", "true"];
        let mut command = machines.command(&args);
        command.env("TARE_VM_BOOT", "50ms").stdin(std::process::Stdio::null());
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        tare.start_command(command).wait().exited(125).printed("").said(&[why]);
        tare.reap_orphans();
        assert_eq!((tare.footprint(), tare.record_files(id)), before);
    }
}

#[track_caller]
fn crashes_leave_no_mount(tare: &Tare) {
    let mounts = || tare.exec("a", ["cat", "/proc/self/mountinfo"]).ok().stdout_text();
    let before = mounts();
    for _ in 0..times(20, 100) {
        tare.exec("a", ["sh", "-c", "kill -SEGV $$"]).exited(139);
    }
    assert_eq!(mounts(), before);
}

/// Memory of the monitor that belongs to no file, with the memory of the machine.
fn anonymous_kib(monitor: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{monitor}/status")).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("it has some");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[track_caller]
fn directories_cost_no_memory(tare: &Tare, monitor: i32) {
    /// A leak of 100 bytes an entry would be more. The kernel of the machine allocates some, too.
    const GROWTH_KIB_MAX: u64 = 8 << 10;
    let list = |count: usize| {
        let code =
            format!("import os\nfor _ in range({count}): assert len(os.listdir('/r')) == {FILES}");
        tare.exec("a", ["python3", "-c", &code]).ok();
    };
    list(20);
    let before = anonymous_kib(monitor);
    list(times(250, 25_000));
    let grown = anonymous_kib(monitor).saturating_sub(before);
    assert!(grown < GROWTH_KIB_MAX, "{grown} KiB more");
}

/// Opens files until that fails, and again after it has closed them.
const GREEDY: &str = r#"
import errno, os
def fill():
    files = []
    try:
        for number in range(FILES): files.append(open(f"/r/f{number}"))
    except OSError as error:
        print(errno.errorcode[error.errno], len(files) > 100)
    return files
for file in fill(): file.close()
print(len(os.listdir("/r")), open("/r/f399").read())
for file in fill(): file.close()
"#;

/// QEMU closes idle files when it has half of the descriptors that it began with. With a lower limit, it
/// gets to the limit first.
#[track_caller]
fn few_descriptors_are_an_accurate_error(tare: &Tare, monitor: i32) {
    // Root of a container may lack CAP_SYS_RESOURCE. The user of the monitor may lower its limits.
    let owner = fs::metadata(format!("/proc/{monitor}")).expect("it lives");
    let user = format!("--reuid={} --regid={} --clear-groups", owner.uid(), owner.gid());
    tare.shell(&format!("exec setpriv {user} prlimit --pid {monitor} --nofile=256:256")).ok();
    let code = GREEDY.replace("FILES", &FILES.to_string());
    let said = tare.exec("a", ["python3", "-c", &code]).ok().stdout_text();
    assert_eq!(said, format!("EMFILE True\n{FILES} x\nEMFILE True\n"));
    tare.exec("a", ["cat", "/r/f0"]).ok().printed("x");
}

#[track_caller]
fn freed_memory_returns(tare: &Tare) {
    let charged = || {
        let stats = tare.json(["stats", "--json", "a"]);
        stats[0]["memory_bytes"].as_u64().expect("the kernel counts it")
    };
    let fill = "x = bytearray(96 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\nprint('full')\ninput()";
    let mut exec = tare.spawn_call(["exec", "-i", "a", "--", "python3", "-c", fill]);
    exec.see("full");
    let full = charged();
    exec.close_stdin();
    exec.wait();
    eventually_within(Duration::from_secs(30), "freed memory returns to the host", || {
        charged() + (64 << 20) < full
    });
}
