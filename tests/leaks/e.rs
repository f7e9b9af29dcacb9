//! E. Descriptors, threads and memory of long-lived processes: in tare, the
//! keepers and the server.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use tare_harness::scene::in_lanes;
use tare_harness::{Server, eventually, private_bytes};

use crate::case::{case, entries, times};
use crate::library::{GROWTH_BYTES_MAX, Library, assert_alone, assert_cheap};

/// In a box with 256 descriptors: opens as many files as it can, looks, closes them.
const GREEDY: &str = "import errno, os
def names(): return sorted(os.listdir('/usr/bin'))
before = names()
held = []
try:
    while True: held.append(open('/etc/passwd'))
except OSError as error: assert error.errno == errno.EMFILE, error
assert len(held) > 200, len(held)
for action in (names, lambda: open('/etc/group'), os.pipe):
    try: action()
    except OSError as error: assert error.errno == errno.EMFILE, error
    else: raise AssertionError('there was one more')
assert os.path.exists('/etc/group') and os.stat('/usr/bin/env').st_size > 0
print('full', flush=True)
os.read(0, 1)
for one in held: one.close()
assert names() == before
print('as before', flush=True)";

/// E2, microsandbox: without descriptors files seemed to vanish, and close was blocked.
#[test]
fn without_descriptors_the_error_says_so_and_all_is_well_after_close() {
    let case = case();
    let options = ["run", "-i", "--name", "a", "--nofile", "256", "--"];
    let command = options.iter().chain(&["python3", "-c", GREEDY]);
    let mut greedy = case.spawn_call(command);
    greedy.see("full");
    // Nobody else has fewer.
    case.exec(
        "a",
        [
            "sh",
            "-c",
            "ls /usr/bin | grep -c env >/dev/null; ulimit -n",
        ],
    )
    .ok()
    .printed("256\n");
    greedy.write(b"\n");
    greedy.wait().ok().printed("full\nas before\n");
    case.nothing_left();
}

/// What a server may have more without a leak: threads that wait for work end by
/// themselves, and its heap has holes.
const IDLE_THREADS_MAX: usize = 16;
const SERVER_GROWTH_BYTES_MAX: u64 = 1 << 20;

/// E3, e2b: 37 GB, 3,983 threads and mappings that were never given back after two days.
#[test]
fn a_server_that_has_made_and_removed_boxes_has_no_more_than_before() {
    let case = case();
    let server = Server::start(&case, &[]);
    let make_and_remove = || {
        let made = server.post("/v1/boxes", &json!({})).was(201).json();
        let id = made["id"].as_str().expect("an id");
        let path = format!("/v1/boxes/{id}?force=true");
        server.delete(&path).was(204);
    };
    let held = |what: &str| entries(&format!("/proc/{}/{what}", server.pid()));
    (0..50).for_each(|_| make_and_remove());
    let (descriptors, threads) = (held("fd"), held("task"));
    let bytes = private_bytes(server.pid());
    (0..times(150, 5_000)).for_each(|_| make_and_remove());
    eventually("its descriptors are back", || held("fd") <= descriptors);
    assert!(held("task") <= threads + IDLE_THREADS_MAX);
    let grown = private_bytes(server.pid()).saturating_sub(bytes);
    assert!(grown <= SERVER_GROWTH_BYTES_MAX, "{grown} bytes more");
    assert_eq!(case.footprint().records.len(), 0);
    server.stop().ok();
}

/// More descriptors than any command has open.
const ENOUGH_DESCRIPTORS: usize = 40;

/// E4, e2b: who failed or gave up on the way kept a descriptor, or a device.
#[test]
fn who_fails_at_any_descriptor_has_taken_nothing_and_keeps_none_of_the_keepers() {
    let case = case();
    let id = case.detached(["--name", "a", "--", "sleep", "1000"]);
    case.exec("a", ["true"]).ok();
    let before = (case.footprint(), case.uid_claims());
    let held = case.keeper_descriptors(&id);
    let calls = [
        "run -d --name b -- sleep 1000",
        "exec a -- true",
        "cp a:/etc/passwd -",
    ];
    for call in calls {
        let mut failed = 0;
        // Three are the standard streams.
        for count in 3..ENOUGH_DESCRIPTORS {
            let script = format!("exec prlimit --nofile={count}:{count} \"$TARE\" {call}");
            let output = case.shell(&script);
            if output.code != 0 {
                failed += 1;
            } else if call.starts_with("run") {
                case.call(["rm", "-f", "b"]).ok();
            }
            assert_eq!((case.footprint(), case.uid_claims()), before, "{output}");
        }
        assert!((4..40).contains(&failed), "{call}: {failed} times");
        eventually("the keeper holds no more than before", || {
            case.keeper_descriptors(&id) == held
        });
    }
    case.remove(&id);
}

