//! The interpreters that clones are copies of: how long they live, what takes their place, and who shares
//! them.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use tare_harness::skip::{has_program, is_root};
use tare_harness::{
    Process, Scope, Server, TemporaryDirectory, box_processes, eventually, eventually_within,
    hierarchies, skip, tare,
};

use crate::serve::clones::{
    CLONES, clones, code, in_clone, interpreter, packages_with, processes_of, templates, until_full,
};
use crate::serve::pool::{parsed, waiting};

/// A server that may have few boxes keeps its places for requests.
#[test]
fn without_configuration_a_server_with_few_boxes_has_no_template() {
    needs_clones!();
    let tare = tare!();
    let server = Server::start_configured(&tare, "[limits]\nboxes = 2\n");
    for _call in 0..2 {
        assert_eq!(server.post("/v1/run", &code("print(1)")).was(200).json()["warm"], "off");
    }
    assert_eq!(waiting(&tare), []);
    let log = server.stop().ok().stderr_text();
    let said: Vec<&str> = log.lines().filter(|line| line.contains("pool_")).collect();
    let is_said = |line: &str| line.contains("pool_off") && line.contains("[limits] boxes is 2");
    assert!(said.len() == 1 && is_said(said[0]), "{log}");
}

/// Boxes with other limits are copies of the same template.
#[test]
fn kinds_of_boxes_that_differ_in_their_limits_share_a_template() {
    needs_clones!();
    let tare = tare!();
    let server = Server::start_configured(&tare, CLONES);
    in_clone(&server, &code("print(1)"));
    let template = templates(&tare);
    for megabytes in [64, 65, 66] {
        let limits = json!({ "memory_bytes": megabytes << 20, "nofile": 100 + megabytes });
        let nofile = "import resource\nprint(resource.getrlimit(resource.RLIMIT_NOFILE)[0])";
        let body = json!({ "language": "python", "code": nofile, "limits": limits });
        let result = server.post("/v1/run", &body).was(200).json();
        assert_eq!(result["warm"], "clone", "{result}");
        assert_eq!(result["stdout"], format!("{}\n", 100 + megabytes), "{result}");
    }
    assert_eq!(templates(&tare), template);
    server.stop();
}

#[test]
fn the_event_about_a_template_that_ran_out_of_memory_says_so() {
    needs_clones!();
    let tare = tare!();
    let packages = TemporaryDirectory::new();
    packages_with(&packages, "much = b'x' * (1 << 30)");
    let config = format!("{CLONES}preload = ['mine']\n[boxes]\npackages = '{}'\n", packages.text());
    let server = Server::start_configured(&tare, &config);
    server.post("/v1/run", &code("print(1)")).was(200);
    eventually("the pool has failed", || server.log().contains("pool_failed"));
    let log = server.log();
    let line = log.lines().find(|line| line.contains("pool_failed")).expect("a line");
    assert!(line.contains("memory limit of 512 MiB reached"), "{line}");
    server.stop();
}

#[test]
fn a_call_that_ends_with_its_template_names_what_ended_the_template() {
    needs_clones!();
    let tare = tare!();
    let server = Server::start_configured(&tare, CLONES);
    let call = code("import time; time.sleep(1000)");
    for (removes, sentence) in [
        (true, "Killed by 'tare rm -f' (user root, pid "),
        (false, "The keeper ended without a report, not killed by tare"),
    ] {
        in_clone(&server, &code("print(1)"));
        until_full(&server, 2);
        let template = templates(&tare).pop().expect("a template");
        let result = std::thread::scope(|threads| {
            let waiting = clones(&tare);
            let answer = threads.spawn(|| server.post("/v1/run", &call).was(200).json());
            eventually("a clone is claimed", || {
                let left = clones(&tare);
                waiting.iter().any(|id| !left.contains(id))
            });
            if removes {
                tare.call(["rm", "-f", &template]).ok();
            } else {
                let mut keeper = processes_of(&template).into_iter();
                let keeper = keeper.find(|it| it.name.starts_with("tare")).expect("a keeper");
                keeper.signal(Signal::KILL);
            }
            answer.join().expect("an answer")
        });
        let cause = if removes { "killed" } else { "keeper_lost" };
        assert_eq!(
            (&result["cause"], &result["warm"]),
            (&json!(cause), &json!("clone")),
            "{result}"
        );
        let said = result["sentence"].as_str().expect("a sentence");
        assert!(said.starts_with(sentence), "{said}");
        let id = result["id"].as_str().expect("an id");
        let explained = tare.json(["explain", "--json", id]);
        assert_eq!((&explained["sentence"], &explained["cause"]), (&json!(said), &json!(cause)));
    }
    server.stop();
}

