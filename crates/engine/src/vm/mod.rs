//! What machines are made of: guest kernels, and the monitor that runs a machine.
//!
//! Nothing here belongs to a box. Kernels are installed files in a directory of their own, which
//! does not depend on the state root.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use kernels::Kernels;

pub mod acceleration;
mod apt;
mod decompress;
mod image;
pub mod initramfs;
pub mod kernels;
pub mod monitor;
mod package;
pub mod parts;
pub mod qemu;

/// What the user has set for all machines.
#[derive(Debug, Clone)]
pub struct MachineSettings {
    pub kernels: Kernels,
    /// `None`: the first QEMU in PATH.
    pub monitor: Option<PathBuf>,
    /// How long a machine may take to boot; `None`: it depends on the accelerator.
    pub boot_within: Option<Duration>,
}

/// The settings in force; `None`: this process makes no machines. A server replaces them when it
/// reads its configuration again. Cheap to clone, and all clones change together.
#[derive(Debug, Clone, Default)]
pub struct CurrentSettings(Arc<RwLock<Option<Arc<MachineSettings>>>>);

impl CurrentSettings {
    pub fn get(&self) -> Option<Arc<MachineSettings>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set(&self, settings: MachineSettings) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(settings));
    }
}

/// What a machine needs of its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MachinePart {
    Monitor,
    Accel,
    Kernel,
}
