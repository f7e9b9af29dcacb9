//! The messages between a creator, a client and a keeper, and the files that a keeper writes.
//!
//! A stream socket carries length-prefixed frames. The creator of a box sends the
//! [`Plan`], which describes the box, then the [`Go`], which says what runs in it, then
//! [`Request`]s. Every later client sends a [`Call`]. Both get [`Report`]s. Each side
//! treats what it reads as untrusted input: a frame has a size limit and decoding cannot
//! panic. A detached box writes its output to a log ([`log`]), and its keeper writes
//! what happens to a file of one page ([`journal`]).
//!
//! The plan and the go pass between one binary and itself. Calls and the files must be
//! understood by later versions of tare: variants of enums are only added at the end, and
//! [`PROTOCOL`] counts changes that are not compatible.

mod call;
mod cause;
mod channel;
pub mod file_programs;
mod frame;
pub mod journal;
pub mod log;
mod plan;
pub mod port;

pub use call::{
    AtEnd, Call, Claim, Exec, ExecStreams, Go, KeeperUsage, LaunchStep, PROTOCOL, Program, Refusal,
    Report, Request, SetupStep, Versioned,
};
pub use cause::{Cause, End, Pressure};
pub use channel::{Channel, Received};
pub use frame::{
    CALL_BYTES_MAX, FrameError, PLAN_BYTES_MAX, REPORT_BYTES_MAX, REQUEST_BYTES_MAX, decode, encode,
};

pub use plan::{
    BpfInstruction, CREATOR_FD, Capabilities, DetachedPlan, ExportPlan, FIRST_ROLE_FD, Filesystem,
    GuestPlan, HostEntry, HostFile, Identity, KEEPER_NAME, LandlockPlan, MACHINE_NAME, MachinePlan,
    MonitorFd, Plan, ProcPlan, Profile, Resource, ResourceLimit, Role, RootPlan, ScratchPlan,
    SharedTree, TerminalPlan, TreeSource, VolumePlan,
};
