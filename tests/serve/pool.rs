//! Boxes and interpreters that wait for requests: each is used once, looks to its code like a new one,
//! and ends with the server.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use tare_harness::skip::has_program;
use tare_harness::{
    Answer, Output, Server, Tare, TemporaryDirectory, box_processes, eventually, eventually_within,
    fixture, skip, tare,
};

use crate::serve::clones::packages_with;
use crate::serve::configured;
use crate::serve::operating::value;
use crate::serve::quotas::sha256;

pub const BOXES: &str = "[pool.box]\nwarm = 2\n";
const PYTHON: &str = "[pool.python]\nwarm = 2\nfresh = true\n";

pub fn parsed(output: &Output) -> Value {
    serde_json::from_str(&output.stdout_text()).expect("it printed JSON")
}

/// The boxes that wait, by id, with their state as `tare ls -a` shows it.
pub fn waiting(tare: &Tare) -> Vec<(String, String)> {
    let listed = parsed(&tare.call(["ls", "-a", "--json", "--filter", "state=warm"]).ok());
    let listed = listed.as_array().expect("a list").clone();
    let text = |one: &Value, field: &str| one[field].as_str().expect("a text").to_owned();
    listed.iter().map(|one| (text(one, "id"), text(one, "pool"))).collect()
}

#[track_caller]
pub fn until_waiting(tare: &Tare, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    eventually("the pool is full", || {
        ids = waiting(tare).into_iter().map(|(id, _)| id).collect();
        ids.len() == count
    });
    ids
}

fn python_call(server: &Server, code: &str) -> Value {
    server.post("/v1/run", &json!({ "language": "python", "code": code })).was(200).json()
}

/// Runs code until an interpreter that waited has run it.
#[track_caller]
fn in_waiting(server: &Server, body: &Value) -> Value {
    let mut result = Value::Null;
    eventually("an interpreter waits", || {
        result = server.post("/v1/run", body).was(200).json();
        result["warm"] == "fresh"
    });
    result
}

#[test]
fn without_configuration_nothing_waits_before_the_first_call_of_python() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    for _call in 0..2 {
        let result = server.post("/v1/run", &json!({ "command": ["true"] })).was(200).json();
        assert_eq!(result["warm"], "off");
    }
    assert_eq!(waiting(&tare), []);
    server.stop();
}

#[test]
fn a_pool_of_python_that_is_off_keeps_nothing() {
    if !has_program("python3") {
        skip!("there is no python3");
    }
    let tare = tare!();
    let server = Server::start_configured(&tare, "[pool.python]\nwarm = 0\n");
    for _call in 0..2 {
        assert_eq!(python_call(&server, "print(1)")["warm"], "off");
    }
    assert_eq!(waiting(&tare), []);
    server.stop();
}

#[test]
fn a_run_gets_a_box_that_waited_and_no_run_gets_it_again() {
    let tare = tare!();
    let server = Server::start_configured(&tare, BOXES);
    let mut used = BTreeSet::new();
    for number in 0..6 {
        let before = until_waiting(&tare, 2);
        let command = json!({ "command": ["sh", "-c", "cat; pwd; echo $A"], "env": { "A": "b" } });
        let result = server.post("/v1/run", &command).was(200).json();
        assert_eq!((&result["warm"], &result["stdout"]), (&json!("box"), &json!("/work\nb\n")));
        let id = result["id"].as_str().expect("an id").to_owned();
        assert!(before.contains(&id), "{id} of {before:?}");
        assert!(used.insert(id), "run {number} got a used box");
    }
    // Other limits are another kind of box, which waits from the second request on.
    let other = json!({ "command": ["true"], "limits": { "pids": 99 } });
    assert_eq!(server.post("/v1/run", &other).was(200).json()["warm"], "off");
    until_waiting(&tare, 4);
    assert_eq!(server.post("/v1/run", &other).was(200).json()["warm"], "box");
    let off = json!({ "command": ["true"], "warm": "off" });
    assert_eq!(server.post("/v1/run", &off).was(200).json()["warm"], "off");
    let with_files = json!({ "command": ["cat", "a"], "files": [{ "path": "a", "content": "x" }] });
    let result = server.post("/v1/run", &with_files).was(200).json();
    assert_eq!((&result["warm"], &result["stdout"]), (&json!("box"), &json!("x")));
    server.stop();
    assert_eq!(waiting(&tare), []);
    tare.call(["audit"]).ok();
}

