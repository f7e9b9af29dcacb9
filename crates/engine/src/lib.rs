//! Boxes: what they are, how they are made, how they end.
//!
//! The engine is a library with two faces to come (the command line, HTTP). It
//! never prints, keeps no state of its own beside the state root, and ends every
//! box through one function, whatever happened before.

mod attached;
mod engine;
mod error;
mod id;
pub mod seccomp;
pub mod spec;

pub use attached::{Attached, Ending, Event, Exit, Streams};
pub use engine::{Engine, Stdin};
pub use error::{Doing, Error, ErrorKind};
pub use id::BoxId;
