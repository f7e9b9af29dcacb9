//! E. Descriptors, threads and memory of long-lived processes: in tare, the keepers and the server.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use rustix::process::{Signal, WaitOptions, waitpid};
use serde_json::json;
use tare_harness::scene::in_lanes;
use tare_harness::skip::{has_program, is_root};
use tare_harness::{Server, TemporaryDirectory, eventually, poll, private_bytes, skip};

use crate::leaks::case::{Case, case, entries, times};
use crate::library::{GROWTH_BYTES_MAX, Library, assert_alone, assert_cheap, assert_growth_ends};

/// In a box with 256 descriptors: opens as many files as it can, looks, closes them.
const GREEDY: &str = "import errno, os
def names(): return sorted(os.listdir('/usr/bin'))
before = names()
held = []
try:
    while True: held.append(open('/etc/passwd'))
except OSError as error: assert error.errno == errno.EMFILE, error
assert len(held) > 200, len(held)
for action in (names, lambda: open('/etc/group'), os.pipe):
    try: action()
    except OSError as error: assert error.errno == errno.EMFILE, error
    else: raise AssertionError('there was one more')
assert os.path.exists('/etc/group') and os.stat('/usr/bin/env').st_size > 0
print('full', flush=True)
os.read(0, 1)
for one in held: one.close()
assert names() == before
print('as before', flush=True)";

/// E2, microsandbox: without free descriptors, files seemed to vanish and close was
/// blocked.
#[test]
fn running_out_of_descriptors_is_reported_and_recovers_after_close() {
    let case = case();
    let options = ["run", "-i", "--name", "a", "--nofile", "256", "--"];
    let command = options.iter().chain(&["python3", "-c", GREEDY]);
    let mut greedy = case.spawn_call(command);
    greedy.see("full");
    // No other process has fewer.
    case.exec("a", ["sh", "-c", "ls /usr/bin | grep -c env >/dev/null; ulimit -n"])
        .ok()
        .printed("256\n");
    greedy.write(b"\n");
    greedy.wait().ok().printed("full\nas before\n");
    case.nothing_left();
}

/// How much more a server may have without a leak: idle threads end by themselves, and the heap is
/// fragmented.
const IDLE_THREADS_MAX: usize = 16;
const SERVER_GROWTH_BYTES_MAX: u64 = 1 << 20;

/// E3, e2b: after two days, 37 GB of memory, 3,983 threads and mappings had not been
/// returned.
#[test]
fn a_server_returns_to_its_baseline_after_boxes_were_removed() {
    let case = case();
    let server = Server::start(&case, &[]);
    let make_and_remove = || {
        let made = server.post("/v1/boxes", &json!({})).was(201).json();
        let id = made["id"].as_str().expect("an id");
        let path = format!("/v1/boxes/{id}?force=true");
        server.delete(&path).was(204);
    };
    let held = |what: &str| entries(&format!("/proc/{}/{what}", server.pid()));
    (0..50).for_each(|_| make_and_remove());
    let (descriptors, threads) = (held("fd"), held("task"));
    let bytes = private_bytes(server.pid());
    (0..times(150, 5_000)).for_each(|_| make_and_remove());
    eventually("its descriptors are back", || held("fd") <= descriptors);
    assert!(held("task") <= threads + IDLE_THREADS_MAX);
    let grown = private_bytes(server.pid()).saturating_sub(bytes);
    assert!(grown <= SERVER_GROWTH_BYTES_MAX, "{grown} bytes more");
    assert_eq!(case.footprint().records.len(), 0);
    server.stop().ok();
}

/// More descriptors than any command has open.
const ENOUGH_DESCRIPTORS: usize = 40;

/// E4, e2b: requests that failed or were cancelled halfway kept a descriptor or a device.
#[test]
fn commands_out_of_descriptors_leak_none_here_or_in_the_keeper() {
    let case = case();
    let id = case.detached(["--name", "a", "--", "sleep", "1000"]);
    case.exec("a", ["true"]).ok();
    let before = (case.footprint(), case.uid_claims());
    let held = case.keeper_descriptors(&id);
    let calls = ["run -d --name b -- sleep 1000", "exec a -- true", "cp a:/etc/passwd -"];
    for call in calls {
        let mut failed = 0;
        // Three are the standard streams.
        for count in 3..ENOUGH_DESCRIPTORS {
            let script = format!("exec prlimit --nofile={count}:{count} \"$TARE\" {call}");
            let output = case.shell(&script);
            if output.code != 0 {
                failed += 1;
            } else if call.starts_with("run") {
                case.call(["rm", "-f", "b"]).ok();
            }
            assert_eq!((case.footprint(), case.uid_claims()), before, "{output}");
        }
        assert!((4..40).contains(&failed), "{call}: {failed} times");
        eventually("the keeper holds no more than before", || case.keeper_descriptors(&id) == held);
    }
    case.remove(&id);
}

