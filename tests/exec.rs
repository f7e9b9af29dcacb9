//! `tare exec` runs another process in an existing box. The process is confined like the box's
//! command, and ends with its client.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use rustix::process::Signal;
use tare_harness::{
    Running, Tare, TemporaryDirectory, TerminalSize, box_processes, eventually, tare,
};

/// A call that has nothing to wait for returns within this time on any machine.
const SOON: Duration = Duration::from_secs(10);

const SIZE: TerminalSize = TerminalSize { rows: 33, columns: 101 };

/// All processes in the PID namespace of the box, including zombies: a process whose main thread
/// has exited looks like one.
fn members(tare: &Tare, id: &str) -> BTreeSet<(u32, String)> {
    let namespace = tare.keeper(id).pid_namespace;
    let all = box_processes().into_iter();
    all.filter(|one| one.pid_namespace == namespace).map(|one| (one.pid, one.name)).collect()
}

/// The keeper got SIGSTOP and does not answer.
#[test]
fn exec_does_not_wait_forever_for_a_keeper_that_does_not_answer() {
    let tare = tare!();
    let id = tare.idle_box();
    let before = members(&tare, &id);
    let keeper = tare.keeper(&id);
    keeper.signal(Signal::STOP);
    let output = tare.exec(&id, ["sleep", "1000"]);
    keeper.signal(Signal::CONT);
    let said = format!("box {id} does not answer");
    let output = output.exited(125).printed("").said(&[&said]);
    assert!(output.lasted < 3 * SOON, "{output}");
    tare.exec(&id, ["echo", "usable"]).ok().printed("usable\n");
    eventually("the abandoned exec is gone", || members(&tare, &id) == before);
    tare.remove(&id);
}

/// The caller's own timeout bounds its wait, and what was refused does not run later.
#[test]
fn a_request_that_a_stopped_keeper_did_not_answer_never_runs() {
    let tare = tare!();
    let id = tare.idle_box();
    let directory = TemporaryDirectory::new();
    let file = directory.write("copied", "copied\n").display().to_string();
    let keeper = tare.keeper(&id);
    keeper.signal(Signal::STOP);
    for options in [&["--timeout", "1s"][..], &["--timeout", "1s", "-d"]] {
        let call = [&["exec"], options, &[&id, "--", "touch", "/work/ran"]].concat();
        let output = tare.call(call).exited(125).printed("");
        let output = output.said(&["does not answer", "its keeper is stopped", "SIGCONT"]);
        assert!(output.lasted < SOON, "{output}");
    }
    let client = tare.spawn_call(["exec", &id, "--", "touch", "/work/ran"]);
    let copy = tare.spawn_call(["cp", &file, &format!("{id}:/work")]);
    for client in [client, copy] {
        eventually("it waits for the keeper", || is_waiting(client.pid()));
        client.signal(Signal::KILL);
        client.wait().exited(-9);
    }
    keeper.signal(Signal::CONT);
    tare.exec(&id, ["ls", "-A", "/work"]).ok().printed("");
    tare.remove(&id);
}

/// In poll(2), which a client enters after it has sent its request.
fn is_waiting(pid: u32) -> bool {
    let call = fs::read_to_string(format!("/proc/{pid}/syscall"));
    call.is_ok_and(|call| call.starts_with("271 ") || call.starts_with("7 "))
}

/// The keeper sees both ends in one turn of its loop.
#[test]
fn an_exec_that_ends_with_its_box_reports_its_own_exit_code() {
    let tare = tare!();
    let id = tare.idle_box();
    let script = "echo ready; read line; exit 7";
    let mut client = tare.spawn_call(["exec", "-i", &id, "--", "sh", "-c", script]);
    client.see("ready");
    let both = tare.workload(&id);
    let keeper = tare.keeper(&id);
    keeper.signal(Signal::STOP);
    client.write(b"\n");
    for process in both.iter().filter(|one| one.name == "sleep") {
        process.signal(Signal::KILL);
    }
    eventually("both have ended", || {
        let all = box_processes().into_iter();
        let mut rest = all.filter(|one| one.pid_namespace == keeper.pid_namespace);
        rest.all(|one| one.pid == keeper.pid || one.is_zombie)
    });
    keeper.signal(Signal::CONT);
    client.wait().exited(7).printed("ready\n");
    tare.remove(&id);
}

