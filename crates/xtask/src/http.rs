//! Asks servers on this host.

use serde_json::Value;
use std::io::{self, Read, Write};

/// A connection that is used for one request after another.
#[derive(Debug)]
pub struct Connection<S> {
    stream: S,
    received: Vec<u8>,
}

impl<S: Read + Write> Connection<S> {
    pub fn new(stream: S) -> Self {
        Self { stream, received: Vec::new() }
    }

    /// Sends a request, and returns the body of the answer if its status is 200.
    pub fn ask(&mut self, method: &str, path: &str, body: &str) -> io::Result<Value> {
        self.send(method, path, body)?;
        let (head, body) = self.receive()?;
        let shown = || format!("{method} {path}: {head}{}", String::from_utf8_lossy(&body));
        if head.split(' ').nth(1) != Some("200") {
            return Err(io::Error::other(shown()));
        }
        serde_json::from_slice(&body).map_err(|_| io::Error::other(shown()))
    }

    /// Sends a request in one piece.
    pub fn send(&mut self, method: &str, path: &str, body: &str) -> io::Result<()> {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.stream.write_all(request.as_bytes())
    }

    /// Reads one answer: its head, and its body of the length that the head says.
    fn receive(&mut self) -> io::Result<(String, Vec<u8>)> {
        self.received.clear();
        let head = loop {
            let end = self.received.windows(4).position(|it| it == b"\r\n\r\n");
            match end {
                Some(end) => break end + 4,
                None => self.read_more()?,
            }
        };
        let text = String::from_utf8_lossy(&self.received[..head]).into_owned();
        let length = content_length(&text)
            .ok_or_else(|| io::Error::other(format!("an answer without a length: {text}")))?;
        while self.received.len() < head + length {
            self.read_more()?;
        }
        Ok((text, self.received[head..head + length].to_vec()))
    }

    fn read_more(&mut self) -> io::Result<()> {
        let mut part = [0; 8192];
        match self.stream.read(&mut part)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                self.received.extend_from_slice(&part[..count]);
                Ok(())
            }
        }
    }
}

fn content_length(head: &str) -> Option<usize> {
    let mut fields = head.lines().filter_map(|line| line.split_once(':'));
    let field = fields.find(|(name, _)| name.eq_ignore_ascii_case("content-length"))?;
    field.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers with these bytes, a few at a time.
    struct Script(io::Cursor<Vec<u8>>);

    impl Read for Script {
        fn read(&mut self, part: &mut [u8]) -> io::Result<usize> {
            let few = part.len().min(5);
            self.0.read(&mut part[..few])
        }
    }

    impl Write for Script {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn asked(answer: &str) -> io::Result<Value> {
        Connection::new(Script(io::Cursor::new(answer.into()))).ask("GET", "/x", "")
    }

    #[test]
    fn only_a_whole_answer_with_200_is_one() {
        let head = |status| format!("HTTP/1.1 {status}\r\ncontent-length: 7\r\n\r\n");
        assert_eq!(asked(&(head("200 OK") + "{\"a\":1}")).unwrap()["a"], 1);
        assert!(asked(&(head("200 OK") + "{\"a\":")).is_err());
        let refused = asked(&(head("503 No") + "{\"a\":1}")).unwrap_err().to_string();
        assert!(refused.contains("503 No") && refused.contains("{\"a\":1}"), "{refused}");
        assert!(asked("").is_err());
        assert!(asked("HTTP/1.1 200 OK\r\n\r\n{}").is_err());
    }
}
