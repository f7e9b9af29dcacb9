//! Machines that lie, flood and never answer. The monitor of these tests is a program that speaks for
//! the machine (`probes/hostile_monitor.py`), so nothing boots. Whatever it sends, the box ends in time,
//! its keeper stays small, and nothing is left.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;
use tare_harness::{Output, Running, Tare, TemporaryDirectory, eventually};

const MONITOR: &str = include_str!("probes/hostile_monitor.py");
pub const RUN: [&str; 5] = ["run", "--driver", "vm", "--accel", "tcg"];
/// What a keeper may use, whatever its machine sends.
pub const KEEPER_KIB_MAX: u64 = 64 << 10;
/// How long any of these boxes may take, on a loaded host.
const WITHIN: Duration = Duration::from_secs(45);

pub struct Liars {
    // Before the tare: its end compares the host with its beginning.
    pub directory: TemporaryDirectory,
    pub tare: Tare,
    /// How long the machine has until it answers.
    pub boot: &'static str,
}

macro_rules! liars {
    ($boot:literal) => {{
        let tare = tare_harness::tare!();
        let Some((_, unpacked)) = $crate::kernels::package() else {
            tare_harness::skip!("no target/kernel-package: ./check fetches it");
        };
        let directory = tare_harness::TemporaryDirectory::new();
        let liars = $crate::hostile_machines::Liars { tare, directory, boot: $boot };
        let unpacked = unpacked.to_str().expect("the path is ASCII");
        liars.start("", &["vm", "kernel", "use", unpacked]).wait().ok();
        liars
    }};
}
pub(crate) use liars;

impl Liars {
    /// `tare ARGS` with a monitor that does this.
    pub fn command(&self, lie: &str, args: &[&str]) -> Command {
        // The shell answers sooner than Python would.
        let script = format!(
            "#!/bin/sh\ncase $1 in --version) echo QEMU emulator version 9.0.0; exit;; \
             -accel) echo tcg; exit;; esac\nexec /usr/bin/python3 -c \"$(cat <<'END'\n\
             LIE = '''{lie}'''\n{MONITOR}END\n)\"\n"
        );
        let monitor = self.directory.write("monitor", &script);
        fs::set_permissions(&monitor, Permissions::from_mode(0o755)).expect("it is ours");
        let mut command: Command = self.tare.command(args);
        // A failed test shows the variables of its command.
        command.env("LIE", lie).env("TARE_VM_DIR", self.directory.join("vm"));
        command.env("TARE_VM_MONITOR", monitor).env("TARE_VM_BOOT", self.boot);
        command
    }

