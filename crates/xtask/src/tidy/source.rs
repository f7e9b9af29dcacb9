//! A Rust file as the rules of style see it, line by line.
//!
//! This is not a parser. It relies on rustfmt: a comment has a line of its own, and an item ends
//! with the first brace in the column in which the item begins.

use std::path::{Path, PathBuf};

/// One file.
#[derive(Debug)]
pub struct Source {
    pub path: PathBuf,
    pub text: String,
    /// The same lines, with comments blank.
    pub code: String,
    /// For each line, whether it belongs to an item below `#[cfg(test)]`.
    test_lines: Vec<bool>,
}

/// A function with `#[test]`.
#[derive(Debug, PartialEq, Eq)]
pub struct Test {
    pub name: String,
    /// Counted from 1: where `fn` stands.
    pub line: usize,
}

impl Source {
    pub fn new(path: impl AsRef<Path>, text: impl Into<String>) -> Self {
        let text = text.into();
        let code =
            text.lines().map(|it| if is_comment(it) { "\n".into() } else { format!("{it}\n") });
        let code = code.collect();
        let test_lines = test_lines(&text);
        Self { path: path.as_ref().to_owned(), text, code, test_lines }
    }

    /// Returns the number of lines that are not test code.
    pub fn lines_without_tests(&self) -> usize {
        self.test_lines.iter().filter(|is_test| !**is_test).count()
    }

    /// Returns whether a line, counted from 1, belongs to an item that only test builds have.
    pub fn is_test_code(&self, line: usize) -> bool {
        self.test_lines[line - 1]
    }

    pub fn comments(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.text.lines().enumerate();
        lines.filter(|(_, it)| is_comment(it)).map(|(index, it)| (index + 1, it))
    }

    pub fn tests(&self) -> Vec<Test> {
        let mut lines = self.code.lines().enumerate();
        let mut found = Vec::new();
        while lines.by_ref().any(|(_, it)| it.trim() == "#[test]") {
            let function = lines.by_ref().find_map(|(index, it)| {
                let name = identifier(it.trim_start().strip_prefix("fn ")?)?;
                Some(Test { name: name.to_owned(), line: index + 1 })
            });
            found.extend(function);
        }
        found
    }

    /// The line of an offset into `code`, counted from 1.
    pub fn line_of(&self, offset: usize) -> usize {
        self.code[..offset].matches('\n').count() + 1
    }
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

fn test_lines(text: &str) -> Vec<bool> {
    let indent = |line: &str| line.len() - line.trim_start().len();
    // The column of the item that is being read.
    let mut item = None;
    let marked = text.lines().map(|line| {
        if item.is_none() && line.trim() == "#[cfg(test)]" {
            item = Some(indent(line));
        }
        let is_test = item.is_some();
        let is_attribute = line.trim_start().starts_with('#');
        if item == Some(indent(line)) && !is_attribute && line.ends_with(['}', ';']) {
            item = None;
        }
        is_test
    });
    marked.collect()
}

/// Offsets at which `word` stands with no part of a name on either side.
pub fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let part_of_name = |it: char| it.is_alphanumeric() || it == '_';
    text.match_indices(word).map(|it| it.0).filter(move |&start| {
        let before = text[..start].chars().next_back();
        let after = text[start + word.len()..].chars().next();
        let starts = !word.starts_with(part_of_name) || !before.is_some_and(part_of_name);
        let ends = !word.ends_with(part_of_name) || !after.is_some_and(part_of_name);
        starts && ends
    })
}

/// The name that a text begins with.
pub fn identifier(text: &str) -> Option<&str> {
    let end = text.find(|it: char| !it.is_alphanumeric() && it != '_').unwrap_or(text.len());
    Some(&text[..end]).filter(|it| !it.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_found_with_their_line() {
        let text = "fn one() {}\n#[test]\n#[expect(\n    unused,\n)]\nfn two() {\n}\n// #[test]\nfn three() {}\n";
        let two = Test { name: "two".into(), line: 6 };
        assert_eq!(Source::new("x.rs", text).tests(), [two]);
    }

    #[test]
    fn items_below_cfg_test_are_test_code() {
        let text = "\
fn a() {}
#[cfg(test)]
fn only_in_tests() {
    if x {
    }
}
#[cfg(test)]
#[path = \"x.rs\"]
mod tests;
impl A {
    #[cfg(test)]
    fn b() {
    }
    fn c() {}
}
#[cfg(test)]
mod more {
    fn d() {}
}
";
        let source = Source::new("x.rs", text);
        let without: Vec<_> = (1..=19).filter(|it| !source.is_test_code(*it)).collect();
        assert_eq!(without, [1, 10, 14, 15]);
        assert_eq!(source.lines_without_tests(), 4);
    }

    #[test]
    fn a_word_is_not_a_part_of_a_name() {
        assert_eq!(words("fn_a fn not_fn", "fn").collect::<Vec<_>>(), [5]);
    }
}
