//! `POST /v1/boxes/{id}/exec`: processes in detached boxes.

use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tare_harness::{Process, Server, Tare, box_processes, eventually, tare};

use crate::serve::configured;
use crate::serve::quotas::sha256;

/// A server with a box called `web`.
fn with_box(tare: &Tare) -> Server {
    let server = Server::start(tare, &[]);
    server.post("/v1/boxes", &json!({ "name": "web" })).was(201);
    server
}

fn end(server: Server) {
    server.delete("/v1/boxes/web?force=true").was(204);
    server.stop().ok();
}

#[track_caller]
fn executed(server: &Server, request: Value) -> Value {
    let path = "/v1/boxes/web/exec";
    server.post(path, &request).was(200).json()
}

#[track_caller]
fn detached(server: &Server, request: Value) -> String {
    let exec = server.post("/v1/boxes/web/exec", &request).was(202).json();
    assert_eq!(exec["state"], "running");
    format!("/v1/boxes/web/execs/{}", exec["id"].as_str().expect("an id"))
}

/// Whether a process with this word among its arguments is in the box.
fn lives(tare: &Tare, word: &str) -> bool {
    let script = "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$f; done 2>/dev/null; :";
    let shown = tare.exec("web", ["sh", "-c", script]).ok().stdout;
    String::from_utf8_lossy(&shown).contains(word)
}

/// Reads until this was said.
fn read_until(stream: &mut TcpStream, wanted: &str) -> String {
    let mut seen = String::new();
    while !seen.contains(wanted) {
        let mut buffer = [0; 4096];
        let count = stream.read(&mut buffer).expect("something comes");
        assert_ne!(count, 0, "{seen}");
        seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    seen
}

/// In a box without a command, a signal and a stop go to all execs.
#[test]
fn an_exec_that_a_signal_or_stop_of_its_box_ended_names_the_sender() {
    let tare = tare!();
    let server = with_box(&tare);
    for (path, body, sender) in [
        (
            "kill",
            json!({ "signal": "USR1" }),
            "signal 10 (SIGUSR1), sent by tare: POST /v1/boxes/web/kill",
        ),
        ("stop", json!({}), "Stopped by POST /v1/boxes/web/stop"),
    ] {
        let answer = std::thread::scope(|threads| {
            let exec = || executed(&server, json!({ "command": ["sleep", "12345"] }));
            let exec = threads.spawn(exec);
            eventually("it runs", || lives(&tare, "sleep 12345"));
            server.post(&format!("/v1/boxes/web/{path}"), &body).was(200);
            exec.join().expect("an answer")
        });
        let sentence = answer["sentence"].as_str().expect("a sentence");
        assert!(sentence.contains(sender), "{sentence}");
    }
    end(server);
}

/// With a file, the command of a run is an exec.
#[test]
fn a_run_that_is_stopped_names_the_stop_also_if_its_command_is_an_exec() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    for files in [json!([]), json!([{ "path": "a", "content": "a" }])] {
        let body = json!({ "command": ["sleep", "12345"], "files": files });
        let (id, answer) = std::thread::scope(|threads| {
            let run = threads.spawn(|| server.post("/v1/run", &body).was(200).json());
            let mut id = String::new();
            eventually("it runs", || {
                let listed = server.get("/v1/boxes?state=running").was(200).json();
                id = listed["boxes"][0]["id"].as_str().unwrap_or_default().to_owned();
                let of_box = |it: &Process| it.cgroups.iter().any(|path| path.contains(&id));
                let runs = |it: &Process| it.name == "sleep" && of_box(it);
                !id.is_empty() && box_processes().iter().any(runs)
            });
            server.post(&format!("/v1/boxes/{id}/stop"), &json!({})).was(200);
            (id, run.join().expect("an answer"))
        });
        let stop = format!("Stopped by POST /v1/boxes/{id}/stop");
        let explained = server.get(&format!("/v1/boxes/{id}/explain")).was(200).json();
        for said in [answer, explained] {
            assert_eq!(said["cause"], "stopped", "{said}");
            let sentence = said["sentence"].as_str().expect("a sentence");
            assert!(sentence.starts_with(&stop), "{sentence}");
        }
    }
    server.stop().ok();
}

