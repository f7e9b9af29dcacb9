//! The copying, on real pipes, files, sockets and terminals.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use rustix::event::{PollFd, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use super::*;

/// Longer than any step here takes; a stream that needs it is stuck.
const STUCK: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

fn pipe() -> (File, File) {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    (File::from(reader), File::from(writer))
}

fn ours(file: File) -> Endpoint<'static> {
    Endpoint::ours(OwnedFd::from(file)).unwrap()
}

fn to(file: &File) -> Sink<'_> {
    Sink::End(Endpoint::callers(file.as_fd()).unwrap())
}

/// Whether what the stream waits for comes within `timeout`.
fn is_ready(stream: &CopyStream<'_>, timeout: Timespec) -> bool {
    let (fd, flags) = stream.interest().unwrap();
    poll(&mut [PollFd::from_borrowed_fd(fd, flags)], Some(&timeout)).unwrap() > 0
}

fn run_to_end(stream: &mut CopyStream<'_>, budget: &mut OutputBudget) -> CopyEnd {
    while stream.ended().is_none() {
        assert!(is_ready(stream, STUCK), "stuck: {stream:?}");
        stream.advance(budget);
    }
    stream.ended().unwrap()
}

/// Copies until the stream would have to wait.
fn run_until_waiting(stream: &mut CopyStream<'_>, budget: &mut OutputBudget) {
    while stream.ended().is_none() && is_ready(stream, NOW) {
        stream.advance(budget);
    }
}

/// A file of its own for each test.
fn scratch_file(name: &str) -> PathBuf {
    let file = format!("tare-stream-{}-{name}", std::process::id());
    std::env::temp_dir().join(file)
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n % 251) as u8).collect()
}

/// Sends `bytes` from a thread, so that both ends of a pipe move.
fn feed(mut writer: File, bytes: Vec<u8>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || writer.write_all(&bytes).unwrap())
}

/// Reads small pieces between steps of the stream, all on this one thread: a
/// step that waited for the reader would wait forever.
fn drink_slowly(stream: &mut CopyStream<'_>, reader: &mut File, length: usize) -> Vec<u8> {
    let mut budget = OutputBudget::unlimited();
    let mut got = Vec::new();
    let mut piece = [0; 3000];
    while got.len() < length {
        run_until_waiting(stream, &mut budget);
        let mut readable = [PollFd::new(reader, PollFlags::IN)];
        if poll(&mut readable, Some(&NOW)).unwrap() > 0 {
            let read = reader.read(&mut piece).unwrap();
            got.extend_from_slice(&piece[..read]);
        }
    }
    got
}

#[test]
fn bytes_arrive_whole_and_in_order_through_pipes() {
    let (source, box_side) = pipe();
    let (mut reader, caller) = pipe();
    let bytes = pattern(1_000_003);
    let feeder = feed(box_side, bytes.clone());
    let drinker = std::thread::spawn(move || {
        let mut got = Vec::new();
        reader.read_to_end(&mut got).unwrap();
        got
    });
    let mut stream = CopyStream::new(ours(source), to(&caller));
    assert!(stream.splices);
    let ended = run_to_end(&mut stream, &mut OutputBudget::unlimited());
    drop(stream);
    drop(caller);
    feeder.join().unwrap();
    assert_eq!(ended, CopyEnd::EndOfFile);
    assert!(drinker.join().unwrap() == bytes);
}

#[test]
fn bytes_arrive_in_a_file_from_where_it_was() {
    let path = scratch_file("file");
    let mut file = File::create(&path).unwrap();
    file.write_all(b"before ").unwrap();
    let (source, mut box_side) = pipe();
    box_side.write_all(b"after").unwrap();
    drop(box_side);
    let mut stream = CopyStream::new(ours(source), to(&file));
    run_to_end(&mut stream, &mut OutputBudget::unlimited());
    assert!(stream.splices);
    assert_eq!(fs::read(&path).unwrap(), b"before after");
    fs::remove_file(path).unwrap();
}

#[test]
fn a_file_opened_for_append_falls_back_to_writing_and_keeps_its_flags() {
    let path = scratch_file("append");
    fs::write(&path, b"before ").unwrap();
    let file = OpenOptions::new().append(true).open(&path).unwrap();
    let flags = rustix::fs::fcntl_getfl(&file).unwrap();
    let (source, box_side) = pipe();
    let bytes = pattern(300_000);
    let feeder = feed(box_side, bytes.clone());
    let mut stream = CopyStream::new(ours(source), to(&file));
    run_to_end(&mut stream, &mut OutputBudget::unlimited());
    feeder.join().unwrap();
    assert!(!stream.splices);
    assert_eq!(rustix::fs::fcntl_getfl(&file).unwrap(), flags);
    assert!(fs::read(&path).unwrap() == [b"before ".to_vec(), bytes].concat());
    fs::remove_file(path).unwrap();
}

