//! Checks the licences of all dependencies.
//!
//! It reads only what cargo has on disk, so it works without a network. `cargo deny` would need
//! 300 crates to be compiled for the same answer.

use crate::failure::Failure;
use crate::workspace::{Package, Workspace};
use std::iter::Peekable;
use std::str::SplitWhitespace;

/// Licences that require no more than to be named. A licence that requires more (such as MPL-2.0:
/// changed files must be published) needs a decision; add it here with the reason.
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

/// Fails with every dependency whose licence is not allowed.
pub fn check() -> Result<(), Failure> {
    let workspace = Workspace::with_dependencies()?;
    let foreign: Vec<&Package> = foreign(&workspace).collect();
    if foreign.is_empty() {
        return Err(Failure::new("cargo metadata names no dependency, so nothing was checked"));
    }
    let refused: Vec<String> = foreign.iter().filter_map(|it| refusal(it)).collect();
    if !refused.is_empty() {
        return Err(Failure::new(format!(
            "licences that are not allowed:\n  {}\nreplace the dependency, or add the licence to \
             ALLOWED in crates/xtask/src/licences.rs with the reason",
            refused.join("\n  ")
        )));
    }
    println!("{} dependencies, each under a licence that is allowed", foreign.len());
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
    match is_allowed(licence) {
        Ok(true) => None,
        Ok(false) => Some(format!("{name}: `{licence}` leaves no choice that is allowed")),
        Err(why) => Some(format!("{name}: `{licence}`: {why}")),
    }
}

/// Evaluates an SPDX expression: `OR`, `AND` (which binds tighter), `WITH`, parentheses, and the
/// old `MIT/Apache-2.0`, where the slash means `OR`. A licence is compared together with its
/// exception. A malformed expression is an error.
fn is_allowed(expression: &str) -> Result<bool, String> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words = spaced.split_whitespace().peekable();
    let allowed = any(&mut words, 0)?;
    match words.next() {
        None => Ok(allowed),
        Some(word) => Err(format!("`{word}` where the expression should end")),
    }
}

type Words<'a> = Peekable<SplitWhitespace<'a>>;

/// How deep parentheses may nest. The parser recurses.
const DEPTH_MAX: usize = 16;

fn any(words: &mut Words<'_>, depth: usize) -> Result<bool, String> {
    let mut allowed = all(words, depth)?;
    while words.next_if_eq(&"OR").is_some() {
        allowed |= all(words, depth)?;
    }
    Ok(allowed)
}

fn all(words: &mut Words<'_>, depth: usize) -> Result<bool, String> {
    let mut allowed = one(words, depth)?;
    while words.next_if_eq(&"AND").is_some() {
        allowed &= one(words, depth)?;
    }
    Ok(allowed)
}

fn one(words: &mut Words<'_>, depth: usize) -> Result<bool, String> {
    if words.next_if_eq(&"(").is_some() {
        if depth == DEPTH_MAX {
            return Err(format!("more than {DEPTH_MAX} nested parentheses"));
        }
        let allowed = any(words, depth + 1)?;
        let closed = words.next_if_eq(&")");
        return closed.map(|_| allowed).ok_or_else(|| "a parenthesis is not closed".into());
    }
    let mut licence = name(words)?.to_owned();
    if words.next_if_eq(&"WITH").is_some() {
        licence = format!("{licence} WITH {}", name(words)?);
    }
    Ok(ALLOWED.contains(&licence.as_str()))
}

fn name<'a>(words: &mut Words<'a>) -> Result<&'a str, String> {
    match words.next() {
        None => Err("the expression ends where a name should be".into()),
        Some(word @ ("OR" | "AND" | "WITH" | "(" | ")")) => {
            Err(format!("`{word}` where a name should be"))
        }
        Some(word) => Ok(word),
    }
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
    fn a_dependency_without_an_allowed_choice_is_refused_by_name() {
        assert_eq!(refusal(&package(Some("GPL-3.0-only OR MIT"))), None);
        let refused = refusal(&package(Some("MPL-2.0"))).unwrap();
        assert!(refused.contains("some 1.0.0") && refused.contains("MPL-2.0"), "{refused}");
        assert!(refusal(&package(None)).unwrap().contains("no licence"));
        assert!(refusal(&package(Some("MIT OR (ISC"))).is_some());
    }

    #[test]
    fn expressions_are_evaluated_as_spdx_defines() {
        for (expression, allowed) in [
            ("MIT", true),
            ("MPL-2.0", false),
            ("GPL-2.0-only OR MIT", true),
            ("MIT AND Apache-2.0", true),
            ("MIT AND Unicode-DFS-2016", false),
            ("MIT OR GPL-2.0-only AND MPL-2.0", true),
            ("(MIT OR GPL-2.0-only) AND MPL-2.0", false),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("MIT WITH LLVM-exception", false),
            ("MPL-2.0 / MIT", true),
            ("Apache-2.0+", false),
        ] {
            assert_eq!(is_allowed(expression), Ok(allowed), "{expression}");
        }
    }

    #[test]
    fn malformed_expressions_are_errors() {
        let deep = format!("{}MIT{}", "(".repeat(40), ")".repeat(40));
        let ends = ["", "OR", "MIT OR", "AND MIT", "MIT WITH", "WITH MIT"];
        let broken = ["MIT ISC", "(MIT", "MIT)", "()", "MIT or ISC", &deep];
        for text in ends.into_iter().chain(broken) {
            assert!(is_allowed(text).is_err(), "{text:?} was accepted");
        }
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
