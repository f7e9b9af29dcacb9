//! The memory that a running call, a waiting box and a template have for themselves: what the
//! kernel charges to the cgroup of each. A page that a clone shares with its template is charged
//! to the template.

use super::answer::{BWRAP, Bound, Metric, PLAIN, Table};
use super::launch::Launch;
use super::load::Measured;
use super::servers::Server;
use super::setup::{BareTree, Setup, comes_within, tare, until};
use super::work::Work;
use crate::failure::Failure;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// Calls that run at the same time.
const CALLS: usize = 20;
/// Commands without a server that run at the same time.
const TREES: usize = 5;

/// A call that has begun keeps what it uses until the client is gone.
const STAY: &str = "\nimport time; time.sleep(600)";

/// Memory is at rest if it changes by less than this between two looks.
const REST_SHARE: f64 = 0.01;
const BETWEEN_LOOKS: Duration = Duration::from_millis(300);

const RUNNING: &str = "tare serve, running";
const WAITING: &str = "tare serve, warm (python)";
/// How long a pool may take to make the next box.
const REFILL_MAX: Duration = Duration::from_secs(2);

pub fn measure(setup: &Setup, title: &str, work: &Work) -> Result<Table, Failure> {
    let title = format!("{title}: memory of its own");
    eprintln!("{title}");
    let code = work.command.last().map_or(String::new(), |it| format!("{it}{STAY}"));
    let bare = |launch: Launch, name| {
        let mut launch = launch;
        // The code is the last argument.
        if let Some(last) = launch.arguments.last_mut() {
            last.clone_from(&code);
        }
        of_commands(&launch, name)
    };
    let mut measured = vec![
        (PLAIN.to_owned(), bare(work.plain(), "plain")),
        (BWRAP.to_owned(), bare(work.in_bwrap(), "bwrap")),
    ];
    measured.extend(of_boxes(setup, work, &code)?);
    let table = Table::compare(&title, &[Metric::MemoryP50, Metric::MemoryMax], measured);
    Ok(table.with_goal(RUNNING, "MiB", Bound::AtMost(3.0)))
}

fn of_commands(launch: &Launch, name: &str) -> Measured {
    let measured = || -> Result<Vec<f64>, String> {
        let names = (0..TREES).map(|it| format!("{name}-{it}"));
        let trees = names.map(|it| BareTree::start(launch, &it, 100));
        let trees = trees.collect::<Result<Vec<_>, _>>()?;
        let look = || trees.iter().filter_map(|it| Some(it.memory_bytes()? as f64)).collect();
        let bytes = at_rest(name, look);
        trees.into_iter().try_for_each(BareTree::end)?;
        bytes
    };
    series(measured())
}

/// Calls that stay, and everything that waits beside them, by state.
fn of_boxes(setup: &Setup, work: &Work, code: &str) -> Result<Vec<(String, Measured)>, Failure> {
    let server = work.server(setup)?;
    // The first call fills the pool.
    let mut first = server.connect().map_err(Failure::new)?;
    let asked = first.ask("POST", work.path, &work.body.to_string());
    asked.map_err(|error| Failure::new(error.to_string()))?;
    let body = json!({ "language": "python", "code": code, "timeout_ms": 600_000 }).to_string();
    let running = || list(setup, &server).remove(RUNNING).unwrap_or_default();
    let mut calls = Vec::new();
    for _ in 0..CALLS {
        // If nothing ever waits, the calls are cold.
        comes_within(REFILL_MAX, || list(setup, &server).contains_key(WAITING));
        let mut connection = server.connect().map_err(Failure::new)?;
        let sent = connection.send("POST", work.path, &body);
        sent.map_err(|error| Failure::new(format!("cannot send a call: {error}")))?;
        calls.push(connection);
        // The box of this call no longer waits for the next one.
        until("the call runs", || running().len() == calls.len()).map_err(Failure::new)?;
    }
    let bytes = at_rest("calls", || list(setup, &server).into_values().flatten().collect());
    let mut groups = list(setup, &server);
    // The server ends a run whose client is gone.
    drop(calls);
    let ended = until("all calls have ended", || running().is_empty());
    if let Err(why) = bytes.and(ended) {
        groups.insert(RUNNING.to_owned(), Vec::new());
        return Ok(groups.into_keys().map(|it| (it, series(Err(why.clone())))).collect());
    }
    Ok(groups.into_iter().map(|(name, bytes)| (name, series(Ok(bytes)))).collect())
}

/// The bytes of all boxes, by their state and their pool.
fn list(setup: &Setup, server: &Server) -> BTreeMap<String, Vec<f64>> {
    let listed = tare(&setup.tare, &server.state_root, &["ls", "-a", "--json"]).output();
    by_state(&listed.unwrap_or_default())
}

fn by_state(listed: &str) -> BTreeMap<String, Vec<f64>> {
    let listed: Vec<Value> = serde_json::from_str(listed).unwrap_or_default();
    let mut groups: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for one in listed {
        let state = one["state"].as_str().unwrap_or("unknown");
        let name = match one["pool"].as_str() {
            Some(pool) if state != "running" => format!("tare serve, {state} ({pool})"),
            Some(_) | None => format!("tare serve, {state}"),
        };
        groups.entry(name).or_default().extend(one["memory_bytes"].as_f64());
    }
    groups
}

/// Returns the values when they no longer change.
pub fn at_rest(what: &str, look: impl Fn() -> Vec<f64>) -> Result<Vec<f64>, String> {
    let sum = |values: &[f64]| values.iter().sum::<f64>();
    let mut last = look();
    until(&format!("the memory of {what} is at rest"), || {
        #[expect(clippy::disallowed_methods, reason = "no event reports that memory is at rest")]
        std::thread::sleep(BETWEEN_LOOKS);
        let before = std::mem::replace(&mut last, look());
        let moved = (sum(&last) - sum(&before)).abs();
        !last.is_empty() && last.len() == before.len() && moved < sum(&last) * REST_SHARE
    })?;
    Ok(last)
}

/// The series has MiB in place of times.
fn series(bytes: Result<Vec<f64>, String>) -> Measured {
    match bytes {
        Ok(bytes) => Measured {
            calls: bytes.into_iter().map(|it| it / 1_048_576.0).collect(),
            ..Measured::default()
        },
        Err(why) => Measured { failed: Some(why), ..Measured::default() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_are_grouped_by_what_they_do_and_a_template_is_not_a_call() {
        let listed = r#"[{"state":"running","pool":null,"memory_bytes":3145728},
            {"state":"running","pool":"python","memory_bytes":1048576},
            {"state":"warm","pool":"python","memory_bytes":524288},
            {"state":"warm","pool":"python-template","memory_bytes":null}]"#;
        let groups = by_state(listed);
        assert_eq!(groups[RUNNING], [3_145_728.0, 1_048_576.0]);
        assert_eq!(groups[WAITING], [524_288.0]);
        assert!(groups["tare serve, warm (python-template)"].is_empty());
        assert_eq!(groups.len(), 3);
        assert!(by_state("").is_empty());
    }

    #[test]
    fn bytes_are_shown_as_mib_and_a_failure_with_its_reason() {
        assert_eq!(series(Ok(vec![2_097_152.0])).calls, [2.0]);
        assert_eq!(series(Err("no".into())).failed.as_deref(), Some("no"));
    }
}
