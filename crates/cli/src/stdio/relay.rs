//! One loop between a session and the user: output, input, signals, events.
//!
//! The loop has no threads, waits only in `poll`, and never waits for a single process. It ends the
//! session before it reads the rest of the output.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::Signal;
use rustix::stdio::{stderr, stdin, stdout};
use tare_engine::{
    Cause, Conclusion, Context as _, End, EndedLine, Error, Event, Receipt, Session, Streams,
};
use tare_kernel::clock;
use tare_kernel::signals::SignalFd;

use crate::stdio::copy::{CopyEnd, CopyStream, OutputBudget, Sink, Waiting};
use crate::stdio::endpoint::{Endpoint, is_hung_up};
use crate::stdio::signals::{SignalAction, action_for, asked_to_stop, asks_to_stop};
use crate::stdio::terminal::{RawMode, pass_window};

/// How long tare waits for the end of a pipe after the box has ended. Every writer is dead by then,
/// so this only bounds what should not happen.
const DRAIN_SILENCE: Duration = Duration::from_secs(3);
/// The most that two pipes can contain. Each has the largest size that an unprivileged user can set
/// (pipe(7)).
const LAST_BYTES_MAX: u64 = 2 << 20;
/// How long a command may run on after the user's terminal has hung up, as with `tare stop`.
const HANGUP_GRACE: Duration = Duration::from_secs(10);
/// Replaces [`DRAIN_SILENCE`] after the user's second signal: tare reads only what is in the pipes already.
const HASTY_SILENCE: Duration = Duration::from_millis(50);

/// Where the command's output goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// To the caller's descriptors 1 and 2.
    Pass,
    /// Into memory, until the end (`--json`).
    Keep,
}

/// Reaction to output that passes its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PastLimit {
    Truncate,
    Kill,
}

/// The descriptors that tare was started with.
#[derive(Debug, Clone, Copy)]
pub struct Caller<'fd> {
    pub stdin: BorrowedFd<'fd>,
    pub stdout: BorrowedFd<'fd>,
    pub stderr: BorrowedFd<'fd>,
}

impl Caller<'static> {
    pub fn of_this_process() -> Self {
        Self { stdin: stdin(), stdout: stdout(), stderr: stderr() }
    }
}

/// Where the output goes, and how much of it is passed on.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    pub output: Output,
    pub output_bytes_max: u64,
    pub past_limit: PastLimit,
    pub writers: Writers,
}

/// Which processes may still write when the command has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writers {
    /// None: the box has ended with the command.
    Dead,
    /// Background processes of the command. The command's own output is in the pipes by then, and
    /// tare does not wait for the output of the others.
    MayLive,
}

/// The result of a session that has ended.
#[derive(Debug)]
pub struct Relayed {
    /// An error if the command could not be started, or if the loop failed.
    pub result: Result<(), Error>,
    pub end: End,
    /// The end with what the kernel and the record say about it.
    pub ended: Option<EndedLine>,
    /// An error if a part of the box may be left.
    pub ending: Result<(), Error>,
    /// The receipt of the box, if the caller asked for it.
    pub receipt: Option<Receipt>,
    pub relay: Relay<'static>,
    /// When the loop ended.
    pub ended_at: Instant,
}

