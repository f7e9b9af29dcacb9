//! Every death has the right cause and sentence after the box is gone, over the command line and HTTP.

use std::fs;
use std::io::Read;
use std::net::TcpStream;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::Signal;
use serde_json::{Value, json};
use tare_harness::skip::is_root;
use tare_harness::{Output, Server, Tare, TemporaryDirectory, eventually, skip, tare};

const HUNGRY: &str = "held = [b'x' * 1048576 for _ in range(1024)]";
const STUBBORN: &str = "trap '' TERM; echo up; while :; do sleep 1000; done";
const NOT_BY_TARE: &str = "not sent by tare";

fn counts_memory(tare: &Tare) -> bool {
    !tare.call(["doctor"]).stdout_text().contains("no writable cgroup")
}

/// Checks that a run ended with this code, and that tare said these words beside the command's own.
#[track_caller]
fn assert_ran(output: &Output, code: i32, said: &[&str]) {
    assert_eq!(output.code, code, "{output}");
    let text = output.stderr_text();
    let line = text.lines().find(|line| line.starts_with("tare: ")).expect("a sentence");
    assert!(said.iter().all(|words| line.contains(words)), "{output}");
}

/// Checks what the command line and a server say about a box that is gone.
#[track_caller]
fn assert_explained(tare: &Tare, reference: &str, cause: &str, said: &[&str]) {
    assert!(tare.listed(reference).is_none(), "it is gone");
    let output = tare.call(["explain", reference]).ok();
    let text = output.stdout_text();
    let first = text.lines().next().expect("a sentence");
    for words in said {
        assert!(first.contains(words), "{words}: {text}");
    }
    assert!(text.contains(&format!("removed ({cause});")), "{text}");
    let shown = tare.json(["explain", reference, "--json"]);
    assert_eq!(shown["cause"], cause, "{shown}");
    assert_eq!(shown["sentence"], first, "{shown}");
    let server = Server::start(tare, &[]);
    let answer = server.get(&format!("/v1/boxes/{reference}/explain")).was(200).json();
    assert_eq!(answer["cause"], cause, "{answer}");
    let sentence = answer["sentence"].as_str().expect("a sentence");
    for words in said.iter().filter(|words| !words.starts_with("Raise")) {
        assert!(sentence.contains(words), "{words}: {sentence}");
    }
    for field in ["id", "name", "exit_code", "evidence", "stderr", "steps", "created_at"] {
        assert_eq!(answer[field], shown[field], "{field}");
    }
    server.stop().ok();
}

/// Waits for the end of a detached box, removes it, and checks what is said about it then.
#[track_caller]
fn assert_death(tare: &Tare, id: &str, cause: &str, said: &[&str]) -> Value {
    let ended = tare.ended(id);
    assert_eq!(ended["cause"], cause, "{ended}");
    tare.remove(id);
    assert_explained(tare, id, cause, said);
    tare.json(["explain", id, "--json"])
}

#[test]
fn own_exit_code() {
    let tare = tare!();
    let id = tare.detached(["--", "sh", "-c", "echo broken >&2; exit 3"]);
    let story = assert_death(&tare, &id, "exited", &["The command exited with 3."]);
    assert_eq!((&story["exit_code"], &story["stderr"]), (&json!(3), &json!("broken\n")));
    tare.run(["--name", "once", "--", "sh", "-c", "exit 4"]).exited(4).said_nothing();
    assert_explained(&tare, "once", "exited", &["The command exited with 4."]);
    tare.run(["--name", "well", "--", "true"]).ok().said_nothing();
    assert_explained(&tare, "well", "exited", &["The command exited with 0."]);
}

#[test]
fn own_signal() {
    let tare = tare!();
    let said = ["signal 11 (SIGSEGV)", NOT_BY_TARE];
    let id = tare.detached(["--", "sh", "-c", "kill -SEGV $$"]);
    assert_death(&tare, &id, "signalled", &said);
    tare.run(["--name", "once", "--", "sh", "-c", "kill -SEGV $$"]).exited(139);
    assert_explained(&tare, "once", "signalled", &said);
}

