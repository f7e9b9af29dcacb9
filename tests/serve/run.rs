//! `POST /v1/run`: one command in its own box.

use std::io::Read;

use serde_json::{Value, json};
use tare_harness::{Server, eventually, tare};

use super::KILLER;

#[track_caller]
fn ran(server: &Server, request: Value) -> Value {
    server.post("/v1/run", &request).was(200).json()
}

#[test]
fn run_leaves_nothing_when_it_answers() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let result = ran(
        &server,
        json!({ "command": ["sh", "-c", "cat; echo no >&2; exit 3"], "stdin": "yes" }),
    );
    assert_eq!(result["exit_code"], 3);
    assert_eq!((&result["stdout"], &result["stderr"]), (&"yes".into(), &"no\n".into()));
    assert!(tare.footprint().records.is_empty());
    assert!(tare.footprint().cgroups.is_empty());
    server.stop().ok();
}

#[test]
fn run_executes_code_in_each_language() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    for (language, code) in [
        ("python", "print('out', __file__)"),
        ("bash", "echo out $0"),
        ("node", "console.log('out', 'main.js')"),
        ("c", "#include <stdio.h>\nint main(void) { puts(\"out c\"); }"),
    ] {
        let result = ran(&server, json!({ "language": language, "code": code }));
        assert_eq!(result["exit_code"], 0, "{result}");
        assert!(result["stdout"].as_str().is_some_and(|text| text.starts_with("out ")));
    }
    server.stop().ok();
}

/// Its box has no command of its own: it waits for the file that the code is.
#[test]
fn a_run_is_listed_by_its_program_without_its_code() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let code = "# s3cret\nimport time\ntime.sleep(1000)";
    let body = json!({ "language": "python", "code": code }).to_string();
    let json = [("Content-Type", "application/json")];
    let stream = server.send("POST", "/v1/run", &json, body.as_bytes());
    let listed = || tare.call(["ls"]).ok().stdout_text();
    eventually("it is listed", || listed().contains(" (python3) "));
    assert!(!tare.json(["ls", "--json"]).to_string().contains("s3cret"));
    drop(stream);
    eventually("it is gone", || tare.footprint().records.is_empty());
    server.stop().ok();
}

#[test]
fn outputs_that_are_not_regular_files_are_skipped() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let script = "mkfifo pipe; echo a > plain; echo b > closed; chmod 0 closed; echo done";
    let outputs =
        ["pipe", "plain", "closed", "none", "/dev/zero", "/dev/null", "/proc/self/environ"];
    let request = json!({ "command": ["sh", "-c", script], "outputs": outputs });
    let answer = server.post("/v1/run", &request).was(200).json();
    assert_eq!((&answer["exit_code"], &answer["stdout"]), (&json!(0), &json!("done\n")));
    let files = answer["files"].as_array().expect("an array");
    let paths: Vec<_> = files.iter().map(|file| &file["path"]).collect();
    assert!(paths.contains(&&json!("plain")), "{paths:?}");
    for path in ["pipe", "closed", "none", "/dev/zero", "/dev/null"] {
        assert!(!paths.contains(&&json!(path)), "{paths:?}");
    }
    let many = json!({ "command": ["true"], "outputs": vec!["a"; 1001] });
    server.post("/v1/run", &many).refused(400, "invalid_json");
    server.stop().ok();
}

#[test]
fn run_takes_files_and_returns_outputs() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let result = ran(
        &server,
        json!({
            "command": ["sh", "-c", "mkdir out; cat in/a in/b > out/both; ln -s /etc/passwd out/link"],
            "files": [
                { "path": "in/a", "content": "one " },
                { "path": "/work/in/b", "content_base64": "AP8=" },
            ],
            "outputs": ["out", "nothing"],
        }),
    );
    let files = result["files"].as_array().expect("files");
    assert_eq!(files.len(), 1, "a link is no file: {files:?}");
    assert_eq!(files[0]["path"], "out/both");
    assert_eq!(files[0]["content_base64"], "b25lIAD/");
    server.stop().ok();
}

