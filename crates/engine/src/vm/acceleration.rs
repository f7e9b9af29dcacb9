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
        Kvm::Denied => {
            let group = fs::metadata("/dev/kvm").map(|metadata| metadata.gid()).ok();
            let groups = fs::read_to_string("/etc/group").unwrap_or_default();
            Some(denied(group, &groups))
        }
        Kvm::BootsNothing => Some("/dev/kvm is there and boots no ordinary kernel".to_owned()),
    }
}

/// Says who may open `/dev/kvm`, which belongs to this group. No user should join the group of root.
fn denied(group: Option<u32>, groups: &str) -> String {
    if group == Some(0) {
        return "only root may open /dev/kvm here".to_owned();
    }
    let name = group.and_then(|group| {
        let has_id = |line: &&str| line.split(':').nth(2) == Some(&group.to_string());
        groups.lines().find(has_id)?.split(':').next()
    });
    let name = name.unwrap_or("kvm");
    format!("this user may not open /dev/kvm; add the user to the group {name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_advised_to_join_the_group_of_kvm_unless_it_is_roots() {
        let groups = "root:x:0:\nkvm:x:104:\nvirt:x:105:ann\n";
        let join = "this user may not open /dev/kvm; add the user to the group ";
        for (group, said) in [
            (Some(0), "only root may open /dev/kvm here".to_owned()),
            (Some(105), format!("{join}virt")),
            (Some(9), format!("{join}kvm")),
            (None, format!("{join}kvm")),
        ] {
            assert_eq!(denied(group, groups), said, "{group:?}");
        }
    }
}
