//! Forms with files in them (RFC 7578), as bytes come: whoever sends one decides how
//! large its parts are, and of none more than a piece is held.
//!
//! ```text
//! Before ─▶ Boundary ─▶ Head ─▶ Content ─┐
//!              │  ▲                      │
//!              ▼  └──────────────────────┘
//!             Over
//! ```

use memchr::memmem;

use crate::http::percent;

/// Names of fields and files, with what else is said of a part.
const HEAD_BYTES_MAX: usize = 8 << 10;
const HEAD_END: &[u8] = b"\r\n\r\n";
/// RFC 2046, 5.1.1
const BOUNDARY_BYTES_MAX: usize = 70;
/// Spaces that may follow a boundary.
const PADDING_BYTES_MAX: usize = 64;

#[derive(Debug)]
pub struct Parser {
    /// What is between two parts, from the end of the first one's last line on.
    delimiter: Vec<u8>,
    held: Vec<u8>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// What is before the first part is nobody's.
    Before,
    /// After a delimiter: another part, or the end.
    Boundary,
    Head,
    Content,
    Over,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    Part(Head),
    /// Of the part that began last.
    Content(Vec<u8>),
    PartEnd,
    /// Of the form.
    End,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    pub name: String,
    /// Of a file. What has none is a field.
    pub filename: Option<String>,
}

/// What is wrong with a form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl Parser {
    /// For a `Content-Type`; `None` if that is no form with files.
    pub fn of(content_type: &str) -> Option<Self> {
        let (essence, parameters) = content_type.split_once(';')?;
        if !essence.trim().eq_ignore_ascii_case("multipart/form-data") {
            return None;
        }
        let boundary = parameter(parameters, "boundary")?;
        let is_valid = !boundary.is_empty()
            && boundary.len() <= BOUNDARY_BYTES_MAX
            && boundary.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        is_valid.then(|| Self {
            delimiter: format!("\r\n--{boundary}").into_bytes(),
            // The first delimiter may be the beginning of everything.
            held: b"\r\n".to_vec(),
            state: State::Before,
        })
    }

    pub fn feed(&mut self, bytes: &[u8]) {
        if self.state != State::Over {
            self.held.extend_from_slice(bytes);
        }
    }

    /// `None`: there is nothing more in what has come so far.
    pub fn next(&mut self) -> Result<Option<Piece>, Malformed> {
        loop {
            match self.state {
                State::Before => match memmem::find(&self.held, &self.delimiter) {
                    Some(at) => self.leave(at),
                    None => {
                        self.before_delimiter();
                        return Ok(None);
                    }
                },
                State::Boundary => match self.after_boundary()? {
                    Some(next) => self.state = next,
                    None => return Ok(None),
                },
                State::Head => return Ok(self.head()?.map(Piece::Part)),
                State::Content => return Ok(self.content()),
                State::Over => return Ok(Some(Piece::End)),
            }
        }
    }

    /// The delimiter is at this place, and what is before it was dealt with.
    fn leave(&mut self, at: usize) {
        self.held.drain(..at + self.delimiter.len());
        self.state = State::Boundary;
    }

    fn content(&mut self) -> Option<Piece> {
        let content = match memmem::find(&self.held, &self.delimiter) {
            Some(0) => {
                self.leave(0);
                return Some(Piece::PartEnd);
            }
            Some(at) => self.taken(at),
            None => self.before_delimiter(),
        };
        (!content.is_empty()).then_some(Piece::Content(content))
    }

    /// What is held, but for what may be the beginning of a delimiter.
    fn before_delimiter(&mut self) -> Vec<u8> {
        let at = self.held.len().saturating_sub(self.delimiter.len() - 1);
        self.taken(at)
    }

    fn taken(&mut self, count: usize) -> Vec<u8> {
        let rest = self.held.split_off(count);
        std::mem::replace(&mut self.held, rest)
    }

    fn after_boundary(&mut self) -> Result<Option<State>, Malformed> {
        if self.held.starts_with(b"--") {
            self.held = Vec::new();
            return Ok(Some(State::Over));
        }
        if let Some(at) = memmem::find(&self.held, b"\r\n") {
            let is_padding = self.held[..at].iter().all(|byte| matches!(byte, b' ' | b'\t'));
            if is_padding {
                self.held.drain(..at + 2);
                return Ok(Some(State::Head));
            }
        } else if self.held.len() <= PADDING_BYTES_MAX {
            return Ok(None);
        }
        Err(Malformed("a boundary is followed by something else"))
    }

    fn head(&mut self) -> Result<Option<Head>, Malformed> {
        let Some(end) = memmem::find(&self.held, HEAD_END) else {
            return if self.held.len() <= HEAD_BYTES_MAX {
                Ok(None)
            } else {
                Err(Malformed("a part has too long a head"))
            };
        };
        if end > HEAD_BYTES_MAX {
            return Err(Malformed("a part has too long a head"));
        }
        let lines = self.taken(end);
        self.held.drain(..HEAD_END.len());
        self.state = State::Content;
        let lines = String::from_utf8(lines);
        let lines = lines.map_err(|_| Malformed("the head of a part is not UTF-8"))?;
        head_of(&lines).map(Some)
    }
}

