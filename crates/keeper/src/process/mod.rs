//! Processes that were started over the box's socket, from the call to the end of
//! the last process that belongs to it.
//!
//! ```text
//! caller ──Exec──▶ Running ──it ended──────────────────────▶ gone
//!    │                   ├──timeout──────▶ Ending ─none────▶ gone
//!    │                   ├──client gone──▶ Ending ─left────▶ gone
//!    └─other calls       └──it ended,  ──▶ Ending ─────────▶ gone
//!                           as its client asked
//! ```

pub mod launch;
pub mod tree;

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::{Pid, WaitStatus};
use tare_control::events::{Happening, Name};
use tare_control::{
    Channel, Exec, ExecStreams, LaunchStep, Program, REPORT_BYTES_MAX, REQUEST_BYTES_MAX, Received,
    Refusal, Report, Request, Workload,
};
use tare_kernel::clock::boot_ns;
use tare_kernel::launch::signal_child;

use crate::detached::Detached;
use crate::make::{Failure, terminal};
use crate::process::launch::{Birth, Streams};
use crate::process::tree::Mark;
use crate::programs::file;
use crate::programs::tar;

/// How many processes a keeper looks after for others at once.
const EXECUTIONS_MAX: usize = 256;

/// What a process is started with that is the box's.
#[derive(Debug)]
pub struct Surroundings<'a> {
    pub template: &'a Workload,
    pub cgroup: Option<&'a OwnedFd>,
    pub detached: Option<&'a Detached>,
}

/// One process that was started for a client.
#[derive(Debug)]
pub struct Execution {
    /// `None`: it does not need its client.
    channel: Option<Channel>,
    pid: Pid,
    mark: Option<Mark>,
    deadline_ns: Option<u64>,
    stage: Stage,
    /// Its client has sent a signal that asks it to end: its tree ends with it.
    asked_to_end: bool,
    /// Under which it is known in the account of the box's life.
    pub number: u32,
    end: Option<Ending>,
}

/// How it came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Itself { wait_status: i32 },
    Timeout,
    HungUp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Stage {
    Running,
    /// Everyone of its tree is being killed; then this is said.
    Ending(Option<Report>),
    Over,
}

impl Execution {
    pub fn pid(&self) -> Pid {
        self.pid
    }

    pub fn channel(&self) -> Option<&Channel> {
        self.channel.as_ref()
    }

    pub fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    pub fn is_ending(&self) -> bool {
        matches!(self.stage, Stage::Ending(_))
    }

    /// What there is to be written down when it is over.
    pub fn happened(&self) -> Option<Happening> {
        let process = self.number;
        self.end.map(|end| match end {
            Ending::Itself { wait_status } => Happening::Ended { process, wait_status },
            Ending::Timeout => Happening::TimedOut { process },
            Ending::HungUp => Happening::HungUp { process },
        })
    }

    pub fn deadline_ns(&self) -> Option<u64> {
        match self.stage {
            Stage::Running => self.deadline_ns,
            Stage::Ending(_) | Stage::Over => None,
        }
    }

    /// Its own end is reported at once, and what it started in the background stays,
    /// as part of the box. Where its client asked it to end, its tree ends first.
    pub fn ended(&mut self, status: WaitStatus) {
        match &self.stage {
            Stage::Running => {
                let wait_status = status.as_raw();
                self.end = Some(Ending::Itself { wait_status });
                let report = Report::Exited { wait_status };
                if self.asked_to_end && self.mark.is_some() {
                    self.stage = Stage::Ending(Some(report));
                    self.go_on_ending();
                } else {
                    self.conclude(Some(&report));
                }
            }
            // It was alone: nobody is left.
            Stage::Ending(report) if self.mark.is_none() => self.conclude(report.clone().as_ref()),
            Stage::Ending(_) | Stage::Over => {}
        }
    }

