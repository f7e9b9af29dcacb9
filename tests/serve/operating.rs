//! What an operator sees of a server and can change: log, metrics, reload, packaging.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tare_harness::{Answer, FileServer, Server, eventually, skip, tare};

use crate::serve::configured;
use crate::serve::quotas::sha256;

/// The value of a series, written as in the text.
pub fn value(text: &str, series: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(series));
    line?.trim().parse().ok()
}

/// The events of this name in a log of JSON.
pub fn events(server: &Server, name: &str) -> Vec<Value> {
    let log = server.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str(line).ok());
    lines.filter(|line: &Value| line["event"] == name).collect()
}

/// A volume whose file server does not answer.
#[test]
fn a_creation_that_hangs_is_an_event() {
    let tare = tare!();
    let Some(files) = FileServer::new(&tare) else {
        skip!("bindfs or /dev/fuse is not there, or we are not root");
    };
    let path = files.path();
    let volume = format!("[[volumes]]\nname = 'data'\npath = '{}'\n", path.display());
    let server = Server::start_configured(&tare, &format!("log = 'json'\n{volume}"));
    // The kernel remembers for a second what the server found at its start.
    tare_harness::let_pass(Duration::from_secs(2));
    files.stop();
    let volumes = json!([{ "name": "data", "target": "/work/data" }]);
    let body = json!({ "command": ["true"], "volumes": volumes });
    std::thread::scope(|scope| {
        let run = scope.spawn(|| server.post("/v1/run", &body));
        eventually("the event is there", || !events(&server, "start_slow").is_empty());
        files.go_on();
        run.join().expect("an answer").was(200);
    });
    let slow = events(&server, "start_slow").remove(0);
    let why = slow["why"].as_str().expect("a text");
    assert!(why.contains("its creator opens its root and volumes"), "{slow}");
    assert!(slow["box_id"].is_string(), "{slow}");
    server.stop().ok();
    drop(files);
}

/// The operator reads the log in a terminal.
#[test]
fn a_request_cannot_move_the_cursor_of_the_terminal_that_shows_the_log() {
    let tare = tare!();
    for format in ["human", "json"] {
        let server = Server::start_configured(&tare, &format!("log = '{format}'\n"));
        server.get("/v1/here\u{9b}2J\u{85}\u{202e}x").was(404);
        let logged =
            || server.log().lines().find(|line| line.contains("/v1/here")).map(str::to_owned);
        eventually("it is logged", || logged().is_some());
        let line = logged().expect("it is logged");
        let is_obeyed = |it: char| it.is_control() || it == '\u{202e}';
        assert!(!line.contains(is_obeyed) && line.contains("2J"), "{line:?}");
        server.stop().ok();
    }
}

#[test]
fn the_log_has_the_key_of_each_request_each_run_and_clients_that_left() {
    let tare = tare!();
    let keys = format!("log = 'json'\n[[keys]]\nname = 'ci'\nsha256 = '{}'\n", sha256("k"));
    let server = Server::start_configured(&tare, &keys);
    let ask = |accept: &str, command: &[&str]| {
        let headers =
            [("Content-Type", "application/json"), ("X-API-Key", "k"), ("Accept", accept)];
        let body = json!({ "command": command }).to_string();
        server.send("POST", "/v1/run", &headers, body.as_bytes())
    };
    let answered = |accept: &str, command: &[&str]| {
        let mut bytes = Vec::new();
        ask(accept, command).read_to_end(&mut bytes).expect("an answer");
        Answer::parse(&bytes)
    };
    let plain = answered("application/json", &["false"]).was(200).json();
    // Its status was sent before it was known.
    answered("text/event-stream", &["nope"]).was(200);
    let gone = ask("application/json", &["sleep", "1000"]);
    eventually("it runs", || !tare.footprint().records.is_empty());
    drop(gone);
    eventually("all have ended", || events(&server, "run_ended").len() == 3);
    let ended = events(&server, "run_ended");
    assert_eq!(ended[0]["box_id"], plain["id"]);
    assert_eq!((&ended[0]["cause"], &ended[0]["exit_code"]), (&json!("exited"), &json!(1)));
    let told = (&ended[1]["cause"], &ended[1]["code"]);
    assert_eq!(told, (&json!("start_failed"), &json!("command_not_found")));
    assert_eq!(ended[2]["cause"], "client_gone");
    eventually("all are told of", || events(&server, "request").len() == 3);
    let requests = events(&server, "request");
    for (request, ended) in requests.iter().zip(&ended) {
        assert_eq!(request["request_id"], ended["request_id"]);
        assert_eq!(request["key"], "ci");
    }
    let statuses: Vec<_> = requests.iter().map(|one| &one["status"]).collect();
    assert_eq!(statuses, [&json!(200), &json!(200), &json!(499)]);
    assert_eq!(requests[2]["code"], "client_gone");
    server.stop().ok();
}

