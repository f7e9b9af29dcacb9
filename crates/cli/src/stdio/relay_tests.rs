//! The loop, with a box that is only its pipes and its reports.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use rustix::pipe::{PipeFlags, pipe_with};
use tare_control::{Channel, Report};
use tare_engine::BoxId;

use super::*;

fn pipe() -> (File, File) {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    (File::from(reader), File::from(writer))
}

/// A session, and the keeper's end of it, with these reports on their way.
fn session(reports: &[Report], deadline_ns: Option<u64>) -> (Session, Channel) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let keeper = Channel::new(theirs.into());
    reports.iter().for_each(|report| keeper.report(report));
    let channel = Channel::new(ours.into());
    (Session::new(BoxId::random(), channel, Streams::default(), deadline_ns), keeper)
}

fn caller(file: &File) -> Caller<'_> {
    Caller { stdin: file.as_fd(), stdout: file.as_fd(), stderr: file.as_fd() }
}

fn streams(stdout: File, stderr: File) -> Streams {
    Streams { stdin: None, stdout: Some(stdout.into()), stderr: Some(stderr.into()) }
}

/// All output is kept, up to so many bytes.
fn keep(output_bytes_max: u64, past_limit: PastLimit) -> Settings {
    Settings { output: Output::Keep, output_bytes_max, past_limit, writers: Writers::Dead }
}

/// None of these is sent here: signals to a test would end the others too.
fn signals() -> SignalFd {
    SignalFd::open(&[]).unwrap()
}

#[test]
fn output_written_before_the_end_arrives_after_it() {
    let null = File::open("/dev/null").unwrap();
    let ((stdout, mut out), (stderr, mut err)) = (pipe(), pipe());
    out.write_all(b"hello ").unwrap();
    err.write_all(b"oops").unwrap();
    let mut relay =
        Relay::new(caller(&null), streams(stdout, stderr), keep(100, PastLimit::Kill)).unwrap();
    let end = End::of_command(3 << 8);
    let (mut session, keeper) = session(&[Report::Started, Report::Ended(end)], None);
    relay.until_end(&mut session, &signals()).unwrap();
    assert_eq!(session.seen_end(), end);
    out.write_all(b"world").unwrap();
    drop((out, err));
    relay.drain(false, &signals()).unwrap();
    assert_eq!(relay.into_kept(), [b"hello world".to_vec(), b"oops".to_vec()]);
    assert!(!keeper.is_hung_up());
}

#[test]
fn a_box_whose_keeper_is_late_with_its_deadline_is_killed() {
    let null = File::open("/dev/null").unwrap();
    let ((stdout, _out), (stderr, _err)) = (pipe(), pipe());
    let streams = streams(stdout, stderr);
    let caller = caller(&null);
    let mut relay = Relay::new(caller, streams, keep(100, PastLimit::Truncate)).unwrap();
    let (mut session, keeper) = session(&[Report::Started], Some(0));
    relay.until_end(&mut session, &signals()).unwrap();
    assert_eq!(session.seen_end().cause, Cause::Timeout);
    assert!(keeper.is_hung_up());
}

#[test]
fn output_past_the_limit_ends_the_box_with_output_kill() {
    let null = File::open("/dev/null").unwrap();
    let ((stdout, mut out), (stderr, _err)) = (pipe(), pipe());
    out.write_all(b"too much").unwrap();
    let (mut session, keeper) = session(&[], None);
    let mut relay =
        Relay::new(caller(&null), streams(stdout, stderr), keep(3, PastLimit::Kill)).unwrap();
    relay.until_end(&mut session, &signals()).unwrap();
    assert_eq!(session.seen_end().cause, Cause::OutputLimit);
    assert!(keeper.is_hung_up());
    assert_eq!(relay.into_kept()[0], b"too");
}

#[test]
fn a_pipe_that_is_still_open_does_not_delay_the_end() {
    let null = File::open("/dev/null").unwrap();
    let ((stdout, mut out), (stderr, _held)) = (pipe(), pipe());
    out.write_all(b"hi").unwrap();
    let mut relay =
        Relay::new(caller(&null), streams(stdout, stderr), keep(100, PastLimit::Truncate)).unwrap();
    let before = Instant::now();
    relay.drain(true, &signals()).unwrap();
    assert!(before.elapsed() < DRAIN_SILENCE);
    assert_eq!(relay.into_kept()[0], b"hi");
}

#[test]
fn a_slow_reader_gets_everything_after_the_end() {
    let (mut reader, caller_side) = pipe();
    let ((stdout, mut out), (stderr, err)) = (pipe(), pipe());
    drop(err);
    let feeder = std::thread::spawn(move || out.write_all(&[7; 300_000]).unwrap());
    let drinker = std::thread::spawn(move || {
        let mut got = Vec::new();
        reader.read_to_end(&mut got).unwrap();
        got.len()
    });
    let mut relay = Relay::new(
        caller(&caller_side),
        streams(stdout, stderr),
        Settings { output: Output::Pass, ..keep(1 << 20, PastLimit::Truncate) },
    )
    .unwrap();
    relay.drain(false, &signals()).unwrap();
    drop(relay);
    drop(caller_side);
    feeder.join().unwrap();
    assert_eq!(drinker.join().unwrap(), 300_000);
}

#[test]
fn stdin_reaches_the_command_while_it_runs() {
    let (question, mut asker) = pipe();
    asker.write_all(b"question").unwrap();
    drop(asker);
    let (mut command, stdin) = pipe();
    let streams = Streams { stdin: Some(stdin.into()), stdout: None, stderr: None };
    let (mut session, keeper) = session(&[], None);
    let mut relay = Relay::new(
        caller(&question),
        streams,
        Settings { output: Output::Pass, ..keep(1, PastLimit::Truncate) },
    )
    .unwrap();
    let reader = std::thread::spawn(move || {
        let mut got = String::new();
        command.read_to_string(&mut got).unwrap();
        drop(keeper);
        got
    });
    relay.until_end(&mut session, &signals()).unwrap();
    assert_eq!(session.seen_end().cause, Cause::KeeperLost);
    assert_eq!(reader.join().unwrap(), "question");
}
