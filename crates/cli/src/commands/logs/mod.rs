//! `tare logs`: prints the output of a detached box, and follows it with `-f`.
//!
//! It reads the log without asking the keeper. So it works for a box that is paused, busy or dead,
//! and no reader can block a box.

use std::os::fd::BorrowedFd;

use clap::Args;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tare_engine::logs::Logs;
use tare_engine::spec::quantity;
use tare_engine::{Context as _, Error, Looked, Timestamp};
use tare_kernel::process::Process;
use tare_kernel::watch::Watch;

use crate::commands::each::on_box;
use crate::context::{Context, Purpose};
use crate::error::print_note;
use crate::exit::{DONE, print_lost_machine};
use crate::stdio::Caller;

mod printer;
mod visible;

use crate::commands::logs::printer::{Controls, Prefix, Printer};

const EXAMPLES: &str = "\
Examples:
  tare logs web
  tare logs -f -n 20 web
  tare logs --since 10m --timestamps web 2>&1 | grep ERROR";

/// Show the output of a box
///
/// The stdout of the box goes to stdout, its stderr to stderr. The log keeps the newest output up to
/// a limit (--output-limit of 'tare run') until the box is removed.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct LogsArgs {
    /// Follow the output until the box ends
    #[arg(short, long)]
    follow: bool,

    /// Start with the last N lines [default: all]
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        value_parser = quantity::lines,
        allow_hyphen_values = true
    )]
    tail: Option<u32>,

    /// Start at this time: 10m (ago), or 2026-11-15T22:09:05Z
    #[arg(long, value_name = "TIME", value_parser = Timestamp::parse_or_ago, allow_hyphen_values = true)]
    since: Option<Timestamp>,

    /// Put the time before each line
    #[arg(short, long)]
    timestamps: bool,

    /// Send control characters to the terminal instead of showing them as text
    #[arg(long)]
    raw: bool,

    /// Id, unique beginning of an id, or name of the box
    #[arg(value_name = "BOX")]
    reference: String,
}

pub fn run(args: &LogsArgs, context: &Context) -> Result<u8, Error> {
    let engine = context.engine(Purpose::Use)?;
    let (id, (mut logs, keeper)) =
        on_box(&engine, &args.reference, |id| Ok((id.clone(), engine.logs(id)?)))?;
    if let Some(since) = args.since {
        logs.since(since);
    }
    if let Some(lines) = args.tail {
        logs.tail(u64::from(lines))?;
    }
    let prefix = if args.timestamps { Prefix::Time } else { Prefix::None };
    let controls = if args.raw { Controls::Raw } else { Controls::VisibleOnTerminals };
    let mut printer = Printer::new(Caller::of_this_process(), prefix, controls);
    let shown = match (args.follow, keeper) {
        (true, Some(keeper)) => {
            // The box may be removed at its end.
            let watch = engine.watch_end(&id);
            let shown = follow(&mut logs, &keeper, &mut printer);
            let looked = shown.is_ok().then(|| engine.look_for_end(watch.as_ref().ok()?).ok());
            if let Some(Some(Looked::Ended(end))) = looked {
                print_lost_machine(end, &id);
            }
            shown
        }
        (true, None) | (false, _) => show(&mut logs, &mut printer),
    };
    match shown {
        Ok(()) | Err(Stop::ReaderGone) => Ok(DONE),
        Err(Stop::Failed(error)) => Err(error),
    }
}

/// Why the output ended early.
#[derive(Debug)]
enum Stop {
    Failed(Error),
    /// The reader of our output is gone, which is not an error.
    ReaderGone,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::PIPE | Errno::CONNRESET => Self::ReaderGone,
            errno => Self::Failed(Error::failed("cannot pass on the log").caused_by(errno)),
        }
    }
}

/// Prints the log up to now.
fn show(logs: &mut Logs, printer: &mut Printer<'_>) -> Result<(), Stop> {
    logs.stop_here()?;
    show_more(logs, printer)
}

/// Prints the log until the keeper, its only writer, is dead.
fn follow(logs: &mut Logs, keeper: &Process, printer: &mut Printer<'_>) -> Result<(), Stop> {
    // Watch before the first read, so that no record is missed between the two.
    let watch = logs.watch()?;
    loop {
        show_more(logs, printer)?;
        match wait(&watch, keeper, printer.stdout()).context(|| "cannot wait for the box".into())? {
            Woken::Written => watch.drain().context(|| "cannot watch the log".into())?,
            Woken::Ended => return show_more(logs, printer),
            Woken::ReaderGone => return Err(Stop::ReaderGone),
        }
    }
}

fn show_more(logs: &mut Logs, printer: &mut Printer<'_>) -> Result<(), Stop> {
    loop {
        match logs.next_record() {
            Ok(Some(record)) => {
                if record.missed_bytes > 0 {
                    printer.flush()?;
                    print_note(&gap(record.missed_bytes));
                }
                printer.print(&record)?;
            }
            Ok(None) => {
                printer.flush()?;
                let missed_bytes = logs.missed_at_end()?;
                if missed_bytes > 0 {
                    print_note(&gap(missed_bytes));
                }
                return Ok(());
            }
            Err(error) => {
                printer.flush()?;
                return Err(error.into());
            }
        }
    }
}

fn gap(missed_bytes: u64) -> String {
    format!("{missed_bytes} bytes of the output are missing here: the log has no room for them")
}

/// Why a wait ended.
enum Woken {
    Written,
    Ended,
    ReaderGone,
}

fn wait(watch: &Watch, keeper: &Process, stdout: BorrowedFd<'_>) -> Result<Woken, Errno> {
    let mut fds = [
        PollFd::new(watch, PollFlags::IN),
        PollFd::new(keeper, PollFlags::IN),
        // Requests no event: poll(2) always reports that the reader has closed the pipe.
        PollFd::from_borrowed_fd(stdout, PollFlags::empty()),
    ];
    rustix::io::retry_on_intr(|| poll(&mut fds, None))?;
    let [_, ended, unread] = fds.map(|fd| !fd.revents().is_empty());
    Ok(match (ended, unread) {
        (_, true) => Woken::ReaderGone,
        (true, false) => Woken::Ended,
        (false, false) => Woken::Written,
    })
}

#[cfg(test)]
#[path = "logs_tests.rs"]
mod tests;
