//! Multipart forms (RFC 7578), with limits in size and time. `multer` finds the parts; this file
//! reads their names, and refuses forms that are too large or too slow.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::http::{HeaderMap, header};
use futures_util::{Stream, StreamExt, stream};
use multer::{Field, Multipart};
use tokio::time::Instant;

use crate::error::ServiceError;
use crate::http::text::percent_decoded;
use crate::librechat::state::LibreChat;

/// The time for a whole form, however steadily it arrives. Clients give up after two minutes.
const FORM_TIMEOUT: Duration = Duration::from_secs(600);
/// The size limit of a form without the contents of its files.
const OTHER_BYTES_MAX: u64 = 1 << 20;
const FIELD_BYTES_MAX: usize = 1 << 10;
/// `multer` has no limit for the head of a part: it gets no more bytes than this without
/// returning a part or content.
const READ_AHEAD_BYTES_MAX: usize = 80 << 10;

pub struct MultipartForm {
    parts: Multipart<'static>,
    part: Option<Field<'static>>,
    /// The bytes that `multer` got since it last returned something.
    read_ahead: Arc<AtomicUsize>,
}

/// The head of a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartHead {
    pub name: String,
    /// `None` for a field.
    pub filename: Option<String>,
}

/// How much a client may send, and how slowly.
#[derive(Debug, Clone, Copy)]
struct BodyLimits {
    bytes: u64,
    /// The time for each piece of the body.
    client_timeout: Duration,
}

impl MultipartForm {
    pub fn new(app: &LibreChat, headers: &HeaderMap, body: Body) -> Result<Self, ServiceError> {
        let config = app.service.config();
        let limits = BodyLimits {
            // No owner may have more than this.
            bytes: config.files.owner_bytes.0.saturating_add(OTHER_BYTES_MAX),
            client_timeout: config.limits.client.0,
        };
        let content_type = headers.get(header::CONTENT_TYPE);
        let content_type = content_type.and_then(|value| value.to_str().ok());
        Self::of(content_type.unwrap_or_default(), body, limits)
    }

    fn of(content_type: &str, body: Body, limits: BodyLimits) -> Result<Self, ServiceError> {
        let boundary = multer::parse_boundary(content_type).map_err(|_| {
            let message = "The request has to be multipart/form-data";
            ServiceError::invalid("not_multipart", message)
        })?;
        let read_ahead = Arc::<AtomicUsize>::default();
        let body = LimitedBody {
            body: body.into_data_stream(),
            limits,
            until: Instant::now() + FORM_TIMEOUT,
            read_ahead: Arc::clone(&read_ahead),
        };
        Ok(Self { parts: Multipart::new(body.pieces(), boundary), part: None, read_ahead })
    }

    /// Returns the head of the next part, after the rest of the current one is skipped.
    pub async fn next_part(&mut self) -> Result<Option<PartHead>, ServiceError> {
        while self.content().await?.is_some() {}
        let part = self.parts.next_field().await;
        self.read_ahead.store(0, Ordering::Relaxed);
        let Some(part) = part.map_err(form_error)? else {
            return Ok(None);
        };
        let head = PartHead::of(&part).map_err(malformed)?;
        self.part = Some(part);
        Ok(Some(head))
    }

    /// Returns the next bytes of the current part, or `None` at its end.
    pub async fn content(&mut self) -> Result<Option<Bytes>, ServiceError> {
        let Some(part) = &mut self.part else {
            return Ok(None);
        };
        let content = part.chunk().await;
        self.read_ahead.store(0, Ordering::Relaxed);
        let content = content.map_err(form_error)?;
        if content.is_none() {
            self.part = None;
        }
        Ok(content)
    }

    /// Reads the current part as the value of a field.
    pub async fn field(&mut self) -> Result<String, ServiceError> {
        let mut value = Vec::new();
        while let Some(bytes) = self.content().await? {
            value.extend_from_slice(&bytes);
            if value.len() > FIELD_BYTES_MAX {
                return Err(malformed("a field is too long"));
            }
        }
        String::from_utf8(value).map_err(|_| malformed("a field is not UTF-8"))
    }
}

struct LimitedBody {
    body: BodyDataStream,
    limits: BodyLimits,
    until: Instant,
    read_ahead: Arc<AtomicUsize>,
}

