//! When a resource is used up (processes, descriptors, disk or memory of the box, the user or
//! tare), boxes can still be listed, stopped and removed. A box that cannot be created is refused
//! with the reason and leaves nothing.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tare_harness::skip::is_root;
use tare_harness::{Output, Tare, hierarchies, skip, tare, unprivileged};

/// The number of descriptors with which tare promises to manage boxes.
const FEW_DESCRIPTORS: u64 = 32;
/// More than any command has open.
const ENOUGH_DESCRIPTORS: u64 = 64;

const PAGE_BYTES: u64 = 4096;
/// As much as one box and its log need, many times.
const SMALL_DISK_PAGES: u64 = 64;
const SMALL_DISK_NAMES: u64 = 64;
/// From nothing to more than one box needs.
const FREE: std::ops::RangeInclusive<u64> = 0..=10;

/// `tare ARGS` behind a prefix of a command line or a script.
#[track_caller]
fn under(tare: &Tare, limit: &str, args: &str) -> Output {
    tare.shell(&format!("{limit} \"$TARE\" {args}"))
}

/// Checks that no box was created, that the reason was printed, and that nothing is left.
#[track_caller]
fn refused(tare: &Tare, output: Output, reason: &str) {
    output.exited(125).printed("").said(&["tare: ", reason]);
    let left = tare.footprint();
    assert!(left.records.is_empty(), "{reason}: {:?}", left.records);
    assert!(left.names.is_empty(), "{reason}: {:?}", left.names);
    assert!(left.processes.is_empty(), "{reason}: {:?}", left.processes);
}

/// Checks that a box is created or refused with one line, and returns whether it was created.
#[track_caller]
fn made_or_refused(tare: &Tare, limit: &str, args: &str, reason: &str) -> bool {
    let output = under(tare, limit, args);
    let is_made = output.code == 0;
    if !is_made {
        refused(tare, output, reason);
    }
    tare.call(["rm", "-f", "--all"]).ok();
    tare.reap_orphans();
    is_made
}

/// Creates two boxes before the resource is used up.
#[track_caller]
fn two_boxes(tare: &Tare) -> [String; 2] {
    ["stopped", "removed"]
        .map(|name| tare.detached(["--quiet", "--name", name, "--", "sleep", "1000"]))
}

/// Lists, stops and removes the boxes under the limit.
#[track_caller]
fn are_cared_for(tare: &Tare, ids: [String; 2], limit: &str) {
    let listed = under(tare, limit, "ls -a --json").ok().said_nothing();
    assert_eq!(listed.stdout_text().matches("\"running\"").count(), 2, "{listed}");
    under(tare, limit, "stop stopped").ok().said_nothing();
    let processes = tare.processes_in(&ids[0]);
    assert!(processes.is_empty(), "{processes:?}");
    let listed = under(tare, limit, "ls -a --json").ok().said_nothing();
    assert_eq!(listed.stdout_text().matches("\"exited\"").count(), 1, "{listed}");
    under(tare, limit, "rm -f removed").ok().said_nothing();
    under(tare, limit, "rm stopped").ok().said_nothing();
    ids.iter().for_each(|id| tare.assert_gone(id));
}

#[test]
fn a_box_at_its_process_limit_can_be_listed_stopped_and_removed() {
    let tare = tare!();
    let ids = ["stopped", "removed"].map(|name| {
        let id = tare.detached(["--name", name, "--pids", "6", "--", "sleep", "1000"]);
        let more = || tare.call(["exec", "-d", name, "--", "sleep", "1000"]);
        let refused = (0..10).map(|_| more()).find(|output| output.code != 0);
        let refused = refused.expect("six is less than ten");
        refused.exited(125).said(&["tare: ", "--pids"]);
        assert_eq!(tare.state(&id), "running");
        id
    });
    are_cared_for(&tare, ids, "exec");
}

#[test]
fn a_user_at_the_process_limit_manages_boxes_and_gets_no_new_one() {
    let tare = unprivileged!();
    let limit = "exec prlimit --nproc=1";
    for call in ["run --quiet -- true", "run --quiet -d --name x -- true"] {
        refused(&tare, under(&tare, limit, call), "processes");
    }
    let ids = two_boxes(&tare);
    are_cared_for(&tare, ids, limit);
}