    /// What its client wants.
    pub fn obey(&mut self) {
        let Some(channel) = &mut self.channel else {
            return;
        };
        let mut heard = channel.receive_in_turn(REQUEST_BYTES_MAX);
        loop {
            match heard {
                Received::Message(Request::Signal(signal)) => {
                    self.asked_to_end |= ASKING.contains(&signal);
                    signal_running(&self.stage, self.pid, signal);
                }
                Received::Message(Request::Go | Request::Detach) => {}
                Received::Nothing => return,
                Received::Closed => break,
            }
            heard = channel.buffered(REQUEST_BYTES_MAX);
        }
        self.channel = None;
        self.end(Ending::HungUp, None);
    }

    pub fn signal(&self, signal: i32) {
        signal_running(&self.stage, self.pid, signal);
    }

    pub fn time_out(&mut self) {
        self.end(Ending::Timeout, Some(Report::TimedOut));
    }

    fn end(&mut self, end: Ending, report: Option<Report>) {
        if self.stage != Stage::Running {
            return;
        }
        self.end = Some(end);
        // It is our unreaped child: the number is its own. Its end follows.
        signal_child(self.pid, SIGKILL).ok();
        self.stage = Stage::Ending(report);
        self.go_on_ending();
    }

    /// One more round of killing; nobody left to kill is the end.
    pub fn go_on_ending(&mut self) {
        if let (Stage::Ending(report), Some(mark)) = (&self.stage, &mut self.mark)
            && mark.kill_all().unwrap_or(false)
        {
            self.conclude(report.clone().as_ref());
        }
    }

    fn conclude(&mut self, report: Option<&Report>) {
        if let (Some(report), Some(channel)) = (report, &self.channel) {
            channel.report(report);
        }
        self.stage = Stage::Over;
    }
}

const SIGKILL: i32 = 9;
/// SIGHUP, SIGINT, SIGQUIT and SIGTERM.
const ASKING: [i32; 4] = [1, 2, 3, 15];

/// While it runs it is not reaped, and the number is its own.
fn signal_running(stage: &Stage, pid: Pid, signal: i32) {
    if *stage == Stage::Running {
        signal_child(pid, signal).ok();
    }
}

/// What a call is about, as far as it is written down.
#[derive(Debug)]
pub enum Subject {
    Command(Name),
    CopyIn,
    CopyOut,
}

pub fn subject_of(exec: &Exec) -> Subject {
    match &exec.program {
        Program::Command(argv) => {
            Subject::Command(Name::of(argv.first().map_or(b"", |program| program)))
        }
        Program::Pack(_) | Program::PackFiles(_) | Program::Read(_) | Program::List(_) => {
            Subject::CopyOut
        }
        Program::Unpack(_) | Program::Write(_) | Program::Remove(_) => Subject::CopyIn,
    }
}

/// What is written down of a start, or of one that failed.
pub fn begun(process: u32, subject: Subject, started: bool) -> Happening {
    match (subject, started) {
        (Subject::Command(name), true) => Happening::ExecStarted { process, name },
        (Subject::Command(name), false) => Happening::ExecFailed { process, name },
        (Subject::CopyIn, true) => Happening::CopyIn { process },
        (Subject::CopyOut, true) => Happening::CopyOut { process },
        (Subject::CopyIn | Subject::CopyOut, false) => {
            Happening::ExecFailed { process, name: Name::of(b"cp") }
        }
    }
}

/// Starts what a client asked for; what could not be done is said to it.
pub fn start(
    mut channel: Channel,
    exec: Exec,
    around: &Surroundings<'_>,
    running: usize,
) -> Option<Execution> {
    if running >= EXECUTIONS_MAX {
        channel.report(&Report::Refused(Refusal::Busy));
        return None;
    }
    let (workload, needs_client) =
        (workload_of(&exec, around.template), exec.streams != ExecStreams::Log);
    let passed = channel.take_passed();
    let begun = streams_of(exec.streams, passed, &workload, &channel, around)
        .and_then(|streams| begin(exec.program, &workload, streams, around));
    match begun {
        Ok((pid, mark)) => {
            channel.report(&Report::Started);
            Some(Execution {
                channel: needs_client.then_some(channel),
                pid,
                mark,
                deadline_ns: exec.timeout_ns.map(|left| boot_ns().saturating_add(left)),
                stage: Stage::Running,
                asked_to_end: false,
                number: 0,
                end: None,
            })
        }
        Err(report) => {
            channel.report(&report);
            None
        }
    }
}