#[test]
fn the_exit_code_is_the_commands_own() {
    let tare = tare!();
    let id = tare.idle_box();
    for code in [0, 1, 2, 42, 124, 125, 126, 127, 255] {
        tare.exec(&id, ["sh", "-c", &format!("exit {code}")]).exited(code).said_nothing();
    }
    for (signal, number) in [("KILL", 9), ("TERM", 15), ("SEGV", 11)] {
        tare.exec(&id, ["sh", "-c", &format!("kill -{signal} $$")]).exited(128 + number);
    }
    tare.exec(&id, ["/etc/passwd"]).exited(126).printed("").said(&["/etc/passwd"]);
    tare.exec(&id, ["no-such-program"]).exited(127).printed("").said(&["no-such-program"]);
    assert_eq!(tare.state(&id), "running");
    tare.remove(&id);
}

#[test]
fn a_box_is_found_by_its_id_its_name_and_the_beginning_of_its_id() {
    let tare = tare!();
    let id = tare.detached(["--name", "web", "--", "sleep", "1000"]);
    for of in [id.as_str(), "web", &id[..4]] {
        tare.exec(of, ["echo", of]).ok().printed(&format!("{of}\n"));
    }
    // Without the two hyphens, and with options that are the command's own.
    tare.call(["exec", "web", "echo", "-t", "--"]).ok().printed("-t --\n");
    tare.remove(&id);
}

#[test]
fn exec_keeps_both_streams_unchanged_and_separate() {
    let tare = tare!();
    let id = tare.idle_box();
    tare.exec(&id, ["sh", "-c", "echo out; echo err >&2"]).ok().printed("out\n").said(&["err"]);
    let all: Vec<u8> = (0..=255).cycle().take(3 << 20).collect();
    let output = tare.call_with_stdin(all.clone(), ["exec", &id, "--", "cat"]).ok().said_nothing();
    assert!(output.stdout == all, "{} bytes came", output.stdout.len());
    tare.exec(&id, ["cat"]).ok().printed("").said_nothing();
    tare.call(["logs", &id]).ok().printed("").said_nothing();
    tare.remove(&id);
}

#[test]
fn exec_forwards_output_and_input_at_once() {
    let tare = tare!();
    let id = tare.idle_box();
    let script = "echo ready; read answer; echo got $answer; cat; echo end";
    let mut running = tare.spawn_call(["exec", &id, "--", "sh", "-c", script]);
    running.see("ready").has_ended();
    running.write(b"it\n");
    running.see("got it");
    running.write(b"more");
    running.see("more");
    running.close_stdin();
    running.wait().ok().printed("ready\ngot it\nmoreend\n");
    tare.remove(&id);
}

#[test]
fn exec_uses_the_boxs_environment_directory_and_user_by_default() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let file = directory.write("env", "# a comment\nFROM_FILE=c\nA=file\n");
    let file = file.to_str().unwrap();
    let id = tare.detached([
        "-e",
        "A=a",
        "-e",
        "B=b",
        "-w",
        "/usr/bin",
        "-u",
        "1234:2345",
        "--",
        "sleep",
        "1000",
    ]);
    let script = "echo $A $B $C $FROM_FILE; pwd; id -u; id -g";
    tare.exec(&id, ["sh", "-c", script]).ok().printed("a b\n/usr/bin\n1234\n2345\n");
    let asked = [
        "exec",
        "--env-file",
        file,
        "-e",
        "B=new",
        "-e",
        "C=c",
        "-w",
        "/usr",
        "-u",
        "77:78",
        &id,
        "--",
        "sh",
        "-c",
        script,
    ];
    tare.call(asked).ok().printed("file new c c\n/usr\n77\n78\n");
    // The next one is as the first.
    tare.exec(&id, ["sh", "-c", script]).ok().printed("a b\n/usr/bin\n1234\n2345\n");
    tare.remove(&id);
}

#[test]
fn exec_refuses_invalid_options() {
    let tare = tare!();
    let id = tare.idle_box();
    for (option, value, mention) in [
        ("-e", "=x", "-e"),
        ("-w", "/no/such", "/no/such"),
        ("-w", "relative", "relative"),
        ("-u", "-1", "-u"),
        ("-u", "4294967296", "-u"),
        ("--timeout", "x", "--timeout"),
        ("--timeout", "-1s", "--timeout"),
        ("--env-file", "/no/such", "/no/such"),
    ] {
        let output = tare.call(["exec", option, value, &id, "--", "true"]);
        let output = output.exited(125).printed("");
        let said = output.stderr_text();
        let long = mention.replace("-e", "--env").replace("-u", "--user");
        assert!(said.contains(mention) || said.contains(&long), "{output}");
    }
    tare.call(["exec", &id]).exited(125).printed("");
    tare.call(["exec"]).exited(125).printed("");
    tare.remove(&id);
}

