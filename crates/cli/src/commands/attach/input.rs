//! Passes the caller's input to the box.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::termios::isatty;
use tare_engine::{Context as _, Error};

use crate::commands::attach::keys::{Keys, Typed};
use crate::stdio::{Endpoint, PendingWriter, RawMode, pass_window};

/// How much is read at once.
const PORTION_BYTES: usize = 4096;

pub struct Input<'fd> {
    source: Endpoint<'fd>,
    sink: PendingWriter<'fd>,
    terminal: Option<Terminal<'fd>>,
}

/// The box has a terminal, and so does the caller.
struct Terminal<'fd> {
    keys: Keys,
    _raw: RawMode<'fd>,
}

/// The action that follows after a step of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputStep {
    More,
    /// There is no more input, or the box no longer reads it.
    Over,
    /// The keys that leave were typed.
    Leave,
}

impl<'fd> Input<'fd> {
    /// `box_side`: the pipe of the box's stdin, or its terminal's master side.
    pub fn new(
        caller: BorrowedFd<'fd>,
        box_side: OwnedFd,
        is_terminal: bool,
    ) -> Result<Self, Error> {
        let make = || -> Result<Self, Errno> {
            let terminal = if is_terminal && isatty(caller) {
                Some(Terminal { keys: Keys::default(), _raw: RawMode::enter(caller)? })
            } else {
                None
            };
            Ok(Self {
                source: Endpoint::callers(caller)?,
                sink: PendingWriter::new(Endpoint::ours(box_side)?),
                terminal,
            })
        };
        let input = make().context(|| "cannot pass input to the box".to_owned())?;
        input.resize();
        Ok(input)
    }

    /// Failing to pass on the window size ends nothing.
    pub fn resize(&self) {
        if self.terminal.is_some() {
            let _ = pass_window(self.source.as_fd(), self.sink.as_fd());
        }
    }

    /// Returns what to poll for.
    pub fn interest(&self) -> (BorrowedFd<'_>, PollFlags) {
        match self.sink.waits_for() {
            Some(fd) => (fd, PollFlags::OUT),
            None => (self.source.as_fd(), PollFlags::IN),
        }
    }

    /// Passes on a portion. Call it after `poll` found what [`Self::interest`] asked for.
    pub fn advance(&mut self) -> InputStep {
        if self.sink.waits_for().is_some() {
            return after(self.sink.advance());
        }
        let mut buffer = [0; PORTION_BYTES];
        let typed = match self.source.read(&mut buffer) {
            Err(Errno::AGAIN | Errno::INTR) => return InputStep::More,
            Ok(0) | Err(_) => return InputStep::Over,
            Ok(bytes) => &buffer[..bytes],
        };
        match &mut self.terminal {
            None => after(self.sink.put(typed)),
            Some(terminal) => match terminal.keys.pass(typed) {
                Typed::Bytes(bytes) => after(self.sink.put(&bytes)),
                Typed::Leave => InputStep::Leave,
            },
        }
    }
}

/// If the box does not read its input, the input is over. That is not an error.
fn after(put: Result<(), Errno>) -> InputStep {
    if put.is_ok() { InputStep::More } else { InputStep::Over }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::{PipeFlags, pipe_with};
    use std::fs::File;
    use std::io::{Read, Write};

    fn callers_pipe() -> (File, File) {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        (File::from(read), File::from(write))
    }

    #[test]
    fn input_is_passed_on_until_its_end() {
        let (caller, mut typist) = callers_pipe();
        let (box_reads, box_side) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let mut input = Input::new(caller.as_fd(), box_side, false).unwrap();
        typist.write_all(b"a\x10\x11b").unwrap();
        assert_eq!(input.advance(), InputStep::More);
        drop(typist);
        assert_eq!(input.advance(), InputStep::Over);
        drop(input);
        let mut got = Vec::new();
        File::from(box_reads).read_to_end(&mut got).unwrap();
        assert_eq!(got, b"a\x10\x11b", "a pipe has no keys");
    }

    #[test]
    fn a_box_that_no_longer_reads_ends_the_input() {
        let (caller, mut typist) = callers_pipe();
        let (box_reads, box_side) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        drop(box_reads);
        let mut input = Input::new(caller.as_fd(), box_side, false).unwrap();
        typist.write_all(b"a").unwrap();
        assert_eq!(input.advance(), InputStep::Over);
    }
}
