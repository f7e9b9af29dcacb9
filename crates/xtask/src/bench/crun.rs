//! crun as a peer: its bundle, and the mount namespace in which it runs.
//!
//! crun 1.8 refuses a host with the hybrid cgroup layout ("cgroups in hybrid
//! mode not supported"). It gets a mount namespace of its own, in which a pure
//! cgroup2 is mounted over /sys/fs/cgroup, set up once and not timed.

use super::peers::{ROOT_LINKS, View};
use crate::failure::{Context, Failure};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Ends in the words that are appended to it.
pub const PURE_CGROUP2: [&str; 7] = [
    "unshare",
    "--mount",
    "--propagation=private",
    "/bin/sh",
    "-c",
    "mount -t cgroup2 none /sys/fs/cgroup && exec \"$@\"",
    "sh",
];

/// Where a box's uids start on the host; any range that is not the host's own.
const HOST_UID_FIRST: u32 = 100_000;
const UIDS: u32 = 65_536;

/// How much of a box's isolation crun provides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// As much as bwrap gives: namespaces, binds, and no privileges.
    Bare,
    /// All that OCI can say: also what of /proc is hidden or read-only, seccomp,
    /// and what a box has in /dev. Limits it cannot have in [`PURE_CGROUP2`].
    OfABox,
}

/// The default filter of a box, call by call.
const SECCOMP: &str = include_str!("../../../engine/src/create/seccomp/default.golden");
const ENOSYS: i32 = 38;

/// An OCI bundle in `directory` that runs `command`; its cgroup is `cgroup`.
pub fn write_bundle(
    directory: &Path,
    command: &[&str],
    cgroup: &str,
    view: &View,
    profile: Profile,
) -> Result<(), Failure> {
    let doing = || format!("cannot write the bundle {}", directory.display());
    let root = directory.join("rootfs");
    for name in ["proc", "dev", "tmp"] {
        fs::create_dir_all(root.join(name)).context(doing)?;
    }
    for (link, target) in ROOT_LINKS {
        symlink(target, root.join(link)).context(doing)?;
    }
    for path in &view.binds {
        mount_point(&root, Path::new(path)).context(doing)?;
    }
    let mut config = config(command, cgroup, &view.binds);
    if profile == Profile::OfABox {
        confine(&mut config, view);
    }
    fs::write(directory.join("config.json"), config.to_string()).context(doing)
}

/// Makes a mount point ahead, because crun cannot make it in a root that its uids do not own.
fn mount_point(root: &Path, source: &Path) -> std::io::Result<()> {
    let point = root.join(source.strip_prefix("/").unwrap_or(source));
    if source.is_dir() {
        return fs::create_dir_all(point);
    }
    if let Some(parent) = point.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(point, "")
}

/// The OCI configuration with the same isolation as the bwrap subject.
fn config(command: &[&str], cgroup: &str, binds: &[String]) -> Value {
    let map = json!([{ "containerID": 0, "hostID": HOST_UID_FIRST, "size": UIDS }]);
    let spaces = ["user", "mount", "pid", "network", "ipc", "uts", "cgroup"];
    let spaces: Vec<Value> = spaces.iter().map(|it| json!({ "type": it })).collect();
    json!({
        "ociVersion": "1.0.0",
        "process": {
            "terminal": false,
            "user": { "uid": 1000, "gid": 1000 },
            "args": command,
            "env": ["PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/tmp", "LANG=C.UTF-8"],
            "cwd": "/",
            "capabilities": {},
            "noNewPrivileges": true,
        },
        "root": { "path": "rootfs", "readonly": true },
        "mounts": mounts(binds),
        "linux": {
            "cgroupsPath": format!("/{cgroup}"),
            "namespaces": spaces,
            "uidMappings": map,
            "gidMappings": map,
        },
    })
}

fn mounts(binds: &[String]) -> Vec<Value> {
    let bind = |path: &String| {
        let options = ["rbind", "ro", "nosuid", "nodev"];
        json!({ "destination": path, "source": path, "type": "bind", "options": options })
    };
    let mut mounts: Vec<Value> = binds.iter().map(bind).collect();
    mounts.push(fresh("proc", "/proc", &["nosuid", "nodev", "noexec"]));
    mounts.push(fresh("tmpfs", "/dev", &["nosuid", "mode=755"]));
    mounts.push(fresh("tmpfs", "/tmp", &["nosuid", "nodev"]));
    mounts
}

fn fresh(kind: &str, path: &str, options: &[&str]) -> Value {
    json!({ "destination": path, "source": kind, "type": kind, "options": options })
}

/// Adds what a box has and bwrap does not.
fn confine(config: &mut Value, view: &View) {
    let linux = &mut config["linux"];
    linux["maskedPaths"] = json!(view.masked);
    linux["readonlyPaths"] = json!(view.read_only);
    linux["seccomp"] = json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": ENOSYS,
        "architectures": ["SCMP_ARCH_X86_64"],
        "syscalls": [{ "names": allowed(SECCOMP), "action": "SCMP_ACT_ALLOW" }],
    });
    let terminals = ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"];
    let shared = ["nosuid", "nodev", "noexec", "mode=1777"];
    if let Some(mounts) = config["mounts"].as_array_mut() {
        mounts.push(fresh("devpts", "/dev/pts", &terminals));
        mounts.push(fresh("tmpfs", "/dev/shm", &shared));
    }
}

/// The calls that are allowed, of lines such as ` 16 ioctl  argument 1 not in ...`.
/// crun allows calls that depend on an argument with every argument.
fn allowed(filter: &str) -> Vec<&str> {
    filter
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            let (name, verdict) = (words.next()?, words.next()?);
            matches!(verdict, "allow" | "argument").then_some(name)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bundle_names_the_command_the_cgroup_and_all_seven_namespaces() {
        let config = config(&["/bin/true"], "tare-bench-1", &["/etc/hosts".into()]);
        assert_eq!(config["process"]["args"], json!(["/bin/true"]));
        assert_eq!(config["linux"]["cgroupsPath"], "/tare-bench-1");
        assert_eq!(config["linux"]["namespaces"].as_array().unwrap().len(), 7);
        let binds = config["mounts"].as_array().unwrap();
        assert!(binds.iter().any(|it| it["destination"] == "/etc/hosts"));
    }

    #[test]
    fn a_bundle_of_the_profile_hides_what_a_box_hides_and_filters_what_it_filters() {
        let mut config = config(&["/bin/true"], "tare-bench-1", &[]);
        let view = View {
            masked: vec!["/proc/keys".into()],
            read_only: vec!["/proc/sys".into()],
            ..View::default()
        };
        confine(&mut config, &view);
        assert_eq!(config["linux"]["maskedPaths"], json!(["/proc/keys"]));
        assert_eq!(config["linux"]["readonlyPaths"], json!(["/proc/sys"]));
        let calls = &config["linux"]["seccomp"]["syscalls"][0]["names"];
        let calls: Vec<&str> = calls.as_array().unwrap().iter().flat_map(Value::as_str).collect();
        assert!(calls.contains(&"read") && calls.contains(&"ioctl"), "{calls:?}");
        assert!(!calls.contains(&"mount") && !calls.contains(&"bpf"), "{calls:?}");
    }
}