#[test]
fn an_exec_ends_and_its_box_continues() {
    let tare = tare!();
    let server = with_box(&tare);
    let result = executed(
        &server,
        json!({
            "command": ["sh", "-c", "cat; echo $A $PWD >&2; exit 3"],
            "stdin": "in", "env": { "A": "b" }, "workdir": "/tmp",
        }),
    );
    assert_eq!(result["exit_code"], 3);
    assert_eq!((&result["stdout"], &result["stderr"]), (&"in".into(), &"b /tmp\n".into()));
    let killed = executed(&server, json!({ "command": ["sh", "-c", "kill -9 $$"] }));
    assert_eq!((&killed["exit_code"], &killed["signal"]), (&137.into(), &9.into()));
    let late = json!({ "command": ["sh", "-c", "sleep 1001 & sleep 1001"], "timeout_ms": 200 });
    let late = executed(&server, late);
    assert_eq!((&late["cause"], &late["exit_code"]), (&"timeout".into(), &124.into()));
    assert!(!lives(&tare, "1001"), "everyone that it started has ended");
    assert_eq!(server.get("/v1/boxes/web").json()["state"], "running");
    end(server);
}

#[test]
fn an_exec_runs_code_in_a_language_and_leaves_no_code_behind() {
    let tare = tare!();
    let server = with_box(&tare);
    let code = "import sys, os; print(sys.stdin.read(), os.getcwd(), os.environ['A'])";
    let request = json!({ "language": "Python", "code": code, "stdin": "in", "env": { "A": "b" } });
    let result = executed(&server, request);
    assert_eq!((&result["exit_code"], &result["stdout"]), (&json!(0), &json!("in /work b\n")));
    let c = "#include <stdio.h>\nint main(void) { puts(\"out c\"); return 3; }";
    let result = executed(&server, json!({ "language": "c", "code": c }));
    assert_eq!((&result["exit_code"], &result["stdout"]), (&json!(3), &json!("out c\n")));
    let exec =
        detached(&server, json!({ "language": "bash", "code": "sleep 1000", "detach": true }));
    let left = || {
        let list = json!({ "command": ["sh", "-c", "ls /tmp | grep code-"] });
        executed(&server, list)["stdout"].as_str().expect("text").lines().count()
    };
    eventually("only the code that runs is left", || left() == 1);
    server.post(&format!("{exec}/signal"), &json!({ "signal": "KILL" })).was(204);
    eventually("no code is left", || left() == 0);
    let refused = |request: Value, code: &str| {
        server.post("/v1/boxes/web/exec", &request).refused(400, code);
    };
    refused(json!({ "language": "cobol", "code": "x" }), "unsupported_language");
    refused(json!({ "language": "python" }), "invalid");
    refused(json!({ "command": ["true"], "code": "x" }), "invalid");
    refused(json!({}), "invalid");
    end(server);
}

#[test]
fn output_written_just_before_the_end_is_complete() {
    let tare = tare!();
    let server = with_box(&tare);
    for _round in 0..40 {
        let result = executed(&server, json!({ "command": ["head", "-c", "60000", "/dev/zero"] }));
        assert_eq!(result["stdout"].as_str().map(str::len), Some(60_000));
    }
    end(server);
}

/// The end of what it left running is not waited for.
#[test]
fn background_processes_stay_and_do_not_delay_the_answer() {
    let tare = tare!();
    let server = with_box(&tare);
    let left = json!({ "command": ["sh", "-c", "sleep 1002 & echo done"], "timeout_ms": 60_000 });
    assert_eq!(executed(&server, left)["stdout"], "done\n");
    assert!(lives(&tare, "1002"));
    end(server);
}

