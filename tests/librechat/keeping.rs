//! Files outlive the server and expire on time.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use serde_json::json;
use tare_harness::random::{number_in, shown_seed};
use tare_harness::{Answer, Random, Server, eventually, eventually_within, tare};

use crate::librechat::client::{BOUNDARY, Chat, Form, reference};

const USER: &str = "kind=user&id=u1";
/// How often it is killed; more by the environment.
const KILLS: u64 = 5;
/// The server is killed after at most this many answers, plus some microseconds.
const ANSWERS_MAX: u64 = 8;
const LATER_US: u64 = 20_000;
const CLIENTS: u64 = 4;
/// Much longer than two sweeps, which are 30 seconds apart.
const PATIENT: Duration = Duration::from_secs(200);

fn stop(server: Server) {
    server.stop().ok();
}

#[test]
fn a_server_without_files_creates_no_directory() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    eventually("it has looked at what was there", || {
        chat.server.get("/health").json()["recovery"]["done"] == true
    });
    chat.server.get(&format!("/v1/files/{}", "a".repeat(21))).was(200);
    chat.server.delete(&format!("/v1/files/{0}/{0}", "a".repeat(21))).was(404);
    assert!(!chat.store().exists());
    chat.server.stop().ok();
}

#[test]
fn audit_counts_files_that_stay_without_a_server_and_calls_them_no_difference() {
    let tare = tare!();
    assert_eq!(tare.json(["audit", "--json"])["kept_files"], json!(null));
    let chat = Chat::in_state_root(&tare);
    chat.sent("a.txt", b"12345");
    chat.sent("b.txt", b"6789");
    let over_http = chat.server.get("/v1/audit").was(200).json();
    chat.server.stop().ok();
    let audit = tare.json(["audit", "--json"]);
    let kept = &audit["kept_files"];
    let directory = tare.state_root().join("files");
    assert_eq!((&kept["files"], &kept["bytes"]), (&json!(2), &json!(9)), "{audit}");
    assert_eq!(kept["directory"], directory.to_str().expect("text"), "{audit}");
    assert_eq!((&over_http["kept_files"], &over_http["clean"]), (kept, &json!(true)));
    let text = tare.call(["audit"]).ok().stdout_text();
    assert!(text.contains("Kept for clients of 'tare serve': 2 files, 9 bytes, in "), "{text}");
    assert!(text.ends_with("nothing is left over, nothing is missing.\n"), "{text}");
    std::fs::remove_dir_all(directory).expect("the state root is ours");
}

#[test]
fn files_survive_a_restart_and_expire_on_time() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let sent = chat.sent("a.txt", b"still there");
    let chat = chat.after(&tare, stop, "");
    let path = format!("/v1/download/{sent}?{USER}");
    assert_eq!(chat.server.get(&path).was(200).body, b"still there");
    let chat = chat.after(&tare, stop, "ttl = '1ms'");
    eventually("they are swept", || chat.stored() == 0);
    chat.server.get(&path).was(404);
    chat.server.stop().ok();
}

#[test]
fn expiry_continues_after_a_sweep_ran_out_of_descriptors() {
    let tare = tare!();
    let chat = Chat::configured(&tare, "ttl = '2s'", "");
    let sent = chat.sent("a.txt", b"old");
    let path = format!("/v1/download/{sent}?{USER}");
    let (session, id) = sent.split_once('/').expect("two ids");
    // Long before the first sweep.
    eventually("it is not served", || chat.server.get(&path).status == 404);
    let list = format!("/v1/files/{session}?{USER}");
    assert_eq!(chat.server.get(&list).was(200).json(), json!([]));
    let reference = json!([{ "id": id, "storage_session_id": session, "name": "a.txt" }]);
    let exec = json!({ "lang": "bash", "code": "cat a.txt", "files": reference });
    let refused = chat.server.post("/v1/exec", &exec).was(422).json();
    assert_eq!(refused["error"], "session_input_unavailable");
    assert!(chat.stored() > 0, "the sweep is still to come");
    let before = descriptors_max(&chat.server, Some(1));
    eventually_within(PATIENT, "a sweep failed", || chat.server.log().contains("files_not_swept"));
    descriptors_max(&chat.server, before);
    eventually_within(PATIENT, "the next sweep removed it", || chat.stored() == 0);
    chat.server.stop().ok();
}

/// Sets the soft limit of the server's descriptors, and returns the one before.
fn descriptors_max(server: &Server, most: Option<u64>) -> Option<u64> {
    let pid = i32::try_from(server.pid()).ok().and_then(Pid::from_raw);
    let now = prlimit(pid, Resource::Nofile, Rlimit { current: most, maximum: maximum(server) });
    now.expect("it is ours").current
}

fn maximum(server: &Server) -> Option<u64> {
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid()));
    let limits = limits.expect("it lives");
    let line = limits.lines().find(|line| line.starts_with("Max open files"));
    line.and_then(|line| line.split_whitespace().nth(4)?.parse().ok())
}

