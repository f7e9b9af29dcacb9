//! A server that fills its pools and runs two requests in boxes of them, at whose steps it or a keeper is
//! killed, fails or repeats the step.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;

use rustix::process::Signal;
use tare_harness::Random;
use tare_harness::random::shown_seed;
use tare_harness::skip::{has_program, is_root};
use tare_harness::{
    PATIENCE, Tare, TemporaryDirectory, box_processes, eventually, listening_on, skip,
};

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
    let pools = "[pool.box]\nwarm = 1\n[pool.python]\nwarm = 1\nstart = 'at start'\n";
    let config = directory.write("tare.toml", pools);
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

/// Starts a server, which fills its pools, runs two requests and stops. Whatever happens, the pools are
/// exact while the server lives, and it leaves nothing behind.
fn serve(tare: &Tare, config: &str, (variable, value): (&str, &str)) {
    let mut command = tare.command(["serve", "--listen", "127.0.0.1:0", "--config", config]);
    command.env(variable, value).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let running = tare.start_command(command);
    let mut address = None;
    eventually("the server listens or ends", || {
        address = listening_on(&running.stderr_so_far());
        address.is_some() || running.has_ended()
    });
    if let Some(address) = address {
        run_in_pools(address);
        let mut metrics = String::new();
        eventually("one box of each kind waits, or the server has ended", || {
            metrics = request(address, "GET", "/metrics", "");
            running.has_ended() || are_exact(&metrics)
        });
    }
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

/// The second request is claimed while the first one runs.
fn run_in_pools(address: SocketAddr) {
    let code = r#"{"language": "python", "code": "import time; time.sleep(0.1)"}"#;
    std::thread::scope(|threads| {
        threads.spawn(|| request(address, "POST", "/v1/run", code));
        request(address, "POST", "/v1/run", r#"{"command": ["true"]}"#);
    });
}

/// Returns the answer. It is empty if the server dies.
fn request(address: SocketAddr, method: &str, path: &str, body: &str) -> String {
    let ask = || {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close");
        let kind = "Content-Type: application/json";
        let length = body.len();
        write!(stream, "{head}\r\n{kind}\r\nContent-Length: {length}\r\n\r\n{body}")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        std::io::Result::Ok(answer)
    };
    ask().unwrap_or_default()
}

/// Whether each pool has exactly the boxes that it is to have.
fn are_exact(metrics: &str) -> bool {
    ["box", "python"].iter().all(|pool| {
        [("waiting", 1), ("making", 0)].iter().all(|(state, count)| {
            let line = format!("tare_pool_members{{pool=\"{pool}\",state=\"{state}\"}} {count}");
            metrics.lines().any(|it| it == line)
        })
    })
}