#[test]
fn timeout() {
    let tare = tare!();
    let said = ["Killed by tare: timeout of 300ms reached.", "Raise --timeout."];
    let id = tare.detached(["--timeout", "300ms", "--", "sleep", "1000"]);
    assert_death(&tare, &id, "timeout", &said);
    let once = ["--name", "once", "--timeout", "300ms", "--", "sleep", "1000"];
    tare.run(once).exited(124).said(&said);
    assert_explained(&tare, "once", "timeout", &said);
}

#[test]
fn lease() {
    let tare = tare!();
    let id = tare.detached(["--lease", "300ms", "--", "sleep", "1000"]);
    assert_death(&tare, &id, "lease", &["Killed by tare: lease ended at 20", "Raise --lease."]);
}

#[test]
fn output_limit() {
    let tare = tare!();
    let said = ["Killed by tare: output limit of 64 KiB reached.", "Raise --output-limit."];
    let id = tare.detached(["--output-limit", "64k", "--output-kill", "--", "yes"]);
    assert_death(&tare, &id, "output_limit", &said);
    let once = ["--name", "once", "--output-limit", "64k", "--output-kill", "--", "yes"];
    tare.run(once).exited(137).said(&said);
    assert_explained(&tare, "once", "output_limit", &said);
}

#[test]
fn grace_of_a_stop_passed() {
    let tare = tare!();
    let id = tare.detached(["--", "sh", "-c", STUBBORN]);
    tare.logged(&id, "up");
    let stop = tare.spawn_call(["stop", "-t", "300ms", &id]);
    let pid = format!("pid {}", stop.pid());
    stop.wait().ok();
    let said = ["Stopped by 'tare stop' (", &pid, "killed after its grace"];
    assert_death(&tare, &id, "stopped", &said);
}

#[test]
fn oom_of_the_command() {
    let tare = tare!();
    if !counts_memory(&tare) {
        skip!("no cgroup counts memory here");
    }
    let said = [
        "Killed by the kernel: memory limit of 64 MiB reached (peak 64 MiB, 1 process killed",
        "Raise --memory.",
    ];
    let id = tare.detached(["--memory", "64m", "--", "python3", "-c", HUNGRY]);
    let story = assert_death(&tare, &id, "memory", &said);
    let evidence = &story["evidence"];
    assert_eq!(evidence["oom_kills"], 1, "{evidence}");
    assert_eq!(evidence["memory_limit_bytes"], 64 << 20, "{evidence}");
    assert_eq!(evidence["memory_peak_bytes"], 64 << 20, "{evidence}");
    assert!(evidence["cpu_us"].as_u64() > Some(0), "{evidence}");
    let once = ["--name", "once", "--memory", "64m", "--", "python3", "-c", HUNGRY];
    tare.run(once).exited(137).said(&["Killed by the kernel", "memory limit of 64 MiB"]);
    assert_explained(&tare, "once", "memory", &["Killed by the kernel", "Raise --memory."]);
}

#[test]
fn oom_of_a_child() {
    let tare = tare!();
    if !counts_memory(&tare) {
        skip!("no cgroup counts memory here");
    }
    let script = format!("python3 -c \"{HUNGRY}\"; exit 3");
    let id = tare.detached(["--memory", "64m", "--", "sh", "-c", &script]);
    let said = [
        "The kernel killed a process of the box: memory limit of 64 MiB reached",
        "1 process killed",
        "The command exited with 3.",
        "Raise --memory.",
    ];
    assert_death(&tare, &id, "memory", &said);
}

/// Whether a cgroup counts the processes of boxes here.
fn counts_processes(tare: &Tare) -> bool {
    counts_memory(tare)
}

#[test]
fn process_limit() {
    let tare = tare!();
    if !counts_processes(&tare) {
        skip!("no cgroup counts processes here");
    }
    let forks = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 1000 & done";
    let said = ["process limit of 8 reached", "The command exited with 2.", "Raise --pids."];
    let id = tare.detached(["--pids", "8", "--", "sh", "-c", forks]);
    let story = assert_death(&tare, &id, "pids", &said);
    let evidence = &story["evidence"];
    assert!(evidence["pids_refused"].as_u64() > Some(0), "{evidence}");
    assert_eq!((&evidence["pids_limit"], &evidence["pids_peak"]), (&json!(8), &json!(8)));
    let once = tare.run(["--name", "once", "--pids", "8", "--", "sh", "-c", forks]);
    assert_ran(&once, 2, &said);
    assert_explained(&tare, "once", "pids", &said);
    // A program that copes with it has not died of it.
    let copes = "import os\ntry:\n while os.fork(): pass\nexcept OSError: os._exit(0)\nos.pause()";
    let copes = copes.replace("os.pause()", "import time; time.sleep(1000)");
    let id = tare.detached(["--pids", "8", "--", "python3", "-c", &copes]);
    assert_death(&tare, &id, "exited", &["exited with 0", "process limit of 8 reached"]);
}

