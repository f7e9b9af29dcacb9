//! `tare audit`: proves that records and host agree, or lists the differences.

use std::time::Duration;

use clap::Args;
use tare_engine::spec::shown::{escaped, quoted};
use tare_engine::{
    Audit, AuditedBox, BoxId, Duty, Error, Finding, FindingKind, KeptBy, KeptFiles, RemovedSince,
    Timestamp,
};

use crate::context::{Context, Purpose};
use crate::error::{print_json, print_result};
use crate::exit::{DONE, FAILED};
use crate::hint::words;
use crate::output::format::{self, plural};
use crate::output::table::{self, Column};

const EXAMPLES: &str = "\
Examples:
  tare audit
  tare audit --wait && echo clean
  tare audit --json | jq '.boxes[] | {id, descriptors, ports}'
  tare audit --since 24h --json | jq '.removed[] | select(.receipt.complete | not)'";

const COLUMNS: [Column; 13] = [
    Column::whole("ID"),
    Column::cut("NAME", 8),
    Column::whole("STATE"),
    Column::whole("PROCS"),
    Column::whole("THREADS"),
    Column::whole("FDS"),
    Column::whole("MEMORY"),
    Column::whole("CGROUPS"),
    Column::whole("NS"),
    Column::whole("MOUNTS"),
    Column::whole("PORTS"),
    Column::whole("SCRATCH"),
    Column::whole("KEPT BY"),
];

/// Prove that nothing is left: compare records and host
///
/// Lists every box with what it holds on the host right now: processes, threads,
/// descriptors, memory, cgroup directories, namespaces, mounts, ports of the host's
/// network, scratch bytes, and what keeps it there. The table counts them, --json names
/// them and counts descriptors by kind.
///
/// Then it lists the differences: objects on the host without a record, objects that a
/// record promises and the host does not have, and what 'tare sweep' does about each.
/// Files that 'tare serve' keeps for its clients are counted, and are not a difference.
/// Changes nothing. Exits with 0 if there is no difference, else with 1. docs/audit.md says what
/// each line proves, and by which kernel object.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct AuditArgs {
    /// Print it as one line of JSON
    #[arg(long)]
    json: bool,

    /// Also list the boxes that were removed since this time, with their receipts in
    /// --json: 10m (ago), or 2026-11-15T22:09:05Z
    #[arg(
        long,
        value_name = "TIME",
        value_parser = Timestamp::parse_or_ago,
        allow_hyphen_values = true,
    )]
    since: Option<Timestamp>,

    /// Repeat the audit until records and host agree; up to ten seconds
    #[arg(long)]
    wait: bool,
}

pub fn run(args: &AuditArgs, context: &Context) -> Result<u8, Error> {
    let engine = context.engine(Purpose::Look)?;
    let mut audit = if args.wait { engine.audit_until_clean()? } else { engine.audit()? };
    audit.removed = args.since.map(|since| engine.removed_since(since)).transpose()?;
    if args.json {
        print_json(&audit)?
    } else {
        print_result(&as_text(&audit))?
    }
    Ok(if audit.clean { DONE } else { FAILED })
}

fn as_text(audit: &Audit) -> String {
    let mut text = String::new();
    if !audit.boxes.is_empty() {
        let rows: Vec<_> = audit.boxes.iter().map(row).collect();
        text += &table::render(&COLUMNS, &rows, table::columns_of_stdout());
        text.push('\n');
    }
    text += &section("On the host without a record:", &audit.orphans);
    text += &section("In a record, but not so on the host:", &audit.lost);
    text += &stuck(audit);
    text += &kept_files(audit.kept_files.as_ref());
    text += &audit.removed.as_deref().map(removed).unwrap_or_default();
    text += &verdict(audit);
    text
}

fn section(title: &str, found: &[Finding]) -> String {
    let line = |finding: &Finding| {
        let remedy = finding.remedy().map(|it| format!(" ({})", words(&it))).unwrap_or_default();
        let action = match finding.duty {
            Duty::Leave => "leaves it alone",
            Duty::Remove(_) => "removes it",
            Duty::Finish(_) => "removes the rest and records the end",
            Duty::End(_) => "ends it",
        };
        format!("  {}; 'tare sweep' {action}{}\n", escaped(&finding.text), escaped(&remedy))
    };
    let lines: String = found.iter().map(line).collect();
    if lines.is_empty() { lines } else { format!("{title}\n{lines}") }
}

