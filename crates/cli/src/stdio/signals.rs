//! What a signal to tare means for its box.

use std::io;

use rustix::process::Signal;
use tare_engine::{Context as _, Error};
use tare_kernel::signals::SignalFd;

/// What tare takes over from its own process while a box is attached.
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

/// Readable as soon as a signal asks tare to stop. Only [`take_over`]'s descriptor is read.
pub fn stop_requested() -> Result<SignalFd, Error> {
    SignalFd::open(&ASKING.map(Signal::as_raw)).context(|| "cannot watch signals".to_owned())
}

/// Before there is anything that a signal could end tare without.
pub fn take_over() -> Result<SignalFd, Error> {
    SignalFd::open(&SIGNALS.map(Signal::as_raw)).context(|| "cannot take over signals".to_owned())
}

/// What the loop does about a signal to tare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalAction {
    Forward,
    EndSession,
    Resize,
}

/// The first signal that asks to stop goes to the command, the next one ends
/// the box; what only informs always goes to the command.
pub fn action_for(signal: i32, asked: Option<i32>) -> SignalAction {
    match Signal::from_named_raw(signal) {
        Some(Signal::WINCH) => SignalAction::Resize,
        Some(Signal::USR1 | Signal::USR2) => SignalAction::Forward,
        Some(_) | None if asked.is_some() => SignalAction::EndSession,
        Some(_) | None => SignalAction::Forward,
    }
}

/// Whether it asks to stop, as opposed to telling something.
pub fn asks_to_stop(signal: i32) -> bool {
    !matches!(Signal::from_named_raw(signal), Some(Signal::WINCH | Signal::USR1 | Signal::USR2))
}

/// The first of the signals that have come that asks to stop.
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
