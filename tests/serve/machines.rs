//! Boxes in virtual machines over HTTP. Every boot takes some seconds of processor time, so each test
//! makes many claims about few machines.

use std::process::Stdio;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tare_harness::skip::has_program;
use tare_harness::{Answer, Output, Server, Tare, eventually, let_pass, skip, tare};

use crate::machines::{Machines, QEMU, machines};
use crate::serve::configured;
use crate::serve::operating::{events, value};
use crate::serve::quotas::sha256;
use crate::serve::terminal::{BINARY, Socket};

const SERVE: [&str; 4] = ["serve", "--listen", "127.0.0.1:0", "--config"];

impl Machines {
    /// A server that emulates machines, with its configuration in a file that can be changed.
    fn serve(&self, config: &str) -> Server {
        Server::start_command(&self.tare, self.command(&[&SERVE[..], &[config]].concat()))
    }
}

fn metric(server: &Server, series: &str) -> f64 {
    let text = server.get("/metrics").was(200).text();
    value(&text, series).unwrap_or_else(|| panic!("no {series} in {text}"))
}

fn create(server: &Server, headers: &[(&str, &str)], body: &Value) -> Answer {
    let headers = [&[("Content-Type", "application/json")], headers].concat();
    server.ask("POST", "/v1/boxes", &headers, body.to_string().as_bytes())
}

/// Makes the same request six times at once.
fn six(ask: impl Fn() -> Answer + Sync) -> Vec<Answer> {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..6).map(|_| scope.spawn(&ask)).collect();
        threads.into_iter().map(|thread| thread.join().expect("an answer")).collect()
    })
}

fn with_status(answers: &[Answer], status: u16) -> usize {
    answers.iter().filter(|answer| answer.status == status).count()
}

#[test]
fn a_machine_does_over_http_what_a_native_box_does_and_outlives_its_server() {
    let machines = machines!();
    let (_directory, config) = configured("log = 'json'\n[vm]\naccel = 'tcg'\nboxes = 1\n");
    let server = machines.serve(&config);
    let command = ["sh", "-c", "echo up; exec sleep 1000"];
    let body = json!({ "driver": "vm", "name": "web", "command": command });
    let answers = thread::scope(|scope| {
        // An exec during the boot waits for the machine.
        let early = scope.spawn(|| {
            eventually("it starts", || server.get("/v1/boxes/web").status == 200);
            exec(&server, &["echo", "early"])
        });
        let answers = six(|| create(&server, &[("Idempotency-Key", "one")], &body));
        let early = early.join().expect("an answer").was(200).json();
        assert_eq!(early["stdout"], "early\n", "{early}");
        answers
    });
    assert_eq!((with_status(&answers, 201), with_status(&answers, 200)), (1, 5), "{answers:?}");
    let made = answers[0].json();
    assert!(answers.iter().all(|one| one.json()["id"] == made["id"]));
    assert_eq!((&made["driver"], &made["state"]), (&json!("vm"), &json!("running")));
    assert_eq!(metric(&server, "tare_machine_boot_seconds_count "), 1.0);
    assert_eq!(metric(&server, "tare_machines_live "), 1.0);
    let promised = |server: &Server| metric(server, "tare_gauge_promised{gauge=\"memory_host\"} ");
    assert_eq!(promised(&server), f64::from(512 << 20));
    // One more does not fit. A native box does.
    create(&server, &[], &json!({ "driver": "vm" })).refused(503, "machines_full");
    let native = create(&server, &[], &json!({ "driver": "native" })).was(201).json();
    assert_eq!(native["driver"], "native");
    machines.tare.remove(native["id"].as_str().expect("an id"));
    uses(&server);
    // The machine lives on without its server, and the next one finds it.
    server.kill();
    let server = machines.serve(&config);
    eventually("it has found the machine", || metric(&server, "tare_machines_live ") == 1.0);
    assert_eq!(promised(&server), f64::from(512 << 20));
    let found = server.get("/v1/boxes").was(200).json();
    assert_eq!(
        (&found["boxes"][0]["id"], &found["boxes"][0]["driver"]),
        (&made["id"], &"vm".into())
    );
    assert_eq!(exec(&server, &["echo", "again"]).was(200).json()["stdout"], "again\n");
    create(&server, &[], &json!({ "driver": "vm" })).refused(503, "machines_full");
    ends(&server);
    eventually("it counts no more", || metric(&server, "tare_machines_live ") == 0.0);
    server.stop().ok();
}

fn exec(server: &Server, command: &[&str]) -> Answer {
    server.post("/v1/boxes/web/exec", &json!({ "command": command }))
}

