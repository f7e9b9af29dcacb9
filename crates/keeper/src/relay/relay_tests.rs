//! Both sides of a relay over a real socket, with real pipes and terminals.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Instant;

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::termios::{Winsize, tcgetwinsize, tcsetwinsize};
use tare_control::TerminalPlan;
use tare_control::port::STREAMS_MAX;
use tare_harness::random::{Random, shown_seed};

use super::*;
use crate::make::terminal;

/// Both sides, and the keeper's ends of the connections that the inner side accepted.
struct Wire {
    outer: Relay,
    inner: Relay,
    accepted: Vec<UnixStream>,
}

impl Wire {
    fn new() -> Self {
        let (one, other) = UnixStream::pair().unwrap();
        let mut wire = Self {
            outer: Relay::new(one.into(), Side::Outer).unwrap(),
            inner: Relay::new(other.into(), Side::Inner).unwrap(),
            accepted: Vec::new(),
        };
        wire.settle();
        assert!(wire.outer.is_greeted() && wire.inner.is_greeted());
        wire
    }

    /// Takes turns until neither side has anything to do.
    fn settle(&mut self) {
        loop {
            self.outer.turn().unwrap();
            self.inner.turn_accepting(&mut || accept_into(&mut self.accepted)).unwrap();
            if self.outer.ready().is_empty() && self.inner.ready().is_empty() {
                return;
            }
        }
    }

    /// Takes turns until this is true. Terminals move bytes in a thread of the kernel.
    fn until(&mut self, mut is_so: impl FnMut() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < Duration::from_secs(20), "it does not happen");
            self.outer.turn().unwrap();
            self.inner.turn_accepting(&mut || accept_into(&mut self.accepted)).unwrap();
            thread::yield_now();
        }
    }

    /// Opens a connection that carries the streams of a command.
    fn exec(&mut self) -> Exec {
        let (stdin, our_stdin) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (our_stdout, stdout) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (our_stderr, stderr) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let client = self.outer.connect(b"call", vec![stdin, stdout, stderr]).unwrap();
        self.settle();
        let keeper = self.accepted.pop().unwrap();
        let mut buffer = [0; 16];
        let mut received = fds::receive(keeper.as_fd(), &mut buffer).unwrap();
        assert_eq!(&buffer[..received.bytes], b"call");
        let mut theirs = received.fds.drain(..).map(File::from);
        Exec {
            client: UnixStream::from(client),
            keeper,
            ours: [our_stdin, our_stdout, our_stderr].map(File::from),
            theirs: std::array::from_fn(|_| theirs.next().unwrap()),
        }
    }

    fn is_empty(&self) -> bool {
        let is_empty = |relay: &Relay| relay.ends.is_empty() && relay.port.streams() == 0;
        is_empty(&self.outer) && is_empty(&self.inner)
    }
}

fn accept_into(accepted: &mut Vec<UnixStream>) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    theirs.set_nonblocking(true)?;
    accepted.push(theirs);
    Ok(ours.into())
}

/// The client's and the keeper's descriptors of one exec.
struct Exec {
    client: UnixStream,
    keeper: UnixStream,
    ours: [File; 3],
    theirs: [File; 3],
}

fn readable(fd: impl AsFd) -> u64 {
    rustix::io::ioctl_fionread(fd).unwrap()
}

