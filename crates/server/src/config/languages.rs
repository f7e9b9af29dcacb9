//! `[languages]`: the file name of the code of each language, and the commands that compile and run
//! it. The operator's languages replace built-in ones of the same name.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

/// Stands for the path of the code in a command.
pub const FILE: &str = "{file}";
/// Stands for the path of the compiled program in a command.
pub const PROGRAM: &str = "{program}";

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Language {
    /// What it is called too.
    #[serde(default)]
    pub names: Vec<String>,
    /// What its code is called.
    pub file: String,
    /// What makes a program of it; nothing where the code is run as it is.
    #[serde(default)]
    pub compile: Vec<String>,
    /// What runs it. Empty: it is not offered.
    pub run: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

/// All of them, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Languages(pub BTreeMap<String, Language>);

/// Name, other names, file, what makes a program of it, what runs that.
type BuiltIn = (
    &'static str,
    &'static [&'static str],
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
);

const BUILT_IN: [BuiltIn; 15] = [
    ("bash", &["sh"], "main.sh", &[], &["bash", FILE]),
    ("c", &[], "main.c", &["gcc", "-o", PROGRAM, FILE, "-lm"], &[PROGRAM]),
    ("cpp", &["c++"], "main.cpp", &["g++", "-o", PROGRAM, FILE], &[PROGRAM]),
    ("d", &[], "main.d", &["ldc2", "-of", PROGRAM, FILE], &[PROGRAM]),
    ("fortran", &["f90"], "main.f90", &["gfortran", "-o", PROGRAM, FILE], &[PROGRAM]),
    ("go", &[], "main.go", &["go", "build", "-o", PROGRAM, FILE], &[PROGRAM]),
    ("java", &[], "Main.java", &[], &["java", FILE]),
    ("node", &["js", "javascript", "nodejs"], "main.js", &[], &["node", FILE]),
    ("perl", &["pl"], "main.pl", &[], &["perl", FILE]),
    ("php", &[], "main.php", &[], &["php", FILE]),
    ("python", &["py", "python3"], "main.py", &[], &["python3", FILE]),
    ("r", &[], "main.R", &[], &["Rscript", FILE]),
    ("ruby", &["rb"], "main.rb", &[], &["ruby", FILE]),
    ("rust", &["rs"], "main.rs", &["rustc", "-o", PROGRAM, FILE], &[PROGRAM]),
    (
        "typescript",
        &["ts"],
        "main.ts",
        &["esbuild", FILE, "--platform=node", "--log-level=warning", "--outfile=/tmp/program.js"],
        &["node", "/tmp/program.js"],
    ),
];

/// What a compiler keeps for the next time has no next time.
const GO_ENV: [(&str, &str); 2] = [("GOCACHE", "/tmp/go-cache"), ("GOPATH", "/tmp/go")];

impl Default for Languages {
    fn default() -> Self {
        let texts = |words: &[&str]| words.iter().map(ToString::to_string).collect();
        let line = |(name, names, file, compile, run): BuiltIn| {
            let env = match name {
                "go" => GO_ENV.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
                _ => BTreeMap::new(),
            };
            let language = Language {
                names: texts(names),
                file: file.to_owned(),
                compile: texts(compile),
                run: texts(run),
                env,
            };
            (name.to_owned(), language)
        };
        Self(BUILT_IN.into_iter().map(line).collect())
    }
}

impl<'de> Deserialize<'de> for Languages {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let mut all = Self::default();
        all.0.extend(BTreeMap::<String, Language>::deserialize(input)?);
        Ok(all)
    }
}
