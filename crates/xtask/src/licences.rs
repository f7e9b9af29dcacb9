//! Whether everything that tare is built from may be given away with it.
//!
//! Reads what cargo already has on disk and nothing else, so that it gives the
//! same answer without a network. That is also why this is not `cargo deny`:
//! the half of it that tare could not write itself, the advisories, is a
//! database that has to be fetched, and a check that passes because it could
//! not look is worse than none. Our own crates are not judged here.

mod spdx;

use crate::failure::{Doing, Failure};
use crate::workspace::{Package, Workspace};
use spdx::Expression;
use std::collections::BTreeMap;

/// Licences that ask for no more than to be named. A licence that asks for
/// more (MPL-2.0 and its kind: changed files must be given out) is a decision
/// for a person, and its name is then added here with the reason.
const ALLOWED: [&str; 10] = [
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Fails with every dependency whose licence does not let us.
pub fn check() -> Result<(), Failure> {
    let workspace = Workspace::with_dependencies()?;
    let foreign: Vec<&Package> = foreign(&workspace).collect();
    if foreign.is_empty() {
        return Err(Failure::new(
            "cargo metadata names no dependency at all, so nothing was checked",
        ));
    }
    let refused: Vec<String> = foreign.iter().filter_map(|it| refusal(it)).collect();
    if !refused.is_empty() {
        return Err(Failure::new(format!(
            "licences that tare cannot be given away with:\n  {}\nreplace the dependency, or add \
             the licence to ALLOWED in crates/xtask/src/licences.rs with the reason",
            refused.join("\n  ")
        )));
    }
    for (licence, count) in tally(&foreign) {
        println!("{count:5}  {licence}");
    }
    println!("{:5}  dependencies, each under a licence that is allowed", foreign.len());
    Ok(())
}

fn foreign(workspace: &Workspace) -> impl Iterator<Item = &Package> {
    workspace.packages.iter().filter(|it| !workspace.workspace_members.contains(&it.id))
}

/// Why this package may not be used, if it may not.
fn refusal(package: &Package) -> Option<String> {
    let name = format!("{} {}", package.name, package.version);
    let Some(licence) = &package.license else {
        return Some(format!("{name}: names no licence expression"));
    };
    match Expression::parse(licence).doing(|| format!("{name}: `{licence}`")) {
        Err(unreadable) => Some(unreadable.to_string()),
        Ok(expression) if expression.is_satisfied_by(&ALLOWED) => None,
        Ok(_) => Some(format!("{name}: `{licence}` leaves no choice that is allowed")),
    }
}

fn tally<'a>(packages: &[&'a Package]) -> BTreeMap<&'a str, usize> {
    let mut counts = BTreeMap::new();
    for licence in packages.iter().filter_map(|it| it.license.as_deref()) {
        *counts.entry(licence).or_insert(0) += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(license: Option<&str>) -> Package {
        Package {
            id: "registry+x#some@1.0.0".into(),
            name: "some".into(),
            version: "1.0.0".into(),
            license: license.map(str::to_owned),
        }
    }

    #[test]
    fn a_dependency_with_an_allowed_choice_is_accepted() {
        assert_eq!(refusal(&package(Some("GPL-3.0-only OR MIT"))), None);
    }

    #[test]
    fn a_dependency_without_an_allowed_choice_is_refused_by_name() {
        let refusal = refusal(&package(Some("MPL-2.0"))).unwrap();
        assert!(refusal.contains("some 1.0.0") && refusal.contains("MPL-2.0"), "{refusal}");
    }

    #[test]
    fn a_dependency_without_a_licence_is_refused() {
        assert!(refusal(&package(None)).unwrap().contains("no licence"));
    }

    #[test]
    fn an_expression_that_cannot_be_read_is_refused() {
        assert!(refusal(&package(Some("MIT OR (ISC"))).is_some());
    }

    #[test]
    fn our_own_crates_are_not_judged() {
        let own = Package { id: "path+file:///x#own@0.1.0".into(), ..package(None) };
        let workspace = Workspace {
            workspace_root: "/".into(),
            target_directory: "/".into(),
            workspace_members: vec![own.id.clone()],
            packages: vec![own, package(Some("MIT"))],
        };
        let names: Vec<_> = foreign(&workspace).map(|it| it.id.as_str()).collect();
        assert_eq!(names, ["registry+x#some@1.0.0"]);
    }
}
