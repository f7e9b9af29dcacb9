//! Suggests what the user may have meant by an unknown word.
//!
//! Words of other tools lead to the command or option with that meaning (`list` to `ls`). A word
//! with a typing error leads to the nearest word by letters (`lss` to `ls`). A word that is far
//! from all others gets no suggestion, because a wrong one is worse than none.

use clap::Command;

/// Words of other tools, and the command that does the same.
const COMMAND_WORDS: [(&str, &str); 30] = [
    ("list", "ls"),
    ("create", "run"),
    ("start", "run"),
    ("launch", "run"),
    ("shell", "exec"),
    ("enter", "exec"),
    ("copy", "cp"),
    ("log", "logs"),
    ("top", "stats"),
    ("usage", "stats"),
    ("info", "inspect"),
    ("show", "inspect"),
    ("status", "inspect"),
    ("history", "explain"),
    ("why", "explain"),
    ("check", "audit"),
    ("prune", "sweep"),
    ("clean", "sweep"),
    ("remove", "rm"),
    ("delete", "rm"),
    ("terminate", "stop"),
    ("signal", "kill"),
    ("freeze", "pause"),
    ("suspend", "pause"),
    ("unpause", "resume"),
    ("continue", "resume"),
    ("mv", "rename"),
    ("set", "update"),
    ("server", "serve"),
    ("daemon", "serve"),
];

/// Options of other tools, and the options that do the same.
const OPTION_WORDS: [(&str, &str); 14] = [
    ("--mem", "--memory"),
    ("--cpu", "--cpus"),
    ("--pids-limit", "--pids"),
    ("--mount", "--volume"),
    ("--bind", "--volume"),
    ("--network", "--net"),
    ("--cwd", "--workdir"),
    ("--environment", "--env"),
    ("--uid", "--user"),
    ("--image", "--rootfs"),
    ("--ttl", "--lease"),
    ("--background", "--detach"),
    ("--daemon", "--detach"),
    ("--labels", "--label"),
];

/// The command of `tare` that is nearest to `word`.
pub fn command(tare: &Command, word: &str) -> Option<String> {
    let names = tare.get_subcommands().flat_map(|it| {
        std::iter::once(it.get_name()).chain(it.get_visible_aliases()).map(|name| (name, name))
    });
    nearest(word, names.chain(COMMAND_WORDS)).map(str::to_owned)
}

/// The long option of a command that is nearest to `word`, which may have a value.
pub fn option(command: &Command, word: &str) -> Option<String> {
    let word = word.split('=').next().unwrap_or(word);
    let longs = command.get_arguments().filter_map(|it| it.get_long());
    let options: Vec<String> = longs.map(|it| format!("--{it}")).collect();
    let own = options.iter().map(|it| (it.as_str(), it.as_str()));
    let known = OPTION_WORDS.into_iter().filter(|(_, to)| options.iter().any(|it| it == to));
    let candidates: Vec<_> = own.chain(known).collect();
    let mut extended = candidates.iter().filter(|(from, _)| from.starts_with(word));
    let nearest = nearest(word, candidates.iter().copied());
    // `--out` is the beginning of one option alone.
    let extended = || match (extended.next(), extended.next()) {
        (Some((_, to)), None) if word.len() > "--x".len() => Some(*to),
        (_, _) => None,
    };
    nearest.or_else(extended).map(str::to_owned)
}

/// The value that is nearest to `word`.
pub fn value(word: &str, known: &[String]) -> Option<String> {
    nearest(word, known.iter().map(|it| (it.as_str(), it.as_str()))).map(str::to_owned)
}

/// Returns what the candidate with the fewest typing errors leads to. One error is allowed, or two
/// in words of six letters or more. Of several equally near candidates, the first wins.
fn nearest<'a>(
    word: &str,
    candidates: impl Iterator<Item = (&'a str, &'a str)>,
) -> Option<&'a str> {
    let errors_max = if word.trim_start_matches('-').len() < 6 { 1 } else { 2 };
    let measured = candidates.map(|(from, to)| (strsim::osa_distance(word, from), to));
    let near = measured.filter(|(errors, _)| *errors <= errors_max);
    near.min_by_key(|(errors, _)| *errors).map(|(_, to)| to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    fn tare() -> Command {
        let mut tare = Cli::command();
        tare.build();
        tare
    }

    #[test]
    fn mistyped_commands_lead_to_the_nearest_one() {
        for (word, expected) in [
            ("lss", Some("ls")),
            ("sl", Some("ls")),
            ("lgos", Some("logs")),
            ("rum", Some("run")),
            ("exce", Some("exec")),
            ("insepct", Some("inspect")),
            ("psa", Some("ps")),
            ("banana", None),
            ("x", None),
        ] {
            assert_eq!(command(&tare(), word).as_deref(), expected, "{word}");
        }
    }

    #[test]
    fn words_of_other_tools_lead_to_the_command_with_that_meaning() {
        for (word, expected) in [
            ("list", "ls"),
            ("lsit", "ls"),
            ("delete", "rm"),
            ("unpause", "resume"),
            ("log", "logs"),
        ] {
            assert_eq!(command(&tare(), word).as_deref(), Some(expected), "{word}");
        }
    }

    #[test]
    fn every_word_leads_to_a_command_or_option_that_exists() {
        let tare = tare();
        for (word, to) in COMMAND_WORDS {
            assert!(tare.find_subcommand(to).is_some() && tare.find_subcommand(word).is_none());
        }
        let run = tare.find_subcommand("run").unwrap();
        for (word, _) in OPTION_WORDS {
            assert!(option(run, word).is_some(), "{word}");
        }
    }

    #[test]
    fn mistyped_options_lead_to_options_of_the_same_command() {
        let tare = tare();
        for (name, word, expected) in [
            ("run", "--memroy", Some("--memory")),
            ("run", "--mem=1g", Some("--memory")),
            ("run", "--detached", Some("--detach")),
            ("run", "--output", None),
            ("run", "--output-l", Some("--output-limit")),
            ("run", "--network", Some("--net")),
            ("run", "--privileged", None),
            ("ls", "--al", Some("--all")),
            ("ls", "--mem", None),
            ("stop", "--timeout", None),
        ] {
            let found = option(tare.find_subcommand(name).unwrap(), word);
            assert_eq!(found.as_deref(), expected, "{name} {word}");
        }
    }
}
