//! LibreChat's own client code, as published on npm, uses the server and gets the answers that it
//! expects.

use std::path::Path;
use std::process::Command;

use tare_harness::{skip, tare};

use crate::librechat::client::Chat;

/// `./check` puts them there: one of the clients with a key, and one of the later ones.
const PACKAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/librechat");
const DRIVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/librechat/published.cjs");
/// `printf %s a-key | sha256sum`
const KEY: &str = "[[keys]]\nname = 'chat'\n\
    sha256 = '2a8a1240f50636655520ac8ed22aa29473b8517b4abfdbc3bc03bcad73fc8849'\n";

#[test]
fn published_clients_of_the_first_generation_work() {
    judged("1", KEY);
}

#[test]
fn published_clients_of_later_generations_work() {
    judged("2", "");
}

#[track_caller]
fn judged(generation: &str, config: &str) {
    let package = format!("{PACKAGES}/{generation}/package");
    if !Path::new(&package).exists() {
        skip!("@librechat/agents is not installed: ./check does that");
    }
    let tare = tare!();
    let chat = Chat::configured(&tare, "", config);
    let judged = Command::new("node")
        .args([DRIVER, &package])
        .arg(format!("http://{}/v1", chat.server.address()))
        .arg(generation)
        .env("LIBRECHAT_CODE_API_KEY", "a-key")
        .env_remove("PROXY")
        .output()
        .expect("node is installed");
    let said =
        [judged.stdout, judged.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(judged.status.success(), "{}", said.concat());
    assert!(said[0].ends_with("as expected\n"), "{}", said.concat());
    chat.stop(&tare);
}
