//! What every command needs: the state root, and the engine that opens it.

use std::path::PathBuf;

pub use tare_engine::Purpose;
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
        let from_env = || std::env::var_os("TARE_STATE_ROOT").map(PathBuf::from);
        let state_root = state_root.or_else(from_env);
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
}
