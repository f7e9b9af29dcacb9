//! Checks that every test that SPECIFICATION.md names exists.
//!
//! The name of a test is in backticks: `file::test_name`. `file` is the name of the file without
//! `.rs`. For `lib.rs`, `main.rs` and `mod.rs` it is the name of the crate or directory. Modules may
//! stand in between.

use super::Finding;
use super::source::Source;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::path::Path;

pub fn check(path: &str, text: &str, sources: &[Source]) -> Vec<Finding> {
    let tests = tests_of(sources);
    let finding = |line, what| Finding { path: path.into(), line, what };
    let named: Vec<(usize, &str)> = named_tests(text).collect();
    if named.is_empty() {
        return vec![finding(1, "no promise names its test as `file::test_name`".to_owned())];
    }
    let missing = named.into_iter().filter(|(_, name)| !exists(name, &tests));
    missing.map(|(line, name)| finding(line, format!("there is no test `{name}`"))).collect()
}

/// Returns the name of the file and the name of the function of every test.
fn tests_of(sources: &[Source]) -> HashSet<(String, String)> {
    let of_file = |source: &Source| {
        let file = file_name(&source.path);
        source.tests().into_iter().map(move |it| (file.clone(), it.name)).collect::<Vec<_>>()
    };
    sources.iter().flat_map(of_file).collect()
}

/// The name of a file in the name of a test.
fn file_name(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default();
    let name = match stem.to_str() {
        Some("mod") => path.parent().and_then(Path::file_name),
        Some("lib" | "main") => {
            path.components().map(|it| it.as_os_str()).rev().skip(1).find(|it| *it != "src")
        }
        _ => Some(stem),
    };
    name.map(OsStr::to_string_lossy).unwrap_or_default().into_owned()
}

fn exists(name: &str, tests: &HashSet<(String, String)>) -> bool {
    let Some((path, function)) = name.rsplit_once("::") else {
        return false;
    };
    path.split("::")
        .map(|part| part.strip_suffix(".rs").unwrap_or(part))
        .any(|file| tests.contains(&(file.to_owned(), function.to_owned())))
}

/// Every text in backticks that looks like the name of a test, with its line.
fn named_tests(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().flat_map(|(index, line)| {
        let quoted = line.split('`').skip(1).step_by(2);
        quoted.filter(|it| looks_like_a_test(it)).map(move |it| (index + 1, it))
    })
}

/// Whether every part is in snake case: `Command::new` is not a test.
fn looks_like_a_test(quoted: &str) -> bool {
    let plain = |it: &str| {
        !it.is_empty()
            && it.bytes().all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || it == b'_')
    };
    match quoted.split_once("::") {
        None => false,
        Some((file, rest)) => {
            plain(file.strip_suffix(".rs").unwrap_or(file)) && rest.split("::").all(plain)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources() -> Vec<Source> {
        let test = "//! x\n#[test]\nfn memory_is_limited() {}\nfn not_a_test() {}\n";
        ["tests/limits.rs", "crates/engine/src/lib.rs", "tests/ends/main.rs", "tests/deep/mod.rs"]
            .map(|path| Source::new(path, test))
            .into()
    }

    fn missing(text: &str) -> Vec<String> {
        check("SPECIFICATION.md", text, &sources()).into_iter().map(|it| it.to_string()).collect()
    }

    #[test]
    fn a_test_that_is_there_is_found_by_its_file() {
        assert_eq!(missing("kills (`limits::memory_is_limited`)"), [""; 0]);
        assert_eq!(missing("kills (`limits.rs::memory_is_limited`)"), [""; 0]);
        assert_eq!(missing("`engine::memory_is_limited`, `ends::memory_is_limited`"), [""; 0]);
        assert_eq!(missing("`engine::spec::deep::memory_is_limited`"), [""; 0]);
    }

    #[test]
    fn a_test_that_is_not_there_is_found_missing() {
        let expected = "SPECIFICATION.md:2: there is no test `limits::memory_is_free`";
        assert_eq!(missing("\n`limits::memory_is_free`"), [expected]);
        assert_eq!(missing("`other::memory_is_limited`").len(), 1);
        assert_eq!(missing("`limits::not_a_test`").len(), 1);
    }

    #[test]
    fn other_code_is_not_taken_for_a_test() {
        let text = "`Command::new` `a b::c` `x` b::c `limits::memory_is_limited` `::` `a::`";
        assert_eq!(missing(text), [""; 0]);
    }

    #[test]
    fn a_specification_that_names_no_test_is_found() {
        assert_eq!(missing("All is well, see `tare run`.").len(), 1);
    }
}
