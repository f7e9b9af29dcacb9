//! A server with its own files, and forms as LibreChat's clients write them.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tare_harness::{Answer, Server, Tare, TemporaryDirectory};

use crate::machines::Machines;

pub const BOUNDARY: &str = "--------------------------527817193245";

/// A server and the directory of its files, which is gone with it.
pub struct Chat {
    pub server: Server,
    directory: TemporaryDirectory,
}

impl Chat {
    pub fn start(tare: &Tare) -> Self {
        Self::configured(tare, "", "")
    }

    /// With more in `[files]`, and more sections.
    pub fn configured(tare: &Tare, files: &str, sections: &str) -> Self {
        let directory = TemporaryDirectory::new();
        let server = serve(tare, &directory, files, sections);
        Self { server, directory }
    }

    /// With boxes in machines, and more sections.
    pub fn in_machines(machines: &Machines, sections: &str) -> Self {
        let directory = TemporaryDirectory::new();
        let config = configure(&directory, "", sections);
        let config = config.to_str().expect("the path is ASCII");
        let command = ["serve", "--listen", "127.0.0.1:0", "--config", config];
        let server = Server::start_command(&machines.tare, machines.command(&command));
        Self { server, directory }
    }

    /// With its files in the state root of tare.
    pub fn in_state_root(tare: &Tare) -> Self {
        let directory = TemporaryDirectory::new();
        Self { server: Server::start(tare, &[]), directory }
    }

    /// Another server on the same files, when this one has ended; with more in `[files]`
    /// or after it.
    pub fn after(self, tare: &Tare, end: impl FnOnce(Server), more: &str) -> Self {
        end(self.server);
        let server = serve(tare, &self.directory, more, "");
        Self { server, directory: self.directory }
    }

    /// Another one beside it, on the same files.
    pub fn beside(&self, tare: &Tare) -> Server {
        serve(tare, &self.directory, "", "")
    }

    pub fn configuration(&self) -> PathBuf {
        self.directory.join("tare.toml")
    }

    pub fn store(&self) -> PathBuf {
        self.directory.join("files")
    }

    /// How many files of any kind are in its store, but for the lock.
    pub fn stored(&self) -> usize {
        count(&self.store()).saturating_sub(1)
    }

    pub fn upload(&self, form: Form) -> Answer {
        self.post("/v1/upload", form)
    }

    pub fn post(&self, path: &str, form: Form) -> Answer {
        self.post_as(("User-Id", "u1"), path, form)
    }

    /// Posts a form with an authentication header.
    pub fn post_as(&self, who: (&str, &str), path: &str, form: Form) -> Answer {
        let media_type = format!("multipart/form-data; boundary={BOUNDARY}");
        let agent = ("User-Agent", "LibreChat/1.0");
        let headers = [("Content-Type", media_type.as_str()), agent, who];
        self.server.ask("POST", path, &headers, &form.end())
    }

    /// One file of the user `u1`; its `session/file`.
    #[track_caller]
    pub fn sent(&self, name: &str, content: &[u8]) -> String {
        let answer = self.upload(Form::of_user("u1").file(name, content)).was(200).json();
        reference(&answer)
    }
}

/// Executions, as clients request them.
impl Chat {
    /// Executes code and returns the answer, whatever it is.
    #[track_caller]
    pub fn exec(&self, request: Value) -> Value {
        let answer = self.server.post("/v1/exec", &request).was(200).json();
        assert!(is_id(text(&answer["session_id"])), "{answer}");
        answer
    }

    #[track_caller]
    pub fn python(&self, code: &str) -> Value {
        self.exec(json!({ "lang": "py", "code": code }))
    }

    /// A file of the user `u1`, as the later clients name it to code.
    #[track_caller]
    pub fn given(&self, name: &str, content: &[u8]) -> Value {
        let sent = self.sent(name, content);
        let (session, id) = sent.split_once('/').expect("two ids");
        json!({
            "id": id,
            "name": name,
            "storage_session_id": session,
            "kind": "user",
            "resource_id": "u1",
        })
    }

