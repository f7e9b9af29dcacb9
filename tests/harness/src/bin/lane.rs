//! Runs one test on a host of its own: `unshare ... lane PROGRAM ARGS` (`tests/in-lane`).
//!
//! `unshare` creates the PID, mount, network, IPC and UTS namespaces and starts this
//! program as their first process. The leak oracle inside the lane sees these
//! namespaces as "the host": `/proc`, `/tmp`, `/run`, `/dev/shm`, the ports and one
//! part of every cgroup hierarchy belong to the lane, so parallel tests cannot see
//! each other. After the test, the lane fails it if any process or any cgroup of tare is
//! left, also for tests that do not use the oracle. When the lane ends, the kernel ends
//! the rest.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, unlinkat};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, unmount};
use rustix::process::{WaitOptions, wait};
use tare_harness::{hierarchies, processes};

/// How long killed processes may take to die after the test has returned.
const LEFT_AFTER: Duration = Duration::from_secs(5);

type Result<T> = std::result::Result<T, String>;

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "lane: {why}");
            ExitCode::from(125)
        }
    }
}

fn run() -> Result<ExitCode> {
    // Outside a PID namespace, the code below would change the host itself.
    if std::process::id() != 1 {
        return Err("not the first process of a PID namespace: use tests/in-lane".into());
    }
    let started = Instant::now();
    let mut args = std::env::args_os().skip(1);
    let program = args.next().ok_or("name the program to run")?;
    let directory = PathBuf::from(std::env::var_os("TARE_LANES").ok_or("TARE_LANES is not set")?);
    let name = lane_name();
    let cgroups = OwnCgroups::bind(&name)?;
    let directory = directory.join(&name);
    own_directories(&directory)?;
    switch_loopback_on()?;
    let mut test = Command::new(program);
    test.args(args).process_group(0);
    let status = run_and_reap(test)?;
    let left = left_behind(&cgroups.roots);
    cgroups.remove();
    note_costs(started.elapsed(), status);
    // It is the lane's /tmp, and empty unless the test failed.
    let _ = fs::remove_dir(&directory);
    match (status.code(), status.signal()) {
        (Some(0), _) if !left.is_empty() => Err(format!("left behind:\n{}", left.join("\n"))),
        (Some(code), _) => Ok(ExitCode::from(u8::try_from(code).unwrap_or(1))),
        (None, signal) => Err(format!("the test died of signal {signal:?}")),
    }
}

/// A name that no other lane on this machine has: several runs may share the machine.
/// `in-lane` passes its own pid of the host, which no other living process has.
fn lane_name() -> String {
    let host_pid = std::env::var("TARE_LANE_PID").unwrap_or_else(|_| "0".into());
    format!("lane-{host_pid}")
}

fn switch_loopback_on() -> Result<()> {
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
    if up.is_ok_and(|status| status.success()) {
        Ok(())
    } else {
        Err("cannot switch the loopback device on".into())
    }
}

/// Starts the test and waits for it. As the first process, the lane also reaps every
/// orphan.
fn run_and_reap(mut test: Command) -> Result<ExitStatus> {
    let test = test.spawn();
    let test = test.map_err(|error| format!("cannot start the test: {error}"))?;
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get().unsigned_abs() == test.id() => {
                return Ok(ExitStatus::from_raw(status.as_raw()));
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(format!("cannot wait: {error}")),
        }
    }
}

/// The lane's own cgroup in each hierarchy. No process is moved into it: that costs 7 ms
/// each.
struct OwnCgroups {
    name: String,
    roots: Vec<PathBuf>,
    /// The roots before they were covered, to remove the lane's cgroups at the end.
    covered: Vec<File>,
}

impl OwnCgroups {
    /// Bind-mounts the lane's own cgroup over the root of each hierarchy.
    fn bind(name: &str) -> Result<Self> {
        let mut own = Self { name: name.to_owned(), roots: hierarchies(), covered: Vec::new() };
        for root in &own.roots {
            let failed = |error| format!("no own cgroup in {}: {error}", root.display());
            own.covered.push(File::open(root).map_err(failed)?);
            make_cgroup(root, name).map_err(failed)?;
            mount_bind(root.join(name), root).map_err(|error| failed(error.into()))?;
        }
        Ok(own)
    }

    /// Removes the cgroups. One that a failed test still populates stays until the lane's
    /// processes have died; `./check` removes it then.
    fn remove(&self) {
        for (root, covered) in self.roots.iter().zip(&self.covered) {
            remove_below(root);
            let _ = unlinkat(covered, &self.name, AtFlags::REMOVEDIR);
        }
    }
}

