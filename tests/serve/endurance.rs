//! Many runs, some of which end badly, leave the server unchanged.
//!
//! Its memory has no slope. The test measures while no request is active.

use std::time::Duration;

use serde_json::{Value, json};
use tare_harness::random::{number_in, shown_seed};
use tare_harness::{Random, Server, Tare, Vitals, assert_no_slope, eventually, tare};

use crate::serve::abuse::{at_rest, is_at_rest_again};

/// How many there are; more by the environment.
const RUNS: u64 = 600;
/// A part of the first ones is not counted: caches fill.
const WARM_UP_PART: u64 = 6;
/// The number of measurements after the warm-up.
const LOOKS: u64 = 12;
/// The number of concurrent clients.
const CLIENTS: u64 = 8;
/// Longer than most boxes live.
const HANGS_UP_WITHIN_MS: u64 = 60;

const JSON: [(&str, &str); 1] = [("Content-Type", "application/json")];

#[test]
fn many_runs_leave_the_server_unchanged() {
    let seed = shown_seed("TARE_SERVE_SEED");
    let runs = number_in("TARE_SERVE_RUNS").unwrap_or(RUNS);
    let tare = tare!();
    let server = Server::start_configured(&tare, "[limits]\noutput_bytes = '64KiB'\n");
    let before = at_rest(&server);
    let mut random = Random::seeded(seed);
    let warm_up = runs / WARM_UP_PART;
    look_after(&tare, &server, before, warm_up, &mut random);
    let each = (runs - warm_up) / LOOKS;
    let looks = (0..LOOKS).map(|_| look_after(&tare, &server, before, each, &mut random));
    let looks: Vec<Vitals> = looks.collect();
    assert_no_slope(&looks);
    is_at_rest_again(&tare, &server, before);
    server.stop().ok();
    tare.call(["audit"]).ok();
}

/// Makes more runs, waits until nothing of them is left, and returns the server's vitals.
fn look_after(
    tare: &Tare,
    server: &Server,
    before: Vitals,
    runs: u64,
    random: &mut Random,
) -> Vitals {
    std::thread::scope(|threads| {
        for _client in 0..CLIENTS {
            let mut random = Random::seeded(random.number());
            threads.spawn(move || {
                for _run in 0..runs.div_ceil(CLIENTS) {
                    one(server, &mut random);
                }
            });
        }
    });
    eventually("no box is left", || tare.footprint().records.is_empty());
    let mut look = server.vitals();
    eventually("no client is connected", || {
        look = server.vitals();
        look.descriptors <= before.descriptors
    });
    show(runs, look);
    look
}

#[expect(clippy::print_stderr, reason = "a failed test shows it")]
fn show(runs: u64, look: Vitals) {
    eprintln!("after {runs} more: {look:?}");
}

fn one(server: &Server, random: &mut Random) {
    match random.below(20) {
        0 => times_out(server),
        1 => needs_too_much_memory(server),
        2 => writes_too_much(server),
        3 | 4 => hangs_up(server, random),
        _ => ends_well(server),
    }
}

#[track_caller]
fn ran(server: &Server, request: Value) -> Value {
    server.post("/v1/run", &request).was(200).json()
}

fn ends_well(server: &Server) {
    let result = ran(server, json!({ "command": ["echo", "hello"] }));
    let (code, output) = (&result["exit_code"], &result["stdout"]);
    assert_eq!((code, output), (&0.into(), &"hello\n".into()));
}

fn times_out(server: &Server) {
    let command = ["sh", "-c", "sleep 100 & sleep 100"];
    let result = ran(server, json!({ "command": command, "timeout_ms": 50 }));
    assert_eq!(result["cause"], "timeout", "{result}");
}

fn needs_too_much_memory(server: &Server) {
    let limits = json!({ "memory_bytes": 16 << 20 });
    let request = json!({ "command": ["tail", "/dev/zero"], "limits": limits });
    let result = ran(server, request);
    assert_eq!(result["oom"], true, "{result}");
}

fn writes_too_much(server: &Server) {
    let command = ["sh", "-c", "yes | head -c 1000000"];
    let result = ran(server, json!({ "command": command }));
    assert_eq!(result["truncated"], true);
}

fn hangs_up(server: &Server, random: &mut Random) {
    let command = *random.pick(&["yes", "true", "sleep 100"]);
    let body = json!({ "command": ["sh", "-c", command] }).to_string();
    let stream = server.send("POST", "/v1/run", &JSON, body.as_bytes());
    tare_harness::let_pass(Duration::from_millis(random.below(HANGS_UP_WITHIN_MS)));
    drop(stream);
}
