//! `/v1/boxes/{id}/files/PATH`: files of boxes.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tare_harness::{Answer, Server, Tare, TemporaryDirectory, eventually, tare};

use super::KILLER;

fn with_box(tare: &Tare) -> Server {
    with_box_and(tare, &[])
}

fn with_box_and(tare: &Tare, args: &[&str]) -> Server {
    let server = Server::start(tare, args);
    server.post("/v1/boxes", &json!({ "name": "web" })).was(201);
    server
}

fn end(server: Server) {
    server.delete("/v1/boxes/web?force=true").was(204);
    server.stop().ok();
}

fn get(server: &Server, path: &str) -> Answer {
    server.get(&format!("/v1/boxes/web/files/{path}"))
}

fn put(server: &Server, path: &str, bytes: &[u8]) -> Answer {
    let path = format!("/v1/boxes/web/files/{path}");
    // An empty body says so.
    match bytes {
        b"" => server.ask("PUT", &path, &[("Content-Length", "0")], b""),
        bytes => server.ask("PUT", &path, &[], bytes),
    }
}

fn sh(tare: &Tare, script: &str) -> String {
    let out = tare.exec("web", ["sh", "-c", script]).ok().stdout;
    String::from_utf8_lossy(&out).into_owned()
}

fn listed(server: &Server, path: &str) -> Vec<Value> {
    let list = get(server, &format!("{path}?list=true")).was(200).json();
    let mut entries = list["entries"].as_array().expect("entries").clone();
    entries.sort_by_key(|entry| entry["encoded_name"].as_str().map(str::to_owned));
    entries
}

/// The file may change between two requests, so parts of it may not fit together. A range request
/// gets the whole file.
#[test]
fn range_requests_are_not_supported_and_the_answer_says_so() {
    let tare = tare!();
    let server = with_box(&tare);
    put(&server, "work/a", b"0123456789").was(204);
    for range in ["bytes=2-3", "bytes=-1", "bytes=100-", "nonsense"] {
        let headers = [("Range", range), ("If-Range", "\"x\"")];
        let answer = server.ask("GET", "/v1/boxes/web/files/work/a", &headers, b"");
        let answer = answer.was(200);
        assert_eq!(answer.header("accept-ranges"), Some("none"), "{range}");
        assert_eq!(answer.body, b"0123456789", "{range}");
    }
    let archive = get(&server, "work?tar=true").was(200);
    assert_eq!(archive.header("accept-ranges"), Some("none"));
    end(server);
}

#[test]
fn a_file_is_uploaded_and_downloaded_unchanged() {
    let tare = tare!();
    let server = with_box(&tare);
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    put(&server, "work/new/dir/a%20b.bin", &bytes).was(204);
    let answer = get(&server, "work/new/dir/a%20b.bin").was(200);
    assert_eq!(answer.header("content-length"), Some("3000000"));
    let disposition = answer.header("content-disposition").expect("a name");
    assert!(disposition.contains("filename=\"a b.bin\""), "{disposition}");
    assert!(answer.body == bytes, "every byte");
    // Nothing of the old file is left, but its permissions are.
    sh(&tare, "chmod 750 '/work/new/dir/a b.bin'");
    put(&server, "work/new/dir/a%20b.bin", b"short").was(204);
    let shown = sh(&tare, "cd /work/new/dir; cat *; stat -c %a:%n *; ls -A");
    assert_eq!(shown, "short750:a b.bin\na b.bin\n");
    put(&server, "work/empty", b"").was(204);
    assert_eq!(get(&server, "work/empty").was(200).body, b"");
    server.delete("/v1/boxes/web/files/work/new").was(204);
    get(&server, "work/new").refused(404, "no_such_file");
    end(server);
}