/// E5, e2b and containerd: what served a stream whose client had vanished went on.
#[test]
fn clients_that_vanish_in_the_middle_of_a_stream_cost_the_keeper_nothing() {
    let case = case();
    let id = case.idle_box();
    let vanish = |_: &usize| {
        let client = case.spawn_call(["exec", &id, "--", "yes"]);
        client.see("y\ny\n").signal(Signal::KILL);
        client.wait().exited(-9);
    };
    let some: Vec<usize> = (0..20).collect();
    in_lanes(&some, vanish);
    assert_alone(&case, &id, 2);
    let (held, bytes) = (case.keeper_descriptors(&id), case.keeper_private_bytes(&id));
    let many: Vec<usize> = (0..times(200, 10_000)).collect();
    in_lanes(&many, vanish);
    assert_alone(&case, &id, 2);
    assert_eq!(case.keeper_descriptors(&id), held);
    let threads = entries(&format!("/proc/{}/task", case.keeper(&id).pid));
    assert_eq!(threads, 1);
    let grown = case.keeper_private_bytes(&id).saturating_sub(bytes);
    assert!(grown <= GROWTH_BYTES_MAX, "{grown} bytes more");
    case.remove(&id);
}

/// E8, boxlite: who read one stream to its end and then the other waited for ever.
#[test]
fn a_megabyte_to_stderr_and_then_to_stdout_does_not_block() {
    let case = case();
    let script = "import sys; sys.stderr.write('e' * 1048576); sys.stderr.flush(); sys.stdout.write('o' * 1048576)";
    let id = case.idle_box();
    let calls = [&["run", "--"][..], &["exec", &id, "--"]];
    for call in calls {
        let python = ["python3", "-c", script];
        let output = case.call(call.iter().chain(&python)).ok();
        assert_eq!(output.stderr_text(), "e".repeat(1 << 20));
        assert_eq!(output.stdout_text(), "o".repeat(1 << 20));
    }
    case.remove(&id);
}

/// E10, code-interpreter: what ended before it was spawned was not cleaned up.
#[test]
fn who_is_cancelled_or_refused_before_it_is_there_leaves_nothing_in_the_keeper() {
    let case = case();
    let id = case.detached(["--pids", "6", "--", "sleep", "1000"]);
    let library = Library::open(&case, &id);
    library.is_refused(&["no-such-program"]);
    let (held, bytes) = (case.keeper_descriptors(&id), case.keeper_private_bytes(&id));
    for _ in 0..times(300, 3_000) {
        library.is_refused(&["no-such-program"]);
    }
    for step in 0..times(40, 400) {
        let client = case.spawn_call(["exec", &id, "--", "sleep", "1000"]);
        // Not a wait for something, and bounded: the moment itself is the input.
        std::thread::sleep(Duration::from_micros(
            100 * u64::try_from(step % 40).unwrap_or(0),
        ));
        client.signal(Signal::KILL);
        client.wait();
    }
    assert_alone(&case, &id, 2);
    assert_eq!(case.keeper_descriptors(&id), held);
    let fill = || case.call(["exec", "-d", &id, "--", "sleep", "1000"]).code == 0;
    assert!((0..10).any(|_| !fill()), "six is less than ten");
    let held = case.keeper_descriptors(&id);
    for _ in 0..times(100, 1_000) {
        library.is_refused(&["true"]);
    }
    assert_eq!(case.keeper_descriptors(&id), held);
    let grown = case.keeper_private_bytes(&id).saturating_sub(bytes);
    assert!(grown <= GROWTH_BYTES_MAX, "{grown} bytes more");
    case.remove(&id);
}

/// E11, dify-sandbox: its memory grew with every run.
#[test]
fn ten_thousand_processes_in_a_row_cost_the_keeper_nothing() {
    let case = case();
    let id = case.idle_box();
    assert_cheap(&case, &id);
    let library = Library::open(&case, &id);
    let mut costs = Vec::new();
    for number in 1..=10_000 {
        assert_eq!(library.run(&["true", "with", "some", "arguments"]), 0);
        if number % 1000 == 0 {
            costs.push((case.keeper_private_bytes(&id), case.keeper_descriptors(&id)));
        }
    }
    let (first, last) = (costs[0], costs[9]);
    assert!(last.0 <= first.0 + GROWTH_BYTES_MAX, "{costs:?}");
    assert_eq!(first.1, last.1, "{costs:?}");
    assert_cheap(&case, &id);
    assert_alone(&case, &id, 2);
    assert_eq!(library.run(&["sh", "-c", "exit 7"]), 7);
    case.remove(&id);
}