/// Relays until the session ends, ends it, and passes on the rest of the output.
pub fn relay(
    mut session: Session,
    settings: Settings,
    signals: &SignalFd,
) -> Result<Relayed, Error> {
    let relay = Relay::new(Caller::of_this_process(), session.streams(), settings)
        .context(|| "cannot pass on the streams of the box".to_owned());
    let mut relay = match relay {
        Ok(relay) => relay,
        Err(error) => {
            session.give_up(&error);
            session.end()?;
            return Err(error);
        }
    };
    let result = relay.until_end(&mut session, signals);
    let ended_at = Instant::now();
    if let Err(error) = &result {
        session.give_up(error);
    }
    let seen = session.seen_end();
    if seen.cause == Cause::OutputLimit {
        let output_bytes_max = Some(settings.output_bytes_max);
        session.conclude(Conclusion { output_bytes_max, ..Conclusion::default() });
    }
    // This comes before the rest of the output: even if the user reads slowly, the command and
    // every other writer of its pipes are gone.
    let (end, receipt, ending) = match session.end() {
        Ok((end, receipt)) => (end, receipt, Ok(())),
        Err(error) => (seen, None, Err(error)),
    };
    let is_second_signal =
        end.cause == Cause::Killed && end.signal() != Some(Signal::KILL.as_raw());
    let is_hasty = is_second_signal || matches!(end.cause, Cause::OutputLimit | Cause::ClientGone);
    let drained = attached(relay.drain(is_hasty, signals));
    relay.leave_terminal();
    let ended = session.ended().cloned();
    Ok(Relayed { result: result.and(drained), end, ended, ending, receipt, relay, ended_at })
}

