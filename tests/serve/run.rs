//! `POST /v1/run`: one command in its own box.

use std::io::Read;

use serde_json::{Value, json};
use tare_harness::{Server, TemporaryDirectory, eventually, tare};

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
    eventually("it is gone", || tare.boxes_of_calls().is_empty());
    server.stop().ok();
}

#[test]
fn the_duration_of_a_run_is_the_time_that_its_client_waited() {
    let tare = tare!();
    let server = Server::start_configured(&tare, "[limits]\nruns = 1\n");
    let call = || {
        let body = json!({ "command": ["sleep", "1"] });
        server.post("/v1/run", &body).was(200).json()["duration_ms"].as_u64().expect("a number")
    };
    let mut waited = std::thread::scope(|threads| {
        let calls = [threads.spawn(call), threads.spawn(call)];
        calls.map(|call| call.join().expect("an answer"))
    });
    waited.sort_unstable();
    assert!(
        waited[0] >= 1000 && waited[1] >= waited[0] + 900,
        "one waits for the other: {waited:?}"
    );
    server.stop();
}

/// The paths of the files in this list of a result.
fn paths<'a>(result: &'a Value, list: &str) -> Vec<&'a str> {
    let files = result[list].as_array().expect("an array").iter();
    files.map(|file| file["path"].as_str().or(file.as_str()).expect("text")).collect()
}

#[test]
fn outputs_that_are_missing_or_not_regular_files_are_listed() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let script =
        "mkfifo pipe; mkdir empty; echo a > plain; echo b > closed; chmod 0 closed; echo done";
    let outputs =
        ["pipe", "plain", "closed", "none", "empty", "/dev/zero", "/dev/null", "*.png", "clos*"];
    let request = json!({ "command": ["sh", "-c", script], "outputs": outputs });
    let answer = ran(&server, request);
    assert_eq!((&answer["exit_code"], &answer["stdout"]), (&json!(0), &json!("done\n")));
    assert_eq!(paths(&answer, "files"), ["plain"]);
    let missing = ["pipe", "closed", "none", "/dev/zero", "/dev/null", "*.png", "clos*"];
    assert_eq!(paths(&answer, "files_missing"), missing);
    assert_eq!(answer["files_omitted"], json!([]));
    let many = json!({ "command": ["true"], "outputs": vec!["a"; 1001] });
    server.post("/v1/run", &many).refused(400, "invalid_json");
    server.stop().ok();
}

#[test]
fn outputs_that_are_too_large_are_listed_and_the_others_returned() {
    let tare = tare!();
    let server =
        Server::start_configured(&tare, "[limits]\noutput_bytes = '1m'\nmemory_max = '8g'\n");
    let script = "echo said; mkdir out; cd out
        head -c 2m /dev/zero > a-large; echo small > b-small; truncate -s 5g ../sparse; exit 3";
    let run = |script: &str, outputs: &[&str]| {
        let limits = json!({ "memory_bytes": 8_u64 << 30, "scratch_bytes": 8_u64 << 30 });
        let command = ["sh", "-c", script];
        ran(&server, json!({ "command": command, "outputs": outputs, "limits": limits }))
    };
    let result = run(script, &["sparse", "out", "out/*"]);
    assert_eq!((&result["exit_code"], &result["stdout"]), (&json!(3), &json!("said\n")));
    // Once, although the directory and the pattern name it.
    assert_eq!(paths(&result, "files"), ["out/b-small"]);
    let large = json!({ "path": "out/a-large", "size_bytes": 2 << 20 });
    let sparse = json!({ "path": "sparse", "size_bytes": 5_u64 << 30 });
    assert_eq!(result["files_omitted"], json!([sparse, large]));
    assert_eq!(result["files_missing"], json!([]));
    // A directory with a file that is too large to look behind.
    let script = "mkdir out; truncate -s 5g out/sparse";
    let result = run(script, &["out"]);
    let sparse = json!({ "path": "out/sparse", "size_bytes": 5_u64 << 30 });
    let rest = json!({ "path": "out", "size_bytes": null });
    assert_eq!(result["files_omitted"], json!([sparse, rest]));
    server.stop().ok();
}

