//! P: pools of warm boxes, and boxes that are copies of others.

use std::collections::BTreeSet;

use rustix::process::Signal;
use serde_json::{Value, json};
use tare_harness::skip::{has_program, is_root};
use tare_harness::{Server, TemporaryDirectory, box_processes, eventually, skip};

use crate::leaks::case::{Case, case, times};
use crate::librechat::client::with_packages;

/// Skips where no interpreter can be cloned.
macro_rules! needs_clones {
    () => {
        if !has_program("python3") || !is_root() {
            skip!("clones need python3 and root");
        }
    };
}

fn python(code: &str) -> Value {
    json!({ "language": "python", "code": code })
}

fn call(server: &Server, code: &str) -> Value {
    server.post("/v1/run", &python(code)).was(200).json()
}

/// Calls until a clone has answered.
#[track_caller]
fn in_clone(server: &Server, code: &str) -> Value {
    let mut result = Value::Null;
    eventually("a clone waits", || {
        result = call(server, code);
        result["warm"] == "clone"
    });
    result
}

/// The ids of the boxes that wait in this pool.
fn waiting(case: &Case, pool: &str) -> BTreeSet<String> {
    let boxes = case.list();
    let of_pool = boxes.iter().filter(|it| it["state"] == "warm" && it["pool"] == pool);
    of_pool.map(|it| it["id"].as_str().expect("an id").to_owned()).collect()
}

/// P1, mitos: clones of one image drew the same random numbers, which were seeded before the clone.
#[test]
fn no_two_clones_draw_the_same_random_numbers() {
    needs_clones!();
    let case = case();
    let preload = "preload = ['random', 'uuid', 'tempfile', 'secrets']";
    let server = Server::start_configured(&case, &format!("[pool.python]\n{preload}\n"));
    let draw = "import os, random, secrets, tempfile, uuid\n\
                print(random.random(), uuid.uuid4(), next(tempfile._get_candidate_names()),\n\
                os.urandom(8).hex(), secrets.token_hex(), sep='\\n')";
    let mut drawn = BTreeSet::new();
    let clones = times(12, 50);
    for _clone in 0..clones {
        let result = in_clone(&server, draw);
        let lines = result["stdout"].as_str().expect("a text").lines();
        drawn.extend(lines.map(str::to_owned));
    }
    assert_eq!(drawn.len(), 5 * clones, "all differ");
    server.stop();
    case.nothing_left();
}

/// P1, mitos: the same for the legacy generator of numpy, which is seeded at its import.
#[test]
fn no_two_clones_draw_the_same_random_numbers_with_numpy() {
    needs_clones!();
    let Some(packages) = with_packages() else {
        skip!("numpy is not installed: ./check does that");
    };
    let case = case();
    let packages = packages.replace("librechat.boxes", "boxes");
    let preload = "preload = ['numpy', 'numpy.random']";
    let config = format!("[pool.python]\n{preload}\n{packages}");
    let server = Server::start_configured(&case, &config);
    let draw = "import numpy.random\nprint(numpy.random.rand(), numpy.random.default_rng().random(),\n\
                numpy.random.randint(1 << 62), sep='\\n')";
    let mut drawn = BTreeSet::new();
    let clones = times(6, 50);
    for _clone in 0..clones {
        let result = in_clone(&server, draw);
        let lines = result["stdout"].as_str().expect("a text").lines();
        drawn.extend(lines.map(str::to_owned));
    }
    assert_eq!(drawn.len(), 3 * clones, "all differ");
    server.stop();
    case.nothing_left();
}

/// P2, omnigent: children of finished runs stayed below their template and carried its command line.
#[test]
fn after_calls_that_ended_and_were_killed_only_the_template_and_its_waiting_clones_are_left() {
    needs_clones!();
    let case = case();
    let server = Server::start_configured(&case, "[pool.python]\nwarm = 2\n");
    in_clone(&server, "print(1)");
    let fork =
        "import os, sys, time\nfor _ in range(3):\n    if os.fork() == 0: time.sleep(1000)\n";
    for number in 0..times(12, 1000) {
        let body = python(&format!("{fork}print(1, flush=True)\ntime.sleep({})", number % 3 * 500));
        let json = [("Content-Type", "application/json")];
        match number % 3 {
            0 => drop(server.post("/v1/run", &body).was(200)),
            // The client is gone.
            1 => drop(server.send("POST", "/v1/run", &json, body.to_string().as_bytes())),
            _ => {
                let client = server.send("POST", "/v1/run", &json, body.to_string().as_bytes());
                let mut id = String::new();
                eventually("it runs", || {
                    id = case.call(["ls", "-q", "--filter", "state=running"]).ok().stdout_text();
                    !id.is_empty()
                });
                case.call(["rm", "-f", id.lines().next().expect("an id")]);
                drop(client);
            }
        }
    }
    eventually("only what waits is left", || {
        let boxes = case.list();
        boxes.len() == 3 && boxes.iter().all(|it| it["state"] == "warm")
    });
    // By their cgroups: a clone has the name and the arguments of its template.
    let ids: Vec<String> =
        case.list().iter().map(|it| it["id"].as_str().expect("an id").to_owned()).collect();
    let is_python = |it: &tare_harness::Process| it.name.starts_with("python") && !it.is_zombie;
    for process in box_processes().into_iter().filter(is_python) {
        let is_of = |path: &String| ids.iter().any(|id| path.contains(id.as_str()));
        assert!(process.cgroups.iter().any(is_of), "{process:?}");
    }
    server.stop();
    case.nothing_left();
}

