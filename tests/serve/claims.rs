//! Boxes that wait for `POST /v1/boxes`: a claimed one is like a new one, for its processes and its users.

use serde_json::json;
use tare_harness::{Server, Tare, eventually, tare};

use crate::serve::pool::{BOXES, until_waiting, waiting};
use crate::serve::quotas::sha256;

/// What a process sees of the box that it is in, where `NAME` stands for the name of the box.
fn seen_in(tare: &Tare, name: &str) -> String {
    let probe = "uname -n; cat /etc/hostname /etc/hosts; getent hosts $(uname -n); env | sort; pwd; \
                 id; cat /proc/self/cgroup; ulimit -a; cut -d' ' -f4-6 /proc/self/mountinfo | sort";
    tare.exec(name, ["sh", "-c", probe]).ok().stdout_text().replace(name, "NAME")
}

#[test]
fn a_detached_box_that_waited_is_like_a_new_one_and_outlives_the_server() {
    let tare = tare!();
    let server = Server::start_configured(&tare, BOXES);
    let body = |name: &str| {
        json!({ "name": name, "labels": { "team": "a" }, "env": { "A": "b" }, "workdir": "/tmp",
                "command": ["sh", "-c", "echo $A; pwd; exec sleep 1000"], "lease_ms": 3_600_000 })
    };
    let new = server.post("/v1/boxes", &body("new-box")).was(201).json();
    assert_eq!(new["warm"], "off");
    let ids = until_waiting(&tare, 4);
    let claimed = server.post("/v1/boxes", &body("claimed-box")).was(201).json();
    assert_eq!((&claimed["warm"], &claimed["state"]), (&json!("box"), &json!("running")));
    assert!(ids.contains(&claimed["id"].as_str().expect("an id").to_owned()), "{claimed}");
    assert!(claimed["created_at"].as_str() > new["created_at"].as_str(), "{claimed} {new}");
    let explained = tare.json(["explain", "--json", "claimed-box"]);
    assert_eq!(explained["created_at"], claimed["created_at"], "{explained}");
    // Its fields are those of the request.
    let same = |field: &str| assert_eq!(claimed[field], new[field], "{field}");
    ["labels", "command", "key", "pool"].iter().for_each(|field| same(field));
    let names = ["new-box", "claimed-box"];
    assert!([&new, &claimed].iter().all(|it| it["lease_ends_at"].is_string()), "{claimed}");
    let [seen_in_new, seen_in_claimed] = names.map(|name| seen_in(&tare, name));
    assert_eq!(seen_in_claimed, seen_in_new);
    for name in names {
        eventually("the log has the output", || {
            tare.call(["logs", name]).ok().stdout_text() == "b\n/tmp\n"
        });
    }
    server.post("/v1/boxes", &body("claimed-box")).was(409);
    // A box that differs in more than the go can decide is made for its request.
    until_waiting(&tare, 4);
    let kept = json!({ "command": ["true"], "keep": true });
    assert_eq!(server.post("/v1/boxes", &kept).was(201).json()["warm"], "off");
    let headers = [("Content-Type", "application/json"), ("Idempotency-Key", "one")];
    let once = server.ask("POST", "/v1/boxes", &headers, b"{\"command\": [\"true\"]}");
    assert_eq!(once.was(201).json()["warm"], "off");
    server.kill();
    eventually("no box waits", || waiting(&tare).is_empty());
    assert_eq!(seen_in(&tare, "claimed-box"), seen_in_new);
    tare.call(["pause", "claimed-box"]).ok();
    tare.call(["resume", "claimed-box"]).ok();
    tare.call(["rename", "claimed-box", "other"]).ok();
    tare.call(["stop", "other"]).ok();
    let explained = tare.json(["explain", "--json", "other"]);
    assert_eq!(explained["cause"], "stopped", "{explained}");
    tare.call(["rm", "-f", "--all"]).ok();
    tare.call(["audit"]).ok();
}

#[test]
fn the_history_of_a_box_that_waited_names_the_command_of_its_request() {
    let tare = tare!();
    let server = Server::start_configured(&tare, BOXES);
    let command = json!(["sh", "-c", "exit 3"]);
    let file = json!([{ "path": "a", "content": "x" }]);
    for (request, program) in [
        (json!({ "command": command }), "sh -c exit 3"),
        // It is an exec, and the box has only its name.
        (json!({ "command": command, "files": file }), "sh"),
    ] {
        until_waiting(&tare, 2);
        let result = server.post("/v1/run", &request).was(200).json();
        assert_eq!((&result["warm"], &result["exit_code"]), (&json!("box"), &json!(3)));
        let id = result["id"].as_str().expect("an id");
        let explained = tare.json(["explain", "--json", id]);
        let steps = explained["steps"].as_array().expect("steps");
        let claimed = steps.iter().find(|step| step["event"] == "claimed").expect("a claim");
        assert_eq!(claimed["text"], format!("claimed by a request: {program}"), "{explained}");
        // It is a box of the request from then on.
        let (at, after) = (&claimed["at"], &claimed["after_ms"]);
        assert_eq!((at, after), (&explained["created_at"], &json!(0)), "{explained}");
    }
    server.stop().ok();
}

#[test]
fn a_detached_box_that_waited_belongs_to_its_key_and_counts_for_its_quota() {
    let tare = tare!();
    let hash = sha256("ci-key");
    let keys = format!("[[keys]]\nname = 'ci'\nsha256 = '{hash}'\nboxes = 2\n");
    let server = Server::start_configured(&tare, &format!("{BOXES}{keys}"));
    let create = || {
        let headers = [("Content-Type", "application/json"), ("X-API-Key", "ci-key")];
        server.ask("POST", "/v1/boxes", &headers, b"{\"command\": [\"sleep\", \"1000\"]}")
    };
    assert_eq!(create().was(201).json()["warm"], "off");
    until_waiting(&tare, 4);
    let claimed = create().was(201).json();
    assert_eq!((&claimed["warm"], &claimed["key"]), (&json!("box"), &json!("ci")));
    create().refused(429, "quota_boxes");
    server.stop();
    let listed = tare.json(["ls", "--json"]);
    assert!(listed.as_array().is_some_and(|all| all.len() == 2), "{listed}");
    tare.call(["rm", "-f", "--all"]).ok();
}
