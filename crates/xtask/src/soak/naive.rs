//! bwrap as the subject, under a naive supervisor: it starts bwrap, waits for a timeout, and
//! kills the pid.
//!
//! It gets the same commands as tare. `--die-with-parent` would prevent some of the leaks. It is
//! left out, because a naive supervisor does not know that it needs it.

use super::commands::{Caller, Victim, first_child};
use super::mix::{BOMB_WITH_A_FUSE, Exec, GREEDY, Job, Purpose, SHORT, STUBBORN};
use super::subject::{Subject, Surprise};
use crate::bench::launch::{Launch, bwrap};
use std::process::Child;
use std::time::{Duration, Instant};

/// Leaks of this subject stay, so a short wait is enough.
const PATIENCE: Duration = Duration::from_millis(500);

/// Well below the limit of the lane, above which bwrap itself could not start.
const PROCESSES_MAX: u64 = 3_000;

const RESIDENTS: usize = 4;
const RESIDENT_START_MAX: Duration = Duration::from_secs(5);

/// The memory limit for [`GREEDY`]; bwrap itself sets none.
const MEMORY_LIMIT: [&str; 2] = ["prlimit", "--as=134217728"];

/// The bound for a command that ends by itself.
const LONG: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub struct Naive {
    residents: Vec<Child>,
    /// The innermost process of each, for `nsenter`.
    targets: Vec<String>,
}

impl Naive {
    fn exec(&self, kind: Exec, job: &mut Job, caller: &Caller) -> std::io::Result<()> {
        let target = &self.targets[job.pick(self.targets.len())];
        let enter = |command: &[&str]| {
            let words = ["nsenter", "--target", target, "--all", "--"];
            Launch::new(words.into_iter().chain(command.iter().copied()))
        };
        match kind {
            Exec::Short => caller.run_for(&enter(&["true"]), LONG).map(drop),
            Exec::TimedOut => {
                let timeout = job.timeout();
                caller.run_for(&enter(&["sh", "-c", STUBBORN]), timeout).map(drop)
            }
            Exec::CommandKilled => {
                caller.crash(&enter(&["sh", "-c", STUBBORN]), job.crash_moment(), Victim::Itself)
            }
        }
    }

    fn run(&self, job: &mut Job, caller: &Caller) -> std::io::Result<()> {
        let stubborn = boxed(&["sh", "-c", STUBBORN]);
        match job.purpose {
            Purpose::Short => {
                let (command, _) = SHORT[job.pick(SHORT.len())];
                caller.run_for(&boxed(command), LONG).map(drop)
            }
            Purpose::OutOfMemory => {
                let words = MEMORY_LIMIT.into_iter().map(str::to_owned);
                let launch = boxed(&GREEDY);
                let words = words.chain([launch.program]).chain(launch.arguments);
                caller.run_for(&Launch::new(words), LONG).map(drop)
            }
            Purpose::ForkBomb => {
                let timeout = job.timeout();
                caller.run_for(&boxed(&["sh", "-c", BOMB_WITH_A_FUSE]), timeout).map(drop)
            }
            Purpose::CommandKilled | Purpose::DetachedKilled => {
                caller.crash(&stubborn, job.crash_moment(), Victim::Itself)
            }
            Purpose::KeeperKilled => caller.crash(&stubborn, job.crash_moment(), Victim::Child),
            // bwrap has no detached boxes: the supervisor ends the process later.
            Purpose::TimedOut | Purpose::Detached | Purpose::Forgotten => {
                let timeout = job.timeout();
                caller.run_for(&stubborn, timeout).map(drop)
            }
        }
    }
}

impl Subject for Naive {
    fn make_ready(&self, caller: &Caller) -> Result<(), Surprise> {
        self.next_command(caller).map(drop)
    }

    fn start_residents(&mut self, _: &Caller) -> Result<(), Surprise> {
        let launch = boxed(&["sleep", "1000000"]);
        for _ in 0..RESIDENTS {
            let resident = launch.command().spawn().map_err(|it| it.to_string())?;
            let target = innermost(resident.id());
            self.residents.push(resident);
            self.targets.push(target.ok_or("bwrap started nothing")?.to_string());
        }
        Ok(())
    }

    fn live(&self, mut job: Job, caller: &Caller) -> Result<u64, Surprise> {
        // Only leftovers count, not how a box ended.
        self.run(&mut job, caller).map_err(|it| it.to_string())?;
        match job.exec {
            None => Ok(0),
            Some(kind) => match self.exec(kind, &mut job, caller) {
                Ok(()) => Ok(1),
                Err(error) => Err(error.to_string()),
            },
        }
    }

    fn next_command(&self, caller: &Caller) -> Result<Option<u64>, Surprise> {
        let status = caller.run(&boxed(&["true"])).map_err(|it| it.to_string())?;
        if status.success() {
            Ok(None)
        } else {
            Err(format!("bwrap true: {status}: {}", caller.said()))
        }
    }

    fn end_residents(&mut self, _: &Caller) -> Result<(), Surprise> {
        for mut resident in self.residents.drain(..) {
            let ended = resident.kill().and_then(|()| resident.wait());
            ended.map_err(|it| it.to_string())?;
        }
        Ok(())
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }

    fn processes_max(&self) -> Option<u64> {
        Some(PROCESSES_MAX)
    }
}

fn boxed(command: &[&str]) -> Launch {
    let mut launch = bwrap(&[], command);
    launch.arguments.retain(|word| word != "--die-with-parent");
    launch
}

/// Waits for the last process of the chain: bwrap outside, bwrap inside, the command.
fn innermost(pid: u32) -> Option<i32> {
    let start = Instant::now();
    while start.elapsed() < RESIDENT_START_MAX {
        let inner = first_child(pid).and_then(|it| first_child(it.cast_unsigned()));
        if inner.is_some() {
            return inner;
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "bounded by RESIDENT_START_MAX; no event reports a grandchild"
        )]
        std::thread::sleep(Duration::from_millis(2));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bwrap_is_not_told_to_die_with_its_parent() {
        let launch = boxed(&["true"]);
        let words = launch.arguments.join(" ");
        assert!(!words.contains("die-with-parent"), "{words}");
        assert!(words.ends_with("-- true"), "{words}");
    }
}
