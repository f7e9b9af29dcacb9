//! The lane of a bench or a soak (`tests/in-lane`): namespaces, cgroups and directories of its own.
//!
//! A lane ends with the program that started it, also if that was killed: the kernel ends every
//! process of its PID namespace, and with the last process its mounts and its network. Only its
//! empty cgroups and its empty /tmp stay then, and the next start removes them.

use crate::failure::{Context, Failure};
use crate::workspace::Workspace;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tare_kernel::cgroup::{Version, hierarchies};

/// Returns the command that runs this program again, in a lane. The caller adds the arguments.
pub fn command(workspace: &Workspace) -> Result<Command, Failure> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new(
            "this needs root, for namespaces and cgroups that separate it from the host",
        ));
    }
    let program = std::env::current_exe().context(|| "cannot find this program".into())?;
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(workspace.workspace_root.join("tests/in-lane"));
    command.arg(program);
    Ok(command)
}

/// Removes what lanes have left that were killed. The number in a name is a pid of this host.
pub fn remove_dead(workspace: &Workspace) {
    let lanes = |directory: &Path| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|it| it.path()).filter(|it| is_dead(it)).collect::<Vec<_>>()
    };
    for root in all_cgroup_roots() {
        for lane in lanes(&root) {
            // A process that is still dying keeps its cgroup until the start after this one.
            let _ = tare_kernel::cgroup::remove(&lane);
        }
    }
    for lane in lanes(&workspace.target_directory.join("lanes")) {
        let _ = fs::remove_dir_all(lane);
    }
}

fn is_dead(lane: &Path) -> bool {
    let name = lane.file_name().and_then(|it| it.to_str()).unwrap_or_default();
    let pid = name.strip_prefix("lane-").and_then(|it| it.parse::<u32>().ok());
    pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
}

fn all_cgroup_roots() -> Vec<PathBuf> {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    hierarchies(&mountinfo).into_iter().map(|it| it.mount).collect()
}

/// Returns the roots of the hierarchies in which a box may have a directory.
pub fn cgroup_roots() -> Vec<PathBuf> {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let is_used = |controllers: &[String]| {
        ["memory", "pids", "cpu"].iter().any(|name| controllers.iter().any(|it| it == name))
    };
    let found = hierarchies(&mountinfo).into_iter();
    let used = found.filter(|it| it.version == Version::V2 || is_used(&it.controllers));
    let mut mounts: Vec<PathBuf> = used.map(|it| it.mount).collect();
    mounts.sort();
    mounts.dedup();
    mounts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lane_whose_process_is_gone_is_dead() {
        assert!(!is_dead(Path::new(&format!("/x/lane-{}", std::process::id()))));
        assert!(is_dead(Path::new("/x/lane-4194999")));
        assert!(!is_dead(Path::new("/x/lane-x")));
        assert!(!is_dead(Path::new("/x/tare-4194999")));
    }
}
