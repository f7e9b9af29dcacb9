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
    /// `None` without dependencies.
    resolve: Option<Resolve>,
}

/// Which package uses which.
#[derive(Debug, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
    deps: Vec<Use>,
}

#[derive(Debug, Deserialize)]
struct Use {
    pkg: String,
    dep_kinds: Vec<UseKind>,
}

/// `kind` is null for what a package contains, and names those that only build or test it.
#[derive(Debug, Deserialize)]
struct UseKind {
    kind: Option<String>,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
pub struct Package {
    pub id: String,
    pub name: String,
    pub version: String,
    pub license: Option<String>,
    pub repository: Option<String>,
    pub manifest_path: PathBuf,
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

    /// The package of the binary, and every package that it contains, by name.
    pub fn product(&self) -> Result<(&Package, Vec<&Package>), Failure> {
        let product = self.packages.iter().find(|it| it.name == "tare" && self.is_ours(it));
        let product = product.ok_or_else(|| Failure::new("there is no package tare"))?;
        let mut found = vec![product];
        let mut next = 0;
        while let Some(package) = found.get(next) {
            let new = self.uses(package).into_iter().filter(|it| !found.contains(it));
            let new: Vec<&Package> = new.collect();
            found.extend(new);
            next += 1;
        }
        found.remove(0);
        found.sort_by_key(|it| (&it.name, &it.version));
        Ok((product, found))
    }

    /// The packages that this one contains.
    pub fn uses(&self, package: &Package) -> Vec<&Package> {
        let nodes = self.resolve.iter().flat_map(|it| &it.nodes);
        let uses = nodes.filter(|it| it.id == package.id).flat_map(|it| &it.deps);
        let contained = uses.filter(|it| it.dep_kinds.iter().any(|it| it.kind.is_none()));
        contained.filter_map(|it| self.packages.iter().find(|one| one.id == it.pkg)).collect()
    }

    pub fn is_ours(&self, package: &Package) -> bool {
        self.workspace_members.contains(&package.id)
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
