//! Checks that the leak catalogue in docs/leaks.md and the tests in `tests/leaks/` agree.
//!
//! Each of these tests is in the file of its letter and opens with
//! `/// A1, who had it: what went wrong.`, which is its row in the table. A row without a test
//! names the feature that it waits for.

use super::Finding;
use super::source::{Source, Test};
use std::path::Path;

const PLACE: &str = "tests/leaks";

pub fn check(path: &str, text: &str, sources: &[Source]) -> Vec<Finding> {
    let files = sources.iter().filter(|source| letter(&source.path).is_some());
    let tests = files.flat_map(|source| source.tests().into_iter().map(|it| row(source, &it)));
    let (mut rows, mut found) = (Vec::new(), Vec::new());
    for test in tests {
        match test {
            Ok(row) => rows.push(row),
            Err(finding) => found.push(finding),
        }
    }
    let finding = |line, what| Finding { path: path.into(), line, what };
    let missing = rows.iter().filter(|row| !text.lines().any(|it| it == *row));
    found.extend(missing.map(|row| finding(1, format!("this case is not in the table: {row}"))));
    let lines = text.lines().enumerate();
    let strange = lines.filter(|(_, line)| names_a_test(line) && !rows.iter().any(|it| it == line));
    found.extend(strange.map(|(at, _)| finding(at + 1, "no test is the case of this row".into())));
    found
}

/// `a` of `tests/leaks/a.rs`.
fn letter(path: &Path) -> Option<&str> {
    let name = path.file_stem()?.to_str()?;
    (path.parent() == Some(Path::new(PLACE)) && name.len() == 1).then_some(name)
}

/// The row of a test, as the table has it.
fn row(source: &Source, test: &Test) -> Result<String, Finding> {
    let file = letter(&source.path).unwrap_or_default();
    let said = opening(source, test.line);
    let parts = said.split_once(", ").and_then(|(case, rest)| {
        let (who, what) = rest.split_once(": ")?;
        Some((case, who, what.strip_suffix('.')?))
    });
    match parts {
        Some((case, who, what)) if is_case(case, file) => {
            let name = &test.name;
            Ok(format!("| {case} | {who} | {what} | `{file}::{name}` |"))
        }
        Some(_) | None => Err(Finding {
            path: source.path.clone(),
            line: test.line,
            what: "does not open with `/// A1, who had it: what went wrong.`".into(),
        }),
    }
}

/// `A12`, in the file of its letter.
fn is_case(case: &str, file: &str) -> bool {
    let number = case.strip_prefix(file.to_uppercase().as_str());
    number.is_some_and(|it| !it.is_empty() && it.bytes().all(|it| it.is_ascii_digit()))
}

/// The documentation of the function on this line, joined to one line.
fn opening(source: &Source, line: usize) -> String {
    let above: Vec<&str> = source.text.lines().take(line - 1).collect();
    let attributes = above.iter().rev().take_while(|it| it.starts_with("#["));
    let documented = above.len() - attributes.count();
    let documentation = above[..documented].iter().rev();
    let mut said: Vec<&str> = documentation.map_while(|it| it.strip_prefix("/// ")).collect();
    said.reverse();
    said.join(" ")
}

/// Whether a line is the row of a case that has a test.
fn names_a_test(line: &str) -> bool {
    let mut cells = line.split(" | ");
    let case = cells.next().and_then(|it| it.strip_prefix("| "));
    let is_case = case.is_some_and(|it| {
        let letter = it.get(..1).unwrap_or_default().to_lowercase();
        is_case(it, &letter)
    });
    is_case && cells.last().is_some_and(|it| it.contains('`'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST: &str = "//! x\n/// B2, somebody: it was\n/// left.\n#[test]\nfn it_goes() {}\n";
    const ROW: &str = "| B2 | somebody | it was left | `b::it_goes` |";

    fn found(file: &str, code: &str, text: &str) -> Vec<String> {
        let source = Source::new(format!("tests/leaks/{file}.rs"), code);
        let findings = check("leaks.md", text, &[source]);
        findings.iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_case_that_is_in_the_table_is_found_there() {
        assert_eq!(found("b", TEST, &format!("x\n{ROW}\ny")), [""; 0]);
    }

    #[test]
    fn a_case_that_is_not_in_the_table_is_told_with_its_row() {
        let told = format!("leaks.md:1: this case is not in the table: {ROW}");
        assert_eq!(found("b", TEST, "x"), [told]);
        assert_eq!(found("b", TEST, &ROW.replace("somebody", "others")).len(), 2);
    }

    #[test]
    fn a_row_whose_test_is_gone_is_found() {
        let told = "leaks.md:2: no test is the case of this row";
        assert_eq!(found("b", "//! x\n", &format!("x\n{ROW}")), [told]);
    }

    #[test]
    fn a_row_that_waits_for_something_needs_no_test() {
        let rows = "| B3 | somebody | it was left | waits for the pool |\n| `b` | x | `b::y` |";
        assert_eq!(found("b", "//! x\n", rows), [""; 0]);
    }

    #[test]
    fn a_test_without_its_case_or_in_another_file_is_found() {
        let told = "does not open with `/// A1, who had it: what went wrong.`";
        let told = format!("tests/leaks/c.rs:5: {told}");
        assert_eq!(found("c", TEST, ""), [told]);
        assert_eq!(found("b", "#[test]\nfn it_goes() {}\n", "").len(), 1);
        assert_eq!(found("case", "#[test]\nfn it_goes() {}\n", ""), [""; 0]);
    }
}
