//! Wrong usage in one line: what clap found, said as tare says things.

use std::error::Error as _;
use std::ffi::{OsStr, OsString};

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind as Clap};
use tare_engine::Error;
use tare_engine::spec::shown::quoted;

use crate::cli::Cli;

/// The first word that is neither an option nor the value of one; known also
/// for a line that does not parse.
pub fn command_of(args: &[OsString]) -> Option<&OsStr> {
    let mut words = args.iter().skip(1);
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("--state-root") => {
                words.next();
            }
            Some(option) if option.starts_with('-') => {}
            Some(_) | None => return Some(word),
        }
    }
    None
}

/// What `error` says, and whose help to read; a value that a parser refused
/// brings its own hint.
pub fn explain(error: &clap::Error, command: Option<&OsStr>) -> Error {
    if let Some(refused) = refused_value(error) {
        return refused;
    }
    let help = match command
        .and_then(|word| Cli::command().find_subcommand(word).map(|it| it.get_name().to_owned()))
    {
        Some(name) => format!("try 'tare {name} --help'"),
        None => "try 'tare --help'".to_owned(),
    };
    let hint = match suggestion(error) {
        Some(nearest) => format!("did you mean {nearest}? {help}"),
        None => help,
    };
    Error::bad_request(message(error)).with_hint(hint)
}

fn refused_value(error: &clap::Error) -> Option<Error> {
    let argument = text(error, ContextKind::InvalidArg)?;
    let reason: &Error = error.source()?.downcast_ref()?;
    let message = format!("bad value for {}", flag_of(&argument));
    let refused = Error::bad_request(message).caused_by(reason.to_string());
    Some(match reason.hint() {
        Some(hint) => refused.with_hint(hint),
        None => refused,
    })
}

fn message(error: &clap::Error) -> String {
    let argument = text(error, ContextKind::InvalidArg);
    match (error.kind(), argument) {
        (Clap::UnknownArgument, Some(argument)) if argument.starts_with('-') => {
            format!("there is no option {}", quoted(argument))
        }
        (Clap::UnknownArgument, Some(argument)) => {
            format!("{} is one argument too many", quoted(argument))
        }
        (Clap::ArgumentConflict, Some(argument)) => conflict(error, &argument),
        (Clap::InvalidValue, Some(argument)) => invalid_value(error, &argument),
        (Clap::MissingRequiredArgument, _) => missing(error),
        (Clap::InvalidSubcommand, _) => {
            let word = text(error, ContextKind::InvalidSubcommand).unwrap_or_default();
            format!("there is no command {}", quoted(word))
        }
        (Clap::MissingSubcommand | Clap::DisplayHelpOnMissingArgumentOrSubcommand, _) => {
            "no command is given".to_owned()
        }
        (Clap::InvalidUtf8, _) => "an option's value is not UTF-8 text".to_owned(),
        (_, _) => first_line(error),
    }
}

/// B024
fn conflict(error: &clap::Error, argument: &str) -> String {
    let flag = flag_of(argument);
    match error.get(ContextKind::PriorArg) {
        Some(ContextValue::String(prior)) if flag_of(prior) == flag => {
            format!("{flag} is given twice")
        }
        Some(ContextValue::String(prior)) => {
            format!("{flag} cannot be used with {}", flag_of(prior))
        }
        Some(ContextValue::Strings(priors)) => {
            let priors: Vec<_> = priors.iter().map(|prior| flag_of(prior)).collect();
            format!("{flag} cannot be used with {}", priors.join(", "))
        }
        Some(_) | None => format!("{flag} cannot be used here"),
    }
}

fn invalid_value(error: &clap::Error, argument: &str) -> String {
    let flag = flag_of(argument);
    let value = text(error, ContextKind::InvalidValue).unwrap_or_default();
    let known = match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(known)) => known.join(", "),
        Some(_) | None => String::new(),
    };
    match (value.is_empty(), known.is_empty()) {
        (true, true) => format!("{flag} needs a value"),
        (true, false) => format!("{flag} needs a value: one of {known}"),
        (false, true) => format!("bad value for {flag}: {}", quoted(value)),
        (false, false) => format!("bad value for {flag}: {} is not one of {known}", quoted(value)),
    }
}

