//! The mounts of the test's own mount namespace.

use std::fs;
use std::path::PathBuf;

use super::Things;

#[derive(Debug)]
pub struct Mount {
    pub point: PathBuf,
    /// The file system's type.
    pub kind: String,
}

pub fn observe() -> Things {
    mountinfo().lines().map(|line| format!("mount {line}")).collect()
}

pub fn mounts() -> Vec<Mount> {
    mountinfo().lines().filter_map(parse).collect()
}

/// Where cgroup v2 is mounted, and which cgroup is visible there. The topmost mount counts. In a
/// container, the cgroup need not be the root.
pub fn unified_hierarchy() -> Option<(String, String)> {
    let mounts = mountinfo();
    let unified = mounts.lines().rfind(|line| line.contains(" - cgroup2 "))?;
    let mut fields = unified.split(' ').skip(3).map(str::to_owned);
    let (root, point) = (fields.next()?, fields.next()?);
    Some((point, root.trim_end_matches('/').to_owned()))
}

fn mountinfo() -> String {
    fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted")
}

/// proc_pid_mountinfo(5): the fifth field is the mount point, the first after
/// the lone hyphen the type.
fn parse(line: &str) -> Option<Mount> {
    let (head, tail) = line.split_once(" - ")?;
    Some(Mount {
        point: PathBuf::from(head.split(' ').nth(4)?),
        kind: tail.split(' ').next()?.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optional_fields_do_not_move_the_type() {
        let line = "36 35 98:0 / /mnt rw,noatime shared:1 master:2 - cgroup2 none rw";
        let mount = parse(line).unwrap();
        assert_eq!(mount.point, PathBuf::from("/mnt"));
        assert_eq!(mount.kind, "cgroup2");
    }
}
