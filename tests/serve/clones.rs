//! Copies of an interpreter that waits: each call gets one in a box of its own, looks to its code like a
//! new interpreter, and shares nothing with the others that a call could have left there.

use std::collections::BTreeSet;

use rustix::process::Signal;
use serde_json::{Value, json};
use tare_harness::skip::{has_program, is_root};
use tare_harness::{
    Process, Server, Tare, TemporaryDirectory, box_processes, eventually, skip, tare, unprivileged,
};

use crate::librechat::client::with_packages;
use crate::serve::operating::value;
use crate::serve::pool::{ENDINGS, PROBE, parsed, waiting};
use crate::serve::pressure::serve_with;
use crate::serve::quotas::sha256;

pub const CLONES: &str = "[pool.python]\nwarm = 2\n";

/// Skips where no interpreter can be cloned.
macro_rules! needs_clones {
    () => {
        if !has_program("python3") || !is_root() {
            skip!("clones need python3 and root");
        }
    };
}

pub fn code(code: &str) -> Value {
    json!({ "language": "python", "code": code })
}

/// Runs code until a clone has run it.
#[track_caller]
pub fn in_clone(server: &Server, body: &Value) -> Value {
    let mut result = Value::Null;
    eventually("a clone waits", || {
        result = server.post("/v1/run", body).was(200).json();
        result["warm"] == "clone"
    });
    result
}

/// Makes the module `mine` of packages for Python.
pub fn packages_with(packages: &TemporaryDirectory, mine: &str) {
    std::fs::create_dir(packages.path().join("python")).expect("a directory");
    packages.write("python/mine.py", mine);
}

/// The boxes of templates.
pub fn templates(tare: &Tare) -> Vec<String> {
    let all = waiting(tare).into_iter();
    all.filter(|(_, pool)| pool == "python-template").map(|(id, _)| id).collect()
}

pub fn clones(tare: &Tare) -> Vec<String> {
    let all = waiting(tare).into_iter();
    all.filter(|(_, pool)| pool == "python").map(|(id, _)| id).collect()
}

/// Waits until this many clones are on their shelf. On record, a clone is warm a little earlier.
#[track_caller]
pub fn until_full(server: &Server, count: u32) {
    let is = |metrics: &str, state: &str, count: u32| {
        let name = format!("tare_pool_members{{pool=\"python\",state=\"{state}\"}}");
        value(metrics, &name) == Some(f64::from(count))
    };
    eventually("the pool is full", || {
        let metrics = server.get("/metrics").was(200).text();
        is(&metrics, "waiting", count) && is(&metrics, "making", 0)
    });
}

/// The processes of a box that are alive, by its cgroups. Those of a clone are below its template's.
pub fn processes_of(id: &str) -> Vec<Process> {
    let is_of_box = |it: &Process| it.cgroups.iter().any(|path| path.ends_with(id));
    box_processes().into_iter().filter(|it| !it.is_zombie && is_of_box(it)).collect()
}

/// The interpreter of a template.
pub fn interpreter(id: &str) -> Process {
    let mut processes = processes_of(id).into_iter();
    processes.find(|it| it.name.starts_with("python")).expect("a template has an interpreter")
}

#[test]
fn without_configuration_calls_of_python_get_clones_after_the_first() {
    needs_clones!();
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let files = format!("[files]\ndirectory = '{}'\n", directory.join("files").display());
    let server = Server::start_configured(&tare, &files);
    assert_eq!(server.post("/v1/run", &code("print(1)")).was(200).json()["warm"], "off");
    until_full(&server, 2);
    assert_eq!(templates(&tare).len(), 1);
    let result = server.post("/v1/run", &code("print(6 * 7)")).was(200).json();
    assert_eq!((&result["warm"], &result["stdout"]), (&json!("clone"), &json!("42\n")));
    let claims = || {
        let metrics = server.get("/metrics").was(200).text();
        let name = "tare_pool_claims_total{pool=\"python\",kind=\"clone\"} ";
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        line.expect("it is counted").parse::<u32>().expect("a number")
    };
    let before = claims();
    eventually("LibreChat gets one too", || {
        let body = json!({ "lang": "py", "code": "print(6 * 7)" });
        assert_eq!(server.post("/v1/exec", &body).was(200).json()["stdout"], "42\n");
        claims() > before
    });
    let log = server.log();
    assert!(!log.contains("\"pool_"), "{log}");
    server.stop();
    assert_eq!(waiting(&tare), []);
}