#[test]
fn an_exec_can_have_a_terminal() {
    let tare = tare!();
    let server = with_box(&tare);
    let size = json!({ "rows": 7, "columns": 33 });
    let result = executed(
        &server,
        json!({ "command": ["sh", "-c", "stty size; cat"], "terminal": size, "stdin": "typed\n" }),
    );
    let seen = result["stdout"].as_str().expect("text");
    assert!(seen.contains("7 33\r\n") && seen.contains("typed"), "{seen}");
    assert_eq!(result["exit_code"], 0);
    end(server);
}

#[test]
fn an_exec_that_cannot_start_is_refused_with_the_reason() {
    let tare = tare!();
    let server = with_box(&tare);
    let refused = |request: Value, status, code| {
        server.post("/v1/boxes/web/exec", &request).refused(status, code);
    };
    refused(json!({}), 400, "invalid");
    refused(json!({ "command": [] }), 400, "invalid");
    refused(json!({ "command": ["nope"] }), 400, "command_not_found");
    refused(json!({ "command": ["true"], "workdir": "x" }), 400, "invalid");
    refused(json!({ "command": ["true"], "workdir": "/none" }), 400, "invalid");
    refused(json!({ "command": ["true"], "user": "root" }), 400, "invalid");
    let flat = json!({ "rows": 0, "columns": 1 });
    refused(json!({ "command": ["true"], "terminal": flat }), 400, "invalid");
    let request = json!({ "command": ["true"] });
    server.post("/v1/boxes/nope/exec", &request).refused(404, "no_such_box");
    server.post("/v1/boxes/web/pause", &json!({})).was(200);
    refused(request.clone(), 409, "conflict");
    server.post("/v1/boxes/web/resume", &json!({})).was(200);
    server.post("/v1/boxes/web/stop", &json!({ "grace_ms": 0 })).was(200);
    refused(request, 409, "conflict");
    end(server);
}

#[test]
fn a_client_that_hangs_up_ends_its_exec_and_not_the_box() {
    let tare = tare!();
    let server = with_box(&tare);
    for accept in ["application/json", "application/x-ndjson"] {
        let body = json!({ "command": ["sleep", "1003"] }).to_string();
        let headers = [("Content-Type", "application/json"), ("Accept", accept)];
        let stream = server.send("POST", "/v1/boxes/web/exec", &headers, body.as_bytes());
        eventually("it runs", || lives(&tare, "1003"));
        drop(stream);
        eventually("it is gone", || !lives(&tare, "1003"));
    }
    assert_eq!(executed(&server, json!({ "command": ["true"] }))["exit_code"], 0);
    end(server);
}

#[test]
fn exec_output_is_streamed_on_request() {
    let tare = tare!();
    let server = with_box(&tare);
    let body = json!({ "command": ["sh", "-c", "echo first; read x; echo $x"], "stdin": "last\n" });
    let headers = [("Content-Type", "application/json"), ("Accept", "text/event-stream")];
    let body = body.to_string();
    let answer = server.ask("POST", "/v1/boxes/web/exec", &headers, body.as_bytes());
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    let text = answer.was(200).text();
    for wanted in ["first", "last", "event: result", "\"exit_code\":0"] {
        assert!(text.contains(wanted), "{text}");
    }
    end(server);
}

#[test]
fn a_detached_process_accepts_input_and_streams_output() {
    let tare = tare!();
    let server = with_box(&tare);
    let path = detached(&server, json!({ "command": ["cat"], "detach": true }));
    let stdin = format!("{path}/stdin");
    server.ask("POST", &stdin, &[], b"one ").was(204);
    let lines = [("Accept", "application/x-ndjson")];
    let mut stream = server.send("GET", &format!("{path}/stream"), &lines, b"");
    read_until(&mut stream, "one ");
    server.ask("POST", &format!("{stdin}?close=true"), &[], b"two").was(204);
    read_until(&mut stream, "\"type\":\"result\"");
    let exec = server.get(&path).was(200).json();
    assert_eq!(
        (&exec["state"], &exec["exit_code"], &exec["output_bytes"]),
        (&"exited".into(), &0.into(), &7.into())
    );
    let again = server.get(&format!("{path}/stream")).was(200).text();
    assert!(again.contains("one two") && again.contains("event: result"));
    server.ask("POST", &stdin, &[], b"x").refused(409, "stdin_closed");
    let kill = json!({ "signal": 9 });
    server.post(&format!("{path}/signal"), &kill).refused(409, "exec_ended");
    server.get("/v1/boxes/web/execs/nope").refused(404, "no_such_exec");
    end(server);
}

