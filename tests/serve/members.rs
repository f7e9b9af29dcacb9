//! What happens to waiting boxes and templates when they die, when the host lacks something, and when a
//! file system does not answer.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use serde_json::json;
use tare_harness::skip::{has_program, is_root};
use tare_harness::{
    FileServer, Freezer, Process, Server, TemporaryDirectory, box_processes, eventually,
    eventually_within, skip, tare,
};

use crate::serve::clones::{
    CLONES, clones, code, in_clone, interpreter, packages_with, processes_of, templates, until_full,
};
use crate::serve::pool::{BOXES, until_waiting, waiting};

/// A descriptor is not needed to see whether a box lives.
#[test]
fn a_server_without_free_descriptors_takes_no_box_that_waits_for_dead() {
    let tare = tare!();
    let server = Server::start_configured(&tare, BOXES);
    until_waiting(&tare, 2);
    let pid = Pid::from_raw(i32::try_from(server.pid()).expect("a pid"));
    let none = Rlimit { current: Some(3), ..getrlimit(Resource::Nofile) };
    let before = prlimit(pid, Resource::Nofile, none).expect("the server is ours");
    // It looks each second.
    tare_harness::let_pass(Duration::from_millis(2500));
    prlimit(pid, Resource::Nofile, before).expect("the server is ours");
    assert!(!server.log().contains("pool_member_lost"), "{}", server.log());
    server.stop().ok();
}

#[test]
fn a_template_removed_with_many_clones_counts_as_one_failure() {
    needs_clones!();
    let tare = tare!();
    let server = Server::start_configured(&tare, "[pool.python]\nwarm = 8\n");
    in_clone(&server, &code("print(1)"));
    eventually("the pool is full", || clones(&tare).len() == 8);
    let template = templates(&tare);
    tare.call(["rm", "-f", &template[0]]).ok();
    // Eight failures would delay the next clone by a minute.
    eventually_within(Duration::from_secs(50), "the pool is full again", || {
        templates(&tare) != template && clones(&tare).len() == 8
    });
    server.stop();
    tare.call(["audit"]).ok();
}

/// A module can end its interpreter at any later time, for example by `signal.alarm`.
#[test]
fn a_template_that_dies_again_and_again_is_made_after_longer_and_longer_pauses() {
    needs_clones!();
    let tare = tare!();
    let server = Server::start_configured(&tare, CLONES);
    let began = Instant::now();
    let mut last = Vec::new();
    for _template in 0..4 {
        eventually("there is another template", || {
            // Calls that get clones of it do not shorten the next pause.
            in_clone(&server, &code("print(1)"));
            let now = templates(&tare);
            let has_cloned = |id: &String| {
                let inspected = tare.json(["inspect", id]);
                inspected[0]["template"]["clones"].as_u64() >= Some(1)
            };
            now.len() == 1 && now != last && has_cloned(&now[0])
        });
        last = templates(&tare);
        interpreter(&last[0]).signal(Signal::KILL);
    }
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(1 + 2 + 4), "{took:?}");
    server.stop();
}

#[test]
fn a_call_gets_the_next_clone_if_the_first_is_dead_and_a_new_one_if_all_are() {
    needs_clones!();
    let tare = tare!();
    let server = Server::start_configured(&tare, "[pool.python]\nwarm = 3\n");
    in_clone(&server, &code("print(1)"));
    for dead in [2, 3] {
        until_full(&server, 3);
        let members = clones(&tare);
        let interpreters: Vec<_> = members.iter().take(dead).map(|id| interpreter(id)).collect();
        interpreters.iter().for_each(|it| it.signal(Signal::KILL));
        let is_killed = |it: &Process| interpreters.iter().any(|killed| killed.pid == it.pid);
        eventually("they are reaped", || !box_processes().iter().any(is_killed));
        // Their keepers say so then. The server listens.
        tare_harness::let_pass(Duration::from_millis(500));
        let result = server.post("/v1/run", &code("print(1)")).was(200).json();
        assert_eq!((&result["warm"], &result["stdout"]), (&json!("clone"), &json!("1\n")));
        let is_last = result["id"] == members[2].as_str();
        assert_eq!(is_last, dead == 2, "{result} of {members:?}");
    }
    server.stop();
    tare.call(["audit"]).ok();
}