#[test]
fn scratch_full() {
    let tare = tare!();
    let fill = |code: u8| format!("head -c 8m /dev/zero > /work/x; exit {code}");
    let said = ["The scratch space of 4 MiB was full.", "exited with 5", "Raise --scratch."];
    let id = tare.detached(["--scratch", "4m", "--", "sh", "-c", &fill(5)]);
    let story = assert_death(&tare, &id, "scratch_full", &said);
    assert!(story["stderr"].as_str().is_some_and(|it| it.contains("No space left")), "{story}");
    let once = ["--name", "once", "--scratch", "4m", "--", "sh", "-c", &fill(5)];
    assert_ran(&tare.run(once), 5, &said);
    assert_explained(&tare, "once", "scratch_full", &said);
    let id = tare.detached(["--scratch", "4m", "--", "sh", "-c", &fill(0)]);
    assert_death(&tare, &id, "exited", &["exited with 0", "The scratch space was full."]);
}

#[test]
fn state_root_full() {
    let tare = tare!();
    if !is_root() {
        skip!("only root can mount a small file system");
    }
    let disk = TemporaryDirectory::new();
    let size = Some(c"size=512k,mode=700");
    mount("tmpfs", disk.path(), "tmpfs", MountFlags::NODEV, size).expect("root can mount");
    let on_disk = |args: &[&str]| {
        let call = ["--state-root", disk.text()].into_iter();
        tare.spawn_call(call.chain(args.iter().copied())).wait()
    };
    let script = "trap 'exit 6' USR1; echo up; while :; do sleep 0.01; done";
    let id = on_disk(&["run", "-d", "--", "sh", "-c", script]).ok().stdout_text();
    let id = id.trim();
    eventually("it runs", || on_disk(&["logs", id]).stdout_text().contains("up"));
    fs::write(disk.join("filler"), vec![0; 1 << 20]).expect_err("the disk is small");
    on_disk(&["run", "-d", "--name", "late", "--", "true"]).exited(125).said(&["No space left"]);
    // No box was made, so there is none to explain.
    on_disk(&["explain", "late"]).exited(1).said(&["no box 'late'"]);
    // A box that runs dies of its own, and its history has the space that was reserved for it.
    on_disk(&["kill", "-s", "USR1", id]).ok();
    eventually("it has ended", || on_disk(&["ls", "-a"]).stdout_text().contains("exited(6"));
    on_disk(&["rm", id]).ok();
    let text = on_disk(&["explain", id]).ok().stdout_text();
    assert!(text.starts_with("The command exited with 6."), "{text}");
    assert!(text.contains("removed (exited);"), "{text}");
    let mut serve = tare.command(["--state-root", disk.text(), "serve", "--listen", "127.0.0.1:0"]);
    serve.env_remove("TARE_STATE_ROOT");
    fs::remove_file(disk.join("filler")).unwrap();
    let server = Server::start_command(&tare, serve);
    let answer = server.get(&format!("/v1/boxes/{id}/explain")).was(200).json();
    assert_eq!(answer["cause"], "exited", "{answer}");
    server.stop().ok();
    unmount(disk.path(), UnmountFlags::empty()).expect("no process uses it");
}

/// A start that fails is a death too: its step is in the sentence.
#[test]
fn a_failed_start_names_its_step() {
    let tare = tare!();
    let said = ["Never started: cannot run no-such-program in the box: there is no such program."];
    tare.run(["--name", "a", "--", "no-such-program"]).exited(127);
    assert_explained(&tare, "a", "start_failed", &said);
    tare.run(["-d", "--name", "b", "--", "no-such-program"]).exited(127);
    assert_explained(&tare, "b", "start_failed", &said);
    tare.run(["-d", "--name", "c", "-w", "/nowhere", "--", "true"]).exited(125);
    let said = ["Never started: cannot use /nowhere as the working directory: "];
    assert_explained(&tare, "c", "start_failed", &said);
}

