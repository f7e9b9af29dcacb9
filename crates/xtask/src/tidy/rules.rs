//! Rules that look at one file, and that no lint of rustc or clippy covers.

use super::Finding;
use super::source::{Source, words};

const FILE_LINES_MAX: usize = 700;

pub fn all(source: &Source) -> Vec<Finding> {
    let finding = |line, what: &str| Finding { path: source.path.clone(), line, what: what.into() };
    let mut found = Vec::new();
    let lines = source.lines_without_tests();
    if lines > FILE_LINES_MAX {
        let what = format!("{lines} lines without test code, more than {FILE_LINES_MAX}");
        found.push(finding(1, &what));
    }
    if !source.text.starts_with("//!") {
        found.push(finding(1, "does not open with `//!`: what it owns, what it never does"));
    }
    for (index, line) in source.code.lines().enumerate() {
        if words(line.trim_start(), "#[ignore").any(|at| at == 0) {
            let what = "an ignored test; print that it is skipped where something is missing";
            found.push(finding(index + 1, what));
        }
    }
    let postponing = source.comments().filter(|(_, it)| postpones_without_number(it));
    let what = "a TODO without an issue number: `TODO(#12)`";
    found.extend(postponing.map(|(line, _)| finding(line, what)));
    found
}

/// Whether a comment postpones something without the number of the issue that describes it.
fn postpones_without_number(comment: &str) -> bool {
    let has_number = |rest: &str| {
        let number = rest.strip_prefix("(#").and_then(|it| it.split_once(')'));
        number.is_some_and(|(it, _)| !it.is_empty() && it.bytes().all(|it| it.is_ascii_digit()))
    };
    let without = |word: &str| words(comment, word).any(|at| !has_number(&comment[at + 4..]));
    without("TODO") || words(comment, "FIXME").next().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOWHERE: [usize; 0] = [];

    /// The lines on which the rules find something in a file that opens with a comment.
    fn lines(text: &str) -> Vec<usize> {
        let source = Source::new("crates/engine/src/x.rs", format!("//! x\n{text}"));
        all(&source).into_iter().map(|it| it.line).collect()
    }

    #[test]
    fn a_file_may_have_700_lines_without_tests() {
        let code = "// line\n".repeat(699);
        assert_eq!(lines(&code), NOWHERE);
        assert_eq!(lines(&format!("{code}// line\n")), [1]);
        assert_eq!(lines(&format!("{code}#[cfg(test)]\nmod tests {{\n{code}}}\n")), NOWHERE);
    }

    #[test]
    fn a_file_opens_with_a_module_comment() {
        assert_eq!(all(&Source::new("x.rs", "use x;\n//! x\n")).len(), 1);
    }

    #[test]
    fn ignored_tests_and_todos_without_number_are_found() {
        let text = "#[ignore]\n#[ignore = \"slow\"]\n// #[ignore]\n#[ignored]\n";
        assert_eq!(lines(text), [2, 3]);
        let text = "// TODO later\n// TODO(#12): later\n// FIXME(me)\n// TODO(#)\nf(\"TODO\");\n// TODOS\n// TODO(#1) and TODO\n";
        assert_eq!(lines(text), [2, 4, 5, 8]);
    }
}
