//! The leak catalogue for LibreChat's API: failures that other sandboxes shipped.

use std::fs;

use rustix::process::Signal;
use serde_json::json;
use tare_harness::{Server, Signer, Tare, TemporaryDirectory, eventually, jwks, tare};

use crate::librechat::client::{Chat, text};
use crate::librechat::identity::KEY;

const HINT: &str = "v2:user:0123456789abcdef0123456789abcdef";

/// The keeper counts beside the processes of the box.
const KEEPER: u64 = 1;

fn listed(tare: &Tare) -> String {
    tare.call(["ls", "-a", "-q"]).ok().stdout_text()
}

/// Case I20 of docs/leaks.md, over LibreChat's API.
#[test]
fn boxes_of_a_disconnected_client_are_removed() {
    let tare = tare!();
    let config = "[librechat.boxes]\nsession_idle = '1s'\n";
    let chat = Chat::configured(&tare, "", config);
    let slow = json!({ "lang": "bash", "code": "sleep 1000 & sleep 1000" }).to_string();
    let json_type = [("Content-Type", "application/json")];
    let client = chat.server.send("POST", "/v1/exec", &json_type, slow.as_bytes());
    eventually("there is a box", || !listed(&tare).is_empty());
    drop(client);
    eventually("there is no box", || tare.footprint().records.is_empty());
    // A session outlives its client, and ends by its lease.
    chat.exec(json!({ "lang": "bash", "code": "sleep 1000 &", "runtime_session_hint": HINT }));
    eventually("there is no box", || tare.footprint().records.is_empty());
    assert_eq!(listed(&tare), "");
    chat.stop(&tare);
}

/// Case D9 of docs/leaks.md, over LibreChat's API.
#[test]
fn the_default_limits_stop_a_self_starting_shell() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let bomb = "echo 'sh $0 & sh $0 & wait' > /tmp/itself; exec sh /tmp/itself";
    let answer = chat.exec(json!({ "lang": "bash", "code": bomb, "timeout": 2000 }));
    assert!(text(&answer["stderr"]).contains("Cannot fork"), "{answer}");
    let left = tare.footprint();
    assert!(left.records.is_empty() && left.cgroups.is_empty(), "{left:?}");
    chat.exec(json!({ "lang": "bash", "code": "true", "runtime_session_hint": HINT }));
    let cgroups = tare.cgroups_of(listed(&tare).trim());
    let limit = |names: &[&str]| {
        let files = cgroups.iter().flat_map(|path| names.iter().map(move |name| path.join(name)));
        let values = files.filter_map(|path| fs::read_to_string(path).ok()?.trim().parse().ok());
        values.min()
    };
    let memory = limit(&["memory.max", "memory.limit_in_bytes"]);
    assert_eq!((limit(&["pids.max"]), memory), (Some(256 + KEEPER), Some(1u64 << 30)));
    chat.stop(&tare);
}

/// The key that made the box is not in its file any more.
#[track_caller]
fn key_is_gone_and_its_box_is_cared_for(tare: &Tare, server: &Server, who: (&str, &str)) {
    let id = listed(tare).trim().to_owned();
    let body = json!({ "lang": "bash", "code": "true", "runtime_session_hint": HINT }).to_string();
    let headers = [("Content-Type", "application/json"), who];
    eventually("the key is refused", || {
        server.ask("POST", "/v1/exec", &headers, body.as_bytes()).status == 401
    });
    assert_eq!(tare.state(&id), "running");
    let before = server.vitals_at_rest();
    tare.remove(&id);
    eventually("the server does not watch it any more", || {
        server.vitals().descriptors < before.descriptors
    });
    assert_eq!(listed(tare), "");
    idles(server);
}

/// Processor time in ticks of 10 ms.
fn ticks(server: &Server) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", server.pid())).expect("it lives");
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    let times = fields.split_whitespace().skip(11).take(2);
    times.map(|field| field.parse::<u64>().expect("a number")).sum()
}

/// No busy loop: in a second of real time the server uses less than half of it.
#[track_caller]
fn idles(server: &Server) {
    let before = ticks(server);
    tare_harness::let_pass(std::time::Duration::from_secs(1));
    assert!(ticks(server) - before < 50);
}

/// Another service could no longer remove machines whose key was gone.
#[test]
fn boxes_of_a_removed_api_key_can_be_removed() {
    let tare = tare!();
    let chat = Chat::configured(&tare, "", KEY);
    let who = ("X-API-Key", "native-key");
    let body = json!({ "lang": "bash", "code": "true", "runtime_session_hint": HINT }).to_string();
    let headers = [("Content-Type", "application/json"), who];
    chat.server.ask("POST", "/v1/exec", &headers, body.as_bytes()).was(200);
    let config = fs::read_to_string(chat.configuration()).expect("a file");
    let other = config.replace("native", "another").replace("e9f03e16", "00000000");
    fs::write(chat.configuration(), other).expect("a file");
    chat.server.signal(Signal::HUP);
    key_is_gone_and_its_box_is_cared_for(&tare, &chat.server, who);
    chat.server.stop().ok();
}

/// Another service could no longer remove machines whose key was gone.
#[test]
fn boxes_of_a_removed_token_key_can_be_removed() {
    let tare = tare!();
    let (old, new) = (Signer::ed25519("old", 1), Signer::ed25519("new", 2));
    let directory = TemporaryDirectory::new();
    let keys = directory.write("jwks.json", jwks(&[&old]));
    let section = format!("[librechat.jwt]\nkeys = '{}'\n", keys.display());
    let chat = Chat::configured(&tare, "", &section);
    let bearer = format!("Bearer {}", old.token("ann"));
    let who = ("Authorization", bearer.as_str());
    let body = json!({ "lang": "bash", "code": "true", "runtime_session_hint": HINT }).to_string();
    let headers = [("Content-Type", "application/json"), who];
    chat.server.ask("POST", "/v1/exec", &headers, body.as_bytes()).was(200);
    fs::write(&keys, jwks(&[&new])).expect("a file");
    chat.server.signal(Signal::HUP);
    key_is_gone_and_its_box_is_cared_for(&tare, &chat.server, who);
    chat.server.stop().ok();
}
