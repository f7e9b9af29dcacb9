//! The one sentence for each cause of an end. `run`, `exec`, `explain` and all HTTP APIs use this table.
//!
//! A sentence claims only what tare did, or what the kernel counted. The sender of a signal is
//! known if tare sent it. The kernel keeps no other sender.

use std::fmt;
use std::time::Duration;

use tare_control::{Cause, End};

use crate::actor::Actor;
use crate::error::{Hint, LimitName};
use crate::history::text::{named, result};
use crate::record::lines::Evidence;
use crate::spec::quantity::{show_bytes, show_duration};
use crate::time::Timestamp;

const MACHINE_LOST: &str = "The machine ended before its command: its kernel panicked, restarted or \
                            turned it off, or a process killed its monitor.";

const NO_MEMORY_ABOVE: &str = "The host or a cgroup above the box ran out of memory, and the kernel \
                               killed a process of the box";

/// What ended: a whole box with its command, or one exec in a box that may live on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    Box,
    Exec,
}

/// What is known about an end. `None` if it is unknown, or does not apply.
#[derive(Debug, Clone, Copy)]
pub struct Circumstances<'a> {
    pub end: End,
    pub subject: Subject,
    pub evidence: Option<&'a Evidence>,
    /// The user, key or server that asked for the act that ended it.
    pub by: Option<&'a Actor>,
    /// How long before the end that was, if it was a signal.
    pub asked_before: Option<Duration>,
    /// The process that made the box, if the box ended because that process was gone.
    pub lost_creator: Option<&'a Actor>,
    pub timeout: Option<Duration>,
    pub lease_ended: Option<Timestamp>,
    pub output_bytes_max: Option<u64>,
    /// Why it could not be started, or why its owner killed it.
    pub failure: Option<&'a str>,
}

/// A sentence for the user, and what the user can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sentence {
    pub text: String,
    pub hint: Option<Hint>,
}

impl Sentence {
    /// Returns the sentence with its advice, in the words of the front end.
    pub fn with_advice(&self, words: fn(&Hint) -> String) -> String {
        match &self.hint {
            Some(hint) => format!("{} {}", self.text, words(hint)),
            None => self.text.clone(),
        }
    }
}

impl<'a> Circumstances<'a> {
    pub fn of(end: End, subject: Subject) -> Self {
        Self {
            end,
            subject,
            evidence: None,
            by: None,
            asked_before: None,
            lost_creator: None,
            timeout: None,
            lease_ended: None,
            output_bytes_max: None,
            failure: None,
        }
    }

    /// The table.
    pub fn sentence(&self) -> Sentence {
        use LimitName::{Lease, Memory, Output, Pids, Scratch, Timeout};
        let (text, limit) = match self.end.cause {
            Cause::Exited => (format!("The command {}.{}", result(self.end), self.aside()), None),
            Cause::Signalled => (self.signalled(), None),
            Cause::Timeout => (format!("Killed by tare: {}.", self.timeout()), Some(Timeout)),
            Cause::Lease => (format!("Killed by tare: {}.", self.lease()), Some(Lease)),
            Cause::Memory => (self.memory(), Some(Memory).filter(|_| !self.is(|it| it.oom_above))),
            Cause::Pids => {
                (self.pids(), Some(Pids).filter(|_| !self.is(|it| it.pids_refused_above)))
            }
            Cause::ScratchFull => (self.scratch_full(), Some(Scratch)),
            Cause::OutputLimit => (format!("Killed by tare: {}.", self.output()), Some(Output)),
            Cause::Stopped => (self.stopped(), None),
            Cause::Killed => (self.killed(), None),
            Cause::ClientGone => (self.client_gone(), None),
            Cause::ServerStopping => ("Killed by tare: the server shut down.".to_owned(), None),
            Cause::KeeperLost => (self.keeper_lost(), None),
            Cause::StartFailed => {
                (format!("Never started: {}.", self.failure.unwrap_or("the box ended first")), None)
            }
            Cause::HostRebooted => {
                ("Ended by a restart of the host, which leaves no box alive.".to_owned(), None)
            }
            Cause::MachineLost => (MACHINE_LOST.to_owned(), None),
        };
        Sentence { text, hint: limit.map(Hint::Raise) }
    }

    fn is(&self, what: fn(&Evidence) -> bool) -> bool {
        self.evidence.is_some_and(what)
    }

