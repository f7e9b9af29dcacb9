//! The body of a request: code with tools, or results of the calls of code.

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::ServiceError;
use crate::librechat::attached;
use crate::librechat::body_fields::{
    FileRef, REFERENCES_MAX, few_or_none, or_default, user_id_or_none,
};
use crate::librechat::run::box_spec::code_file;
use crate::librechat::run::calls::{CALLS_MAX, ToolLanguage};
use crate::librechat::tools::stubs::{Tool, Tools};
use crate::store::id::Id;
use crate::work::files::InputFile;

const TOOLS_MAX: usize = 100;
const TOOL_NAME_BYTES_MAX: usize = 256;

/// The body of a request that starts an execution or continues one. Unknown fields are ignored:
/// clients of all ages send them.
#[derive(Debug, Deserialize)]
pub struct Request {
    continuation_token: Option<String>,
    #[serde(default, deserialize_with = "few_or_none::<_, _, CALLS_MAX>")]
    tool_results: Vec<ToolResult>,
    code: Option<String>,
    #[serde(default, deserialize_with = "few_or_none::<_, _, TOOLS_MAX>")]
    tools: Vec<ToolRequest>,
    lang: Option<String>,
    language: Option<String>,
    /// In milliseconds.
    timeout: Option<f64>,
    #[serde(default, deserialize_with = "few_or_none::<_, _, REFERENCES_MAX>")]
    files: Vec<FileRef>,
    #[serde(default, deserialize_with = "user_id_or_none")]
    user_id: Option<String>,
    /// A copy of a directory on an attached machine.
    workspace_instance_id: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
struct ToolRequest {
    name: String,
    parameters: Option<Box<RawValue>>,
}

/// The result of a call. The code gets it as JSON, without the id.
#[derive(Debug, Deserialize, Serialize)]
pub struct ToolResult {
    #[serde(skip_serializing)]
    pub call_id: String,
    /// The text that the client sent: many results are kept. `None` is `null`.
    result: Option<Box<RawValue>>,
    #[serde(default, deserialize_with = "or_default")]
    is_error: bool,
    #[serde(default, deserialize_with = "or_default")]
    error_message: String,
}

#[derive(Debug)]
pub enum Asked {
    Start(Box<Start>),
    Continue { token: Id, results: Vec<ToolResult> },
}

/// Code that may call tools.
#[derive(Debug)]
pub struct Start {
    pub code: String,
    pub language: ToolLanguage,
    pub timeout: Option<f64>,
    pub files: Vec<FileRef>,
    pub user_id: Option<String>,
    pub tools: Tools,
}

impl Request {
    pub fn parse(self) -> Result<Asked, ServiceError> {
        if self.workspace_instance_id.is_some() {
            return Err(attached::mismatch());
        }
        match self.continuation_token {
            Some(token) => {
                let token = Id::parse(&token)
                    .ok_or_else(|| wrong("continuation_token: it is not valid"))?;
                if self.tool_results.is_empty() {
                    return Err(wrong("tool_results: there are none"));
                }
                let mut results = self.tool_results;
                for result in &mut results {
                    if result.error_message.is_empty() {
                        result.error_message = "the tool failed".to_owned();
                    }
                }
                Ok(Asked::Continue { token, results })
            }
            None => self.start().map(|start| Asked::Start(Box::new(start))),
        }
    }

    fn start(self) -> Result<Start, ServiceError> {
        let code = self.code.filter(|code| !code.is_empty());
        let code = code.ok_or_else(|| wrong("code: there is none"))?;
        let language = self.language.or(self.lang).unwrap_or_else(|| "python".to_owned());
        let language = match language.to_ascii_lowercase().as_str() {
            "python" | "py" => ToolLanguage::Python,
            "bash" | "sh" => ToolLanguage::Bash,
            _ => {
                let shown: String = language.chars().take(40).collect();
                let message = format!("Unsupported language: {shown}");
                return Err(ServiceError::invalid("unsupported_language", message)
                    .with_hint("tools are called from python and bash"));
            }
        };
        if self.timeout.is_some_and(|timeout| timeout <= 0.0) {
            return Err(wrong("timeout: it has to be a number above 0"));
        }
        let mut tools = Tools::new();
        for ToolRequest { name, parameters } in self.tools {
            let function = language.function(&name);
            if function.is_empty() || name.len() > TOOL_NAME_BYTES_MAX || name.contains('\n') {
                return Err(wrong("tools: one has no name that can be called"));
            }
            if tools.insert(function, Tool { name, parameters }).is_some() {
                return Err(wrong("tools: two have the same name"));
            }
        }
        Ok(Start {
            code,
            language,
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

impl Start {
    /// The memory that the code, its tools and the references to its files take.
    pub fn bytes(&self) -> usize {
        let parameters = self.tools.values().filter_map(|tool| tool.parameters.as_ref());
        let files = self.files.iter().map(FileRef::bytes);
        self.code.len()
            + parameters.map(|schema| schema.get().len()).sum::<usize>()
            + files.sum::<usize>()
    }

    /// The tool of this name, if the client offers it.
    pub fn tool(&self, name: &str) -> Option<&Tool> {
        self.tools.values().find(|tool| tool.name == name)
    }
}

impl ToolResult {
    /// The memory that the result takes.
    pub fn bytes(&self) -> usize {
        let result = self.result.as_ref().map_or(0, |result| result.get().len());
        result + self.error_message.len()
    }

    /// The file that `main.sh` reads: a bare text, or JSON on one line.
    pub fn for_shell(&self, key: &str, number: usize) -> InputFile {
        let name = format!("history/{key}.{number}");
        if self.is_error {
            let words = format!("{}\n", self.error_message);
            return code_file(&format!("{name}.failed"), words.into_bytes());
        }
        let text = match self.result.as_ref().map(|result| result.get()) {
            Some(json) => in_a_line(json),
            None => "null".to_owned(),
        };
        code_file(&name, format!("{text}\n").into_bytes())
    }
}

/// A JSON text without its quotes, or other JSON without white space.
fn in_a_line(json: &str) -> String {
    match serde_json::from_str(json) {
        Ok(Value::String(text)) => text,
        Ok(other) => other.to_string(),
        Err(_) => json.to_owned(),
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
    fn code_without_tools_starts_and_language_wins_over_lang() {
        let request = json!({ "code": "x", "tools": [], "lang": "js", "language": "Bash" });
        let Ok(Asked::Start(start)) = parse(request) else {
            panic!("it is valid");
        };
        assert_eq!((start.language, start.tools.len()), (ToolLanguage::Bash, 0));
    }

    #[test]
    fn invalid_starts_and_continuations_are_refused() {
        let refused = |request: Value| parse(request).expect_err("refused").kind;
        let tools = json!([{ "name": "f" }]);
        assert_eq!(refused(json!({ "code": "", "tools": tools })), Kind::Invalid);
        assert_eq!(refused(json!({ "code": "x", "tools": tools, "timeout": 0 })), Kind::Invalid);
        let attached = json!({ "code": "x", "tools": [], "workspace_instance_id": "0123" });
        assert_eq!(refused(attached), Kind::Conflict);
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