#[test]
fn a_template_that_dies_is_replaced_and_its_clones_live_on() {
    needs_clones!();
    let tare = tare!();
    let server = Server::start_configured(&tare, CLONES);
    in_clone(&server, &code("print(1)"));
    until_full(&server, 2);
    let first = templates(&tare);
    let members = clones(&tare);
    interpreter(&first[0]).signal(Signal::KILL);
    let result = server.post("/v1/run", &code("print(1)")).was(200).json();
    assert_eq!((&result["warm"], &result["stdout"]), (&json!("clone"), &json!("1\n")));
    assert!(members.contains(&result["id"].as_str().expect("an id").to_owned()));
    eventually("there is another template", || {
        in_clone(&server, &code("print(1)"));
        let now = templates(&tare);
        now.len() == 1 && now != first
    });
    let restarts = "tare_pool_template_restarts_total{pool=\"python\"} 1";
    eventually("it is counted", || server.get("/metrics").was(200).text().contains(restarts));
    server.stop();
}

#[test]
fn a_template_is_listed_takes_no_request_and_is_replaced_when_it_is_removed() {
    needs_clones!();
    let tare = tare!();
    let server = Server::start_configured(&tare, CLONES);
    in_clone(&server, &code("print(1)"));
    let first = templates(&tare);
    let id = first[0].as_str();
    assert!(tare.call(["ls", "-a"]).ok().stdout_text().contains("warm(python-template)"));
    for command in [&["exec", id, "true"][..], &["attach", id], &["pause", id]] {
        let refused = tare.call(command);
        assert!(refused.code != 0, "{refused:?}");
        assert!(refused.stderr_text().contains("waits in a pool"), "{refused:?}");
    }
    let exec = server.post(&format!("/v1/boxes/{id}/exec"), &json!({ "command": ["true"] }));
    exec.refused(409, "warm");
    tare.call(["rm", "-f", id]).ok();
    eventually("there is another template", || {
        in_clone(&server, &code("print(1)"));
        let now = templates(&tare);
        now.len() == 1 && now != first
    });
    tare.call(["audit"]).ok();
    server.stop();
    tare.call(["audit"]).ok();
}

#[test]
fn inspect_of_a_template_shows_what_it_imported_and_what_it_costs() {
    needs_clones!();
    let tare = tare!();
    let server = Server::start_configured(&tare, &format!("{CLONES}preload = ['json', 'uuid']\n"));
    in_clone(&server, &code("print(1)"));
    until_full(&server, 2);
    let id = templates(&tare).remove(0);
    let inspected = tare.json(["inspect", &id])[0].clone();
    let template = &inspected["template"];
    assert_eq!(template["imported"], json!(["json", "uuid"]), "{inspected}");
    assert!(template["clones"].as_u64() >= Some(3), "{inspected}");
    assert!(template["age_ms"].as_u64() > Some(0), "{inspected}");
    assert!(inspected["usage"]["memory_bytes"].as_u64() > Some(1 << 20), "{inspected}");
    let over_http = server.get(&format!("/v1/boxes/{id}")).was(200).json();
    assert_eq!(over_http["template"]["imported"], template["imported"]);
    let clone = tare.json(["inspect", &clones(&tare)[0]])[0].clone();
    assert_eq!(clone["template"], json!(null), "{clone}");
    server.stop();
}

#[test]
fn a_template_is_renewed_after_a_number_of_clones_and_an_age() {
    needs_clones!();
    for limit in ["clones = 3", "age = '1s'"] {
        let tare = tare!();
        let server = Server::start_configured(&tare, &format!("{CLONES}{limit}\n"));
        let mut seen = BTreeSet::new();
        eventually_within(Duration::from_secs(60), "there were three templates", || {
            in_clone(&server, &code("print(1)"));
            seen.extend(templates(&tare));
            seen.len() >= 3
        });
        eventually("old templates end", || templates(&tare).len() <= 2);
        server.stop();
        assert_eq!(waiting(&tare), []);
    }
}

#[test]
fn a_template_is_renewed_when_its_packages_change() {
    needs_clones!();
    let tare = tare!();
    let packages = TemporaryDirectory::new();
    packages_with(&packages, "VALUE = 41\n");
    let config = format!("{CLONES}preload = ['mine']\n[boxes]\npackages = '{}'\n", packages.text());
    let server = Server::start_configured(&tare, &config);
    let value = || in_clone(&server, &code("import mine\nprint(mine.VALUE)"))["stdout"].clone();
    assert_eq!(value(), "41\n");
    let first = templates(&tare);
    packages.write("python/mine.py", "VALUE = 42  # another size\n");
    eventually("calls see the new module", || value() == "42\n");
    eventually("the old template ends", || {
        let now = templates(&tare);
        now.len() == 1 && now != first
    });
    server.stop();
}

