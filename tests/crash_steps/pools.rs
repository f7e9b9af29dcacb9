//! A server that fills a pool with clones of a template, at whose steps it or a keeper is killed, fails or
//! repeats the step.

use std::fs;
use std::process::Stdio;

use rustix::process::Signal;
use tare_harness::Random;
use tare_harness::random::shown_seed;
use tare_harness::skip::{has_program, is_root};
use tare_harness::{Tare, TemporaryDirectory, box_processes, eventually, skip};

use super::faulty;
use super::operations::Whom;

/// How many steps are tried with each fault, spread over all of them. The seed chooses the first.
const TRIALS: u64 = 12;

pub fn each_step_of_a_pool(whom: Whom) {
    if !is_root() || !has_program("python3") {
        skip!("clones need root and python3");
    }
    let Some(faulty) = faulty::tare() else {
        skip!("tests/build-faults has not built target/faults/tare");
    };
    let tare = Tare::start(faulty);
    let directory = TemporaryDirectory::new();
    let config = directory.write("tare.toml", "[pool.python]\nwarm = 1\nstart = 'at start'\n");
    let log = directory.write("log", "");
    let of_keepers = directory.write("log.keeper", "");
    let config = config.display().to_string();
    let log_path = log.display().to_string();
    serve(&tare, &config, ("TARE_FAULT_LOG", &log_path));
    let (variable, log) = match whom {
        Whom::Tare => ("TARE_FAULT", log),
        Whom::Keeper => ("TARE_FAULT_KEEPER", of_keepers),
    };
    let steps = fs::read_to_string(log).expect("the steps").lines().count() as u64;
    assert!(steps > TRIALS, "{steps} steps");
    let stride = steps.div_ceil(TRIALS);
    let first = Random::seeded(shown_seed("TARE_STEPS_SEED")).below(stride) + 1;
    for fault in ["kill", "twice", "24", "12"] {
        for step in (first..=steps).step_by(stride as usize) {
            serve(&tare, &config, (variable, &format!("{fault}@{step}")));
        }
    }
}

/// Starts a server, which fills its pool, and stops it. Whatever happens, it leaves nothing behind.
fn serve(tare: &Tare, config: &str, (variable, value): (&str, &str)) {
    let mut command = tare.command(["serve", "--listen", "127.0.0.1:0", "--config", config]);
    command.env(variable, value).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let running = tare.start_command(command);
    eventually("the server listens or ends", || {
        running.stderr_so_far().contains("listening") || running.has_ended()
    });
    if !running.has_ended() {
        running.signal(Signal::TERM);
    }
    let ended = running.wait();
    eventually("everything of the boxes has ended", || {
        box_processes().iter().all(|it| it.is_zombie)
    });
    // Children of a killed tare become children of the test.
    tare.reap_orphans();
    tare.call(["sweep"]);
    let audit = tare.call(["audit", "--wait"]);
    assert!(audit.code == 0, "{variable}={value}: {audit:?} after {ended:?}");
}
