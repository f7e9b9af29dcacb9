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
/// Short limits, so that runs and followed logs end quickly.
const LIMITS: &str =
    "[limits]\ntimeout = '1s'\ntimeout_max = '2s'\nlease = '2s'\nlease_max = '4s'\n";

/// The only check that is left out: that every request that fits the description is accepted. The
/// description cannot express what the operator allows, that `command` excludes `code`, or which
/// paths exist in a box.
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
