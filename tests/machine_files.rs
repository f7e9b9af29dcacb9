//! Files that the host shares with a machine. The host keeps no descriptor for files that a machine has looked
//! up. A file that a process in the machine has open costs the monitor one, until half of its limit is used.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use tare_harness::skip::{has_program, is_root};
use tare_harness::{FileServer, Output, TemporaryDirectory, eventually, skip};

use crate::kernels::package;
use crate::machines::{Machines, QEMU, machines};

/// The most descriptors that a process of a box may have.
const DESCRIPTORS_MAX: usize = 64;
/// How many more than before the first walk it may keep.
const KEPT_MAX: usize = 16;
const FILES_OF_A_DIRECTORY: usize = 100;

/// What `./check` does, and what `./check --long` does.
struct Extent {
    directories: usize,
    boxes: usize,
    at_once: usize,
}

fn extent() -> Extent {
    match std::env::var_os("TARE_LONG") {
        Some(_) => Extent { directories: 2000, boxes: 20, at_once: 4 },
        None => Extent { directories: 200, boxes: 2, at_once: 1 },
    }
}

/// A tree of small files.
fn tree(directories: usize) -> TemporaryDirectory {
    let tree = TemporaryDirectory::new();
    for directory in 0..directories {
        let directory = tree.join(format!("d{directory}"));
        fs::create_dir(&directory).expect("it is new");
        for file in 0..FILES_OF_A_DIRECTORY {
            fs::write(directory.join(format!("f{file}")), "x").expect("it is new");
        }
    }
    tree
}

/// The descriptors of each process of a box, its keeper and its monitor: what each of them is.
fn descriptors(machines: &Machines, id: &str) -> Vec<Vec<PathBuf>> {
    let of = |pid: u32| {
        let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        entries.map(|entry| fs::read_link(entry.path()).unwrap_or_default()).collect()
    };
    machines.tare.processes_in(id).iter().map(|process| of(process.pid)).collect()
}

/// Runs a command in a box. Checks how many descriptors its processes have meanwhile and afterwards.
fn exec_watched(machines: &Machines, id: &str, command: &[&str]) -> Output {
    let before = descriptors(machines, id);
    let is_over = AtomicBool::new(false);
    let output = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                let now = descriptors(machines, id).into_iter().chain([most]);
                most = now.max_by_key(Vec::len).unwrap_or_default();
                tare_harness::let_pass(std::time::Duration::from_millis(50));
            }
            most
        });
        let output = machines.call(&[&["exec", id, "--"], command].concat());
        is_over.store(true, Ordering::Relaxed);
        let most = watch.join().expect("it only counts");
        assert!(most.len() <= DESCRIPTORS_MAX, "{}: {most:?}\n{output}", most.len());
        output
    });
    eventually("descriptors are released", || {
        let pairs = before.iter().zip(descriptors(machines, id));
        pairs.into_iter().all(|(before, now)| now.len() <= before.len() + KEPT_MAX)
    });
    output
}

/// Opens every file of 30 directories and only then reads them.
const HOLD: &str = "files = [open(f'/t/d{d}/f{f}') for d in range(30) for f in range(100)]
print(sum(len(file.read()) for file in files))";

#[test]
fn walks_over_many_files_cost_the_host_no_descriptor_and_open_files_stay_below_the_limit() {
    let machines = machines!();
    let Extent { directories, boxes, at_once } = extent();
    let tree = tree(directories);
    let volume = format!("{}:/t:ro", tree.text());
    let files = format!("{}\n", directories * FILES_OF_A_DIRECTORY);
    let walk = |number: usize| {
        // Without locales, programs keep fewer files open.
        let args = ["-v", &volume, "-e", "LC_ALL=C", "--nofile", "4096", "--lease", "30m"];
        let args = [&args[..], &["--", "sleep", "3000"]].concat();
        let id = machines.detached(&args);
        // The size makes it look up every file.
        let find = "find /t -type f -size -9 | wc -l";
        exec_watched(&machines, &id, &["sh", "-c", find]).ok().printed(&files);
        if number == 0 {
            let limits = format!("/proc/{}/limits", machines.monitor(&id));
            let limits = fs::read_to_string(limits).expect("the monitor lives");
            let open = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
            assert!(open.split_whitespace().any(|word| word == "1024"), "{open}");
            machines.call(&["exec", &id, "--", "python3", "-c", HOLD]).ok().printed("3000\n");
        }
        machines.call(&["rm", "-f", &id]).ok();
    };
    (0..boxes).for_each(walk);
    if at_once > 1 {
        std::thread::scope(|scope| {
            (1..=at_once).for_each(|one| drop(scope.spawn(move || walk(one))))
        });
    }
}

#[test]
fn a_user_without_privileges_runs_machines() {
    let tare = tare_harness::unprivileged!();
    if !is_root() || !has_program(QEMU) {
        skip!("only root can make a home for another user, and machines need {QEMU}");
    }
    let Some((_, unpacked)) = package() else {
        skip!("no target/kernel-package: ./check fetches it");
    };
    let home = TemporaryDirectory::new();
    let own = |path: &Path| chown(path, Some(65533), Some(65533)).expect("root may");
    own(home.path());
    let source = home.join("package");
    let copied = Command::new("cp").arg("-r").args([&unpacked, &source]).status().unwrap();
    assert!(copied.success());
    let volume = home.join("volume");
    fs::create_dir(&volume).unwrap();
    own(&volume);
    let machines = Machines::in_directory(tare, home, &source);
    let bound = format!("{}:/w", volume.display());
    let script = "echo out; echo aside >&2; id -u; cat >/w/new; exit 7";
    let mut running = machines.run(&["--quiet", "-i", "-v", &bound, "--", "sh", "-c", script]);
    running.write(b"typed\n");
    let output = running.wait().exited(7).printed("out\n1000\n");
    assert_eq!(output.stderr_text(), "aside\n");
    assert_eq!(fs::read_to_string(volume.join("new")).unwrap(), "typed\n");
    machines.detached(&["--quiet", "--name", "web", "--", "sleep", "1000"]);
    machines.call(&["exec", "web", "--", "sh", "-c", "exit 5"]).exited(5);
    machines.call(&["rm", "-f", "web"]).ok();
}

/// The monitor reads files in threads of its own: one for each request, 64 at most.
#[test]
fn a_hundred_readers_of_a_volume_that_does_not_answer_end_no_machine() {
    const READERS: usize = 100;
    // Those for requests, and two more at least.
    const THREADS: usize = 66;
    let machines = machines!();
    let Some(files) = FileServer::new(&machines.tare) else {
        skip!("bindfs or /dev/fuse is not there, or we are not root");
    };
    for number in 1..=READERS {
        fs::write(files.path().join(number.to_string()), "x").expect("it is ours");
    }
    let volume = format!("{}:/v:ro", files.path().display());
    let read = format!(
        "echo up; read _; for n in $(seq {READERS}); do cat /v/$n & done; wait; echo; echo all read"
    );
    let mut running = machines.run(&["-i", "-v", &volume, "--", "sh", "-c", &read]);
    running.see("up");
    let monitor = machines.monitor(&machines.tare.boxes_of_calls()[0]);
    files.stop();
    running.write(b"\n");
    eventually("all threads of the monitor wait", || {
        fs::read_dir(format!("/proc/{monitor}/task")).is_ok_and(|tasks| tasks.count() >= THREADS)
    });
    files.go_on();
    running.see("all read").see(&"x".repeat(READERS));
    running.wait().ok();
}
