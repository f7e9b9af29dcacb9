//! The keeper, the binary that it runs, and the descriptors between a box and its caller.
//!
//! `streams.rs` tests that a box cannot change the caller's output streams, `run.rs` that only
//! three streams are open, and the tests beside the frame reader that a keeper's messages are
//! untrusted.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tare_harness::skip::{has_program, is_root};
use tare_harness::{
    Tare, TemporaryDirectory, TerminalSize, box_processes, eventually, fixture, skip, tare,
};

const FIRST_PROCESS: &str = include_str!("probes/first_process.py");
const PROGRAMS: &str = include_str!("probes/programs.py");

/// Runs all attacks on PID 1 in a box with these options, and returns their results.
#[track_caller]
fn attacks(tare: &Tare, options: &[&str]) -> BTreeMap<String, String> {
    let mut call = options.to_vec();
    call.extend(["--", "python3", "-c", FIRST_PROCESS]);
    let text = tare.run(call).ok().stdout_text();
    let lines = text.lines().filter_map(|line| line.split_once(": "));
    let answers: BTreeMap<_, _> =
        lines.map(|(name, answer)| (name.into(), answer.into())).collect();
    assert_eq!(answers.len(), 20, "{text}");
    answers
}

fn done(attacks: &BTreeMap<String, String>) -> Vec<&str> {
    let done = attacks.iter().filter(|(_, answer)| *answer == "done");
    done.map(|(name, _)| name.as_str()).collect()
}

/// The keeper is another user, cannot be traced and is not in `/proc`, in every seccomp profile.
#[test]
fn the_workload_cannot_see_signal_trace_or_read_the_keeper() {
    let tare = tare!();
    for profile in ["default", "strict", "debug", "unconfined"] {
        let answers = attacks(&tare, &["--seccomp", profile]);
        assert_eq!(done(&answers), [""; 0], "{profile}");
        assert_eq!(answers["list"], "ENOENT", "{profile}");
        assert_eq!(answers["signal"], "EPERM", "{profile}");
    }
    if !is_root() {
        skip!("only root could do all of it where it is not prevented");
    }
    let control = attacks(&tare, &["--contain"]);
    assert!(done(&control).len() > 15, "{control:?}");
}

/// The box's root has the keeper's user id, so it can check that PID 1 exists and set its limits.
/// It cannot see or read it.
#[test]
fn the_root_of_a_box_cannot_see_trace_or_read_the_keeper() {
    let tare = tare!();
    let answers = attacks(&tare, &["--root", "--seccomp", "unconfined"]);
    assert_eq!(done(&answers), ["limit", "signal", "signal by pidfd"]);
}

#[test]
fn a_rootless_workload_cannot_reach_the_keeper() {
    let tare = tare!(unprivileged);
    let answers = attacks(&tare, &["--quiet", "--seccomp", "unconfined"]);
    assert_eq!(done(&answers), ["limit", "signal", "signal by pidfd"]);
}

/// A process with the keeper's ids can set the keeper's limits. A keeper without descriptors cannot
/// wait for processes.
const LIMITS_TAKEN: &str = "import os, resource, sys, time
try:
    resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0))
    print('taken', flush=True)
except PermissionError:
    print('refused', flush=True)
if os.fork() == 0:
    if os.fork() == 0:
        time.sleep(0.2)
    os._exit(0)
os.wait()
time.sleep(0.5)
sys.exit(7)";

#[test]
fn a_keeper_whose_limits_were_lowered_still_ends_its_box() {
    let tare = tare!();
    for (profile, expected) in [("default", "refused\n"), ("unconfined", "taken\n")] {
        let options = ["-u", "0", "--seccomp", profile, "--timeout", "20s"];
        let command = ["--", "python3", "-c", LIMITS_TAKEN];
        let output = tare.run(options.iter().chain(&command));
        output.exited(7).printed(expected);
    }
}

