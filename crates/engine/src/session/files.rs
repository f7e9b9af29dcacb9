//! Single files of a live box: read, listed, written, removed, each by a program of ours
//! that runs in the box. So no path leads anywhere but where the box itself could go.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use tare_control::Program;
use tare_control::files::FileWord;
pub use tare_control::files::{LISTED_BYTES_MAX, Listed, ListedKind, PIECE_BYTES_MAX, piece_head};

use crate::engine::Engine;
use crate::error::Error;
use crate::session::Session;
use crate::session::copying::{FINISHED_WITHIN, last_word};
use crate::session::exit::Exit;
use crate::session::stdio::Stdin;
use crate::spec::BoxId;
use crate::spec::shown::quoted;

/// For a tree of a million files to go.
const REMOVED_WITHIN: Duration = Duration::from_secs(60);

/// A file on its way. Dropped before [`Rest::finish`], it does not arrive.
#[derive(Debug)]
pub struct FileStream {
    /// To read from, or to write to: what is written is in pieces ([`piece_head`]).
    pub stream: OwnedFd,
    /// Of a file that is read, if it is known.
    pub size: Option<u64>,
    rest: Rest,
}

/// What is left to be heard.
#[derive(Debug)]
pub struct Rest {
    executed: Session,
    words: OwnedFd,
    doing: String,
}

impl Engine {
    /// A regular file, wherever links lead.
    pub fn read_file(&self, id: &BoxId, path: &Path) -> Result<FileStream, Error> {
        let doing = format!("cannot read {} in box {id}", quoted(path));
        self.file(id, Program::Read(bytes(path)), Stdin::Empty, doing)
    }

    /// What is in a directory: entries as [`Listed`] has them, each with a zero byte at
    /// its end.
    pub fn list_files(&self, id: &BoxId, path: &Path) -> Result<FileStream, Error> {
        let doing = format!("cannot list {} in box {id}", quoted(path));
        self.file(id, Program::List(bytes(path)), Stdin::Empty, doing)
    }

    /// A new file in place of whatever file or link is there, with the directories that
    /// it is in. It is there when it is whole.
    pub fn write_file(&self, id: &BoxId, path: &Path) -> Result<FileStream, Error> {
        let doing = format!("cannot write {} in box {id}", quoted(path));
        self.file(id, Program::Write(bytes(path)), Stdin::Pipe, doing)
    }

    /// Removes a file, a link, or a directory with all that is in it.
    pub fn remove_file(&self, id: &BoxId, path: &Path) -> Result<(), Error> {
        let doing = format!("cannot remove {} in box {id}", quoted(path));
        let program = Program::Remove(bytes(path));
        let (stream, rest) = self.file(id, program, Stdin::Empty, doing)?.split();
        drop(stream);
        rest.finish_within(REMOVED_WITHIN)
    }

    fn file(
        &self,
        id: &BoxId,
        program: Program,
        stdin: Stdin,
        doing: String,
    ) -> Result<FileStream, Error> {
        let own = self.start_own(id, program, stdin)?;
        match own.first_word.parse() {
            Ok(FileWord::Ready { size }) => Ok(FileStream {
                stream: own.stream,
                size,
                rest: Rest { executed: own.executed, words: own.words, doing },
            }),
            Ok(FileWord::Failed { errno }) => Err(failed(doing, errno)),
            Err(()) => {
                Err(Error::bad_request(doing).caused_by("the box does not say what it found"))
            }
        }
    }
}

impl FileStream {
    pub fn split(self) -> (OwnedFd, Rest) {
        (self.stream, self.rest)
    }
}

impl Rest {
    /// How it went; for whoever has closed the stream. Waits for a bounded time.
    pub fn finish(self) -> Result<(), Error> {
        self.finish_within(FINISHED_WITHIN)
    }

    fn finish_within(self, within: Duration) -> Result<(), Error> {
        let (exit, said) = last_word(self.executed, self.words, within)?;
        match (exit, said.trim_end().parse()) {
            (Some(Exit::Code(0)), _) => Ok(()),
            (Some(_), Ok(FileWord::Failed { errno })) => Err(failed(self.doing, errno)),
            (Some(_) | None, _) => Err(Error::conflict(self.doing)
                .caused_by("the process that did it in the box ended too early")),
        }
    }
}

fn bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_owned()
}

/// The errno is the reason; where it is about the request, the caller can act on it.
fn failed(doing: String, errno: i32) -> Error {
    Error::bad_request(doing).caused_by(io::Error::from_raw_os_error(errno))
}
