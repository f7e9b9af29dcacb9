//! Authentication in each way that LibreChat supports, and the answers to requests that are
//! refused.

use std::fs;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::{Value, json};
use tare_harness::{
    Answer, Server, Signer, Tare, TemporaryDirectory, eventually, jwks, skip, tare, unix_now,
};

use crate::exhaustion::Around;

/// The files of a session that does not exist: an accepted request gets 404.
const ASKED: &str = "/v1/files/AAAAAAAAAAAAAAAAAAAAA?detail=simple";
/// `printf %s native-key | sha256sum`
pub const KEY: &str = "[[keys]]\nname = 'native'\n\
    sha256 = 'e9f03e16fbd6e06725a6d41154f6bab7a3123c541ee4ce92cfa56db1fc9d119f'\n";

/// A directory with `tare.toml` and `jwks.json`, which a test writes again.
struct Files(TemporaryDirectory);

impl Files {
    fn new(signers: &[&Signer], more: &str) -> Self {
        let files = Self(TemporaryDirectory::new());
        files.write_keys(signers);
        files.write_config(more);
        files
    }

    fn write_keys(&self, signers: &[&Signer]) {
        fs::write(self.path("jwks.json"), jwks(signers)).expect("a file");
    }

    fn write_config(&self, more: &str) {
        let keys = self.path("jwks.json");
        let text = format!("{more}\n[librechat.jwt]\nkeys = '{}'\n", keys.display());
        fs::write(self.path("tare.toml"), text).expect("a file");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn config(&self) -> String {
        self.path("tare.toml").display().to_string()
    }

    #[track_caller]
    fn start(&self, tare: &Tare) -> Server {
        Server::start(tare, &["--config", &self.config()])
    }

    /// Where not only this host can ask.
    #[track_caller]
    fn start_for_all(&self, tare: &Tare) -> Server {
        let args = ["serve", "--listen", "0.0.0.0:0", "--config", &self.config()];
        Server::start_command(tare, tare.command(args))
    }
}

fn bearer(server: &Server, token: &str) -> Answer {
    let token = format!("Bearer {token}");
    server.ask("GET", ASKED, &[("Authorization", &token)], b"")
}

/// Checks that the request was accepted.
#[track_caller]
fn heard(answer: Answer) {
    let answers = [200, 404];
    assert!(answers.contains(&answer.status), "{answer:?}");
}

#[track_caller]
fn refused(answer: Answer, status: u16, error: &str) {
    assert_eq!(answer.was(status).json()["error"], error);
}

#[test]
fn only_valid_tokens_are_accepted() {
    let tare = tare!();
    let (ed, rsa) = (Signer::ed25519("ed", 1), Signer::rsa("rsa"));
    let files = Files::new(&[&ed, &rsa], "");
    let server = files.start(&tare);
    heard(bearer(&server, &ed.token("ann")));
    heard(bearer(&server, &rsa.token("ann")));
    let with = |field: &str, value: Value| {
        let mut claims = Signer::claims("ann");
        claims[field] = value;
        ed.sign(&claims)
    };
    heard(bearer(&server, &with("aud", json!(["x", "codeapi"]))));
    let now = unix_now();
    let claims = Signer::claims("ann").to_string();
    let headed = |signer: &Signer, header: Value| signer.sign_text(&header.to_string(), &claims);
    let twice = claims.replacen('{', "{\"sub\":\"ben\",", 1);
    for (wrong, token) in [
        ("garbage", "a.b.c".to_owned()),
        ("another's", Signer::ed25519("ed", 2).token("ann")),
        ("an unknown key's", Signer::ed25519("x", 1).token("ann")),
        ("by the id of another kind", Signer::rsa("ed").token("ann")),
        ("none", headed(&ed, json!({ "alg": "none", "kid": "ed" }))),
        ("HS256", headed(&rsa, json!({ "alg": "HS256", "kid": "rsa" }))),
        ("issuer", with("iss", json!("x"))),
        ("audience", with("aud", json!("x"))),
        ("expired", with("exp", json!(now - 31))),
        ("too long", with("exp", json!(now + 400))),
        ("not yet", with("nbf", json!(now + 100))),
        ("of the future", with("iat", json!(now + 100))),
        ("without a user", with("sub", json!(""))),
        ("without an end", with("exp", Value::Null)),
        ("twice", ed.sign_text(&ed.header().to_string(), &twice)),
        ("oversized", with("jti", json!("x".repeat(9000)))),
    ] {
        let answer = bearer(&server, &token);
        assert_eq!(answer.status, 401, "{wrong}: {}", answer.text());
        refused(answer, 401, "Invalid bearer token");
    }
    let output = server.stop().ok();
    let log = output.stderr_text();
    assert!(log.contains("it has expired"), "the operator learns why");
    assert!(!log.contains("eyJ"), "no token in the log");
}

#[test]
fn missing_malformed_and_ambiguous_tokens_get_different_errors() {
    let tare = tare!();
    let ed = Signer::ed25519("ed", 1);
    let server = Files::new(&[&ed], "").start(&tare);
    let asked = |headers: &[(&str, &str)]| server.ask("GET", ASKED, headers, b"");
    refused(asked(&[]), 401, "Bearer token is required");
    refused(asked(&[("X-API-Key", "x")]), 401, "Bearer token is required");
    refused(asked(&[("Authorization", "Basic eA==")]), 401, "Bearer token is required");
    let good = format!("Bearer {}", ed.token("ann"));
    let ambiguous = "Ambiguous authentication headers";
    let good = ("Authorization", good.as_str());
    refused(asked(&[good, good]), 400, ambiguous);
    refused(asked(&[good, ("X-API-Key", "x")]), 400, ambiguous);
    asked(&[good, ("Origin", "https://evil.example")]).was(403);
    server.stop().ok();
}

#[test]
fn keys_are_rotated_with_a_reload_and_without_one() {
    let tare = tare!();
    let (old, new) = (Signer::ed25519("old", 1), Signer::ed25519("new", 2));
    let files = Files::new(&[&old], "");
    let server = files.start(&tare);
    heard(bearer(&server, &old.token("ann")));
    refused(bearer(&server, &new.token("ann")), 401, "Invalid bearer token");
    files.write_keys(&[&old, &new]);
    eventually("the new key is found", || bearer(&server, &new.token("ann")).status != 401);
    heard(bearer(&server, &old.token("ann")));
    files.write_keys(&[&new]);
    server.signal(Signal::HUP);
    eventually("the old key is gone", || bearer(&server, &old.token("ann")).status == 401);
    heard(bearer(&server, &new.token("ann")));
    fs::write(files.path("jwks.json"), "{").expect("a file");
    server.signal(Signal::HUP);
    eventually("it is refused", || server.log().contains("reload_refused"));
    heard(bearer(&server, &new.token("ann")));
    server.stop().ok();
}

#[test]
fn an_unknown_key_id_does_not_end_a_server_that_cannot_start_threads() {
    let tare = tare!();
    let Some(around) = Around::new("pids", "pids.max", "max") else {
        skip!("no cgroup with a limit of processes can be made here");
    };
    let (known, unknown) = (Signer::ed25519("known", 1), Signer::ed25519("unknown", 2));
    let files = Files::new(&[&known], "");
    let script = format!(
        "{} \"$TARE\" serve --listen 127.0.0.1:0 --config {}",
        around.limit(),
        files.config()
    );
    let server = Server::start_command(&tare, tare.shell_command(&script));
    eventually("it has looked at what was there", || server.log().contains("recovered"));
    fs::write(around.directory.join("pids.max"), "1").expect("a limit");
    let invalid = "Invalid bearer token";
    refused(bearer(&server, &unknown.token("ann")), 401, invalid);
    heard(bearer(&server, &known.token("ann")));
    fs::write(around.directory.join("pids.max"), "max").expect("a limit");
    server.stop().ok();
}

#[test]
fn unreadable_token_keys_are_logged_separately_from_a_refused_reload() {
    let tare = tare!();
    let (known, unknown) = (Signer::ed25519("known", 1), Signer::ed25519("unknown", 2));
    let files = Files::new(&[&known], "");
    let server = files.start(&tare);
    fs::write(files.path("jwks.json"), "{").expect("a file");
    let invalid = "Invalid bearer token";
    refused(bearer(&server, &unknown.token("ann")), 401, invalid);
    eventually("the log has it", || server.log().contains("keys_not_read"));
    heard(bearer(&server, &known.token("ann")));
    let log = server.stop().ok().stderr_text();
    assert!(!log.contains("reload_refused"), "{log}");
}

#[test]
fn a_public_openssl_key_file_is_accepted_and_a_private_one_refused() {
    let tare = tare!();
    let ed = Signer::ed25519("lc-codeapi-2026-05", 3);
    let files = Files(TemporaryDirectory::new());
    let pem = files.path("librechat.pem");
    let text =
        format!("[[librechat.jwt.keys]]\nkid = 'lc-codeapi-2026-05'\nfile = '{}'\n", pem.display());
    fs::write(files.path("tare.toml"), text).expect("a file");
    fs::write(&pem, ed.pem()).expect("a file");
    let server = files.start(&tare);
    heard(bearer(&server, &ed.token("ann")));
    server.stop().ok();
    fs::write(&pem, ed.pem().replace("PUBLIC", "PRIVATE")).expect("a file");
    tare.call(["serve", "--listen", "127.0.0.1:0", "--config", &files.config()]).exited(1).said(&[
        "librechat.pem",
        "private key",
        "-pubout",
    ]);
}

#[test]
fn with_tokens_the_native_api_requires_a_key() {
    let tare = tare!();
    let ed = Signer::ed25519("ed", 1);
    let files = Files::new(&[&ed], "");
    let token = format!("Bearer {}", ed.token("ann"));
    let natives = ["/v1/boxes", "/health", "/metrics", "/openapi.json", "/"];
    for server in [files.start(&tare), files.start_for_all(&tare)] {
        for native in natives {
            server.get(native).refused(401, "unauthorized");
            let headers = [("Authorization", token.as_str())];
            let answer = server.ask("GET", native, &headers, b"");
            answer.refused(401, "unauthorized");
        }
        let run = json!({ "command": ["true"] });
        server.post("/v1/run", &run).refused(401, "unauthorized");
        heard(bearer(&server, &ed.token("ann")));
        server.stop().ok();
    }
    files.write_config(KEY);
    let server = files.start_for_all(&tare);
    let key = [("X-API-Key", "native-key")];
    server.ask("GET", "/v1/boxes", &key, b"").was(200);
    refused(server.ask("GET", ASKED, &key, b""), 401, "Bearer token is required");
    heard(bearer(&server, &ed.token("ann")));
    server.stop().ok();
}

#[test]
fn boxes_belong_to_the_key_that_was_sent_or_to_librechat() {
    let tare = tare!();
    let ed = Signer::ed25519("ed", 1);
    let token = format!("Bearer {}", ed.token("ann"));
    let with_tokens = Files::new(&[&ed], KEY);
    let with_key = TemporaryDirectory::new();
    let plain = with_key.write("tare.toml", KEY).display().to_string();
    let request = json!({ "lang": "bash", "code": "true", "runtime_session_hint": "v2:user:1" });
    for (config, credential, owner, seen) in [
        (&plain, ("X-API-Key", "native-key"), "native", 1),
        (&with_tokens.config(), ("Authorization", token.as_str()), "librechat", 0),
    ] {
        let server = Server::start(&tare, &["--config", config]);
        exec(&server, &[credential], &request).was(200);
        let boxes = tare.list();
        assert_eq!(boxes.len(), 1, "{boxes:?}");
        assert_eq!(boxes[0]["key"], owner, "{boxes:?}");
        let native = [("X-API-Key", "native-key")];
        let listed = server.ask("GET", "/v1/boxes", &native, b"").was(200).json();
        assert_eq!(listed["boxes"].as_array().map(Vec::len), Some(seen), "{listed}");
        // The same session again is the same box.
        let again = exec(&server, &[credential], &request).was(200).json();
        assert_eq!(again["runtime_status"], "reused", "{again}");
        tare.call(["rm", "-f", "--all"]).ok();
        server.stop().ok();
    }
}

#[test]
fn a_valid_api_key_is_accepted() {
    let tare = tare!();
    let server = Server::start_configured(&tare, KEY);
    let asked = |headers: &[(&str, &str)]| server.ask("GET", ASKED, headers, b"");
    heard(asked(&[("X-API-Key", "native-key")]));
    heard(asked(&[("Authorization", "Bearer native-key")]));
    refused(asked(&[]), 401, "API key is required");
    refused(asked(&[("X-API-Key", "x")]), 401, "Invalid API key");
    server.stop().ok();
}

#[test]
fn anonymous_requests_from_other_hosts_need_allow_anonymous() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    heard(server.get(ASKED));
    server.ask("GET", ASKED, &[("Origin", "https://evil.example")], b"").was(403);
    server.stop().ok();
    let files = Files(TemporaryDirectory::new());
    let write = |text: &str| fs::write(files.path("tare.toml"), text).expect("a file");
    write(&format!("{KEY}[librechat]\nauth = 'none'\n"));
    tare.call(["serve", "--listen", "0.0.0.0:0", "--config", &files.config()])
        .exited(1)
        .said(&["without authentication", "allow_anonymous"]);
    write("[librechat]\nallow_anonymous = true\n");
    let server = files.start_for_all(&tare);
    heard(server.get(ASKED));
    server.get("/v1/boxes").refused(401, "unauthorized");
    server.stop().ok();
}

