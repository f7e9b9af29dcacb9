//! The oldest supported kernel, Debian 12's Linux 6.1, with both cgroup layouts: the claims in
//! `vm/checks.sh` hold there.

use std::io::Write;

use tare_harness::{skip, tare};

use crate::vm::{Console, Layout, Machine};

/// Fewer, and the script lost some.
const CHECKS_MIN: usize = 28;

#[test]
fn every_check_holds_on_linux_6_1_with_cgroup_v2_alone() {
    let machine = match Machine::find() {
        Ok(machine) => machine,
        Err(why) => skip!("{why}"),
    };
    let tare = tare!();
    all_hold(&machine.run(tare.program(), Layout::Pure));
}

#[test]
fn every_check_holds_on_linux_6_1_with_controllers_on_cgroup_v1() {
    let machine = match Machine::find() {
        Ok(machine) => machine,
        Err(why) => skip!("{why}"),
    };
    let tare = tare!();
    all_hold(&machine.run(tare.program(), Layout::Hybrid));
}

/// Each check is shown, also where the test's output is captured.
#[track_caller]
fn all_hold(console: &Console) {
    std::io::stderr()
        .write_all(console.report().as_bytes())
        .expect("standard error can be written");
    assert_eq!(console.failed(), 0, "checks failed:\n{}", console.text());
    assert!(
        console.is_complete() && console.passed() >= CHECKS_MIN,
        "the checks did not come to their end:\n{}",
        console.text()
    );
}
