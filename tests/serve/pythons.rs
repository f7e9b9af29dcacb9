//! Clones of the oldest and the newest Python that a pool can clone, which `./check` unpacks from Debian's
//! packages, and of one that cannot be cloned.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tare_harness::skip::{has_program, is_root};
use tare_harness::{Server, TemporaryDirectory, eventually, skip, tare};

use crate::serve::clones::{CLONES, code, in_clone, templates};
use crate::serve::pool::{ENDINGS, PROBE};

/// The root of a box with this version of Python.
fn root(version: &str) -> Option<PathBuf> {
    let pythons = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/pythons");
    std::fs::canonicalize(pythons.join(version)).ok()
}

/// Compares clones with new interpreters, and clones with each other.
fn is_cloned(root: &Path, version: &str) {
    let tare = tare!();
    let config = format!("{CLONES}[boxes]\nrootfs = '{}'\n", root.display());
    let server = Server::start_configured(&tare, &config);
    let cold = |program: &str| {
        let body = json!({ "language": "python", "code": program, "warm": "off" });
        server.post("/v1/run", &body).was(200).json()
    };
    let seen = |result: &Value| -> Value {
        let stdout = result["stdout"].as_str().expect("a text");
        serde_json::from_str(stdout).unwrap_or_else(|_| panic!("{result}"))
    };
    let (expected, clone) = (seen(&cold(PROBE)), seen(&in_clone(&server, &code(PROBE))));
    for (what, expected) in expected.as_object().expect("an object") {
        assert_eq!(&clone[what], expected, "{what}");
    }
    for program in ENDINGS {
        let (cold, clone) = (cold(program), in_clone(&server, &code(program)));
        for field in ["exit_code", "signal", "stdout", "stderr", "cause"] {
            assert_eq!(clone[field], cold[field], "{field} of {program}");
        }
    }
    let draw = "import os, random, sys, threading, uuid\n\
                thread = threading.Thread(target=lambda: print(end='')); thread.start(); thread.join()\n\
                print('%d.%d' % sys.version_info[:2], random.random(), uuid.uuid4(), os.urandom(4).hex())";
    let drawn: BTreeSet<String> =
        (0..4).map(|_| in_clone(&server, &code(draw))["stdout"].to_string()).collect();
    let is_it = |it: &String| it.starts_with(&format!("\"{version} "));
    assert!(drawn.len() == 4 && drawn.iter().all(is_it), "{drawn:?}");
    let log = server.log();
    assert!(!log.contains("pool_"), "{log}");
    server.stop();
}

#[test]
fn python_3_9_is_cloned_in_a_root_of_its_own() {
    match root("3.9") {
        Some(root) if is_root() => is_cloned(&root, "3.9"),
        Some(_) => skip!("clones need root"),
        None => skip!("./check has not fetched Python 3.9"),
    }
}

#[test]
fn python_3_13_is_cloned_in_a_root_of_its_own() {
    match root("3.13") {
        Some(root) if is_root() => is_cloned(&root, "3.13"),
        Some(_) => skip!("clones need root"),
        None => skip!("./check has not fetched Python 3.13"),
    }
}

/// Some builds of Python have no `ctypes`.
#[test]
fn a_python_that_cannot_be_cloned_is_started_in_each_box_and_the_log_says_so_once() {
    if !is_root() || !has_program("python3") {
        skip!("clones need python3 and root");
    }
    let tare = tare!();
    let packages = TemporaryDirectory::new();
    std::fs::create_dir(packages.join("python")).expect("a directory");
    packages.write("python/ctypes.py", "raise ImportError('this build has no ctypes')\n");
    let config = format!("{CLONES}[boxes]\npackages = '{}'\n", packages.text());
    let server = Server::start_configured(&tare, &config);
    for _time in 0..3 {
        eventually("an interpreter waits", || {
            let result = server.post("/v1/run", &code("print(1)")).was(200).json();
            result["warm"] == "fresh"
        });
    }
    assert_eq!(templates(&tare), Vec::<String>::new());
    let log = server.log();
    let failed: Vec<&str> = log.lines().filter(|line| line.contains("pool_failed")).collect();
    assert!(failed.len() == 1 && failed[0].contains("this build has no ctypes"), "{log}");
    server.stop();
}