#[test]
fn exec_provides_a_real_terminal() {
    let tare = tare!();
    let id = tare.idle_box();
    let script = "tty; stty size; test -t 0 && test -t 1 && test -t 2 && echo all three; read line; echo \"got <$line>\"; exec sleep 1000";
    let call = ["exec", "-i", "-t", &id, "--", "sh", "-c", script];
    let mut session = tare.call_under_terminal(SIZE, call);
    session.see("/dev/pts/").see("33 101").see("all three");
    session.type_bytes(b"some words\r");
    session.see("got <some words>");
    session.type_bytes(b"\x03");
    let (output, cooked) = session.wait();
    output.exited(130);
    assert!(cooked, "the caller's terminal was not put back");
    tare.exec(&id, ["sh", "-c", "test -t 0 || test -t 1 || echo none"]).ok().printed("none\n");
    tare.remove(&id);
}

/// Daemons that were forked twice into their own sessions, and a process whose main thread has
/// exited, which `cgroup.kill` does not find.
const TREE: &str = "import ctypes, os, signal, threading, time
def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            time.sleep(1000)
        os._exit(0)
    os.wait()
def leaderless():
    pid = os.fork()
    if pid == 0:
        threading.Thread(target=time.sleep, args=(1000,)).start()
        ctypes.CDLL(None).syscall(60, 0)
    while open('/proc/%d/stat' % pid).read().rsplit(') ')[1][0] != 'Z':
        time.sleep(0.001)
for _ in range(3):
    daemon()
leaderless()
print('ready', flush=True)
time.sleep(1000)";

/// Another process of the same box, which must survive.
fn bystander(tare: &Tare, id: &str) -> Running {
    let script = "echo up; read line; echo still here";
    let running = tare.spawn_call(["exec", id, "--", "sh", "-c", script]);
    running.see("up");
    running
}

#[test]
fn an_exec_timeout_ends_its_whole_tree_and_nothing_else() {
    let tare = tare!();
    let id = tare.idle_box();
    let mut other = bystander(&tare, &id);
    let before = members(&tare, &id);
    let call = ["exec", "--timeout", "2s", &id, "--", "python3", "-c", TREE];
    let output = tare.call(call).exited(124).printed("ready\n");
    assert!(output.lasted < SOON, "{output}");
    output.said(&["2s"]);
    assert_eq!(members(&tare, &id), before);
    other.write(b"\n");
    other.wait().ok().printed("up\nstill here\n");
    assert_eq!(tare.state(&id), "running");
    tare.exec(&id, ["echo", "usable"]).ok().printed("usable\n");
    tare.remove(&id);
}

#[test]
fn an_exec_client_that_disappears_takes_its_tree_along() {
    let tare = tare!();
    let id = tare.idle_box();
    let mut other = bystander(&tare, &id);
    let before = members(&tare, &id);
    for _ in 0..3 {
        let client = tare.spawn_call(["exec", &id, "--", "python3", "-c", TREE]);
        client.see("ready");
        assert!(members(&tare, &id).len() >= before.len() + 5);
        client.signal(Signal::KILL);
        client.wait().exited(-9);
        eventually("the tree of the client is gone", || members(&tare, &id) == before);
    }
    other.write(b"\n");
    other.wait().ok().printed("up\nstill here\n");
    tare.remove(&id);
}

/// The client is killed at random moments of the start.
#[test]
fn an_exec_client_killed_during_its_request_leaves_nothing() {
    let tare = tare!();
    let id = tare.idle_box();
    let before = members(&tare, &id);
    for step in 0..40 {
        let client = tare.spawn_call(["exec", &id, "--", "sleep", "1000"]);
        tare_harness::let_pass(Duration::from_micros(150 * step));
        client.signal(Signal::KILL);
        client.wait().exited(-9);
    }
    eventually("only the box's own processes are left", || members(&tare, &id) == before);
    tare.exec(&id, ["true"]).ok();
    tare.remove(&id);
}

#[test]
fn a_signal_to_the_client_reaches_the_command() {
    let tare = tare!();
    let id = tare.idle_box();
    let script = "trap 'echo caught; exit 4' TERM; echo ready; while :; do sleep 0.02; done";
    let client = tare.spawn_call(["exec", &id, "--", "sh", "-c", script]);
    client.see("ready").signal(Signal::TERM);
    client.wait().exited(4).printed("ready\ncaught\n");
    tare.remove(&id);
}

