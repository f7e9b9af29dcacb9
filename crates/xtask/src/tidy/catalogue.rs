//! Checks that the leak catalogue in docs/leaks.md and the tests in `tests/leaks/` agree.
//!
//! Each of these tests is in the file of its letter and opens with
//! `/// A1, who had it: what went wrong.`, which is its row in the table. Tests of virtual machines are in
//! `vm.rs`: each is the test of one case or more, of any letter, and every paragraph above it is a case.
//! A row may also name a test outside of the catalogue. A row without a test names the feature that it
//! waits for.

use super::Finding;
use super::source::{Source, Test};
use std::path::Path;

const PLACE: &str = "tests/leaks";

pub fn check(path: &str, text: &str, sources: &[Source]) -> Vec<Finding> {
    let files = sources.iter().filter(|source| letter(&source.path).is_some());
    let tests = files.flat_map(|source| {
        let tests = source.tests().into_iter();
        tests.flat_map(|it| rows_of(source, &it)).collect::<Vec<_>>()
    });
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
    let others: Vec<String> = sources.iter().flat_map(others_of).collect();
    let is_known = |line: &str| {
        rows.iter().any(|it| it == line) || others.iter().any(|it| line.ends_with(it.as_str()))
    };
    let lines = text.lines().enumerate();
    let strange = lines.filter(|(_, line)| names_a_test(line) && !is_known(line));
    found.extend(strange.map(|(at, _)| finding(at + 1, "no test is the case of this row".into())));
    found
}

/// The file of cases of every letter.
const MACHINES: &str = "vm";

/// `a` of `tests/leaks/a.rs`.
fn letter(path: &Path) -> Option<&str> {
    let name = path.file_stem()?.to_str()?;
    let is_of_cases = name.len() == 1 || name == MACHINES;
    (path.parent() == Some(Path::new(PLACE)) && is_of_cases).then_some(name)
}

/// The last cells of rows that name a test of this file, which is not of the catalogue.
fn others_of(source: &Source) -> Vec<String> {
    let stem = source.path.file_stem().and_then(|it| it.to_str()).unwrap_or_default();
    let tests = if letter(&source.path).is_some() { Vec::new() } else { source.tests() };
    tests.into_iter().map(|it| format!(" | `{stem}::{}` |", it.name)).collect()
}

/// The rows of a test, as the table has them.
fn rows_of(source: &Source, test: &Test) -> Vec<Result<String, Finding>> {
    let file = letter(&source.path).unwrap_or_default();
    let mut cases = paragraphs(source, test.line);
    if file != MACHINES {
        // What else is said of the test.
        cases.drain(..cases.len().saturating_sub(1));
    }
    if cases.is_empty() {
        cases.push(String::new());
    }
    cases.iter().map(|said| row(source, test, said)).collect()
}

fn row(source: &Source, test: &Test, said: &str) -> Result<String, Finding> {
    let file = letter(&source.path).unwrap_or_default();
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
    let letter = case.get(..1).unwrap_or_default();
    let is_of_file = match file {
        MACHINES => letter.bytes().all(|it| it.is_ascii_uppercase()),
        file => letter == file.to_uppercase(),
    };
    let number = case.get(1..).unwrap_or_default();
    is_of_file && !number.is_empty() && number.bytes().all(|it| it.is_ascii_digit())
}

/// The paragraphs of the documentation of the function on this line, each joined to one line.
fn paragraphs(source: &Source, line: usize) -> Vec<String> {
    let above: Vec<&str> = source.text.lines().take(line - 1).collect();
    let attributes = above.iter().rev().take_while(|it| it.starts_with("#["));
    let documented = above.len() - attributes.count();
    let documentation = above[..documented].iter().rev();
    let mut said: Vec<&str> = documentation.map_while(|it| it.strip_prefix("///")).collect();
    said.reverse();
    let paragraphs = said.split(|line| line.is_empty()).filter(|it| !it.is_empty());
    paragraphs.map(|lines| lines.iter().map(|it| it.trim()).collect::<Vec<_>>().join(" ")).collect()
}

/// Whether a line is the row of a case that has a test.
fn names_a_test(line: &str) -> bool {
    let mut cells = line.split(" | ");
    let case = cells.next().and_then(|it| it.strip_prefix("| "));
    case.is_some_and(|it| is_case(it, MACHINES)) && cells.last().is_some_and(|it| it.contains('`'))
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
    fn a_test_of_machines_has_a_row_for_each_of_its_cases() {
        let code = TEST.replace("//! x\n", "//! x\n/// A7, they: it was\n/// here.\n///\n");
        let rows = "| A7 | they | it was here | `vm::it_goes` |\n\
            | B2 | somebody | it was left | `vm::it_goes` |";
        assert_eq!(found("vm", &code, rows), [""; 0]);
        assert_eq!(found("vm", &code, "").len(), 2);
    }

    #[test]
    fn a_row_may_name_a_test_that_exists_outside_of_the_catalogue() {
        let row = "| B2 | somebody | it was left | `other::it_goes` |";
        let source = |path: &str| Source::new(path, "//! x\n#[test]\nfn it_goes() {}\n");
        assert!(check("leaks.md", row, &[source("tests/other.rs")]).is_empty());
        assert_eq!(check("leaks.md", row, &[source("tests/another.rs")]).len(), 1);
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
