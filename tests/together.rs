//! Concurrent commands on one box: each ends, the box is then in a state that some order of the
//! commands explains, and nothing is left.

use std::time::Duration;

use tare_harness::{Running, Tare, TemporaryDirectory, tare};

/// The commands on box `a`; the test runs every pair of them concurrently.
fn commands(file: &str) -> Vec<Vec<&str>> {
    vec![
        vec!["stop", "-t", "1s", "a"],
        vec!["rm", "-f", "a"],
        vec!["exec", "a", "--", "true"],
        vec!["cp", file, "a:/work/file"],
        vec!["pause", "a"],
        vec!["resume", "a"],
        vec!["update", "--pids", "50", "--memory", "64m", "--lease", "1h", "a"],
        vec!["logs", "-f", "a"],
        vec!["run", "-d", "--name", "a", "--", "sleep", "1000"],
    ]
}

/// A call that follows the box ends only with it.
fn follows(command: &[&str]) -> bool {
    command[0] == "logs"
}

/// Sorts the calls: those that another may wait for come first.
fn in_order<'a, T>(mut calls: Vec<(&'a Vec<&'a str>, T)>) -> Vec<(&'a Vec<&'a str>, T)> {
    calls.sort_by_key(|(command, _)| command[0] != "pause");
    calls
}

#[track_caller]
fn nothing_left(tare: &Tare, after: &str) {
    let left = tare.difference_now();
    assert!(left.is_empty(), "after {after}:\n{}", left.join("\n"));
}

/// Removes the box with this name by force, if it exists.
#[track_caller]
fn clear(tare: &Tare, after: &str) {
    for one in tare.list() {
        let state = one["state"].as_str().expect("a state").to_owned();
        assert!(
            ["running", "paused", "exited"].contains(&state.as_str()),
            "after {after} a box is {state}: {one}"
        );
        tare.call(["rm", "-f", one["id"].as_str().expect("an id")]).ok();
    }
}

#[test]
fn every_pair_of_concurrent_commands_ends_in_a_state_that_some_order_explains() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let file = directory.write("file", "content\n");
    let commands = commands(file.to_str().expect("an ASCII path"));
    for (index, first) in commands.iter().enumerate() {
        for second in &commands[index..] {
            let after = format!("{first:?} and {second:?}");
            tare.detached(["--name", "a", "--", "sleep", "1000"]);
            let calls = [first, second].map(|it| (it, tare.spawn_call(it)));
            let (followers, others): (Vec<_>, Vec<_>) =
                calls.into_iter().partition(|(it, _)| follows(it));
            for (command, call) in in_order(others) {
                check(command, call, &after);
                // Processes that started while the box was paused continue now.
                if command[0] == "pause" {
                    tare.call(["resume", "a"]);
                }
            }
            clear(&tare, &after);
            for (command, call) in followers {
                check(command, call, &after);
            }
            nothing_left(&tare, &after);
        }
    }
}

/// Checks that the command succeeded or printed one line with the reason.
#[track_caller]
fn check(command: &[&str], call: Running, after: &str) {
    let output = call.wait();
    let failure = match command[0] {
        "run" | "exec" => 125,
        _ => 1,
    };
    // The box may be ended while the command in it runs.
    let killed = command[0] == "exec" && output.code == 137;
    assert!(output.code == 0 || output.code == failure || killed, "{after}: {output}");
    let said = output.stderr_text();
    if output.code == failure {
        assert!(said.lines().count() == 1 && said.starts_with("tare: "), "{after}: {output}");
    }
}

#[test]
fn ten_concurrent_stops_and_removals_of_one_box_agree() {
    let tare = tare!();
    for command in [&["stop", "-t", "0", "a"][..], &["rm", "-f", "a"], &["kill", "a"]] {
        let id = tare.detached(["--name", "a", "--", "sleep", "1000"]);
        let calls: Vec<Running> = (0..10).map(|_| tare.spawn_call(command)).collect();
        let mut succeeded = 0;
        for call in calls {
            let output = call.wait();
            assert!([0, 1].contains(&output.code), "{output}");
            assert!(output.lasted < Duration::from_secs(20), "{output}");
            succeeded += u32::from(output.code == 0);
        }
        assert!(succeeded >= 1, "{command:?}");
        let processes = tare.processes_in(&id);
        assert!(processes.is_empty(), "{processes:?}");
        clear(&tare, "ten at once");
        nothing_left(&tare, "ten at once");
    }
}

#[test]
fn boxes_of_different_names_start_and_end_concurrently() {
    let tare = tare!();
    let names: Vec<String> = (0..12).map(|number| format!("box-{number}")).collect();
    let start =
        |name: &String| tare.spawn_call(["run", "-d", "--name", name, "--", "sleep", "1000"]);
    let calls: Vec<Running> = names.iter().map(start).collect();
    for call in calls {
        call.wait().ok().said_nothing();
    }
    assert_eq!(tare.list().len(), names.len());
    let remove = |name: &String| tare.spawn_call(["rm", "-f", name]);
    let calls: Vec<Running> = names.iter().map(remove).collect();
    for call in calls {
        call.wait().ok().said_nothing();
    }
    nothing_left(&tare, "twelve boxes");
}
