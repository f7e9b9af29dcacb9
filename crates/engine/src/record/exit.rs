//! How a command ended, and the exit code for it.

use tare_control::EndedBy;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Code(u8),
    Signal(i32),
}

/// The exit code after a timeout and after a lease, as in `timeout(1)`.
const TIMED_OUT: u8 = 124;
const SIGNALLED: u8 = 128;

impl Exit {
    pub fn of(wait_status: i32) -> Self {
        match wait_status & 0x7f {
            0 => Self::Code(((wait_status >> 8) & 0xff) as u8),
            signal => Self::Signal(signal),
        }
    }

    pub fn code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => {
                u8::try_from(signal).map_or(u8::MAX, |signal| SIGNALLED.saturating_add(signal))
            }
        }
    }
}

/// Returns the exit code of a box.
pub fn code_of(wait_status: i32, by: EndedBy) -> u8 {
    match by {
        EndedBy::Timeout | EndedBy::Lease => TIMED_OUT,
        EndedBy::Command | EndedBy::Stop | EndedBy::Output | EndedBy::Kill => {
            Exit::of(wait_status).code()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_status_is_a_code_or_a_signal() {
        assert_eq!(Exit::of(0x2500), Exit::Code(37));
        assert_eq!(Exit::of(9), Exit::Signal(9));
        assert_eq!(Exit::of(0x8b), Exit::Signal(11), "a core dump is a signal too");
    }

    #[test]
    fn a_deadline_is_124_and_a_signal_128_and_its_number() {
        assert_eq!(code_of(9, EndedBy::Lease), 124);
        assert_eq!(code_of(9, EndedBy::Kill), 137);
        assert_eq!(code_of(15, EndedBy::Stop), 143);
        assert_eq!(code_of(0x2500, EndedBy::Command), 37);
    }
}
