//! Finds the language of a request, and makes the command that runs its code.

use std::collections::BTreeMap;

use tare_engine::spec::command::Variable;
use tare_engine::spec::defaults::HOME;

use crate::config::Config;
use crate::config::boxes::Programs;
use crate::config::languages::{FILE, Language, Languages, PROGRAM};
use crate::error::ServiceError;
use crate::work::files::InputFile;
use crate::work::request::spec;

/// The name of a compiled program. No code has this name.
const PROGRAM_NAME: &str = "program";

impl Languages {
    /// Finds the language with this name, in any case, whose programs a box can use.
    pub fn find(&self, name: &str, programs: Programs<'_>) -> Result<&Language, ServiceError> {
        let called = |(own, language): &(&String, &Language)| {
            let mut names = std::iter::once(*own).chain(&language.names);
            names.any(|one| one.eq_ignore_ascii_case(name))
        };
        let found = self.0.iter().find(called).map(|(_, language)| language);
        found
            .filter(|language| language.is_in(programs))
            .ok_or_else(|| self.unsupported(name, programs))
    }

    fn unsupported(&self, name: &str, programs: Programs<'_>) -> ServiceError {
        let offered = self.0.iter().filter(|(_, language)| language.is_in(programs));
        let names: Vec<&str> = offered.map(|(name, _)| name.as_str()).collect();
        let shown: String = name.chars().take(SHOWN_MAX).collect();
        ServiceError::invalid("unsupported_language", format!("Unsupported language: {shown}"))
            .with_hint(format!("there are {}", names.join(", ")))
    }
}

/// What a request runs: a command, or code that is put into the box first.
pub struct Program {
    pub command: Vec<String>,
    /// The variables that the language needs.
    pub env: BTreeMap<String, String>,
    pub code: Option<InputFile>,
    /// What an interpreter that was started ahead can run instead of the command.
    pub interpreted: Option<Code>,
}

/// The hint for a request that names nothing to run, or two things.
const WHAT_TO_RUN: &str = "send either 'command', or 'language' and 'code'";

impl Program {
    /// `directory` is the place of the code in the box.
    pub fn of(
        config: &Config,
        directory: &str,
        command: Option<Vec<String>>,
        language: Option<&str>,
        code: Option<String>,
    ) -> Result<Self, ServiceError> {
        let wrong = |message| Err(ServiceError::invalid("invalid", message).with_hint(WHAT_TO_RUN));
        match (command.filter(|command| !command.is_empty()), language, code) {
            (Some(command), None, None) => {
                Ok(Self { command, env: BTreeMap::new(), code: None, interpreted: None })
            }
            (None, Some(language), Some(code)) => {
                let language = config.languages.find(language, config.boxes.programs())?;
                Ok(Self {
                    command: language.command(directory, &[]),
                    interpreted: language.code(&config.languages, directory, &[])?,
                    env: language.env.clone(),
                    code: Some(InputFile::at(directory, &language.file, code.into_bytes())),
                })
            }
            (Some(_), _, _) => wrong("the request has a command, and also a language or code"),
            (None, None, Some(_)) => wrong("the request has code, but no language"),
            (None, Some(_), None) => wrong("the request has a language, but no code"),
            (None, None, None) => wrong("the request has no command and no code"),
        }
    }
}

/// How many characters of an unknown name an error shows.
const SHOWN_MAX: usize = 40;

impl Language {
    /// Whether a box has the programs that the language needs.
    fn is_in(&self, programs: Programs<'_>) -> bool {
        let first = |words: &[String]| words.first().cloned();
        let needed: Vec<String> = [first(&self.compile), first(&self.run)]
            .into_iter()
            .flatten()
            .filter(|word| word != PROGRAM)
            .collect();
        !self.run.is_empty() && needed.iter().all(|program| programs.have(program))
    }

    /// How to run the code in `directory` in an interpreter that was started before. `None` for a
    /// language that is not run as `PROGRAM FILE`.
    pub fn code(
        &self,
        all: &Languages,
        directory: &str,
        arguments: &[String],
    ) -> Result<Option<Code>, ServiceError> {
        let [program, file] = self.run.as_slice() else { return Ok(None) };
        let name = all.0.iter().find(|(_, one)| std::ptr::eq(*one, self)).map(|(name, _)| name);
        let (true, true, Some(name)) = (self.compile.is_empty(), file == FILE, name) else {
            return Ok(None);
        };
        let path = format!("{directory}/{}", self.file);
        Ok(Some(Code {
            language: name.clone(),
            program: program.clone(),
            arguments: std::iter::once(path).chain(arguments.iter().cloned()).collect(),
            env: spec::pairs(&self.env)?,
        }))
    }

    /// The command that runs the code in `directory`.
    pub fn command(&self, directory: &str, arguments: &[String]) -> Vec<String> {
        let file = format!("{directory}/{}", self.file);
        // Files of the working directory can be outputs, and the program is none.
        let built = if directory == HOME { "/tmp" } else { directory };
        let program = format!("{built}/{PROGRAM_NAME}");
        let filled = |words: &[String]| -> Vec<String> {
            let fill = |word: &String| word.replace(FILE, &file).replace(PROGRAM, &program);
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

/// Code of a language whose interpreter can be started ahead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Code {
    /// The name of the language in the configuration.
    pub language: String,
    pub program: String,
    /// The path of the code, and its arguments.
    pub arguments: Vec<String>,
    /// Variables of the language, which the interpreter starts with.
    pub env: Vec<Variable>,
}

impl Code {
    /// The variables of a command that only its request has.
    pub fn own_env<'a>(&'a self, all: &'a [Variable]) -> impl Iterator<Item = &'a Variable> {
        all.iter().filter(|variable| !self.env.contains(variable))
    }
}

/// Quotes the words of a command for a shell.
fn quoted(words: &[String]) -> String {
    let quote = |word: &String| format!("'{}'", word.replace('\'', "'\\''"));
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

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
        assert!(
            c[2].contains("'/tmp/it'\\''s/main.c'")
                && c[2].contains("&& exec '/tmp/it'\\''s/program'")
        );
        assert!(all.0["c"].command("/work", &[])[2].ends_with("exec '/tmp/program' \"$@\""));
        assert_eq!(&c[3..], ["sh", "a"]);
    }

    #[test]
    fn the_operators_languages_replace_built_in_ones() {
        let text = "python = { file = 'a.py', run = ['/opt/py', '{file}'] }\nnode = { file = '', run = [] }";
        let all: Languages = toml::from_str(text).expect("a table");
        let empty = Programs { rootfs: Some(Path::new("/nowhere")), packages: None };
        assert_eq!(all.0["python"].run, ["/opt/py", FILE]);
        assert!(!all.0["node"].is_in(Programs::default()));
        let refused = all.find("js", empty).expect_err("nothing is there");
        assert_eq!(refused.message, "Unsupported language: js");
        assert!(all.find("Sh", Programs::default()).is_ok());
    }
}
