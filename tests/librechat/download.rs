//! `GET /v1/download/{session}/{file}`.

use serde_json::json;
use tare_harness::tare;

use crate::librechat::client::{Chat, Form, reference};

const USER: &str = "kind=user&id=u1";

#[test]
fn a_download_is_unchanged_and_never_rendered_by_a_browser() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    for (name, media_type) in [
        ("plot.png", "image/png"),
        ("page.html", "text/html; charset=utf-8"),
        ("picture.SVG", "image/svg+xml"),
        ("data/table.csv", "text/csv; charset=utf-8"),
        ("unknown", "application/octet-stream"),
    ] {
        let sent = chat.sent(name, b"<script>");
        let answer = chat.server.get(&format!("/v1/download/{sent}?{USER}")).was(200);
        assert_eq!(answer.body, b"<script>");
        assert_eq!(answer.header("content-type"), Some(media_type));
        assert_eq!(answer.header("content-length"), Some("8"));
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("content-security-policy"), Some("sandbox"));
        let disposition = answer.header("content-disposition").expect("a name");
        let last = name.rsplit('/').next().expect("a name");
        let expected = format!("attachment; filename=\"{last}\"; filename*=UTF-8''{last}");
        assert_eq!(disposition, expected);
    }
    let sent = chat.sent("\u{e4}; \\\"x=y.txt", b"");
    let answer = chat.server.get(&format!("/v1/download/{sent}?{USER}")).was(200);
    let disposition = answer.header("content-disposition").expect("a name");
    assert!(disposition.ends_with("filename*=UTF-8''%C3%A4%3B%20%22x%3Dy.txt"), "{disposition}");
    chat.server.stop().ok();
}

#[test]
fn a_range_request_gets_the_whole_file() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let sent = chat.sent("a.txt", b"0123456789");
    let path = format!("/v1/download/{sent}?{USER}");
    let answer = chat.server.ask("GET", &path, &[("Range", "bytes=2-4")], b"").was(200);
    assert_eq!(answer.body, b"0123456789");
    assert_eq!(answer.header("accept-ranges"), Some("none"));
    assert_eq!(answer.header("content-length"), Some("10"));
    assert_eq!(chat.server.ask("HEAD", &path, &[], b"").was(200).body, b"");
    chat.server.stop().ok();
}

#[test]
fn unknown_ids_get_404_and_malformed_ids_400() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let missing = format!("/v1/download/{0}/{0}", "a".repeat(21));
    let answer = chat.server.get(&missing).was(404).json();
    assert_eq!(answer["error"], "File not found");
    assert!(answer["details"].is_string(), "{answer}");
    assert!(!chat.store().exists(), "no file was ever uploaded");
    let sent = chat.sent("a.txt", b"x");
    let session = sent.split('/').next().expect("a session");
    chat.server.get(&format!("/v1/download/{session}/{}", "b".repeat(21))).was(404);
    for wrong in [
        format!("{session}/{}", "b".repeat(20)),
        format!("{session}/..%2F..%2Fetc%2Fpasswd"),
        format!("%2e%2e/{session}"),
        format!("{session}/{}%00", "b".repeat(20)),
    ] {
        let answer = chat.server.get(&format!("/v1/download/{wrong}")).was(400).json();
        assert_eq!(answer["error"], "Invalid session or file id", "{wrong}");
    }
    chat.server.stop().ok();
}

#[test]
fn empty_and_binary_files_are_returned_unchanged() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    let tricky = b"\r\n----\r\n--------------------------52781719324\r\n\r".to_vec();
    for content in [Vec::new(), bytes, tricky] {
        let sent = chat.sent("a.bin", &content);
        let answer = chat.server.get(&format!("/v1/download/{sent}?{USER}")).was(200);
        assert!(answer.body == content, "every byte of {}", content.len());
    }
    chat.server.stop().ok();
}

#[test]
fn unknown_query_parameters_are_ignored() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let form = Form::default().field("kind", "agent").field("id", "a1");
    let sent = reference(&chat.upload(form.file("a", b"x")).was(200).json());
    let get = |query: &str| chat.server.get(&format!("/v1/download/{sent}?{query}"));
    get("kind=agent&id=a1&t=123").was(200);
    let wrong = get("kind=agent").was(400).json();
    assert!(wrong["error"].as_str().is_some_and(|said| said.contains("no id")));
    get("kind=skill&id=s1").was(400);
    get("kind=planet&id=s1").was(400);
    assert_ne!(wrong, json!(null));
    chat.server.stop().ok();
}