/// The box's command with another program, and what else the client wants.
fn workload_of(exec: &Exec, template: &Workload) -> Workload {
    let mut workload = template.clone();
    workload.env = merged(&template.env, &exec.env);
    if let Some(workdir) = &exec.workdir {
        workload.workdir.clone_from(workdir);
    }
    // With containment only nobody's ids change.
    if let (Some(_), Some(identity)) = (workload.identity, exec.identity) {
        workload.identity = Some(identity);
    }
    if let Program::Command(argv) = &exec.program {
        workload.argv.clone_from(argv);
    }
    workload
}

/// `KEY=VALUE` each; the later wins.
fn merged(first: &[Vec<u8>], second: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let later: BTreeSet<&[u8]> = second.iter().map(|pair| key(pair)).collect();
    let kept = first.iter().filter(|pair| !later.contains(key(pair)));
    kept.chain(second).cloned().collect()
}

fn key(pair: &[u8]) -> &[u8] {
    let end = pair.iter().position(|byte| *byte == b'=');
    &pair[..end.unwrap_or(pair.len())]
}

fn streams_of(
    wanted: ExecStreams,
    passed: Vec<OwnedFd>,
    workload: &Workload,
    channel: &Channel,
    around: &Surroundings<'_>,
) -> Result<Streams, Report> {
    match wanted {
        ExecStreams::Passed => match passed.try_into() {
            Ok(streams) => Ok(Streams::Given(streams)),
            Err(_) => Err(Report::Refused(Refusal::Malformed)),
        },
        ExecStreams::Terminal(plan) => {
            let pair = terminal::open(plan, workload.identity).map_err(Failure::into_report)?;
            let sent = channel.send(&Report::Terminal, REPORT_BYTES_MAX, &[pair.master.as_fd()]);
            match sent {
                Ok(()) => Ok(Streams::Terminal(pair.slave)),
                Err(_) => Err(Report::Refused(Refusal::Malformed)),
            }
        }
        ExecStreams::Log => match around.detached {
            Some(detached) => detached.for_exec().map_err(Failure::into_report),
            None => Err(Report::Refused(Refusal::NoLog)),
        },
    }
}

fn begin(
    program: Program,
    workload: &Workload,
    streams: Streams,
    around: &Surroundings<'_>,
) -> Result<(Pid, Option<Mark>), Report> {
    let birth = Birth { workload, streams, cgroup: around.cgroup.map(AsFd::as_fd) };
    let own = |own: &dyn Fn() -> u8| launch::start_own(&birth, own).map(|pid| (pid, None));
    match program {
        Program::Command(_) => match Mark::during(|| launch::start(&birth)) {
            Ok((started, mark)) => started.map(|pid| (pid, Some(mark))),
            Err(error) => Err(launch::launch_failed((LaunchStep::Mark, error))),
        },
        Program::Pack(path) => own(&|| tar::pack(&path)),
        Program::PackFiles(path) => own(&|| tar::pack_files(&path)),
        Program::Unpack(path) => own(&|| tar::unpack(&path)),
        Program::Read(path) => own(&|| file::read(&path)),
        Program::List(path) => own(&|| file::list(&path)),
        Program::Write(path) => own(&|| file::write(&path)),
        Program::Remove(path) => own(&|| file::remove(&path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_variable_replaces_an_earlier_one_of_its_name_only() {
        let pairs = |texts: &[&str]| -> Vec<Vec<u8>> {
            texts.iter().map(|text| text.as_bytes().to_vec()).collect()
        };
        let first = pairs(&["A=1", "AB=2", "C=x=y"]);
        let second = pairs(&["A=3", "D=4"]);
        assert_eq!(merged(&first, &second), pairs(&["AB=2", "C=x=y", "A=3", "D=4"]));
    }
}
