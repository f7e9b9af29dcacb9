//! The store of this server: where it is, what may be in it, and who looks after it. It
//! is opened when the first file comes, or because there is one from before: a server
//! that never has files makes no directory.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{Access, access};
use serde::Deserialize;
use tare_engine::{Error, Timestamp};

use crate::app::App;
use crate::config::{size, time};
use crate::error::ServiceError;
use crate::librechat;
use crate::store::{Object, Store, StoreError, StoreLimits};
use crate::telemetry::journal::Happening;

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FilesConfig {
    /// `None`: by who runs the server.
    pub directory: Option<PathBuf>,
    /// Of all files of one owner.
    #[serde(deserialize_with = "size")]
    pub owner_bytes: u64,
    /// Of all files.
    #[serde(deserialize_with = "size")]
    pub total_bytes: u64,
    #[serde(deserialize_with = "size")]
    pub file_bytes: u64,
    /// LibreChat takes what is older than 23 hours for gone.
    #[serde(deserialize_with = "time")]
    pub ttl: Duration,
    /// In one request.
    pub request_files: usize,
}

impl Default for FilesConfig {
    fn default() -> Self {
        Self {
            directory: None,
            owner_bytes: 2 << 30,
            total_bytes: 20 << 30,
            file_bytes: 150 << 20,
            ttl: Duration::from_secs(24 * 3600),
            request_files: 200,
        }
    }
}