#[test]
fn a_box_that_waits_is_listed_takes_no_request_and_is_replaced_when_it_is_removed() {
    let tare = tare!();
    let server = Server::start_configured(&tare, BOXES);
    let ids = until_waiting(&tare, 2);
    assert!(waiting(&tare).iter().all(|(_, pool)| pool == "box"));
    let listed = tare.call(["ls"]).ok().stdout_text();
    assert!(listed.ends_with("2 warm boxes wait in pools (tare ls -a shows them)\n"), "{listed}");
    assert!(
        !listed.contains(&ids[0])
            && tare.call(["ls", "-a"]).ok().stdout_text().contains("warm(box)")
    );
    let id = ids[0].as_str();
    for command in [
        &["exec", id, "true"][..],
        &["cp", "/etc/hostname", &format!("{id}:/work/a")],
        &["attach", id],
        &["rename", id, "mine"],
        &["update", id, "--pids", "9"],
        &["pause", id],
    ] {
        let refused = tare.call(command);
        assert!(
            refused.code != 0 && refused.stderr_text().contains("waits in a pool"),
            "{refused:?}"
        );
    }
    let exec = server.post(&format!("/v1/boxes/{id}/exec"), &json!({ "command": ["true"] }));
    exec.refused(409, "warm");
    assert_eq!(server.get(&format!("/v1/boxes/{id}")).was(200).json()["state"], "warm");
    tare.call(["rm", "-f", id]).ok();
    eventually("another box waits", || {
        let now = waiting(&tare);
        now.len() == 2 && now.iter().all(|(other, _)| other != id)
    });
    assert!(server.log().contains("pool_member_lost"), "{}", server.log());
    let metrics = server.get("/metrics").was(200).text();
    assert!(metrics.contains("tare_pool_members{pool=\"box\",state=\"waiting\"} 2"), "{metrics}");
    server.stop();
}

#[test]
fn a_box_that_waits_belongs_to_no_key_until_it_is_claimed() {
    let tare = tare!();
    let key = "ci-key";
    let hash = sha256(key);
    let admin = format!("[[keys]]\nname = 'ops'\nsha256 = '{}'\nadmin = true\n", sha256("ops"));
    let server = Server::start_configured(
        &tare,
        &format!("{BOXES}[[keys]]\nname = 'ci'\nsha256 = '{hash}'\nboxes = 1\n{admin}"),
    );
    let ids = until_waiting(&tare, 2);
    let ask = |method: &str, path: &str, body: &Value| -> Answer {
        let headers = [("Content-Type", "application/json"), ("X-API-Key", key)];
        server.ask(method, path, &headers, body.to_string().as_bytes())
    };
    ask("GET", &format!("/v1/boxes/{}", ids[0]), &json!(null)).refused(404, "no_such_box");
    let body = json!({ "command": ["sleep", "1000"], "timeout_ms": 60000 });
    std::thread::scope(|threads| {
        let run = threads.spawn(|| ask("POST", "/v1/run", &body));
        let mut found = Value::Null;
        eventually("the box is the key's", || {
            let listed = parsed(&tare.call(["ls", "--json"]).ok());
            found = listed.as_array().and_then(|all| all.first().cloned()).unwrap_or_default();
            found["key"] == "ci" && found["state"] == "running"
        });
        let id = found["id"].as_str().expect("an id").to_owned();
        // It is claimed before its command starts. A box that ends in between answers 503.
        eventually("the server knows that its command runs", || {
            let text = server.ask("GET", "/metrics", &[("X-API-Key", "ops")], b"").was(200).text();
            value(&text, "tare_run_phase_seconds_count{phase=\"start\"}") == Some(1.0)
        });
        assert!(ids.contains(&id), "{id} of {ids:?}");
        assert_eq!((&found["command"][0], &found["pool"]), (&json!("sleep"), &Value::Null));
        ask("POST", "/v1/run", &json!({ "command": ["true"] })).refused(429, "quota_boxes");
        tare.call(["rm", "-f", &id]).ok();
        let ended = run.join().expect("it was answered");
        assert_eq!(ended.was(200).json()["cause"], "killed");
    });
    server.stop();
}

