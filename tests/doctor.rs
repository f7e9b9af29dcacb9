//! `tare doctor`: what this host can do, and what tare does where it cannot.

use tare_harness::{Output, tare};

#[track_caller]
fn says_all(output: &Output) {
    let text = output.stdout_text().to_lowercase();
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("/proc is mounted");
    let subjects = [
        "kernel",
        release.trim(),
        "cgroup",
        "user namespace",
        "seccomp",
        "landlock",
        "descriptors",
        "pids",
    ];
    for subject in subjects {
        assert!(
            text.contains(&subject.to_lowercase()),
            "{subject} is not in:\n{output}"
        );
    }
}

#[test]
fn the_doctor_speaks_about_everything_that_matters() {
    let tare = tare!();
    says_all(&tare.call(["doctor"]).ok());
}

#[test]
fn the_doctor_sees_users_without_privileges_too() {
    let tare = tare!(unprivileged);
    let output = tare.call(["doctor"]);
    assert!([0, 1].contains(&output.code), "{output}");
    says_all(&output);
}

#[test]
fn the_doctor_takes_no_arguments() {
    let tare = tare!();
    tare.call(["doctor", "surplus"]).exited(2).printed("");
}
