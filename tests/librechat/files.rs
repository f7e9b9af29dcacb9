//! `GET /v1/files/{session}`, objects of sessions, and their removal.

use serde_json::{Value, json};
use tare_harness::{Answer, tare, unix_now, unix_seconds};

use crate::librechat::client::{Chat, Form, reference};

const USER: &str = "kind=user&id=u1";

fn list(chat: &Chat, session: &str, query: &str) -> Value {
    let path = format!("/v1/files/{session}?{query}");
    chat.server.get(&path).was(200).json()
}

#[test]
fn a_session_is_listed_at_every_detail_level() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let sent = chat.sent("data/plot.png", b"12345");
    let (session, file) = sent.split_once('/').expect("two ids");
    let key = format!("{sent}.png");
    let sha256 = "5994471abb01112afcc18159f6cc74b4f511b99806da59b3caf5a9c173cacfc5";
    let simple = json!([key]);
    assert_eq!(list(&chat, session, USER), simple);
    assert_eq!(list(&chat, session, &format!("detail=simple&{USER}")), simple);

    let summary = list(&chat, session, &format!("detail=summary&{USER}"));
    let modified = summary[0]["lastModified"].clone();
    let expected = json!({ "name": key, "size": 5, "lastModified": modified, "etag": sha256 });
    assert_eq!(summary, json!([expected]));

    let full = list(&chat, session, &format!("detail=full&{USER}"));
    let expected = json!({
        "name": key, "size": 5, "lastModified": modified, "etag": sha256,
        "metadata": { "content-type": "image/png", "original-filename": "data/plot.png" },
        "versionId": null, "contentType": "image/png",
    });
    assert_eq!(full, json!([expected]));

    let normalized = list(&chat, session, &format!("detail=normalized&{USER}"));
    let expected = json!({
        "id": file, "name": "data/plot.png", "session_id": session,
        "storage_session_id": session, "size": 5, "contentType": "image/png",
        "lastModified": modified,
    });
    assert_eq!(normalized, json!([expected]));
    chat.server.get(&format!("/v1/files/{session}?detail=all")).was(400);
    chat.server.get("/v1/files/short").was(400);
    assert_eq!(list(&chat, &"x".repeat(21), USER), json!([]));
    chat.server.stop().ok();
}

/// As `checkIfActive` of the first clients does it.
#[test]
fn first_generation_clients_get_the_age_of_a_file() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let form = Form::default().field("entity_id", "agent_1").file("a.csv", b"x");
    let sent = reference(&chat.upload(form).was(200).json());
    let session = sent.split('/').next().expect("a session");
    for query in ["detail=summary&entity_id=agent_1", "detail=summary"] {
        let files = list(&chat, session, query);
        let files = files.as_array().expect("a list");
        let is_it = |one: &&Value| one["name"].as_str().is_some_and(|it| it.starts_with(&sent));
        let modified = files.iter().find(is_it).expect("it is there");
        let modified = modified["lastModified"].as_str().expect("a time");
        let age = unix_now().abs_diff(unix_seconds(modified));
        assert!(age < 600, "{modified}");
    }
    chat.server.stop().ok();
}

#[test]
fn both_routes_describe_and_remove_an_object() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let removed = |answer: Answer, sent: &str| {
        let (session, file) = sent.split_once('/').expect("two ids");
        let expected = json!({
            "message": "File deleted successfully", "session_id": session, "fileId": file,
        });
        assert_eq!(answer.was(200).json(), expected);
    };
    let form = Form::of_user("u1").field("read_only", "true").file("d/a.txt", b"x");
    let sent = reference(&chat.upload(form).was(200).json());
    let object = format!("/v1/sessions/{}?{USER}", sent.replace('/', "/objects/"));
    let described = chat.server.get(&object).was(200).json();
    let sha256 = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881";
    let expected = json!({
        "name": format!("{sent}.txt"), "originalFilename": "d/a.txt", "size": 1,
        "lastModified": described["lastModified"], "etag": sha256,
        "contentType": "text/plain; charset=utf-8", "readOnly": true,
    });
    assert_eq!(described, expected);
    removed(chat.server.delete(&object), &sent);
    assert_eq!(chat.server.get(&object).was(404).json()["error"], "File not found");
    assert_eq!(chat.server.delete(&object).was(404).json()["error"], "File not found");
    let again = chat.sent("a.txt", b"x");
    removed(chat.server.delete(&format!("/v1/files/{again}?{USER}")), &again);
    chat.server.delete(&format!("/v1/files/{again}?{USER}")).was(404);
    chat.server.get(&format!("/v1/download/{again}?{USER}")).was(404);
    assert_eq!(chat.stored(), 0);
    chat.server.stop().ok();
}