#[test]
fn a_listing_has_every_name_in_requestable_form() {
    let tare = tare!();
    let server = with_box(&tare);
    let script = "mkdir /work/d && cd /work/d && echo x > \"$(printf 'a\\377\\n\"')\" && \
                  mkdir sub && ln -s /etc link && mkfifo pipe && echo yes > plain && chmod 600 plain";
    sh(&tare, script);
    let entries = listed(&server, "work/d");
    let shown = |field: &str| -> Vec<Value> { entries.iter().map(|e| e[field].clone()).collect() };
    assert_eq!(shown("encoded_name"), ["a%FF%0A%22", "link", "pipe", "plain", "sub"]);
    assert_eq!(shown("kind"), ["file", "symlink", "other", "file", "directory"]);
    assert_eq!(entries[0]["name"], "a\u{fffd}\n\"");
    assert_eq!((&entries[3]["size"], &entries[3]["mode"]), (&4.into(), &"600".into()));
    assert_eq!(get(&server, "work/d/a%FF%0A%22").was(200).body, b"x\n");
    assert!(listed(&server, "").iter().any(|entry| entry["name"] == "work"));
    end(server);
}

#[test]
fn special_files_are_refused_without_waiting() {
    let tare = tare!();
    let server = with_box(&tare);
    sh(&tare, "mkfifo /work/pipe; ln -s loop /work/loop; mkdir /work/d; echo x > /work/f");
    let refused = |path: &str, status, code| {
        get(&server, path).refused(status, code);
    };
    refused("work/pipe", 400, "not_a_regular_file");
    refused("dev/zero", 400, "not_a_regular_file");
    refused("work/loop", 400, "link_loop");
    refused("work/f/x", 400, "not_a_directory");
    refused("work/d", 400, "is_a_directory");
    refused("work/none", 404, "no_such_file");
    refused("work/f?list=true", 400, "not_a_directory");
    refused("work/a%00b", 400, "invalid_path");
    refused("work/%2e%2e/etc", 400, "invalid_path");
    refused("work/f?x=1", 400, "invalid_query");
    assert!(get(&server, "proc/self/mem").status < 500);
    put(&server, "work/pipe", b"x").refused(400, "not_a_regular_file");
    put(&server, "work/d", b"x").refused(400, "is_a_directory");
    put(&server, "work/f/x", b"x").refused(400, "not_a_directory");
    put(&server, "etc/x", b"x").refused(403, "not_permitted");
    server.delete("/v1/boxes/web/files/work/none").refused(404, "no_such_file");
    server.delete("/v1/boxes/web/files/work/pipe").was(204);
    server.get("/v1/boxes/nope/files/work").refused(404, "no_such_box");
    end(server);
}

/// A symlink to a path of the host leads to the same path in the box.
#[test]
fn symlinks_are_resolved_inside_the_box() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let secret = directory.path().join("secret");
    std::fs::write(&secret, "host").expect("a file");
    let server = with_box(&tare);
    let target = secret.display().to_string();
    sh(
        &tare,
        &format!("ln -s {target} /work/out; ln -s /etc/hostname /work/name; ln -s / /work/root"),
    );
    get(&server, "work/out").refused(404, "no_such_file");
    let name = sh(&tare, "cat /etc/hostname 2>/dev/null; :");
    if !name.is_empty() {
        assert_eq!(get(&server, "work/name").was(200).text(), name);
    }
    put(&server, "work/out", b"box").was(204);
    assert_eq!(std::fs::read_to_string(&secret).expect("it is there"), "host");
    assert_eq!(sh(&tare, "cat /work/out"), "box");
    server.delete("/v1/boxes/web/files/work/root").was(204);
    assert_eq!(sh(&tare, "cat /work/out"), "box", "the link went, and nothing else");
    end(server);
}

#[test]
fn files_of_tares_own_process_in_the_box_are_refused() {
    let tare = tare!();
    let server = with_box(&tare);
    for path in ["self/cmdline", "self/maps", "thread-self/status", "self/task"] {
        let path = format!("proc/{path}");
        get(&server, &path).refused(403, "not_permitted");
    }
    get(&server, "proc/self?list=true").refused(403, "not_permitted");
    let body = json!({ "command": ["true"], "outputs": ["/proc/self/cmdline"] });
    let run = server.post("/v1/run", &body).was(200).json();
    assert_eq!(run["files"], json!([]), "{run}");
    assert!(get(&server, "proc/meminfo").was(200).text().contains("MemTotal"));
    end(server);
}

