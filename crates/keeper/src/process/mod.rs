//! Executions: processes that a keeper starts, from the request to the end of the last
//! process that belongs to one. The box's command is the first of them; its end ends the
//! box. All others are execs of clients.
//!
//! ```text
//! Exec ──▶ Running ──it ended──────────────────────────▶ Over
//!             ├──timeout, client gone──▶ Ending ─none──▶ Over
//!             └──it ended, as its   ───▶ Ending ─left──▶ Over
//!                client asked
//! ```
//!
//! The tree of the box's command is the whole box, so nothing is killed here when it ends.

pub mod clone;
pub mod launch;
pub mod tree;

use std::os::fd::{AsFd, OwnedFd};

use rustix::process::{Pid, WaitStatus};
use tare_control::journal::{BoxEvent, Name};
use tare_control::{
    AtEnd, Cause, Channel, End, Exec, ExecStreams, LaunchStep, Profile, Program, REPORT_BYTES_MAX,
    REQUEST_BYTES_MAX, Received, Refusal, Report, Request,
};
use tare_kernel::clock::boot_ns;
use tare_kernel::launch::signal_child;
use tare_kernel::step::step;

use crate::make::{Failing, Failure, terminal};
use crate::output::{Output, Streams};
use crate::process::clone::WaitingClone;
use crate::process::launch::{Launch, identity};
use crate::process::tree::TreeMark;
use crate::programs::{file, tar};

const SIGKILL: i32 = 9;
/// How long the keeper in a machine may take to kill the tree of an exec whose timeout has passed.
const KILLED_IN_MACHINE_WITHIN_NS: u64 = 5_000_000_000;
/// How the journal calls a clone.
const CLONE_NAME: &[u8] = b"clone";
/// How the journal calls a copy that could not be started.
const COPY_NAME: &[u8] = b"cp";
/// The signals that ask a process to end: SIGHUP, SIGINT, SIGQUIT and SIGTERM.
const ASKING: [i32; 4] = [1, 2, 3, 15];
/// The signals that a process ignores unless it handles them: SIGCHLD, SIGCONT, SIGURG and SIGWINCH.
const IGNORED: [i32; 4] = [17, 18, 23, 28];

/// The settings with which every process of the box is started.
#[derive(Debug)]
pub struct ExecContext {
    pub profile: Profile,
    /// The cgroup of the workload, if it has its own.
    pub cgroup: Option<OwnedFd>,
    /// The cgroup v1 `tasks` file that every process of the workload joins.
    pub tasks: Option<OwnedFd>,
    /// The log of a detached box.
    pub output: Option<Output>,
    /// The clone of a template, until it is started.
    pub clone: Option<WaitingClone>,
    /// The memory at the start of the machine that the box is in. The kernel of a machine counts for
    /// this box alone.
    pub machine_bytes: Option<u64>,
}

/// A process that the keeper started, and every process that it started in turn.
#[derive(Debug)]
pub struct Execution {
    what: Executed,
    /// The client, or the creator of the box. `None` if the process does not need one.
    channel: Option<Channel>,
    deadline_ns: Option<u64>,
    /// In a machine: how many processes its kernel had killed for memory at the start.
    oom_kills_before: Option<u64>,
    stage: Stage,
    pub ends_box: bool,
    /// What happens at its end, if it has got its work after its start.
    pub at_end: AtEnd,
    /// The client has sent a signal that asks the process to end: its tree ends with it.
    asked_to_end: bool,
    /// Its number in the journal.
    pub number: u32,
    /// It is a program of tare that copies files.
    pub is_copy: bool,
    end: Option<End>,
}

/// The program that an execution executes.
#[derive(Debug)]
enum Executed {
    /// The entry of a box without a command.
    Nothing,
    /// A child of the keeper. One that ends the box, and a copy, have no mark for their trees.
    Child {
        pid: Pid,
        mark: Option<TreeMark>,
    },
    InMachine(Box<Remote>),
}

/// A process that the keeper in the machine starts.
#[derive(Debug)]
pub struct Remote {
    /// The connection to that keeper, once there is one.
    pub channel: Option<Channel>,
    /// Its request as the keeper in the machine gets it, until the machine is ready.
    waiting: Option<(Vec<u8>, Vec<OwnedFd>)>,
    /// For the journal, without what the journal does not need. `None` for the entry of a box without a
    /// command.
    program: Option<Program>,
    /// Counts from its start.
    pub timeout_ns: Option<u64>,
    pub started: bool,
    /// The keeper in the machine found the scratch space full.
    pub scratch_full: bool,
    /// It was asked for a terminal, which has not come yet.
    awaits_terminal: bool,
    /// Its output goes to the log: once it has started, it does not need its client.
    pub outlives_client: bool,
}