fn make_cgroup(root: &Path, name: &str) -> std::io::Result<()> {
    // cgroup v2 gives children only the enabled controllers; v1 has no such file.
    for controller in ["+memory", "+pids", "+cpu"] {
        let _ = fs::write(root.join("cgroup.subtree_control"), controller);
    }
    let own = root.join(name);
    if own.is_dir() {
        remove_below(&own);
    } else {
        fs::create_dir(&own)?;
    }
    // A new cgroup of the v1 controller cpuset accepts no process until both are set.
    if root.ends_with("cpuset") {
        for file in ["cpuset.cpus", "cpuset.mems"] {
            fs::write(own.join(file), fs::read(root.join(file))?)?;
        }
    }
    Ok(())
}

/// Removes every cgroup below `directory`, the deepest first. Ignores failures.
fn remove_below(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_below(&entry.path());
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Gives the lane an empty `/tmp`, `/run` and `/dev/shm`, where tests and tare write.
fn own_directories(lane: &Path) -> Result<()> {
    forget_foreign_mounts();
    let _ = fs::remove_dir_all(lane);
    let made = fs::create_dir_all(lane)
        .and_then(|()| fs::set_permissions(lane, fs::Permissions::from_mode(0o1777)));
    made.map_err(|error| format!("cannot make {}: {error}", lane.display()))?;
    show_source_tree_in(lane)?;
    bind_all(lane, Path::new("/tmp"))?;
    for (place, options) in [("/run", c"mode=755"), ("/dev/shm", c"mode=1777")] {
        mount("lane", place, "tmpfs", MountFlags::empty(), options)
            .map_err(|error| format!("cannot mount {place}: {error}"))?;
    }
    Ok(())
}

/// Unmounts foreign mounts below `/tmp` and `/run`, where the lane mounts its own
/// directories. If another process removed the directory of such a mount, the kernel
/// would unmount it in the middle of a test.
fn forget_foreign_mounts() {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    let foreign = points.filter(|point| ["/tmp/", "/run/"].iter().any(|it| point.starts_with(it)));
    // Reverse order: the last mount is on top.
    for point in foreign.collect::<Vec<_>>().into_iter().rev() {
        let _ = unmount(point, UnmountFlags::DETACH);
    }
}

/// If the source tree is in `/tmp`, keeps it visible in the lane's `/tmp`.
fn show_source_tree_in(lane: &Path) -> Result<()> {
    let here = std::env::current_dir().map_err(|error| error.to_string())?;
    let Some(first) = here.strip_prefix("/tmp").ok().and_then(|it| it.iter().next()) else {
        return Ok(());
    };
    let inside = lane.join(first);
    fs::create_dir(&inside).map_err(|error| error.to_string())?;
    bind_all(&Path::new("/tmp").join(first), &inside)
}

fn bind_all(from: &Path, to: &Path) -> Result<()> {
    let failed = |error| format!("cannot bind {} to {}: {error}", from.display(), to.display());
    mount_bind_recursive(from, to).map_err(failed)
}

/// Lists the processes that are still alive, except this one, and the cgroups of tare.
/// The oracle, inside the test, checks what tare may leave and for how long. This
/// function checks what the test itself started, so it gives killed processes a moment
/// to die.
fn left_behind(roots: &[PathBuf]) -> Vec<String> {
    let entries = roots.iter().flat_map(fs::read_dir).flatten().flatten();
    let of_tare = entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"tare"));
    let cgroups = of_tare.map(|entry| format!("cgroup {}", entry.path().display()));
    processes_left().into_iter().chain(cgroups).collect()
}

fn processes_left() -> Vec<String> {
    let deadline = Instant::now() + LEFT_AFTER;
    loop {
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        let others = processes().into_iter().filter(|one| one.pid != 1);
        let left = others.map(|one| format!("process {} ({})", one.pid, one.name));
        let left: Vec<String> = left.collect();
        if left.is_empty() || Instant::now() > deadline {
            return left;
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "bounded by the deadline; no event reports the death of a foreign process"
        )]
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Appends one line to the file that `TARE_LANE_COSTS` names: wall seconds, seconds of
/// user and system time of the test and everything it started, exit code, test.
fn note_costs(wall: Duration, status: ExitStatus) {
    let Some(file) = std::env::var_os("TARE_LANE_COSTS") else {
        return;
    };
    // Children that were waited for count for their parent (proc_pid_stat(5), 16 and 17).
    let stat = fs::read_to_string("/proc/1/stat").unwrap_or_default();
    let (_, fields) = stat.rsplit_once(") ").unwrap_or_default();
    let fields: Vec<&str> = fields.split(' ').collect();
    let seconds = |at: usize| fields.get(at).and_then(|it| it.parse().ok()).unwrap_or(0.0) / 100.0;
    let name = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
    let (wall, user, system, code) = (wall.as_secs_f64(), seconds(13), seconds(14), status.code());
    let line = format!("{wall:.3} {user:.2} {system:.2} {} {name}\n", code.unwrap_or(-1));
    let file = fs::OpenOptions::new().append(true).create(true).open(file);
    let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
}