/// P4, agent-sandbox: members that never became ready were created again and again, and reaped ones were
/// still charged to the quota.
#[test]
fn an_interpreter_that_never_becomes_ready_is_made_once_and_costs_no_quota() {
    needs_clones!();
    let case = case();
    let packages = TemporaryDirectory::new();
    std::fs::create_dir(packages.join("python")).expect("a directory");
    packages.write("python/slow.py", "import time\ntime.sleep(1000)\n");
    let key = crate::serve::quotas::sha256("secret");
    let config = format!(
        "[pool.python]\nwarm = 2\nmax = 2\npreload = ['slow']\n[boxes]\npackages = '{}'\n\
         [[keys]]\nname = 'one'\nsha256 = '{key}'\nboxes = 1\n",
        packages.text()
    );
    let server = Server::start_configured(&case, &config);
    let headers = [("Content-Type", "application/json"), ("X-API-Key", "secret")];
    let body = python("print(1)").to_string();
    for _call in 0..times(10, 100) {
        let answer = server.ask("POST", "/v1/run", &headers, body.as_bytes()).was(200).json();
        assert_eq!(answer["warm"], "off", "{answer}");
        assert!(case.list().len() <= 3, "the template and at most two more");
    }
    eventually("the log says what it waits for", || {
        let log = server.log();
        log.lines().any(|line| line.contains("pool_slow") && line.contains("imports slow"))
    });
    server.stop();
    case.nothing_left();
}

/// P5, agent-sandbox: the session of a user could be frozen into the golden image of the pool.
#[test]
fn a_box_that_ran_code_waits_in_no_pool_again_and_is_no_template() {
    needs_clones!();
    let case = case();
    let server = Server::start_configured(&case, "[pool.python]\nwarm = 2\nclones = 4\n");
    let (mut used, mut seen) = (BTreeSet::new(), BTreeSet::new());
    for _call in 0..times(20, 200) {
        let mark = "import os\nprint(os.path.exists('/tmp/mine'), 'MINE' in os.environ)\n\
                    open('/tmp/mine', 'w').close(); os.environ['MINE'] = '1'";
        let result = call(&server, mark);
        assert_eq!(result["stdout"], "False False\n", "{result}");
        assert!(used.insert(result["id"].as_str().expect("an id").to_owned()), "{result}");
        seen.extend(waiting(&case, "python-template"));
        assert!(used.is_disjoint(&waiting(&case, "python")), "a used box waits");
    }
    assert!(used.is_disjoint(&seen), "a used box is a template");
    server.stop();
    case.nothing_left();
}

/// P6, forkd, nucleus and mitos: an error after the spawn left the machine behind, and a name that was
/// frozen into the template kept it from ever starting.
#[test]
fn a_template_killed_while_it_is_built_leaves_nothing_and_the_next_one_starts() {
    needs_clones!();
    let case = case();
    let packages = TemporaryDirectory::new();
    std::fs::create_dir(packages.join("python")).expect("a directory");
    let module = "import os, time\nif os.path.exists('/opt/packages/wait'): time.sleep(1000)\n";
    packages.write("python/mine.py", module);
    let wait = packages.write("wait", "");
    let programs = format!("[boxes]\npackages = '{}'\n", packages.text());
    let config = format!("[pool.python]\nwarm = 1\npreload = ['mine']\n{programs}");
    let server = Server::start_configured(&case, &config);
    call(&server, "print(1)");
    // First the template, then the interpreters that are started in its place.
    for _time in 0..times(2, 5) {
        eventually("an interpreter that imports is killed", || {
            let mut all = box_processes().into_iter();
            let found = all.find(|it| it.name.starts_with("python") && !it.is_zombie);
            found.iter().for_each(|it| it.signal(Signal::KILL));
            found.is_some()
        });
    }
    std::fs::remove_file(wait).expect("it is there");
    eventually("the next one starts", || {
        call(&server, "print(1)")["warm"] != "off" && case.list().len() <= 2
    });
    server.stop();
    case.nothing_left();
}
