//! `tare update`: changes the limits of running boxes.

use clap::Args;
use tare_engine::spec::{Cpus, quantity};
use tare_engine::{Changes, Error};

use crate::commands::each::{Boxes, each};
use crate::commands::lease::{self, Lease};
use crate::context::{Context, Purpose};

const EXAMPLES: &str = "\
Examples:
  tare update --memory 1g web
  tare update --lease 8h web database
  tare ls -q | xargs -r tare update --cpus 0.5 --pids 64";

/// Change the limits or the lease of running boxes
///
/// Limits that are not given stay the same. Limits can be raised and lowered. If the new memory limit
/// is below the box's use, the kernel reclaims memory or kills processes.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, override_usage = "tare update [OPTIONS] <BOX>...")]
pub struct UpdateArgs {
    #[command(flatten)]
    changes: ChangeArgs,

    #[command(flatten)]
    boxes: Boxes,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
struct ChangeArgs {
    /// Memory of the whole box, at least 6m
    #[arg(
        short,
        long,
        value_name = "SIZE",
        value_parser = quantity::memory_bytes,
        allow_hyphen_values = true
    )]
    memory: Option<u64>,

    /// Processes and threads in the box at the same time
    #[arg(long, value_name = "N", value_parser = quantity::pids, allow_hyphen_values = true)]
    pids: Option<u32>,

    /// Processor time, such as 0.5 for half a processor
    #[arg(long, value_name = "N", value_parser = quantity::cpus, allow_hyphen_values = true)]
    cpus: Option<Cpus>,

    /// Kill the box this long from now, or never
    #[arg(
        long,
        value_name = "DURATION|never",
        value_parser = lease::parse,
        allow_hyphen_values = true
    )]
    lease: Option<Lease>,
}

pub fn run(args: &UpdateArgs, context: &Context) -> Result<u8, Error> {
    let engine = context.engine(Purpose::Use)?;
    let changes = changes(&args.changes);
    Ok(each(&engine, &args.boxes.boxes, |id| engine.update(id, &changes)))
}

fn changes(args: &ChangeArgs) -> Changes {
    Changes {
        memory_bytes: args.memory,
        pids: args.pids,
        cpus: args.cpus,
        lease: args.lease.map(Lease::duration),
    }
}