/// E5, e2b and containerd: the server side of a stream kept running after its client had
/// vanished.
#[test]
fn clients_that_disappear_mid_stream_leave_nothing_in_the_keeper() {
    let case = case();
    let id = case.idle_box();
    let vanish = |_: &usize| {
        let client = case.spawn_call(["exec", &id, "--", "yes"]);
        client.see("y\ny\n").signal(Signal::KILL);
        client.wait().exited(-9);
    };
    let some: Vec<usize> = (0..20).collect();
    in_lanes(&some, vanish);
    assert_alone(&case, &id, 2);
    let held = case.keeper_descriptors(&id);
    let many: Vec<usize> = (0..times(200, 10_000)).collect();
    assert_growth_ends(&case, &id, || {
        in_lanes(&many, vanish);
        assert_alone(&case, &id, 2);
        eventually("the keeper holds no more than before", || case.keeper_descriptors(&id) <= held);
    });
    let threads = entries(&format!("/proc/{}/task", case.keeper(&id).pid));
    assert_eq!(threads, 1);
    case.remove(&id);
}

/// E8, boxlite: a reader that read one stream to its end before the other waited forever.
#[test]
fn a_megabyte_to_stderr_and_then_to_stdout_does_not_block() {
    let case = case();
    let script = "import sys; sys.stderr.write('e' * 1048576); sys.stderr.flush(); sys.stdout.write('o' * 1048576)";
    let id = case.idle_box();
    let calls = [&["run", "--"][..], &["exec", &id, "--"]];
    for call in calls {
        let python = ["python3", "-c", script];
        let output = case.call(call.iter().chain(&python)).ok();
        assert_eq!(output.stderr_text(), "e".repeat(1 << 20));
        assert_eq!(output.stdout_text(), "o".repeat(1 << 20));
    }
    case.remove(&id);
}

/// E10, code-interpreter: a process that ended before it was spawned was not cleaned up.
#[test]
fn requests_cancelled_or_refused_before_spawn_leave_nothing_in_the_keeper() {
    let case = case();
    let id = case.detached(["--pids", "6", "--", "sleep", "1000"]);
    let library = Library::open(&case, &id);
    library.is_refused(&["no-such-program"]);
    let (held, bytes) = (case.keeper_descriptors(&id), case.keeper_private_bytes(&id));
    for _ in 0..times(300, 3_000) {
        library.is_refused(&["no-such-program"]);
    }
    for step in 0..times(40, 400) {
        let client = case.spawn_call(["exec", &id, "--", "sleep", "1000"]);
        tare_harness::let_pass(Duration::from_micros(100 * u64::try_from(step % 40).unwrap_or(0)));
        client.signal(Signal::KILL);
        client.wait();
    }
    assert_alone(&case, &id, 2);
    // The keeper closes what a killed client had when it looks at its connections next.
    eventually("the keeper holds nothing of them", || case.keeper_descriptors(&id) == held);
    let fill = || case.call(["exec", "-d", &id, "--", "sleep", "1000"]).code == 0;
    assert!((0..10).any(|_| !fill()), "six is less than ten");
    let held = case.keeper_descriptors(&id);
    for _ in 0..times(100, 1_000) {
        library.is_refused(&["true"]);
    }
    assert_eq!(case.keeper_descriptors(&id), held);
    let grown = case.keeper_private_bytes(&id).saturating_sub(bytes);
    assert!(grown <= GROWTH_BYTES_MAX, "{grown} bytes more");
    case.remove(&id);
}