/// The kernel drops what a process sends to the first one of its own namespace.
#[test]
fn no_signal_from_inside_ends_the_keeper() {
    let tare = tare!();
    let script = "import os
for number in range(1, 65):
    try:
        os.kill(1, number)
    except PermissionError:
        pass
if os.fork() == 0:
    os.kill(-1, 9)
    os._exit(0)
os._exit(5)";
    for options in [&[][..], &["--root"]] {
        let mut call = options.to_vec();
        call.extend(["--", "python3", "-c", script]);
        let output = tare.run(call);
        // Whichever comes first: its own end or its child's signal to all.
        assert!([5, 137].contains(&output.code), "{output}");
    }
}

/// No program that runs in a box, tare's own least of all, can be written.
#[test]
fn no_program_of_a_running_process_can_be_opened_for_writing() {
    let tare = tare!();
    let before = fs::read(tare.program()).unwrap();
    for options in [&[][..], &["--root"], &["--seccomp", "unconfined"]] {
        let mut call = options.to_vec();
        call.extend(["--", "python3", "-c", PROGRAMS]);
        tare.run(call).ok().printed("tried True\n");
    }
    assert!(before == fs::read(tare.program()).unwrap(), "tare was changed");
    if is_root() {
        let control = tare.run(["--contain", "--", "python3", "-c", PROGRAMS]).ok();
        assert!(control.stdout_text().starts_with("opened "), "{control}");
    }
}

/// Without privileges the box's user is the caller, who may own the binary. Only the fact that the
/// box cannot see the binary protects it.
#[test]
fn a_rootless_box_cannot_open_tares_program_for_writing() {
    let tare = tare!(unprivileged);
    let before = fs::read(tare.program()).unwrap();
    tare.run(["--quiet", "--", "python3", "-c", PROGRAMS]).ok().printed("tried True\n");
    assert!(before == fs::read(tare.program()).unwrap(), "tare was changed");
}

/// A program that names its starter as its interpreter.
#[test]
fn a_script_whose_interpreter_is_the_starter_changes_nothing() {
    let tare = tare!();
    let Some(root) = fixture::busybox_root() else {
        skip!("there is no static busybox on this host");
    };
    let before = fs::read(tare.program()).unwrap();
    for line in ["#!/proc/self/exe\n", "#!/proc/self/exe run\n", "#!/proc/1/exe\n"] {
        let script = root.write("bin/evil", line);
        fs::set_permissions(script, PermissionsExt::from_mode(0o755)).unwrap();
        let output = tare.run(["--rootfs", root.text(), "--timeout", "10s", "--", "/bin/evil"]);
        assert!(![0, 124].contains(&output.code), "{line}: {output}");
    }
    assert!(before == fs::read(tare.program()).unwrap(), "tare was changed");
}

/// A working directory behind a descriptor or another process.
#[test]
fn a_working_directory_behind_a_magic_link_is_refused() {
    let tare = tare!();
    let mut directories: Vec<String> = (0..64).map(|n| format!("/proc/self/fd/{n}")).collect();
    directories.extend(
        ["/proc/self/cwd", "/proc/self/root", "/proc/1/cwd", "/dev/fd/3"].map(str::to_owned),
    );
    for directory in &directories {
        let output = tare.run(["-w", directory, "--", "pwd"]);
        assert_eq!(output.code, 125, "{output}");
    }
    tare.run(["-w", "/proc/self", "--", "pwd"]).ok();
    tare.run(["--", "sh", "-c", "cd /proc/self/fd && pwd"]).ok();
}

/// A library that says, before the program it is loaded into has started, whether
/// the filter is on and which descriptors are open.
const CONSTRUCTOR: &str = r#"#include <stdio.h>
#include <string.h>
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void early(void) {
    char line[256];
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (!strncmp(line, "Seccomp:", 8) || !strncmp(line, "NoNewPrivs:", 11)) fputs(line, stdout);
    fclose(status);
    for (int fd = 3; fd < 1024; fd++)
        if (fcntl(fd, F_GETFD) != -1) printf("descriptor %d\n", fd);
    fflush(stdout);
}"#;

