//! Keys are tenants: each sees, uses and ends its own boxes only. An admin sees all boxes.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};
use tare_harness::{
    Answer, Freezer, Server, Tare, TemporaryDirectory, box_processes, eventually, skip, tare,
};

use crate::serve::configured;
use crate::serve::quotas::sha256;
use crate::serve::watching::read_until;

/// Two plain keys and an admin. The secret of each is its name.
const CI: &str = "ci";
const DESK: &str = "desk";
const OPS: &str = "ops";

/// What a route is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum About {
    /// One box, or a process in it.
    Box,
    /// The host or the server.
    Operating,
    /// What the caller may do or see anyway. Other tests are about these.
    Caller,
}

/// A route, and a request that the owner of the box may send.
struct Route {
    about: About,
    method: &'static str,
    /// As the description of the API has it.
    path: &'static str,
    query: &'static str,
    body: &'static str,
}

const fn route(about: About, method: &'static str, path: &'static str) -> Route {
    Route { about, method, path, query: "", body: "" }
}

impl Route {
    const fn query(self, query: &'static str) -> Self {
        Self { query, ..self }
    }

    const fn body(self, body: &'static str) -> Self {
        Self { body, ..self }
    }

    /// The path with the query, for this box and this exec.
    fn target(&self, of: &str, exec: &str) -> String {
        let path = self.path.replace("{id}", of).replace("{exec}", exec);
        path.replace("{path}", "work/file") + self.query
    }
}

