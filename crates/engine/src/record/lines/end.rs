//! Lines about the end of a box: why tare kills it, how it ended, and why it could not be ended.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tare_control::journal::{BoxEvent, Journal};
use tare_control::{Cause, End};
use tare_kernel::clock::boot_ns;

use crate::actor::Actor;
use crate::error::Error;
use crate::record::lines::{Evidence, RequestLine, asked_for};
use crate::time::Timestamp;

/// Why tare ends or removes a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The creator could not complete the box, or has seen its end.
    ByCreator,
    /// A user stopped the box. If tare kills it, it has not stopped within the grace.
    Stopped,
    /// A user killed or removed the box.
    Requested,
    /// The creator of an attached box is gone.
    Abandoned,
    /// The lease has passed, and the keeper did not end the box.
    Overdue,
    /// The box has ended, and its retention has passed.
    Expired,
    /// The box has ended, and was to be removed then.
    RemoveAfterEnd,
    /// The host was restarted.
    Rebooted,
}

impl Reason {
    /// Why a box ended that tare killed for this reason.
    pub fn cause(self) -> Cause {
        match self {
            Self::Stopped => Cause::Stopped,
            Self::Abandoned => Cause::ClientGone,
            Self::Overdue => Cause::Lease,
            Self::Rebooted => Cause::HostRebooted,
            Self::ByCreator | Self::Requested | Self::Expired | Self::RemoveAfterEnd => {
                Cause::Killed
            }
        }
    }
}

/// A tare process is about to kill the box.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndingLine {
    pub why: Reason,
    /// The tare process.
    pub pid: u32,
    pub at_ns: u64,
}

impl EndingLine {
    pub fn now(why: Reason) -> Self {
        Self { why, pid: std::process::id(), at_ns: boot_ns() }
    }
}

/// How a box ended. Only the record of a detached box is left then, and nothing of an attached one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedLine {
    #[serde(flatten)]
    pub end: End,
    /// When the box ended. If its keeper did not write that, when tare found the box ended.
    pub at: Timestamp,
    /// The last sign of life of a box whose keeper did not write when it ended. The box ended
    /// between this time and `at`.
    #[serde(default)]
    pub after: Option<Timestamp>,
    /// When this was written: retention counts from here.
    pub at_ns: u64,
    /// How long it took the process that ended the box, or found it ended, to see it empty.
    pub emptied_ms: u64,
    /// The actor that asked for the act that ended it, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Actor>,
    /// How long before the end that was, if it was a signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_before: Option<Duration>,
    /// Why the box could not be made, its command could not be started, or its owner killed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// The clients of a server see that reason. Others name paths of the host.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_for_clients: bool,
    #[serde(default)]
    pub evidence: Evidence,
}

impl EndedLine {
    /// Returns how a detached box ended, as its keeper wrote it. A keeper that wrote nothing was
    /// killed at some time since `last_sign`: by tare if the record says so.
    pub fn of(
        journal: &Journal,
        (ending, requests): (Option<&EndingLine>, &[RequestLine]),
        last_sign: Option<Timestamp>,
        mut evidence: Evidence,
        emptied: Duration,
    ) -> Self {
        let written = journal.ended.map(|it| (it.end, Timestamp::from_ms(it.at_ms)));
        let killed = || {
            let cause = ending.map_or(Cause::KeeperLost, |ending| ending.why.cause());
            (End::killed(cause), Timestamp::now())
        };
        let (end, at) = written.unwrap_or_else(killed);
        evidence.scratch_full |= journal.events.iter().any(|it| it.what == BoxEvent::ScratchFull);
        let end = end.under(evidence.pressure());
        let asked = asked_for(end, requests.iter());
        let end_ns = journal.ended.map_or_else(boot_ns, |it| it.at_us.saturating_mul(1000));
        Self {
            at,
            after: last_sign.filter(|_| written.is_none()),
            emptied_ms: u64::try_from(emptied.as_millis()).unwrap_or(u64::MAX),
            asked_before: asked.and_then(|asked| asked.before(end_ns)),
            ..Self::seen(end, asked.map(|asked| asked.by.clone()), evidence)
        }
    }

    /// An end that this process has just seen.
    pub fn seen(end: End, by: Option<Actor>, evidence: Evidence) -> Self {
        Self {
            end,
            at: Timestamp::now(),
            after: None,
            at_ns: boot_ns(),
            emptied_ms: 0,
            by,
            asked_before: None,
            failure: None,
            is_for_clients: false,
            evidence,
        }
    }

