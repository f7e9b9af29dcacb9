//! What machines are made of: guest kernels, and the monitor that runs a machine.
//!
//! Nothing here belongs to a box. Kernels are installed files in a directory of their own, which
//! does not depend on the state root.

use std::path::PathBuf;
use std::time::Duration;

use kernels::Kernels;

mod apt;
mod decompress;
mod image;
pub mod initramfs;
pub mod kernels;
pub mod monitor;
mod package;
mod parts;
pub mod qemu;

/// What the user has set for all machines.
#[derive(Debug)]
pub struct MachineSettings {
    pub kernels: Kernels,
    /// `None`: the first QEMU in PATH.
    pub monitor: Option<PathBuf>,
    /// How long a machine may take to boot; `None`: it depends on the accelerator.
    pub boot_within: Option<Duration>,
}
