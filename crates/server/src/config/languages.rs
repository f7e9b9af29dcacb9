//! `[languages]`: the file name of the code of each language, and the commands that compile and run
//! it. The operator's languages replace built-in ones of the same name.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

/// Stands for the path of the code in a command.
pub const FILE: &str = "{file}";
/// Stands for the path of the compiled program in a command.
pub const PROGRAM: &str = "{program}";

/// One language.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Language {
    /// Other names of the language.
    #[serde(default)]
    pub names: Vec<String>,
    /// The name of the file with the code.
    pub file: String,
    /// The command that compiles the code. Empty if the code needs no compiler.
    #[serde(default)]
    pub compile: Vec<String>,
    /// The command that runs the code or the compiled program. Empty if the language is not
    /// offered.
    pub run: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

/// All languages by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Languages(pub BTreeMap<String, Language>);

impl Default for Languages {
    fn default() -> Self {
        let built_in = toml::from_str(include_str!("languages.toml"));
        Self(built_in.expect("the built-in languages are valid"))
    }
}

impl<'de> Deserialize<'de> for Languages {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let mut all = Self::default();
        all.0.extend(BTreeMap::<String, Language>::deserialize(input)?);
        Ok(all)
    }
}
