//! Functions that call tools, in the language of the code.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::librechat::run::calls::ToolLanguage;

/// A tool of the client.
#[derive(Debug, Serialize)]
pub struct Tool {
    pub name: String,
    /// A JSON schema, as the client sent it. The order of its properties is the order of the
    /// function's arguments.
    pub parameters: Option<Box<RawValue>>,
}

/// The tools by the functions that the code calls.
pub type Tools = BTreeMap<String, Tool>;

/// How many characters of an unknown tool's name are reported.
const SHOWN_MAX: usize = 100;

/// The error of code that calls a tool which its client does not offer, in the text that clients
/// know. The code chooses the name.
pub fn unregistered(name: &str) -> String {
    let shown = name.chars().filter(|one| !one.is_control()).take(SHOWN_MAX);
    format!("Sandbox requested an unregistered tool: {}", shown.collect::<String>())
}

/// A file that `main.py` reads.
pub fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("texts and JSON can be written as JSON")
}

/// The file that `main.sh` reads: a function for each tool.
pub fn shell(tools: &Tools) -> Vec<u8> {
    let function = |(function, tool): (&String, &Tool)| {
        let name = tool.name.replace('\'', "'\\''");
        format!("{function}() {{ __tare_call '{name}' \"$@\"; }}\n")
    };
    tools.iter().map(function).collect::<String>().into_bytes()
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
    pub fn function(self, tool: &str) -> String {
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
    use super::*;

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
    fn the_name_of_an_unknown_tool_is_shown_in_one_line() {
        let error = unregistered(&format!("a\nb{}", "x".repeat(1000)));
        assert!(error.starts_with("Sandbox requested an unregistered tool: abxxx"), "{error}");
        assert!(error.len() < 200);
    }
}
