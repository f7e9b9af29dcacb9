//! The output of a box: its keeper stores it in a bounded log, `logs` reads it, `logs -f` and
//! `attach` follow it.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::Signal;
use tare_harness::skip::is_root;
use tare_harness::{
    Tare, TemporaryDirectory, TerminalSize, eventually, skip, tare, unix_now, unix_seconds,
};

const MIB: u64 = 1 << 20;

/// A box that has run this script and has ended.
#[track_caller]
fn printed(tare: &Tare, options: &[&str], script: &str) -> String {
    let id = tare.detached(options.iter().chain(&["--", "sh", "-c", script]));
    tare.ended(&id);
    id
}

/// How much the record of the box keeps of its output, in bytes.
fn kept_bytes(tare: &Tare, id: &str) -> u64 {
    let logs = ["log.0", "log.1"].map(|name| tare.record(id).join(name));
    let sizes = logs.iter().filter_map(|path| fs::metadata(path).ok());
    sizes.map(|metadata| metadata.len()).sum()
}

fn output_bytes(tare: &Tare, id: &str) -> u64 {
    let stats = tare.json(["stats", "--json", id]);
    stats[0]["output_bytes"].as_u64().expect("a number")
}

#[test]
fn logs_keep_each_stream_in_order_and_separate() {
    let tare = tare!();
    let script = "for i in $(seq 2000); do echo out $i; echo err $i >&2; done";
    let id = printed(&tare, &[], script);
    let expected = |word: &str| -> String { (1..=2000).map(|i| format!("{word} {i}\n")).collect() };
    let output = tare.call(["logs", &id]).ok();
    assert_eq!(output.stdout_text(), expected("out"));
    assert_eq!(output.stderr_text(), expected("err"));
    // And as often as one likes.
    tare.call(["logs", &id]).ok().printed(&expected("out"));
    tare.remove(&id);
}

#[test]
fn logs_keep_every_byte() {
    let tare = tare!();
    let script = "import os; os.write(1, bytes(range(256)) * 100); os.write(2, b'\\xff\\x00 no end of line')";
    let id = tare.detached(["--", "python3", "-c", script]);
    tare.ended(&id);
    let output = tare.call(["logs", &id]).ok();
    let all: Vec<u8> = (0..=255).cycle().take(25_600).collect();
    assert!(output.stdout == all, "{output}");
    assert_eq!(output.stderr, b"\xff\x00 no end of line");
    tare.remove(&id);
}

#[test]
fn logs_n_shows_the_last_lines() {
    let tare = tare!();
    let id = printed(&tare, &[], "for i in 1 2 3 4 5; do echo $i; done; printf end");
    for (lines, expected) in
        [("0", ""), ("1", "end"), ("3", "4\n5\nend"), ("100", "1\n2\n3\n4\n5\nend")]
    {
        tare.call(["logs", "-n", lines, &id]).ok().printed(expected).said_nothing();
    }
    for bad in ["-1", "x", ""] {
        tare.call(["logs", "-n", bad, &id]).exited(2).printed("");
    }
    tare.remove(&id);
}

/// The time now, as a user would write it.
fn now() -> String {
    let mut command = Command::new("date");
    let output = command.args(["-u", "+%Y-%m-%dT%H:%M:%S.%3NZ"]).output();
    let text = output.expect("date is there").stdout;
    String::from_utf8(text).expect("a date is text").trim().to_owned()
}

#[test]
fn logs_since_shows_output_after_a_time() {
    let tare = tare!();
    let id = tare.detached(["--", "sh", "-c", "echo old; sleep 1000"]);
    tare.logged(&id, "old");
    let between = now();
    tare.call(["exec", "-d", &id, "--", "sh", "-c", "echo new; sleep 1000"]).ok();
    tare.logged(&id, "new");
    let since = |time: &str| tare.call(["logs", "--since", time, &id]);
    since(&between).ok().printed("new\n");
    since("1h").ok().printed("old\nnew\n");
    since("1970-01-01T00:00:00Z").ok().printed("old\nnew\n");
    since("2999-01-01T00:00:00Z").ok().printed("");
    for bad in ["", "x", "yesterday", "2024-13-01T00:00:00Z"] {
        since(bad).exited(2).printed("");
    }
    tare.remove(&id);
}

#[test]
fn logs_timestamps_shows_a_time_for_every_line() {
    let tare = tare!();
    let id = printed(&tare, &[], "echo one; echo two; echo three >&2");
    let output = tare.call(["logs", "--timestamps", &id]).ok();
    let (out, err) = (output.stdout_text(), output.stderr_text());
    let mut texts = Vec::new();
    for line in out.lines().chain(err.lines()) {
        let (time, text) = line.split_once(' ').expect("a time and a text");
        assert!((unix_seconds(time) - unix_now()).abs() <= 10, "{line}");
        texts.push(text);
    }
    assert_eq!(texts, ["one", "two", "three"]);
    tare.remove(&id);
}

