//! The requests to a keeper, and its reports.
//!
//! ```text
//! creator ─ plan, go, Request ─▶ keeper over the socket that the keeper inherits
//! client  ── Call, Request ──▶ keeper   over a connection to the box's own socket
//!         ◀───── Report ──────
//! ```

use std::fmt;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::cause::End;
use crate::plan::{HostFile, Identity, TerminalPlan};

/// From the creator after the plan, and from the client of an [`Exec`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Start the command: the keeper's identity is on record. The creator sends this once.
    Go(Box<Go>),
    /// Send this signal to the command, or to the process of this connection.
    Signal(i32),
    /// The box no longer depends on its creator.
    Detach,
    /// End the command, or the process of this connection, at this boot-clock time. A process that
    /// was started before its work was known gets its deadline with the work.
    Deadline { at_ns: u64 },
    /// The process of this connection, which was started before its work was known, gets it now: until
    /// this boot-clock time.
    Work { deadline_ns: Option<u64>, at_end: AtEnd },
}

/// What the keeper does when a process that has got its work ends, beside the report of its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AtEnd {
    #[default]
    Nothing,
    /// The box ends, right after the report.
    EndBox,
    /// The keeper says first if there are no files: [`Report::HomeEmpty`].
    LookForFiles,
}

/// The command of a box, if it has one, and the deadlines of the box.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Go {
    /// The command, whose end ends the box. `None` for a box that waits for execs.
    pub exec: Option<Exec>,
    /// Boot-clock nanoseconds at which the timeout ends the box.
    pub deadline_ns: Option<u64>,
    /// Boot-clock nanoseconds at which the lease ends the box.
    pub lease_ns: Option<u64>,
    /// For a box that has waited in a pool.
    pub claim: Option<Claim>,
}

/// The settings of a box from a pool that come from the request that uses it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The environment and the working directory of all processes of the box.
    pub env: Vec<Vec<u8>>,
    pub workdir: Vec<u8>,
    /// Another host name.
    pub hostname: Option<String>,
    /// New content of files that are [`HostFile::rewritable`].
    pub files: Vec<HostFile>,
}

/// The version of calls and their reports. A keeper refuses calls of another version, so
/// that an upgraded tare can say why an old box does not answer.
pub const PROTOCOL: u8 = 1;

/// A message that begins with the version of the protocol.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versioned<M> {
    version: Version,
    pub message: M,
}

impl<M> Versioned<M> {
    pub fn new(message: M) -> Self {
        Self { version: Version, message }
    }
}

/// Reads as [`PROTOCOL`] and as nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
struct Version;

impl From<Version> for u8 {
    fn from(_: Version) -> Self {
        PROTOCOL
    }
}

impl TryFrom<u8> for Version {
    type Error = &'static str;

    fn try_from(version: u8) -> Result<Self, Self::Error> {
        if version == PROTOCOL { Ok(Self) } else { Err("another version of the protocol") }
    }
}

/// The first frame of a connection to a box, as [`Versioned`]. All but [`Call::Exec`]
/// are answered by one report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// Start another process. With [`ExecStreams::Passed`] three descriptors
    /// come with this frame: its standard streams.
    Exec(Exec),
    /// Send this signal to the command.
    Signal(i32),
    /// Ask the command to stop, and end the box if it has not after this time.
    Stop { grace_ns: u64 },
    /// End the box at this boot-clock time, or at none.
    Lease { ends_ns: Option<u64> },
    /// Report the usage that only the keeper can see.
    Usage,
    /// Send the descriptor of the command's standard input with the report.
    Input,
    /// Freeze every process of the workload.
    Freeze,
    /// The workload was resumed by the caller: write it to the journal.
    Resumed,
    /// The machine of the box is to give back this much of the memory that it was started with.
    MachineMemory { less_bytes: u64 },
    /// The box in the machine may have this many processes.
    MachinePids(u32),
}

