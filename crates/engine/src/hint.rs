//! What the user can do about an error.
//!
//! Most advice is the same for every caller. Advice that names a command or an option is a variant
//! of its own: the command line and each API have their own words for it.

use std::path::Path;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hint {
    /// Advice without commands and options.
    Text(String),
    /// See which boxes there are.
    ListBoxes,
    /// The box has ended: see how, or create another one.
    SeeHowItEnded,
    /// See what the box does, or end it by force.
    InspectOrForce,
    /// End the box by force.
    Force,
    /// Stop the box before it is removed, or end it by force.
    StopOrForce,
    /// Continue the stopped keeper, or end the box by force.
    ContinueKeeperOrForce,
    /// Resume the box.
    Resume,
    /// Choose another name, or remove the box that has it.
    ChooseAnotherName,
    /// A box with this id existed before: see what happened to it, or ask for another one.
    IdWasUsed,
    /// tare tries again by itself to end the box.
    TriedAgain,
    /// Create a detached box, for the purpose that the text names: `to change it later`.
    CreateDetached(&'static str),
    /// Pass large data in another way than in the command and its environment.
    PassLargeDataOtherwise,
    /// Create a box that keeps its files after its end.
    KeepFiles,
    /// Give the box more of what it had too little of.
    Raise(LimitName),
    /// Give the box more scratch space.
    MoreScratch,
    /// One of these limits may be too small.
    TooSmall(&'static [LimitName]),
    /// Lower this limit, or give the box more memory.
    LessOrMoreMemory(LimitName),
    /// This host cannot enforce the limit: give tare the rights, or leave the limit out.
    LeaveLimitOut(LimitName),
    /// Emulate the machine.
    Emulate,
    /// Use no network of the host, or no machine.
    NetworkOfMachine,
    /// Keep no files of a machine, and copy them before its end.
    FilesOfMachine,
    /// Give machines more time to boot, or see what this host can do.
    MoreTimeToBoot,
    /// See what this host can do.
    SeeDoctor,
    /// Leave the user out.
    LeaveUserOut,
    /// Leave the user out: a contained box has one user.
    ContainedHasOneUser,
    /// Give the scratch space no size, or keep no files, or run as root.
    LeaveScratchOrKeepOut,
    /// End the box, which waits in a pool. The server replaces it.
    EndWaiting,
    /// How long the history of a box is kept can be set.
    Retention,
    /// How much of all histories is kept can be set.
    HistorySize,
    /// Name a working directory that the box's user may enter.
    OtherWorkdir,
    /// Check that the program is in the directories that the box sees.
    ProgramInBox,
    /// Write a size.
    SizeForm,
    /// Write an environment variable.
    VariableForm,
    /// Write a label.
    LabelForm,
    /// Create another box with more memory: a machine cannot get more than it was started with.
    MoreMemoryInNewBox,
    /// Use no machine.
    NativeDriver,
    /// Contain no launcher in a machine, or use none.
    ContainOfMachine,
    /// Install a monitor that emulates processors, or use the host's.
    InstallEmulator,
    /// Add a kernel to this directory of the host, which clients of a server do not get to see.
    FetchKernel(Box<Path>),
    /// See which kernels for machines there are.
    ListKernels,
    /// The box is as before: see what its processes wait for, and try again.
    SeeProcesses,
    /// A receipt is kept for the retention of its box; that of a run has to be asked for.
    AskForReceipt,
    /// Another operation failed too, and has its own advice.
    Also(Box<Also>),
}

/// What a second failure adds to a hint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Also {
    /// The hint of the first failure.
    pub first: Option<Hint>,
    pub failure: String,
    pub advice: Hint,
}

/// A limit of a box that a caller can set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitName {
    Memory,
    Pids,
    Cpus,
    Scratch,
    Output,
    Timeout,
    Lease,
}

impl Hint {
    /// Replaces a text in advice that was written for one error.
    pub(crate) fn replace(&mut self, from: &str, to: &str) {
        if let Self::Text(text) = self {
            *text = text.replace(from, to);
        } else if let Self::Also(also) = self {
            also.failure = also.failure.replace(from, to);
            also.advice.replace(from, to);
            also.first.iter_mut().for_each(|hint| hint.replace(from, to));
        }
    }
}

impl From<&str> for Hint {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Hint {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}