#[test]
fn logs_follow_shows_lines_at_once_and_ends_with_the_box() {
    let tare = tare!();
    let script = "trap 'echo last; exit 3' TERM; echo first; while :; do sleep 0.02; done";
    let id = tare.detached(["--name", "a", "--", "sh", "-c", script]);
    let following = tare.spawn_call(["logs", "-f", "a"]);
    following.see("first\n");
    let from_the_end = tare.spawn_call(["logs", "-f", "-n", "0", "a"]);
    tare.call(["exec", "-d", "a", "--", "echo", "second"]).ok();
    following.see("second\n");
    assert!(!following.has_ended());
    tare.call(["kill", "-s", "TERM", "a"]).ok();
    following.wait().ok().printed("first\nsecond\nlast\n").said_nothing();
    let rest = from_the_end.wait().ok().stdout_text();
    assert!(rest.ends_with("last\n") && !rest.contains("first"), "{rest:?}");
    tare.call(["logs", "-f", "a"]).ok().printed("first\nsecond\nlast\n");
    tare.remove(&id);
}

#[test]
fn logs_follow_ends_when_the_box_is_removed() {
    let tare = tare!();
    let id = tare.detached(["--", "sh", "-c", "echo first; sleep 1000"]);
    let following = tare.spawn_call(["logs", "-f", &id]);
    following.see("first\n");
    tare.remove(&id);
    following.wait().printed("first\n");
}

/// The box is neither slowed nor ended, and the newest output is what is kept.
#[test]
fn endless_output_keeps_the_log_bounded_and_the_box_alive() {
    let tare = tare!();
    let id = tare.detached(["--output-limit", "1m", "--", "yes"]);
    let mut most = 0;
    eventually("a hundred times the limit was printed", || {
        most = most.max(kept_bytes(&tare, &id));
        output_bytes(&tare, &id) > 100 * MIB
    });
    // Two halves, and what frames the lines in them.
    assert!(most <= 2 * MIB, "{most} bytes are kept");
    assert_eq!(tare.state(&id), "running");
    assert_eq!(names_of(&tare, &id), ["yes"]);
    let log = tare.call(["logs", &id]).ok().stdout;
    assert!(!log.is_empty() && log.len() as u64 <= 2 * MIB, "{}", log.len());
    let whole = log.chunks(2).filter(|line| *line == b"y\n").count();
    assert!(whole >= log.len() / 2 - 1, "{whole} of {}", log.len() / 2);
    tare.remove(&id);
}

fn names_of(tare: &Tare, id: &str) -> Vec<String> {
    tare.workload(id).into_iter().map(|one| one.name).collect()
}

#[test]
fn the_log_drops_the_oldest_output_first() {
    let tare = tare!();
    let id = printed(&tare, &["--output-limit", "1m"], "seq 1000000");
    let output = tare.call(["logs", &id]).ok();
    let text = output.stdout_text();
    // What is left of the oldest may begin within a line.
    let lines = text.lines().skip(1);
    let numbers: Vec<u64> = lines.map(|line| line.parse().unwrap()).collect();
    assert_eq!(numbers.last(), Some(&1_000_000));
    let first = numbers[0];
    assert!(first > 1, "everything is there");
    assert!(numbers.iter().copied().eq(first..=1_000_000), "there is a hole");
    assert!(text.len() as u64 >= MIB / 4, "only {} bytes are kept", text.len());
    let usage = &tare.json(["inspect", &id])[0]["usage"];
    let dropped = usage["output_dropped_bytes"].as_u64();
    assert!(dropped.is_none_or(|bytes| bytes > 0), "{usage}");
    tare.remove(&id);
}

/// The box continues while a reader of its log does not read.
#[test]
fn a_reader_that_never_reads_does_not_stop_the_box() {
    let tare = tare!();
    let id = tare.detached(["--output-limit", "1m", "--", "yes"]);
    let mut command = tare.command(["logs", "-f", &id]);
    let mut reader = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut attached = tare.command(["attach", &id]);
    let mut attached = attached.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let before = output_bytes(&tare, &id);
    eventually("the box goes on", || output_bytes(&tare, &id) > before + 50 * MIB);
    assert!(reader.try_wait().unwrap().is_none());
    for child in [&mut reader, &mut attached] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    tare.remove(&id);
}

#[test]
fn output_of_detached_execs_is_in_the_log() {
    let tare = tare!();
    let id = tare.idle_box();
    let script = "echo from exec; echo wrong >&2";
    tare.call(["exec", "-d", &id, "--", "sh", "-c", script]).ok();
    tare.exec(&id, ["echo", "not this"]).ok();
    tare.logged(&id, "from exec");
    tare.logged(&id, "wrong");
    tare.call(["logs", &id]).ok().printed("from exec\n").said(&["wrong"]);
    tare.remove(&id);
}

const TICKER: &str =
    "trap 'echo caught; exit 4' TERM; echo early; while :; do echo tick; sleep 0.02; done";

