//! `tare run`: runs one command in a new box. Without `--detach` it leaves nothing behind.
//!
//! ```text
//! options -> spec -> box -> relay -> the one way out -> rest of the output -> exit code
//! ```
//!
//! Once the engine has made a box, every path leads through [`tare_engine::Session::end`]. tare takes
//! over signals before there is a box, so that no signal ends tare and leaves the box.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::time::Instant;

use rustix::process::{getgid, getuid};
use serde::Serialize;
use tare_engine::spec::User;
use tare_engine::spec::shown::quoted;
use tare_engine::{Cause, Circumstances, Context as _, Error, Receipt, Subject};
use tare_kernel::signals;

mod args;
mod detach;
mod spec;

pub use crate::commands::run::args::RunArgs;
use crate::commands::run::spec::{CallerContext, RunPlan};
use crate::context::{Context, Purpose};
use crate::exit::{self, ExitReport};

use crate::error::{print_json, print_note, to_json_line};
use crate::hint::words;
use crate::stdio::{self, Output, Relayed};

pub fn run(args: &RunArgs, context: &Context) -> Result<u8, Error> {
    let plan = spec::plan(args, &caller_context()?)?;
    let taken = stdio::take_over()?;
    signals::keep_ended_children();
    signals::fail_past_file_limit();
    let engine = context.engine(Purpose::CreateOrEnd)?;
    if plan.spec.machine.is_some() {
        engine.set_machines(context.machines()?);
    }
    if args.detached.detach {
        let engine = match &args.detached.cgroup_parent {
            Some(parent) => engine.below(parent.clone())?,
            None => engine,
        };
        return detach::start(&engine, args, &plan, &taken);
    }
    let receipt_file = open_receipt(args)?;
    let started = Instant::now();
    let mut session = engine.run(&plan.spec, plan.stdin)?;
    if args.labels.receipt.is_some() {
        session.want_receipt();
    }
    if !plan.quiet {
        session.notes().iter().for_each(|note| print_note(note));
    }
    let id = session.id().to_string();
    let mut relayed = stdio::relay(session, plan.relay, &taken)?;
    let receipt = relayed.receipt.take().filter(|_| args.labels.receipt.is_some());
    let code = conclude(id, relayed, (started, receipt.as_ref()), &plan)?;
    if let Some(receipt) = receipt {
        write_receipt(&receipt, receipt_file, args)?;
    }
    Ok(code)
}

/// Opens the file for the receipt before there is a box, so that a box without a place for its
/// receipt is not made. An earlier content stays until there is a receipt.
fn open_receipt(args: &RunArgs) -> Result<Option<File>, Error> {
    let Some(path) = args.labels.receipt.as_ref().filter(|path| !path.is_empty()) else {
        return Ok(None);
    };
    let opened = File::options().write(true).create(true).truncate(false).open(path);
    opened.map(Some).context(|| cannot_write(path))
}

/// Writes the receipt to its file. Without one, prints it on stderr, unless `--json` has printed it.
fn write_receipt(receipt: &Receipt, file: Option<File>, args: &RunArgs) -> Result<(), Error> {
    let line = to_json_line(receipt);
    match (file, &args.labels.receipt) {
        (Some(mut file), Some(path)) => {
            // A device or a pipe has no length.
            file.set_len(0).ok();
            file.write_all(line.as_bytes()).context(|| cannot_write(path))
        }
        (None, _) if !args.labels.json => {
            io::stderr().write_all(line.as_bytes()).context(|| "cannot print the receipt".into())
        }
        (_, _) => Ok(()),
    }
}

fn cannot_write(path: &OsStr) -> String {
    format!("cannot write the receipt to {}", quoted(path))
}

/// The object that `--json` prints.
#[derive(Debug, Serialize)]
struct RunReport {
    id: String,
    name: Option<String>,
    exit_code: u8,
    signal: Option<i32>,
    cause: Cause,
    sentence: String,
    oom: bool,
    truncated: bool,
    duration_ms: u64,
    stdout: String,
    stderr: String,
    receipt: Option<Receipt>,
}

/// Prints notes, errors and the JSON object, and returns the exit code.
fn conclude(
    id: String,
    relayed: Relayed,
    (started, receipt): (Instant, Option<&Receipt>),
    plan: &RunPlan,
) -> Result<u8, Error> {
    let Relayed { result, end, ended, ending, relay, ended_at, .. } = relayed;
    let output_bytes_max = plan.relay.output_bytes_max;
    let circumstances = Circumstances {
        evidence: ended.as_ref().map(|ended| &ended.evidence),
        by: ended.as_ref().and_then(|ended| ended.by.as_ref()),
        asked_before: ended.as_ref().and_then(|ended| ended.asked_before),
        timeout: plan.spec.timeout,
        output_bytes_max: Some(output_bytes_max),
        failure: ended.as_ref().and_then(|ended| ended.failure.as_deref()),
        ..Circumstances::of(end, Subject::Box)
    };
    let mut report = match result {
        Ok(()) => ExitReport::of(&circumstances).of_box(&id),
        Err(error) => ExitReport::failed(error).of_box(&id),
    };
    let truncated = relay.budget().is_passed();
    if truncated && end.cause != Cause::OutputLimit && !plan.quiet {
        print_note(&exit::truncated(output_bytes_max, relay.budget().dropped_bytes()));
    }
    report.print(plan.quiet);
    // Something failed after the command had ended.
    if let Some(error) = ending.err().or_else(|| relay.output_failure()) {
        report = ExitReport::failed(error);
        report.print(plan.quiet);
    }
    if plan.relay.output == Output::Keep {
        let duration_ms = ended_at.duration_since(started).as_millis();
        let [stdout, stderr] = relay.into_kept();
        print_json(&RunReport {
            id,
            name: plan.spec.name.as_ref().map(ToString::to_string),
            exit_code: report.code,
            signal: report.signal,
            cause: end.cause,
            sentence: circumstances.sentence().with_advice(words),
            oom: end.oom,
            truncated,
            duration_ms: u64::try_from(duration_ms).unwrap_or(u64::MAX),
            stdout: String::from_utf8_lossy(&stdout).into_owned(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
            receipt: receipt.cloned(),
        })?;
    }
    Ok(report.code)
}

fn caller_context() -> Result<CallerContext, Error> {
    let env = ["PATH", "HOME", "LANG", "TERM"].into_iter();
    Ok(CallerContext {
        current_dir: std::env::current_dir().ok(),
        user: User { uid: getuid().as_raw(), gid: getgid().as_raw() },
        window: stdio::callers_window()?,
        env: env.filter_map(|key| Some((key.into(), std::env::var_os(key)?))).collect(),
    })
}
