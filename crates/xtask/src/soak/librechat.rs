//! `tare serve` as the subject, with the requests of LibreChat: twenty users run code that
//! imports numpy and pandas and writes a table, which is removed again. This is the incident that
//! tare was made for.

use super::commands::Caller;
use super::count::count_threads;
use super::mix::Job;
use super::subject::{Subject, Surprise};
use super::tare::TareSubject;
use crate::http::Connection;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

const USERS: u64 = 20;

const CODE: &str = "import numpy, pandas
frame = pandas.DataFrame({'n': numpy.arange(1000)})
frame.to_csv('table.csv')
print(frame.n.sum())";
const PRINTED: &str = "499500\n";

/// Each execution takes half a second of a processor.
const BOXES_BETWEEN: u64 = 50;

/// The bound for a program in a box, while other programs use the processors.
const ANSWER_MAX: Duration = Duration::from_secs(300);

/// The bound for the server to listen, and to end threads that it does not need.
const SETTLES_WITHIN: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The directories of the server.
#[derive(Debug)]
pub struct Places {
    /// In the file system that is counted, so leftovers are found.
    pub files: PathBuf,
    /// For its configuration and its socket.
    pub directory: PathBuf,
    pub packages: PathBuf,
}

#[derive(Debug)]
pub struct LibreChat {
    tare: TareSubject,
    places: Places,
    server: Option<Child>,
}

impl LibreChat {
    pub fn new(tare: TareSubject, places: Places) -> Self {
        Self { tare, places, server: None }
    }

    fn socket(&self) -> PathBuf {
        self.places.directory.join("socket")
    }

    /// Starts the server, and waits until it listens and has run its first code.
    fn start(&self) -> Result<Child, Surprise> {
        let failed = |error: std::io::Error| format!("cannot start the server: {error}");
        let file = self.places.directory.join("tare.toml");
        fs::write(&file, self.configuration()).map_err(failed)?;
        let words = ["serve", "--config", &file.to_string_lossy()];
        let server = self.tare.launch(&words).command().spawn();
        let server = server.map_err(failed)?;
        within("the server does not listen", || self.ask("GET", "/health", "").is_ok())?;
        let threads = || count_threads(server.id());
        let before = threads();
        self.execute(0)?;
        within("the server keeps threads", || threads() <= before)?;
        Ok(server)
    }

    fn configuration(&self) -> String {
        let shown = |path: &Path| json!(path.to_string_lossy()).to_string();
        format!(
            "listen = {}\n[limits]\ntimeout = '5m'\n[files]\ndirectory = {}\n\
             [librechat.boxes]\npackages = {}\n",
            json!(format!("unix:{}", self.socket().display())),
            shown(&self.places.files),
            shown(&self.places.packages)
        )
    }

    /// Runs code, and removes the file that it made, as a client does.
    fn execute(&self, number: u64) -> Result<(), Surprise> {
        let user = format!("user-{}", number % USERS);
        let request = json!({ "lang": "py", "code": CODE, "user_id": user });
        let answer = self.ask("POST", "/v1/exec", &request.to_string())?;
        let table = &answer["files"][0];
        let ids = ["storage_session_id", "id"].map(|field| table[field].as_str());
        match (answer["stdout"].as_str(), ids) {
            (Some(PRINTED), [Some(session), Some(id)]) => {
                let path = format!("/v1/files/{session}/{id}?kind=user&id={user}");
                self.ask("DELETE", &path, "").map(drop)
            }
            _ => Err(format!("an execution gave {answer}")),
        }
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> Result<Value, Surprise> {
        let answer = UnixStream::connect(self.socket()).and_then(|stream| {
            stream.set_read_timeout(Some(ANSWER_MAX))?;
            Connection::new(stream).ask(method, path, body)
        });
        answer.map_err(|error| error.to_string())
    }
}

impl Subject for LibreChat {
    /// Makes the directory of files, which stays.
    fn make_ready(&self, caller: &Caller) -> Result<(), Surprise> {
        self.tare.make_ready(caller)?;
        self.start().and_then(end)
    }

    fn start_residents(&mut self, _caller: &Caller) -> Result<(), Surprise> {
        self.server = Some(self.start()?);
        Ok(())
    }

    fn purpose(&self, _job: &Job) -> &'static str {
        "numpy and pandas"
    }

    fn live(&self, job: Job, _caller: &Caller) -> Result<u64, Surprise> {
        self.execute(job.number).map(|()| 1)
    }

    fn next_command(&self, caller: &Caller) -> Result<Option<u64>, Surprise> {
        self.tare.next_command(caller)
    }

    fn end_residents(&mut self, _caller: &Caller) -> Result<(), Surprise> {
        self.server.take().map_or(Ok(()), end)
    }

    fn boxes_between(&self) -> u64 {
        BOXES_BETWEEN
    }

    fn patience(&self) -> Duration {
        self.tare.patience()
    }

    fn processes_max(&self) -> Option<u64> {
        None
    }
}

/// Ends the server as systemd does.
fn end(mut server: Child) -> Result<(), Surprise> {
    let failed = |error: std::io::Error| format!("cannot end the server: {error}");
    kill_process(Pid::from_child(&server), Signal::TERM).map_err(|error| failed(error.into()))?;
    match server.wait().map_err(failed)? {
        status if status.success() => Ok(()),
        status => Err(format!("the server ended with {status}")),
    }
}

fn within(otherwise: &str, mut is_so: impl FnMut() -> bool) -> Result<(), Surprise> {
    let start = Instant::now();
    while !is_so() {
        if start.elapsed() > SETTLES_WITHIN {
            return Err(otherwise.to_owned());
        }
        #[expect(clippy::disallowed_methods, reason = "bounded by the check above")]
        thread::sleep(LOOK_AGAIN);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_configuration_quotes_paths_as_toml_does() {
        let places =
            Places { files: "/s/fi'les".into(), directory: "/d".into(), packages: "/p\"q".into() };
        let chat = LibreChat::new(TareSubject::new("/t".into(), "/s".into()), places);
        let text = chat.configuration();
        assert!(text.starts_with("listen = \"unix:/d/socket\"\n"), "{text}");
        assert!(text.contains("directory = \"/s/fi'les\"\n"), "{text}");
        assert!(text.ends_with("packages = \"/p\\\"q\"\n"), "{text}");
    }
}