#[test]
fn a_detached_process_gets_signals_and_window_sizes() {
    let tare = tare!();
    let server = with_box(&tare);
    let script = "trap 'stty size; exit 4' TERM; trap 'stty size' WINCH; echo up; \
                  while :; do sleep 0.05; done";
    let path = detached(
        &server,
        json!({
            "command": ["sh", "-c", script], "detach": true,
            "terminal": { "rows": 1, "columns": 2 },
        }),
    );
    let output = |wanted: &str| {
        let lines = [("Accept", "application/x-ndjson")];
        let mut stream = server.send("GET", &format!("{path}/stream"), &lines, b"");
        read_until(&mut stream, wanted);
    };
    output("up");
    let act = |what: &str, body: Value| server.post(&format!("{path}/{what}"), &body);
    act("resize", json!({ "rows": 5, "columns": 6 })).was(204);
    output("5 6");
    act("signal", json!({ "signal": "NOPE" })).refused(400, "invalid");
    act("signal", json!({ "signal": 200 })).refused(400, "invalid");
    act("resize", json!({ "rows": 0, "columns": 6 })).refused(400, "invalid");
    act("signal", json!({ "signal": "SIGTERM" })).was(204);
    output("result");
    assert_eq!(server.get(&path).json()["exit_code"], 4);
    end(server);
}

/// The process continues although its output is not read.
#[test]
fn unread_output_is_bounded_and_counted() {
    let tare = tare!();
    let server = with_box(&tare);
    let command = ["sh", "-c", "head -c 5000000 /dev/zero"];
    let path = detached(&server, json!({ "command": command, "detach": true }));
    eventually("it ends", || server.get(&path).json()["state"] == "exited");
    let exec = server.get(&path).json();
    assert_eq!(exec["output_bytes"], 5_000_000);
    let dropped = exec["dropped_bytes"].as_u64().expect("a number");
    assert!(dropped >= 5_000_000 - (256 << 10), "{exec}");
    let text = server.get(&format!("{path}/stream")).was(200).text();
    let missed = format!("event: missed\ndata: {{\"bytes\":{dropped}}}");
    assert!(text.starts_with(&missed), "{text:.100}");
    end(server);
}

/// They are this server's memory, and it is their client.
#[test]
fn a_detached_process_ends_with_its_server_and_the_next_server_returns_404() {
    let tare = tare!();
    let server = with_box(&tare);
    let command = json!({ "command": ["sleep", "1004"], "detach": true });
    let path = detached(&server, command);
    assert!(lives(&tare, "1004"));
    server.kill();
    eventually("it is gone", || !lives(&tare, "1004"));
    let server = Server::start(&tare, &[]);
    server.get(&path).refused(404, "no_such_exec");
    end(server);
}

/// The keeper is stopped, as an operator or a debugger can do.
#[test]
fn a_box_that_does_not_answer_gets_503_within_the_callers_timeout() {
    let tare = tare!();
    let server = with_box(&tare);
    let id = server.get("/v1/boxes/web").was(200).json()["id"].clone();
    let keeper = tare.keeper(id.as_str().expect("an id"));
    keeper.signal(Signal::STOP);
    let request = json!({ "command": ["touch", "/work/ran"], "timeout_ms": 1000 });
    let began = Instant::now();
    let answer = server.post("/v1/boxes/web/exec", &request);
    let lasted = began.elapsed();
    keeper.signal(Signal::CONT);
    let answer = answer.refused(503, "no_answer");
    assert!(answer.text().contains("its keeper is stopped"), "{answer:?}");
    assert!(lasted < Duration::from_secs(8), "{lasted:?}");
    let listed = executed(&server, json!({ "command": ["ls", "-A", "/work"] }));
    assert_eq!(listed["stdout"], "");
    end(server);
}

