//! What the loop needs of the command that it stands between: one with a box of
//! its own, or one more in a box that is there.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use tare_engine::{Attached, Error, Event, Executed, Streams};

pub trait Session {
    /// The host's ends; empty when called again.
    fn streams(&mut self) -> Streams;
    /// Readable when [`Self::next_event`] has something to say.
    fn events_fd(&self) -> BorrowedFd<'_>;
    fn next_event(&mut self) -> Option<Event>;
    fn signal(&mut self, signal: i32) -> Result<(), Error>;
    fn kill(&self);
    /// How long until it should have ended by itself for its timeout.
    fn overdue_in(&self) -> Option<Duration>;
}

macro_rules! session {
    ($type:ty) => {
        impl Session for $type {
            fn streams(&mut self) -> Streams {
                <$type>::streams(self)
            }

            fn events_fd(&self) -> BorrowedFd<'_> {
                <$type>::events_fd(self)
            }

            fn next_event(&mut self) -> Option<Event> {
                <$type>::next_event(self)
            }

            fn signal(&mut self, signal: i32) -> Result<(), Error> {
                <$type>::signal(self, signal)
            }

            fn kill(&self) {
                <$type>::kill(self);
            }

            fn overdue_in(&self) -> Option<Duration> {
                <$type>::overdue_in(self)
            }
        }
    };
}

session!(Attached);
session!(Executed);
