//! Boxes ahead of their requests: a server makes a box, which waits in a pool until a request claims
//! it.
//!
//! ```text
//! record ─▶ `warm` on record ─▶ prepare ─▶ (waits) ─▶ `claimed` on record ─▶ go ─▶ command
//!                                                                   [─▶ name]        [─▶ detach]
//! ```
//!
//! A waiting box is attached: it ends with the server, and with the thread that made it. If a request
//! for a detached box is to claim it, it has a log, a journal and a cgroup for its workload, as every
//! detached box.

use tare_kernel::clock::boot_ns;

use crate::create::detach::{Started, detach, with_log_in_memory};
use crate::create::{self, Mode, NewBox, Prepared, abandon, plan, prepare};
use crate::error::{Context, Error};
use crate::history;
use crate::host::layout::StateRoot;
use crate::record::lines::{ClaimedDetached, Lease, Line};
use crate::session::stdio::Stdin;
use crate::session::{Session, TeardownFds};
use crate::spec::{BoxId, DetachOptions, Spec};

/// Makes a box that waits in a pool.
pub fn make(
    root: &StateRoot,
    new: NewBox<'_>,
    pool: &str,
    tend: &dyn Fn(&BoxId),
) -> Result<Prepared, Error> {
    let id = BoxId::random();
    let at = root.at(&id);
    let reserve = TeardownFds::take().context(|| "cannot reserve descriptors".into())?;
    let mut record = create::record(at, new, tend)?;
    let line = Line::Warm { pool: pool.to_owned(), at_ns: boot_ns() };
    if let Err(error) = record.add(line).context(|| format!("cannot record the pool of box {id}")) {
        drop(reserve);
        return Err(abandon(at, record, error, tend));
    }
    prepare(at, record, reserve, new, tend)
}

/// The options of a box that waits until a request for a detached box claims it.
pub fn waiting_options() -> DetachOptions {
    DetachOptions { lease: None, ..DetachOptions::default() }
}

impl DetachOptions {
    /// Returns whether a box that waits can have these options. Lease, retention, removal and stdin are
    /// decided by the go; a box with other options must be made with them.
    pub fn can_wait(&self) -> bool {
        let Self { lease, retention, remove, stdin, .. } = *self;
        *self == Self { lease, retention, remove, stdin, ..waiting_options() }
    }
}

/// Claims a waiting box as a detached box. The request may give it a name. Returns when its
/// command runs. A failure leaves nothing.
pub fn claim_detached(
    root: &StateRoot,
    mut prepared: Prepared,
    (spec, options): (&Spec, &DetachOptions),
) -> Result<Started, Error> {
    let (id, lease) = (prepared.id().clone(), Lease::of(options.lease));
    prepared.lease = lease;
    let session = &mut prepared.session;
    let claimed = history::reserve(root, &spec.tenant)
        .and_then(|()| with_log_in_memory(options, spec))
        .and_then(|options| {
            session.claim_as(spec, Some(ClaimedDetached { options: options.clone(), lease }))?;
            // After the record: it says which name the box may have.
            create::take_name(root.at(&id), spec)?;
            Ok(options)
        });
    match claimed {
        Ok(options) => {
            let new = NewBox { spec, mode: Mode::Detached(&options) };
            detach(prepared.go_claimed(new)?, None)
        }
        Err(error) => Err(prepared.session.abandon(error)),
    }
}

impl Prepared {
    /// Claims the box for a spec that differs from its own only in what the go decides: command,
    /// environment, working directory, timeout, tenant and labels. Starts the command.
    pub fn claim(mut self, spec: &Spec) -> Result<Session, Error> {
        if let Err(error) = self.session.claim(spec) {
            return Err(self.session.abandon(error));
        }
        // The streams are those that the box was made with.
        self.go_claimed(NewBox { spec, mode: Mode::Attached(Stdin::Empty) })
    }

    fn go_claimed(self, new: NewBox<'_>) -> Result<Session, Error> {
        let NewBox { spec, .. } = new;
        let session = self.session.of_command(spec.command.first().cloned(), spec.workdir.clone());
        let claimed = Self { session, timeout: spec.timeout, ..self };
        claimed.go(plan::first_exec(new), Some(plan::claim(spec)))
    }

    /// Sends the go without a command. The box then waits for execs.
    pub fn go_without_command(self) -> Result<Session, Error> {
        Self { timeout: None, ..self }.go(None, None)
    }
}