#[test]
fn without_configuration_a_server_without_root_starts_each_python_for_its_call() {
    if !has_program("python3") {
        skip!("there is no python3");
    }
    let tare = unprivileged!();
    let server = Server::start_configured(&tare, "");
    for _call in 0..3 {
        assert_eq!(server.post("/v1/run", &code("print(1)")).was(200).json()["warm"], "off");
    }
    eventually("the log says why", || server.log().contains("only root can have a template"));
    let log = server.log();
    let said: Vec<&str> = log.lines().filter(|line| line.contains("pool_")).collect();
    assert!(said.len() == 1 && said[0].contains("pool_off"), "{log}");
    assert_eq!(waiting(&tare), []);
    server.stop();
}

#[test]
fn a_program_sees_the_same_in_a_clone_as_in_a_new_interpreter() {
    needs_clones!();
    let tare = tare!();
    let server = Server::start_configured(&tare, CLONES);
    for stdin in [None, Some("some\ninput\n")] {
        let body = |warm: &str| {
            json!({ "language": "python", "code": PROBE, "env": { "KEY": "a=\u{e9}\n" },
                    "stdin": stdin, "warm": warm })
        };
        let cold = server.post("/v1/run", &body("off")).was(200).json();
        let clone = in_clone(&server, &body("clone"));
        let seen = |result: &Value| -> Value {
            let stdout = result["stdout"].as_str().expect("a text");
            serde_json::from_str(stdout).unwrap_or_else(|_| panic!("{result}"))
        };
        let (cold, clone) = (seen(&cold), seen(&clone));
        for (what, expected) in cold.as_object().expect("an object") {
            assert_eq!(&clone[what], expected, "{what}");
        }
    }
    server.stop();
}

#[test]
fn a_program_ends_the_same_way_in_a_clone() {
    needs_clones!();
    let tare = tare!();
    let server = Server::start_configured(&tare, CLONES);
    for program in ENDINGS {
        let body = |warm: &str| json!({ "language": "python", "code": program, "warm": warm });
        let cold = server.post("/v1/run", &body("off")).was(200).json();
        let clone = in_clone(&server, &body("clone"));
        for field in ["exit_code", "signal", "stdout", "stderr", "cause", "truncated"] {
            assert_eq!(clone[field], cold[field], "{field} of {program}");
        }
    }
    server.stop();
}

