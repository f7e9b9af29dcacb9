//! What a creator and a keeper say to each other, and nothing else.
//!
//! A stream socket carries length-prefixed frames: to the creator of a box, who
//! sends the [`Plan`] first and then [`Request`]s, and to every later client, who
//! sends a [`Call`]. Both get [`Report`]s. The host treats every report as
//! untrusted input: a frame has a size limit and decoding cannot panic.
//! What a detached box writes goes through no socket but into a log ([`log`]), and
//! what becomes of it into a file of one page ([`life`], [`events`]).

mod channel;
pub mod events;
pub mod files;
mod frame;
pub mod life;
pub mod log;
mod message;
mod plan;

pub use channel::{Channel, Received};
pub use frame::{
    CALL_BYTES_MAX, FrameError, PLAN_BYTES_MAX, REPORT_BYTES_MAX, REQUEST_BYTES_MAX, decode, encode,
};
pub use life::EndedBy;
pub use message::{
    Call, Exec, ExecStreams, Found, KeeperUsage, LaunchStep, Program, Refusal, Report, Request,
    SetupStep,
};
pub use plan::{
    BpfInstruction, Capabilities, DetachedPlan, Filesystem, HostEntry, HostFile, Identity,
    KEEPER_FDS, KEEPER_NAME, LandlockPlan, Plan, ResourceLimit, RootPlan, ScratchPlan,
    TerminalPlan, TreeSource, VolumePlan, Workload,
};
