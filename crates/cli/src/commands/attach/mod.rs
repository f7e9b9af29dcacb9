//! `tare attach`: shows the output of a box from now on, and sends it input.
//!
//! The output comes from the box's log, so any number of users can attach, and none of them can
//! block the box. The box keeps running when they leave.

use clap::Args;
use tare_engine::{BoxId, End, Engine, Error};
use tare_kernel::signals::SignalFd;

use crate::commands::each::on_box;
use crate::context::{Context, Purpose};
use crate::error::print_note;
use crate::exit::DONE;
use crate::stdio::{self, Caller};

mod input;
mod keys;
mod relay;

use crate::commands::attach::relay::{AttachEnd, AttachLoop};

const EXAMPLES: &str = "\
Examples:
  tare attach web
  tare run -d -it --name shell -- bash && tare attach shell

The first SIGINT or SIGTERM is passed to the box's command. A second one, SIGHUP,
or Ctrl-P Ctrl-Q in a box with --tty leaves the box running. The end of the input
ends nothing. 'tare logs' shows earlier output, and follows it with -f without
passing on signals.";

/// Show the output of a box from now on, and send it input
///
/// A box that was started with --interactive or --tty gets the input. When the box ends, tare exits
/// with its exit code, and with 125 if tare fails.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct AttachArgs {
    /// Id, unique beginning of an id, or name of the box
    #[arg(value_name = "BOX")]
    reference: String,
}

pub fn run(args: &AttachArgs, context: &Context) -> Result<u8, Error> {
    let taken = stdio::take_over()?;
    let engine = context.engine(Purpose::Use)?;
    on_box(&engine, &args.reference, |id| attach(&engine, id, &args.reference, &taken))
}

fn attach(engine: &Engine, id: &BoxId, reference: &str, taken: &SignalFd) -> Result<u8, Error> {
    let end = engine.watch_end(id)?;
    let tell = |signal| engine.signal(id, signal);
    let mut wire = AttachLoop::new(engine.attach(id)?, Caller::of_this_process(), &tell)?;
    let left = wire.until_end(taken)?;
    // Gives the terminal back to the caller.
    drop(wire);
    match left {
        AttachEnd::Ended => Ok(engine.await_end(&end)?.code()),
        AttachEnd::Detached => Ok(DONE),
        AttachEnd::Interrupted(signal) => {
            print_note(&format!("left box {reference}, which keeps running"));
            Ok(End::of_command(signal).code())
        }
    }
}