fn missing(error: &clap::Error) -> String {
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(missing)) => {
            let missing: Vec<_> = missing.iter().map(|word| any_of(word)).collect();
            if missing == ["--detach"] {
                return "--lease, --keep and --retention need --detach".to_owned();
            }
            let verb = if missing.len() == 1 { "is" } else { "are" };
            format!("{} {verb} missing", missing.join(" and "))
        }
        Some(_) | None => first_line(error),
    }
}

/// `--memory or --pids` of `<--memory <SIZE>|--pids <N>>`, which is how clap
/// writes that one of them is needed.
fn any_of(word: &str) -> String {
    let mut flags = word.split("|--");
    let first = flags.next().map(flag_of).unwrap_or_default();
    let others = flags.map(|flag| format!("--{}", flag_of(flag)));
    let flags: Vec<String> = std::iter::once(first.to_owned()).chain(others).collect();
    flags.join(" or ")
}

fn suggestion(error: &clap::Error) -> Option<String> {
    [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue]
        .into_iter()
        .find_map(|kind| text(error, kind))
        .map(|nearest| flag_of(&nearest).to_owned())
}

/// The one text of this kind, or the first of several.
fn text(error: &clap::Error, kind: ContextKind) -> Option<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => texts.first().cloned(),
        Some(_) | None => None,
    }
}

/// `--memory` of `--memory <SIZE>`, `COMMAND` of `<COMMAND>...`.
fn flag_of(argument: &str) -> &str {
    let flag = argument.split(' ').next().unwrap_or(argument);
    flag.trim_end_matches("...").trim_matches(['<', '>', '[', ']'])
}

fn first_line(error: &clap::Error) -> String {
    let rendered = error.render().to_string();
    let line = rendered.lines().next().unwrap_or_default();
    line.trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::sentence;
    use clap::Parser;

    fn refusal(line: &[&str]) -> String {
        let args: Vec<OsString> = line.iter().map(OsString::from).collect();
        let error = Cli::try_parse_from(&args).unwrap_err();
        sentence(&explain(&error, command_of(&args)))
    }

    #[test]
    fn wrong_usage_is_one_line_with_the_way_to_help() {
        for (line, expected) in [
            (
                &["tare", "run", "--memroy", "1g", "true"][..],
                "there is no option '--memroy' (did you mean --memory? try 'tare run --help')",
            ),
            (
                &["tare", "run", "--memory", "1g", "--memory=2g", "true"],
                "--memory is given twice (try 'tare run --help')",
            ),
            (
                &["tare", "run", "-i", "-i", "true"],
                "--interactive is given twice (try 'tare run --help')",
            ),
            (&["tare", "run"], "COMMAND is missing (try 'tare run --help')"),
            (&["tare", "run", "--"], "COMMAND is missing (try 'tare run --help')"),
            (&["tare", "run", "--memory"], "--memory needs a value (try 'tare run --help')"),
            (
                &["tare", "run", "--net", "bridge", "true"],
                "bad value for --net: 'bridge' is not one of none, host (try 'tare run --help')",
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
                "there is no command 'rum' (did you mean run? try 'tare --help')",
            ),
            (&["tare"], "no command is given (try 'tare --help')"),
            (
                &["tare", "doctor", "x\n"],
                "'x\\n' is one argument too many (try 'tare doctor --help')",
            ),
        ] {
            assert_eq!(refusal(line), expected);
        }
    }

    #[test]
    fn the_commands_of_boxes_that_live_refuse_in_one_line_too() {
        for (line, expected) in [
            (
                &["tare", "run", "--lease", "1h", "true"][..],
                "--lease, --keep and --retention need --detach (try 'tare run --help')",
            ),
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