/// Uses the routes of a box that lives.
fn uses(server: &Server) {
    let act = |what: &str, body: Value| server.post(&format!("/v1/boxes/web/{what}"), &body);
    let ran =
        act("exec", json!({ "command": ["sh", "-c", "cat; echo e >&2; exit 5"], "stdin": "x" }));
    let ran = ran.was(200).json();
    let seen = [&ran["stdout"], &ran["stderr"], &ran["exit_code"]];
    assert_eq!(seen, [&json!("x"), &json!("e\n"), &json!(5)], "{ran}");
    let late = act("exec", json!({ "command": ["sleep", "1000"], "timeout_ms": 100 }));
    assert_eq!(late.was(200).json()["cause"], "timeout");
    let code = act("exec", json!({ "language": "bash", "code": "uname -s" })).was(200).json();
    assert_eq!(code["stdout"], "Linux\n");
    let detached = act("exec", json!({ "command": ["sleep", "1000"], "detach": true }));
    let exec = detached.was(202).json()["id"].as_str().expect("an id").to_owned();
    act(&format!("execs/{exec}/signal"), json!({ "signal": "TERM" })).was(204);
    let path = format!("/v1/boxes/web/execs/{exec}");
    eventually("it has ended", || server.get(&path).was(200).json()["exit_code"] == 143);
    let mut terminal = Socket::open(server, "command=sh&rows=9&columns=40");
    terminal.send(BINARY, b"stty size\n");
    terminal.read_until("9 40");
    drop(terminal);
    let headers = [("Content-Type", "application/json"), ("Accept", "application/x-ndjson")];
    let echo = br#"{"command": ["echo", "streamed"]}"#;
    let streamed = server.ask("POST", "/v1/boxes/web/exec", &headers, echo).was(200).text();
    assert!(streamed.contains("streamed") && streamed.contains("exit_code"), "{streamed}");
    let file = "/v1/boxes/web/files/work/a/b";
    server.ask("PUT", file, &[], b"content").was(204);
    assert_eq!(server.get(file).was(200).text(), "content");
    let list = server.get("/v1/boxes/web/files/work/a?list=true").was(200).json();
    assert_eq!(list["entries"][0]["name"], "b");
    let archive = server.get("/v1/boxes/web/files/work/a?tar=true").was(200).body;
    assert!(archive.windows(7).any(|it| it == b"content"));
    server.delete(file).was(204);
    server.get(file).refused(404, "no_such_file");
    assert_eq!(server.get("/v1/boxes/web/logs").was(200).text(), "up\n");
    let stats = server.get("/v1/boxes/web/stats").was(200).json();
    assert!(stats["memory_bytes"].as_u64() > Some(100 << 20), "{stats}");
    act("pause", json!({})).was(200);
    act("exec", json!({ "command": ["true"] })).refused(409, "conflict");
    act("resume", json!({})).was(200);
    act("update", json!({ "limits": { "cpus": 1.5 }, "lease_ms": 3_600_000 })).was(200);
    act("rename", json!({ "name": "other" })).was(200);
    server.post("/v1/boxes/other/rename", &json!({ "name": "web" })).was(200);
    let seen = server.get("/v1/boxes/web").was(200).json();
    assert_eq!((&seen["spec"]["driver"], &seen["spec"]["accel"]), (&json!("vm"), &json!("tcg")));
    for event in ["box_created", "box_paused", "box_resumed", "box_limits_changed"] {
        assert!(!events(server, event).is_empty(), "{event}");
    }
}

/// Ends the box, and reads what is left to read.
fn ends(server: &Server) {
    let waited = server.get("/v1/boxes/web/wait?timeout_ms=1").was(200).json();
    assert_eq!(waited["ended"], false);
    let stopped = server.post("/v1/boxes/web/stop", &json!({ "grace_ms": 0 })).was(200).json();
    assert_eq!((&stopped["state"], &stopped["cause"]), (&json!("exited"), &json!("stopped")));
    let explained = server.get("/v1/boxes/web/explain").was(200).json();
    let sentence = explained["sentence"].as_str().expect("a sentence");
    assert!(sentence.starts_with("Stopped by POST /v1/boxes/web/stop "), "{explained}");
    assert!(sentence.ends_with(", and killed after its grace."), "{explained}");
    let receipt = server.delete("/v1/boxes/web?receipt=true").was(200).json();
    let item = |kind: &str| {
        let held = receipt["held"].as_array().expect("items").iter();
        let found = held.clone().find(|item| item["kind"] == kind);
        found.unwrap_or_else(|| panic!("no {kind} in {receipt}")).clone()
    };
    assert_eq!(receipt["complete"], true, "{receipt}");
    let monitor = item("monitor");
    assert!(monitor["count"] == 1 && monitor["gone"].is_object(), "{monitor}");
    assert!(item("guest_memory")["not_observed"].is_string(), "{receipt}");
}

