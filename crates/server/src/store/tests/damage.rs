//! What others have done to the directory.

use std::os::unix::fs::symlink;

use crate::store::tests::*;

/// A later walk than any before.
fn swept_later(store: &Store) {
    let later = Timestamp::now().after(TTL * 2);
    store.sweep(later).expect("a store");
}

#[test]
fn an_unreadable_file_record_is_skipped() {
    let fresh = Fresh::new();
    let store = fresh.open();
    let session = Id::random();
    let whole = put(&store, "a", &session, b"whole");
    for damage in ["", "{", "[]", "{\"name\":1}"] {
        let one = put(&store, "a", &session, damage.as_bytes());
        fs::write(fresh.file_of(&one, ".json"), damage).expect("a file");
        assert_eq!(store.find(&session, &one.id).expect("a store"), None);
        assert!(!store.remove(&one).expect("a store"));
    }
    assert_eq!(store.list(&session).expect("a store"), std::slice::from_ref(&whole));
    drop(store);
    let store = fresh.open();
    assert_eq!(store.list(&session).expect("a store"), [whole]);
    let records = fresh.tree().keys().filter(|name| name.ends_with(".json")).count();
    assert_eq!(records, 5, "another version may have written them");
    swept_later(&store);
    assert!(fresh.tree().is_empty(), "{:?}", fresh.tree());
    assert_eq!(store.used_bytes(), 0);
}

#[test]
fn a_record_cannot_speak_for_another_file() {
    let fresh = Fresh::new();
    let store = fresh.open();
    let mine = put(&store, "a", &Id::random(), b"mine");
    let other = put(&store, "b", &Id::random(), b"other");
    let record = fs::read(fresh.file_of(&other, ".json")).expect("a file");
    fs::write(fresh.file_of(&mine, ".json"), record).expect("a file");
    assert_eq!(store.find(&mine.session, &mine.id).expect("a store"), None);
}

#[test]
fn a_file_with_incomplete_content_is_skipped_and_can_be_stored_again() {
    let fresh = Fresh::new();
    let store = fresh.open();
    let session = Id::random();
    let torn = put(&store, "a", &session, b"ten bytes!");
    let data = fs::OpenOptions::new().write(true).open(fresh.file_of(&torn, ".data"));
    data.expect("a file").set_len(3).expect("a file");
    assert_eq!(store.find(&session, &torn.id).expect("a store"), None);
    let again = put(&store, "a", &session, b"ten bytes!");
    assert_eq!(content(&store, &again), b"ten bytes!");
    drop(store);
    let store = fresh.open();
    assert_eq!(store.list(&session).expect("a store"), std::slice::from_ref(&again));
    assert_eq!(store.used_by(&owner("a")), Used { bytes: 10, files: 1 });
    assert_eq!(store.used_bytes(), 10);
    store.remove(&again).expect("a store");
    assert!(fresh.tree().is_empty(), "{:?}", fresh.tree());
}

#[test]
fn links_are_not_followed_and_foreign_names_are_not_touched() {
    let fresh = Fresh::new();
    let outside = Fresh::new();
    fs::create_dir(&outside.0).expect("a directory");
    fs::write(outside.0.join("secret"), "secret").expect("a file");
    let store = fresh.open();
    let session = Id::random();
    let kept = put(&store, "a", &session, b"x");
    let linked = put(&store, "a", &session, b"y");
    for end in [".json", ".data"] {
        let path = fresh.file_of(&linked, end);
        fs::remove_file(&path).expect("a file");
        symlink(outside.0.join("secret"), &path).expect("a link");
    }
    let foreign = Id::random();
    symlink(&outside.0, fresh.0.join("sessions").join(foreign.as_str())).expect("a link");
    fs::write(fresh.0.join("sessions/note.txt"), "mine").expect("a file");
    assert_eq!(store.find(&session, &linked.id).expect("a store"), None);
    assert!(store.read(&linked).expect("a store").is_none());
    assert!(store.list(&foreign).expect("a store").is_empty());
    let refused = store.keep(&b"z"[..], &foreign, &owner("a"), named("z"));
    assert!(refused.is_err(), "that is no session");
    assert_eq!(store.list(&session).expect("a store"), [kept]);
    swept_later(&store);
    drop(store);
    drop(fresh.open());
    let left: Vec<String> = fresh.tree().into_keys().collect();
    let link = format!("sessions/{foreign}");
    let mut expected = vec![link, "sessions/note.txt".to_owned()];
    expected.sort();
    assert_eq!(left, expected);
    let inside = fs::read_dir(&outside.0).expect("a directory").count();
    assert_eq!(inside, 1);
    let secret = fs::read_to_string(outside.0.join("secret"));
    assert_eq!(secret.expect("a file"), "secret");
}
