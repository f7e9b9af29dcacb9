//! The arrows between folders: which folder of a crate may use which.
//!
//! The compiler checks the arrows between crates; this file checks those inside a crate. A folder
//! (or a file beside the folders) may use only what its row of the table names. Test code may use
//! everything, and so may `lib.rs` and `main.rs`, which no other file may use.

use super::Finding;
use super::source::{Source, identifier, words};
use std::path::Path;

/// One crate: a row per folder, with the folders that it may use. `commands/*` stands for each
/// file and folder in `commands` that has no row of its own.
struct Crate {
    /// The folder of its sources.
    src: &'static str,
    rows: &'static [(&'static str, &'static str)],
    /// Other crates that only some folders may use.
    externs: &'static [&'static str],
}

const CRATES: [Crate; 4] = [
    Crate {
        src: "crates/engine/src",
        rows: &[
            ("hint", ""),
            ("error", "hint"),
            ("spec", "error"),
            ("time", "error spec"),
            ("host", "error time spec"),
            ("gauge", "error time spec host"),
            ("record", "error time spec host"),
            ("holdings", "error time spec host record"),
            ("observe", "error time spec host record holdings"),
            ("history", "error time spec host record holdings observe"),
            ("teardown", "error time spec host record holdings observe history"),
            ("audit", "error time spec host record holdings observe history teardown"),
            ("care", "error time spec host record holdings observe history teardown audit"),
            ("session", "error time spec host record holdings observe history teardown audit care"),
            (
                "create",
                "error time spec host record holdings observe history teardown audit care session",
            ),
            (
                "operate",
                "error time spec host record holdings observe history teardown audit care session \
                 create",
            ),
            (
                "engine",
                "error time spec host record holdings observe history teardown audit care session \
                 create operate gauge",
            ),
        ],
        externs: &[],
    },
    Crate {
        src: "crates/keeper/src",
        rows: &[
            ("cgroup", ""),
            ("inherited", ""),
            ("journal", ""),
            ("output", ""),
            ("programs", ""),
            ("make", "inherited"),
            ("process", "inherited journal output programs make"),
            ("serve", "cgroup inherited journal output programs make process"),
        ],
        externs: &[],
    },
    Crate {
        src: "crates/server/src",
        rows: &[
            ("error", ""),
            ("fd", ""),
            ("config", "error"),
            ("workers", "error"),
            ("shutdown", "error"),
            ("notify", "error"),
            ("telemetry", "error fd config workers shutdown"),
            ("store", "error config workers shutdown"),
            ("admission", "error config workers shutdown telemetry"),
            ("watch", "error fd config workers shutdown telemetry admission"),
            ("http", "error fd config workers shutdown telemetry admission"),
            ("work", "error fd config workers shutdown telemetry admission watch"),
            (
                "api",
                "error fd config workers shutdown telemetry admission watch http work store app",
            ),
            (
                "librechat",
                "error fd config workers shutdown telemetry admission watch http work store",
            ),
            ("app", "error fd config workers shutdown telemetry admission watch http work store"),
            (
                "upkeep",
                "error fd config workers shutdown telemetry admission watch http work store api \
                 librechat app",
            ),
            (
                "server",
                "error config workers shutdown notify telemetry admission watch http work store \
                 api librechat upkeep app fd",
            ),
        ],
        externs: &[],
    },
    Crate {
        src: "crates/cli/src",
        rows: &[
            ("hint", ""),
            ("error", "hint"),
            ("context", "error"),
            ("suggest", ""),
            ("usage", "error suggest cli"),
            ("output", "error"),
            ("exit", "error output"),
            ("stdio", "error exit"),
            ("cli", "error context commands commands/*"),
            ("commands", "error context exit stdio output usage cli"),
            ("commands/lease", "error"),
            ("commands/process_args", "error stdio"),
            ("commands/each", "error context exit"),
            ("commands/help", "error cli"),
            ("commands/completion", "error context exit cli"),
            ("commands/serve", "error context exit tare_server"),
            (
                "commands/*",
                "error context exit stdio output commands commands/each commands/lease \
                 commands/process_args",
            ),
        ],
        externs: &["tare_server"],
    },
];