#[test]
fn an_incomplete_upload_changes_nothing() {
    let tare = tare!();
    let server = with_box(&tare);
    put(&server, "work/f", b"old").was(204);
    let id = server.get("/v1/boxes/web").was(200).json()["id"].clone();
    let id = id.as_str().expect("an id").to_owned();
    for (header, sent) in [
        ("Content-Length: 1000", &b"only this"[..]),
        ("Transfer-Encoding: chunked", b"4\r\nonly\r\n"),
    ] {
        let mut stream = server.connect();
        let head = format!(
            "PUT /v1/boxes/web/files/work/f HTTP/1.1\r\nHost: localhost\r\n{header}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).expect("it reads");
        stream.write_all(sent).expect("it reads");
        eventually("it is being written", || {
            // What is written has no name yet.
            !tare.workload(&id).is_empty()
        });
        drop(stream);
        eventually("nothing of it is left", || tare.workload(&id).is_empty());
        assert_eq!(sh(&tare, "cat /work/f; ls -A /work"), "oldf\n");
    }
    end(server);
}

/// A slow client holds its permit for as long as it sends.
#[test]
fn slow_transfers_leave_half_of_the_execs_to_processes() {
    let tare = tare!();
    let server = Server::start_configured(&tare, "[limits]\nexecs = 2\n");
    let created = server.post("/v1/boxes", &json!({ "name": "web" })).was(201).json();
    let id = created["id"].as_str().expect("an id");
    let length = [("Content-Length", "1000")];
    let slow = server.send("PUT", "/v1/boxes/web/files/work/f", &length, b"");
    eventually("it is being written", || !tare.workload(id).is_empty());
    get(&server, "etc/passwd").refused(503, "busy");
    server.post("/v1/boxes/web/exec", &json!({ "command": ["true"] })).was(200);
    drop(slow);
    eventually("the upload has ended", || get(&server, "etc/passwd").status == 200);
    end(server);
}

#[test]
fn uploads_are_limited_and_a_full_box_gets_507() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let config = directory.path().join("tare.toml");
    std::fs::write(&config, "[limits]\nupload_bytes = '20m'\n").expect("a file");
    let server = Server::start(&tare, &["--config", &config.display().to_string()]);
    let small = json!({ "name": "web", "limits": { "scratch_bytes": 4 << 20 } });
    server.post("/v1/boxes", &small).was(201);
    put(&server, "work/f", &vec![0; 10 << 20]).refused(507, "no_space");
    put(&server, "work/g", &vec![0; 21 << 20]).refused(413, "too_large");
    let mut stream = server.connect();
    let head = "PUT /v1/boxes/web/files/work/h HTTP/1.1\r\nHost: localhost\r\n\
                Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("it reads");
    let mut answer = Vec::new();
    stream.write_all(b"zz\r\n").ok();
    stream.read_to_end(&mut answer).ok();
    assert!(String::from_utf8_lossy(&answer).contains(" 400 "), "it is no chunk");
    assert_eq!(sh(&tare, "ls -A /work"), "");
    put(&server, "work/fits", &vec![0; 1 << 20]).was(204);
    end(server);
}

#[test]
fn a_directory_is_downloaded_and_uploaded_as_tar() {
    let tare = tare!();
    let server = with_box(&tare);
    sh(&tare, "mkdir -p /work/a/b; echo x > /work/a/b/f; ln -s f /work/a/b/l; mkdir /work/to");
    let tar = get(&server, "work/a?tar=true").was(200);
    assert_eq!(tar.header("content-type"), Some("application/x-tar"));
    let disposition = tar.header("content-disposition").expect("a name");
    assert!(disposition.contains("filename=\"a.tar\""));
    let path = "/v1/boxes/web/files/work/to?tar=true";
    server.ask("PUT", path, &[], &tar.body).refused(415, "unsupported_media_type");
    let is_tar = [("Content-Type", "application/x-tar")];
    server.ask("PUT", path, &is_tar, &tar.body).was(204);
    assert_eq!(sh(&tare, "cat /work/to/a/b/l"), "x\n");
    let garbage = server.ask("PUT", path, &is_tar, &[7; 2000]);
    garbage.refused(400, "file_error");
    let cut = server.ask("PUT", path, &is_tar, &tar.body[..700]);
    cut.refused(400, "file_error");
    let none = "/v1/boxes/web/files/work/none?tar=true";
    server.ask("PUT", none, &is_tar, &tar.body).refused(400, "not_a_directory");
    get(&server, "work/none?tar=true").refused(404, "no_such_file");
    end(server);
}

