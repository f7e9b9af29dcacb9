//! Starts commands, and ends them as a supervisor or a crash would.
//!
//! The output of a command goes to a file: with a pipe, the soak would wait for every process
//! that the command left behind.

use crate::bench::launch::Launch;
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};
use tare_kernel::process::Process;

/// How long a crash waits for its victim to exist.
const BIRTH_WAIT_MAX: Duration = Duration::from_millis(200);
const BIRTH_PAUSE: Duration = Duration::from_micros(300);

/// A command that takes longer hangs.
const COMMAND_MAX: Duration = Duration::from_secs(60);

/// The process to kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    /// The process that we started.
    Itself,
    /// Its child: tare's keeper, bwrap's inner half.
    Child,
}

/// Runs commands, one at a time.
#[derive(Debug)]
pub struct Caller {
    said: PathBuf,
}

impl Caller {
    pub fn new(said: PathBuf) -> Self {
        Self { said }
    }

    /// Runs a command until it ends. One that hangs is killed, and that is an error.
    pub fn run(&self, launch: &Launch) -> io::Result<ExitStatus> {
        let mut child = self.spawn(launch)?;
        if self.outlasts(&child, COMMAND_MAX)? {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::other(format!("no end after {COMMAND_MAX:?}")));
        }
        child.wait()
    }

    /// Runs a command as a naive supervisor does: after `bound`, the pid that it knows gets
    /// SIGKILL.
    pub fn run_for(&self, launch: &Launch, bound: Duration) -> io::Result<ExitStatus> {
        let mut child = self.spawn(launch)?;
        if self.outlasts(&child, bound)? {
            child.kill()?;
        }
        child.wait()
    }

    /// Kills the victim some time after the start, then waits for the end of the command.
    pub fn crash(&self, launch: &Launch, after: Duration, victim: Victim) -> io::Result<()> {
        let mut child = self.spawn(launch)?;
        #[expect(clippy::disallowed_methods, reason = "the moment of the kill is the input")]
        std::thread::sleep(after);
        match victim {
            Victim::Itself => child.kill()?,
            Victim::Child => self.kill_child_of(&child)?,
        }
        if self.outlasts(&child, COMMAND_MAX)? {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::other(format!(
                "no end {COMMAND_MAX:?} after its {victim:?} was killed"
            )));
        }
        child.wait()?;
        Ok(())
    }

    /// The output of the last command.
    pub fn said(&self) -> String {
        fs::read_to_string(&self.said).unwrap_or_default()
    }

    fn spawn(&self, launch: &Launch) -> io::Result<Child> {
        let said = File::create(&self.said)?;
        let mut command = launch.command();
        command.stdout(said.try_clone()?).stderr(said);
        command.spawn()
    }

    fn outlasts(&self, child: &Child, bound: Duration) -> io::Result<bool> {
        Ok(!Process::open(child.id().cast_signed())?.wait_dead(bound)?)
    }

    /// Kills the first child of a process as soon as it has one, unless the process ends before.
    fn kill_child_of(&self, parent: &Child) -> io::Result<()> {
        let process = Process::open(parent.id().cast_signed())?;
        let start = Instant::now();
        while start.elapsed() < BIRTH_WAIT_MAX && !process.wait_dead(BIRTH_PAUSE)? {
            let Some(pid) = first_child(parent.id()) else {
                continue;
            };
            // It is still a child after it was opened, so the pid was not reused.
            let found = Process::open(pid).ok();
            if let Some(child) = found.filter(|_| first_child(parent.id()) == Some(pid)) {
                // It may have ended by itself just now.
                let _ = child.kill();
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Reads the first child of a process (proc_pid_children(5)). `None` if the kernel has no such file.
pub fn first_child(pid: u32) -> Option<i32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    fn caller(test: &str) -> Caller {
        let name = format!("xtask-{test}-{}", std::process::id());
        Caller::new(std::env::temp_dir().join(name))
    }

    fn done(caller: &Caller) {
        fs::remove_file(&caller.said).unwrap();
    }

    fn shell(script: &str) -> Launch {
        Launch::new(["/bin/sh", "-c", script])
    }

    /// A lock for which the child of a shell waits. So the child outlives the shell, but not the test.
    struct Lock {
        path: PathBuf,
        held: File,
    }

    impl Lock {
        fn hold(caller: &Caller) -> Self {
            let path = caller.said.with_extension("lock");
            let held = File::create(&path).unwrap();
            held.lock().unwrap();
            Self { path, held }
        }

        /// The command that waits. The shell opens the file before it starts the child.
        fn wait(&self) -> String {
            format!("exec 9< '{}'; flock 9", self.path.display())
        }

        fn release(self) {
            drop(self.held);
            fs::remove_file(self.path).unwrap();
        }
    }

    #[test]
    fn what_a_command_says_can_be_quoted() {
        let caller = caller("quote");
        let status = caller.run(&shell("echo no more pids >&2; exit 3")).unwrap();
        assert_eq!((status.code(), &*caller.said()), (Some(3), "no more pids\n"));
        done(&caller);
    }

    #[test]
    fn a_naive_timeout_kills_the_pid_and_waits_for_it_alone() {
        let caller = caller("naive");
        let lock = Lock::hold(&caller);
        let bound = Duration::from_millis(20);
        let script = shell(&format!("{} & wait", lock.wait()));
        let status = caller.run_for(&script, bound).unwrap();
        assert_eq!(status.signal(), Some(9));
        lock.release();
        let status = caller.run_for(&shell("exit 4"), Duration::from_secs(9)).unwrap();
        assert_eq!(status.code(), Some(4));
        done(&caller);
    }

    #[test]
    fn a_crash_reaches_the_child_and_tolerates_that_there_is_none() {
        let caller = caller("crash");
        let lock = Lock::hold(&caller);
        let parent = shell(&format!("{}; exit 0", lock.wait()));
        caller.crash(&parent, Duration::ZERO, Victim::Child).unwrap();
        caller.crash(&Launch::new(["/bin/true"]), Duration::from_millis(9), Victim::Child).unwrap();
        caller.crash(&parent, Duration::ZERO, Victim::Itself).unwrap();
        lock.release();
        done(&caller);
    }
}
