//! PID 1's life: reap everyone, keep the deadlines, pass output on, and answer
//! whoever calls. One loop, which never waits for anybody in particular.

pub mod connections;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use rustix::process::{Pid, WaitOptions, WaitStatus, wait};
use tare_control::events::Happening;
use tare_control::{
    Call, Channel, EndedBy, KeeperUsage, REPORT_BYTES_MAX, REQUEST_BYTES_MAX, Received, Refusal,
    Report, Request, SetupStep, Workload,
};
use tare_kernel::clock::{boot_ns, timespec};
use tare_kernel::launch;
use tare_kernel::step::step;

use crate::cgroup::Freezer;
use crate::detached::Detached;
use crate::process::{self, Execution, Surroundings};
use crate::serve::connections::{Caller, Callers};

const SIGTERM: i32 = 15;
/// The `wait` status of whoever has nothing to complain of.
const ENDED_WELL: i32 = 0;
/// Between rounds of killing a process tree that outruns them.
const KILL_AGAIN: Duration = Duration::from_millis(1);
/// How long the keeper of a box whose command has ended waits for its creator. A
/// creator that is stopped for longer loses the box, as one that was killed does.
const DETACHED_WITHIN_NS: u64 = 60_000_000_000;
/// Between looks where nothing can be waited for.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// When the box ends by itself, on the boot clock.
#[derive(Debug, Default)]
pub struct Deadlines {
    pub timeout_ns: Option<u64>,
    pub lease_ns: Option<u64>,
    /// The end of the grace after it was asked to stop.
    pub stop_ns: Option<u64>,
}

impl Deadlines {
    fn all(&self) -> [(Option<u64>, EndedBy); 3] {
        [
            (self.timeout_ns, EndedBy::Timeout),
            (self.lease_ns, EndedBy::Lease),
            (self.stop_ns, EndedBy::Stop),
        ]
    }

    fn next(&self) -> Option<u64> {
        self.all().into_iter().filter_map(|(at, _)| at).min()
    }

    fn passed(&self, now_ns: u64) -> Option<EndedBy> {
        let passed = |(at, _): &(Option<u64>, EndedBy)| at.is_some_and(|at| at <= now_ns);
        self.all().into_iter().find(passed).map(|(_, by)| by)
    }
}

/// How a box ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The command ended, with this `wait` status.
    Command(i32),
    /// A deadline passed, or the output its limit.
    Limit(EndedBy),
    /// The creator is gone, and the box is nobody's.
    Abandoned,
}

#[derive(Debug)]
pub struct Supervisor {
    /// `None`: the box waits for what is executed in it.
    pub command: Option<Pid>,
    /// The creator; `None` after it has left the box to itself.
    pub link: Option<Channel>,
    pub listener: OwnedFd,
    pub child_signal: OwnedFd,
    pub deadlines: Deadlines,
    /// What later processes of the box have in common with its command.
    pub template: Workload,
    pub cgroup: Option<OwnedFd>,
    pub freezer: Option<Freezer>,
    pub has_scratch: bool,
    pub detached: Option<Detached>,
    pub callers: Callers,
    pub executions: Vec<Execution>,
}

/// What the loop waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Link,
    Child,
    Output,
    Listener,
    Caller,
    Execution,
}

impl Supervisor {
    /// Returns when the box is to end.
    pub fn supervise(&mut self) -> End {
        // What came together with the go was read with it: no poll would tell of it.
        if !self.obey_creator() {
            return End::Abandoned;
        }
        loop {
            let ready = self.wait();
            if let Some(end) = self.turn(&ready) {
                return end;
            }
        }
    }

    /// Whether the command was asked to stop.
    pub fn is_stopping(&self) -> bool {
        self.deadlines.stop_ns.is_some()
    }

    fn turn(&mut self, ready: &[Source]) -> Option<End> {
        // The dead first: their numbers may be others' afterwards.
        if ready.contains(&Source::Child)
            && let Some(status) = self.reap()
        {
            self.forget_ended();
            return Some(End::Command(status.as_raw()));
        }
        if let Some(by) = self.deadlines.passed(boot_ns()) {
            return Some(End::Limit(by));
        }
        if let (true, Some(detached)) = (ready.contains(&Source::Output), &mut self.detached) {
            detached.output.collect();
            if detached.output.is_past_limit() {
                return Some(End::Limit(EndedBy::Output));
            }
        }
        if ready.contains(&Source::Link) && !self.obey_creator() {
            return Some(End::Abandoned);
        }
        if ready.contains(&Source::Listener) {
            self.accept();
        }
        self.answer_callers();
        self.look_after_executions();
        self.has_stopped_waiting().then_some(End::Command(ENDED_WELL))
    }

