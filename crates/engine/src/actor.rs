//! The user, API key or server that acts on a box: recorded before the act, and named when the act is
//! explained.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A user, API key or server that acts on a box.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Actor {
    /// A command of tare.
    Command {
        /// As the user typed it, such as `tare rm -f`.
        command: String,
        pid: u32,
        uid: u32,
        /// The name of the user, if the host has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user: Option<String>,
    },
    /// A request to a server.
    Http {
        /// The name of the API key. `None`: the server needs none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<String>,
        /// The address of the client.
        client: String,
        /// Method and path.
        route: String,
    },
    /// A server that acts by itself.
    Server { pid: u32 },
}

impl Actor {
    /// This process, as a command that the user typed.
    pub fn command(command: &str) -> Self {
        let uid = rustix::process::getuid().as_raw();
        let (pid, user) = (std::process::id(), user_name(uid));
        Self::Command { command: command.to_owned(), pid, uid, user }
    }

    /// This process, as the one that makes boxes. It does not look the user's name up, which would
    /// cost every new box a file.
    pub fn creator() -> Self {
        let uid = rustix::process::getuid().as_raw();
        Self::Command { command: "tare run".to_owned(), pid: std::process::id(), uid, user: None }
    }

    /// This process, as a server.
    pub fn server() -> Self {
        Self::Server { pid: std::process::id() }
    }

    /// Hides the number that the process had on the host.
    pub fn hide_pid(&mut self) {
        match self {
            Self::Command { pid, .. } | Self::Server { pid } => *pid = HIDDEN_PID,
            Self::Http { .. } => {}
        }
    }
}

/// Stands for a pid that the reader must not see. No process has it.
pub const HIDDEN_PID: u32 = 0;

/// Users without an entry in the file have no name here.
fn user_name(uid: u32) -> Option<String> {
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    let mut lines = users.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| {
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command { command, pid: HIDDEN_PID, user: Some(user), .. } => {
                write!(f, "'{command}' (user {user})")
            }
            Self::Command { command, pid: HIDDEN_PID, uid, user: None } => {
                write!(f, "'{command}' (uid {uid})")
            }
            Self::Command { command, pid, user: Some(user), .. } => {
                write!(f, "'{command}' (user {user}, pid {pid})")
            }
            Self::Command { command, pid, uid, user: None } => {
                write!(f, "'{command}' (uid {uid}, pid {pid})")
            }
            Self::Http { key: Some(key), client, route } => {
                write!(f, "{route} (API key {key}, from {client})")
            }
            Self::Http { key: None, client, route } => {
                write!(f, "{route} (without an API key, from {client})")
            }
            Self::Server { pid: HIDDEN_PID } => write!(f, "'tare serve'"),
            Self::Server { pid } => write!(f, "'tare serve' (pid {pid})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_actor_is_named_with_what_identifies_it() {
        let command = |user: Option<&str>| Actor::Command {
            command: "tare rm -f".into(),
            pid: 7,
            uid: 1000,
            user: user.map(str::to_owned),
        };
        assert_eq!(command(Some("ann")).to_string(), "'tare rm -f' (user ann, pid 7)");
        assert_eq!(command(None).to_string(), "'tare rm -f' (uid 1000, pid 7)");
        let http = |key: Option<&str>| Actor::Http {
            key: key.map(str::to_owned),
            client: "127.0.0.1:9".into(),
            route: "DELETE /v1/boxes/web".into(),
        };
        assert_eq!(
            http(Some("ci")).to_string(),
            "DELETE /v1/boxes/web (API key ci, from 127.0.0.1:9)"
        );
        assert_eq!(
            http(None).to_string(),
            "DELETE /v1/boxes/web (without an API key, from 127.0.0.1:9)"
        );
        assert_eq!(Actor::Server { pid: 7 }.to_string(), "'tare serve' (pid 7)");
        let hidden = |mut actor: Actor| {
            actor.hide_pid();
            actor.to_string()
        };
        assert_eq!(hidden(command(Some("ann"))), "'tare rm -f' (user ann)");
        assert_eq!(hidden(command(None)), "'tare rm -f' (uid 1000)");
        assert_eq!(hidden(Actor::Server { pid: 7 }), "'tare serve'");
        assert_eq!(hidden(http(None)), http(None).to_string());
    }
}
