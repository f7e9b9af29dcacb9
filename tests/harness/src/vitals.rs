//! What a long-lived process costs its host, as the kernel counts it.

use std::fs;

/// What one process costs at one moment.
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

/// How much the allocator's memory may vary between measurements: ten measurements of a server
/// without growth varied by 2.7 MB.
const MEMORY_NOISE_BYTES: u64 = 6 << 20;

/// Checks that memory does not grow: the median of the last third of the measurements is at most a
/// little above that of the first third.
#[track_caller]
pub fn assert_no_slope(looks: &[Vitals]) {
    let bytes: Vec<u64> = looks.iter().map(|look| look.resident_bytes).collect();
    let third = bytes.len() / 3;
    let first = median(&bytes[..third]);
    let last = median(&bytes[bytes.len() - third..]);
    let most = first + MEMORY_NOISE_BYTES;
    assert!(last <= most, "from {first} to {last} bytes: {bytes:?}");
}

fn median(of: &[u64]) -> u64 {
    let mut sorted = of.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}