impl LimitedBody {
    fn pieces(self) -> impl Stream<Item = Result<Bytes, BodyError>> + Send + 'static {
        stream::unfold(self, |mut body| async move {
            // `multer` reads until a stream is not ready. It must look at each piece first.
            tokio::task::yield_now().await;
            let piece = body.next().await.transpose()?;
            Some((piece.map_err(BodyError), body))
        })
    }

    async fn next(&mut self) -> Result<Option<Bytes>, ServiceError> {
        if self.read_ahead.load(Ordering::Relaxed) > READ_AHEAD_BYTES_MAX {
            return Err(malformed("the head of a part is too long"));
        }
        let until = self.until.min(Instant::now() + self.limits.client_timeout);
        let piece = tokio::time::timeout_at(until, self.body.next()).await;
        let timed_out = |_| ServiceError::timed_out("upload_timeout", "Upload timeout");
        let Some(piece) = piece.map_err(timed_out)? else {
            return Ok(None);
        };
        let piece = piece.map_err(|_| incomplete())?;
        let left = self.limits.bytes.checked_sub(piece.len() as u64);
        self.limits.bytes = left
            .ok_or_else(|| ServiceError::too_large("file_too_large", "File size limit exceeded"))?;
        self.read_ahead.fetch_add(piece.len(), Ordering::Relaxed);
        Ok(Some(piece))
    }
}

/// Carries an error through `multer`.
#[derive(Debug)]
struct BodyError(ServiceError);

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl StdError for BodyError {}

fn form_error(error: multer::Error) -> ServiceError {
    if let multer::Error::StreamReadFailed(source) = error {
        return match source.downcast::<BodyError>() {
            Ok(error) => error.0,
            Err(source) => malformed(&source.to_string()),
        };
    }
    let is_cut = matches!(
        error,
        multer::Error::IncompleteStream
            | multer::Error::IncompleteFieldData { .. }
            | multer::Error::IncompleteHeaders
    );
    if is_cut { incomplete() } else { malformed(&error.to_string()) }
}

fn malformed(why: &str) -> ServiceError {
    ServiceError::invalid("malformed_form", format!("Invalid multipart body: {why}"))
}

fn incomplete() -> ServiceError {
    ServiceError::invalid("incomplete", "The body ended too early")
}

impl PartHead {
    fn of(part: &Field<'_>) -> Result<Self, &'static str> {
        let disposition = part.headers().get(header::CONTENT_DISPOSITION);
        let disposition = disposition.ok_or("a part has no Content-Disposition")?;
        let disposition = std::str::from_utf8(disposition.as_bytes());
        Self::parse(disposition.map_err(|_| "the head of a part is not UTF-8")?)
    }

    /// Reads `filename*` too, which `multer` does not, and quoted values as clients write them.
    fn parse(disposition: &str) -> Result<Self, &'static str> {
        let (kind, parameters) =
            disposition.split_once(';').ok_or("a part has no Content-Disposition")?;
        if !kind.trim().eq_ignore_ascii_case("form-data") {
            return Err("a part is not form-data");
        }
        let name = parameter(parameters, "name").ok_or("a part has no name")?;
        let filename = match parameter(parameters, "filename*") {
            Some(extended) => {
                Some(extended_value(&extended).ok_or("a filename* is not UTF-8''NAME")?)
            }
            None => parameter(parameters, "filename"),
        };
        Ok(Self { name, filename })
    }
}

/// Returns the value of one of `a=b; c="d"`. In quotes, a backslash escapes only a quote: clients
/// that escape anything escape that alone.
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

