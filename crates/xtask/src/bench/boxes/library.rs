//! exec as a library call: a program that has opened the engine once and asks
//! for one process after another. No tare process is started for it.

use super::super::RunOnce;
use crate::failure::{Doing, Failure};
use std::path::Path;
use tare_engine::Engine;

/// Runs `command` in the box each time; was seen to run it, or there is none.
pub fn subject(
    state_root: &Path,
    _id: &str,
    _command: &'static [&'static str],
) -> Result<RunOnce<'static>, Failure> {
    let _engine = Engine::open(Some(state_root.to_owned()))
        .doing(|| "cannot open the state root".to_owned())?;
    Err(Failure::new("the engine has no exec yet"))
}
