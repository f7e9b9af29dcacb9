//! Boxes in virtual machines, emulated, with Debian's generic kernel. What holds for a native box holds
//! for them: streams, exit codes, limits, one way out.
//!
//! `./check` downloads the kernel to `target/kernel-package`. Every boot takes some seconds of processor
//! time, so each test makes many claims about one machine.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::machine_options::a_user_gets_no_more;
use rustix::process::{Pid, Signal, kill_process};
use tare_harness::scene::Scene;
use tare_harness::skip::has_program;
use tare_harness::{Output, Running, Tare, TemporaryDirectory, eventually, tare};

pub const QEMU: &str = "qemu-system-x86_64";
/// A loaded host takes longer than the default to boot a machine.
const BOOT: &str = "55s";

/// A tare with a kernel for its machines.
pub struct Machines {
    // First: it is removed before the tare compares the host.
    directory: TemporaryDirectory,
    pub tare: Tare,
}

impl Machines {
    pub fn new(tare: Tare, unpacked: &Path) -> Self {
        Self::in_directory(tare, TemporaryDirectory::new(), unpacked)
    }

    /// With a directory that the user of the tare can write.
    pub fn in_directory(tare: Tare, directory: TemporaryDirectory, unpacked: &Path) -> Self {
        let machines = Self { directory, tare };
        let unpacked = unpacked.to_str().expect("the path is ASCII");
        machines.call(&["vm", "kernel", "use", unpacked]).ok();
        machines
    }

    /// Returns the scene of its boxes, and the directory that has to be removed before it.
    pub fn into_scene(self) -> (Scene, TemporaryDirectory) {
        (Scene::new(self.tare), self.directory)
    }

    /// The directory of the kernels.
    pub fn kernels(&self) -> PathBuf {
        self.directory.join("vm")
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.tare.command(args);
        command.env("TARE_VM_DIR", self.directory.join("vm")).env("TARE_VM_BOOT", BOOT);
        command
    }

    /// `tare ARGS`, with pipes.
    pub fn start(&self, args: &[&str]) -> Running {
        let mut command = self.command(args);
        command.stdin(std::process::Stdio::piped());
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        self.tare.start_command(command)
    }

    #[track_caller]
    pub fn call(&self, args: &[&str]) -> Output {
        self.start(args).wait()
    }

    /// `tare run --driver vm --accel tcg ARGS`.
    pub fn run(&self, args: &[&str]) -> Running {
        self.start(&[&["run", "--driver", "vm", "--accel", "tcg"], args].concat())
    }

    /// The monitor of a box.
    pub fn monitor(&self, id: &str) -> i32 {
        self.monitor_if_any(id).expect("a monitor runs")
    }

    pub fn monitor_if_any(&self, id: &str) -> Option<i32> {
        let processes = self.tare.processes_in(id);
        let is_monitor = |pid: &u32| {
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            command.windows(QEMU.len()).any(|it| it == QEMU.as_bytes())
        };
        let pid = processes.iter().map(|process| process.pid).find(is_monitor);
        Some(pid?.try_into().expect("a pid is small"))
    }
}

/// Makes a test's tare and kernel, or skips the test.
macro_rules! machines {
    () => {{
        let tare = tare_harness::tare!();
        if !tare_harness::skip::has_program($crate::machines::QEMU) {
            tare_harness::skip!("no {}", $crate::machines::QEMU);
        }
        let Some((_, unpacked)) = $crate::kernels::package() else {
            tare_harness::skip!("no target/kernel-package: ./check fetches it");
        };
        $crate::machines::Machines::new(tare, &unpacked)
    }};
}
pub(crate) use machines;

/// What the command of the first test looks at. `/w` is a volume, `/r` a read-only one, `/f` a file.
const LOOK: &str = r#"
uname -r; hostname; id -u; pwd; echo "$VARIABLE"
grep -c . /proc/self/status >/dev/null && grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/self/status | tr '\t\n' ' '; echo
ls /proc | grep -cE '^[0-9]+$'
cat /r/seen /f; echo written > /w/new; sync
(echo x > /r/no) 2>/dev/null || echo read-only
(echo x > /usr/no) 2>/dev/null || echo read-only
ls /sys/class/net 2>/dev/null; cat /proc/net/dev | grep -c :
awk '/MemTotal/ { print $1 ($2 < 300000) }' /proc/meminfo
read -r line; date "+clock %s.%N"; cat; echo aside >&2; exit 7
"#;

