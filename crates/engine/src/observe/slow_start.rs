//! What a box waits for that is being made for longer than usual. Only the kernel knows: it shows which
//! objects of the box there are, and the system call in which its keeper or its creator waits.

use std::time::Duration;

use tare_kernel::clock::boot_ns;
use tare_kernel::process::Process;

use crate::actor::Actor;
use crate::holdings::cgroup::CgroupReader;
use crate::host::layout::BoxAt;
use crate::observe::Observation;

/// Most boxes are made in milliseconds.
const SLOW_AFTER: Duration = Duration::from_secs(2);

impl Observation {
    /// The step at which the creation is, if it is slow.
    pub(super) fn slow_start(&self, at: BoxAt<'_>) -> Option<String> {
        let created = self.record.lines.created.as_ref()?;
        let age = Duration::from_nanos(boot_ns().saturating_sub(created.created_ns));
        if age < SLOW_AFTER || self.is_of_earlier_boot {
            return None;
        }
        let has_cgroup = || CgroupReader::new(at, &self.record).exists();
        let (step, call) = match self.keeper() {
            Some(keeper) => ("its keeper builds it", keeper.system_call()),
            None => {
                let step = if has_cgroup() {
                    "its creator opens its root and volumes, or starts its keeper"
                } else {
                    "its creator makes its name and cgroups"
                };
                (step, created.creator.as_ref().and_then(system_call))
            }
        };
        let call = call.map(|call| format!(", in {call}")).unwrap_or_default();
        Some(format!("{step}{call}"))
    }
}

fn system_call(creator: &Actor) -> Option<String> {
    match creator {
        Actor::Command { pid, .. } => Process::open(i32::try_from(*pid).ok()?).ok()?.system_call(),
        // A server makes boxes on several threads.
        Actor::Http { .. } | Actor::Server { .. } => None,
    }
}
