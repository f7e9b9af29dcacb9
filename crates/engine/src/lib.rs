//! Boxes: what they are, how they are made, how they end.
//!
//! The engine is a library with two faces (the command line and HTTP). It
//! never prints, keeps no state of its own beside the state root, and ends every
//! box through one function, whatever happened before.

mod actor;
mod audit;
mod care;
mod create;
mod engine;
mod error;
mod gauge;
mod hint;
mod history;
mod holdings;
mod host;
mod observe;
mod operate;
mod receipt;
mod record;
mod session;
pub mod spec;
mod teardown;
mod time;
pub mod version;
pub mod vm;

pub use actor::Actor;
pub use audit::findings::{Finding, FindingKind};
pub use audit::{Audit, AuditedBox, KeptBy, KeptFiles, RemovedSince};
pub use care::Outcome;
pub use care::sweep::Swept;
pub use create::detach::Started;
pub use create::machine::{MEMORY_BYTES_MIN as MACHINE_MEMORY_BYTES_MIN, monitor_pids};
pub use create::seccomp;
pub use create::{Prepared, TemplateOf};
pub use engine::{Engine, Purpose};
pub use error::{BootFailure, Context, Error, ErrorKind, Hint, LimitName, reason};
pub use gauge::{Change, Counts, Gauge, GaugeSettings, Gauges, Level, Reading};
pub use gauge::{Thresholds, Unit};
pub use history::sentence::{Circumstances, Sentence, Subject};
pub use history::steps::{History, Step};
pub use history::store::{history_bytes, parse_history_bytes};
pub use history::text::StepKind;
pub use history::{Explanation, RemovedBox, STDERR_BYTES};
pub use holdings::cgroup::STILL_POPULATED;
pub use holdings::held_now::{Held, HeldNamespace, HeldPort, HeldProcess};
pub use host::cgroups::CgroupParent;
pub use host::{CgroupRoots, Host};
pub use observe::state::Duty;
pub use observe::view::{
    Cause, Details, End, GaugedUse, HeldObject, MachineDetails, Pressure, State, Status, Usage,
};
pub use operate::change::Changes;
pub use operate::filter::{BoxFilter, Condition};
pub use operate::find::Scope;
pub use operate::stop::{EndWatch, Looked, STOP_GRACE, Stopping};
pub use receipt::{LeftAlone, Receipt};
pub use record::lines::{EndedLine, Evidence, Failure, HeldItem, Reason, SeenGone};
pub use session::attach::Attachment;
pub use session::exec::ExecSpec;
pub use session::files::{Copied, Copy, PathKind};
pub use session::stdio::{Stdin, Streams};
pub use session::{Conclusion, Event, Session, files, logs};
pub use spec::name::RUN_LABEL;
pub use spec::{BoxId, DetachOptions};
pub use tare_control::AtEnd;
pub use tare_kernel::process::Process as Keeper;
pub use time::{Moment, Timestamp};