#[test]
fn a_reload_renews_the_template_and_ends_what_no_request_can_want() {
    needs_clones!();
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let path = directory.write("tare.toml", CLONES);
    let server = Server::start(&tare, &["--config", &path.display().to_string()]);
    in_clone(&server, &code("print(1)"));
    let first = templates(&tare);
    server.ask("POST", "/v1/reload", &[], b"").was(204);
    eventually("there is another template", || {
        in_clone(&server, &code("print(1)"));
        let now = templates(&tare);
        now.len() == 1 && now != first
    });
    directory.write("tare.toml", format!("{CLONES}preload = ['json']\n"));
    server.ask("POST", "/v1/reload", &[], b"").was(204);
    eventually("nothing waits", || waiting(&tare).is_empty());
    in_clone(&server, &code("print(1)"));
    directory.write("tare.toml", "[pool.python]\nwarm = 0\n");
    server.ask("POST", "/v1/reload", &[], b"").was(204);
    eventually("nothing waits", || waiting(&tare).is_empty());
    assert_eq!(server.post("/v1/run", &code("print(1)")).was(200).json()["warm"], "off");
    server.stop();
}

#[test]
fn a_template_that_no_request_wants_ends_after_the_idle_time() {
    needs_clones!();
    let tare = tare!();
    let server = Server::start_configured(&tare, &format!("{CLONES}idle = '2s'\n"));
    in_clone(&server, &code("print(1)"));
    eventually_within(Duration::from_secs(30), "none waits", || waiting(&tare).is_empty());
    in_clone(&server, &code("print(1)"));
    server.stop();
}

/// Each box is a process tree below the template's, and all of them below the server's.
#[test]
fn a_server_killed_with_a_full_pool_leaves_no_template_and_no_clone() {
    needs_clones!();
    let tare = tare!();
    for _round in 0..5 {
        let server = Server::start_configured(&tare, "[pool.python]\nwarm = 4\n");
        in_clone(&server, &code("print(1)"));
        let boxes: Vec<String> = waiting(&tare).into_iter().map(|(id, _)| id).collect();
        let body = code("import time\nprint(1, flush=True)\ntime.sleep(1000)");
        let mut client = server.connect();
        let (head, text) = ("POST /v1/run HTTP/1.1\r\nHost: 127.0.0.1", body.to_string());
        let fields = format!("Content-Type: application/json\r\nContent-Length: {}", text.len());
        client
            .write_all(format!("{head}\r\n{fields}\r\n\r\n{text}").as_bytes())
            .expect("a request");
        eventually("a clone runs", || {
            let listed = parsed(&tare.call(["ls", "--json"]).ok());
            listed.as_array().expect("a list").iter().any(|it| it["state"] == "running")
        });
        server.kill();
        eventually("everything has ended", || boxes.iter().all(|id| processes_of(id).is_empty()));
        let server = Server::start(&tare, &[]);
        eventually("the next server has cleaned up", || {
            let listed = parsed(&tare.call(["ls", "-a", "--json"]).ok());
            listed.as_array().is_some_and(Vec::is_empty)
        });
        tare.call(["audit"]).ok();
        server.stop();
    }
}

#[test]
fn a_template_removed_while_calls_run_leaves_nothing_and_every_call_is_answered() {
    needs_clones!();
    let tare = tare!();
    let server = Server::start_configured(&tare, "[pool.python]\nwarm = 4\n");
    in_clone(&server, &code("print(1)"));
    for _round in 0..8 {
        std::thread::scope(|threads| {
            let call = || server.post("/v1/run", &code("print(6 * 7)"));
            let calls: Vec<_> = (0..6).map(|_| threads.spawn(call)).collect();
            for id in templates(&tare) {
                tare.call(["rm", "-f", &id]);
            }
            for call in calls {
                let answer = call.join().expect("it was answered");
                let result = answer.json();
                // A clone ends with its template. Then the answer says so.
                let is_well = answer.status == 200 && result["stdout"] == "42\n";
                let has_said = answer.status != 200 || result["cause"] != "exited";
                assert!(is_well || has_said, "{result}");
            }
        });
        eventually("a clone runs code again", || {
            server.post("/v1/run", &code("print(1)")).was(200).json()["warm"] == "clone"
        });
    }
    server.stop();
    assert_eq!(waiting(&tare), []);
    tare.call(["audit"]).ok();
}

