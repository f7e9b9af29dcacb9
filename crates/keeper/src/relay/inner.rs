//! The relay of a machine's first process: it starts the keeper when the outer keeper says so, and
//! joins each connection to that keeper.
//!
//! ```text
//! connection 0  the machine's own: ToMachine, answered by a report
//! connection 1  the creator's socket of the keeper
//! all others    connections to the keeper's socket, as those of clients
//! ```
//!
//! The outer keeper opens connection 1 after the report that answers the start.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tare_control::port::{Side, ToMachine};
use tare_control::{Channel, GuestPlan, PLAN_BYTES_MAX, Received, Report, SetupStep};
use tare_kernel::clock::timespec;

use crate::relay::Relay;

/// The actions of the first process of a machine.
pub trait InnerMachine {
    /// Starts the keeper, and sends it its plan. Returns the creator's end of its socket.
    fn start(&mut self, guest: GuestPlan) -> io::Result<OwnedFd>;
    /// Connects to the keeper as a client does.
    fn connect(&mut self) -> io::Result<OwnedFd>;
    /// Writes everything to the shares that is not written yet.
    fn sync(&mut self);
    /// `now_ns` is the time of the host, in nanoseconds since 1970.
    fn set_clock(&mut self, now_ns: u64);
    /// Sets how many processes the box may have.
    fn set_pids(&mut self, pids: u32);
}

/// Relays until the outer keeper closes the first connection. An error says that the port failed.
pub fn serve(port: OwnedFd, machine: &mut impl InnerMachine) -> io::Result<()> {
    let mut relay = Relay::new(port, Side::Inner)?;
    let mut joins = Joins::default();
    while !joins.is_over {
        wait(&relay, joins.own.as_ref())?;
        relay.turn_accepting(&mut || joins.accept(machine)).map_err(io::Error::other)?;
        joins.obey(machine);
        // The answers of this turn.
        relay.turn_accepting(&mut || joins.accept(machine)).map_err(io::Error::other)?;
    }
    Ok(())
}

/// The connections that are joined to something of this process.
#[derive(Debug, Default)]
struct Joins {
    accepted: u64,
    own: Option<Channel>,
    /// The creator's socket of the keeper, until the outer side opens connection 1.
    creator: Option<OwnedFd>,
    is_over: bool,
}

impl Joins {
    /// Returns the socket for the next connection.
    fn accept(&mut self, machine: &mut impl InnerMachine) -> io::Result<OwnedFd> {
        self.accepted += 1;
        match self.accepted {
            1 => {
                let (ours, theirs) = UnixStream::pair()?;
                ours.set_nonblocking(true)?;
                self.own = Some(Channel::new(ours.into()));
                Ok(theirs.into())
            }
            2 => self.creator.take().ok_or_else(|| Errno::NOTCONN.into()),
            _ => machine.connect(),
        }
    }

    /// Carries out what the outer keeper asks of the machine.
    fn obey(&mut self, machine: &mut impl InnerMachine) {
        let Some(own) = &mut self.own else { return };
        loop {
            let report = match own.receive(PLAN_BYTES_MAX) {
                Received::Message(ToMachine::Start(guest)) => match machine.start(*guest) {
                    Ok(creator) => {
                        self.creator = Some(creator);
                        Report::Done
                    }
                    Err(error) => Report::SetupFailed {
                        step: SetupStep::Root,
                        subject: error.to_string(),
                        errno: error.raw_os_error().unwrap_or(0),
                    },
                },
                Received::Message(ToMachine::Sync) => {
                    machine.sync();
                    Report::Done
                }
                Received::Message(ToMachine::SetClock { now_ns }) => {
                    machine.set_clock(now_ns);
                    Report::Done
                }
                Received::Message(ToMachine::SetPids(pids)) => {
                    machine.set_pids(pids);
                    Report::Done
                }
                Received::Nothing => return,
                Received::Closed => {
                    self.is_over = true;
                    return;
                }
            };
            own.report(&report);
        }
    }
}

/// Waits until there is something to do.
fn wait(relay: &Relay, own: Option<&Channel>) -> io::Result<()> {
    let own = own.map(|own| (own.as_fd(), PollFlags::IN));
    let polled = relay.interests().chain(own);
    let mut polled: Vec<_> =
        polled.map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)).collect();
    let timeout = relay.next_look().map(timespec);
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