#[test]
fn every_answer_names_its_profile_and_unserved_profiles_are_refused() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let asked =
        |server: &Server, headers: &[(&str, &str)]| server.ask("GET", "/v1/health", headers, b"");
    let expecting = |profile| [("X-CodeAPI-Expected-Profile", profile)];
    let actual = |answer: &Answer| answer.header("x-codeapi-execution-profile").map(str::to_owned);
    let said = |profile: &str| Some(profile.to_owned());
    assert_eq!(actual(&asked(&server, &[]).was(200)), said("default"));
    for profile in ["default", "stateful"] {
        let answer = asked(&server, &expecting(profile)).was(200);
        assert_eq!(actual(&answer), said(profile));
    }
    let answer = asked(&server, &expecting("x")).was(400);
    assert_eq!(actual(&answer), said("default"));
    refused(answer, 400, "invalid_execution_profile");
    let both = [expecting("default"), expecting("stateful")].concat();
    refused(asked(&server, &both), 400, "invalid_execution_profile");
    server.stop().ok();
    let server = Server::start_configured(&tare, "[librechat]\nprofiles = ['default']\n");
    let answer = asked(&server, &expecting("stateful")).was(409).json();
    assert_eq!(answer["error"], "execution_profile_mismatch");
    assert_eq!(answer["expected_profile"], "stateful");
    assert_eq!(answer["actual_profile"], "default");
    server.stop().ok();
}

