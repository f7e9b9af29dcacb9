//! The host's side of a copy: packs files of the host, and unpacks files of a box.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, open, statat};
use tare_archive::{Options, Top};
use tare_engine::spec::shown::quoted;
use tare_engine::{Context as _, Error, PathKind};
use tare_kernel::step::step;

use crate::commands::cp::target::{self, CopySource, CopyTarget};

/// A file or directory of the host, by its open parent directory.
#[derive(Debug)]
pub struct Source<'a> {
    path: &'a Path,
    directory: OwnedFd,
    /// Its name in that directory; `.` is the directory itself.
    entry: &'a OsStr,
    is_directory: bool,
}

impl<'a> Source<'a> {
    pub fn open(path: &'a Path) -> Result<Self, Error> {
        let missing = |error: rustix::io::Errno| {
            let message = format!("cannot read {}", quoted(path));
            Error::bad_request(message).caused_by(error)
        };
        // A symlink with a slash behind it means the directory that it leads to.
        let is_itself = target::name(path).is_none() || target::ends_with_slash(path);
        let (directory, entry) = match path.file_name() {
            Some(name) if !is_itself => (parent(path), name),
            Some(_) | None => (path, OsStr::new(".")),
        };
        let directory = open_directory(directory).map_err(missing)?;
        let stat = statat(&directory, entry, AtFlags::SYMLINK_NOFOLLOW).map_err(missing)?;
        Ok(Self {
            path,
            directory,
            entry,
            is_directory: FileType::from_raw_mode(stat.st_mode) == FileType::Directory,
        })
    }

    pub fn path(&self) -> &Path {
        self.path
    }

    pub fn subject(&self) -> CopySource<'a> {
        CopySource::new(target::name(self.path), self.is_directory)
    }

    /// Packs it into an archive under `name`.
    pub fn pack(&self, stream: &mut File, name: &OsStr) -> Result<(), tare_archive::Error> {
        let (entry, name) = (self.entry.as_bytes(), name.as_bytes());
        tare_archive::pack(stream, self.directory.as_fd(), entry, name)
    }
}

/// The destination of a copy on the host.
#[derive(Debug)]
pub struct Destination<'a> {
    path: &'a Path,
    found: PathKind,
}

impl<'a> Destination<'a> {
    pub fn look(path: &'a Path) -> Result<Self, Error> {
        let found = match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => PathKind::Directory,
            Ok(_) => PathKind::File,
            Err(error) if error.kind() == io::ErrorKind::NotFound => PathKind::Missing,
            // A file with a slash behind it.
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => PathKind::File,
            Err(error) => return Err(error).context(|| format!("cannot look at {}", quoted(path))),
        };
        Ok(Self { path, found })
    }

    pub fn path(&self) -> &Path {
        self.path
    }

    pub fn found(&self) -> PathKind {
        self.found
    }

    /// Unpacks an archive. No entry of it can get a name other than the requested one.
    pub fn unpack(&self, stream: &mut File, target: &CopyTarget) -> Result<Unpacked, Error> {
        if let CopyTarget::Make { .. } = target {
            let made = step("directory for a copy made", || fs::create_dir(self.path));
            made.context(|| format!("cannot make the directory {}", quoted(self.path)))?;
        }
        let (directory, top) = match target {
            CopyTarget::Into { name } => (self.path, only(name, name)),
            CopyTarget::Rename { from, to } => (parent(self.path), only(from, to)),
            CopyTarget::Onto | CopyTarget::Make { .. } => (self.path, Top::Any),
        };
        let opened = open_directory(directory)
            .context(|| format!("cannot open the directory {}", quoted(directory)))?;
        let options = Options { top, ..Options::default() };
        let unpacked = tare_archive::unpack(stream, opened.as_fd(), options);
        Ok(unpacked.map(drop))
    }
}

/// Result for the stream, as opposed to the files.
type Unpacked = Result<(), tare_archive::Error>;

fn only<'a>(name: &'a OsStr, becomes: &'a OsStr) -> Top<'a> {
    Top::Only { name: name.as_bytes(), becomes: becomes.as_bytes() }
}

/// The directory that contains a path.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        Some(_) | None => Path::new("."),
    }
}

fn open_directory(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    open(path, flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cp::target::copy_target;
    use std::io::Seek;
    use tare_harness::TemporaryDirectory;

    /// A copy from one path of the host to another, as if a box lay between.
    fn copy(source: &Path, destination: &Path) -> Result<(), Error> {
        let source = Source::open(source)?;
        let destination = Destination::look(destination)?;
        let target = copy_target(source.subject(), destination.path(), destination.found())?;
        let spool = TemporaryDirectory::new();
        let mut stream = File::create_new(spool.join("tar")).unwrap();
        let name = target::name(source.path()).unwrap_or(OsStr::new("."));
        source.pack(&mut stream, name).unwrap();
        let mut stream = File::open(spool.join("tar")).unwrap();
        stream.rewind().unwrap();
        destination.unpack(&mut stream, &target)?.unwrap();
        Ok(())
    }

    /// `tree/file` and `tree/sub/deep`.
    fn tree() -> TemporaryDirectory {
        let directory = TemporaryDirectory::new();
        fs::create_dir_all(directory.join("tree/sub")).unwrap();
        directory.write("tree/file", "1");
        directory.write("tree/sub/deep", "2");
        directory
    }

    #[test]
    fn a_directory_is_copied_into_one_that_is_there_and_as_one_that_is_not() {
        let directory = tree();
        let at = |path: &str| directory.join(path);
        fs::create_dir(at("there")).unwrap();
        copy(&at("tree"), &at("there")).unwrap();
        assert!(at("there/tree/sub/deep").exists());
        copy(&at("tree"), &at("new")).unwrap();
        assert!(at("new/sub/deep").exists());
    }

    #[test]
    fn the_content_of_a_directory_is_copied_without_it() {
        let directory = tree();
        let at = |path: &str| directory.join(path);
        fs::create_dir(at("there")).unwrap();
        for destination in ["there", "new"] {
            copy(&at("tree/."), &at(destination)).unwrap();
            assert!(at(destination).join("sub/deep").exists());
        }
    }

    #[test]
    fn a_file_is_copied_under_its_own_name_or_another() {
        let directory = tree();
        let at = |path: &str| directory.join(path);
        copy(&at("tree/file"), &at("tree/sub")).unwrap();
        assert!(at("tree/sub/file").exists());
        copy(&at("tree/file"), &at("tree/sub/deep")).unwrap();
        assert_eq!(fs::read(at("tree/sub/deep")).unwrap(), b"1");
        assert!(copy(&at("tree/file"), &at("nowhere/x")).is_err());
        assert!(copy(&at("tree/file"), &at("new/")).is_err());
    }

    #[test]
    fn a_symlink_is_itself_and_with_a_slash_what_it_leads_to() {
        let directory = tree();
        let at = |path: &str| directory.join(path);
        std::os::unix::fs::symlink("tree", at("link")).unwrap();
        copy(&at("link"), &at("itself")).unwrap();
        assert_eq!(fs::read_link(at("itself")).unwrap(), Path::new("tree"));
        copy(&at("link/"), &at("followed")).unwrap();
        assert!(at("followed/sub/deep").exists());
    }

    #[test]
    fn a_missing_source_is_named() {
        let error = Source::open(Path::new("/nope/x")).unwrap_err();
        let text = crate::error::sentence(&error);
        assert_eq!(text, "cannot read '/nope/x': No such file or directory");
    }
}
