//! Files that go into a box before its command, and those that come out after it.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tare_archive::{Kind, Reader, Writer};
use tare_engine::spec::defaults::HOME;
use tare_engine::{BoxId, Context as _, Copied, Engine, Error, ErrorKind, Timestamp};

use crate::admission::Caller;
use crate::error::ServiceError;
use crate::work::Service;
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

/// The files of one box. Every method blocks its thread.
#[derive(Debug, Clone, Copy)]
pub struct BoxFiles<'a> {
    pub engine: &'a Engine,
    pub id: &'a BoxId,
}

impl Service {
    /// Calls `work` with the files of a box, on a thread.
    pub async fn with_files<T: Send + 'static>(
        &self,
        caller: &Caller,
        id: &BoxId,
        work: impl FnOnce(BoxFiles<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, ServiceError> {
        let box_id = id.clone();
        self.call_in_box(caller, id, move |engine| work(BoxFiles { engine, id: &box_id })).await
    }
}

impl BoxFiles<'_> {
    /// Copies files into the box.
    pub fn put(&self, files: Vec<InputFile>) -> Result<(), Error> {
        let copying = self.engine.copy_in(self.id, Path::new("/"))?;
        let mut stream = Pipe::of(&copying.stream).context(|| "cannot send files".into())?;
        let sent = send(&mut stream, files);
        drop(stream);
        // The error of the copy process says more than the closed pipe.
        copying.finish()?;
        sent.context(|| format!("cannot send files to box {}", self.id))
    }

    /// Passes the regular files at `path` to `read`, as an archive. Unreadable ones may be left out.
    pub fn read<T>(
        &self,
        path: &Path,
        read: impl FnOnce(&mut Reader<'_>) -> Result<T, tare_archive::Error>,
    ) -> Result<(T, Copied), Error> {
        let copying = self.engine.copy_files_out(self.id, path)?;
        let mut stream = Pipe::of(&copying.stream).context(|| "cannot receive files".into())?;
        let read = read(&mut Reader::new(&mut stream));
        drop(stream);
        // The error of the copy process says more than the end of its archive.
        let copied = copying.finish()?;
        let read = read.context(|| format!("cannot read the files of box {}", self.id))?;
        Ok((read, copied))
    }

    /// Reads the files and whole directories in `paths` that exist.
    pub fn collect(&self, paths: &[PathBuf], bytes_max: u64) -> Result<Vec<OutputFile>, Error> {
        let mut found = Vec::new();
        let mut left = bytes_max;
        for path in paths {
            self.collect_one(path, &mut left, &mut found)?;
        }
        Ok(found)
    }

    fn collect_one(
        &self,
        path: &Path,
        left: &mut u64,
        found: &mut Vec<OutputFile>,
    ) -> Result<(), Error> {
        let whole = Path::new(HOME).join(path);
        let parent = whole.parent().unwrap_or(Path::new("/"));
        let found_before = found.len();
        let mut fits = true;
        let read = self.read(&whole, |archive| {
            fits = receive(archive, parent, left, found)?;
            Ok(())
        });
        match read {
            _ if !fits => Err(too_much()),
            // A path that is missing or not a file has nothing to collect.
            Err(error) if error.kind() == ErrorKind::BadRequest && found.len() == found_before => {
                Ok(())
            }
            read => read.map(|((), _)| ()),
        }
    }
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

/// Returns whether all files fit into what is left.
fn receive(
    archive: &mut Reader<'_>,
    parent: &Path,
    left: &mut u64,
    found: &mut Vec<OutputFile>,
) -> Result<bool, tare_archive::Error> {
    while let Some(entry) = archive.next_entry()? {
        let Kind::File { size } = entry.kind else {
            continue;
        };
        let Some(after) = left.checked_sub(size) else {
            return Ok(false);
        };
        *left = after;
        let content = archive.content()?;
        let name = String::from_utf8_lossy(&entry.name).into_owned();
        let path = parent.join(name);
        let path = path.strip_prefix(HOME).unwrap_or(&path);
        found.push(OutputFile { path: path.to_string_lossy().into_owned(), content });
    }
    Ok(true)
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