/// Each other limit is another kind of box.
fn of_kind(pids: usize) -> Value {
    json!({ "command": ["true"], "limits": { "pids": pids } })
}

#[test]
fn a_key_with_many_kinds_of_boxes_leaves_room_for_other_keys() {
    let tare = tare!();
    let key = |name: &str| format!("[[keys]]\nname = '{name}'\nsha256 = '{}'\n", sha256(name));
    let config = "[pool.box]\nwarm = 1\n".to_owned() + &key("greedy") + &key("ci");
    let server = Server::start_configured(&tare, &config);
    let run = |key: &str, body: &Value| {
        let headers = [("Content-Type", "application/json"), ("X-API-Key", key)];
        let answer = server.ask("POST", "/v1/run", &headers, body.to_string().as_bytes());
        answer.was(200).json()["warm"].clone()
    };
    (30..50).for_each(|pids| drop(run("greedy", &of_kind(pids))));
    // Eight kinds at most.
    until_waiting(&tare, 8);
    assert_eq!(run("ci", &of_kind(70)), "off");
    eventually("a box of its kind waits", || run("ci", &of_kind(70)) == "box");
    (50..60).for_each(|pids| drop(run("greedy", &of_kind(pids))));
    eventually("its kind is still there", || run("ci", &of_kind(70)) == "box");
    until_waiting(&tare, 8);
    server.stop();
}

/// What a box was made with is decided before the request. A request that needs something else gets a
/// box of its own.
#[test]
fn a_run_with_another_network_root_or_packages_never_gets_a_box_that_waited() {
    let tare = tare!();
    let Some(root) = fixture::busybox_root() else {
        skip!("there is no static busybox on this host");
    };
    let (one, two) = (TemporaryDirectory::new(), TemporaryDirectory::new());
    one.write("marker", "one\n");
    two.write("marker", "two\n");
    let key = format!("[[keys]]\nname = 'ops'\nsha256 = '{}'\nadmin = true\n", sha256("ops"));
    let limits = "[limits]\nhost_network = true\n";
    let with = |boxes: &str| format!("[pool.box]\nwarm = 1\n{limits}[boxes]\n{boxes}\n{key}");
    let packages = |of: &TemporaryDirectory| format!("packages = '{}'", of.text());
    let (_directory, path) = configured(&with(&packages(&one)));
    let server = Server::start(&tare, &["--config", &path]);
    let post = |path: &str, body: Value| {
        let headers = [("X-API-Key", "ops"), ("Content-Type", "application/json")];
        server.ask("POST", path, &headers, body.to_string().as_bytes())
    };
    let run_in = |network: &str, command: &[&str]| {
        let body = json!({ "command": command, "network": network });
        let result = post("/v1/run", body).was(200).json();
        (result["warm"].clone(), result["stdout"].clone())
    };
    let run = |command: &[&str]| run_in("none", command);
    until_waiting(&tare, 1);
    let marker = ["cat", "/opt/packages/marker"];
    assert_eq!(run(&marker), (json!("box"), json!("one\n")));
    until_waiting(&tare, 1);
    let network = ["readlink", "/proc/self/ns/net"];
    let hosts = std::fs::read_link("/proc/self/ns/net").expect("proc");
    let hosts = format!("{}\n", hosts.display());
    assert_eq!(run_in("host", &network), (json!("off"), json!(hosts)));
    let (warm, own) = run(&network);
    assert!(warm == "box" && own != hosts, "{own}");
    // The operator changes packages, and then the root.
    let reload = |boxes: &str| {
        std::fs::write(&path, with(boxes)).expect("a file");
        post("/v1/reload", json!(null)).was(204);
    };
    reload(&packages(&two));
    assert_eq!(run(&marker), (json!("off"), json!("two\n")));
    reload(&format!("rootfs = '{}'", root.text()));
    assert_eq!(run(&["cat", "/marker"]), (json!("off"), json!("from the source\n")));
    // Each kind then has boxes of its own.
    eventually("it waits", || {
        let (warm, stdout) = run(&["cat", "/marker"]);
        assert_eq!(stdout, "from the source\n");
        warm == "box"
    });
    server.stop();
}

