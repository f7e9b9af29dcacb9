//! `/v1/boxes`: detached boxes.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tare_harness::{Server, eventually, tare};

#[test]
fn http_and_the_command_line_show_the_same_box() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let request = json!({ "command": ["sleep", "1000"], "name": "web", "labels": { "a": "b" } });
    let made = server.post("/v1/boxes", &request).was(201).json();
    let id = made["id"].as_str().expect("an id").to_owned();
    let listed = server.get("/v1/boxes").was(200).json();
    let shown = tare.look(&id);
    for field in shown.as_object().expect("an object").keys() {
        if field != "memory_bytes" {
            assert_eq!(listed["boxes"][0][field], shown[field], "{field}");
        }
    }
    tare.exec("web", ["true"]).ok();
    server.delete("/v1/boxes/web").refused(409, "conflict");
    server.delete("/v1/boxes/web?force=true").was(204);
    tare.assert_gone(&id);
    server.delete("/v1/boxes/web").refused(404, "no_such_box");
    server.stop().ok();
}

/// The names of all fields, at every depth. Labels have names that users choose.
fn fields(of: &Value, found: &mut BTreeSet<String>) {
    match of {
        Value::Object(object) => {
            for (name, value) in object {
                found.insert(name.clone());
                if name != "labels" {
                    fields(value, found);
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| fields(item, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn every_field_of_inspect_is_documented_and_in_the_answer_over_http() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let options = ["--name", "web", "--label", "a=b", "-e", "A=b", "-v", "/usr/bin:/mnt:ro"];
    let id =
        tare.detached([&options[..], &["--keep", "--cpus", "1", "--", "sleep", "1000"]].concat());
    let of = |shown: &Value| {
        let mut found = BTreeSet::new();
        fields(shown, &mut found);
        found
    };
    let inspected = of(&tare.json(["inspect", "--json", &id])[0]);
    assert_eq!(inspected, of(&server.get(&format!("/v1/boxes/{id}")).was(200).json()));
    let page = include_str!("../../docs/json.md");
    let is_missing = |name: &&String| {
        !page.contains(&format!("`{name}`")) && !page.contains(&format!("\"{name}\":"))
    };
    let missing: Vec<_> = inspected.iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "docs/json.md has nothing about {missing:?}");
    assert!(inspected.contains("holdings") && inspected.contains("nofile"), "{inspected:?}");
    tare.remove(&id);
    server.stop().ok();
}

#[test]
fn the_lease_is_limited_to_lease_max() {
    let tare = tare!();
    let limits = "[limits]\nlease = '1s'\nlease_max = '60s'\n";
    let server = Server::start_configured(&tare, limits);
    let request = |more: Value| {
        let mut request = json!({ "command": ["sleep", "1000"], "name": "short" });
        let fields = request.as_object_mut().expect("an object");
        fields.extend(more.as_object().expect("an object").clone());
        server.post("/v1/boxes", &request)
    };
    request(json!({ "lease_ms": 60_001 })).refused(400, "invalid");
    request(json!({})).was(201);
    server.post("/v1/boxes/short/lease", &json!({ "lease_ms": 60_001 })).refused(400, "invalid");
    let waited = server.get("/v1/boxes/short/wait").was(200).json();
    assert_eq!(waited["exit_code"], 124, "{waited}");
    server.delete("/v1/boxes/short").was(204);
    server.stop().ok();
}

#[test]
fn pause_resume_lease_and_stop_work_over_http() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let request = json!({ "command": ["sleep", "1000"], "name": "web" });
    server.post("/v1/boxes", &request).was(201);
    let act =
        |what: &str, body| server.post(&format!("/v1/boxes/web/{what}"), &body).was(200).json();
    assert_eq!(act("pause", json!({}))["state"], "paused");
    assert_eq!(act("resume", json!({}))["state"], "running");
    let before = act("resume", json!({}))["lease_ends_at"].clone();
    assert_ne!(act("lease", json!({ "lease_ms": 60_000 }))["lease_ends_at"], before);
    let stopped = act("stop", json!({ "grace_ms": 5000 }));
    assert_eq!((&stopped["state"], &stopped["exit_code"]), (&"exited".into(), &143.into()));
    assert_eq!(server.get("/v1/boxes").json()["boxes"], json!([]));
    let all = server.get("/v1/boxes?all=true&state=exited").was(200).json();
    assert_eq!(all["boxes"][0]["name"], "web");
    server.delete("/v1/boxes/web").was(204);
    server.stop().ok();
}

#[test]
fn stop_accepts_an_empty_body() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let request = json!({ "command": ["sleep", "1000"], "name": "web" });
    server.post("/v1/boxes", &request).was(201);
    let stop = |body: &[u8]| server.ask("POST", "/v1/boxes/web/stop", &[], body);
    stop(b"{}").refused(415, "unsupported_media_type");
    assert_eq!(stop(b"").was(200).json()["exit_code"], 143);
    server.post("/v1/boxes/web/stop", &json!(null)).was(200);
    server.delete("/v1/boxes/web").was(204);
    server.stop().ok();
}

#[test]
fn a_long_list_is_paged() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    for number in 0..5 {
        let label = json!({ "even": (number % 2 == 0).to_string() });
        server.post("/v1/boxes", &json!({ "labels": label })).was(201);
    }
    let mut after = String::new();
    let mut pages = Vec::new();
    loop {
        let page = server.get(&format!("/v1/boxes?limit=2{after}")).was(200).json();
        pages.push(page["boxes"].as_array().expect("boxes").len());
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(pages, [2, 2, 1]);
    let even = server.get("/v1/boxes?label=even=true").was(200).json();
    assert_eq!(even["boxes"].as_array().map(Vec::len), Some(3));
    server.get("/v1/boxes?limit=0").refused(400, "invalid");
    server.get("/v1/boxes?sort=x").refused(400, "invalid_query");
    server.get("/v1/boxes?state=dead").refused(400, "invalid");
    server.stop().ok();
    tare.call(["rm", "-f", "--all"]).ok();
}

/// A client that pages through boxes while they end sees each of them once.
#[test]
fn paging_continues_after_the_box_of_its_cursor_was_removed() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let make = || {
        let made = server.post("/v1/boxes", &json!({})).was(201).json();
        made["id"].as_str().expect("an id").to_owned()
    };
    let made: Vec<String> = (0..5).map(|_| make()).collect();
    let page = |after: &str| {
        let page = server.get(&format!("/v1/boxes?limit=2&after={after}"));
        let page = page.was(200).json();
        let boxes = page["boxes"].as_array().expect("boxes").iter();
        let ids: Vec<String> =
            boxes.map(|one| one["id"].as_str().expect("an id").to_owned()).collect();
        (ids, page["next"].as_str().map(str::to_owned))
    };
    let first = server.get("/v1/boxes?limit=2").was(200).json();
    let cursor = first["next"].as_str().expect("there are more").to_owned();
    assert_eq!(page(&made[1]).0, made[2..4], "an id, while its box is there");
    for id in &made[..2] {
        server.delete(&format!("/v1/boxes/{id}?force=true")).was(204);
    }
    let (second, next) = page(&cursor);
    assert_eq!(second, made[2..4]);
    server.delete(&format!("/v1/boxes/{}?force=true", made[3])).was(204);
    let (third, next) = page(&next.expect("there are more"));
    assert_eq!((third, next), (made[4..].to_vec(), None));
    for after in [made[1].as_str(), "", "x", "%2e%2e", "AAAA"] {
        let path = format!("/v1/boxes?limit=2&after={after}");
        server.get(&path).refused(400, "invalid_cursor");
    }
    server.stop().ok();
    tare.call(["rm", "-f", "--all"]).ok();
}

#[test]
fn an_invalid_box_name_in_a_path_is_refused() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    server.get("/v1/boxes/%ff").refused(400, "invalid_path");
    server.get("/v1/boxes/..%2f..%2fetc").refused(404, "no_such_box");
    server.get("/v1/boxes/%00").refused(404, "no_such_box");
    let long = "x".repeat(10_000);
    server.get(&format!("/v1/boxes/{long}")).refused(404, "no_such_box");
    server.get("/v1/boxes/%ff/files/work").refused(404, "no_such_box");
    server.stop().ok();
}

