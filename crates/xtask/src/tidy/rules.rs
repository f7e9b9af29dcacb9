//! Rules that look at one file.

use super::Finding;
use super::source::{Source, words};

const FILE_LINES_MAX: usize = 700;
const FUNCTION_LINES_MAX: usize = 70;

/// The one room that may use unsafe code.
const UNSAFE_ROOM: &str = "crates/kernel";

pub fn all(source: &Source) -> Vec<Finding> {
    let rules = [
        file_length,
        function_length,
        opening,
        unsafe_room,
        ignored_tests,
        unfinished_code,
        numberless_promises,
        sleeps,
    ];
    rules.iter().flat_map(|rule| rule(source)).collect()
}

fn finding(source: &Source, line: usize, what: String) -> Finding {
    Finding { path: source.path.clone(), line, what }
}

fn file_length(source: &Source) -> Vec<Finding> {
    let lines = source.lines_without_tests();
    let what = format!("{lines} lines without the test module, more than {FILE_LINES_MAX}");
    Vec::from_iter((lines > FILE_LINES_MAX).then(|| finding(source, 1, what)))
}

fn function_length(source: &Source) -> Vec<Finding> {
    let functions = source.functions();
    let long = functions.iter().filter(|it| it.lines > FUNCTION_LINES_MAX);
    let findings = long.map(|it| {
        let what = format!("`{}` has {} lines, more than {FUNCTION_LINES_MAX}", it.name, it.lines);
        finding(source, it.line, what)
    });
    findings.collect()
}

fn opening(source: &Source) -> Vec<Finding> {
    let what = "does not open with `//!`: what it owns, what it never does".to_owned();
    Vec::from_iter((!source.text.starts_with("//!")).then(|| finding(source, 1, what)))
}

fn unsafe_room(source: &Source) -> Vec<Finding> {
    if source.path.starts_with(UNSAFE_ROOM) {
        return Vec::new();
    }
    on_lines(source, "unsafe", "`unsafe` outside of crates/kernel")
}

fn ignored_tests(source: &Source) -> Vec<Finding> {
    on_lines(source, "#[ignore", "an ignored test; skip aloud where something is missing")
}

fn unfinished_code(source: &Source) -> Vec<Finding> {
    let macros = ["todo!", "unimplemented!", "dbg!"];
    let findings = macros.iter().flat_map(|it| on_lines(source, it, &format!("`{it}` is left in")));
    findings.collect()
}

fn on_lines(source: &Source, word: &str, what: &str) -> Vec<Finding> {
    let lines = source.code_lines_with(word);
    lines.into_iter().map(|line| finding(source, line, what.to_owned())).collect()
}

/// Comments that put something off without saying where that is written down.
fn numberless_promises(source: &Source) -> Vec<Finding> {
    let lines = source.comments.lines().enumerate();
    let numberless = lines.filter(|(_, comment)| {
        ["TODO", "FIXME"]
            .iter()
            .any(|word| words(comment, word).any(|at| !has_number(&comment[at + word.len()..])))
    });
    let findings = numberless.map(|(index, _)| {
        finding(source, index + 1, "a TODO without an issue number: `TODO(#12)`".to_owned())
    });
    findings.collect()
}

/// Whether what follows the word is `(#12)`.
fn has_number(rest: &str) -> bool {
    let number = rest.strip_prefix("(#").and_then(|it| it.split_once(')'));
    number.is_some_and(|(it, _)| !it.is_empty() && it.bytes().all(|it| it.is_ascii_digit()))
}

/// Waiting for time instead of an event, without saying what bounds it.
fn sleeps(source: &Source) -> Vec<Finding> {
    let lines = source.code_lines_with("thread::sleep");
    let unbounded = lines
        .into_iter()
        .filter(|line| !source.comment_above(*line).to_lowercase().contains("bounded"));
    let what = "a sleep with no comment above that says how it is bounded";
    unbounded.map(|line| finding(source, line, what.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOWHERE: [usize; 0] = [];

    /// The lines on which a rule finds something in a file of crates/engine.
    fn lines(rule: fn(&Source) -> Vec<Finding>, text: &str) -> Vec<usize> {
        let source = Source::new("crates/engine/src/x.rs", text);
        rule(&source).into_iter().map(|it| it.line).collect()
    }

    #[test]
    fn a_file_of_700_lines_is_the_longest() {
        let code = "// line\n".repeat(700);
        assert_eq!(lines(file_length, &code), NOWHERE);
        assert_eq!(lines(file_length, &format!("{code}// line\n")), [1]);
        let with_tests = format!("{code}#[cfg(test)]\nmod tests {{\n{code}}}\n");
        assert_eq!(lines(file_length, &with_tests), NOWHERE);
    }

    #[test]
    fn a_function_of_70_lines_is_the_longest() {
        let function = |body: usize| format!("//! x\nfn f() {{\n{}}}\n", "    f();\n".repeat(body));
        assert_eq!(lines(function_length, &function(68)), NOWHERE);
        assert_eq!(lines(function_length, &function(69)), [2]);
    }

    #[test]
    fn a_file_opens_with_what_it_is() {
        assert_eq!(lines(opening, "//! x\n"), NOWHERE);
        assert_eq!(lines(opening, "use x;\n//! x\n"), [1]);
        assert_eq!(lines(opening, ""), [1]);
    }

    #[test]
    fn unsafe_code_is_in_one_room() {
        let text = "#![forbid(unsafe_code)] // unsafe { }\nfn f() { unsafe { g() } }\nunsafe fn h() {}\nf(\"unsafe {\");";
        assert_eq!(lines(unsafe_room, text), [2, 3]);
        assert_eq!(unsafe_room(&Source::new("crates/kernel/src/x.rs", text)), []);
        assert_ne!(unsafe_room(&Source::new("crates/kernels/src/x.rs", text)), []);
    }

    #[test]
    fn no_test_is_ignored() {
        let text =
            "#[ignore]\nfn a() {}\n#[ignore = \"slow\"]\nfn b() {}\n// #[ignore]\n#[ignored]\n";
        assert_eq!(lines(ignored_tests, text), [1, 3]);
    }

    #[test]
    fn no_unfinished_code_is_left() {
        let text = "todo!()\nunimplemented!()\ndbg!(x)\nf(\"todo!\") // dbg!\nmy_todo!()\n";
        assert_eq!(lines(unfinished_code, text), [1, 2, 3]);
    }

    #[test]
    fn a_promise_has_a_number() {
        let text = "// TODO later\n// TODO(#12): later\n/* FIXME(me) */\n// TODO(#)\nf(\"TODO\");\n// TODOS\n// TODO(#1) and TODO\n";
        assert_eq!(lines(numberless_promises, text), [1, 3, 4, 7]);
    }

    #[test]
    fn a_sleep_says_how_it_is_bounded() {
        let text = "\
// Waits.
thread::sleep(x);
// Bounded by the number of attempts:
// there is no event for it.
std::thread::sleep(x);

// thread::sleep(x)
f(\"thread::sleep(x)\");
thread::sleep(x); // bounded, but not above
";
        assert_eq!(lines(sleeps, text), [2, 9]);
    }

    #[test]
    fn all_rules_are_asked() {
        let source = Source::new("crates/x.rs", "// TODO\nunsafe { dbg!(1) }\n");
        assert_eq!(all(&source).len(), 4);
    }
}
