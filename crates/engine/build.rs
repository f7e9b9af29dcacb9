//! Sets `TARE_COMMIT`, the commit of this build, and `TARE_BUILT_FROM`, the same for people.
//!
//! A release build asks git. A source archive of git has no repository: there, git has written the
//! commit into the file `commit` (gitattributes(5), `export-subst`). A debug build does not say its
//! commit, because then every commit would compile the engine and its users again.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=commit");
    let package = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let found = is_release.then(|| of_archive(&package).or_else(|| of_repository(&package)));
    let (commit, built_from) = match found.as_ref().map(|found| found.as_deref()) {
        None => ("unknown", "debug build".to_owned()),
        Some(None) => ("unknown", "commit unknown".to_owned()),
        Some(Some(found)) => {
            let (commit, date) = found.split_once(' ').unwrap_or((found, "date unknown"));
            (commit, format!("{commit}, {date}"))
        }
    };
    println!("cargo::rustc-env=TARE_COMMIT={commit}");
    println!("cargo::rustc-env=TARE_BUILT_FROM={built_from}");
}

/// The commit that `git archive` wrote in place of `$Format:...$`.
pub fn of_archive(package: &Path) -> Option<String> {
    let text = std::fs::read_to_string(package.join("commit")).ok()?;
    (!text.starts_with('$')).then(|| text.trim().to_owned())
}

/// The commit of the repository whose root is the workspace. A copy of the sources inside another
/// repository is not of that repository's commit.
pub fn of_repository(package: &Path) -> Option<String> {
    let workspace = package.ancestors().nth(2)?;
    if !workspace.join(".git").exists() {
        return None;
    }
    // Changes with every commit and checkout.
    if let Some(log) =
        git(workspace, &["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"])
    {
        println!("cargo::rerun-if-changed={log}");
    }
    git(workspace, &["show", "--no-patch", "--format=%h %cs", "--abbrev=7", "HEAD"])
}

fn git(directory: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").current_dir(directory).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
