//! The kernel's log, as far as it names processes that the kernel killed for memory.

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, read};

/// The largest record of the log (`PRINTKRB_RECORD_MAX`, printk.c).
const RECORD_BYTES_MAX: usize = 8 << 10;
/// No log of a usual size has more records.
const RECORDS_MAX: usize = 32 << 10;
/// How many processes are named.
const NAMES_MAX: usize = 8;

/// Returns the names of processes that the kernel killed at the memory limit of this cgroup, the
/// earliest first. Empty if the log cannot be read, or no longer says it.
///
/// The kernel logs a record for each of them (oom_kill.c):
/// `oom-kill:constraint=CONSTRAINT_MEMCG,...,oom_memcg=/NAME,...,task=python3,pid=7,uid=0`.
pub fn oom_killed(cgroup: &str) -> Vec<String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(log) = openat(CWD, "/dev/kmsg", flags, Mode::empty()) else {
        return Vec::new();
    };
    let mut names = Vec::new();
    let mut record = [0; RECORD_BYTES_MAX];
    for _ in 0..RECORDS_MAX {
        match read(&log, &mut record) {
            Ok(length) => names.extend(name_in(&record[..length], cgroup)),
            // The record was overwritten before it was read: the next read returns a later one.
            Err(Errno::PIPE | Errno::INTR) => {}
            Err(_) => break,
        }
        if names.len() == NAMES_MAX {
            break;
        }
    }
    names
}

/// Returns the name of the process, if the record is about a process of this cgroup.
fn name_in(record: &[u8], cgroup: &str) -> Option<String> {
    let text = std::str::from_utf8(record).ok()?;
    let (_, text) = text.split_once("oom-kill:")?;
    let field = |key: &str| {
        let fields = text.lines().next()?.split(',');
        fields.filter_map(|field| field.split_once('=')).find(|(own, _)| *own == key)
    };
    let (_, killed_in) = field("task_memcg")?;
    let is_its = killed_in.split('/').any(|part| part == cgroup);
    field("task").filter(|_| is_its).map(|(_, name)| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_names_the_process_only_for_its_own_cgroup() {
        let record = b"6,912,868836658,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),\
            cpuset=/,mems_allowed=0,oom_memcg=/x/tare-a-b,task_memcg=/x/tare-a-b/work,task=tail,\
            pid=26485,uid=0\n";
        assert_eq!(name_in(record, "tare-a-b").as_deref(), Some("tail"));
        assert_eq!(name_in(record, "tare-a"), None);
        assert_eq!(name_in(b"6,1,1,-;usb 1-1: new device", "tare-a-b"), None);
        assert_eq!(name_in(b"\xff", "tare-a-b"), None);
    }
}
