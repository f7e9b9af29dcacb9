//! What tare asks of a monitor, the program that runs a machine. Nothing here depends on which
//! monitor it is.

use std::ffi::OsString;
use std::path::Path;

use crate::spec::Accelerator;

/// A machine that a monitor has to make. Its kernel, its first files, its console and its port are
/// descriptors with fixed numbers (`tare_control::MonitorFd`).
#[derive(Debug)]
pub struct MachineOrder<'a> {
    pub accelerator: Accelerator,
    pub memory_bytes: u64,
    pub processors: u32,
    pub shares: &'a [Share],
    /// Whether the kernel takes devices from its command line.
    pub devices_on_command_line: bool,
    /// The program that the kernel starts, from its first files.
    pub init: &'a str,
    /// How fast the time stamp counter of the host counts.
    pub counter_khz: u64,
}

/// A directory of the monitor's root that the machine can mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    pub name: String,
    pub path: String,
    pub writable: bool,
}

/// The program that runs machines.
pub trait Monitor {
    fn program(&self) -> &Path;

    fn version(&self) -> &str;

    /// Whether it was built with this accelerator.
    fn has(&self, accelerator: Accelerator) -> bool;

    /// How much memory it needs beside the memory of the machine, at most.
    fn overhead_bytes(&self, accelerator: Accelerator) -> u64;

    /// The command that sets the memory of a machine, with `{}` for the number of MiB.
    fn set_memory(&self) -> &'static str;

    /// Its arguments, without its name.
    fn arguments(&self, order: &MachineOrder<'_>) -> Vec<OsString>;
}
