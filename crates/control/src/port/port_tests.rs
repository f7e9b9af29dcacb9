//! The frames and the state of streams: every state with every frame, honest peers, and hostile ones.

use std::time::{Duration, Instant};

use tare_harness::random::{Random, number_in, shown_seed};

use super::stream::{Allowance, Answer, Arrived, Incoming, Outgoing, WINDOW_FIRST, WINDOW_MAX};
use super::*;
use crate::plan::{Identity, TerminalPlan};

const USER: Identity = Identity { uid: 1000, gid: 1000 };
const WINDOW: TerminalPlan = TerminalPlan { rows: 24, columns: 80 };

fn encoded(frames: &[PortFrame<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frames.iter().for_each(|frame| frame.encode(&mut bytes));
    bytes
}

fn every_frame() -> Vec<PortFrame<'static>> {
    let stream = u64::MAX - 1;
    let pass = |what| PortFrame::Pass { connection: 1 << 40, stream, what };
    vec![
        PortFrame::Hello { version: PORT_VERSION },
        PortFrame::Open { stream },
        pass(Passed::ReadEnd(USER)),
        pass(Passed::WriteEnd(USER)),
        pass(Passed::Null),
        pass(Passed::Terminal(WINDOW)),
        PortFrame::Data { stream, bytes: b"data" },
        PortFrame::End { stream },
        PortFrame::Stop { stream },
        PortFrame::Credit { stream, bytes: u32::MAX },
        PortFrame::Resize { stream, window: WINDOW },
    ]
}

#[test]
fn every_frame_survives_the_round_trip_and_waits_for_its_last_byte() {
    for frame in every_frame() {
        let bytes = encoded(&[frame]);
        for cut in 0..bytes.len() {
            assert_eq!(PortFrame::decode(&bytes[..cut]), Ok(None), "{frame:?} at {cut}");
        }
        assert_eq!(PortFrame::decode(&bytes), Ok(Some((frame, bytes.len()))));
    }
}

#[test]
fn a_length_that_its_kind_does_not_have_is_refused_before_its_bytes_come() {
    for frame in every_frame() {
        let bytes = encoded(&[frame]);
        for length in [0, 1, 3, 5, 21, DATA_BYTES_MAX as u32 + 1, u32::MAX] {
            let mut head = bytes[..HEAD_BYTES].to_vec();
            head[4..8].copy_from_slice(&length.to_le_bytes());
            let fits = matches!(frame, PortFrame::Data { .. }) && (1..=21).contains(&length)
                || matches!(
                    frame,
                    PortFrame::Open { .. } | PortFrame::End { .. } | PortFrame::Stop { .. }
                ) && length == 0;
            assert_eq!(PortFrame::decode(&head).is_ok(), fits, "{frame:?} of {length} bytes");
        }
    }
}

#[test]
fn every_damaged_byte_of_every_frame_is_an_answer() {
    for frame in every_frame() {
        let bytes = encoded(&[frame]);
        for at in 0..bytes.len() {
            for value in 0..=255 {
                let mut damaged = bytes.clone();
                damaged[at] = value;
                let _ = PortFrame::decode(&damaged);
            }
        }
    }
}

#[test]
fn the_sender_of_a_stream_follows_its_table() {
    let open = Outgoing::Open { credit: 10 };
    let out_of_turn = Err(PortError::OutOfTurn(2));
    for (state, credit, stop, ends, sendable) in [
        (open, Ok(Outgoing::Open { credit: 15 }), Ok(Answer::End), true, 10),
        (Outgoing::Ended, Ok(Outgoing::Ended), Ok(Answer::Nothing), false, 0),
        (Outgoing::Over, out_of_turn, Err(PortError::OutOfTurn(2)), false, 0),
    ] {
        let mut after = state;
        assert_eq!(after.receive_credit(5, 2).map(|()| after), credit, "{state:?}");
        let mut after = state;
        assert_eq!(after.receive_stop(2), stop, "{state:?}");
        assert_eq!(after, Outgoing::Over);
        let mut after = state;
        assert_eq!(after.end(), ends, "{state:?}");
        assert_eq!(state.sendable(), sendable, "{state:?}");
    }
    for bytes in [0, WINDOW_MAX - 9, u32::MAX] {
        let mut state = open;
        assert_eq!(state.receive_credit(bytes, 2), Err(PortError::Credit(2)), "{bytes}");
    }
}

