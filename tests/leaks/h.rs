//! H. Mounts, disk, files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;
use tare_harness::skip::{has_program, is_root};
use tare_harness::{TemporaryDirectory, eventually, fixture, skip};

use crate::leaks::case::{Case, case, times, traced};
use crate::library::Library;

/// The mounts that a process sees.
fn mounts_of(process: &str) -> String {
    let path = format!("/proc/{process}/mountinfo");
    fs::read_to_string(path).expect("it is there and ours to look at")
}

/// H1, boxlite: every exec stacked its masks on top of those of the previous one.
#[test]
fn five_hundred_execs_add_no_mount_to_the_box() {
    let case = case();
    let id = case.idle_box();
    let keeper = case.keeper(&id).pid.to_string();
    let inside = || case.exec(&id, ["cat", "/proc/self/mountinfo"]).ok().stdout_text();
    let before = (mounts_of("self"), mounts_of(&keeper), inside());
    let library = Library::open(&case, &id);
    for _ in 0..500 {
        assert_eq!(library.run(&["true"]), 0);
    }
    case.call(["exec", "-w", "/usr", "-u", "77:78", &id, "--", "true"]).ok();
    assert_eq!((mounts_of("self"), mounts_of(&keeper), inside()), before);
    case.remove(&id);
}

/// H2, kata: containers that crashed repeatedly left their mounts behind.
#[test]
fn boxes_and_processes_that_crash_in_a_loop_leave_no_mount() {
    let case = case();
    let crash = ["sh", "-c", "kill -SEGV $$"];
    let id = case.idle_box();
    let keeper = case.keeper(&id).pid.to_string();
    let before = (mounts_of("self"), mounts_of(&keeper));
    for _ in 0..100 {
        case.exec(&id, crash).exited(139);
    }
    for round in 0..times(30, 100) {
        let keep = if round % 2 == 0 { "--keep" } else { "--rm" };
        let crashed = case.detached(["--name", "crash", keep, "--"].iter().chain(&crash));
        eventually("it has crashed", || case.processes_in(&crashed).is_empty());
        // A kept box may be told to go by now.
        case.call(["rm", "-f", "crash"]);
    }
    assert_eq!((mounts_of("self"), mounts_of(&keeper)), before);
    case.remove(&id);
}

/// H3, Daytona: directories on which volumes had been mounted were left behind.
#[test]
fn removing_a_box_unmounts_its_volume_and_keeps_the_data() {
    let case = case();
    let data = TemporaryDirectory::new();
    let file = data.write("precious", "precious\n");
    let before = fixture::tree(data.path());
    let volume = format!("{}:/data", data.text());
    let mounts = mounts_of("self");
    for end in [&["rm", "-f"][..], &["stop", "-t", "0"], &["kill"]] {
        let script = "rm -rf /tmp/* /work/*; test -s /data/precious && echo up; sleep 1000";
        let id = case.up(&["-v", &volume], script);
        case.call(end.iter().chain(&[&*id])).ok();
        case.call(["rm", "-f", &id]);
        case.assert_gone(&id);
        assert_eq!(mounts_of("self"), mounts);
        assert_eq!(fixture::tree(data.path()), before);
    }
    assert_eq!(fs::read_to_string(file).expect("it is there"), "precious\n");
    fs::remove_dir_all(data.path()).expect("nothing holds it");
}