/// Words of the command line, which a client has not got.
const NOT_OF_HTTP: [&str; 5] = ["'tare", "os error", "--", " -w", " -u"];

#[test]
fn errors_name_fields_of_the_api_not_options_of_the_command_line() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let asleep = json!({ "command": ["sleep", "1000"], "name": "web" });
    server.post("/v1/boxes", &asleep).was(201);
    let over = json!({ "command": ["true"], "name": "over" });
    server.post("/v1/boxes", &over).was(201);
    server.get("/v1/boxes/over/wait").was(200);
    let is_plain = |answer: Value| {
        let error = format!("{} {}", answer["error"]["message"], answer["error"]["hint"]);
        let found = NOT_OF_HTTP.iter().find(|words| error.contains(*words));
        assert_eq!(found, None, "{error}");
    };
    let refused = |path: &str, body: &Value, status: u16| {
        is_plain(server.post(path, body).was(status).json());
    };
    let exec = "/v1/boxes/web/exec";
    for body in [
        json!({ "command": ["nope"] }),
        json!({ "command": ["/etc"] }),
        json!({ "command": ["true"], "workdir": "/none" }),
        json!({ "command": ["true"], "workdir": "/etc/passwd" }),
        json!({ "command": ["true"], "user": "root" }),
        json!({ "command": ["true"], "env": { "": "x" } }),
    ] {
        refused(exec, &body, 400);
    }
    for body in [
        json!({ "command": ["nope"] }),
        json!({ "command": ["true"], "labels": { "": "x" } }),
        json!({ "command": ["true"], "limits": { "memory_bytes": 10 } }),
        json!({ "command": ["true"], "limits": { "scratch_bytes": 10 } }),
    ] {
        refused("/v1/boxes", &body, 400);
    }
    refused("/v1/boxes", &asleep, 409);
    let run = json!({ "command": ["true"] });
    refused("/v1/boxes/over/exec", &run, 409);
    refused("/v1/boxes/none/exec", &run, 404);
    is_plain(server.delete("/v1/boxes/web").was(409).json());
    server.post("/v1/boxes/web/pause", &json!({})).was(200);
    refused(exec, &run, 409);
    tare.remove("web");
    tare.remove("over");
    server.stop().ok();
}