/// A directory of a client at the place of the operator's packages is none of them.
#[test]
fn a_volume_at_the_place_of_packages_is_in_no_box_that_waits() {
    let tare = tare!();
    let data = TemporaryDirectory::new();
    data.write("marker", "data\n");
    let volume = format!("[[volumes]]\nname = 'data'\npath = '{}'\n", data.text());
    let server = Server::start_configured(&tare, &format!("{BOXES}{volume}"));
    let volumes = json!([{ "name": "data", "target": "/opt/packages" }]);
    let body = json!({ "command": ["cat", "/opt/packages/marker"], "volumes": volumes });
    for _run in 0..3 {
        until_waiting(&tare, 2);
        let result = server.post("/v1/run", &body).was(200).json();
        assert_eq!((&result["warm"], &result["stdout"]), (&json!("off"), &json!("data\n")));
    }
    server.stop();
}

#[test]
fn boxes_that_wait_make_room_for_requests() {
    let tare = tare!();
    let server = Server::start_configured(&tare, &format!("{BOXES}[limits]\nboxes = 2\n"));
    until_waiting(&tare, 2);
    let made = server.post("/v1/boxes", &json!({ "command": ["sleep", "1000"] })).was(201).json();
    server.post("/v1/run", &json!({ "command": ["true"] })).was(200);
    let id = made["id"].as_str().expect("an id");
    server.delete(&format!("/v1/boxes/{id}?force=true")).was(204);
    server.stop();
}

#[test]
fn the_least_recently_used_box_that_waits_makes_room_for_a_request() {
    let tare = tare!();
    let server = Server::start_configured(&tare, &format!("{BOXES}[limits]\nboxes = 4\n"));
    let first = until_waiting(&tare, 2);
    server.post("/v1/run", &of_kind(99)).was(200);
    let all = until_waiting(&tare, 4);
    let off = json!({ "command": ["true"], "warm": "off" });
    assert_eq!(server.post("/v1/run", &off).was(200).json()["warm"], "off");
    let left: Vec<String> = waiting(&tare).into_iter().map(|(id, _)| id).collect();
    let gone: Vec<&String> = all.iter().filter(|id| !left.contains(id)).collect();
    // Lists have the oldest box first.
    assert_eq!(gone, [&first[0]], "{all:?}");
    server.stop();
}

/// Every thread that makes boxes ahead waits for a module whose import does not end.
#[test]
fn calls_and_the_ends_of_their_boxes_never_wait_for_boxes_that_are_made_ahead() {
    if !has_program("python3") {
        skip!("there is no python3");
    }
    let tare = tare!();
    let packages = TemporaryDirectory::new();
    packages_with(&packages, "import time\ntime.sleep(1000)");
    let python = "[pool.python]\nwarm = 32\nfresh = true\npreload = ['mine']\n";
    let boxes = format!("[boxes]\npackages = '{}'\n", packages.text());
    let server = Server::start_configured(&tare, &format!("{BOXES}{python}{boxes}"));
    until_waiting(&tare, 2);
    assert_eq!(python_call(&server, "print(1)")["warm"], "off");
    let threads = std::thread::available_parallelism().map_or(1, usize::from).div_ceil(2);
    eventually("all threads wait for an import", || {
        box_processes().iter().filter(|it| it.name.starts_with("python")).count() == threads
    });
    let run = || server.post("/v1/run", &json!({ "command": ["true"] })).was(200).json();
    let got: Vec<Value> = (0..4).map(|_| run()["warm"].clone()).collect();
    assert_eq!(got, ["box", "box", "off", "off"]);
    assert_eq!(python_call(&server, "print(1)")["stdout"], "1\n");
    let records = tare.footprint().records;
    assert_eq!(records.len(), threads, "only boxes that are being made are left: {records:?}");
    server.stop().ok();
    tare.call(["audit"]).ok();
}

