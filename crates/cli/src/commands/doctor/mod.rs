//! `tare doctor`: checks what this host can do, and says what tare does about the rest.
//!
//! Each check is a row of a table: a title, and a function that says what it found and what tare
//! does about it. No row decides whether boxes can be made. Doctor makes one instead.

use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use tare_engine::spec::shown::escaped;
use tare_engine::{Error, Host as EngineHost};

use self::host::HostFiles;
use self::machines::{Machines, Summary};
use self::trial::Trial;
use crate::context::Context;
use crate::error::{cause_and_hint, one_line, print_json, print_result};

mod hardening;
mod host;
mod machines;
mod requirements;
mod trial;

const NO_BOXES: u8 = 1;
/// For everything. The boxes take most of it if something does not answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// Check what this host can do, and say what tare does about each missing feature
///
/// Creates a box and ends it, within 10 s. Where the kernel cannot enforce all limits, creates
/// one box for each of them, to find out which ones it can. Exits with 0 if a box could be
/// created, otherwise with 1. Changes nothing else on the host.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    Missing,
    Warn,
}

/// Result of a check, and what tare does about it.
struct Answer {
    status: Status,
    found: String,
    tare: String,
}

fn ok(found: impl Into<String>, tare: impl Into<String>) -> Answer {
    Answer { status: Status::Ok, found: found.into(), tare: tare.into() }
}

fn warn(found: impl Into<String>, tare: impl Into<String>) -> Answer {
    Answer { status: Status::Warn, found: found.into(), tare: tare.into() }
}

fn missing(found: impl Into<String>, tare: impl Into<String>) -> Answer {
    Answer { status: Status::Missing, found: found.into(), tare: tare.into() }
}

/// A title, and a check that returns `None` if there is nothing to say.
type Row = (&'static str, fn(&Probe) -> Option<Answer>);

/// The facts that the checks look at.
struct Probe {
    files: HostFiles,
    engine: EngineHost,
    trial: Trial,
    machines: Machines,
}

#[derive(Debug, Serialize)]
struct Check {
    what: &'static str,
    status: Status,
    found: String,
    /// The action of tare after this result.
    tare: String,
    prevents_boxes: bool,
}

#[derive(Debug, Serialize)]
struct Diagnosis {
    can_make_boxes: bool,
    checks: Vec<Check>,
    vm: Summary,
}

pub fn run(args: &DoctorArgs, context: &Context) -> Result<u8, Error> {
    let until = Instant::now() + ANSWERS_WITHIN;
    let diagnosis = diagnose(&Probe {
        files: HostFiles::below("/"),
        engine: EngineHost::probe(),
        trial: trial::make_boxes(context),
        machines: Machines::look(context, until),
    });
    if args.json {
        print_json(&diagnosis)?
    } else {
        print_result(&table(&diagnosis))?
    }
    Ok(if diagnosis.can_make_boxes { 0 } else { NO_BOXES })
}

fn diagnose(probe: &Probe) -> Diagnosis {
    let can_make_boxes = probe.trial.made.is_ok();
    let rows = answers(&requirements::ROWS, probe).chain(hardening::answers(probe));
    let rows = rows.chain(answers(&machines::ROWS, probe));
    let check = |(what, answer): (_, Answer), prevents_boxes| {
        let Answer { status, found, tare } = answer;
        Check { what, status, found, tare, prevents_boxes }
    };
    let mut checks: Vec<Check> = rows.map(|row| check(row, false)).collect();
    checks.push(check(("a box", a_box(&probe.trial)), !can_make_boxes));
    Diagnosis { can_make_boxes, checks, vm: probe.machines.summary() }
}

fn answers(rows: &[Row], probe: &Probe) -> impl Iterator<Item = (&'static str, Answer)> {
    rows.iter().filter_map(|(what, check)| Some((*what, check(probe)?)))
}

fn a_box(trial: &Trial) -> Answer {
    match &trial.made {
        Ok(()) => ok("made and ended", "runs commands in it"),
        Err(error) => {
            let (found, hint) = cause_and_hint(error);
            missing(one_line(&found), hint.unwrap_or_else(|| "see the lines above".to_owned()))
        }
    }
}

fn table(diagnosis: &Diagnosis) -> String {
    let checks = &diagnosis.checks;
    let width = checks.iter().map(|check| check.what.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Check { what, status, found, tare, .. } in checks {
        let status = match status {
            Status::Ok => "ok",
            Status::Missing => "missing",
            Status::Warn => "warn",
        };
        let tare = if tare.is_empty() { String::new() } else { format!("; {}", escaped(tare)) };
        text += &format!("{what:width$}  {status:7}  {}{tare}\n", escaped(found));
    }
    text + if diagnosis.can_make_boxes {
        "\nBoxes can be made here.\n"
    } else {
        "\nNo box can be made here: the last line above says why.\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tare_harness::TemporaryDirectory;
    use tare_kernel::kvm::Kvm;

    /// Calls `check` with a host that has only these files, and on which a box can be made.
    pub fn on_host<T>(files: &[(&str, &str)], check: impl FnOnce(&mut Probe) -> T) -> T {
        let directory = TemporaryDirectory::new();
        for (path, content) in files {
            std::fs::create_dir_all(directory.join(path).parent().unwrap()).unwrap();
            directory.write(path, content);
        }
        let trial = Trial { made: Ok(()), limited: Vec::new(), pids: Vec::new() };
        let files = HostFiles::below(directory.path());
        let no_monitor = Err(Error::failed("there is no monitor"));
        let machines = Machines { monitor: no_monitor, kvm: Kvm::Absent, kernel: Ok(None) };
        check(&mut Probe { files, engine: EngineHost::probe(), trial, machines })
    }

    #[test]
    fn only_the_box_itself_decides_whether_boxes_can_be_made() {
        on_host(&[], |probe| {
            let diagnosis = diagnose(probe);
            let text = table(&diagnosis);
            assert!(text.contains("kernel") && text.contains("missing"));
            assert!(text.ends_with("\nBoxes can be made here.\n"));
            assert_eq!(text.lines().count(), diagnosis.checks.len() + 2);
            assert!(diagnosis.checks.iter().all(|it| !it.found.is_empty() && !it.prevents_boxes));
            probe.trial.made = Err(Error::failed("cannot make the record"));
            let diagnosis = diagnose(probe);
            let text = table(&diagnosis);
            assert!(text.ends_with("No box can be made here: the last line above says why.\n"));
            assert!(diagnosis.checks.last().unwrap().prevents_boxes);
        });
    }

    #[test]
    fn the_json_says_the_same() {
        let diagnosis = on_host(&[], |probe| diagnose(probe));
        let value: serde_json::Value = serde_json::to_value(&diagnosis).unwrap();
        assert_eq!(value["can_make_boxes"], diagnosis.can_make_boxes);
        assert_eq!(value["checks"].as_array().unwrap().len(), diagnosis.checks.len());
        assert_eq!(value["checks"][0]["what"], "kernel");
    }
}
