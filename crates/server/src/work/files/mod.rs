//! Files that go into a box before its command, and archives that come out after it.

mod error;
mod pattern;
mod pipe;
pub mod returned;
pub mod transfer;

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use tare_archive::{Reader, Writer};
use tare_engine::spec::defaults::HOME;
use tare_engine::{BoxId, Context as _, Copied, Engine, Error, Timestamp};

use crate::admission::Caller;
use crate::error::ServiceError;
use crate::work::Service;
use crate::work::files::pipe::Pipe;

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

impl InputFile {
    /// A file with this name in a directory of the box. Both are tare's own.
    pub fn at(directory: &str, name: &str, content: Vec<u8>) -> Self {
        Self {
            path: format!("{}/{name}", directory.trim_start_matches('/')),
            mtime: now(),
            content: Content::Bytes(content),
        }
    }

    /// Makes an input file from a path below the working directory.
    pub fn new(path: &str, content: Vec<u8>) -> Result<Self, ServiceError> {
        let relative = path.strip_prefix(HOME).map_or(path, |rest| match rest {
            "" => path,
            rest => rest.strip_prefix('/').unwrap_or(path),
        });
        let is_name = |name: &str| !matches!(name, "" | "." | "..") && !name.contains('\0');
        if relative.split('/').all(is_name) {
            Ok(Self::at(HOME, relative, content))
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
    /// The keeper saw that the working directory was empty when the command ended.
    pub is_home_empty: bool,
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
        self.call_in_box(caller, id, move |engine| work(BoxFiles::of(engine, &box_id))).await
    }
}

impl<'a> BoxFiles<'a> {
    pub fn of(engine: &'a Engine, id: &'a BoxId) -> Self {
        Self { engine, id, is_home_empty: false }
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