#[test]
fn a_file_that_two_outputs_name_is_returned_once() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let script = "mkdir out; echo 1 > out/a; echo 2 > out/b; echo 3 > c";
    let outputs = ["out/a", "out/a", "./out/a", "/work/out/a", "out", "out/*", "**", "c"];
    let request = json!({ "command": ["sh", "-c", script], "outputs": outputs });
    let result = ran(&server, request);
    let mut found = paths(&result, "files");
    found.sort_unstable();
    assert_eq!(found, ["c", "out/a", "out/b"], "{result}");
    assert_eq!(paths(&result, "files_missing"), [""; 0]);
    assert_eq!(result["files_omitted"], json!([]));
    server.stop().ok();
}

/// The rule of `tare cp`: the names before the last one lead where they lead in the box, and what is
/// found there is not followed.
#[test]
fn the_named_directories_of_an_output_lead_through_links_of_the_box_and_never_out_of_it() {
    let tare = tare!();
    let host = TemporaryDirectory::new();
    host.write("secret.txt", "of the host");
    let server = Server::start(&tare, &[]);
    let script = "mkdir -p /tmp/real; echo in > /tmp/real/a.txt; ln -s /tmp/real named
        ln -s /tmp/real/a.txt last.txt; ln -s $0 host; ln -s /proc/1/root/$0 through; mkdir dir
        ln -s /tmp/real dir/found";
    let found = |outputs: &[&str]| {
        let command = ["sh", "-c", script, host.text()];
        let result = ran(&server, json!({ "command": command, "outputs": outputs }));
        let text = result.to_string();
        assert!(!text.contains("b2YgdGhlIGhvc3"), "{text}");
        paths(&result, "files").into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    for through_a_named_link in ["named/a.txt", "named/*.txt", "named/**"] {
        assert_eq!(found(&[through_a_named_link]), ["named/a.txt"], "{through_a_named_link}");
    }
    let none = [""; 0];
    // The last name, and what a wildcard finds, are not followed.
    assert_eq!(found(&["last.txt", "last.*", "dir/*/a.txt", "dir/**", "*/a.txt"]), none);
    assert_eq!(found(&["host/*", "host/secret.txt", "through/*", "through/secret.txt"]), none);
    server.stop().ok();
}

#[test]
fn patterns_return_the_files_that_match() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let script = "mkdir -p out/deep/.hidden; echo 1 > a.png; echo 2 > b.txt; echo 3 > out/c.png
        echo 4 > out/deep/d.png; echo 5 > out/deep/.hidden/e.png; ln -s /etc/passwd out/link.png";
    let found = |patterns: Value| {
        let request = json!({ "command": ["sh", "-c", script], "outputs": patterns });
        let result = ran(&server, request);
        let mut found: Vec<String> =
            paths(&result, "files").into_iter().map(str::to_owned).collect();
        found.sort();
        found
    };
    assert_eq!(found(json!(["*.png"])), ["a.png"]);
    assert_eq!(found(json!(["out/**", "?.txt"])), ["b.txt", "out/c.png", "out/deep/d.png"]);
    assert_eq!(found(json!(["/work/**/d*"])), ["out/deep/d.png"]);
    assert!(found(json!(["/etc/shad*", "none/*"])).is_empty());
    let refused = json!({ "command": ["true"], "outputs": ["[ab]*"] });
    let refused = server.post("/v1/run", &refused).refused(400, "invalid_path").text();
    assert!(refused.contains("[ab]*"), "{refused}");
    // More files than one request looks at.
    let script = "mkdir many; cd many; seq 3000 | xargs touch";
    let result = ran(&server, json!({ "command": ["sh", "-c", script], "outputs": ["many/*"] }));
    assert!(paths(&result, "files").len() <= 1000);
    assert_eq!(result["files_omitted"], json!([{ "path": "many/*", "size_bytes": null }]));
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
            _ => {
                refused += 1;
                // The command itself had ended well.
                let error = answer.json()["error"].clone();
                let id = error["box_id"].as_str().unwrap_or_else(|| panic!("{error}"));
                let explained = tare.json(["explain", "--json", id]);
                let end = (&explained["cause"], &explained["exit_code"]);
                assert_eq!(end, (&json!("exited"), &json!(0)), "{explained}");
                assert_eq!(error["cause"], "exited", "{error}");
            }
        }
    }
    assert!(refused > 0, "the copy was never killed");
    server.stop().ok();
}
