//! tare as the subject: its command line, on the state root of the lane.

use super::commands::{Caller, Victim};
use super::mix::{BOMB, Exec, GREEDY, Job, Purpose, SHORT, STUBBORN};
use super::subject::{Subject, Surprise};
use crate::bench::launch::Launch;
use crate::bench::setup::tare;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;
use tare_kernel::process::Process;

/// Boxes that live throughout the soak: the memory and descriptors of their keepers could grow.
const RESIDENTS: u64 = 4;

/// Limits that are reached within milliseconds.
const MEMORY: &str = "16m";
const PIDS: &str = "24";

const TIMED_OUT: i32 = 124;
const TARE_FAILED: i32 = 125;
const KILLED: i32 = 137;
/// The exit code of `rm` and others if there is no such box.
const NO_SUCH_BOX: i32 = 1;

/// The longest time that the kernel took to free something late.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct TareSubject {
    binary: PathBuf,
    state: PathBuf,
}

impl TareSubject {
    pub fn new(binary: PathBuf, state: PathBuf) -> Self {
        Self { binary, state }
    }

    pub fn launch(&self, words: &[&str]) -> Launch {
        tare(&self.binary, &self.state, words)
    }

    /// Runs a command and checks its exit code.
    fn expect(
        &self,
        caller: &Caller,
        words: &[&str],
        expected: impl Fn(i32) -> bool,
    ) -> Result<(), Surprise> {
        match caller.run(&self.launch(words)) {
            Ok(status) if status.code().is_some_and(expected) => Ok(()),
            Ok(status) => Err(surprise(words, &status.to_string(), &caller.said())),
            Err(error) => Err(surprise(words, &error.to_string(), &caller.said())),
        }
    }

    fn crash(
        &self,
        caller: &Caller,
        words: &[&str],
        after: Duration,
        victim: Victim,
    ) -> Result<(), Surprise> {
        let crashed = caller.crash(&self.launch(words), after, victim);
        crashed.map_err(|error| surprise(words, &error.to_string(), &caller.said()))
    }

    fn short(&self, job: &mut Job, caller: &Caller) -> Result<(), Surprise> {
        let (command, code) = SHORT[job.pick(SHORT.len())];
        self.expect(caller, &[&["run", "--"], command].concat(), |it| it == code)
    }

    fn timed_out(&self, job: &mut Job, caller: &Caller) -> Result<(), Surprise> {
        let timeout = milliseconds(job.timeout());
        let words = ["run", "--timeout", &timeout, "--", "sh", "-c", STUBBORN];
        self.expect(caller, &words, |it| it == TIMED_OUT)
    }

    fn out_of_memory(&self, caller: &Caller) -> Result<(), Surprise> {
        let words = [&["run", "--memory", MEMORY, "--"], &GREEDY[..]].concat();
        self.expect(caller, &words, |it| it == KILLED)
    }

    /// The box may also end because its shell cannot start the sleeper.
    fn fork_bomb(&self, job: &mut Job, caller: &Caller) -> Result<(), Surprise> {
        let timeout = milliseconds(job.timeout());
        let words = ["run", "--pids", PIDS, "--timeout", &timeout, "--", "sh", "-c", BOMB];
        self.expect(caller, &words, |it| it != TARE_FAILED)
    }

    fn killed(&self, job: &mut Job, caller: &Caller, victim: Victim) -> Result<(), Surprise> {
        let words = ["run", "--", "sh", "-c", STUBBORN];
        self.crash(caller, &words, job.crash_moment(), victim)
    }

    /// Runs a detached box, two execs in it, and one of the commands that end it. Kills the step
    /// with the number `killed`. Nothing may be left after the box was removed.
    fn detached(
        &self,
        job: &mut Job,
        caller: &Caller,
        killed: Option<usize>,
    ) -> Result<u64, Surprise> {
        let name = format!("box-{}", job.number);
        let timeout = milliseconds(job.timeout());
        let run: &[&str] = match job.pick(2) {
            0 => &["run", "-d", "--name", &name, "--", "sh", "-c", STUBBORN],
            _ => &["run", "-d", "--rm", "--name", &name, "--", "sh", "-c", STUBBORN],
        };
        let end: &[&str] = match job.pick(3) {
            0 => &["stop", "-t", "10ms", &name],
            1 => &["kill", &name],
            _ => &["rm", "-f", &name],
        };
        let steps: [(&[&str], i32); 4] = [
            (run, 0),
            (&["exec", &name, "--", "true"], 0),
            (&["exec", "--timeout", &timeout, &name, "--", "sh", "-c", STUBBORN], TIMED_OUT),
            (end, 0),
        ];
        let mut id = String::new();
        for (index, (words, code)) in steps.into_iter().enumerate() {
            match killed {
                // A step after the killed one may find no box.
                Some(at) if at < index => self.expect(caller, words, |_| true)?,
                Some(at) if at == index => self.kill_at_step(job, caller, words, &id)?,
                Some(_) | None => self.expect(caller, words, |it| it == code)?,
            }
            if index == 0 {
                id = caller.said().trim().to_owned();
            }
        }
        self.expect(caller, &["rm", "-f", &name], |it| it == 0 || it == NO_SUCH_BOX)?;
        Ok(2)
    }