#[test]
fn attach_shows_new_output_and_exits_with_the_boxs_code() {
    let tare = tare!();
    let id = tare.detached(["--name", "a", "--", "sh", "-c", TICKER]);
    tare.logged(&id, "tick");
    let gone = tare.spawn_call(["attach", "a"]);
    gone.see("tick").signal(Signal::KILL);
    gone.wait().exited(-9);
    assert_eq!(tare.state(&id), "running");
    let attached = tare.spawn_call(["attach", "a"]);
    attached.see("tick");
    tare.call(["kill", "-s", "TERM", "a"]).ok();
    let output = attached.wait().exited(4);
    let text = output.stdout_text();
    assert!(text.ends_with("caught\n") && !text.contains("early"), "{text:?}");
    tare.remove(&id);
}

#[test]
fn attach_sends_input_to_a_box_with_open_input() {
    let tare = tare!();
    let script = "echo early; read line; echo got $line; cat; exit 6";
    let id = tare.detached(["-i", "--", "sh", "-c", script]);
    tare.logged(&id, "early");
    let mut first = tare.spawn_call(["attach", &id]);
    first.write(b"it\n");
    first.see("got it\n").signal(Signal::KILL);
    first.wait().exited(-9);
    // A client that detaches does not close the box's input.
    assert_eq!(tare.state(&id), "running");
    let mut second = tare.spawn_call(["attach", &id]);
    second.write(b"more\n");
    second.see("more\n");
    tare.call(["stop", "-t", "0", &id]).ok();
    // With no grace, TERM and KILL are both there at once.
    let code = second.wait().code;
    assert!([137, 143].contains(&code), "{code}");
    tare.remove(&id);
}

#[test]
fn attach_to_a_box_with_a_terminal_is_a_terminal() {
    let tare = tare!();
    let script = "echo early; read line; stty size; echo \"got <$line>\"; exit 6";
    let id = tare.detached(["-i", "-t", "--", "sh", "-c", script]);
    tare.logged(&id, "early");
    let size = TerminalSize { rows: 44, columns: 123 };
    let mut session = tare.call_under_terminal(size, ["attach", &id]);
    session.type_bytes(b"some words\r");
    session.see("got <some words>");
    let (output, cooked) = session.wait();
    output.exited(6);
    assert!(cooked, "the caller's terminal was not put back");
    tare.remove(&id);
}

/// A file system of two megabytes, mounted on a directory for as long as this is.
struct SmallDisk(TemporaryDirectory);

impl SmallDisk {
    fn new() -> Self {
        let directory = TemporaryDirectory::new();
        let flags = MountFlags::NODEV | MountFlags::NOSUID;
        mount("tmpfs", directory.path(), "tmpfs", flags, Some(c"size=2m,mode=700"))
            .expect("root can mount");
        Self(directory)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The oracle finds processes that still use it.
        let _ = unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

#[test]
fn a_full_disk_does_not_stop_the_box() {
    let tare = tare!();
    if !is_root() {
        skip!("only root can mount a small file system");
    }
    let disk = SmallDisk::new();
    let on_disk = |args: &[&str]| {
        let call = ["--state-root", disk.0.text()].into_iter();
        tare.spawn_call(call.chain(args.iter().copied())).wait()
    };
    let script = "echo up > /tmp/up; exec yes";
    let output =
        on_disk(&["run", "-d", "--name", "a", "--output-limit", "16m", "--", "sh", "-c", script])
            .ok();
    let id = output.stdout_text().trim().to_owned();
    fs::write(disk.0.join("filler"), vec![0; 4 << 20]).expect_err("the disk is small");
    let stats = || -> u64 {
        let output = on_disk(&["stats", "--json", "a"]).ok();
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        found[0]["output_bytes"].as_u64().expect("a number")
    };
    let before = stats();
    eventually("the box goes on", || stats() > before + 20 * MIB);
    let output = on_disk(&["exec", "a", "--", "cat", "/tmp/up"]).ok().printed("up\n");
    assert!(output.lasted < Duration::from_secs(10), "{output}");
    on_disk(&["rm", "-f", "a"]).ok();
    tare.assert_gone(&id);
}

/// A limit that was asked for and cannot be had is an error.
#[test]
fn a_log_limit_beyond_a_quarter_of_the_memory_is_refused() {
    let tare = tare!();
    tare.run(["-d", "--memory", "64m", "--output-limit", "1g", "--", "true"]).exited(125).said(&[
        "16 MiB",
        "--output-limit",
        "--memory",
    ]);
    assert_eq!(tare.list().len(), 0);
}

#[test]
fn logs_report_lost_output() {
    let tare = tare!();
    let id = printed(&tare, &["--output-limit", "1m"], "seq 1000000");
    let said = tare.call(["logs", &id]).ok().stderr_text();
    assert!(said.contains("bytes of the output are missing"), "{said}");
    tare.call(["logs", "-n", "2", &id]).ok().said_nothing().printed("999999\n1000000\n");
    tare.remove(&id);
}

#[test]
fn attach_returns_the_exit_code_of_a_box_with_rm() {
    let tare = tare!();
    let script = "read line; echo last; exit 5";
    let id = tare.detached(["-i", "--rm", "--", "sh", "-c", script]);
    let mut attached = tare.spawn_call(["attach", &id]);
    attached.write(b"go\n");
    let output = attached.wait().exited(5);
    assert_eq!(output.stdout_text(), "last\n");
    assert_eq!(tare.list().len(), 0);
}