#[test]
fn a_slow_reader_does_not_block_and_loses_nothing() {
    let (source, box_side) = pipe();
    let (mut reader, caller) = pipe();
    let flags = rustix::fs::fcntl_getfl(&caller).unwrap();
    let bytes = pattern(500_000);
    let feeder = feed(box_side, bytes.clone());
    let mut budget = OutputBudget::unlimited();
    let mut stream = CopyStream::new(ours(source), to(&caller));
    while stream.waiting() == Waiting::Source {
        assert!(is_ready(&stream, STUCK));
        stream.advance(&mut budget);
    }
    // No process reads: the stream waits for its sink and the call came back.
    assert!(!is_ready(&stream, NOW));
    let got = drink_slowly(&mut stream, &mut reader, bytes.len());
    feeder.join().unwrap();
    assert!(got == bytes);
    assert_eq!(rustix::fs::fcntl_getfl(&caller).unwrap(), flags);
}

/// The buffered way has the same promise: a pipe of the caller that is full.
#[test]
fn a_slow_reader_does_not_block_the_buffered_way() {
    let (source, box_side) = pipe();
    let (mut reader, caller) = pipe();
    let bytes = pattern(200_000);
    let feeder = feed(box_side, bytes.clone());
    let mut stream = CopyStream::new(ours(source), to(&caller));
    stream.splices = false;
    let got = drink_slowly(&mut stream, &mut reader, bytes.len());
    feeder.join().unwrap();
    assert!(got == bytes);
}

#[test]
fn a_reader_that_went_away_closes_the_boxs_pipe() {
    let (source, mut box_side) = pipe();
    let (reader, caller) = pipe();
    drop(reader);
    box_side.write_all(b"x").unwrap();
    let mut stream = CopyStream::new(ours(source), to(&caller));
    let ended = run_to_end(&mut stream, &mut OutputBudget::unlimited());
    assert_eq!(ended, CopyEnd::SinkClosed);
    // The command's next write fails, as in any pipeline.
    let error = box_side.write_all(b"y").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
}

#[test]
fn a_full_disk_is_reported() {
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let (source, mut box_side) = pipe();
    box_side.write_all(b"x").unwrap();
    let mut stream = CopyStream::new(ours(source), to(&full));
    let ended = run_to_end(&mut stream, &mut OutputBudget::unlimited());
    assert_eq!(ended, CopyEnd::SinkFailed(Errno::NOSPC));
}

#[test]
fn output_past_the_limit_is_dropped_and_counted() {
    for limit in [0_u64, 1, 4096, 100_000] {
        let path = scratch_file(&format!("limit-{limit}"));
        let file = File::create(&path).unwrap();
        let (source, box_side) = pipe();
        let feeder = feed(box_side, pattern(250_000));
        let mut budget = OutputBudget::new(limit);
        let mut stream = CopyStream::new(ours(source), to(&file));
        assert_eq!(run_to_end(&mut stream, &mut budget), CopyEnd::EndOfFile);
        feeder.join().unwrap();
        assert!(fs::read(&path).unwrap() == pattern(limit as usize));
        assert_eq!(budget.dropped_bytes(), 250_000 - limit);
        assert!(budget.is_passed());
        fs::remove_file(path).unwrap();
    }
}

#[test]
fn output_of_exactly_the_limit_is_not_truncated() {
    let (source, mut box_side) = pipe();
    box_side.write_all(b"12345").unwrap();
    drop(box_side);
    let mut budget = OutputBudget::new(5);
    let mut stream = CopyStream::new(ours(source), Sink::Memory);
    assert_eq!(run_to_end(&mut stream, &mut budget), CopyEnd::EndOfFile);
    assert!(!budget.is_passed());
    assert_eq!(stream.into_kept(), b"12345");
}

#[test]
fn two_streams_share_one_limit() {
    let mut budget = OutputBudget::new(6);
    let mut kept = Vec::new();
    for text in [b"abcd", b"efgh"] {
        let (source, mut box_side) = pipe();
        box_side.write_all(text).unwrap();
        drop(box_side);
        let mut stream = CopyStream::new(ours(source), Sink::Memory);
        run_to_end(&mut stream, &mut budget);
        kept.push(stream.into_kept());
    }
    assert_eq!(kept, [b"abcd".to_vec(), b"ef".to_vec()]);
    assert_eq!(budget.dropped_bytes(), 2);
}

#[test]
fn memory_keeps_everything_in_order() {
    let (source, box_side) = pipe();
    let bytes = pattern(700_001);
    let feeder = feed(box_side, bytes.clone());
    let mut stream = CopyStream::new(ours(source), Sink::Memory);
    run_to_end(&mut stream, &mut OutputBudget::unlimited());
    feeder.join().unwrap();
    assert!(stream.into_kept() == bytes);
}

