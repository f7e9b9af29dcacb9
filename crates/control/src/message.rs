//! Requests to a keeper, reports from it.

use serde::{Deserialize, Serialize};

/// From the creator to the keeper, after the plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// The keeper's identity is on record: the command may start.
    Go,
    /// Send this signal to the command.
    Signal(i32),
}

/// The step of making the box that a failure belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetupStep {
    ReadPlan,
    JoinCgroupNamespace,
    PrivateMounts,
    Scratch,
    Root,
    Proc,
    Dev,
    Volume,
    EnterRoot,
    Network,
    Hostname,
    Terminal,
    Landlock,
    Fork,
}

/// The step of starting the command that a failure belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LaunchStep {
    Session,
    Limits,
    Credentials,
    WorkingDirectory,
    Seccomp,
    Exec,
}

/// From the keeper to the creator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// The box's pseudo-terminal; its master side travels with this frame.
    Terminal,
    /// The box could not be made; the keeper is gone after this.
    SetupFailed {
        step: SetupStep,
        subject: String,
        errno: i32,
    },
    /// The command could not be started; the keeper is gone after this.
    LaunchFailed { step: LaunchStep, errno: i32 },
    /// The command runs: its `execve` has succeeded.
    Started,
    /// The command ended with this `wait` status; the box ends with it.
    Exited { wait_status: i32 },
    /// The deadline passed; the box ends.
    TimedOut,
}