const RUN_TIMEOUT: Duration = Duration::from_secs(8);

#[test]
fn a_run_in_a_machine_has_its_files_and_its_timeout_begins_after_the_boot() {
    let machines = machines!();
    let (_directory, config) =
        configured("[vm]\naccel = 'tcg'\n[boxes]\ndriver = 'vm'\n[pool.box]\nwarm = 1\n");
    let server = machines.serve(&config);
    let body = json!({
        "language": "bash",
        "code": "cat in.txt; uname -r; echo out > out.txt",
        "files": [{ "path": "in.txt", "content": "in\n" }],
        "outputs": ["out.txt"],
        "timeout_ms": RUN_TIMEOUT.as_millis(),
        "receipt": true,
    });
    let ran = thread::scope(|scope| {
        let run = scope.spawn(|| server.post("/v1/run", &body));
        // The machine boots for longer than its command may run.
        let mut monitor = None;
        eventually("its monitor runs", || {
            let records = machines.tare.footprint().records;
            monitor = records.first().and_then(|id| machines.monitor_if_any(id));
            monitor.is_some() || run.is_finished()
        });
        let monitor = Pid::from_raw(monitor.expect("a monitor")).expect("a pid");
        kill_process(monitor, Signal::STOP).expect("it lives");
        let_pass(RUN_TIMEOUT);
        kill_process(monitor, Signal::CONT).expect("it lives");
        run.join().expect("an answer").was(200).json()
    });
    assert_eq!((&ran["exit_code"], &ran["driver"]), (&json!(0), &json!("vm")), "{ran}");
    assert_eq!((&ran["warm"], &ran["files"][0]["path"]), (&json!("off"), &json!("out.txt")));
    assert!(ran["stdout"].as_str().is_some_and(|it| it.starts_with("in\n")), "{ran}");
    assert!(ran["receipt"].to_string().contains("guest_memory"), "{ran}");
    // One name is one machine.
    let body = json!({ "name": "web" });
    let answers = six(|| create(&server, &[], &body));
    assert_eq!((with_status(&answers, 201), with_status(&answers, 409)), (1, 5), "{answers:?}");
    assert_eq!(metric(&server, "tare_machine_boot_seconds_count "), 2.0);
    server.delete("/v1/boxes/web?force=true").was(204);
    server
        .post("/v1/run", &json!({ "command": ["true"], "driver": "native" }))
        .refused(403, "driver_forbidden");
    // A boot that fails is one answer with its reason, after a reload that gives it no time.
    std::fs::write(&config, "[vm]\naccel = 'tcg'\nboot = '10ms'\n").expect("the test's file");
    server.post("/v1/reload", &json!({})).was(204);
    let body = json!({ "command": ["true"], "driver": "vm" });
    let failed = server.post("/v1/run", &body).refused(503, "machine_not_started");
    assert!(failed.text().contains("within 10ms"), "{}", failed.text());
    create(&server, &[], &json!({ "driver": "vm" })).refused(503, "machine_not_started");
    let before = server.vitals_at_rest().descriptors;
    for _boot in 0..4 {
        server.post("/v1/run", &body).refused(503, "machine_not_started");
        create(&server, &[], &body).refused(503, "machine_not_started");
    }
    eventually("descriptors are where they were", || server.vitals().descriptors <= before);
    let failed = metric(&server, "tare_machine_boots_failed_total{reason=\"timeout\"} ");
    assert_eq!((failed, metric(&server, "tare_machines_live ")), (10.0, 0.0));
    server.stop().ok();
}

/// No machine of this test boots to its end.
#[test]
fn a_boot_ends_with_its_client_and_with_its_server() {
    let machines = machines!();
    let (_directory, config) = configured("[vm]\naccel = 'tcg'\n");
    let server = machines.serve(&config);
    let boxes = || machines.tare.footprint().records.len();
    let json = [("Content-Type", "application/json")];
    let body = json!({ "command": ["sleep", "1000"], "driver": "vm" }).to_string();
    let client = server.send("POST", "/v1/run", &json, body.as_bytes());
    eventually("it boots", || boxes() == 1);
    drop(client);
    eventually("its box is gone", || boxes() == 0);
    eventually("it does not count", || metric(&server, "tare_machines_live ") == 0.0);
    let clients =
        ["/v1/run", "/v1/boxes"].map(|path| server.send("POST", path, &json, body.as_bytes()));
    eventually("they boot", || boxes() >= 2);
    server.kill();
    drop(clients);
    let server = machines.serve(&config);
    eventually("nothing is left", || boxes() == 0);
    assert_eq!(server.get("/v1/boxes?all=true").was(200).json()["boxes"], json!([]));
    // A configuration without a usable monitor changes nothing.
    std::fs::write(&config, "[boxes]\ndriver = 'vm'\n[vm]\nmonitor = '/bin/true'\n")
        .expect("the test's file");
    let refused = server.post("/v1/reload", &json!({})).was(400);
    assert!(refused.text().contains("[vm] monitor"), "{}", refused.text());
    assert_eq!(server.post("/v1/run", &json!({ "command": ["true"] })).json()["driver"], "native");
    server.stop().ok();
}

