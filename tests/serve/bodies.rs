//! Requests and responses share one memory budget, and the memory returns to the system.

use std::fs;
use std::io::{Read, Write};
use std::thread;

use serde_json::json;
use tare_harness::{Answer, Server, TemporaryDirectory, eventually, tare};

const MIB: u64 = 1 << 20;
/// Memory of a server beside bodies: threads, connection buffers, heap.
const SLACK_BYTES: u64 = 48 * MIB;
/// Memory that may stay, because the heap is fragmented.
const STAYS_BYTES: u64 = 16 * MIB;

/// A value of `/metrics`.
#[track_caller]
fn metric(server: &Server, name: &str) -> u64 {
    let text = server.get("/metrics").was(200).text();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let value = line.and_then(|rest| rest.trim().parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in {text}"))
}

fn held(server: &Server) -> u64 {
    metric(server, "tare_bodies_bytes ")
}

/// The most that was resident since [`forget_peak`].
#[track_caller]
fn peak_bytes(server: &Server) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.expect("the kernel counts it") << 10
}

fn forget_peak(server: &Server) {
    // proc_pid_clear_refs(5): 5 is the peak.
    fs::write(format!("/proc/{}/clear_refs", server.pid()), "5").expect("it lives");
}

/// Sends one body, and says how far the memory rose above what it was, and stayed.
#[track_caller]
fn sent(server: &Server, path: &str, body: &str) -> (Answer, u64) {
    forget_peak(server);
    let before = server.vitals().resident_bytes;
    let json = [("Content-Type", "application/json")];
    let answer = server.ask("POST", path, &json, body.as_bytes());
    let rose = peak_bytes(server).saturating_sub(before);
    eventually("the memory is back", || server.vitals().resident_bytes <= before + STAYS_BYTES);
    (answer, rose)
}

/// A request for a process with this many bytes of input.
fn reading(stdin_bytes: usize) -> String {
    let stdin = "x".repeat(stdin_bytes);
    format!("{{\"command\":[\"wc\",\"-c\"],\"stdin\":\"{stdin}\",\"timeout_ms\":60000}}")
}

fn run(server: &Server, body: &str) -> Answer {
    let json = [("Content-Type", "application/json")];
    server.ask("POST", "/v1/run", &json, body.as_bytes())
}

#[test]
fn a_body_beyond_the_budget_gets_503_and_small_ones_are_served() {
    let tare = tare!();
    let server = Server::start_configured(&tare, "[limits]\nbodies_bytes = '64m'\n");
    let large = reading(20 << 20);
    let (all_but_one, last) = large.as_bytes().split_at(large.len() - 1);
    let mut holder = server.connect();
    let head = format!(
        "POST /v1/run HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        large.len()
    );
    holder.write_all(head.as_bytes()).expect("it reads");
    holder.write_all(all_but_one).expect("it reads");
    eventually("the first body is held", || held(&server) >= 40 * MIB);
    let refused = run(&server, &reading(20 << 20)).refused(503, "bodies_full");
    assert!(refused.header("retry-after").is_some());
    assert!(refused.text().contains("bodies_bytes"), "{}", refused.text());
    run(&server, &reading(100)).was(200);
    holder.write_all(last).expect("it reads");
    let mut answer = Vec::new();
    holder.read_to_end(&mut answer).expect("an answer");
    let ran = Answer::parse(&answer).was(200).json();
    assert_eq!(ran["stdout"], format!("{}\n", 20 << 20));
    eventually("nothing is held", || held(&server) == 0);
    run(&server, &reading(20 << 20)).was(200);
    server.stop().ok();
}

#[test]
fn many_large_bodies_stay_within_the_budget_and_their_memory_returns() {
    let tare = tare!();
    let server = Server::start_configured(&tare, "[limits]\nbodies_bytes = '64m'\n");
    run(&server, &reading(1)).was(200);
    let before = server.vitals().resident_bytes;
    forget_peak(&server);
    let body = reading(8 << 20);
    let statuses: Vec<u16> = thread::scope(|scope| {
        let post = || run(&server, &body).status;
        let sent: Vec<_> = (0..24).map(|_| scope.spawn(post)).collect();
        sent.into_iter().map(|one| one.join().expect("an answer")).collect()
    });
    assert!(statuses.contains(&200), "{statuses:?}");
    assert!(statuses.contains(&503), "{statuses:?}");
    assert!(statuses.iter().all(|status| [200, 503].contains(status)));
    let rose = peak_bytes(&server).saturating_sub(before);
    assert!(rose <= 64 * MIB + SLACK_BYTES, "{rose} bytes at the peak");
    eventually("nothing is held", || held(&server) == 0);
    eventually("the memory is back", || server.vitals().resident_bytes <= before + STAYS_BYTES);
    server.stop().ok();
}

