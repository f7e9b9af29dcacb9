//! Real directories, and what can happen to them.

mod crash;
mod damage;
mod quota;

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::config::files::FilesConfig;
use crate::config::{ByteSize, Config, Period};
use crate::store::expiry::RETRY_AFTER;
use crate::store::owner::{Principal, Resource};
use crate::store::quota::Used;
use crate::store::*;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Gone with the value.
struct Fresh(PathBuf);

impl Fresh {
    fn new() -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tare-store-{}-{number}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn open(&self) -> Arc<Store> {
        Store::open(&self.0, CurrentConfig::new(Config::default())).expect("it is a directory")
    }

    /// Everything that is there but the lock, with its size; directories end in a slash.
    fn tree(&self) -> BTreeMap<String, u64> {
        let mut tree = BTreeMap::new();
        grow(&self.0, &self.0, &mut tree);
        for part in ["lock", "incoming/", "sessions/", "known/"] {
            tree.remove(part).expect(part);
        }
        tree
    }

    fn file_of(&self, object: &Object, end: &str) -> PathBuf {
        let session = self.0.join("sessions").join(object.session.as_str());
        session.join(format!("{}{end}", object.id))
    }
}

fn grow(root: &Path, at: &Path, tree: &mut BTreeMap<String, u64>) {
    for entry in fs::read_dir(at).expect("a directory") {
        let entry = entry.expect("an entry");
        let found = entry.metadata().expect("its status");
        let path = entry.path();
        let name = path.strip_prefix(root).expect("it is below").display();
        if found.is_dir() {
            tree.insert(format!("{name}/"), 0);
            grow(root, &path, tree);
        } else {
            tree.insert(name.to_string(), found.len());
        }
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// The default age at which files expire.
const TTL: Duration = Duration::from_secs(24 * 3600);

/// A configuration with these settings for files.
fn config(files: FilesConfig) -> Config {
    Config { files, ..Config::default() }
}

/// Files expire at once.
fn brief() -> Config {
    config(FilesConfig { ttl: Period(Duration::ZERO), ..FilesConfig::default() })
}

impl Store {
    fn used_by(&self, owner: &Owner) -> Used {
        self.usage().of(owner)
    }

    /// Stores a whole file.
    fn keep(
        self: &Arc<Self>,
        mut from: impl Read,
        session: &Id,
        owner: &Owner,
        meta: Meta,
    ) -> Result<Object, ServiceError> {
        let mut incoming = self.receive(owner)?;
        let mut buffer = vec![0; 1000];
        loop {
            match from.read(&mut buffer) {
                Ok(0) => return incoming.keep(session, meta),
                Ok(count) => incoming.write(&buffer[..count])?,
                Err(error) => panic!("it cannot be read: {error}"),
            }
        }
    }
}

fn owner(name: &str) -> Owner {
    let principal = Principal { tenant: "legacy".to_owned(), user: Some(name.to_owned()) };
    principal.owner(&Resource::User)
}

fn named(name: &str) -> Meta {
    Meta { name: name.to_owned(), ..Meta::default() }
}

fn put(store: &Arc<Store>, of: &str, session: &Id, content: &[u8]) -> Object {
    let kept = store.keep(content, session, &owner(of), named("a.txt"));
    kept.expect("there is room")
}

fn content(store: &Store, object: &Object) -> Vec<u8> {
    let mut bytes = Vec::new();
    let file = store.read(object).expect("a store").expect("it is there");
    let mut file = file;
    file.read_to_end(&mut bytes).expect("a file");
    bytes
}

#[test]
fn a_file_is_kept_found_listed_and_removed() {
    let fresh = Fresh::new();
    let store = fresh.open();
    let session = Id::random();
    let meta = Meta {
        name: "data/plot.png".to_owned(),
        said_by: Some("u1".to_owned()),
        read_only: true,
        modified_from: Some(Origin { session: Id::random(), id: Id::random() }),
    };
    let kept = store.keep(&b"hello"[..], &session, &owner("u"), meta.clone());
    let kept = kept.expect("there is room");
    assert_eq!((kept.size, kept.content_type()), (5, "image/png"));
    assert_eq!(kept.modified_from, meta.modified_from);
    let sha256 = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    assert_eq!(kept.sha256.to_string(), sha256);
    let found = store.find(&session, &kept.id).expect("a store");
    assert_eq!(found.as_ref(), Some(&kept));
    assert_eq!(store.list(&session).expect("a store"), std::slice::from_ref(&kept));
    assert_eq!(content(&store, &kept), b"hello");
    assert!(store.remove(&kept).expect("a store"));
    assert!(!store.remove(&kept).expect("a store"), "it is gone");
    assert_eq!(store.find(&session, &kept.id).expect("a store"), None);
    assert!(store.read(&kept).expect("a store").is_none());
    assert!(fresh.tree().is_empty(), "{:?}", fresh.tree());
}

#[test]
fn equal_contents_are_separate_files() {
    let fresh = Fresh::new();
    let store = fresh.open();
    let (here, there) = (Id::random(), Id::random());
    let first = put(&store, "a", &here, b"same");
    let second = put(&store, "b", &there, b"same");
    assert_eq!(first.sha256, second.sha256);
    assert_eq!(store.used_bytes(), 8);
    store.remove(&first).expect("a store");
    assert_eq!(content(&store, &second), b"same");
    assert_eq!(store.used_bytes(), 4);
    assert_eq!(store.used_by(&owner("b")), Used { bytes: 4, files: 1 });
}

#[test]
fn a_content_that_is_read_stays_until_its_end() {
    let fresh = Fresh::new();
    let store = fresh.open();
    let kept = put(&store, "a", &Id::random(), b"still there");
    let mut file = store.read(&kept).expect("a store").expect("it is there");
    store.remove(&kept).expect("a store");
    let mut text = String::new();
    file.read_to_string(&mut text).expect("a file");
    assert_eq!(text, "still there");
}

#[test]
fn a_file_that_is_not_kept_leaves_nothing() {
    let fresh = Fresh::new();
    let store = fresh.open();
    let mut incoming = store.receive(&owner("a")).expect("there is room");
    incoming.write(b"the beginning").expect("there is room");
    assert_eq!(fresh.tree().len(), 1);
    assert_eq!(store.used_by(&owner("a")).bytes, 13);
    drop(incoming);
    assert!(fresh.tree().is_empty());
    assert_eq!((store.used_by(&owner("a")), store.used_bytes()), (Used::default(), 0));
}

#[test]
fn a_store_that_is_opened_again_has_all_of_it_and_counts_the_same() {
    let fresh = Fresh::new();
    let session = Id::random();
    let store = fresh.open();
    let kept = [
        put(&store, "a", &session, b"one"),
        put(&store, "b", &session, b"one"),
        put(&store, "b", &session, b""),
    ];
    let before = [store.used_by(&owner("a")), store.used_by(&owner("b"))];
    let total = store.used_bytes();
    drop(store);
    let store = fresh.open();
    assert_eq!(store.list(&session).expect("a store").len(), 3);
    for one in &kept {
        assert_eq!(store.find(&session, &one.id).expect("a store").as_ref(), Some(one));
    }
    let after = [store.used_by(&owner("a")), store.used_by(&owner("b"))];
    assert_eq!((after, store.used_bytes()), (before, total));
    assert_eq!(total, 6);
}

#[test]
fn only_one_server_works_in_a_directory() {
    let fresh = Fresh::new();
    let store = fresh.open();
    let kept = put(&store, "a", &Id::random(), b"mine");
    let second =
        Store::open(&fresh.0, CurrentConfig::new(Config::default())).expect_err("it is in use");
    assert_eq!(second.code, "store_in_use", "{second:?}");
    assert_eq!(content(&store, &kept), b"mine");
    drop(store);
    assert_eq!(content(&fresh.open(), &kept), b"mine");
}

#[test]
fn only_the_servers_user_can_read_the_store() {
    let fresh = Fresh::new();
    let store = fresh.open();
    let kept = put(&store, "a", &Id::random(), b"secret");
    let mode = |path: &Path| fs::metadata(path).expect("it").permissions().mode() & 0o777;
    for directory in ["", "incoming", "sessions", "known"] {
        assert_eq!(mode(&fresh.0.join(directory)), 0o700, "{directory}");
    }
    for end in [".json", ".data"] {
        assert_eq!(mode(&fresh.file_of(&kept, end)), 0o600, "{end}");
    }
}

#[test]
fn after_its_time_a_file_is_gone_and_others_stay() {
    let fresh = Fresh::new();
    let store = fresh.open();
    let kept = put(&store, "a", &Id::random(), b"old");
    let just_before = kept.created_at.after(TTL - Duration::from_millis(1));
    store.sweep(just_before).expect("a store");
    assert_eq!(content(&store, &kept), b"old");
    // A walk has been in vain, and another is not taken at once.
    let after = kept.created_at.after(TTL);
    store.sweep(after).expect("a store");
    assert!(fresh.tree().is_empty(), "{:?}", fresh.tree());
    assert_eq!((store.used_by(&owner("a")), store.used_bytes()), (Used::default(), 0));
    let young = put(&store, "a", &Id::random(), b"young");
    store.sweep(young.created_at).expect("a store");
    assert_eq!(content(&store, &young), b"young");
    store.config.set(brief());
    store.sweep(young.created_at.after(Duration::from_secs(7200))).expect("a store");
    assert!(fresh.tree().is_empty(), "{:?}", fresh.tree());
}

#[test]
fn opening_an_old_store_removes_expired_files() {
    let fresh = Fresh::new();
    put(&fresh.open(), "a", &Id::random(), b"old");
    let store = Store::open(&fresh.0, CurrentConfig::new(brief())).expect("a store");
    assert!(fresh.tree().is_empty(), "{:?}", fresh.tree());
    assert_eq!((store.used_by(&owner("a")), store.used_bytes()), (Used::default(), 0));
}

#[test]
fn an_expired_file_is_neither_found_nor_listed_before_it_is_swept() {
    let fresh = Fresh::new();
    let store = fresh.open();
    let session = Id::random();
    let kept = put(&store, "a", &session, b"old");
    store.config.set(brief());
    assert_eq!(store.find(&session, &kept.id).expect("a store"), None);
    assert!(store.list(&session).expect("a store").is_empty());
    assert!(!fresh.tree().is_empty(), "no sweep has run");
}

/// `EISDIR` stands for every error that passes, such as `EMFILE`.
#[test]
fn a_failed_file_sweep_is_repeated_and_succeeds_later() {
    let fresh = Fresh::new();
    let store = fresh.open();
    let kept = put(&store, "a", &Id::random(), b"old");
    let (record, aside) = (fresh.file_of(&kept, ".json"), fresh.0.join("aside"));
    fs::rename(&record, &aside).expect("a file");
    fs::create_dir(&record).expect("a directory");
    let mut now = kept.created_at.after(TTL);
    store.sweep(now).expect_err("the record cannot be read");
    fs::remove_dir(&record).expect("a directory");
    fs::rename(&aside, &record).expect("a file");
    store.sweep(now).expect("it is too early for another walk");
    assert!(!fresh.tree().is_empty());
    now = now.after(RETRY_AFTER);
    store.sweep(now).expect("a store");
    assert!(fresh.tree().is_empty(), "{:?}", fresh.tree());
}

#[test]
fn repeated_failures_of_a_sweep_make_it_rarer_up_to_its_usual_pace() {
    let ttl = Duration::from_secs(24 * 3600);
    let rest = |failures| {
        let schedule = SweepSchedule { failures, ..SweepSchedule::default() };
        schedule.interval(ttl).as_secs()
    };
    assert_eq!([0, 1, 2, 3, 9, 1000].map(rest), [1800, 15, 30, 60, 1800, 1800]);
}
