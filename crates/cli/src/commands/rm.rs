//! `tare rm`: removes boxes with everything that belongs to them.

use clap::Args;
use tare_engine::{Actor, BoxId, Engine, Error};

use crate::commands::each::{each, gather, on_box};
use crate::context::{Context, Purpose};
use crate::error::print_json;

const EXAMPLES: &str = "\
Examples:
  tare rm web
  tare ls -q --filter label=team=blue | xargs -r tare rm -f
  tare rm -f --all
  tare rm -f --json web > receipt.json";

/// Remove boxes: record, log, exit code and kept scratch
///
/// Removes a running box only with --force. Works on boxes in any state, also stuck and half-made
/// ones, and returns when nothing of the box is left.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RmArgs {
    /// Kill a running box, without grace
    #[arg(short, long)]
    force: bool,

    /// Remove every box of this state root; running ones need --force
    #[arg(long, conflicts_with = "boxes")]
    all: bool,

    /// Print the receipts of the removed boxes as one JSON array: what each held,
    /// and when and how tare saw it gone; see 'tare receipt --help'
    #[arg(long)]
    json: bool,

    /// Ids, unique beginnings of ids, or names of boxes
    #[arg(required_unless_present = "all", value_name = "BOX")]
    boxes: Vec<String>,
}

pub fn run(args: &RmArgs, context: &Context) -> Result<u8, Error> {
    // CreateOrEnd finds the named box before it cleans up others. So a box that has just ended by
    // itself is still found, and the command succeeds.
    let engine = context.engine(Purpose::CreateOrEnd)?;
    let boxes = if args.all { every_box(&engine)? } else { args.boxes.clone() };
    let by = Actor::command(if args.force { "tare rm -f" } else { "tare rm" });
    if !args.json {
        return Ok(each(&engine, &boxes, |id| engine.remove(id, args.force, &by).map(drop)));
    }
    let (receipts, code) = gather(&boxes, |reference| {
        on_box(&engine, reference, |id| {
            engine.remove(id, args.force, &by)?.ok_or_else(|| no_receipt(id))
        })
    });
    print_json(&receipts)?;
    Ok(code)
}

fn no_receipt(id: &BoxId) -> Error {
    Error::failed(format!("box {id} is removed, and there is no receipt"))
        .caused_by("another process removed it and kept none")
        .with_hint("'tare audit' shows whether anything is left")
}

fn every_box(engine: &Engine) -> Result<Vec<String>, Error> {
    let boxes = engine.list()?;
    Ok(boxes.iter().map(|status| status.id.to_string()).collect())
}
