//! Sessions: requests with the same hint use the same box, until it is idle.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tare_harness::skip::has_program;
use tare_harness::{Answer, Tare, TemporaryDirectory, eventually, eventually_within, skip, tare};

use crate::librechat::client::{Chat, file, text};
use crate::librechat::identity::KEY;

const HINT: &str = "v2:user:0123456789abcdef0123456789abcdef";

fn in_session(hint: &str, code: &str) -> Value {
    json!({ "lang": "py", "code": code, "runtime_session_hint": hint })
}

/// Standard output, and whether the session is new.
fn said(answer: &Value) -> (&str, &str) {
    (text(&answer["stdout"]), text(&answer["runtime_status"]))
}

fn boxes(tare: &Tare) -> usize {
    tare.boxes_of_calls().len()
}

#[test]
fn a_session_keeps_its_files_and_processes_until_it_ends() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let exec = |code: &str| chat.exec(in_session(HINT, code));
    let begin = "import subprocess
subprocess.Popen(['sleep', '1000'], start_new_session=True)
open('a.txt', 'w').write('1'); open('/tmp/installed', 'w'); print('begun')";
    let first = exec(begin);
    assert_eq!(said(&first), ("begun\n", "new"));
    let made = file(&first, "a.txt");
    let look = "import os
print(open('a.txt').read(), os.path.exists('/tmp/installed'), os.popen('ps -C sleep -o comm=').read().strip())";
    let second = exec(look);
    assert_eq!(said(&second), ("1 True sleep\n", "reused"));
    assert_eq!(second["runtime_session_id"], first["runtime_session_id"]);
    let known = file(&second, "a.txt");
    assert_eq!((&known["inherited"], &known["id"]), (&json!(true), &made["id"]));
    // What the session has changed is not put over by what the client knows of it.
    let changed = exec("open('a.txt', 'w').write('2')");
    assert_eq!(file(&changed, "a.txt")["modified_from"]["id"], made["id"]);
    let other = chat.exec(in_session("v2:conversation:b", "import os; print(os.listdir('.'))"));
    assert_eq!(said(&other), ("[]\n", "new"));
    assert_eq!(boxes(&tare), 2);
    chat.stop(&tare);
}

/// Sends a call in the session without waiting for its answer.
fn sent(chat: &Chat, request: &Value) -> TcpStream {
    let json_type = [("Content-Type", "application/json")];
    chat.server.send("POST", "/v1/exec", &json_type, request.to_string().as_bytes())
}

#[track_caller]
fn answer(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("an answer");
    Answer::parse(&bytes)
}

/// A session that is busy until [`Busy::finish`].
struct Busy<'a> {
    tare: &'a Tare,
    id: String,
    call: TcpStream,
}

impl<'a> Busy<'a> {
    fn start(tare: &'a Tare, chat: &Chat) -> Self {
        chat.exec(in_session(HINT, "1"));
        let id = tare.call(["ls", "-q"]).ok().stdout_text().trim().to_owned();
        let code = "import os, time
open('/tmp/runs', 'w')
while not os.path.exists('/tmp/go'): time.sleep(0.01)";
        let call = sent(chat, &in_session(HINT, code));
        let look = ["exec", &id, "--", "test", "-e", "/tmp/runs"];
        eventually("it runs", || tare.call(look).code == 0);
        Self { tare, id, call }
    }

    fn finish(self) {
        self.tare.call(["exec", &self.id, "--", "touch", "/tmp/go"]).ok();
        answer(self.call).was(200);
    }
}

fn waiting(chat: &Chat, count: usize) {
    let line = format!("\ntare_session_calls_waiting {count}\n");
    eventually("so many calls wait", || chat.server.get("/metrics").text().contains(&line));
}

#[test]
fn parallel_calls_of_one_session_run_one_after_the_other_in_order() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let busy = Busy::start(&tare, &chat);
    let add = |number: usize| {
        let code = format!("open('log.txt', 'a').write('{number} '); print({number})");
        in_session(HINT, &code)
    };
    let calls: Vec<TcpStream> = (0..4)
        .map(|number| {
            let call = sent(&chat, &add(number));
            waiting(&chat, number + 1);
            call
        })
        .collect();
    busy.finish();
    for (number, call) in calls.into_iter().enumerate() {
        let answer = answer(call).was(200).json();
        assert_eq!(said(&answer), (&*format!("{number}\n"), "reused"));
    }
    let log = chat.exec(in_session(HINT, "print(open('log.txt').read())"));
    assert_eq!(said(&log).0, "0 1 2 3 \n");
    waiting(&chat, 0);
    let metrics = chat.server.get("/metrics").text();
    assert!(metrics.contains("\ntare_session_wait_seconds_count 7\n"), "{metrics}");
    chat.stop(&tare);
}

