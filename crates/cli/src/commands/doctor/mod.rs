//! `tare doctor`: checks what this host can do, and says what tare does about the rest.
//!
//! One line for each thing: what it is, whether the host has it, and what tare does
//! about it. Whether boxes can be made is not read from those: doctor makes one.

use clap::Args;
use serde::Serialize;
use tare_engine::Error;

use crate::commands::doctor::host::Host;
use crate::context::Context;
use crate::error::{print_json, print_result};

mod cgroups;
mod hardening;
mod host;
mod requirements;
mod trial;

const NO_BOXES: u8 = 1;

/// Check what this host can do, and say what tare does about each missing feature
///
/// Creates one box and ends it, within 10 s. Exits with 0 if that succeeded, otherwise with 1. Changes
/// nothing else on the host.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Ok,
    Missing,
    Warn,
}

#[derive(Debug, Serialize)]
pub struct Check {
    what: String,
    status: Status,
    found: String,
    /// What tare does about it.
    tare: String,
    prevents_boxes: bool,
}

impl Check {
    fn new(what: &str, status: Status, found: impl Into<String>, tare: &str) -> Self {
        Self {
            what: what.to_owned(),
            status,
            found: found.into(),
            tare: tare.to_owned(),
            prevents_boxes: false,
        }
    }
}

#[derive(Debug, Serialize)]
struct Diagnosis {
    can_make_boxes: bool,
    checks: Vec<Check>,
}

pub fn run(args: &DoctorArgs, context: &Context) -> Result<u8, Error> {
    let diagnosis = diagnose(&Host::new("/"), trial::check(context));
    if args.json {
        print_json(&diagnosis)?
    } else {
        print_result(&table(&diagnosis))?
    }
    Ok(if diagnosis.can_make_boxes { 0 } else { NO_BOXES })
}

/// `trial`: how making a box went.
fn diagnose(host: &Host, trial: Check) -> Diagnosis {
    let can_make_boxes = !trial.prevents_boxes;
    let mut checks = requirements::checks(host);
    checks.extend(hardening::checks(host));
    checks.push(trial);
    Diagnosis { can_make_boxes, checks }
}

fn table(diagnosis: &Diagnosis) -> String {
    let checks = &diagnosis.checks;
    let width = checks.iter().map(|check| check.what.len()).max().unwrap_or(0);
    let mut text = String::new();
    for check in checks {
        let status = match check.status {
            Status::Ok => "ok",
            Status::Missing => "missing",
            Status::Warn => "warn",
        };
        let Check { what, found, tare, .. } = check;
        text += &format!("{what:width$}  {status:7}  {found}; {tare}\n");
    }
    text + if diagnosis.can_make_boxes {
        "\nBoxes can be made here.\n"
    } else {
        "\nNo box can be made here: the last line above says why.\n"
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    /// A directory with the files of a host; gone when it is dropped.
    pub struct FakeHost {
        pub host: Host,
        root: PathBuf,
    }

    impl FakeHost {
        pub fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let directory = format!("tare-host-{}-{name}", std::process::id());
            let root = std::env::temp_dir().join(directory);
            fs::create_dir(&root).unwrap();
            for (path, content) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, content).unwrap();
            }
            let host = Host::new(&root);
            Self { host, root }
        }
    }

    impl Drop for FakeHost {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.root);
        }
    }

    /// A box that was not made, or was.
    fn trial(is_made: bool) -> Check {
        Check { prevents_boxes: !is_made, ..Check::new("a box", Status::Ok, "found", "tare") }
    }

    #[test]
    fn only_the_box_itself_decides_whether_boxes_can_be_made() {
        let empty = FakeHost::new("empty", &[]);
        let diagnosis = diagnose(&empty.host, trial(true));
        let text = table(&diagnosis);
        assert!(text.contains("kernel") && text.contains("missing"));
        assert!(text.ends_with("\nBoxes can be made here.\n"));
        assert_eq!(text.lines().count(), diagnosis.checks.len() + 2);
        let text = table(&diagnose(&Host::new("/"), trial(false)));
        assert!(text.ends_with("No box can be made here: the last line above says why.\n"));
    }

    #[test]
    fn the_json_says_the_same() {
        let diagnosis = diagnose(&Host::new("/"), trial(true));
        let value: serde_json::Value = serde_json::to_value(&diagnosis).unwrap();
        assert_eq!(value["can_make_boxes"], diagnosis.can_make_boxes);
        assert_eq!(value["checks"].as_array().unwrap().len(), diagnosis.checks.len());
        assert_eq!(value["checks"][0]["what"], "kernel");
    }
}
