//! The one way out. Exit, timeout, a failed start, a creator that died: every
//! box ends here, by its id alone.
//!
//! Each step accepts what is absent, half-made or already released, returns
//! only after it saw the thing gone, and comes before the one that removes the
//! record: if a step fails, the box stays on record and can be tried again.
//!
//! ```text
//! keeper killed ─▶ cgroups seen empty ─▶ keeper reaped ─▶ cgroups removed
//!     ─▶ name released ─▶ record removed
//! ```

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tare_kernel::process::Process;

use crate::error::{Doing, Error, ErrorKind};
use crate::holdings::{cgroup, name};
use crate::host::Host;
use crate::id::BoxId;
use crate::layout::Layout;
use crate::record::{self, Record};

/// How long a box may take to die before it counts as stuck.
const OWN_WITHIN: Duration = Duration::from_secs(10);
/// The same for somebody else's: no command waits long for another's mess.
const ABANDONED_WITHIN: Duration = Duration::from_millis(200);

/// Ends a box whose keeper is our child.
pub fn attached(
    layout: &Layout,
    host: &Host,
    id: &BoxId,
    record: Record,
    keeper: &Process,
) -> Result<(), Error> {
    teardown(layout, host, id, record, Some(keeper), OWN_WITHIN)
}

/// Ends a box whose creator is gone or never got far.
pub fn abandoned(layout: &Layout, host: &Host, id: &BoxId, record: Record) -> Result<(), Error> {
    let keeper = recorded_keeper(host, &record);
    teardown(layout, host, id, record, keeper.as_ref(), ABANDONED_WITHIN)
}

fn teardown(
    layout: &Layout,
    host: &Host,
    id: &BoxId,
    record: Record,
    keeper: Option<&Process>,
    within: Duration,
) -> Result<(), Error> {
    let intent = record.intent();
    let recorded = intent.map(|intent| intent.cgroup_roots.clone());
    let roots = recorded.unwrap_or_else(|| current_roots(host));
    if let Some(keeper) = keeper {
        keeper
            .kill()
            .doing(|| format!("cannot kill the keeper of box {id}"))?;
        wait_gone(keeper, id, within)?;
    }
    cgroup::release(&roots, id, within)?;
    if let Some(taken) = intent.and_then(|intent| intent.spec.name.as_ref()) {
        name::release(layout, taken, id)?;
    }
    record::remove(&layout.boxes(), id)
}

fn current_roots(host: &Host) -> Vec<PathBuf> {
    host.cgroups.all().into_iter().map(Path::to_owned).collect()
}

/// The recorded process, if it is provably that one and alive. A number alone
/// proves nothing: where the kernel has no better identity, the cgroup is killed
/// and nobody else, and without a cgroup the keeper has ended with its creator,
/// whose socket it watches.
fn recorded_keeper(host: &Host, record: &Record) -> Option<Process> {
    let identity = record.identity()?;
    if identity.boot_id != host.boot_id {
        return None;
    }
    let process = Process::open(identity.pid).ok()?;
    let inode = process.inode().ok()??;
    (identity.pidfd_inode == Some(inode)).then_some(process)
}

/// The first process of a PID namespace is only gone when all others are.
fn wait_gone(keeper: &Process, id: &BoxId, within: Duration) -> Result<(), Error> {
    let doing = || format!("cannot wait for the keeper of box {id}");
    let start = Instant::now();
    while !keeper.wait_dead(within).doing(doing)? {
        if start.elapsed() >= within {
            return Err(Error::new(ErrorKind::Failed, format!("box {id} is stuck"))
                .because("its keeper does not die")
                .with_hint(
                    "a process in it may hang in the kernel; it is tried again by the next command",
                ));
        }
    }
    keeper.reap().doing(doing).map(drop)
}
