//! Supervises a box: reaps every process, enforces deadlines, collects output and answers
//! calls. One loop, which waits for no particular client or process, except for a clone that
//! confines itself (5 s at most) and for the last writes of a machine (10 s at most).
//!
//! Each turn reaps first. If the command has ended or a deadline has passed, the box ends at once.
//! Otherwise the turn collects output, serves clients and machine, and decides again. The command is
//! the first entry of the list of executions, and ends the box.

pub mod calls;
pub mod connections;
pub mod deadlines;
pub mod remote;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use rustix::process::{WaitOptions, wait};
use tare_control::journal::BoxEvent;
use tare_control::{
    AtEnd, Cause, Channel, End, Exec, REQUEST_BYTES_MAX, Received, Report, Request, SetupStep,
};
use tare_kernel::clock::{boot_ns, timespec};
use tare_kernel::step::step;

use crate::cgroup::Freezer;
use crate::journal::Journal;
use crate::machine::Machine;
use crate::make::{Failing, Failure};
use crate::process::{self, ExecContext, Execution, launch};
use crate::serve::connections::{Connection, Connections};
use crate::serve::deadlines::Deadlines;
use crate::serve::remote::UsageCall;

/// How many connections may wait to be accepted.
const BACKLOG: i32 = 256;
/// The `wait` status of a box without a command that was stopped.
const ENDED_WELL: i32 = 0;
/// Between rounds of killing a process tree that forks faster than it is killed.
const KILL_AGAIN: Duration = Duration::from_millis(1);
/// How long the keeper waits for its creator to detach the box after the command has ended. A
/// creator that is stopped for longer loses the box, like a creator that was killed.
const DETACHED_WITHIN_NS: u64 = 60_000_000_000;
/// Between reads where polling is impossible.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// A keeper whose box runs.
#[derive(Debug)]
pub struct Supervisor {
    /// The command comes first, and stays in the list until the box ends.
    pub executions: Vec<Execution>,
    pub context: ExecContext,
    /// `None` for an attached box, whose creator gets reports instead.
    pub journal: Option<Journal>,
    pub listener: OwnedFd,
    pub child_signal: OwnedFd,
    pub deadlines: Deadlines,
    pub freezer: Option<Freezer>,
    pub has_scratch: bool,
    pub connections: Connections,
    /// The machine in which all executions are.
    pub machine: Option<Machine>,
    /// Clients that wait until the machine says what the box uses.
    pub usage_calls: Vec<UsageCall>,
    /// The machine has ended, and the box with it.
    pub lost: Option<End>,
    /// The command could not be started in the machine. The creator has got the report.
    pub is_failed: bool,
    /// Held until the box has ended, and never used.
    pub _uid_lock: OwnedFd,
}

/// An event source that the keeper's loop waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Child,
    Output,
    Listener,
    Connection,
    Execution,
    Machine,
}

impl Supervisor {
    /// Starts the command as the first execution. A box without a command waits for calls. Returns
    /// `false` if the command could not be started; the creator has got the report.
    pub fn start_command(&mut self, mut creator: Channel, exec: Option<Exec>) -> bool {
        // Before the command starts: a client that has seen its output can call the box.
        let listening =
            step("listen on the box's socket", || rustix::net::listen(&self.listener, BACKLOG));
        let started = listening.failing(SetupStep::Streams, "socket").map_err(Failure::into_report);
        let started = started.and_then(|()| {
            if self.machine.is_some() {
                return self.await_machine(&mut creator, exec);
            }
            let command = match exec {
                Some(exec) => process::start(&mut creator, &exec, &mut self.context, true)?,
                None => Execution::without_command(),
            };
            launch::release_streams().map_err(Failure::into_report)?;
            Ok(command)
        });
        match started {
            Ok(command) => {
                if self.machine.is_none() {
                    creator.report(&Report::Started);
                    if command.has_process() {
                        self.note(BoxEvent::Started);
                    }
                }
                self.executions.push(command.for_client(creator));
                true
            }
            Err(report) => {
                creator.report(&report);
                false
            }
        }
    }

    /// Runs until the box has to end. Returns `None` if its command could not be started in its
    /// machine.
    pub fn supervise(&mut self) -> Option<End> {
        // Requests that came with the go were read together with it, so no poll reports them.
        self.obey_clients();
        let mut end = self.end_of_box();
        loop {
            if self.is_failed {
                return None;
            }
            if let Some(end) = end {
                self.forget_ended();
                return Some(end);
            }
            let ready = self.wait();
            end = self.turn(&ready);
        }
    }

    /// Returns whether a client asked the box to stop.
    pub fn is_stopping(&self) -> bool {
        self.deadlines.stop_ns.is_some()
    }

    /// Returns whether the box has a command of its own.
    pub fn has_command(&self) -> bool {
        self.executions.iter().any(|one| one.ends_box && one.has_process())
    }

    /// Returns the creator, or `None` after it has detached the box.
    pub fn creator(&self) -> Option<&Channel> {
        self.executions.iter().find(|one| one.ends_box)?.channel()
    }

