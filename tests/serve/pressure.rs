//! Gauges: when a resource runs out, the server refuses new boxes with the reason, everything else
//! continues, and the server recovers by itself.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::{Value, json};
use tare_harness::skip::is_root;
use tare_harness::{Answer, Running, Server, Tare, eventually, hierarchies, skip, tare};

use crate::serve::configured;
use crate::serve::operating::value;

/// As many boxes as there can be, far fewer than this.
const MANY: usize = 200;

#[track_caller]
fn create(server: &Server) -> Answer {
    server.post("/v1/boxes", &json!({ "command": ["sleep", "1000"] }))
}

fn run(server: &Server) -> Answer {
    server.post("/v1/run", &json!({ "command": ["true"] }))
}

fn id(answer: &Answer) -> String {
    let made = answer.json();
    made["id"].as_str().expect("an id").to_owned()
}

/// Checks that new boxes are refused with the reason.
#[track_caller]
fn refuses_boxes_for(server: &Server, gauge: &str) {
    for answer in [create(server), run(server), server.get("/ready")] {
        let answer = answer.refused(503, "pressure");
        let message = answer.json()["error"]["message"].to_string();
        assert!(message.contains(gauge), "{message}");
        assert!(answer.header("retry-after").is_some());
    }
}

/// Checks that everything except a new box works.
#[track_caller]
fn cares_for(server: &Server, ids: &[String]) {
    assert_eq!(server.get("/health").was(200).json()["status"], "ok");
    let listed = server.get("/v1/boxes").was(200).json();
    let running = |one: &Value| one["state"] == "running";
    let listed = listed["boxes"].as_array().expect("boxes");
    assert_eq!(listed.iter().filter(|one| running(one)).count(), ids.len());
    let [first, others @ ..] = ids else {
        panic!("there are boxes");
    };
    let stop = format!("/v1/boxes/{first}/stop");
    let stopped = server.post(&stop, &json!({ "grace_ms": 5000 })).was(200);
    assert_eq!(stopped.json()["state"], "exited");
    server.delete(&format!("/v1/boxes/{first}")).was(204);
    for id in others {
        server.get(&format!("/v1/boxes/{id}")).was(200);
        server.delete(&format!("/v1/boxes/{id}?force=true")).was(204);
    }
}

#[track_caller]
fn recovers(server: &Server) {
    eventually("there is room again", || run(server).status == 200);
    server.get("/ready").was(200);
}

fn serve(tare: &Tare, before: &str) -> Server {
    serve_with(tare, before, "")
}

pub fn serve_with(tare: &Tare, before: &str, config: &str) -> Server {
    let (directory, config) = configured(config);
    let script = format!("{before} \"$TARE\" serve --listen 127.0.0.1:0 --config {config}");
    let server = Server::start_command(tare, tare.shell_command(&script));
    drop(directory);
    server
}

#[test]
fn with_128_descriptors_boxes_are_refused_early_and_other_requests_succeed() {
    let tare = tare!();
    let server = serve(&tare, "exec prlimit --nofile=128:128");
    let mut ids = Vec::new();
    let refused = loop {
        let answer = create(&server);
        match answer.status {
            201 => ids.push(id(&answer)),
            _ => break answer,
        }
        assert!(ids.len() < MANY, "the server refuses no box");
    };
    refused.refused(503, "pressure");
    assert!(ids.len() > 8, "{} boxes are few", ids.len());
    refuses_boxes_for(&server, "descriptors_process");
    cares_for(&server, &ids);
    recovers(&server);
    server.stop().ok();
}

#[test]
fn with_128_descriptors_concurrent_requests_are_served_or_refused_in_time() {
    let tare = tare!();
    let server = serve(&tare, "exec prlimit --nofile=128:128");
    let answers = std::thread::scope(|threads| {
        let clients: Vec<_> = (0..64).map(|_| threads.spawn(|| run(&server))).collect();
        let answers = clients.into_iter().map(|client| client.join());
        answers.map(|answer| answer.expect("an answer")).collect::<Vec<_>>()
    });
    for answer in &answers {
        assert!([200, 503].contains(&answer.status), "{}", answer.text());
        assert_eq!(answer.status == 503, answer.header("retry-after").is_some());
    }
    assert!(answers.iter().any(|answer| answer.status == 200));
    recovers(&server);
    assert!(tare.footprint().records.is_empty());
    server.stop().ok();
}