#[test]
fn a_command_has_a_kernel_of_its_own_and_everything_else_as_in_a_native_box() {
    let machines = machines!();
    let directory = TemporaryDirectory::new();
    for name in ["w", "r"] {
        fs::create_dir(directory.join(name)).unwrap();
    }
    directory.write("r/seen", "seen\n");
    directory.write("file", "file\n");
    let volume = |name: &str, place: &str| format!("{}:{place}", directory.join(name).display());
    let (w, r, f) = (volume("w", "/w"), volume("r", "/r:ro"), volume("file", "/f:ro"));
    let mut running = machines.run(&[
        "-i",
        "--memory",
        "384m",
        "-e",
        "VARIABLE=value",
        "-w",
        "/tmp",
        "--name",
        "own",
        "-v",
        &w,
        "-v",
        &r,
        "-v",
        &f,
        "--",
        "sh",
        "-c",
        LOOK,
    ]);
    // Its clock is within a second of the host's while the test waits for the answer.
    let seconds =
        || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64();
    running.see("MemTotal");
    let asked = seconds();
    running.write(b"now\n");
    running.see("clock ");
    let answered = seconds();
    running.write(b"typed\n");
    let output = running.wait().exited(7);
    let stdout = output.stdout_text();
    let (before, rest) = stdout.split_once("clock ").expect("it was seen");
    let (clock, after) = rest.split_once('\n').expect("it typed more");
    let clock: f64 = clock.parse().expect("a number");
    assert!((asked - 1.0..answered + 1.0).contains(&clock), "{asked} {clock} {answered}");
    let listed = machines.call(&["vm", "kernel", "ls", "--json"]).stdout_text();
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let release = listed[0]["release"].as_str().unwrap();
    let expected = format!(
        "{release}\nown\n1000\n/tmp\nvalue\n\
         CapEff: 0000000000000000 NoNewPrivs: 1 Seccomp: 2 \n\
         3\nseen\nfile\nread-only\nread-only\n1\nMemTotal:1\n"
    );
    assert_eq!((before, after), (&*expected, "typed\n"), "{output}");
    assert_eq!(output.stderr_text(), "aside\n");
    assert_eq!(fs::read_to_string(directory.join("w/new")).unwrap(), "written\n");
}

#[test]
fn a_detached_machine_does_what_is_asked_of_it_until_its_monitor_is_killed() {
    let machines = machines!();
    let tare = &machines.tare;
    let id = machines.detached(&["--name", "web", "--", "sh", "-c", "echo up; exec sleep 1000"]);
    machines.confined(&id).unwrap();
    // exec: streams, exit codes, signals, timeouts, programs that are not there.
    let mut exec =
        machines.start(&["exec", "-i", "web", "--", "sh", "-c", "cat; echo e >&2; exit 5"]);
    exec.write(b"through\n");
    let exec = exec.wait().exited(5).printed("through\n");
    assert_eq!(exec.stderr_text(), "e\n");
    machines.call(&["exec", "web", "--", "sh", "-c", "kill -9 $$"]).exited(137);
    machines.call(&["exec", "--timeout", "300ms", "web", "--", "sleep", "1000"]).exited(124);
    machines.call(&["exec", "web", "--", "nothing-of-the-kind"]).exited(127);
    let sent = machines.call(&["exec", "web", "--", "head", "-c", "3000000", "/dev/zero"]).ok();
    assert_eq!(sent.stdout.len(), 3_000_000);
    // cp in both directions, and the log.
    let directory = TemporaryDirectory::new();
    let file = directory.write("file", "copied\n");
    machines.call(&["cp", file.to_str().unwrap(), "web:/work/file"]).ok();
    machines.call(&["exec", "web", "--", "cat", "/work/file"]).ok().printed("copied\n");
    let back = directory.join("back");
    machines.call(&["cp", "web:/work/file", back.to_str().unwrap()]).ok();
    assert_eq!(fs::read_to_string(back).unwrap(), "copied\n");
    machines.call(&["logs", "web"]).ok().printed("up\n");
    a_user_gets_no_more(&machines, "web");
    // A pause stops the machine.
    machines.call(&["pause", "web"]).ok();
    assert_eq!(tare.state(&id), "paused");
    machines.call(&["exec", "web", "--", "true"]).exited(125).said(&["paused"]);
    machines.call(&["resume", "web"]).ok();
    let inspected = &tare.json(["inspect", &id])[0];
    assert_eq!(inspected["spec"]["driver"], "vm");
    assert_eq!(inspected["vm"]["pid"], machines.monitor(&id), "{inspected}");
    // The machine is lost: every client learns it at once.
    let waiting = machines.start(&["exec", "web", "--", "sh", "-c", "echo runs; sleep 1000"]);
    waiting.see("runs");
    let killed = Instant::now();
    kill_process(Pid::from_raw(machines.monitor(&id)).unwrap(), Signal::KILL).unwrap();
    waiting.wait().exited(137).said(&["machine"]);
    let ended = tare.ended(&id);
    assert!(killed.elapsed() < Duration::from_secs(10), "{:?}", killed.elapsed());
    assert_eq!((&ended["cause"], &ended["exit_code"]), (&"machine_lost".into(), &137.into()));
    let explained = machines.call(&["explain", "web"]).ok().stdout_text();
    assert!(explained.contains("The machine ended before its command"), "{explained}");
    assert!(explained.contains("its machine ended before its command"), "{explained}");
    assert!(!explained.contains("its command was killed by"), "{explained}");
    tare.remove(&id);
}