#[test]
fn boxes_are_managed_and_none_created_when_tare_cannot_fork() {
    let tare = tare!();
    let Some(around) = Around::new("pids", "pids.max", "1") else {
        skip!("no cgroup with a limit of processes can be made here");
    };
    let ids = two_boxes(&tare);
    are_cared_for(&tare, ids, &around.limit());
    for call in ["run -- true", "run -d --name x -- true"] {
        refused(&tare, under(&tare, &around.limit(), call), "processes");
    }
}

#[test]
fn copying_from_an_ended_box_without_threads_is_refused_with_the_reason() {
    let tare = tare!();
    let Some(around) = Around::new("pids", "pids.max", "1") else {
        skip!("no cgroup with a limit of processes can be made here");
    };
    let id = tare.detached(["--keep", "--", "sh", "-c", "echo kept > file"]);
    tare.ended(&id);
    let call = format!("cp {id}:/work/file -");
    under(&tare, &around.limit(), &call).exited(1).said(&["cannot start a thread"]);
    tare.call(["rm", &id]).ok();
}

#[test]
fn thirty_two_descriptors_are_enough_to_manage_boxes() {
    let tare = tare!();
    let ids = two_boxes(&tare);
    are_cared_for(&tare, ids, &descriptors(FEW_DESCRIPTORS));
}

#[test]
fn a_box_is_created_or_refused_with_the_reason_at_any_descriptor_limit() {
    let tare = tare!();
    for call in ["run -- true", "run -d --name x -- sleep 1000"] {
        let mut enough = None;
        // Three are the standard streams.
        for count in 3..=ENOUGH_DESCRIPTORS {
            let is_made = made_or_refused(&tare, &descriptors(count), call, "descriptor");
            assert!(is_made || enough.is_none(), "{enough:?} are enough, {count} not");
            enough = enough.or(is_made.then_some(count));
        }
        assert!(enough.is_some(), "{ENOUGH_DESCRIPTORS} are not enough");
    }
}

/// A live box is never reported as ended, and its record never as damaged.
#[test]
fn a_box_is_listed_correctly_or_with_the_reason_at_any_descriptor_limit() {
    let tare = tare!();
    let id = tare.idle_box();
    for count in 3..=FEW_DESCRIPTORS {
        let output = under(&tare, &descriptors(count), "ls --json");
        if output.code != 0 {
            output.exited(1).printed("").said(&["tare: ", "descriptor"]);
        } else {
            let text = output.stdout_text();
            let is_unreadable = text.contains("\"stuck\"") && text.contains("descriptor");
            let is_running = text.contains("\"running\"");
            assert!(is_running || is_unreadable, "with {count}: {output}");
        }
    }
    tare.remove(&id);
}

/// Audit and sweep look at a few boxes at a time, so that thousands of boxes do not need thousands
/// of descriptors.
#[test]
fn audit_and_sweep_reach_all_boxes_with_fewer_descriptors_than_boxes() {
    let tare = tare!();
    let ids: Vec<String> = (0..FEW_DESCRIPTORS).map(|_| tare.idle_box()).collect();
    let whole = tare.call(["audit"]).ok().stdout_text();
    let output = under(&tare, &descriptors(FEW_DESCRIPTORS), "audit").ok();
    assert_eq!(output.stdout_text().lines().count(), whole.lines().count());
    assert!(output.stdout_text().contains("nothing is left over"));
    under(&tare, &descriptors(FEW_DESCRIPTORS), "sweep").ok().printed("Nothing to sweep.\n");
    ids.iter().for_each(|id| tare.remove(id));
}

fn descriptors(count: u64) -> String {
    format!("exec prlimit --nofile={count}:{count}")
}

#[test]
fn boxes_are_managed_and_none_created_on_a_full_disk() {
    let tare = tare!();
    let Some(disk) = SmallDisk::new(&tare) else {
        skip!("only root can mount a small disk");
    };
    let ids = two_boxes(&tare);
    disk.leave_pages(0);
    for call in ["run -- true", "run -d --name x -- true"] {
        let output = under(&tare, "exec", call);
        output.exited(125).printed("").said(&["tare: ", "No space left on device"]);
        assert_eq!(tare.footprint().records.len(), ids.len());
    }
    are_cared_for(&tare, ids, "exec");
    disk.unmount();
}

