//! The owner of a file: no other user can get, list or remove it.

use serde_json::json;
use tare_harness::{Signer, TemporaryDirectory, jwks, tare};

use crate::librechat::client::{Chat, Form, reference};
use crate::librechat::identity::KEY;

#[test]
fn every_route_refuses_files_of_another_owner() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let form = Form::default().field("kind", "agent").field("id", "a1");
    let sent = reference(&chat.upload(form.file("a.txt", b"x")).was(200).json());
    let session = sent.split('/').next().expect("a session");
    let object = format!("/v1/sessions/{}", sent.replace('/', "/objects/"));
    for other in
        ["kind=agent&id=a2", "entity_id=a2", "kind=user&id=u1", "kind=skill&id=a1&version=1"]
    {
        let paths = [
            format!("/v1/download/{sent}?{other}"),
            format!("/v1/files/{session}?detail=summary&{other}"),
            format!("{object}?{other}"),
        ];
        for path in paths {
            let answer = chat.server.get(&path).was(403).json();
            assert_eq!(answer["error"], "This file belongs to another user", "{path}");
        }
        chat.server.delete(&format!("/v1/files/{sent}?{other}")).was(403);
        chat.server.delete(&format!("{object}?{other}")).was(403);
    }
    chat.server.get(&format!("/v1/download/{sent}?kind=agent&id=a1")).was(200);
    chat.server.stop().ok();
}

/// A client that speaks for all of its users says which one it means.
#[test]
fn a_user_does_not_get_files_uploaded_for_another() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let sent = chat.sent("a.txt", b"of u1");
    chat.server.get(&format!("/v1/download/{sent}?kind=user&id=u1")).was(200);
    chat.server.get(&format!("/v1/download/{sent}?kind=user&id=u2")).was(403);
    chat.server.delete(&format!("/v1/files/{sent}?kind=user&id=u2")).was(403);
    chat.server.stop().ok();
}

/// The owner in the form counts, also without a header that names one, and against it.
#[test]
fn a_file_belongs_to_the_user_that_the_form_names() {
    let tare = tare!();
    let key = ("X-API-Key", "native-key");
    for (section, who) in [("", ("User-Id", "u9")), ("", ("X-Other", "x")), (KEY, key)] {
        let chat = Chat::configured(&tare, "", section);
        let form = Form::of_user("u1").file("a.txt", b"of u1");
        let sent = reference(&chat.post_as(who, "/v1/upload", form).was(200).json());
        let get = |id: &str| {
            let path = format!("/v1/download/{sent}?kind=user&id={id}");
            chat.server.ask("GET", &path, &[who], b"").status
        };
        assert_eq!([get("u1"), get("u2"), get("u9")], [200, 403, 403], "{who:?}");
        let (session, id) = sent.split_once('/').expect("two ids");
        let exec = |user: &str| {
            let file = json!({ "id": id, "storage_session_id": session, "name": "a.txt",
                               "kind": "user", "resource_id": user });
            let body = json!({ "lang": "bash", "code": "cat a.txt", "files": [file],
                               "user_id": user });
            let headers = [("Content-Type", "application/json"), who];
            let body = body.to_string();
            chat.server.ask("POST", "/v1/exec", &headers, body.as_bytes()).status
        };
        assert_eq!([exec("u1"), exec("u2")], [200, 403], "{who:?}");
        chat.server.stop().ok();
    }
}

#[test]
fn each_version_of_a_skill_has_its_own_files() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let form = Form::default().field("kind", "skill").field("id", "s1").field("version", "1");
    let sent = reference(&chat.upload(form.file("a.md", b"x")).was(200).json());
    let get = |version: u32| {
        let path = format!("/v1/download/{sent}?kind=skill&id=s1&version={version}");
        chat.server.get(&path)
    };
    get(1).was(200);
    get(2).was(403);
    chat.server.stop().ok();
}

#[test]
fn authenticated_user_sees_own_and_shared_files() {
    let tare = tare!();
    let signer = Signer::ed25519("ed", 1);
    let directory = TemporaryDirectory::new();
    let keys = directory.write("jwks.json", jwks(&[&signer]));
    let section = format!("[librechat.jwt]\nkeys = '{}'\n", keys.display());
    let chat = Chat::configured(&tare, "", &section);
    let [ann, bob] = ["ann", "bob"].map(|user| format!("Bearer {}", signer.token(user)));
    let send = |who: &str, form: Form| {
        let answer = chat.post_as(("Authorization", who), "/v1/upload", form);
        reference(&answer.was(200).json())
    };
    let ask = |who: &str, method: &str, path: &str| {
        let answer = chat.server.ask(method, path, &[("Authorization", who)], b"");
        answer.status
    };
    let own = send(&ann, Form::of_user("ann").file("a.txt", b"of ann"));
    let path = format!("/v1/download/{own}?kind=user&id=ann");
    assert_eq!(ask(&ann, "GET", &path), 200);
    assert_eq!(ask(&bob, "GET", &path), 403, "also when he says that he is ann");
    let removed = format!("/v1/files/{own}?kind=user&id=ann");
    assert_eq!(ask(&bob, "DELETE", &removed), 403);
    let session = own.split('/').next().expect("a session");
    assert_eq!(ask(&bob, "GET", &format!("/v1/files/{session}?kind=user&id=bob")), 403);
    assert_eq!(chat.server.get(&path).status, 401);
    let form = Form::default().field("kind", "agent").field("id", "a1");
    let shared = send(&ann, form.file("a.txt", b"of the agent"));
    let path = format!("/v1/download/{shared}?kind=agent&id=a1");
    assert_eq!(ask(&bob, "GET", &path), 200);
    chat.server.stop().ok();
}