/// Ends a detached box with a command of tare, and checks that the command is named.
#[track_caller]
fn assert_ended_by(call: &[&str], cause: &str, said: &str) {
    let tare = tare!();
    let id = tare.detached(["--", "sleep", "1000"]);
    let acts = tare.spawn_call(call.iter().chain(&[id.as_str()]));
    let pid = format!("pid {}", acts.pid());
    acts.wait().ok();
    if tare.listed(&id).is_some() {
        tare.ended(&id);
        tare.remove(&id);
    }
    assert_explained(&tare, &id, cause, &[said, &pid]);
    // The same of an attached run, which tells its user too.
    let running = tare.spawn(["--name", "a", "--", "sh", "-c", "echo up; exec sleep 1000"]);
    running.see("up");
    let acts = tare.spawn_call(call.iter().chain(&["a"]));
    let pid = format!("pid {}", acts.pid());
    acts.wait();
    running.wait().said(&[said, &pid]);
    assert_explained(&tare, "a", cause, &[said, &pid]);
}

#[test]
fn tare_kill() {
    assert_ended_by(&["kill"], "killed", "Killed by 'tare kill' (");
}

#[test]
fn tare_kill_with_a_signal() {
    let said = "signal 15 (SIGTERM), sent by tare: 'tare kill -s SIGTERM' (";
    assert_ended_by(&["kill", "-s", "TERM"], "signalled", said);
}

#[test]
fn tare_rm_with_force() {
    assert_ended_by(&["rm", "-f"], "killed", "Killed by 'tare rm -f' (");
}

#[test]
fn tare_stop() {
    assert_ended_by(&["stop"], "stopped", "Stopped by 'tare stop' (");
}

/// A server with two keys, of which the first is an admin's.
const KEYS: &str = "[limits]\ndrain = '100ms'\n[[keys]]\nname = 'ops'\nadmin = true\nsha256 = '{ops}'\n\
                    [[keys]]\nname = 'ci'\nsha256 = '{ci}'\n";

fn with_keys(tare: &Tare) -> Server {
    let sha256 = crate::serve::quotas::sha256;
    let config = KEYS.replace("{ops}", &sha256("o")).replace("{ci}", &sha256("c"));
    Server::start_configured(tare, &config)
}

#[track_caller]
fn ask(server: &Server, key: &str, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let headers = [("Content-Type", "application/json"), ("X-API-Key", key)];
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer = server.ask(method, path, &headers, body.as_bytes());
    (answer.status, serde_json::from_slice(&answer.body).unwrap_or_default())
}

/// Ends a box of a key by a request, and checks that key, client and route are named.
#[track_caller]
fn assert_ended_over_http(method: &str, path: &str, cause: &str, said: &str) {
    let tare = tare!();
    let server = with_keys(&tare);
    let request = json!({ "command": ["sleep", "1000"], "name": "web" });
    let (status, made) = ask(&server, "c", "POST", "/v1/boxes", &request);
    assert_eq!(status, 201, "{made}");
    let id = made["id"].as_str().expect("an id");
    ask(&server, "c", method, &format!("/v1/boxes/web{path}"), &Value::Null);
    let explain = format!("/v1/boxes/{id}/explain");
    ask(&server, "c", "DELETE", "/v1/boxes/web", &Value::Null);
    let said = [said, "API key ci", "from 127.0.0.1:"];
    let (status, answer) = ask(&server, "c", "GET", &explain, &Value::Null);
    assert_eq!((status, &answer["cause"]), (200, &json!(cause)), "{answer}");
    let sentence = answer["sentence"].as_str().expect("a sentence");
    assert!(said.iter().all(|words| sentence.contains(words)), "{sentence}");
    assert_eq!(answer["state"], Value::Null, "it is removed");
    server.stop().ok();
    assert_explained_by_command(&tare, id, cause, &said);
}

