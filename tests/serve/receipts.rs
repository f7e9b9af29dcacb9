//! Receipts over HTTP agree with the host, belong to their key, and outlive the server.

use std::io::Read;

use serde_json::{Value, json};
use tare_harness::skip::is_root;
use tare_harness::{Answer, Server, Tare, TemporaryDirectory, eventually, tare};

use crate::receipts::{HostLook, boot_ns, item};
use crate::serve::clones::{CLONES, code, in_clone, processes_of, until_full};
use crate::serve::configured;
use crate::serve::quotas::sha256;

fn created(server: &Server, tare: &Tare, name: &str) -> (String, HostLook) {
    let script = "sleep 1000 & echo ready; wait";
    let body = json!({"name": name, "command": ["sh", "-c", script]});
    let made = server.post("/v1/boxes", &body).was(201).json();
    let id = made["id"].as_str().expect("an id").to_owned();
    tare.logged(&id, "ready");
    let look = HostLook::at(tare, &id);
    (id, look)
}

#[test]
fn delete_responds_with_a_receipt_that_agrees_with_the_host() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let before = boot_ns();
    let (id, look) = created(&server, &tare, "web");
    server.get(&format!("/v1/boxes/{id}/receipt")).was(409);
    let receipt = server.delete(&format!("/v1/boxes/{id}?force=true&receipt=true")).was(200).json();
    look.agrees(&tare, &receipt, before);
    look.is_gone(&tare);
    let again = server.get(&format!("/v1/boxes/{id}/receipt")).was(200).json();
    assert_eq!(again, receipt);
    // Without the query, the response is as before, and the receipt is kept all the same.
    let (other, _) = created(&server, &tare, "web");
    server.delete(&format!("/v1/boxes/{other}?force=true")).was(204);
    let kept = server.get(&format!("/v1/boxes/{other}/receipt")).was(200).json();
    assert_eq!(kept["complete"], true, "{kept}");
    server.stop().ok();
    let server = Server::start(&tare, &[]);
    assert_eq!(server.get(&format!("/v1/boxes/{id}/receipt")).was(200).json(), receipt);
    assert_eq!(tare.json(["receipt", &id, "--json"]), receipt);
    server.get("/v1/boxes/nothing/receipt").was(404);
    server.stop().ok();
}

#[test]
fn a_run_has_a_receipt_if_the_request_asks_for_one() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let before = boot_ns();
    let bodies = [
        json!({"command": ["true"], "receipt": true}),
        json!({"command": ["cat", "a"], "receipt": true, "files": [{"path": "a", "content": "x"}]}),
        json!({"command": ["sleep", "1000"], "receipt": true, "timeout_ms": 300}),
    ];
    for body in bodies {
        let result = server.post("/v1/run", &body).was(200).json();
        let receipt = &result["receipt"];
        assert_eq!(receipt["complete"], true, "{result}");
        assert_eq!(receipt["id"], result["id"], "{result}");
        let pid = item(receipt, "keeper")["what"][0].as_str().expect("a pid").to_owned();
        let process = format!("/proc/{}", pid.trim_start_matches("pid "));
        assert!(!std::path::Path::new(&process).exists(), "{process}");
        for path in item(receipt, "cgroup")["what"].as_array().into_iter().flatten() {
            assert!(!std::path::Path::new(path.as_str().unwrap()).exists(), "{path}");
        }
        for held in receipt["held"].as_array().expect("an array") {
            let seen = held["gone"]["boot_ns"].as_u64();
            assert!(seen.is_none_or(|seen| (before..boot_ns()).contains(&seen)), "{held}");
        }
        assert_eq!(tare.uid_claims(), 0);
        let id = result["id"].as_str().expect("an id");
        assert_eq!(server.get(&format!("/v1/boxes/{id}/receipt")).was(200).json(), *receipt);
    }
    let result = server.post("/v1/run", &json!({"command": ["true"]})).was(200).json();
    assert_eq!(result["receipt"], Value::Null);
    let id = result["id"].as_str().expect("an id");
    server.get(&format!("/v1/boxes/{id}/receipt")).was(404);
    server.stop().ok();
}

