//! The place of a bench, inside of its lane: one directory in memory, the binaries, and the
//! cgroups of processes without a sandbox.

use super::launch::Launch;
use crate::failure::{Context, Failure};
use crate::lane::cgroup_roots;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// In the lane, `/run` is an empty file system in memory.
const DIRECTORY: &str = "/run/bench";

/// How long a state may take to come. A bench never fails because of a time that it measures.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// The pause between two attempts to remove a cgroup.
const REMOVE_AGAIN: Duration = Duration::from_micros(100);

/// Everything that a bench needs. It is given from outside of the lane.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Setup {
    pub tare: PathBuf,
    pub earlier: Option<PathBuf>,
    /// Packages of Python, with numpy.
    pub packages: PathBuf,
    /// The environment of the FastAPI server.
    pub fastapi: PathBuf,
    /// Debian's generic kernel, unpacked.
    pub kernel_package: PathBuf,
    pub rounds: usize,
    /// Numbers of boxes.
    pub sizes: Vec<usize>,
}

impl Setup {
    pub fn make_directory(&self) -> Result<(), Failure> {
        fs::create_dir_all(self.directory()).context(|| format!("cannot make {DIRECTORY}"))
    }

    pub fn directory(&self) -> &'static Path {
        Path::new(DIRECTORY)
    }

    /// tare on the command line, on a state root of its own.
    pub fn tare(&self, words: &[&str]) -> Launch {
        tare(&self.tare, &self.directory().join("state"), words)
    }

    /// How often something is repeated that needs many calls each time.
    pub fn repeats(&self) -> usize {
        (self.rounds / 60).clamp(1, 5)
    }
}

/// A command of tare on this state root.
pub fn tare(binary: &Path, state_root: &Path, words: &[&str]) -> Launch {
    let binary = binary.to_string_lossy();
    Launch::new([&*binary].into_iter().chain(words.iter().copied()))
        .with_environment("TARE_STATE_ROOT", state_root.to_string_lossy())
}

/// Waits for a state that has to come.
pub fn until(what: &str, is_so: impl FnMut() -> bool) -> Result<(), String> {
    if comes_within(PATIENCE, is_so) {
        Ok(())
    } else {
        Err(format!("{what}: not after {PATIENCE:?}"))
    }
}

/// Waits for a state that may never come.
pub fn comes_within(bound: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !is_so() {
        if start.elapsed() > bound {
            return false;
        }
        #[expect(clippy::disallowed_methods, reason = "bounded by `bound`")]
        std::thread::sleep(LOOK_AGAIN);
    }
    true
}

/// A process tree without a sandbox, in a cgroup of the same hierarchies that a box uses.
#[derive(Debug)]
pub struct BareTree {
    /// The v2 directory can kill.
    directories: Vec<PathBuf>,
    child: Option<Child>,
}

impl BareTree {
    pub fn start(launch: &Launch, name: &str, pids_max: u64) -> Result<Self, String> {
        let directories = cgroup_roots().into_iter().map(|it| it.join(name)).collect();
        let mut tree = Self { directories, child: None };
        let failed = |error: std::io::Error| format!("cannot make the cgroup {name}: {error}");
        for directory in &tree.directories {
            fs::create_dir(directory).map_err(failed)?;
            let limit = directory.join("pids.max");
            if limit.exists() {
                fs::write(limit, pids_max.to_string()).map_err(failed)?;
            }
        }
        tree.child = Some(tree.enter(launch).spawn().map_err(failed)?);
        Ok(tree)
    }

    /// The shell moves itself into the cgroups, and becomes the program.
    fn enter(&self, launch: &Launch) -> Command {
        let moves =
            self.directories.iter().map(|it| format!("echo 0 >{}/cgroup.procs", it.display()));
        let script = moves.chain(["exec \"$@\"".to_owned()]).collect::<Vec<_>>().join("; ");
        let words = ["/bin/sh", "-c", &script, "sh", &launch.program];
        let words = words.into_iter().chain(launch.arguments.iter().map(String::as_str));
        let mut inside = Launch::new(words);
        inside.environment.clone_from(&launch.environment);
        inside.command()
    }

    /// The number in the first of these files that one of the cgroups has.
    fn number(&self, names: &[&str]) -> Option<u64> {
        let files = self.directories.iter().flat_map(|it| names.iter().map(|name| it.join(name)));
        files.filter_map(|it| fs::read_to_string(it).ok()?.trim().parse().ok()).next()
    }

    /// The first process.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    pub fn pids(&self) -> u64 {
        self.number(&["pids.current"]).unwrap_or(0)
    }

    pub fn memory_bytes(&self) -> Option<u64> {
        self.number(&["memory.current", "memory.usage_in_bytes"])
    }

    /// `cgroup.kill`, and rmdir until it succeeds.
    pub fn end(mut self) -> Result<(), String> {
        for directory in &self.directories {
            // Only a directory of v2 has the file.
            let _ = fs::write(directory.join("cgroup.kill"), "1");
        }
        let start = Instant::now();
        for directory in &self.directories {
            while let Err(error) = fs::remove_dir(directory) {
                if start.elapsed() > PATIENCE {
                    return Err(format!("cannot remove {}: {error}", directory.display()));
                }
                #[expect(clippy::disallowed_methods, reason = "bounded by PATIENCE")]
                std::thread::sleep(REMOVE_AGAIN);
            }
        }
        self.reap();
        Ok(())
    }

    fn reap(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

impl Drop for BareTree {
    fn drop(&mut self) {
        self.reap();
    }
}
