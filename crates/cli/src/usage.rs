//! Explains a wrong command line in one line: clap's first sentence, and a hint of ours.
//!
//! For a bad value, a missing argument and a conflict, our own sentence is shorter than clap's.

use std::error::Error as _;
use std::ffi::{OsStr, OsString};

use clap::error::{ContextKind, ContextValue, ErrorKind as Clap};
use clap::{Command, CommandFactory};
use tare_engine::Error;
use tare_engine::spec::shown::quoted;

use crate::cli::Cli;
use crate::suggest;

/// Returns the first word that is neither an option nor the value of one. This works even if the
/// command line does not parse.
pub fn command_of(args: &[OsString]) -> Option<&OsStr> {
    words_of(args).next()
}

/// The words that are neither options nor the value of a global one.
fn words_of(args: &[OsString]) -> impl Iterator<Item = &OsStr> {
    let mut words = args.iter().skip(1);
    std::iter::from_fn(move || {
        while let Some(word) = words.next() {
            match word.to_str() {
                Some("--state-root") => {
                    words.next();
                }
                Some(option) if option.starts_with('-') => {}
                Some(_) | None => return Some(word.as_os_str()),
            }
        }
        None
    })
}

/// A command of tare that words name.
struct Named<'a> {
    command: &'a Command,
    /// The command with those above it: `tare vm kernel`.
    path: String,
    /// The first word after the command.
    next: Option<&'a OsStr>,
}

fn named<'a>(tare: &'a Command, mut words: impl Iterator<Item = &'a OsStr>) -> Named<'a> {
    let mut named = Named { command: tare, path: "tare".to_owned(), next: words.next() };
    while let Some(found) = named.next.and_then(|word| named.command.find_subcommand(word)) {
        let path = format!("{} {}", named.path, found.get_name());
        named = Named { command: found, path, next: words.next() };
    }
    named
}

/// Returns the command line that prints the help of the command that the words name. A command
/// without commands below it would take `--help` after another word for its own.
pub fn help_line(words: &[OsString]) -> Result<Vec<OsString>, Error> {
    let mut tare = Cli::command();
    tare.build();
    let Named { command, path, next } = named(&tare, words.iter().map(OsString::as_os_str));
    match next {
        Some(word) if !command.has_subcommands() => {
            let word = quoted(word);
            Err(Error::bad_request(format!("unexpected argument {word} found"))
                .with_hint("try 'tare help --help'"))
        }
        next => {
            let words = path.split(' ').map(OsString::from).chain(next.map(OsStr::to_owned));
            Ok(words.chain(["--help".into()]).collect())
        }
    }
}

/// Returns the error that tare prints for `error`, with a suggestion and the help to read.
pub fn explain(error: &clap::Error, args: &[OsString]) -> Error {
    if let Some(refused) = refused_value(error) {
        return refused;
    }
    let mut tare = Cli::command();
    tare.build();
    let Named { command, path, .. } = named(&tare, words_of(args));
    let help = format!("try '{path} --help'");
    let word = |kind| texts(error, kind).into_iter().next();
    let unknown_command = word(ContextKind::InvalidSubcommand);
    let unknown_option =
        word(ContextKind::InvalidArg).filter(|_| error.kind() == Clap::UnknownArgument);
    let suggestion = match (unknown_command, unknown_option) {
        (Some(word), _) if path == "tare" => suggest::command(&tare, &word),
        (Some(word), _) => suggest::below(command, &path, &word),
        (None, Some(word)) => suggest::option(command, &word),
        (None, None) if error.kind() == Clap::ArgumentConflict => {
            let is_receipt = |kind| texts(error, kind).iter().any(|it| flag_of(it) == "--receipt");
            let has_receipt = [ContextKind::InvalidArg, ContextKind::PriorArg].map(is_receipt);
            let detached = "'tare receipt BOX' shows that of a detached box after its removal;";
            has_receipt.contains(&true).then(|| detached.to_owned())
        }
        (None, None) => {
            let value = word(ContextKind::InvalidValue);
            value.and_then(|value| suggest::value(&value, &texts(error, ContextKind::ValidValue)))
        }
    };
    let hint = match suggestion {
        Some(suggestion) => format!("{suggestion} {help}"),
        None => help,
    };
    Error::bad_request(message(error)).with_hint(hint)
}

/// Returns the error of one of our own parsers, with its hint.
fn refused_value(error: &clap::Error) -> Option<Error> {
    let argument = texts(error, ContextKind::InvalidArg).into_iter().next()?;
    let reason: &Error = error.source()?.downcast_ref()?;
    let message = format!("bad value for {}", flag_of(&argument));
    let refused = Error::bad_request(message).caused_by(reason.to_string());
    Some(match reason.hint() {
        Some(hint) => refused.with_hint(hint.clone()),
        None => refused,
    })
}

