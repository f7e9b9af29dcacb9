//! tare as a user has it: its command line, on a state root of the bench's own.
//!
//! Measures the time and the processor time of every call. Only this file knows the command line and
//! its output.

use super::super::footprint::cgroups_of;
use super::super::launch::Launch;
use crate::failure::{Context, Failure};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// If even the janitor is killed, no box stays longer than this.
const LEASE: &str = "2h";

/// The command of an idle box.
pub const IDLE: [&str; 2] = ["/bin/sleep", "infinity"];

/// Longer than any id.
const ID_BYTES_MAX: u64 = 256;

/// How much of the output of a failed command is quoted.
const COMPLAINT_BYTES_MAX: u64 = 4096;

/// The time of one or more commands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spent {
    pub wall: Duration,
    /// User and system time of the commands, without keepers.
    pub cpu: Duration,
}

impl std::ops::AddAssign for Spent {
    fn add_assign(&mut self, other: Self) {
        self.wall += other.wall;
        self.cpu += other.cpu;
    }
}

/// The part of an entry of `ls --json` that is looked at.
#[derive(Debug, Deserialize, Serialize)]
pub struct Listed {
    pub id: String,
    pub state: String,
}

#[derive(Debug)]
pub struct Tare {
    binary: PathBuf,
    directory: PathBuf,
    state_root: PathBuf,
    made: Vec<String>,
}

