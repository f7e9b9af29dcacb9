//! Boxes: what they are, how they are made, how they end.
//!
//! The engine is a library with two faces (the command line, later HTTP). It
//! never prints, keeps no state of its own beside the state root, and ends every
//! box through one function, whatever happened before.

mod account;
mod attached;
mod attachment;
mod audit;
mod boxes;
mod cause;
mod changing;
mod comparison;
mod copying;
mod create;
mod detached;
mod ending;
mod engine;
mod error;
mod executed;
mod exit;
mod explaining;
mod failure;
pub mod files;
mod flaw;
mod gauge;
mod history;
mod holdings;
mod host;
mod id;
mod keeper;
mod kept;
mod layout;
mod lifecycle;
mod line;
mod lock;
pub mod logs;
mod observed;
mod plan;
mod reason;
mod reclaiming;
mod record;
mod reports;
pub mod seccomp;
mod shares;
pub mod spec;
mod state_root;
mod status;
mod stdio;
mod story;
mod sweep;
mod tag;
mod teardown;
mod tending;
mod timestamp;
mod traces;
mod trees;
mod view;

pub use account::DetachOptions;
pub use attached::{Attached, Ending, Event, Streams};
pub use attachment::Attachment;
pub use audit::{
    Audit, AuditedBox, Fading, FadingPort, Held, HeldNamespace, HeldPort, HeldProcess, KeptBy,
};
pub use changing::Changes;
pub use comparison::{Differences, Lost, LostKind, Orphan, OrphanKind, Would};
pub use copying::{Copying, Found};
pub use detached::Started;
pub use ending::{EndWatch, Looked, Stopping};
pub use engine::Engine;
pub use error::{Doing, Error, ErrorKind, reason};
pub use executed::{ExecSpec, Executed};
pub use exit::Exit;
pub use explaining::Explanation;
pub use gauge::{Change, Gauge, GaugeSettings, Gauges, Level, Reading, Refusal, Thresholds, Unit};
pub use holdings::cgroup::STILL_POPULATED;
pub use host::Host;
pub use id::BoxId;
pub use status::{Details, Ended, EndedBy, Holding, State, Status, Usage};
pub use stdio::Stdin;
pub use story::{Step, StepKind, Story};
pub use sweep::{Outcome, Subject, Swept};
pub use tare_kernel::process::Process as Keeper;
pub use timestamp::Timestamp;
