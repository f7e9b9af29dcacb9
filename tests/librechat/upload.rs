//! `POST /v1/upload` and `/v1/upload/batch`.

use std::io::{Read, Write};

use serde_json::{Value, json};
use tare_harness::{Answer, eventually, tare};

use crate::librechat::client::{BOUNDARY, Chat, Form, reference};

#[test]
fn first_generation_clients_upload_a_file_with_or_without_an_agent() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let answer = chat.upload(Form::default().file("data.csv", b"a,b\n")).was(200);
    let answer = answer.json();
    let sent = reference(&answer);
    assert_eq!(answer["files"][0]["filename"], "data.csv");
    assert_eq!(answer["files"].as_array().map(Vec::len), Some(1));
    assert_eq!(chat.server.get(&format!("/v1/download/{sent}")).was(200).body, b"a,b\n");
    let form = Form::default().field("entity_id", "agent_1").file("x.txt", b"x");
    let sent = reference(&chat.upload(form).was(200).json());
    let path = format!("/v1/download/{sent}?entity_id=agent_1");
    assert_eq!(chat.server.get(&path).was(200).body, b"x");
    chat.server.stop().ok();
}

#[test]
fn later_clients_upload_with_a_resource_and_nested_names() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let form = Form::default()
        .field("kind", "skill")
        .field("id", "s1")
        .field("version", "3")
        .field("read_only", "true")
        .field("unknown", "is not heeded")
        .file("pptx/scripts/a b \u{e4}.py", b"print(1)");
    let answer = chat.upload(form).was(200).json();
    assert_eq!(answer["files"][0]["filename"], "pptx/scripts/a b \u{e4}.py");
    let sent = reference(&answer).replace('/', "/objects/");
    let path = format!("/v1/sessions/{sent}?kind=skill&id=s1&version=3");
    assert_eq!(chat.server.get(&path).was(200).json()["readOnly"], true);
    let form = Form::default().field("kind", "agent").field("id", "a1").file("a", b"");
    let sent = reference(&chat.upload(form).was(200).json());
    let path = format!("/v1/download/{sent}?kind=agent&id=a1");
    assert_eq!(chat.server.get(&path).was(200).body, b"");
    chat.server.stop().ok();
}

#[track_caller]
fn refused(answer: Answer, status: u16, error: &str) {
    let body = answer.was(status).json();
    let said = body["error"].as_str().unwrap_or_default();
    assert!(said.starts_with(error), "{body}");
}

#[test]
fn a_malformed_form_is_refused_with_the_reason() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let json = [("Content-Type", "application/json")];
    let answer = chat.server.ask("POST", "/v1/upload", &json, b"{}");
    refused(answer, 400, "The request has to be multipart/form-data");
    refused(chat.upload(Form::of_user("u1")), 400, "No file provided");
    let user = || Form::of_user("u1");
    let long = "x".repeat(300);
    for name in ["../a", "/etc/passwd", "a/../b", "a//b", "", &long] {
        let answer = chat.upload(user().file(name, b"x"));
        refused(answer, 400, "Invalid filename");
    }
    // A header of a part contains no control characters.
    refused(chat.upload(user().file("a\u{1}b", b"x")), 400, "Invalid multipart body");
    let plain = Form::default().file("a/b", b"x");
    refused(chat.upload(plain), 400, "Invalid filename: it is a path");
    let late = user().file("a", b"x").field("entity_id", "agent_1");
    refused(chat.upload(late), 400, "the field entity_id comes once");
    let kind = Form::default().field("kind", "team").file("a", b"x");
    refused(chat.upload(kind), 400, "Invalid resource");
    let mut many = Form::default();
    for number in 0..40 {
        many = many.field(&format!("f{number}"), "x");
    }
    refused(chat.upload(many.file("a", b"x")), 400, "Invalid multipart body");
    let long = Form::default().field("id", &"x".repeat(2000)).file("a", b"x");
    refused(chat.upload(long), 400, "Invalid multipart body");
    eventually("nothing of it is left", || chat.stored() == 0);
    chat.server.stop().ok();
}