#[test]
fn stdin_for_a_command_that_never_reads_is_not_hoarded() {
    let (caller, _writer_kept_full) = {
        let (reader, writer) = pipe();
        let filler = writer.try_clone().unwrap();
        let flags = rustix::fs::fcntl_getfl(&filler).unwrap();
        rustix::fs::fcntl_setfl(&filler, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
        while rustix::io::write(&filler, &[7; 4096]).is_ok() {}
        (reader, writer)
    };
    let (_box_side, sink) = pipe();
    let source = Endpoint::callers(caller.as_fd()).unwrap();
    let mut stream = CopyStream::new(source, Sink::End(ours(sink)));
    run_until_waiting(&mut stream, &mut OutputBudget::unlimited());
    assert!(stream.ended().is_none());
    assert!(stream.pending.len() <= CHUNK_BYTES);
}

#[test]
fn the_end_of_stdin_reaches_the_command() {
    let path = scratch_file("stdin");
    fs::write(&path, b"question").unwrap();
    let file = File::open(&path).unwrap();
    let (mut box_side, sink) = pipe();
    let source = Endpoint::callers(file.as_fd()).unwrap();
    let mut stream = CopyStream::new(source, Sink::End(ours(sink)));
    assert!(stream.splices);
    let ended = run_to_end(&mut stream, &mut OutputBudget::unlimited());
    assert_eq!(ended, CopyEnd::EndOfFile);
    let mut got = String::new();
    box_side.read_to_string(&mut got).unwrap();
    assert_eq!(got, "question");
    fs::remove_file(path).unwrap();
}

#[test]
fn stdin_of_a_command_that_ended_is_let_go() {
    let file = File::open("/dev/zero").unwrap();
    let (box_side, sink) = pipe();
    drop(box_side);
    let source = Endpoint::callers(file.as_fd()).unwrap();
    let mut stream = CopyStream::new(source, Sink::End(ours(sink)));
    let ended = run_to_end(&mut stream, &mut OutputBudget::unlimited());
    assert_eq!(ended, CopyEnd::SinkClosed);
}

#[test]
fn a_socket_of_the_caller_does_not_block_either() {
    let (near, mut far) = UnixStream::pair().unwrap();
    let (source, box_side) = pipe();
    let bytes = pattern(600_000);
    let feeder = feed(box_side, bytes.clone());
    let mut budget = OutputBudget::unlimited();
    let sink = Endpoint::callers(near.as_fd()).unwrap();
    let mut stream = CopyStream::new(ours(source), Sink::End(sink));
    while stream.waiting() == Waiting::Source || is_ready(&stream, NOW) {
        assert!(is_ready(&stream, STUCK));
        stream.advance(&mut budget);
    }
    let drinker = std::thread::spawn(move || {
        let mut got = vec![0; 600_000];
        far.read_exact(&mut got).unwrap();
        got
    });
    run_to_end(&mut stream, &mut budget);
    feeder.join().unwrap();
    assert!(drinker.join().unwrap() == bytes);
}

#[test]
fn the_end_of_a_terminal_is_the_end_of_the_stream() {
    let master = rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR).unwrap();
    rustix::pty::unlockpt(&master).unwrap();
    let flags = rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY;
    let side = rustix::pty::ioctl_tiocgptpeer(&master, flags).unwrap();
    File::from(side).write_all(b"bye\n").unwrap();
    let mut stream = CopyStream::new(Endpoint::ours(master).unwrap(), Sink::Memory);
    let ended = run_to_end(&mut stream, &mut OutputBudget::unlimited());
    assert_eq!(ended, CopyEnd::EndOfFile);
    assert_eq!(stream.into_kept(), b"bye\r\n");
}

/// Only a stream with much to move asks for more of the user's pipe memory.
#[test]
fn a_pipe_is_widened_when_much_has_passed_and_not_before() {
    for (length, capacity) in [(1000, CHUNK_BYTES), (2 * WIDEN_AFTER_BYTES, WIDE_BYTES)] {
        let (source, writer) = pipe();
        let watched = source.try_clone().unwrap();
        let sink = OpenOptions::new().write(true).open("/dev/null").unwrap();
        let feeder = feed(writer, pattern(length));
        let mut stream = CopyStream::new(ours(source), to(&sink));
        run_to_end(&mut stream, &mut OutputBudget::unlimited());
        feeder.join().unwrap();
        assert_eq!(rustix::pipe::fcntl_getpipe_size(&watched).unwrap(), capacity);
    }
}

#[test]
fn output_to_dev_null_is_counted_and_never_waits() {
    let (source, writer) = pipe();
    let sink = OpenOptions::new().write(true).open("/dev/null").unwrap();
    let feeder = feed(writer, pattern(500_000));
    let mut stream = CopyStream::new(ours(source), to(&sink));
    assert!(stream.splices);
    let mut budget = OutputBudget::new(400_000);
    assert_eq!(run_to_end(&mut stream, &mut budget), CopyEnd::EndOfFile);
    feeder.join().unwrap();
    assert_eq!(budget.dropped_bytes(), 100_000);
}

/// splice(2) reports a full sink before the end of the source: the end must be seen all the same.
#[test]
fn a_source_at_its_end_does_not_wait_for_a_full_sink() {
    let (source, writer) = pipe();
    let (_reader, mut sink) = pipe();
    sink.write_all(&vec![7; 64 << 10]).unwrap();
    drop(writer);
    let mut stream = CopyStream::new(ours(source), to(&sink));
    assert!(is_ready(&stream, Timespec::default()));
    stream.advance(&mut OutputBudget::unlimited());
    assert_eq!(stream.ended(), Some(CopyEnd::EndOfFile));
}
