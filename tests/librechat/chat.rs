//! A server for a LibreChat, and what its clients send.

use serde_json::{Value, json};
use tare_harness::{Answer, Server, Tare, TemporaryDirectory};

/// With its files in a directory of its own, which goes with it.
pub struct Chat {
    pub server: Server,
    files: TemporaryDirectory,
}

const BOUNDARY: &str = "a-boundary-that-no-file-has";

impl Chat {
    #[track_caller]
    pub fn start(tare: &Tare) -> Self {
        Self::configured(tare, "")
    }

    /// With more in its configuration.
    #[track_caller]
    pub fn configured(tare: &Tare, more: &str) -> Self {
        Self::over(tare, more, TemporaryDirectory::new())
    }

    #[track_caller]
    fn over(tare: &Tare, more: &str, files: TemporaryDirectory) -> Self {
        let directory = files.join("files");
        let config = format!("{more}\n[files]\ndirectory = '{}'\n", directory.display());
        let server = Server::start_configured(tare, &config);
        Self { server, files }
    }

    /// Killed, and another one in its place.
    #[track_caller]
    pub fn replaced(self, tare: &Tare, more: &str) -> Self {
        self.server.kill();
        Self::over(tare, more, self.files)
    }

    /// What a program left and what came of it, whatever that is.
    #[track_caller]
    pub fn exec(&self, request: Value) -> Value {
        let answer = self.server.post("/v1/exec", &request).was(200).json();
        let id = answer["session_id"].as_str().expect("an id");
        assert!(is_id(id), "{answer}");
        answer
    }

    #[track_caller]
    pub fn python(&self, code: &str) -> Value {
        self.exec(json!({ "lang": "py", "code": code }))
    }

    /// Sends a file, as the later clients do.
    #[track_caller]
    pub fn upload(&self, name: &str, content: &[u8]) -> Value {
        let fields = [("kind", "user"), ("id", "u1")];
        let answer = self.send_file(&fields, name, content).was(200).json();
        assert_eq!(answer["message"], "success", "{answer}");
        json!({
            "id": answer["files"][0]["fileId"],
            "name": name,
            "storage_session_id": answer["storage_session_id"],
            "kind": "user",
            "resource_id": "u1",
        })
    }

    pub fn send_file(&self, fields: &[(&str, &str)], name: &str, content: &[u8]) -> Answer {
        let mut body = Vec::new();
        for (field, value) in fields {
            let part = format!(
                "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{field}\"\r\n\r\n{value}\r\n"
            );
            body.extend_from_slice(part.as_bytes());
        }
        let part = format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\
             Content-Type: application/octet-stream\r\n\r\n"
        );
        body.extend_from_slice(part.as_bytes());
        body.extend_from_slice(content);
        body.extend_from_slice(format!("\r\n--{BOUNDARY}--\r\n").as_bytes());
        let form = format!("multipart/form-data; boundary={BOUNDARY}");
        self.server
            .ask("POST", "/v1/upload", &[("Content-Type", &form)], &body)
    }

    /// The bytes of a file that an answer names.
    #[track_caller]
    pub fn download(&self, file: &Value) -> Answer {
        let [session, id] = ["storage_session_id", "id"].map(|field| text(&file[field]));
        let path = format!("/v1/download/{session}/{id}?kind=user&id=u1");
        self.server.get(&path).was(200)
    }

    #[track_caller]
    pub fn stop(self, tare: &Tare) {
        self.server.stop().ok();
        tare.call(["rm", "-f", "--all"]).ok();
    }
}

pub fn is_id(text: &str) -> bool {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    text.len() == 21 && text.bytes().all(is_known)
}

#[track_caller]
pub fn text(value: &Value) -> &str {
    value
        .as_str()
        .unwrap_or_else(|| panic!("{value} is no text"))
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