fn message(error: &clap::Error) -> String {
    let arguments = texts(error, ContextKind::InvalidArg);
    let value = texts(error, ContextKind::InvalidValue).join("");
    let others = texts(error, ContextKind::PriorArg);
    match (error.kind(), &arguments[..]) {
        (Clap::InvalidValue, [argument]) if value.is_empty() => {
            format!("{} needs a value", flag_of(argument))
        }
        (Clap::InvalidValue, [argument]) => {
            let known = texts(error, ContextKind::ValidValue).join(", ");
            format!("bad value for {}: {} is not one of {known}", flag_of(argument), quoted(value))
        }
        (Clap::MissingRequiredArgument, [argument]) if argument == "--detach" => {
            let usage = error.get(ContextKind::Usage).map(ToString::to_string).unwrap_or_default();
            let needs_it = |option: &&str| usage.contains(option);
            let given = ["--lease", "--keep", "--retention"].into_iter().find(needs_it);
            format!("{} needs --detach", given.unwrap_or("this option"))
        }
        (Clap::MissingRequiredArgument, [argument]) => format!("{} is missing", any_of(argument)),
        (Clap::MissingRequiredArgument, [_, _, ..]) => {
            let arguments: Vec<_> = arguments.iter().map(|it| any_of(it)).collect();
            format!("{} are missing", arguments.join(" and "))
        }
        (Clap::ArgumentConflict, [argument]) if !others.contains(argument) => {
            let others: Vec<_> = others.iter().map(|it| flag_of(it)).collect();
            format!("{} cannot be used with {}", flag_of(argument), others.join(", "))
        }
        (Clap::MissingSubcommand | Clap::DisplayHelpOnMissingArgumentOrSubcommand, _) => {
            "COMMAND is missing".to_owned()
        }
        (_, _) => {
            let rendered = error.render().to_string();
            let sentence = rendered.split("\n\n").next().unwrap_or_default();
            sentence.trim_start_matches("error: ").to_owned()
        }
    }
}

/// `--memory or --pids` of `<--memory <SIZE>|--pids <N>>`: how clap writes that one is required.
fn any_of(word: &str) -> String {
    let words = word.trim_start_matches('<').replace("|--", "\n--");
    let flags: Vec<_> = words.lines().map(flag_of).collect();
    flags.join(" or ")
}

/// `--memory` of `--memory <SIZE>`, `--receipt` of `--receipt[=<FILE>]`, `COMMAND` of `<COMMAND>...`.
fn flag_of(argument: &str) -> &str {
    let flag = argument.trim_start_matches(['<', '[']);
    let flag = flag.split([' ', '=', '[', ']', '>']).next().unwrap_or(flag);
    flag.trim_end_matches("...")
}