#[test]
fn the_receipt_of_a_run_names_its_command_however_its_box_was_made() {
    let tare = tare!();
    let server = Server::start_configured(&tare, CLONES);
    let sleep = "import time; time.sleep(1000)";
    let mut requests = vec![
        json!({ "command": ["python3", "-c", sleep] }),
        json!({ "command": ["python3", "a"], "files": [{ "path": "a", "content": sleep }] }),
    ];
    if is_root() {
        in_clone(&server, &code("pass"));
        until_full(&server, 2);
        requests.push(code(sleep));
    }
    for mut body in requests {
        (body["receipt"], body["timeout_ms"]) = (json!(true), json!(10_000));
        let headers = [("Content-Type", "application/json")];
        let mut stream = server.send("POST", "/v1/run", &headers, body.to_string().as_bytes());
        let pids = |id: &str| {
            let all = processes_of(id).into_iter().filter(|it| it.name.starts_with("python"));
            all.map(|it| format!("pid {}", it.pid)).collect::<Vec<_>>()
        };
        let mut seen = Vec::new();
        eventually("its command runs", || {
            let running = tare.list().into_iter().filter(|it| it["state"] == "running");
            let ids = running.filter_map(|it| it["id"].as_str().map(str::to_owned));
            seen = ids.map(|id| (pids(&id), id)).filter(|(pids, _)| !pids.is_empty()).collect();
            !seen.is_empty()
        });
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        let result = Answer::parse(&answer).was(200).json();
        let (pids, _) = seen.iter().find(|(_, id)| result["id"] == **id).expect("it was seen");
        assert_eq!(item(&result["receipt"], "process")["what"], json!(pids), "{result}");
    }
    server.stop().ok();
}

#[test]
fn a_run_of_a_server_that_was_killed_has_a_receipt_after_the_next_sweep() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let before = boot_ns();
    let body = json!({"command": ["sleep", "1000"]}).to_string();
    let headers = [("Content-Type", "application/json")];
    let _request = server.send("POST", "/v1/run", &headers, body.as_bytes());
    eventually("the run is there", || tare.list().iter().any(|it| it["state"] == "running"));
    let id = tare.list()[0]["id"].as_str().expect("an id").to_owned();
    eventually("the command runs", || tare.workload(&id).len() == 1);
    let look = HostLook::at(&tare, &id);
    server.kill();
    eventually("it is removed", || {
        tare.call(["sweep"]);
        !tare.record(&id).exists()
    });
    let receipt = tare.json(["receipt", &id, "--json"]);
    assert_eq!(receipt["why"], "abandoned", "{receipt}");
    look.agrees_after_the_end(&tare, &receipt, before);
    look.is_gone(&tare);
}

#[test]
fn a_receipt_belongs_to_its_key() {
    let tare = tare!();
    let key = |name: &str, more: &str| {
        format!("[[keys]]\nname = '{name}'\nsha256 = '{}'\n{more}\n", sha256(name))
    };
    let keys = key("ci", "") + &key("desk", "") + &key("ops", "admin = true");
    let (_directory, config) = configured(&keys);
    let server = Server::start(&tare, &["--config", &config]);
    let ask = |key: &str, method: &str, path: &str, body: &str| {
        let headers = [("X-API-Key", key), ("Content-Type", "application/json")];
        server.ask(method, path, &headers, body.as_bytes())
    };
    let body = r#"{"name":"web","command":["sleep","1000"]}"#;
    let id = ask("ci", "POST", "/v1/boxes", body).was(201).json()["id"].clone();
    let id = id.as_str().expect("an id");
    let receipt = ask("ci", "DELETE", &format!("/v1/boxes/{id}?force=true&receipt=true"), "");
    let receipt = receipt.was(200).json();
    assert_eq!((&receipt["key"], &receipt["name"]), (&json!("ci"), &json!("web")));
    for reference in [id, "web"] {
        let path = format!("/v1/boxes/{reference}/receipt");
        assert_eq!(ask("ci", "GET", &path, "").was(200).json(), receipt);
        let of_admin = ask("ops", "GET", &path, "").was(200).json();
        assert_eq!((&of_admin["id"], &of_admin["boot_id"]), (&receipt["id"], &receipt["boot_id"]));
        ask("desk", "GET", &path, "").was(404);
    }
    server.stop().ok();
}