#[test]
fn health_needs_no_credential() {
    let tare = tare!();
    let ed = Signer::ed25519("ed", 1);
    let server = Files::new(&[&ed], "").start(&tare);
    let answer = server.get("/v1/health").was(200);
    assert_eq!(answer.text(), "");
    server.stop().ok();
}

/// Code of this, sent with these headers.
fn exec(server: &Server, headers: &[(&str, &str)], request: &Value) -> Answer {
    let json_type = ("Content-Type", "application/json");
    let headers: Vec<_> = headers.iter().copied().chain([json_type]).collect();
    server.ask("POST", "/v1/exec", &headers, request.to_string().as_bytes())
}

#[test]
fn a_user_reaches_neither_files_nor_sessions_of_another() {
    let tare = tare!();
    let ed = Signer::ed25519("ed", 1);
    let files = Files::new(&[&ed], "");
    let server = files.start(&tare);
    let [ann, ben] = ["ann", "ben"].map(|user| format!("Bearer {}", ed.token(user)));
    let as_user =
        |token: &str, request: Value| exec(&server, &[("Authorization", token)], &request);
    let hint = "v2:conversation:shared";
    let wrote = json!({ "lang": "bash", "code": "echo ann > a.txt; sleep 1000 &", "runtime_session_hint": hint });
    let made = as_user(&ann, wrote).was(200).json();
    let look = json!({ "lang": "bash", "code": "ls; ps -C sleep -o comm=; true", "runtime_session_hint": hint });
    let seen = as_user(&ben, look.clone()).was(200).json();
    assert_eq!((&seen["stdout"], &seen["runtime_status"]), (&json!(""), &json!("new")));
    assert_eq!(as_user(&ann, look).was(200).json()["stdout"], "a.txt\nsleep\n");
    let file = &made["files"][0];
    let reference = json!([{
        "id": file["id"], "storage_session_id": file["storage_session_id"], "name": "a.txt",
        "kind": "user", "resource_id": "ann",
    }]);
    let read = json!({ "lang": "bash", "code": "cat a.txt", "files": reference });
    as_user(&ben, read.clone()).was(403);
    assert_eq!(as_user(&ann, read).was(200).json()["stdout"], "ann\n");
    let path = |field: &str| file[field].as_str().expect("an id").to_owned();
    let download =
        format!("/v1/download/{}/{}?kind=user&id=ann", path("storage_session_id"), path("id"));
    let get = |token: &str| server.ask("GET", &download, &[("Authorization", token)], b"");
    get(&ben).was(403);
    assert_eq!(get(&ann).was(200).text(), "ann\n");
    server.stop().ok();
    tare.call(["rm", "-f", "--all"]).ok();
    fs::remove_dir_all(tare.state_root().join("files")).expect("it is there");
}

