//! `tare receipt`: shows what a removed box had held, and when tare saw each object gone.

use clap::Args;
use tare_engine::spec::shown::escaped;
use tare_engine::{Error, HeldItem, Receipt, Scope};

use crate::context::{Context, Purpose};
use crate::error::{print_json, print_result};
use crate::exit::DONE;
use crate::output::format;
use crate::output::table::{self, Column};

const EXAMPLES: &str = "\
Examples:
  tare receipt web
  tare receipt web --json | jq -r '.held[] | select(.gone == null) | .kind'";

const COLUMNS: [Column; 4] = [
    Column::whole("HELD"),
    Column::whole("SEEN GONE"),
    Column::whole("BY"),
    Column::cut("WHAT", 40),
];

/// Show what a removed box had held, and when it was seen gone
///
/// Lists everything that the box held on the host: processes, cgroups, mounts, ports, scratch bytes
/// and more. For each it shows when tare saw it gone, and which kernel object tare looked at for that;
/// docs/audit.md explains each check. What the kernel does not show is listed as not observed, with
/// the reason. A receipt contains only what tare observed.
///
/// A receipt is kept for the --retention of its box. A box without -d has one only if it was asked
/// for ('tare run --receipt'), if another command ended it, or if its 'tare run' or server was killed.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ReceiptArgs {
    /// Id, unique beginning of an id, or last name of a removed box
    #[arg(value_name = "BOX")]
    reference: String,

    /// Print it as one line of JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &ReceiptArgs, context: &Context) -> Result<u8, Error> {
    let engine = context.engine(Purpose::Look)?;
    let receipt = engine.receipt(&Scope::All, &args.reference)?;
    if args.json {
        print_json(&receipt)?
    } else {
        print_result(&as_text(&receipt))?
    }
    Ok(DONE)
}

fn as_text(receipt: &Receipt) -> String {
    let name = receipt.name.as_ref().map(|name| format!(" ({})", escaped(name)));
    let pid = receipt.pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
    let mut text = format!("{}{}, removed by tare{pid}\n", receipt.id, name.unwrap_or_default());
    let rows: Vec<_> = receipt.held.iter().map(row).collect();
    text += &table::render(&COLUMNS, &rows, table::columns_of_stdout());
    for item in &receipt.held {
        if let Some(reason) = &item.not_observed {
            text += &format!("{} not observed: {}\n", item.kind, escaped(reason));
        }
    }
    for left in &receipt.left_alone {
        text += &format!("{} left alone: {}\n", left.kind, escaped(&left.what.join(", ")));
    }
    text += if receipt.complete {
        "Everything that the kernel shows was seen gone.\n"
    } else {
        "Not everything was seen gone.\n"
    };
    text
}

fn row(item: &HeldItem) -> [String; 4] {
    let (seen, check) = match (&item.gone, &item.not_observed) {
        (Some(gone), _) => (gone.seen.at.to_string(), gone.check.to_string()),
        (None, Some(_)) => ("not observed".to_owned(), format::EMPTY_CELL.to_owned()),
        (None, None) => ("not seen gone".to_owned(), format::EMPTY_CELL.to_owned()),
    };
    [item.kind.to_string(), seen, check, what(item)]
}

/// The names, and how many more there are.
fn what(item: &HeldItem) -> String {
    let more = item.count.unwrap_or(0).saturating_sub(item.what.len() as u64);
    match (item.bytes, item.what.as_slice(), more) {
        (Some(bytes), [], _) => format::size(Some(bytes)),
        (None, [], _) => format::count(item.count),
        (_, named, 0) => named.join(", "),
        (_, named, more) => format!("{}, and {more} more", named.join(", ")),
    }
}
