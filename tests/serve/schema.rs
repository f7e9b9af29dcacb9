//! The API matches its description: schemathesis, from PyPI, sends to every route what the
//! description allows, and some requests that it does not.

use std::path::Path;
use std::process::Command;

use tare_harness::{Server, TemporaryDirectory, skip, tare};

/// `./check` puts it there.
const PROGRAM: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/schemathesis/bin/schemathesis");
const EXAMPLES: &str = "20";
const SECONDS_MAX: &str = "40";
/// Whatever is run, is run for a moment, and no box keeps whoever follows its log waiting.
const LIMITS: &str =
    "[limits]\ntimeout = '1s'\ntimeout_max = '2s'\nlease = '2s'\nlease_max = '4s'\n";

/// Of all that it checks only this is left out: that whatever fits the description is
/// accepted. A description cannot say what the operator allows, that a command excludes
/// code, or which paths there are in a box; that is refused with a reason.
const EXCLUDED: &str = "positive_data_acceptance";

#[test]
fn every_answer_matches_the_openapi_description() {
    if !Path::new(PROGRAM).exists() {
        skip!("schemathesis is not installed: ./check does that");
    }
    let tare = tare!();
    let server = Server::start_configured(&tare, LIMITS);
    let directory = TemporaryDirectory::new();
    let asked = Command::new(PROGRAM)
        .arg("run")
        .arg(format!("http://{}/openapi.json", server.address()))
        .args(["--checks", "all", "--exclude-checks", EXCLUDED])
        .args(["--max-examples", EXAMPLES, "--max-time", SECONDS_MAX])
        .args(["--generation-database", "none", "--no-color"])
        // What it writes, and where it might ask.
        .current_dir(directory.path())
        .env("HOME", directory.path())
        .env("TMPDIR", directory.path())
        .env("NO_PROXY", "*")
        .output()
        .expect("it is installed");
    let said = String::from_utf8_lossy(&asked.stdout).into_owned();
    let complained = String::from_utf8_lossy(&asked.stderr).into_owned();
    assert!(asked.status.success(), "{said}\n{complained}");
    assert!(!server.log().contains("status=500"), "{}", server.log());
    server.stop().ok();
    tare.call(["rm", "-f", "--all"]).ok();
}