#[test]
fn a_user_cannot_cancel_a_request_of_another() {
    let tare = tare!();
    let ed = Signer::ed25519("ed", 1);
    let files = Files::new(&[&ed], "");
    let server = files.start(&tare);
    let [ann, ben] = ["ann", "ben"].map(|user| format!("Bearer {}", ed.token(user)));
    let json_type = ("Content-Type", "application/json");
    let id = "0123456789abcdef";
    let slow = json!({ "lang": "bash", "code": "sleep 1000" }).to_string();
    let request_id = ("X-LibreChat-Code-Request-ID", id);
    let headers = [json_type, request_id, ("Authorization", &ann)];
    let running = server.send("POST", "/v1/exec", &headers, slow.as_bytes());
    eventually("it runs", || !tare.footprint().records.is_empty());
    let cancel = |token: &str| {
        let body = json!({ "request_id": id }).to_string();
        let headers = [json_type, ("Authorization", token)];
        server.ask("POST", "/v1/exec/programmatic/cancel", &headers, body.as_bytes())
    };
    cancel(&ben).was(403);
    assert!(!tare.footprint().records.is_empty(), "it still runs");
    cancel(&ann).was(202);
    eventually("it has ended", || tare.footprint().records.is_empty());
    drop(running);
    server.stop().ok();
}

