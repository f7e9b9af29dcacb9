//! How much there may be, to the byte.

use crate::store::tests::*;

fn limited(file: u64, owner: u64, total: u64) -> (Fresh, Arc<Store>) {
    let fresh = Fresh::new();
    let config = config(FilesConfig {
        file_bytes: ByteSize(file),
        owner_bytes: ByteSize(owner),
        total_bytes: ByteSize(total),
        ..FilesConfig::default()
    });
    let store = Store::open(&fresh.0, CurrentConfig::new(config)).expect("a store");
    (fresh, store)
}

fn try_put(store: &Arc<Store>, of: &str, content: &[u8]) -> Result<Object, ServiceError> {
    store.keep(content, &Id::random(), &owner(of), named("a.txt"))
}

#[test]
fn a_file_has_its_limit_and_not_a_byte_more() {
    let (fresh, store) = limited(10, 100, 100);
    try_put(&store, "a", &[7; 10]).expect("it is as large as it may be");
    let before = fresh.tree();
    let refused = try_put(&store, "a", &[8; 11]).expect_err("too large");
    assert_eq!(refused.code, "file_too_large");
    assert_eq!(fresh.tree(), before);
    assert_eq!(store.used_by(&owner("a")), Used { bytes: 10, files: 1 });
}

#[test]
fn an_owner_has_a_quota_and_not_a_byte_more_and_others_have_theirs() {
    let (_fresh, store) = limited(100, 10, 100);
    let first = try_put(&store, "a", &[1; 6]).expect("there is room");
    try_put(&store, "a", &[2; 4]).expect("there is room for just this");
    let refused = try_put(&store, "a", &[3; 1]).expect_err("not a byte more");
    assert_eq!(refused.code, "owner_full");
    try_put(&store, "b", &[3; 10]).expect("that is somebody else");
    store.remove(&first).expect("a store");
    try_put(&store, "a", &[3; 6]).expect("there is room again");
}

#[test]
fn all_files_together_have_a_limit_and_not_a_byte_more() {
    let (fresh, store) = limited(100, 100, 10);
    let first = try_put(&store, "a", &[1; 5]).expect("there is room");
    try_put(&store, "b", &[1; 5]).expect("there is room for just this");
    let refused = try_put(&store, "c", &[3; 1]).expect_err("not a byte more");
    assert_eq!(refused.code, "store_full");
    assert_eq!(store.used_bytes(), 10);
    store.remove(&first).expect("a store");
    assert_eq!(store.used_bytes(), 5);
    drop(store);
    assert_eq!(fresh.open().used_bytes(), 5);
}

#[test]
fn concurrent_uploads_are_charged_in_advance() {
    let (_fresh, store) = limited(100, 10, 100);
    let mut one = store.receive(&owner("a")).expect("there is room");
    let mut other = store.receive(&owner("a")).expect("there is room");
    one.write(&[1; 6]).expect("there is room");
    let refused = other.write(&[2; 5]).expect_err("not beside the first");
    assert_eq!(refused.code, "owner_full");
    drop(one);
    other.write(&[2; 10]).expect("there is room again");
}

#[test]
fn many_at_once_are_counted_right() {
    let fresh = Fresh::new();
    let store = fresh.open();
    let session = Id::random();
    std::thread::scope(|threads| {
        for client in 0..8u8 {
            let (store, session) = (&store, &session);
            threads.spawn(move || {
                for round in 0..20u8 {
                    let kept = put(store, "a", session, &[round % 4; 100]);
                    if (round + client) % 3 != 0 {
                        assert!(store.remove(&kept).expect("a store"));
                    }
                    store.sweep(Timestamp::now()).expect("a store");
                }
            });
        }
    });
    let left = store.list(&session).expect("a store");
    let bytes = 100 * left.len() as u64;
    let files = left.len() as u64;
    assert_eq!(store.used_by(&owner("a")), Used { bytes, files });
    let total = store.used_bytes();
    drop(store);
    let store = fresh.open();
    assert_eq!(store.used_by(&owner("a")), Used { bytes, files });
    assert_eq!(store.used_bytes(), total);
    for one in &left {
        store.remove(one).expect("a store");
    }
    assert!(fresh.tree().is_empty(), "{:?}", fresh.tree());
    assert_eq!(store.used_bytes(), 0);
}

/// The environment variable with the path of the small disk.
const SMALL_DISK: &str = "TARE_STORE_TEST_DISK";

/// Only a process of its own, in mounts of its own, has the disk.
#[test]
#[allow(clippy::print_stderr, reason = "a skip is said aloud")]
fn a_full_disk_refuses_new_files_and_keeps_the_old_ones() {
    if let Some(disk) = std::env::var_os(SMALL_DISK) {
        return fill(Path::new(&disk));
    }
    let fresh = Fresh::new();
    fs::create_dir(&fresh.0).expect("a directory");
    let this = std::env::current_exe().expect("a program");
    let test = "store::tests::quota::a_full_disk_refuses_new_files_and_keeps_the_old_ones";
    let script = "mount -t tmpfs -o size=1m tare \"$1\" || exit 77; exec \"$2\" --exact \"$3\"";
    let status = std::process::Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh"])
        .args([fresh.0.as_os_str(), this.as_os_str(), test.as_ref()])
        .env(SMALL_DISK, &fresh.0)
        .stdout(std::process::Stdio::null())
        .status();
    match status.ok().and_then(|status| status.code()) {
        Some(0) => {}
        Some(1 | 77) if !rustix::process::geteuid().is_root() => {
            eprintln!("skipped: only root mounts a small disk");
        }
        code => panic!("it ended with {code:?}"),
    }
}

fn fill(disk: &Path) {
    let store =
        Store::open(&disk.join("files"), CurrentConfig::new(Config::default())).expect("a store");
    let kept = put(&store, "a", &Id::random(), &[1; 300 << 10]);
    let refused = store.keep(&[2; 2 << 20][..], &Id::random(), &owner("a"), named("b"));
    let refused = refused.expect_err("there is no space");
    assert_eq!(
        (refused.code, &*refused.message),
        ("exhausted", "the host has no space for files left")
    );
    assert_eq!(content(&store, &kept).len(), 300 << 10);
    put(&store, "a", &Id::random(), &[3; 300 << 10]);
    assert_eq!(store.used_bytes(), 600 << 10);
}
