//! What a client sends: code with tools, or replies to the calls of code.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::ServiceError;
use crate::librechat::run::box_spec::beside_code;
use crate::librechat::run::exec::or_default;
use crate::librechat::run::inputs::FileRef;
use crate::store::id::Id;
use crate::work::files::InputFile;

const TOOLS_MAX: usize = 100;
const TOOL_NAME_BYTES_MAX: usize = 256;

/// Either; what is not known is not looked at.
#[derive(Debug, Deserialize)]
pub struct Request {
    continuation_token: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    tool_results: Vec<ToolResult>,
    code: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    tools: Vec<Tool>,
    lang: Option<String>,
    language: Option<String>,
    timeout: Option<u64>,
    #[serde(default, deserialize_with = "or_default")]
    files: Vec<FileRef>,
    user_id: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
struct Tool {
    name: String,
}

#[derive(Debug, Deserialize)]
struct ToolResult {
    call_id: String,
    result: Option<Box<RawValue>>,
    #[serde(default, deserialize_with = "or_default")]
    is_error: bool,
    #[serde(default, deserialize_with = "or_default")]
    error_message: String,
}

#[derive(Debug)]
pub enum Asked {
    Start(Box<Start>),
    Continue { token: Id, replies: Vec<(String, Reply)> },
}

/// Code that may call tools.
#[derive(Debug)]
pub struct Start {
    pub code: String,
    pub tongue: Tongue,
    pub timeout: Option<u64>,
    pub files: Vec<FileRef>,
    pub user_id: Option<String>,
    /// What the client calls each function of the code.
    tools: BTreeMap<String, String>,
}

/// In what the code is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tongue {
    Python,
    Bash,
}

/// What was said to a call.
#[derive(Debug, Clone, Serialize)]
pub struct Reply {
    /// As it was sent: many of them are remembered. `None` is `null`.
    result: Option<Box<RawValue>>,
    is_error: bool,
    error_message: String,
}

impl Request {
    pub fn parse(self) -> Result<Asked, ServiceError> {
        match self.continuation_token {
            Some(token) => {
                let token = Id::parse(&token)
                    .ok_or_else(|| wrong("continuation_token: it is not valid"))?;
                if self.tool_results.is_empty() {
                    return Err(wrong("tool_results: there are none"));
                }
                let replies = self.tool_results.into_iter().map(ToolResult::into_reply);
                Ok(Asked::Continue { token, replies: replies.collect() })
            }
            None => self.start().map(|start| Asked::Start(Box::new(start))),
        }
    }

    fn start(self) -> Result<Start, ServiceError> {
        let code = self.code.filter(|code| !code.is_empty());
        let code = code.ok_or_else(|| wrong("code: there is none"))?;
        let tongue = match self.lang.or(self.language).as_deref() {
            None | Some("python" | "py") => Tongue::Python,
            Some("bash" | "sh") => Tongue::Bash,
            Some(other) => {
                return Err(ServiceError::invalid(
                    "unsupported_language",
                    format!("Unsupported language: {}", other.chars().take(40).collect::<String>()),
                )
                .with_hint("tools are called from python and bash"));
            }
        };
        if self.tools.is_empty() || self.tools.len() > TOOLS_MAX {
            return Err(wrong("tools: there have to be 1 to 100"));
        }
        let mut tools = BTreeMap::new();
        for Tool { name } in self.tools {
            let function = tongue.function(&name);
            if function.is_empty() || name.len() > TOOL_NAME_BYTES_MAX || name.contains('\n') {
                return Err(wrong("tools: one has no name that can be called"));
            }
            if tools.insert(function, name).is_some() {
                return Err(wrong("tools: two have the same name"));
            }
        }
        Ok(Start {
            code,
            tongue,
            timeout: self.timeout,
            files: self.files,
            user_id: self.user_id,
            tools,
        })
    }
}

fn wrong(message: &str) -> ServiceError {
    ServiceError::invalid("invalid_request", message)
}

impl ToolResult {
    fn into_reply(self) -> (String, Reply) {
        let reply = Reply {
            result: self.result,
            is_error: self.is_error,
            error_message: if self.error_message.is_empty() {
                "the tool failed".to_owned()
            } else {
                self.error_message
            },
        };
        (self.call_id, reply)
    }
}

impl Start {
    /// The client's own name of the tool that code calls so.
    pub fn tool(&self, name: &str) -> Option<&str> {
        self.tools.values().find(|own| *own == name).map(String::as_str)
    }

    pub fn functions(&self) -> &BTreeMap<String, String> {
        &self.tools
    }