#[test]
fn metrics_count_requests_runs_and_boxes() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let run = |request| server.post("/v1/run", &request).was(200);
    run(json!({ "command": ["true"] }));
    run(json!({ "command": ["false"] }));
    run(json!({ "command": ["sleep", "1000"], "timeout_ms": 100 }));
    let body = json!({ "command": ["sleep", "1000"] }).to_string();
    let json = [("Content-Type", "application/json")];
    let gone = server.send("POST", "/v1/run", &json, body.as_bytes());
    eventually("it runs", || !tare.footprint().records.is_empty());
    let scrape = || server.get("/metrics").was(200).text();
    eventually("it is counted", || {
        value(&scrape(), "tare_run_phase_seconds_count{phase=\"start\"}") == Some(4.0)
    });
    assert_eq!(value(&scrape(), "tare_runs_running"), Some(1.0));
    drop(gone);
    eventually("it is ended", || {
        value(&scrape(), "tare_ends_total{cause=\"client_gone\"}") == Some(1.0)
    });
    server.post("/v1/boxes", &json!({ "name": "web" })).was(201);
    let text = scrape();
    for (series, expected) in [
        ("tare_ends_total{cause=\"exited\"}", 2.0),
        ("tare_ends_total{cause=\"timeout\"}", 1.0),
        ("tare_ends_total{cause=\"memory\"}", 0.0),
        ("tare_run_phase_seconds_count{phase=\"create\"}", 4.0),
        ("tare_run_phase_seconds_count{phase=\"start\"}", 4.0),
        ("tare_run_phase_seconds_count{phase=\"run\"}", 3.0),
        ("tare_run_phase_seconds_count{phase=\"teardown\"}", 4.0),
        ("tare_runs_running", 0.0),
        ("tare_boxes_live", 1.0),
        ("tare_boxes_created_total", 1.0),
        ("tare_boxes_removed_total", 0.0),
    ] {
        assert_eq!(value(&text, series), Some(expected), "{series}\n{text}");
    }
    for series in ["process_descriptors", "process_threads", "process_resident_bytes"] {
        let value = value(&text, &format!("tare_{series}"));
        assert!(value.is_some_and(|value| value > 0.0), "{series}");
    }
    let memory = "tare_gauge_used{gauge=\"memory_host\"}";
    eventually("it is measured", || value(&scrape(), memory) > Some(0.0));
    server.delete("/v1/boxes/web?force=true").was(204);
    assert_eq!(value(&scrape(), "tare_boxes_removed_total"), Some(1.0));
    server.stop().ok();
}

