//! Files into and out of a box. The box's side is a process in it, like any other
//! that is started there; what comes from it is not trusted.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use tare_control::{Exec, ExecStreams, Program};
use tare_kernel::clock::timespec;

pub use tare_control::Found;

use crate::engine::Engine;
use crate::error::{Context, Error};
use crate::session::exit::Exit;
use crate::session::kept;
use crate::session::stdio::{Stdin, Streams};
use crate::session::{Event, Session, exec};
use crate::spec::BoxId;

/// What is read of the box's own words.
const WORDS_BYTES_MAX: usize = 4096;
/// How long a box may take to say what it found.
const FOUND_WITHIN: Duration = Duration::from_secs(10);
/// And its side of a copy to end, once there is nothing to copy any more.
pub(crate) const FINISHED_WITHIN: Duration = Duration::from_secs(5);
/// And its keeper, to say why nothing was found.
const REASON_WITHIN: Duration = Duration::from_secs(1);

/// An archive on its way.
#[derive(Debug)]
pub struct Copying {
    /// To read it from, or to write it to.
    pub stream: OwnedFd,
    /// What is at the path in the box.
    pub found: Found,
    other: OtherSide,
    id: BoxId,
}

/// Who is at the other end of the stream.
#[derive(Debug)]
enum OtherSide {
    /// A process in the box, and what it says.
    Box { executed: Session, words: OwnedFd },
    /// We are, for a box that has ended.
    Kept(JoinHandle<Result<(), tare_archive::Error>>),
}

impl Engine {
    /// The archive of what is at `path`; its top is called as the last component
    /// of the path, or `.` where that is no name (`/`, `.`, `..`). A path that is
    /// missing is an error.
    /// Of a box that has ended there is what it keeps.
    pub fn copy_out(&self, id: &BoxId, path: &Path) -> Result<Copying, Error> {
        let scratch = self.root.layout.scratch(id);
        if !self.observe(id)?.is_live() && scratch.is_dir() {
            let packing = kept::pack(&scratch, id, path)?;
            return Ok(Copying {
                stream: packing.stream,
                found: packing.found,
                other: OtherSide::Kept(packing.packer),
                id: id.clone(),
            });
        }
        let path = path.as_os_str().as_bytes().to_owned();
        self.copy(id, Program::Pack(path), Stdin::Empty)
    }

    /// The same of the plain files of a box that lives, as far as they can be read:
    /// nothing that its programs leave there is in the way of the rest.
    pub fn copy_files_out(&self, id: &BoxId, path: &Path) -> Result<Copying, Error> {
        let path = path.as_os_str().as_bytes().to_owned();
        self.copy(id, Program::PackFiles(path), Stdin::Empty)
    }

    /// Takes an archive into the directory `path`, or where that is none, into
    /// the directory that it is in; that must exist. What is in the way of a file
    /// is replaced, unless it is a directory.
    pub fn copy_in(&self, id: &BoxId, path: &Path) -> Result<Copying, Error> {
        let path = path.as_os_str().as_bytes().to_owned();
        self.copy(id, Program::Unpack(path), Stdin::Pipe)
    }

    fn copy(&self, id: &BoxId, program: Program, stdin: Stdin) -> Result<Copying, Error> {
        let own = self.start_own(id, program, stdin)?;
        match own.first_word.parse() {
            Ok(found) => Ok(Copying {
                stream: own.stream,
                found,
                other: OtherSide::Box { executed: own.executed, words: own.words },
                id: id.clone(),
            }),
            Err(()) => Err(cannot_copy(id, &own.first_word)),
        }
    }

    /// Starts a program of ours in the box, and hears its first word.
    pub(crate) fn start_own(
        &self,
        id: &BoxId,
        program: Program,
        stdin: Stdin,
    ) -> Result<Own, Error> {
        let record = self.awake(id)?;
        let exec = Exec {
            program,
            env: Vec::new(),
            workdir: None,
            identity: None,
            streams: ExecStreams::Passed,
            timeout_ns: None,
        };
        let (link, stdio) = exec::start(&record, id, exec, None, stdin)?;
        let streams = stdio.map(|stdio| stdio.ours).unwrap_or_default();
        let executed = Session::new(id.clone(), link.channel, Streams::default(), None);
        let stream = streams.stdin.or(streams.stdout);
        let (Some(stream), Some(mut words)) = (stream, streams.stderr) else {
            unreachable!("pipes were asked for");
        };
        match first_word(&mut words) {
            Ok(first_word) => Ok(Own { stream, words, first_word, executed }),
            Err(error) => Err(unanswered(executed, id, error)),
        }
    }
}

