//! Files that `tare serve` keeps for its clients below the state root. They belong to no box and
//! are not a difference. Only a server removes them: each one when it expires.

use std::fs::{self, DirEntry};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::Serialize;

use crate::host::layout::Layout;
use crate::time::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeptFiles {
    pub directory: PathBuf,
    pub files: u64,
    pub bytes: u64,
    /// When the last of them came.
    pub newest_at: Timestamp,
}

impl KeptFiles {
    /// Counts the files. `None` if there is none.
    pub fn read(layout: &Layout) -> Option<Self> {
        let directory = layout.kept_files();
        let mut kept = Self { directory, files: 0, bytes: 0, newest_at: Timestamp::from_ms(0) };
        let sessions = entries(&kept.directory.join("sessions"));
        let sessions = sessions.filter(|it| it.file_type().is_ok_and(|kind| kind.is_dir()));
        for file in sessions.flat_map(|session| entries(&session.path())) {
            kept.add(&file);
        }
        (kept.files > 0).then_some(kept)
    }

    /// Adds the content of a file. Its record is beside it.
    fn add(&mut self, file: &DirEntry) {
        let is_content = file.path().extension().is_some_and(|extension| extension == "data");
        let Some(found) = file.metadata().ok().filter(|it| is_content && it.is_file()) else {
            return;
        };
        let since_epoch = found.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let ms = since_epoch.and_then(|it| u64::try_from(it.as_millis()).ok());
        self.files += 1;
        self.bytes += found.len();
        self.newest_at = self.newest_at.max(Timestamp::from_ms(ms.unwrap_or(0)));
    }
}

fn entries(directory: &Path) -> impl Iterator<Item = DirEntry> + use<> {
    fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok)
}
