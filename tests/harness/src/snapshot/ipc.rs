//! System V and POSIX IPC objects of the test's own IPC namespace.

use std::fs;
use std::path::Path;

use super::{Things, mount};

pub fn observe() -> Things {
    let system_v = ["shm", "sem", "msg"].into_iter().flat_map(system_v);
    let memory = names(Path::new("/dev/shm"), "POSIX shared memory");
    system_v.chain(memory).chain(message_queues()).collect()
}

/// proc_sysvipc(5): every table begins with the key and the id.
fn system_v(kind: &str) -> Vec<String> {
    let text = fs::read_to_string(format!("/proc/sysvipc/{kind}")).unwrap_or_default();
    let objects = text.lines().skip(1).filter_map(|line| {
        let mut fields = line.split_whitespace();
        let (key, id) = (fields.next()?, fields.next()?);
        Some(format!("System V {kind} {id} with key {key}"))
    });
    objects.collect()
}

/// Visible only where the file system of message queues is mounted.
fn message_queues() -> Vec<String> {
    let mounts = mount::mounts().into_iter();
    let queues = mounts.filter(|mount| mount.kind == "mqueue");
    queues.flat_map(|mount| names(&mount.point, "POSIX message queue")).collect()
}

fn names(directory: &Path, what: &str) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| format!("{what} {}", entry.path().display())).collect()
}
