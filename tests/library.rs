//! exec as a library call, and what a keeper that serves thousands of execs may cost.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use tare_engine::{BoxId, Engine, Error, Event, ExecSpec, Purpose, Stdin};
use tare_harness::{Tare, eventually};

/// The limits for an idle keeper.
pub const DESCRIPTORS_MAX: usize = 24;
pub const PRIVATE_BYTES_MAX: u64 = 400 << 10;
/// A page or two more or less is the allocator's business; a leak is more.
pub const GROWTH_BYTES_MAX: u64 = 32 << 10;

/// exec as a library call: no process of tare is started for it.
pub struct Library {
    engine: Engine,
    id: BoxId,
}

impl Library {
    pub fn open(tare: &Tare, id: &str) -> Self {
        let engine =
            Engine::open(Some(tare.state_root()), Purpose::Use).expect("the state root is ours");
        let id = engine.find(id).expect("the box is there");
        Self { engine, id }
    }

    #[track_caller]
    pub fn run(&self, command: &[&str]) -> u8 {
        let last = self.last_event(command);
        let Event::Ended(end) = last else {
            panic!("{last:?}");
        };
        end.code()
    }

    /// Checks that the command cannot start, and returns the error.
    #[track_caller]
    pub fn is_refused(&self, command: &[&str]) -> Error {
        let last = self.last_event(command);
        let Event::Failed(error) = last else {
            panic!("{last:?}");
        };
        error
    }

    #[track_caller]
    fn last_event(&self, command: &[&str]) -> Event {
        let spec = ExecSpec::of(command);
        let executed = self.engine.exec(&self.id, &spec, Stdin::Empty);
        let mut executed = executed.unwrap_or_else(|error| panic!("{error}"));
        loop {
            match executed.next_event() {
                Some(Event::Started) => {}
                Some(last) => return last,
                None => wait(executed.events_fd()),
            }
        }
    }
}

fn wait(fd: BorrowedFd<'_>) {
    let ten = Duration::from_secs(10).try_into().expect("small");
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let ready = poll(&mut fds, Some(&ten)).expect("a socket can be polled");
    assert_eq!(ready, 1, "the keeper does not answer");
}

/// Checks that the box has only the expected processes and no zombie.
#[track_caller]
pub fn assert_alone(tare: &Tare, id: &str, expected: usize) {
    eventually("the box has no other process", || {
        let members = tare.members(id);
        members.len() == expected && members.iter().all(|one| !one.is_zombie)
    });
}

/// How often memory may grow before it is called a leak. It grows without one when more clients
/// come at once than ever before.
const BATCHES_MAX: usize = 4;

/// Checks that one more batch of the same work costs the keeper no memory.
#[track_caller]
pub fn assert_growth_ends(tare: &Tare, id: &str, batch: impl Fn()) {
    let mut bytes = vec![tare.keeper_private_bytes(id)];
    let has_ended = (0..BATCHES_MAX).any(|at| {
        batch();
        bytes.push(tare.keeper_private_bytes(id));
        bytes[at + 1] <= bytes[at] + GROWTH_BYTES_MAX
    });
    assert!(has_ended, "the keeper's own bytes after each batch: {bytes:?}");
}

#[track_caller]
pub fn assert_cheap(tare: &Tare, id: &str) {
    eventually("an idle keeper has few descriptors", || {
        tare.keeper_descriptors(id) <= DESCRIPTORS_MAX
    });
    let bytes = tare.keeper_private_bytes(id);
    assert!(bytes <= PRIVATE_BYTES_MAX, "{bytes} bytes are the keeper's alone");
}