/// Why stuck boxes still exist, without those whose damaged record was listed already.
fn stuck(audit: &Audit) -> String {
    let is_said = |id: &BoxId| {
        let mut said = audit.lost.iter().filter(|it| it.id.as_ref() == Some(id));
        said.any(|it| matches!(it.kind, FindingKind::Record { .. }))
    };
    let stuck = audit.boxes.iter().filter(|one| !is_said(&one.id));
    let line = |one: &AuditedBox| Some(format!("  {}\n", escaped(one.stuck_on.as_ref()?)));
    let lines: String = stuck.filter_map(line).collect();
    if lines.is_empty() { lines } else { format!("Stuck; later commands try again:\n{lines}") }
}

/// The files that stay although no box needs them, and why.
fn kept_files(kept: Option<&KeptFiles>) -> String {
    let Some(KeptFiles { directory, files, bytes, newest_at }) = kept else {
        return String::new();
    };
    let files = plural(usize::try_from(*files).unwrap_or(usize::MAX), "file", "files");
    let (size, directory) = (format::size(Some(*bytes)), quoted(directory));
    format!(
        "Kept for clients of 'tare serve': {files}, {size}, in {directory}; the newest came at \
         {newest_at}. A server removes each one when it expires ([files] ttl, by default a day).\n"
    )
}

/// The boxes that were removed, and whether their receipts are complete.
fn removed(boxes: &[RemovedSince]) -> String {
    let line = |one: &RemovedSince| {
        let name = one.name.as_ref().map(|name| format!(" ({})", escaped(name)));
        let receipt = match one.receipt.as_ref().map(|receipt| receipt.complete) {
            Some(true) => "everything seen gone",
            Some(false) => "not everything was seen gone: see 'tare receipt'",
            None => "no receipt",
        };
        let name = name.unwrap_or_default();
        format!("  {}{name} at {}; {receipt}\n", one.id, one.removed_at)
    };
    let count = plural(boxes.len(), "box", "boxes");
    format!("Removed since then: {count}\n{}", boxes.iter().map(line).collect::<String>())
}

fn verdict(audit: &Audit) -> String {
    let boxes = plural(audit.boxes.len(), "box", "boxes");
    if audit.clean {
        return format!(
            "{boxes}. Records and host agree: nothing is left over, nothing is missing.\n"
        );
    }
    let differences = plural(audit.orphans.len() + audit.lost.len(), "difference", "differences");
    let mut findings = audit.orphans.iter().chain(&audit.lost);
    let is_swept = findings.any(|it| it.duty != Duty::Leave);
    let remedy = if is_swept { " Run 'tare sweep' to clean up." } else { "" };
    format!("{boxes}, {differences}.{remedy}\n")
}

fn row(of: &AuditedBox) -> [String; 13] {
    let held = &of.held;
    let length = |count: usize| count.to_string();
    let descriptors = held.processes.iter().map(|process| process.descriptors);
    [
        of.id.to_string(),
        format::text(of.name.as_deref()),
        of.state.to_string(),
        length(held.processes.len()),
        held.threads.to_string(),
        format::count(descriptors.sum()),
        format::size(held.memory_bytes),
        length(held.cgroups.len()),
        format::count(held.namespaces.as_ref().map(|all| all.len() as u64)),
        format::count(held.mounts),
        length(held.ports.len()),
        format::size(held.scratch_bytes),
        kept_by(&of.kept_by),
    ]
}

fn kept_by(of: &KeptBy) -> String {
    match of {
        KeptBy::Keeper { pid } => format!("process {pid}"),
        KeptBy::Processes { pids } => plural(pids.len(), "process", "processes"),
        KeptBy::Retention { until } => match until.since(Timestamp::now()) {
            Duration::ZERO => "retention, until a sweep".to_owned(),
            left => format!("retention, {} left", format::time_left(left)),
        },
        KeptBy::Nothing => format::EMPTY_CELL.to_owned(),
    }
}