/// Code that runs before `main` runs in the box as much as `main` does.
#[test]
fn the_seccomp_filter_applies_before_the_workload_runs_any_code() {
    let tare = tare!();
    if !has_program("gcc") {
        skip!("this host has no compiler");
    }
    let directory = TemporaryDirectory::new();
    let source = directory.write("early.c", CONSTRUCTOR);
    let compiled = Command::new("gcc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(directory.join("early.so"))
        .arg(source)
        .status();
    assert!(compiled.expect("gcc runs").success());
    let volume = format!("{}:/early:ro", directory.text());
    let preload = ["-v", &volume, "-e", "LD_PRELOAD=/early/early.so"];
    let mut call = preload.to_vec();
    call.extend(["--", "true"]);
    tare.run(call).ok().printed("NoNewPrivs:\t1\nSeccomp:\t2\n");
    let mut control = preload.to_vec();
    control.extend(["--seccomp", "unconfined", "--", "true"]);
    tare.run(control).ok().printed("NoNewPrivs:\t1\nSeccomp:\t0\n");
}

/// Interpreters load code before the program, which must be filtered too.
#[test]
fn the_seccomp_filter_applies_before_preloaded_libraries_run() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let python = "print([line for line in open('/proc/self/status') if line.startswith('Seccomp:')][0].strip())";
    directory.write("sitecustomize.py", python);
    directory.write("early.sh", "grep ^Seccomp: /proc/self/status\n");
    directory.write("early.js", "console.log(require('fs').readFileSync('/proc/self/status', 'utf8').match(/^Seccomp:.*/m)[0])");
    let volume = format!("{}:/early:ro", directory.text());
    let mut cases = vec![
        ("PYTHONPATH=/early", ["python3", "-c", ""]),
        ("BASH_ENV=/early/early.sh", ["bash", "-c", "true"]),
    ];
    if has_program("node") {
        cases.push(("NODE_OPTIONS=--require=/early/early.js", ["node", "-e", ""]));
    }
    for (variable, command) in cases {
        let mut call = vec!["-v", &volume, "-e", variable, "--"];
        call.extend(command);
        tare.run(call).ok().printed("Seccomp:\t2\n");
    }
}

/// The user who starts tare may be in powerful groups; the box is in none.
#[test]
fn the_callers_groups_do_not_reach_the_box() {
    let tare = tare!();
    if !is_root() || !has_program("setpriv") {
        skip!("only root can put itself into groups");
    }
    let in_groups = "exec setpriv --groups 4,6,27,999";
    tare.shell(&format!("{in_groups} id -G")).ok().printed("0 4 6 27 999\n");
    tare.shell(&format!("{in_groups} \"$TARE\" run -- id -G")).ok().printed("1000\n");
    tare.shell(&format!("{in_groups} \"$TARE\" run --root -- id -G")).ok().printed("0\n");
    tare.shell(&format!("{in_groups} \"$TARE\" run -u 5:7 -- id -G")).ok().printed("7\n");
}

/// A stream that is opened again by its name, with other rights.
#[test]
fn a_box_cannot_truncate_or_write_the_files_behind_its_streams() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let files: Vec<String> = ["input", "output", "errors"]
        .iter()
        .map(|name| {
            let file = directory.write(name, "before\n");
            fs::set_permissions(&file, PermissionsExt::from_mode(0o666)).unwrap();
            file.to_str().unwrap().to_owned()
        })
        .collect();
    let [input, output, errors] = files.as_slice() else {
        unreachable!("three names make three files");
    };
    let attack = ": > /proc/self/fd/1; : > /proc/self/fd/2; echo x > /proc/self/fd/0; : > /dev/stdout; chmod 777 /proc/self/fd/1; true";
    let streams = format!("< {input} >> {output} 2>> {errors}");
    tare.shell(&format!("exec \"$TARE\" run -- sh -c '{attack}' {streams}")).ok();
    for file in &files {
        assert!(fs::read_to_string(file).unwrap().starts_with("before\n"), "{file}");
        assert_eq!(fs::metadata(file).unwrap().mode() & 0o777, 0o666, "{file}");
    }
    // The control: the same without a box.
    tare.shell(&format!("exec sh -c '{attack}' {streams}")).ok();
    assert_eq!(fs::read_to_string(output).unwrap(), "");
    assert_eq!(fs::read_to_string(input).unwrap(), "x\n");
}