#[test]
fn a_call_is_refused_if_its_session_stays_busy_for_longer_than_it_waits() {
    let tare = tare!();
    let chat = Chat::configured(&tare, "", "[librechat]\nsession_wait = '100ms'\n");
    let busy = Busy::start(&tare, &chat);
    let refused = chat.server.post("/v1/exec", &in_session(HINT, "print(1)")).was(409).json();
    assert_eq!(refused["error"], "runtime_session_busy");
    let metrics = chat.server.get("/metrics").text();
    let counted = "\ntare_refused_total{reason=\"session_busy\"} 1\n";
    assert!(metrics.contains(counted), "{metrics}");
    // A client that hangs up ends its execution, and the session continues.
    drop(busy.call);
    let free = || chat.server.post("/v1/exec", &in_session(HINT, "print(1)")).status == 200;
    eventually("it is free", free);
    assert_eq!(boxes(&tare), 1);
    chat.stop(&tare);
}

#[test]
fn a_full_queue_refuses_a_call_with_a_time_and_delays_no_other_session() {
    let tare = tare!();
    let chat = Chat::configured(&tare, "", "[librechat]\nsession_queue = 1\n");
    let busy = Busy::start(&tare, &chat);
    let queued = sent(&chat, &in_session(HINT, "print(1)"));
    waiting(&chat, 1);
    let refused = chat.server.post("/v1/exec", &in_session(HINT, "print(2)")).was(429);
    assert_eq!(refused.header("retry-after"), Some("5"));
    let told = refused.json();
    assert_eq!(
        (&told["error"], &told["retry_after_seconds"]),
        (&json!("rate_limited"), &json!(5)),
        "{told}"
    );
    let other = chat.exec(in_session("v2:user:another", "print(3)"));
    assert_eq!(said(&other), ("3\n", "new"));
    busy.finish();
    assert_eq!(said(&answer(queued).was(200).json()).0, "1\n");
    chat.stop(&tare);
}

#[test]
fn a_client_that_hangs_up_leaves_the_queue_and_its_code_never_runs() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let busy = Busy::start(&tare, &chat);
    let gone = sent(&chat, &in_session(HINT, "open('/tmp/ran', 'w')"));
    waiting(&chat, 1);
    let patient = sent(&chat, &in_session(HINT, "import os; print(os.path.exists('/tmp/ran'))"));
    waiting(&chat, 2);
    drop(gone);
    waiting(&chat, 1);
    busy.finish();
    assert_eq!(said(&answer(patient).was(200).json()).0, "False\n");
    chat.stop(&tare);
}

#[test]
fn time_in_the_queue_does_not_count_as_time_of_the_code() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let busy = Busy::start(&tare, &chat);
    let limit = Duration::from_secs(1);
    let mut request = in_session(HINT, "print('in time')");
    request["timeout"] = json!(limit.as_millis() as u64);
    let call = sent(&chat, &request);
    waiting(&chat, 1);
    tare_harness::let_pass(limit + limit / 10);
    busy.finish();
    assert_eq!(said(&answer(call).was(200).json()).0, "in time\n");
    chat.stop(&tare);
}

#[test]
fn calls_that_wait_end_when_the_server_stops() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let busy = Busy::start(&tare, &chat);
    let call = sent(&chat, &in_session(HINT, "print(1)"));
    waiting(&chat, 1);
    chat.server.signal(Signal::TERM);
    let refused = answer(call).was(503).json();
    assert_eq!(refused["error"], "Service is shutting down", "{refused}");
    busy.finish();
    chat.stop(&tare);
}

/// Both calls of a turn name the file as it was before the turn.
#[test]
fn a_parallel_call_does_not_undo_what_the_call_before_it_changed() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let given = chat.given("a.txt", b"0");
    for number in 1..4 {
        let code = format!("open('a.txt', 'a').write('{number}')");
        assert_eq!(chat.exec(with_file(&given, &code))["code"], 0);
    }
    let after = chat.exec(with_file(&given, "print(open('a.txt').read())"));
    assert_eq!(said(&after).0, "0123\n");
    chat.stop(&tare);
}