/// Sockets, fifos and unreadable files cannot be in the archive. They must not cost the others.
#[test]
fn a_directory_with_special_files_is_downloaded_without_them() {
    let tare = tare!();
    let server = with_box(&tare);
    sh(
        &tare,
        "mkdir -p /work/a/m /work/to; cd /work/a; echo first >a; echo last >z; echo x >m/f
         mkfifo fifo m/fifo; echo secret >unreadable; chmod 0 unreadable; mkdir -m 0 closed
         python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'",
    );
    let tar = get(&server, "work/a?tar=true").was(200);
    let is_tar = [("Content-Type", "application/x-tar")];
    server.ask("PUT", "/v1/boxes/web/files/work/to?tar=true", &is_tar, &tar.body).was(204);
    assert_eq!(sh(&tare, "cd /work/to/a; ls; cat a z m/f"), "a\nclosed\nm\nz\nfirst\nlast\nx\n");
    for path in ["work/a/fifo?tar=true", "work/a/sock?tar=true"] {
        get(&server, path).refused(400, "file_error");
    }
    end(server);
}

#[test]
fn kept_files_that_cannot_be_archived_are_refused_as_those_of_a_live_box() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let script = "mkdir d; echo x > d/f; mkfifo pipe; ln -s loop loop; ln -s d link";
    let request = json!({ "name": "web", "keep": true, "command": ["sh", "-c", script] });
    server.post("/v1/boxes", &request).was(201);
    server.get("/v1/boxes/web/wait").was(200);
    get(&server, "work/d?tar=true").was(200);
    let long = format!("work/{}?tar=true", "n".repeat(300));
    for (path, status, code) in [
        ("work/none?tar=true", 404, "no_such_file"),
        ("work/none/f?tar=true", 404, "no_such_file"),
        ("work/d/f/x?tar=true", 400, "not_a_directory"),
        ("work/link/f?tar=true", 400, "not_a_directory"),
        ("work/pipe?tar=true", 400, "not_a_regular_file"),
        (&long, 400, "name_too_long"),
    ] {
        get(&server, path).refused(status, code);
    }
    end(server);
}

/// A client cannot take a part for the whole.
#[test]
fn a_file_that_shrinks_during_download_ends_the_connection() {
    let tare = tare!();
    let server = with_box(&tare);
    sh(&tare, "head -c 50000000 /dev/zero > /work/large");
    let mut stream = server.send("GET", "/v1/boxes/web/files/work/large", &[], b"");
    let mut first = [0; 1000];
    stream.read_exact(&mut first).expect("it begins");
    assert!(String::from_utf8_lossy(&first).contains("content-length: 50000000"));
    sh(&tare, ": > /work/large");
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).ok();
    assert!(rest.len() < 49_000_000, "it ended early");
    server.get("/health").was(200);
    end(server);
}

/// `rm` of a box may not be there, and a tree may be deeper than any path.
#[test]
fn a_very_deep_tree_is_removed() {
    let tare = tare!();
    let server = with_box(&tare);
    let script = "import os\nos.chdir('/work')\nos.mkdir('deep')\nos.chdir('deep')\n\
                  for _ in range(3000):\n os.mkdir('d'); os.chdir('d')\n";
    tare.exec("web", ["python3", "-c", script]).ok();
    server.delete("/v1/boxes/web/files/work/deep").was(204);
    assert_eq!(sh(&tare, "ls -A /work"), "");
    end(server);
}