#[track_caller]
fn assert_explained_by_command(tare: &Tare, id: &str, cause: &str, said: &[&str]) {
    let shown = tare.json(["explain", id, "--json"]);
    assert_eq!(shown["cause"], cause, "{shown}");
    let sentence = shown["sentence"].as_str().expect("a sentence");
    assert!(said.iter().all(|words| sentence.contains(words)), "{sentence}");
}

#[test]
fn delete_over_http() {
    let said = "Killed by DELETE /v1/boxes/web (";
    assert_ended_over_http("DELETE", "?force=true", "killed", said);
}

#[test]
fn stop_over_http() {
    let said = "Stopped by POST /v1/boxes/web/stop (";
    assert_ended_over_http("POST", "/stop", "stopped", said);
}

#[test]
fn command_killed_by_a_process_of_the_host() {
    let tare = tare!();
    let said = ["signal 9 (SIGKILL)", NOT_BY_TARE, "or a process of the host sent it"];
    let id = tare.detached(["--", "sleep", "1000"]);
    tare.workload(&id)[0].signal(Signal::KILL);
    let ended = tare.ended(&id);
    assert_eq!(ended["oom"], false, "{ended}");
    let story = assert_death(&tare, &id, "signalled", &said);
    if counts_memory(&tare) {
        let sentence = story["sentence"].as_str().expect("a sentence");
        assert!(sentence.contains("no OOM kill in memory.events"), "{sentence}");
    }
}

#[test]
fn command_killed_by_an_exec_in_the_box() {
    let tare = tare!();
    let id = tare.detached(["--", "sleep", "1000"]);
    let script = "for it in /proc/[0-9]*; do read n < $it/comm; [ $n = sleep ] && kill -9 ${it#/proc/}; done";
    tare.exec(&id, ["sh", "-c", script]);
    let said = ["signal 9 (SIGKILL)", NOT_BY_TARE, "another process of the box"];
    let story = assert_death(&tare, &id, "signalled", &said);
    let steps = story["steps"].as_array().expect("steps");
    assert!(steps.iter().any(|step| step["event"] == "exec_started"), "{story}");
}

const LOST: [&str; 2] =
    ["The keeper ended without a report, not killed by tare", "its whole cgroup"];

#[test]
fn keeper_killed() {
    let tare = tare!();
    let id = tare.detached(["--", "sleep", "1000"]);
    tare.keeper(&id).signal(Signal::KILL);
    assert_death(&tare, &id, "keeper_lost", &LOST);
    let running = tare.spawn(["--name", "a", "--", "sh", "-c", "echo up; sleep 1000"]);
    running.see("up");
    let id = tare.list()[0]["id"].as_str().expect("an id").to_owned();
    tare.keeper(&id).signal(Signal::KILL);
    running.wait().exited(137).said(&LOST);
    assert_explained(&tare, "a", "keeper_lost", &LOST);
}

#[test]
fn cgroup_killed_from_outside() {
    let tare = tare!();
    let id = tare.detached(["--", "sleep", "1000"]);
    let kills = tare.cgroups_of(&id).into_iter().map(|path| path.join("cgroup.kill"));
    let Some(kill) = kills.into_iter().find(|path| path.exists()) else {
        tare.remove(&id);
        skip!("no cgroup v2 here");
    };
    fs::write(kill, "1").expect("root may kill it");
    assert_death(&tare, &id, "keeper_lost", &LOST);
}

#[test]
fn creator_killed() {
    let tare = tare!();
    let creator = tare.spawn(["--name", "a", "--", "sh", "-c", "echo up; sleep 1000"]);
    creator.see("up");
    let pid = format!("pid {}", creator.pid());
    creator.signal(Signal::KILL);
    creator.wait().exited(-9);
    eventually("a command removes it", || tare.call(["ls", "-aq"]).ok().stdout.is_empty());
    tare.reap_orphans();
    let said = ["Ended with its creator: 'tare run' (", &pid, "was gone"];
    assert_explained(&tare, "a", "client_gone", &said);
}