/// E11, dify-sandbox: memory grew with every run.
#[test]
fn ten_thousand_execs_in_a_row_leave_nothing_in_the_keeper() {
    let case = case();
    let id = case.idle_box();
    assert_cheap(&case, &id);
    let library = Library::open(&case, &id);
    let mut costs = Vec::new();
    for number in 1..=10_000 {
        assert_eq!(library.run(&["true", "with", "some", "arguments"]), 0);
        if number % 1000 == 0 {
            costs.push((case.keeper_private_bytes(&id), case.keeper_descriptors(&id)));
        }
    }
    let (first, last) = (costs[0], costs[9]);
    assert!(last.0 <= first.0 + GROWTH_BYTES_MAX, "{costs:?}");
    assert_eq!(first.1, last.1, "{costs:?}");
    assert_cheap(&case, &id);
    assert_alone(&case, &id, 2);
    assert_eq!(library.run(&["sh", "-c", "exit 7"]), 7);
    case.remove(&id);
}

/// A reader that takes everything that comes, and counts it.
struct Steady {
    seen: Arc<AtomicUsize>,
    reader: JoinHandle<()>,
}

impl Steady {
    fn read(mut stream: TcpStream) -> Self {
        let seen = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&seen);
        let reader = thread::spawn(move || {
            let mut buffer = vec![0; 64 << 10];
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                counted.fetch_add(count, Ordering::Relaxed);
            }
        });
        Self { seen, reader }
    }

    #[track_caller]
    fn goes_on(&self) {
        let before = self.seen.load(Ordering::Relaxed);
        eventually("another client still gets what comes", || {
            self.seen.load(Ordering::Relaxed) > before
        });
    }
}

/// The most that a server takes to stop when nothing runs.
const STOPS_WITHIN: Duration = Duration::from_secs(20);

/// E16, e2b: a message to a subscriber that had left blocked the sender and its shutdown.
#[test]
fn clients_that_leave_during_a_burst_delay_no_other_client() {
    let case = case();
    let server = Server::start(&case, &[]);
    let bursts = ["sh", "-c", "while :; do seq 500; sleep 0.02; done"];
    let web = json!({ "name": "web", "command": bursts });
    server.post("/v1/boxes", &web).was(201);
    server.post("/v1/boxes", &json!({ "name": "paused" })).was(201);
    let exec = json!({ "command": bursts, "detach": true });
    let exec = server.post("/v1/boxes/web/exec", &exec).was(202).json();
    let exec = exec["id"].as_str().expect("an id").to_owned();
    let paths = [
        "/v1/boxes/web/logs?follow=true".to_owned(),
        "/v1/events".to_owned(),
        format!("/v1/boxes/web/execs/{exec}/stream"),
    ];
    let open = |path: &str| server.send("GET", path, &[], b"");
    let steady = paths.each_ref().map(|path| Steady::read(open(path)));
    for number in 0..times(400, 1_000) {
        let mut stream = open(&paths[number % paths.len()]);
        if number % 2 == 0 {
            stream.read_exact(&mut [0; 64]).expect("something comes");
        }
        let turn = ["pause", "resume"][number % 2];
        let path = format!("/v1/boxes/paused/{turn}");
        server.ask("POST", &path, &[], b"").was(200);
    }
    steady.iter().take(1).for_each(Steady::goes_on);
    server.ask("POST", "/v1/boxes/paused/pause", &[], b"").was(200);
    eventually("only the others listen", || {
        let metrics = server.get("/metrics").text();
        metrics.contains("tare_streams_open 3\n")
    });
    steady[2].goes_on();
    let events = &steady[1];
    let before = events.seen.load(Ordering::Relaxed);
    server.ask("POST", "/v1/boxes/paused/resume", &[], b"").was(200);
    eventually("events go on", || events.seen.load(Ordering::Relaxed) > before);
    for name in ["web", "paused"] {
        server.delete(&format!("/v1/boxes/{name}?force=true")).was(204);
    }
    let stopping = Instant::now();
    server.stop().ok();
    assert!(stopping.elapsed() < STOPS_WITHIN, "{:?}", stopping.elapsed());
    for one in steady {
        one.reader.join().expect("its stream has ended");
    }
}

/// How many requests are on their way over one connection.
const PIPELINED: usize = 50;

/// Connects from an otherwise unused loopback address.
fn connect_from(server: &Server, number: usize) -> TcpStream {
    let [.., high, low] = number.to_be_bytes();
    let from = SocketAddrV4::new(Ipv4Addr::new(127, 77, high, low), 0);
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    bind(&socket, &from).expect("all of 127.0.0.0/8 is this host");
    connect(&socket, &server.address()).expect("the server accepts");
    TcpStream::from(socket)
}