impl Remote {
    pub fn about(exec: Option<&Exec>) -> Self {
        Self {
            channel: None,
            program: exec.map(|exec| in_short(&exec.program)),
            awaits_terminal: matches!(exec, Some(Exec { streams: ExecStreams::Terminal(_), .. })),
            timeout_ns: exec.and_then(|exec| exec.timeout_ns),
            waiting: None,
            started: false,
            scratch_full: false,
            outlives_client: false,
        }
    }

    pub fn waiting(self, first: Vec<u8>, passed: Vec<OwnedFd>) -> Self {
        Self { waiting: Some((first, passed)), ..self }
    }

    /// Returns whether a terminal may come now.
    pub fn take_terminal(&mut self) -> bool {
        std::mem::take(&mut self.awaits_terminal)
    }

    pub fn take_waiting(&mut self) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
        self.waiting.take()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Stage {
    Running,
    /// Every process of its tree is being killed. Afterwards the keeper sends this report. The keeper in
    /// a machine kills a tree there.
    Ending(Option<Report>),
    Over,
}

/// Starts a process in the box; no other function does. Sends the master side of a terminal to the
/// client. The caller reports whether the process started.
pub fn start(
    client: &mut Channel,
    exec: &Exec,
    context: &mut ExecContext,
    ends_box: bool,
) -> Result<Execution, Report> {
    let streams = streams_of(client, exec, context, ends_box)?;
    let oom_kills_before = context.machine_bytes.map(|_| oom_kills());
    let cgroup = context.cgroup.as_ref().map(AsFd::as_fd);
    let tasks = context.tasks.as_ref().map(AsFd::as_fd);
    let launch = Launch { profile: &context.profile, exec, streams, cgroup, tasks, passed: &[] };
    let (pid, mark) = match (&exec.program, context.clone.take()) {
        (Program::Clone, Some(clone)) => (clone.start(&launch)?, None),
        (_, clone) => {
            context.clone = clone;
            begin(&launch, ends_box)?
        }
    };
    Ok(Execution {
        what: Executed::Child { pid, mark },
        deadline_ns: exec.timeout_ns.map(|left| boot_ns().saturating_add(left)),
        oom_kills_before,
        ends_box,
        ..Execution::without_command()
    })
}

impl Execution {
    /// Makes the entry of a box without a command. Until the box is detached, it ends with its
    /// creator.
    pub fn without_command() -> Self {
        Self {
            what: Executed::Nothing,
            channel: None,
            deadline_ns: None,
            oom_kills_before: None,
            stage: Stage::Running,
            ends_box: true,
            at_end: AtEnd::Nothing,
            asked_to_end: false,
            number: 0,
            is_copy: false,
            end: None,
        }
    }

    /// Makes the entry of a process in the machine.
    pub fn in_machine(remote: Remote, ends_box: bool) -> Self {
        let is_copy = remote.program.as_ref().is_some_and(Program::is_copy);
        Self {
            what: Executed::InMachine(Box::new(remote)),
            ends_box,
            is_copy,
            ..Self::without_command()
        }
    }

    fn remote(&self) -> Option<&Remote> {
        if let Executed::InMachine(remote) = &self.what { Some(remote) } else { None }
    }

    pub fn remote_mut(&mut self) -> Option<&mut Remote> {
        if let Executed::InMachine(remote) = &mut self.what { Some(remote) } else { None }
    }

    fn mark_mut(&mut self) -> Option<&mut TreeMark> {
        if let Executed::Child { mark, .. } = &mut self.what { mark.as_mut() } else { None }
    }

    /// Returns the size of the request that waits for the machine.
    pub fn waiting_bytes(&self) -> usize {
        self.remote().and_then(|remote| remote.waiting.as_ref()).map_or(0, |(first, _)| first.len())
    }

    /// Returns the connection to the keeper in the machine.
    pub fn remote_channel(&self) -> Option<&Channel> {
        self.remote()?.channel.as_ref()
    }

    pub fn remote_channel_mut(&mut self) -> Option<&mut Channel> {
        self.remote_mut()?.channel.as_mut()
    }

    pub fn has_started(&self) -> bool {
        self.remote().is_some_and(|remote| remote.started)
    }