#[test]
fn uploads_are_limited_per_file_per_owner_and_in_total() {
    let tare = tare!();
    let limits = "file_bytes = '1000'\nowner_bytes = '2500'\ntotal_bytes = '4000'\n";
    let chat = Chat::configured(&tare, limits, "");
    let of = |agent: &str, byte: u8, size: usize| {
        let form = Form::default().field("entity_id", agent);
        chat.upload(form.file("a.bin", &vec![byte; size]))
    };
    let large = of("a", 1, 1001).was(413).json();
    assert_eq!(large["error"], "File size limit exceeded");
    for byte in [1, 2] {
        of("a", byte, 1000).was(200);
    }
    refused(of("a", 3, 501), 507, "the files of one owner have at most");
    of("a", 3, 500).was(200);
    of("b", 4, 1000).was(200);
    let full = of("b", 5, 501).was(503);
    assert!(full.header("retry-after").is_some());
    of("b", 5, 500).was(200);
    assert_eq!(chat.stored(), 5 * 2, "each a content and a record");
    chat.server.stop().ok();
}

#[test]
fn a_batch_accepts_or_refuses_each_file_separately() {
    let tare = tare!();
    let chat = Chat::configured(&tare, "file_bytes = '1000'\nrequest_files = 3\n", "");
    let batch = |form: Form| chat.post("/v1/upload/batch", form);
    let all = batch(Form::of_user("u1").file("a", b"1").file("d/b", b"2")).was(200).json();
    assert_eq!(all["message"], "success");
    assert_eq!((&all["succeeded"], &all["failed"]), (&2.into(), &0.into()));
    assert_eq!(all["session_id"], all["storage_session_id"]);
    assert_eq!(all["files"][1]["status"], "success");
    assert_eq!(all["files"][1]["filename"], "d/b");
    assert!(all.get("filesLimitReached").is_none());
    let sent = format!("{}/{}", all["session_id"], all["files"][1]["fileId"]);
    let path = format!("/v1/download/{}?kind=user&id=u1", sent.replace('"', ""));
    assert_eq!(chat.server.get(&path).was(200).body, b"2");

    let form = Form::of_user("u1").file("../a", b"1").file("large", &[0; 1001]);
    let some = batch(form.file("fits", b"3").file("more", b"4")).was(200).json();
    assert_eq!(some["message"], "partial_success");
    assert_eq!((&some["succeeded"], &some["failed"]), (&1.into(), &2.into()));
    let statuses = some["files"].as_array().expect("files").iter();
    let statuses: Vec<&Value> = statuses.map(|file| &file["status"]).collect();
    assert_eq!(statuses, ["error", "error", "success"]);
    assert_eq!(some["files"][1]["error"], "File size limit exceeded");
    assert_eq!((&some["filesLimitReached"], &some["maxFiles"]), (&true.into(), &3.into()));

    let none = batch(Form::of_user("u1").file("../a", b"1")).was(400).json();
    assert_eq!((&none["message"], &none["failed"]), (&"error".into(), &1.into()));
    let empty = batch(Form::of_user("u1")).was(400).json();
    assert_eq!(empty["error"], "No files provided");
    assert_eq!(empty["files"], json!([]));
    chat.server.stop().ok();
}

/// Files that arrived earlier in the same form are removed too.
#[test]
fn an_interrupted_upload_leaves_nothing() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    for path in ["/v1/upload", "/v1/upload/batch"] {
        let body = Form::of_user("u1").file("first", b"whole").file("second", b"and so on");
        let body = body.unfinished();
        let mut stream = chat.server.connect();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\
             Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).expect("it reads");
        stream.write_all(&body[..body.len() - 2]).expect("it reads");
        eventually("the first is kept, the second is coming", || chat.stored() == 3);
        drop(stream);
        eventually("nothing of it is left", || chat.stored() == 0);
    }
    chat.server.stop().ok();
}

#[test]
fn a_stalled_upload_is_ended() {
    let tare = tare!();
    let chat = Chat::configured(&tare, "", "[limits]\nclient = '1s'\n");
    let mut stream = chat.server.connect();
    let head = format!(
        "POST /v1/upload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\
         Connection: close\r\nContent-Type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).expect("it reads");
    let body = Form::of_user("u1").file("a", b"the beginning").unfinished();
    stream.write_all(&body).expect("it reads");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    let answer = Answer::parse(&answer).was(504).json();
    assert_eq!(answer, json!({ "error": "Upload timeout" }));
    eventually("nothing of it is left", || chat.stored() == 0);
    chat.server.stop().ok();
}
