//! Which signals tare takes over, and what each means for the box.

use std::io;

use rustix::process::Signal;
use tare_engine::{Context as _, Error};
use tare_kernel::signals::SignalFd;

/// The signals that tare takes over while a box is attached.
const SIGNALS: [Signal; 7] = [
    Signal::INT,
    Signal::TERM,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::WINCH,
];

/// The signals that ask tare to stop.
const ASKING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

/// Returns a descriptor that is readable as soon as a signal asks tare to stop. Read the signals
/// only from the descriptor of [`take_over`].
pub fn stop_requested() -> Result<SignalFd, Error> {
    SignalFd::open(&ASKING.map(Signal::as_raw)).context(|| "cannot watch signals".to_owned())
}

/// Blocks these signals and returns a descriptor to read them from. Call it before there is a box:
/// afterwards no signal can end tare and leave the box.
pub fn take_over() -> Result<SignalFd, Error> {
    SignalFd::open(&SIGNALS.map(Signal::as_raw)).context(|| "cannot take over signals".to_owned())
}

/// Reaction of the relay's loop to a signal to tare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalAction {
    Forward,
    EndSession,
    Resize,
}

/// The first signal that asks to stop goes to the command, and the next one ends the session.
/// Signals that only inform always go to the command.
pub fn action_for(signal: i32, asked: Option<i32>) -> SignalAction {
    match Signal::from_named_raw(signal) {
        Some(Signal::WINCH) => SignalAction::Resize,
        Some(Signal::USR1 | Signal::USR2) => SignalAction::Forward,
        Some(_) | None if asked.is_some() => SignalAction::EndSession,
        Some(_) | None => SignalAction::Forward,
    }
}

/// Whether a signal asks to stop. The others only inform.
pub fn asks_to_stop(signal: i32) -> bool {
    !matches!(Signal::from_named_raw(signal), Some(Signal::WINCH | Signal::USR1 | Signal::USR2))
}

/// Reads all pending signals, up to the first one that asks to stop.
pub fn asked_to_stop(signals: &SignalFd) -> io::Result<Option<i32>> {
    while let Some(signal) = signals.next()? {
        if asks_to_stop(signal) {
            return Ok(Some(signal));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_signal_goes_to_the_command_and_the_second_ends_the_box() {
        for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
            let number = signal.as_raw();
            assert_eq!(action_for(number, None), SignalAction::Forward);
            assert_eq!(action_for(number, Some(2)), SignalAction::EndSession);
            assert!(asks_to_stop(number));
        }
        for signal in [Signal::USR1, Signal::USR2] {
            assert_eq!(action_for(signal.as_raw(), Some(2)), SignalAction::Forward);
            assert!(!asks_to_stop(signal.as_raw()));
        }
        assert_eq!(action_for(Signal::WINCH.as_raw(), Some(2)), SignalAction::Resize);
    }
}
