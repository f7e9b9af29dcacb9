//! Rules that look at one file, and that no lint of rustc or clippy covers.

use super::Finding;
use super::source::{Source, words};

const FILE_LINES_MAX: usize = 700;

pub fn all(source: &Source) -> Vec<Finding> {
    let rules = [file_length, opening, ignored_tests, todos_without_number];
    rules.iter().flat_map(|rule| rule(source)).collect()
}

fn finding(source: &Source, line: usize, what: impl Into<String>) -> Finding {
    Finding { path: source.path.clone(), line, what: what.into() }
}

fn file_length(source: &Source) -> Vec<Finding> {
    let lines = source.lines_without_tests();
    let what = format!("{lines} lines without test code, more than {FILE_LINES_MAX}");
    Vec::from_iter((lines > FILE_LINES_MAX).then(|| finding(source, 1, what)))
}

fn opening(source: &Source) -> Vec<Finding> {
    let what = "does not open with `//!`: what it owns, what it never does";
    Vec::from_iter((!source.text.starts_with("//!")).then(|| finding(source, 1, what)))
}

fn ignored_tests(source: &Source) -> Vec<Finding> {
    let what = "an ignored test; print that it is skipped where something is missing";
    let lines = words(&source.code, "#[ignore").map(|at| source.line_of(at));
    lines.map(|line| finding(source, line, what)).collect()
}

/// Comments that postpone something without the number of the issue that describes it.
fn todos_without_number(source: &Source) -> Vec<Finding> {
    let numberless = |comment: &str, word: &str| {
        words(comment, word).any(|at| !has_number(&comment[at + word.len()..]))
    };
    let lines = source.comments.lines().enumerate();
    let found = lines.filter(|(_, it)| ["TODO", "FIXME"].iter().any(|word| numberless(it, word)));
    let what = "a TODO without an issue number: `TODO(#12)`";
    found.map(|(index, _)| finding(source, index + 1, what)).collect()
}

/// Whether the text after the word is `(#12)`.
fn has_number(rest: &str) -> bool {
    let number = rest.strip_prefix("(#").and_then(|it| it.split_once(')'));
    number.is_some_and(|(it, _)| !it.is_empty() && it.bytes().all(|it| it.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOWHERE: [usize; 0] = [];

    /// The lines on which a rule finds something.
    fn lines(rule: fn(&Source) -> Vec<Finding>, text: &str) -> Vec<usize> {
        let source = Source::new("crates/engine/src/x.rs", text);
        rule(&source).into_iter().map(|it| it.line).collect()
    }

    #[test]
    fn a_file_may_have_700_lines_without_tests() {
        let code = "// line\n".repeat(700);
        assert_eq!(lines(file_length, &code), NOWHERE);
        assert_eq!(lines(file_length, &format!("{code}// line\n")), [1]);
        let with_tests = format!("{code}#[cfg(test)]\nmod tests {{\n{code}}}\n");
        assert_eq!(lines(file_length, &with_tests), NOWHERE);
    }

    #[test]
    fn a_file_opens_with_a_module_comment() {
        assert_eq!(lines(opening, "//! x\n"), NOWHERE);
        assert_eq!(lines(opening, "use x;\n//! x\n"), [1]);
        assert_eq!(lines(opening, ""), [1]);
    }

    #[test]
    fn ignored_tests_are_found() {
        let text =
            "#[ignore]\nfn a() {}\n#[ignore = \"slow\"]\nfn b() {}\n// #[ignore]\n#[ignored]\n";
        assert_eq!(lines(ignored_tests, text), [1, 3]);
    }

    #[test]
    fn a_todo_has_an_issue_number() {
        let text = "// TODO later\n// TODO(#12): later\n/* FIXME(me) */\n// TODO(#)\nf(\"TODO\");\n// TODOS\n// TODO(#1) and TODO\n";
        assert_eq!(lines(todos_without_number, text), [1, 3, 4, 7]);
    }

    #[test]
    fn all_rules_are_applied() {
        let source = Source::new("crates/x.rs", "// TODO\n#[ignore]\n");
        assert_eq!(all(&source).len(), 3);
    }
}
