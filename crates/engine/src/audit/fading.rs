//! What the kernel frees a little later than the process that had it.
//!
//! None of it can be told apart by whose it was: these are facts about the host,
//! whoever made them, and no difference between records and host.

use serde::Serialize;
use tare_kernel::cgroup::tree;

use super::census::Census;
use crate::host::Host;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fading {
    /// Whether the kernel is dismantling network namespaces; `None` where its
    /// threads are not shown.
    pub network_namespaces: Option<bool>,
    /// Cgroups that were removed and that something still refers to; `None` where
    /// the kernel does not say.
    pub cgroups: Option<u64>,
}

impl Fading {
    pub(super) fn look(host: &Host, census: &Census) -> Self {
        let procfs = census.procfs.as_ref();
        Self {
            network_namespaces: procfs.and_then(|procfs| procfs.is_at_work("netns")),
            cgroups: host.meters().unified().and_then(tree::dying),
        }
    }
}
