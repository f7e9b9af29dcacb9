//! K. Virtual machines. A tare box shares one operation with them: pause and resume.

use std::time::Duration;

use rustix::process::Signal;
use tare_harness::{Running, eventually, skip};

use crate::leaks::case::{case, times};

/// An exec has nothing to wait for; this is well above what a busy machine takes.
const SOON: Duration = Duration::from_secs(10);

/// K4, firecracker: after a plain pause and resume, every new connection hung.
#[test]
fn a_box_paused_and_resumed_under_traffic_answers_every_request() {
    let case = case();
    let id = case.up(&[], "echo up; while :; do echo more; sleep 0.01; done");
    if case.call(["pause", &id]).code != 0 {
        case.remove(&id);
        skip!("boxes cannot be paused here");
    }
    case.call(["resume", &id]).ok();
    let talking = "while :; do echo y; sleep 0.001; done";
    let calls = [&["exec", &id, "--", "sh", "-c", talking][..], &["logs", "-f", &id]];
    let clients: Vec<Running> = calls.iter().map(|call| case.spawn_call(*call)).collect();
    clients[0].see("y\ny\n");
    for _ in 0..times(15, 100) {
        case.call(["pause", &id]).ok();
        case.call(["resume", &id]).ok();
        let answer = case.exec(&id, ["echo", "here"]).ok().printed("here\n");
        assert!(answer.lasted < SOON, "{answer}");
    }
    for client in clients {
        client.signal(Signal::KILL);
        client.wait();
    }
    eventually("the clients are gone", || case.members(&id).len() <= 3);
    case.remove(&id);
}
