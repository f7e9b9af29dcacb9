//! exec as a library call: a program that has opened the engine once and asks
//! for one process after another. No tare process is started for it.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use tare_engine::{BoxId, Engine, Event, ExecSpec, Purpose, Session, Stdin};

use super::super::RunOnce;
use crate::failure::{Context, Failure};

/// The exit code of the first call, which is checked.
const CHECK: (&[&str], u8) = (&["sh", "-c", "exit 37"], 37);

/// Runs `command` in the box each time; was seen to run one, or there is none.
pub fn subject(
    state_root: &Path,
    id: &str,
    command: &'static [&'static str],
) -> Result<RunOnce<'static>, Failure> {
    let engine = Engine::open(Some(state_root.to_owned()), Purpose::Use)
        .context(|| "cannot open the state root".to_owned())?;
    let id = engine.find(id).context(|| "cannot find the box".to_owned())?;
    let (check, code) = CHECK;
    match run(&engine, &id, check) {
        Ok(found) if found == code => {}
        Ok(found) => return Err(Failure::new(format!("it ended with {found}, not {code}"))),
        Err(why) => return Err(Failure::new(why)),
    }
    Ok(Box::new(move || {
        let started = Instant::now();
        match run(&engine, &id, command)? {
            0 => Ok(started.elapsed()),
            code => Err(format!("it ended with {code}")),
        }
    }))
}

fn run(engine: &Engine, id: &BoxId, command: &[&str]) -> Result<u8, String> {
    let session = engine.exec(id, &ExecSpec::of(command), Stdin::Empty);
    exit_code(session.map_err(|error| error.to_string())?)
}

fn exit_code(mut session: Session) -> Result<u8, String> {
    loop {
        match session.next_event() {
            Some(Event::Ended(end)) => return Ok(end.code()),
            Some(Event::Started) => {}
            Some(other) => return Err(format!("{other:?}")),
            None => wait(session.events_fd()),
        }
    }
}

/// Waits for a bounded time: a box that does not answer fails the round, and not the bench.
fn wait(fd: BorrowedFd<'_>) {
    const PATIENCE: Duration = Duration::from_secs(10);
    let timeout = PATIENCE.try_into().ok();
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], timeout.as_ref()).ok();
}
