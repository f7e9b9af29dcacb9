//! Whether KVM can run machines here, and otherwise why not.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use tare_kernel::kvm::{self, Kvm};

/// A guest of four instructions ends within a millisecond.
const PROBE_WITHIN: Duration = Duration::from_secs(2);

/// Runs a guest. One that does not end by `until` boots nothing.
pub fn probe(until: Instant) -> Kvm {
    kvm::probe(until.saturating_duration_since(Instant::now()).min(PROBE_WITHIN))
}

/// Returns why KVM cannot be used, and what the user can do about it.
pub fn obstacle(found: Kvm) -> Option<String> {
    match found {
        Kvm::Works => None,
        Kvm::Absent => Some("there is no /dev/kvm".to_owned()),
        Kvm::Denied => Some(format!("this user may not open /dev/kvm; {}", how_to_open())),
        Kvm::BootsNothing => Some("/dev/kvm is there and boots no ordinary kernel".to_owned()),
    }
}

/// Names the group of `/dev/kvm`.
fn how_to_open() -> String {
    let group = fs::metadata("/dev/kvm").map(|metadata| metadata.gid());
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    let name = group.ok().and_then(|group| {
        let has_id = |line: &&str| line.split(':').nth(2) == Some(&group.to_string());
        groups.lines().find(has_id)?.split(':').next().map(str::to_owned)
    });
    let name = name.unwrap_or_else(|| "kvm".to_owned());
    format!("add the user to the group {name}")
}
