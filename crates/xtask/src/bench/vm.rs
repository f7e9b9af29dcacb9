//! `bench vm`: boxes in emulated machines, beside plain QEMU and beside native boxes.
//!
//! Plain QEMU has the kernel, the first files, the machine and the accelerator of a real box, and
//! sees the host's root by 9p. Its first process is a shell that takes commands from its console, so
//! that both can be asked for the same work.

use super::answer::{Bound, Metric, PLAIN_QEMU, Plot, Row, Table};
use super::launch::Launch;
use super::load::{Call, Contender, Plan, interleave, timed};
use super::memory::at_rest;
use super::setup::{BareTree, Setup, until};
use crate::failure::Failure;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const RUN: &str = "tare run --driver vm";
const REMOVE: &str = "tare rm -f";
const KILL: &str = "tare, SIGKILL of the monitor";
/// Rows of boxes that live.
const MACHINE: &str = "tare --driver vm";
const NATIVE: &str = "native box";

const OUTPUT_BYTES: u64 = 100_000_000;
const RUN_TRUE: [&str; 7] = ["run", "--driver", "vm", "--accel", "tcg", "--", "/bin/true"];
const PYTHON: [&str; 3] = ["/usr/bin/python3", "-c", "pass"];
/// How long idle machines are observed.
const IDLE: Duration = Duration::from_secs(10);
/// How long plain QEMU may take for a command.
const PATIENCE: Duration = Duration::from_secs(120);
/// The unit of /proc/PID/stat (sysconf(_SC_CLK_TCK), 100 on every architecture of Linux).
const TICK: Duration = Duration::from_millis(10);
const MIB: f64 = 1_048_576.0;

