//! Finds the language of a request, and makes the command that runs its code.

use std::path::{Path, PathBuf};

use tare_engine::spec::defaults::PATH;

use crate::config::languages::{FILE, Language, Languages, PROGRAM};
use crate::error::ServiceError;

/// The path of a compiled program. No code has this name.
const PROGRAM_PATH: &str = "/tmp/program";

impl Languages {
    /// Finds the language with this name, in any case, whose programs a box can use.
    pub fn find(&self, name: &str, host: Host<'_>) -> Result<&Language, ServiceError> {
        let called = |(own, language): &(&String, &Language)| {
            let mut names = std::iter::once(*own).chain(&language.names);
            names.any(|one| one.eq_ignore_ascii_case(name))
        };
        let found = self.0.iter().find(called).map(|(_, language)| language);
        found.filter(|language| language.is_on(host)).ok_or_else(|| self.unsupported(name, host))
    }

    fn unsupported(&self, name: &str, host: Host<'_>) -> ServiceError {
        let offered = self.0.iter().filter(|(_, language)| language.is_on(host));
        let names: Vec<&str> = offered.map(|(name, _)| name.as_str()).collect();
        let shown: String = name.chars().take(SHOWN_MAX).collect();
        ServiceError::invalid("unsupported_language", format!("Unsupported language: {shown}"))
            .with_hint(format!("there are {}", names.join(", ")))
    }
}

/// How many characters of an unknown name an error shows.
const SHOWN_MAX: usize = 40;

impl Language {
    /// Whether a box has the programs that the language needs.
    fn is_on(&self, host: Host<'_>) -> bool {
        let first = |words: &[String]| words.first().cloned();
        let needed: Vec<String> = [first(&self.compile), first(&self.run)]
            .into_iter()
            .flatten()
            .filter(|word| word != PROGRAM)
            .collect();
        !self.run.is_empty() && needed.iter().all(|program| host.has(program))
    }

    /// The command that runs the code in `directory`.
    pub fn command(&self, directory: &str, arguments: &[String]) -> Vec<String> {
        let file = format!("{directory}/{}", self.file);
        let filled = |words: &[String]| -> Vec<String> {
            let fill = |word: &String| word.replace(FILE, &file).replace(PROGRAM, PROGRAM_PATH);
            words.iter().map(fill).collect()
        };
        let mut command = if self.compile.is_empty() {
            filled(&self.run)
        } else {
            let (compile, run) = (quoted(&filled(&self.compile)), quoted(&filled(&self.run)));
            let script = format!("{compile} && exec {run} \"$@\"");
            vec!["sh".to_owned(), "-c".to_owned(), script, "sh".to_owned()]
        };
        command.extend_from_slice(arguments);
        command
    }
}

/// Quotes the words of a command for a shell.
fn quoted(words: &[String]) -> String {
    let quote = |word: &String| format!("'{}'", word.replace('\'', "'\\''"));
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}

/// The directory in a box that shows the operator's packages.
pub const PACKAGES: &str = "/opt/packages";
/// The directories of programs that pip and npm installed with packages.
pub const PACKAGE_PROGRAMS: [&str; 2] = ["/opt/packages/bin", "/opt/packages/node_modules/.bin"];

/// The directories of the host that a box sees.
#[derive(Debug, Clone, Copy)]
pub struct Host<'a> {
    /// The root of the box.
    pub root: &'a Path,
    pub packages: Option<&'a Path>,
}

impl Host<'_> {
    /// The host's own programs, without packages.
    pub fn alone() -> Self {
        Self { root: Path::new("/"), packages: None }
    }

    /// Whether a box finds this program, by its path or by its name.
    fn has(&self, program: &str) -> bool {
        if program.starts_with('/') {
            self.path(program).exists()
        } else {
            PATH.split(':')
                .chain(PACKAGE_PROGRAMS)
                .any(|directory| self.path(&format!("{directory}/{program}")).exists())
        }
    }

    /// The path on the host of a path in the box.
    fn path(&self, in_box: &str) -> PathBuf {
        let below = |directory: &Path, rest: &str| directory.join(rest.trim_start_matches('/'));
        match (in_box.strip_prefix(PACKAGES), self.packages) {
            (Some(rest), Some(packages)) => below(packages, rest),
            (_, _) => below(self.root, in_box),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn a_program_runs_only_if_it_compiled() {
        let all = Languages::default();
        let python = &all.0["python"];
        assert_eq!(python.command("/work", &words("a b")), words("python3 /work/main.py a b"));
        let c = all.0["c"].command("/tmp/it's", &words("a"));
        assert_eq!(&c[..2], ["sh", "-c"]);
        assert!(c[2].contains("'/tmp/it'\\''s/main.c'") && c[2].contains("&& exec '/tmp/program'"));
        assert_eq!(&c[3..], ["sh", "a"]);
    }

    #[test]
    fn the_operators_languages_replace_built_in_ones() {
        let text = "python = { file = 'a.py', run = ['/opt/py', '{file}'] }\nnode = { file = '', run = [] }";
        let all: Languages = toml::from_str(text).expect("a table");
        let empty = Host { root: Path::new("/nowhere"), packages: None };
        assert_eq!(all.0["python"].run, ["/opt/py", FILE]);
        assert!(!all.0["node"].is_on(Host::alone()));
        let refused = all.find("js", empty).expect_err("nothing is there");
        assert_eq!(refused.message, "Unsupported language: js");
        assert!(all.find("Sh", Host::alone()).is_ok());
    }
}