#[test]
fn a_box_cannot_make_the_callers_input_non_blocking() {
    let tare = tare!();
    let script = "import fcntl, os; fcntl.fcntl(0, fcntl.F_SETFL, os.O_NONBLOCK)";
    let (reader, writer) = std::io::pipe().unwrap();
    let run = |mut command: Command| {
        command.stdin(reader.try_clone().unwrap()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let is_non_blocking = || {
        let flags = rustix::fs::fcntl_getfl(&reader).unwrap();
        flags.contains(rustix::fs::OFlags::NONBLOCK)
    };
    let inside = tare.command(["run", "--", "python3", "-c", script]);
    tare.start_command(run(inside)).wait().ok();
    assert!(!is_non_blocking());
    let mut control = Command::new("python3");
    control.args(["-c", script]);
    assert!(run(control).status().unwrap().success());
    assert!(is_non_blocking());
    drop(writer);
}

/// The box has its own session, and cannot type into the caller's terminal (TIOCSTI).
#[test]
fn a_boxs_terminal_is_its_own() {
    let tare = tare!();
    let script = "import fcntl, os, struct, termios
print('name', os.ttyname(0), sorted(os.listdir('/dev/pts')))
for round in range(100000):
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack('HHHH', 10 + round % 5, 20, 0, 0))
for request in (termios.TIOCSTI, termios.TIOCSETD):
    try:
        fcntl.ioctl(0, request, b'x')
        print('typed')
    except PermissionError:
        print('refused')
print('over')";
    let size = TerminalSize { rows: 30, columns: 90 };
    let session = tare.under_terminal(size, ["-t", "--", "python3", "-c", script]);
    let (output, cooked) = session.wait();
    let output = output.ok();
    let screen = output.stdout_text();
    assert!(screen.contains("name /dev/pts/0 ['0', 'ptmx']"), "{screen}");
    assert!(screen.ends_with("refused\r\nrefused\r\nover\r\n"), "{screen}");
    assert!(cooked);
}

/// The environment of a command is not visible to any other process.
#[test]
fn a_secret_in_the_environment_is_visible_only_in_the_box() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let secret = format!("s3cret-{}", std::process::id());
    let file = directory.write("variables", format!("TOKEN={secret}\n"));
    let file = file.to_str().unwrap();
    let mut first = tare.spawn(["--env-file", file, "--", "sh", "-c", "echo $TOKEN; read line"]);
    first.see(&secret);
    let keeper = box_processes().into_iter().find(|one| one.parent == first.pid());
    let namespace = keeper.as_ref().expect("the box runs").pid_namespace.clone();
    let holders = holders_of(&secret);
    assert!(!holders.is_empty(), "the command itself has it");
    for holder in &holders {
        let of_the_box = box_processes().into_iter().find(|one| one.pid == *holder);
        let of_the_box = of_the_box.unwrap_or_else(|| panic!("{holder} is in no box"));
        assert_eq!(of_the_box.pid_namespace, namespace, "{of_the_box:?}");
        assert_ne!(Some(of_the_box.pid), keeper.as_ref().map(|keeper| keeper.pid));
    }
    assert_private(&tare.state_root());
    // Another box finds it in no environment.
    let look = "import glob, os
for path in glob.glob('/proc/[0-9]*/environ'):
    print(path, b'TOKEN' in open(path, 'rb').read())
print('TOKEN' in os.environ)";
    let other = tare.run(["--", "python3", "-c", look]).ok();
    assert!(!other.stdout_text().contains("True"), "{other}");
    assert_eq!(other.stdout_text().lines().count(), 2, "{other}");
    first.write(b"\n");
    first.wait().ok();
}