    /// Kills the command, or the keeper of a box that exists.
    fn kill_at_step(
        &self,
        job: &mut Job,
        caller: &Caller,
        words: &[&str],
        id: &str,
    ) -> Result<(), Surprise> {
        let moment = job.crash_moment();
        match (job.pick(2), keeper_of(id)) {
            (0, Some(keeper)) => {
                // It may be ending by itself.
                let _ = keeper.kill();
                Ok(())
            }
            (_, None) if id.is_empty() && job.pick(2) == 0 => {
                self.crash(caller, words, moment, Victim::Child)
            }
            (_, _) => self.crash(caller, words, moment, Victim::Itself),
        }
    }

    fn forgotten(&self, job: &mut Job, caller: &Caller) -> Result<(), Surprise> {
        let lease = milliseconds(job.timeout());
        let words = ["run", "-d", "--rm", "--lease", &lease, "--", "sh", "-c", STUBBORN];
        self.expect(caller, &words, |it| it == 0)
    }

    fn exec(&self, kind: Exec, job: &mut Job, caller: &Caller) -> Result<(), Surprise> {
        let name = resident(job.pick(RESIDENTS as usize) as u64);
        let timeout = milliseconds(job.timeout());
        let words = ["exec", &name, "--", "sh", "-c", STUBBORN];
        match kind {
            Exec::Short => self.expect(caller, &["exec", &name, "--", "true"], |it| it == 0),
            Exec::TimedOut => {
                let words = [&["exec", "--timeout", &timeout][..], &words[1..]].concat();
                self.expect(caller, &words, |it| it == TIMED_OUT)
            }
            Exec::CommandKilled => self.crash(caller, &words, job.crash_moment(), Victim::Itself),
        }
    }
}

impl Subject for TareSubject {
    fn make_ready(&self, caller: &Caller) -> Result<(), Surprise> {
        let name = resident(0);
        for words in [&["run", "-d", "--name", &name, "--", "true"][..], &["rm", "-f", &name]] {
            self.expect(caller, words, |it| it == 0)?;
        }
        Ok(())
    }

    fn start_residents(&mut self, caller: &Caller) -> Result<(), Surprise> {
        for number in 0..RESIDENTS {
            let name = resident(number);
            let words = ["run", "-d", "--name", &name, "--", "sleep", "1000000"];
            self.expect(caller, &words, |it| it == 0)?;
        }
        Ok(())
    }

    fn live(&self, mut job: Job, caller: &Caller) -> Result<u64, Surprise> {
        let execs = match job.purpose {
            Purpose::Short => self.short(&mut job, caller).map(|()| 0),
            Purpose::TimedOut => self.timed_out(&mut job, caller).map(|()| 0),
            Purpose::OutOfMemory => self.out_of_memory(caller).map(|()| 0),
            Purpose::ForkBomb => self.fork_bomb(&mut job, caller).map(|()| 0),
            Purpose::CommandKilled => self.killed(&mut job, caller, Victim::Itself).map(|()| 0),
            Purpose::KeeperKilled => self.killed(&mut job, caller, Victim::Child).map(|()| 0),
            Purpose::Detached => self.detached(&mut job, caller, None),
            Purpose::DetachedKilled => {
                let step = job.pick(4);
                self.detached(&mut job, caller, Some(step))
            }
            Purpose::Forgotten => self.forgotten(&mut job, caller).map(|()| 0),
        }?;
        match job.exec {
            None => Ok(execs),
            Some(kind) => self.exec(kind, &mut job, caller).map(|()| execs + 1),
        }
    }

    fn next_command(&self, caller: &Caller) -> Result<Option<u64>, Surprise> {
        self.expect(caller, &["ls", "-a", "-q"], |it| it == 0)?;
        Ok(Some(caller.said().lines().count() as u64))
    }

    fn end_residents(&mut self, caller: &Caller) -> Result<(), Surprise> {
        self.expect(caller, &["rm", "-f", "--all"], |it| it == 0)
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }

    fn processes_max(&self) -> Option<u64> {
        None
    }
}

fn resident(number: u64) -> String {
    format!("resident-{number}")
}

/// Finds the keeper of a box: its last argument is the id.
fn keeper_of(id: &str) -> Option<Process> {
    let entries = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = entries.filter_map(|it| it.file_name().to_str()?.parse().ok());
    pids.find_map(|pid| {
        let process = Process::open(pid).ok()?;
        let arguments = process.arguments().ok()?;
        let is_keeper = arguments.first()?.contains("keeper");
        (is_keeper && arguments.last()? == id).then_some(process)
    })
}

fn milliseconds(duration: Duration) -> String {
    format!("{}ms", duration.as_millis())
}

fn surprise(words: &[&str], what: &str, said: &str) -> Surprise {
    let said = said.lines().next().unwrap_or("it said nothing");
    format!("tare {}: {what}: {said}", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_surprise_quotes_the_command_and_what_it_said() {
        let text = surprise(&["run", "--", "true"], "exit status: 125", "tare: no\nmore");
        assert_eq!(text, "tare run -- true: exit status: 125: tare: no");
    }

    #[test]
    fn an_unknown_box_has_no_keeper() {
        assert!(keeper_of("no-such-box").is_none());
    }
}