#[test]
fn files_that_a_session_reported_stay_reported_after_a_restart() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let write = "open('a.txt', 'w').write('1'); open('b.txt', 'w').write('2')";
    let before = chat.exec(in_session(HINT, write));
    let chat = chat.after(&tare, |server| drop(server.kill()), "");
    let after = chat.exec(in_session(HINT, "open('c.txt', 'w').write('3')"));
    for name in ["a.txt", "b.txt"] {
        let known = file(&after, name);
        assert_eq!(known["inherited"], true, "{after}");
        assert_eq!(known["id"], file(&before, name)["id"]);
    }
    assert_eq!(file(&after, "c.txt")["inherited"], Value::Null);
    chat.stop(&tare);
}

#[test]
fn a_dead_session_is_replaced_and_reported_as_new() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let exec = || chat.exec(in_session(HINT, "open('a', 'w'); import os; print(os.listdir('.'))"));
    assert_eq!(said(&exec()), ("['a']\n", "new"));
    for end in [&["kill", "-s", "KILL"][..], &["rm", "-f"], &["pause"]] {
        let id = tare.call(["ls", "-q"]).ok().stdout_text();
        tare.call(end.iter().chain(&[id.trim()])).ok();
        assert_eq!(said(&exec()).1, "new", "{end:?}");
        assert_eq!(said(&exec()).1, "reused");
        assert_eq!(boxes(&tare), 1);
    }
    chat.stop(&tare);
}

#[test]
fn a_crashed_program_does_not_end_its_session() {
    let tare = tare!();
    let limits = "[limits]\ntimeout = '1s'\n[librechat.boxes]\nmemory = '64m'\n";
    let chat = Chat::configured(&tare, "", limits);
    chat.exec(in_session(HINT, "open('a.txt', 'w').write('kept')"));
    for (code, status) in [("while True: pass", "TO"), ("bytearray(1 << 30)", "SG")] {
        let answer = chat.exec(in_session(HINT, code));
        assert_eq!((&answer["status"], &answer["signal"]), (&json!(status), &json!("SIGKILL")));
    }
    let after = chat.exec(in_session(HINT, "print(open('a.txt').read())"));
    assert_eq!(said(&after), ("kept\n", "reused"));
    chat.stop(&tare);
}

#[test]
fn a_session_outlives_the_server_and_ends_when_idle() {
    let tare = tare!();
    let config =
        "[limits]\ntimeout_max = '1s'\ntimeout = '1s'\n[librechat.boxes]\nsession_idle = '2s'\n";
    let chat = Chat::configured(&tare, "", config);
    chat.exec(in_session(HINT, "open('a.txt', 'w').write('1')"));
    let chat = chat.after(&tare, |server| drop(server.kill()), config);
    let after = chat.exec(in_session(HINT, "print(open('a.txt').read())"));
    assert_eq!(said(&after), ("1\n", "reused"));
    chat.server.stop().ok();
    // With no tare alive, its keeper sees to it.
    eventually_within(Duration::from_secs(20), "its box is gone", || {
        tare.call(["ls", "-a", "-q"]).ok().stdout_text().is_empty()
    });
}

/// A request in this session for the user `u1`.
fn with_file(file: &Value, code: &str) -> Value {
    let mut request = in_session(HINT, code);
    request["files"] = json!([file]);
    request["user_id"] = json!("u1");
    request
}

/// The first run fails, so the client never gets what it has changed.
#[test]
fn a_server_restart_overwrites_no_file_that_a_session_changed() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let [first, second] = ["1", "2"].map(|content| chat.given("a.txt", content.as_bytes()));
    let change = "open('a.txt', 'w').write('changed'); exit(1)";
    assert_eq!(chat.exec(with_file(&first, change))["code"], 1);
    let known = chat.store().join("known");
    let count = |known: &Path| known.read_dir().expect("a directory").count();
    let show = "print(open('a.txt').read())";
    let chat = chat.after(&tare, |server| drop(server.kill()), "");
    let after = chat.exec(with_file(&first, show));
    assert_eq!(said(&after), ("changed\n", "reused"));
    assert_eq!(count(&known), 1);
    let chat = chat.after(&tare, |server| drop(server.kill()), "");
    let after = chat.exec(with_file(&second, show));
    assert_eq!(said(&after), ("2\n", "reused"), "the client sent another file");
    let other = file(&after, "a.txt");
    assert_eq!(other["inherited"], true, "{after}");
    tare.call(["rm", "-f", "--all"]).ok();
    let chat = chat.after(&tare, |server| drop(server.stop().ok()), "");
    eventually("nothing is known of a session that is over", || count(&known) == 0);
    chat.stop(&tare);
}

