//! What gauges say is what the kernel says, also when there is nothing left.
//!
//! A process has one limit of descriptors and is in one place in each hierarchy, so a
//! test that needs other ones runs again in a process of its own, as its inner half.
#![allow(clippy::unwrap_used, reason = "all of this is test code")]

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tare_engine::{Change, Engine, Gauge, GaugeSettings, Gauges, Level, Purpose, Reading};
use tare_harness::skip::is_root;
use tare_harness::{TemporaryDirectory, eventually, hierarchies, skip};

const MIB: u64 = 1 << 20;

/// Set for the inner half: its directory.
const INNER: &str = "TARE_GAUGE_TEST";

/// The directory of this test, if this is its inner half.
fn inner() -> Option<PathBuf> {
    std::env::var_os(INNER).map(PathBuf::from)
}

/// Runs the inner half of a test: `around` is a script that ends with the command that
/// is given it.
#[track_caller]
fn run_inner(test: &str, directory: &TemporaryDirectory, around: &str) {
    // The other user must be able to execute it.
    let program = directory.join("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let output = Command::new("sh")
        .args(["-c", &format!("{around} \"$@\""), "sh"])
        .arg(&program)
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(INNER, directory.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let is_passed = output.status.success() && stdout.contains("1 passed");
    assert!(is_passed, "{stdout}{stderr}");
}

fn gauges(directory: &Path, settings: GaugeSettings) -> Gauges {
    let engine = Engine::open(Some(directory.join("state")), Purpose::Use).unwrap();
    engine.gauges(settings).unwrap()
}

#[track_caller]
fn read(gauges: &mut Gauges, gauge: Gauge) -> Reading {
    gauges.measure();
    reading_of(gauges, gauge).unwrap_or_else(|| panic!("no {gauge}")).clone()
}

fn reading_of(gauges: &Gauges, gauge: Gauge) -> Option<&Reading> {
    let mut readings = gauges.readings();
    readings.find_map(|(reading, _)| (reading.gauge == gauge).then_some(reading))
}

fn level(gauges: &Gauges, gauge: Gauge) -> Option<Level> {
    let mut readings = gauges.readings();
    readings.find_map(|(reading, level)| (reading.gauge == gauge).then_some(level))
}

/// The gauges that leave no room for a new box.
fn full_gauges(gauges: &Gauges) -> Vec<Gauge> {
    let full = gauges.readings().filter(|(_, level)| *level == Level::Full);
    full.map(|(reading, _)| reading.gauge).collect()
}

fn number(path: impl AsRef<Path>) -> u64 {
    let text = fs::read_to_string(path).unwrap();
    text.trim().parse().unwrap()
}

/// A cgroup of this test's own.
struct Around {
    directory: PathBuf,
}

impl Around {
    /// Creates a cgroup in the hierarchy whose cgroups have this file.
    fn new(file: &str, value: &str) -> Option<Self> {
        let name = format!("gauge-{file}-{}", std::process::id());
        let mut roots = hierarchies().into_iter().filter(|_| is_root());
        let found = roots.find_map(|root| {
            let directory = root.join(&name);
            fs::create_dir(&directory).ok()?;
            let around = Self { directory };
            around.directory.join(file).exists().then_some(around)
        })?;
        fs::write(found.directory.join(file), value).unwrap();
        Some(found)
    }

    fn below(&self, name: &str) -> Self {
        let directory = self.directory.join(name);
        fs::create_dir(&directory).unwrap();
        Self { directory }
    }

    fn enter(&self) -> String {
        format!("echo 0 > {}/cgroup.procs;", self.directory.display())
    }
}

impl Drop for Around {
    fn drop(&mut self) {
        // Processes that were reaped leave a moment later.
        eventually("the cgroup can be removed", || fs::remove_dir(&self.directory).is_ok());
    }
}

fn around_memory(bytes: u64) -> Option<Around> {
    let mut files = ["memory.max", "memory.limit_in_bytes"].into_iter();
    files.find_map(|file| Around::new(file, &bytes.to_string()))
}

/// With limits of processes and of memory: two cgroups in v1, one in v2.
fn around_all() -> Option<Vec<Around>> {
    let pids = Around::new("pids.max", "300")?;
    let memory = pids.directory.join("memory.max");
    if memory.exists() {
        fs::write(memory, "256M").unwrap();
        return Some(vec![pids]);
    }
    Some(vec![pids, around_memory(256 * MIB)?])
}

/// As many descriptors as there are left.
fn all_descriptors() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

/// Processes that do nothing, until the value is dropped.
#[derive(Default)]
struct Sleepers(Vec<Child>);

impl Sleepers {
    /// Whether there is one more.
    fn add(&mut self) -> bool {
        let child = Command::new("sleep").arg("1000").spawn();
        let is_added = child.is_ok();
        self.0.extend(child);
        is_added
    }
}

impl Drop for Sleepers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

/// This process's own cgroup in the hierarchy of this controller.
fn own_cgroup(file: &str) -> PathBuf {
    PathBuf::from(fs::read_to_string(inner().unwrap().join(file)).unwrap())
}

fn tell_cgroup(directory: &TemporaryDirectory, file: &str, around: &Around) {
    let path = around.directory.to_str().unwrap();
    fs::write(directory.join(file), path).unwrap();
}

/// A backend had 241 of 300 processes for hours, and no alert fired.
#[test]
fn two_hundred_and_forty_one_of_three_hundred_processes_are_an_alert() {
    let Some(directory) = inner() else {
        let Some(around) = Around::new("pids.max", "300") else {
            skip!("no cgroup with a limit of processes can be made here");
        };
        let directory = TemporaryDirectory::new();
        tell_cgroup(&directory, "pids", &around);
        let test = "two_hundred_and_forty_one_of_three_hundred_processes_are_an_alert";
        return run_inner(test, &directory, &format!("{} exec", around.enter()));
    };
    let cgroup = own_cgroup("pids");
    let counted = || number(cgroup.join("pids.current"));
    let mut gauges = gauges(&directory, GaugeSettings::default());
    let mut sleepers = Sleepers::default();
    while counted() < 241 {
        assert!(sleepers.add());
    }
    let changes = gauges.measure();
    let reading = reading_of(&gauges, Gauge::PidsCgroup).unwrap().clone();
    assert_eq!((reading.used, reading.limit), (241, 300));
    let limit_is = format!("pids.max of the cgroup {}", cgroup.display());
    assert_eq!(reading.limit_is, limit_is);
    let told = Change {
        gauge: Gauge::PidsCgroup,
        from: Level::Normal,
        to: Level::Alert,
        reading: Some(reading),
    };
    assert!(changes.contains(&told), "{changes:?}");
    assert_eq!(full_gauges(&gauges), []);
    while sleepers.add() {}
    assert_eq!(read(&mut gauges, Gauge::PidsCgroup).used, 300);
    assert!(full_gauges(&gauges).contains(&Gauge::PidsCgroup));
    drop(sleepers);
    eventually("all are gone", || counted() < 10);
    assert_eq!(read(&mut gauges, Gauge::PidsCgroup).used, counted());
    assert_eq!(full_gauges(&gauges), []);
}

#[test]
fn a_limit_of_a_cgroup_around_counts_and_a_process_that_is_moved_is_followed() {
    let Some(directory) = inner() else {
        let Some(around) = Around::new("pids.max", "400") else {
            skip!("no cgroup with a limit of processes can be made here");
        };
        // v2 lets a cgroup count only what the one around it hands down.
        let handed_down = around.directory.join("cgroup.subtree_control");
        if handed_down.exists() {
            fs::write(handed_down, "+pids").unwrap();
        }
        let [first, second] = ["first", "second"].map(|name| around.below(name));
        let directory = TemporaryDirectory::new();
        for (name, cgroup) in [("outer", &around), ("first", &first), ("second", &second)] {
            tell_cgroup(&directory, name, cgroup);
        }
        let test = "a_limit_of_a_cgroup_around_counts_and_a_process_that_is_moved_is_followed";
        return run_inner(test, &directory, &format!("{} ulimit -n 64; exec", first.enter()));
    };
    let [outer, first, second] = ["outer", "first", "second"].map(own_cgroup);
    let mut gauges = gauges(&directory, GaugeSettings::default());
    let by = |cgroup: &Path| format!("pids.max of the cgroup {}", cgroup.display());
    let reading = read(&mut gauges, Gauge::PidsCgroup);
    assert_eq!((reading.limit, reading.limit_is), (400, by(&outer)));
    // A limit that is set meanwhile is found, and the nearer to its end counts.
    fs::write(first.join("pids.max"), "50").unwrap();
    let reading = read(&mut gauges, Gauge::PidsCgroup);
    assert_eq!((reading.limit, reading.limit_is), (50, by(&first)));
    let mut door = File::options().write(true).open(second.join("cgroup.procs")).unwrap();
    // A process stays, so that the old cgroup is the fuller one.
    let mut sleepers = Sleepers::default();
    assert!(sleepers.add());
    let opened = all_descriptors();
    door.write_all(b"0").unwrap();
    let reading = read(&mut gauges, Gauge::PidsCgroup);
    drop(opened);
    assert_eq!((reading.limit, reading.limit_is), (400, by(&outer)));
    assert_eq!(reading.used, number(outer.join("pids.current")));
    drop(sleepers);
    // One that is lifted is not measured, and no longer in the way.
    fs::write(outer.join("pids.max"), "1").unwrap();
    gauges.measure();
    assert!(full_gauges(&gauges).contains(&Gauge::PidsCgroup));
    fs::write(outer.join("pids.max"), "max").unwrap();
    let changes = gauges.measure();
    let gone =
        Change { gauge: Gauge::PidsCgroup, from: Level::Full, to: Level::Normal, reading: None };
    assert!(changes.contains(&gone), "{changes:?}");
    assert_eq!(reading_of(&gauges, Gauge::PidsCgroup), None);
    assert_eq!(full_gauges(&gauges), []);
}

/// Those of this process from this number on, but for the one that it takes to look.
fn open_descriptors(from: u64) -> u64 {
    let names = fs::read_dir("/proc/self/fd").unwrap();
    let numbers = names.map(|name| name.unwrap().file_name().to_str().unwrap().parse::<u64>());
    let all = numbers.filter(|number| *number.as_ref().unwrap() >= from);
    all.count() as u64 - u64::from(from == 0)
}

/// Among them what says how many processes and how much memory the cgroup has.
#[test]
fn every_gauge_works_without_free_descriptors() {
    let Some(directory) = inner() else {
        let Some(around) = around_all() else {
            skip!("no cgroup with a limit of processes and one of memory can be made here");
        };
        let enter: String = around.iter().map(Around::enter).collect();
        let directory = TemporaryDirectory::new();
        let test = "every_gauge_works_without_free_descriptors";
        let around = format!("{enter} ulimit -n 128; exec");
        return run_inner(test, &directory, &around);
    };
    // Descriptors that were open before the limit was set may be above it.
    let beyond = open_descriptors(128);
    let before = open_descriptors(0);
    let mut gauges = gauges(&directory, GaugeSettings::default());
    let held = open_descriptors(0) - before;
    assert!(held <= 24, "gauges take {held} descriptors");
    let mut opened = Vec::new();
    while level(&gauges, Gauge::DescriptorsProcess) != Some(Level::Alert) {
        opened.push(File::open("/dev/null").unwrap());
        gauges.measure();
    }
    let reading = reading_of(&gauges, Gauge::DescriptorsProcess).unwrap();
    assert_eq!((reading.used, reading.limit), (open_descriptors(0), 128));
    // 80 % of 128 are 102.4.
    assert_eq!(reading.used, 103);
    let names = |gauges: &Gauges| -> Vec<Gauge> {
        let readings = gauges.readings();
        readings.map(|(reading, _)| reading.gauge).collect()
    };
    let all = names(&gauges);
    for gauge in [Gauge::PidsCgroup, Gauge::MemoryCgroup] {
        assert!(all.contains(&gauge), "no {gauge}");
    }
    opened.extend(all_descriptors());
    assert_eq!(read(&mut gauges, Gauge::DescriptorsProcess).used, 128 + beyond);
    assert_eq!(names(&gauges), all);
    assert!(full_gauges(&gauges).contains(&Gauge::DescriptorsProcess));
    drop(opened);
    let reading = read(&mut gauges, Gauge::DescriptorsProcess);
    assert_eq!(reading.used, open_descriptors(0));
    assert_eq!(full_gauges(&gauges), []);
}

/// The kernel shows its count only by refusing a process.
#[test]
fn when_the_kernel_refuses_a_user_another_process_the_limit_is_reached() {
    let Some(directory) = inner() else {
        if !is_root() {
            skip!("only root can become a user without processes");
        }
        let directory = TemporaryDirectory::new();
        let path = directory.join("home");
        fs::create_dir(&path).unwrap();
        let home = path.display();
        let user = "--reuid=54321 --regid=54321 --clear-groups";
        let around = format!(
            "chown 54321 {home}; export {INNER}={home}; exec setpriv {user} prlimit --nproc=40 --nofile=64"
        );
        let test = "when_the_kernel_refuses_a_user_another_process_the_limit_is_reached";
        return run_inner(test, &directory, &around);
    };
    // A count is good for a while, so each is a new one.
    let count = || {
        let mut gauges = gauges(&directory, GaugeSettings::default());
        read(&mut gauges, Gauge::PidsUser)
    };
    let before = count();
    assert_eq!(before.limit, 40);
    let mut sleepers = Sleepers::default();
    while sleepers.add() {}
    assert_eq!(count().used, 40);
    assert_eq!(sleepers.0.len() as u64, 40 - before.used);
    drop(sleepers);
    assert_eq!(count().used, before.used);
    let mut gauges = gauges(&directory, GaugeSettings::default());
    let _opened = all_descriptors();
    assert_eq!(read(&mut gauges, Gauge::PidsUser).used, before.used);
}

#[test]
fn root_has_no_user_process_gauge() {
    if !is_root() {
        skip!("only root is exempt");
    }
    let directory = TemporaryDirectory::new();
    let mut gauges = gauges(directory.path(), GaugeSettings::default());
    gauges.measure();
    assert_eq!(reading_of(&gauges, Gauge::PidsUser), None);
}

const PAGE: u64 = 4096;

#[test]
fn a_full_disk_shows_in_bytes_and_inodes() {
    let Some(directory) = inner() else {
        if !is_root() {
            skip!("only root can mount a small disk");
        }
        let directory = TemporaryDirectory::new();
        let path = directory.join("small");
        fs::create_dir(&path).unwrap();
        let small = path.display();
        let mount = format!("mount -t tmpfs -o size=1m,nr_inodes=100 small {small}");
        let around = format!(
            "export {INNER}={small}; exec unshare --mount --propagation private \
             sh -c '{mount} && exec \"$@\"' sh"
        );
        let test = "a_full_disk_shows_in_bytes_and_inodes";
        return run_inner(test, &directory, &around);
    };
    let mut gauges = gauges(&directory, GaugeSettings::default());
    let disk = || rustix::fs::statvfs(&directory).unwrap();
    let empty = read(&mut gauges, Gauge::DiskBytes);
    let pages = empty.limit / PAGE;
    assert_eq!((empty.limit, pages), (1 << 20, disk().f_blocks));
    assert_eq!(empty.used, (pages - disk().f_bfree) * PAGE);
    let fill = |name: &str, pages: u64| {
        let bytes = vec![1; usize::try_from(pages * PAGE).unwrap()];
        fs::write(directory.join(name), bytes)
    };
    let some = (pages * 8).div_ceil(10);
    fill("some", some).unwrap();
    assert_eq!(read(&mut gauges, Gauge::DiskBytes).used, empty.used + some * PAGE);
    assert_eq!(level(&gauges, Gauge::DiskBytes), Some(Level::Alert));
    fill("more", pages).unwrap_err();
    let full = read(&mut gauges, Gauge::DiskBytes);
    assert_eq!((full.used, disk().f_bavail), (full.limit, 0));
    assert!(full_gauges(&gauges).contains(&Gauge::DiskBytes));
    fs::remove_file(directory.join("some")).unwrap();
    fs::remove_file(directory.join("more")).unwrap();
    let reading = read(&mut gauges, Gauge::DiskInodes);
    assert_eq!((reading.limit, reading.used), (100, 100 - disk().f_ffree));
    assert_eq!(full_gauges(&gauges), []);
    let names = (0..100).take_while(|name| fill(&name.to_string(), 0).is_ok());
    assert_eq!(names.count() as u64, reading.limit - reading.used);
    assert_eq!(read(&mut gauges, Gauge::DiskInodes).used, 100);
    assert!(full_gauges(&gauges).contains(&Gauge::DiskInodes));
}

/// What the kernel can take back is not used, or a cgroup in which files are read is
/// full for ever.
#[test]
fn the_memory_of_a_cgroup_excludes_reclaimable_pages() {
    let Some(directory) = inner() else {
        let Some(around) = around_memory(64 * MIB) else {
            skip!("no cgroup with a limit of memory can be made here");
        };
        let directory = TemporaryDirectory::new();
        tell_cgroup(&directory, "memory", &around);
        let test = "the_memory_of_a_cgroup_excludes_reclaimable_pages";
        return run_inner(test, &directory, &format!("{} exec", around.enter()));
    };
    let cgroup = own_cgroup("memory");
    let mut gauges = gauges(&directory, GaugeSettings::default());
    let idle = read(&mut gauges, Gauge::MemoryCgroup);
    assert_eq!(idle.limit, 64 * MIB);
    assert!(idle.limit_is.ends_with(&format!(" of the cgroup {}", cgroup.display())));
    assert!(idle.used < 16 * MIB, "{idle}");
    let file = directory.join("file");
    fs::write(&file, vec![1; 4 << 20]).unwrap();
    let whole = File::options().append(true).open(&file).unwrap();
    for _ in 0..20 {
        rustix::io::write(&whole, &vec![1; MIB as usize]).unwrap();
    }
    let with_file = read(&mut gauges, Gauge::MemoryCgroup);
    let taken = vec![1_u8; 40 << 20];
    let with_memory = read(&mut gauges, Gauge::MemoryCgroup);
    assert!(with_file.used < idle.used + 8 * MIB, "{idle}, {with_file}");
    let more = with_memory.used - with_file.used;
    assert!((38 * MIB..48 * MIB).contains(&more), "{with_memory}");
    assert!(level(&gauges, Gauge::MemoryCgroup) >= Some(Level::Warn));
    let all = ["memory.current", "memory.usage_in_bytes"].map(|it| cgroup.join(it));
    let all = number(all.iter().find(|it| it.exists()).unwrap());
    assert!(all > with_memory.used, "{all}: {with_memory}");
    // v2 only, and only where the kernel keeps account of it.
    let is_kept = fs::read_to_string(cgroup.join("memory.pressure")).is_ok();
    let pressure = reading_of(&gauges, Gauge::MemoryPressureCgroup);
    assert_eq!(pressure.is_some(), is_kept);
    drop(taken);
}

/// Others live on this host, and may come and go between two looks. What is wrong by
/// itself is wrong most of the time.
#[track_caller]
fn agrees(gauges: &mut Gauges, gauge: Gauge, told: impl Fn() -> (u64, u64)) {
    let mut seen = Vec::new();
    eventually("the host holds still for some moments", || {
        let before = told();
        let reading = read(gauges, gauge);
        if before == told() {
            seen.push((before, (reading.used, reading.limit)));
        }
        seen.len() == 20
    });
    let agreeing = seen.iter().filter(|(told, read)| told == read);
    assert!(agreeing.count() > 10, "{gauge}: {seen:?}");
}

fn words(path: &str) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    text.split_whitespace().map(str::to_owned).collect()
}

fn meminfo(key: &str) -> u64 {
    let words = words("/proc/meminfo");
    let at = words.iter().position(|word| word == key).unwrap();
    words[at + 1].parse::<u64>().unwrap() << 10
}

#[test]
fn host_gauges_agree_with_the_kernel() {
    let directory = TemporaryDirectory::new();
    let mut gauges = gauges(directory.path(), GaugeSettings::default());
    agrees(&mut gauges, Gauge::PidsHost, || {
        let all = words("/proc/loadavg")[3].split_once('/').unwrap().1.to_owned();
        let limits = ["pid_max", "threads-max"];
        let limits = limits.map(|it| number(format!("/proc/sys/kernel/{it}")));
        (all.parse().unwrap(), limits[0].min(limits[1]))
    });
    agrees(&mut gauges, Gauge::MemoryHost, || {
        let total = meminfo("MemTotal:");
        (total - meminfo("MemAvailable:"), total)
    });
    agrees(&mut gauges, Gauge::Scratch, || {
        let shared = meminfo("Shmem:");
        (shared, shared + meminfo("MemAvailable:"))
    });
    let file_max = number("/proc/sys/fs/file-max");
    // It counts itself, so it is open all the time.
    let file_nr = File::open("/proc/sys/fs/file-nr").unwrap();
    if file_max < i64::MAX.unsigned_abs() {
        agrees(&mut gauges, Gauge::DescriptorsHost, || {
            let mut text = [0; 100];
            let length = file_nr.read_at(&mut text, 0).unwrap();
            let text = str::from_utf8(&text[..length]).unwrap();
            let allocated = text.split_whitespace().next().unwrap();
            (allocated.parse().unwrap(), file_max)
        });
    }
}

#[test]
fn pressure_is_measured_where_the_kernel_keeps_account_of_it() {
    let directory = TemporaryDirectory::new();
    let mut gauges = gauges(directory.path(), GaugeSettings::default());
    gauges.measure();
    let is_kept = fs::read_to_string("/proc/pressure/memory").is_ok();
    let reading = reading_of(&gauges, Gauge::MemoryPressureHost);
    assert_eq!(reading.is_some(), is_kept);
}

#[test]
fn boxes_are_counted_against_their_maximum_and_only_if_there_is_one() {
    let directory = TemporaryDirectory::new();
    let settings = GaugeSettings { boxes_max: Some(20), ..GaugeSettings::default() };
    let mut gauges = gauges(directory.path(), settings);
    assert_eq!(read(&mut gauges, Gauge::Boxes).used, 0);
    let record = |number: u64| directory.join(format!("state/boxes/b{number}"));
    (0..19).for_each(|it| fs::create_dir(record(it)).unwrap());
    assert_eq!(read(&mut gauges, Gauge::Boxes).used, 19);
    assert_eq!(full_gauges(&gauges), [], "there is room for one more");
    fs::create_dir(record(19)).unwrap();
    let reading = read(&mut gauges, Gauge::Boxes);
    assert_eq!((reading.used, reading.limit), (20, 20));
    assert_eq!(full_gauges(&gauges), [Gauge::Boxes]);
    (0..20).for_each(|it| fs::remove_dir(record(it)).unwrap());
    assert_eq!(read(&mut gauges, Gauge::Boxes).used, 0);
    assert_eq!(full_gauges(&gauges), []);
    let engine = Engine::open(Some(directory.join("state")), Purpose::Use).unwrap();
    let mut gauges = engine.gauges(GaugeSettings::default()).unwrap();
    gauges.measure();
    assert_eq!(reading_of(&gauges, Gauge::Boxes), None);
}
