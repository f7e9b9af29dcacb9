//! The arrows between folders: which folder of a crate may use which.
//!
//! The compiler checks the arrows between crates; this file checks those inside a crate. Each crate
//! is an ordered list of its folders, and of the files beside them. A folder may use only what
//! stands before it in the list, so there are no cycles between folders. Test code may use everything,
//! and so may `lib.rs` and `main.rs`, which no other file may use. A folder of folders has a list too.
//! Its `mod.rs` is the head of these folders: it may use them, and they may use it. `cycles` checks
//! the files in a folder.

use super::Finding;
use super::imports::{imports, is_test_file, module_of};
use super::source::Source;

/// The arrows of one crate, or of one folder.
struct Crate {
    /// The folder of its sources.
    src: &'static str,
    /// The folder as a module of its crate. Empty for a crate.
    module: &'static str,
    /// Its folders, each after those that it may use. `commands/*` stands for each file and folder
    /// in `commands` that is not in the list; none of them may use another. `tare_server` is a
    /// crate: only folders after it may use it.
    order: &'static str,
    /// Folders, each with those before it that it may not use either.
    also_forbidden: &'static [(&'static str, &'static str)],
}

const CRATES: [Crate; 5] = [
    Crate {
        src: "crates/engine/src",
        module: "",
        order: "version hint error spec vm time actor host gauge record holdings observe receipt \
                history teardown audit care session create operate engine",
        also_forbidden: &[],
    },
    Crate {
        src: "crates/keeper/src",
        module: "",
        order: "inherited make journal output programs process cgroup relay machine inner serve",
        also_forbidden: &[],
    },
    Crate {
        src: "crates/server/src",
        module: "",
        order: "error config permits workers shutdown fd telemetry admission watch http work store \
                librechat app api upkeep notify server",
        also_forbidden: &[
            ("http", "watch"),
            ("work", "http"),
            ("store", "telemetry admission watch http work"),
            ("app", "librechat"),
            ("api", "librechat"),
        ],
    },
    // Its folders extend `Service`, which is in `work/mod.rs`.
    Crate {
        src: "crates/server/src/work",
        module: "work",
        order: "box_calls streams files request boxes pool run",
        also_forbidden: &[],
    },
    Crate {
        src: "crates/cli/src",
        module: "",
        order: "hint error foreign_words suggest context output exit stdio commands/lease \
                commands/process_args commands/each commands/* tare_server commands/serve cli \
                usage dispatch commands",
        also_forbidden: &[
            ("cli", "tare_server"),
            ("usage", "tare_server"),
            ("dispatch", "tare_server"),
        ],
    },
];

/// Finds every import that the lists do not allow.
pub fn check(sources: &[Source]) -> Vec<Finding> {
    let of_file = |source| CRATES.iter().flat_map(move |home| home.check(source));
    sources.iter().flat_map(of_file).collect()
}

impl Crate {
    fn check(&self, source: &Source) -> Vec<Finding> {
        let Ok(inside) = source.path.strip_prefix(self.src) else { return Vec::new() };
        let module = module_of(inside);
        let is_root = matches!(inside.to_str(), Some("lib.rs" | "main.rs" | "mod.rs"));
        if is_root || is_test_file(inside) {
            return Vec::new();
        }
        let finding = |line, what| Finding { path: source.path.clone(), line, what };
        let unit = self.unit(&module);
        if self.position(&unit).is_none() {
            return vec![finding(1, format!("`{unit}` is in no list of tidy/arrows.rs"))];
        }
        let parent = Some(self.module.to_owned()).filter(|it| !it.is_empty());
        let module: Vec<String> = parent.into_iter().chain(module).collect();
        let broken = imports(source, &module).into_iter().filter_map(|import| {
            let target = self.unit(self.inside(&import.path)?);
            let what = format!(
                "`{unit}` may not use `{target}`: remove the import of `{}`",
                import.path.join("::")
            );
            (!self.allows(&unit, &target)).then(|| finding(import.line, what))
        });
        broken.collect()
    }