/// What a program may use after it was copied: other threads, processes, the C library's own state,
/// modules that the template itself has used, and its own files in /proc.
#[test]
fn a_clone_can_do_what_a_new_interpreter_can() {
    needs_clones!();
    let tare = tare!();
    let server = Server::start_configured(&tare, CLONES);
    for program in [
        "import threading\nlock = threading.RLock()\ndef f():\n    with lock:\n        with lock:\n            print(threading.get_native_id() != 2)\nt = threading.Thread(target=f); t.start(); t.join()",
        "import ctypes\nlibc = ctypes.CDLL(None)\nprint(libc.getppid(), ctypes.sizeof(ctypes.c_long))\n@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)\ndef f(n): return n + 1\nprint(f(1))",
        "import os\npid = os.fork()\nif pid == 0: os._exit(3)\nprint(os.waitpid(pid, 0)[1])",
        "import multiprocessing as m\nprint(m.Pool(2).map(abs, [-1, -2]))",
        "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'print(7)'], capture_output=True))",
        "import socket\ns = socket.socket(); s.bind(('127.0.0.1', 80)); s.listen()\nc = socket.create_connection(('127.0.0.1', 80)); c.send(b'x'); print(s.accept()[0].recv(1))",
        "import os\nprint(sorted(os.listdir('/proc/self/fd'))[:3], open('/dev/stdin').read())",
        "import os\nprint(sorted(n for n in os.listdir('/proc') if n.isdigit()) == [str(os.getpid())])",
        "import ctypes, os\nlibc = ctypes.CDLL(None)\nfor cpu in os.sched_getaffinity(0):\n    os.sched_setaffinity(0, [cpu]); print(libc.sched_getcpu() == cpu)",
        "import signal, os\nsignal.signal(signal.SIGUSR1, lambda *a: print('signal'))\nos.kill(os.getpid(), signal.SIGUSR1)",
        "import asyncio\nasync def f(): await asyncio.sleep(0.01); return 5\nprint(asyncio.run(f()))",
        "import os\nopen('/dev/stdout', 'w').write('again\\n')",
        // Landlock refuses this, and a device without it would not know the number.
        "import fcntl\ntry: fcntl.ioctl(open('/dev/zero', 'rb'), 0x1234)\nexcept OSError as e: print(e.errno)",
        // The filter: mount, ptrace, unshare, bpf, keyctl, perf_event_open, clone3, setns.
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nfor n in (165, 101, 272, 321, 250, 298, 435, 308, 155, 175, 246, 304, 310, 323):\n    print(n, libc.syscall(n, -1, 0, 0, 0, 0, 0), ctypes.get_errno())",
    ] {
        let body = |warm: &str| json!({ "language": "python", "code": program, "warm": warm });
        let cold = server.post("/v1/run", &body("off")).was(200).json();
        assert_eq!(cold["exit_code"], 0, "{cold}");
        let clone = in_clone(&server, &body("clone"));
        for field in ["exit_code", "stdout", "stderr"] {
            assert_eq!(clone[field], cold[field], "{field} of {program}: {clone}");
        }
    }
    server.stop();
}

#[test]
fn clones_of_one_template_draw_different_random_numbers() {
    needs_clones!();
    let tare = tare!();
    let modules = "['random', 'uuid', 'secrets', 'tempfile', 'ssl', 'multiprocessing', 'hashlib']";
    let server = Server::start_configured(&tare, &format!("{CLONES}preload = {modules}\n"));
    let draw = "import json, multiprocessing, os, random, secrets, ssl, tempfile, uuid\n\
                print(json.dumps([random.random(), str(uuid.uuid4()), secrets.token_hex(),\n\
                ssl.RAND_bytes(8).hex(), next(tempfile._get_candidate_names()),\n\
                os.urandom(8).hex(), multiprocessing.current_process().authkey.hex()]))";
    let mut drawn: Vec<Vec<Value>> = Vec::new();
    for _call in 0..4 {
        let result = in_clone(&server, &code(draw));
        let numbers = serde_json::from_str(result["stdout"].as_str().expect("a text"));
        drawn.push(numbers.unwrap_or_else(|_| panic!("{result}")));
    }
    for kind in 0..drawn[0].len() {
        let distinct: BTreeSet<String> = drawn.iter().map(|it| it[kind].to_string()).collect();
        assert_eq!(distinct.len(), drawn.len(), "{kind}: {drawn:?}");
    }
    assert_eq!(templates(&tare).len(), 1, "they are clones of one template");
    server.stop();
}

/// Libraries for linear algebra have threads, which a copy of their process has not.
#[test]
fn clones_with_numpy_compute_and_draw_different_random_numbers() {
    needs_clones!();
    let Some(packages) = with_packages() else {
        skip!("numpy is not installed: ./check does that");
    };
    let tare = tare!();
    let packages = packages.replace("librechat.boxes", "boxes");
    let preload = "preload = ['numpy', 'numpy.random']\n";
    let server = Server::start_configured(&tare, &format!("{CLONES}{preload}{packages}"));
    let draw = "import numpy\nsquare = numpy.ones((400, 400))\nprint((square @ square).sum())\n\
                print(numpy.random.rand(), numpy.random.default_rng().random())";
    let mut drawn = BTreeSet::new();
    for _call in 0..3 {
        let result = in_clone(&server, &code(draw));
        let text = result["stdout"].as_str().expect("a text");
        let (sum, numbers) = text.split_once('\n').unwrap_or_else(|| panic!("{result}"));
        assert_eq!(sum, "64000000.0", "{result}");
        drawn.extend(numbers.split_whitespace().map(str::to_owned));
    }
    assert_eq!(drawn.len(), 6, "{drawn:?}");
    server.stop();
}

