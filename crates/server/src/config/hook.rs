//! `[hooks]`: the command that the server calls when a gauge changes its level.

use std::path::Path;

use rustix::fs::{Access, access};
use serde::Deserialize;
use tare_engine::Error;

use crate::config::Period;

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HookConfig {
    /// A program and its arguments. Each line of its stdin is an event, as JSON.
    pub command: Vec<String>,
    pub timeout: Period,
}

impl Default for HookConfig {
    fn default() -> Self {
        Self { command: Vec::new(), timeout: Period::seconds(10) }
    }
}

/// Where the C library looks for a program without a slash if there is no PATH.
const USUAL_PATH: &str = "/usr/local/bin:/bin:/usr/bin";

impl HookConfig {
    /// Reports a missing program at start, and not when it is needed.
    pub fn find_program(&self) -> Result<(), Error> {
        let Some(program) = self.command.first() else {
            return Ok(());
        };
        let is_program = |path: &Path| path.is_file() && access(path, Access::EXEC_OK).is_ok();
        let in_path = || {
            let path = std::env::var_os("PATH").unwrap_or_else(|| USUAL_PATH.into());
            std::env::split_paths(&path).any(|directory| is_program(&directory.join(program)))
        };
        let exists = if program.contains('/') { is_program(Path::new(program)) } else { in_path() };
        if exists {
            return Ok(());
        }
        let message = format!("[hooks] command: {program:?} is not a program on this host");
        Err(Error::bad_request(message).with_hint("name an executable file, or a program in PATH"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_refused_by_name() {
        let find = |program: &str| {
            let command = vec![program.to_owned(), "/nowhere".to_owned()];
            let config = HookConfig { command, ..HookConfig::default() };
            config.find_program()
        };
        assert!(HookConfig::default().find_program().is_ok());
        for program in ["sh", "/bin/sh"] {
            assert!(find(program).is_ok(), "{program}");
        }
        for program in ["", "no-such-program", "/nowhere", "/bin", "/etc/passwd"] {
            let refused = find(program).expect_err(program).to_string();
            let named = format!("[hooks] command: {program:?}");
            assert!(refused.starts_with(&named), "{refused}");
        }
    }
}
