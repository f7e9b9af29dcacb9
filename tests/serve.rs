//! `tare serve`: the engine over HTTP. One file for each subject.

#[path = "serve/boxes.rs"]
mod boxes;
#[path = "serve/doors.rs"]
mod doors;
#[path = "serve/exec.rs"]
mod exec;
#[path = "serve/files.rs"]
mod files;
#[path = "serve/idempotency.rs"]
mod idempotency;
#[path = "serve/life.rs"]
mod life;
#[path = "serve/run.rs"]
mod run;
#[path = "serve/terminal.rs"]
mod terminal;
#[path = "serve/watching.rs"]
mod watching;