    /// Handles the end that the keeper in the machine reports.
    pub fn ended_in_machine(&mut self, end: End) {
        if let Some(remote) = self.remote_mut() {
            remote.channel = None;
        }
        match &self.stage {
            Stage::Running => {
                self.end = Some(end);
                if self.ends_box {
                    self.stage = Stage::Over;
                } else {
                    self.conclude(Some(&Report::Ended(end)));
                }
            }
            Stage::Ending(report) => self.conclude(report.clone().as_ref()),
            Stage::Over => {}
        }
    }

    pub fn refuse(&mut self, refusal: Refusal) {
        self.conclude(Some(&Report::Refused(refusal)));
    }

    /// The process did not start, and its client knows.
    pub fn forget(&mut self) {
        self.stage = Stage::Over;
    }

    /// Returns the event of the start of a process in the machine for the journal.
    pub fn begun(&self, started: bool) -> Option<BoxEvent> {
        let program = self.remote()?.program.as_ref()?;
        Some(begun(self.number, program, started))
    }

    /// The execution ends when this client hangs up.
    pub fn for_client(self, client: Channel) -> Self {
        Self { channel: Some(client), ..self }
    }

    /// The execution no longer needs its client.
    pub fn release_client(&mut self) {
        self.channel = None;
    }

    pub fn is(&self, pid: Pid) -> bool {
        matches!(self.what, Executed::Child { pid: own, .. } if own == pid)
    }

    pub fn has_process(&self) -> bool {
        match &self.what {
            Executed::Nothing => false,
            Executed::Child { .. } => true,
            Executed::InMachine(remote) => remote.program.is_some(),
        }
    }

    pub fn channel(&self) -> Option<&Channel> {
        self.channel.as_ref()
    }

    pub fn channel_mut(&mut self) -> Option<&mut Channel> {
        self.channel.as_mut()
    }

    pub fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// Returns whether its tree has to be killed once more, soon.
    pub fn is_ending(&self) -> bool {
        matches!(self.stage, Stage::Ending(_)) && self.remote().is_none()
    }

    /// Returns how the box ends, if this execution ends it.
    pub fn end_of_box(&self) -> Option<End> {
        let ends_box = self.ends_box || (self.at_end == AtEnd::EndBox && self.is_over());
        self.end.filter(|_| ends_box)
    }

    /// Returns the event of its end for the journal.
    pub fn happened(&self) -> Option<BoxEvent> {
        let process = self.number;
        self.end.map(|End { cause, wait_status, .. }| {
            if self.is_copy {
                BoxEvent::CopyEnded { process, wait_status, cause }
            } else {
                BoxEvent::ExecEnded { process, wait_status, cause }
            }
        })
    }

    pub fn deadline_ns(&self) -> Option<u64> {
        match self.stage {
            Stage::Running => self.deadline_ns,
            Stage::Ending(_) => self.deadline_ns.filter(|_| self.remote().is_some()),
            Stage::Over => None,
        }
    }

    pub fn end_at(&mut self, at_ns: u64) {
        self.deadline_ns = Some(at_ns);
    }

    /// Returns the next request of the client, after at most one read.
    pub fn receive(&mut self) -> Received<Request> {
        let channel = self.channel.as_mut();
        channel.map_or(Received::Nothing, |one| one.receive_in_turn(REQUEST_BYTES_MAX))
    }

    /// Returns the next request that was read before.
    pub fn receive_buffered(&mut self) -> Received<Request> {
        let channel = self.channel.as_mut();
        channel.map_or(Received::Nothing, |one| one.buffered(REQUEST_BYTES_MAX))
    }

    /// Handles the end of the process, which was reaped. Reports the end at once; background
    /// processes that it started stay in the box. If the client asked it to end, its tree is killed
    /// first. `is_stopped`: a stop of the box went to its execs.
    pub fn ended(&mut self, status: WaitStatus, is_stopped: bool) {
        let mut end = End::of_command(status.as_raw());
        end.oom = self.oom_kills_before.is_some_and(|before| oom_kills() > before);
        if is_stopped && !self.ends_box && !self.is_copy {
            end.cause = Cause::Stopped;
        }
        let report = Report::Ended(end);
        let has_mark = self.mark_mut().is_some();
        match &self.stage {
            Stage::Running => {
                self.end = Some(end);
                if self.ends_box {
                    self.stage = Stage::Over;
                } else if self.asked_to_end && has_mark {
                    self.stage = Stage::Ending(Some(report));
                    self.kill_again();
                } else {
                    self.conclude(Some(&report));
                }
            }
            // It has no tree, so nothing is left to kill.
            Stage::Ending(report) if !has_mark => {
                let report = report.clone();
                // A copy that failed closes its streams before it has exited, and its client hangs up
                // at once. So the copy had ended by itself, unless the signal was faster.
                if end.signal() != Some(SIGKILL) {
                    self.end = Some(end);
                }
                self.conclude(report.as_ref());
            }
            Stage::Ending(_) | Stage::Over => {}
        }
    }

