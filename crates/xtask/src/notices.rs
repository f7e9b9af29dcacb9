//! Prints the notices of everything that the product contains: each licence text once, with the
//! packages that it belongs to. The texts come from the sources of the crates.

use crate::failure::{Context, Failure};
use crate::workspace::{Package, Workspace};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The static binary contains these beside the crates. Rust's and musl's texts are those of the MIT
/// licence.
const TOOLCHAIN: &str = "\
The binary also contains Rust's standard library (MIT OR Apache-2.0, copyright the Rust Project
contributors, https://www.rust-lang.org) and musl (MIT, copyright 2005-2020 Rich Felker and others,
https://musl.libc.org).";

/// Names of files that contain a licence or a notice.
const NAMES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"];

pub fn text() -> Result<String, Failure> {
    let workspace = Workspace::with_dependencies()?;
    let (_, dependencies) = workspace.product()?;
    let foreign = dependencies.into_iter().filter(|it| !workspace.is_ours(it));
    notices(&foreign.collect::<Vec<_>>())
}

fn notices(packages: &[&Package]) -> Result<String, Failure> {
    let mut owners: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut page = format!("tare contains the following packages.\n\n{TOOLCHAIN}\n\n");
    for package in packages {
        let name = format!("{} {}", package.name, package.version);
        let licence = package.license.as_deref().unwrap_or("unknown");
        let place = package.repository.as_deref().unwrap_or("https://crates.io");
        page.push_str(&format!("{name}: {licence}, {place}\n"));
        for text in texts(package)? {
            owners.entry(text).or_default().push(name.clone());
        }
    }
    let rule = "-".repeat(80);
    for (text, names) in owners {
        page.push_str(&format!("\n{rule}\n{}\n{rule}\n\n{text}\n", names.join(", ")));
    }
    Ok(page)
}

/// The licence files of a crate, in the order of their names.
fn texts(package: &Package) -> Result<Vec<String>, Failure> {
    let directory = package.manifest_path.parent().unwrap_or(Path::new("."));
    let listing = || format!("cannot read the sources of {}", package.name);
    let entries = fs::read_dir(directory).context(listing)?;
    let paths = entries.collect::<Result<Vec<_>, _>>().context(listing)?;
    let mut paths: Vec<_> = paths.into_iter().map(|it| it.path()).collect();
    paths.retain(|path| path.is_file() && is_notice(path));
    paths.sort();
    let read = |path| fs::read_to_string(path).map(|text| text.trim().to_owned());
    paths.into_iter().map(read).collect::<Result<_, _>>().context(listing)
}

fn is_notice(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().to_uppercase());
    name.is_some_and(|name| NAMES.iter().any(|it| name.starts_with(it)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Crates whose archive has no licence file. Their expression is in the list of packages.
    const WITHOUT_TEXT: [&str; 0] = [];

    #[test]
    fn every_dependency_of_the_product_has_its_notice() {
        let workspace = Workspace::with_dependencies().unwrap();
        let (_, dependencies) = workspace.product().unwrap();
        let foreign = dependencies.into_iter().filter(|it| !workspace.is_ours(it));
        let foreign: Vec<&Package> = foreign.collect();
        let page = notices(&foreign).unwrap();
        let mut silent = Vec::new();
        for package in foreign {
            assert!(page.contains(&format!("\n{} {}: ", package.name, package.version)));
            if texts(package).unwrap().is_empty() {
                silent.push(package.name.as_str());
            }
        }
        assert_eq!(silent, WITHOUT_TEXT);
    }
}