#[test]
fn two_servers_cannot_use_one_file_directory() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let sent = chat.sent("a.txt", b"mine");
    let second = chat.beside(&tare);
    let path = format!("/v1/download/{sent}?{USER}");
    let refused = second.get(&path).was(503).json();
    let said = refused["error"].as_str().expect("a sentence");
    assert!(said.contains("another server uses the directory"), "{refused}");
    assert_eq!(chat.server.get(&path).was(200).body, b"mine");
    chat.server.kill();
    assert_eq!(second.get(&path).was(200).body, b"mine", "it is the only one now");
    second.stop().ok();
}

#[test]
fn a_reload_changes_file_limits_but_not_the_directory() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let sent = chat.sent("a.txt", b"x");
    let text = "[files]\ndirectory = '/nowhere/at/all'\nfile_bytes = '10'\n";
    std::fs::write(chat.configuration(), text).expect("a file");
    chat.server.signal(Signal::HUP);
    eventually("it is read again", || chat.server.log().contains("reloaded"));
    let large = chat.upload(Form::default().file("a", &[0; 11])).was(413);
    assert_eq!(large.json()["error"], "File size limit exceeded");
    chat.upload(Form::default().file("a", &[0; 10])).was(200);
    chat.server.get(&format!("/v1/download/{sent}?{USER}")).was(200);
    chat.server.stop().ok();
}

/// Every acknowledged file exists and is complete. Other files exist completely or not at all.
#[test]
fn a_server_killed_at_any_moment_keeps_every_acknowledged_file() {
    let tare = tare!();
    let mut random = Random::seeded(shown_seed("TARE_SERVE_SEED"));
    let mut chat = Chat::start(&tare);
    let mut answered = 0;
    for _kill in 0..number_in("TARE_SERVE_KILLS").unwrap_or(KILLS) {
        let address = chat.server.address();
        let (answers, later) = (1 + random.below(ANSWERS_MAX), random.below(LATER_US));
        let answers_now = &AtomicU64::new(0);
        let (next, sent) = std::thread::scope(|threads| {
            let client = |number| move || send_until_dead(address, number, answers_now);
            let clients: Vec<_> = (0..CLIENTS).map(|it| threads.spawn(client(it))).collect();
            let kill = |server: Server| {
                eventually_within(PATIENT, "it answers", || {
                    answers_now.load(Ordering::Relaxed) >= answers
                });
                tare_harness::let_pass(Duration::from_micros(later));
                server.kill();
            };
            let next = chat.after(&tare, kill, "");
            let joined = clients.into_iter().map(|client| client.join());
            let sent: Vec<_> = joined.flat_map(|sent| sent.expect("it has said why")).collect();
            (next, sent)
        });
        chat = next;
        answered += sent.len();
        for (reference, content) in &sent {
            let path = format!("/v1/files/{reference}?{USER}");
            let got = chat.server.get(&path.replace("files", "download")).was(200).body;
            assert!(got == *content, "every byte of {reference}");
        }
        let incoming = std::fs::read_dir(chat.store().join("incoming"));
        let incoming = incoming.map_or(0, |entries| entries.count());
        assert!(sent.is_empty() || incoming == 0, "what was coming is gone");
    }
    assert!(answered > 0, "it has answered before each kill");
    let last = chat.sent("last.txt", b"x");
    chat.server.get(&format!("/v1/download/{last}?{USER}")).was(200);
    chat.server.stop().ok();
}

fn send_until_dead(
    address: SocketAddr,
    client: u64,
    answers: &AtomicU64,
) -> Vec<(String, Vec<u8>)> {
    let mut sent = Vec::new();
    for round in 0.. {
        let content = format!("{client} {round} ").repeat(20_000).into_bytes();
        match send(address, &content) {
            Some(reference) => {
                sent.push((reference, content));
                answers.fetch_add(1, Ordering::Relaxed);
            }
            None => break,
        }
    }
    sent
}

/// `None`: it is dead, or did not live to answer.
fn send(address: SocketAddr, content: &[u8]) -> Option<String> {
    let body = Form::of_user("u1").file("a.bin", content).end();
    let head = format!(
        "POST /v1/upload HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Length: {}\r\nContent-Type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(&body).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let is_whole = answer.ends_with(b"}");
    is_whole.then(|| reference(&Answer::parse(&answer).was(200).json()))
}

#[test]
fn a_server_with_its_own_state_root_has_its_own_files() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let request = json!({ "lang": "bash", "code": "echo x > out.txt" });
    let answer = server.post("/v1/exec", &request).was(200).json();
    assert_eq!(answer["files"][0]["name"], "out.txt", "{answer}");
    server.stop().ok();
    assert!(tare.state_root().join("files/sessions").is_dir());
    tare.call(["audit"]).ok();
    tare.call(["sweep"]).ok();
    // They are the operator's, for a day.
    std::fs::remove_dir_all(tare.state_root().join("files")).expect("it is there");
}
