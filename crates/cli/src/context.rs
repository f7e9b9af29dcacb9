//! The parts that every command needs: the state root, and the engine that opens it.

use std::env::var_os;
use std::path::PathBuf;

pub use tare_engine::Purpose;
use tare_engine::spec::quantity;
use tare_engine::vm::MachineSettings;
use tare_engine::vm::kernels::Kernels;
use tare_engine::{Context as _, Engine, Error};

/// The state root of one command.
#[derive(Debug, Clone)]
pub struct Context {
    /// `None`: the engine's default.
    state_root: Option<PathBuf>,
}

impl Context {
    /// Takes the state root from `--state-root`, else from `TARE_STATE_ROOT`.
    pub fn new(state_root: Option<PathBuf>) -> Result<Self, Error> {
        let state_root = state_root.or_else(|| path_in("TARE_STATE_ROOT"));
        let state_root = state_root.filter(|path| !path.as_os_str().is_empty());
        let absolute = state_root.map(std::path::absolute).transpose();
        let state_root =
            absolute.context(|| "cannot find the path of the state root".to_owned())?;
        Ok(Self { state_root })
    }

    pub fn state_root(&self) -> Option<PathBuf> {
        self.state_root.clone()
    }

    pub fn engine(&self, purpose: Purpose) -> Result<Engine, Error> {
        Engine::open(self.state_root(), purpose)
    }

    /// The kernels of machines, which do not depend on the state root.
    pub fn kernels(&self) -> Result<Kernels, Error> {
        let default = || Kernels::default_path(var_os("HOME").as_deref());
        let path = path_in("TARE_VM_DIR").map_or_else(default, Ok)?;
        let absolute = std::path::absolute(path);
        absolute.context(|| "cannot find the directory of the kernels".to_owned()).map(Kernels::at)
    }

    /// The settings of the user for machines.
    pub fn machines(&self) -> Result<MachineSettings, Error> {
        let boot_within = var_os("TARE_VM_BOOT").filter(|value| !value.is_empty()).map(|value| {
            quantity::duration(&value.to_string_lossy()).map_err(|error| {
                Error::bad_request("TARE_VM_BOOT is not a duration").caused_by(error)
            })
        });
        Ok(MachineSettings {
            kernels: self.kernels()?,
            monitor: self.monitor(),
            boot_within: boot_within.transpose()?,
        })
    }

    /// The monitor that the user named.
    pub fn monitor(&self) -> Option<PathBuf> {
        path_in("TARE_VM_MONITOR")
    }
}

/// Returns the path in an environment variable. An empty one counts as absent.
fn path_in(variable: &str) -> Option<PathBuf> {
    var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}
