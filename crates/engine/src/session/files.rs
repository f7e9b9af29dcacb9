//! Files of a box: archives in and out, and single files that are read, listed, written
//! and removed.
//!
//! A program of tare does the work in the live box, as the box's user. So a path leads only where the
//! box itself could go. The program reports its status on its standard error, which is not trusted:
//! any process of the box may write there. Files of an ended box are read from its kept scratch space.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tare_control::file_programs::{LEFT_OUT, ProgramStatus};
pub use tare_control::file_programs::{
    LISTED_BYTES_MAX, Listed, ListedKind, PIECE_BYTES_MAX, PathKind, piece_head,
};
use tare_control::{Cause, End, Exec, ExecStreams, Program};
use tare_kernel::clock::timespec;

use crate::care::tend::{awake_after_boot, observe_tended};
use crate::error::{Context, Error, Hint};
use crate::history::sentence::{Circumstances, Subject};
use crate::host::layout::BoxAt;
use crate::session::stdio::{Stdin, Streams};
use crate::session::{Event, Session, exec, kept};
use crate::spec::BoxId;
use crate::spec::shown::quoted;

/// How much of a program's status is read.
const STATUS_BYTES_MAX: usize = 4096;
/// How long a program that has failed may take to exit.
const FAILED_WITHIN: Duration = Duration::from_secs(1);
/// How long a program may take to report that it is ready.
const READY_WITHIN: Duration = Duration::from_secs(10);
/// How long a program may take to end after its stream is closed.
const FINISHED_WITHIN: Duration = Duration::from_secs(5);
/// How long a program that removes a tree may take: the tree may have a million files.
const REMOVED_WITHIN: Duration = Duration::from_secs(60);
/// The exit code of a program that did not end in time.
const KILLED: u8 = 137;

/// An archive that is copied into or out of a box.
#[derive(Debug)]
pub struct Copy {
    /// The end of the archive's pipe, for reading or for writing.
    pub stream: OwnedFd,
    /// What is at the path in the box.
    pub found: PathKind,
    peer: CopyPeer,
    id: BoxId,
}

/// What is at the other end of the stream.
#[derive(Debug)]
enum CopyPeer {
    /// A program in the box.
    Box(InBoxProgram),
    /// A thread of this process, for a box that has ended.
    Kept(JoinHandle<Result<(), tare_archive::Error>>),
}

/// A file that is read or written. It does not arrive unless [`PendingFile::finish`]
/// returns without an error.
#[derive(Debug)]
pub struct FileTransfer {
    /// The end of the file's pipe. A file is written in pieces ([`piece_head`]).
    pub stream: OwnedFd,
    /// The size of a file that is read, if it is known.
    pub size: Option<u64>,
    pending: PendingFile,
}

/// The rest of a [`FileTransfer`] whose stream was taken.
#[derive(Debug)]
pub struct PendingFile {
    program: InBoxProgram,
    doing: String,
}

/// Copies the file or directory at `path` out of the box, as an archive. Its top entry has the name of
/// the last component of the path, or `.` if that is not a name (`/`, `.`, `..`). A missing path is an
/// error. Of an ended box, only kept files can be copied.
pub fn copy_out(at: BoxAt<'_>, path: &Path) -> Result<Copy, Error> {
    let scratch = at.root.layout.scratch(at.id);
    let observation = observe_tended(at)?;
    if !observation.is_live() && scratch.is_dir() {
        let packing = kept::pack(&scratch, at.id, path)?;
        return Ok(Copy {
            stream: packing.stream,
            found: packing.found,
            peer: CopyPeer::Kept(packing.packer),
            id: at.id.clone(),
        });
    }
    if observation.has_ended() {
        let message = format!("box {} has ended, and its files are gone", at.id);
        return Err(Error::conflict(message).with_hint(Hint::KeepFiles));
    }
    copy(at, Program::Pack(bytes(path)), Stdin::Empty)
}

/// Copies the readable regular files at `path` out of a live box, and leaves out everything else.
pub fn copy_files_out(at: BoxAt<'_>, path: &Path) -> Result<Copy, Error> {
    copy(at, Program::PackFiles(bytes(path)), Stdin::Empty)
}

/// Copies an archive into the directory `path`. If `path` is not a directory, copies it into the
/// directory that `path` is in, which must exist. Existing files are replaced, directories are not.
pub fn copy_in(at: BoxAt<'_>, path: &Path) -> Result<Copy, Error> {
    copy(at, Program::Unpack(bytes(path)), Stdin::Pipe)
}