    /// A box that could not be made, or whose command could not be started.
    pub fn failed_start(why: Failure) -> Self {
        let end = End::killed(Cause::StartFailed);
        Self::seen(end, None, Evidence::default()).with_failure(Some(why))
    }

    pub fn with_failure(self, failure: Option<Failure>) -> Self {
        let is_for_clients = failure.as_ref().is_some_and(|it| it.is_for_clients);
        Self { failure: failure.map(|it| it.why), is_for_clients, ..self }
    }

    /// Hides what describes the host.
    pub fn hide_host(&mut self) {
        self.by.iter_mut().for_each(Actor::hide_pid);
        if !self.is_for_clients {
            self.failure.iter_mut().for_each(|it| HIDDEN_FAILURE.clone_into(it));
        }
    }
}

/// Clients see this instead of a reason that names paths of the host.
const HIDDEN_FAILURE: &str = "the reason is shown only to admins";

/// A longer reason is cut, so that it fits into the history.
const FAILURE_CHARS_MAX: usize = 1000;

/// Why a box could not be made, its command could not be started, or its owner killed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    why: String,
    is_for_clients: bool,
}

impl Failure {
    pub fn new(why: &str, is_for_clients: bool) -> Self {
        Self { why: why.chars().take(FAILURE_CHARS_MAX).collect(), is_for_clients }
    }
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        Self::new(&error.in_full(), error.kind().is_for_clients())
    }
}

/// The last attempt to end the box failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StuckLine {
    /// The step that failed.
    pub step: String,
    /// Why it failed.
    pub why: String,
    /// How many attempts have failed.
    pub tries: u32,
    pub at_ns: u64,
    /// Whether the record was to be removed too, as by `tare rm`.
    #[serde(default)]
    pub remove: bool,
}

/// After two failed attempts to end a box, the next one waits for this long, then for twice that,
/// and so on up to the limit. Each attempt takes a command some of its time.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(1);
const TRY_AGAIN_WITHIN: Duration = Duration::from_secs(3600);

impl StuckLine {
    /// The line for one more failed attempt.
    pub fn after(last: Option<&Self>, step: String, why: String) -> Self {
        Self {
            step,
            why,
            tries: last.map_or(1, |last| last.tries.saturating_add(1)),
            at_ns: boot_ns(),
            remove: false,
        }
    }

    /// The time until the next attempt: none after the first failure, which may be chance.
    fn pause(&self) -> Duration {
        match self.tries.checked_sub(2) {
            None => Duration::ZERO,
            Some(doublings) => {
                let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
                TRY_AGAIN_AFTER.saturating_mul(factor).min(TRY_AGAIN_WITHIN)
            }
        }
    }

    /// Returns whether the next attempt is due. A line of the future is of an earlier boot.
    pub fn is_due(&self) -> bool {
        let passed = boot_ns().checked_sub(self.at_ns).map(Duration::from_nanos);
        passed.is_none_or(|passed| passed >= self.pause())
    }

    /// Returns whether this says the same as the last line, and the next attempt is not due. Such a
    /// line is not added, so that frequent attempts do not fill the record.
    pub fn repeats(&self, last: Option<&Self>) -> bool {
        last.is_some_and(|last| {
            let same = (&last.step, &last.why, last.remove) == (&self.step, &self.why, self.remove);
            same && !last.is_due()
        })
    }
}

impl fmt::Display for StuckLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.why.is_empty() {
            f.write_str(&self.step)
        } else {
            write!(f, "{}: {}", self.step, self.why)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(times: u32) -> StuckLine {
        let again = |last: Option<StuckLine>, _| {
            Some(StuckLine::after(last.as_ref(), "a".into(), "b".into()))
        };
        (0..times).fold(None, again).unwrap()
    }

    #[test]
    fn a_failed_teardown_is_retried_at_once_and_then_less_and_less_often() {
        let pauses = [1, 2, 3, 4, 13, 14, 40, 4000].map(|times| failed(times).pause().as_secs());
        assert_eq!(pauses, [0, 1, 2, 4, 2048, 3600, 3600, 3600]);
        assert!(failed(1).is_due() && !failed(3).is_due());
        let earlier_boot = StuckLine { at_ns: u64::MAX, ..failed(9) };
        assert!(earlier_boot.is_due());
    }

    #[test]
    fn a_repeated_failure_is_not_recorded_before_its_retry_time() {
        let last = failed(5);
        let again = |why: &str| StuckLine::after(Some(&last), "a".into(), why.into());
        assert!(again("b").repeats(Some(&last)));
        assert!(!again("c").repeats(Some(&last)));
        assert!(!again("b").repeats(None));
        assert!(!failed(2).repeats(Some(&failed(1))));
    }
}
