//! What a creator and a keeper say to each other, and nothing else.
//!
//! One stream socket per box carries length-prefixed frames: first the [`Plan`],
//! then [`Request`]s one way and [`Report`]s the other. The host treats every
//! report as untrusted input: a frame has a size limit and decoding cannot panic.
//! What a detached box writes goes through no socket but into a log ([`ring`]).

mod frame;
mod message;
mod plan;
pub mod ring;

pub use frame::{FrameError, PLAN_BYTES_MAX, REPORT_BYTES_MAX, REQUEST_BYTES_MAX, decode, encode};
pub use message::{LaunchStep, Report, Request, SetupStep};
pub use plan::{
    BpfInstruction, Capabilities, Filesystem, HostEntry, HostFile, Identity, KEEPER_FDS,
    KEEPER_NAME, LandlockPlan, OWN_NETWORK, Plan, ResourceLimit, RootPlan, TerminalPlan,
    TreeSource, VolumePlan, Workload,
};
