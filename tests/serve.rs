//! `tare serve`: the engine over HTTP. One file per subject.

mod abuse;
mod bodies;
mod boxes;
mod causes;
mod claims;
#[macro_use]
mod clones;
mod connections;
mod directories;
mod doors;
mod endurance;
mod exec;
mod files;
mod hooks;
mod idempotency;
mod killed;
mod life;
mod machines;
mod members;
mod operating;
mod pool;
mod pressure;
mod pythons;
pub mod quotas;
mod readers;
mod receipts;
mod run;
mod schema;
mod siblings;
mod states;
mod stopping;
mod templates;
mod tenants;
mod terminal;
mod watching;

use tare_harness::TemporaryDirectory;

/// A configuration in a directory of its own.
pub fn configured(text: &str) -> (TemporaryDirectory, String) {
    let directory = TemporaryDirectory::new();
    let path = directory.path().join("tare.toml");
    std::fs::write(&path, text).expect("a file");
    let path = path.display().to_string();
    (directory, path)
}

/// Python that kills tare's side of each copy. The box does not see these processes in its /proc,
/// but it can try all numbers.
const KILLER: &str = "import os
while True:
    for pid in range(2, 200):
        try:
            if not os.path.exists(f'/proc/{pid}'):
                os.kill(pid, 9)
        except OSError:
            pass";
