//! Executions in the machine of the box. The keeper in the machine starts them and reports to this
//! keeper, which reports to the client.
//!
//! The machine is untrusted. This keeper takes only the wait status of an end from it, and whether memory
//! ran out, and enforces the timeouts itself. A report that does not belong to its execution ends that execution as lost.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use tare_control::journal::BoxEvent;
use tare_control::{
    CALL_BYTES_MAX, Call, Cause, Channel, End, Exec, ExecStreams, Go, KeeperUsage, Pressure,
    REPORT_BYTES_MAX, Received, Refusal, Report, Request, Versioned, encode,
};
use tare_kernel::clock::boot_ns;

use crate::cgroup::Freezer;
use crate::make::Failure;
use crate::output::Streams;
use crate::process::{self, Execution, Remote, launch};
use crate::serve::Supervisor;

/// How long a machine may take to say what its box uses.
const USAGE_WITHIN_NS: u64 = 1_000_000_000;
/// How many clients wait for that at once. Others learn only what the host knows.
const USAGE_CALLS_MAX: usize = 16;
/// The most turns of the relay that deliver what a machine sent before it ended, and how long they may
/// take: the box is not ended meanwhile.
const LAST_TURNS_MAX: usize = 1024;
const LAST_WITHIN_NS: u64 = 200_000_000;
/// The most memory for the requests that wait for a machine. One has 4 MiB at most.
const WAITING_BYTES_MAX: usize = 8 << 20;

/// A client that waits until the machine says what the box uses.
#[derive(Debug)]
pub struct UsageCall {
    client: Channel,
    /// The connection to the keeper in the machine.
    pub machine: Channel,
    pub until_ns: u64,
}

impl Supervisor {
    /// Asks the machine what the box uses, and lets the client wait for the answer. A machine that is
    /// paused or not ready does not answer.
    pub fn ask_for_usage(&mut self, client: Channel) {
        let is_frozen = self.freezer.as_ref().is_some_and(Freezer::is_frozen);
        let is_free = !is_frozen && self.usage_calls.len() < USAGE_CALLS_MAX;
        let machine = self.machine.as_mut().filter(|machine| is_free && machine.is_ready());
        let connected = machine.and_then(|machine| {
            let call = encode(&Versioned::new(Call::Usage), CALL_BYTES_MAX).ok()?;
            machine.connect(&call, Vec::new()).ok()
        });
        match connected {
            Some(machine) => {
                let until_ns = boot_ns().saturating_add(USAGE_WITHIN_NS);
                self.usage_calls.push(UsageCall { client, machine, until_ns });
            }
            None => client.report(&Report::Usage(self.usage())),
        }
    }

    /// Answers the clients whose machine has answered, or has not in time.
    fn read_usage(&mut self) {
        let own = self.usage();
        self.usage_calls.retain_mut(|call| match call.machine.receive(REPORT_BYTES_MAX) {
            Received::Message(Report::MachineUsage { usage, processes, given_back_bytes }) => {
                let usage = KeeperUsage { scratch_bytes: usage.scratch_bytes, ..own };
                call.client.report(&Report::MachineUsage { usage, processes, given_back_bytes });
                false
            }
            Received::Nothing if boot_ns() < call.until_ns => true,
            Received::Message(_) | Received::Nothing | Received::Closed => {
                call.client.report(&Report::Usage(own));
                false
            }
        });
    }

    /// Makes the command wait until the machine is ready. A box without a command waits too.
    pub fn await_machine(
        &mut self,
        creator: &mut Channel,
        exec: Option<Exec>,
    ) -> Result<Execution, Report> {
        let (exec, passed) = match exec {
            Some(exec) => {
                let (exec, passed) = self.for_machine(creator, exec, true)?;
                (Some(exec), passed)
            }
            None => (None, Vec::new()),
        };
        let about = Remote::about(exec.as_ref());
        let exec = exec.map(|exec| Exec { timeout_ns: None, ..exec });
        let go = Go { exec, deadline_ns: None, lease_ns: None, claim: None };
        let first = encode(&Request::Go(Box::new(go)), CALL_BYTES_MAX).map_err(|_| malformed())?;
        launch::release_streams().map_err(Failure::into_report)?;
        Ok(Execution::in_machine(about.waiting(first, passed), true))
    }

    /// Starts another process in the machine, or makes it wait until the machine is ready.
    pub fn execute_in_machine(&mut self, mut channel: Channel, exec: Exec) {
        let outlives_client = matches!(exec.streams, ExecStreams::Log { .. });
        match self.remote(&mut channel, exec) {
            Ok(mut remote) => {
                remote.outlives_client = outlives_client;
                self.executions.push(Execution::in_machine(remote, false).for_client(channel));
                self.send_waiting();
            }
            Err(report) => channel.report(&report),
        }
    }

