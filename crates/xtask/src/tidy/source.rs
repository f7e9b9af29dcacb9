//! A Rust file as the rules of style see it: code and comments apart.
//!
//! Not a parser. It knows where comments, strings and characters begin and end,
//! which is enough to tell a brace from a picture of one, and counts braces from
//! there. What a macro makes of its tokens it does not know: a function inside
//! `macro_rules!` is measured as it is written.

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
}

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    /// Counted from 1: where `fn` stands.
    pub line: usize,
    /// From `fn` to the closing brace.
    pub lines: usize,
    pub is_test: bool,
}

impl Source {
    pub fn new(path: impl AsRef<Path>, text: impl Into<String>) -> Self {
        let text = text.into();
        let (code, comments) = split(&text);
        Self { path: path.as_ref().to_owned(), text, code, comments }
    }

    /// Lines that are not in a `#[cfg(test)]` module.
    pub fn lines_without_tests(&self) -> usize {
        let test_lines: usize = self.test_modules().map(|(first, last)| last - first + 1).sum();
        self.text.lines().count() - test_lines
    }

    /// First and last line of each `#[cfg(test)] mod x { ... }`.
    fn test_modules(&self) -> impl Iterator<Item = (usize, usize)> {
        const MARK: &str = "#[cfg(test)]";
        self.code.match_indices(MARK).filter_map(|(start, _)| {
            let after = start + MARK.len();
            let rest = self.code[after..].trim_start();
            let is_module = rest.starts_with("mod ") || rest.starts_with("pub mod ");
            let (_, end) = body(&self.code[after..]).filter(|_| is_module)?;
            Some((self.line_of(start), self.line_of(after + end)))
        })
    }

    pub fn functions(&self) -> Vec<Function> {
        let found = words(&self.code, "fn").filter_map(|start| {
            let name = identifier(self.code[start + 2..].trim_start())?;
            let (_, end) = body(&self.code[start..])?;
            let line = self.line_of(start);
            let lines = self.line_of(start + end) - line + 1;
            let is_test = is_test(&self.code[..start]);
            Some(Function { name: name.to_owned(), line, lines, is_test })
        });
        found.collect()
    }

    /// Lines of code on which this stands as a word of its own, counted from 1.
    pub fn code_lines_with(&self, word: &str) -> Vec<usize> {
        words(&self.code, word).map(|at| self.line_of(at)).collect()
    }

    /// The comment that ends on the line above, however many lines it has.
    pub fn comment_above(&self, line: usize) -> String {
        let comments: Vec<&str> = self.comments.lines().collect();
        let code: Vec<&str> = self.code.lines().collect();
        let above = (0..line - 1).rev();
        let block =
            above.take_while(|&it| code[it].trim().is_empty() && !comments[it].trim().is_empty());
        block.map(|it| comments[it]).collect::<Vec<_>>().join("\n")
    }

    fn line_of(&self, offset: usize) -> usize {
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

fn identifier(text: &str) -> Option<&str> {
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
    fn functions_are_measured_from_fn_to_the_brace_that_closes_them() {
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
            functions.iter().map(|it| (it.name.as_str(), it.line, it.lines, it.is_test)).collect();
        let expected = [("one", 1, 1, false), ("two", 3, 7, true), ("given", 10, 1, false)];
        assert_eq!(seen, expected);
    }

    #[test]
    fn test_modules_are_not_counted_as_lines() {
        let text = "\
fn a() {}
#[cfg(test)]
fn only_in_tests() {}
#[cfg(test)]
mod tests {
    fn b() {}
}
";
        assert_eq!(Source::new("x.rs", text).lines_without_tests(), 3);
        let declared = "#[cfg(test)]\nmod tests;\nfn a() {}\n";
        assert_eq!(Source::new("x.rs", declared).lines_without_tests(), 3);
    }

    #[test]
    fn a_word_is_not_a_part_of_a_name() {
        let source = Source::new("x.rs", "unsafe_code\nunsafe {}\nnot_unsafe\n// unsafe\n");
        assert_eq!(source.code_lines_with("unsafe"), [2]);
    }

    #[test]
    fn the_comment_above_ends_at_code_and_at_empty_lines() {
        let text = "// far\n\n// one\n// two\ncall();\ncall();\n";
        let source = Source::new("x.rs", text);
        assert_eq!(source.comment_above(5), "// two\n// one");
        assert_eq!(source.comment_above(6), "");
        assert_eq!(source.comment_above(1), "");
    }
}