/// A program of ours in a box, after its first word.
#[derive(Debug)]
pub(crate) struct Own {
    /// Its standard input, or its standard output.
    pub stream: OwnedFd,
    /// Its standard error.
    pub words: OwnedFd,
    pub first_word: String,
    pub executed: Session,
}

impl Copying {
    /// Closes the stream and waits for what the other side says about itself.
    pub fn finish(self) -> Result<(), Error> {
        // End of file, or nobody to write to: either ends the other side.
        drop(self.stream);
        match self.other {
            OtherSide::Box { executed, words } => finish_box(executed, words, &self.id),
            OtherSide::Kept(packer) => match packer.join() {
                Ok(packed) => packed.context(|| format!("cannot read what box {} left", self.id)),
                Err(panic) => std::panic::resume_unwind(panic),
            },
        }
    }
}

fn finish_box(executed: Session, words: OwnedFd, id: &BoxId) -> Result<(), Error> {
    match last_word(executed, words, FINISHED_WITHIN)? {
        (Some(Exit::Code(0)), _) => Ok(()),
        (Some(_), said) if !said.is_empty() => Err(cannot_copy(id, said.trim_end())),
        (Some(_) | None, _) => Err(Error::conflict(format!("box {id} did not finish the copy"))
            .caused_by("its side of the copy ended too early")
            .with_hint("a file that did not arrive completely is as it was before")),
    }
}

/// How a program of ours ended, and what it said. Its stream is closed, so that it has
/// nothing to wait for: one that somebody in the box has stopped is ended.
pub(crate) fn last_word(
    mut executed: Session,
    words: OwnedFd,
    within: Duration,
) -> Result<(Option<Exit>, String), Error> {
    let until = Instant::now() + within;
    let exit = loop {
        match executed.next_event() {
            Some(Event::Exited(exit)) => break Some(exit),
            Some(Event::Failed(error)) => return Err(error),
            Some(Event::Started | Event::Terminal(_)) => continue,
            Some(Event::TimedOut | Event::Gone) => break None,
            None => {}
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break None;
        }
        let events = PollFd::from_borrowed_fd(executed.events_fd(), PollFlags::IN);
        // An interrupted wait is one more look.
        poll(&mut [events], Some(&timespec(left))).ok();
    };
    let mut said = [0; WORDS_BYTES_MAX];
    // What it said before its end is there; what is not, is not said.
    let is_there = {
        let mut fds = [PollFd::new(&words, PollFlags::IN)];
        poll(&mut fds, Some(&timespec(Duration::ZERO))).unwrap_or(0) > 0
    };
    let count = if is_there { rustix::io::read(&words, &mut said).unwrap_or(0) } else { 0 };
    Ok((exit, String::from_utf8_lossy(&said[..count]).into_owned()))
}

/// It may not have been started at all: its streams are closed by then, and why
/// is just about to be said.
fn unanswered(mut executed: Session, id: &BoxId, error: io::Error) -> Error {
    let until = Instant::now() + REASON_WITHIN;
    loop {
        match executed.next_event() {
            Some(Event::Failed(error)) => return error,
            Some(Event::Started | Event::Terminal(_)) => continue,
            Some(Event::Exited(_) | Event::TimedOut | Event::Gone) => break,
            None => {}
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let events = PollFd::from_borrowed_fd(executed.events_fd(), PollFlags::IN);
        // An interrupted wait is one more look.
        poll(&mut [events], Some(&timespec(left))).ok();
    }
    let message = format!("box {id} does not say what it found");
    Error::conflict(message).caused_by(error)
}

/// The box's words, which may be anything.
fn cannot_copy(id: &BoxId, why: &str) -> Error {
    let error = Error::bad_request(format!("box {id} did not copy"));
    let is_full = ["No space left", "File too large"];
    if is_full.iter().any(|words| why.contains(words)) {
        error
            .caused_by(why.to_owned())
            .with_hint("its scratch space has a size: --scratch of 'tare run'")
    } else {
        error.caused_by(why.to_owned())
    }
}

/// What was found, or why nothing will be copied.
fn first_word(words: &mut OwnedFd) -> io::Result<String> {
    let until = Instant::now() + FOUND_WITHIN;
    let mut line = Vec::new();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::from_borrowed_fd(words.as_fd(), PollFlags::IN)];
        match poll(&mut fds, Some(&timespec(left))) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        // A byte at a time: what follows the line is for later.
        let mut byte = [0];
        match rustix::io::read(&*words, &mut byte)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ if byte == *b"\n" => break,
            _ if line.len() >= WORDS_BYTES_MAX => break,
            _ => line.push(byte[0]),
        }
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}
