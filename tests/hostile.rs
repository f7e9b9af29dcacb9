//! Hostile peers on a box's socket, each as hostile as the kernel allows.

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tare_control::{
    CALL_BYTES_MAX, Call, Exec, ExecStreams, Identity, PROTOCOL, Program, REQUEST_BYTES_MAX,
    Request, TerminalPlan, Versioned, encode,
};

use tare_harness::Random;

/// Where the socket of a box is.
#[derive(Debug)]
pub struct Peer {
    control: PathBuf,
}

/// Connections that an attack keeps open until the box has answered another client.
pub type Held = Vec<UnixStream>;

/// Shuts the connections down, also for other holders.
pub fn hang_up(held: &Held) {
    for connection in held {
        // The keeper may have been faster.
        connection.shutdown(Shutdown::Both).ok();
    }
}

pub type Attack = (&'static str, fn(&Peer) -> Held);

pub const ATTACKS: [Attack; 22] = [
    ("a connection that says nothing", |peer| vec![peer.connect()]),
    ("a hundred that say nothing", |peer| (0..100).map(|_| peer.connect()).collect()),
    ("a hundred that say half a frame", |peer| {
        (0..100).map(|_| peer.say(&half_a_frame())).collect()
    }),
    ("a hundred that are almost done with a large one", |peer| {
        let most = [&large()[..], &vec![0; CALL_BYTES_MAX - 1]].concat();
        (0..100).map(|_| peer.try_say(&most)).collect()
    }),
    ("a hundred that say a large one in turn", |peer| {
        let all: Held = (0..100).map(|_| peer.say(&large())).collect();
        for _ in 0..16 {
            for mut one in &all {
                // The keeper must not hang up because of this.
                one.write_all(&[0; 4 << 10]).expect("it listens");
            }
        }
        all
    }),
    ("a length of 4 GiB", |peer| vec![peer.say(&[0xff; 64])]),
    ("a frame of nothing", |peer| vec![peer.say(&[0; 64])]),
    ("unknown values", |peer| {
        // One of the others is to pause the box, which is a wish like any other.
        let unknown = 7..=255;
        unknown.map(|kind| peer.say(&[1, 0, 0, 0, kind])).collect()
    }),
    ("half a frame and the end", |peer| {
        drop(peer.say(&half_a_frame()));
        Vec::new()
    }),
    ("too few and too many descriptors", |peer| {
        [0, 1, 2, 4, 64, 253].map(|count| peer.pass(count)).into()
    }),
    ("descriptors of directories", |peer| {
        let root = std::fs::File::open("/").expect("it is there");
        vec![peer.send(&frame(&Call::Exec(command(&["true"]))), &[root.as_fd(); 3])]
    }),
    ("a descriptor with every byte", |peer| {
        let (mine, theirs) = UnixStream::pair().expect("a descriptor is left");
        let connection = peer.connect();
        for byte in frame(&Call::Exec(command(&["true"]))) {
            // It hangs up in between, which is as good as any answer.
            send_with(&connection, &[byte], &[mine.as_fd(), theirs.as_fd()]).ok();
        }
        vec![connection]
    }),
    ("no arguments", |peer| vec![peer.exec(command(&[]))]),
    ("strings with nothing and with NUL in them", |peer| {
        let strange = Exec {
            env: vec![vec![], vec![0], b"=".to_vec(), b"A\0B=C".to_vec()],
            workdir: Some(b"\0".to_vec()),
            ..command(&["", "\0"])
        };
        vec![peer.exec(strange), peer.exec(command(&[""]))]
    }),
    ("absurd times, sizes, ids and paths", absurd),
    ("requests without an end", |peer| {
        let connection = peer.exec(command(&["sleep", "1000"]));
        let flood = connection.try_clone().expect("a descriptor is left");
        std::thread::spawn(move || flood_requests(flood));
        vec![connection]
    }),
    ("a client that never reads", |peer| {
        let own = |program| Exec { program, ..command(&[]) };
        let pack = own(Program::Pack(b"/usr/bin".to_vec()));
        let unpack = own(Program::Unpack(b"/work".to_vec()));
        vec![peer.exec(pack), peer.exec(unpack), peer.exec(command(&["yes"]))]
    }),
    ("a process that would not need its client", |peer| {
        let mut held = Vec::new();
        for _ in 0..100 {
            let own = Exec {
                streams: ExecStreams::Log { keep_stdin: true },
                timeout_ns: Some(0),
                ..command(&["sleep", "1000"])
            };
            held.push(peer.exec(own));
        }
        held
    }),
    ("the streams of the box's own command", |peer| {
        let own = Exec { streams: ExecStreams::Inherited, ..command(&["sleep", "1000"]) };
        vec![peer.exec(own)]
    }),
    ("a call of another version", |peer| {
        let mut call = frame(&Call::Usage);
        call[4] = PROTOCOL + 1;
        vec![peer.say(&call)]
    }),
    ("a hundred thousand variables", |peer| {
        let env = (0..100_000).map(|number| format!("V{number}={number}").into_bytes());
        let large = Exec { env: env.collect(), ..command(&["true"]) };
        vec![peer.exec(large)]
    }),
    ("four million empty variables and arguments", |peer| {
        let empty = |count| vec![Vec::new(); count];
        let many = Exec {
            env: empty(2_000_000),
            program: Program::Command(empty(2_000_000)),
            ..command(&["true"])
        };
        vec![peer.exec(many)]
    }),
];

fn absurd(peer: &Peer) -> Held {
    let mut held = Vec::new();
    for (rows, columns) in [(0, 0), (u16::MAX, u16::MAX)] {
        let streams = ExecStreams::Terminal(TerminalPlan { rows, columns });
        held.push(peer.exec(Exec { streams, ..command(&["true"]) }));
    }
    for timeout_ns in [Some(0), Some(u64::MAX)] {
        held.push(peer.exec(Exec { timeout_ns, ..command(&["true"]) }));
    }
    for uid in [u32::MAX, u32::MAX - 1, 0x7fff_ffff] {
        let identity = Some(Identity { uid, gid: uid });
        held.push(peer.exec(Exec { identity, ..command(&["true"]) }));
    }
    for signal in [i32::MIN, -1, 0, 65, i32::MAX] {
        held.push(peer.say(&frame(&Call::Signal(signal))));
        let connection = peer.exec(command(&["true"]));
        let request = encode(&Request::Signal(signal), REQUEST_BYTES_MAX).expect("small");
        (&connection).write_all(&request).ok();
        held.push(connection);
    }
    held.push(peer.say(&frame(&Call::Lease { ends_ns: Some(u64::MAX) })));
    let long = vec![b'/'; 100_000];
    for program in [Program::Pack(long.clone()), Program::Unpack(long), Program::Pack(vec![0])] {
        held.push(peer.exec(Exec { program, ..command(&[]) }));
    }
    held
}

impl Peer {
    pub fn of(control: &Path) -> Self {
        let control = control.to_owned();
        Self { control }
    }

    fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.control).expect("the keeper listens")
    }

    fn say(&self, bytes: &[u8]) -> UnixStream {
        self.send(bytes, &[])
    }

    /// Sends as many bytes as the socket accepts without blocking.
    fn try_say(&self, bytes: &[u8]) -> UnixStream {
        let mut connection = self.connect();
        let soon = Some(Duration::from_millis(1));
        connection.set_write_timeout(soon).expect("a small time");
        // The keeper may have enough of it.
        connection.write_all(bytes).ok();
        connection
    }

    fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> UnixStream {
        let connection = self.connect();
        send_with(&connection, bytes, fds).expect("it takes the beginning");
        connection
    }

    /// As many descriptors as that; a process that is started is not waited for.
    fn pass(&self, count: usize) -> UnixStream {
        let null = std::fs::File::open("/dev/null").expect("it is there");
        let call = frame(&Call::Exec(command(&["true"])));
        self.send(&call, &vec![null.as_fd(); count])
    }

    /// Sends a complete call with three descriptors that are never read.
    pub fn exec(&self, exec: Exec) -> UnixStream {
        let (mine, theirs) = UnixStream::pair().expect("a descriptor is left");
        let frame = frame(&Call::Exec(exec));
        let mut connection = self.connect();
        let theirs = [theirs.as_fd(); 3];
        let sent = send_with(&connection, &frame, &theirs).expect("it takes the beginning");
        let patience = Some(Duration::from_secs(5));
        connection.set_write_timeout(patience).expect("a small time");
        // It may be refused before its end.
        connection.write_all(&frame[sent..]).ok();
        drop(mine);
        connection
    }
}