/// Returns a value, and what follows it.
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
    let bytes = percent_decoded(encoded).filter(|_| charset.eq_ignore_ascii_case("utf-8"))?;
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPE: &str = "multipart/form-data; boundary=XX";
    const LIMITS: BodyLimits =
        BodyLimits { bytes: 1 << 20, client_timeout: Duration::from_secs(60) };

    fn form(body: &[u8], size: usize) -> MultipartForm {
        let pieces: Vec<Result<Vec<u8>, std::io::Error>> =
            body.chunks(size).map(|piece| Ok(piece.to_vec())).collect();
        let body = Body::from_stream(stream::iter(pieces));
        MultipartForm::of(TYPE, body, LIMITS).expect("a form")
    }

    fn runtime() -> tokio::runtime::Runtime {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().build().expect("a runtime")
    }

    /// The parts of a form that arrives in pieces of this size.
    fn parsed(body: &[u8], size: usize) -> Result<Vec<(PartHead, Vec<u8>)>, ServiceError> {
        runtime().block_on(async {
            let mut form = form(body, size);
            let mut parts = Vec::new();
            while let Some(head) = form.next_part().await? {
                let mut content = Vec::new();
                while let Some(bytes) = form.content().await? {
                    content.extend_from_slice(&bytes);
                }
                parts.push((head, content));
            }
            Ok(parts)
        })
    }

    fn head(name: &str, filename: Option<&str>) -> PartHead {
        PartHead { name: name.to_owned(), filename: filename.map(str::to_owned) }
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
            (head("kind", None), b"user".to_vec()),
            (head("file", Some("a/b.txt")), tricky.to_vec()),
            (head("file", Some("e")), Vec::new()),
        ];
        for size in 1..=body.len() {
            assert_eq!(parsed(&body, size).as_deref(), Ok(&expected[..]), "by {size}");
        }
    }

    #[test]
    fn only_a_piece_of_a_large_part_is_in_memory() {
        let mut body =
            b"--XX\r\nContent-Disposition: form-data; name=file; filename=f\r\n\r\n".to_vec();
        body.extend_from_slice(&[b'\r'; 100_000]);
        body.extend_from_slice(b"\r\n--XX--");
        runtime().block_on(async {
            let mut form = form(&body, 1000);
            form.next_part().await.expect("a form").expect("a part");
            let mut length = 0;
            while let Some(bytes) = form.content().await.expect("a form") {
                // `multer` gets one piece each time that it looks, and looks a few times.
                assert!(bytes.len() < 4000, "{}", bytes.len());
                length += bytes.len();
            }
            assert_eq!(length, 100_000);
        });
    }

    #[test]
    fn a_malformed_form_is_refused() {
        for wrong in [
            "",
            "multipart/form-data",
            "multipart/mixed; boundary=XX",
            "application/json; boundary=XX",
        ] {
            let refused = MultipartForm::of(wrong, Body::empty(), LIMITS);
            assert_eq!(refused.err().map(|error| error.code), Some("not_multipart"), "{wrong:?}");
        }
        let of = |text: &str| MultipartForm::of(text, Body::empty(), LIMITS).is_ok();
        assert!(of("Multipart/Form-Data; charset=utf-8; Boundary=\"a b\""));
        let refused = |body: &str| parsed(body.as_bytes(), 7).expect_err(body);
        refused("--XXjunk\r\n");
        refused("--XX\r\nContent-Disposition: attachment; name=a\r\n\r\n");
        refused("--XX\r\nContent-Disposition: form-data; filename=a\r\n\r\n");
        refused("--XX\r\nContent-Type: text/plain\r\n\r\n");
        refused("--XX\r\nContent-Disposition: form-data; name=f; filename*=latin1''a\r\n\r\n");
        let body = b"--XX\r\nContent-Disposition: form-data; name=\"\xff\"\r\n\r\n";
        assert!(parsed(body, 7).is_err());
        let cut = refused("--XX\r\nContent-Disposition: form-data; name=f\r\n\r\nabc");
        assert_eq!(cut.code, "incomplete");
    }

    #[test]
    fn heads_and_bodies_that_are_too_long_are_refused() {
        let long = |length: usize| format!("--XX\r\nX: {}", "x".repeat(length));
        let refused = |length| parsed(long(length).as_bytes(), 1000).expect_err("no end").message;
        assert!(refused(100 << 10).contains("the head of a part is too long"));
        assert_eq!(refused(2 << 10), "The body ended too early");
        let large = [b"--XX\r\nContent-Disposition: form-data; name=f\r\n\r\n", &[0; 2 << 20][..]];
        let refused = parsed(&large.concat(), 50_000).expect_err("too large");
        assert_eq!(refused.code, "file_too_large");
    }

    #[test]
    fn a_name_is_read_as_clients_write_it() {
        let name = |parameters: &str| {
            let head = format!("form-data; name=\"file\"; {parameters}");
            PartHead::parse(&head).expect(parameters).filename
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
