//! The engine: boxes on one state root.
use crate::attached::Attached;
use crate::error::Error;
use crate::spec::Spec;
use std::path::PathBuf;

/// What the command's descriptor 0 is, when it has no terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stdin {
    /// At end of file from the start.
    Empty,
    /// A pipe whose other end is in [`crate::Streams`].
    Pipe,
}

#[derive(Debug)]
pub struct Engine {}

impl Engine {
    /// `state_root`: `None` for the default (`/run/tare`, or a private directory of the user).
    pub fn open(state_root: Option<PathBuf>) -> Result<Self, Error> {
        let _ = state_root;
        unimplemented!()
    }

    /// Makes a box whose life hangs on the returned value and on this process.
    pub fn run(&self, spec: &Spec, stdin: Stdin) -> Result<Attached, Error> {
        let _ = (spec, stdin);
        unimplemented!()
    }
}