/// Finds every import that the table does not allow.
pub fn check(sources: &[Source]) -> Vec<Finding> {
    sources.iter().flat_map(of_file).collect()
}

fn of_file(source: &Source) -> Vec<Finding> {
    let Some(home) = CRATES.iter().find(|it| source.path.starts_with(it.src)) else {
        return Vec::new();
    };
    let inside = source.path.strip_prefix(home.src).unwrap_or(&source.path);
    let module = module_of(inside);
    if is_test_file(inside) || matches!(inside.to_str(), Some("lib.rs" | "main.rs")) {
        return Vec::new();
    }
    let finding = |line, what| Finding { path: source.path.clone(), line, what };
    let unit = home.unit(&module);
    let Some(allowed) = home.allowed(&unit) else {
        let what = "this folder has no row in the table of tidy/arrows.rs".to_owned();
        return vec![finding(1, what)];
    };
    let imports = imports(source, &module, home.externs).into_iter();
    let broken = imports.filter_map(|import| {
        let target = home.unit(&import.path);
        let fine = target == unit || names(allowed, &target);
        let what = format!(
            "`{unit}` may not use `{target}`: remove the import of `{}`",
            import.path.join("::")
        );
        (!fine).then(|| finding(import.line, what))
    });
    broken.collect()
}

impl Crate {
    /// The folder, or file beside folders, that a path belongs to: the longest that has a row.
    fn unit(&self, path: &[String]) -> String {
        let has_row = |name: &str| self.rows.iter().any(|(row, _)| *row == name);
        let is_module = |name: &str| !name.starts_with(char::is_uppercase);
        match path {
            [first, second, ..] if is_module(second) && has_row(&format!("{first}/*")) => {
                format!("{first}/{second}")
            }
            [first, _, ..] => first.clone(),
            // A module, or an item of `lib.rs` or `main.rs`.
            [first] if has_row(first) => first.clone(),
            [_] | [] => "lib".into(),
        }
    }

    fn allowed(&self, unit: &str) -> Option<&str> {
        let row = |name: &str| self.rows.iter().find(|(row, _)| *row == name).map(|(_, it)| *it);
        let parent = unit.split_once('/').map(|(parent, _)| format!("{parent}/*"));
        row(unit).or_else(|| row(&parent?))
    }
}

/// Whether a row lists a unit, by its name or by `commands/*`.
fn names(row: &str, unit: &str) -> bool {
    let parent = unit.split_once('/').map_or(unit, |(parent, _)| parent);
    row.split_whitespace().any(|it| it == unit || it.strip_suffix("/*") == Some(parent))
}

/// `commands::run::spec` of `commands/run/spec.rs`.
fn module_of(inside: &Path) -> Vec<String> {
    let parts = inside.with_extension("");
    let parts = parts.iter().map(|it| it.to_string_lossy().into_owned());
    parts.filter(|it| it != "mod").collect()
}

/// Files that their parent declares below `#[cfg(test)]`.
fn is_test_file(inside: &Path) -> bool {
    let parts = inside.with_extension("");
    parts.iter().any(|it| it == "tests" || it.to_string_lossy().ends_with("_tests"))
}

/// A path that a file names, from the root of its crate.
#[derive(Debug, PartialEq, Eq)]
struct Import {
    path: Vec<String>,
    line: usize,
}

/// Everything outside of test code that begins with `crate::`, `super::` or a watched crate.
fn imports(source: &Source, module: &[String], externs: &[&str]) -> Vec<Import> {
    let mut found = Vec::new();
    let mut add = |start: usize, base: Vec<String>, rest: &str| {
        let line = source.line_of(start);
        if !source.is_test_code(line) {
            found.extend(paths(base, rest).into_iter().map(|path| Import { path, line }));
        }
    };
    for start in words(&source.code, "crate::") {
        add(start, Vec::new(), &source.code[start + "crate::".len()..]);
    }
    for start in words(&source.code, "super::") {
        if source.code[..start].ends_with("super::") {
            continue;
        }
        let (mut rest, mut base) = (&source.code[start..], module.to_vec());
        while let Some(after) = rest.strip_prefix("super::") {
            (rest, _) = (after, base.pop());
        }
        add(start, base, rest);
    }
    for name in externs {
        for start in words(&source.code, name) {
            add(start, Vec::new(), &source.code[start..]);
        }
    }
    found
}