#[derive(Debug)]
pub struct Relay<'fd> {
    caller: Caller<'fd>,
    stdin: Option<CopyStream<'fd>>,
    /// stdout and stderr.
    outputs: [Option<CopyStream<'fd>>; 2],
    budget: OutputBudget,
    past_limit: PastLimit,
    writers: Writers,
    /// The first signal that asked the command to stop.
    asked: Option<i32>,
    /// The user's terminal has hung up: a command that still runs at this time is killed.
    kill_at: Option<Instant>,
    terminal: Option<(OwnedFd, RawMode<'fd>)>,
}

impl<'fd> Relay<'fd> {
    pub fn new(caller: Caller<'fd>, streams: Streams, settings: Settings) -> io::Result<Self> {
        let output = settings.output;
        let stdin = match streams.stdin {
            Some(fd) => Some(CopyStream::new(
                Endpoint::callers(caller.stdin)?,
                Sink::End(Endpoint::ours(fd)?),
            )),
            None => None,
        };
        let stdout = output_stream(streams.stdout, caller.stdout, output)?;
        let stderr = output_stream(streams.stderr, caller.stderr, output)?;
        Ok(Self {
            caller,
            stdin,
            outputs: [stdout, stderr],
            budget: OutputBudget::new(settings.output_bytes_max),
            past_limit: settings.past_limit,
            writers: settings.writers,
            asked: None,
            kill_at: None,
            terminal: None,
        })
    }

    /// Relays until the process has ended or was killed.
    pub fn until_end(&mut self, session: &mut Session, signals: &SignalFd) -> Result<(), Error> {
        while !self.turn(session, signals)? {}
        Ok(())
    }

    /// Passes on the rest of the output of a box that has ended. Waits for a slow reader; another
    /// signal ends the wait.
    pub fn drain(&mut self, hasty: bool, signals: &SignalFd) -> io::Result<()> {
        self.stdin = None;
        if self.writers == Writers::MayLive {
            self.budget = OutputBudget::new(LAST_BYTES_MAX);
        }
        while !is_over(&self.outputs) && !self.has_drained_enough() {
            let ready = self.poll(&[signals.as_fd()], Some(self.silence(hasty)))?;
            if ready.has(0) && asked_to_stop(signals)?.is_some() {
                return Ok(());
            }
            if ready.is_empty() {
                give_up(&mut self.outputs, hasty);
            }
            self.advance(&ready);
        }
        Ok(())
    }

    /// How long a silent pipe is waited for.
    fn silence(&self, hasty: bool) -> Duration {
        let waits_for_writers = outputs_waiting_for(&self.outputs, Waiting::Source);
        match (hasty, self.writers) {
            (true, _) => HASTY_SILENCE,
            (false, Writers::MayLive) if waits_for_writers => Duration::ZERO,
            (false, Writers::Dead | Writers::MayLive) => DRAIN_SILENCE,
        }
    }

    /// Whether as much was read as pipes can hold. The rest comes from background processes.
    fn has_drained_enough(&self) -> bool {
        self.writers == Writers::MayLive && self.budget.is_passed()
    }

    /// Gives the terminal back to the caller.
    pub fn leave_terminal(&mut self) {
        self.terminal = None;
    }

    pub fn budget(&self) -> &OutputBudget {
        &self.budget
    }

    /// Returns why output could not be passed on. A reader that closed the pipe is not an error.
    pub fn output_failure(&self) -> Option<Error> {
        let failure = |stream: &CopyStream<'_>| match stream.ended() {
            Some(CopyEnd::SinkFailed(errno)) => Some(errno),
            Some(CopyEnd::EndOfFile | CopyEnd::SinkClosed | CopyEnd::Stopped) | None => None,
        };
        let errno = self.outputs.iter().flatten().find_map(failure)?;
        let failed: Result<(), _> = Err(errno);
        failed.context(|| "cannot pass on the command's output".to_owned()).err()
    }

    /// Returns the kept stdout and stderr.
    pub fn into_kept(self) -> [Vec<u8>; 2] {
        self.outputs.map(|stream| stream.map_or_else(Vec::new, CopyStream::into_kept))
    }

    /// Returns whether the process has ended.
    fn turn(&mut self, session: &mut Session, signals: &SignalFd) -> Result<bool, Error> {
        let overdue_in = session.overdue_in();
        let kill_in = self.kill_at.map(|at| at.saturating_duration_since(Instant::now()));
        if overdue_in == Some(Duration::ZERO) {
            session.kill(End::killed(Cause::Timeout));
            return Ok(true);
        }
        if kill_in == Some(Duration::ZERO) {
            session.kill(End { cause: Cause::ClientGone, ..killed_at(Signal::HUP.as_raw()) });
            return Ok(true);
        }
        let timeout = overdue_in.into_iter().chain(kill_in).min();
        let ready = attached(self.poll(&[signals.as_fd(), session.events_fd()], timeout))?;
        self.advance(&ready);
        if self.budget.is_passed() && self.past_limit == PastLimit::Kill {
            session.kill(End::killed(Cause::OutputLimit));
            return Ok(true);
        }
        if ready.has(0) && attached(self.take_signals(session, signals))? {
            return Ok(true);
        }
        if ready.has(1) {
            return self.take_events(session);
        }
        Ok(false)
    }

    /// Returns whether the process was killed.
    fn take_signals(&mut self, session: &mut Session, signals: &SignalFd) -> io::Result<bool> {
        while let Some(signal) = signals.next()? {
            match action_for(signal, self.asked) {
                SignalAction::Resize => self.resize(),
                SignalAction::Forward => {
                    if asks_to_stop(signal) {
                        self.asked = Some(signal);
                    }
                    if signal == Signal::HUP.as_raw() && self.has_hung_up() {
                        self.kill_at = Some(Instant::now() + HANGUP_GRACE);
                    }
                    // If the signal cannot be sent, the box has ended and its event follows.
                    let _ = session.signal(signal);
                }
                SignalAction::EndSession => {
                    session.kill(killed_at(signal));
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Returns whether the process has ended.
    fn take_events(&mut self, session: &mut Session) -> Result<bool, Error> {
        while let Some(event) = session.next_event() {
            match event {
                Event::Started => {}
                Event::Terminal(master) => attached(self.enter_terminal(master))?,
                Event::Ended(_) => return Ok(true),
                Event::Failed(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Whether a terminal of the user is gone. Then no second signal can come from it.
    fn has_hung_up(&self) -> bool {
        [self.caller.stdin, self.caller.stdout, self.caller.stderr].into_iter().any(is_hung_up)
    }

    fn enter_terminal(&mut self, master: OwnedFd) -> io::Result<()> {
        let raw = RawMode::enter(self.caller.stdin)?;
        let keyboard = Sink::End(Endpoint::ours(master.try_clone()?)?);
        self.stdin = Some(CopyStream::new(Endpoint::callers(self.caller.stdin)?, keyboard));
        let screen = Sink::End(Endpoint::callers(self.caller.stdout)?);
        self.outputs[0] = Some(CopyStream::new(Endpoint::ours(master.try_clone()?)?, screen));
        self.terminal = Some((master, raw));
        self.resize();
        Ok(())
    }

    /// Failing to pass on the window size ends nothing.
    fn resize(&self) {
        if let Some((master, _)) = &self.terminal {
            let _ = pass_window(self.caller.stdin, master);
        }
    }

    fn streams(&self) -> [&Option<CopyStream<'fd>>; 3] {
        [&self.stdin, &self.outputs[0], &self.outputs[1]]
    }

    /// Waits for the given descriptors to be readable, or for any stream.
    fn poll(&self, fds: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<Polled> {
        let mut polled: Vec<PollFd<'_>> = Vec::with_capacity(fds.len() + 3);
        polled.extend(fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)));
        let mut places = [None; 3];
        for (place, stream) in places.iter_mut().zip(self.streams()) {
            if let Some((fd, flags)) = stream.as_ref().and_then(CopyStream::interest) {
                *place = Some(polled.len());
                polled.push(PollFd::from_borrowed_fd(fd, flags));
            }
        }
        let timeout = timeout.map(clock::timespec);
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let is_ready = |index: usize| !polled[index].revents().is_empty();
        Ok(Polled {
            fds: (0..fds.len()).map(is_ready).collect(),
            streams: places.map(|place| place.is_some_and(is_ready)),
        })
    }

    fn advance(&mut self, ready: &Polled) {
        if let (true, Some(stdin)) = (ready.streams[0], &mut self.stdin) {
            stdin.advance(&mut OutputBudget::unlimited());
        }
        for (output, ready) in self.outputs.iter_mut().zip(&ready.streams[1..]) {
            if let (true, Some(output)) = (*ready, output) {
                output.advance(&mut self.budget);
            }
        }
    }
}

fn attached<T>(done: io::Result<T>) -> Result<T, Error> {
    done.context(|| "cannot stay attached to the box".to_owned())
}

/// The end of a session that the user's signal killed.
fn killed_at(signal: i32) -> End {
    End { wait_status: signal, ..End::killed(Cause::Killed) }
}

/// Result of one `poll`.
struct Polled {
    fds: Vec<bool>,
    streams: [bool; 3],
}

impl Polled {
    fn has(&self, index: usize) -> bool {
        self.fds[index]
    }

    fn is_empty(&self) -> bool {
        !self.fds.iter().chain(&self.streams).any(|ready| *ready)
    }
}

fn output_stream<'fd>(
    from: Option<OwnedFd>,
    to: BorrowedFd<'fd>,
    output: Output,
) -> io::Result<Option<CopyStream<'fd>>> {
    let Some(from) = from else { return Ok(None) };
    let sink = match output {
        Output::Pass => Sink::End(Endpoint::callers(to)?),
        Output::Keep => Sink::Memory,
    };
    Ok(Some(CopyStream::new(Endpoint::ours(from)?, sink)))
}

fn is_over(outputs: &[Option<CopyStream<'_>>]) -> bool {
    outputs.iter().flatten().all(|stream| stream.ended().is_some())
}

fn outputs_waiting_for(outputs: &[Option<CopyStream<'_>>], side: Waiting) -> bool {
    let mut open = outputs.iter().flatten().filter(|one| one.ended().is_none());
    open.any(|stream| stream.waiting() == side)
}

/// Stops streams whose source is silent, or all of them if `hasty`.
fn give_up(outputs: &mut [Option<CopyStream<'_>>], hasty: bool) {
    for stream in outputs.iter_mut().flatten() {
        if hasty || stream.waiting() == Waiting::Source {
            stream.stop();
        }
    }
}

#[cfg(test)]
#[path = "relay_tests.rs"]
mod tests;