#[test]
fn what_a_clone_changes_is_in_no_other_clone_and_not_in_the_template() {
    needs_clones!();
    let tare = tare!();
    let server = Server::start_configured(&tare, &format!("{CLONES}preload = ['json']\n"));
    let change = "import builtins, json, os, sys\n\
                  print(hasattr(json, 'mine'), 'MINE' in os.environ, os.listdir('/work'),\n\
                  os.listdir('/tmp'), os.listdir('/dev/shm'), hasattr(builtins, 'mine'))\n\
                  json.mine = builtins.mine = True\n\
                  os.environ['MINE'] = '1'\n\
                  for name in ('/work/x', '/tmp/x', '/dev/shm/x'): open(name, 'w').write('x')\n\
                  sys.stdout.flush()\n";
    for _call in 0..4 {
        let result = in_clone(&server, &code(change));
        let untouched = "False False ['main.py'] [] [] False\n";
        assert_eq!((&result["stdout"], &result["exit_code"]), (&json!(untouched), &json!(0)));
    }
    server.stop();
}

#[test]
fn files_packages_and_outputs_of_a_run_are_those_of_a_clone() {
    needs_clones!();
    let tare = tare!();
    let packages = TemporaryDirectory::new();
    packages_with(&packages, "VALUE = 41\n");
    let config = format!("{CLONES}preload = ['mine']\n[boxes]\npackages = '{}'\n", packages.text());
    let server = Server::start_configured(&tare, &config);
    for size in [3, 200_000] {
        let body = json!({
            "language": "python",
            "code": "import helper, mine\nopen('a', 'w').write(str(len(open('in/b').read()) + mine.VALUE))",
            "files": [
                { "path": "in/b", "content": "x".repeat(size) },
                { "path": "helper.py", "content": "" },
            ],
            "outputs": ["a"],
        });
        let result = in_clone(&server, &body);
        let expected = if size == 3 { "NDQ=" } else { "MjAwMDQx" };
        assert_eq!(result["files"][0]["content_base64"], expected, "{result}");
    }
    server.stop();
}

#[test]
fn a_clone_has_its_own_limits_and_deadline() {
    needs_clones!();
    let tare = tare!();
    let server = Server::start_configured(&tare, CLONES);
    let late = json!({ "language": "python", "code": "while True: pass", "timeout_ms": 500 });
    let late = in_clone(&server, &late);
    assert_eq!((&late["exit_code"], &late["cause"]), (&json!(124), &json!("timeout")), "{late}");
    let template = templates(&tare);
    let limits = json!({ "memory_bytes": 64 << 20 });
    let hungry = json!({
        "language": "python", "code": "x = bytearray(200 << 20)\nprint(len(x))", "limits": limits,
    });
    let killed = in_clone(&server, &hungry);
    assert_eq!(killed["oom"], true, "{killed}");
    assert!(templates(&tare).contains(&template[0]), "another box ran out of memory");
    let crowd = "import os, time\nfor n in range(100):\n    if os.fork() == 0: time.sleep(100)\n";
    let crowd = json!({ "language": "python", "code": crowd, "limits": { "pids": 20 } });
    let crowd = in_clone(&server, &crowd);
    assert_ne!(crowd["exit_code"], 0, "{crowd}");
    let full = json!({
        "language": "python", "code": "open('/tmp/file', 'wb').write(bytes(1 << 20))",
        "limits": { "scratch_bytes": 1 << 16 },
    });
    let full = in_clone(&server, &full);
    assert_eq!(full["cause"], "scratch_full", "{full}");
    server.stop();
}

