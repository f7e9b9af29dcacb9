//! Where the time of one command goes, as strace sees it.
//!
//! tare carries no instruments of its own. strace makes every call dearer by
//! about the same, so the figures rank calls; they do not add up to a run.

use super::launch::{Ending, Launch, Life, Purpose, Starter};
use crate::failure::{Context, Failure};
use std::fs;
use std::path::Path;

/// How many of the slowest calls are shown, and how much of each.
const SLOWEST_SHOWN: usize = 25;
const CALL_CHARS_MAX: usize = 100;

/// Prints the sum per call and the slowest single calls of one run.
pub fn perform(launch: &Launch, directory: &Path) -> Result<(), Failure> {
    println!("calls of all processes, by time spent in them\n");
    println!("{}", traced(launch, directory, &["-c", "-S", "time"])?);
    println!("slowest single calls: seconds inside the call, process, call\n");
    // -T rather than -r: the time of a call, not the time since another
    // process's call happened to be printed.
    let trace = traced(launch, directory, &["-T"])?;
    for call in slowest(&trace, SLOWEST_SHOWN) {
        println!("{:10.6}  {}", call.seconds, call.text);
    }
    Ok(())
}

fn traced(launch: &Launch, directory: &Path, options: &[&str]) -> Result<String, Failure> {
    let path = directory.join("strace");
    let output = path.to_string_lossy();
    let words = ["strace", "-f", "-o", &output].into_iter().chain(options.iter().copied());
    let command =
        [launch.program.as_str()].into_iter().chain(launch.arguments.iter().map(String::as_str));
    let mut strace = Launch::new(words.chain(["--"]).chain(command));
    strace.environment.clone_from(&launch.environment);
    let life = Starter::Here.start(&strace, Purpose::Listen).map_err(Failure::new)?;
    if life.ending != Ending::Exited(0) {
        let Life { ending, complaint, .. } = life;
        return Err(Failure::new(format!("strace: {ending}: {complaint}")));
    }
    fs::read_to_string(&path).context(|| "cannot read the trace".into())
}

#[derive(Debug, PartialEq)]
struct Call {
    seconds: f64,
    text: String,
}

/// The calls that took longest, of lines such as `412 wait4(...) = 7 <0.000123>`.
fn slowest(trace: &str, shown: usize) -> Vec<Call> {
    let mut calls: Vec<Call> = trace.lines().filter_map(parse).collect();
    calls.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
    calls.truncate(shown);
    calls
}

fn parse(line: &str) -> Option<Call> {
    let (call, seconds) = line.strip_suffix('>')?.rsplit_once(" <")?;
    let text = match call.char_indices().nth(CALL_CHARS_MAX) {
        Some((end, _)) => format!("{}...", &call[..end]),
        None => call.to_owned(),
    };
    Some(Call { seconds: seconds.parse().ok()?, text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_calls_come_first_and_other_lines_are_skipped() {
        let trace = "\
7 read(3, \"x <1>\", 5) = 5 <0.000010>
7 wait4(-1, <unfinished ...>
8 <... clone3 resumed>) = 9 <0.002000>
8 +++ exited with 0 +++
8 mount(\"/usr\", \"usr\") = 0 <0.000300>";
        let calls = slowest(trace, 2);
        assert_eq!(calls[0], Call { seconds: 0.002, text: "8 <... clone3 resumed>) = 9".into() });
        assert_eq!(calls[1].seconds, 0.0003);
        assert_eq!(calls.len(), 2);
    }

    #[test]
    fn a_long_call_is_cut_at_a_character() {
        let call = parse(&format!("7 write(1, \"{}\") = 1 <0.5>", "é".repeat(300))).unwrap();
        assert_eq!(call.text.chars().count(), CALL_CHARS_MAX + 3);
    }
}
