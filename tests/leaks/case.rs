//! How every case begins and ends, and how often it repeats.

use std::fs;
use std::ops::Deref;
use std::path::Path;
use std::process::{Command, Stdio};

use tare_harness::skip::is_root;
use tare_harness::{Output, Running, Tare, eventually, tare, unified_hierarchy};

/// Set, a case repeats itself as often as the catalogue asks for.
const WHOLE: &str = "TARE_LONG";

/// A tare that is to leave nothing: when this is dropped, the host is as before.
pub struct Case(Tare);

pub fn case() -> Case {
    Case::of(tare!())
}

impl Case {
    pub fn of(tare: Tare) -> Self {
        Self(tare)
    }

    /// A box that runs this script and has said `up`.
    #[track_caller]
    pub fn up(&self, options: &[&str], script: &str) -> String {
        let id = self.detached(options.iter().chain(&["--", "sh", "-c", script]));
        eventually("the script is up", || {
            let log = self.call(["logs", &id]).ok().stdout_text();
            log.lines().any(|line| line == "up")
        });
        id
    }

    /// A command made here, all streams pipes, not waited for.
    #[track_caller]
    pub fn start_piped(&self, mut command: Command) -> Running {
        command.stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        self.start_command(command)
    }

    /// A script for `--contain` that creates nested cgroups, moves a process into the deepest, and
    /// prints `up`; `None` if boxes cannot do that here.
    pub fn nested_cgroups(&self) -> Option<String> {
        let (point, _) = unified_hierarchy().filter(|_| is_root())?;
        // The cgroup in which the kernel says we are, whatever it is called.
        Some(format!(
            "own=$(dirname \"$(grep -rlx $$ --include=cgroup.procs {point})\")
             mkdir -p $own/a/b/c $own/d
             sh -c 'trap \"\" TERM; echo 0 > $0/a/b/c/cgroup.procs && echo up && exec sleep 1000' $own &
             wait"
        ))
    }

    /// Checks that the box has no process and no cgroup, without running another tare command.
    #[track_caller]
    pub fn assert_over(&self, id: &str) {
        let processes = self.processes_in(id);
        assert!(processes.is_empty(), "box {id} has {processes:?}");
        assert_eq!(self.cgroups_of(id), [] as [&Path; 0]);
    }
}

/// The end of every case: the host is as before, which the harness sees, and tare says
/// so itself.
impl Drop for Case {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.reap_orphans();
            self.call(["audit"]).ok();
        }
    }
}

impl Deref for Case {
    type Target = Tare;

    fn deref(&self) -> &Tare {
        &self.0
    }
}

/// How often a case repeats itself here, and in the whole.
pub fn times(here: usize, whole: usize) -> usize {
    match std::env::var_os(WHOLE) {
        Some(_) => whole,
        None => here,
    }
}

/// How many entries a directory has, as of `/proc/self/fd`.
pub fn entries(directory: &str) -> usize {
    let entries = fs::read_dir(directory);
    entries.unwrap_or_else(|error| panic!("cannot list {directory}: {error}")).count()
}

/// `tare ARGS` under strace with these options. It ends as tare does.
#[track_caller]
pub fn traced(case: &Case, options: &[&str], args: &[&str]) -> Output {
    let mut command = case.shell_command("exec strace -o /dev/null \"$@\"");
    command.arg("sh").args(options).arg("--");
    command.arg(case.program()).args(args);
    case.start_piped(command).wait()
}
