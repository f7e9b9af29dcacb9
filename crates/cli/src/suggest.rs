//! Suggests what the user may have meant by an unknown word.
//!
//! Words of other tools lead to the command or option with that meaning (`list` to `ls`), or to the
//! feature that does the job (`foreign_words.rs`). A word with a typing error leads to the nearest
//! word by letters (`lss` to `ls`). A word that is far from all others gets no suggestion, because a
//! wrong one is worse than none.

use clap::Command;

use crate::foreign_words;

/// Words of other tools, and the command that does the same.
const COMMAND_WORDS: [(&str, &str); 25] = [
    ("list", "ls"),
    ("create", "run"),
    ("launch", "run"),
    ("shell", "exec"),
    ("enter", "exec"),
    ("copy", "cp"),
    ("log", "logs"),
    ("usage", "stats"),
    ("show", "inspect"),
    ("status", "inspect"),
    ("history", "explain"),
    ("why", "explain"),
    ("check", "audit"),
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

/// Words for kernels of machines, and the command below `tare vm` that does it.
const KERNEL_WORDS: [(&str, &str); 11] = [
    ("add", "use"),
    ("install", "use"),
    ("import", "use"),
    ("load", "use"),
    ("pull", "fetch"),
    ("download", "fetch"),
    ("get", "fetch"),
    ("list", "ls"),
    ("select", "choose"),
    ("remove", "rm"),
    ("delete", "rm"),
];

/// Options of other tools, and the options that do the same.
const OPTION_WORDS: [(&str, &str); 15] = [
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
    ("--timeout", "--time"),
];

/// A hint for a command that tare does not have.
pub fn command(tare: &Command, word: &str) -> Option<String> {
    let foreign = foreign_words::COMMANDS.iter().find(|(words, _)| words.contains(&word));
    if let Some((_, hint)) = foreign {
        return Some(format!("{hint};"));
    }
    let names = tare.get_subcommands().flat_map(|it| {
        std::iter::once(it.get_name()).chain(it.get_visible_aliases()).map(|name| (name, name))
    });
    nearest(word, names.chain(COMMAND_WORDS)).map(did_you_mean)
}

/// A hint for a word that is not a command below `above`, whose path is `tare vm`. The command may be
/// one level further down.
pub fn below(above: &Command, path: &str, word: &str) -> Option<String> {
    let paths = paths_below(above, path);
    let own = paths.iter().map(|(name, path)| (*name, path.as_str()));
    let known = KERNEL_WORDS.into_iter().filter_map(|(word, to)| {
        let (_, path) = paths.iter().find(|(name, _)| *name == to)?;
        Some((word, path.as_str()))
    });
    nearest(word, own.chain(known)).map(|path| did_you_mean(&format!("'{path}'")))
}

/// The commands of each level below `above`, each with its whole path.
fn paths_below<'a>(above: &'a Command, path: &str) -> Vec<(&'a str, String)> {
    let mut found = Vec::new();
    for command in above.get_subcommands() {
        let path = format!("{path} {}", command.get_name());
        let below = paths_below(command, &path);
        found.push((command.get_name(), path));
        found.extend(below);
    }
    found
}

fn did_you_mean(nearest: &str) -> String {
    format!("did you mean {nearest}?")
}

/// A hint for an option that a command does not have. `word` may have a value.
pub fn option(command: &Command, word: &str) -> Option<String> {
    let word = word.split('=').next().unwrap_or(word);
    let foreign = foreign_words::OPTIONS.iter().find(|(commands, words, _)| {
        commands.contains(&command.get_name()) && words.contains(&word)
    });
    if let Some((_, _, hint)) = foreign {
        return Some(format!("{hint};"));
    }
    if command.get_name() == "serve" && !word.starts_with('-') {
        return Some("-c FILE names the configuration;".to_owned());
    }
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
    nearest.or_else(extended).map(did_you_mean)
}

