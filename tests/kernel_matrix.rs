//! The oldest supported kernel, Debian 12's Linux 6.1, with both cgroup layouts: the claims in
//! `vm/checks.sh` hold there, those in `vm/kvm.sh` where it has KVM, and those in `vm/systemd.sh` where
//! systemd manages it.

use std::io::Write;

use tare_harness::{skip, tare};

use crate::machines::machines;
use crate::vm::{Console, Layout, Machine};

/// Fewer, and the script lost some.
const CHECKS_MIN: usize = 28;
const CHECKS_WITH_KVM: usize = 3;
const CHECKS_WITH_SYSTEMD: usize = 4;

#[test]
fn every_check_holds_on_linux_6_1_with_cgroup_v2_alone() {
    let machine = match Machine::find() {
        Ok(machine) => machine,
        Err(why) => skip!("{why}"),
    };
    let tare = tare!();
    all_hold(&machine.run(tare.program(), Layout::Pure), CHECKS_MIN);
}

#[test]
fn every_check_holds_on_linux_6_1_with_controllers_on_cgroup_v1() {
    let machine = match Machine::find() {
        Ok(machine) => machine,
        Err(why) => skip!("{why}"),
    };
    let tare = tare!();
    all_hold(&machine.run(tare.program(), Layout::Hybrid), CHECKS_MIN);
}

#[test]
fn machines_run_with_kvm_as_root_and_without_root() {
    let machines = machines!();
    let machine = match Machine::with_kvm(&machines.kernels()) {
        Ok(machine) => machine,
        Err(why) => skip!("{why}"),
    };
    all_hold(&machine.run(machines.tare.program(), Layout::Pure), CHECKS_WITH_KVM);
}

/// The command is in the hint for a user whose limits cannot be enforced.
#[test]
fn a_user_gets_limits_by_the_command_with_systemd_run() {
    let machine = match Machine::with_systemd() {
        Ok(machine) => machine,
        Err(why) => skip!("{why}"),
    };
    let tare = tare!();
    all_hold(&machine.run(tare.program(), Layout::Systemd), CHECKS_WITH_SYSTEMD);
}

/// Each check is shown, also where the test's output is captured.
#[track_caller]
fn all_hold(console: &Console, checks_min: usize) {
    std::io::stderr()
        .write_all(console.report().as_bytes())
        .expect("standard error can be written");
    assert_eq!(console.failed(), 0, "checks failed:\n{}", console.text());
    assert!(
        console.is_complete() && console.passed() >= checks_min,
        "the checks did not come to their end:\n{}",
        console.text()
    );
}