#[test]
fn routes_for_attached_machines_are_missing_with_and_without_a_token() {
    let tare = tare!();
    let ed = Signer::ed25519("ed", 1);
    let files = Files::new(&[&ed], "");
    let server = files.start(&tare);
    let token = format!("Bearer {}", ed.token("ann"));
    for headers in [&[("Authorization", token.as_str())][..], &[]] {
        let missing = server.ask("GET", "/v1/bridge/workers/w/status", headers, b"").was(404);
        assert!(missing.json()["error"].is_string(), "{missing:?}");
    }
    server.stop().ok();
}

/// LibreChat's tool search sends no credential.
#[test]
fn anonymous_code_runs_only_if_enabled_and_sees_no_files() {
    let tare = tare!();
    let ed = Signer::ed25519("ed", 1);
    let request = json!({ "lang": "js", "code": "console.log(1)", "timeout": 5000 });
    let closed = Files::new(&[&ed], "");
    let server = closed.start(&tare);
    refused(exec(&server, &[], &request), 401, "Bearer token is required");
    server.stop().ok();
    let open = Files::new(&[&ed], "[librechat]\nanonymous_exec = true\n");
    let server = open.start(&tare);
    let answer = exec(&server, &[], &request).was(200).json();
    assert_eq!(answer["stdout"], "1\n");
    refused(server.get(ASKED), 401, "Bearer token is required");
    let token = format!("Bearer {}", ed.token("ann"));
    let wrote = json!({ "lang": "bash", "code": "echo ann > a.txt" });
    let made = exec(&server, &[("Authorization", &token)], &wrote).was(200).json();
    let file = &made["files"][0];
    let read = json!({ "lang": "bash", "code": "cat a.txt", "files": [{
        "id": file["id"], "storage_session_id": file["storage_session_id"], "name": "a.txt",
    }]});
    exec(&server, &[], &read).was(403);
    exec(&server, &[("X-API-Key", "x")], &request).was(401);
    server.stop().ok();
    fs::remove_dir_all(tare.state_root().join("files")).expect("it is there");
}
