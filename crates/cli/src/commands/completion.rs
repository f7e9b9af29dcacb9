//! `tare completion`: what a shell has to know to complete tare's commands.

use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::Shell as ClapShell;
use tare_engine::Error;

use crate::cli::Cli;
use crate::error::print_result;

/// Print a completion script for a shell
///
/// For bash: tare completion bash > ~/.local/share/bash-completion/completions/tare
#[derive(Debug, Args)]
pub struct CompletionArgs {
    /// The shell that will read the script
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

pub fn run(args: &CompletionArgs) -> Result<u8, Error> {
    print_result(&script(args.shell)).map(|()| 0)
}

fn script(shell: Shell) -> String {
    let shell = match shell {
        Shell::Bash => ClapShell::Bash,
        Shell::Zsh => ClapShell::Zsh,
        Shell::Fish => ClapShell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tare", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_learns_of_the_options() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = script(shell);
            assert!(script.contains("output-limit"), "{shell:?}");
        }
    }
}