/// E18, e2b: a rate limiter kept an entry for every key that it had ever seen.
#[test]
fn names_keys_and_addresses_seen_once_are_not_kept() {
    let case = case();
    let directory = TemporaryDirectory::new();
    let keys = directory.join("keys");
    fs::write(&keys, "the-key\n").expect("a file");
    let open = Server::start(&case, &[]);
    let locked = Server::start(&case, &["--api-key-file", &keys.display().to_string()]);
    let round = |number: usize| {
        for (server, key) in [(&open, None), (&locked, Some(number))] {
            let mut stream = connect_from(server, number);
            let mut sent = String::new();
            for unique in number * PIPELINED..(number + 1) * PIPELINED {
                sent.push_str(&unique_request(unique, key.is_some(), unique % PIPELINED + 1));
            }
            stream.write_all(sent.as_bytes()).expect("the server reads");
            let mut answers = String::new();
            stream.read_to_string(&mut answers).expect("answers");
            let count =
                answers.matches("HTTP/1.1 4").count() + answers.matches("HTTP/1.1 2").count();
            assert_eq!(count, PIPELINED, "{answers}");
        }
    };
    let warm = times(20, 200);
    (0..warm).for_each(round);
    let bytes = [&open, &locked].map(|server| private_bytes(server.pid()));
    (warm..warm + times(160, 2_000)).for_each(round);
    for (server, bytes) in [&open, &locked].into_iter().zip(bytes) {
        let grown = private_bytes(server.pid()).saturating_sub(bytes);
        assert!(grown <= SERVER_GROWTH_BYTES_MAX, "{grown} bytes more");
    }
    open.stop().ok();
    locked.stop().ok();
}

/// A request with names that no other request has, over a connection with this many.
fn unique_request(unique: usize, with_key: bool, of_connection: usize) -> String {
    let path = match unique % 5 {
        0 => format!("/v1/boxes/box-{unique}"),
        1 => format!("/v1/boxes?name=box-{unique}&label=key-{unique}=x"),
        2 => format!("/v1/files/session-{unique}"),
        3 => format!("/nowhere/{unique}"),
        _ => format!("/v1/boxes/box-{unique}/execs/{unique}/stream"),
    };
    let key = if with_key { format!("X-API-Key: key-{unique}\r\n") } else { String::new() };
    let connection = if of_connection == PIPELINED { "close" } else { "keep-alive" };
    format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: {connection}\r\n{key}\
         Idempotency-Key: once-{unique}\r\nX-LibreChat-Code-Request-ID: {unique}\r\n\
         User-Id: user-{unique}\r\nX-Request-Id: {unique}\r\n\r\n"
    )
}

/// In which namespaces a thread is, and as which user.
fn thread_of(directory: &Path) -> (Vec<PathBuf>, String) {
    let namespaces = ["net", "uts", "mnt", "ipc", "user"]
        .map(|kind| fs::read_link(directory.join("ns").join(kind)).expect("it is ours to look at"));
    let status = fs::read_to_string(directory.join("status")).expect("it is there");
    let uid = status.lines().find(|line| line.starts_with("Uid:"));
    (namespaces.into(), uid.expect("as in proc_pid_status(5)").to_owned())
}

/// All threads of a server are where it began, as the user that began it.
#[track_caller]
fn assert_threads_are_at_home(server: &Server) {
    let home = thread_of(Path::new("/proc/self"));
    let threads = fs::read_dir(format!("/proc/{}/task", server.pid())).expect("it is there");
    // One that ended meanwhile is nowhere.
    let there = threads.flatten().filter(|it| it.path().join("ns/net").read_link().is_ok());
    for thread in there {
        assert_eq!(thread_of(&thread.path()), home, "{}", thread.path().display());
    }
}

/// E13, e2b: a thread that had entered the network of one machine built the networks of all
/// later ones inside it.
#[test]
fn a_server_stays_in_its_own_namespaces_and_every_box_has_its_own_network() {
    let case = case();
    let server = Server::start(&case, &[]);
    let numbers: Vec<usize> = (0..times(24, 100)).collect();
    let networks = in_lanes(&numbers, |_| {
        let made = server.post("/v1/boxes", &json!({"command": ["sleep", "1000"]}));
        let id = made.was(201).json()["id"].as_str().expect("an id").to_owned();
        fs::read_link(format!("/proc/{}/ns/net", case.keeper(&id).pid)).expect("it is ours")
    });
    assert_threads_are_at_home(&server);
    let ours = fs::read_link("/proc/self/ns/net").expect("we have one");
    let distinct: BTreeSet<PathBuf> = networks.into_iter().chain([ours]).collect();
    assert_eq!(distinct.len(), numbers.len() + 1);
    server.stop();
    case.call(["rm", "-f", "--all"]).ok();
}

