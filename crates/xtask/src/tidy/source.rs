//! A Rust file as the rules of style see it: code separate from comments.
//!
//! This is not a parser. It knows where comments, strings and characters begin and end, and it
//! counts braces. It does not expand macros.

use std::path::{Path, PathBuf};

/// One file. `code` and `comments` have the lines of the file and its columns
/// (in characters); what belongs to the other one, or is inside a literal, is
/// blank.
#[derive(Debug)]
pub struct Source {
    pub path: PathBuf,
    pub text: String,
    pub code: String,
    pub comments: String,
    /// First and last line of each item below `#[cfg(test)]`.
    test_items: Vec<(usize, usize)>,
}

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    /// Counted from 1: where `fn` stands.
    pub line: usize,
    pub is_test: bool,
}

impl Source {
    pub fn new(path: impl AsRef<Path>, text: impl Into<String>) -> Self {
        let text = text.into();
        let (code, comments) = split(&text);
        let test_items = test_items(&code);
        Self { path: path.as_ref().to_owned(), text, code, comments, test_items }
    }

    /// The number of lines that are not test code.
    pub fn lines_without_tests(&self) -> usize {
        let lines = 1..=self.text.lines().count();
        lines.filter(|line| !self.is_test_code(*line)).count()
    }

    /// Whether a line belongs to an item that only test builds have.
    pub fn is_test_code(&self, line: usize) -> bool {
        self.test_items.iter().any(|(first, last)| (*first..=*last).contains(&line))
    }

    pub fn functions(&self) -> Vec<Function> {
        let found = words(&self.code, "fn").filter_map(|start| {
            let name = identifier(self.code[start + 2..].trim_start())?;
            body(&self.code[start..])?;
            let is_test = is_test(&self.code[..start]);
            Some(Function { name: name.to_owned(), line: self.line_of(start), is_test })
        });
        found.collect()
    }

    /// The line of an offset into `code`, counted from 1.
    pub fn line_of(&self, offset: usize) -> usize {
        self.code[..offset].matches('\n').count() + 1
    }
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

/// First and last line of each `#[cfg(test)]` item: up to its closing brace, or to its `;`.
fn test_items(code: &str) -> Vec<(usize, usize)> {
    const MARK: &str = "#[cfg(test)]";
    let line_of = |offset: usize| code[..offset].matches('\n').count() + 1;
    let items = code.match_indices(MARK).map(|(start, _)| {
        let after = start + MARK.len();
        let end = body(&code[after..]).map(|(_, end)| end).or_else(|| code[after..].find(';'));
        (line_of(start), line_of(after + end.unwrap_or_default()))
    });
    items.collect()
}

/// The name that a text begins with.
pub fn identifier(text: &str) -> Option<&str> {
    let end = text.find(|it: char| !it.is_alphanumeric() && it != '_').unwrap_or(text.len());
    Some(&text[..end]).filter(|it| !it.is_empty())
}

/// Offsets of the first `{` and of the `}` that closes it; `None` when a `;`
/// outside of brackets comes first (a declaration has no body).
fn body(code: &str) -> Option<(usize, usize)> {
    let mut brackets = 0usize;
    let mut braces = 0usize;
    let mut open = None;
    for (at, character) in code.char_indices() {
        match character {
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets = brackets.saturating_sub(1),
            ';' if brackets == 0 && braces == 0 => return None,
            '{' => {
                braces += 1;
                open.get_or_insert(at);
            }
            '}' => {
                braces = braces.checked_sub(1)?;
                if braces == 0 {
                    return Some((open?, at));
                }
            }
            _ => {}
        }
    }
    None
}

/// Whether the item whose `fn` comes next has `#[test]` among its attributes.
fn is_test(before: &str) -> bool {
    let item = before.rfind(['}', ';', '{']).map_or(0, |it| it + 1);
    before[item..].contains("#[test]")
}

/// What a stretch of a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

fn split(text: &str) -> (String, String) {
    let (mut code, mut comments) = (String::new(), String::new());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (kind, length) = stretch(rest, &code).unwrap_or((Kind::Code, first.len_utf8()));
        for character in rest[..length].chars() {
            let keep = |wanted| {
                if kind == wanted || character == '\n' { character } else { ' ' }
            };
            code.push(keep(Kind::Code));
            comments.push(keep(Kind::Comment));
        }
        rest = &rest[length..];
    }
    (code, comments)
}