/// The paths of a `use` tree: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn paths(mut base: Vec<String>, tree: &str) -> Vec<Vec<String>> {
    let mut rest = tree.trim_start();
    while let Some(name) = identifier(rest) {
        base.push(name.to_owned());
        match rest[name.len()..].trim_start().strip_prefix("::") {
            Some(after) => rest = after.trim_start(),
            None => return vec![base],
        }
    }
    match rest.strip_prefix('{') {
        Some(inner) => branches(inner).into_iter().flat_map(|it| paths(base.clone(), it)).collect(),
        None => vec![base],
    }
}

/// The parts between the commas of a group, up to the brace that closes it.
fn branches(inner: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0usize, 0);
    for (at, character) in inner.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                parts.push(inner[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
        if character == '}' && start > at {
            break;
        }
    }
    parts.retain(|it| !it.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let findings = check(&[Source::new(path, text)]);
        findings.iter().map(Finding::to_string).collect()
    }

    #[test]
    fn imports_of_lower_folders_are_allowed() {
        let text = "use crate::error::Error;\nuse crate::{host::Host, record::{Record, lines}};";
        assert_eq!(found("crates/engine/src/holdings/name.rs", text), [""; 0]);
        let inside = "use super::cgroup::live;\nuse super::super::holdings::name;";
        assert_eq!(found("crates/engine/src/holdings/cgroup/mod.rs", inside), [""; 0]);
    }

    #[test]
    fn a_forbidden_import_is_named_with_its_line_and_path() {
        let text = "//! x\nuse crate::{\n    error::Error, audit::{Audit, held}};";
        assert_eq!(
            found("crates/engine/src/record/lines.rs", text),
            ["audit::Audit", "audit::held"].map(|it| format!(
                "crates/engine/src/record/lines.rs:2: `record` may not use `audit`: \
                 remove the import of `{it}`"
            ))
        );
        let text = "fn f() { super::super::engine::open() }";
        let told = "crates/engine/src/record/lines.rs:1: `record` may not use `engine`: \
                    remove the import of `engine::open`";
        assert_eq!(found("crates/engine/src/record/lines.rs", text), [told]);
    }

    #[test]
    fn the_crate_root_may_use_all_and_be_used_by_none() {
        assert_eq!(found("crates/server/src/lib.rs", "use crate::api::x;"), [""; 0]);
        assert_eq!(found("crates/server/src/api/run.rs", "use crate::Options;").len(), 1);
    }

    #[test]
    fn comments_and_test_code_may_name_every_folder() {
        let text = "// crate::api\n#[cfg(test)]\nuse crate::api;\n#[cfg(test)]\nmod tests {\n    use crate::api;\n}\n";
        assert_eq!(found("crates/server/src/config/mod.rs", text), [""; 0]);
        let text = "use crate::api;";
        assert_eq!(found("crates/server/src/store/tests/crash.rs", text), [""; 0]);
        assert_eq!(found("crates/server/src/store/mod_tests.rs", text), [""; 0]);
    }

    #[test]
    fn a_command_may_not_use_another_command_or_the_server() {
        let path = "crates/cli/src/commands/ls.rs";
        assert_eq!(found(path, "use super::each::each;\nuse crate::commands::Purpose;"), [""; 0]);
        let told = format!(
            "{path}:1: `commands/ls` may not use `commands/stop`: remove the import of \
             `commands::stop::Stop`"
        );
        assert_eq!(found(path, "use super::stop::Stop;"), [told]);
        assert_eq!(found(path, "use tare_server::RUN_LABEL;").len(), 1);
        assert_eq!(found("crates/cli/src/commands/serve.rs", "use tare_server::x;"), [""; 0]);
    }

    #[test]
    fn a_folder_without_a_row_is_found() {
        assert_eq!(found("crates/engine/src/pool/mod.rs", "").len(), 1);
    }
}