    /// Tells the client of a failed command that the scratch space is full. The box's own command has
    /// the whole end of the box for that.
    pub fn report_full_scratch(&self) {
        if let (false, false, Some(client)) = (self.ends_box, self.is_copy, &self.channel) {
            client.report(&Report::ScratchFull);
        }
    }

    /// Tells the client that the process has left no files.
    pub fn report_empty_home(&self) {
        self.channel.iter().for_each(|client| client.report(&Report::HomeEmpty));
    }

    /// Passes on a signal from its own client.
    pub fn signal_from_client(&mut self, signal: i32) {
        self.asked_to_end |= ASKING.contains(&signal);
        self.signal(signal);
    }

    /// Sends a signal to the process. While it is running it is not reaped, so its pid is its own.
    pub fn signal(&mut self, signal: i32) {
        if self.stage != Stage::Running {
            return;
        }
        match &self.what {
            Executed::Nothing => {}
            Executed::Child { pid, .. } => {
                // A process that has just ended needs no signal.
                step("signal a process", || signal_child(*pid, signal)).ok();
            }
            Executed::InMachine(remote) => match &remote.channel {
                Some(channel) => {
                    channel.send(&Request::Signal(signal), REQUEST_BYTES_MAX, &[]).ok();
                }
                None if IGNORED.contains(&signal) => {}
                // The machine is not ready, so the signal ends a process that has not begun.
                None => {
                    let end = End::of_command(signal);
                    self.end(end, Some(Report::Ended(end)));
                }
            },
        }
    }

    pub fn time_out(&mut self) {
        if let Stage::Ending(report) = &self.stage {
            // The machine has not answered in time. It kills the tree of a process whose client is gone.
            let report = report.clone();
            self.remote_mut().into_iter().for_each(|remote| remote.channel = None);
            return self.conclude(report.as_ref());
        }
        let end = End::killed(Cause::Timeout);
        self.end(end, Some(Report::Ended(end)));
    }

    /// Ends the execution because its client is gone.
    pub fn hang_up(&mut self) {
        self.channel = None;
        self.end(End::killed(Cause::ClientGone), None);
    }

    fn end(&mut self, end: End, report: Option<Report>) {
        if self.stage != Stage::Running {
            return;
        }
        self.end = Some(end);
        if self.ends_box {
            self.stage = Stage::Over;
            return;
        }
        if let Executed::InMachine(remote) = &mut self.what {
            let at_once = Request::Deadline { at_ns: 0 };
            let asked = remote.channel.as_ref().filter(|_| report.is_some());
            if asked.is_some_and(|it| it.send(&at_once, REQUEST_BYTES_MAX, &[]).is_ok()) {
                self.deadline_ns = Some(boot_ns().saturating_add(KILLED_IN_MACHINE_WITHIN_NS));
                self.stage = Stage::Ending(report);
                return;
            }
            // The keeper in the machine kills the tree of a process whose client is gone.
            (remote.channel, remote.waiting) = (None, None);
            return self.conclude(report.as_ref());
        }
        self.signal(SIGKILL);
        self.stage = Stage::Ending(report);
        self.kill_again();
    }

    /// Kills the tree of an execution that is ending, once more. The execution is over when nothing
    /// is left to kill.
    pub fn kill_again(&mut self) {
        let Stage::Ending(report) = self.stage.clone() else { return };
        if self.mark_mut().is_some_and(|mark| mark.kill_all().unwrap_or(false)) {
            self.conclude(report.as_ref());
        }
    }

