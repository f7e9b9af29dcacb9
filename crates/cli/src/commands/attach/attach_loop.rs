//! One loop between the log of a box and its caller: output, input, signals.
//!
//! The loop waits only in `poll`, and never changes the flags of the caller's descriptors.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use tare_engine::logs::{Logs, Stream};
use tare_engine::spec::quantity;
use tare_engine::{Attachment, Context as _, Error};
use tare_kernel::process::Process;
use tare_kernel::signals::SignalFd;
use tare_kernel::watch::Watch;

use crate::commands::attach::input::{Input, InputStep};
use crate::error::print_note;
use crate::stdio::{
    Caller, Endpoint, PendingWriter, SignalAction, action_for, asks_to_stop, is_closed,
};

/// After this many records, input and signals get their turn.
const RECORDS_MAX: usize = 64;

/// Why the loop ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttachEnd {
    /// The box has ended, and all of its output was passed on.
    Ended,
    /// The caller typed the keys that leave, or closed stdout.
    Detached,
    /// The caller got a signal that is not for the box.
    Interrupted(i32),
}

pub struct AttachLoop<'a> {
    logs: Logs,
    watch: Watch,
    /// `None` when the box has ended.
    keeper: Option<Process>,
    caller: Caller<'a>,
    /// stdout and stderr.
    outputs: [PendingWriter<'a>; 2],
    input: Option<Input<'a>>,
    /// Passes a signal to the box's command. `None`: a signal leaves the box.
    forward: Option<&'a dyn Fn(i32) -> Result<(), Error>>,
    /// The first signal that asked the command to stop.
    asked: Option<i32>,
}

/// How far the log was passed on.
enum Passed {
    /// The whole log.
    All,
    /// A part; there is more.
    Some,
    /// A part; the rest waits for the reader.
    Blocked,
    /// The reader is gone.
    Gone,
}

/// An event that `poll` may find.
#[derive(Clone, Copy)]
enum Ready {
    Signal,
    Ended,
    Log,
    Output(usize),
    ReaderGone,
    Input,
}

impl<'a> AttachLoop<'a> {
    pub fn new(
        attachment: Attachment,
        caller: Caller<'a>,
        forward: Option<&'a dyn Fn(i32) -> Result<(), Error>>,
    ) -> Result<Self, Error> {
        let outputs = outputs(caller).context(|| "cannot use the caller's streams".to_owned())?;
        let input = match attachment.input {
            Some(fd) => Some(Input::new(caller.stdin, fd, attachment.is_terminal)?),
            None => None,
        };
        Ok(Self {
            watch: attachment.logs.watch()?,
            logs: attachment.logs,
            keeper: attachment.keeper,
            caller,
            outputs,
            input,
            forward,
            asked: None,
        })
    }

    /// Runs until the box has ended or the caller leaves it.
    pub fn until_end(&mut self, signals: &SignalFd) -> Result<AttachEnd, Error> {
        let mut ended = self.keeper.is_none();
        loop {
            let passed = self.pass_on()?;
            let wait = match passed {
                Passed::All if ended => return Ok(AttachEnd::Ended),
                Passed::Gone => return Ok(AttachEnd::Detached),
                Passed::Some => Some(Timespec::default()),
                Passed::All | Passed::Blocked => None,
            };
            for ready in self.poll(signals, ended, wait.as_ref())? {
                ended |= matches!(ready, Ready::Ended);
                if let Some(left) = self.take(ready, signals)? {
                    return Ok(left);
                }
            }
        }
    }

    fn pass_on(&mut self) -> Result<Passed, Error> {
        for _ in 0..RECORDS_MAX {
            if self.outputs.iter().any(|it| it.waits_for().is_some()) {
                return Ok(Passed::Blocked);
            }
            let Some(record) = self.logs.next_record()? else {
                say_missed(self.logs.missed_at_end()?);
                return Ok(Passed::All);
            };
            say_missed(record.missed_bytes);
            let output = &mut self.outputs[index(record.stream)];
            if is_gone(output.put(record.bytes))? {
                return Ok(Passed::Gone);
            }
        }
        Ok(Passed::Some)
    }

    fn poll(
        &self,
        signals: &SignalFd,
        ended: bool,
        wait: Option<&Timespec>,
    ) -> Result<Vec<Ready>, Error> {
        let (mut fds, meanings): (Vec<_>, Vec<_>) =
            self.interests(signals, ended).into_iter().unzip();
        retry_on_intr(|| poll(&mut fds, wait)).context(|| "cannot wait for the box".to_owned())?;
        let found = fds.iter().zip(meanings);
        let ready = found.filter(|(fd, _)| !fd.revents().is_empty());
        Ok(ready.map(|(_, meaning)| meaning).collect())
    }