/// The kernel refuses the process that a module starts (EAGAIN), because the box may have only one.
#[test]
fn boxes_that_cannot_be_made_for_lack_of_processes_take_no_place_from_others() {
    if !has_program("python3") {
        skip!("there is no python3");
    }
    let tare = tare!();
    let packages = TemporaryDirectory::new();
    let fork = "import os\nchild = os.fork()\nif child == 0: os._exit(0)\nos.waitpid(child, 0)\n";
    packages_with(&packages, fork);
    let python = "[pool.python]\nwarm = 2\nmax = 2\nfresh = true\npreload = ['mine']\n";
    let boxes = format!("[boxes]\npackages = '{}'\n", packages.text());
    let server = Server::start_configured(&tare, &format!("{python}{boxes}"));
    let small = json!({ "language": "python", "code": "print(1)", "limits": { "pids": 1 } });
    assert_eq!(server.post("/v1/run", &small).was(200).json()["warm"], "off");
    eventually("the kernel has refused a process", || {
        let log = server.log();
        log.lines().any(|line| line.contains("pool_failed") && line.contains("[Errno 11]"))
    });
    // All places of the pool are free for boxes of another kind.
    in_waiting(&server, &json!({ "language": "python", "code": "print(1)" }));
    eventually("the pool is full", || waiting(&tare).len() == 2);
    server.stop().ok();
    tare.call(["audit"]).ok();
}

/// Everything about itself that a program can see and that is the same in each box.
pub const PROBE: &str = r#"
import json, os, resource, sys, threading, traceback
def status():
    names = ('Uid', 'Gid', 'Groups', 'CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb', 'NoNewPrivs',
             'Seccomp', 'Seccomp_filters', 'SigBlk', 'SigIgn', 'Umask', 'Threads', 'Kthread')
    lines = open('/proc/self/status').read().splitlines()
    return [line for line in lines if line.split(':')[0] in names]
def limits():
    names = sorted(name for name in dir(resource) if name.startswith('RLIMIT_'))
    return {name: resource.getrlimit(getattr(resource, name)) for name in names}
def kinds():
    return {fd: os.fstat(int(fd)).st_mode for fd in ('0', '1', '2')}
def can(act):
    try:
        act()
        return True
    except OSError as error:
        return error.errno
mounts = sorted(line.split(' - ')[0].split()[3:6] + line.split(' - ')[1].split()[:1]
                for line in open('/proc/self/mountinfo'))
print(json.dumps({
    'status': status(), 'limits': limits(), 'kinds': kinds(), 'mounts': mounts,
    'fds': sorted(os.listdir('/proc/self/fd')), 'env': dict(os.environ), 'cwd': os.getcwd(),
    'argv': sys.argv, 'orig_argv': getattr(sys, 'orig_argv', None), 'path': sys.path,
    'flags': list(sys.flags), 'main': sorted(globals()), 'file': __file__, 'name': __name__,
    'loader': type(__loader__).__name__, 'spec': __spec__, 'package': __package__,
    'modules': sorted(set(sys.modules) - {'_frozen_importlib_external'}),
    'main_module': sys.modules['__main__'].__dict__ is globals(),
    'oom': open('/proc/self/oom_score_adj').read(), 'nice': os.nice(0),
    'cgroup': open('/proc/self/cgroup').read(), 'interfaces': open('/proc/net/dev').read().count(':'),
    'session': os.getsid(0) == os.getpid(), 'group': os.getpgrp() == os.getpid(),
    'work': sorted(os.listdir('/work')), 'tmp': sorted(os.listdir('/tmp')),
    'stat': [oct(os.stat('/work/main.py').st_mode), os.stat('/work/main.py').st_uid],
    'write_usr': can(lambda: open('/usr/x', 'w')), 'write_work': can(lambda: open('/work/x', 'w')),
    'unshare': can(lambda: os.listdir('/proc/1/fd')), 'kill': can(lambda: os.kill(1, 9)),
    'encoding': sys.stdout.encoding, 'buffering': sys.stdout.line_buffering,
    'gc': __import__('gc').isenabled(), 'recursion': sys.getrecursionlimit(),
    'input': sys.stdin.read(), 'main_thread': threading.current_thread().name,
    'doc': __doc__, 'annotations': globals().get('__annotations__'),
}, sort_keys=True, default=str))
"#;