/// The size of all files below a directory, without the history.
fn bytes_below(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let counted = entries.filter(|entry| entry.file_name() != "histories");
    let sizes = counted.map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_below(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

/// H5, smolvm, CubeSandbox and hermes: every delete left a directory tree on the host, up
/// to 1.1 GB.
#[test]
fn fifty_boxes_leave_the_state_root_as_small_as_one_box() {
    let case = case();
    let make_and_remove = || {
        let script = "head -c 300000 /dev/zero | tee /work/file; echo; echo up; sleep 1000";
        let id = case.up(&["--keep", "--name", "a"], script);
        assert!(bytes_below(&case.record(&id)) > 300_000);
        case.remove(&id);
    };
    make_and_remove();
    let after_one = bytes_below(&case.state_root());
    for _ in 0..49 {
        make_and_remove();
    }
    assert_eq!(bytes_below(&case.state_root()), after_one);
    case.nothing_left();
}

/// H6, OpenSandbox: upper directories of a daemon's previous run were never removed.
#[test]
fn later_commands_remove_kept_files_and_upper_directories_of_killed_boxes() {
    let case = case();
    let Some(root) = fixture::busybox_root() else {
        skip!("there is no static busybox");
    };
    let rootfs = ["--rootfs", root.text(), "--root"];
    let script = "echo changed > /marker; echo more > /work/file; echo up; while :; do :; done";
    let options = ["--keep", "--retention", "1ms", "--name", "a"];
    let options: Vec<&str> = rootfs.into_iter().chain(options).collect();
    for removes in [&["ls"][..], &["run", "--", "true"], &["rm", "-f", "a"]] {
        let id = case.up(&options, script);
        assert!(case.record(&id).join("scratch").exists());
        case.keeper(&id).signal(Signal::KILL);
        eventually("the box is dead", || case.processes_in(&id).is_empty());
        eventually("its retention is over, and it is gone", || {
            case.call(removes);
            !case.record(&id).exists()
        });
        case.assert_gone(&id);
        case.nothing_left();
    }
}

/// More than any removal makes of one kind.
const CALLS_MAX: usize = 100;

/// H8, boxlite: boxes that were deleted from the database but not from the disk came back.
#[test]
fn a_removal_killed_at_any_deletion_is_finished_by_the_next_command() {
    let case = case();
    if !has_program("strace") {
        skip!("strace is not installed");
    }
    let mut met = 0;
    for kept in ["--keep", "--rm"] {
        for number in 1..CALLS_MAX {
            let id = case.detached([kept, "--name", "a", "--", "sleep", "1000"]);
            let fault = format!("inject=unlink,unlinkat,rmdir,umount2:signal=KILL:when={number}");
            let output = traced(&case, &["-e", &fault], &["rm", "-f", "a"]);
            assert_eq!(case.processes_in(&id), []);
            // What is to go by itself goes with any command; what was to be kept, when
            // it is asked to once more.
            case.call(["ls"]).ok();
            if case.listed(&id).is_some() {
                assert_eq!(kept, "--keep", "{number}: {output}");
                case.call(["rm", &id]).ok();
            }
            case.assert_gone(&id);
            case.nothing_left();
            if output.code == 0 {
                break;
            }
            met += 1;
        }
    }
    assert!((10..CALLS_MAX).contains(&met), "{met} deletions were met");
}

/// H9, containerd and sysbox: a supervisor that got SIGKILL left its directory behind.
#[test]
fn the_record_of_a_box_whose_keeper_was_killed_is_removed() {
    let case = case();
    let attached = case.spawn(["--name", "a", "--", "sh", "-c", "echo up; sleep 1000"]);
    attached.see("up");
    let id = only_box(&case);
    case.keeper(&id).signal(Signal::KILL);
    let output = attached.wait();
    assert!(output.code >= 125, "{output}");
    case.nothing_left();
    let id = case.up(&["--rm", "--name", "a"], "echo up; sleep 1000");
    case.keeper(&id).signal(Signal::KILL);
    eventually("the box is dead", || case.processes_in(&id).is_empty());
    case.call(["ls"]).ok();
    case.assert_gone(&id);
    case.nothing_left();
}

#[track_caller]
fn only_box(case: &Case) -> String {
    let listed = case.list();
    assert_eq!(listed.len(), 1, "{listed:?}");
    listed[0]["id"].as_str().expect("an id").to_owned()
}

/// H12, e2b: a client that gave up while its box was being created left the box behind.
#[test]
fn a_client_that_gives_up_during_creation_leaves_nothing() {
    let case = case();
    let signals = [Signal::INT, Signal::TERM, Signal::HUP, Signal::KILL];
    for step in 0..times(80, 400) {
        let signal = signals[step % signals.len()];
        let client = case.spawn(["--", "sleep", "1000"]);
        tare_harness::let_pass(Duration::from_micros(100 * u64::try_from(step % 80).unwrap_or(0)));
        client.signal(signal);
        // One is enough at any moment: it ends tare, or the command that tare passes it to.
        let output = client.wait();
        let number = signal.as_raw();
        assert!([-number, 128 + number].contains(&output.code), "{output}");
        eventually("no process is left", || case.footprint().processes.is_empty());
    }
    case.call(["ls"]).ok();
    assert_eq!(case.footprint().records.len(), 0);
    case.reap_orphans();
    case.nothing_left();
}

/// Opens a file in the directory `$0`, removes its name, writes to it, and holds it open.
const HOLDING: &str = "exec 3> $0/held; rm $0/held; echo more >&3; echo up; sleep 1000";

/// Ends a box that holds a deleted file open in a directory of its own, in each way.
#[track_caller]
fn end_holding(case: &Case, options: &[&str], directory: &str, outside: &Path) {
    for end in [&["kill"][..], &["stop", "-t", "0"], &["rm", "-f"]] {
        let script = HOLDING.replace("$0", directory);
        let id = case.up(options, &script);
        case.call(end.iter().chain(&[&*id])).ok();
        case.call(["rm", "-f", &id]);
        case.assert_gone(&id);
        eventually("the directory is empty", || {
            fs::read_dir(outside).expect("it is there").count() == 0
        });
    }
}

/// H14, e2b: files that were deleted while open came back under other names when their box
/// ended.
#[test]
fn a_deleted_file_that_a_box_held_open_is_gone_with_the_box() {
    let case = case();
    let plain = TemporaryDirectory::new();
    fs::set_permissions(plain.path(), fs::Permissions::from_mode(0o777)).expect("it is ours");
    let volume = format!("{}:/data", plain.text());
    end_holding(&case, &["-v", &volume], "/data", plain.path());
    fs::remove_dir(plain.path()).expect("nothing holds it");
    let Some(root) = fixture::busybox_root() else {
        skip!("this host has no static busybox");
    };
    let data = root.join("data");
    fs::create_dir(&data).expect("the root is fresh");
    fs::set_permissions(&data, fs::Permissions::from_mode(0o777)).expect("it is ours");
    let before = fixture::tree(root.path());
    for options in [&["--rootfs", root.text()][..], &["--keep", "--rootfs", root.text()]] {
        end_holding(&case, options, "/data", &data);
        assert_eq!(fixture::tree(root.path()), before);
    }
}

/// H14, e2b: a FUSE file server kept deleted files under hidden names.
#[test]
fn a_deleted_file_on_fuse_that_a_box_held_open_is_gone_with_the_box() {
    let case = case();
    if !has_program("bindfs") || !is_root() || !Path::new("/dev/fuse").exists() {
        skip!("bindfs or /dev/fuse is not there, or we are not root");
    }
    let (source, mounted) = (TemporaryDirectory::new(), TemporaryDirectory::new());
    let mut bindfs = Command::new("bindfs");
    bindfs.args(["-f", source.text(), mounted.text()]);
    let server = case.start_piped(bindfs);
    let table = || mounts_of("self");
    eventually("it is mounted", || table().contains(mounted.text()));
    // A box of its own user ids cannot have it writable: FUSE maps none by default.
    end_holding(&case, &["--contain"], mounted.text(), mounted.path());
    assert_eq!(fixture::tree(source.path()).len(), 1);
    unmount(mounted.path(), UnmountFlags::empty()).expect("nothing holds it");
    server.wait();
    fs::remove_dir(mounted.path()).expect("nothing holds it");
    fs::remove_dir(source.path()).expect("nothing holds it");
}

/// H18, boxlite: another limit applied before the requested disk size, and the machine died
/// without a record.
#[test]
fn a_box_can_fill_its_scratch_to_the_requested_size() {
    let case = case();
    let fill = "import os, sys
written = 0
try:
    with open('/work/fill', 'wb', buffering=0) as file:
        while True: written += file.write(bytes(1 << 20))
except OSError as error:
    print(error.errno, written >> 20)
os.unlink('/work/fill')";
    for mib in [8, 64, times(160, 8192)] {
        let (scratch, memory) = (format!("{mib}m"), format!("{}m", 2 * mib + 64));
        let sizes = ["--scratch", &scratch, "--memory", &memory, "--quiet"];
        let id = case.detached(sizes.iter().chain(&["--", "sleep", "1000"]));
        let filled = case.exec(&id, ["python3", "-c", fill]).ok().stdout_text();
        let numbers: Vec<usize> = filled.split_whitespace().flat_map(str::parse).collect();
        // ENOSPC; some pages are directories and the box's own files.
        assert_eq!(numbers[0], 28, "{filled}");
        assert!((mib - 2..=mib).contains(&numbers[1]), "{mib}: {filled}");
        assert_eq!(case.state(&id), "running");
        case.remove(&id);
    }
}

/// Calls by which a box is built after its volumes are there.
const BUILDING: [&str; 6] =
    ["move_mount", "mount_setattr", "pivot_root", "fchdir", "seccomp", "setresuid"];

/// H19, mirendev: a box that failed to boot kept its volume, and its successors failed
/// because of it.
#[test]
fn a_failed_create_frees_its_volume_at_once() {
    let case = case();
    if !has_program("strace") || !is_root() {
        skip!("strace is not installed, or may not trace a keeper");
    }
    let data = TemporaryDirectory::new();
    fs::set_permissions(data.path(), fs::Permissions::from_mode(0o777)).expect("it is ours");
    let volume = format!("{}:/data", data.text());
    let run = ["run", "-v", &volume, "--", "sh", "-c", "echo here > /data/file"];
    let mut failed = 0;
    for call in BUILDING {
        for number in 1..=times(2, 10) {
            let fault = format!("inject={call}:error=ENOMEM:when={number}");
            let output = traced(&case, &["-f", "-e", &fault], &run);
            failed += usize::from(output.code != 0);
            case.call(run).ok();
            fs::remove_file(data.join("file")).expect("it was written");
        }
    }
    assert!(failed > 3, "only {failed} of them failed");
    fs::remove_dir(data.path()).expect("nothing holds it");
}
