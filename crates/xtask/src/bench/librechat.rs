//! `bench librechat`: how long a user of LibreChat waits. `POST /v1/exec` of `tare serve`
//! beside a small FastAPI server that starts bubblewrap for each request; both see the
//! same packages.

use super::serve::{Load, Request, ServeComparison, Work};
use crate::failure::Failure;
use crate::workspace::Workspace;
use clap::Args;
use serde_json::json;
use std::path::PathBuf;

/// The code that is executed, and its output.
const CODE: [(&str, &str); 2] =
    [("print(1)", "1\n"), ("import numpy; print(numpy.ones(3).sum())", "3.0\n")];

#[derive(Debug, Args)]
pub struct LibrechatOptions {
    #[command(flatten)]
    load: Load,
    /// Requests at the same time
    #[arg(long, value_delimiter = ',', value_name = "N,...", default_values_t = [1, 8])]
    concurrency: Vec<u32>,
    /// Where the figures are saved [default: target/bench/librechat.json]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub fn perform(options: &LibrechatOptions) -> Result<(), Failure> {
    let workspace = Workspace::alone()?;
    let packages = workspace.target_directory.join("packages");
    if !packages.join("python/numpy").exists() {
        return Err(Failure::new("numpy is not installed: ./check does that"));
    }
    let comparison = ServeComparison {
        name: "librechat",
        load: options.load,
        concurrency: &options.concurrency,
        packages: Some(&packages),
        earlier: None,
        work: CODE.map(work).into_iter().chain(SESSION.map(session)).collect(),
    };
    comparison.perform(&workspace, options.json.clone())
}

/// Code in a session that exists: one call at a time, and four parallel calls. The peer has no
/// sessions and runs the same code.
const SESSION: [(&str, u32); 2] =
    [("print(1), second call of a session", 1), ("print(1), four calls of one session", 4)];

fn session((name, concurrency): (&str, u32)) -> Work {
    let mut work = work(CODE[0]);
    work.name = name.to_owned();
    work.concurrency = Some(concurrency);
    // The check before the load makes the session.
    work.tare.body["runtime_session_hint"] = json!("v2:user:bench");
    work
}

fn work((code, printed): (&'static str, &'static str)) -> Work {
    Work {
        name: code.to_owned(),
        printed,
        tare: Request { path: "/v1/exec", body: json!({ "lang": "py", "code": code }) },
        peer: Request::run(&["/usr/bin/python3", "-c", code]),
        concurrency: None,
    }
}
