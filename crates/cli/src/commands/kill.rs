//! `tare kill`: sends a signal to a box. KILL ends every process of the box.

use clap::Args;
use rustix::process::Signal;
use tare_engine::spec::name;
use tare_engine::{Actor, Error};

use crate::commands::each::{Boxes, each};
use crate::context::{Context, Purpose};

const EXAMPLES: &str = "\
Examples:
  tare kill web
  tare kill -s HUP web
  tare kill -s SIGUSR1 web database";

/// Send a signal to the command of a box; by default, kill the whole box
///
/// KILL ends every process of the box, and tare returns when none is left. Any other signal goes to
/// the box's command only. A paused box gets no other signal.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct KillArgs {
    /// A name such as HUP or SIGHUP, or a number [default: KILL]
    #[arg(
        short,
        long,
        value_name = "SIGNAL",
        value_parser = name::signal,
        allow_hyphen_values = true
    )]
    signal: Option<i32>,

    #[command(flatten)]
    boxes: Boxes,
}

pub fn run(args: &KillArgs, context: &Context) -> Result<u8, Error> {
    let engine = context.engine(Purpose::Use)?;
    let kill = Signal::KILL.as_raw();
    let command = match args.signal {
        Some(signal) => format!("tare kill -s {}", name::signal_name(signal)),
        None => "tare kill".to_owned(),
    };
    let by = Actor::command(&command);
    let code = each(&engine, &args.boxes.boxes, |id| match args.signal {
        Some(signal) if signal != kill => engine.signal(id, signal, &by),
        Some(_) | None => engine.kill(id, &by),
    });
    Ok(code)
}