/// The directory of a pool belongs to its template, and contains the directories of its clones.
#[test]
fn the_cgroups_of_a_template_and_its_clones_end_with_the_template() {
    needs_clones!();
    let tare = tare!();
    let server = Server::start_configured(&tare, CLONES);
    in_clone(&server, &code("print(1)"));
    until_full(&server, 2);
    let template = templates(&tare).remove(0);
    let unified = |id: &str| -> String {
        let process = processes_of(id).into_iter().next().expect("a process");
        process.cgroups.into_iter().find(|path| path.matches("tare-").count() == 2).expect("a pool")
    };
    let pool = unified(&template);
    let pool = pool.rsplit_once('/').expect("a directory").0;
    assert!(pool.ends_with(&template), "{pool}");
    for clone in clones(&tare) {
        assert_eq!(unified(&clone).rsplit_once('/').expect("a directory").0, pool);
    }
    tare.call(["audit"]).ok();
    server.stop();
    assert!(tare.footprint().records.is_empty());
    tare.call(["audit"]).ok();
}

/// K shares the memory of the template until it executes. The kernel kills all processes that share
/// memory, if it kills one of them for its memory limit.
#[test]
fn a_clone_with_little_memory_does_not_take_its_template_along() {
    needs_clones!();
    let tare = tare!();
    let server = Server::start_configured(&tare, CLONES);
    let small = json!({ "language": "python", "code": "print(1)",
                        "limits": { "memory_bytes": 6 << 20, "scratch_bytes": 1 << 16 } });
    in_clone(&server, &small);
    let template = templates(&tare);
    for _call in 0..4 {
        let result = in_clone(&server, &small);
        assert_eq!(result["stdout"], "1\n", "{result}");
    }
    assert_eq!(templates(&tare), template);
    server.stop();
}

/// The worst moment: the processes of a pool are killed together, while the template makes boxes.
#[test]
fn a_template_and_a_server_that_are_killed_under_load_leave_no_process() {
    needs_clones!();
    let tare = tare!();
    let rounds = if std::env::var_os("TARE_LONG").is_some() { 40 } else { 10 };
    for round in 0..rounds {
        let server = Server::start_configured(&tare, "[pool.python]\nwarm = 4\n");
        in_clone(&server, &code("print(1)"));
        let template = templates(&tare).remove(0);
        let processes = processes_of(&template);
        let (headers, body) =
            ([("Content-Type", "application/json")], code("print(1)").to_string());
        let call = || server.send("POST", "/v1/run", &headers, body.as_bytes());
        let mut calls: Vec<_> = (0..12).map(|_| call()).collect();
        // Another number of calls is under way in each round.
        for answered in &mut calls[..round % 10] {
            answered.read_to_end(&mut Vec::new()).expect("an answer");
        }
        let is_python = |it: &&Process| it.name.starts_with("python");
        if round % 2 == 0 {
            processes.iter().filter(is_python).for_each(|it| it.signal(Signal::KILL));
        } else {
            kill_pool(&template);
        }
        server.kill();
        eventually("everything has ended", || box_processes().iter().all(|it| it.is_zombie));
        tare.call(["sweep"]);
        tare.call(["audit"]).ok();
    }
}

#[test]
fn the_cgroups_of_a_pool_are_below_the_configured_parent() {
    needs_clones!();
    let tare = tare!();
    let Some(scope) = Scope::new("pooled") else {
        skip!("only root can make cgroups here");
    };
    let boxes = format!("[boxes]\ncgroup_parent = '{}'\n", scope.name);
    let server = Server::start_configured(&tare, &format!("{CLONES}{boxes}"));
    in_clone(&server, &code("print(1)"));
    until_full(&server, 2);
    let mut ids = clones(&tare);
    ids.extend(templates(&tare));
    for process in ids.iter().flat_map(|id| processes_of(id)) {
        let of_boxes = process.cgroups.iter().filter(|path| path.contains("tare-"));
        let outside: Vec<&String> = of_boxes.filter(|path| !path.contains(&scope.name)).collect();
        assert!(outside.is_empty(), "{process:?}");
    }
    tare.call(["audit"]).ok();
    server.stop();
    assert_eq!(scope.boxes(), Vec::<std::path::PathBuf>::new());
}

/// Kills all processes of a pool at once, those that share the memory of the template among them.
fn kill_pool(template: &str) {
    let paths = interpreter(template).cgroups.into_iter();
    let pools = paths.filter_map(|path| {
        let mut names = path.rsplit('/');
        let own = names.next().filter(|it| it.ends_with(template))?;
        names.next().filter(|pool| *pool == own).map(str::to_owned)
    });
    let pools: Vec<String> = pools.collect();
    let files = hierarchies()
        .into_iter()
        .flat_map(|root| pools.iter().map(move |pool| root.join(pool).join("cgroup.kill")));
    let killed = files.filter(|file| std::fs::write(file, "1").is_ok()).count();
    assert_eq!(killed, 1, "{pools:?}");
}