#[test]
fn the_receiver_of_a_stream_follows_its_table() {
    let allowance = |left| Incoming::Open(Allowance { left, owed: 0, window: WINDOW_FIRST });
    let ended = Incoming::Ended { window: WINDOW_FIRST };
    let stopped = |left| Incoming::Stopped { left };
    let out_of_turn = PortError::OutOfTurn(2);
    for (state, data, end, stop) in [
        (allowance(9), Ok((Arrived::Deliver, allowance(6))), Ok(ended), (true, stopped(9))),
        (ended, Err(out_of_turn), Err(out_of_turn), (true, Incoming::Over)),
        (stopped(9), Ok((Arrived::Drop, stopped(6))), Ok(Incoming::Over), (false, stopped(9))),
        (Incoming::Over, Err(out_of_turn), Err(out_of_turn), (false, Incoming::Over)),
    ] {
        let mut after = state;
        let arrived = after.receive_data(3, 2);
        assert_eq!(arrived.map(|arrived| (arrived, after)), data, "{state:?}");
        let mut after = state;
        assert_eq!(after.receive_end(2).map(|()| after), end, "{state:?}");
        let mut after = state;
        assert_eq!((after.stop(), after), stop, "{state:?}");
    }
    for mut state in [allowance(9), stopped(9)] {
        assert_eq!(state.receive_data(10, 2), Err(PortError::Credit(2)), "{state:?}");
    }
}

#[test]
fn a_window_grows_while_its_reader_keeps_up_and_memory_is_spare() {
    let mut spare = WINDOW_MAX;
    let mut allowance = Allowance { left: WINDOW_FIRST, owed: 0, window: WINDOW_FIRST };
    allowance.left -= 100;
    assert_eq!(allowance.deliver(100, &mut spare), None, "a credit for each byte is too much");
    while allowance.window < WINDOW_MAX {
        let length = allowance.left;
        allowance.left = 0;
        let credit = allowance.deliver(length as usize, &mut spare);
        assert_eq!(credit, Some(allowance.left));
        assert!(allowance.left <= allowance.window);
    }
    assert_eq!(spare, WINDOW_FIRST);
    let mut late = Allowance { left: 0, owed: 0, window: WINDOW_FIRST };
    let mut spare = WINDOW_FIRST - 1;
    assert_eq!(late.deliver(WINDOW_FIRST as usize, &mut spare), Some(WINDOW_FIRST));
    assert_eq!((late.window, spare), (WINDOW_FIRST, WINDOW_FIRST - 1));
}

#[test]
fn the_first_frame_is_a_hello_of_the_same_version() {
    let mut port = Port::new(Side::Outer);
    assert_eq!(port.receive(PortFrame::End { stream: 0 }), Err(PortError::NoHello));
    assert_eq!(port.receive(PortFrame::Hello { version: 2 }), Err(PortError::Version(2)));
    assert!(!port.is_greeted());
    let hello = PortFrame::Hello { version: PORT_VERSION };
    assert_eq!(port.receive(hello), Ok(PortEvent::Nothing));
    assert!(port.is_greeted());
    assert_eq!(port.receive(hello), Err(PortError::NotAllowed), "a replay");
}

#[test]
fn each_side_accepts_only_what_the_other_has_a_reason_to_send() {
    let greeted = |side| {
        let mut port = Port::new(side);
        port.receive(PortFrame::Hello { version: PORT_VERSION }).unwrap();
        port
    };
    let pass = |stream, what| PortFrame::Pass { connection: 0, stream, what };
    let mut outer = greeted(Side::Outer);
    outer.open().unwrap();
    assert_eq!(outer.receive(PortFrame::Open { stream: 1 }), Err(PortError::NotAllowed));
    for what in [Passed::ReadEnd(USER), Passed::WriteEnd(USER), Passed::Null] {
        assert_eq!(outer.receive(pass(1, what)), Err(PortError::NotAllowed));
    }
    assert!(outer.receive(pass(1, Passed::Terminal(WINDOW))).is_ok());
    assert_eq!(outer.receive(pass(3, Passed::Terminal(WINDOW))), Err(PortError::TooMany));
    let mut outer = greeted(Side::Outer);
    outer.open().unwrap();
    assert_eq!(outer.receive(pass(3, Passed::Terminal(WINDOW))), Err(PortError::Number(3)));
    let mut inner = greeted(Side::Inner);
    assert!(inner.receive(PortFrame::Open { stream: 0 }).is_ok());
    assert_eq!(inner.receive(pass(2, Passed::Terminal(WINDOW))), Err(PortError::NotAllowed));
    for stream in [2, 4, 6] {
        assert!(inner.receive(pass(stream, Passed::ReadEnd(USER))).is_ok());
    }
    assert_eq!(inner.receive(pass(8, Passed::Null)), Err(PortError::TooMany));
    let over_pipe = PortFrame::Pass { connection: 2, stream: 8, what: Passed::Null };
    assert_eq!(inner.receive(over_pipe), Err(PortError::OutOfTurn(2)));
    let resize = PortFrame::Resize { stream: 2, window: WINDOW };
    assert_eq!(inner.receive(resize), Err(PortError::OutOfTurn(2)));
    let data = PortFrame::Data { stream: 2, bytes: &[0; WINDOW_FIRST as usize + 1] };
    assert_eq!(inner.receive(data), Err(PortError::Credit(2)));
}