    /// Returns an exec that waits for the machine, unless too much waits for it already.
    fn remote(&mut self, channel: &mut Channel, exec: Exec) -> Result<Remote, Report> {
        let (exec, passed) = self.for_machine(channel, exec, false)?;
        let about = Remote::about(Some(&exec));
        let call = Versioned::new(Call::Exec(Exec { timeout_ns: None, ..exec }));
        let first = encode(&call, CALL_BYTES_MAX).map_err(|_| malformed())?;
        let waiting: usize = self.executions.iter().map(Execution::waiting_bytes).sum();
        if waiting + first.len() > WAITING_BYTES_MAX {
            return Err(Report::Refused(Refusal::Busy));
        }
        Ok(about.waiting(first, passed))
    }

    /// Returns an exec as the keeper in the machine gets it, with the descriptors of its streams.
    fn for_machine(
        &mut self,
        client: &mut Channel,
        exec: Exec,
        ends_box: bool,
    ) -> Result<(Exec, Vec<OwnedFd>), Report> {
        if let ExecStreams::Terminal(_) = exec.streams {
            return Ok((exec, Vec::new()));
        }
        let failed = |_| malformed();
        let passed = match process::streams_of(client, &exec, &mut self.context, ends_box)? {
            Streams::Given(streams) => streams.into(),
            Streams::Terminal(_) => Vec::new(),
            Streams::Keepers => {
                let own = [
                    rustix::stdio::stdin().try_clone_to_owned(),
                    rustix::stdio::stdout().try_clone_to_owned(),
                    rustix::stdio::stderr().try_clone_to_owned(),
                ];
                own.into_iter().collect::<io::Result<_>>().map_err(failed)?
            }
        };
        Ok((Exec { streams: ExecStreams::Passed, ..exec }, passed))
    }

    /// Takes what the machine has sent, and sends it the executions that wait for it. Ends the box
    /// if the machine has failed.
    pub fn tend_machine(&mut self) {
        let Some(machine) = &mut self.machine else { return };
        machine.turn();
        self.send_waiting();
        self.read_usage();
        self.read_reports();
        let Some(machine) = &mut self.machine else { return };
        if machine.failure().is_some() {
            let until_ns = boot_ns().saturating_add(LAST_WITHIN_NS);
            for _ in 0..LAST_TURNS_MAX {
                if !machine.move_last() || until_ns <= boot_ns() {
                    break;
                }
            }
            self.read_reports();
            self.lose_machine();
        }
    }

    /// Lets the machine of an ended box write its volumes. A box that is ended by force does not wait
    /// for its machine.
    pub fn settle_machine(&mut self, end: End) {
        let is_by_itself =
            matches!(end.cause, Cause::Exited | Cause::Signalled | Cause::Stopped | Cause::Memory);
        let Some(machine) = self.machine.as_mut().filter(|_| is_by_itself) else { return };
        // The wait ends with the next deadline, so that a box whose command has ended in time is
        // not killed for its timeout.
        let until_ns = self.deadlines.next().unwrap_or(u64::MAX);
        machine.sync(until_ns);
    }

    /// Ends the box with its machine, unless something else has ended it.
    fn lose_machine(&mut self) {
        let report = self.machine.as_mut().and_then(|machine| machine.failure());
        let started = self.executions.iter().any(|one| one.ends_box && one.has_started());
        if started {
            let end = End::killed(Cause::MachineLost);
            let others = self.executions.iter().filter(|one| !one.ends_box);
            others.filter_map(Execution::channel).for_each(|one| one.report(&Report::Ended(end)));
            self.lost = Some(end);
        } else if let (Some(report), Some(creator)) = (report, self.creator()) {
            creator.report(&report);
            self.is_failed = true;
        }
    }

    /// Connects every execution that waits for the machine, the command first.
    fn send_waiting(&mut self) {
        let Some(machine) = self.machine.as_mut().filter(|machine| machine.is_ready()) else {
            return;
        };
        for execution in &mut self.executions {
            let Some((first, passed)) = execution.remote_mut().and_then(Remote::take_waiting)
            else {
                continue;
            };
            match (machine.connect(&first, passed), execution.remote_mut()) {
                (Ok(channel), Some(remote)) => remote.channel = Some(channel),
                _ => execution.refuse(Refusal::Busy),
            }
        }
    }

    /// Reads the reports about all executions in the machine.
    fn read_reports(&mut self) {
        for index in 0..self.executions.len() {
            while let Some(channel) = self.executions[index].remote_channel_mut() {
                match channel.receive::<Report>(REPORT_BYTES_MAX) {
                    Received::Message(report) => {
                        let passed = channel.take_passed();
                        self.pass_on(index, report, passed);
                    }
                    Received::Nothing => break,
                    Received::Closed => {
                        self.end_remote(index, End::killed(Cause::MachineLost));
                        break;
                    }
                }
            }
        }
    }