fn copy(at: BoxAt<'_>, program: Program, stdin: Stdin) -> Result<Copy, Error> {
    let (mut program, stream) = InBoxProgram::start(at, program, stdin)?;
    match program.ready(at.id)? {
        ProgramStatus::Ready { kind: Some(found), .. } => {
            Ok(Copy { stream, found, peer: CopyPeer::Box(program), id: at.id.clone() })
        }
        ProgramStatus::Ready { kind: None, .. } => {
            Err(cannot_copy(at.id, None, "it does not say what it found".into()))
        }
        ProgramStatus::Failed { errno, what } => Err(cannot_copy(at.id, errno, what)),
    }
}

/// Reads a regular file. Links are followed.
pub fn read_file(at: BoxAt<'_>, path: &Path) -> Result<FileTransfer, Error> {
    let doing = format!("cannot read {} in box {}", quoted(path), at.id);
    file(at, Program::Read(bytes(path)), Stdin::Empty, doing)
}

/// Lists a directory. The stream has [`Listed`] entries, each with a zero byte at its end.
pub fn list_files(at: BoxAt<'_>, path: &Path) -> Result<FileTransfer, Error> {
    let doing = format!("cannot list {} in box {}", quoted(path), at.id);
    file(at, Program::List(bytes(path)), Stdin::Empty, doing)
}

/// Writes a file, which replaces an existing file or link when it is complete. Makes the directories
/// that it is in.
pub fn write_file(at: BoxAt<'_>, path: &Path) -> Result<FileTransfer, Error> {
    let doing = format!("cannot write {} in box {}", quoted(path), at.id);
    file(at, Program::Write(bytes(path)), Stdin::Pipe, doing)
}

/// Removes a file, a link, or a directory with everything in it.
pub fn remove_file(at: BoxAt<'_>, path: &Path) -> Result<(), Error> {
    let doing = format!("cannot remove {} in box {}", quoted(path), at.id);
    let program = Program::Remove(bytes(path));
    let (stream, pending) = file(at, program, Stdin::Empty, doing)?.split();
    drop(stream);
    pending.finish_within(REMOVED_WITHIN)
}

fn file(
    at: BoxAt<'_>,
    program: Program,
    stdin: Stdin,
    doing: String,
) -> Result<FileTransfer, Error> {
    let (mut program, stream) = InBoxProgram::start(at, program, stdin)?;
    match program.ready(at.id)? {
        ProgramStatus::Ready { size, .. } => {
            Ok(FileTransfer { stream, size, pending: PendingFile { program, doing } })
        }
        ProgramStatus::Failed { errno: Some(errno), .. } => Err(failed(doing, errno)),
        ProgramStatus::Failed { errno: None, .. } => Err(Error::bad_request(doing)
            .caused_by("the box sent no reason")
            .with_hint("does a program in the box stop or kill other processes?")),
    }
}

/// How much of a copy has arrived.
#[derive(Debug)]
pub enum Copied {
    Everything,
    /// A whole archive without sockets, fifos, devices and unreadable files. The error names the
    /// first of them.
    AllBut(Error),
}

impl Copied {
    /// Fails if something was left out.
    pub fn everything(self) -> Result<(), Error> {
        match self {
            Self::Everything => Ok(()),
            Self::AllBut(error) => Err(error),
        }
    }
}

impl Copy {
    /// Closes the stream and waits until the other side has ended.
    pub fn finish(self) -> Result<Copied, Error> {
        // End of file, or no reader: either ends the other side.
        drop(self.stream);
        let id = &self.id;
        match self.peer {
            CopyPeer::Box(program) => match program.finish(FINISHED_WITHIN)? {
                (0, _) => Ok(Copied::Everything),
                (LEFT_OUT, Some((errno, what))) => {
                    let why = errno.map(|errno| io::Error::from_raw_os_error(errno).to_string());
                    let left = why.map_or(what.clone(), |why| format!("{what}: {why}"));
                    Ok(Copied::AllBut(left_out(id, left)))
                }
                (_, Some((errno, what))) => Err(cannot_copy(id, errno, what)),
                (_, None) => Err(unfinished(id)),
            },
            CopyPeer::Kept(packer) => match packer.join() {
                Ok(Ok(())) => Ok(Copied::Everything),
                Ok(Err(error)) if error.kind() == tare_archive::ErrorKind::LeftOut => {
                    Ok(Copied::AllBut(left_out(id, error)))
                }
                Ok(Err(error)) => Err(error).context(|| format!("cannot read what box {id} left")),
                Err(panic) => std::panic::resume_unwind(panic),
            },
        }
    }
}

