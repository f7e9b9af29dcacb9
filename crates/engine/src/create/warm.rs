//! Boxes ahead of their requests: a server makes a box, which waits in a pool until a request claims
//! it.
//!
//! ```text
//! record ─▶ `warm` on record ─▶ prepare ─▶ (waits) ─▶ `claimed` on record ─▶ go ─▶ command
//! ```
//!
//! A waiting box is attached: it ends with the server, and with the thread that made it.

use tare_kernel::clock::boot_ns;

use crate::create::{self, Mode, NewBox, Prepared, abandon, plan, prepare};
use crate::error::{Context, Error};
use crate::host::layout::StateRoot;
use crate::record::lines::Line;
use crate::session::stdio::Stdin;
use crate::session::{Session, TeardownFds};
use crate::spec::{BoxId, Spec};

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

impl Prepared {
    /// Claims the box for a spec that differs from its own only in what the go decides: command,
    /// environment, timeout, tenant and labels. Starts the command.
    pub fn claim(self, spec: &Spec) -> Result<Session, Error> {
        let Self { mut session, lease, .. } = self;
        if let Err(error) = session.claim(spec) {
            return Err(session.abandon(error));
        }
        let session = session.of_command(spec.command.first().cloned(), spec.workdir.clone());
        // The streams are those that the box was made with.
        let new = NewBox { spec, mode: Mode::Attached(Stdin::Empty) };
        let exec = plan::first_exec(new)
            .map(|exec| tare_control::Exec { env: plan::environment(spec), ..exec });
        Self { session, timeout: spec.timeout, lease, boots: false }.go(exec)
    }

    /// Sends the go without a command. The box then waits for execs.
    pub fn go_without_command(self) -> Result<Session, Error> {
        Self { timeout: None, ..self }.go(None)
    }
}