    /// Passes a report of the keeper in the machine on to the client. A report that does not belong
    /// here comes from a machine that cannot be trusted, whose execution counts as lost.
    fn pass_on(&mut self, index: usize, report: Report, passed: Vec<OwnedFd>) {
        let ends_box = self.executions[index].ends_box;
        match report {
            Report::Started => self.started_in_machine(index),
            // This keeper knows the cause, unless the machine's kernel killed a process for memory.
            Report::Ended(End { wait_status, oom, .. }) => {
                self.report_full_scratch(index);
                let end = End { oom, ..End::of_command(wait_status) };
                self.end_remote(index, end.under(Pressure::default()));
            }
            Report::Terminal => self.take_terminal(index, passed),
            Report::ScratchFull => {
                if let Some(remote) = self.executions[index].remote_mut() {
                    remote.scratch_full = true;
                }
            }
            Report::LaunchFailed { .. } | Report::SetupFailed { .. } | Report::Refused(_)
                if !self.executions[index].remote_mut().is_some_and(|remote| remote.started) =>
            {
                if let Some(client) = self.executions[index].channel() {
                    client.report(&report);
                }
                if ends_box {
                    self.is_failed = true;
                } else {
                    self.begin_in_journal(index, false);
                    self.executions[index].forget();
                }
            }
            Report::LaunchFailed { .. }
            | Report::SetupFailed { .. }
            | Report::Refused(_)
            | Report::Detached
            | Report::Done
            | Report::HomeEmpty
            | Report::Usage(_)
            | Report::Input { .. }
            | Report::MachineUsage { .. } => {
                self.end_remote(index, End::killed(Cause::MachineLost));
            }
        }
    }

    /// Ends an execution. The machine of a command that ends before it has started has failed: the creator
    /// waits for the start, and not for an end.
    fn end_remote(&mut self, index: usize, end: End) {
        let execution = &mut self.executions[index];
        match &mut self.machine {
            Some(machine) if execution.ends_box && !execution.has_started() => machine.lied(),
            Some(_) | None => execution.ended_in_machine(end),
        }
    }

    /// Reports once, with the end, that the scratch space in the machine was full.
    fn report_full_scratch(&mut self, index: usize) {
        let execution = &mut self.executions[index];
        if !execution.remote_mut().is_some_and(|remote| remote.scratch_full) {
            return;
        }
        match execution.channel() {
            Some(client) => client.report(&Report::ScratchFull),
            None if execution.ends_box => self.note(BoxEvent::ScratchFull),
            None => {}
        }
    }

    fn started_in_machine(&mut self, index: usize) {
        let execution = &mut self.executions[index];
        let Some(remote) = execution.remote_mut().filter(|remote| !remote.started) else { return };
        remote.started = true;
        let deadline_ns = remote.timeout_ns.map(|left| boot_ns().saturating_add(left));
        let outlives_client = remote.outlives_client;
        if let Some(client) = execution.channel() {
            client.report(&Report::Started);
        }
        if outlives_client {
            execution.release_client();
        }
        if let Some(at_ns) = deadline_ns {
            self.end_at(index, at_ns);
        }
        if !self.executions[index].ends_box {
            self.begin_in_journal(index, true);
        } else if self.executions[index].has_process() {
            self.note(BoxEvent::Started);
        }
    }

    fn begin_in_journal(&mut self, index: usize, started: bool) {
        let Some(journal) = &mut self.journal else { return };
        let number = journal.count_process();
        self.executions[index].number = number;
        if let Some(happened) = self.executions[index].begun(started) {
            journal.note(happened);
        }
    }

    /// Takes the outer side of a terminal in the machine. For a detached command, this keeper reads
    /// it into the log. Otherwise, the client gets it.
    fn take_terminal(&mut self, index: usize, mut passed: Vec<OwnedFd>) {
        // A machine may pass a terminal once, and only for an execution that asked for one: the
        // client of any other would send what the user types to it.
        let wanted = self.executions[index].remote_mut().is_some_and(Remote::take_terminal);
        let (true, Some(master)) = (wanted, passed.pop()) else {
            return self.end_remote(index, End::killed(Cause::MachineLost));
        };
        let execution = &self.executions[index];
        match (&mut self.context.output, execution.channel()) {
            (Some(output), _) if execution.ends_box => {
                output.watch_terminal(master).ok();
            }
            (_, Some(client)) => {
                client.send(&Report::Terminal, REPORT_BYTES_MAX, &[master.as_fd()]).ok();
            }
            (_, None) => {}
        }
    }
}

fn malformed() -> Report {
    Report::Refused(Refusal::Malformed)
}
