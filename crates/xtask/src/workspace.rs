//! Asks cargo where this workspace is and which packages it has.

use crate::failure::{Context, Failure};
use serde::Deserialize;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The targets of tare. Without this filter, cargo would need the manifests of crates for Windows,
/// which no build downloads, so it would need a network.
const TARGETS: [&str; 2] = ["x86_64-unknown-linux-gnu", "x86_64-unknown-linux-musl"];

/// The part of `cargo metadata` that is used here.
#[derive(Debug, Deserialize)]
pub struct Workspace {
    pub workspace_root: PathBuf,
    pub target_directory: PathBuf,
    pub workspace_members: Vec<String>,
    pub packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
pub struct Package {
    pub id: String,
    pub name: String,
    pub version: String,
    pub license: Option<String>,
}

impl Workspace {
    /// The workspace and every package that it is built from.
    pub fn with_dependencies() -> Result<Self, Failure> {
        let filters = TARGETS.iter().flat_map(|it| ["--filter-platform", it]);
        Self::read(filters.collect())
    }

    /// The workspace without dependencies. This is fast and needs only the tree.
    pub fn alone() -> Result<Self, Failure> {
        Self::read(vec!["--no-deps"])
    }

    fn read(options: Vec<&str>) -> Result<Self, Failure> {
        let output = cargo()
            .args(["metadata", "--format-version", "1", "--locked"])
            .args(options)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .context(|| "cannot start cargo metadata".into())?;
        if !output.status.success() {
            return Err(Failure::new(format!("cargo metadata: {}", output.status)));
        }
        serde_json::from_slice(&output.stdout)
            .context(|| "cannot read what cargo metadata printed".into())
    }
}

/// The cargo that started xtask, so that the pinned toolchain is used.
pub fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}
