//! Copies files out of the scratch space that an ended box has kept. The box chose these files, so no
//! link is followed and no path leads out of the scratch space.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::thread::JoinHandle;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, openat, openat2, statat};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use tare_control::file_programs::PathKind;
use tare_kernel::files::Kind;

use crate::error::{Context, Error};
use crate::spec::BoxId;
use crate::spec::shown::quoted;

/// Paths of a box that are on its scratch space, and their names there. All other changes are in the
/// overlay.
const PLACES: [(&str, &str); 3] = [("/work", "work"), ("/tmp", "tmp"), ("/dev/shm", "dev/shm")];
const OVERLAY: &str = "upper";

/// An archive that a thread of this process writes to a pipe.
#[derive(Debug)]
pub struct PackStream {
    pub stream: OwnedFd,
    pub found: PathKind,
    pub packer: JoinHandle<Result<(), tare_archive::Error>>,
}

/// Packs the file or directory that an ended box has kept at `path`.
pub fn pack(scratch: &Path, id: &BoxId, path: &Path) -> Result<PackStream, Error> {
    let doing = || format!("cannot read {} of box {id}", quoted(path));
    let place = place(scratch, path).ok_or_else(|| {
        Error::bad_request(doing())
            .caused_by("the box has ended, and only its /work, /tmp and /dev/shm are kept")
    })?;
    // `Path` hides a dot at the end, which says that the directory is meant.
    let is_directory = path.as_os_str().as_bytes().ends_with(b"/.");
    let (parent, name) = match place.file_name().filter(|_| !is_directory) {
        Some(name) => (place.parent().unwrap_or(Path::new(".")), name.to_owned()),
        None => (place.as_path(), ".".into()),
    };
    let root = open_root(scratch).context(doing)?;
    // Errors from here on are about the requested path.
    let failed = |errno: Errno| Error::bad_request(doing()).caused_by(io::Error::from(errno));
    let directory = open_beneath(&root, parent).map_err(failed)?;
    let stat = statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
    let found = match Kind::of(&stat) {
        Kind::Directory => PathKind::Directory,
        Kind::File | Kind::Symlink => PathKind::File,
        Kind::Special(_) => return Err(failed(Errno::OPNOTSUPP)),
    };
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).context(doing)?;
    let packer = std::thread::Builder::new().spawn(move || {
        let mut output = io::BufWriter::new(File::from(write));
        let name = name.as_bytes();
        tare_archive::pack(&mut output, directory.as_fd(), name, name)?;
        // Fails if the reader stopped early, which is the reader's decision.
        output.flush().ok();
        Ok(())
    });
    let packer = packer.context(|| format!("cannot start a thread that reads box {id}"))?;
    Ok(PackStream { stream: read, found, packer })
}

/// Returns the place of a path of the box below its scratch space, or `None` if it is not there. Paths
/// with `..` are refused, because nothing is resolved here.
fn place(scratch: &Path, path: &Path) -> Option<PathBuf> {
    let absolute = Path::new("/work").join(path);
    if absolute.components().any(|part| part == Component::ParentDir) {
        return None;
    }
    let kept = PLACES.iter().find_map(|(seen, lies)| {
        let below = absolute.strip_prefix(seen).ok()?;
        Some(Path::new(lies).join(below))
    });
    kept.or_else(|| {
        let changed = Path::new(OVERLAY).join(absolute.strip_prefix("/").ok()?);
        scratch.join(OVERLAY).is_dir().then_some(changed)
    })
}

const DIRECTORY: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn open_root(scratch: &Path) -> rustix::io::Result<OwnedFd> {
    openat(CWD, scratch, DIRECTORY, Mode::empty())
}

fn open_beneath(root: &OwnedFd, below: &Path) -> rustix::io::Result<OwnedFd> {
    let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(root, below, DIRECTORY, Mode::empty(), resolve)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_the_box_has_its_place_and_no_way_out_of_it() {
        let nowhere = Path::new("/nonexistent");
        for (path, expected) in [
            ("/work/a/b", Some("work/a/b")),
            ("a", Some("work/a")),
            ("/work", Some("work")),
            ("/tmp/x", Some("tmp/x")),
            ("/dev/shm/s", Some("dev/shm/s")),
            ("/dev/null", None),
            ("/etc/passwd", None),
            ("/workshop", None),
            ("/work/../../..", None),
            ("..", None),
        ] {
            assert_eq!(place(nowhere, Path::new(path)), expected.map(PathBuf::from), "{path}");
        }
    }
}
