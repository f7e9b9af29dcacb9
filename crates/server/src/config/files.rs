//! `[files]`: the directory of the store, and its limits.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access, statfs};
use serde::Deserialize;
use tare_engine::{Error, ErrorKind};

use crate::config::{ByteSize, Period};

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FilesConfig {
    /// The default depends on the user who runs the server.
    pub directory: Option<PathBuf>,
    /// The total size of one owner's files.
    pub owner_bytes: ByteSize,
    /// The total size of all files.
    pub total_bytes: ByteSize,
    /// The largest size of one file.
    pub file_bytes: ByteSize,
    /// The age at which a file is removed. LibreChat treats files that are older than 23 hours as
    /// gone.
    pub ttl: Period,
    /// The number of files in one request.
    pub request_files: usize,
}

impl Default for FilesConfig {
    fn default() -> Self {
        Self {
            directory: None,
            owner_bytes: ByteSize(2 << 30),
            total_bytes: ByteSize(20 << 30),
            file_bytes: ByteSize(150 << 20),
            ttl: Period::seconds(24 * 3600),
            request_files: 200,
        }
    }
}

impl FilesConfig {
    pub fn check(&self) -> Result<(), Error> {
        match &self.directory {
            Some(path) if !path.is_absolute() => {
                let message = format!("[files] directory {} is not absolute", path.display());
                Err(Error::new(ErrorKind::BadRequest, message))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Reports a directory that cannot be used at start, and not with the first file. Creates
    /// nothing: the server creates the directory when the first file arrives.
    pub fn try_directory(&self) -> Result<(), Error> {
        let Some(directory) = &self.directory else {
            return Ok(());
        };
        let wrong = |why: Box<dyn std::error::Error + Send + Sync>| {
            let message = format!("[files] directory {} cannot be used", directory.display());
            Err(Error::new(ErrorKind::BadRequest, message).caused_by(why))
        };
        for place in directory.ancestors() {
            match std::fs::metadata(place) {
                Err(error) if is_absence(&error) => {}
                Err(error) => return wrong(error.into()),
                Ok(found) if !found.is_dir() => {
                    return wrong(format!("{} is not a directory", place.display()).into());
                }
                Ok(_) => {
                    return match writable(place) {
                        Ok(()) => Ok(()),
                        Err(why) => {
                            wrong(format!("cannot write to {}: {why}", place.display()).into())
                        }
                    };
                }
            }
        }
        Ok(())
    }
}

/// File systems in which root passes every check of access(2), and which hold no files:
/// proc, sysfs, cgroup v1 and v2 (statfs(2)).
const WITHOUT_FILES: [i64; 4] = [0x9fa0, 0x6265_6572, 0x0027_e0eb, 0x6367_7270];

fn writable(directory: &Path) -> Result<(), String> {
    access(directory, Access::WRITE_OK | Access::EXEC_OK).map_err(|error| error.to_string())?;
    let file_system = statfs(directory).map_err(|error| error.to_string())?.f_type;
    if WITHOUT_FILES.contains(&file_system) {
        return Err("its file system holds no files".to_owned());
    }
    Ok(())
}

/// Whether a path, or a directory on the way to it, does not exist.
fn is_absence(error: &io::Error) -> bool {
    let kind = error.kind();
    kind == io::ErrorKind::NotFound || kind == io::ErrorKind::NotADirectory
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use tare_harness::TemporaryDirectory;

    use super::*;

    #[test]
    fn a_directory_that_cannot_be_used_is_refused_and_none_is_created() {
        let home = TemporaryDirectory::new();
        let file = home.write("file", "");
        let tried = |directory: PathBuf| {
            let config = FilesConfig { directory: Some(directory), ..FilesConfig::default() };
            config.try_directory()
        };
        assert!(FilesConfig::default().try_directory().is_ok());
        assert!(tried(home.path().to_owned()).is_ok());
        assert!(tried(home.join("a/b")).is_ok());
        assert!(!home.join("a").exists());
        for directory in [file.clone(), file.join("a/b")] {
            let refused = tried(directory).expect_err("it is a file");
            assert!(refused.to_string().contains("[files] directory"));
            let why = refused.source().expect("a reason").to_string();
            assert!(why.ends_with("file is not a directory"), "{why}");
        }
        for directory in ["/proc/x", "/proc/self/x/y", "/sys/x"] {
            tried(directory.into()).expect_err(directory);
        }
    }
}