/// `tare ARGS` under strace, which fails these calls, in all that it starts.
#[track_caller]
fn failing(case: &Case, fault: &str, args: &[&str]) -> Command {
    let mut command = case.shell_command("exec strace -f -o /dev/null \"$@\"");
    command.args(["sh", "-e", &format!("inject={fault}"), "--"]);
    command.arg(case.program()).args(args);
    command
}

/// E13, e2b: a thread that failed to return to its own namespace kept serving.
#[test]
fn a_process_that_cannot_return_to_its_namespace_or_user_exits() {
    let case = case();
    if !has_program("strace") || !is_root() {
        skip!("strace is not installed, or may not trace a keeper");
    }
    // A keeper that does not leave the namespace of the process that it has started.
    let run = ["run", "-d", "--quiet", "--net", "host", "--name", "a", "--", "sleep", "1000"];
    let traced = case.start_piped(failing(&case, "setns:error=ENOMEM", &run));
    eventually("the box runs", || case.list().iter().any(|it| it["state"] == "running"));
    let id = case.list()[0]["id"].as_str().expect("an id").to_owned();
    let refused = case.exec("a", ["sleep", "1000"]);
    assert_ne!(refused.code, 0, "{refused}");
    eventually("the box has ended", || case.processes_in(&id).is_empty());
    traced.wait();
    case.remove(&id);
    // A thread of a server that stays the user that a box was made as.
    let serve = ["serve", "--listen", "127.0.0.1:0"];
    let fault = "setresuid:error=EPERM:when=2";
    let server = Server::start_command(&case, failing(&case, fault, &serve));
    let make = json!({"command": ["sleep", "1000"]}).to_string();
    let asked = server.send("POST", "/v1/boxes", &[JSON], make.as_bytes());
    let address = server.address();
    eventually("the server has ended", || TcpStream::connect(address).is_err());
    drop((asked, server));
    // The keeper of the box that was being made may die after the server, and the next tare
    // then removes its record.
    poll(Duration::from_secs(10), || {
        // The server that ended comes to us when its tracer is killed first.
        while let Ok(Some(_)) = waitpid(None, WaitOptions::NOHANG) {}
        case.call(["ls"]).ok();
        case.difference_now().is_empty()
    });
    case.nothing_left();
}

const JSON: (&str, &str) = ("Content-Type", "application/json");

/// E17, OpenShell: a child of a multithreaded process allocated memory before exec, and
/// waited forever for a lock that a thread of its parent held.
#[test]
fn boxes_created_by_sixteen_allocating_threads_all_start() {
    let case = case();
    let server = Server::start(&case, &[]);
    let runs: Vec<usize> = (0..times(25, 625)).collect();
    let run = |number: &usize| {
        // What it is sent is allocated while others are being born.
        let argument = "x".repeat(*number % 16 * 6000);
        let command = json!({"command": ["true", argument]});
        let ran = server.post("/v1/run", &command).was(200).json();
        assert_eq!(ran["exit_code"], 0, "{ran}");
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..16).map(|_| scope.spawn(|| runs.iter().for_each(run))).collect();
        threads.into_iter().for_each(|it| it.join().expect("all of them ran"));
    });
    server.stop();
    case.nothing_left();
}

/// E15, e2b: calls to an external store had no deadline, and a silent peer delayed the
/// shutdown.
#[test]
fn a_hook_whose_peer_never_answers_does_not_delay_the_servers_shutdown() {
    let case = case();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("an address").port();
    let text = format!(
        "[limits]\nboxes = 2\n[gauges]\nwarn = 40\nalert = 90\nfull = 95\n\
         [hooks]\ncommand = ['bash', '-c', 'cat < /dev/tcp/127.0.0.1/{port}']\ntimeout = '500s'\n"
    );
    let server = Server::start_configured(&case, &text);
    let made = server.post("/v1/boxes", &json!({ "command": ["sleep", "1000"] }));
    let id = made.was(201).json()["id"].as_str().expect("an id").to_owned();
    let _held = silent.accept().expect("the hook is called");
    case.remove(&id);
    let output = server.stop().ok();
    assert!(output.lasted < Duration::from_secs(400), "{output}");
}
