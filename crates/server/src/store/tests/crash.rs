//! A process is killed while it keeps, removes and sweeps: what it has said is true.
//!
//! The process is this very test, started again, which writes a line for every answer
//! that it would give.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use crate::store::tests::*;

/// Where the child works, in its environment.
const DIRECTORY: &str = "TARE_STORE_TEST_DIRECTORY";
const KILLS: u64 = 8;
/// Lines after which it is killed: each time in the middle of something else.
const LINES_STEP: u64 = 7;
const WORKERS: u8 = 3;

#[test]
fn a_store_killed_at_any_moment_has_exactly_the_acknowledged_files() {
    let fresh = Fresh::new();
    for kill in 0..KILLS {
        let said = killed_after(&fresh, 1 + kill * LINES_STEP);
        let store = fresh.open();
        for line in &said {
            line.is_true(&store);
        }
        // Files that were not acknowledged may exist too, but they are complete.
        for session in store.directory.sessions().expect("a store") {
            for object in store.list(&session).expect("a store") {
                let whole = content(&store, &object);
                assert_eq!(whole, content_for(&object.name), "{object:?}");
                store.remove(&object).expect("a store");
            }
        }
        assert!(fresh.tree().is_empty(), "{:?}", fresh.tree());
        assert_eq!(store.used_bytes(), 0);
    }
}

/// What the killed one said last of a file.
struct Line {
    word: Word,
    session: Id,
    file: Id,
}

#[derive(Debug, PartialEq, Eq)]
enum Word {
    Kept,
    /// It is being removed.
    Leaving,
    Gone,
}

impl Line {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_once("said ")?.1.split(' ');
        let word = match words.next()? {
            "kept" => Word::Kept,
            "leaving" => Word::Leaving,
            "gone" => Word::Gone,
            _ => return None,
        };
        Some(Self { word, session: Id::parse(words.next()?)?, file: Id::parse(words.next()?)? })
    }

    fn is_true(&self, store: &Store) {
        let found = store.find(&self.session, &self.file).expect("a store");
        match self.word {
            Word::Kept => assert!(found.is_some(), "{} was kept", self.file),
            Word::Gone => assert!(found.is_none(), "{} was removed", self.file),
            Word::Leaving => {}
        }
    }
}

fn killed_after(fresh: &Fresh, lines: u64) -> Vec<Line> {
    let mut child = started(fresh);
    let output = child.stdout.take().expect("a pipe");
    let mut reader = BufReader::new(output);
    let mut said = Vec::new();
    let mut text = String::new();
    while said.len() < usize::try_from(lines).expect("few") {
        text.clear();
        assert_ne!(reader.read_line(&mut text).expect("a pipe"), 0, "it goes on");
        said.extend(Line::parse(text.trim()));
    }
    child.kill().expect("it is ours");
    child.wait().expect("it is ours");
    // What it said before it died is in the pipe; a line that is cut was not said.
    for line in reader.split(b'\n').map_while(Result::ok) {
        said.extend(Line::parse(&String::from_utf8_lossy(&line)));
    }
    // The last word about a file counts.
    let mut last = BTreeMap::new();
    for line in said {
        last.insert(line.file.clone(), line);
    }
    last.into_values().collect()
}

fn started(fresh: &Fresh) -> Child {
    let this = std::env::current_exe().expect("a program");
    let mut command = Command::new(this);
    command
        .args(["--exact", "store::tests::crash::works_until_it_is_killed"])
        .args(["--nocapture", "--test-threads=1"])
        .env(DIRECTORY, &fresh.0);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(Stdio::null());
    command.spawn().expect("it can be started again")
}

/// Without the directory in its environment it does nothing: it is the other process
/// of the test above.
#[test]
fn works_until_it_is_killed() {
    let Some(directory) = std::env::var_os(DIRECTORY) else {
        return;
    };
    let store =
        Store::open(Path::new(&directory), CurrentConfig::new(Config::default())).expect("a store");
    std::thread::scope(|threads| {
        for worker in 0..WORKERS {
            let store = &store;
            threads.spawn(move || work(store, worker));
        }
        threads.spawn(|| {
            loop {
                store.check_all(Timestamp::now(), |_| ()).expect("a store");
            }
        });
    });
}

fn work(store: &Arc<Store>, worker: u8) {
    let session = Id::random();
    for round in 0..u32::MAX {
        let name = format!("{}.txt", (round + u32::from(worker)) % 5);
        let content = content_for(&name);
        let meta = named(&name);
        let kept = store.keep(&content[..], &session, &owner("a"), meta);
        let kept = kept.expect("there is room");
        say("kept", &kept);
        if round % 2 == 0 {
            say("leaving", &kept);
            assert!(store.remove(&kept).expect("a store"));
            say("gone", &kept);
        }
    }
}

fn content_for(name: &str) -> Vec<u8> {
    name.as_bytes().repeat(60_000)
}

fn say(word: &str, object: &Object) {
    let line = format!("\nsaid {word} {} {} .\n", object.session, object.id);
    let mut output = std::io::stdout().lock();
    output.write_all(line.as_bytes()).expect("somebody reads");
}