#[test]
fn a_template_without_a_use_ends_even_if_a_clone_of_it_still_ran() {
    needs_clones!();
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let path = directory.write("tare.toml", CLONES);
    let server = Server::start(&tare, &["--config", &path.display().to_string()]);
    in_clone(&server, &code("print(1)"));
    std::thread::scope(|threads| {
        let wait = "import os, time\nwhile not os.path.exists('/tmp/go'): time.sleep(0.01)";
        let call = threads.spawn(|| in_clone(&server, &code(wait)));
        let mut running = String::new();
        eventually("a clone runs", || {
            running = tare.call(["ls", "-q", "--filter", "state=running"]).ok().stdout_text();
            !running.is_empty()
        });
        directory.write("tare.toml", "[pool.python]\nwarm = 0\n");
        server.ask("POST", "/v1/reload", &[], b"").was(204);
        eventually("only the template is left", || {
            waiting(&tare).len() == 1 && templates(&tare).len() == 1
        });
        tare.exec(running.trim(), ["touch", "/tmp/go"]);
        call.join().expect("an answer");
    });
    eventually("the template has ended", || waiting(&tare).is_empty());
    server.stop();
}

#[test]
fn packages_whose_file_system_does_not_answer_stop_no_other_pool() {
    needs_clones!();
    let tare = tare!();
    let Some(files) = FileServer::new(&tare) else {
        skip!("this host has no bindfs or no FUSE");
    };
    let packages = files.path().display().to_string();
    let config = format!(
        "{CLONES}[pool.box]\nwarm = 1\n[files]\ndirectory = '{}'\n[librechat.boxes]\npackages = '{packages}'\n",
        tare.state_root().join("files").display()
    );
    let server = Server::start_configured(&tare, &config);
    let exec = json!({ "lang": "py", "code": "print(1)" });
    server.post("/v1/exec", &exec).was(200);
    eventually("there is a template", || templates(&tare).len() == 1 && clones(&tare).len() == 2);
    files.stop();
    let command = json!({ "command": ["true"] });
    for _call in 0..4 {
        // The server looks at packages every two seconds.
        tare_harness::let_pass(Duration::from_secs(1));
        eventually("a box waits", || {
            server.post("/v1/run", &command).was(200).json()["warm"] == "box"
        });
    }
    files.go_on();
    server.stop().ok();
}

/// Whether the import raises an error, ends the interpreter or kills it.
#[test]
fn the_event_about_a_failed_preload_names_the_module_and_the_error() {
    needs_clones!();
    for fresh in ["", "fresh = true\n"] {
        for (module, why) in [
            (
                "import no_such",
                "cannot import mine: ModuleNotFoundError: No module named 'no_such'",
            ),
            ("raise ValueError('two\\nlines')", "cannot import mine: ValueError: two lines"),
            ("def f(:", "cannot import mine: SyntaxError: "),
            ("raise SystemExit(3)", "cannot import mine: SystemExit: 3"),
            ("import os; os._exit(3)", "it ended while it imported mine"),
        ] {
            let tare = tare!();
            let packages = TemporaryDirectory::new();
            packages_with(&packages, module);
            let config = format!(
                "{CLONES}{fresh}preload = ['json', 'mine']\n[boxes]\npackages = '{}'\n",
                packages.text()
            );
            let server = Server::start_configured(&tare, &config);
            for _call in 0..2 {
                let result = server.post("/v1/run", &code("print(1)")).was(200).json();
                assert_eq!((&result["warm"], &result["stdout"]), (&json!("off"), &json!("1\n")));
                eventually("the pool has failed", || server.log().contains("pool_failed"));
            }
            let log = server.stop().ok().stderr_text();
            let said: Vec<&str> = log.lines().filter(|it| it.contains("pool_failed")).collect();
            assert!(said.len() == 1 && said[0].contains(why), "{module}: {log}");
        }
    }
}

/// The kernel ends no frozen process.
#[test]
fn a_box_that_cannot_be_ended_keeps_its_place_in_the_pool() {
    let tare = tare!();
    let Some(freezer) = Freezer::new() else {
        skip!("there is no freezer of cgroup version 1");
    };
    let config = "[pool.box]\nwarm = 1\nmax = 1\nidle = '10s'\n";
    let server = Server::start_configured(&tare, config);
    let ids = until_waiting(&tare, 1);
    let processes = processes_of(&ids[0]);
    freezer.freeze(processes[0].pid);
    eventually("it is stuck", || server.log().contains("teardown_stuck"));
    let run = || {
        let result = server.post("/v1/run", &json!({ "command": ["true"] })).was(200).json();
        result["warm"].clone()
    };
    for _call in 0..4 {
        assert_eq!(run(), "off");
        tare_harness::let_pass(Duration::from_millis(300));
    }
    freezer.thaw();
    eventually("there is a place again", || run() == "box");
    server.stop();
    tare.call(["audit"]).ok();
}