    pub fn start(&self, lie: &str, args: &[&str]) -> Running {
        let mut command = self.command(lie, args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.tare.start_command(command)
    }

    pub fn run(&self, lie: &str, args: &[&str]) -> Running {
        self.start(lie, &[&RUN[..], args].concat())
    }

    /// Starts a detached box and returns its id.
    pub fn detached(&self, lie: &str, options: &[&str]) -> String {
        let args = [&RUN[..], &["-d", "--lease", "2m"], options, &["--", "cat"]].concat();
        self.tare.detached_by(self.command(lie, &args))
    }

    /// Runs to the end, in time.
    #[track_caller]
    fn output(&self, lie: &str, args: &[&str]) -> Output {
        let start = Instant::now();
        let output = self.run(lie, args).wait();
        assert!(start.elapsed() < WITHIN, "{lie}: {:?}\n{output}", start.elapsed());
        self.tare.call(["ls", "-aq"]).ok().printed("");
        output
    }
}

/// The largest memory that a process ever had.
pub fn peak_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("it has memory");
    peak.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn a_machine_that_does_not_boot_properly_is_one_error() {
    let liars = liars!("2s");
    let [late, other, ended] = ["did not answer within", "not this tare's", "its monitor ended"];
    let unmade = "it could not be set up";
    for (lie, why) in [
        ("forever()", late),
        ("say(os.urandom(4096)); forever()", other),
        ("say(hello(2)); forever()", other),
        ("say(hello()[:10]); forever()", late),
        ("say(frame(END, 0)); forever()", other),
        ("say(hello(), hello()); forever()", other),
        ("say(hello()); forever()", late),
        ("say(hello()); until_data(OWN); report(OWN, 255, 255, 255); forever()", other),
        ("say(hello()); until_data(OWN); report(OWN, STARTED); forever()", other),
        // A failure whose errno is 0, and one whose errno is no errno.
        ("say(hello()); until_data(OWN); report(OWN, SETUP_FAILED, 4, 0, 0); forever()", unmade),
        (
            "boot(); until_data(COMMAND); report(COMMAND, SETUP_FAILED, 16, 0, 255, 255, 3); forever()",
            unmade,
        ),
        ("say(hello()); until_data(OWN); say(frame(END, OWN)); forever()", other),
        ("sys.exit(3)", ended),
        ("print('last words', flush=True); os.abort()", "last words"),
        ("while True: os.write(1, bytes(65536))", late),
    ] {
        let output = liars.output(lie, &["--", "true"]).exited(125);
        // The last lines of the console, of which every byte may be an escape.
        assert!(output.stderr.len() < 16 << 10, "{lie}: {output}");
        output.said(&["the machine did not start", why]);
    }
    // It ends a command that it has not started.
    for args in [&["--", "true"][..], &["-d", "--", "true"]] {
        let output = liars
            .output("boot(); until_data(COMMAND); report(COMMAND, *ended(7)); forever()", args);
        output.exited(125).said(&["the machine did not start", other]);
    }
    liars.tare.reap_orphans();
}

#[test]
fn a_machine_that_breaks_the_protocol_is_lost() {
    let liars = liars!("30s");
    for lie in [
        "say(bytes([255]) * 4096)",
        "say(struct.pack('<IIQ', DATA, 0xffffffff, COMMAND))",
        "say(struct.pack('<IIQ', DATA, 0, COMMAND))",
        "say(frame(DATA, 12, b'x'))",
        "say(frame(DATA, STDIN, b'x'))",
        "say(frame(DATA, STDOUT, bytes(8193)))",
        "say(frame(CREDIT, COMMAND, bytes([255]) * 4))",
        "say(frame(OPEN, 1))",
        "say(frame(PASS, COMMAND, struct.pack('<QIII', 1, 1, 0, 0)))",
        "say(frame(PASS, COMMAND, struct.pack('<QIII', 7, 4, 24, 80)))",
        "say(frame(RESIZE, STDOUT, struct.pack('<II', 24, 80)))",
        "say(frame(END, STDOUT), frame(DATA, STDOUT, b'x'))",
        "say(frame(END, STDOUT), frame(END, STDOUT))",
        "say(hello())",
        "report(COMMAND, DONE)",
        // A failed start, although it has started.
        "report(COMMAND, SETUP_FAILED, 4, 0, 0)",
        "report(COMMAND, DETACHED)",
        "report(COMMAND, 255, 255)",
        "say(frame(END, COMMAND))",
        // A terminal that nobody asked for.
        "say(frame(PASS, COMMAND, struct.pack('<QIII', 1, 4, 24, 80))); report(COMMAND, TERMINAL)",
        "report(COMMAND, TERMINAL)",
        "sys.exit()",
    ] {
        let lie = format!("start(); {lie}; forever()");
        let output = liars.output(&lie, &["--", "sleep", "1000"]).exited(137);
        assert!(output.stderr_text().contains("machine"), "{lie}: {output}");
    }
}

/// A machine that does not say that its files are written is awaited for 10 s.
#[test]
fn a_machine_without_writable_volumes_is_not_asked_to_write_its_files() {
    let liars = liars!("30s");
    let volume = format!("{}:/r:ro", liars.directory.path().display());
    let start = Instant::now();
    let lie = "start(); report(COMMAND, *ended(7)); forever()";
    liars.output(lie, &["-v", &volume, "--", "cat"]).exited(7);
    assert!(start.elapsed() < Duration::from_secs(9), "{:?}", start.elapsed());
}

const TWICE: &str = "start(); report(COMMAND, STARTED)
report(COMMAND, *ended(7)); report(COMMAND, *ended(8))
until_data(OWN); report(OWN, DONE); forever()";

#[test]
fn a_machine_that_never_answers_keeps_no_client() {
    let liars = liars!("30s");
    let volume = liars.directory.join("w");
    fs::create_dir(&volume).expect("it is new");
    let volume = format!("{}:/w", volume.display());
    for (lie, code) in [
        // It started the command, and says no more.
        ("start(); forever()", 124),
        // It reads nothing, not even what the user types.
        ("start(); time.sleep(1000)", 124),
        // It sends half a frame, and never the rest.
        ("start(); say(frame(DATA, STDOUT, bytes(100))[:50]); forever()", 124),
        // It says twice that the command has started and ended.
        (TWICE, 7),
        // It says that the command has ended, and does not say that its files are written.
        ("start(); report(COMMAND, *ended(7)); forever()", 7),
        // Its output has no end, and tells of no end of the command.
        ("start(); flood([STDOUT, STDERR], bytes(8000))", 124),
    ] {
        let start = Instant::now();
        let mut running = liars.run(lie, &["-i", "--timeout", "1s", "-v", &volume, "--", "cat"]);
        running.write(&[b'x'; 60_000]);
        let output = running.wait().exited(code);
        assert!(start.elapsed() < WITHIN, "{lie}: {output}");
        liars.tare.call(["ls", "-aq"]).ok().printed("");
    }
}

#[test]
fn floods_of_a_machine_leave_its_keeper_small_and_its_box_usable() {
    let liars = liars!("30s");
    for lie in [
        "start(); flood([STDOUT, STDERR], bytes(8000))",
        "start(); flood([COMMAND], bytes([1, 0, 0, 0, SCRATCH_FULL]) * 1000)",
        "start()\nwhile True: os.write(1, bytes(65536))",
    ] {
        let args = ["-d", "--lease", "1m", "--output-limit", "1m", "--", "cat"];
        let id = liars.tare.detached_by(liars.command(lie, &[&RUN[..], &args].concat()));
        // An exec that the machine never answers waits until its client gives up.
        let exec = ["exec", "--timeout", "1s", &id, "--", "true"];
        let start = Instant::now();
        let exec = liars.start(lie, &exec).wait();
        assert!(exec.code != 0 && start.elapsed() < WITHIN, "{lie}: {exec}");
        let peak = peak_kib(liars.tare.keeper(&id).pid);
        assert!(peak < KEEPER_KIB_MAX, "{lie}: {peak} KiB");
        liars.tare.remove(&id);
        liars.tare.reap_orphans();
    }
}

#[test]
fn a_machine_whose_kernel_killed_the_command_for_memory_is_believed() {
    let liars = liars!("30s");
    // The cause is a signal, the status of wait(2) is 9 as a zigzag number, and memory ran out.
    let lie =
        "start(); report(COMMAND, ENDED, 1, 18, 1); until_data(OWN); report(OWN, DONE); forever()";
    let output = liars.output(lie, &["--json", "--", "cat"]).exited(137);
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    assert_eq!((&report["cause"], &report["oom"]), (&"memory".into(), &true.into()), "{report}");
}

/// A list asks each machine how many processes it has.
#[test]
fn a_list_does_not_wait_for_each_machine_that_never_answers() {
    const MACHINES: usize = 12;
    const LISTED_WITHIN: Duration = Duration::from_secs(9);
    let liars = liars!("30s");
    let start = |_| liars.detached("start(); forever()", &[]);
    let ids: Vec<String> = (0..MACHINES).map(start).collect();
    let began = Instant::now();
    assert_eq!(liars.tare.list().len(), MACHINES);
    assert!(began.elapsed() < LISTED_WITHIN, "{:?}", began.elapsed());
    ids.iter().for_each(|id| liars.tare.remove(id));
    // It ends when it is asked, and never says that its files are written.
    let lie = format!("start(); {UNTIL_ASKED}; report(COMMAND, *ended(7)); forever()");
    let id = liars.detached(&lie, &[]);
    let began = Instant::now();
    assert_eq!(liars.tare.list().len(), 1);
    assert!(began.elapsed() < LISTED_WITHIN, "{:?}", began.elapsed());
    liars.tare.remove(&id);
    liars.tare.reap_orphans();
}

/// Waits for the first question of a client.
const UNTIL_ASKED: &str =
    "next(0 for kind, stream, _ in received if kind == DATA and stream > STDERR)";
/// Writes the commands for the monitor to the output of the box, and answers every client that the machine
/// has given back 2^35 bytes.
const GENEROUS: &str = "import threading
start()
def tell():
    while True: say(frame(DATA, STDOUT, os.read(COMMANDS, 200)))
threading.Thread(target=tell, daemon=True).start()
for kind, stream, _ in received:
    if kind == DATA and stream > STDERR:
        report(stream, MACHINE_USAGE, 0, 0, 0, 1, 128, 128, 128, 128, 128, 1)";

#[test]
fn a_change_of_memory_that_fails_leaves_the_machine_as_it_was() {
    let liars = liars!("30s");
    let tare = &liars.tare;
    let id = liars.detached(GENEROUS, &["--memory", "448m"]);
    // The machine gives memory back, and then the change cannot be recorded.
    let update = format!("trap '' XFSZ; ulimit -f 0; exec \"$TARE\" update --memory 384m {id}");
    tare.shell(&update).exited(1).said(&["cannot record the limits", "File too large"]);
    let balloons = || {
        let logged = tare.call(["logs", &id]).ok().stdout_text();
        let sizes = logged.lines().map(|line| line.trim_start_matches("balloon ").parse());
        sizes.collect::<Result<Vec<u64>, _>>().unwrap_or_else(|_| panic!("{logged:?}"))
    };
    eventually("the machine is told twice", || balloons().len() == 2);
    assert_eq!(balloons()[0] + 64, balloons()[1]);
    assert_eq!(tare.json(["stats", "--json", &id])[0]["memory_limit_bytes"], 448 << 20);
    tare.call(["pause", &id]).ok();
    let paused = tare.call(["update", "--memory", "384m", &id]).exited(1);
    paused.said(&["cannot lower the memory", "it is paused", "tare resume"]);
    tare.call(["resume", &id]).ok();
    tare.call(["update", "--memory", "384m", &id]).ok();
    tare.remove(&id);
    let id = liars.detached("start(); os.close(COMMANDS); forever()", &["--memory", "448m"]);
    let deaf = tare.call(["update", "--memory", "384m", &id]).exited(1);
    deaf.said(&["its monitor takes no commands", "tare rm -f"]);
    tare.remove(&id);
    tare.reap_orphans();
}

/// Each exec takes six descriptors of the keeper.
#[test]
fn two_hundred_execs_in_a_machine_fit_where_a_thousand_descriptors_are_the_default() {
    const EXECS: usize = 200;
    let liars = liars!("30s");
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(1024), ..limit }).expect("it is lower");
    let id = liars.detached("start(); forever()", &["--name", "web"]);
    let keeper = liars.tare.keeper(&id).pid;
    let args = ["exec", &id, "--", "true"];
    let execs: Vec<_> = (0..EXECS).map(|_| liars.tare.spawn_call(args)).collect();
    eventually("the keeper has all of them", || {
        let descriptors = fs::read_dir(format!("/proc/{keeper}/fd")).expect("it lives").count();
        descriptors > 6 * EXECS
    });
    liars.tare.remove(&id);
    execs.into_iter().for_each(|exec| drop(exec.wait()));
    liars.tare.reap_orphans();
}
