//! Lines about what a user asked for, with the actor, recorded before tare acts.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tare_control::{Cause, End};
use tare_kernel::clock::boot_ns;

use crate::actor::Actor;

/// What a user asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    Stop,
    /// To end every process at once.
    Kill,
    /// To remove the box, and to kill it first if it lives.
    Remove,
    /// To send this signal to the command.
    Signal(i32),
}

impl Act {
    /// Whether this act can have ended a box in this way.
    fn explains(self, end: End) -> bool {
        match self {
            Self::Stop => end.cause == Cause::Stopped,
            Self::Kill | Self::Remove => end.cause == Cause::Killed,
            Self::Signal(signal) => end.cause == Cause::Signalled && end.signal() == Some(signal),
        }
    }
}

/// A user asked for an act.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestLine {
    pub act: Act,
    pub by: Actor,
    pub at_ns: u64,
}

impl RequestLine {
    pub fn now(act: Act, by: &Actor) -> Self {
        Self { act, by: by.clone(), at_ns: boot_ns() }
    }

    /// Returns how long before the end a signal was requested. All other acts end the box themselves.
    pub fn before(&self, end_ns: u64) -> Option<Duration> {
        match self.act {
            Act::Signal(_) => Some(Duration::from_nanos(end_ns.saturating_sub(self.at_ns))),
            Act::Stop | Act::Kill | Act::Remove => None,
        }
    }
}

/// Returns the request for the act that ended a box in this way: the last one.
pub fn asked_for<'a>(
    end: End,
    requests: impl DoubleEndedIterator<Item = &'a RequestLine>,
) -> Option<&'a RequestLine> {
    requests.rev().find(|request| request.act.explains(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_attributed_to_the_last_request_that_can_have_caused_it() {
        let by = |n: u32| Actor::Server { pid: n };
        let acts = [Act::Signal(1), Act::Signal(15), Act::Stop, Act::Signal(15), Act::Kill];
        let requests: Vec<RequestLine> =
            (0..).zip(acts).map(|(n, act)| RequestLine::now(act, &by(n))).collect();
        let asked = |end| asked_for(end, requests.iter()).map(|request| request.by.clone());
        assert_eq!(asked(End::of_command(15)), Some(by(3)));
        assert_eq!(asked(End::of_command(1)), Some(by(0)));
        assert_eq!(asked(End::of_command(9)), None, "no signal 9 was asked for");
        assert_eq!(asked(End::killed(Cause::Stopped)), Some(by(2)));
        assert_eq!(asked(End::killed(Cause::Killed)), Some(by(4)));
        assert_eq!(asked(End::killed(Cause::KeeperLost)), None);
        assert_eq!(asked(End::of_command(15 << 8)), None, "an exit code is no signal");
        let (signal, stop) = (&requests[1], &requests[2]);
        assert_eq!(signal.before(signal.at_ns + 7), Some(Duration::from_nanos(7)));
        assert_eq!(stop.before(u64::MAX), None);
    }
}
