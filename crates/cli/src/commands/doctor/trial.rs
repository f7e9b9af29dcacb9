//! The boxes that `tare doctor` makes and ends: the proof that boxes can be made here, and which
//! limits they get.
//!
//! They are attached boxes like those of `tare run`: they die with this process, and the next tare
//! command removes what a killed doctor leaves.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tare_engine::spec::{Cpus, Limit, Limits, Spec, quantity};
use tare_engine::{
    Cause, Context as _, End, Engine, Error, ErrorKind, Gauge, GaugeSettings, Reading, Stdin,
};
use tare_kernel::signals;

use crate::context::{Context, Purpose};
use crate::stdio::{self, Output, PastLimit, Settings, Writers};

/// For all boxes to be made, to run their command and to be ended.
const WITHIN: Duration = Duration::from_secs(9);
/// The timeout of a box: it leaves the rest for ending it.
const BOX_WITHIN: Duration = Duration::from_secs(5);
const OUTPUT_BYTES_MAX: u64 = 4096;

/// Results of the boxes that doctor makes.
#[derive(Debug)]
pub struct Trial {
    /// Whether a box could be made and ended.
    pub made: Result<(), Error>,
    /// The limits that a box can have.
    pub limited: Vec<&'static str>,
    /// The limits on the number of processes around this process.
    pub pids: Vec<Reading>,
}

/// A limit, and how to ask for it. A box whose limit cannot be enforced is refused only if the
/// limit was asked for. Without a cgroup, a resource limit enforces the number of processes.
type AskedLimit = (&'static str, fn(&mut Limits));

pub const LIMITS: [AskedLimit; 3] = [
    ("memory", |it| it.memory_bytes = Limit::Asked(it.memory_bytes.value())),
    ("pids", |it| it.pids = Limit::Asked(it.pids.value())),
    ("cpu", |it| it.cpus = Some(Cpus { milli: 1000 })),
];

/// Makes a box with all limits and ends it. If the limits are refused, makes one without them, and
/// one for each limit.
pub fn make_boxes(context: &Context) -> Trial {
    let failed = |error| Trial { made: Err(error), limited: Vec::new(), pids: Vec::new() };
    bounded(context).unwrap_or_else(failed)
}

/// A lock or a file system that does not answer holds the thread, and not its caller. The thread
/// ends with this process, and the box with the thread.
fn bounded(context: &Context) -> Result<Trial, Error> {
    // The thread inherits this mask and reads the signals. None may end this process while a box
    // lives.
    let _blocked = stdio::take_over()?;
    signals::keep_ended_children();
    let (report, reported) = mpsc::channel();
    let context = context.clone();
    let act = move || drop(report.send(try_boxes(&context)));
    thread::Builder::new().spawn(act).context(|| "cannot start a thread".to_owned())?;
    reported.recv_timeout(WITHIN).unwrap_or_else(|_| {
        let message = "cannot make and end a box in time";
        Err(Error::failed(message)
            .caused_by(format!("it took more than {}", quantity::show_duration(WITHIN)))
            .with_hint("does the file system of the state root answer, and is the host busy?"))
    })
}

fn try_boxes(context: &Context) -> Result<Trial, Error> {
    let engine = context.engine(Purpose::CreateOrEnd)?;
    let pids = limits_on_pids(&engine);
    let names = |limits: &[AskedLimit]| limits.iter().map(|(name, _)| *name).collect();
    let (made, limited) = match make_and_end(&engine, &LIMITS) {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            make_and_end(&engine, &[])?;
            let is_enforced = |limit: &AskedLimit| make_and_end(&engine, &[*limit]).is_ok();
            (Ok(()), names(&LIMITS.into_iter().filter(is_enforced).collect::<Vec<_>>()))
        }
        made => (made, names(&LIMITS)),
    };
    Ok(Trial { made, limited, pids })
}

fn limits_on_pids(engine: &Engine) -> Vec<Reading> {
    let Ok(mut gauges) = engine.gauges(GaugeSettings::default()) else {
        return Vec::new();
    };
    gauges.measure();
    let on_pids =
        |it: &&Reading| [Gauge::PidsHost, Gauge::PidsUser, Gauge::PidsCgroup].contains(&it.gauge);
    gauges.limits().iter().filter(on_pids).cloned().collect()
}

/// Makes a box that runs `true`, with these limits, and ends it.
fn make_and_end(engine: &Engine, limits: &[AskedLimit]) -> Result<(), Error> {
    let signals = stdio::take_over()?;
    let mut spec = Spec { timeout: Some(BOX_WITHIN), ..Spec::of(vec!["true".into()]) };
    for (_, ask) in limits {
        ask(&mut spec.limits);
    }
    let settings = Settings {
        output: Output::Keep,
        output_bytes_max: OUTPUT_BYTES_MAX,
        past_limit: PastLimit::Truncate,
        writers: Writers::Dead,
    };
    let session = engine.run(&spec, Stdin::Empty)?;
    let relayed = stdio::relay(session, settings, &signals)?;
    match relayed.result {
        // The view of the host may have no `true`. Executing it is the last step, so the box was
        // made whole.
        Err(error) if error.kind() == ErrorKind::CommandNotFound => {}
        result => result.and_then(|()| judge(relayed.end))?,
    }
    relayed.ending
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
