//! `tare completion`: scripts that complete tare's command line, and the names of boxes in it.
//!
//! clap generates the scripts. They know the commands and options, but not the boxes of this
//! host: each script gets a few lines that ask `tare completion --boxes` for them.

use clap::{Args, ValueEnum, ValueHint};
use clap_complete::Shell as ClapShell;
use tare_engine::Error;

use crate::context::{Context, Purpose};
use crate::error::print_result;
use crate::exit::DONE;

/// Print a completion script for a shell
///
/// For bash: tare completion bash > ~/.local/share/bash-completion/completions/tare
#[derive(Debug, Args)]
pub struct CompletionArgs {
    /// The shell that reads the script
    #[arg(value_enum, required_unless_present = "boxes")]
    shell: Option<Shell>,

    /// Print the name of each box, or its id if no name is its alone; the scripts call this
    #[arg(long, hide = true, conflicts_with = "shell")]
    boxes: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// `tare` is the whole command line, with every command.
pub fn run(args: &CompletionArgs, tare: clap::Command, context: &Context) -> Result<u8, Error> {
    let text = match args.shell {
        Some(shell) => script(shell, tare),
        None => boxes(context)?,
    };
    print_result(&text)?;
    Ok(DONE)
}

fn boxes(context: &Context) -> Result<String, Error> {
    let boxes = context.engine(Purpose::Look)?.list()?;
    let is_unique = |name: &&String| {
        let same = boxes.iter().filter(|other| other.name.as_ref() == Some(*name));
        same.count() == 1
    };
    let shown = boxes.iter().map(|status| match status.name.as_ref().filter(is_unique) {
        Some(name) => format!("{name}\n"),
        None => format!("{}\n", status.id),
    });
    Ok(shown.collect())
}

fn script(shell: Shell, mut tare: clap::Command) -> String {
    tare.build();
    let takes_boxes = |command: &&clap::Command| command.get_positionals().any(is_box);
    let commands = tare.get_subcommands().filter(takes_boxes);
    let commands: Vec<String> = commands.map(|it| it.get_name().to_owned()).collect();
    match shell {
        Shell::Bash => {
            generated(ClapShell::Bash, tare) + &BASH.replace("COMMANDS", &commands.join("|"))
        }
        Shell::Fish => {
            let lines = commands.iter().map(|it| FISH.replace("COMMAND", it));
            generated(ClapShell::Fish, tare) + &lines.collect::<String>() + FISH_CP
        }
        Shell::Zsh => {
            // In the script, a value hint becomes the function that completes the argument. tare
            // uses these two hints for nothing else, so our functions can replace theirs.
            let hinted = tare.mut_subcommands(|command| {
                let is_cp = command.get_name() == "cp";
                command.mut_args(|argument| match (is_cp, is_box(&argument)) {
                    (true, _) if argument.is_positional() => argument.value_hint(ValueHint::Url),
                    (_, true) => argument.value_hint(ValueHint::Hostname),
                    (_, false) => argument,
                })
            });
            let script = generated(ClapShell::Zsh, hinted);
            let script = script.replace(":_hosts'", ":_tare_boxes'");
            let script = script.replace(":_urls'", ":_tare_places'");
            script.replacen("#compdef tare\n", &format!("#compdef tare\n{ZSH}"), 1)
        }
    }
}

/// Whether an argument is the id or name of a box.
fn is_box(argument: &clap::Arg) -> bool {
    let names = argument.get_value_names().unwrap_or_default();
    argument.is_positional() && names.iter().any(|it| it.as_str() == "BOX")
}

fn generated(shell: ClapShell, mut tare: clap::Command) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut tare, "tare", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Adds boxes to the completions of clap's function. `cp` takes `BOX:PATH`.
const BASH: &str = r#"
_tare_and_boxes() {
    _tare "$@"
    local word=${COMP_WORDS[COMP_CWORD]} command= i
    [[ $word != -* ]] || return 0
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "${COMP_WORDS[i]}" in
            --state-root) ((i++)) ;;
            -*) ;;
            *) command=${COMP_WORDS[i]}; break ;;
        esac
    done
    case "$command" in
        COMMANDS)
            COMPREPLY=($(compgen -W "$(tare completion --boxes 2>/dev/null)" -- "$word"))
            ;;
        cp)
            COMPREPLY=($(compgen -S : -W "$(tare completion --boxes 2>/dev/null)" -- "$word"))
            [[ ${#COMPREPLY[@]} = 0 ]] || compopt -o nospace 2>/dev/null
            COMPREPLY+=($(compgen -f -- "$word"))
            ;;
    esac
}
complete -F _tare_and_boxes -o bashdefault -o default tare
"#;

const ZSH: &str = r#"
_tare_boxes() {
    local -a boxes
    boxes=(${(f)"$(tare completion --boxes 2>/dev/null)"})
    compadd -a boxes
}
_tare_places() {
    local -a boxes
    boxes=(${(f)"$(tare completion --boxes 2>/dev/null)"})
    compadd -S : -a boxes
    _files
}
"#;

const FISH: &str = r#"complete -c tare -n "__fish_tare_using_subcommand COMMAND" -f -a "(tare completion --boxes 2>/dev/null)"
"#;
const FISH_CP: &str = r#"complete -c tare -n "__fish_tare_using_subcommand cp" -a "(tare completion --boxes 2>/dev/null | string replace -r '$' ':')"
"#;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    fn text(shell: Shell) -> String {
        script(shell, Cli::command())
    }

    #[test]
    fn every_script_has_the_options_and_asks_for_boxes() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = text(shell);
            assert!(script.contains("output-limit"), "{shell:?}");
            assert!(script.contains("tare completion --boxes"), "{shell:?}");
        }
    }

    #[test]
    fn boxes_are_offered_where_a_command_takes_a_box() {
        let bash = text(Shell::Bash);
        let commands = bash.lines().find(|line| line.contains("|exec|") || line.contains("exec|"));
        let commands = commands.unwrap().trim();
        for command in ["attach", "exec", "explain", "kill", "logs", "rm", "stop", "wait"] {
            assert!(commands.trim_end_matches(')').split('|').any(|it| it == command), "{command}");
        }
        let zsh = text(Shell::Zsh);
        let lines: Vec<_> = zsh.lines().filter(|line| line.ends_with(":_tare_boxes' \\")).collect();
        assert!(lines.len() >= 12, "{lines:?}");
        let places = zsh.lines().filter(|line| line.ends_with(":_tare_places' \\"));
        assert_eq!(places.count(), 2);
        assert!(!zsh.contains(":_hosts'") && !zsh.contains(":_urls'"));
        let fish = text(Shell::Fish);
        assert!(fish.contains("using_subcommand exec\" -f -a \"(tare completion --boxes"));
    }
}