    /// Waits for whatever comes first.
    fn wait(&self) -> Vec<Source> {
        let watched: Vec<(Source, BorrowedFd<'_>)> = self.watched().collect();
        let mut fds: Vec<PollFd<'_>> =
            watched.iter().map(|(_, fd)| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        let timeout = self.next_look().map(timespec);
        let sources = watched.iter().map(|(source, _)| *source);
        match poll(&mut fds, timeout.as_ref()) {
            // An interrupted wait is one more look.
            Ok(_) | Err(Errno::INTR) => {}
            // Somebody with our ids has taken our right to so many descriptors: what
            // can be asked without waiting is asked, again and again.
            Err(_) => {
                #[expect(clippy::disallowed_methods, reason = "bounded by the life of the box")]
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
        let link = self.link.iter().map(|link| (Source::Link, link.as_fd()));
        let child = (Source::Child, self.child_signal.as_fd());
        let has_room = self.callers.have_room();
        let listener = has_room.then_some((Source::Listener, self.listener.as_fd()));
        let output = self.detached.iter().flat_map(|one| one.output.sources());
        let callers = self.callers.iter().map(|one| one.channel.as_fd());
        let executions = self.executions.iter().filter_map(Execution::channel);
        link.chain([child])
            .chain(listener)
            .chain(output.map(|fd| (Source::Output, fd)))
            .chain(callers.map(|fd| (Source::Caller, fd)))
            .chain(executions.map(|one| (Source::Execution, one.as_fd())))
    }

    /// How long until something is due by itself.
    fn next_look(&self) -> Option<Duration> {
        if self.executions.iter().any(Execution::is_ending) {
            return Some(KILL_AGAIN);
        }
        let callers = self.callers.next_ns();
        let executions = self.executions.iter().filter_map(Execution::deadline_ns);
        let due = self.deadlines.next().into_iter();
        let next_ns = due.chain(callers).chain(executions).min()?;
        Some(Duration::from_nanos(next_ns.saturating_sub(boot_ns())))
    }

    /// Reaps every process that has ended, orphans of the workload included; the
    /// command's own status when it is among them. Clients of execs that ended at
    /// the same time get their exit codes too.
    fn reap(&mut self) -> Option<WaitStatus> {
        drain(&self.child_signal);
        let mut command = None;
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if Some(pid) == self.command {
                command = Some(status);
                continue;
            }
            let started = self.executions.iter_mut().find(|one| one.pid() == pid);
            if let Some(execution) = started {
                execution.ended(status);
            }
        }
        command
    }

    /// `false` when the creator is gone without having left the box to itself.
    fn obey_creator(&mut self) -> bool {
        while let Some(link) = &mut self.link {
            match link.receive_in_turn(REQUEST_BYTES_MAX) {
                Received::Message(Request::Signal(signal)) => self.signal(signal),
                Received::Message(Request::Detach) => self.detach(),
                Received::Message(Request::Go) => {}
                Received::Nothing => return true,
                Received::Closed => return false,
            }
        }
        true
    }

    /// Waits for the creator to detach or disappear, when the command ended first.
    /// Background processes live on meanwhile, so the deadlines of the box hold.
    pub fn await_detachment(&mut self) {
        let within_ns = boot_ns().saturating_add(DETACHED_WITHIN_NS);
        let until_ns = self.deadlines.next().map_or(within_ns, |at| at.min(within_ns));
        while let (Some(link), Some(_)) = (&mut self.link, &self.detached) {
            match link.wait_until(REQUEST_BYTES_MAX, until_ns) {
                Some(Request::Detach) => self.detach(),
                Some(Request::Go | Request::Signal(_)) => {}
                None => return,
            }
        }
    }

    /// From here on the box hangs on nobody: not on the end of its creator, nor
    /// on its session or its directory.
    fn detach(&mut self) {
        let (Some(link), Some(detached)) = (&self.link, &mut self.detached) else {
            return;
        };
        let outlive = || rustix::process::set_parent_process_death_signal(None);
        let alone = step("creator outlived", outlive).and_then(|()| detached.life.detached());
        if let Err(errno) = alone {
            // It ends with its creator, who is told why.
            return link.report(&Report::SetupFailed {
                step: SetupStep::Detach,
                subject: String::new(),
                errno: errno.raw_os_error(),
            });
        }
        // Either may be so already.
        rustix::process::setsid().ok();
        rustix::process::chdir("/").ok();
        link.report(&Report::Detached);
        detached.life.note(Happening::Detached);
        self.link = None;
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Whoever gave up meanwhile, or a table of descriptors that is full for a
        // moment: both are for the next look.
        if let Ok(socket) = step("caller accepted", || accept_with(&self.listener, flags)) {
            self.callers.add(Caller::new(socket));
        }
    }

    fn answer_callers(&mut self) {
        for (channel, call) in self.callers.hear() {
            self.answer(channel, call);
        }
    }

    /// A caller that has hung up has been refused, or has given up: nothing is begun
    /// for it.
    fn answer(&mut self, channel: Channel, call: Call) {
        if channel.is_hung_up() {
            return;
        }
        let (report, happened) = match call {
            Call::Exec(exec) => return self.execute(channel, exec),
            Call::Signal(signal) => {
                self.signal(signal);
                (Report::Done, Some(Happening::Signalled { signal }))
            }
            Call::Stop { grace_ns } => {
                let grace_ms = u32::try_from(grace_ns / 1_000_000).unwrap_or(u32::MAX);
                (self.stop(grace_ns), Some(Happening::StopAsked { grace_ms }))
            }
            Call::Lease { ends_ns } => {
                self.deadlines.lease_ns = ends_ns;
                (Report::Done, None)
            }
            Call::Freeze => self.freeze(),
            Call::Resumed => (Report::Done, Some(Happening::Resumed)),
            Call::Usage => (Report::Usage(self.usage()), None),
            Call::Input => return self.hand_over_input(&channel),
        };
        channel.report(&report);
        if let Some(happened) = happened {
            self.note(happened);
        }
    }

    /// Of an attached box it is known to its creator what happens.
    fn note(&mut self, happened: Happening) {
        if let Some(detached) = &mut self.detached {
            detached.life.note(happened);
        }
    }

    fn freeze(&self) -> (Report, Option<Happening>) {
        let frozen = self.freezer.as_ref().map(Freezer::freeze);
        match frozen {
            Some(Ok(())) => (Report::Done, Some(Happening::Paused)),
            Some(Err(_)) | None => (Report::Refused(Refusal::NoFreezer), None),
        }
    }

    fn execute(&mut self, channel: Channel, exec: tare_control::Exec) {
        if self.freezer.as_ref().is_some_and(Freezer::is_frozen) {
            return channel.report(&Report::Refused(Refusal::Paused));
        }
        let around = Surroundings {
            template: &self.template,
            cgroup: self.cgroup.as_ref(),
            detached: self.detached.as_ref(),
        };
        let running = self.executions.len();
        let subject = process::subject_of(&exec);
        let mut started = process::start(channel, exec, &around, running);
        if let Some(detached) = &mut self.detached {
            let process = detached.life.count_process();
            let happened = process::begun(process, subject, started.is_some());
            detached.life.note(happened);
            started.iter_mut().for_each(|one| one.number = process);
        }
        self.executions.extend(started);
    }

    /// A second call can only shorten the grace.
    fn stop(&mut self, grace_ns: u64) -> Report {
        let at = boot_ns().saturating_add(grace_ns);
        if let (None, Some(detached)) = (self.deadlines.stop_ns, &mut self.detached) {
            detached.life.stopping();
        }
        self.deadlines.stop_ns = Some(self.deadlines.stop_ns.map_or(at, |set| set.min(at)));
        self.signal(SIGTERM);
        Report::Done
    }

    /// To the command; where there is none, to all that were started in its place.
    fn signal(&self, signal: i32) {
        match self.command {
            // Whoever has just ended needs no signal.
            Some(pid) => drop(step("command signalled", || launch::signal_child(pid, signal))),
            None => self.executions.iter().for_each(|one| one.signal(signal)),
        }
    }

    /// A box without a command ends when it was asked to and nobody is left who was.
    fn has_stopped_waiting(&self) -> bool {
        self.command.is_none() && self.is_stopping() && self.executions.is_empty()
    }

    fn usage(&self) -> KeeperUsage {
        let output = self.detached.as_ref().map(|detached| &detached.output);
        KeeperUsage {
            scratch_bytes: if self.has_scratch { scratch_bytes() } else { None },
            output_bytes: output.map_or(0, |output| output.received_bytes()),
            output_dropped_bytes: output.map_or(0, |output| output.dropped_bytes()),
        }
    }

    fn hand_over_input(&self, channel: &Channel) {
        let input = self.detached.as_ref().and_then(Detached::input);
        match input {
            Some((fd, is_terminal)) => {
                channel.send(&Report::Input { is_terminal }, REPORT_BYTES_MAX, &[fd]).ok();
            }
            None => channel.report(&Report::Refused(Refusal::NoInput)),
        }
    }

    fn look_after_executions(&mut self) {
        let now_ns = boot_ns();
        for execution in &mut self.executions {
            execution.obey();
            if execution.deadline_ns().is_some_and(|at| at <= now_ns) {
                execution.time_out();
            }
            execution.go_on_ending();
        }
        self.forget_ended();
    }

    fn forget_ended(&mut self) {
        for index in (0..self.executions.len()).rev() {
            if self.executions[index].is_over() {
                let over = self.executions.remove(index);
                if let Some(happened) = over.happened() {
                    self.note(happened);
                }
            }
        }
    }
}

/// What is used of the one tmpfs that holds all that is writable.
fn scratch_bytes() -> Option<u64> {
    let space = rustix::fs::statfs("/work").ok()?;
    let used = space.f_blocks.saturating_sub(space.f_bfree);
    Some(used.saturating_mul(u64::try_from(space.f_bsize).ok()?))
}

fn drain(child_signal: &OwnedFd) {
    let mut buffer = [0; 512];
    while matches!(rustix::io::read(child_signal.as_fd(), &mut buffer), Ok(1..)) {}
}
