//! What a bench puts on the host, and how it is gone afterwards.
//!
//! A bench owns one name, `tare-bench-<pid>`: a directory of that name in memory
//! (as `/run` is, where tare and its peers keep their state), and cgroups of that
//! name where a peer makes some. All of it belongs to a janitor, a child that makes the directory, waits for its
//! stdin to close and then removes everything. The pipe closes when the bench
//! is done and also when it was interrupted or killed: there is one way out.

use crate::failure::{Doing, Failure};
use clap::Args;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A bench that was killed may leave a command behind that is still ending, and
/// that command holds its cgroup or writes to the directory until it is gone.
const REMOVAL_ATTEMPTS: u32 = 50;
const REMOVAL_PAUSE: Duration = Duration::from_millis(40);

/// How deep a peer nests its cgroups at most (crun: two).
const CGROUP_DEPTH_MAX: u32 = 8;

/// What the janitor prints when the directory is there.
const READY: &str = "ready";

/// Where a bench is allowed to leave things while it runs.
#[derive(Debug, Clone, Args)]
pub struct Place {
    parent: PathBuf,
    name: String,
}

impl Place {
    fn directory(&self) -> PathBuf {
        self.parent.join(&self.name)
    }
}

/// Where state is kept in memory, else the temporary directory.
fn in_memory() -> PathBuf {
    let shared_memory = PathBuf::from("/dev/shm");
    match shared_memory.is_dir() {
        true => shared_memory,
        false => std::env::temp_dir(),
    }
}

/// A bench's directory and name, until [`Footprint::release`] or our death.
#[derive(Debug)]
pub struct Footprint {
    place: Place,
    janitor: Child,
}

impl Footprint {
    pub fn acquire() -> Result<Self, Failure> {
        let own = std::env::current_exe().doing(|| "cannot find this program".into())?;
        let name = format!("tare-bench-{}", std::process::id());
        Self::acquire_by(
            Place {
                parent: in_memory(),
                name,
            },
            Command::new(own),
        )
    }

    fn acquire_by(place: Place, mut program: Command) -> Result<Self, Failure> {
        let mut janitor = program
            .args(["bench", "janitor"])
            .arg(&place.parent)
            .arg(&place.name)
            // Ctrl-C goes to the whole group; the janitor is needed after it.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .doing(|| "cannot start the janitor".into())?;
        let mut line = String::new();
        let answers = janitor
            .stdout
            .as_mut()
            .expect("its stdout was asked to be a pipe");
        BufReader::new(answers)
            .read_line(&mut line)
            .doing(|| "cannot hear the janitor".into())?;
        match line.trim() {
            READY => Ok(Self { place, janitor }),
            _ => {
                let status = janitor
                    .wait()
                    .doing(|| "cannot wait for the janitor".into())?;
                let path = place.directory();
                Err(Failure::new(format!(
                    "no directory {} to work in: {status}",
                    path.display()
                )))
            }
        }
    }

    pub fn directory(&self) -> PathBuf {
        self.place.directory()
    }

    /// The name for whatever else has to be made; what has it is removed too.
    pub fn name(&self) -> &str {
        &self.place.name
    }

    /// Returns when the janitor has seen that nothing is left.
    pub fn release(mut self) -> Result<(), Failure> {
        drop(self.janitor.stdin.take());
        let status = self
            .janitor
            .wait()
            .doing(|| "cannot wait for the janitor".into())?;
        match status.success() {
            true => Ok(()),
            false => Err(Failure::new(format!(
                "the janitor left something behind: {status}"
            ))),
        }
    }
}

/// The other end of [`Footprint`].
pub fn serve_as_janitor(place: &Place) -> Result<(), Failure> {
    let directory = place.directory();
    // Not recursive: a directory that is already there is somebody else's.
    // Open to all, because a peer with other uids has to reach its root in it.
    fs::DirBuilder::new()
        .mode(0o755)
        .create(&directory)
        .doing(|| format!("cannot make {}", directory.display()))?;
    let told = writeln!(std::io::stdout(), "{READY}");
    // Whatever is read and however it ends, the bench is gone then.
    let _ = std::io::copy(&mut std::io::stdin().lock().by_ref(), &mut std::io::sink());
    let cgroups = cgroup_roots()
        .iter()
        .map(|root| root.join(&place.name))
        .collect();
    remove_all(&directory, cgroups)?;
    told.doing(|| "cannot answer the bench".into())
}

