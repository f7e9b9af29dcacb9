//! What a client sends: code with tools, or replies to the calls of code.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::ServiceError;
use crate::librechat::run::box_spec::code_file;
use crate::librechat::run::exec::{FILES_MAX, few_or_none, or_default};
use crate::librechat::run::inputs::FileRef;
use crate::librechat::tools::calls::CALLS_MAX;
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
    tools: Vec<Tool>,
    lang: Option<String>,
    language: Option<String>,
    timeout: Option<u64>,
    #[serde(default, deserialize_with = "few_or_none::<_, _, FILES_MAX>")]
    files: Vec<FileRef>,
    user_id: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
struct Tool {
    name: String,
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
    pub timeout: Option<u64>,
    pub files: Vec<FileRef>,
    pub user_id: Option<String>,
    /// The name of each tool, by the function that the code calls.
    tools: BTreeMap<String, String>,
}

/// The language of code that calls tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolLanguage {
    Python,
    Bash,
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
        let language = match self.lang.or(self.language).as_deref() {
            None | Some("python" | "py") => ToolLanguage::Python,
            Some("bash" | "sh") => ToolLanguage::Bash,
            Some(other) => {
                return Err(ServiceError::invalid(
                    "unsupported_language",
                    format!("Unsupported language: {}", other.chars().take(40).collect::<String>()),
                )
                .with_hint("tools are called from python and bash"));
            }
        };
        if self.tools.is_empty() {
            return Err(wrong("tools: there have to be 1 to 100"));
        }
        let mut tools = BTreeMap::new();
        for Tool { name } in self.tools {
            let function = language.function(&name);
            if function.is_empty() || name.len() > TOOL_NAME_BYTES_MAX || name.contains('\n') {
                return Err(wrong("tools: one has no name that can be called"));
            }
            if tools.insert(function, name).is_some() {
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
    /// The name of the tool, if the client offers it.
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

impl ToolLanguage {
    /// The name of the language, and the program that runs the code.
    pub fn runner(self) -> (&'static str, &'static str) {
        match self {
            Self::Python => ("python", include_str!("main.py")),
            Self::Bash => ("bash", include_str!("main.sh")),
        }
    }

    /// The name of the function that calls a tool, as clients tell the model.
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
        let python = |tool| ToolLanguage::Python.function(tool);
        assert_eq!(python("get-weather now"), "get_weather_now");
        assert_eq!(python("2nd.tool"), "_2ndtool");
        assert_eq!(python("import"), "import_tool");
        assert_eq!(ToolLanguage::Bash.function("a.b-c"), "a_b_c");
        assert_eq!(ToolLanguage::Bash.function("done"), "done_tool");
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