    pub fn shell_functions(&self) -> Vec<u8> {
        let function = |(function, name): (&String, &String)| {
            let name = name.replace('\'', "'\\''");
            format!("{function}() {{ __tare_call '{name}' \"$@\"; }}\n")
        };
        self.tools.iter().map(function).collect::<String>().into_bytes()
    }
}

impl Reply {
    /// How much there is to remember of it.
    pub fn bytes(&self) -> usize {
        let result = self.result.as_ref().map_or(0, |result| result.get().len());
        result + self.error_message.len()
    }

    /// As `main.sh` looks for it: one line of JSON where it is not a bare text.
    pub fn for_shell(&self, key: &str, turn: usize) -> InputFile {
        let name = format!("history/{key}.{turn}");
        if self.is_error {
            let words = format!("{}\n", self.error_message);
            return beside_code(&format!("{name}.failed"), words.into_bytes());
        }
        let text = match self.result.as_ref().map(|result| result.get()) {
            Some(json) => in_a_line(json),
            None => "null".to_owned(),
        };
        beside_code(&name, format!("{text}\n").into_bytes())
    }
}

/// A text as it is, and anything else without what is between its parts.
fn in_a_line(json: &str) -> String {
    match serde_json::from_str(json) {
        Ok(Value::String(text)) => text,
        Ok(other) => other.to_string(),
        Err(_) => json.to_owned(),
    }
}

const PYTHON_KEYWORDS: [&str; 35] = [
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue",
    "def", "del", "elif", "else", "except", "finally", "for", "from", "global", "if", "import",
    "in", "is", "lambda", "nonlocal", "not", "or", "pass", "raise", "return", "try", "while",
    "with", "yield",
];
const BASH_KEYWORDS: [&str; 23] = [
    "if", "then", "else", "elif", "fi", "case", "esac", "for", "while", "until", "do", "done",
    "in", "function", "select", "time", "coproc", "declare", "typeset", "local", "readonly",
    "export", "unset",
];

impl Tongue {
    /// What runs the code, and the name of the language that it is in.
    pub fn runner(self) -> (&'static str, &'static str) {
        match self {
            Self::Python => ("python", include_str!("main.py")),
            Self::Bash => ("bash", include_str!("main.sh")),
        }
    }

    /// What code calls a tool, as clients tell the model.
    fn function(self, tool: &str) -> String {
        let (also_underscore, keywords): (&[char], &[&str]) = match self {
            Self::Python => (&['-'], &PYTHON_KEYWORDS),
            Self::Bash => (&['-', '.'], &BASH_KEYWORDS),
        };
        let replace = |character: char| match character {
            it if it.is_whitespace() || also_underscore.contains(&it) => '_',
            it => it,
        };
        let is_kept = |character: &char| character.is_ascii_alphanumeric() || *character == '_';
        let mut function: String = tool.chars().map(replace).filter(is_kept).collect();
        if function.starts_with(|first: char| first.is_ascii_digit()) {
            function.insert(0, '_');
        }
        if keywords.contains(&function.as_str()) {
            function.push_str("_tool");
        }
        function
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::error::Kind;

    fn parse(request: Value) -> Result<Asked, ServiceError> {
        serde_json::from_value::<Request>(request).expect("JSON").parse()
    }

    #[test]
    fn functions_are_called_as_clients_tell_the_model() {
        let python = |tool| Tongue::Python.function(tool);
        assert_eq!(python("get-weather now"), "get_weather_now");
        assert_eq!(python("2nd.tool"), "_2ndtool");
        assert_eq!(python("import"), "import_tool");
        assert_eq!(Tongue::Bash.function("a.b-c"), "a_b_c");
        assert_eq!(Tongue::Bash.function("done"), "done_tool");
    }

    #[test]
    fn invalid_starts_and_continuations_are_refused() {
        let refused = |request: Value| parse(request).expect_err("refused").kind;
        let tools = json!([{ "name": "f" }]);
        assert_eq!(refused(json!({ "code": "", "tools": tools })), Kind::Invalid);
        assert_eq!(refused(json!({ "code": "x", "tools": [] })), Kind::Invalid);
        assert_eq!(refused(json!({ "code": "x", "tools": [{ "name": "!" }] })), Kind::Invalid);
        assert_eq!(refused(json!({ "code": "x", "tools": tools, "lang": "js" })), Kind::Invalid);
        let same = json!([{ "name": "a-b" }, { "name": "a_b" }]);
        assert_eq!(refused(json!({ "code": "x", "tools": same })), Kind::Invalid);
        assert_eq!(
            refused(json!({ "continuation_token": "x", "tool_results": [{ "call_id": "1" }] })),
            Kind::Invalid
        );
        let token = Id::random();
        assert_eq!(
            refused(json!({ "continuation_token": token, "tool_results": [] })),
            Kind::Invalid
        );
    }
}