fn head_of(lines: &str) -> Result<Head, Malformed> {
    let disposition = lines.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then_some(value)
    });
    let (kind, parameters) = disposition
        .and_then(|value| value.split_once(';'))
        .ok_or(Malformed("a part has no Content-Disposition"))?;
    if !kind.trim().eq_ignore_ascii_case("form-data") {
        return Err(Malformed("a part is no form-data"));
    }
    let name = parameter(parameters, "name").ok_or(Malformed("a part has no name"))?;
    let filename = match parameter(parameters, "filename*") {
        Some(extended) => {
            let filename = extended_value(&extended);
            Some(filename.ok_or(Malformed("a filename* is not UTF-8''NAME"))?)
        }
        None => parameter(parameters, "filename"),
    };
    Ok(Head { name, filename })
}

/// The value of one of `a=b; c="d"`. In quotes a backslash is itself, but before a quote:
/// clients that quote anything quote that alone.
fn parameter(text: &str, wanted: &str) -> Option<String> {
    let mut rest = text;
    loop {
        let (name, after) = rest.split_once('=')?;
        let (value, after) = value_of(after.trim_start())?;
        if name.trim().eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        rest = after.trim_start().strip_prefix(';')?;
    }
}

/// A value, and what follows it.
fn value_of(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(';').unwrap_or(text.len());
        return Some((text[..end].trim().to_owned(), &text[end..]));
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices().peekable();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &quoted[at + 1..])),
            '\\' if characters.peek().is_some_and(|(_, next)| *next == '"') => {
                value.push('"');
                characters.next();
            }
            other => value.push(other),
        }
    }
    None
}