    /// Limits that were reached, although they are not the cause.
    fn aside(&self) -> String {
        let Some(evidence) = self.evidence else { return String::new() };
        let reached = evidence.pressure();
        let limit = evidence.memory_limit_bytes;
        let above = reached.oom && evidence.oom_above;
        let above = above.then(|| format!(" {NO_MEMORY_ABOVE} ({}).", self.oom_killed()));
        let memory = (reached.oom && !evidence.oom_above).then(|| {
            let limit = limit.map(|it| format!(" of {}", show_bytes(it))).unwrap_or_default();
            format!(" The box reached its memory limit{limit} ({}).", self.oom_killed())
        });
        let pids = reached.pids.then(|| format!(" The kernel refused {}.", self.refused()));
        let full = reached.scratch_full.then_some(" The scratch space was full.".to_owned());
        [memory, above, pids, full].into_iter().flatten().collect()
    }

    fn signalled(&self) -> String {
        let signal = named(self.end.signal().unwrap_or_default());
        match (self.by, self.asked_before.filter(|before| *before > SIGNAL_WITHIN)) {
            (Some(by), None) => {
                return format!("The command was ended by {signal}, sent by tare: {by}.");
            }
            (Some(by), Some(before)) => {
                let before = show_duration(Duration::from_secs(before.as_secs()));
                return format!(
                    "The command was ended by {signal}. tare had sent this signal {before} earlier \
                     ({by}). The kernel does not say whether another process sent it again."
                );
            }
            (None, _) => {}
        }
        format!(
            "The command was ended by {signal}, not sent by tare{}: the command itself, another \
             process of the box or a process of the host sent it.{}",
            self.no_oom(),
            self.aside()
        )
    }

    /// What the kernel says about kills for memory, if it counts them here.
    fn no_oom(&self) -> &'static str {
        match self.evidence.and_then(|evidence| evidence.oom_kills) {
            Some(0) => ", and no OOM kill in memory.events",
            Some(_) | None => "",
        }
    }

    fn timeout(&self) -> String {
        match self.timeout {
            Some(timeout) => format!("timeout of {} reached", show_duration(timeout)),
            None => "timeout reached".to_owned(),
        }
    }

    fn lease(&self) -> String {
        match self.lease_ended {
            Some(at) => format!("lease ended at {at}"),
            None => "lease ended".to_owned(),
        }
    }

    fn output(&self) -> String {
        match self.output_bytes_max {
            Some(most) => format!("output limit of {} reached", show_bytes(most)),
            None => "output limit reached".to_owned(),
        }
    }

    fn memory(&self) -> String {
        if self.is(|it| it.oom_above) {
            let killed = self.oom_killed();
            return format!("{NO_MEMORY_ABOVE} ({killed}). The command {}.", result(self.end));
        }
        let limit = self.evidence.and_then(|evidence| evidence.memory_limit_bytes);
        let limit = match (limit, self.subject) {
            (Some(limit), _) => format!("memory limit of {} reached", show_bytes(limit)),
            (None, Subject::Box) => "memory limit reached".to_owned(),
            (None, Subject::Exec) => "memory limit of its box reached".to_owned(),
        };
        let peak = self.evidence.and_then(|evidence| evidence.memory_peak_bytes);
        let peak = peak.map(|peak| format!("peak {}, ", show_bytes(peak))).unwrap_or_default();
        let seen = format!("{limit} ({peak}{})", self.oom_killed());
        if self.end.signal() == Some(SIGKILL) {
            format!("Killed by the kernel: {seen}.")
        } else {
            format!(
                "The kernel killed a process of the box: {seen}. The command {}.",
                result(self.end)
            )
        }
    }

    /// How many processes the kernel killed for memory, and which if its log says it.
    fn oom_killed(&self) -> String {
        let kills = self.evidence.and_then(|evidence| evidence.oom_kills).unwrap_or(1).max(1);
        let count = Plural(kills, "process killed", "processes killed");
        match self.evidence.map(|evidence| evidence.oom_killed.join(", ")) {
            Some(names) if !names.is_empty() => format!("{count}: {names}"),
            Some(_) | None => count.to_string(),
        }
    }

    fn pids(&self) -> String {
        format!("The kernel refused {}. The command {}.", self.refused(), result(self.end))
    }

    fn refused(&self) -> String {
        let evidence = self.evidence;
        let refused = evidence.and_then(|it| it.pids_refused).unwrap_or(1).max(1);
        let refused = Plural(refused, "new process", "new processes");
        if self.is(|it| it.pids_refused_above) {
            return format!("{refused}: process limit of a cgroup above the box reached");
        }
        match evidence.and_then(|it| it.pids_limit) {
            Some(limit) => format!("{refused}: process limit of {limit} reached"),
            None => format!("{refused}: process limit reached"),
        }
    }

    fn scratch_full(&self) -> String {
        let limit = self.evidence.and_then(|evidence| evidence.scratch_limit_bytes);
        let of = limit.map(|limit| format!(" of {}", show_bytes(limit))).unwrap_or_default();
        format!("The scratch space{of} was full. The command {}.", result(self.end))
    }

    fn stopped(&self) -> String {
        let by = self.by.map_or("a command of tare".to_owned(), ToString::to_string);
        if self.end.signal() == Some(SIGKILL) {
            format!("Stopped by {by}, and killed after its grace.")
        } else {
            format!("Stopped by {by}: the command {}.", result(self.end))
        }
    }

    fn killed(&self) -> String {
        match (self.by, self.failure, self.end.signal()) {
            (Some(by), _, _) => format!("Killed by {by}."),
            (None, Some(failure), _) => format!("Killed by tare: {failure}."),
            (None, None, Some(SIGKILL) | None) => "Killed by a command of tare.".to_owned(),
            (None, None, Some(signal)) => {
                format!("Killed by tare at the second signal, {}.", named(signal))
            }
        }
    }

    fn client_gone(&self) -> String {
        match self.lost_creator {
            Some(creator) => format!("Ended with its creator: {creator} was gone."),
            None => "Killed by tare: its client was gone.".to_owned(),
        }
    }

    fn keeper_lost(&self) -> String {
        match self.subject {
            Subject::Exec => "The box ended before the command did.".to_owned(),
            Subject::Box => format!(
                "The keeper ended without a report, not killed by tare{}: another process of the \
                 host killed the keeper or its whole cgroup.",
                self.no_oom()
            ),
        }
    }
}