#[test]
fn a_program_sees_the_same_in_an_interpreter_that_waited_as_in_a_new_one() {
    if !has_program("python3") {
        skip!("there is no python3");
    }
    let tare = tare!();
    let server = Server::start_configured(&tare, PYTHON);
    for stdin in [None, Some("some\ninput\n")] {
        let body = |warm: &str| {
            json!({ "language": "python", "code": PROBE, "env": { "KEY": "a=\u{e9}\n" },
                    "stdin": stdin, "warm": warm })
        };
        let cold = server.post("/v1/run", &body("off")).was(200).json();
        let warm = in_waiting(&server, &body("fresh"));
        assert_eq!((&cold["exit_code"], &cold["warm"]), (&json!(0), &json!("off")), "{cold}");
        let seen = |result: &Value| -> Value {
            let stdout = result["stdout"].as_str().expect("a text");
            serde_json::from_str(stdout).unwrap_or_else(|_| panic!("{result}"))
        };
        let (cold, warm) = (seen(&cold), seen(&warm));
        for (what, expected) in cold.as_object().expect("an object") {
            assert_eq!(&warm[what], expected, "{what}");
        }
    }
    server.stop();
}

#[test]
fn a_program_ends_the_same_way_in_an_interpreter_that_waited() {
    if !has_program("python3") {
        skip!("there is no python3");
    }
    let tare = tare!();
    let server = Server::start_configured(&tare, PYTHON);
    for code in ENDINGS {
        let body = |warm: &str| json!({ "language": "python", "code": code, "warm": warm });
        let cold = server.post("/v1/run", &body("off")).was(200).json();
        let warm = in_waiting(&server, &body("fresh"));
        for field in ["exit_code", "signal", "stdout", "stderr", "cause", "truncated"] {
            assert_eq!(warm[field], cold[field], "{field} of {code}");
        }
    }
    server.stop();
}

/// Programs that end in different ways.
pub const ENDINGS: [&str; 26] = [
    "def f():\n    1 / 0\nf()",
    "def f(:",
    "import sys; sys.exit(7)",
    "import sys; sys.exit('a reason')",
    "raise SystemExit",
    "import os; os.kill(os.getpid(), 15)",
    "import os; os._exit(9)",
    "try:\n    1 / 0\nexcept Exception as e:\n    raise ValueError('b') from e",
    "import sys; sys.excepthook = lambda *a: print('hook', a[0].__name__)\n1 / 0",
    "import atexit; atexit.register(lambda: print('bye'))\nprint('hi')",
    "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()",
    "import sys; sys.stdout.write('no newline')",
    "# -*- coding: latin-1 -*-\nprint(ascii('\u{e9}'))",
    "class A:\n    def __del__(self): print('deleted')\na = A()",
    "class A:\n    def __del__(self): print('deleted')\ndef f():\n    a = A(); a.a = a\nf()\n_b = A()",
    "import atexit\nclass F:\n    def __repr__(self): return 'F'\n    def __call__(self): raise ValueError('at the end')\natexit.register(print, 'first'); atexit.register(F())",
    "import sys\nsys.stdout.close()",
    "import sys, io\nsys.stdout = io.StringIO()\nprint('nowhere')",
    "import sys\nsys.exit(256 + 3)",
    "import sys\nsys.exit(-1)",
    "print(__import__('subprocess').run(['echo', 'x'], capture_output=True).stdout)",
    "import multiprocessing as m\nif __name__ == '__main__':\n    print(m.get_start_method())",
    "import pickle, sys\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))).__module__)",
    "def f():\n    raise KeyboardInterrupt\nf()",
    "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(100)",
    "open('main.py').read(); import inspect\ndef f(): return 1\nprint(inspect.getsource(f))",
];

