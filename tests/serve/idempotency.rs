//! `Idempotency-Key`: a lost answer never creates a second box.

use std::thread;

use serde_json::{Value, json};
use tare_harness::{Answer, Server, eventually, tare};

fn create(server: &Server, key: &str) -> Answer {
    let headers = [("Content-Type", "application/json"), ("Idempotency-Key", key)];
    server.ask("POST", "/v1/boxes", &headers, b"{}")
}

fn id(answer: &Answer) -> Value {
    answer.json()["id"].clone()
}

#[test]
fn a_repeated_key_returns_the_same_box_and_another_key_another_box() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let first = create(&server, "a").was(201);
    assert_eq!(id(&create(&server, "a").was(200)), id(&first));
    let other = create(&server, "b").was(201);
    assert_ne!(id(&other), id(&first));
    assert_eq!(tare.footprint().records.len(), 2);
    let stop = json!({ "grace_ms": 0 });
    let path = format!("/v1/boxes/{}", id(&first).as_str().expect("an id"));
    server.post(&format!("{path}/stop"), &stop).was(200);
    assert_eq!(create(&server, "a").was(200).json()["state"], "exited");
    server.delete(&path).was(204);
    create(&server, "a").refused(409, "conflict");
    create(&server, "a b").refused(400, "invalid_idempotency_key");
    tare.remove(id(&other).as_str().expect("an id"));
    assert!(tare.footprint().records.is_empty());
    server.stop().ok();
}

#[test]
fn a_key_sent_concurrently_creates_one_box() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let answers: Vec<Answer> = thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| create(&server, "same"))).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|answer| answer.expect("an answer")).collect()
    });
    let made = answers.iter().filter(|answer| answer.status == 201);
    assert_eq!(made.count(), 1);
    let found = answers.iter().filter(|answer| answer.status == 200);
    assert_eq!(found.count(), 7);
    assert!(answers.iter().all(|one| id(one) == id(&answers[0])));
    assert_eq!(tare.footprint().records.len(), 1);
    tare.remove(id(&answers[0]).as_str().expect("an id"));
    server.stop().ok();
}

fn create_as(server: &Server, key: &str, body: &str) -> Answer {
    let headers = [("Content-Type", "application/json"), ("Idempotency-Key", key)];
    server.ask("POST", "/v1/boxes", &headers, body.as_bytes())
}

/// A key with another request is a mistake of the client, which must not get the old box. A
/// restarted server refuses it too.
#[test]
fn a_key_reused_with_another_request_is_refused() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let body = r#"{"command":["sleep","1000"],"env":{"A":"b","C":"d"}}"#;
    let first = create_as(&server, "a", body).was(201);
    let reused = "idempotency_key_reused";
    let others = [
        "{}",
        r#"{"command":["sleep","1001"],"env":{"A":"b","C":"d"}}"#,
        r#"{"command":["sleep","1000"],"env":{"A":"b","C":"e"}}"#,
    ];
    for other in others {
        create_as(&server, "a", other).refused(422, reused);
    }
    // The same in other words.
    let same = r#" { "env": {"C": "d", "A": "b"}, "command": ["sleep", "1000"] }"#;
    assert_eq!(id(&create_as(&server, "a", same).was(200)), id(&first));
    server.kill();
    let server = Server::start(&tare, &[]);
    create_as(&server, "a", "{}").refused(422, reused);
    assert_eq!(id(&create_as(&server, "a", body).was(200)), id(&first));
    assert_eq!(tare.footprint().records.len(), 1);
    let label = first.json()["labels"]["tare.request"].clone();
    let label = label.as_str().expect("its request is on record");
    let forged = json!({ "labels": { "tare.request": label } });
    server.post("/v1/boxes", &forged).refused(400, "invalid");
    // Two keys with the same request do not show that it is the same.
    let other = create_as(&server, "b", body).was(201);
    assert_ne!(other.json()["labels"]["tare.request"], label);
    for made in [&first, &other] {
        tare.remove(id(made).as_str().expect("an id"));
    }
    server.stop().ok();
}

/// A failed creation leaves no box, so the key is still free.
#[test]
fn a_key_whose_create_failed_can_be_used_again() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let headers = [("Content-Type", "application/json"), ("Idempotency-Key", "a")];
    let body = json!({ "command": ["no-such-program"] }).to_string();
    let refused = server.ask("POST", "/v1/boxes", &headers, body.as_bytes());
    refused.refused(400, "command_not_found");
    let made = create(&server, "a").was(201);
    tare.remove(id(&made).as_str().expect("an id"));
    server.stop().ok();
}

/// The server is killed at random moments of a creation, and the client repeats its request.
#[test]
fn a_server_killed_during_create_does_not_create_a_second_box() {
    let tare = tare!();
    for round in 0..8u32 {
        let key = format!("round-{round}");
        let server = Server::start(&tare, &[]);
        let headers = [("Content-Type", "application/json"), ("Idempotency-Key", &key)];
        let stream = server.send("POST", "/v1/boxes", &headers, b"{}");
        // From before the record to after the answer.
        if round > 0 {
            eventually("it is being made", || !tare.footprint().records.is_empty());
            tare_harness::let_pass(std::time::Duration::from_millis(u64::from(round) * 3));
        }
        server.kill();
        drop(stream);
        let server = Server::start(&tare, &[]);
        let answer = create(&server, &key);
        assert!([200, 201].contains(&answer.status), "{}", answer.text());
        assert_eq!(id(&create(&server, &key).was(200)), id(&answer));
        assert_eq!(tare.footprint().records.len(), 1);
        let of = id(&answer).as_str().expect("an id").to_owned();
        tare.exec(&of, ["true"]).ok();
        server.delete(&format!("/v1/boxes/{of}?force=true")).was(204);
        tare.assert_gone(&of);
        create(&server, &key).refused(409, "conflict");
        server.stop().ok();
    }
}