#[test]
fn run_distinguishes_a_timeout_from_a_kill_for_memory() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let late = ran(
        &server,
        json!({ "command": ["sh", "-c", "sleep 100 & sleep 100"], "timeout_ms": 200 }),
    );
    assert_eq!((&late["cause"], &late["exit_code"]), (&"timeout".into(), &124.into()));
    let large = ran(
        &server,
        json!({
            "command": ["python3", "-c", "x = bytearray(1 << 30)"],
            "limits": { "memory_bytes": 64 << 20 },
        }),
    );
    assert_eq!((&large["cause"], &large["exit_code"]), (&"memory".into(), &137.into()));
    assert_eq!((&late["oom"], &large["oom"]), (&false.into(), &true.into()));
    server.stop().ok();
}

#[test]
fn output_beyond_the_limit_is_cut_and_marked_truncated() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let result = ran(
        &server,
        json!({ "command": ["sh", "-c", "head -c 20000000 /dev/zero | tr '\\0' x; echo end >&2"] }),
    );
    assert_eq!(result["truncated"], true);
    assert_eq!(result["stdout"].as_str().map(str::len), Some(8 << 20));
    assert_eq!(result["stderr"], "end\n", "the command went on to its end");
    server.stop().ok();
}

#[test]
fn run_output_is_streamed_on_request() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let body = json!({ "command": ["sh", "-c", "echo first; sleep 1000"] }).to_string();
    let headers = [("Content-Type", "application/json"), ("Accept", "application/x-ndjson")];
    let mut stream = server.send("POST", "/v1/run", &headers, body.as_bytes());
    let mut seen = String::new();
    while !seen.contains("first") {
        let mut buffer = [0; 4096];
        let count = stream.read(&mut buffer).expect("a frame comes");
        assert_ne!(count, 0, "{seen}");
        seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    drop(stream);
    eventually("the command ends with its reader", || tare.footprint().records.is_empty());
    server.stop().ok();
}

#[test]
fn a_client_that_hangs_up_ends_its_run() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let body = json!({ "command": ["sleep", "1000"] }).to_string();
    let json = [("Content-Type", "application/json")];
    let stream = server.send("POST", "/v1/run", &json, body.as_bytes());
    eventually("it runs", || !tare.footprint().records.is_empty());
    drop(stream);
    eventually("it is gone", || tare.footprint().records.is_empty());
    server.stop().ok();
}

#[test]
fn an_invalid_run_is_refused_with_the_reason() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let refused = |request: Value, status, code| {
        server.post("/v1/run", &request).refused(status, code);
    };
    refused(json!({}), 400, "invalid");
    refused(json!({ "command": [] }), 400, "invalid");
    refused(json!({ "command": ["true"], "code": "x" }), 400, "invalid");
    refused(json!({ "command": ["no-such-program"] }), 400, "command_not_found");
    refused(json!({ "command": ["a\u{0}b"] }), 400, "invalid");
    refused(json!({ "command": ["true"], "timeout_ms": 0 }), 400, "invalid");
    refused(json!({ "command": ["true"], "timeout_ms": 1e18 }), 400, "invalid_json");
    refused(json!({ "language": "rustt", "code": "" }), 400, "unsupported_language");
    refused(json!({ "command": ["true"], "tmeout_ms": 1 }), 400, "invalid_json");
    let outside = json!([{ "path": "../x", "content": "" }]);
    refused(json!({ "command": ["true"], "files": outside }), 400, "invalid_path");
    refused(json!({ "command": ["true"], "network": "host" }), 403, "network_forbidden");
    assert!(tare.footprint().records.is_empty());
    server.stop().ok();
}

/// A missing output must not be silent.
#[test]
fn outputs_that_the_command_blocks_are_an_error() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let script = format!(
        "import os, sys
open('a', 'w').write('a')
open('b', 'w').truncate(900 << 10)
if os.fork():
    sys.exit()
{KILLER}"
    );
    let mut refused = 0;
    for _ in 0..20 {
        let request = json!({ "command": ["python3", "-c", script], "outputs": ["."] });
        let answer = server.post("/v1/run", &request);
        match answer.status {
            200 => {
                let files = answer.json()["files"].as_array().expect("files").len();
                assert_eq!(files, 2, "all of them, or an error");
            }
            _ => refused += 1,
        }
    }
    assert!(refused > 0, "the copy was never killed");
    server.stop().ok();
}