#[test]
fn a_clone_has_the_processor_time_that_its_request_allows() {
    needs_clones!();
    let tare = tare!();
    let server = Server::start_configured(&tare, CLONES);
    let burn = "import os, time\nuntil = time.monotonic() + 2\n\
                if os.fork() == 0:\n    while time.monotonic() < until: pass\n    os._exit(0)\n\
                while time.monotonic() < until: pass\nos.wait()\n\
                times = os.times()\nprint(sum(times[:4]))";
    let body = json!({ "language": "python", "code": burn, "limits": { "cpus": 0.2 } });
    let result = in_clone(&server, &body);
    let used: f64 = result["stdout"].as_str().expect("a text").trim().parse().expect("a number");
    assert!(used < 1.0, "0.2 of a processor for two seconds: {used}");
    server.stop();
}

#[test]
fn signals_and_umask_of_a_clone_are_those_of_a_new_interpreter_whatever_its_modules_did() {
    needs_clones!();
    let tare = tare!();
    let packages = TemporaryDirectory::new();
    let module = "import os, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n\
                  signal.signal(signal.SIGINT, signal.SIG_DFL)\n\
                  signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\nos.umask(0)";
    packages_with(&packages, module);
    let config = format!("{CLONES}preload = ['mine']\n[boxes]\npackages = '{}'\n", packages.text());
    let server = Server::start_configured(&tare, &config);
    let probe = "import os, signal\nprint([signal.getsignal(n) for n in signal.valid_signals()])\n\
                 print(signal.pthread_sigmask(0, []), os.umask(0))";
    let cold = json!({ "language": "python", "code": probe, "warm": "off" });
    let cold = server.post("/v1/run", &cold).was(200).json();
    let seen = |result: &Value| {
        let text = result["stdout"].as_str().expect("a text");
        text.split(" at 0x").next().map(str::to_owned)
    };
    assert_eq!(seen(&in_clone(&server, &code(probe))), seen(&cold), "{cold}");
    server.stop();
}

#[test]
fn a_server_that_stops_while_an_interpreter_imports_its_modules_leaves_nothing() {
    needs_clones!();
    for fresh in ["", "fresh = true\n"] {
        let tare = tare!();
        let packages = TemporaryDirectory::new();
        packages_with(&packages, "import time\ntime.sleep(1000)");
        let config = format!(
            "{CLONES}{fresh}preload = ['mine']\n[boxes]\npackages = '{}'\n",
            packages.text()
        );
        let server = Server::start_configured(&tare, &config);
        server.post("/v1/run", &code("print(1)")).was(200);
        let is_importing = |it: &Process| it.name.starts_with("python");
        eventually("an interpreter imports", || box_processes().iter().any(is_importing));
        let log = server.log();
        server.stop().ok();
        assert!(!log.contains("pool_failed"), "{log}");
        tare.call(["audit"]).ok();
        assert!(tare.footprint().records.is_empty());
    }
}

/// All boxes of a template belong to one user of the host, whose limits they share.
#[test]
fn a_clone_that_uses_up_inotify_or_signals_leaves_some_for_the_next_clone() {
    needs_clones!();
    let inotify = "import ctypes, time\nlibc = ctypes.CDLL(None)\ncount = 0\n\
                   while libc.inotify_init() >= 0: count += 1\nprint(count, flush=True)\n";
    // rt_sigqueueinfo of a blocked signal to itself.
    let signals = "import ctypes, os, signal, time\nlibc = ctypes.CDLL(None)\ncount = 0\n\
                   signal.pthread_sigmask(signal.SIG_BLOCK, [40])\n\
                   info = (ctypes.c_int * 32)(40, 0, -1)\n\
                   while libc.syscall(129, os.getpid(), 40, info) == 0: count += 1\n\
                   print(count, flush=True)\n";
    for (take, most) in [(inotify, "16\n"), (signals, "1024\n")] {
        let tare = tare!();
        let server = Server::start_configured(&tare, CLONES);
        let all = json!({ "language": "python", "code": format!("{take}time.sleep(1000)"),
                          "timeout_ms": 600_000 });
        in_clone(&server, &code("print(1)"));
        until_full(&server, 2);
        std::thread::scope(|threads| {
            let held = threads.spawn(|| server.post("/v1/run", &all));
            let mut running = Vec::new();
            eventually("a clone runs", || {
                let listed = parsed(&tare.call(["ls", "--json"]).ok());
                running = listed.as_array().expect("a list").clone();
                running.retain(|it| it["state"] == "running");
                running.len() == 1
            });
            let next = in_clone(&server, &code(take));
            assert_eq!(next["stdout"], most, "{next}");
            tare.call(["rm", "-f", running[0]["id"].as_str().expect("an id")]).ok();
            let held = held.join().expect("it was answered").was(200).json();
            assert_eq!((&held["stdout"], &held["warm"]), (&json!(most), &json!("clone")));
        });
        server.stop();
    }
}