/// The same happens after KILL, a timeout and a second signal.
#[test]
fn a_signal_to_the_client_that_ends_the_command_ends_its_whole_tree() {
    let tare = tare!();
    let id = tare.idle_box();
    let mut other = bystander(&tare, &id);
    let before = members(&tare, &id);
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::INT, 1)] {
        let client = tare.spawn_call(["exec", &id, "--", "python3", "-c", TREE]);
        client.see("ready");
        assert!(members(&tare, &id).len() >= before.len() + 5);
        client.signal(signal);
        let code_seen = client.wait().code;
        assert_eq!(members(&tare, &id), before, "after {signal:?}");
        assert!([code, 128 + signal.as_raw()].contains(&code_seen), "{code_seen}");
    }
    other.write(b"\n");
    other.wait().ok().printed("up\nstill here\n");
    tare.remove(&id);
}

#[test]
fn a_detached_exec_survives_its_client() {
    let tare = tare!();
    let id = tare.idle_box();
    tare.call(["exec", "-d", &id, "--", "sh", "-c", "sleep 999; true"])
        .ok()
        .printed("")
        .said_nothing();
    eventually("both processes are there", || tare.workload(&id).len() == 3);
    tare.call(["exec", "-d", &id, "--", "no-such-program"]).exited(127).said(&["no-such-program"]);
    tare.remove(&id);
}

#[test]
fn a_background_child_does_not_delay_the_exec() {
    let tare = tare!();
    let id = tare.idle_box();
    let output = tare.exec(&id, ["sh", "-c", "sleep 1000 & echo hi"]).ok();
    assert!(output.lasted < SOON, "{output}");
    output.printed("hi\n").said_nothing();
    tare.remove(&id);
}

#[test]
fn exec_reports_why_a_box_cannot_run_commands() {
    let tare = tare!();
    let exec = |of: &str| tare.exec(of, ["true"]).exited(125).printed("");
    exec("nothing").said(&["there is no box 'nothing'", "tare ls -a"]);
    let id = tare.detached(["--name", "a", "--", "true"]);
    tare.ended(&id);
    exec("a").said(&["a", "ended"]);
    tare.remove(&id);
    let id = tare.detached(["--name", "a", "--", "sleep", "1000"]);
    tare.call(["pause", "a"]).ok();
    exec("a").said(&["a", "paused"]);
    tare.remove(&id);
}

#[test]
fn exec_ends_when_its_box_ends() {
    let tare = tare!();
    let id = tare.idle_box();
    let client = tare.spawn_call(["exec", &id, "--", "sh", "-c", "echo ready; sleep 1000"]);
    client.see("ready");
    tare.remove(&id);
    let output = client.wait();
    assert_ne!(output.code, 0, "{output}");
    assert!(output.lasted < SOON, "{output}");
}

#[test]
fn exec_works_in_an_attached_box() {
    let tare = tare!();
    let mut attached = tare.spawn(["--name", "a", "--", "sh", "-c", "echo up; read line"]);
    attached.see("up");
    tare.exec("a", ["echo", "in"]).ok().printed("in\n");
    attached.write(b"\n");
    attached.wait().ok();
}

/// Two hundred execs run at the same time, and then the keeper has as many descriptors as before.
#[test]
fn concurrent_execs_get_their_own_output_and_leave_nothing() {
    let tare = tare!();
    let id = tare.idle_box();
    tare.exec(&id, ["true"]).ok();
    let before = members(&tare, &id);
    let keeper = tare.keeper(&id).pid;
    let descriptors = || fs::read_dir(format!("/proc/{keeper}/fd")).unwrap().count();
    let held = descriptors();
    let start = |number: u32| tare.spawn_call(["exec", &id, "--", "echo", &number.to_string()]);
    let calls: Vec<Running> = (0..200).map(start).collect();
    for (number, call) in calls.into_iter().enumerate() {
        call.wait().ok().printed(&format!("{number}\n")).said_nothing();
    }
    eventually("the keeper is as before", || {
        members(&tare, &id) == before && descriptors() == held
    });
    assert!(held <= 24, "an idle keeper holds {held} descriptors");
    tare.remove(&id);
}

#[test]
fn exec_in_a_contained_box_refuses_a_user() {
    let tare = tare!();
    let id = tare.detached(["--contain", "--name", "a", "--", "sleep", "1000"]);
    tare.call(["exec", "-u", "5", "a", "--", "true"])
        .exited(125)
        .said(&["--contain", "leave -u out"]);
    tare.remove(&id);
}

/// Output of other processes than the command does not go to the box's terminal.
#[test]
fn a_detached_process_in_a_box_with_a_terminal_writes_to_the_log() {
    let tare = tare!();
    let id = tare.detached(["-t", "--name", "a", "--", "sleep", "1000"]);
    tare.call(["exec", "-d", "a", "--", "echo", "beside"]).ok();
    tare.logged(&id, "beside");
    tare.remove(&id);
}