/// The first process of plain QEMU. With `once` on the kernel's command line, it ends the machine.
const FIRST_PROCESS: &str = r#"#!/bin/busybox sh
[ -z "$once" ] || /bin/busybox reboot -f
for module in /modules/*; do /bin/busybox insmod $module; done
/bin/busybox mount -t 9p -o trans=virtio,version=9p2000.L,cache=loose,msize=524288,ro root /mnt
exec /bin/busybox chroot /mnt /bin/sh -c '
    echo ready
    while read -r line; do if $line; then echo done; else echo failed; fi; done'
"#;

pub fn answer(setup: &Setup) -> Result<Vec<Table>, Failure> {
    let source = setup.kernel_package.to_string_lossy();
    tare(setup, &["vm", "kernel", "use", &source]).output().map_err(|why| {
        Failure::new(format!("no kernel in target/kernel-package: ./check fetches it ({why})"))
    })?;
    // If there is no QEMU, this says so.
    tare(setup, &RUN_TRUE).output().map_err(Failure::new)?;
    let tables = measure(setup).map_err(Failure::new);
    let removed = tare(setup, &["rm", "-f", "--all"]).output().map_err(Failure::new);
    removed.and(tables)
}

fn measure(setup: &Setup) -> Result<Vec<Table>, String> {
    start(setup, "native", &[])?;
    start_machine(setup, "machine")?;
    let plain = PlainQemu::like(setup, &observe(setup, "machine")?)?;
    let shell = Mutex::new(plain.start()?);
    let mut tables = vec![idle(setup, &shell)?];
    tables.push(in_boxes(setup, "exec of true", &["/bin/true"], &shell));
    tables.push(in_boxes(setup, "exec of python3 -c pass, warm", &PYTHON, &shell));
    tables.push(output(setup));
    tare(setup, &["rm", "-f", "machine"]).output()?;
    shell.into_inner().map_err(|error| error.to_string())?.tree.end()?;
    tables.push(cold(setup, &plain));
    tables.push(life(setup, &plain));
    tables.push(ends(setup));
    Ok(tables)
}

fn tare(setup: &Setup, words: &[&str]) -> Launch {
    let kernels = setup.directory().join("vm");
    setup.tare(words).with_environment("TARE_VM_DIR", kernels.to_string_lossy())
}

/// Starts a box that waits.
fn start(setup: &Setup, name: &str, options: &[&str]) -> Result<(), String> {
    let words = ["run", "-d", "--rm", "--name", name, "--lease", "1h"];
    tare(setup, &[&words, options, &["--", "sleep", "3600"]].concat()).run()
}

/// Starts a machine, and waits until it has run a command.
fn start_machine(setup: &Setup, name: &str) -> Result<(), String> {
    start(setup, name, &["--driver", "vm", "--accel", "tcg"])?;
    tare(setup, &["exec", name, "--", "/bin/true"]).output().map(drop)
}

/// A boot takes seconds.
fn boots(setup: &Setup) -> usize {
    (setup.rounds / 30).clamp(1, 20)
}

fn compare(title: &str, subjects: &[Contender<'_>], samples: usize) -> Table {
    eprintln!("{title}: {samples} rounds");
    let plan = Plan { warm_up: 1, ..Plan::one_at_a_time(samples, 1) };
    let measured = interleave(subjects, &plan);
    let names = subjects.iter().map(|it| it.name.clone());
    Table::compare(title, &[Metric::P50, Metric::P99], names.zip(measured).collect())
}

fn in_boxes(setup: &Setup, title: &str, command: &[&str], shell: &Mutex<PlainMachine>) -> Table {
    let exec = |name| tare(setup, &[&["exec", name, "--"], command].concat());
    let (native, machine) = (exec("native"), exec("machine"));
    let line = command.join(" ");
    let subjects = [
        Contender::of(PLAIN_QEMU, || {
            let mut shell = shell.lock().map_err(|error| error.to_string())?;
            timed(|| shell.run(&line))
        }),
        Contender::of(MACHINE, || timed(|| machine.run())),
        Contender::of(NATIVE, || timed(|| native.run())),
    ];
    // Python takes most of a second.
    let table = compare(title, &subjects, setup.rounds.div_ceil(3));
    match command {
        ["/bin/true"] => table.with_goal(MACHINE, "p50 ms", Bound::AtMost(10.0)),
        _ => table.with_goal(MACHINE, "x plain QEMU", Bound::AtMost(1.1)),
    }
}

/// The first start of Python in a machine.
fn cold(setup: &Setup, plain: &PlainQemu) -> Table {
    let exec = tare(setup, &[&["exec", "cold", "--"], &PYTHON[..]].concat());
    let line = PYTHON.join(" ");
    let subjects = [
        Contender::of(PLAIN_QEMU, || {
            let mut shell = plain.start()?;
            let took = timed(|| shell.run(&line));
            shell.tree.end().and(took)
        }),
        Contender::of(MACHINE, || {
            start_machine(setup, "cold")?;
            let took = timed(|| exec.run());
            tare(setup, &["rm", "-f", "cold"]).run().and(took)
        }),
    ];
    let table = compare("exec of python3 -c pass, cold", &subjects, boots(setup));
    table.with_goal(MACHINE, "x plain QEMU", Bound::AtMost(1.1))
}

fn output(setup: &Setup) -> Table {
    let bytes = OUTPUT_BYTES.to_string();
    let exec = |name| tare(setup, &["exec", name, "--", "head", "-c", &bytes, "/dev/zero"]);
    let (native, machine) = (exec("native"), exec("machine"));
    let subjects = [
        Contender::of(MACHINE, || timed(|| expect_output(&machine))),
        Contender::of(NATIVE, || timed(|| expect_output(&native))),
    ];
    let table = compare("100 MB of output of an exec", &subjects, boots(setup));
    // 100 MB in a second.
    table.with_goal(MACHINE, "p50 ms", Bound::AtMost(1000.0))
}

/// Reads all output, and throws it away.
fn expect_output(launch: &Launch) -> Result<(), String> {
    let mut command = launch.command();
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
    let mut stdout = child.stdout.take().ok_or("it has a pipe")?;
    let read = std::io::copy(&mut stdout, &mut std::io::sink());
    let status = child.wait().map_err(|error| error.to_string())?;
    match read {
        Ok(OUTPUT_BYTES) if status.success() => Ok(()),
        other => Err(format!("{other:?} bytes came, {status}")),
    }
}

fn life(setup: &Setup, plain: &PlainQemu) -> Table {
    let once = plain.launch("once=1", "null");
    let machine = tare(setup, &RUN_TRUE);
    let subjects = [
        Contender::of(PLAIN_QEMU, || timed(|| once.run())),
        Contender::of(RUN, || timed(|| machine.run())),
    ];
    let title = "whole life of /bin/true; plain QEMU ends with the start of its first process";
    let table = compare(title, &subjects, boots(setup));
    let most = table.value(PLAIN_QEMU, "p50 ms").map(|it| 1.15 * it + 300.0);
    with_goal(table, RUN, "p50 ms", most)
}

/// The time until the keeper and the monitor of a machine are gone.
fn ends(setup: &Setup) -> Table {
    let subjects = [(REMOVE, false), (KILL, true)].map(|(name, by_signal)| {
        Contender::of(name, move || {
            start_machine(setup, "ending")?;
            let machine = observe(setup, "ending")?;
            if by_signal {
                kill_monitor(&machine)
            } else {
                timed(|| tare(setup, &["rm", "-f", "ending"]).run())
            }
        })
    });
    compare("end of a machine", &subjects, boots(setup))
        .with_goal(REMOVE, "p50 ms", Bound::AtMost(50.0))
        .with_goal(KILL, "p50 ms", Bound::AtMost(100.0))
}

fn kill_monitor(machine: &Observed) -> Result<Call, String> {
    let pid = i32::try_from(machine.monitor.pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or("the monitor has no pid")?;
    timed(|| {
        kill_process(pid, Signal::KILL).map_err(|error| error.to_string())?;
        let is_gone = |process: &MachineProcess| processor_time(process.pid).is_none();
        until("the machine is gone", || is_gone(&machine.monitor) && is_gone(&machine.keeper))
    })
}

/// A machine that waits, beside plain QEMU that waits, at the same time.
fn idle(setup: &Setup, shell: &Mutex<PlainMachine>) -> Result<Table, String> {
    let title = format!("a machine that waits, for {} s", IDLE.as_secs());
    eprintln!("{title}");
    let shell = shell.lock().map_err(|error| error.to_string())?;
    let plain_bytes = || shell.tree.memory_bytes().map(|it| it as f64);
    let machine_bytes = || observe(setup, "machine").ok().and_then(|it| it.memory_bytes);
    at_rest("machines", || [plain_bytes(), machine_bytes()].into_iter().flatten().collect())?;
    let machine = observe(setup, "machine")?;
    let plain_pid = shell.tree.pid().ok_or("plain QEMU has no pid")?;
    let pids = [vec![plain_pid], vec![machine.keeper.pid, machine.monitor.pid]];
    let used = || pids.each_ref().map(|it| it.iter().filter_map(|pid| processor_time(*pid)).sum());
    let (start, before): (Instant, [Duration; 2]) = (Instant::now(), used());
    #[expect(clippy::disallowed_methods, reason = "the time is what is measured")]
    std::thread::sleep(IDLE);
    let (wall, after) = (start.elapsed(), used());
    let share = |at: usize| {
        let used = after[at].saturating_sub(before[at]);
        used.as_secs_f64() / wall.as_secs_f64() * 100.0
    };
    let row = |name: &str, values: [Option<f64>; 4]| Row {
        name: name.to_owned(),
        warm: None,
        samples: 1,
        values: values.to_vec(),
        absent: None,
    };
    let [keeper, monitor] =
        [&machine.keeper, &machine.monitor].map(|it| Some(it.descriptors as f64));
    let mib = |bytes: Option<f64>| bytes.map(|it| it / MIB);
    let plain_descriptors = fs::read_dir(format!("/proc/{plain_pid}/fd"));
    let plain_descriptors = plain_descriptors.map(|it| it.count() as f64).ok();
    let columns =
        ["MiB charged", "% of a processor", "descriptors of the monitor", "of the keeper"];
    let table = Table {
        title,
        columns: columns.map(str::to_owned).to_vec(),
        rows: vec![
            row(PLAIN_QEMU, [mib(plain_bytes()), Some(share(0)), plain_descriptors, None]),
            row(MACHINE, [mib(machine_bytes()), Some(share(1)), monitor, keeper]),
        ],
        goals: Vec::new(),
        plot: Plot::Bars,
    };
    // 10 MB more than 1.1 times as much.
    let most = table.value(PLAIN_QEMU, columns[0]).map(|it| 1.1 * it + 10e6 / MIB);
    Ok(with_goal(table, MACHINE, columns[0], most)
        .with_quotient([MACHINE, columns[1]], [PLAIN_QEMU, columns[1]], Bound::AtMost(1.2))
        .with_goal(MACHINE, columns[2], Bound::AtMost(32.0))
        .with_goal(MACHINE, columns[3], Bound::AtMost(32.0)))
}

/// Adds a goal that depends on what was measured of plain QEMU.
fn with_goal(table: Table, row: &str, column: &str, most: Option<f64>) -> Table {
    match most {
        Some(most) => table.with_goal(row, column, Bound::AtMost(most.round())),
        None => table,
    }
}

/// Returns the user and kernel time of a process, or `None` if it has ended.
fn processor_time(pid: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in brackets, may contain spaces.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let ticks = |at: usize| fields.get(at)?.parse::<u32>().ok();
    (fields.first() != Some(&"Z")).then_some(())?;
    Some(TICK * (ticks(11)? + ticks(12)?))
}

/// What `tare audit` says of the box of a machine.
#[derive(Debug)]
struct Observed {
    keeper: MachineProcess,
    monitor: MachineProcess,
    memory_bytes: Option<f64>,
}

#[derive(Debug)]
struct MachineProcess {
    pid: u32,
    descriptors: u64,
}

fn observe(setup: &Setup, name: &str) -> Result<Observed, String> {
    let audited = tare(setup, &["audit", "--json"]).output()?;
    parse(&audited, name).ok_or_else(|| format!("tare audit shows no machine {name}"))
}

fn parse(audited: &str, name: &str) -> Option<Observed> {
    let audited: Value = serde_json::from_str(audited).ok()?;
    let found = audited["boxes"].as_array()?.iter().find(|it| it["name"] == name)?;
    let process = |is_keeper: bool| {
        let mut all = found["processes"].as_array()?.iter();
        let one = all.find(|it| (it["pid"] == found["kept_by"]["pid"]) == is_keeper)?;
        let pid = u32::try_from(one["pid"].as_u64()?).ok()?;
        Some(MachineProcess { pid, descriptors: one["descriptors"].as_u64()? })
    };
    let memory_bytes = found["memory_bytes"].as_f64();
    Some(Observed { keeper: process(true)?, monitor: process(false)?, memory_bytes })
}

/// QEMU without tare, with the kernel, the first files and the machine of a real box.
struct PlainQemu {
    words: Vec<String>,
    /// The kernel's command line.
    kernel_words: String,
    directory: String,
    count: AtomicU64,
}

impl PlainQemu {
    /// Copies what the monitor of this box was started with.
    fn like(setup: &Setup, machine: &Observed) -> Result<Self, String> {
        let process = format!("/proc/{}", machine.monitor.pid);
        let failed = |error: std::io::Error| format!("cannot copy a monitor: {error}");
        let arguments = fs::read(format!("{process}/cmdline")).map_err(failed)?;
        let arguments = String::from_utf8_lossy(&arguments).into_owned();
        let arguments: Vec<&str> = arguments.split('\0').collect();
        let of = |option: &str| {
            let at = arguments.iter().position(|it| *it == option);
            let found = at.and_then(|it| arguments.get(it + 1)).copied();
            found.ok_or_else(|| format!("the monitor has no option {option}"))
        };
        let directory = setup.directory().to_string_lossy().into_owned();
        for (option, copy) in [("-kernel", "kernel"), ("-initrd", "first-files")] {
            let file = of(option)?.replace("/proc/self", &process);
            fs::copy(file, format!("{directory}/{copy}")).map_err(failed)?;
        }
        add_first_process(&directory)?;
        let mut words: Vec<String> =
            ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot"]
                .map(str::to_owned)
                .to_vec();
        for option in ["-display", "-M", "-accel", "-cpu", "-m", "-smp"] {
            words.extend([option, of(option)?].map(str::to_owned));
        }
        let own = of("-append")?.split(' ').filter(|it| !it.starts_with("rdinit="));
        let kernel_words = own.chain(["rdinit=/first-process"]).collect::<Vec<_>>().join(" ");
        Ok(Self { words, kernel_words, directory, count: AtomicU64::new(0) })
    }

    fn launch(&self, more_for_kernel: &str, console: &str) -> Launch {
        let Self { words, kernel_words, directory, .. } = self;
        let kernel = format!("{directory}/kernel");
        let first_files = format!("{directory}/first-files");
        let append = format!("{kernel_words} {more_for_kernel}");
        let share = "local,id=root,path=/,readonly=on,security_model=none,multidevs=remap";
        let rest = [
            ["-kernel", &kernel],
            ["-initrd", &first_files],
            ["-append", append.trim()],
            ["-serial", console],
            ["-fsdev", share],
            ["-device", "virtio-9p-device,fsdev=root,mount_tag=root"],
            ["-device", "virtio-balloon-device,free-page-reporting=on"],
        ];
        Launch::new(words.iter().map(String::as_str).chain(rest.into_iter().flatten()))
    }

    /// Starts a machine, and waits until its shell takes commands.
    fn start(&self) -> Result<PlainMachine, String> {
        let name = format!("plain-qemu-{}", self.count.fetch_add(1, Ordering::Relaxed));
        let socket = format!("{}/{name}", self.directory);
        let launch = self.launch("", &format!("unix:{socket},server=on,wait=on"));
        let tree = BareTree::start(&launch, &name, 100)?;
        let mut connection = None;
        until("plain QEMU has a console", || {
            connection = UnixStream::connect(&socket).ok();
            connection.is_some()
        })?;
        let console = connection.ok_or("plain QEMU has no console")?;
        console.set_read_timeout(Some(PATIENCE)).map_err(|error| error.to_string())?;
        let mut machine = PlainMachine { tree, console: BufReader::new(console) };
        machine.expect("ready")?;
        Ok(machine)
    }
}

/// Adds busybox and a script to the first files, as another archive behind the one that is there.
fn add_first_process(directory: &str) -> Result<(), String> {
    let files = format!("{directory}/more-files");
    let made = fs::create_dir_all(format!("{files}/bin"))
        .and_then(|()| fs::create_dir_all(format!("{files}/mnt")))
        .and_then(|()| fs::write(format!("{files}/first-process"), FIRST_PROCESS));
    made.map_err(|error| format!("cannot make {files}: {error}"))?;
    let script = "cd \"$1\" && chmod 755 first-process && cp \"$(command -v busybox)\" bin && \
        find . | busybox cpio -o -H newc >> ../first-files";
    Launch::new(["/bin/sh", "-ec", script, "sh", &files]).output().map(drop)
}

/// Plain QEMU that runs.
struct PlainMachine {
    tree: BareTree,
    console: BufReader<UnixStream>,
}

impl PlainMachine {
    fn run(&mut self, command: &str) -> Result<(), String> {
        let written = self.console.get_mut().write_all(format!("{command}\n").as_bytes());
        written.map_err(|error| format!("cannot write to plain QEMU: {error}"))?;
        self.expect("done")
    }

    /// Reads lines until this one.
    fn expect(&mut self, expected: &str) -> Result<(), String> {
        let mut last = String::new();
        loop {
            let mut line = String::new();
            let read = self.console.read_line(&mut line);
            match read.map_err(|error| format!("plain QEMU does not answer: {error}"))? {
                0 => return Err(format!("plain QEMU has ended: {last}")),
                _ if line.trim() == expected => return Ok(()),
                _ if line.trim() == "failed" => return Err(format!("plain QEMU: {last}")),
                _ => last = line,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keeper_and_the_monitor_of_a_machine_are_told_apart() {
        let audited = r#"{"boxes": [
            {"name": "other", "kept_by": {"pid": 1}, "processes": []},
            {"name": "machine", "kept_by": {"kind": "keeper", "pid": 7}, "memory_bytes": 1024,
             "processes": [{"pid": 9, "descriptors": 20}, {"pid": 7, "descriptors": 12}]}]}"#;
        let found = parse(audited, "machine").unwrap();
        assert_eq!((found.keeper.pid, found.keeper.descriptors), (7, 12));
        assert_eq!((found.monitor.pid, found.monitor.descriptors), (9, 20));
        assert_eq!(found.memory_bytes, Some(1024.0));
        assert!(parse(audited, "other").is_none(), "it has no processes");
        assert!(parse("", "machine").is_none());
    }

    #[test]
    fn a_process_that_has_ended_has_no_processor_time() {
        assert!(processor_time(std::process::id()).is_some());
        let mut child = Launch::new(["/bin/true"]).command().spawn().unwrap();
        until("it is a zombie", || processor_time(child.id()).is_none()).unwrap();
        child.wait().unwrap();
        assert!(processor_time(child.id()).is_none());
    }
}