    fn interests<'p>(&'p self, signals: &'p SignalFd, ended: bool) -> Vec<(PollFd<'p>, Ready)> {
        let readable = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut asked = vec![
            (readable(signals.as_fd()), Ready::Signal),
            (readable(self.watch.as_fd()), Ready::Log),
            // Requests no event: poll(2) always reports that the reader has closed the pipe.
            (PollFd::from_borrowed_fd(self.caller.stdout, PollFlags::empty()), Ready::ReaderGone),
        ];
        if let (Some(keeper), false) = (&self.keeper, ended) {
            asked.push((readable(keeper.as_fd()), Ready::Ended));
        }
        for (index, output) in self.outputs.iter().enumerate() {
            let fd = output.waits_for();
            asked.extend(fd.map(|fd| {
                let writable = PollFd::from_borrowed_fd(fd, PollFlags::OUT);
                (writable, Ready::Output(index))
            }));
        }
        if let Some(input) = &self.input {
            let (fd, flags) = input.interest();
            asked.push((PollFd::from_borrowed_fd(fd, flags), Ready::Input));
        }
        asked
    }

    fn take(&mut self, ready: Ready, signals: &SignalFd) -> Result<Option<AttachEnd>, Error> {
        match ready {
            Ready::Signal => return self.take_signals(signals),
            Ready::Ended => {}
            Ready::Log => {
                let drained = self.watch.drain();
                drained.context(|| "cannot watch the log".to_owned())?;
            }
            Ready::Output(index) => {
                let gone = is_gone(self.outputs[index].advance())?;
                return Ok(gone.then_some(AttachEnd::Detached));
            }
            Ready::ReaderGone => return Ok(Some(AttachEnd::Detached)),
            Ready::Input => return self.take_input(),
        }
        Ok(None)
    }

    fn take_input(&mut self) -> Result<Option<AttachEnd>, Error> {
        let Some(input) = &mut self.input else {
            return Ok(None);
        };
        match input.advance() {
            InputStep::More => {}
            // Closes the input of the box.
            InputStep::Over => self.input = None,
            InputStep::Leave => return Ok(Some(AttachEnd::Detached)),
        }
        Ok(None)
    }

    fn take_signals(&mut self, signals: &SignalFd) -> Result<Option<AttachEnd>, Error> {
        let next = || signals.next().context(|| "cannot read signals".to_owned());
        while let Some(signal) = next()? {
            let left = self.take_signal(signal);
            if left.is_some() {
                return Ok(left);
            }
        }
        Ok(None)
    }

    fn take_signal(&mut self, signal: i32) -> Option<AttachEnd> {
        match (action_for(signal, self.asked), self.forward) {
            (SignalAction::Resize, _) => self.input.iter().for_each(Input::resize),
            (SignalAction::Forward, Some(forward)) => {
                if asks_to_stop(signal) {
                    self.asked = Some(signal);
                }
                // If the signal cannot be sent, the box has ended and its event follows.
                let _ = forward(signal);
            }
            (SignalAction::Forward, None) | (SignalAction::EndSession, _) => {
                return Some(AttachEnd::Interrupted(signal));
            }
        }
        None
    }
}

fn outputs(caller: Caller<'_>) -> Result<[PendingWriter<'_>; 2], Errno> {
    let stdout = PendingWriter::new(Endpoint::callers(caller.stdout)?);
    let stderr = PendingWriter::new(Endpoint::callers(caller.stderr)?);
    Ok([stdout, stderr])
}

fn index(stream: Stream) -> usize {
    match stream {
        Stream::Stdout => 0,
        Stream::Stderr => 1,
    }
}

/// Prints how much output is lost: the box wrote faster than the caller read, or the disk was full.
fn say_missed(missed_bytes: u64) {
    if missed_bytes > 0 {
        let missed = quantity::show_bytes(missed_bytes);
        print_note(&format!("{missed} of the box's output are lost here"));
    }
}

/// Whether the reader of our output is gone. That is not an error.
fn is_gone(written: Result<(), Errno>) -> Result<bool, Error> {
    match written {
        Ok(()) => Ok(false),
        Err(errno) if is_closed(errno) => Ok(true),
        Err(errno) => Err(errno).context(|| "cannot pass on the box's output".to_owned()),
    }
}

#[cfg(test)]
#[path = "attach_loop_tests.rs"]
mod tests;
