//! Network and mount namespaces that contain a process.

use std::fs;

use super::Things;
use super::process::Process;

pub fn observe(processes: &[Process]) -> Things {
    processes.iter().flat_map(|process| namespaces_of(process.pid)).collect()
}

fn namespaces_of(pid: u32) -> Vec<String> {
    ["net", "mnt"]
        .iter()
        .filter_map(|kind| fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok())
        .map(|namespace| format!("namespace {}", namespace.display()))
        .collect()
}
