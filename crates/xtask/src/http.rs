//! Sends one request to a server on this host, and reads the answer.

use serde_json::Value;
use std::io::{self, Read, Write};

/// Sends a request over a new connection. Returns the body if the status is 200.
pub fn ask(
    mut stream: impl Read + Write,
    method: &str,
    path: &str,
    body: &str,
) -> io::Result<Value> {
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    parse(&answer).ok_or_else(|| io::Error::other(format!("{method} {path}: {answer}")))
}

fn parse(answer: &str) -> Option<Value> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let is_good = head.split(' ').nth(1) == Some("200");
    is_good.then(|| serde_json::from_str(body).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_answer_with_200_is_one() {
        let head = |status| format!("HTTP/1.1 {status}\r\nContent-Length: 7\r\n\r\n");
        let good = parse(&(head("200 OK") + "{\"a\":1}")).unwrap();
        assert_eq!(good["a"], 1);
        assert_eq!(parse(&(head("200 OK") + "{\"a\":")), None);
        assert_eq!(parse(&(head("503 No") + "{\"a\":1}")), None);
        assert_eq!(parse(""), None);
    }
}