#[test]
fn a_program_sees_and_does_the_same_in_a_node_that_waited() {
    if !has_program("node") {
        skip!("there is no node");
    }
    let tare = tare!();
    let server = Server::start_configured(&tare, "[pool.node]\nwarm = 1\npreload = ['util']\n");
    for code in [
        "console.log(process.argv, process.execArgv, Object.entries(process.env).sort(), __filename)",
        "console.log(require.main === module, Object.keys(require.cache), module.paths)",
        "console.log(Object.getOwnPropertyNames(globalThis).sort().join())",
        "const fs = require('fs'); console.log(fs.readdirSync('/work'), fs.readdirSync('/tmp'))",
        "console.log(require('fs').readFileSync(0).toString().length)",
        "process.stdin.on('data', (it) => console.log(String(it))).on('end', () => console.log('end'))",
        "function f() { throw new Error('x') }\nf()",
        "function f( {",
        "process.exitCode = 7",
        "process.on('exit', () => console.log('bye')); process.exit(3)",
        "process.kill(process.pid, 'SIGTERM')",
        "setTimeout(() => console.log('late'), 50)",
        "import('node:os').then((os) => console.log(typeof os.cpus))",
        "console.log(require('child_process').execFileSync('echo', ['x']).toString())",
        "const { Worker } = require('worker_threads')\n\
         new Worker('console.log(1)', { eval: true }).on('exit', (code) => console.log(code))",
    ] {
        for stdin in [None, Some("input\n")] {
            let body = |warm: &str| {
                let env = json!({ "KEY": "value" });
                json!({ "language": "js", "code": code, "stdin": stdin, "env": env, "warm": warm })
            };
            let cold = server.post("/v1/run", &body("off")).was(200).json();
            let warm = in_waiting(&server, &body("fresh"));
            for field in ["exit_code", "signal", "stdout", "stderr", "cause", "truncated"] {
                assert_eq!(warm[field], cold[field], "{field} of {code}");
            }
        }
    }
    server.stop();
}

#[test]
fn files_and_outputs_of_a_run_are_those_of_an_interpreter_that_waited() {
    if !has_program("python3") {
        skip!("there is no python3");
    }
    let tare = tare!();
    let server = Server::start_configured(&tare, PYTHON);
    for size in [3, 200_000] {
        let body = json!({
            "language": "python",
            "code": "import os, helper\nopen('out/a', 'w').write(str(len(open('in/b').read())))",
            "files": [
                { "path": "in/b", "content": "x".repeat(size) },
                { "path": "out/.keep", "content": "" },
                { "path": "helper.py", "content": "" },
            ],
            "outputs": ["out/a"],
        });
        let result = in_waiting(&server, &body);
        assert_eq!(result["exit_code"], 0, "{result}");
        let expected = if size == 3 { "Mw==" } else { "MjAwMDAw" };
        assert_eq!(result["files"][0]["content_base64"], expected, "{result}");
    }
    server.stop();
}

#[test]
fn the_deadline_of_a_call_starts_with_the_call() {
    if !has_program("python3") {
        skip!("there is no python3");
    }
    let tare = tare!();
    let server = Server::start_configured(&tare, &format!("{PYTHON}start = 'at start'\n"));
    let ids = until_waiting(&tare, 2);
    tare_harness::let_pass(Duration::from_millis(1500));
    let body = |code: &str| json!({ "language": "python", "code": code, "timeout_ms": 1000 });
    let in_time = server.post("/v1/run", &body("print(1)")).was(200).json();
    assert_eq!((&in_time["warm"], &in_time["stdout"]), (&json!("fresh"), &json!("1\n")));
    assert!(ids.contains(&in_time["id"].as_str().expect("an id").to_owned()));
    let late = in_waiting(&server, &body("while True: pass"));
    assert_eq!((&late["exit_code"], &late["cause"]), (&json!(124), &json!("timeout")));
    server.stop();
}

