//! Common programs work in a box with the default profile, and what is refused on purpose is
//! refused in a way that programs understand.
//!
//! Each program proves by its output that it did its work. If a tool is not installed on this host,
//! its test reports that it is skipped. A test raises a limit only if the program needs more than
//! the default, and says why.

use tare_harness::{Output, Tare};

mod building;
mod javascript;
mod kernel;
mod python;
mod refused;
mod tools;

/// `tare run OPTIONS -- sh -c SCRIPT`, which stops at its first failure.
#[track_caller]
fn shell(tare: &Tare, options: &[&str], script: &str) -> Output {
    let script = format!("set -e\n{script}");
    let command = ["--", "sh", "-c", &script];
    tare.run(options.iter().chain(&command))
}

/// A program as a file of the box: what forks by executing itself again
/// (`multiprocessing`, `child_process.fork`) needs one.
#[track_caller]
fn file(tare: &Tare, options: &[&str], interpreter: &str, name: &str, source: &str) -> Output {
    let script = format!("cat > {name} && exec {interpreter} {name}");
    let command = ["--", "sh", "-c", &script];
    tare.with_stdin(source, options.iter().chain(&command))
}

#[track_caller]
fn python(tare: &Tare, source: &str) -> Output {
    file(tare, &[], "python3", "program.py", source)
}