/// A leak must be reported at once, not after six days.
#[test]
fn leftovers_of_a_killed_server_are_reclaimed_and_reported() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let body = json!({ "command": ["sleep", "1000"] }).to_string();
    let json = [("Content-Type", "application/json")];
    let stream = server.send("POST", "/v1/run", &json, body.as_bytes());
    let started = "tare_run_phase_seconds_count{phase=\"start\"}";
    eventually("it runs", || value(&server.get("/metrics").text(), started) == Some(1.0));
    let id = tare.footprint().records.first().cloned();
    server.kill();
    drop(stream);
    let server = Server::start(&tare, &["--log", "json"]);
    eventually("it has looked", || server.log().contains("recovered"));
    let log = server.log();
    let line = log.lines().find(|line| line.contains("orphan_reclaimed"));
    let line = line.unwrap_or_else(|| panic!("nothing is told: {log}"));
    let told: Value = serde_json::from_str(line).expect("an object");
    assert_eq!(told["box_id"].as_str(), id.as_deref());
    let text = server.get("/metrics").was(200).text();
    assert_eq!(value(&text, "tare_boxes_reclaimed_total"), Some(1.0));
    server.stop().ok();
}

/// Nothing that a client sends makes a series.
#[test]
fn requests_cannot_add_metric_series() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let ask = |round: usize| {
        server.get(&format!("/nothing-{round}"));
        server.get(&format!("/v1/boxes/none{round}"));
        server.ask(&format!("METHOD{round}"), "/v1/boxes", &[], b"");
    };
    let series = || server.get("/metrics").was(200).text().lines().count();
    ask(0);
    series();
    let before = series();
    (1..20).for_each(ask);
    assert_eq!(series(), before);
    server.stop().ok();
}

#[test]
fn reload_over_http_applies_a_valid_configuration_and_explains_an_invalid_one() {
    let tare = tare!();
    let (_directory, config) = configured("[limits]\ntimeout_max = '1s'\ntimeout = '1s'\n");
    let server = Server::start(&tare, &["--config", &config]);
    let reload = || server.ask("POST", "/v1/reload", &[], b"");
    let two_seconds = json!({ "command": ["true"], "timeout_ms": 2000 });
    for (wrong, why) in
        [("[limits]\ntimeot = '1s'\n", "timeot"), ("[gauges]\nwarn = 90\n", "warn 90")]
    {
        fs::write(&config, wrong).expect("a file");
        let refused = reload().refused(400, "invalid");
        assert!(refused.text().contains(why), "{}", refused.text());
        server.post("/v1/run", &two_seconds).refused(400, "invalid");
    }
    fs::write(&config, "[limits]\nboxes = 0\n").expect("a file");
    reload().was(204);
    server.post("/v1/run", &two_seconds).refused(503, "pressure");
    fs::write(&config, "").expect("a file");
    reload().was(204);
    server.post("/v1/run", &two_seconds).was(200);
    server.stop().ok();
}

/// Every name of ours in a file.
fn names_in(path: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(path).expect("it is packaged");
    let is_name = |byte: char| byte.is_ascii_lowercase() || byte == '_';
    let words = text.split(|byte| !is_name(byte));
    let names = words.filter(|word| word.starts_with("tare_"));
    names.map(str::to_owned).collect()
}

#[test]
fn every_metric_of_the_dashboard_and_the_alerts_exists() {
    let tare = tare!();
    let server = Server::start_configured(&tare, "[metrics]\nboxes = 1\n");
    server.post("/v1/boxes", &json!({ "name": "web" })).was(201);
    let text = server.get("/metrics").was(200).text();
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    for file in ["grafana/tare.json", "prometheus/tare.rules.yml"] {
        let names = names_in(&packaging.join(file));
        assert!(names.len() > 5, "{file} is about us");
        for name in names {
            let has = |line: &str| {
                let rest = line.strip_prefix(&name);
                rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
            };
            assert!(text.lines().any(has), "{file}: {name}");
        }
    }
    server.delete("/v1/boxes/web?force=true").was(204);
    server.stop().ok();
}