impl Tare {
    /// `directory` is for the output of commands. It must exist.
    pub fn new(binary: PathBuf, directory: PathBuf, state_root: PathBuf) -> Self {
        Self { binary, directory, state_root, made: Vec::new() }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn state_root(&self) -> &Path {
        &self.state_root
    }

    /// The ids of all boxes that were ever made here.
    pub fn made(&self) -> &[String] {
        &self.made
    }

    pub fn launch(&self, words: &[&str]) -> Launch {
        let binary = self.binary.to_string_lossy();
        Launch::new([&*binary].into_iter().chain(words.iter().copied()))
            .with_environment("TARE_STATE_ROOT", self.state_root.to_string_lossy())
    }

    /// Creates an idle box with the default profile.
    pub fn run_detached(&mut self) -> Result<(String, Spent), Failure> {
        let words = [&["run", "-d", "--lease", LEASE, "--"][..], &IDLE].concat();
        let mut id = String::new();
        let spent = self.spend(&words, Stdio::piped(), |child| {
            // Read one line and not until the end, because the keeper holds the pipe open.
            match child.stdout.take() {
                Some(stdout) => BufReader::new(stdout.take(ID_BYTES_MAX)).read_line(&mut id),
                None => Ok(0),
            }
        })?;
        let id = id.trim().to_owned();
        if id.is_empty() {
            return Err(Failure::new("tare run -d: it printed no id"));
        }
        self.made.push(id.clone());
        Ok((id, spent))
    }

    /// Measures a list of all boxes, without parsing it.
    pub fn time_list(&self) -> Result<Spent, Failure> {
        self.spend(&["ls", "--json"], Stdio::null(), |_| Ok(0))
    }

    /// Lists all boxes, including ended ones.
    pub fn list(&self) -> Result<Vec<Listed>, Failure> {
        let mut json = Vec::new();
        self.spend(&["ls", "-a", "--json"], Stdio::piped(), |child| match child.stdout.take() {
            Some(mut stdout) => stdout.read_to_end(&mut json),
            None => Ok(0),
        })?;
        serde_json::from_slice(&json).context(|| "cannot read what tare ls --json printed".into())
    }

    pub fn remove_all(&self) -> Result<Spent, Failure> {
        self.spend(&["rm", "-f", "--all"], Stdio::null(), |_| Ok(0))
    }

    /// Checks that the list is empty and that none of these boxes has a cgroup.
    pub fn expect_gone(&self, ids: &[String]) -> Result<(), Failure> {
        self.expect_empty()?;
        let left = cgroups_of(ids.iter().map(String::as_str));
        match left.first() {
            None => Ok(()),
            Some(first) => Err(Failure::new(format!(
                "{} cgroups are left after rm -f --all, the first is {}",
                left.len(),
                first.display()
            ))),
        }
    }

    pub fn expect_empty(&self) -> Result<(), Failure> {
        let left = self.list()?;
        match left.first() {
            None => Ok(()),
            Some(first) => Err(Failure::new(format!(
                "{} boxes are left, the first is {} ({})",
                left.len(),
                first.id,
                first.state
            ))),
        }
    }

    /// One command from before it is spawned until it is reaped. `attend` sees to
    /// its stdout meanwhile. What it says on stderr goes to a file: a keeper that
    /// kept a pipe open would be waited for.
    fn spend(
        &self,
        words: &[&str],
        stdout: Stdio,
        attend: impl FnOnce(&mut Child) -> std::io::Result<usize>,
    ) -> Result<Spent, Failure> {
        let said = self.directory.join("stderr");
        let stderr = File::create(&said).context(|| format!("cannot make {}", said.display()))?;
        let mut command: Command = self.launch(words).command();
        command.stdout(stdout).stderr(stderr);
        let start = Instant::now();
        let ended = command.spawn().and_then(|mut child| {
            let attended = attend(&mut child);
            let reaped = tare_kernel::usage::reap(child)?;
            attended.map(|_| reaped)
        });
        let wall = start.elapsed();
        let (status, cpu) = ended.context(|| format!("cannot run tare {}", words[0]))?;
        if status.success() {
            Ok(Spent { wall, cpu })
        } else {
            Err(Failure::new(format!("tare {}: {status}: {}", words[0], first_line(&said))))
        }
    }
}

fn first_line(path: &Path) -> String {
    let mut text = String::new();
    let read =
        File::open(path).and_then(|file| file.take(COMPLAINT_BYTES_MAX).read_to_string(&mut text));
    match read {
        Ok(_) => text.lines().next().unwrap_or("it said nothing").to_owned(),
        Err(error) => format!("what it said cannot be read: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    /// A `tare` that is this script, in a directory of its own.
    fn tare(test: &str, script: &str) -> Tare {
        let directory = std::env::temp_dir().join(format!("xtask-{test}-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let binary = directory.join("tare");
        fs::write(&binary, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
        Tare::new(binary, directory.clone(), directory.join("state"))
    }

    fn done(tare: &Tare) {
        fs::remove_dir_all(tare.directory()).unwrap();
    }

    #[test]
    fn a_keeper_that_holds_our_pipe_is_not_waited_for() {
        // Its id is its pid, so that it can be ended.
        let mut tare = tare("id", "sleep 60 & echo $!");
        let (id, spent) = tare.run_detached().unwrap();
        let ended = Command::new("kill").arg(&id).status().unwrap();
        assert!(ended.success(), "{id:?} is no pid");
        assert!(spent.wall < Duration::from_secs(50), "{spent:?}");
        assert_eq!(tare.made(), [id]);
        done(&tare);
    }

    #[test]
    fn a_failure_is_quoted_and_makes_no_box() {
        let mut tare = tare("quoted", "echo 'tare: no more pids' >&2; exit 125");
        let failure = tare.run_detached().unwrap_err().to_string();
        assert!(failure.contains("125"), "{failure}");
        assert!(failure.ends_with("tare: no more pids"), "{failure}");
        assert!(tare.made().is_empty());
        done(&tare);
    }

    #[test]
    fn a_list_that_is_not_empty_names_its_first_box() {
        let listed = r#"[{"id":"a1","name":null,"state":"stuck"},{"id":"b2","state":"exited"}]"#;
        let tare = tare("list", &format!("echo '{listed}'"));
        let failure = tare.expect_empty().unwrap_err().to_string();
        assert_eq!(failure, "2 boxes are left, the first is a1 (stuck)");
        done(&tare);
    }

    #[test]
    fn an_empty_list_is_empty() {
        let tare = tare("empty", "test \"$1 $2 $3\" = 'ls -a --json' && echo '[]'");
        tare.expect_gone(&["no-such-box".into()]).unwrap();
        done(&tare);
    }
}
