//! The rules of style that a program can check.
//!
//! Lints of rustc and clippy check what they can. The rest is here: each rule is a function from
//! files to findings.

mod arrows;
mod catalogue;
mod cycles;
mod imports;
mod map;
mod names;
mod rules;
mod source;
mod specification;

use crate::failure::{Context, Failure};
use crate::workspace::Workspace;
use source::Source;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// The directories of our own Rust files.
const ROOMS: [&str; 2] = ["crates", "tests"];

/// Documents that name tests or folders, and the rule that compares them.
type Rule = fn(&str, &str, &[Source]) -> Vec<Finding>;
const MAP: &str = "ARCHITECTURE.md";
const DOCUMENTS: [(&str, Rule); 3] = [
    ("SPECIFICATION.md", specification::check),
    ("docs/leaks.md", catalogue::check),
    (MAP, map::check),
];

/// A limit on nested directories, against loops.
const DEPTH_MAX: usize = 16;

/// One breach of one rule.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    pub path: PathBuf,
    pub line: usize,
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path.display(), self.line, self.what)
    }
}

/// Fails if any rule finds something in this workspace, and lists all findings.
pub fn check() -> Result<(), Failure> {
    let root = Workspace::alone()?.workspace_root;
    let sources = read_sources(&root)?;
    let mut findings: Vec<Finding> = sources.iter().flat_map(rules::all).collect();
    findings.extend(arrows::check(&sources));
    findings.extend(cycles::check(&sources));
    findings.extend(names::check(&sources));
    let read =
        |name: &str| fs::read_to_string(root.join(name)).context(|| format!("cannot read {name}"));
    findings.extend(map::check_dependencies(MAP, &read(MAP)?, &read("Cargo.toml")?));
    for (document, rule) in DOCUMENTS {
        match fs::read_to_string(root.join(document)) {
            Ok(text) => findings.extend(rule(document, &text, &sources)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).context(|| format!("cannot read {document}")),
        }
    }
    if !findings.is_empty() {
        let lines: Vec<String> = findings.iter().map(Finding::to_string).collect();
        return Err(Failure::new(format!("not tidy:\n  {}", lines.join("\n  "))));
    }
    println!("{} files are tidy", sources.len());
    Ok(())
}

fn read_sources(root: &Path) -> Result<Vec<Source>, Failure> {
    let mut paths = Vec::new();
    for room in ROOMS {
        if root.join(room).is_dir() {
            collect(&root.join(room), DEPTH_MAX, &mut paths)
                .context(|| format!("cannot list {room}"))?;
        }
    }
    paths.sort();
    let sources = paths.iter().map(|path| {
        let text =
            fs::read_to_string(path).context(|| format!("cannot read {}", path.display()))?;
        Ok(Source::new(path.strip_prefix(root).unwrap_or(path), text))
    });
    sources.collect()
}

/// Collects Rust files, except in build output.
fn collect(directory: &Path, depth_left: usize, paths: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let (path, kind) = entry.and_then(|it| Ok((it.path(), it.file_type()?)))?;
        if kind.is_dir() && path.file_name().is_some_and(|it| it != "target") && depth_left > 0 {
            collect(&path, depth_left - 1, paths)?;
        }
        if kind.is_file() && path.extension().is_some_and(|it| it == "rs") {
            paths.push(path);
        }
    }
    Ok(())
}
