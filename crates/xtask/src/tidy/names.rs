//! Checks that a type name means one thing in a crate.

use super::Finding;
use super::source::{Source, identifier};
use std::collections::BTreeMap;

const KINDS: [&str; 4] = ["struct ", "enum ", "trait ", "type "];

pub fn check(sources: &[Source]) -> Vec<Finding> {
    let mut first: BTreeMap<(&str, &str), &Source> = BTreeMap::new();
    let mut found = Vec::new();
    for source in sources {
        let Some(of_crate) = crate_of(source) else { continue };
        for (line, name) in types(source) {
            match first.get(&(of_crate, name)) {
                Some(other) => found.push(Finding {
                    path: source.path.clone(),
                    line,
                    what: format!("{} has a type {name} too", other.path.display()),
                }),
                None => drop(first.insert((of_crate, name), source)),
            }
        }
    }
    found
}

/// The crate of a source file, except for files of tests.
fn crate_of(source: &Source) -> Option<&str> {
    let path = source.path.to_str()?;
    let (of_crate, rest) = path.strip_prefix("crates/")?.split_once("/src/")?;
    let is_test = rest.contains("tests/") || rest.ends_with("tests.rs");
    (!is_test).then_some(of_crate)
}

/// The types that a file defines, with their lines. Types of functions and traits are indented.
fn types(source: &Source) -> impl Iterator<Item = (usize, &str)> {
    let lines = source.code.lines().enumerate();
    lines.filter(|(index, _)| !source.is_test_code(index + 1)).filter_map(|(index, line)| {
        let item = match line.strip_prefix("pub") {
            Some(rest) => rest.split_once(' ')?.1,
            None => line,
        };
        let name = KINDS.iter().find_map(|kind| item.strip_prefix(kind))?;
        Some((index + 1, identifier(name)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_type_of_one_name_in_a_crate_is_found() {
        let one = Source::new("crates/a/src/one.rs", "pub struct Box {\n}\nenum Kind {\n}\n");
        let two = "pub(crate) enum Box {\n}\n#[cfg(test)]\nmod tests {\n    struct Kind;\n}\n";
        let two = Source::new("crates/a/src/two.rs", two);
        let other = Source::new(
            "crates/b/src/one.rs",
            "type Box = u8;\nimpl A {\n    type Kind = u8;\n}\n",
        );
        let test = Source::new("crates/a/src/one_tests.rs", "struct Box;\n");
        let found = check(&[one, two, other, test]);
        let places: Vec<_> = found.iter().map(Finding::to_string).collect();
        assert_eq!(places, ["crates/a/src/two.rs:1: crates/a/src/one.rs has a type Box too"]);
    }
}