/// RFC 5987: `UTF-8'language'percent-encoded`.
fn extended_value(text: &str) -> Option<String> {
    let (charset, rest) = text.split_once('\'')?;
    let (_language, encoded) = rest.split_once('\'')?;
    let bytes = percent::decoded(encoded).filter(|_| charset.eq_ignore_ascii_case("utf-8"))?;
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPE: &str = "multipart/form-data; boundary=XX";

    fn field(name: &str) -> Piece {
        Piece::Part(Head { name: name.to_owned(), filename: None })
    }

    fn file(filename: &str) -> Piece {
        Piece::Part(Head { name: "file".to_owned(), filename: Some(filename.to_owned()) })
    }

    /// Fed in pieces of this size; contents of one part are joined.
    fn parsed(body: &[u8], size: usize) -> Result<Vec<Piece>, Malformed> {
        let mut parser = Parser::of(TYPE).expect("a form");
        let mut pieces: Vec<Piece> = Vec::new();
        for bytes in body.chunks(size) {
            parser.feed(bytes);
            while let Some(piece) = parser.next()? {
                match (pieces.last_mut(), piece) {
                    (Some(Piece::Content(last)), Piece::Content(more)) => last.extend(more),
                    (Some(Piece::End), Piece::End) => break,
                    (_, piece) => pieces.push(piece),
                }
            }
        }
        Ok(pieces)
    }

    #[test]
    fn a_form_is_the_same_however_it_is_cut() {
        let tricky = b"\r\n--X\r\n--\r\n\r--XX\r\n";
        let mut body =
            b"ignored\r\n--XX \t\r\nContent-Disposition: form-data; name=\"kind\"\r\n\r\n\
            user\r\n--XX\r\nContent-Type: text/plain\r\n\
            content-disposition: form-data; name=\"file\"; filename=\"a/b.txt\"\r\n\r\n"
                .to_vec();
        body.extend_from_slice(tricky);
        body.extend_from_slice(
            b"\r\n--XX\r\nContent-Disposition: form-data; name=file; filename=e\r\n\r\n\
              \r\n--XX--\r\nepilogue --XX",
        );
        let expected = [
            field("kind"),
            Piece::Content(b"user".to_vec()),
            Piece::PartEnd,
            file("a/b.txt"),
            Piece::Content(tricky.to_vec()),
            Piece::PartEnd,
            file("e"),
            Piece::PartEnd,
            Piece::End,
        ];
        for size in 1..=body.len() {
            assert_eq!(parsed(&body, size).as_deref(), Ok(&expected[..]), "by {size}");
        }
    }

    #[test]
    fn only_a_piece_of_a_large_part_is_in_memory() {
        let mut parser = Parser::of(TYPE).expect("a form");
        parser.feed(b"--XX\r\nContent-Disposition: form-data; name=file; filename=f\r\n\r\n");
        assert_eq!(parser.next(), Ok(Some(file("f"))));
        for _piece in 0..100 {
            parser.feed(&[b'\r'; 1000]);
            while parser.next().expect("it is well formed").is_some() {}
            assert!(parser.held.len() < parser.delimiter.len());
        }
    }

    #[test]
    fn a_malformed_form_is_refused() {
        for wrong in [
            "",
            "multipart/form-data",
            "multipart/form-data; boundary=",
            "multipart/mixed; boundary=XX",
            "application/json; boundary=XX",
            "multipart/form-data; boundary=\"\u{e4}\"",
        ] {
            assert!(Parser::of(wrong).is_none(), "{wrong:?}");
        }
        assert!(Parser::of(&format!("multipart/form-data; boundary={}", "x".repeat(71))).is_none());
        assert!(Parser::of("Multipart/Form-Data; charset=utf-8; Boundary=\"a b\"").is_some());
        let refused = |body: &str| parsed(body.as_bytes(), 7).expect_err(body);
        refused("--XXjunk\r\n");
        refused(&format!("--XX{}", " ".repeat(100)));
        refused("--XX\r\nContent-Disposition: attachment; name=a\r\n\r\n");
        refused("--XX\r\nContent-Disposition: form-data; filename=a\r\n\r\n");
        refused("--XX\r\nContent-Type: text/plain\r\n\r\n");
        refused(&format!("--XX\r\nX: {}", "x".repeat(9000)));
        refused("--XX\r\nContent-Disposition: form-data; name=f; filename*=latin1''a\r\n\r\n");
        let body = b"--XX\r\nContent-Disposition: form-data; name=\"\xff\"\r\n\r\n";
        assert!(parsed(body, 7).is_err());
    }

    #[test]
    fn a_name_is_read_as_clients_write_it() {
        let name = |parameters: &str| {
            let head = format!("Content-Disposition: form-data; name=\"file\"; {parameters}");
            head_of(&head).expect(parameters).filename
        };
        let expect = |name: &str| Some(name.to_owned());
        assert_eq!(name(r#"filename="a; b=c.txt""#), expect("a; b=c.txt"));
        assert_eq!(name(r#"filename="say \"hi\".txt""#), expect("say \"hi\".txt"));
        assert_eq!(name(r#"filename="a\b.txt""#), expect("a\\b.txt"));
        assert_eq!(name("filename=\"\u{e4}.txt\""), expect("\u{e4}.txt"));
        assert_eq!(name("filename=\"x\"; filename*=UTF-8''%C3%A4%20b"), expect("\u{e4} b"));
        assert_eq!(name("filename=\"unclosed"), None);
        assert_eq!(name("x=y"), None);
    }
}
