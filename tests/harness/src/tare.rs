//! The program under test, with its own state root and a snapshot of the host before it.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::orphans;
use crate::running::{Output, Running, with_pipes};
use crate::skip::is_root;
use crate::snapshot::Snapshot;
use crate::temporary::{TemporaryDirectory, own_prefix, set_mode};
use crate::terminal::{TerminalSize, UnderTerminal};

/// A user and group without files, processes and sub-ids. It is not `nobody`, whose number the
/// kernel uses for ids that it cannot map.
const UNPRIVILEGED_ID: u32 = 65533;

/// The names that tare keeps in a state root without boxes. `histories` contains the histories
/// of removed boxes.
const FIXED_NAMES: [&str; 5] = ["boxes", "names", PARENTS, CLAIMS, HISTORIES];
const HISTORIES: &str = "histories";
/// A link for each cgroup below which there may be boxes.
const PARENTS: &str = "parents";
/// At most sixteen empty files.
const CLAIMS: &str = "claims";

/// The user that runs the program under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caller {
    Ourselves,
    Unprivileged,
}

#[derive(Debug)]
pub struct Tare {
    program: PathBuf,
    caller: Caller,
    before: Snapshot,
    home: Option<TemporaryDirectory>,
    /// Whether the test created detached boxes.
    lasting: AtomicBool,
}

impl Tare {
    /// Takes the snapshot and creates the state root.
    pub fn start(program: impl AsRef<Path>) -> Self {
        Self::start_as(Caller::Ourselves, program.as_ref())
    }

    /// Starts as a user without privileges. If the test has no privileges itself, it stays its own
    /// user.
    pub fn start_unprivileged(program: impl AsRef<Path>) -> Self {
        let caller = if is_root() { Caller::Unprivileged } else { Caller::Ourselves };
        Self::start_as(caller, program.as_ref())
    }

    fn start_as(caller: Caller, program: &Path) -> Self {
        orphans::adopt();
        // The state root is created after the snapshot, so everything in it counts.
        let before = Snapshot::take(&[]);
        let home = TemporaryDirectory::new();
        let state_root = home.join("state");
        fs::create_dir(&state_root).expect("a fresh directory takes a name");
        set_mode(&state_root, 0o700);
        let program = match caller {
            Caller::Ourselves => program.to_owned(),
            Caller::Unprivileged => reachable_copy(program, &home, &state_root),
        };
        Self { program, caller, before, home: Some(home), lasting: AtomicBool::new(false) }
    }

    pub fn program(&self) -> &Path {
        &self.program
    }

    pub fn state_root(&self) -> PathBuf {
        self.home().join("state")
    }