const SIGKILL: i32 = 9;
/// A signal ends a command at once, unless the command handles or ignores it. Later, the same signal
/// may have come from another process.
const SIGNAL_WITHIN: Duration = Duration::from_secs(2);

/// A number of things, in words.
struct Plural(u64, &'static str, &'static str);

impl fmt::Display for Plural {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(number, one, many) = self;
        write!(f, "{number} {}", if *number == 1 { one } else { many })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOXES: &str = include_str!("../../../../docs/boxes.md");
    const README: &str = include_str!("../../../../README.md");

    fn words(hint: &Hint) -> String {
        let options = [
            (LimitName::Memory, "--memory"),
            (LimitName::Timeout, "--timeout"),
            (LimitName::Pids, "--pids"),
            (LimitName::Lease, "--lease"),
            (LimitName::Output, "--output-limit"),
            (LimitName::Scratch, "--scratch"),
        ];
        let option = options.into_iter().find(|(limit, _)| *hint == Hint::Raise(*limit));
        option.map_or_else(|| format!("{hint:?}"), |(_, option)| format!("Raise {option}."))
    }

    fn evidence() -> Evidence {
        Evidence {
            memory_limit_bytes: Some(64 << 20),
            memory_peak_bytes: Some(64 << 20),
            oom_kills: Some(0),
            pids_limit: Some(8),
            pids_refused: Some(0),
            scratch_limit_bytes: Some(4 << 20),
            ..Evidence::default()
        }
    }

    fn said(end: End, evidence: &Evidence, by: Option<&Actor>) -> String {
        let timeout = Some(Duration::from_secs(2));
        let of = Circumstances::of(end, Subject::Box);
        let circumstances = Circumstances { evidence: Some(evidence), by, timeout, ..of };
        circumstances.sentence().with_advice(words)
    }

    #[test]
    fn every_cause_has_a_sentence_and_a_row_in_the_documentation() {
        for cause in Cause::ALL {
            let text = said(End::killed(cause), &evidence(), None);
            assert!(text.len() > 10 && text.contains('.'), "{cause}: {text}");
            assert!(BOXES.contains(&format!("| `{cause}` | ")), "{cause} is not in docs/boxes.md");
        }
    }

    #[test]
    fn the_documentation_has_the_sentences_of_this_table() {
        let killed =
            Evidence { oom_kills: Some(1), oom_killed: vec!["python3".to_owned()], ..evidence() };
        let refused = Evidence { pids_refused: Some(1), ..evidence() };
        let user = |command: &str| Actor::Command {
            command: command.to_owned(),
            pid: 812,
            uid: 1000,
            user: Some("ann".to_owned()),
        };
        let (kill, remove, stop) =
            (user("tare kill -s SIGTERM"), user("tare rm -f"), user("tare stop"));
        let memory = said(End::of_command(9).under(killed.pressure()), &killed, None);
        assert_eq!(
            memory,
            "Killed by the kernel: memory limit of 64 MiB reached (peak 64 MiB, 1 process killed: \
             python3). Raise --memory."
        );
        let above = Evidence { oom_above: true, ..killed.clone() };
        let refused_above = Evidence { pids_refused_above: true, ..refused.clone() };
        let timeout = said(End::killed(Cause::Timeout), &evidence(), None);
        for sentence in [&memory, &timeout] {
            assert!(README.contains(sentence.as_str()), "{sentence}");
        }
        for sentence in [
            memory,
            timeout,
            said(End::of_command(3 << 8), &evidence(), None),
            said(End::of_command(15), &evidence(), Some(&kill)),
            said(End::of_command(9), &evidence(), None),
            said(End { cause: Cause::Stopped, ..End::of_command(15) }, &evidence(), Some(&stop)),
            said(End::killed(Cause::Killed), &evidence(), Some(&remove)),
            said(End::of_command(2 << 8).under(refused.pressure()), &refused, None),
            said(End::of_command(9).under(above.pressure()), &above, None),
            said(End::of_command(2 << 8).under(refused_above.pressure()), &refused_above, None),
            said(End::killed(Cause::KeeperLost), &evidence(), None),
            said(End::killed(Cause::ServerStopping), &evidence(), None),
            said(End::killed(Cause::HostRebooted), &evidence(), None),
            said(End::killed(Cause::MachineLost), &evidence(), None),
        ] {
            assert!(BOXES.contains(&sentence), "{sentence}");
        }
    }