/// The lease passes while the box is made, or soon after. The client gets the box, which has
/// ended or is about to.
#[test]
fn a_box_whose_lease_passes_while_it_is_made_is_created_and_ends() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    for command in [json!([]), json!(["sleep", "1000"])] {
        for _attempt in 0..5 {
            let request = json!({ "command": command, "lease_ms": 1, "retention_ms": 60_000 });
            let id = server.post("/v1/boxes", &request).was(201).json()["id"].clone();
            let id = id.as_str().expect("an id");
            let ended = server.get(&format!("/v1/boxes/{id}/wait")).was(200).json();
            assert_eq!((&ended["ended"], &ended["cause"]), (&json!(true), &json!("lease")));
            server.delete(&format!("/v1/boxes/{id}")).was(204);
        }
    }
    server.stop().ok();
}

#[test]
fn the_limits_and_the_lease_of_a_box_can_be_changed() {
    let tare = tare!();
    let server = Server::start_configured(&tare, "[limits]\nmemory_max = '1g'\n");
    server.post("/v1/boxes", &json!({ "name": "web" })).was(201);
    let update = |body: Value| server.post("/v1/boxes/web/update", &body);
    let limits = json!({ "memory_bytes": 128 << 20, "pids": 64, "cpus": 0.5 });
    for _again in 0..2 {
        let changed = update(json!({ "limits": limits, "lease_ms": 3_600_000 })).was(200).json();
        assert_eq!(changed["name"], "web");
        let shown = server.get("/v1/boxes/web").was(200).json();
        for field in ["memory_bytes", "pids", "cpus"] {
            assert_eq!(shown["spec"]["limits"][field], limits[field], "{field}");
        }
        assert_eq!(shown["lease_ends_at"], changed["lease_ends_at"]);
    }
    for (wrong, said) in [
        (json!({}), "changes nothing"),
        (json!({ "limits": { "nofile": 64 } }), "limits.nofile: "),
        (json!({ "limits": { "scratch_bytes": 1 << 20 } }), "limits.scratch_bytes: "),
        (json!({ "limits": { "memory_bytes": 2_u64 << 30 } }), "at most 1 GiB"),
        (json!({ "limits": { "pids": 0 } }), "limits.pids: "),
        (json!({ "lease_ms": 0 }), "lease_ms: "),
    ] {
        let refused = update(wrong).refused(400, "invalid").text();
        assert!(refused.contains(said), "{refused}");
    }
    server.post("/v1/boxes/web/stop", &json!({ "grace_ms": 0 })).was(200);
    assert_eq!(update(json!({ "limits": { "pids": 65 } })).status, 409);
    server.delete("/v1/boxes/web").was(204);
    server.stop().ok();
}