/// A hint for a value that an option does not take.
pub fn value(word: &str, known: &[String]) -> Option<String> {
    nearest(word, known.iter().map(|it| (it.as_str(), it.as_str()))).map(did_you_mean)
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
            assert_eq!(command(&tare(), word), expected.map(did_you_mean), "{word}");
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
            assert_eq!(command(&tare(), word), Some(did_you_mean(expected)), "{word}");
        }
    }

    #[test]
    fn every_word_leads_to_a_command_or_option_that_exists() {
        let tare = tare();
        for (word, to) in COMMAND_WORDS {
            assert!(tare.find_subcommand(to).is_some() && tare.find_subcommand(word).is_none());
        }
        let vm = tare.find_subcommand("vm").unwrap();
        for (word, to) in KERNEL_WORDS {
            let hint = did_you_mean(&format!("'tare vm kernel {to}'"));
            assert_eq!(below(vm, "tare vm", word), Some(hint), "{word}");
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
            ("run", "--banana", None),
            ("ls", "--al", Some("--all")),
            ("ls", "--mem", None),
            ("stop", "--timeout", Some("--time")),
            ("stop", "--timeout=5", Some("--time")),
        ] {
            let found = option(tare.find_subcommand(name).unwrap(), word);
            assert_eq!(found, expected.map(did_you_mean), "{name} {word}");
        }
    }

    /// The words that a hint names: each command that it quotes with its options, and `of` with the others.
    fn named<'a>(hint: &'a str, of: &'a str) -> Vec<(&'a str, &'a str)> {
        let options = |of: &'a str, text: &'a str| {
            let words = text.split([' ', ',', ':', ';']);
            let options = words.filter(|word| word.len() > 2 && word.starts_with("--"));
            options.map(move |option| (of, option)).collect::<Vec<_>>()
        };
        let mut parts = hint.split("'tare ");
        let mut found = options(of, parts.next().unwrap_or_default());
        for part in parts {
            let (quoted, after) = part.split_once('\'').expect("a quoted command ends");
            let (command, rest) = quoted.split_once(' ').unwrap_or((quoted, ""));
            found.push((command, ""));
            found.extend(options(command, rest).into_iter().chain(options(of, after)));
        }
        found
    }

    #[test]
    fn hints_for_words_of_docker_name_only_what_tare_has() {
        let tare = tare();
        let of_commands = foreign_words::COMMANDS.iter().map(|(_, hint)| (*hint, "run"));
        let of_options = foreign_words::OPTIONS
            .iter()
            .flat_map(|(commands, _, hint)| commands.iter().map(move |command| (*hint, *command)));
        for (hint, of) in of_commands.chain(of_options) {
            for (name, option) in named(hint, of) {
                let command = tare.find_subcommand(name).unwrap_or_else(|| panic!("{hint}"));
                let mut longs = command.get_arguments().filter_map(|it| it.get_long());
                let is_known = option.is_empty() || longs.any(|it| option == format!("--{it}"));
                assert!(is_known, "{name} has no {option}: {hint}");
            }
        }
    }

    #[test]
    fn words_of_docker_are_not_words_of_tare_and_lead_to_one_hint() {
        let tare = tare();
        let mut seen = Vec::new();
        for word in foreign_words::COMMANDS.iter().flat_map(|(words, _)| *words) {
            assert!(tare.find_subcommand(word).is_none() && !seen.contains(word), "{word}");
            assert!(COMMAND_WORDS.iter().all(|(own, _)| own != word), "{word}");
            seen.push(word);
        }
        for (commands, words, _) in foreign_words::OPTIONS {
            for command in commands {
                let command = tare.find_subcommand(command).unwrap();
                for argument in command.get_arguments() {
                    let long = argument.get_long().map(|it| format!("--{it}"));
                    let short = argument.get_short().map(|it| format!("-{it}"));
                    let own = [long, short].into_iter().flatten();
                    own.for_each(|own| assert!(!words.contains(&own.as_str()), "{own}"));
                }
            }
        }
    }

    /// A user who tries `prune` must not run a command that removes more than was meant.
    #[test]
    fn a_word_that_sounds_harmless_does_not_lead_to_a_command_that_ends_boxes() {
        let tare = tare();
        for word in [
            "top", "start", "restart", "commit", "prune", "pull", "rmi", "images", "diff", "info",
            "system",
        ] {
            let hint = command(&tare, word).expect(word);
            for verb in
                ["tare rm", "tare kill", "tare stop", "tare sweep'", "mean rm", "mean sweep"]
            {
                assert!(!hint.contains(verb), "{word}: {hint}");
            }
        }
        let run = tare.find_subcommand("run").unwrap();
        for word in ["-p", "--publish", "--publish=80:80", "--restart", "--privileged"] {
            assert!(option(run, word).is_some(), "{word}");
        }
    }
}