/// A process of the box stops the one that copies files into it.
#[test]
fn a_session_stays_busy_while_files_are_copied_for_a_client_that_hung_up() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let stops = "import subprocess
stop = 'while [ ! -e /tmp/go ]; do sleep 0.01; done; while :; do kill -STOP -1; sleep 0.01; done'
none = subprocess.DEVNULL
subprocess.Popen(['sh', '-c', stop], start_new_session=True, stdin=none, stdout=none, stderr=none)";
    chat.exec(in_session(HINT, stops));
    let id = tare.call(["ls", "-q"]).ok().stdout_text();
    tare.call(["exec", "-d", id.trim(), "--", "touch", "/tmp/go"]).ok();
    // More than a pipe holds, and more than is copied between two signals.
    let large = chat.given("large.bin", &vec![0; 32 << 20]);
    let request = with_file(&large, "print(1)");
    let json_type = [("Content-Type", "application/json")];
    let text = request.to_string();
    let first = chat.server.send("POST", "/v1/exec", &json_type, text.as_bytes());
    eventually("the copy is stopped", || {
        let others = ["sh", "sleep", "touch"];
        let processes = tare.workload(id.trim()).into_iter();
        let mut copies = processes.filter(|it| !others.contains(&it.name.as_str()));
        copies.any(|it| is_stopped(it.pid))
    });
    drop(first);
    eventually("the server knows that the client is gone", || {
        chat.server.log().contains("client_gone")
    });
    let next = sent(&chat, &request);
    waiting(&chat, 1);
    tare.remove(id.trim());
    answer(next).was(200);
    chat.stop(&tare);
}

fn is_stopped(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    status.is_ok_and(|text| text.contains("State:\tT"))
}

#[test]
fn a_malformed_session_hint_is_refused_and_an_empty_one_is_none() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    for hint in ["a b", "../x", &"x".repeat(129)] {
        chat.server.post("/v1/exec", &in_session(hint, "1")).was(400);
    }
    let none = chat.exec(in_session("", "print(1)"));
    assert_eq!((&none["stdout"], &none["runtime_session_id"]), (&json!("1\n"), &Value::Null));
    assert_eq!(boxes(&tare), 0);
    chat.stop(&tare);
}

/// tare's copy processes run as the box's user, so the box can stop them. The server must not wait
/// for them forever.
#[test]
fn sessions_that_stop_tares_copy_processes_delay_no_other_request() {
    let tare = tare!();
    let chat = Chat::configured(&tare, "", "[limits]\ntimeout = '5s'\n");
    // More of them than there are threads for it.
    let sessions: Vec<String> = (0..20).map(|number| format!("s{number}")).collect();
    let stops = "import os, subprocess
open('/mnt/data/large', 'wb').write(os.urandom(4 << 20))
stop = 'while [ -e /proc/%d ]; do :; done; while :; do kill -STOP -1; done' % os.getpid()
none = subprocess.DEVNULL
subprocess.Popen(['sh', '-c', stop], start_new_session=True, stdin=none, stdout=none, stderr=none)";
    let json_type = [("Content-Type", "application/json")];
    let waiting: Vec<_> = sessions
        .iter()
        .map(|hint| {
            let request = in_session(hint, stops).to_string();
            chat.server.send("POST", "/v1/exec", &json_type, request.as_bytes())
        })
        .collect();
    for mut stream in waiting {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 "), "{answer}");
    }
    let made = chat.exec(in_session(HINT, "open('a.txt', 'w').write('1')"));
    assert_eq!(chat.download(file(&made, "a.txt")).text(), "1");
    chat.stop(&tare);
}

/// After any end of a request, the next request finds the files that it names.
#[test]
fn a_file_replaced_for_a_disconnected_client_is_copied_again() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let [first, second] = ["1", "2"].map(|content| chat.given("a.txt", content.as_bytes()));
    let show = "print(open('a.txt').read())";
    assert_eq!(said(&chat.exec(with_file(&first, show))).0, "1\n");
    let slow = "import time; open('/tmp/runs', 'w'); time.sleep(1000)";
    let slow = with_file(&second, slow).to_string();
    let json_type = [("Content-Type", "application/json")];
    let waiting = chat.server.send("POST", "/v1/exec", &json_type, slow.as_bytes());
    let id = tare.call(["ls", "-q"]).ok().stdout_text();
    let look = ["exec", id.trim(), "--", "test", "-e", "/tmp/runs"];
    eventually("it runs", || tare.call(look).code == 0);
    drop(waiting);
    let again = with_file(&first, show);
    assert_eq!(said(&chat.exec(again)).0, "1\n");
    chat.stop(&tare);
}