const ROUTES: [Route; 35] = [
    route(About::Caller, "POST", "/v1/run"),
    route(About::Caller, "POST", "/v1/boxes"),
    route(About::Caller, "GET", "/v1/boxes"),
    route(About::Caller, "GET", "/v1/events"),
    route(About::Caller, "GET", "/health"),
    route(About::Caller, "GET", "/ready"),
    route(About::Operating, "GET", "/metrics"),
    route(About::Operating, "GET", "/v1/audit"),
    route(About::Operating, "POST", "/v1/sweep"),
    route(About::Operating, "POST", "/v1/reload"),
    route(About::Box, "GET", "/v1/boxes/{id}"),
    route(About::Box, "DELETE", "/v1/boxes/{id}").query("?force=true"),
    route(About::Box, "GET", "/v1/boxes/{id}/stats"),
    route(About::Box, "GET", "/v1/boxes/{id}/explain"),
    route(About::Box, "GET", "/v1/boxes/{id}/receipt"),
    route(About::Box, "GET", "/v1/boxes/{id}/wait").query("?timeout_ms=1"),
    route(About::Box, "POST", "/v1/boxes/{id}/stop").body(r#"{"grace_ms":1}"#),
    route(About::Box, "POST", "/v1/boxes/{id}/pause"),
    route(About::Box, "POST", "/v1/boxes/{id}/resume"),
    route(About::Box, "POST", "/v1/boxes/{id}/lease").body(r#"{"lease_ms":60000}"#),
    route(About::Box, "POST", "/v1/boxes/{id}/update").body(r#"{"limits":{"pids":128}}"#),
    route(About::Box, "POST", "/v1/boxes/{id}/rename").body(r#"{"name":"web"}"#),
    route(About::Box, "POST", "/v1/boxes/{id}/kill").body(r#"{"signal":"CONT"}"#),
    route(About::Box, "GET", "/v1/boxes/{id}/logs"),
    route(About::Box, "POST", "/v1/boxes/{id}/exec").body(r#"{"command":["true"]}"#),
    route(About::Box, "GET", "/v1/boxes/{id}/exec/ws").query("?command=true"),
    route(About::Box, "GET", "/v1/boxes/{id}/execs/{exec}"),
    route(About::Box, "GET", "/v1/boxes/{id}/execs/{exec}/stream"),
    route(About::Box, "POST", "/v1/boxes/{id}/execs/{exec}/stdin").body("x"),
    route(About::Box, "POST", "/v1/boxes/{id}/execs/{exec}/signal").body(r#"{"signal":"CONT"}"#),
    route(About::Box, "POST", "/v1/boxes/{id}/execs/{exec}/resize")
        .body(r#"{"rows":10,"columns":20}"#),
    route(About::Box, "GET", "/v1/boxes/{id}/files/{path}"),
    route(About::Box, "PUT", "/v1/boxes/{id}/files/{path}").body("new"),
    route(About::Box, "DELETE", "/v1/boxes/{id}/files/{path}"),
    // The root of the box. The description has it with the path.
    route(About::Box, "GET", "/v1/boxes/{id}/files/").query("?list=true"),
];

/// A server with the three keys.
struct Tenants<'a> {
    tare: &'a Tare,
    server: Server,
    /// A reload reads the configuration again.
    _directory: TemporaryDirectory,
}

impl<'a> Tenants<'a> {
    fn start(tare: &'a Tare) -> Self {
        Self::start_with(tare, "")
    }

    fn start_with(tare: &'a Tare, settings: &str) -> Self {
        let key = |name: &str, more: &str| {
            format!("[[keys]]\nname = '{name}'\nsha256 = '{}'\n{more}\n", sha256(name))
        };
        let keys = key(CI, "") + &key(DESK, "") + &key(OPS, "admin = true");
        let (directory, config) = configured(&format!("{settings}{keys}"));
        let server = Server::start(tare, &["--config", &config]);
        Self { tare, server, _directory: directory }
    }

    fn send(&self, key: &str, method: &str, target: &str, body: &str) -> TcpStream {
        let is_json = body.starts_with('{');
        let kind = if is_json { "application/json" } else { "application/octet-stream" };
        let headers = [("X-API-Key", key), ("Content-Type", kind)];
        self.server.send(method, target, &headers, body.as_bytes())
    }

    fn ask(&self, key: &str, method: &str, target: &str, body: &str) -> Answer {
        let mut bytes = Vec::new();
        self.send(key, method, target, body).read_to_end(&mut bytes).expect("an answer");
        Answer::parse(&bytes)
    }

    fn get(&self, key: &str, target: &str) -> Answer {
        self.ask(key, "GET", target, "")
    }

    /// The answer to a request for a terminal, or to any other. A stream is not read to its end.
    fn ask_route(&self, key: &str, route: &Route, target: &str) -> Answer {
        let mut stream = if route.path.ends_with("/ws") {
            let head = format!(
                "GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, close\r\n\
                 Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nX-API-Key: {key}\r\n\
                 Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            );
            let mut stream = self.server.connect();
            stream.write_all(head.as_bytes()).expect("the server reads");
            stream
        } else {
            self.send(key, route.method, target, route.body)
        };
        let mut bytes = Vec::new();
        while !bytes.windows(4).any(|four| four == b"\r\n\r\n") {
            let mut buffer = [0; 4096];
            let count = stream.read(&mut buffer).expect("an answer");
            assert_ne!(count, 0, "{target}: {}", String::from_utf8_lossy(&bytes));
            bytes.extend_from_slice(&buffer[..count]);
        }
        if Answer::parse(&bytes).status >= 400 {
            stream.read_to_end(&mut bytes).expect("an answer");
        }
        Answer::parse(&bytes)
    }

    /// A box of `ci` with this name, a file and a detached process with a terminal: their ids.
    fn create(&self, name: &str) -> (String, String) {
        let request = json!({ "name": name, "command": ["sleep", "1000"] }).to_string();
        let made = self.ask(CI, "POST", "/v1/boxes", &request).was(201).json();
        let id = made["id"].as_str().expect("an id").to_owned();
        self.ask(CI, "PUT", &format!("/v1/boxes/{id}/files/work/file"), "old").was(204);
        let exec = json!({
            "command": ["sleep", "1000"], "detach": true, "terminal": { "rows": 24, "columns": 80 },
        });
        let path = format!("/v1/boxes/{id}/exec");
        let exec = self.ask(CI, "POST", &path, &exec.to_string()).was(202).json();
        (id, exec["id"].as_str().expect("an id").to_owned())
    }

    /// A stream of events that misses nothing from here on.
    fn listen(&self, key: &str) -> TcpStream {
        let headers = [("X-API-Key", key), ("Accept", "application/x-ndjson")];
        let mut stream = self.server.send("GET", "/v1/events", &headers, b"");
        read_until(&mut stream, "alive");
        stream
    }

    fn listed(&self, key: &str) -> BTreeSet<String> {
        let boxes = self.get(key, "/v1/boxes?all=true").was(200).json()["boxes"].clone();
        let id = |one: &Value| one["id"].as_str().expect("an id").to_owned();
        boxes.as_array().expect("a list").iter().map(id).collect()
    }

    fn end(self) {
        self.tare.call(["rm", "-f", "--all"]).ok();
        assert!(self.tare.footprint().names.is_empty());
        self.server.stop().ok();
    }
}

#[test]
fn the_table_has_every_route_of_the_description() {
    let tare = tare!();
    let tenants = Tenants::start(&tare);
    let api = tenants.get(CI, "/openapi.json").was(200).json();
    let paths = api["paths"].as_object().expect("paths");
    let described: BTreeSet<String> = paths
        .iter()
        .flat_map(|(path, item)| {
            let methods = item.as_object().expect("methods").keys();
            methods.map(move |method| format!("{} {path}", method.to_uppercase()))
        })
        .collect();
    let is_described = |route: &&Route| !route.path.ends_with('/');
    let table = ROUTES.iter().filter(is_described);
    let table: BTreeSet<String> =
        table.map(|route| format!("{} {}", route.method, route.path)).collect();
    assert_eq!(table, described);
    tenants.end();
}

/// An error without what differs between two requests.
fn same_for_all(answer: &Answer, reference: &str) -> Value {
    let mut error = answer.json();
    error["error"]["request_id"] = Value::Null;
    let text = error.to_string().replace(reference, "REFERENCE");
    json!([answer.status, text])
}

#[test]
fn a_box_of_another_key_does_not_exist_for_any_route() {
    let tare = tare!();
    let tenants = Tenants::start(&tare);
    let (id, exec) = tenants.create("web");
    let before = tenants.get(CI, &format!("/v1/boxes/{id}")).was(200).json();
    let (mine, _) = tenants.create("mine");
    let unknown = [("aaaaaaaaaaaa", &*id), ("nope", "web"), ("aaaaaa", &id[..6])];
    for route in ROUTES.iter().filter(|route| route.about == About::Box) {
        for (unknown, reference) in unknown {
            let refused = tenants.ask_route(DESK, route, &route.target(reference, &exec));
            let expected = tenants.ask_route(DESK, route, &route.target(unknown, &exec));
            let what = format!("{} {}", route.method, route.target(reference, &exec));
            assert_eq!(refused.status, 404, "{what}");
            assert_eq!(
                same_for_all(&refused, reference),
                same_for_all(&expected, unknown),
                "{what}"
            );
        }
    }
    // The process belongs to the box: its id is of no use with another box.
    tenants.get(CI, &format!("/v1/boxes/{mine}/execs/{exec}")).refused(404, "no_such_exec");
    let after = tenants.get(CI, &format!("/v1/boxes/{id}")).was(200).json();
    for field in ["state", "name", "lease_ends_at", "pids", "key"] {
        assert_eq!(after[field], before[field], "{field}");
    }
    assert_eq!(tenants.get(CI, "/v1/boxes/web/files/work/file").was(200).text(), "old");
    tenants.get(CI, &format!("/v1/boxes/web/execs/{exec}")).was(200);
    tenants.end();
}

#[test]
fn every_route_serves_the_owner_of_a_box_and_an_admin() {
    let tare = tare!();
    let tenants = Tenants::start(&tare);
    for route in ROUTES.iter().filter(|route| route.about == About::Box) {
        for key in [CI, OPS] {
            let (id, exec) = tenants.create("web");
            if route.path.ends_with("/receipt") {
                tare.call(["rm", "-f", &id]).ok();
            }
            for reference in ["web", &id] {
                if reference == "web" && route.method == "DELETE" {
                    continue;
                }
                let target = route.target(reference, &exec);
                let answer = tenants.ask_route(key, route, &target);
                let what = format!("{key}: {} {target}: {}", route.method, answer.text());
                assert!((100..300).contains(&answer.status), "{what}");
            }
            tare.call(["rm", "-f", &id]);
            eventually("its name is free", || !tenants.listed(OPS).contains(&id));
        }
    }
    tenants.end();
}

/// An admin can look at a box that waits in a pool, and end it. Every other request is refused.
#[test]
fn a_box_that_waits_in_a_pool_refuses_every_route_that_would_use_it() {
    let tare = tare!();
    let tenants = Tenants::start_with(&tare, "[pool.box]\nwarm = 1\n");
    let mut id = String::new();
    eventually("a box waits", || {
        let listed = tenants.get(OPS, "/v1/boxes?state=warm").was(200).json();
        id = listed["boxes"][0]["id"].as_str().unwrap_or_default().to_owned();
        !id.is_empty()
    });
    for route in ROUTES.iter().filter(|route| route.about == About::Box) {
        let answer = tenants.ask_route(OPS, route, &route.target(&id, "1"));
        let (method, rest) = (route.method, route.path.trim_start_matches("/v1/boxes/{id}"));
        let what = format!("{method} {rest}");
        match (method, rest) {
            ("GET", "" | "/stats" | "/explain" | "/wait") => drop(answer.was(200)),
            // These end it, and the server makes another one.
            ("DELETE", "") | ("POST", "/stop") => {
                eventually("another box waits", || {
                    let listed = tenants.get(OPS, "/v1/boxes?state=warm").was(200).json();
                    let first = listed["boxes"][0]["id"].as_str().unwrap_or_default();
                    let is_other = !first.is_empty() && first != id;
                    if is_other {
                        id = first.to_owned();
                    }
                    is_other
                });
            }
            (_, "/receipt") => drop(answer.was(409)),
            (_, rest) if rest.starts_with("/execs/") => drop(answer.refused(404, "no_such_exec")),
            _ => {
                assert_eq!(
                    (answer.status, &answer.json()["error"]["code"]),
                    (409, &json!("warm")),
                    "{what}"
                );
                let error = answer.json()["error"].to_string();
                assert!(!error.contains("'tare ") && !error.contains("--"), "{what}: {error}");
            }
        }
        for key in [CI, DESK] {
            tenants.ask_route(key, route, &route.target(&id, "1")).was(404);
        }
    }
    tenants.end();
}

#[test]
fn routes_for_operators_need_the_key_of_an_admin() {
    let tare = tare!();
    let tenants = Tenants::start(&tare);
    for route in ROUTES.iter().filter(|route| route.about == About::Operating) {
        for key in [CI, DESK] {
            tenants.ask(key, route.method, route.path, "").refused(403, "admin_only");
        }
        let status = tenants.ask(OPS, route.method, route.path, "").status;
        assert!((200..300).contains(&status), "{}: {status}", route.path);
    }
    let recovered = |key| tenants.get(key, "/health").was(200).json()["recovery"]["boxes"].clone();
    assert_eq!((recovered(CI), recovered(OPS)), (Value::Null, json!(0)));
    tenants.get(CI, "/ready").was(200);
    tenants.end();
}

#[test]
fn two_keys_use_the_same_name_and_the_same_idempotency_key() {
    let tare = tare!();
    let tenants = Tenants::start(&tare);
    let create = |key: &str| {
        let headers =
            [("Content-Type", "application/json"), ("X-API-Key", key), ("Idempotency-Key", "once")];
        let body = json!({ "name": "web", "command": ["sleep", "1000"] }).to_string();
        tenants.server.ask("POST", "/v1/boxes", &headers, body.as_bytes())
    };
    let made = [CI, DESK, OPS].map(|key| create(key).was(201).json());
    let ids = made.map(|one| one["id"].as_str().expect("an id").to_owned());
    for (key, id) in [CI, DESK].into_iter().zip(&ids) {
        assert_eq!(create(key).was(200).json()["id"], **id);
        let shown = tenants.get(key, "/v1/boxes/web").was(200).json();
        assert_eq!((&shown["id"], &shown["key"]), (&json!(id), &json!(key)));
        assert_eq!(tenants.listed(key), [id.clone()].into());
    }
    let names: Vec<String> = tare.footprint().names.into_iter().collect();
    assert_eq!(names, ["ci/web", "desk/web", "ops/web"]);
    assert_eq!(tenants.listed(OPS), ids.clone().into());
    let refused = tenants.get(OPS, "/v1/boxes/web").refused(400, "invalid").text();
    for candidate in ["ci:web", "desk:web", "ops:web"] {
        assert!(refused.contains(candidate), "{refused}");
    }
    assert_eq!(tenants.get(OPS, "/v1/boxes/desk:web").was(200).json()["id"], *ids[1]);
    tenants.get(CI, "/v1/boxes/desk:web").refused(404, "no_such_box");
    // A place in the list is no way to learn of a box either.
    let after = |key, id: &str| tenants.get(key, &format!("/v1/boxes?after={id}"));
    after(CI, &ids[1]).refused(400, "invalid_cursor");
    after(OPS, &ids[1]).was(200);
    for (key, id) in [CI, DESK].into_iter().zip(&ids) {
        tenants.ask(key, "DELETE", "/v1/boxes/web?force=true", "").was(204);
        tare.assert_gone(id);
        create(key).refused(409, "conflict");
    }
    tenants.get(OPS, "/v1/boxes/web").was(200);
    tenants.end();
}

#[test]
fn the_command_line_sees_the_boxes_of_all_keys_and_takes_the_key_with_a_name() {
    let tare = tare!();
    let tenants = Tenants::start(&tare);
    let own = tare.detached(["--name", "web", "--", "sleep", "1000"]);
    let (id, _) = tenants.create("web");
    for key in [CI, DESK] {
        tenants.get(key, &format!("/v1/boxes/{own}")).refused(404, "no_such_box");
    }
    tenants.get(OPS, &format!("/v1/boxes/{own}")).was(200);
    let table = tare.call(["ls", "-a"]).ok().stdout_text();
    let cells = |id: &str| {
        let line = table.lines().find(|line| line.starts_with(id)).expect("it is listed");
        line.split_whitespace().take(3).map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(table.lines().next().is_some_and(|titles| titles.contains(" KEY ")), "{table}");
    assert_eq!(cells(&id), [&id, "web", CI]);
    assert_eq!(cells(&own), [&own, "web", "-"]);
    assert!(!tare.call(["ls"]).ok().stdout_text().contains("KEY"));
    let candidates = [format!("ci:web ({id})"), format!(":web ({own})")];
    for command in [&["inspect", "web"][..], &["exec", "web", "--", "true"], &["rm", "-f", "web"]] {
        let output = tare.call(command);
        assert_ne!(output.code, 0, "{command:?}");
        output.said(&[&candidates[0], &candidates[1], "KEY:NAME"]);
    }
    assert_eq!(tare.json(["inspect", "ci:web"])[0]["id"], *id);
    assert_eq!(tare.json(["inspect", ":web"])[0]["id"], *own);
    let home = TemporaryDirectory::new();
    let file = home.join("file");
    tare.call(["cp", "ci:web:/work/file", file.to_str().expect("text")]).ok();
    assert_eq!(fs::read_to_string(&file).expect("a file"), "old");
    let offered = tare.call(["completion", "--boxes"]).ok().stdout_text();
    assert_eq!(offered.lines().collect::<BTreeSet<_>>(), [&*id, &*own].into());
    tare.call(["rename", "ci:web", "api"]).ok();
    assert_eq!(tenants.get(CI, "/v1/boxes/api").was(200).json()["id"], *id);
    tare.call(["exec", "web", "--", "true"]).ok();
    tare.call(["rm", "-f", "ci:api"]).ok();
    tare.call(["explain", "ci:api"]).ok();
    tare.call(["explain", "desk:api"]).exited(1);
    tare.remove(&own);
    tenants.end();
}

/// The pids of tare's processes and of the keeper are about the host. The command and the user that
/// ended a box are about the box.
#[test]
fn only_an_admin_sees_pids_of_the_host_in_an_explanation() {
    let tare = tare!();
    let tenants = Tenants::start(&tare);
    let (id, _) = tenants.create("web");
    let explain = |key: &str| tenants.get(key, &format!("/v1/boxes/{id}/explain")).was(200).text();
    let check = || {
        let [plain, admin] = [CI, OPS].map(explain);
        assert!(!plain.contains("(pid ") && !plain.contains(", pid "), "{plain}");
        assert!(admin.contains("(pid "), "{admin}");
        plain
    };
    assert!(check().contains("keeper started"));
    tare.call(["rm", "-f", "ci:web"]).ok();
    let removed = check();
    assert!(removed.contains("Killed by 'tare rm -f' (user root)"), "{removed}");
    // With a file, the command is an exec in the box of the run.
    for files in [json!([]), json!([{ "path": "a", "content_base64": "YQ==" }])] {
        let request = json!({ "command": ["sleep", "1000"], "files": files }).to_string();
        let mut run = tenants.send(CI, "POST", "/v1/run", &request);
        let of_run = || tenants.get(CI, "/v1/boxes").was(200).json()["boxes"][0].clone();
        eventually("its command runs", || {
            let id = of_run()["id"].as_str().unwrap_or_default().to_owned();
            box_processes()
                .iter()
                .any(|it| it.name == "sleep" && it.cgroups.iter().any(|path| path.contains(&id)))
        });
        tare.call(["rm", "-f", of_run()["id"].as_str().expect("an id")]).ok();
        let mut bytes = Vec::new();
        run.read_to_end(&mut bytes).expect("an answer");
        let answer = Answer::parse(&bytes).was(200).json();
        assert_eq!(answer["sentence"], "Killed by 'tare rm -f' (user root).", "{answer}");
    }
    tenants.end();
}

/// Why a box is stuck names a process of the host, in every answer and event about the box.
#[test]
fn only_an_admin_sees_why_a_box_is_stuck() {
    let tare = tare!();
    let Some(freezer) = Freezer::new() else {
        skip!("there is no freezer of cgroup version 1");
    };
    let tenants = Tenants::start(&tare);
    let [mut ci, mut desk, mut ops] = [CI, DESK, OPS].map(|key| tenants.listen(key));
    let (id, _) = tenants.create("web");
    let why = format!("process {} does not die", tare.keeper(&id).pid);
    freezer.freeze(tare.workload(&id)[0].pid);
    let own = format!("/v1/boxes/{id}");
    let refused = tenants.ask(CI, "DELETE", &format!("{own}?force=true"), "").refused(503, "stuck");
    let step = format!("cannot end the keeper of box {id}");
    assert_eq!(refused.json()["error"]["message"], step, "{}", refused.text());
    for path in ["/v1/boxes?state=stuck", &own, &format!("{own}/explain")] {
        let [plain, admin] = [CI, OPS].map(|key| tenants.get(key, path).was(200).text());
        assert!(plain.contains("\"stuck_on\":null") && !plain.contains(&why), "{path}: {plain}");
        assert!(admin.contains(&why), "{path}: {admin}");
    }
    assert_eq!(tenants.get(DESK, "/v1/boxes?state=stuck").was(200).json()["boxes"], json!([]));
    tenants.get(DESK, &own).refused(404, "no_such_box");
    let stuck = |stream: &mut TcpStream| {
        let frames = frames_until(stream, "teardown_stuck");
        frames.last().expect("the event").clone()
    };
    assert_eq!(stuck(&mut ci)["why"], Value::Null);
    assert!(stuck(&mut ops)["why"].as_str().expect("a reason").ends_with(&why));
    freezer.thaw();
    eventually("the server ends it", || !tenants.listed(OPS).contains(&id));
    tenants.ask(DESK, "POST", "/v1/run", &json!({ "command": ["true"] }).to_string()).was(200);
    let of_desk = frames_until(&mut desk, "run_ended");
    assert_eq!(of_desk.len(), 1, "{of_desk:?}");
    tenants.end();
}

#[test]
fn a_later_server_knows_whose_boxes_it_finds() {
    let tare = tare!();
    let tenants = Tenants::start(&tare);
    let (id, _) = tenants.create("web");
    let (damaged, _) = tenants.create("damaged");
    tenants.server.kill();
    fs::write(tare.record(&damaged).join("record.json"), "{\"intent\":").expect("a record");
    let tenants = Tenants::start(&tare);
    for key in [CI, OPS] {
        tenants.get(key, &format!("/v1/boxes/{id}")).was(200);
    }
    tenants.get(DESK, &format!("/v1/boxes/{id}")).refused(404, "no_such_box");
    // Nothing says whose box that is.
    tenants.get(CI, &format!("/v1/boxes/{damaged}")).refused(404, "no_such_box");
    tenants.get(CI, "/v1/boxes/damaged").refused(404, "no_such_box");
    assert_eq!(tenants.listed(CI), [id].into());
    tenants.get(OPS, &format!("/v1/boxes/{damaged}")).was(200);
    tenants.end();
}

/// Reads frames until one has this text, and returns the events that are certain to come.
fn frames_until(stream: &mut TcpStream, wanted: &str) -> Vec<Value> {
    let text = read_until(stream, wanted);
    let frames = text.lines().filter_map(|line| serde_json::from_str(line).ok());
    // The end of a box that is removed is an event just before or after its removal.
    let is_certain = |frame: &Value| frame["type"] != "alive" && frame["type"] != "box_ended";
    frames.filter(is_certain).collect()
}

#[test]
fn a_key_gets_the_events_of_its_own_boxes_and_an_admin_all() {
    let tare = tare!();
    let tenants = Tenants::start(&tare);
    let mut streams = [CI, DESK, OPS].map(|key| tenants.listen(key));
    let (id, _) = tenants.create("web");
    tenants.ask(OPS, "POST", "/v1/boxes/web/pause", "").was(200);
    tenants.ask(OPS, "POST", "/v1/boxes/web/resume", "").was(200);
    let run = json!({ "command": ["true"] }).to_string();
    tenants.ask(DESK, "POST", "/v1/run", &run).was(200);
    tenants.get(DESK, "/ready").was(200);
    tenants.ask(CI, "DELETE", "/v1/boxes/web?force=true", "").was(204);
    // A box without a record, which a sweep finds.
    let orphan = tare.detached(["--", "sleep", "1000"]);
    fs::remove_dir_all(tare.record(&orphan)).expect("a record");
    tenants.ask(OPS, "POST", "/v1/sweep", "").was(200);
    // The last event of each stream.
    for key in [CI, DESK] {
        let code = json!({ "command": ["sh", "-c", "exit 77"] }).to_string();
        tenants.ask(key, "POST", "/v1/run", &code).was(200);
    }
    let ended = "\"exit_code\":77";
    let [ci, desk, ops] = streams.each_mut();
    let ci = frames_until(ci, ended);
    let names = |frames: &[Value]| {
        let name = |frame: &Value| frame["type"].as_str().expect("a name").to_owned();
        frames.iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(
        names(&ci),
        ["box_created", "box_paused", "box_resumed", "box_removed", "run_ended"]
    );
    assert!(ci[..4].iter().all(|frame| frame["box_id"] == *id), "{ci:?}");
    let desk = frames_until(desk, ended);
    assert_eq!(names(&desk), ["run_ended", "run_ended"]);
    for (key, frames) in [(CI, ci), (DESK, desk)] {
        assert!(frames.iter().all(|frame| frame["key"] == key), "{frames:?}");
    }
    let ops = frames_until(ops, "\"exit_code\":77,\"key\":\"desk\"");
    for (name, key) in [
        ("box_removed", json!(CI)),
        ("run_ended", json!(DESK)),
        ("run_ended", Value::Null),
        ("orphan_reclaimed", Value::Null),
    ] {
        let is_it = |frame: &&Value| frame["type"] == name && frame["key"] == key;
        assert!(ops.iter().any(|frame| is_it(&frame)), "{name} {key}: {ops:?}");
    }
    drop(streams);
    tenants.end();
}

#[test]
fn a_server_without_an_admin_starts_and_says_so_once() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let keys = directory.join("keys");
    let warnings = |text: &str| {
        fs::write(&keys, text).expect("a file");
        let server = Server::start(&tare, &["--api-key-file", keys.to_str().expect("text")]);
        let metrics = |key| server.ask("GET", "/metrics", &[("X-API-Key", key)], b"").status;
        let found = (metrics("first"), metrics("second"));
        let log = server.stop().stderr_text();
        (found, log.matches(" no_admin ").count())
    };
    assert_eq!(warnings("first\nsecond\n"), ((403, 403), 1));
    assert_eq!(warnings("first\nadmin:second\n"), ((403, 200), 0));
    let server = Server::start(&tare, &[]);
    server.get("/metrics").was(200);
    assert!(!server.stop().stderr_text().contains("no_admin"));
}
