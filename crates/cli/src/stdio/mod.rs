//! Bytes, signals and the terminal between a process in a box and the user of tare.
//!
//! This folder owns the poll loop of `run` and `exec`, and the parts that `attach` shares with it.
//! It never changes the flags of the user's descriptors, because other programs share the open
//! files behind them, and never passes these descriptors into a box.

mod copy;
mod endpoint;
mod pending;
mod relay;
mod signals;
mod terminal;

pub use crate::stdio::endpoint::{Endpoint, is_closed};
pub use crate::stdio::pending::PendingWriter;
pub use crate::stdio::relay::{Caller, Output, PastLimit, Relayed, Settings, Writers, relay};
pub use crate::stdio::signals::{
    SignalAction, action_for, asked_to_stop, asks_to_stop, stop_requested, take_over,
};
pub use crate::stdio::terminal::{RawMode, WINDOW_DEFAULT, callers_window, pass_window};