#[test]
fn a_box_can_be_renamed_to_a_free_name() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let id = server.post("/v1/boxes", &json!({ "name": "web" })).was(201).json()["id"].clone();
    server.post("/v1/boxes", &json!({ "name": "taken" })).was(201);
    let rename = |of: &str, name: &str| {
        server.post(&format!("/v1/boxes/{of}/rename"), &json!({ "name": name }))
    };
    for of in ["web", "api"] {
        assert_eq!(rename(of, "api").was(200).json()["name"], "api");
    }
    assert_eq!(server.get("/v1/boxes/api").was(200).json()["id"], id);
    server.get("/v1/boxes/web").refused(404, "no_such_box");
    rename("api", "taken").refused(409, "conflict");
    rename("api", "-x").refused(400, "invalid_name");
    assert_eq!(server.get("/v1/boxes/api").was(200).json()["id"], id);
    tare.call(["rm", "-f", "--all"]).ok();
    server.stop().ok();
}

#[test]
fn a_signal_reaches_the_command_and_kill_ends_the_box() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let script = "trap 'echo heard' HUP; echo ready; while :; do sleep 0.1; done";
    let make = |more: Value| {
        let mut body = json!({ "name": "web", "command": ["sh", "-c", script] });
        body.as_object_mut().expect("an object").extend(more.as_object().expect("one").clone());
        server.post("/v1/boxes", &body).was(201);
        let logs = || server.get("/v1/boxes/web/logs").was(200).text();
        eventually("it runs", || logs().contains("ready"));
    };
    let kill = |body: Value| server.post("/v1/boxes/web/kill", &body);
    make(json!({}));
    assert_eq!(kill(json!({ "signal": "HUP" })).was(200).json()["state"], "running");
    let logs = || server.get("/v1/boxes/web/logs").was(200).text();
    eventually("the signal arrives", || logs().contains("heard"));
    kill(json!({ "signal": "NOPE" })).refused(400, "invalid");
    let killed = server.ask("POST", "/v1/boxes/web/kill", &[], b"").was(200).json();
    assert_eq!((&killed["state"], &killed["cause"]), (&json!("exited"), &json!("killed")));
    assert_eq!(killed["exit_code"], 137);
    // Nothing is left to be killed.
    assert_eq!(kill(json!({ "signal": "HUP" })).status, 409);
    server.delete("/v1/boxes/web").was(204);
    make(json!({ "remove": true }));
    assert_eq!(kill(json!({ "signal": 9 })).was(200).json()["cause"], "killed");
    kill(json!({})).refused(404, "no_such_box");
    assert!(tare.footprint().records.is_empty());
    server.stop().ok();
}