/// Sends a request for a run that lasts, and waits until its command runs.
fn begin(tare: &Tare, server: &Server) -> (TcpStream, String) {
    let body = json!({ "command": ["sh", "-c", "echo up > /work/up; sleep 1000"] }).to_string();
    let json = [("Content-Type", "application/json")];
    let stream = server.send("POST", "/v1/run", &json, body.as_bytes());
    let mut id = None;
    eventually("it runs", || {
        id = tare.footprint().records.first().cloned();
        id.as_ref().is_some_and(|id| tare.exec(id, ["test", "-e", "/work/up"]).code == 0)
    });
    (stream, id.expect("the run has a box"))
}

#[test]
fn server_killed() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let pid = format!("pid {}", server.pid());
    let (_stream, id) = begin(&tare, &server);
    server.kill();
    eventually("a command removes it", || tare.call(["ls", "-aq"]).ok().stdout.is_empty());
    tare.reap_orphans();
    let said = ["Ended with its creator: 'tare serve' (", &pid, "was gone"];
    assert_explained(&tare, &id, "client_gone", &said);
}

#[test]
fn server_shut_down() {
    let tare = tare!();
    let server = Server::start_configured(&tare, "[limits]\ndrain = '100ms'\n");
    let (mut stream, id) = begin(&tare, &server);
    server.stop().ok();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    assert_explained(&tare, &id, "server_stopping", &["Killed by tare: the server shut down."]);
}

#[test]
fn client_of_a_run_gone() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let (stream, id) = begin(&tare, &server);
    drop(stream);
    eventually("its box is gone", || tare.footprint().records.is_empty());
    server.stop().ok();
    assert_explained(&tare, &id, "client_gone", &["Killed by tare: its client was gone."]);
}

/// The run result, the history and the same run with code say the same.
#[test]
fn deaths_of_runs_over_http_have_the_same_sentence_in_the_answer_and_later() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let limits = json!({ "memory_bytes": 64 << 20, "pids": 8, "scratch_bytes": 4 << 20 });
    let fill = "open('/work/x', 'wb').write(bytes(8 << 20))";
    let mut runs = vec![
        (json!({ "command": ["sh", "-c", "echo no >&2; exit 3"] }), "exited", "exited with 3"),
        (json!({ "command": ["sleep", "9"], "timeout_ms": 200 }), "timeout", "timeout of 200ms"),
        (
            json!({ "language": "bash", "code": "sleep 9", "timeout_ms": 200 }),
            "timeout",
            "of 200ms",
        ),
        (json!({ "language": "python", "code": fill, "limits": limits }), "scratch_full", "4 MiB"),
        (json!({ "command": ["sh", "-c", "kill -9 $$"] }), "signalled", NOT_BY_TARE),
    ];
    if counts_memory(&tare) {
        let memory = json!({ "memory_bytes": 64 << 20 });
        let code = json!({ "language": "python", "code": HUNGRY, "limits": memory });
        runs.push((code, "memory", "memory limit of 64 MiB reached"));
        let forks = "for i in 1 2 3 4 5 6 7 8 9 10; do sleep 1000 & done";
        let code = json!({ "language": "bash", "code": forks, "limits": { "pids": 8 } });
        runs.push((code, "pids", "process limit of 8 reached"));
    }
    for (request, cause, said) in runs {
        let result = server.post("/v1/run", &request).was(200).json();
        assert_eq!(result["cause"], cause, "{result}");
        let sentence = result["sentence"].as_str().expect("a sentence");
        assert!(sentence.contains(said) && !sentence.contains("--"), "{sentence}");
        let id = result["id"].as_str().expect("an id");
        let later = server.get(&format!("/v1/boxes/{id}/explain")).was(200).json();
        assert_eq!((&later["cause"], &later["sentence"]), (&result["cause"], &result["sentence"]));
        if cause == "exited" {
            assert_eq!(later["stderr"], "no\n", "{later}");
        }
    }
    server.stop().ok();
}

