//! Boxes: what they are, how they are made, how they end.
//!
//! The engine is a library with two faces (the command line, later HTTP). It
//! never prints, keeps no state of its own beside the state root, and ends every
//! box through one function, whatever happened before.

mod attached;
mod boxes_stub;
mod engine;
mod error;
mod failure;
mod holdings;
mod host;
mod id;
mod keeper;
mod layout;
pub mod logs;
mod plan;
mod record;
pub mod seccomp;
pub mod spec;
mod teardown;
mod timestamp;
mod trees;
mod view;

pub use attached::{Attached, Ending, Event, Exit, Streams};
pub use boxes_stub::{
    Attachment, Changes, Copying, DetachOptions, Details, Ended, EndedBy, ExecSpec, Executed,
    Found, Holding, Started, State, Status, Usage,
};
pub use engine::{Engine, Stdin};
pub use error::{Doing, Error, ErrorKind};
pub use id::BoxId;
pub use timestamp::Timestamp;