fn remove_all(directory: &Path, cgroups: Vec<PathBuf>) -> Result<(), Failure> {
    for cgroup in cgroups {
        until_gone(&cgroup, || {
            // Absent on cgroup v1 and on a second attempt; the removal decides.
            let _ = fs::write(cgroup.join("cgroup.kill"), "1");
            remove_cgroup(&cgroup, CGROUP_DEPTH_MAX)
        })?;
    }
    until_gone(directory, || fs::remove_dir_all(directory))
}

/// Repeats a removal until the path was seen to be absent.
fn until_gone(path: &Path, remove: impl Fn() -> std::io::Result<()>) -> Result<(), Failure> {
    let mut last = Ok(());
    for _ in 0..REMOVAL_ATTEMPTS {
        if !path.symlink_metadata().is_ok_and(|it| it.is_dir()) {
            return Ok(());
        }
        last = remove();
        if last.is_err() {
            // Bounded by REMOVAL_ATTEMPTS: there is no event for "no longer in use".
            std::thread::sleep(REMOVAL_PAUSE);
        }
    }
    last.doing(|| format!("cannot remove {}", path.display()))
}

/// Children first: the kernel removes only leaves.
fn remove_cgroup(cgroup: &Path, depth_left: u32) -> std::io::Result<()> {
    for entry in fs::read_dir(cgroup)? {
        let entry = entry?;
        if depth_left > 0 && entry.file_type()?.is_dir() {
            remove_cgroup(&entry.path(), depth_left - 1)?;
        }
    }
    fs::remove_dir(cgroup)
}

/// Where cgroup hierarchies of either version are mounted.
fn cgroup_roots() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (path, kind) = (fields.next()?, fields.next()?);
            matches!(kind, "cgroup" | "cgroup2").then(|| PathBuf::from(path))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A parent directory of its own for one test.
    fn parent(test: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("xtask-{test}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        path
    }

    #[test]
    fn removal_takes_the_directory_with_everything_in_it() {
        let parent = parent("removal");
        let directory = parent.join("bench");
        fs::create_dir_all(directory.join("a/b")).unwrap();
        fs::write(directory.join("a/b/c"), "x").unwrap();
        remove_all(&directory, vec![parent.join("no-such-cgroup")]).unwrap();
        assert!(!directory.exists());
        fs::remove_dir(parent).unwrap();
    }

    #[test]
    fn a_directory_that_was_there_before_is_refused_and_kept() {
        let parent = parent("refusal");
        fs::create_dir(parent.join("taken")).unwrap();
        let place = Place {
            parent: parent.clone(),
            name: "taken".into(),
        };
        assert!(serve_as_janitor(&place).is_err());
        assert!(parent.join("taken").exists());
        fs::remove_dir_all(parent).unwrap();
    }

    #[test]
    fn a_removal_that_never_works_ends_with_the_reason() {
        let parent = parent("never");
        let refused = || Err(std::io::Error::from(std::io::ErrorKind::ResourceBusy));
        let failure = until_gone(&parent, refused).unwrap_err().to_string();
        assert!(
            failure.contains("cannot remove") && failure.contains("busy"),
            "{failure}"
        );
        fs::remove_dir(parent).unwrap();
    }

    #[test]
    fn nested_cgroups_are_removed_leaves_first() {
        let parent = parent("nested");
        fs::create_dir_all(parent.join("x/y/z")).unwrap();
        remove_cgroup(&parent.join("x"), CGROUP_DEPTH_MAX).unwrap();
        assert!(!parent.join("x").exists());
        fs::remove_dir(parent).unwrap();
    }
}