/// Processes of the box can stop tare's copy process, because it has the same user.
#[test]
fn a_box_that_stops_tares_copy_process_delays_no_other_request() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let config = directory.path().join("tare.toml");
    std::fs::write(&config, "[limits]\nclient = '1s'\n").expect("a file");
    let server = with_box_and(&tare, &["--config", &config.display().to_string()]);
    sh(&tare, "head -c 50000000 /dev/zero > /work/large");
    let stopper = json!({
        "command": ["sh", "-c", "while :; do kill -STOP -1; done"],
        "detach": true,
    });
    let mut stream = server.send("GET", "/v1/boxes/web/files/work/large", &[], b"");
    let mut first = [0; 100];
    stream.read_exact(&mut first).expect("it begins");
    server.post("/v1/boxes/web/exec", &stopper).was(202);
    let mut rest = Vec::new();
    let ended = stream.read_to_end(&mut rest);
    // Reset or closed, but not waited for in vain.
    let in_vain = ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
    assert!(!in_vain && rest.len() < 49_000_000, "it was cut off");
    server.get("/health").was(200);
    end(server);
}

/// The processes that pack and unpack run as the box's user, so the box can kill them.
#[test]
fn a_copy_killed_by_the_box_is_an_error_and_keeps_the_old_file() {
    let tare = tare!();
    let server = with_box(&tare);
    put(&server, "work/f", b"old").was(204);
    sh(&tare, "truncate -s 200M /work/large");
    let command = json!({ "command": ["python3", "-c", KILLER], "detach": true });
    let killer = server.post("/v1/boxes/web/exec", &command).was(202).json();
    let killer = format!("/v1/boxes/web/execs/{}", killer["id"].as_str().expect("an id"));
    let body = vec![0; 16 << 20];
    for _ in 0..5 {
        let answer = put(&server, "work/f", &body);
        assert!([400, 409].contains(&answer.status), "{answer:?}");
    }
    for path in ["work/large", "work/large?tar=true"] {
        let path = format!("/v1/boxes/web/files/{path}");
        let mut stream = server.send("GET", &path, &[("Connection", "close")], b"");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok();
        let is_whole = answer.ends_with(b"0\r\n\r\n") || answer.len() >= 200 << 20;
        let is_error = answer.starts_with(b"HTTP/1.1 4") || answer.starts_with(b"HTTP/1.1 5");
        assert!(is_error || !is_whole, "{path}");
    }
    let signal = json!({ "signal": "KILL" });
    server.post(&format!("{killer}/signal"), &signal).was(204);
    eventually("the killer is gone", || server.get(&killer).json()["state"] != "running");
    assert_eq!(sh(&tare, "cat /work/f; ls -A /work"), "oldf\nlarge\n");
    put(&server, "work/f", b"new").was(204);
    end(server);
}

/// The keeper is stopped, as an operator or a debugger can do.
#[test]
fn a_box_that_does_not_answer_gets_503_for_its_files() {
    let tare = tare!();
    let server = with_box(&tare);
    put(&server, "work/a", b"old").was(204);
    let id = server.get("/v1/boxes/web").was(200).json()["id"].clone();
    let keeper = tare.keeper(id.as_str().expect("an id"));
    keeper.signal(Signal::STOP);
    let began = Instant::now();
    let answers = std::thread::scope(|scope| {
        let calls = [
            scope.spawn(|| get(&server, "work/a")),
            scope.spawn(|| get(&server, "work?tar=true")),
            scope.spawn(|| put(&server, "work/a", b"new")),
        ];
        calls.map(|call| call.join().expect("it does not panic"))
    });
    let lasted = began.elapsed();
    keeper.signal(Signal::CONT);
    for answer in answers {
        let answer = answer.refused(503, "no_answer");
        assert!(answer.text().contains("its keeper is stopped"), "{answer:?}");
    }
    assert!(lasted < Duration::from_secs(15), "{lasted:?}");
    assert_eq!(get(&server, "work/a").was(200).body, b"old");
    end(server);
}