impl FileTransfer {
    pub fn split(self) -> (OwnedFd, PendingFile) {
        (self.stream, self.pending)
    }
}

impl PendingFile {
    /// Waits until the program has ended, for a bounded time. The stream must be closed.
    pub fn finish(self) -> Result<(), Error> {
        self.finish_within(FINISHED_WITHIN)
    }

    fn finish_within(self, within: Duration) -> Result<(), Error> {
        match self.program.finish(within)? {
            (0, _) => Ok(()),
            (_, Some((Some(errno), _))) => Err(failed(self.doing, errno)),
            (_, _) => Err(Error::conflict(self.doing)
                .caused_by("the process that did it in the box ended too early")),
        }
    }
}

/// A program of tare in a box. It ends with this value.
#[derive(Debug)]
struct InBoxProgram {
    session: Box<Session>,
    /// Its standard error; `None` at its end.
    status: Option<OwnedFd>,
    /// What it wrote there.
    text: Vec<u8>,
    ended: Option<End>,
}

impl InBoxProgram {
    /// Starts the program, and returns it with its input or its output. A keeper that does
    /// not answer in time is an error.
    fn start(at: BoxAt<'_>, program: Program, stdin: Stdin) -> Result<(Self, OwnedFd), Error> {
        let record = awake_after_boot(at)?;
        let exec = Exec {
            program,
            env: Vec::new(),
            workdir: None,
            identity: None,
            streams: ExecStreams::Passed,
            timeout_ns: None,
        };
        let (link, stdio) = exec::start(&record, at.id, exec, None, stdin)?;
        link.await_answer(at.id)?;
        let streams = stdio.map(|stdio| stdio.ours).unwrap_or_default();
        let session = Session::new(at.id.clone(), link.channel, Streams::default(), None);
        let Some(stream) = streams.stdin.or(streams.stdout) else {
            unreachable!("the exec has pipes");
        };
        Ok((
            Self {
                session: Box::new(session),
                status: streams.stderr,
                text: Vec::new(),
                ended: None,
            },
            stream,
        ))
    }

    /// Waits for the first line.
    fn ready(&mut self, id: &BoxId) -> Result<ProgramStatus, Error> {
        self.run_until(READY_WITHIN, |text| text.contains(&b'\n'))?;
        let Some(end) = self.text.iter().position(|byte| *byte == b'\n') else {
            let within = format!("it did not answer within {} s", READY_WITHIN.as_secs());
            return Err(Error::conflict(format!("tare's copy process in box {id} failed"))
                .caused_by(within)
                .with_hint("does a program in the box stop other processes?"));
        };
        let rest = self.text.split_off(end + 1);
        let line = std::mem::replace(&mut self.text, rest);
        let ready = status(&line[..end]);
        if !matches!(ready, ProgramStatus::Ready { .. }) {
            // It is about to exit. A client that hangs up now would seem to have ended it.
            self.run_until(FAILED_WITHIN, |_| false).ok();
        }
        Ok(ready)
    }

    /// Waits until it has ended. Its stream is closed, so that it has nothing to wait for;
    /// one that a process of the box has stopped is killed. Returns its exit code, and
    /// the errno and what failed if it reported that.
    fn finish(mut self, within: Duration) -> Result<(u8, Option<FailedWith>), Error> {
        self.run_until(within, |_| false)?;
        let code = self.ended.map_or(KILLED, End::code);
        let failed = match status(self.text.trim_ascii_end()) {
            ProgramStatus::Failed { errno: None, what } if what.is_empty() => None,
            ProgramStatus::Failed { errno, what } => Some((errno, what)),
            ProgramStatus::Ready { .. } => None,
        };
        Ok((code, failed))
    }