/// 241 of 300, as it once was before everything failed.
#[test]
fn at_241_of_300_processes_the_gauge_alerts_and_at_285_boxes_are_refused() {
    let tare = tare!();
    let Some(around) = Around::new("300") else {
        skip!("no cgroup with a limit of processes can be made here");
    };
    let config = "[admission]\npids_share = 0\n";
    let server = serve_with(&tare, &format!("{}; exec", around.enter()), config);
    let ids = [id(&create(&server).was(201)), id(&create(&server).was(201))];
    let sleepers = around.fill(&tare, 241);
    eventually("it is told", || {
        let log = server.log();
        let mut lines = log.lines().filter(|line| line.contains("gauge_changed"));
        lines.any(|line| line.contains("pids_cgroup") && line.contains("to=\"alert\""))
    });
    run(&server).was(200);
    let more = around.fill(&tare, 290 - around.current());
    eventually("it is full", || run(&server).status == 503);
    refuses_boxes_for(&server, "pids_cgroup");
    cares_for(&server, &ids);
    for mut asleep in [sleepers, more] {
        asleep.close_stdin();
        asleep.wait();
    }
    recovers(&server);
    server.stop().ok();
}

#[test]
fn boxes_that_wait_are_given_back_at_the_alert_level_and_made_again_after_it() {
    let tare = tare!();
    let Some(around) = Around::new("300") else {
        skip!("no cgroup with a limit of processes can be made here");
    };
    let config = "[admission]\npids_share = 0\n[pool.box]\nwarm = 3\n";
    let server = serve_with(&tare, &format!("{}; exec", around.enter()), config);
    let waiting = || {
        let text = server.get("/metrics").was(200).text();
        value(&text, "tare_pool_members{pool=\"box\",state=\"waiting\"}")
    };
    eventually("the pool is full", || waiting() == Some(3.0));
    let mut sleepers = around.fill(&tare, 250 - around.current());
    eventually("no box waits", || waiting() == Some(0.0) && tare.footprint().records.is_empty());
    // A request needs no box that waits.
    assert_eq!(run(&server).was(200).json()["warm"], "off");
    assert_eq!(waiting(), Some(0.0));
    sleepers.close_stdin();
    sleepers.wait();
    eventually("the pool is full again", || waiting() == Some(3.0));
    eventually("a run gets a box that waited", || run(&server).was(200).json()["warm"] == "box");
    server.stop().ok();
}

/// Many disks are as full as that for years.
#[test]
fn boxes_wait_on_a_host_whose_disk_is_at_the_alert_level() {
    let tare = tare!();
    let Some(disk) = SmallDisk::new(&tare) else {
        skip!("only root can mount a small disk");
    };
    let room = rustix::fs::statvfs(&disk.root).expect("it is mounted");
    let bytes = usize::try_from(room.f_blocks * room.f_frsize).expect("it is small");
    fs::write(disk.root.join("filling"), vec![0; bytes * 83 / 100]).expect("there is room");
    let server = Server::start_configured(&tare, "[pool.box]\nwarm = 1\n");
    eventually("a run gets a box that waited", || run(&server).was(200).json()["warm"] == "box");
    server.stop().ok();
}

#[test]
fn on_a_full_disk_boxes_are_refused_and_other_requests_succeed() {
    let tare = tare!();
    let Some(disk) = SmallDisk::new(&tare) else {
        skip!("only root can mount a small disk");
    };
    let server = Server::start(&tare, &[]);
    let ids = [id(&create(&server).was(201)), id(&create(&server).was(201))];
    let filling = disk.root.join("filling");
    disk.fill(&filling);
    eventually("it is full", || run(&server).status == 503);
    refuses_boxes_for(&server, "disk_bytes");
    cares_for(&server, &ids);
    fs::remove_file(&filling).expect("it is ours");
    recovers(&server);
    server.stop().ok();
}

