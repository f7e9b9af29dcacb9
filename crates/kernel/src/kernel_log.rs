//! The kernel's log, as far as it names processes that the kernel killed for memory.

use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, read};
use rustix::time::{ClockId, clock_gettime};

use crate::clock::boot_ns;

/// The largest record of the log (`PRINTKRB_RECORD_MAX`, printk.c).
const RECORD_BYTES_MAX: usize = 8 << 10;
/// No log of a usual size has more records.
const RECORDS_MAX: usize = 32 << 10;
/// How many processes are named.
const NAMES_MAX: usize = 8;

/// A process that the kernel killed for memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OomKill {
    pub name: String,
    /// When, on the boot clock. The log has its own clock, which may differ by some milliseconds.
    pub boot_ns: u64,
    /// The kernel killed it at the limit of its own cgroup. Otherwise a cgroup above or the host had no
    /// memory left.
    pub at_own_limit: bool,
}

/// Returns the processes in this cgroup that the kernel killed for memory since this time of the boot
/// clock, the earliest first. Empty if the log cannot be read, or no longer says it.
///
/// The kernel logs a record for each of them (oom_kill.c):
/// `oom-kill:constraint=CONSTRAINT_MEMCG,...,oom_memcg=/NAME,...,task=python3,pid=7,uid=0`.
pub fn oom_killed(cgroup: &str, since_ns: u64) -> Vec<OomKill> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(log) = openat(CWD, "/dev/kmsg", flags, Mode::empty()) else {
        return Vec::new();
    };
    let mut kills = Vec::new();
    let mut record = [0; RECORD_BYTES_MAX];
    for _ in 0..RECORDS_MAX {
        match read(&log, &mut record) {
            Ok(length) => {
                let kill = kill_in(&record[..length], cgroup, clock_start_ns());
                kills.extend(kill.filter(|kill| kill.boot_ns >= since_ns));
            }
            // The record was overwritten before it was read: the next read returns a later one.
            Err(Errno::PIPE | Errno::INTR) => {}
            Err(_) => break,
        }
        if kills.len() == NAMES_MAX {
            break;
        }
    }
    kills
}

/// Returns the start of the log's clock on the boot clock. The log's clock runs like the raw
/// monotonic clock: it stands still while the host is suspended, and is never adjusted.
fn clock_start_ns() -> u64 {
    let now = clock_gettime(ClockId::MonotonicRaw);
    let raw_ns = Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32).as_nanos();
    boot_ns().saturating_sub(u64::try_from(raw_ns).unwrap_or(u64::MAX))
}

/// Returns the kill, if the record is about a process of this cgroup. A record begins with its
/// priority, its number and its time in microseconds (Documentation/ABI/testing/dev-kmsg).
fn kill_in(record: &[u8], cgroup: &str, clock_start_ns: u64) -> Option<OomKill> {
    let text = std::str::from_utf8(record).ok()?;
    let at_us: u64 = text.split(',').nth(2)?.parse().ok()?;
    // Other records contain names that a box chose, of files and of processes. Only a process name can be
    // at the beginning of a record, and it has at most 15 bytes.
    let (_, text) = text.split_once(';')?;
    let text = text.strip_prefix("oom-kill:constraint=")?;
    let field = |key: &str| {
        let fields = text.lines().next()?.split(',');
        fields.filter_map(|field| field.split_once('=')).find(|(own, _)| *own == key)
    };
    let is_its = |path: &str| path.split('/').any(|part| part == cgroup);
    let (_, name) = field("task").filter(|_| field("task_memcg").is_some_and(|it| is_its(it.1)))?;
    let boot_ns = clock_start_ns.saturating_add(at_us.saturating_mul(1000));
    let at_own_limit = field("oom_memcg").is_some_and(|it| is_its(it.1));
    Some(OomKill { name: name.to_owned(), boot_ns, at_own_limit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_names_the_process_only_for_its_own_cgroup() {
        let record = b"6,912,868836658,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),\
            cpuset=/,mems_allowed=0,oom_memcg=/x/tare-a-b,task_memcg=/x/tare-a-b/work,task=tail,\
            pid=26485,uid=0\n";
        let (name, boot_ns) = ("tail".to_owned(), 868_836_658_005);
        let kill = OomKill { name, boot_ns, at_own_limit: true };
        assert_eq!(kill_in(record, "tare-a-b", 5), Some(kill));
        assert_eq!(kill_in(record, "tare-a", 0), None);
        assert_eq!(kill_in(b"6,1,1,-;usb 1-1: new device", "tare-a-b", 0), None);
        assert_eq!(kill_in(b"\xff", "tare-a-b", 0), None);
    }

    #[test]
    fn names_that_a_box_chose_are_no_kill() {
        let kill = "oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/tare-a-b,task=forged,pid=1";
        for text in
            [format!("traps: python3[7] trap invalid opcode in {kill}[7f00]"), format!(" {kill}")]
        {
            assert_eq!(kill_in(format!("4,9,8,-;{text}\n").as_bytes(), "tare-a-b", 0), None);
        }
        let named = "4,9,8,-;oom-kill:const[7]: segfault in ,task_memcg=/tare-a-b,task=forged,x\n";
        assert_eq!(kill_in(named.as_bytes(), "tare-a-b", 0), None);
    }

    #[test]
    fn a_kill_for_memory_of_the_host_or_of_a_cgroup_above_is_not_one_at_the_limit_of_the_box() {
        for place in ["CONSTRAINT_MEMCG,oom_memcg=/x", "CONSTRAINT_NONE,cpuset=/,global_oom"] {
            let record = format!(
                "6,912,8,-;oom-kill:constraint={place},task_memcg=/x/tare-a-b,task=tail,pid=2,uid=0\n"
            );
            let kill = kill_in(record.as_bytes(), "tare-a-b", 0).expect("it is about the box");
            assert!(!kill.at_own_limit, "{record}");
        }
    }
}