    /// Reads status and events until there is enough, the program has ended, or the time
    /// is over. A program that could not be started is an error.
    fn run_until(&mut self, within: Duration, enough: fn(&[u8]) -> bool) -> Result<(), Error> {
        let until = Instant::now() + within;
        loop {
            // Events first: what it wrote before its end is then read too.
            self.take_events()?;
            while self.status_is_readable() {
                self.read_status();
            }
            if self.ended.is_some() || enough(&self.text) {
                return Ok(());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            let events = PollFd::from_borrowed_fd(self.session.events_fd(), PollFlags::IN);
            let status = self.status.iter().map(|fd| PollFd::new(fd, PollFlags::IN));
            let mut fds: Vec<PollFd<'_>> = status.chain([events]).collect();
            // After an interrupted wait the loop reads again.
            poll(&mut fds, Some(&timespec(left))).ok();
        }
    }

    fn take_events(&mut self) -> Result<(), Error> {
        while let Some(event) = self.session.next_event() {
            match event {
                Event::Started | Event::Terminal(_) => {}
                Event::Failed(error) => return Err(error),
                Event::Ended(end) if end.cause == Cause::MachineLost => {
                    return Err(machine_lost(self.session.id(), end));
                }
                Event::Ended(end) => self.ended = Some(end),
            }
        }
        Ok(())
    }

    fn status_is_readable(&self) -> bool {
        let Some(status) = &self.status else { return false };
        let mut fds = [PollFd::new(status, PollFlags::IN)];
        poll(&mut fds, Some(&timespec(Duration::ZERO))).is_ok_and(|ready| ready > 0)
    }

    fn read_status(&mut self) {
        let mut buffer = [0; STATUS_BYTES_MAX];
        let read = self.status.as_ref().map(|status| rustix::io::read(status, &mut buffer));
        match read {
            Some(Ok(count @ 1..)) if self.text.len() + count <= STATUS_BYTES_MAX => {
                self.text.extend_from_slice(&buffer[..count]);
            }
            // Its end, or more than any status: the rest is not read.
            Some(Ok(_) | Err(_)) | None => self.status = None,
        }
    }
}

/// An errno, and what failed.
type FailedWith = (Option<i32>, String);

/// Reads a status line. The keeper of an older box writes only a sentence if it fails.
fn status(line: &[u8]) -> ProgramStatus {
    let line = String::from_utf8_lossy(line);
    line.parse().unwrap_or_else(|()| ProgramStatus::Failed { errno: None, what: line.into() })
}

fn bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_owned()
}

/// `why` names the first entry that was left out. It comes from the box and may be anything.
fn left_out(id: &BoxId, why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::bad_request(format!("box {id} did not copy everything"))
        .caused_by(why)
        .with_hint("everything else was copied")
}

/// Returns the error for an errno that the program reported.
fn failed(doing: String, errno: i32) -> Error {
    Error::bad_request(doing).caused_by(io::Error::from_raw_os_error(errno))
}

fn machine_lost(id: &BoxId, end: End) -> Error {
    let sentence = Circumstances::of(end, Subject::Box).sentence().text;
    Error::conflict(format!("cannot use the files of box {id}"))
        .caused_by(sentence.trim_end_matches('.'))
        .with_hint(Hint::SeeHowItEnded)
}

fn unfinished(id: &BoxId) -> Error {
    Error::conflict(format!("box {id} did not finish the copy"))
        .caused_by(
            "tare's process in the box ended early, as when the box ends or its memory is full",
        )
        .with_hint("try again; a file that did not arrive completely is as it was before")
}

/// `what` comes from the box and may be anything: errors are escaped where they are shown.
fn cannot_copy(id: &BoxId, errno: Option<i32>, what: String) -> Error {
    let doing = format!("box {id} did not copy");
    let error = match errno {
        Some(errno) => failed(format!("{doing}: {what}"), errno),
        None => Error::bad_request(doing).caused_by(what),
    };
    match error.errno() {
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => error.with_hint(Hint::MoreScratch),
        Some(Errno::ROFS) => error.with_hint("/work and /tmp are writable"),
        Some(_) | None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_box_gets_a_hint_and_the_sentence_of_an_older_keeper_is_shown() {
        let id = BoxId::random();
        let error = |line: &[u8]| match status(line) {
            ProgramStatus::Failed { errno, what } => cannot_copy(&id, errno, what),
            ProgramStatus::Ready { .. } => panic!("it failed"),
        };
        let full = error(b"failed 28 cannot write to /work");
        let text = format!("box {id} did not copy: cannot write to /work: No space left on device");
        assert_eq!((full.in_full(), full.hint()), (text, Some(&Hint::MoreScratch)));
        // A box may write any number.
        for number in [0, 4096, i32::MAX] {
            let text = format!("failed {number} cannot write to /work");
            assert_eq!(error(text.as_bytes()).hint(), None, "{number}");
        }
        let older = error(b"cannot write to /work: No space left on device");
        assert_eq!(older.in_full(), full.in_full());
    }
}