fn never_block(fd: impl AsFd) {
    let flags = rustix::fs::fcntl_getfl(&fd).unwrap();
    rustix::fs::fcntl_setfl(&fd, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
}

/// Writes until the pipe is full, again after each turn. Returns how much that was.
fn flood(wire: &mut Wire, mut pipe: &File) -> usize {
    never_block(pipe);
    let mut total = 0;
    loop {
        let written = std::iter::from_fn(|| pipe.write(&[7; 4096]).ok()).sum::<usize>();
        wire.settle();
        total += written;
        if written == 0 {
            return total;
        }
    }
}

#[test]
fn messages_streams_and_ends_cross_in_both_directions() {
    let mut wire = Wire::new();
    let mut exec = wire.exec();
    let [our_stdin, our_stdout, our_stderr] = &mut exec.ours;
    let [stdin, stdout, stderr] = &mut exec.theirs;
    our_stdin.write_all(b"in").unwrap();
    stdout.write_all(b"out").unwrap();
    stderr.write_all(b"err").unwrap();
    wire.settle();
    let read = |file: &mut File| {
        let mut buffer = [0; 16];
        let length = file.read(&mut buffer).unwrap();
        buffer[..length].to_vec()
    };
    assert_eq!([read(stdin), read(our_stdout), read(our_stderr)], [&b"in"[..], b"out", b"err"]);
    exec.keeper.write_all(b"report").unwrap();
    exec.client.write_all(b"request").unwrap();
    wire.settle();
    let mut buffer = [0; 16];
    assert_eq!(exec.client.read(&mut buffer).unwrap(), 6);
    assert_eq!(exec.keeper.read(&mut buffer).unwrap(), 7);
    let Exec { client, mut keeper, ours, theirs } = exec;
    let [our_stdin, mut our_stdout, _our_stderr] = ours;
    let [mut stdin, stdout, _stderr] = theirs;
    drop((our_stdin, stdout));
    wire.settle();
    assert_eq!((read(&mut stdin), read(&mut our_stdout)), (Vec::new(), Vec::new()), "ends");
    drop(client);
    wire.settle();
    assert_eq!(keeper.read(&mut buffer).unwrap(), 0, "the client is gone");
}

#[test]
fn a_reader_that_is_gone_ends_its_writer() {
    let mut wire = Wire::new();
    let Exec { client, keeper, ours, theirs } = wire.exec();
    let [our_stdin, our_stdout, our_stderr] = ours;
    let [stdin, mut stdout, stderr] = theirs;
    drop(our_stdout);
    wire.settle();
    assert_eq!(stdout.write(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    drop(stdin);
    wire.settle();
    assert_eq!((&our_stdin).write(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    drop((client, keeper, our_stderr, stderr));
    wire.settle();
    assert!(wire.is_empty());
}

#[test]
fn a_reader_that_does_not_read_stops_no_other_stream() {
    let mut wire = Wire::new();
    let slow = wire.exec();
    let flooded = flood(&mut wire, &slow.theirs[1]) + flood(&mut wire, &slow.ours[0]);
    assert!(flooded > 2 * (64 << 10), "{flooded}");
    assert!(flooded < 3 << 20, "what waits has a limit: {flooded}");
    for _ in 0..100 {
        let mut fast = wire.exec();
        fast.theirs[1].write_all(&[1; 1000]).unwrap();
        fast.keeper.write_all(b"ended").unwrap();
        wire.settle();
        assert_eq!(readable(&fast.ours[1]), 1000);
        assert_eq!(readable(&fast.client), 5);
    }
    // Its messages go on, too.
    (&slow.client).write_all(b"signal").unwrap();
    wire.settle();
    assert_eq!(readable(&slow.keeper), 6);
}

#[test]
fn a_message_of_the_machine_comes_after_the_output_before_it() {
    let mut wire = Wire::new();
    let mut exec = wire.exec();
    let written = flood(&mut wire, &exec.theirs[1]);
    exec.keeper.write_all(b"ended").unwrap();
    wire.settle();
    assert_eq!(readable(&exec.client), 0, "the end would overtake the output");
    let mut read = 0;
    while readable(&exec.client) == 0 {
        let mut buffer = [0; 1000];
        read += exec.ours[1].read(&mut buffer).unwrap();
        wire.settle();
    }
    assert_eq!(read as u64 + readable(&exec.ours[1]), written as u64, "all of it is in the pipe");
}

#[test]
fn a_hundred_megabytes_arrive_intact_in_each_direction() {
    let mut wire = Wire::new();
    let Exec { client, keeper, ours, theirs } = wire.exec();
    let [our_stdin, our_stdout, our_stderr] = ours;
    let [stdin, stdout, stderr] = theirs;
    let Wire { outer, inner, .. } = wire;
    let sides = [outer, inner].map(|relay| thread::spawn(move || relay_until_empty(relay)));
    let moving = [
        thread::spawn(move || write_blocks(our_stdin)),
        thread::spawn(move || write_blocks(stdout)),
        thread::spawn(move || read_blocks(stdin)),
        thread::spawn(move || read_blocks(our_stdout)),
    ];
    moving.into_iter().for_each(|one| one.join().unwrap());
    drop((client, keeper, our_stderr, stderr));
    sides.into_iter().for_each(|one| one.join().unwrap());
}

fn relay_until_empty(mut relay: Relay) {
    while relay.port.streams() > 0 {
        let interests = relay.interests();
        let mut polled: Vec<_> =
            interests.map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)).collect();
        poll(&mut polled, None).unwrap();
        drop(polled);
        match relay.turn() {
            Ok(()) => {}
            // The other side was done first.
            Err(RelayError::Gone(_)) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

const BLOCKS: u64 = 1600;
const BLOCK_BYTES: usize = 64 << 10;

/// Returns a block that no other number has.
fn block(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(BLOCK_BYTES / 8)
}

fn write_blocks(mut to: File) {
    (0..BLOCKS).for_each(|number| to.write_all(&block(number)).unwrap());
}

fn read_blocks(mut from: File) {
    let mut read = vec![0; BLOCK_BYTES];
    for number in 0..BLOCKS {
        from.read_exact(&mut read).unwrap();
        assert!(read == block(number), "block {number}");
    }
    assert_eq!(from.read(&mut read).unwrap(), 0);
}

#[test]
fn a_thousand_connections_leave_nothing() {
    let mut wire = Wire::new();
    for _ in 0..1000 {
        let mut exec = wire.exec();
        exec.theirs[1].write_all(b"out").unwrap();
        exec.keeper.write_all(b"ended").unwrap();
        wire.settle();
        assert_eq!((readable(&exec.ours[1]), readable(&exec.client)), (3, 5));
        drop(exec);
        wire.settle();
    }
    assert!(wire.is_empty());
    assert_eq!(wire.outer.port.output(), b"");
}

#[test]
fn more_connections_than_streams_are_refused_and_room_returns() {
    let mut wire = Wire::new();
    let sockets: Vec<_> =
        std::iter::from_fn(|| wire.outer.connect(b"x", Vec::new()).ok()).collect();
    assert_eq!(sockets.len(), STREAMS_MAX);
    wire.settle();
    drop(sockets);
    wire.settle();
    assert!(wire.is_empty());
    wire.exec();
}

#[test]
fn first_bytes_of_any_size_cross() {
    let mut wire = Wire::new();
    let call: Vec<u8> = (0..4_u32 << 20).map(|i| (i % 251) as u8).collect();
    let _client = wire.outer.connect(&call, vec![fds::open_null().unwrap()]).unwrap();
    assert!(wire.outer.connect(&[0; 5 << 20], Vec::new()).is_err(), "waiting calls have a limit");
    let mut received = Vec::new();
    let mut passed = Vec::new();
    while received.len() < call.len() {
        wire.settle();
        let mut buffer = [0; 64 << 10];
        let one = fds::receive(wire.accepted[0].as_fd(), &mut buffer).unwrap();
        received.extend_from_slice(&buffer[..one.bytes]);
        passed.extend(one.fds);
    }
    assert!(received == call);
    assert_eq!(passed.len(), 1);
}

#[test]
fn a_descriptor_that_cannot_cross_is_refused() {
    let mut wire = Wire::new();
    let socket: OwnedFd = UnixStream::pair().unwrap().0.into();
    assert!(wire.outer.connect(b"call", vec![socket]).is_err());
    wire.settle();
    wire.accepted.clear();
    wire.settle();
    assert!(wire.is_empty());
    // The machine passes terminals, and nothing else.
    let exec = wire.exec();
    let file = File::open("/proc/self/status").unwrap();
    fds::send_with(exec.keeper.as_fd(), b"terminal", &[file.as_fd()]).unwrap();
    wire.settle();
    assert_eq!((&exec.client).read(&mut [0; 16]).unwrap(), 0, "the connection is closed");
}

#[test]
fn everything_closes_when_the_other_side_vanishes() {
    for vanished in [Side::Outer, Side::Inner] {
        let mut wire = Wire::new();
        let exec = wire.exec();
        flood(&mut wire, &exec.theirs[1]);
        let Wire { outer, inner, .. } = wire;
        let (gone, mut left) = match vanished {
            Side::Outer => (outer, inner),
            Side::Inner => (inner, outer),
        };
        drop(gone);
        let error = (0..100).find_map(|_| left.turn().err());
        assert!(matches!(error, Some(RelayError::Gone(_))), "{error:?}");
        drop(left);
        let Exec { client, keeper, mut ours, mut theirs } = exec;
        assert_eq!((&client).read(&mut [0; 16]).unwrap(), 0);
        assert_eq!((&keeper).read(&mut [0; 16]).unwrap(), 0);
        assert!(ours[1].read_to_end(&mut Vec::new()).is_ok());
        assert!(theirs[0].read_to_end(&mut Vec::new()).is_ok());
    }
}

#[test]
fn the_last_words_of_a_side_that_vanishes_arrive() {
    let mut wire = Wire::new();
    let mut exec = wire.exec();
    exec.theirs[1].write_all(b"out").unwrap();
    exec.keeper.write_all(b"ended").unwrap();
    wire.inner.turn().unwrap();
    // The side that is left has something to write, too.
    exec.client.write_all(b"signal").unwrap();
    let Wire { mut outer, inner, .. } = wire;
    drop(inner);
    while outer.turn().is_ok() {}
    assert_eq!((readable(&exec.ours[1]), readable(&exec.client)), (3, 5));
}

#[test]
fn a_terminal_crosses_with_its_window() {
    let mut wire = Wire::new();
    let exec = wire.exec();
    let pair = terminal::open(TerminalPlan { rows: 24, columns: 80 }, None).unwrap();
    fds::send_with(exec.keeper.as_fd(), b"terminal", &[pair.master.as_fd()]).unwrap();
    drop(pair.master);
    wire.settle();
    let mut buffer = [0; 16];
    let mut received = fds::receive(exec.client.as_fd(), &mut buffer).unwrap();
    assert_eq!(&buffer[..received.bytes], b"terminal");
    let master = File::from(received.fds.pop().unwrap());
    let inner = File::from(pair.slave);
    let size = tcgetwinsize(&master).unwrap();
    assert_eq!((size.ws_row, size.ws_col), (24, 80));
    tcsetwinsize(&master, Winsize { ws_row: 50, ws_col: 132, ..size }).unwrap();
    wire.until(|| tcgetwinsize(&inner).unwrap().ws_col == 132);
    (&master).write_all(b"keys\n").unwrap();
    wire.until(|| readable(&inner) == 5);
    // The inner terminal echoes, and says where a line begins.
    wire.until(|| readable(&master) == 6);
    let length = (&inner).read(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"keys\n");
    let length = (&master).read(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"keys\r\n");
    assert!(wire.outer.next_look().is_some());
    (&inner).write_all(b"bye").unwrap();
    drop(inner);
    wire.until(|| readable(&master) == 3);
    (&master).read_exact(&mut buffer[..3]).unwrap();
    let at_end = || (&master).read(&mut [0; 16]).is_err();
    never_block(&master);
    let mut ended = [PollFd::new(&master, PollFlags::empty())];
    wire.until(|| poll(&mut ended, Some(&timespec(Duration::ZERO))).unwrap() == 1);
    assert!(at_end(), "the terminal has hung up");
    assert!(wire.outer.next_look().is_none());
}

/// The other side sends these bytes after its hello.
fn error_after(side: Side, bytes: &[u8]) -> Option<RelayError> {
    let (one, other) = UnixStream::pair().unwrap();
    let mut relay = Relay::new(one.into(), side).unwrap();
    let hostile = Port::new(side);
    (&other).write_all(hostile.output()).unwrap();
    (&other).write_all(bytes).unwrap();
    drop(relay.connect(b"call", Vec::new()));
    let mut ends = Vec::new();
    (0..4).find_map(|_| relay.turn_accepting(&mut || accept_into(&mut ends)).err())
}

#[test]
fn a_peer_that_breaks_the_protocol_ends_the_relay() {
    let encoded = |frames: &[PortFrame<'_>]| {
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| frame.encode(&mut bytes));
        bytes
    };
    let cases = [
        (Side::Outer, vec![0xff; 64]),
        (Side::Outer, encoded(&[PortFrame::Open { stream: 1 }])),
        (Side::Outer, encoded(&[PortFrame::Data { stream: 6, bytes: b"x" }])),
        (Side::Outer, encoded(&[PortFrame::Hello { version: 1 }])),
        (Side::Outer, encoded(&[PortFrame::Credit { stream: 0, bytes: u32::MAX }])),
        (Side::Inner, encoded(&[PortFrame::Open { stream: 0 }, PortFrame::Open { stream: 0 }])),
        (Side::Inner, encoded(&[PortFrame::Open { stream: 4 }])),
    ];
    for (side, bytes) in cases {
        let error = error_after(side, &bytes);
        assert!(matches!(error, Some(RelayError::Broken(_))), "{bytes:?}: {error:?}");
    }
    assert!(error_after(Side::Outer, &[4, 0, 0, 0]).is_none(), "half a frame waits");
}

/// A frame that is allowed for an exec whose streams have these numbers, at some time.
fn plausible<'a>(random: &mut Random, data: &'a [u8]) -> PortFrame<'a> {
    let window = TerminalPlan { rows: 1, columns: 1 };
    let bytes = &data[..1 + random.below(data.len() as u64 - 1) as usize];
    let [connection, stdin, stdout, stderr, terminal] = [0, 2, 4, 6, 1];
    let incoming = *random.pick(&[connection, stdout, stderr, terminal]);
    let outgoing = *random.pick(&[connection, stdin, terminal]);
    match random.below(8) {
        0 => PortFrame::Pass { connection, stream: terminal, what: Passed::Terminal(window) },
        1 => PortFrame::End { stream: incoming },
        2 => PortFrame::Stop { stream: outgoing },
        3 => PortFrame::Credit { stream: outgoing, bytes: 100 },
        _ => PortFrame::Data { stream: incoming, bytes },
    }
}

#[test]
fn frames_in_any_order_leave_a_whole_relay_or_one_error() {
    let seed = shown_seed("TARE_SEED");
    let mut broken = 0;
    for case in 0..300 {
        let mut random = Random::seeded(seed.wrapping_add(case));
        let (one, other) = UnixStream::pair().unwrap();
        let mut relay = Relay::new(one.into(), Side::Outer).unwrap();
        let pipes: [_; 3] = std::array::from_fn(|_| pipe_with(PipeFlags::CLOEXEC).unwrap());
        let [(stdin, our_stdin), (our_stdout, stdout), (our_stderr, stderr)] = pipes;
        let client = relay.connect(b"call", vec![stdin, stdout, stderr]).unwrap();
        let mut ours = vec![client, our_stdin, our_stdout, our_stderr];
        (&other).write_all(Port::new(Side::Inner).output()).unwrap();
        for _ in 0..6 {
            let mut bytes = Vec::new();
            plausible(&mut random, &[7; 1000]).encode(&mut bytes);
            (&other).write_all(&bytes).unwrap();
            if random.once_in(4) && !ours.is_empty() {
                ours.swap_remove(random.below(ours.len() as u64) as usize);
            }
            match relay.turn() {
                Ok(()) => {}
                Err(RelayError::Broken(_)) => {
                    broken += 1;
                    break;
                }
                Err(error) => panic!("case {case}: {error}"),
            }
        }
    }
    assert!((30..270).contains(&broken), "{broken} of 300");
}