    /// The content of a file that an answer names.
    #[track_caller]
    pub fn download(&self, file: &Value) -> Answer {
        let [session, id] = ["storage_session_id", "id"].map(|field| text(&file[field]));
        let path = format!("/v1/download/{session}/{id}?kind=user&id=u1");
        self.server.get(&path).was(200)
    }

    /// Its boxes go too.
    #[track_caller]
    pub fn stop(self, tare: &Tare) {
        self.server.stop().ok();
        tare.call(["rm", "-f", "--all"]).ok();
    }
}

/// The packages that `./check` installs from PyPI.
const PACKAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/packages");

/// The section that shows real packages to boxes; `None` where they are not installed.
pub fn with_packages() -> Option<String> {
    let packages = fs::canonicalize(PACKAGES).ok()?;
    let is_whole = packages.join("python/installed.txt").exists();
    let section = format!("[librechat.boxes]\npackages = '{}'\n", packages.display());
    is_whole.then_some(section)
}

/// The most memory that it ever had (VmHWM).
pub fn peak_bytes(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.expect("a number") << 10
}

pub fn is_id(text: &str) -> bool {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    text.len() == 21 && text.bytes().all(is_known)
}

#[track_caller]
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

/// The one file of this name.
#[track_caller]
pub fn file<'a>(answer: &'a Value, name: &str) -> &'a Value {
    let files = answer["files"].as_array().expect("files");
    let mut found = files.iter().filter(|file| file["name"] == name);
    match (found.next(), found.next()) {
        (Some(file), None) => file,
        (None, _) | (_, Some(_)) => panic!("{name} is not there once: {answer}"),
    }
}

/// `session/file`, as the first clients keep it.
#[track_caller]
pub fn reference(answer: &Value) -> String {
    assert_eq!(answer["message"], "success", "{answer}");
    assert_eq!(answer["session_id"], answer["storage_session_id"]);
    let id = |value: &Value| {
        let id = value.as_str().expect("an id").to_owned();
        assert!(is_id(&id), "{id}");
        id
    };
    let session = id(&answer["session_id"]);
    format!("{session}/{}", id(&answer["files"][0]["fileId"]))
}

fn configure(directory: &TemporaryDirectory, files: &str, sections: &str) -> PathBuf {
    let store = directory.join("files");
    let text = format!("[files]\ndirectory = '{}'\n{files}\n{sections}\n", store.display());
    directory.write("tare.toml", text)
}

fn serve(tare: &Tare, directory: &TemporaryDirectory, files: &str, sections: &str) -> Server {
    let path = configure(directory, files, sections);
    Server::start(tare, &["--config", &path.display().to_string()])
}

fn count(directory: &Path) -> usize {
    let Ok(entries) = fs::read_dir(directory) else {
        return 0;
    };
    let entries = entries.map_while(Result::ok).map(|entry| entry.path());
    let counts = entries.map(|path| if path.is_dir() { count(&path) } else { 1 });
    counts.sum()
}

/// As `form-data` of npm writes it.
#[derive(Default)]
pub struct Form(Vec<u8>);

impl Form {
    pub fn of_user(id: &str) -> Self {
        Self::default().field("kind", "user").field("id", id)
    }

    pub fn field(mut self, name: &str, value: &str) -> Self {
        let text = format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"
        );
        self.0.extend_from_slice(text.as_bytes());
        self
    }

    pub fn file(mut self, name: &str, content: &[u8]) -> Self {
        let text = format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"file\"; \
             filename=\"{name}\"\r\nContent-Type: application/octet-stream\r\n\r\n"
        );
        self.0.extend_from_slice(text.as_bytes());
        self.0.extend_from_slice(content);
        self.0.extend_from_slice(b"\r\n");
        self
    }

    pub fn end(mut self) -> Vec<u8> {
        self.0.extend_from_slice(format!("--{BOUNDARY}--\r\n").as_bytes());
        self.0
    }

    /// The form without its end.
    pub fn unfinished(self) -> Vec<u8> {
        self.0
    }
}