impl Machines {
    pub fn detached(&self, args: &[&str]) -> String {
        let mut command = self.command(&["run", "-d", "--driver", "vm", "--accel", "tcg"]);
        command.args(args);
        self.tare.detached_by(command)
    }

    /// The monitor has nothing of the host, and the machine sees nothing of the monitor.
    fn confined(&self, id: &str) -> io::Result<()> {
        let monitor = self.monitor(id);
        let of_monitor = |name: &str| Path::new("/proc").join(monitor.to_string()).join(name);
        let status = fs::read_to_string(of_monitor("status"))?;
        for name in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert!(status.contains(&format!("{name}:\t0000000000000000")), "{status}");
        }
        assert!(status.contains("NoNewPrivs:\t1") && status.contains("Seccomp:\t2"), "{status}");
        assert!(!status.contains("Uid:\t0\t"), "{status}");
        let cgroups = fs::read_to_string(of_monitor("cgroup"))?;
        assert!(cgroups.contains(id), "{cgroups}");
        for namespace in ["pid", "mnt", "net", "user", "ipc", "uts", "cgroup"] {
            let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/{namespace}"));
            assert_ne!(of(&monitor.to_string())?, of("self")?, "{namespace}");
        }
        let children = of_monitor("task").join(monitor.to_string()).join("children");
        assert_eq!(fs::read_to_string(children)?, "");
        let entries = fs::read_dir(of_monitor("root").join("machine/files/root"))?;
        let seen: Vec<_> = entries.map(|it| Ok(it?.file_name())).collect::<io::Result<_>>()?;
        assert!(seen.contains(&"usr".into()), "{seen:?}");
        for hidden in ["proc", "sys", "dev", "tmp", "work", "machine"] {
            assert!(!seen.contains(&hidden.into()), "{seen:?}");
        }
        let descriptors = fs::read_dir(of_monitor("fd"))?.map(|it| fs::read_link(it?.path()));
        let descriptors: Vec<PathBuf> = descriptors.collect::<io::Result<_>>()?;
        assert!(descriptors.len() <= 64, "{descriptors:?}");
        let is_device =
            |path: &&PathBuf| path.starts_with("/dev") && *path != Path::new("/dev/null");
        assert_eq!(descriptors.iter().find(is_device), None, "{descriptors:?}");
        // No network but loopback, and no socket in it.
        for (table, lines) in [("net/tcp", 1), ("net/tcp6", 1), ("net/udp", 1), ("net/dev", 3)] {
            let found = fs::read_to_string(of_monitor(table))?;
            assert_eq!(found.lines().count(), lines, "{found}");
        }
        // Three socket pairs: console, port and commands. None is a socket on which a process listens.
        let is_socket = |path: &&PathBuf| path.to_string_lossy().starts_with("socket:");
        let sockets: std::collections::BTreeSet<_> = descriptors.iter().filter(is_socket).collect();
        assert_eq!(sockets.len(), 3, "{descriptors:?}");
        const LISTENS: &str = " 00010000 ";
        let unix = fs::read_to_string(of_monitor("net/unix"))?;
        assert!(!unix.contains(LISTENS), "{unix}");
        Ok(())
    }
}