/// The kernel limits the processes of all clones together by what the template may have.
#[test]
fn a_clone_that_makes_as_many_processes_as_it_may_leaves_some_for_the_next_clone() {
    needs_clones!();
    let tare = tare!();
    // A soft limit, which the template can raise.
    let server = serve_with(&tare, "exec prlimit --nproc=200:", CLONES);
    let fork = "import os, time\nprint('begins', flush=True)\ncount = 0\ntry:\n\
                \x20   while count < 400:\n\
                \x20       if os.fork() == 0: time.sleep(1000); os._exit(0)\n\
                \x20       count += 1\nexcept OSError: pass\nprint(count, flush=True)\n";
    let all = json!({ "language": "python", "code": format!("{fork}time.sleep(1000)"),
                      "timeout_ms": 600_000, "limits": { "pids": 1000 } });
    in_clone(&server, &code("print(1)"));
    until_full(&server, 2);
    std::thread::scope(|threads| {
        let held = threads.spawn(|| server.post("/v1/run", &all));
        let mut running = Vec::new();
        eventually("a clone has made processes", || {
            let listed = parsed(&tare.call(["ls", "--json"]).ok());
            running = listed.as_array().expect("a list").clone();
            running.retain(|it| it["state"] == "running");
            let id = |it: &Value| it["id"].as_str().expect("an id").to_owned();
            running.len() == 1 && tare.processes_in(&id(&running[0])).len() > 150
        });
        let child = "import subprocess\nprint(subprocess.run(['true']).returncode)";
        assert_eq!(in_clone(&server, &code(child))["stdout"], "0\n");
        tare.call(["rm", "-f", running[0]["id"].as_str().expect("an id")]).ok();
        held.join().expect("it was answered").was(200);
    });
    server.stop();
}

#[test]
fn a_request_or_a_key_can_refuse_a_clone() {
    needs_clones!();
    let tare = tare!();
    let (shared, alone) = ("shared-key", "alone-key");
    let keys = format!(
        "[[keys]]\nname = 'shared'\nsha256 = '{}'\n[[keys]]\nname = 'alone'\nsha256 = '{}'\nwarm = 'fresh'\n",
        sha256(shared),
        sha256(alone)
    );
    let server = Server::start_configured(&tare, &format!("{CLONES}{keys}"));
    let run = |key: &str, warm: Option<&str>| {
        let mut body = code("print(1)");
        if let Some(warm) = warm {
            body["warm"] = warm.into();
        }
        let headers = [("Content-Type", "application/json"), ("X-API-Key", key)];
        let answer = server.ask("POST", "/v1/run", &headers, body.to_string().as_bytes());
        answer.was(200).json()["warm"].as_str().expect("a text").to_owned()
    };
    eventually("a clone waits", || run(shared, None) == "clone");
    eventually("an interpreter waits", || run(shared, Some("fresh")) == "fresh");
    assert_eq!(run(shared, Some("off")), "off");
    for _call in 0..4 {
        assert_ne!(run(alone, None), "clone");
        assert_ne!(run(alone, Some("clone")), "clone");
    }
    eventually("an interpreter waits", || run(alone, None) == "fresh");
    server.stop();
}

