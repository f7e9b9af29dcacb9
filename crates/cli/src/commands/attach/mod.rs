//! `tare attach`: shows the output of a box from now on, and sends it input.
//!
//! The output comes from the box's log, so any number of users can attach, and none of them can
//! block the box. The box keeps running when they leave.

use clap::Args;
use tare_engine::{Actor, BoxId, End, Engine, Error};
use tare_kernel::signals::SignalFd;

use crate::commands::each::on_box;
use crate::context::{Context, Purpose};
use crate::error::print_note;
use crate::exit::{DONE, print_lost_machine};
use crate::stdio::{self, Caller};

mod attach_loop;
mod input;
mod keys;

use crate::commands::attach::attach_loop::{AttachEnd, AttachLoop};

const EXAMPLES: &str = "\
Examples:
  tare attach web
  tare run -d -it --name shell -- bash && tare attach shell

The box keeps running when tare attach ends: at any signal, when its terminal is
closed, or after Ctrl-P Ctrl-Q in a box with --tty. The end of the input ends
nothing. 'tare stop' ends the box. 'tare logs -f' also shows earlier output.";

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

    /// Pass the first signal, such as the SIGINT of Ctrl-C, on to the box's
    /// command; the next one leaves the box
    #[arg(long, alias = "sig-proxy")]
    forward_signals: bool,
}

pub fn run(args: &AttachArgs, context: &Context) -> Result<u8, Error> {
    let taken = stdio::take_over()?;
    let engine = context.engine(Purpose::Use)?;
    on_box(&engine, &args.reference, |id| attach(&engine, id, args, &taken))
}

fn attach(engine: &Engine, id: &BoxId, args: &AttachArgs, taken: &SignalFd) -> Result<u8, Error> {
    let end = engine.watch_end(id)?;
    let by = Actor::command("tare attach");
    let forward = |signal| engine.signal(id, signal, &by);
    let forward: Option<&dyn Fn(i32) -> Result<(), Error>> =
        if args.forward_signals { Some(&forward) } else { None };
    let mut wire = AttachLoop::new(engine.attach(id)?, Caller::of_this_process(), forward)?;
    let left = wire.until_end(taken)?;
    // Gives the terminal back to the caller.
    drop(wire);
    match left {
        AttachEnd::Ended => {
            let end = engine.await_end(&end)?;
            print_lost_machine(end, id);
            Ok(end.code())
        }
        AttachEnd::Detached => Ok(DONE),
        AttachEnd::Interrupted(signal) => {
            print_note(&format!("left box {}, which keeps running", args.reference));
            Ok(End::of_command(signal).code())
        }
    }
}
