//! `tare doctor`: what this host can do, and what tare does where it cannot. Whether boxes
//! can be made it says only after it made one, so each environment in which `run` fails is
//! entered here, and doctor must give the reason of `run`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use rustix::process::Signal;
use tare_harness::skip::{has_program, is_root};
use tare_harness::{Output, Tare, TemporaryDirectory, eventually, skip, tare};

const CONTAINER_FILTER: &str = include_str!("probes/container_filter.py");
/// Doctor's own bound is 10 s; the rest is for a busy host.
const DOES_NOT_HANG: Duration = Duration::from_secs(30);

#[track_caller]
fn says_all(output: &Output) {
    let text = output.stdout_text().to_lowercase();
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("/proc is mounted");
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
        assert!(text.contains(&subject.to_lowercase()), "{subject} is not in:\n{output}");
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

/// Only a box shows which cgroups boxes get.
#[test]
fn doctor_names_no_cgroup_parent_that_boxes_do_not_get() {
    boxes_get_the_cgroups_that_doctor_names(&tare!());
    boxes_get_the_cgroups_that_doctor_names(&tare!(unprivileged));
}

#[track_caller]
fn boxes_get_the_cgroups_that_doctor_names(tare: &Tare) {
    let checks = tare.json(["doctor", "--json"])["checks"].clone();
    let row = checks.as_array().expect("an array").iter().find(|it| it["what"] == "cgroup parent");
    let row = row.unwrap_or_else(|| panic!("{checks}"));
    let running = tare.spawn(["--quiet", "--name", "web", "--", "sh", "-c", "echo up; sleep 1000"]);
    running.see("up");
    let holdings = tare.json(["inspect", "web"])[0]["holdings"].clone();
    let holdings = holdings.as_array().expect("an array").iter();
    let cgroups: Vec<&str> = holdings
        .filter(|one| one["kind"] == "cgroup")
        .map(|one| one["what"].as_str().expect("a text"))
        .collect();
    let found = row["found"].as_str().expect("a text");
    match found.strip_prefix("attached boxes are made below ") {
        Some(parents) => {
            for parent in parents.split(", ") {
                let is_below = |it: &&str| it.starts_with(&format!("{parent}/tare-"));
                assert!(cgroups.iter().any(is_below), "{found}: {cgroups:?}");
            }
        }
        None => assert_eq!(found == "boxes have no cgroup", cgroups.is_empty(), "{row}"),
    }
    tare.call(["rm", "-f", "web"]).ok();
    running.wait();
}

#[test]
fn the_doctor_takes_no_arguments() {
    let tare = tare!();
    tare.call(["doctor", "surplus"]).exited(2).printed("");
}

/// `tare ARGS` in the environment that the shell function body `enter` makes for its
/// arguments, of which the first is the program.
#[track_caller]
fn inside(tare: &Tare, enter: &str, args: &str) -> Output {
    tare.shell(&format!("enter() {{ {enter}\n}}\nenter \"$TARE\" {args}"))
}

/// Every `run` fails there with one sentence that names the cause in these words, and
/// doctor gives the same hint.
#[track_caller]
fn no_box_can_be_made(enter: &str, words: &[&str]) {
    if !is_root() {
        skip!("it takes root to make this environment");
    }
    let tare = tare!();
    let run = inside(&tare, enter, "run --quiet -- true");
    let run = run.exited(125).printed("").said(words);
    let said = run.stderr_text();
    assert_eq!(said.lines().count(), 1, "{run}");
    let sentence = said.trim_end().split(". See 'tare explain ").next();
    let hint = sentence.and_then(|it| it.rsplit_once(" (")).map(|(_, hint)| hint);
    let hint = hint.and_then(|hint| hint.strip_suffix(')'));
    let hint = hint.unwrap_or_else(|| panic!("no hint in {run}"));
    let doctor = inside(&tare, enter, "doctor").exited(1);
    let text = doctor.stdout_text();
    assert!(text.contains("\nNo box can be made here"), "{doctor}");
    assert!(text.contains(hint), "{hint} is not in {doctor}");
    assert!(doctor.lasted < DOES_NOT_HANG, "{doctor}");
}

#[test]
fn doctor_makes_a_box_before_it_says_that_boxes_can_be_made() {
    let tare = tare!();
    let doctor = tare.call(["doctor"]).ok();
    let text = doctor.stdout_text();
    assert!(text.contains("made and ended"), "{doctor}");
    assert!(text.ends_with("\nBoxes can be made here.\n"), "{doctor}");
}

#[test]
fn root_without_sys_admin_makes_boxes_as_an_ordinary_user_does() {
    if !is_root() {
        skip!("only root can drop root's capabilities");
    }
    let tare = tare!();
    let enter = r#"setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin "$@""#;
    inside(&tare, enter, "run -- id -u").ok().said(&["without privileges"]);
    let doctor = inside(&tare, enter, "doctor").ok();
    assert!(doctor.stdout_text().contains("one id"), "{doctor}");
}

#[test]
fn doctor_and_run_name_the_capabilities_that_root_lacks() {
    no_box_can_be_made(
        r#"setpriv --bounding-set=-all --inh-caps=-all "$@""#,
        &["cannot map the box's user ids", "SETFCAP"],
    );
}

#[test]
fn doctor_and_run_name_the_filter_of_a_container() {
    if !has_program("python3") {
        skip!("the filter is loaded with python3");
    }
    let filter = CONTAINER_FILTER.replace('\'', r"'\''");
    let enter = format!(
        "setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin \
         python3 -c '{filter}' \"$@\""
    );
    no_box_can_be_made(&enter, &["cannot start the box's keeper", "seccomp"]);
}

#[test]
fn doctor_and_run_name_the_mount_that_hides_a_part_of_proc() {
    no_box_can_be_made(
        r#"unshare --mount sh -c '
            mount --bind /proc/sys /proc/sys &&
            mount -o remount,bind,ro /proc/sys && exec "$@"' sh "$@""#,
        &["cannot mount proc", "/proc/sys is hidden"],
    );
}

#[test]
fn doctor_and_run_name_a_read_only_state_root() {
    no_box_can_be_made(
        r#"unshare --mount sh -c '
            mount --bind "$TARE_STATE_ROOT" "$TARE_STATE_ROOT" &&
            mount -o remount,bind,ro "$TARE_STATE_ROOT" && exec "$@"' sh "$@""#,
        &["cannot make the record", "read-only file system"],
    );
}

#[test]
fn doctor_and_run_name_a_full_state_root() {
    no_box_can_be_made(
        r#"unshare --mount sh -c '
            mount -t tmpfs -o size=64k,mode=700 full "$TARE_STATE_ROOT" &&
            { cat /dev/zero > "$TARE_STATE_ROOT/filling" 2> /dev/null; exec "$@"; }' sh "$@""#,
        &["cannot make the record", "is full"],
    );
}

/// Without this kind of namespaces, in a user namespace that allows none.
#[track_caller]
fn no_box_without(kind: &str, step: &str) {
    let enter = format!(
        "unshare --user --map-root-user sh -c \
         'echo 0 > /proc/sys/user/max_{kind}_namespaces && exec \"$@\"' sh \"$@\""
    );
    no_box_can_be_made(&enter, &[step, &format!("user.max_{kind}_namespaces is 0")]);
}

#[test]
fn doctor_and_run_name_the_setting_that_allows_no_user_namespace() {
    no_box_without("user", "cannot start the box's keeper");
}

#[test]
fn doctor_and_run_name_the_setting_that_allows_no_pid_namespace() {
    no_box_without("pid", "cannot start the box's keeper");
}

#[test]
fn doctor_and_run_name_the_setting_that_allows_no_network_namespace() {
    no_box_without("net", "cannot make the box's network");
}

#[test]
fn doctor_and_run_name_the_filter_of_the_box_that_they_are_in() {
    no_box_can_be_made(
        r#"shift
           "$TARE" run --quiet -v "$(dirname "$TARE")":/opt/tare \
               -e TARE_STATE_ROOT=/tmp/inner -- /opt/tare/tare "$@""#,
        &["cannot start the box's keeper", "the filter of a tare box"],
    );
}

#[test]
fn doctor_promises_no_limit_that_a_box_would_not_get() {
    if !is_root() {
        skip!("it takes root to hide the cgroups");
    }
    let tare = tare!();
    let enter = r#"unshare --mount sh -c '
        mount -t tmpfs hiding /sys/fs/cgroup && exec "$@"' sh "$@""#;
    inside(&tare, enter, "run --memory 64m -- true").exited(125).said(&["cannot enforce"]);
    let doctor = inside(&tare, enter, "doctor").ok();
    let text = doctor.stdout_text();
    assert!(
        text.contains(", pids can be limited; a limit") && !text.contains("memory, "),
        "{doctor}"
    );
}

#[test]
fn doctor_answers_when_a_lock_of_the_state_root_is_not_released() {
    let tare = tare!();
    tare.run(["--quiet", "--", "true"]).ok();
    let enter = r#"flock "$TARE_STATE_ROOT/boxes" "$@""#;
    let doctor = inside(&tare, enter, "doctor").exited(1);
    assert!(doctor.stdout_text().contains("in time"), "{doctor}");
    assert!(doctor.lasted < DOES_NOT_HANG, "{doctor}");
}

#[test]
fn a_killed_doctor_leaves_nothing() {
    let tare = tare!();
    let boxes = tare.state_root().join("boxes");
    for _ in 0..10 {
        let doctor = tare.start_command(tare.command(["doctor"]));
        eventually("doctor makes its box", || {
            let made = fs::read_dir(&boxes).is_ok_and(|mut boxes| boxes.next().is_some());
            made || doctor.has_ended()
        });
        doctor.signal(Signal::KILL);
        doctor.wait();
    }
    tare.run(["--quiet", "--", "true"]).ok();
    tare.reap_orphans();
    tare.nothing_left();
}

/// A host on which no machine can run is a host for native boxes.
#[test]
fn doctor_says_what_machines_lack_and_does_not_fail_for_it() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let silent = directory.write("silent", "#!/bin/sh\nexec sleep 1000\n");
    fs::set_permissions(&silent, fs::Permissions::from_mode(0o755)).unwrap();
    let silent = silent.to_str().expect("the name is ASCII");
    let doctor = |monitor: &str, args: &str| {
        let state = format!("TARE_VM_DIR={}/vm TARE_VM_MONITOR={monitor}", directory.text());
        tare.shell(&format!("{state} \"$TARE\" doctor {args}")).ok()
    };
    for (monitor, says) in [
        ("/nonexistent", "cannot start /nonexistent: No such file or directory"),
        ("/bin/true", "/bin/true is not QEMU"),
        (silent, "silent does not answer"),
    ] {
        let output = doctor(monitor, "");
        let text = output.stdout_text();
        let row = |title: &str| text.lines().find(|line| line.starts_with(title)).expect(title);
        assert!(row("vm monitor").contains(says), "{output}");
        assert!(row("vm acceleration").contains("/dev/kvm"), "{output}");
        assert!(row("vm kernel").contains("'tare vm kernel fetch'"), "{output}");
        assert!(output.lasted < DOES_NOT_HANG, "{output}");
    }
    let json = doctor("/bin/true", "--json").stdout_text();
    let json: serde_json::Value = serde_json::from_str(&json).expect("one object");
    let vm = &json["vm"];
    assert!(vm["monitor"].is_null() && vm["kernel"].is_null(), "{vm}");
    assert_eq!(vm["accel"], serde_json::json!([]), "nothing runs without a monitor");
    let known = ["ok", "absent", "denied", "boots nothing"];
    assert!(known.contains(&vm["kvm"].as_str().expect("a text")), "{vm}");
    assert_eq!(vm["kvm"] == "absent", !fs::exists("/dev/kvm").unwrap(), "{vm}");
}

#[test]
fn doctor_names_the_group_that_may_use_kvm() {
    let tare = tare!(unprivileged);
    let kvm = tare.json(["doctor", "--json"])["vm"]["kvm"].clone();
    if kvm != "denied" {
        skip!("every user may open /dev/kvm, or it is absent");
    }
    let output = tare.call(["doctor"]).ok();
    let text = output.stdout_text();
    let is_advice = ["add the user to the group ", "only root may open /dev/kvm here"];
    assert!(is_advice.iter().any(|it| text.contains(it)), "{output}");
    assert!(!text.contains("to the group root"), "{output}");
}