/// A list or an object of many small values takes many times its bytes once it is parsed.
#[test]
fn a_body_of_many_values_is_refused_before_it_is_parsed() {
    let tare = tare!();
    let server = Server::start_configured(&tare, "[limits]\nbodies_bytes = '64m'\n");
    run(&server, &reading(1)).was(200);
    let words = vec!["\"a\""; (8 << 20) / 4].join(",");
    let command = format!("{{\"command\":[{words}]}}");
    let variables: Vec<String> = (0..500_000).map(|n| format!("\"{n:x}\":\"\"")).collect();
    let env = variables.join(",");
    let env = format!("{{\"command\":[\"true\"],\"env\":{{{env}}}}}");
    let args = format!("{{\"lang\":\"bash\",\"code\":\":\",\"args\":[{words}]}}");
    for (path, body) in
        [("/v1/run", &command), ("/v1/boxes", &command), ("/v1/run", &env), ("/v1/exec", &args)]
    {
        let (answer, rose) = sent(&server, path, body);
        assert_eq!(answer.status, 413, "{path}: {}", answer.text());
        assert!(rose <= 16 * MIB + SLACK_BYTES, "{path}: {rose} bytes");
    }
    let word = format!("{{\"command\":[\"{}\"]}}", "x".repeat(28 << 20));
    let (answer, rose) = sent(&server, "/v1/run", &word);
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert!(rose <= 56 * MIB + SLACK_BYTES, "{rose} bytes");
    server.stop().ok();
}

/// Small values live in the heap, which does not return to the system if one of them stays. So
/// parsing stops at a bound.
#[test]
fn the_memory_of_a_body_of_many_values_returns() {
    let tare = tare!();
    let server = Server::start_configured(&tare, "[limits]\nbodies_bytes = '512m'\n");
    run(&server, &reading(1)).was(200);
    const VALUES: usize = 300_000;
    let words = vec!["\"a\""; VALUES].join(",");
    let variables: Vec<String> = (0..VALUES).map(|n| format!("\"{n:x}\":\"\"")).collect();
    let variables = variables.join(",");
    let files = vec!["{\"path\":\"a\",\"content\":\"\"}"; VALUES / 3].join(",");
    for (path, body) in [
        ("/v1/run", format!("{{\"command\":[{words}]}}")),
        ("/v1/run", format!("{{\"command\":[\"true\"],\"env\":{{{variables}}}}}")),
        ("/v1/run", format!("{{\"command\":[\"true\"],\"files\":[{files}]}}")),
        ("/v1/boxes", format!("{{\"labels\":{{{variables}}}}}")),
        ("/v1/exec", format!("{{\"lang\":\"bash\",\"code\":\":\",\"args\":[{words}]}}")),
    ] {
        let (answer, rose) = sent(&server, path, &body);
        assert_eq!(answer.status, 400, "{path}: {}", answer.text());
        assert!(answer.text().contains("at most"), "{path}: {}", answer.text());
        assert!(rose <= SLACK_BYTES, "{path}: {rose} bytes");
    }
    server.stop().ok();
}

/// The input of a detached process outlives the request that it came with.
#[test]
fn the_input_of_a_detached_process_is_charged_until_it_is_read() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    server.post("/v1/boxes", &json!({ "name": "web" })).was(201);
    let idle = json!({
        "command": ["sleep", "1000"], "stdin": "x".repeat(10 << 20), "detach": true,
    });
    server.post("/v1/boxes/web/exec", &idle).was(202);
    assert!(held(&server) >= 10 * MIB);
    let reads = json!({
        "command": ["sh", "-c", "wc -c; sleep 1000"], "stdin": "x".repeat(10 << 20),
        "detach": true,
    });
    server.post("/v1/boxes/web/exec", &reads).was(202);
    eventually("what was read is not held", || held(&server) < 30 * MIB);
    assert!(held(&server) >= 10 * MIB);
    server.delete("/v1/boxes/web?force=true").was(204);
    eventually("nothing is held", || held(&server) == 0);
    server.stop().ok();
}

/// Sends requests whose responses nobody reads. Returns how far the memory rose.
#[track_caller]
fn unread(server: &Server, clients: usize, method: &str, path: &str, body: &str) -> u64 {
    forget_peak(server);
    let before = server.vitals().resident_bytes;
    let done_before = done(server, path);
    let json = [("Content-Type", "application/json")];
    let clients: Vec<_> =
        (0..clients).map(|_| server.send(method, path, &json, body.as_bytes())).collect();
    eventually("all are answered", || done(server, path) >= done_before + clients.len());
    let rose = peak_bytes(server).saturating_sub(before);
    drop(clients);
    eventually("nothing is held", || held(server) == 0);
    rose
}

/// How many requests of this path are over.
fn done(server: &Server, path: &str) -> usize {
    let named = format!("path={path:?}");
    server.log().lines().filter(|line| line.contains(&named)).count()
}

/// A control character takes six bytes in JSON.
const CONTROL: &str = "head -c 1000000 /dev/zero | tr '\\0' '\\1' | tee /dev/stderr";