#[test]
fn a_module_that_cannot_be_preloaded_is_reported_once_and_calls_start_cold() {
    if !has_program("python3") {
        skip!("there is no python3");
    }
    let tare = tare!();
    let config = format!("{PYTHON}preload = ['json', 'no_such_module']\n");
    let server = Server::start_configured(&tare, &config);
    let failures = || server.log().lines().filter(|line| line.contains("pool_failed")).count();
    for _call in 0..3 {
        let result = python_call(&server, "print(1)");
        assert_eq!((&result["warm"], &result["stdout"]), (&json!("off"), &json!("1\n")));
        eventually("it is reported", || failures() > 0);
    }
    assert_eq!(failures(), 1, "{}", server.log());
    let why = "cannot import no_such_module: ModuleNotFoundError: No module named 'no_such_module'";
    assert!(server.log().contains(why), "{}", server.log());
    assert!(!server.log().contains("in its box instead"), "{}", server.log());
    server.stop();
    let (_directory, path) = configured(&format!("{config}start = 'at start'\n"));
    let refused = tare.call(["serve", "--listen", "127.0.0.1:0", "--config", &path]);
    assert!(refused.code != 0 && refused.stderr_text().contains(why), "{refused:?}");
    assert!(!refused.stderr_text().contains("in its box instead"), "{refused:?}");
}

#[test]
fn a_node_that_does_not_start_stops_the_start_of_the_server() {
    if !has_program("node") {
        skip!("there is no node");
    }
    let tare = tare!();
    let (_directory, path) =
        configured("[pool.node]\nwarm = 1\nstart = 'at start'\npreload = ['no-such-module']\n");
    let refused = tare.call(["serve", "--listen", "127.0.0.1:0", "--config", &path]);
    assert!(refused.code != 0 && refused.stderr_text().contains("no-such-module"), "{refused:?}");
}

#[test]
fn modules_are_imported_before_the_call() {
    if !has_program("python3") {
        skip!("there is no python3");
    }
    let tare = tare!();
    let server = Server::start_configured(&tare, &format!("{PYTHON}preload = ['decimal']\n"));
    let code = "import sys; print('decimal' in sys.modules)";
    let body = json!({ "language": "python", "code": code });
    assert_eq!(in_waiting(&server, &body)["stdout"], "True\n");
    server.stop();
}

#[test]
fn what_a_module_prints_before_the_call_is_not_for_the_client() {
    if !has_program("python3") {
        skip!("there is no python3");
    }
    let tare = tare!();
    // It prints a poem.
    let server = Server::start_configured(&tare, &format!("{PYTHON}preload = ['this']\n"));
    let body = json!({ "language": "python", "code": "import this\nprint(1)" });
    assert_eq!(in_waiting(&server, &body)["stdout"], "1\n");
    server.stop();
}

/// A box that waits must not cost anything for ever.
#[test]
fn boxes_that_no_request_wants_end_after_the_idle_time() {
    let tare = tare!();
    let server = Server::start_configured(&tare, &format!("{BOXES}idle = '2s'\n"));
    until_waiting(&tare, 2);
    eventually_within(Duration::from_secs(30), "none waits", || waiting(&tare).is_empty());
    let run = || server.post("/v1/run", &json!({ "command": ["true"] })).was(200).json();
    assert_eq!(run()["warm"], "off");
    eventually("it waits again", || run()["warm"] == "box");
    server.stop();
}

#[test]
fn librechat_runs_python_in_an_interpreter_that_waited() {
    if !has_program("python3") {
        skip!("there is no python3");
    }
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let files = directory.path().join("files");
    let config = format!("{PYTHON}[files]\ndirectory = '{}'\n", files.display());
    let server = Server::start_configured(&tare, &config);
    let claimed =
        || server.get("/metrics").text().contains("tare_pool_claims_total{pool=\"python\"");
    let code = "import sys\nopen('/mnt/data/a.txt', 'w').write('x')\nprint(sys.argv, __file__)";
    eventually("an interpreter waits", || {
        let body = json!({ "lang": "py", "code": code, "args": ["one", "two"] });
        let answer = server.post("/v1/exec", &body).was(200).json();
        let expected = "['/tmp/code/main.py', 'one', 'two'] /tmp/code/main.py\n";
        assert_eq!(answer["stdout"], expected, "{answer}");
        assert_eq!(answer["files"][0]["name"], "a.txt", "{answer}");
        claimed()
    });
    server.stop();
}