/// With a share of 1, no run starts that then lacks processes.
#[test]
fn with_300_processes_40_runs_of_20_complete_or_are_refused_with_the_reason() {
    let tare = tare!();
    let Some(around) = Around::new("300") else {
        skip!("no cgroup with a limit of processes can be made here");
    };
    let config = "[admission]\npids_share = 1\n";
    let server = serve_with(&tare, &format!("{}; exec", around.enter()), config);
    let script = "i=1; while [ $i -lt 20 ]; do sleep 0.5 & i=$((i+1)); done; wait; echo all";
    let body = json!({ "command": ["sh", "-c", script], "limits": { "pids": 24 } });
    let mut most = 0;
    let answers = std::thread::scope(|threads| {
        let clients: Vec<_> =
            (0..40).map(|_| threads.spawn(|| server.post("/v1/run", &body))).collect();
        while clients.iter().any(|client| !client.is_finished()) {
            most = most.max(around.current());
            std::thread::yield_now();
        }
        let answers = clients.into_iter().map(|client| client.join());
        answers.map(|answer| answer.expect("an answer")).collect::<Vec<_>>()
    });
    for answer in &answers {
        if answer.status == 200 {
            let ran = answer.json();
            assert_eq!([&ran["stdout"], &ran["stderr"]], ["all\n", ""], "{ran}");
        } else {
            assert_eq!(answer.status, 503, "{}", answer.text());
            assert!(answer.text().contains("pids_cgroup"), "{}", answer.text());
        }
    }
    let ran = answers.iter().filter(|answer| answer.status == 200).count();
    assert!(ran >= 10, "{ran} of 40 ran");
    assert!(most > 100, "boxes do not count in the server's cgroup: at most {most} processes");
    let too_many = json!({ "command": ["true"], "limits": { "pids": 300 } });
    let refused = server.post("/v1/run", &too_many).refused(503, "pressure");
    assert!(refused.text().contains("pids_cgroup"), "{}", refused.text());
    server.post("/v1/run", &body).was(200);
    server.stop().ok();
}

