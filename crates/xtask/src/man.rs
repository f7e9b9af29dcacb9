//! Writes a manual page for tare and for each of its commands, from the help that the binary prints.
//!
//! `cargo xtask` does not link the product, so that checks do not wait for its compilation. So the
//! pages come from the text of `--help`, which has one form: headings at the margin that end with a
//! colon, and below them entries whose descriptions are indented further.

use crate::failure::{Context, Failure};
use crate::workspace::{Workspace, cargo};
use clap::Args;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Debug, Args)]
pub struct ManOptions {
    /// The directory that the pages are written to, such as /usr/local/share/man/man1
    directory: PathBuf,
}

/// Builds tare, and writes `tare.1` and `tare-COMMAND.1` for every command.
pub fn write(options: &ManOptions) -> Result<(), Failure> {
    let built = cargo().args(["build", "--quiet", "--locked", "--package", "tare"]).status();
    if !built.context(|| "cannot start cargo build".into())?.success() {
        return Err(Failure::new("cargo build failed, so there is no help to read"));
    }
    let tare = Workspace::alone()?.target_directory.join("debug/tare");
    fs::create_dir_all(&options.directory).context(|| "cannot make the directory".into())?;
    let pages = pages(&tare)?;
    for (name, page) in &pages {
        put(&options.directory, name, page)?;
    }
    println!("{} pages in {}", pages.len(), options.directory.display());
    Ok(())
}

/// The name and the text of each page: `tare`, `tare-COMMAND` for every command, and
/// `tare-vm-kernel` for a command of a command.
fn pages(tare: &Path) -> Result<Vec<(String, String)>, Failure> {
    let mut pages = Vec::new();
    add_pages(tare, &[], &mut pages)?;
    match pages.len() {
        1 => Err(Failure::new("tare --help lists no command, so no page was written")),
        _ => Ok(pages),
    }
}

fn add_pages(
    tare: &Path,
    words: &[&str],
    pages: &mut Vec<(String, String)>,
) -> Result<(), Failure> {
    let name = [&["tare"], words].concat().join("-");
    let overview = help(tare, words)?;
    let page = page(&name, &overview);
    pages.push((name, page));
    for command in commands(&overview) {
        add_pages(tare, &[words, &[command.as_str()]].concat(), pages)?;
    }
    Ok(())
}

fn help(tare: &Path, command: &[&str]) -> Result<String, Failure> {
    let output = Command::new(tare).args(command).arg("--help").output();
    let output = output.context(|| format!("cannot start {}", tare.display()))?;
    String::from_utf8(output.stdout).context(|| "help is not text".into())
}

fn put(directory: &Path, name: &str, page: &str) -> Result<(), Failure> {
    let path = directory.join(format!("{name}.1"));
    fs::write(&path, page).context(|| format!("cannot write {}", path.display()))
}

/// The names below the heading `Commands:`.
fn commands(overview: &str) -> Vec<String> {
    let listed = overview.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| !line.is_empty());
    let names = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// One page in the format of man(7).
fn page(name: &str, help: &str) -> String {
    let mut lines = help.lines();
    let about = lines.next().unwrap_or_default();
    let version = env!("CARGO_PKG_VERSION");
    let mut page =
        format!(".TH {} 1 \"\" \"tare {version}\" \"User Commands\"\n", name.to_uppercase());
    let _ = write!(page, ".SH NAME\n{} \\- {}\n", escaped(name), escaped(about));
    if !lines.clone().find(|line| !line.is_empty()).is_some_and(|line| line.starts_with("Usage: "))
    {
        page.push_str(".SH DESCRIPTION\n");
    }
    let mut is_example = false;
    for line in lines {
        match line.strip_prefix("Usage: ") {
            Some(usage) => {
                let _ = write!(page, ".SH SYNOPSIS\n{}\n", escaped(usage));
            }
            None if is_heading(line) => {
                if is_example {
                    page.push_str(".fi\n");
                }
                is_example = line == "Examples:";
                let _ = writeln!(page, ".SH {}", line.trim_end_matches(':').to_uppercase());
                if is_example {
                    page.push_str(".nf\n");
                }
            }
            None if is_example => {
                let _ = writeln!(page, "{}", escaped(line));
            }
            None => page.push_str(&entry(line)),
        }
    }
    if is_example {
        page.push_str(".fi\n");
    }
    page
}