    /// Writes to the journal of a detached box.
    pub fn note(&mut self, happened: BoxEvent) {
        if let Some(journal) = &mut self.journal {
            journal.note(happened);
        }
    }

    fn turn(&mut self, ready: &[Source]) -> Option<End> {
        // First, because the pids of ended processes may belong to others after this.
        if ready.contains(&Source::Child) {
            self.reap();
        }
        if let Some(end) = self.end_of_box() {
            return Some(end);
        }
        if let Some(cause) = self.deadlines.passed(boot_ns()) {
            return Some(End::killed(cause));
        }
        if let (true, Some(output)) = (ready.contains(&Source::Output), &mut self.context.output) {
            output.collect();
            if output.is_past_limit() {
                return Some(End::killed(Cause::OutputLimit));
            }
        }
        if ready.contains(&Source::Listener) {
            self.accept();
        }
        for (channel, call) in self.connections.receive() {
            self.answer(channel, call);
        }
        self.obey_clients();
        self.tend_executions();
        if self.machine.is_some() {
            self.tend_machine();
            self.forget_ended();
        }
        self.end_of_box()
    }

    /// Returns how the box ends, if anything so far has ended it.
    fn end_of_box(&self) -> Option<End> {
        let stopped = || {
            let waits = self.executions.iter().all(|one| one.ends_box && !one.has_process());
            (waits && self.is_stopping()).then_some(End::of_command(ENDED_WELL))
        };
        let end = self.executions.iter().find_map(Execution::end_of_box);
        let end = end.or(self.lost).or_else(stopped)?;
        let is_by_itself = matches!(end.cause, Cause::Exited | Cause::Signalled);
        Some(if is_by_itself && self.is_stopping() {
            End { cause: Cause::Stopped, ..end }
        } else {
            end
        })
    }

    /// Waits until something happens or is due.
    fn wait(&self) -> Vec<Source> {
        // First: a pause of the listener that ends now must end before the listener is chosen.
        let timeout = self.next_look().map(timespec);
        let watched = self.watched().map(|(source, fd)| (source, fd, PollFlags::IN));
        let machine = self.machine.iter().flat_map(|machine| machine.interests());
        let machine = machine.map(|(fd, flags)| (Source::Machine, fd, flags));
        let watched: Vec<(Source, BorrowedFd<'_>, PollFlags)> = watched.chain(machine).collect();
        let mut fds: Vec<PollFd<'_>> =
            watched.iter().map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
        let sources = watched.iter().map(|(source, _, _)| *source);
        match poll(&mut fds, timeout.as_ref()) {
            // After an interrupted wait, the loop takes one more turn.
            Ok(_) | Err(Errno::INTR) => {}
            // A process with the keeper's ids has lowered the keeper's limit on descriptors, so
            // poll fails. The keeper reads everything that can be read without waiting, in turns.
            Err(_) => {
                #[expect(clippy::disallowed_methods, reason = "bounded: it ends with the box")]
                std::thread::sleep(LOOK_AGAIN);
                return sources.filter(|it| *it != Source::Listener).collect();
            }
        }
        sources
            .zip(&fds)
            .filter(|(_, fd)| !fd.revents().is_empty())
            .map(|(source, _)| source)
            .collect()
    }

    fn watched(&self) -> impl Iterator<Item = (Source, BorrowedFd<'_>)> {
        let child = (Source::Child, self.child_signal.as_fd());
        let has_room = self.connections.have_room();
        let listener = has_room.then_some((Source::Listener, self.listener.as_fd()));
        let output = self.context.output.iter().flat_map(|one| one.sources());
        let connections = self.connections.iter().map(|one| one.channel.as_fd());
        let executions = self.executions.iter().filter_map(Execution::channel);
        let remote = self.executions.iter().filter_map(Execution::remote_channel);
        let remote = remote.chain(self.usage_calls.iter().map(|call| &call.machine));
        [child]
            .into_iter()
            .chain(listener)
            .chain(output.map(|fd| (Source::Output, fd)))
            .chain(connections.map(|fd| (Source::Connection, fd)))
            .chain(executions.map(|one| (Source::Execution, one.as_fd())))
            .chain(remote.map(|one| (Source::Machine, one.as_fd())))
    }

    /// Returns the time until something is due.
    fn next_look(&self) -> Option<Duration> {
        if self.executions.iter().any(Execution::is_ending) {
            return Some(KILL_AGAIN);
        }
        let connections = self.connections.next_ns();
        let executions = self.executions.iter().filter_map(Execution::deadline_ns);
        let due = self.deadlines.next().into_iter();
        let machine = self.machine.as_ref().and_then(Machine::next_ns);
        let usage = self.usage_calls.iter().map(|call| call.until_ns);
        let machine = machine.into_iter().chain(usage);
        let next_ns = due.chain(connections).chain(executions).chain(machine).min()?;
        Some(Duration::from_nanos(next_ns.saturating_sub(boot_ns())))
    }

    /// Reaps every process that has ended, orphans of the workload included.
    fn reap(&mut self) {
        drain(&self.child_signal);
        let is_stopped = self.is_stopping() && !self.has_command();
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if let Some(machine) = self.machine.as_mut().filter(|one| one.is_monitor(pid)) {
                machine.ended();
            }
            let Some(index) = self.executions.iter().position(|one| one.is(pid)) else { continue };
            if status.exit_status() != Some(0) && self.is_scratch_full() {
                self.executions[index].report_full_scratch();
            }
            if self.executions[index].at_end == AtEnd::LookForFiles && calls::is_home_empty() {
                self.executions[index].report_empty_home();
            }
            self.executions[index].ended(status, is_stopped);
        }
    }