#[test]
fn unread_responses_stay_within_the_budget() {
    let tare = tare!();
    let server = Server::start_configured(&tare, "[limits]\nbodies_bytes = '64m'\n");
    server.post("/v1/boxes", &json!({ "name": "web" })).was(201);
    let command = json!({ "command": ["sh", "-c", CONTROL] });
    for path in ["/v1/run", "/v1/boxes/web/exec"] {
        server.post(path, &command).was(200);
        let before = server.vitals().resident_bytes;
        let rose = unread(&server, 24, "POST", path, &command.to_string());
        assert!(rose <= 64 * MIB + SLACK_BYTES, "{path}: {rose} bytes at the peak");
        let most = before + STAYS_BYTES;
        eventually("the memory is back", || server.vitals().resident_bytes <= most);
    }
    let log = server.log();
    assert!(log.contains("code=\"bodies_full\""), "{log}");
    server.delete("/v1/boxes/web?force=true").was(204);
    server.stop().ok();
}

#[test]
fn a_response_is_held_until_it_is_read_and_others_get_503() {
    let tare = tare!();
    let server = Server::start_configured(&tare, "[limits]\nbodies_bytes = '24m'\n");
    let body = json!({ "command": ["sh", "-c", CONTROL] }).to_string();
    let json = [("Content-Type", "application/json")];
    let mut first = server.send("POST", "/v1/run", &json, body.as_bytes());
    eventually("the response is held", || held(&server) >= 11 * MIB);
    let refused = run(&server, &body).refused(503, "bodies_full");
    assert!(refused.header("retry-after").is_some());
    // The server kills a run whose output it cannot hold.
    let loud = "head -c 8000000 /dev/zero | tr '\\0' x | tee /dev/stderr";
    let loud = json!({ "command": ["sh", "-c", loud] }).to_string();
    let error = run(&server, &loud).refused(503, "bodies_full").json()["error"].clone();
    let explained = tare.json(["explain", "--json", error["box_id"].as_str().expect("an id")]);
    for answer in [&error, &explained] {
        assert_eq!(answer["cause"], "killed", "{answer}");
        let sentence = answer["sentence"].as_str().expect("a text");
        assert!(sentence.starts_with("Killed by tare: server busy"), "{answer}");
    }
    run(&server, &reading(100)).was(200);
    let mut answer = vec![0; 12_000_000];
    first.read_exact(&mut answer).expect("the first response");
    eventually("nothing is held", || held(&server) == 0);
    run(&server, &body).was(200);
    server.stop().ok();
}

#[test]
fn responses_that_one_key_does_not_read_leave_memory_to_other_keys() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let keys = directory.write("keys", "first-key\nadmin:second-key\n").display().to_string();
    let config = directory.write("tare.toml", "[limits]\nbodies_bytes = '32m'\n");
    let config = config.display().to_string();
    let server = Server::start(&tare, &["--config", &config, "--api-key-file", &keys]);
    // The response has 6 MB: the command writes 1 MB that takes six times as much in JSON.
    let command = "head -c 1000000 /dev/zero | tr '\\0' '\\1'";
    let body = json!({ "command": ["sh", "-c", command] }).to_string();
    let headers = |key| [("Content-Type", "application/json"), ("X-API-Key", key)];
    let send = |key| server.send("POST", "/v1/run", &headers(key), body.as_bytes());
    let unread = [(); 2].map(|()| send("first-key"));
    eventually("two responses are held", || done(&server, "/v1/run") == 2);
    let post = |key| server.ask("POST", "/v1/run", &headers(key), body.as_bytes());
    let refused = post("first-key").refused(429, "quota_bodies");
    assert!(refused.header("retry-after").is_some());
    post("second-key").was(200);
    drop(unread);
    eventually("the first key has memory again", || post("first-key").status == 200);
    server.stop().ok();
}

#[test]
fn a_list_of_boxes_with_long_commands_is_small() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let mut command = vec!["sleep".to_owned(), "1000".to_owned()];
    command.extend(vec!["0".repeat(100_000); 9]);
    let request = json!({ "command": &command }).to_string();
    let json = [("Content-Type", "application/json")];
    for _box in 0..8 {
        server.ask("POST", "/v1/boxes", &json, request.as_bytes()).was(201);
    }
    let boxes = server.get("/v1/boxes").was(200).json()["boxes"].clone();
    let shown = boxes[0]["command"].as_array().expect("a list").clone();
    assert_eq!(shown[..2], ["sleep", "1000"].map(serde_json::Value::from));
    let last = shown.last().and_then(|last| last.as_str()).expect("a text");
    assert!(last.len() <= 4096 && last.ends_with("0…"), "{last}");
    let whole = server.get(&format!("/v1/boxes/{}", boxes[0]["id"].as_str().expect("an id")));
    assert_eq!(whole.was(200).json()["command"], json!(command));
    let rose = unread(&server, 30, "GET", "/v1/boxes", "");
    assert!(rose <= SLACK_BYTES, "{rose} bytes at the peak");
    for one in boxes.as_array().expect("a list") {
        let id = one["id"].as_str().expect("an id");
        server.delete(&format!("/v1/boxes/{id}?force=true")).was(204);
    }
    server.stop().ok();
}