fn is_heading(line: &str) -> bool {
    line.ends_with(':') && line.starts_with(|first: char| first.is_ascii_uppercase())
}

/// A line outside of examples. An entry, which is indented less than its description, becomes a
/// tagged paragraph.
fn entry(line: &str) -> String {
    let text = line.trim_start();
    let indent = line.len() - text.len();
    match (indent, text.split_once("  ")) {
        (_, None) if text.is_empty() => ".PP\n".to_owned(),
        (1..8, Some((tag, about))) => {
            format!(".TP\n.B {}\n{}\n", escaped(tag), escaped(about.trim_start()))
        }
        (1..8, None) => format!(".TP\n.B {}\n", escaped(text)),
        (_, _) => format!("{}\n", escaped(text)),
    }
}

/// The text without what roff would interpret: backslashes, hyphens, and requests at the start of a
/// line.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELP: &str = "\
Stop boxes

Waits for a grace.

Usage: tare stop [OPTIONS] <BOX>...

Options:
  -t, --time <DURATION>
          The grace
          [default: 10s]

Examples:
  tare stop web
  'quoted'
";

    #[test]
    fn a_page_has_the_sections_of_the_help() {
        let page = page("tare-stop", HELP);
        for part in [
            ".TH TARE-STOP 1",
            ".SH NAME\ntare\\-stop \\- Stop boxes\n",
            ".SH DESCRIPTION\n.PP\nWaits for a grace.\n",
            ".SH SYNOPSIS\ntare stop [OPTIONS] <BOX>...\n",
            ".SH OPTIONS\n.TP\n.B \\-t, \\-\\-time <DURATION>\nThe grace\n[default: 10s]\n",
            ".SH EXAMPLES\n.nf\n  tare stop web\n  'quoted'\n.fi\n",
        ] {
            assert!(page.contains(part), "{part}\nis missing in:\n{page}");
        }
    }

    /// The binary that was built beside this test.
    fn built() -> Option<PathBuf> {
        let test = std::env::current_exe().ok()?;
        Some(test.parent()?.parent()?.join("tare")).filter(|tare| tare.exists())
    }

    /// The commands that a shell completes, without other names for them.
    fn completed(tare: &Path) -> Vec<String> {
        let script = Command::new(tare).args(["completion", "bash"]).output().expect("it starts");
        let script = String::from_utf8(script.stdout).expect("text");
        let lines = script.lines().map(str::trim);
        let names = lines.filter_map(|line| line.strip_prefix("tare,")?.strip_suffix(')'));
        let overview = help(tare, &[]).expect("it prints its help");
        let is_own = |name: &&str| !overview.contains(&format!("[alias: {name}]"));
        names.filter(is_own).map(str::to_owned).collect()
    }

    #[test]
    fn every_command_of_the_binary_has_a_page_and_every_option_of_its_help_is_there() {
        let Some(tare) = built() else {
            eprintln!("SKIPPED: tare is not built");
            return;
        };
        let pages = pages(&tare).expect("the binary prints its help");
        let page_of = |name: &str| {
            let found = pages.iter().find(|(page, _)| page == name);
            found.map(|(_, text)| text.replace("\\-", "-")).unwrap_or_else(|| panic!("{name}"))
        };
        let commands = completed(&tare);
        assert!(commands.len() > 20, "{commands:?}");
        for command in &commands {
            let page = page_of(&format!("tare-{command}"));
            let help = help(&tare, &[command]).expect("it prints its help");
            let is_entry = |line: &&str| line.starts_with("  -") || line.starts_with("      --");
            for entry in help.lines().filter(is_entry).map(str::trim_start) {
                let tag = entry.split("  ").next().unwrap_or(entry);
                assert!(page.contains(&format!("\n.B {tag}\n")), "{command}: {tag}\n{page}");
            }
            assert!(page_of("tare").contains(&format!("\n.B {command}\n")), "{command}");
        }
    }

    #[test]
    fn every_command_of_the_overview_is_found() {
        let overview = "Runs\n\nCommands:\n  run   Run a command\n  ls    List [aliases: ps]\n           more\n\nOptions:\n  -h  Help\n";
        assert_eq!(commands(overview), ["run", "ls"]);
    }
}