#[test]
fn a_timeout_counts_from_the_start_of_the_command_and_memory_ends_only_the_command() {
    let machines = machines!();
    let begun = Instant::now();
    let output = machines.run(&["--timeout", "2s", "--", "sh", "-c", "echo begun; sleep 1000"]);
    output.see("begun");
    let at = begun.elapsed();
    output.wait().exited(124).said(&["timeout of 2s"]);
    assert!(begun.elapsed() >= at + Duration::from_millis(1500), "{at:?} {:?}", begun.elapsed());
    let filler = "x = bytearray(10**9)\nfor i in range(0, 10**9, 4096): x[i] = 1";
    let full = machines.run(&["--memory", "256m", "--json", "--", "python3", "-c", filler]);
    let full = full.wait().exited(137);
    let report: serde_json::Value = serde_json::from_str(&full.stdout_text()).unwrap();
    assert_eq!((&report["cause"], &report["oom"]), (&"memory".into(), &true.into()), "{report}");
}

#[test]
fn a_machine_that_does_not_start_is_one_error_with_its_reason_and_leaves_nothing() {
    let machines = machines!();
    let late = machines.start_with(&[("TARE_VM_BOOT", "50ms")], &["--", "true"]);
    late.wait().exited(125).said(&["the machine did not start", "did not answer within"]);
    let directory = &machines.directory;
    let ends = directory.write("ends", "#!/bin/sh\ncase $1 in --version) echo 'QEMU emulator version 7.2.0';;\n-accel) echo tcg;; *) echo 'no such thing' >&2; exit 1;; esac\n");
    executable(&ends);
    let output =
        machines.start_with(&[("TARE_VM_MONITOR", ends.to_str().unwrap())], &["--", "true"]);
    output.wait().exited(125).said(&[
        "the machine did not start",
        "its monitor ended",
        "no such thing",
    ]);
    // A user who gives up during the boot does not wait for it.
    let running = machines.run(&["--", "sleep", "1000"]);
    eventually("a record", || {
        fs::read_dir(machines.tare.state_root().join("boxes")).is_ok_and(|it| it.count() == 1)
    });
    running.signal(Signal::TERM);
    running.wait().exited(143);
}

fn executable(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("the test made the file");
}

impl Machines {
    fn start_with(&self, variables: &[(&str, &str)], args: &[&str]) -> Running {
        let mut command = self.tare.command(["run", "--driver", "vm", "--accel", "tcg"]);
        command.args(args).env("TARE_VM_DIR", self.directory.join("vm"));
        command.envs(variables.iter().copied()).stdin(std::process::Stdio::null());
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        self.tare.start_command(command)
    }
}

#[test]
fn wrong_requests_for_machines_are_refused_with_a_hint() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let refused = |variables: &[(&str, &str)], args: &[&str], mentions: &[&str]| {
        let mut command = tare.command(["run"]);
        command.args(args).args(["--", "true"]).env("TARE_VM_DIR", directory.join("none"));
        command.envs(variables.iter().copied()).stdin(std::process::Stdio::null());
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        tare.start_command(command).wait().exited(125).said(mentions);
    };
    refused(&[], &["--driver", "container"], &["native, vm"]);
    refused(&[], &["--accel", "tcg"], &["--accel", "--driver vm"]);
    refused(&[], &["--kernel", "x"], &["--kernel", "--driver vm"]);
    let vm = ["--driver", "vm", "--accel", "tcg"];
    let with = |more: &[&'static str]| [&vm[..], more].concat();
    refused(&[], &with(&["--memory", "255m"]), &["too small", "256 MiB"]);
    refused(&[], &with(&["--net", "host"]), &["network", "--net host"]);
    refused(&[], &with(&["--contain"]), &["files", "--contain"]);
    refused(&[], &with(&["-d", "--keep"]), &["outlive", "-v"]);
    refused(&[("TARE_VM_BOOT", "soon")], &vm, &["TARE_VM_BOOT", "30s"]);
    refused(&[("TARE_VM_MONITOR", "/bin/true")], &vm, &["/bin/true is not QEMU"]);
    refused(&[("PATH", "/nothing")], &vm, &[QEMU, "qemu-system-x86"]);
    if has_program(QEMU) {
        let none = directory.join("none");
        let mentions = [none.to_str().unwrap(), "TARE_VM_DIR", "tare vm kernel fetch"];
        refused(&[], &vm, &[&["no kernel is chosen"], &mentions[..]].concat());
        refused(&[], &with(&["--kernel", "x"]), &["no kernel 'x'", "tare vm kernel ls"]);
    }
}