#[test]
fn boxes_have_metrics_of_their_own_up_to_a_bound() {
    let tare = tare!();
    let (_directory, config) = configured("");
    let server = Server::start(&tare, &["--config", &config]);
    for name in ["a", "b", "c"] {
        server.post("/v1/boxes", &json!({ "name": name })).was(201);
    }
    let scrape = || server.get("/metrics").was(200).text();
    let series = |text: &str, name: &str| {
        let start = format!("{name}{{");
        text.lines().filter(|line| line.starts_with(&start)).map(str::to_owned).collect::<Vec<_>>()
    };
    let version = format!("tare_build_info{{version=\"{}\",commit=\"", env!("CARGO_PKG_VERSION"));
    let text = scrape();
    assert!(text.lines().any(|line| line.starts_with(&version) && line.ends_with("} 1")), "{text}");
    let names = ["tare_box_memory_bytes", "tare_box_pids", "tare_box_cpu_seconds_total"];
    for name in names {
        assert!(series(&text, name).is_empty(), "none by default");
    }
    assert!(text.contains("\ntare_boxes_unmeasured 3\n"), "{text}");
    fs::write(&config, "[metrics]\nboxes = 2\n").expect("a file");
    server.ask("POST", "/v1/reload", &[], b"").was(204);
    let text = scrape();
    for name in names {
        let found = series(&text, name);
        assert_eq!(found.len(), 2, "{text}");
        assert!(found.iter().all(|line| line.contains("id=\"") && line.contains("name=\"")));
    }
    assert!(text.contains("\ntare_boxes_unmeasured 1\n"), "{text}");
    tare.call(["rm", "-f", "--all"]).ok();
    // A box that is gone leaves no series.
    eventually("no box is measured", || series(&scrape(), names[0]).is_empty());
    server.stop().ok();
}

#[test]
fn systemd_accepts_the_packaged_unit() {
    let tare = tare!();
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let unit = fs::read_to_string(packaging.join("systemd/tare.service")).expect("a unit");
    let program = tare.program().display().to_string();
    let (directory, _) = configured("");
    let path = directory.path().join("tare.service");
    fs::write(&path, unit.replace("/usr/local/bin/tare", &program)).expect("a file");
    let slice = directory.path().join("tare.slice");
    fs::copy(packaging.join("systemd/tare.slice"), &slice).expect("a slice");
    let settings = fs::read_to_string(packaging.join("systemd/tare.toml")).expect("settings");
    assert!(unit.contains("\nSlice=tare.slice\n"), "{unit}");
    assert!(settings.contains("\ncgroup_parent = \"tare.slice\"\n"), "{settings}");
    let mut verify = std::process::Command::new("systemd-analyze");
    let Ok(verified) = verify.arg("verify").arg(&path).arg(&slice).output() else {
        skip!("there is no systemd-analyze here");
    };
    let said = String::from_utf8_lossy(&verified.stderr).into_owned();
    assert!(verified.status.success() && said.is_empty(), "{said}");
}

#[test]
fn systemd_accepts_the_packaged_unit_of_a_user() {
    let tare = tare!();
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let unit = fs::read_to_string(packaging.join("systemd/user/tare.service")).expect("a unit");
    let program = tare.program().display().to_string();
    let (directory, _) = configured("");
    let path = directory.path().join("tare.service");
    fs::write(&path, unit.replace("%h/.local/bin/tare", &program)).expect("a file");
    let mut verify = std::process::Command::new("systemd-analyze");
    verify.args(["verify", "--user"]).arg(&path).env("XDG_RUNTIME_DIR", directory.path());
    let Ok(verified) = verify.output() else {
        skip!("there is no systemd-analyze here");
    };
    let said = String::from_utf8_lossy(&verified.stderr).into_owned();
    // Before systemd 254.
    let is_known = |line: &str| line.contains("Unknown key 'DelegateSubgroup'");
    assert!(verified.status.success() && said.lines().all(is_known), "{said}");
}

/// The kernel killed the server for memory: a thread of it enters the cgroup of each box.
#[test]
fn a_memory_limit_too_small_for_a_box_does_not_end_the_server() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let body = json!({ "command": ["true"], "limits": { "memory_bytes": 1024 } });
    let answer = server.post("/v1/run", &body);
    let message = answer.refused(400, "invalid").json()["error"].to_string();
    assert!(message.contains("the least is 6 MiB"), "{message}");
    server.get("/v1/boxes").was(200);
    server.stop().ok();
}
