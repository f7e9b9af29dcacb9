//! `tare attach`: what a box says from now on, and what it is told.
//!
//! Output comes from the box's log, so that any number of callers may listen and
//! none can hold the box up. The box lives on when its caller goes.

use clap::Args;
use tare_engine::{BoxId, Engine, Error};
use tare_kernel::signals::SignalFd;

use crate::commands::each::on_box;
use crate::context::{Context, Purpose};
use crate::error::print_note;
use crate::exit::{DONE, Verdict, ended_code};
use crate::stdio::{self, Caller};

mod input;
mod keys;
mod relay;

use crate::commands::attach::relay::{Left, Wire};

const EXAMPLES: &str = "\
Examples:
  tare attach web
  tare run -d -it --name shell -- bash && tare attach shell

The first SIGINT or SIGTERM goes to the box's command; a second one, or SIGHUP,
leaves the box, which lives on, and so does Ctrl-P Ctrl-Q if it was started with
--tty. The end of the caller's input ends nothing. What was written before is in
'tare logs', which follows it with -f and passes no signal on.";

/// Watch what a box writes from now on, and write to it
///
/// Input is passed to a box that was started with --interactive or --tty. Exits
/// with the exit code of the box when it ends.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct AttachArgs {
    /// An id, the beginning of one, or a name
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
    let mut wire = Wire::new(engine.attach(id)?, Caller::of_this_process(), &tell)?;
    let left = wire.until_end(taken)?;
    // The terminal is the caller's own again.
    drop(wire);
    match left {
        Left::Ended => Ok(ended_code(&engine.await_end(&end)?)),
        Left::Detached => Ok(DONE),
        Left::Interrupted(signal) => {
            print_note(&format!("left box {reference}, which keeps running"));
            Ok(Verdict::signalled(signal).code)
        }
    }
}