/// Two ports that do random things, each in turn. Their frames arrive late.
struct Peers {
    random: Random,
    ports: [Port; 2],
    streams: Vec<StreamId>,
    /// The connection that was opened last, and how many pipes and terminals were passed over it.
    young: (StreamId, u64, u64),
}

const OUTER: usize = 0;
const INNER: usize = 1;

impl Peers {
    fn new(seed: u64) -> Self {
        let ports = [Port::new(Side::Outer), Port::new(Side::Inner)];
        let mut peers =
            Self { random: Random::seeded(seed), ports, streams: Vec::new(), young: (0, 9, 9) };
        [OUTER, INNER].into_iter().for_each(|from| peers.carry(from).unwrap());
        peers
    }

    /// One of the ports does something that is allowed.
    fn act(&mut self) {
        let side = self.random.below(2) as usize;
        let stream = match self.streams.as_slice() {
            [] => 0,
            streams => *self.random.pick(streams),
        };
        let length = 1 + self.random.below(20_000) as usize;
        let port = &mut self.ports[side];
        match self.random.below(16) {
            0 => {
                if let Some(stream) = self.ports[OUTER].open() {
                    self.young = (stream, 0, 0);
                    self.streams.push(stream);
                }
            }
            1 => self.pass_pipe(),
            2 => self.pass_terminal(),
            3 if self.random.once_in(4) => port.end(stream),
            4 if self.random.once_in(4) => port.stop(stream),
            5 => port.resize(stream, WINDOW),
            6..=8 => port.delivered(stream, 0),
            9..=13 => {
                let send = |buffer: &mut [u8]| Ok::<_, ()>(length.min(buffer.len()));
                port.send_data(stream, send).unwrap();
            }
            _ => {}
        }
    }

    fn pass_pipe(&mut self) {
        let pipes = [Passed::ReadEnd(USER), Passed::WriteEnd(USER), Passed::Null];
        let what = *self.random.pick(&pipes);
        if self.young.1 < 3
            && let Some(stream) = self.ports[OUTER].pass(self.young.0, what)
        {
            self.young.1 += 1;
            self.streams.push(stream);
        }
    }

    fn pass_terminal(&mut self) {
        if self.young.2 < 1
            && let Some(stream) = self.ports[INNER].pass(self.young.0, Passed::Terminal(WINDOW))
        {
            self.young.2 += 1;
            self.streams.push(stream);
        }
    }

    /// Passes everything that one has to send to the other, which delivers it at once.
    fn carry(&mut self, from: usize) -> Result<(), PortError> {
        let bytes = self.ports[from].output().to_vec();
        self.ports[from].wrote(bytes.len());
        let taken = receive(&mut self.ports[1 - from], &bytes, &mut |port, stream, length| {
            port.delivered(stream, length);
        })?;
        assert_eq!(taken, bytes.len(), "a port sends whole frames");
        Ok(())
    }

    /// Ends every stream that one of the ports knows.
    fn close_all(&mut self) {
        for port in &mut self.ports {
            for stream in &self.streams {
                port.end(*stream);
                port.stop(*stream);
            }
        }
    }
}

/// Returns how many bytes were whole frames.
fn receive(
    port: &mut Port,
    bytes: &[u8],
    deliver: &mut dyn FnMut(&mut Port, StreamId, usize),
) -> Result<usize, PortError> {
    let mut taken = 0;
    while let Some((frame, length)) = PortFrame::decode(&bytes[taken..])? {
        taken += length;
        if let PortEvent::Data { stream, bytes } = port.receive(frame)? {
            deliver(port, stream, bytes.len());
        }
    }
    Ok(taken)
}

