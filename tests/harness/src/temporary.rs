//! A directory that is removed when the value is dropped.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

static NEXT: AtomicU32 = AtomicU32::new(0);

const NAME: &str = "tare-test-";

/// The prefix of all temporary directories of this process.
pub fn own_prefix() -> String {
    let name = format!("{NAME}{}-", std::process::id());
    let prefix = std::env::temp_dir().join(name);
    prefix.to_string_lossy().into_owned()
}

/// A new and empty directory with mode 0755. Its name begins with `tare`, so the oracle finds it if a
/// test forgets it.
#[derive(Debug)]
pub struct TemporaryDirectory {
    path: PathBuf,
}

impl TemporaryDirectory {
    #[expect(clippy::new_without_default, reason = "it makes a directory")]
    pub fn new() -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = PathBuf::from(format!("{}{number}", own_prefix()));
        fs::create_dir(&path)
            .unwrap_or_else(|error| panic!("cannot make {}: {error}", path.display()));
        set_mode(&path, 0o755);
        Self { path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// The path as text, for a command line.
    pub fn text(&self) -> &str {
        self.path.to_str().expect("the name is ASCII")
    }

    /// Writes a file into it.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.join(name);
        fs::write(&path, content)
            .unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
        path
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        // If it cannot be removed, the oracle reports it with details.
        let _ = fs::remove_dir_all(&self.path);
    }
}

pub fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode))
        .unwrap_or_else(|error| panic!("cannot set the mode of {}: {error}", path.display()));
}
