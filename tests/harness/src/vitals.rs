//! What a process that lives long costs its host, as the kernel counts it.

use std::fs;

/// Of one process, at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vitals {
    pub descriptors: usize,
    pub threads: usize,
    pub resident_bytes: u64,
}

impl Vitals {
    #[track_caller]
    pub fn of(pid: u32) -> Self {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let word = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
            word.unwrap_or_else(|| panic!("no {name} in {status}"))
        };
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("it lives");
        Self {
            descriptors: descriptors.count(),
            threads: usize::try_from(number("Threads:")).expect("few"),
            resident_bytes: number("VmRSS:") << 10,
        }
    }
}
