//! A session from its start to its end, with the relay around it.
//!
//! However it goes, the session is ended before the rest of its output is read.

use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use tare_engine::{Context as _, Ending, Error, Event, Session};
use tare_kernel::signals::SignalFd;

use crate::exit::Outcome;
use crate::stdio::{Caller, Relay, Settings};

/// A session that has ended.
#[derive(Debug)]
pub struct Attended {
    pub outcome: Outcome,
    /// What ending it gave.
    pub ending: Result<Ending, Error>,
    pub relay: Relay<'static>,
    /// When the loop ended.
    pub ended_at: Instant,
}

/// Stays with the session until its end, ends it, and passes on the rest.
pub fn attend(
    mut session: Session,
    settings: Settings,
    signals: &SignalFd,
) -> Result<Attended, Error> {
    let relay = Relay::new(Caller::of_this_process(), session.streams(), settings)
        .context(|| "cannot pass on the streams of the box".to_owned());
    let mut relay = match relay {
        Ok(relay) => relay,
        Err(error) => {
            session.end()?;
            return Err(error);
        }
    };
    let outcome = relay.until_end(&mut session, signals);
    let ended_at = Instant::now();
    // Before the rest of the output: however slowly that is read, the command
    // is gone, and with it every writer of its pipes.
    let ending = session.end();
    let drained = relay.drain(&outcome, signals);
    relay.leave_terminal();
    Ok(Attended {
        outcome: drained.map_or_else(Outcome::Lost, |()| outcome),
        ending,
        relay,
        ended_at,
    })
}

/// Waits until a command that nobody attends runs, or cannot.
pub fn until_started(session: &mut Session) -> Result<(), Error> {
    loop {
        match session.next_event() {
            Some(Event::Started | Event::Exited(_) | Event::TimedOut) => return Ok(()),
            Some(Event::Terminal(_)) => {}
            Some(Event::Failed(error)) => return Err(error),
            Some(Event::Gone) => {
                let message = "the box ended before the command was started";
                return Err(Error::failed(message).with_hint("see 'tare ls -a'"));
            }
            None => {
                let mut fds = [PollFd::from_borrowed_fd(session.events_fd(), PollFlags::IN)];
                retry_on_intr(|| poll(&mut fds, None))
                    .context(|| "cannot wait for the command to start".to_owned())?;
            }
        }
    }
}
