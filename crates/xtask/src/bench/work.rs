//! What calls and commands do in a benchmark.

use super::launch::{Launch, bwrap};
use super::servers::{Request, Server, bwrap_options, words};
use super::setup::Setup;
use crate::failure::Failure;
use serde_json::{Value, json};
use std::path::PathBuf;

const NUMPY: &str = "import numpy; print(numpy.ones(3).sum())";

/// Something to run: as a command, and as a request to tare.
pub struct Work {
    pub command: Vec<&'static str>,
    pub path: &'static str,
    pub body: Value,
    pub printed: &'static str,
    pub packages: Option<PathBuf>,
    /// The pools of the server.
    pub pool: String,
}

impl Work {
    pub fn command(command: &[&'static str], pool: &str) -> Self {
        Self {
            command: command.to_vec(),
            path: "/v1/run",
            body: json!({ "command": command }),
            printed: "",
            packages: None,
            pool: pool.to_owned(),
        }
    }

    pub fn python(code: &'static str, printed: &'static str, pool: &str) -> Self {
        Self {
            command: vec!["/usr/bin/python3", "-c", code],
            body: json!({ "language": "python", "code": code }),
            printed,
            ..Self::command(&[], pool)
        }
    }

    pub fn numpy(setup: &Setup, pool: &str) -> Self {
        let pool = format!("{pool}preload = ['numpy']\n");
        Self { packages: Some(setup.packages.clone()), ..Self::python(NUMPY, "3.0\n", &pool) }
    }

    pub fn with_packages(self, packages: Option<PathBuf>) -> Self {
        Self { packages, ..self }
    }

    pub fn plain(&self) -> Launch {
        let launch = Launch::new(self.command.iter().copied());
        match &self.packages {
            Some(it) => launch.with_environment("PYTHONPATH", it.join("python").to_string_lossy()),
            None => launch,
        }
    }

    pub fn in_bwrap(&self) -> Launch {
        bwrap(&words(&bwrap_options(self.packages.as_deref())), &self.command)
    }

    pub fn request(&self) -> Request {
        Request { path: self.path, body: self.body.clone(), printed: self.printed }
    }

    pub fn server(&self, setup: &Setup) -> Result<Server, Failure> {
        Server::tare(setup, &setup.tare, "tare", self.packages.as_deref(), &self.pool)
    }
}