/// Every process of the host that has this text among its arguments or variables.
fn holders_of(text: &str) -> Vec<u32> {
    let has = |pid: u32, name: &str| {
        let content = fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        content.windows(text.len()).any(|window| window == text.as_bytes())
    };
    let all = tare_harness::processes().into_iter().map(|one| one.pid);
    all.filter(|pid| has(*pid, "environ") || has(*pid, "cmdline")).collect()
}

/// Checks that only the owner can read anything below the directory.
fn assert_private(directory: &Path) {
    assert_eq!(fs::metadata(directory).expect("it is ours").mode() & 0o077, 0, "{directory:?}");
    for entry in fs::read_dir(directory).expect("it is ours") {
        let path = entry.expect("it is ours").path();
        let metadata = fs::symlink_metadata(&path).expect("it is ours");
        if metadata.is_dir() {
            assert_private(&path);
        } else if metadata.is_file() && metadata.len() > 0 {
            assert_eq!(metadata.mode() & 0o077, 0, "{path:?}");
        }
    }
}

/// The keeper dies before its id map is written. The map is not written to another process, and
/// nothing is left.
#[test]
fn a_keeper_killed_right_after_spawn_leaves_nothing() {
    let tare = tare!();
    let mut hit = 0;
    for _ in 0..40 {
        let running = tare.spawn(["--", "sleep", "0.01"]);
        eventually("tare has a child or has ended", || {
            running.has_ended() || kill_child(running.pid())
        });
        let output = running.wait();
        assert!([0, 125, 137].contains(&output.code), "{output}");
        hit += u32::from(output.code != 0);
    }
    assert!(hit > 0, "no keeper was killed in time");
}

/// Kills a child of this process through a pidfd; `false` if there is none.
fn kill_child(parent: u32) -> bool {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
    let children = children.unwrap_or_default();
    let Some(child) = children.split_whitespace().next() else {
        return false;
    };
    let pid = child.parse().ok().and_then(Pid::from_raw).expect("a number");
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else {
        return false;
    };
    // Still its child while we hold the pidfd: then it is the one we mean.
    let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
    let is_child = stat.rsplit(')').next().unwrap_or("").split_whitespace().nth(1);
    is_child == Some(&parent.to_string()) && pidfd_send_signal(&pidfd, Signal::KILL).is_ok()
}

/// The reported exit code comes from the kernel, through the keeper.
#[test]
fn a_box_cannot_forge_its_exit_code() {
    let tare = tare!();
    let script = "import os, signal, struct
frame = struct.pack('<I', 16) + b'\\0' * 64
for fd in range(3, 1024):
    try:
        os.write(fd, frame)
        print('written', fd)
    except OSError:
        pass
for number in (signal.SIGCHLD, signal.SIGUSR1, signal.SIGTERM):
    try:
        os.kill(1, number)
    except PermissionError:
        pass
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os._exit(0)
    os._exit(0)
os._exit(7)";
    for options in [&[][..], &["--root"]] {
        let mut call = options.to_vec();
        call.extend(["--", "python3", "-c", script]);
        tare.run(call).exited(7).printed("");
    }
}

/// The keeper's streams are the box's own `/dev/null` when a workload runs, so that the caller's
/// pipes end when the workload closes them.
#[test]
fn the_keeper_holds_no_stream_of_the_workload() {
    let tare = tare!();
    let mut running = tare.spawn(["--", "sh", "-c", "echo up; read line"]);
    running.see("up");
    let keeper = box_processes().into_iter().find(|one| one.parent == running.pid());
    let keeper = keeper.expect("the box runs").pid;
    // The keeper releases them right after the command has executed, beside it.
    eventually("the keeper's streams are /dev/null", || {
        (0..3).all(|number| {
            let held = File::open(format!("/proc/{keeper}/fd/{number}"));
            let metadata = held.and_then(|held| held.metadata());
            metadata.is_ok_and(|metadata| metadata.rdev() == rustix::fs::makedev(1, 3))
        })
    });
    running.write(b"\n");
    running.wait().ok();
}