/// Another process of the workload, with the box's own limits and filters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    pub program: Program,
    /// Variables as `KEY=VALUE`, in addition to those of the box.
    #[serde(deserialize_with = "few")]
    pub env: Vec<Vec<u8>>,
    /// `None`: as the box's command.
    pub workdir: Option<Vec<u8>>,
    /// `None`: as the box's command.
    pub identity: Option<Identity>,
    pub streams: ExecStreams,
    /// The timeout, after which its whole process tree is killed.
    pub timeout_ns: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Program {
    Command(#[serde(deserialize_with = "few")] Vec<Vec<u8>>),
    /// Tare's own: writes an archive of this path to its standard output.
    Pack(Vec<u8>),
    /// Tare's own: writes an archive of the regular files that it can read below this path.
    PackFiles(Vec<u8>),
    /// Tare's own: unpacks its standard input into this directory, or into the
    /// one that the path is in.
    Unpack(Vec<u8>),
    /// Tare's own: writes the file at this path to its standard output.
    Read(Vec<u8>),
    /// Tare's own: lists the directory at this path on its standard output.
    List(Vec<u8>),
    /// Tare's own: writes its standard input to a file at this path.
    Write(Vec<u8>),
    /// Tare's own: removes the file or directory at this path.
    Remove(Vec<u8>),
    /// The clone that was made with the keeper. It is confined now, and was not started before.
    Clone,
}

impl Program {
    /// Returns whether this is a program of tare that copies files.
    pub fn is_copy(&self) -> bool {
        match self {
            Self::Command(_) | Self::Clone => false,
            Self::Pack(_)
            | Self::PackFiles(_)
            | Self::Unpack(_)
            | Self::Read(_)
            | Self::List(_)
            | Self::Write(_)
            | Self::Remove(_) => true,
        }
    }
}

/// `execve` takes 2 MiB of strings and pointers to them (a quarter of the 8 MiB stack limit). More
/// strings than this do not fit, even if all are empty.
const STRINGS_MAX: usize = (2 << 20) / 9;

/// Reads a bounded number of strings. An empty string has one byte in a frame and takes many times
/// that in memory.
fn few<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Vec<u8>>, D::Error> {
    struct Few;
    impl<'de> Visitor<'de> for Few {
        type Value = Vec<Vec<u8>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {STRINGS_MAX} strings")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Self::Value, A::Error> {
            let mut strings = Vec::new();
            while let Some(string) = sequence.next_element()? {
                if strings.len() == STRINGS_MAX {
                    return Err(serde::de::Error::invalid_length(STRINGS_MAX + 1, &self));
                }
                strings.push(string);
            }
            Ok(strings)
        }
    }
    deserializer.deserialize_seq(Few)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExecStreams {
    /// The client's pipes. When the client is gone, the process is killed.
    Passed,
    /// A terminal of the box, whose master side goes to the client.
    Terminal(TerminalPlan),
    /// The box's log. The process does not need its client. The input of the box's command may stay
    /// open for clients that attach.
    Log { keep_stdin: bool },
    /// The streams that the keeper inherited. Only for the box's command.
    Inherited,
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
    Streams,
    Fork,
    Detach,
    /// The machine did not answer; the subject has its last lines.
    Boot,
}

/// The step of starting the command that a failure belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LaunchStep {
    Mark,
    Session,
    Limits,
    Credentials,
    WorkingDirectory,
    Seccomp,
    Exec,
}

/// Why a keeper refuses a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// The keeper runs as many processes for clients as it can.
    Busy,
    /// The command was started without a way to its standard input.
    NoInput,
    /// The box has no log: its output goes to its creator.
    NoLog,
    /// The frame or its descriptors are invalid.
    Malformed,
    /// The box is paused: a new process would not begin to run.
    Paused,
    /// The workload has no cgroup of its own.
    NoFreezer,
    /// The journal cannot be written, so other commands would not learn that the box is paused.
    NoJournal,
    /// The monitor of the box's machine takes no commands.
    NoMonitor,
}

/// Usage that only the keeper can see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperUsage {
    /// `None` for a box without its own scratch space.
    pub scratch_bytes: Option<u64>,
    pub output_bytes: u64,
    pub output_dropped_bytes: u64,
}

/// A message of a keeper to its creator or a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// A pseudo-terminal of the box; its master side travels with this frame.
    Terminal,
    /// The box could not be made; the keeper is gone after this.
    SetupFailed {
        step: SetupStep,
        subject: String,
        errno: i32,
    },
    /// The process could not be started; if it was the box's command, the keeper
    /// is gone after this.
    LaunchFailed {
        step: LaunchStep,
        errno: i32,
    },
    /// The process runs: its `execve` has succeeded.
    Started,
    /// It ended; if it was the box's command, the box ends with it. After its timeout,
    /// every process that it started has been killed.
    Ended(End),
    /// The box is detached.
    Detached,
    /// The call succeeded.
    Done,
    Usage(KeeperUsage),
    /// The command's standard input travels with this frame.
    Input {
        is_terminal: bool,
    },
    Refused(Refusal),
    /// The scratch space was full when the process had ended; comes before [`Report::Ended`].
    ScratchFull,
    /// The usage of a box in a machine, where only the machine's kernel can count processes.
    MachineUsage {
        usage: KeeperUsage,
        /// Without the keeper.
        processes: u64,
        /// How much memory the machine's kernel has given back since its start.
        given_back_bytes: u64,
    },
    /// `/work` had no entries when the process had ended; comes before [`Report::Ended`].
    HomeEmpty,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CALL_BYTES_MAX, FrameError, decode, encode};

    #[test]
    fn a_call_of_another_version_does_not_decode() {
        let call = Versioned::new(Call::Usage);
        let mut frame = encode(&call, CALL_BYTES_MAX).unwrap();
        let decoded = decode::<Versioned<Call>>(&frame, CALL_BYTES_MAX);
        assert_eq!(decoded, Ok(Some((call, frame.len()))));
        assert_eq!(frame[4], PROTOCOL, "the version is the first byte of the message");
        frame[4] += 1;
        let decoded = decode::<Versioned<Call>>(&frame, CALL_BYTES_MAX);
        assert_eq!(decoded, Err(FrameError::Malformed));
    }
}