/// As many descriptors as the kernel takes at once (SCM_MAX_FD of unix(7)).
const FDS_MAX: usize = 253;

fn send_with(
    connection: &UnixStream,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    let bytes = [IoSlice::new(bytes)];
    sendmsg(connection, &bytes, &mut control, SendFlags::NOSIGNAL)
}

fn frame(call: &Call) -> Vec<u8> {
    encode(&Versioned::new(call), CALL_BYTES_MAX).expect("it is not too large")
}

fn half_a_frame() -> Vec<u8> {
    let whole = frame(&Call::Exec(command(&["sleep", "1000"])));
    whole[..whole.len() / 2].to_vec()
}

/// The head of a frame as large as one may be.
fn large() -> [u8; 4] {
    u32::try_from(CALL_BYTES_MAX).expect("small").to_le_bytes()
}

pub fn command(words: &[&str]) -> Exec {
    let words = words.iter().map(|word| word.as_bytes().to_vec());
    Exec {
        program: Program::Command(words.collect()),
        env: Vec::new(),
        workdir: None,
        identity: None,
        streams: ExecStreams::Passed,
        timeout_ns: None,
    }
}

/// As fast as it goes, until the connection is closed.
fn flood_requests(mut connection: UnixStream) {
    let request = encode(&Request::Signal(0), REQUEST_BYTES_MAX).expect("small");
    let many = request.repeat(10_000);
    while connection.write_all(&many).is_ok() {}
}

/// Frames whose every byte is random, but whose length is often right.
pub fn nonsense(control: &Path, mut random: Random, rounds: u32) {
    for _ in 0..rounds {
        let Ok(mut connection) = UnixStream::connect(control) else {
            continue;
        };
        let length = random.below(300) as usize;
        let mut bytes: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
        if let (Some(head), true) = (bytes.first_chunk_mut::<4>(), random.below(4) > 0) {
            *head = u32::try_from(length - 4).expect("small").to_le_bytes();
        }
        // The right version, so that the rest is read.
        if let (Some(version), true) = (bytes.get_mut(4), random.below(8) > 0) {
            *version = PROTOCOL;
        }
        // Never a call that ends, stops or pauses the box.
        if matches!(bytes.get(5), Some(1..=3 | 6)) {
            bytes[5] = 0;
        }
        connection.write_all(&bytes).ok();
        let soon = Some(Duration::from_millis(1));
        connection.set_read_timeout(soon).expect("a small time");
        // Whatever it answers, if it does.
        connection.read_exact(&mut [0]).ok();
    }
}