#[test]
fn wrong_requests_for_machines_are_refused_with_a_hint_and_make_nothing() {
    let tare = tare!();
    let (_directory, config) = configured("[vm]\naccel = 'tcg'\n");
    let server = without_kernels(&tare, &config);
    let refused = |body: &str, mentions: &[&str]| {
        let json = [("Content-Type", "application/json")];
        for path in ["/v1/run", "/v1/boxes"] {
            let body = match path {
                "/v1/run" => body.replacen('{', "{\"command\":[\"true\"],", 1),
                _ => body.to_owned(),
            };
            let answer = server.ask("POST", path, &json, body.as_bytes()).was(400).text();
            assert!(mentions.iter().all(|it| answer.contains(it)), "{body}: {answer}");
        }
    };
    refused(r#"{"driver": "container"}"#, &["native", "vm"]);
    refused(r#"{"driver": "vm", "accel": "hvf"}"#, &["kvm", "tcg", "auto"]);
    refused(r#"{"accel": "tcg"}"#, &["accel", "driver"]);
    refused(r#"{"driver": "native", "accel": "tcg"}"#, &["accel", "driver"]);
    let small = r#"{"driver": "vm", "limits": {"memory_bytes": 100000000}}"#;
    refused(small, &["too small for this machine", "256 MiB"]);
    let keep = create(&server, &[], &json!({ "driver": "vm", "keep": true })).was(400).text();
    assert!(keep.contains("outlive") && keep.contains("leave 'keep' out"), "{keep}");
    if has_program(QEMU) {
        refused(r#"{"driver": "vm"}"#, &["no kernel is chosen", "tare vm kernel fetch"]);
    }
    if kvm(&tare) != "ok" {
        refused(r#"{"driver": "vm", "accel": "kvm"}"#, &["KVM", r#"\"accel\": \"tcg\""#]);
    }
    assert_eq!(metric(&server, "tare_machines_live "), 0.0);
    server.stop().ok();
}

/// What `tare doctor` says about KVM.
fn kvm(tare: &Tare) -> Value {
    tare.json(["doctor", "--json"])["vm"]["kvm"].clone()
}

fn without_kernels(tare: &Tare, config: &str) -> Server {
    let mut command = tare.command([&SERVE[..], &[config]].concat());
    command.env("TARE_VM_DIR", "/no/such/directory");
    Server::start_command(tare, command)
}

#[test]
fn a_key_needs_the_right_to_ask_for_machines() {
    let tare = tare!();
    let key = |name: &str, more: &str| {
        format!("[[keys]]\nname = '{name}'\nsha256 = '{}'\n{more}", sha256(name))
    };
    let (_directory, config) = configured(&key("ci", ""));
    let server = without_kernels(&tare, &config);
    let body = json!({ "driver": "vm", "accel": "tcg" });
    let refused = create(&server, &[("X-API-Key", "ci")], &body).refused(403, "driver_forbidden");
    assert!(refused.text().contains("vm = true"), "{}", refused.text());
    server.stop().ok();
}

#[test]
fn a_server_that_cannot_make_its_machines_does_not_start_and_names_the_setting() {
    let tare = tare!();
    if !has_program(QEMU) {
        skip!("no {QEMU}");
    }
    let start = |text: &str| -> Output {
        let (_directory, config) = configured(text);
        let mut command = tare.command([&SERVE[..], &[&*config]].concat());
        command.env("TARE_VM_DIR", "/no/such/directory").stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        tare.start_command(command).wait()
    };
    let key = format!("[[keys]]\nname = 'ci'\nvm = true\nsha256 = '{}'\n", sha256("ci"));
    let has_kvm = kvm(&tare) == "ok";
    for asks in ["[boxes]\ndriver = 'vm'\n", "[librechat.boxes]\ndriver = 'vm'\n", &key] {
        let with = |vm: &str| start(&format!("{asks}[vm]\n{vm}"));
        with("monitor = '/bin/true'").exited(1).said(&["[vm] monitor", "not QEMU"]);
        with("accel = 'tcg'").exited(1).said(&["[vm] kernel", "tare vm kernel fetch"]);
        if !has_kvm {
            with("").exited(1).said(&["[vm] accel", "KVM", "accel = \"tcg\""]);
        }
    }
    let (_directory, config) = configured("[vm]\nmonitor = '/bin/true'");
    without_kernels(&tare, &config).stop().ok();
}
