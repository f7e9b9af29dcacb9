//! The quotas of a key.

use serde_json::{Value, json};
use tare_harness::{Answer, Server, eventually, tare};

use crate::serve::configured;

fn post(server: &Server, key: &str, path: &str, body: &Value) -> Answer {
    let headers = [("Content-Type", "application/json"), ("X-API-Key", key)];
    server.ask("POST", path, &headers, body.to_string().as_bytes())
}

#[test]
fn a_keys_quota_is_independent_of_other_keys_and_survives_restarts() {
    let tare = tare!();
    let text = format!(
        "[[keys]]\nname = 'ci'\nsha256 = '{}'\nboxes = 2\nmemory_bytes = '300m'\n\
         [[keys]]\nname = 'desk'\nsha256 = '{}'\n",
        sha256("ci-key"),
        sha256("desk-key"),
    );
    let (_directory, config) = configured(&text);
    let server = Server::start(&tare, &["--config", &config]);
    let limits = json!({ "memory_bytes": 100 << 20 });
    let create =
        |server: &Server, key: &str| post(server, key, "/v1/boxes", &json!({ "limits": limits }));
    let first = create(&server, "ci-key").was(201).json();
    assert_eq!(first["key"], "ci");
    let large = json!({ "command": ["true"], "limits": { "memory_bytes": 250 << 20 } });
    let refused = post(&server, "ci-key", "/v1/run", &large).refused(429, "quota_memory_bytes");
    assert!(refused.header("retry-after").is_some());
    create(&server, "ci-key").was(201);
    create(&server, "ci-key").refused(429, "quota_boxes");
    create(&server, "desk-key").was(201);
    let forged = json!({ "labels": { "tare.key": "desk" } });
    post(&server, "desk-key", "/v1/boxes", &forged).refused(400, "invalid");
    server.kill();
    let server = Server::start(&tare, &["--config", &config]);
    eventually("it has found them", || server.log().contains("recovered"));
    create(&server, "ci-key").refused(429, "quota_boxes");
    let id = first["id"].as_str().expect("an id");
    tare.remove(id);
    eventually("it is seen", || create(&server, "ci-key").status == 201);
    tare.call(["rm", "-f", "--all"]).ok();
    server.stop().ok();
}

#[test]
fn an_update_counts_against_the_quota_of_the_key() {
    let tare = tare!();
    let text =
        format!("[[keys]]\nname = 'ci'\nsha256 = '{}'\nmemory_bytes = '300m'\n", sha256("ci-key"),);
    let server = Server::start_configured(&tare, &text);
    let memory = |mib: u64| json!({ "limits": { "memory_bytes": mib << 20 } });
    let create = |mib| post(&server, "ci-key", "/v1/boxes", &memory(mib));
    let first = create(100).was(201).json();
    let path = format!("/v1/boxes/{}/update", first["id"].as_str().expect("an id"));
    let update = |mib| post(&server, "ci-key", &path, &memory(mib));
    update(301).refused(429, "quota_memory_bytes");
    // What was refused does not count.
    let second = create(200).was(201).json();
    update(101).refused(429, "quota_memory_bytes");
    update(50).was(200);
    tare.remove(second["id"].as_str().expect("an id"));
    eventually("it is seen", || update(300).status == 200);
    create(6).refused(429, "quota_memory_bytes");
    tare.call(["rm", "-f", "--all"]).ok();
    server.stop().ok();
}

#[test]
fn runs_beyond_the_keys_rate_get_429_with_retry_after() {
    let tare = tare!();
    let text = format!(
        "[[keys]]\nname = 'ci'\nsha256 = '{}'\nruns_per_second = 0.01\n",
        sha256("ci-key"),
    );
    let (_directory, config) = configured(&text);
    let server = Server::start(&tare, &["--config", &config]);
    let run = || post(&server, "ci-key", "/v1/run", &json!({ "command": ["true"] }));
    run().was(200);
    let refused = run().refused(429, "quota_runs_per_second");
    let seconds = refused.header("retry-after").and_then(|text| text.parse::<u64>().ok());
    assert!(seconds.is_some_and(|seconds| seconds > 10), "{seconds:?}");
    server.stop().ok();
}

pub fn sha256(key: &str) -> String {
    let output = std::process::Command::new("sh")
        .args(["-c", &format!("printf %s {key} | sha256sum")])
        .output()
        .expect("coreutils");
    let text = String::from_utf8(output.stdout).expect("digits");
    text.split(' ').next().unwrap_or("").to_owned()
}