    #[test]
    fn the_documentation_has_the_sentences_that_need_more_than_numbers() {
        let creator =
            Actor::Command { command: "tare run".to_owned(), pid: 812, uid: 0, user: None };
        let client = Actor::Http {
            key: Some("ci".to_owned()),
            client: "127.0.0.1:40112".to_owned(),
            route: "POST /v1/boxes/web/stop".to_owned(),
        };
        let (evidence, of) = (evidence(), |end| Circumstances::of(end, Subject::Box));
        let killed = |cause| of(End::killed(cause));
        let full = End { cause: Cause::ScratchFull, ..End::of_command(1 << 8) };
        for circumstances in [
            Circumstances {
                lease_ended: Some(Timestamp::from_ms(1_794_883_228_194)),
                ..killed(Cause::Lease)
            },
            Circumstances { output_bytes_max: Some(1 << 20), ..killed(Cause::OutputLimit) },
            Circumstances { by: Some(&client), ..killed(Cause::Stopped) },
            Circumstances { evidence: Some(&evidence), ..of(full) },
            Circumstances { lost_creator: Some(&creator), ..killed(Cause::ClientGone) },
            killed(Cause::ClientGone),
            Circumstances {
                failure: Some("cannot run nope in the box: there is no such program"),
                ..killed(Cause::StartFailed)
            },
        ] {
            let sentence = circumstances.sentence().with_advice(words);
            assert!(BOXES.contains(&format!("| {sentence} |")), "{sentence}");
        }
    }

    #[test]
    fn no_sentence_confuses_a_timeout_with_memory_or_memory_with_a_bare_exit_code() {
        let killed = Evidence { oom_kills: Some(1), ..evidence() };
        let timeout = said(End::killed(Cause::Timeout).under(killed.pressure()), &killed, None);
        assert!(timeout.starts_with("Killed by tare: timeout"), "{timeout}");
        for wait_status in [137 << 8, 256, 9, 6] {
            let end = End::of_command(wait_status).under(killed.pressure());
            let text = said(end, &killed, None);
            assert!(text.contains("memory limit of 64 MiB reached"), "{text}");
        }
        let success = said(End::of_command(0).under(killed.pressure()), &killed, None);
        assert!(success.contains("exited with 0") && success.contains("memory limit"), "{success}");
    }

    #[test]
    fn a_limit_is_named_only_if_the_box_has_reached_it() {
        let killed = Evidence { oom_kills: Some(1), oom_above: true, ..evidence() };
        let refused = Evidence { pids_refused: Some(1), pids_refused_above: true, ..evidence() };
        for (wait_status, evidence) in [(9, &killed), (0, &killed), (256, &refused)] {
            let text =
                said(End::of_command(wait_status).under(evidence.pressure()), evidence, None);
            assert!(text.contains("a cgroup above the box"), "{text}");
            assert!(!text.contains(" of 64 MiB") && !text.contains(" of 8"), "{text}");
            assert!(!text.contains("Raise"), "{text}");
        }
    }

    #[test]
    fn a_signal_that_tare_sent_long_before_is_not_named_as_the_one_that_ended_the_command() {
        let by = Actor::Server { pid: 7 };
        let text = |before: u64| {
            let asked_before = Some(Duration::from_millis(before));
            let of = Circumstances::of(End::of_command(15), Subject::Box);
            Circumstances { by: Some(&by), asked_before, ..of }.sentence().text
        };
        assert!(text(100).contains("sent by tare: 'tare serve' (pid 7)"), "{}", text(100));
        let late = text(40_700);
        assert!(late.contains("had sent this signal 40s earlier ('tare serve' (pid 7))"), "{late}");
        assert!(!late.contains("sent by tare"), "{late}");
    }

    #[test]
    fn nothing_is_said_about_kills_for_memory_where_the_kernel_does_not_count_them() {
        let text = said(End::of_command(9), &Evidence::default(), None);
        assert!(text.contains("not sent by tare:") && !text.contains("OOM"), "{text}");
    }
}
