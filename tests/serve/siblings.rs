//! What clones of one template share, and what no clone can reach: its siblings and its template.

use std::collections::BTreeSet;
use std::fs;
use std::thread::ScopedJoinHandle;

use serde_json::{Value, json};
use tare_harness::skip::{has_program, is_root};
use tare_harness::{Process, Server, Tare, TemporaryDirectory, eventually, skip, tare};

use crate::serve::clones::{
    CLONES, clones, code, in_clone, interpreter, packages_with, processes_of, templates, until_full,
};
use crate::serve::operating::value;
use crate::serve::pool::waiting;

/// Waits until the test makes the file.
const WAIT: &str = "import os, time\nwhile not os.path.exists('/tmp/go'): time.sleep(0.01)\n";

/// Two clones of one template that run at the same time.
struct Pair {
    ids: Vec<String>,
}

impl Pair {
    /// Runs this code in two clones, each of which then waits.
    fn while_running<T>(
        tare: &Tare,
        server: &Server,
        program: &str,
        look: impl FnOnce(&Self) -> T,
    ) -> (T, [Value; 2]) {
        in_clone(server, &code("print(1)"));
        until_full(server, 2);
        let body = code(&format!("{program}\n{WAIT}"));
        std::thread::scope(|threads| {
            let call = || server.post("/v1/run", &body).was(200).json();
            let calls: [ScopedJoinHandle<'_, Value>; 2] =
                [threads.spawn(call), threads.spawn(call)];
            let mut ids: Vec<String> = Vec::new();
            eventually("two clones run", || {
                let listed =
                    tare.call(["ls", "-q", "--filter", "state=running"]).ok().stdout_text();
                ids = listed.lines().map(str::to_owned).collect();
                ids.len() == 2
            });
            let seen = look(&Self { ids: ids.clone() });
            // The box may end before the exec has reported its end.
            ids.iter().for_each(|id| drop(tare.exec(id, ["touch", "/tmp/go"])));
            let results = calls.map(|call| call.join().expect("an answer"));
            assert!(results.iter().all(|it| it["warm"] == "clone"), "{results:?}");
            (seen, results)
        })
    }
}

#[test]
fn clones_that_run_at_once_and_their_template_have_namespaces_of_their_own() {
    needs_clones!();
    let tare = tare!();
    let server = Server::start_configured(&tare, CLONES);
    let look = |pair: &Pair| {
        let template = templates(&tare).remove(0);
        let interpreters = [&pair.ids[0], &pair.ids[1], &template].map(|id| interpreter(id));
        for kind in ["user", "pid", "mnt", "net", "ipc", "uts", "cgroup"] {
            let of = |it: &Process| fs::read_link(format!("/proc/{}/ns/{kind}", it.pid));
            let seen: BTreeSet<_> =
                interpreters.iter().map(|it| of(it).expect("it lives")).collect();
            assert_eq!(seen.len(), 3, "{kind}: {seen:?}");
        }
    };
    // A name without a file belongs to one network namespace.
    let bind = "import socket\nname = socket.socket(socket.AF_UNIX); name.bind('\\0mine')\n\
                port = socket.socket(); port.bind(('127.0.0.1', 8000))\nprint('bound')";
    let ((), results) = Pair::while_running(&tare, &server, bind, look);
    assert!(results.iter().all(|it| it["stdout"] == "bound\n"), "{results:?}");
    server.stop();
}

/// The pids are those that the host sees.
#[test]
fn a_clone_cannot_signal_trace_read_or_see_its_siblings_its_template_or_the_server() {
    needs_clones!();
    let tare = tare!();
    let server = Server::start_configured(&tare, CLONES);
    let attack = "import ctypes, json, os\nlibc = ctypes.CDLL(None, use_errno=True)\ndone = []\n\
        def attempt(what, pid, act):\n    try:\n        done.append([what, pid, repr(act())])\n    except OSError: pass\n\
        def call(*words):\n    result = libc.syscall(*words)\n    if result < 0: raise OSError(ctypes.get_errno(), '')\n    return result\n\
        own = ctypes.create_string_buffer(8)\nvector = (ctypes.c_void_p * 2)(ctypes.addressof(own), 8)\n\
        for pid in PIDS:\n\
        \x20   attempt('kill', pid, lambda: os.kill(pid, 0))\n\
        \x20   attempt('ptrace', pid, lambda: call(101, 16, pid, 0, 0))\n\
        \x20   attempt('seize', pid, lambda: call(101, 0x4206, pid, 0, 0))\n\
        \x20   attempt('read', pid, lambda: call(310, pid, vector, 1, vector, 1, 0))\n\
        \x20   attempt('write', pid, lambda: call(311, pid, vector, 1, vector, 1, 0))\n\
        \x20   attempt('pidfd', pid, lambda: call(434, pid, 0))\n\
        \x20   for name in ('mem', 'maps', 'status', 'environ', 'root', 'fd'):\n\
        \x20       attempt(name, pid, lambda: os.stat(f'/proc/{pid}/{name}'))\n\
        print(json.dumps(done))\n";
    let look = |pair: &Pair| {
        let mut boxes = pair.ids.clone();
        boxes.extend(templates(&tare));
        let processes = boxes.iter().flat_map(|id| processes_of(id));
        // A clone has processes of its own with these pids.
        let mut pids: Vec<u32> = processes.map(|it| it.pid).filter(|pid| *pid > 4).collect();
        pids.push(server.pid());
        assert!(pids.len() >= 7, "{pids:?}");
        let program = attack.replace("PIDS", &format!("{pids:?}"));
        let result = in_clone(&server, &code(&program));
        assert_eq!(
            (&result["stdout"], &result["exit_code"]),
            (&json!("[]\n"), &json!(0)),
            "{result}"
        );
        // The program can do all of it to itself, so it makes the calls in the right way.
        let itself = attack.replace("PIDS", "[os.getpid()]");
        let done = in_clone(&server, &code(&itself))["stdout"].clone();
        for what in ["kill", "status", "fd"] {
            assert!(done.as_str().is_some_and(|it| it.contains(what)), "{done}");
        }
    };
    Pair::while_running(&tare, &server, "", look);
    server.stop();
}

#[test]
fn clones_of_one_template_have_its_hash_seed_and_fresh_interpreters_have_their_own() {
    needs_clones!();
    let tare = tare!();
    let server = Server::start_configured(&tare, CLONES);
    let seed = |warm: &str| {
        let body = json!({ "language": "python", "code": "print(hash('a'))", "warm": warm });
        let mut result = Value::Null;
        eventually("one waits", || {
            result = server.post("/v1/run", &body).was(200).json();
            result["warm"] == warm
        });
        result["stdout"].as_str().expect("a text").to_owned()
    };
    assert_eq!(seed("clone"), seed("clone"));
    let seeds = BTreeSet::from([seed("clone"), seed("fresh"), seed("fresh")]);
    assert_eq!(seeds.len(), 3, "{seeds:?}");
    server.stop();
}

/// The garbage collector of a clone never looks at the objects of its template, which would copy them.
#[test]
fn the_objects_of_a_template_are_frozen_in_its_clones() {
    needs_clones!();
    let tare = tare!();
    let server = Server::start_configured(&tare, CLONES);
    let result = in_clone(&server, &code("import gc; print(gc.get_freeze_count() > 1000)"));
    assert_eq!(result["stdout"], "True\n", "{result}");
    server.stop();
}

#[test]
fn the_interpreter_of_a_template_has_a_user_of_its_own_and_no_rights() {
    needs_clones!();
    let tare = tare!();
    let server = Server::start_configured(&tare, CLONES);
    in_clone(&server, &code("print(1)"));
    // A clone in the making still has the user of its template.
    until_full(&server, 2);
    let process = interpreter(&templates(&tare)[0]);
    let status = fs::read_to_string(format!("/proc/{}/status", process.pid)).expect("it lives");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
        line.unwrap_or_else(|| panic!("{name} of {status}")).to_owned()
    };
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    assert_eq!((field("NoNewPrivs").as_str(), field("Groups").trim()), ("1", ""));
    let uids = field("Uid");
    let uid = uids.split_whitespace().next().expect("a number").to_owned();
    assert!(uids.split_whitespace().all(|it| it == uid) && uid != "0", "{uids}");
    let all = fs::read_dir("/proc").expect("/proc").flatten();
    let of_user = all.filter(|entry| {
        let status = fs::read_to_string(entry.path().join("status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with(&format!("Uid:\t{uid}\t")))
    });
    assert_eq!(of_user.count(), 1, "no other process has its user");
    server.stop();
}

#[test]
fn the_memory_of_a_template_is_not_charged_to_its_clones() {
    needs_clones!();
    let tare = tare!();
    let packages = TemporaryDirectory::new();
    packages_with(&packages, "much = b'x' * (64 << 20)\n");
    let config = format!("{CLONES}preload = ['mine']\n[boxes]\npackages = '{}'\n", packages.text());
    let server = Server::start_configured(&tare, &config);
    let limits = json!({ "memory_bytes": 32 << 20, "scratch_bytes": 1 << 20 });
    let read = "import mine\nprint(mine.much.count(b'x'))";
    let body = json!({ "language": "python", "code": read, "limits": limits });
    let result = in_clone(&server, &body);
    assert_eq!((&result["stdout"], &result["exit_code"]), (&json!("67108864\n"), &json!(0)));
    let copies = "import mine\ncopy = bytearray(mine.much)\nprint(len(copy))";
    let body = json!({ "language": "python", "code": copies, "limits": limits });
    assert_eq!(in_clone(&server, &body)["oom"], true, "what a clone writes is charged to it");
    server.stop();
}

#[test]
fn a_clone_that_is_stopped_by_a_command_says_so() {
    needs_clones!();
    let tare = tare!();
    let server = Server::start_configured(&tare, CLONES);
    in_clone(&server, &code("print(1)"));
    std::thread::scope(|threads| {
        let call = threads.spawn(|| in_clone(&server, &code("import time; time.sleep(1000)")));
        let mut id = String::new();
        eventually("a clone runs", || {
            id = tare.call(["ls", "-q", "--filter", "state=running"]).ok().stdout_text();
            !id.is_empty()
        });
        tare.call(["stop", id.trim()]).ok();
        let result = call.join().expect("an answer");
        assert_eq!((&result["cause"], &result["exit_code"]), (&json!("stopped"), &json!(143)));
    });
    server.stop();
}

#[test]
fn templates_and_waiting_clones_count_as_boxes_and_templates_make_room_last() {
    needs_clones!();
    let tare = tare!();
    let server = Server::start_configured(&tare, &format!("{CLONES}[limits]\nboxes = 8\n"));
    in_clone(&server, &code("print(1)"));
    until_full(&server, 2);
    let live = || value(&server.get("/metrics").was(200).text(), "tare_boxes_live");
    eventually("template and clones count", || live() == Some(3.0));
    let create = || server.post("/v1/boxes", &json!({ "command": ["sleep", "1000"] }));
    (0..7).for_each(|_| drop(create().was(201)));
    assert_eq!((clones(&tare).len(), templates(&tare).len()), (0, 1));
    create().was(201);
    assert_eq!(waiting(&tare), []);
    create().refused(503, "pressure");
    assert_eq!(live(), Some(8.0));
    server.stop();
    tare.call(["rm", "-f", "--all"]).ok();
}

#[test]
fn a_clone_is_promised_its_limits_from_its_claim_on() {
    needs_clones!();
    let tare = tare!();
    let shares = "[admission]\npids_share = 1\nmemory_share = 1\n";
    let server = Server::start_configured(&tare, &format!("{CLONES}{shares}"));
    let promised = || {
        let text = server.get("/metrics").was(200).text();
        ["pids_host", "memory_host"]
            .map(|gauge| value(&text, &format!("tare_gauge_promised{{gauge=\"{gauge}\"}}")))
    };
    let limits = json!({ "pids": 99, "memory_bytes": 64 << 20 });
    let body = |code: &str| json!({ "language": "python", "code": code, "limits": limits });
    in_clone(&server, &body("print(1)"));
    until_full(&server, 2);
    assert_eq!(promised(), [Some(0.0); 2]);
    std::thread::scope(|threads| {
        let call = threads.spawn(|| in_clone(&server, &body(WAIT)));
        let mut id = String::new();
        eventually("a clone runs", || {
            id = tare.call(["ls", "-q", "--filter", "state=running"]).ok().stdout_text();
            !id.is_empty()
        });
        // Its keeper is a process too.
        assert_eq!(promised(), [Some(99.0 + 1.0), Some(f64::from(64 << 20))]);
        tare.exec(id.trim(), ["touch", "/tmp/go"]);
        assert_eq!(call.join().expect("an answer")["exit_code"], 0);
    });
    assert_eq!(promised(), [Some(0.0); 2]);
    server.stop();
}

/// The kernel shows the variables with which the interpreter of the template was started.
#[test]
fn the_variables_of_a_request_are_in_the_environment_of_a_clone_and_of_its_children() {
    needs_clones!();
    let tare = tare!();
    let server = Server::start_configured(&tare, CLONES);
    let program = "import os, subprocess\nshown = open('/proc/self/environ').read()\n\
                   child = subprocess.run(['env'], capture_output=True, text=True).stdout\n\
                   print(os.environ['MINE'], 'MINE=1' in child, 'MINE' in shown,\n\
                   'LD_BIND_NOW' in os.environ, 'LD_BIND_NOW' in child)";
    let body = json!({ "language": "python", "code": program, "env": { "MINE": "1" } });
    assert_eq!(in_clone(&server, &body)["stdout"], "1 True False False False\n");
    server.stop();
}