#[test]
fn honest_peers_never_break_the_protocol_and_forget_every_stream() {
    let seed = shown_seed("TARE_SEED");
    for case in 0..200 {
        let mut peers = Peers::new(seed.wrapping_add(case));
        for _ in 0..400 {
            peers.act();
            if peers.random.once_in(3) {
                let from = peers.random.below(2) as usize;
                peers.carry(from).unwrap();
            }
        }
        for from in [OUTER, INNER, OUTER, INNER, OUTER, INNER] {
            peers.carry(from).unwrap();
            peers.close_all();
        }
        assert_eq!(peers.ports.each_ref().map(Port::streams), [0, 0], "case {case}");
        assert_eq!(peers.ports.each_ref().map(|port| port.spare_bytes()), [12 << 20; 2]);
    }
}

/// Damages the bytes of a peer: noise, other numbers, cuts, replays, and frames of its own.
fn tamper(random: &mut Random, bytes: &mut Vec<u8>) {
    let at = random.below(bytes.len() as u64 + 1) as usize;
    match random.below(6) {
        0 => bytes.extend((0..40).map(|_| random.number() as u8)),
        1 => bytes.truncate(at),
        2 => bytes.extend_from_within(at..),
        3 => drop(bytes.drain(at..)),
        _ if at == bytes.len() => {}
        4 => bytes[at] = random.number() as u8,
        _ => {
            let stream = random.below(64);
            let data = vec![0; 1 + random.below(DATA_BYTES_MAX as u64) as usize];
            let window = TerminalPlan { rows: random.number() as u16, columns: 1 };
            let pass = |what| PortFrame::Pass { connection: stream, stream: stream + 2, what };
            let frames = [
                PortFrame::Hello { version: PORT_VERSION },
                PortFrame::Open { stream },
                pass(Passed::ReadEnd(USER)),
                pass(Passed::Terminal(window)),
                PortFrame::Data { stream, bytes: &data },
                PortFrame::End { stream },
                PortFrame::Stop { stream },
                PortFrame::Credit { stream, bytes: random.below(1 << 20) as u32 },
                PortFrame::Resize { stream, window },
            ];
            random.pick(&frames).encode(bytes);
        }
    }
}

/// One peer that becomes hostile, until its first invalid frame or for a while. Returns whether it
/// was found out.
fn try_hostile(seed: u64) -> bool {
    let mut peers = Peers::new(seed);
    let victim = peers.random.below(2) as usize;
    let mut input = Vec::new();
    // Bytes that have arrived and that this side has not read: the memory that the peer can take.
    let mut waiting = 0;
    for _ in 0..300 {
        peers.act();
        if peers.random.once_in(3) {
            // The peer may not understand the answers any more.
            peers.carry(victim).ok();
        }
        let hostile = &mut peers.ports[1 - victim];
        let mut bytes = hostile.output().to_vec();
        hostile.wrote(bytes.len());
        if peers.random.once_in(100) {
            tamper(&mut peers.random, &mut bytes);
        }
        if !peers.ports[victim].may_receive() {
            continue;
        }
        input.extend(bytes);
        let random = &mut peers.random;
        let received = receive(&mut peers.ports[victim], &input, &mut |port, stream, length| {
            if random.once_in(2) {
                port.delivered(stream, length);
            } else {
                waiting += length;
            }
        });
        let Ok(taken) = received else { return true };
        input.drain(..taken);
        let port = &peers.ports[victim];
        assert!(input.len() < HEAD_BYTES + DATA_BYTES_MAX, "half a frame is one frame at most");
        assert!(port.streams() <= STREAMS_MAX);
        assert!(port.output().len() < 2 << 20, "{}", port.output().len());
        assert!(waiting < 24 << 20, "{waiting}");
    }
    false
}

/// `cargo xtask fuzz relay` runs this for longer.
#[test]
#[expect(clippy::print_stdout, reason = "for the reader of a long run")]
fn hostile_peers_get_an_error_and_no_memory() {
    let seed = shown_seed("TARE_SEED");
    let within = number_in("TARE_FUZZ_SECONDS").map(Duration::from_secs);
    let start = Instant::now();
    let (mut cases, mut found_out) = (0_u64, 0_u64);
    while within.map_or(cases < 700, |within| start.elapsed() < within) {
        found_out += u64::from(try_hostile(seed.wrapping_add(cases)));
        cases += 1;
    }
    println!("{cases} peers, {found_out} found out, seeds from {seed}");
    assert!(found_out > cases / 2 && found_out < cases * 99 / 100, "{found_out} of {cases}");
}