    fn conclude(&mut self, report: Option<&Report>) {
        if let (Some(report), Some(channel)) = (report, &self.channel) {
            channel.report(report);
        }
        self.stage = Stage::Over;
    }
}

/// Returns how many processes the kernel has killed for memory.
fn oom_kills() -> u64 {
    let counters = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let killed = counters.lines().find_map(|line| line.strip_prefix("oom_kill "));
    killed.and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// Returns what the journal needs of a program. The rest may be large.
fn in_short(program: &Program) -> Program {
    match program {
        Program::Command(argv) => {
            let name = Name::of(argv.first().map_or(&b""[..], Vec::as_slice));
            Program::Command(vec![name.to_string().into_bytes()])
        }
        Program::Pack(_) => Program::Pack(Vec::new()),
        Program::PackFiles(_) => Program::PackFiles(Vec::new()),
        Program::Unpack(_) => Program::Unpack(Vec::new()),
        Program::Read(_) => Program::Read(Vec::new()),
        Program::List(_) => Program::List(Vec::new()),
        Program::Write(_) => Program::Write(Vec::new()),
        Program::Remove(_) => Program::Remove(Vec::new()),
        Program::Clone => Program::Clone,
    }
}

/// Returns the event of a start, or of a failed start, for the journal.
pub fn begun(process: u32, program: &Program, started: bool) -> BoxEvent {
    let failed = |name: &[u8]| BoxEvent::ExecFailed { process, name: Name::of(name) };
    match (program, started) {
        (Program::Command(argv), _) => {
            let program = argv.first().map_or(&b""[..], Vec::as_slice);
            if started {
                BoxEvent::ExecStarted { process, name: Name::of(program) }
            } else {
                failed(program)
            }
        }
        (Program::Clone, true) => BoxEvent::ExecStarted { process, name: Name::of(CLONE_NAME) },
        (Program::Clone, false) => failed(CLONE_NAME),
        (Program::Unpack(_) | Program::Write(_) | Program::Remove(_), _) => {
            if started {
                BoxEvent::CopyIn { process }
            } else {
                failed(COPY_NAME)
            }
        }
        (Program::Pack(_) | Program::PackFiles(_) | Program::Read(_) | Program::List(_), _) => {
            if started {
                BoxEvent::CopyOut { process }
            } else {
                failed(COPY_NAME)
            }
        }
    }
}

/// Returns the streams of a new process.
pub fn streams_of(
    client: &mut Channel,
    exec: &Exec,
    context: &mut ExecContext,
    ends_box: bool,
) -> Result<Streams, Report> {
    let owner = identity(&context.profile, exec);
    let malformed = || Report::Refused(Refusal::Malformed);
    match (exec.streams, &mut context.output) {
        (ExecStreams::Passed, _) => {
            client.take_passed().try_into().map(Streams::Given).map_err(|_| malformed())
        }
        (ExecStreams::Inherited, _) if ends_box => Ok(Streams::Keepers),
        (ExecStreams::Inherited, _) => Err(malformed()),
        (ExecStreams::Terminal(plan), output) => {
            let pair = terminal::open(plan, owner).map_err(Failure::into_report)?;
            let taken = match output {
                // The keeper reads the terminal of a detached box's command itself.
                Some(output) if ends_box => output.watch_terminal(pair.master),
                Some(_) | None => {
                    client.send(&Report::Terminal, REPORT_BYTES_MAX, &[pair.master.as_fd()])
                }
            };
            taken.map(|()| Streams::Terminal(pair.slave)).map_err(|_| malformed())
        }
        (ExecStreams::Log { keep_stdin }, Some(output)) => output
            .streams(keep_stdin && ends_box, owner)
            .failing(tare_control::SetupStep::Streams, "log")
            .map_err(Failure::into_report),
        (ExecStreams::Log { .. }, None) => Err(Report::Refused(Refusal::NoLog)),
    }
}

fn begin(launch: &Launch<'_>, ends_box: bool) -> Result<(Pid, Option<TreeMark>), Report> {
    let in_box = |program: &dyn Fn() -> u8| {
        launch::start_in_box_program(launch, program).map(|pid| (pid, None))
    };
    match &launch.exec.program {
        Program::Command(argv) if ends_box => launch::start(launch, argv).map(|pid| (pid, None)),
        Program::Command(argv) => match TreeMark::during(|| launch::start(launch, argv)) {
            Ok((started, mark)) => started.map(|pid| (pid, Some(mark))),
            Err(error) => Err(launch::launch_failed((LaunchStep::Mark, error))),
        },
        Program::Clone => Err(Report::Refused(Refusal::Malformed)),
        Program::Pack(path) => in_box(&|| tar::pack(path)),
        Program::PackFiles(path) => in_box(&|| tar::pack_files(path)),
        Program::Unpack(path) => in_box(&|| tar::unpack(path)),
        Program::Read(path) => in_box(&|| file::read(path)),
        Program::List(path) => in_box(&|| file::list(path)),
        Program::Write(path) => in_box(&|| file::write(path)),
        Program::Remove(path) => in_box(&|| file::remove(path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_signal_that_would_end_it_ends_a_process_that_waits_for_its_machine() {
        for (signal, ends) in [(28, false), (18, false), (17, false), (23, false), (15, true)] {
            let mut waiting = Execution::in_machine(Remote::about(None), true);
            waiting.signal(signal);
            assert_eq!(waiting.end_of_box().is_some(), ends, "signal {signal}");
        }
    }
}