impl FilesConfig {
    pub fn check(&self) -> Result<(), Error> {
        match &self.directory {
            Some(path) if !path.is_absolute() => {
                let message = format!("[files] directory {} is not absolute", path.display());
                Err(Error::bad_request(message))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// One that was named and cannot be used is told of now, and not with the first file.
    /// Nothing is made: that would be too early.
    pub fn try_directory(&self) -> Result<(), Error> {
        let Some(directory) = &self.directory else {
            return Ok(());
        };
        let wrong = |why: Box<dyn std::error::Error + Send + Sync>| {
            let message = format!("[files] directory {} cannot be used", directory.display());
            Err(Error::bad_request(message).caused_by(why))
        };
        for place in directory.ancestors() {
            match std::fs::metadata(place) {
                Err(error) if is_absence(&error) => {}
                Err(error) => return wrong(error.into()),
                Ok(found) if !found.is_dir() => {
                    return wrong(format!("{} is no directory", place.display()).into());
                }
                Ok(_) => {
                    let may_write = access(place, Access::WRITE_OK | Access::EXEC_OK);
                    let refused = |error| format!("cannot write to {}: {error}", place.display());
                    return may_write.or_else(|error| wrong(refused(error).into()));
                }
            }
        }
        Ok(())
    }

    fn limits(&self) -> StoreLimits {
        StoreLimits {
            file_bytes: self.file_bytes,
            owner_bytes: self.owner_bytes,
            total_bytes: self.total_bytes,
            ttl: self.ttl,
        }
    }
}

/// Of a name, or of a directory on the way to it.
fn is_absence(error: &io::Error) -> bool {
    let kind = error.kind();
    kind == io::ErrorKind::NotFound || kind == io::ErrorKind::NotADirectory
}

#[derive(Debug)]
pub struct Files {
    /// `None`: there is no home to put it into.
    directory: Option<PathBuf>,
    store: Mutex<Option<Arc<Store>>>,
}

impl Files {
    /// A server with a state root of its own has files of its own.
    pub fn new(config: &FilesConfig, state_root: Option<&Path>) -> Self {
        let is_root = rustix::process::geteuid().is_root();
        let beside = || state_root.map(|root| root.join("files"));
        let usual = || default_directory(is_root, |it| std::env::var_os(it));
        Self {
            directory: config.directory.clone().or_else(beside).or_else(usual),
            store: Mutex::default(),
        }
    }

    pub fn configure(&self, config: &FilesConfig) {
        if let Some(store) = &*self.held() {
            store.configure(config.limits());
        }
    }

    /// As far as they can be; what cannot is removed when it is over its time.
    pub fn remove_all(&self, objects: &[Object]) {
        if let Some(store) = self.held().clone() {
            for object in objects {
                store.remove(object).ok();
            }
        }
    }

    /// Each content once; nothing where nobody has sent any.
    pub fn used_bytes(&self) -> u64 {
        self.held().as_ref().map_or(0, |store| store.used_bytes())
    }

    fn held(&self) -> MutexGuard<'_, Option<Arc<Store>>> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn opened(&self, directory: &Path, config: &FilesConfig) -> Result<Arc<Store>, StoreError> {
        let mut held = self.held();
        if let Some(store) = &*held {
            return Ok(Arc::clone(store));
        }
        let store = Store::open(directory, config.limits())?;
        *held = Some(Arc::clone(&store));
        Ok(store)
    }

    /// Made if it is not there.
    fn store(&self, config: &FilesConfig) -> Result<Arc<Store>, ServiceError> {
        let Some(directory) = &self.directory else {
            let message = "this server has no directory for files";
            return Err(ServiceError::unavailable("no_store", message)
                .with_hint("name one in the configuration: [files] directory"));
        };
        Ok(self.opened(directory, config)?)
    }

    /// `None`: nobody has ever sent a file.
    fn store_if_any(&self, config: &FilesConfig) -> Result<Option<Arc<Store>>, StoreError> {
        match &self.directory {
            Some(directory) if directory.exists() => self.opened(directory, config).map(Some),
            Some(_) | None => Ok(None),
        }
    }
}

/// Where data that outlive a boot are kept.
fn default_directory(
    is_root: bool,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Option<PathBuf> {
    if is_root {
        return Some(PathBuf::from("/var/lib/tare/files"));
    }
    let absolute = |name| {
        let path = PathBuf::from(variable(name)?);
        path.is_absolute().then_some(path)
    };
    let data = absolute("XDG_DATA_HOME");
    let data = data.or_else(|| Some(absolute("HOME")?.join(".local/share")));
    data.map(|data| data.join("tare/files"))
}

/// For a thread that may wait for the disk.
pub fn open(app: &App) -> Result<Arc<Store>, ServiceError> {
    app.files.store(&app.config().files)
}

/// Asks the store, in a thread that may wait for the disk.
pub async fn ask<T: Send + 'static>(
    app: &App,
    ask: impl FnOnce(&Arc<Store>) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, ServiceError> {
    let asking = app.clone();
    app.call(move || Ok(ask(&open(&asking)?)?)).await
}

/// The same where it may as well not be there.
pub async fn ask_if_any<T: Send + 'static>(
    app: &App,
    ask: impl FnOnce(&Arc<Store>) -> Result<T, StoreError> + Send + 'static,
) -> Result<Option<T>, ServiceError> {
    let asking = app.clone();
    app.call(move || {
        let store = asking.files.store_if_any(&asking.config().files)?;
        Ok(store.map(|store| ask(&store)).transpose()?)
    })
    .await
}

/// What is over its time goes, also when nobody asks.
pub async fn sweep(app: &App) {
    let engine = Arc::clone(&app.engine);
    let swept = ask_if_any(app, move |store| {
        let forgotten = store.forget_sessions(|known| librechat::is_over(&engine, known));
        store.sweep(Timestamp::now()).and(forgotten)
    });
    let swept = swept.await;
    match swept {
        // Its own server looks after it.
        Err(error) if error.code == "store_in_use" => {}
        Err(error) => {
            let why = error.detail.as_deref().unwrap_or(&error.message);
            app.journal.note(Happening::FilesNotSwept { why });
        }
        Ok(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use tare_harness::TemporaryDirectory;

    use super::*;

    #[test]
    fn a_directory_that_cannot_be_made_is_refused_and_none_is_made() {
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
            assert!(why.ends_with("file is no directory"), "{why}");
        }
    }

    #[test]
    fn data_are_where_data_are_kept() {
        let of = |is_root, set: &'static [(&str, &str)]| {
            let variable = |name: &str| {
                let found = set.iter().find(|(one, _)| *one == name);
                found.map(|(_, value)| OsString::from(value))
            };
            default_directory(is_root, variable).map(|path| path.display().to_string())
        };
        let expect = |path: &str| Some(path.to_owned());
        assert_eq!(of(true, &[("HOME", "/root")]), expect("/var/lib/tare/files"));
        let home = expect("/home/u/.local/share/tare/files");
        assert_eq!(of(false, &[("HOME", "/home/u")]), home);
        let relative = &[("HOME", "/home/u"), ("XDG_DATA_HOME", "data")];
        assert_eq!(of(false, relative), home);
        let said = &[("HOME", "/home/u"), ("XDG_DATA_HOME", "/data")];
        assert_eq!(of(false, said), expect("/data/tare/files"));
        assert_eq!(of(false, &[]), None);
    }
}
