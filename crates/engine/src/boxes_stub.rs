//! The calls of long-lived boxes that `tare logs` is built on, with nothing
//! behind them until the engine's own are merged.

use tare_kernel::process::Process;

use crate::logs::Logs;
use crate::{BoxId, Engine, Error, ErrorKind};

impl Engine {
    pub fn find(&self, reference: &str) -> Result<BoxId, Error> {
        let message = format!("there is no box '{reference}' (see 'tare ls -a')");
        BoxId::parse(reference).ok_or_else(|| Error::new(ErrorKind::BadRequest, message))
    }

    pub fn logs(&self, id: &BoxId) -> Result<(Logs, Option<Process>), Error> {
        let message = format!("box {id} has no log yet");
        Err(Error::new(ErrorKind::Failed, message))
    }
}