/// A box of which nothing is used yet counts by what it was promised.
#[test]
fn promises_to_boxes_are_metrics_and_a_box_or_update_that_cannot_fit_is_refused_at_once() {
    let tare = tare!();
    let text = "[limits]\nmemory_max = '4000t'\n[admission]\npids_share = 0.5\nmemory_share = 1\n";
    let (_directory, config) = configured(text);
    let server = Server::start(&tare, &["--config", &config]);
    let promised = |gauge: &str| {
        let text = server.get("/metrics").was(200).text();
        let name = format!("tare_gauge_promised{{gauge=\"{gauge}\"}} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&name));
        value.expect("it is measured").parse::<u64>().expect("a number")
    };
    assert_eq!([promised("pids_host"), promised("memory_host")], [0, 0]);
    let limits = json!({ "pids": 99, "memory_bytes": 64 << 20 });
    let made = server.post("/v1/boxes", &json!({ "command": ["sleep", "1000"], "limits": limits }));
    let made = id(&made.was(201));
    assert_eq!([promised("pids_host"), promised("memory_host")], [50, 64 << 20]);
    let large = json!({ "command": ["true"], "limits": { "memory_bytes": 1_u64 << 50 } });
    for path in ["/v1/run", "/v1/boxes"] {
        let refused = server.post(path, &large).refused(503, "pressure");
        let message = refused.json()["error"]["message"].to_string();
        assert!(message.contains("memory_host") && message.contains("promised"), "{message}");
    }
    // An update changes what the box is promised. One that does not fit changes nothing.
    let path = format!("/v1/boxes/{made}/update");
    let update = |limits: Value| server.post(&path, &json!({ "limits": limits }));
    update(json!({ "pids": 199 })).was(200);
    assert_eq!([promised("pids_host"), promised("memory_host")], [100, 64 << 20]);
    let refused = update(json!({ "pids": 299, "memory_bytes": 1_u64 << 50 }));
    let message = refused.refused(503, "pressure").json()["error"]["message"].to_string();
    assert!(message.contains("memory_host") && message.contains("promised"), "{message}");
    assert_eq!([promised("pids_host"), promised("memory_host")], [100, 64 << 20]);
    update(json!({ "pids": 49, "memory_bytes": 32 << 20 })).was(200);
    assert_eq!([promised("pids_host"), promised("memory_host")], [25, 32 << 20]);
    // Another process asks no server. The server sees the new limits when it looks at all boxes.
    tare.call(["update", &made, "--pids", "299", "--memory", "128m"]).ok();
    eventually("the server has looked", || promised("pids_host") == 150);
    assert_eq!(promised("memory_host"), 128 << 20);
    server.delete(&format!("/v1/boxes/{made}?force=true")).was(204);
    eventually("nothing is promised", || promised("pids_host") == 0);
    server.stop().ok();
}

/// Ended boxes that are kept do not count.
#[test]
fn the_maximum_of_live_boxes_is_exact() {
    let tare = tare!();
    let (_directory, config) = configured("[limits]\nboxes = 3\n");
    let server = Server::start(&tare, &["--config", &config]);
    let ids: Vec<String> = (0..3).map(|_| id(&create(&server).was(201))).collect();
    refuses_boxes_for(&server, "3 of 3 boxes in use");
    server.post(&format!("/v1/boxes/{}/stop", ids[0]), &json!({})).was(200);
    eventually("the one that ended does not count", || run(&server).status == 200);
    let answers: Vec<u16> = std::thread::scope(|threads| {
        let clients: Vec<_> = (0..8).map(|_| threads.spawn(|| create(&server).status)).collect();
        let joined = clients.into_iter().map(|client| client.join());
        joined.map(|status| status.expect("an answer")).collect()
    });
    let made = answers.iter().filter(|status| **status == 201).count();
    assert_eq!(made, 1, "{answers:?}");
    tare.call(["rm", "-f", "--all"]).ok();
    server.stop().ok();
}

/// A box that is ending still costs: its place is free when it is gone, and not before.
#[test]
fn a_box_that_is_ending_counts_until_it_is_gone() {
    let tare = tare!();
    let (_directory, config) = configured("[limits]\nboxes = 1\n");
    let server = Server::start(&tare, &["--config", &config]);
    let script = "trap '' TERM; echo up; while :; do sleep 1; done";
    let made = server.post("/v1/boxes", &json!({"command": ["sh", "-c", script]}));
    let ending = id(&made.was(201));
    tare.logged(&ending, "up");
    let content = ("Content-Type", "application/json");
    let path = format!("/v1/boxes/{ending}/stop");
    let stop = server.send("POST", &path, &[content], br#"{"grace_ms":3000}"#);
    eventually("it is being stopped", || tare.state(&ending) == "stopping");
    let mut refused = 0;
    loop {
        let status = create(&server).status;
        // It may have ended after the answer.
        if tare.state(&ending) != "stopping" {
            break;
        }
        assert_ne!(status, 201);
        refused += 1;
    }
    assert!(refused > 0);
    eventually("there is room for another one", || {
        tare.list().len() > 1 || create(&server).status == 201
    });
    drop(stop);
    tare.call(["rm", "-f", "--all"]).ok();
    server.stop().ok();
}

/// An alert starts the cleanup at once, not with the next request.
#[test]
fn an_alert_removes_leftovers_at_once() {
    let tare = tare!();
    let (_directory, config) = configured("[limits]\nboxes = 2\n");
    let server = Server::start(&tare, &["--config", &config]);
    eventually("it has looked", || server.log().contains("recovered"));
    let killed = tare.spawn(["--", "sh", "-c", "echo runs; sleep 1000"]);
    killed.see("runs");
    killed.signal(rustix::process::Signal::KILL);
    killed.wait();
    let left = tare.footprint().records;
    let left = left.first().expect("it left a record");
    let ids = [id(&create(&server).was(201)), id(&create(&server).was(201))];
    eventually("it is reclaimed", || {
        let log = server.log();
        let mut lines = log.lines().filter(|line| line.contains("orphan_reclaimed"));
        lines.any(|line| line.contains(left.as_str()))
    });
    cares_for(&server, &ids);
    server.stop().ok();
}

#[test]
fn a_level_change_is_reported_once_to_log_events_and_hook() {
    let tare = tare!();
    let (directory, config) = configured("");
    let told = directory.path().join("told");
    let script = format!("cat >> {}", told.display());
    let text = format!(
        "[limits]\nboxes = 2\n[gauges]\nwarn = 40\nalert = 90\nfull = 95\n\
         [hooks]\ncommand = ['sh', '-c', '{script}']\n"
    );
    fs::write(&config, text).expect("a file");
    let server = Server::start(&tare, &["--config", &config]);
    let box_id = id(&create(&server).was(201));
    let told = || fs::read_to_string(&told).unwrap_or_default();
    eventually("the hook is called", || told().ends_with('\n'));
    let said: Value = serde_json::from_str(told().trim()).expect("one object");
    assert_eq!(
        [&said["event"], &said["gauge"], &said["from"], &said["to"]],
        ["gauge_changed", "boxes", "normal", "warn"]
    );
    assert_eq!([&said["used"], &said["limit"]], [1, 2]);
    server.delete(&format!("/v1/boxes/{box_id}?force=true")).was(204);
    eventually("it is told again", || told().lines().count() == 2);
    let log = server.stop().ok().stderr_text();
    let changes = log.lines().filter(|line| line.contains("gauge=\"boxes\""));
    assert_eq!(changes.count(), 2, "{log}");
}

#[test]
fn a_failing_or_hanging_hook_is_reported_and_delays_nothing() {
    let tare = tare!();
    let text = "[limits]\nboxes = 2\n[gauges]\nwarn = 40\nalert = 90\nfull = 95\n\
                [hooks]\ncommand = ['sleep', '1000']\ntimeout = '300ms'\n";
    let (_directory, config) = configured(text);
    let server = Server::start(&tare, &["--config", &config]);
    let box_id = id(&create(&server).was(201));
    eventually("the change is told", || server.log().contains("gauge_changed"));
    server.delete(&format!("/v1/boxes/{box_id}?force=true")).was(204);
    eventually("the failure is logged", || {
        let is_logged =
            |line: &str| line.contains("hook_failed") && line.contains("hook=\"command\"");
        server.log().lines().any(is_logged)
    });
    server.stop().ok();
}

/// A cgroup with a limit of processes.
struct Around {
    directory: PathBuf,
}

impl Around {
    fn new(pids_max: &str) -> Option<Self> {
        let name = format!("crowded-{}", std::process::id());
        let roots = hierarchies().into_iter().filter(|_| is_root());
        let mut made = roots.filter_map(|root| {
            let directory = root.join(&name);
            fs::create_dir(&directory).ok()?;
            let around = Self { directory };
            fs::write(around.directory.join("pids.max"), pids_max).ok()?;
            Some(around)
        });
        made.next()
    }

    fn enter(&self) -> String {
        format!("echo 0 > {}/cgroup.procs", self.directory.display())
    }

    fn current(&self) -> usize {
        let text = fs::read_to_string(self.directory.join("pids.current"));
        text.expect("it is there").trim().parse().expect("a number")
    }

    /// Starts this many processes, which run until their input ends.
    fn fill(&self, tare: &Tare, count: usize) -> Running {
        let script = format!(
            "{}; exec 3<&0; i=1; while [ $i -lt {count} ]; do cat <&3 & i=$((i+1)); done; \
             echo all; wait",
            self.enter()
        );
        let mut command = tare.shell_command(&script);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let running = tare.start_command(command);
        running.see("all");
        running
    }
}

impl Drop for Around {
    fn drop(&mut self) {
        // What cannot be removed is in the way of the next one, which says so.
        let _ = fs::remove_dir(&self.directory);
    }
}

/// The state root is a disk of its own, with little room.
struct SmallDisk {
    root: PathBuf,
}

impl SmallDisk {
    fn new(tare: &Tare) -> Option<Self> {
        let root = tare.state_root();
        is_root().then_some(())?;
        let flags = MountFlags::empty();
        mount("small", &root, "tmpfs", flags, c"size=1m,mode=700").ok()?;
        Some(Self { root })
    }

    /// But for a page.
    fn fill(&self, file: &PathBuf) {
        let disk = rustix::fs::statvfs(&self.root).expect("it is mounted");
        let bytes = (disk.f_bavail - 1) * disk.f_frsize;
        let bytes = vec![0; usize::try_from(bytes).expect("it is small")];
        fs::write(file, bytes).expect("there is room");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = unmount(&self.root, UnmountFlags::DETACH);
    }
}
