//! What the routes of one box answer in each of its states.

use std::fs;

use serde_json::{Value, json};
use tare_harness::{Answer, Running, Server, Tare, eventually, tare};

/// Ignores the request to stop.
const STUBBORN: &str = "trap 'echo asked' TERM; echo up; while :; do sleep 0.02; done";

#[test]
fn a_stopping_box_refuses_a_pause_and_says_what_to_do() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let id = tare.detached(["--", "sh", "-c", STUBBORN]);
    tare.logged(&id, "up");
    let stop = tare.spawn_call(["stop", "-t", "60s", &id]);
    tare.logged(&id, "asked");
    let answer = server.post(&format!("/v1/boxes/{id}/pause"), &json!({}));
    let error = answer.refused(409, "conflict").json()["error"].clone();
    assert_eq!(error["message"], format!("cannot pause box {id}: it is stopping"));
    assert_eq!(error["hint"], "wait for its end, or kill it");
    server.post(&format!("/v1/boxes/{id}/resume"), &json!({})).was(200);
    server.delete(&format!("/v1/boxes/{id}?force=true")).was(204);
    stop.wait();
    server.stop().ok();
}

/// The state of a box is the client's business: it is never a failure of the server.
#[test]
fn no_route_fails_because_of_the_state_of_a_box() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let routes = routes(&server);
    assert!(routes.len() > 15, "{routes:?}");
    for wanted in ["running", "attached", "paused", "stopping", "exited", "stuck", "missing"] {
        let mut case = Case::new(&tare, wanted);
        for (method, path) in &routes {
            let answer = ask(&server, method, &path.replace("{id}", &case.id));
            let is_fault = answer.status >= 500 && answer.status != 503;
            assert!(!is_fault, "{wanted}: {method} {path}: {}", answer.text());
            if tare.listed(&case.id).map(|it| it["state"].clone()) != case.state {
                case.end(&tare);
                case = Case::new(&tare, wanted);
            }
        }
        case.end(&tare);
    }
    server.stop().ok();
}

/// A box in one of its states.
struct Case {
    id: String,
    state: Option<Value>,
    /// The command that it is attached to.
    run: Option<Running>,
}

impl Case {
    fn new(tare: &Tare, wanted: &str) -> Self {
        let (id, run) = make(tare, wanted);
        let state = tare.listed(&id).map(|it| it["state"].clone());
        Self { id, state, run }
    }

    fn end(self, tare: &Tare) {
        tare.call(["rm", "-f", &self.id]);
        self.run.map(Running::wait);
        eventually("the box is gone", || tare.listed(&self.id).is_none());
    }
}

/// The methods and paths of one box, as the server describes them.
fn routes(server: &Server) -> Vec<(String, String)> {
    let description = server.get("/openapi.json").was(200).json();
    let paths = description["paths"].as_object().expect("paths");
    let of_box = paths.iter().filter(|(path, _)| path.contains("/boxes/{id}"));
    let methods = of_box.flat_map(|(path, item)| {
        let methods = item.as_object().expect("methods").keys();
        methods.map(|method| (method.to_uppercase(), path.clone()))
    });
    methods.collect()
}

fn make(tare: &Tare, wanted: &str) -> (String, Option<Running>) {
    let id = match wanted {
        "attached" => {
            let run = tare.spawn(["--", "sh", "-c", "echo up; sleep 1000"]);
            run.see("up");
            let id = tare.list()[0]["id"].as_str().expect("an id").to_owned();
            return (id, Some(run));
        }
        "stopping" => {
            let id = tare.detached(["--", "sh", "-c", STUBBORN]);
            tare.logged(&id, "up");
            // The box is stopping although this command is killed.
            let _stop = tare.spawn_call(["stop", "-t", "60s", &id]);
            tare.logged(&id, "asked");
            id
        }
        "exited" => tare.detached(["--", "true"]),
        "missing" => "aaaabbbbcccc".to_owned(),
        _ => tare.idle_box(),
    };
    match wanted {
        "paused" => drop(tare.call(["pause", &id]).ok()),
        "exited" => drop(tare.ended(&id)),
        "stuck" => fs::write(tare.record(&id).join("record.json"), "garbage").expect("a record"),
        _ => {}
    }
    (id, None)
}

/// Sends a request that is as valid as one without knowledge of the box can be.
fn ask(server: &Server, method: &str, path: &str) -> Answer {
    let path = path.replace("{exec}", "0").replace("{*path}", "work/a").replace("{path}", "work/a");
    let body = match path.rsplit('/').next() {
        Some("exec") => json!({ "command": ["true"] }),
        Some("lease") => json!({ "lease_ms": 60_000 }),
        Some("stop") => json!({ "grace_ms": 0 }),
        Some("signal") => json!({ "signal": "TERM" }),
        Some("resize") => json!({ "rows": 24, "columns": 80 }),
        Some(_) | None => Value::Null,
    };
    match (method, &body) {
        ("POST", Value::Null) => server.post(&path, &json!({})),
        ("POST", body) => server.post(&path, body),
        ("GET", _) if path.ends_with("/wait") => server.get(&format!("{path}?timeout_ms=1")),
        ("PUT", _) => server.ask(method, &path, &[], b"text"),
        (_, _) => server.ask(method, &path, &[], b""),
    }
}