/// The answers to a plain key about its own box, and those to an admin about the same box.
#[test]
fn only_an_admin_sees_paths_and_pids_of_the_host_in_answers_about_a_box() {
    let tare = tare!();
    let data = TemporaryDirectory::new();
    let key = |name: &str, more: &str| {
        format!("[[keys]]\nname = '{name}'\nsha256 = '{}'\n{more}\n", sha256(name))
    };
    let volume = format!("[[volumes]]\nname = 'data'\npath = '{}'\n", data.text());
    let config = volume + &key("ci", "") + &key("ops", "admin = true");
    let server = Server::start_configured(&tare, &config);
    let ask = |key: &str, method: &str, path: &str, body: &str| {
        let headers = [("X-API-Key", key), ("Content-Type", "application/json")];
        server.ask(method, path, &headers, body.as_bytes()).was(if body.is_empty() {
            200
        } else {
            201
        })
    };
    let body = r#"{"command":["sleep","1000"],"volumes":[{"name":"data","target":"/data"}]}"#;
    let id = ask("ci", "POST", "/v1/boxes", body).json()["id"].as_str().expect("an id").to_owned();
    let keeper = tare.keeper(&id).pid;
    let (own, receipt) = (format!("/v1/boxes/{id}"), format!("/v1/boxes/{id}/receipt"));
    let details = ["ci", "ops"].map(|key| ask(key, "GET", &own, "").json());
    let removed = ask("ci", "DELETE", &format!("{own}?force=true&receipt=true"), "").json();
    let receipts = ["ci", "ops"].map(|key| ask(key, "GET", &receipt, "").json());
    assert_eq!(removed, receipts[0]);
    let state_root = tare.state_root().display().to_string();
    for [plain, of_admin] in [details, receipts.clone()] {
        for of_host in [&*state_root, "/sys/fs/cgroup", data.text(), &format!("pid {keeper}")] {
            assert!(!plain.to_string().contains(of_host), "{of_host} in {plain}");
            assert!(of_admin.to_string().contains(of_host), "{of_host} not in {of_admin}");
        }
    }
    // What proves the removal is the same for both.
    let [mut plain, mut of_admin] = receipts;
    assert_eq!((&plain["pid"], &plain["complete"]), (&Value::Null, &json!(true)), "{plain}");
    assert!(item(&plain, "keeper")["gone"].is_object(), "{plain}");
    for receipt in [&mut plain, &mut of_admin] {
        receipt["pid"].take();
        for list in ["held", "left_alone"] {
            for item in receipt[list].as_array_mut().expect("an array") {
                item["what"].take();
            }
        }
    }
    assert_eq!(plain, of_admin);
    server.stop().ok();
}

#[test]
fn a_run_of_a_plain_key_has_a_receipt_without_paths_and_pids() {
    let tare = tare!();
    let key = format!("[[keys]]\nname = 'ci'\nsha256 = '{}'\n", sha256("ci"));
    let server = Server::start_configured(&tare, &key);
    let headers = [("X-API-Key", "ci"), ("Content-Type", "application/json")];
    let body = br#"{"command":["true"],"receipt":true}"#;
    let receipt = server.ask("POST", "/v1/run", &headers, body).was(200).json()["receipt"].clone();
    assert_eq!((&receipt["complete"], &receipt["pid"]), (&json!(true), &Value::Null), "{receipt}");
    for item in receipt["held"].as_array().expect("an array") {
        assert_eq!(item["what"], json!([]), "{item}");
    }
    server.stop().ok();
}

#[test]
fn an_audit_over_http_lists_removed_boxes_with_their_receipts() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let (id, _) = created(&server, &tare, "web");
    let receipt = server.delete(&format!("/v1/boxes/{id}?force=true&receipt=true")).was(200).json();
    let audit = server.get("/v1/audit?since=1h").was(200).json();
    assert_eq!(audit["removed"][0]["receipt"], receipt, "{audit}");
    let mut printed = tare.json(["audit", "--since", "1h", "--json"]);
    printed["made"] = audit["made"].clone();
    assert_eq!(printed, audit);
    server.get("/v1/audit?since=banana").was(400);
    server.stop().ok();
}