#[test]
fn a_module_that_cannot_be_cloned_is_named_and_calls_go_on_without_clones() {
    needs_clones!();
    for (module, why) in [
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=[1000], daemon=True).start()",
            "the module mine started a thread",
        ),
        ("file = open('/dev/zero')", "the module mine keeps a descriptor open"),
        (
            "import subprocess\nchild = subprocess.Popen(['sleep', '1000'])",
            "a module started a process",
        ),
        (
            "import os\nif os.fork() == 0:\n    if os.fork() == 0: os.execlp('sleep', 'sleep', '1000')\n    os._exit(0)\nos.wait()",
            "a module started a process",
        ),
        (
            "import mmap\nshared = mmap.mmap(-1, 4096)",
            "the module mine has memory that its clones would share",
        ),
        (
            "import multiprocessing\nlock = multiprocessing.Lock()",
            "the module mine has memory that its clones would share",
        ),
    ] {
        let tare = tare!();
        let packages = TemporaryDirectory::new();
        packages_with(&packages, module);
        let config = format!(
            "{CLONES}preload = ['json', 'mine']\n[boxes]\npackages = '{}'\n",
            packages.text()
        );
        let server = Server::start_configured(&tare, &config);
        eventually("an interpreter waits", || {
            let result = server.post("/v1/run", &code("print(1)")).was(200).json();
            assert_ne!(result["warm"], "clone", "{result}");
            result["warm"] == "fresh"
        });
        let log = server.log();
        assert!(log.contains(why), "{log}");
        assert_eq!(log.lines().filter(|line| line.contains("pool_failed")).count(), 1, "{log}");
        assert_eq!(templates(&tare), Vec::<String>::new());
        server.stop();
    }
}

#[test]
fn calls_that_find_no_clone_get_one_from_the_template_and_their_own_box_if_it_does_not_answer() {
    needs_clones!();
    let tare = tare!();
    let server = Server::start_configured(&tare, CLONES);
    in_clone(&server, &code("print(1)"));
    until_full(&server, 2);
    let on_demand = || {
        let metrics = server.get("/metrics").was(200).text();
        value(&metrics, "tare_pool_clones_on_demand_total{pool=\"python\"}").expect("it is counted")
    };
    let before = on_demand();
    let call = || server.post("/v1/run", &code("import time; time.sleep(1)")).was(200).json();
    let at_once = std::thread::scope(|scope| {
        let calls: Vec<_> = (0..6).map(|_| scope.spawn(call)).collect();
        calls.into_iter().map(|call| call.join().expect("an answer")).collect::<Vec<_>>()
    });
    assert!(at_once.iter().all(|result| result["warm"] == "clone"), "{at_once:?}");
    assert!(on_demand() > before, "two of six waited");
    until_full(&server, 2);
    let template = interpreter(&templates(&tare)[0]);
    template.signal(Signal::STOP);
    eventually("a call makes its own box", || {
        let result = server.post("/v1/run", &code("print(1)")).was(200).json();
        assert_eq!(result["stdout"], "1\n", "{result}");
        result["warm"] == "off"
    });
    server.stop().ok();
    assert!(tare.footprint().records.is_empty());
}

#[test]
fn many_calls_at_once_each_get_a_box_of_their_own() {
    needs_clones!();
    let tare = tare!();
    let server = Server::start_configured(&tare, CLONES);
    in_clone(&server, &code("print(1)"));
    let ids: Vec<String> = std::thread::scope(|threads| {
        let call = || {
            let result = server.post("/v1/run", &code("print(6 * 7)")).was(200).json();
            assert_eq!(result["stdout"], "42\n", "{result}");
            result["id"].as_str().expect("an id").to_owned()
        };
        let calls: Vec<_> = (0..24).map(|_| threads.spawn(call)).collect();
        calls.into_iter().map(|call| call.join().expect("it was answered")).collect()
    });
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
    server.stop();
    tare.call(["audit"]).ok();
}
