//! Checks the licences of all dependencies.
//!
//! It reads only what cargo has on disk, so it works without a network. `cargo deny` would need
//! 300 crates to be compiled for the same answer.

use crate::failure::Failure;
use crate::workspace::{Package, Workspace};

/// The licence expressions of our dependencies, exactly as they write them. Each allows a choice that
/// requires only attribution. Add a new expression if the same is true for it.
const ALLOWED: [&str; 13] = [
    "(Apache-2.0 OR MIT) AND BSD-3-Clause",
    "(MIT OR Apache-2.0) AND Unicode-3.0",
    "Apache-2.0",
    "Apache-2.0 OR BSL-1.0",
    "Apache-2.0 OR MIT",
    "Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT",
    "BSD-2-Clause OR Apache-2.0 OR MIT",
    "BSD-3-Clause",
    "MIT",
    "MIT AND BSD-3-Clause",
    "MIT OR Apache-2.0",
    "MIT/Apache-2.0",
    "Unlicense OR MIT",
];

/// Fails with every dependency whose licence is not allowed.
pub fn check() -> Result<(), Failure> {
    let workspace = Workspace::with_dependencies()?;
    let is_foreign = |it: &&Package| !workspace.is_ours(it);
    let foreign: Vec<&Package> = workspace.packages.iter().filter(is_foreign).collect();
    if foreign.is_empty() {
        return Err(Failure::new("cargo metadata names no dependency, so nothing was checked"));
    }
    let refused: Vec<String> = foreign.iter().filter_map(|it| refusal(it)).collect();
    if !refused.is_empty() {
        return Err(Failure::new(format!(
            "licences that are not allowed:\n  {}\nreplace the dependency, or add the licence to \
             ALLOWED in crates/xtask/src/licences.rs",
            refused.join("\n  ")
        )));
    }
    println!("{} dependencies, each under a licence that is allowed", foreign.len());
    Ok(())
}

/// Returns why this package may not be used, if it may not.
fn refusal(package: &Package) -> Option<String> {
    let licence = package.license.as_deref().unwrap_or("no licence expression");
    let is_allowed = ALLOWED.contains(&licence);
    (!is_allowed).then(|| format!("{} {}: {licence}", package.name, package.version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dependency_without_an_allowed_licence_is_refused_by_name() {
        let package = |license: Option<&str>| Package {
            id: "registry+x#some@1.0.0".into(),
            name: "some".into(),
            version: "1.0.0".into(),
            license: license.map(str::to_owned),
            repository: None,
            manifest_path: "some/Cargo.toml".into(),
        };
        assert_eq!(refusal(&package(Some("MIT"))), None);
        assert_eq!(refusal(&package(Some("MPL-2.0"))).unwrap(), "some 1.0.0: MPL-2.0");
        assert_eq!(refusal(&package(None)).unwrap(), "some 1.0.0: no licence expression");
    }
}