fn texts(error: &clap::Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        Some(_) | None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::sentence;
    use clap::Parser;

    fn refusal(line: &[&str]) -> String {
        let args: Vec<OsString> = line.iter().map(OsString::from).collect();
        let error = Cli::try_parse_from(&args).unwrap_err();
        sentence(&explain(&error, &args))
    }

    #[test]
    fn wrong_usage_is_one_line_with_the_way_to_help() {
        for (line, expected) in [
            (
                &["tare", "run", "--memroy", "1g", "true"][..],
                "unexpected argument '--memroy' found (did you mean --memory? try 'tare run --help')",
            ),
            (
                &["tare", "run", "--memory", "1g", "--memory=2g", "true"],
                "the argument '--memory <SIZE>' cannot be used multiple times (try 'tare run --help')",
            ),
            (
                &["tare", "run", "-i", "-i", "true"],
                "the argument '--interactive' cannot be used multiple times (try 'tare run --help')",
            ),
            (&["tare", "run"], "COMMAND is missing (try 'tare run --help')"),
            (&["tare", "run", "--"], "COMMAND is missing (try 'tare run --help')"),
            (&["tare", "run", "--memory"], "--memory needs a value (try 'tare run --help')"),
            (
                &["tare", "run", "--net", "bridge", "true"],
                "bad value for --net: 'bridge' is not one of none, host (try 'tare run --help')",
            ),
            (
                &["tare", "completion", "bahs"],
                "bad value for SHELL: 'bahs' is not one of bash, zsh, fish (did you mean bash? try \
                 'tare completion --help')",
            ),
            (
                &["tare", "completion", "tcsh"],
                "bad value for SHELL: 'tcsh' is not one of bash, zsh, fish (try 'tare completion \
                 --help')",
            ),
            (
                &["tare", "run", "--contain", "--rootfs", "/x", "true"],
                "--contain cannot be used with --rootfs (try 'tare run --help')",
            ),
            (
                &["tare", "run", "--root", "-u", "5", "true"],
                "--root cannot be used with --user (try 'tare run --help')",
            ),
            (
                &["tare", "run", "--json", "-t", "true"],
                "--json cannot be used with --tty (try 'tare run --help')",
            ),
            (
                &["tare", "rum", "true"],
                "unrecognized subcommand 'rum' (did you mean run? try 'tare --help')",
            ),
            (&["tare"], "COMMAND is missing (try 'tare --help')"),
            (
                &["tare", "diff", "web"],
                "unrecognized subcommand 'diff' ('tare cp BOX:/work - | tar t' lists the files of \
                 a box; try 'tare --help')",
            ),
            (
                &["tare", "run", "--rm", "-p", "80:80", "true"],
                "unexpected argument '-p' found (ports of a box are not published: with --net \
                 host, the command shares the host's network and listens on the host's ports; try \
                 'tare run --help')",
            ),
            (
                &["tare", "doctor", "x\n"],
                "unexpected argument 'x\\n' found (try 'tare doctor --help')",
            ),
            (
                &["tare", "run", "-d", "--receipt", "--", "true"],
                "--detach cannot be used with --receipt ('tare receipt BOX' shows that of a \
                 detached box after its removal; try 'tare run --help')",
            ),
        ] {
            assert_eq!(refusal(line), expected);
        }
    }

    #[test]
    fn a_command_below_another_is_named_as_a_whole() {
        for (line, expected) in [
            (
                &["tare", "vm", "ls"][..],
                "unrecognized subcommand 'ls' (did you mean 'tare vm kernel ls'? try 'tare vm --help')",
            ),
            (
                &["tare", "vm", "fetch"],
                "unrecognized subcommand 'fetch' (did you mean 'tare vm kernel fetch'? try 'tare vm \
                 --help')",
            ),
            (
                &["tare", "vm", "kernels", "ls"],
                "unrecognized subcommand 'kernels' (did you mean 'tare vm kernel'? try 'tare vm \
                 --help')",
            ),
            (
                &["tare", "vm", "kernel", "install", "x"],
                "unrecognized subcommand 'install' (did you mean 'tare vm kernel use'? try 'tare vm \
                 kernel --help')",
            ),
            (
                &["tare", "vm", "kernel", "pull"],
                "unrecognized subcommand 'pull' (did you mean 'tare vm kernel fetch'? try 'tare vm \
                 kernel --help')",
            ),
            (
                &["tare", "vm", "--state-root", "/s", "kernel", "use", "--nme", "x", "y"],
                "unexpected argument '--nme' found (did you mean --name? try 'tare vm kernel use \
                 --help')",
            ),
            (&["tare", "vm", "kernel", "rm"], "NAME is missing (try 'tare vm kernel rm --help')"),
            (&["tare", "vm"], "COMMAND is missing (try 'tare vm --help')"),
        ] {
            assert_eq!(refusal(line), expected);
        }
    }

    /// Words that are no option of the command, and what the hint for them names.
    #[test]
    fn what_other_commands_take_leads_to_the_way_of_tare() {
        for (line, expected) in [
            (&["tare", "cp", "-r", "x", "web:/work"][..], "copies directories whole"),
            (&["tare", "cp", "-a", "x", "web:/work"], "copies directories whole"),
            (&["tare", "kill", "-9", "web"], "'tare kill -s 9 BOX'"),
            (&["tare", "update", "--scratch", "9m", "web"], "fixed when the box is made"),
            (&["tare", "rm", "-rf", "web"], "-f ends"),
            (&["tare", "sh", "web"], "'tare exec -it BOX sh'"),
            (&["tare", "serve", "tare.toml"], "-c FILE"),
            (&["tare", "serve", "--port", "80"], "--listen ADDRESS:PORT"),
            (&["tare", "run", "--dns", "1.1.1.1", "true"], "only loopback"),
        ] {
            let said = refusal(line);
            assert!(said.contains(expected), "{said}");
        }
    }

    #[test]
    fn the_commands_of_boxes_that_live_refuse_in_one_line_too() {
        for (line, expected) in [
            (
                &["tare", "run", "--lease", "1h", "true"][..],
                "--lease needs --detach (try 'tare run --help')",
            ),
            (&["tare", "run", "--keep", "true"], "--keep needs --detach (try 'tare run --help')"),
            (&["tare", "exec"], "BOX and COMMAND are missing (try 'tare exec --help')"),
            (&["tare", "rm"], "BOX is missing (try 'tare rm --help')"),
            (
                &["tare", "rm", "--all", "web"],
                "--all cannot be used with BOX (try 'tare rm --help')",
            ),
            (
                &["tare", "ps", "-q", "--json"],
                "--quiet cannot be used with --json (try 'tare ls --help')",
            ),
            (
                &["tare", "update", "web"],
                "--memory or --pids or --cpus or --lease is missing (try 'tare update --help')",
            ),
            (
                &["tare", "stop", "-t", "soon", "web"],
                "bad value for --time: 'soon' is not a duration (write a duration such as 30s, \
                 500ms, 2m or 1h30m, from 1ms to 3650d)",
            ),
            (
                &["tare", "cp", "web:", "x"],
                "bad value for SRC: 'web:' names no path in a box (write BOX:PATH, such as \
                 web:/work, or ./ before a path of the host)",
            ),
        ] {
            assert_eq!(refusal(line), expected);
        }
    }

    #[test]
    fn the_command_is_known_though_the_line_is_wrong() {
        for (line, command) in [
            (&["tare", "--bogus", "run"][..], Some("run")),
            (&["tare", "--state-root", "run", "doctor"], Some("doctor")),
            (&["tare", "--state-root=/x", "run"], Some("run")),
            (&["tare", "-V"], None),
        ] {
            let args: Vec<OsString> = line.iter().map(OsString::from).collect();
            assert_eq!(command_of(&args), command.map(OsStr::new));
        }
    }
}
