//! `tare serve`: the engine over HTTP. One file for each subject.

#[path = "serve/abuse.rs"]
mod abuse;
#[path = "serve/boxes.rs"]
mod boxes;
#[path = "serve/doors.rs"]
mod doors;
#[path = "serve/endurance.rs"]
mod endurance;
#[path = "serve/exec.rs"]
mod exec;
#[path = "serve/files.rs"]
mod files;
#[path = "serve/idempotency.rs"]
mod idempotency;
#[path = "serve/killed.rs"]
mod killed;
#[path = "serve/life.rs"]
mod life;
#[path = "serve/operating.rs"]
mod operating;
#[path = "serve/pressure.rs"]
mod pressure;
#[path = "serve/quotas.rs"]
mod quotas;
#[path = "serve/readers.rs"]
mod readers;
#[path = "serve/run.rs"]
mod run;
#[path = "serve/schema.rs"]
mod schema;
#[path = "serve/terminal.rs"]
mod terminal;
#[path = "serve/watching.rs"]
mod watching;

use tare_harness::TemporaryDirectory;

/// A configuration in a directory of its own.
fn configured(text: &str) -> (TemporaryDirectory, String) {
    let directory = TemporaryDirectory::new();
    let path = directory.path().join("tare.toml");
    std::fs::write(&path, text).expect("a file");
    let path = path.display().to_string();
    (directory, path)
}
