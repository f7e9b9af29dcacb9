//! Where the store is. It is opened on a worker thread when a request first needs it: a server
//! that never has files creates no directory.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use crate::config::current::CurrentConfig;
use crate::error::ServiceError;
use crate::store::{Object, Store};
use crate::workers::{Workers, locked};

/// The store of this server, open or not. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Files(Arc<StoreOpener>);

#[derive(Debug)]
struct StoreOpener {
    /// `None` if the configuration names no directory and the user has no home.
    directory: Option<PathBuf>,
    config: CurrentConfig,
    workers: Workers,
    store: OnceLock<Arc<Store>>,
    /// Held by the thread that opens the store, which can take long: it reads every record.
    opening: Mutex<()>,
}

impl Files {
    /// The default directory of a server with its own state root is inside that root.
    pub fn new(config: CurrentConfig, workers: Workers, state_root: Option<&Path>) -> Self {
        let configured = config.get().files.directory.clone();
        let is_root = rustix::process::geteuid().is_root();
        let below_root = || state_root.map(|root| root.join("files"));
        let usual = || default_directory(is_root, |name| std::env::var_os(name));
        Self(Arc::new(StoreOpener {
            directory: configured.or_else(below_root).or_else(usual),
            config,
            workers,
            store: OnceLock::new(),
            opening: Mutex::default(),
        }))
    }

    /// The size of all files; 0 while the store is not open. Never waits.
    pub fn used_bytes(&self) -> u64 {
        self.0.store.get().map_or(0, |store| store.used_bytes())
    }

    /// Removes these files as far as it can. The sweep removes the others when they expire.
    pub fn remove_all(&self, objects: &[Object]) {
        if let Some(store) = self.0.store.get() {
            for object in objects {
                store.remove(object).ok();
            }
        }
    }

    /// Returns the store, and creates it if there is none. Waits for the disk.
    pub fn open(&self) -> Result<Arc<Store>, ServiceError> {
        let Some(directory) = &self.0.directory else {
            let message = "this server has no directory for files";
            return Err(ServiceError::unavailable("no_store", message)
                .with_hint("name one in the configuration: [files] directory"));
        };
        self.opened(directory)
    }

    /// Returns the store unless nothing was ever stored. Waits for the disk.
    fn open_if_any(&self) -> Result<Option<Arc<Store>>, ServiceError> {
        match &self.0.directory {
            Some(directory) if directory.exists() => self.opened(directory).map(Some),
            Some(_) | None => Ok(None),
        }
    }

    fn opened(&self, directory: &Path) -> Result<Arc<Store>, ServiceError> {
        if let Some(store) = self.0.store.get() {
            return Ok(Arc::clone(store));
        }
        let _opening = locked(&self.0.opening);
        if let Some(store) = self.0.store.get() {
            return Ok(Arc::clone(store));
        }
        let store = Store::open(directory, self.0.config.clone())?;
        self.0.store.set(Arc::clone(&store)).ok();
        Ok(store)
    }

    /// Calls the store on a worker thread, and creates it if there is none.
    pub async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Arc<Store>) -> Result<T, ServiceError> + Send + 'static,
    ) -> Result<T, ServiceError> {
        let files = self.clone();
        self.0.workers.call(move || call(&files.open()?)).await
    }

    /// Calls the store on a worker thread. Returns `None` if nothing was ever stored.
    pub async fn call_if_any<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Arc<Store>) -> Result<T, ServiceError> + Send + 'static,
    ) -> Result<Option<T>, ServiceError> {
        let files = self.clone();
        let call = move || files.open_if_any()?.map(|store| call(&store)).transpose();
        self.0.workers.call(call).await
    }
}

/// The directory for data that outlives a boot.
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use tare_harness::TemporaryDirectory;

    use super::*;
    use crate::config::Config;

    #[test]
    fn the_default_directory_is_where_the_user_keeps_data() {
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
        let set = &[("HOME", "/home/u"), ("XDG_DATA_HOME", "/data")];
        assert_eq!(of(false, set), expect("/data/tare/files"));
        assert_eq!(of(false, &[]), None);
    }

    /// `GET /metrics` calls this on a thread of the runtime.
    #[test]
    fn metrics_do_not_wait_while_the_store_opens() {
        let home = TemporaryDirectory::new();
        let workers = Workers::start("test", 1).expect("a thread");
        let mut config = Config::default();
        config.files.directory = Some(home.join("files"));
        let files = Files::new(CurrentConfig::new(config), workers, None);
        let _opening = locked(&files.0.opening);
        let (done, seen) = channel();
        let other = files.clone();
        std::thread::spawn(move || done.send(other.used_bytes()).ok());
        assert_eq!(seen.recv_timeout(Duration::from_secs(60)), Ok(0));
    }
}