/// Begins this many calls into each box.
fn begin_calls(server: &Server, key: &str, boxes: &[&str], calls: usize) -> Vec<TcpStream> {
    let key = [("X-API-Key", key)];
    let call = |name: &&str| {
        let path = format!("/v1/boxes/{name}/files/work?tar=true");
        server.send("GET", &path, &key, b"")
    };
    (0..calls).flat_map(|_| boxes.iter().map(call).collect::<Vec<_>>()).collect()
}

fn calls_over(server: &Server) -> usize {
    server.log().lines().filter(|line| line.contains("/files/work\"")).count()
}

/// There are eight threads for calls into boxes.
#[test]
fn a_box_that_does_not_answer_does_not_delay_calls_into_other_boxes() {
    let tare = tare!();
    let server = with_box(&tare);
    let slow = server.post("/v1/boxes", &json!({ "name": "slow" })).was(201).json();
    let keeper = tare.keeper(slow["id"].as_str().expect("an id"));
    keeper.signal(Signal::STOP);
    let calls = begin_calls(&server, "", &["slow"], 60);
    executed(&server, json!({ "command": ["true"] }));
    let over = calls_over(&server);
    assert!(over < 30, "{over} of 60 calls into the slow box were over before");
    keeper.signal(Signal::CONT);
    drop(calls);
    server.delete("/v1/boxes/slow?force=true").was(204);
    end(server);
}

#[test]
fn boxes_of_two_keys_that_do_not_answer_do_not_delay_a_third_key() {
    let tare = tare!();
    let key = |name: &str| {
        let sha256 = sha256(&format!("{name}-key"));
        format!("[[keys]]\nname = '{name}'\nsha256 = '{sha256}'\n")
    };
    let (_directory, config) = configured(&["a", "b", "c"].map(key).concat());
    let server = Server::start(&tare, &["--config", &config]);
    let post = |key: &str, path: &str, body: Value| {
        let headers = [("Content-Type", "application/json"), ("X-API-Key", key)];
        server.ask("POST", path, &headers, body.to_string().as_bytes())
    };
    let slow = ["slow-1", "slow-2", "slow-3"];
    let mut keepers = Vec::new();
    for (key, name) in ["a-key", "b-key"].into_iter().flat_map(|key| slow.map(|name| (key, name))) {
        let made = post(key, "/v1/boxes", json!({ "name": name })).was(201).json();
        let keeper = tare.keeper(made["id"].as_str().expect("an id"));
        keeper.signal(Signal::STOP);
        keepers.push(keeper);
    }
    post("c-key", "/v1/boxes", json!({ "name": "web" })).was(201);
    let calls = ["a-key", "b-key"].map(|key| begin_calls(&server, key, &slow, 10));
    post("c-key", "/v1/boxes/web/exec", json!({ "command": ["true"] })).was(200);
    let over = calls_over(&server);
    assert!(over < 20, "{over} of 60 calls of the other keys were over before");
    for keeper in keepers {
        keeper.signal(Signal::CONT);
    }
    drop(calls);
    tare.call(["rm", "-f", "--all"]).ok();
    server.stop().ok();
}

#[test]
fn a_detached_process_beyond_the_limit_does_not_run() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    server.post("/v1/boxes", &json!({ "name": "a" })).was(201);
    let detach = |command: Value| {
        let request = json!({ "command": command, "detach": true });
        server.post("/v1/boxes/a/exec", &request)
    };
    for _ in 0..64 {
        detach(json!(["sleep", "1000"])).was(202);
    }
    detach(json!(["touch", "/work/ran"])).refused(503, "busy");
    tare.exec("a", ["test", "!", "-e", "/work/ran"]).ok();
    server.delete("/v1/boxes/a?force=true").was(204);
    server.stop().ok();
}