/// An end that a reboot caused is known by the boot id of the record.
#[test]
fn host_rebooted() {
    let tare = tare!();
    let id = tare.detached(["--", "sleep", "1000"]);
    let record = tare.record(&id);
    let [lines, journal] =
        ["record.json", "journal"].map(|name| fs::read(record.join(name)).unwrap());
    tare.remove(&id);
    // The record of a box that lived when the host went down.
    let text = String::from_utf8(lines).unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let text = text.replace(boot.trim(), "00000000-0000-0000-0000-000000000000");
    let id = "abcdefghij23";
    let record = tare.record(id);
    let mut builder = fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(&record).unwrap();
    fs::write(record.join("record.json"), text).unwrap();
    fs::write(record.join("journal"), journal).unwrap();
    eventually("a command removes it", || tare.call(["ls", "-aq"]).ok().stdout.is_empty());
    assert_explained(&tare, id, "host_rebooted", &["Ended by a restart of the host"]);
}

#[test]
fn an_audit_lists_removed_boxes_in_the_order_of_their_removal() {
    let tare = tare!();
    let server = with_keys(&tare);
    let mut removed = Vec::new();
    for key in ["c", "o", "c", "o"] {
        let (_, made) = ask(&server, key, "POST", "/v1/boxes", &json!({ "command": ["true"] }));
        let id = made["id"].as_str().expect("an id").to_owned();
        tare.call(["rm", "-f", &id]).ok();
        removed.push(id);
    }
    let audit = tare.json(["audit", "--since", "1h", "--json"]);
    let listed = audit["removed"].as_array().expect("a list").iter();
    let listed: Vec<&str> = listed.filter_map(|one| one["id"].as_str()).collect();
    assert_eq!(listed, removed);
    server.stop().ok();
}

#[test]
fn a_key_finds_no_history_of_another_key() {
    let tare = tare!();
    let server = with_keys(&tare);
    let request = json!({ "command": ["sh", "-c", "exit 3"], "name": "web" });
    let (_, made) = ask(&server, "o", "POST", "/v1/boxes", &request);
    let id = made["id"].as_str().expect("an id");
    let look = |key: &str, of: &str| {
        ask(&server, key, "GET", &format!("/v1/boxes/{of}/explain"), &Value::Null).0
    };
    assert_eq!((look("o", id), look("c", id), look("c", "web")), (200, 404, 404));
    let (_, own) = ask(&server, "c", "POST", "/v1/run", &json!({ "command": ["false"] }));
    ask(&server, "o", "DELETE", "/v1/boxes/web?force=true", &Value::Null);
    assert_eq!((look("o", id), look("c", id), look("c", "web")), (200, 404, 404));
    assert_eq!((look("o", "web"), look("c", &id[..8])), (200, 404));
    let own = own["id"].as_str().expect("an id");
    assert_eq!((look("c", own), look("o", own)), (200, 200));
    server.stop().ok();
}

#[test]
fn stderr_is_not_kept_with_rm_nor_if_the_operator_turns_it_off() {
    let tare = tare!();
    let stderr = |id: &str| tare.json(["explain", id, "--json"])["stderr"].clone();
    let script = "head -c 5000 /dev/zero | tr '\\0' x >&2; echo end >&2; exit 1";
    let id = tare.detached(["--", "sh", "-c", script]);
    tare.ended(&id);
    tare.remove(&id);
    let kept = stderr(&id);
    let kept = kept.as_str().expect("a text");
    assert!(kept.len() == 2048 && kept.ends_with("xend\n"), "{kept}");
    let id = tare.detached(["--rm", "--", "sh", "-c", script]);
    eventually("it is removed", || tare.listed(&id).is_none());
    assert_eq!(stderr(&id), Value::Null);
    let server = Server::start_configured(&tare, "[history]\nstderr = false\n");
    let id = tare.detached(["--", "sh", "-c", script]);
    tare.ended(&id);
    assert_eq!(stderr(&id), Value::Null, "also while it has a record");
    tare.remove(&id);
    assert_eq!(stderr(&id), Value::Null);
    let run = server.post("/v1/run", &json!({ "command": ["sh", "-c", script] })).json();
    assert_eq!(stderr(run["id"].as_str().expect("an id")), Value::Null);
    server.stop().ok();
}

