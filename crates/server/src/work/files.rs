//! Files that go into a box before its command, and those that come out after it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use tare_archive::{Kind, Reader, Writer};
use tare_engine::spec::defaults::HOME;
use tare_engine::{BoxId, Context as _, Engine, Error, ErrorKind, Timestamp};

use crate::error::ServiceError;
use crate::work::pipe::Pipe;

/// A file that is put into a box.
pub struct InputFile {
    /// Below the root; no part of it is empty, `.` or `..`.
    pub path: String,
    /// When it was changed last, in seconds since 1970.
    pub mtime: i64,
    pub content: Content,
}

pub enum Content {
    Bytes(Vec<u8>),
    /// The first `size` bytes of a file, which is opened when its turn comes.
    File {
        open: OpenFile,
        size: u64,
    },
}

pub type OpenFile = Box<dyn FnOnce() -> io::Result<File> + Send>;

/// A file that the command left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputFile {
    /// Relative to the working directory if it is in there, otherwise absolute.
    pub path: String,
    pub content: Vec<u8>,
}

impl InputFile {
    /// Makes an input file from a path below the working directory.
    pub fn new(path: &str, content: Vec<u8>) -> Result<Self, ServiceError> {
        let relative = path.strip_prefix(HOME).map_or(path, |rest| match rest {
            "" => path,
            rest => rest.strip_prefix('/').unwrap_or(path),
        });
        let is_name = |name: &str| !matches!(name, "" | "." | "..") && !name.contains('\0');
        if relative.split('/').all(is_name) {
            Ok(Self {
                path: format!("{}/{relative}", HOME.trim_start_matches('/')),
                mtime: now(),
                content: Content::Bytes(content),
            })
        } else {
            Err(ServiceError::invalid(
                "invalid_path",
                format!("{path:?} is not a path below {HOME}"),
            )
            .with_hint("write a relative path, such as data/input.csv"))
        }
    }
}

/// The current time, in seconds since 1970.
pub fn now() -> i64 {
    i64::try_from(Timestamp::now().as_ms() / 1000).unwrap_or(i64::MAX)
}

/// Copies files into a box. Blocks its thread.
pub fn put(engine: &Engine, id: &BoxId, files: Vec<InputFile>) -> Result<(), Error> {
    let copying = engine.copy_in(id, Path::new("/"))?;
    let mut stream = Pipe::of(&copying.stream).context(|| "cannot send files".into())?;
    let sent = send(&mut stream, files);
    drop(stream);
    // The error of the copy process says more than the closed pipe.
    copying.finish()?;
    sent.context(|| format!("cannot send files to box {id}"))
}

fn send(stream: &mut dyn Write, files: Vec<InputFile>) -> io::Result<()> {
    let mut archive = Writer::new(stream);
    for file in files {
        let (path, mtime) = (file.path.as_bytes(), file.mtime);
        match file.content {
            Content::Bytes(bytes) => archive.file(path, mtime, &bytes)?,
            Content::File { open, size } => {
                archive.file_from(path, mtime, size, &mut open()?)?;
            }
        }
    }
    archive.finish()
}

/// Reads the files and whole directories in `paths` that exist.
pub fn collect(
    engine: &Engine,
    id: &BoxId,
    paths: &[PathBuf],
    bytes_max: u64,
) -> Result<Vec<OutputFile>, Error> {
    let mut found = Vec::new();
    let mut left = bytes_max;
    for path in paths {
        collect_one(engine, id, path, &mut left, &mut found)?;
    }
    Ok(found)
}

fn collect_one(
    engine: &Engine,
    id: &BoxId,
    path: &Path,
    left: &mut u64,
    found: &mut Vec<OutputFile>,
) -> Result<(), Error> {
    let whole = Path::new(HOME).join(path);
    let copying = match engine.copy_files_out(id, &whole) {
        Err(error) if is_refusal(&error) => return Ok(()),
        copying => copying?,
    };
    let parent = whole.parent().unwrap_or(Path::new("/")).to_owned();
    let mut stream = Pipe::of(&copying.stream).context(|| "cannot receive files".into())?;
    let found_before = found.len();
    let received = receive(&mut stream, &parent, left, found);
    drop(stream);
    let is_nothing = found.len() == found_before;
    // The error of the copy process says more than the end of its archive.
    match (received, copying.finish()) {
        (Err(Broken::TooMuch), _) => Err(too_much()),
        (_, Err(error)) if is_refusal(&error) && is_nothing => Ok(()),
        (_, Err(error)) => Err(error),
        (Err(Broken::Archive(error)), Ok(_)) => Err(error),
        (Ok(()), Ok(_)) => Ok(()),
    }
}

/// Whether the box reports that the path is missing or not a file. Such a path is skipped.
fn is_refusal(error: &Error) -> bool {
    error.kind() == ErrorKind::BadRequest
}

/// Why not all of an archive was taken.
enum Broken {
    TooMuch,
    Archive(Error),
}

fn receive(
    stream: &mut dyn Read,
    parent: &Path,
    left: &mut u64,
    found: &mut Vec<OutputFile>,
) -> Result<(), Broken> {
    let mut archive = Reader::new(stream);
    let broken = |error| {
        let message = "cannot read the files of the box";
        Broken::Archive(Error::failed(message).caused_by(error))
    };
    while let Some(entry) = archive.next_entry().map_err(broken)? {
        let Kind::File { size } = entry.kind else {
            continue;
        };
        *left = left.checked_sub(size).ok_or(Broken::TooMuch)?;
        let content = archive.content().map_err(broken)?;
        let name = String::from_utf8_lossy(&entry.name).into_owned();
        let path = parent.join(name);
        let path = path.strip_prefix(HOME).unwrap_or(&path);
        found.push(OutputFile { path: path.to_string_lossy().into_owned(), content });
    }
    Ok(())
}

fn too_much() -> Error {
    let message = "the requested outputs are too large";
    Error::bad_request(message).with_hint("request fewer, or raise [limits] output_bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_goes_below_the_working_directory_and_nowhere_else() {
        let path = |text: &str| InputFile::new(text, Vec::new()).map(|file| file.path).ok();
        assert_eq!(path("a.txt").as_deref(), Some("work/a.txt"));
        assert_eq!(path("a/b.txt").as_deref(), Some("work/a/b.txt"));
        assert_eq!(path("/work/a.txt").as_deref(), Some("work/a.txt"));
        for wrong in
            ["", "/", "..", "../a", "a/../b", "/etc/passwd", "/work", "/workx", "a//b", "a/"]
        {
            assert_eq!(path(wrong), None, "{wrong:?}");
        }
    }
}
