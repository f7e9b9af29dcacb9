//! crun as a peer: the bundle it wants, and the place where it agrees to run.
//!
//! crun 1.8 refuses a host with the hybrid cgroup layout ("cgroups in hybrid
//! mode not supported"). It gets a mount namespace of its own, in which a pure
//! cgroup2 is mounted over /sys/fs/cgroup, set up once and not timed.

use super::peers::ROOT_LINKS;
use crate::failure::{Doing, Failure};
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

/// An OCI bundle in `directory` that runs `command`; its cgroup is `cgroup`.
pub fn write_bundle(
    directory: &Path,
    command: &[&str],
    cgroup: &str,
    binds: &[String],
) -> Result<(), Failure> {
    let doing = || format!("cannot write the bundle {}", directory.display());
    let root = directory.join("rootfs");
    for name in ["proc", "dev", "tmp"] {
        fs::create_dir_all(root.join(name)).doing(doing)?;
    }
    for (link, target) in ROOT_LINKS {
        symlink(target, root.join(link)).doing(doing)?;
    }
    for path in binds {
        mount_point(&root, Path::new(path)).doing(doing)?;
    }
    let config = config(command, cgroup, binds).to_string();
    fs::write(directory.join("config.json"), config).doing(doing)
}

/// Made ahead: crun cannot make it in a root that its own uids do not own.
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

/// The profile of the bwrap subject, said in OCI: the same namespaces, binds,
/// and no privileges; no limits and no seccomp, which the layout and bwrap lack.
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
    let fresh = |kind: &str, path: &str, options: &[&str]| json!({ "destination": path, "source": kind, "type": kind, "options": options });
    let mut mounts: Vec<Value> = binds.iter().map(bind).collect();
    mounts.push(fresh("proc", "/proc", &["nosuid", "nodev", "noexec"]));
    mounts.push(fresh("tmpfs", "/dev", &["nosuid", "mode=755"]));
    mounts.push(fresh("tmpfs", "/tmp", &["nosuid", "nodev"]));
    mounts
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
}
