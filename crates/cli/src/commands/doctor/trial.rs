//! The box that `tare doctor` makes and ends: the proof that boxes can be made here.
//!
//! It is an attached box like one of `tare run`: it dies with this process, and the
//! next tare command removes what a killed doctor leaves.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tare_engine::spec::{Spec, quantity};
use tare_engine::{Cause, Context as _, End, Error, ErrorKind, Stdin};
use tare_kernel::signals;

use crate::commands::doctor::{Check, Status};
use crate::context::{Context, Purpose};
use crate::error::{cause_and_hint, one_line};
use crate::stdio::{self, Output, PastLimit, Settings, Writers};

/// For the box to be made, to run its command and to be ended.
const WITHIN: Duration = Duration::from_secs(9);
/// The box's own timeout: it leaves the rest for ending it.
const BOX_WITHIN: Duration = Duration::from_secs(5);
const OUTPUT_BYTES_MAX: u64 = 4096;

/// Makes a box with `tare run`'s defaults and ends it.
pub fn check(context: &Context) -> Check {
    match bounded(context) {
        Ok(()) => Check::new("a box", Status::Ok, "made and ended", "runs commands in it"),
        Err(error) => {
            let (found, hint) = cause_and_hint(&error);
            let hint = hint.unwrap_or_else(|| "see the lines above".to_owned());
            Check {
                prevents_boxes: true,
                ..Check::new("a box", Status::Missing, one_line(&found), &hint)
            }
        }
    }
}

/// A lock or a file system that does not answer holds the thread, not its caller. The
/// thread ends with this process, and the box with the thread.
fn bounded(context: &Context) -> Result<(), Error> {
    // The thread inherits this mask and reads the signals: none may end this process
    // between the box and its end.
    let _blocked = stdio::take_over()?;
    signals::keep_ended_children();
    let (report, reported) = mpsc::channel();
    let context = context.clone();
    let act = move || drop(report.send(make_and_end(&context)));
    thread::Builder::new().spawn(act).context(|| "cannot start a thread".to_owned())?;
    reported.recv_timeout(WITHIN).unwrap_or_else(|_| {
        let message = "cannot make and end a box in time";
        Err(Error::failed(message)
            .caused_by(format!("it took more than {}", quantity::show_duration(WITHIN)))
            .with_hint("does the file system of the state root answer, and is the host busy?"))
    })
}

fn make_and_end(context: &Context) -> Result<(), Error> {
    let signals = stdio::take_over()?;
    let engine = context.engine(Purpose::CreateOrEnd)?;
    let spec = Spec { timeout: Some(BOX_WITHIN), ..Spec::of(vec!["true".into()]) };
    let settings = Settings {
        output: Output::Keep,
        output_bytes_max: OUTPUT_BYTES_MAX,
        past_limit: PastLimit::Truncate,
        writers: Writers::Dead,
    };
    let session = engine.run(&spec, Stdin::Empty)?;
    let attended = stdio::attend(session, settings, &signals)?;
    match attended.relayed {
        // The execution of the command is the last step: the box was made whole. The
        // host's view may have no such program.
        Err(error) if error.kind() == ErrorKind::CommandNotFound => {}
        relayed => {
            relayed?;
            judge(attended.end)?;
        }
    }
    attended.ending
}

fn judge(end: End) -> Result<(), Error> {
    if end.is_success() {
        return Ok(());
    }
    let why = if end.cause == Cause::Timeout {
        format!("it did not end within {}", quantity::show_duration(BOX_WITHIN))
    } else {
        format!("it ended with {} ({})", end.code(), end.cause)
    };
    Err(Error::failed("cannot run 'true' in a box").caused_by(why))
}