/// Otherwise the session would stay unusable, and every request would extend its life.
#[test]
fn an_unusable_session_is_replaced() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    for shuts in [
        "import os, shutil; shutil.rmtree('/tmp/code'); os.symlink('/mnt/data', '/tmp/code')",
        "import os; os.remove('/tmp/code/main.py'); os.mkdir('/tmp/code/main.py')",
        "import os; os.chmod('/mnt/data', 0)",
    ] {
        assert_eq!(said(&chat.exec(in_session(HINT, shuts))).1, "new");
        let refused = chat.server.post("/v1/exec", &in_session(HINT, "print(1)"));
        assert!(refused.status >= 400, "{shuts}");
        assert_eq!(boxes(&tare), 0, "{shuts}");
    }
    let next = chat.exec(in_session(HINT, "print(1)"));
    assert_eq!(said(&next), ("1\n", "new"));
    chat.stop(&tare);
}

/// A wheel and a package of npm, in the place that is named to it.
const PACKED: &str = "import io, sys, tarfile, zipfile
wheel = zipfile.ZipFile(sys.argv[1] + '/demo-1.0-py3-none-any.whl', 'w')
wheel.writestr('demo.py', 'NAME = \"from pip\"\\n')
about = 'demo-1.0.dist-info/'
wheel.writestr(about + 'METADATA', 'Metadata-Version: 2.1\\nName: demo\\nVersion: 1.0\\n')
wheel.writestr(about + 'WHEEL', 'Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
wheel.writestr(about + 'RECORD', 'demo.py,,\\n' + about + 'METADATA,,\\n' + about + 'WHEEL,,\\n' + about + 'RECORD,,\\n')
wheel.close()
package = tarfile.open(sys.argv[1] + '/demo-1.0.0.tgz', 'w:gz')
for name, content in [('package.json', b'{\"name\":\"demo\",\"version\":\"1.0.0\",\"main\":\"index.js\"}'), ('index.js', b'module.exports = \"from npm\"')]:
    entry = tarfile.TarInfo('package/' + name); entry.size = len(content)
    package.addfile(entry, io.BytesIO(content))
package.close()";

#[test]
fn packages_can_be_installed_into_a_session_with_network() {
    if !has_program("npm") || !Path::new("/usr/lib/python3/dist-packages/pip").exists() {
        skip!("pip and npm are not installed: ./check does that");
    }
    let tare = tare!();
    let served = TemporaryDirectory::new();
    let packed = Command::new("/usr/bin/python3").args(["-c", PACKED, served.text()]).status();
    assert!(packed.expect("there is a Python").success());
    let registry = Registry::start(served.path());
    let from = format!("http://127.0.0.1:{}", registry.port);
    let install = format!(
        "pip install -q --no-index --find-links {from}/ demo && \
         npm install --silent --no-audit --no-fund {from}/demo-1.0.0.tgz"
    );
    let use_them = "python3 -c 'import demo; print(demo.NAME)'; \
                    node -e 'console.log(require(\"demo\"))'";
    let bash = |code: &str| json!({ "lang": "bash", "code": code, "runtime_session_hint": HINT });
    let chat = Chat::start(&tare);
    assert_ne!(chat.exec(bash(&install))["code"], 0, "it has no network");
    chat.stop(&tare);
    let sections = format!("{KEY}[librechat.boxes]\nhost_network = true\n");
    let chat = Chat::configured(&tare, "", &sections);
    let headers = [("Content-Type", "application/json"), ("X-API-Key", "native-key")];
    let exec = |request: Value| {
        let body = request.to_string();
        let answer = chat.server.ask("POST", "/v1/exec", &headers, body.as_bytes());
        answer.was(200).json()
    };
    let installed = exec(bash(&install));
    assert_eq!(
        (&installed["code"], &installed["runtime_status"]),
        (&json!(0), &json!("new")),
        "{installed}"
    );
    let used = exec(bash(use_them));
    assert_eq!(said(&used), ("from pip\nfrom npm\n", "reused"), "{used}");
    chat.stop(&tare);
}

/// A registry of this host alone, gone with the value.
struct Registry {
    server: Child,
    port: u16,
}

impl Registry {
    fn start(directory: &Path) -> Self {
        let code = "import functools, http.server, sys
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=sys.argv[1])
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler)
print(server.server_port, flush=True)
server.serve_forever()";
        let mut server = Command::new("/usr/bin/python3")
            .args(["-c", code])
            .arg(directory)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("there is a Python");
        let mut line = String::new();
        let stdout = server.stdout.take().expect("it was asked for");
        BufReader::new(stdout).read_line(&mut line).expect("its port");
        let port = line.trim().parse().expect("a number");
        Self { server, port }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.server.kill().expect("it is ours");
        self.server.wait().expect("it was killed");
    }
}