/// The comment or literal that `rest` begins with, and its length in bytes.
fn stretch(rest: &str, code_before: &str) -> Option<(Kind, usize)> {
    if rest.starts_with("//") {
        return Some((Kind::Comment, rest.find('\n').unwrap_or(rest.len())));
    }
    if rest.starts_with("/*") {
        return Some((Kind::Comment, block_comment(rest)));
    }
    if let Some(inner) = rest.strip_prefix('"') {
        return Some((Kind::Literal, 1 + quoted(inner, '"')));
    }
    if rest.starts_with('\'') {
        return character(rest).map(|length| (Kind::Literal, length));
    }
    let in_name = code_before.ends_with(|it: char| it.is_alphanumeric() || it == '_');
    if in_name { None } else { raw_string(rest).map(|length| (Kind::Literal, length)) }
}

/// They nest.
fn block_comment(rest: &str) -> usize {
    let mut depth = 0usize;
    let mut at = 0;
    while at < rest.len() {
        let step = &rest[at..];
        if step.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if step.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += step.chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

/// Up to and with the closing quote, a backslash covering what follows it.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, character) in rest.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            it if it == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// `'x'` or `'\n'`, but not the lifetime `'x`.
fn character(rest: &str) -> Option<usize> {
    let mut inner = rest[1..].chars();
    let first = inner.next()?;
    if first == '\\' {
        return Some(1 + quoted(&rest[1..], '\''));
    }
    (inner.next() == Some('\'')).then(|| 2 + first.len_utf8())
}

/// `r"..."`, `br#"..."#` and their kind.
fn raw_string(rest: &str) -> Option<usize> {
    let prefix = ["r", "br", "cr"].into_iter().find(|it| {
        rest.strip_prefix(it).is_some_and(|it| it.trim_start_matches('#').starts_with('"'))
    })?;
    let hashes = rest[prefix.len()..].chars().take_while(|it| *it == '#').count();
    let open = prefix.len() + hashes + 1;
    let close = format!("\"{}", "#".repeat(hashes));
    let end = rest[open..].find(&close).map(|at| open + at + close.len());
    Some(end.unwrap_or(rest.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        Source::new("x.rs", text).code
    }

    #[test]
    fn comments_and_literals_are_blank_in_the_code() {
        assert_eq!(code("a /* { /* } */ { */ b"), format!("a {} b", " ".repeat(17)));
        assert_eq!(code("a // {\nb"), "a     \nb");
        assert_eq!(code(r#"f("{ \" {", x)"#), "f(        , x)");
        assert_eq!(code(r##"f(r#"{ " {"#)"##), "f(          )");
        assert_eq!(code("f(b'{', '\\'', '{')"), "f(b   ,     ,    )");
        assert_eq!(code("fn f<'a>(x: &'a str) {}"), "fn f<'a>(x: &'a str) {}");
        assert_eq!(code("'é' {"), "    {");
    }

    #[test]
    fn comments_keep_their_place() {
        let source = Source::new("x.rs", "let a = 1; // one\n/// two\n\"// three\"");
        assert_eq!(source.comments, "           // one\n/// two\n          ");
    }

    #[test]
    fn functions_with_a_body_are_found() {
        let text = "\
fn one() {}
#[test]
fn two(x: [u8; 2]) -> bool
where
    T: Fn(u8) -> u8,
{
    let pointer: fn() = one;
    if x { '}' } else { \"}\" }
}
trait T { fn declared(&self); fn given(&self) { 1 } }
";
        let functions = Source::new("x.rs", text).functions();
        let seen: Vec<_> =
            functions.iter().map(|it| (it.name.as_str(), it.line, it.is_test)).collect();
        assert_eq!(seen, [("one", 1, false), ("two", 3, true), ("given", 10, false)]);
    }

    #[test]
    fn items_below_cfg_test_are_test_code() {
        let text = "\
fn a() {}
#[cfg(test)]
fn only_in_tests() {
}
#[cfg(test)]
mod tests;
#[cfg(test)]
mod more {
    fn b() {}
}
";
        let source = Source::new("x.rs", text);
        let test_code: Vec<_> = (1..=10).filter(|it| source.is_test_code(*it)).collect();
        assert_eq!(test_code, [2, 3, 4, 5, 6, 7, 8, 9, 10]);
        assert_eq!(source.lines_without_tests(), 1);
    }

    #[test]
    fn a_word_is_not_a_part_of_a_name() {
        assert_eq!(words("fn_a fn not_fn", "fn").collect::<Vec<_>>(), [5]);
    }
}