/// The end of a box is one more line in the record, for which there may be no space.
#[test]
fn a_box_is_stopped_even_if_its_end_cannot_be_recorded() {
    let tare = tare!();
    let Some(disk) = SmallDisk::new(&tare) else {
        skip!("only root can mount a small disk");
    };
    let id = tare.detached(["--name", "long", "--", "sh", "-c", "sleep 1000"]);
    let account = tare.record(&id).join("record.json");
    let bytes = fs::metadata(&account).expect("a box has an account").len();
    tare.remove(&id);
    // A few bytes less than a page.
    let word = "x".repeat(usize::try_from(PAGE_BYTES - bytes - 8).expect("it is short"));
    let id = tare.detached(["--name", "long", "--", "sh", "-c", "sleep 1000", &word]);
    disk.leave_pages(0);
    tare.call(["update", "--pids", "50", "long"]).exited(1).said(&["No space left on device"]);
    tare.call(["stop", "long"]).ok().said_nothing();
    let look = tare.look(&id);
    assert_eq!((&look["state"], &look["cause"]), (&"exited".into(), &"stopped".into()));
    tare.call(["wait", "long"]).ok().printed("143\n");
    // What was cut short spoils no line that comes after it.
    disk.leave_pages(1);
    tare.call(["ls"]).ok();
    let text = fs::read_to_string(tare.record(&id).join("record.json")).expect("it is there");
    let is_line = |line: &str| serde_json::from_str::<serde_json::Value>(line).is_ok();
    assert!(text.ends_with('\n') && text.lines().all(is_line), "{text}");
    assert!(text.lines().any(|line| line.contains("\"ended\"")), "{text}");
    tare.remove(&id);
    disk.unmount();
}

#[test]
fn a_box_is_created_or_refused_with_the_reason_at_any_free_disk_space() {
    let tare = tare!();
    let Some(disk) = SmallDisk::new(&tare) else {
        skip!("only root can mount a small disk");
    };
    for call in ["run -- true", "run -d --keep --name x -- sleep 1000"] {
        for leave in [SmallDisk::leave_pages, SmallDisk::leave_names] {
            let made = FREE.map(|free| {
                leave(&disk, free);
                made_or_refused(&tare, "exec", call, "No space left on device")
            });
            let made: Vec<bool> = made.collect();
            assert!(!made[0] && made[made.len() - 1], "{call}: {made:?}");
            disk.empty();
        }
    }
    disk.unmount();
}

/// The kernel kills a process that needs more memory. The next command removes what it leaves.
#[test]
fn run_without_memory_creates_a_box_or_leaves_nothing() {
    let tare = tare!();
    // A new one each time: what the last one was charged for may not fit into less.
    let around = |limit: &str| Around::new("memory", "memory.limit_in_bytes", limit);
    let Some(roomy) = around("1m") else {
        skip!("no cgroup with a limit of memory can be made here");
    };
    let ids = two_boxes(&tare);
    are_cared_for(&tare, ids, &roomy.limit());
    drop(roomy);
    for kib in (400..1200).step_by(50) {
        let around = around(&format!("{kib}k")).expect("one could be made before");
        for call in ["run -- true", "run -d --name x -- sleep 1000"] {
            let output = under(&tare, &around.limit(), call);
            assert!([0, -9, 125].contains(&output.code), "{kib} KiB: {output}");
            tare.call(["ls"]).ok();
            tare.call(["rm", "-f", "--all"]).ok();
            tare.reap_orphans();
            let left = tare.footprint();
            assert!(left.records.is_empty() && left.processes.is_empty(), "{left:?}");
        }
    }
}

#[test]
fn commands_that_cannot_allocate_memory_report_it() {
    let tare = tare!();
    let limit = |kib: u64| format!("exec prlimit --as={}", kib << 10);
    let works = |kib: u64| under(&tare, &limit(kib), "ls").code == 0;
    let mut enough = (1..1024).map(|at| at * 128);
    let enough = enough.find(|kib| works(*kib)).expect("128 MiB are enough to list nothing");
    let mut least = (enough - 128..=enough).step_by(4);
    let least = least.find(|kib| works(*kib)).expect("that much is enough");
    let mut said = 0;
    // With much less, a program cannot even begin.
    for kib in (least - 48..least + 512).step_by(16) {
        for call in ["run -- true", "run -d -- true", "ls"] {
            let output = under(&tare, &limit(kib), call);
            // If the stack cannot grow, the process cannot print anything.
            if ![0, -11].contains(&output.code) {
                let failure = if call == "ls" { 1 } else { 125 };
                output.exited(failure).said(&["tare: ", "Out of memory"]);
                said += 1;
            } else if output.code == 0 {
                // What was made may be there.
                tare.call(["rm", "-f", "--all"]).ok();
            }
            tare.call(["ls"]).ok();
        }
        tare.reap_orphans();
        let left = tare.footprint();
        assert!(left.records.is_empty() && left.processes.is_empty(), "{left:?}");
    }
    assert!(said > 0, "memory was never short");
    let ids = two_boxes(&tare);
    are_cared_for(&tare, ids, &limit(least + 512));
}