/// An escaped control character takes six bytes or more. The line of such a box in the histories was
/// once too long to be read, so a box could hide its own end.
#[test]
fn a_box_cannot_hide_its_history_by_control_characters_on_stderr() {
    let tare = tare!();
    let said = ["The command exited with 3."];
    for character in ["\\33", "\\1", "\\177", "\\302\\233", "\\342\\200\\256"] {
        let script = format!("for i in $(seq 2000); do printf '{character}'; done >&2; exit 3");
        let detached = tare.detached(["--", "sh", "-c", &script]);
        assert_death(&tare, &detached, "exited", &said);
        let attached = tare.run(["--json", "--", "sh", "-c", &script]).exited(3);
        let attached: Value = serde_json::from_slice(&attached.stdout).expect("JSON");
        let server = Server::start(&tare, &[]);
        let command = json!({ "command": ["sh", "-c", script] });
        let run = server.post("/v1/run", &command).was(200).json();
        server.stop().ok();
        assert_explained(&tare, attached["id"].as_str().expect("an id"), "exited", &said);
        for id in [&json!(detached), &run["id"]] {
            let id = id.as_str().expect("an id");
            assert_explained(&tare, id, "exited", &said);
            let stderr = tare.json(["explain", id, "--json"])["stderr"].clone();
            let stderr = stderr.as_str().expect("a text");
            assert!(stderr.len() > 1000 && stderr.is_ascii(), "{stderr}");
            assert!(!stderr.chars().any(char::is_control), "{stderr:?}");
        }
    }
}

#[test]
fn histories_have_a_size_and_explain_says_what_is_no_longer_kept() {
    let tare = tare!();
    tare.call(["sweep", "--history-bytes", "1"]).exited(2).said(&["--history-bytes", "1 MiB"]);
    let wrong = "[history]\nbytes = '1k'\n";
    let directory = TemporaryDirectory::new();
    let config = directory.write("tare.toml", wrong);
    let call = ["serve", "--config", &config.display().to_string()];
    tare.call(call).exited(1).said(&["[history] bytes", "1 KiB", "1 MiB"]);
    let server = Server::start(&tare, &["--history-bytes", "1m"]);
    let first = server.post("/v1/run", &json!({ "command": ["false"] })).was(200).json();
    let first = first["id"].as_str().expect("an id").to_owned();
    tare.call(["explain", &first]).ok();
    // Fill it as removals do.
    let histories = tare.state_root().join("histories");
    let line = fs::read_to_string(histories.join("1")).unwrap();
    let segment = line.repeat((64 << 10) / line.len());
    for number in 1..18 {
        fs::write(histories.join(number.to_string()), segment.replace(&first, "aaaabbbbcccc"))
            .unwrap();
    }
    let last = server.post("/v1/run", &json!({ "command": ["false"] })).was(200).json();
    let last = last["id"].as_str().expect("an id");
    tare.call(["explain", last]).ok();
    tare.call(["explain", &first]).exited(1).said(&["no longer kept"]);
    server.get(&format!("/v1/boxes/{first}/explain")).was(404);
    let sizes = fs::read_dir(&histories).unwrap().map(|it| it.unwrap().metadata().unwrap().len());
    assert!(sizes.sum::<u64>() <= 1 << 20);
    server.stop().ok();
    let id = tare.detached(["--retention", "1s", "--", "true"]);
    tare.ended(&id);
    tare.call(["rm", &id]);
    eventually("its retention passes", || tare.call(["explain", &id]).code == 1);
    tare.call(["explain", &id]).exited(1).said(&["no longer kept", "retention"]);
}

#[test]
fn a_crash_of_the_server_loses_no_history() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let run = server.post("/v1/run", &json!({ "command": ["sh", "-c", "exit 3"] })).was(200).json();
    server.kill();
    let id = run["id"].as_str().expect("an id");
    assert_explained(&tare, id, "exited", &["The command exited with 3."]);
}

/// A process that is killed while it writes leaves half a line.
#[test]
fn half_a_line_hides_no_other_history() {
    let tare = tare!();
    tare.run(["--name", "a", "--", "false"]).exited(1);
    let segment = tare.state_root().join("histories/1");
    let whole = fs::read(&segment).unwrap();
    fs::write(&segment, [&whole[..], &whole[..whole.len() / 2]].concat()).unwrap();
    tare.run(["--name", "b", "--", "sh", "-c", "exit 2"]).exited(2);
    assert_explained(&tare, "a", "exited", &["exited with 1"]);
    assert_explained(&tare, "b", "exited", &["exited with 2"]);
}
