//! What a Rust file names of its own crate.

use super::source::{Source, identifier, words};
use std::path::Path;

/// `commands::run::spec` of `commands/run/spec.rs`.
pub fn module_of(inside: &Path) -> Vec<String> {
    let parts = inside.with_extension("");
    let parts = parts.iter().map(|it| it.to_string_lossy().into_owned());
    parts.filter(|it| it != "mod").collect()
}

/// Files that their parent declares below `#[cfg(test)]`.
pub fn is_test_file(inside: &Path) -> bool {
    let parts = inside.with_extension("");
    parts.iter().any(|it| it == "tests" || it.to_string_lossy().ends_with("_tests"))
}

/// A path that a file names, from the root of its crate.
#[derive(Debug, PartialEq, Eq)]
pub struct Import {
    pub path: Vec<String>,
    pub line: usize,
}

/// Everything outside of test code that begins with `crate::`, `super::` or `tare_server`.
pub fn imports(source: &Source, module: &[String]) -> Vec<Import> {
    let mut found = Vec::new();
    let mut add = |start: usize, base: Vec<String>, rest: &str| {
        let line = source.line_of(start);
        if !source.is_test_code(line) {
            found.extend(paths(base, rest).into_iter().map(|path| Import { path, line }));
        }
    };
    for start in words(&source.code, "crate::") {
        add(start, Vec::new(), &source.code[start + "crate::".len()..]);
    }
    for start in words(&source.code, "super::") {
        if source.code[..start].ends_with("super::") {
            continue;
        }
        let (mut rest, mut base) = (&source.code[start..], module.to_vec());
        while let Some(after) = rest.strip_prefix("super::") {
            (rest, _) = (after, base.pop());
        }
        add(start, base, rest);
    }
    for start in words(&source.code, "tare_server::") {
        add(start, Vec::new(), &source.code[start..]);
    }
    found
}

/// The paths of a `use` tree: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn paths(mut base: Vec<String>, tree: &str) -> Vec<Vec<String>> {
    let mut rest = tree.trim_start();
    while let Some(name) = identifier(rest) {
        base.push(name.to_owned());
        match rest[name.len()..].trim_start().strip_prefix("::") {
            Some(after) => rest = after.trim_start(),
            None => return vec![base],
        }
    }
    match rest.strip_prefix('{') {
        Some(inner) => branches(inner).into_iter().flat_map(|it| paths(base.clone(), it)).collect(),
        None => vec![base],
    }
}

/// The parts between the commas of a group, up to the brace that closes it.
fn branches(inner: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0usize, 0);
    for (at, character) in inner.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                parts.push(inner[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
        if character == '}' && start > at {
            break;
        }
    }
    parts.retain(|it| !it.is_empty());
    parts
}