#[test]
fn a_box_at_its_memory_limit_can_be_listed_stopped_and_removed() {
    let tare = tare!();
    if !is_root() {
        skip!("without a cgroup a box has no limit of memory as a whole");
    }
    let fill = "head -c 100m /dev/zero > /tmp/fill; echo full; sleep 1000";
    let ids = ["stopped", "removed"].map(|name| {
        let options = ["--name", name, "--memory", "16m", "--scratch", "14m"];
        let id = tare.detached(options.iter().chain(&["--", "sh", "-c", fill]));
        tare.logged(&id, "full");
        id
    });
    are_cared_for(&tare, ids, "exec");
}

/// A cgroup for tare itself, with a limit.
pub struct Around {
    pub directory: PathBuf,
}

impl Around {
    /// In the first hierarchy that knows this file.
    pub fn new(controller: &str, file: &'static str, value: &str) -> Option<Self> {
        let name = format!("exhausted-{controller}-{}", std::process::id());
        let roots = hierarchies().into_iter().filter(|_| is_root());
        let mut made = roots.filter_map(|root| {
            let directory = root.join(&name);
            fs::create_dir(&directory).ok()?;
            let around = Self { directory };
            around.directory.join(file).exists().then_some(around)
        });
        let around = made.next()?;
        fs::write(around.directory.join(file), value).expect("the limit can be set");
        Some(around)
    }

    /// A shell command that enters the cgroup and executes tare.
    pub fn limit(&self) -> String {
        format!("echo 0 > {}/cgroup.procs; exec", self.directory.display())
    }
}

impl Drop for Around {
    fn drop(&mut self) {
        // What cannot be removed is in the way of the next one, which says so.
        let _ = fs::remove_dir(&self.directory);
    }
}

/// A state root on its own small disk.
struct SmallDisk<'a> {
    tare: &'a Tare,
    root: PathBuf,
}

impl<'a> SmallDisk<'a> {
    fn new(tare: &'a Tare) -> Option<Self> {
        let root = tare.state_root();
        let options =
            format!("size={},nr_inodes={SMALL_DISK_NAMES},mode=700", SMALL_DISK_PAGES * PAGE_BYTES);
        let options = std::ffi::CString::new(options).expect("it has no zero");
        is_root().then_some(())?;
        let flags = MountFlags::empty();
        mount("small", &root, "tmpfs", flags, options.as_c_str()).ok()?;
        Some(Self { tare, root })
    }

    /// Fills the disk and leaves `free` pages.
    #[track_caller]
    fn leave_pages(&self, free: u64) {
        let file = self.root.join("filling");
        let _ = fs::remove_file(&file);
        let available = || {
            let disk = rustix::fs::statvfs(&self.root).expect("it is mounted");
            disk.f_bavail
        };
        let filled = available().saturating_sub(free) * PAGE_BYTES;
        let bytes = vec![0; usize::try_from(filled).expect("it is small")];
        fs::write(&file, bytes).expect("there is room");
        assert_eq!(available(), free);
    }

    /// Uses all inodes and leaves `free` of them.
    #[track_caller]
    fn leave_names(&self, free: u64) {
        self.empty();
        let disk = rustix::fs::statvfs(&self.root).expect("it is mounted");
        for number in free..disk.f_favail {
            let file = self.root.join(format!("filling-{number}"));
            fs::write(file, "").expect("there are names");
        }
    }

    fn empty(&self) {
        let entries = fs::read_dir(&self.root).expect("it is mounted");
        for entry in entries.flatten() {
            if entry.file_name().to_string_lossy().starts_with("filling") {
                fs::remove_file(entry.path()).expect("it is ours");
            }
        }
    }

    /// Unmounts the disk at the end of the test, when no box exists.
    #[track_caller]
    fn unmount(self) {
        self.empty();
        assert!(self.tare.list().is_empty());
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Its boxes are known nowhere else.
            let mut command = self.tare.command(["rm", "-f", "--all"]);
            let _ = command.stdout(Stdio::null()).status();
        }
        let _ = unmount(&self.root, UnmountFlags::DETACH);
    }
}
