//! Executions: POST /v1/exec and the sessions behind it.

pub mod box_spec;
pub mod calls;
pub mod exec;
pub mod inputs;
pub mod known;
pub mod outputs;
pub mod queue;
pub mod session;
pub mod task;