    /// Carries out the requests of the creator and of the clients of execs.
    fn obey_clients(&mut self) {
        for index in 0..self.executions.len() {
            let mut received = self.executions[index].receive();
            loop {
                match received {
                    Received::Message(Request::Signal(signal)) => self.pass(index, signal),
                    Received::Message(Request::Detach) => self.detach(index),
                    Received::Message(Request::Go(_)) => {}
                    Received::Message(Request::Deadline { at_ns }) => self.end_at(index, at_ns),
                    Received::Message(Request::Work { deadline_ns, at_end }) => {
                        deadline_ns.into_iter().for_each(|at_ns| self.end_at(index, at_ns));
                        self.executions[index].at_end = at_end;
                    }
                    Received::Nothing => break,
                    Received::Closed => {
                        self.executions[index].hang_up();
                        break;
                    }
                }
                received = self.executions[index].receive_buffered();
            }
        }
    }

    /// Sets the deadline of an execution. That of the command is the deadline of the box.
    pub fn end_at(&mut self, index: usize, at_ns: u64) {
        if self.executions[index].ends_box {
            self.deadlines.timeout_ns = Some(at_ns);
        } else {
            self.executions[index].end_at(at_ns);
        }
    }

    /// Passes on a signal from the client of an execution. A signal of the creator is for the box.
    fn pass(&mut self, index: usize, signal: i32) {
        if self.executions[index].ends_box {
            self.signal(signal);
        } else {
            self.executions[index].signal_from_client(signal);
        }
    }

    /// Sends a signal to the command. In a box without a command, sends it to all execs.
    pub fn signal(&mut self, signal: i32) {
        let has_command = self.has_command();
        let signalled = self.executions.iter_mut().filter(|one| one.ends_box == has_command);
        signalled.for_each(|one| one.signal(signal));
    }

    /// Waits for the creator to detach or disappear, when the command ended first.
    /// Background processes live on meanwhile, so the deadlines of the box hold.
    pub fn await_detachment(&mut self) {
        let within_ns = boot_ns().saturating_add(DETACHED_WITHIN_NS);
        let until_ns = self.deadlines.next().map_or(within_ns, |at| at.min(within_ns));
        while self.journal.is_some() {
            let creator = self.executions.iter_mut().position(|one| one.ends_box);
            let Some(index) = creator else { return };
            let Some(channel) = self.executions[index].channel_mut() else { return };
            match channel.wait_until(REQUEST_BYTES_MAX, until_ns) {
                Some(Request::Detach) => self.detach(index),
                Some(Request::Go(_) | Request::Signal(_)) => {}
                Some(Request::Deadline { .. } | Request::Work { .. }) => {}
                None => return,
            }
        }
    }

    /// Makes the box independent of its creator's end, session and working directory.
    fn detach(&mut self, index: usize) {
        let (Some(creator), Some(journal)) = (self.executions[index].channel(), &mut self.journal)
        else {
            return;
        };
        let outlive = || rustix::process::set_parent_process_death_signal(None);
        let alone = step("outlive the creator", outlive).and_then(|()| journal.detached());
        if let Err(errno) = alone {
            // The box ends with its creator, which gets the reason.
            return creator.report(&Report::SetupFailed {
                step: SetupStep::Detach,
                subject: String::new(),
                errno: errno.raw_os_error(),
            });
        }
        // Both may be so already.
        rustix::process::setsid().ok();
        rustix::process::chdir("/").ok();
        // After the journal: the creator may remove the box as soon as it reads the report.
        creator.report(&Report::Detached);
        self.deadlines.is_detached = true;
        self.executions[index].release_client();
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match step("accept a call", || accept_with(&self.listener, flags)) {
            Ok(socket) => self.connections.add(Connection::new(socket)),
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                self.connections.pause();
            }
            // The client has given up.
            Err(_) => {}
        }
    }

    fn tend_executions(&mut self) {
        let now_ns = boot_ns();
        for execution in &mut self.executions {
            if execution.deadline_ns().is_some_and(|at| at <= now_ns) {
                execution.time_out();
            }
            execution.kill_again();
        }
        self.forget_ended();
    }

    /// Forgets execs that are over, and writes their end to the journal.
    fn forget_ended(&mut self) {
        for index in (0..self.executions.len()).rev() {
            if self.executions[index].is_over() && !self.executions[index].ends_box {
                let over = self.executions.remove(index);
                if let Some(happened) = over.happened() {
                    self.note(happened);
                }
            }
        }
    }
}

fn drain(child_signal: &OwnedFd) {
    let mut buffer = [0; 512];
    while matches!(rustix::io::read(child_signal.as_fd(), &mut buffer), Ok(1..)) {}
}
