//! Languages: what the code's file is called, and what runs it.

use serde::Deserialize;
use utoipa::ToSchema;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    Python,
    Node,
    Bash,
}

impl Language {
    pub fn file(self) -> &'static str {
        match self {
            Self::Python => "main.py",
            Self::Node => "main.js",
            Self::Bash => "main.sh",
        }
    }

    pub fn command(self) -> Vec<String> {
        let program = match self {
            Self::Python => "python3",
            Self::Node => "node",
            Self::Bash => "bash",
        };
        vec![program.to_owned(), self.file().to_owned()]
    }
}