    /// The part of a path that this list is about. `None` for an item of a folder's `mod.rs`, and for
    /// a path that leads out of the folder.
    fn inside<'a>(&self, path: &'a [String]) -> Option<&'a [String]> {
        match path {
            _ if self.module.is_empty() => Some(path),
            [first, rest @ ..] if first == self.module => {
                rest.first().filter(|it| self.position(it).is_some()).map(|_| rest)
            }
            _ => None,
        }
    }

    /// The folder, or file beside folders, that a path belongs to.
    fn unit(&self, path: &[String]) -> String {
        let is_listed = |name: &str| self.order.split_whitespace().any(|it| it == name);
        let is_module = |name: &str| !name.starts_with(char::is_uppercase);
        match path {
            [first, second, ..] if is_module(second) && is_listed(&format!("{first}/*")) => {
                format!("{first}/{second}")
            }
            [first, _, ..] => first.clone(),
            // A module, or an item of `lib.rs` or `main.rs`.
            [first] if is_listed(first) => first.clone(),
            [_] | [] => "lib".into(),
        }
    }

    fn allows(&self, unit: &str, target: &str) -> bool {
        let forbids = |(folder, others): &(&str, &str)| {
            *folder == unit && others.split_whitespace().any(|it| it == target)
        };
        let is_before = self.position(target).is_some_and(|it| Some(it) < self.position(unit));
        unit == target || is_before && !self.also_forbidden.iter().any(forbids)
    }

    /// The place of a folder in the list, by its name or by `commands/*`.
    fn position(&self, unit: &str) -> Option<usize> {
        let place = |name: &str| self.order.split_whitespace().position(|it| it == name);
        place(unit).or_else(|| place(&format!("{}/*", unit.split_once('/')?.0)))
    }
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
        assert_eq!(found(path, "use super::each::each;\nuse crate::exit::DONE;"), [""; 0]);
        let told = format!(
            "{path}:1: `commands/ls` may not use `commands/stop`: remove the import of \
             `commands::stop::Stop`"
        );
        assert_eq!(found(path, "use super::stop::Stop;"), [told]);
        assert_eq!(found(path, "use tare_server::RUN_LABEL;").len(), 1);
        assert_eq!(found("crates/cli/src/commands/serve.rs", "use tare_server::x;"), [""; 0]);
    }

    #[test]
    fn a_command_may_not_use_the_command_line_that_names_it() {
        let path = "crates/cli/src/commands/completion.rs";
        assert_eq!(found(path, "use crate::cli::Cli;").len(), 1);
        assert_eq!(found("crates/cli/src/cli.rs", "use crate::commands::{ls, run};"), [""; 0]);
    }

    #[test]
    fn a_folder_may_be_forbidden_although_it_stands_before() {
        let text = "use crate::http::x;";
        assert_eq!(found("crates/server/src/work/run.rs", text).len(), 1);
        assert_eq!(found("crates/server/src/api/run.rs", text), [""; 0]);
        for it in CRATES {
            for (folder, others) in it.also_forbidden {
                let is_before = |other: &str| it.position(other) < it.position(folder);
                assert!(others.split_whitespace().all(is_before), "{folder}: {others}");
            }
        }
    }

    #[test]
    fn a_folder_of_folders_has_arrows_of_its_own() {
        let path = "crates/server/src/work/files/pipe.rs";
        let allowed = "use crate::work::{Service, find, streams::Chunk};\nuse super::InputFile;";
        assert_eq!(found(path, allowed), [""; 0]);
        for wrong in ["use crate::work::run::Run;", "use super::super::run::Run;"] {
            assert_eq!(found(path, wrong).len(), 1, "{wrong}");
        }
        assert_eq!(found("crates/server/src/work/mod.rs", "use crate::work::run::Run;"), [""; 0]);
    }

    #[test]
    fn a_folder_that_is_not_listed_is_found() {
        assert_eq!(found("crates/engine/src/pool/mod.rs", "").len(), 1);
    }
}