    /// The command `tare ARGS`, not started, for tests that change it.
    pub fn command<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args);
        self.dress(command)
    }

    /// Runs `sh -c SCRIPT` with the program under test as `$TARE`, for tests that need redirections of
    /// a shell.
    #[track_caller]
    pub fn shell(&self, script: &str) -> Output {
        Running::start(with_pipes(self.shell_command(script), Stdio::null())).wait()
    }

    /// The command of [`Tare::shell`], not started.
    pub fn shell_command(&self, script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]).env("TARE", &self.program);
        self.dress(command)
    }

    /// Runs `tare ARGS`.
    #[track_caller]
    pub fn call<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Output {
        Running::start(with_pipes(self.command(args), Stdio::null())).wait()
    }

    /// Runs `tare run ARGS` with an empty standard input.
    #[track_caller]
    pub fn run<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Output {
        Running::start(with_pipes(self.run_command(args), Stdio::null())).wait()
    }

    /// Runs `tare run ARGS` with these bytes as standard input.
    #[track_caller]
    pub fn with_stdin<A: AsRef<OsStr>>(
        &self,
        bytes: impl Into<Vec<u8>>,
        args: impl IntoIterator<Item = A>,
    ) -> Output {
        let mut running = self.spawn(args);
        running.feed(bytes.into());
        running.wait()
    }

    /// Starts `tare run ARGS` with pipes, and does not wait.
    #[track_caller]
    pub fn spawn<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Running {
        Running::start(with_pipes(self.run_command(args), Stdio::piped()))
    }

    /// Starts a command of [`Self::command`] with the streams that it has.
    #[track_caller]
    pub fn start_command(&self, command: Command) -> Running {
        Running::start(command)
    }

    /// Starts `tare run ARGS` under a terminal.
    #[track_caller]
    pub fn under_terminal<A: AsRef<OsStr>>(
        &self,
        size: TerminalSize,
        args: impl IntoIterator<Item = A>,
    ) -> UnderTerminal {
        UnderTerminal::start(&self.run_command(args), size)
    }

    /// The differences from before, now. Temporary directories of the running test and the fixed
    /// names of the state root do not count. Neither do zombies of keepers that outlived their
    /// creator: they are children of the test, and only the test can reap them.
    pub fn difference_now(&self) -> Vec<String> {
        if self.is_lasting() {
            orphans::reap();
        }
        self.before.unexpected_difference_now(|line| self.is_expected(line))
    }

    /// Checks that the host is as before now.
    #[track_caller]
    pub fn nothing_left(&self) {
        let left = self.difference_now();
        assert!(left.is_empty(), "left:\n{}", left.join("\n"));
    }

    /// Reaps keepers whose tare was killed. They are children of the test.
    pub fn reap_orphans(&self) {
        orphans::reap();
    }

    /// Ends the test. Dropping the value does the same.
    pub fn finish(self) {}

    /// Allows boxes to outlive the call that created them. At the end of the test, none may be listed.
    pub(crate) fn expect_lasting_boxes(&self) {
        self.lasting.store(true, Ordering::Relaxed);
    }

    fn is_lasting(&self) -> bool {
        self.lasting.load(Ordering::Relaxed)
    }

    fn run_command<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let mut command = self.command(["run"]);
        command.args(args);
        command
    }

    fn dress(&self, mut command: Command) -> Command {
        command.env("TARE_STATE_ROOT", self.state_root());
        if self.caller == Caller::Unprivileged {
            // std drops the supplementary groups when it changes the user.
            command.uid(UNPRIVILEGED_ID).gid(UNPRIVILEGED_ID);
            command.current_dir("/");
        }
        command
    }

    fn home(&self) -> &TemporaryDirectory {
        self.home.as_ref().expect("it is there until the end")
    }

    fn is_expected(&self, line: &str) -> bool {
        let path = line.trim_start_matches("new: directory ").trim_start_matches("new: file ");
        match Path::new(path).strip_prefix(self.state_root()) {
            Ok(inside) => inside == "" || is_fixed(inside),
            Err(_) => path.starts_with(&own_prefix()),
        }
    }

    /// Cleans up after a failed test, as well as possible: removes its boxes, and kills their
    /// keepers if that fails.
    pub fn sweep(&self) {
        if self.is_lasting() {
            self.try_call(&["rm", "-f", "--all"]);
            orphans::kill();
        }
        self.try_call(&["run", "--quiet", "--", "true"]);
    }

    /// Runs tare under `timeout` (coreutils), so that a tare that hangs does not block the clean-up.
    fn try_call(&self, args: &[&str]) {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=1", "30"]).arg(&self.program);
        let mut command = self.dress(command);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let _ = command.status();
    }
}

impl Drop for Tare {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.sweep();
            return orphans::reap();
        }
        if self.is_lasting() {
            self.assert_no_box_is_listed();
        }
        let left = self.difference_now();
        assert!(left.is_empty(), "the host is not as before:\n{}", left.join("\n"));
        self.home = None;
        let left = self.before.difference_now();
        assert!(left.is_empty(), "the test itself left:\n{}", left.join("\n"));
    }
}

/// Copies the program, because the unprivileged user may not be able to reach the build directory.
fn reachable_copy(program: &Path, home: &TemporaryDirectory, state_root: &Path) -> PathBuf {
    let copy = home.join("tare");
    fs::copy(program, &copy)
        .unwrap_or_else(|error| panic!("cannot copy {}: {error}", program.display()));
    set_mode(&copy, 0o755);
    chown(state_root, Some(UNPRIVILEGED_ID), Some(UNPRIVILEGED_ID))
        .expect("root can give a directory away");
    copy
}

/// Whether the path is one of the fixed names of a state root, or below `claims`, `parents`
/// or `histories`.
fn is_fixed(inside: &Path) -> bool {
    let is_below = |name: &str| inside.parent() == Some(Path::new(name));
    is_below(CLAIMS)
        || is_below(PARENTS)
        || is_below(HISTORIES)
        || FIXED_NAMES.iter().any(|name| inside == *name)
}
