//! Signals as people write them: `HUP`, `SIGHUP`, `sighup`, `1`.

use rustix::process::Signal;

use crate::error::Error;
use crate::spec::received::{bad, quoted};

/// The last of the real-time signals (signal(7)).
const NUMBER_MAX: i32 = 64;

const NAMES: [(&str, Signal); 31] = [
    ("HUP", Signal::HUP),
    ("INT", Signal::INT),
    ("QUIT", Signal::QUIT),
    ("ILL", Signal::ILL),
    ("TRAP", Signal::TRAP),
    ("ABRT", Signal::ABORT),
    ("BUS", Signal::BUS),
    ("FPE", Signal::FPE),
    ("KILL", Signal::KILL),
    ("USR1", Signal::USR1),
    ("SEGV", Signal::SEGV),
    ("USR2", Signal::USR2),
    ("PIPE", Signal::PIPE),
    ("ALRM", Signal::ALARM),
    ("TERM", Signal::TERM),
    ("STKFLT", Signal::STKFLT),
    ("CHLD", Signal::CHILD),
    ("CONT", Signal::CONT),
    ("STOP", Signal::STOP),
    ("TSTP", Signal::TSTP),
    ("TTIN", Signal::TTIN),
    ("TTOU", Signal::TTOU),
    ("URG", Signal::URG),
    ("XCPU", Signal::XCPU),
    ("XFSZ", Signal::XFSZ),
    ("VTALRM", Signal::VTALARM),
    ("PROF", Signal::PROF),
    ("WINCH", Signal::WINCH),
    ("IO", Signal::IO),
    ("PWR", Signal::POWER),
    ("SYS", Signal::SYS),
];

/// As the kernel's headers call it, `SIGTERM`; those without a name by their number.
pub fn name(number: i32) -> String {
    let found = NAMES.iter().find(|(_, signal)| signal.as_raw() == number);
    match found {
        Some((name, _)) => format!("SIG{name}"),
        None => format!("SIG{number}"),
    }
}

/// The number of a signal.
pub fn parse(text: &str) -> Result<i32, Error> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = if digits {
        text.parse().ok().filter(|number| (1..=NUMBER_MAX).contains(number))
    } else {
        named(text)
    };
    number.ok_or_else(|| {
        bad(
            format!("{} is not a signal", quoted(text)),
            "write a name such as TERM or SIGHUP, or a number from 1 to 64",
        )
    })
}

fn named(text: &str) -> Option<i32> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let found = NAMES.iter().find(|(known, _)| *known == name);
    found.map(|(_, signal)| signal.as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_has_a_name_with_and_without_sig_and_a_number() {
        for text in ["TERM", "SIGTERM", "term", "sigterm", "15"] {
            assert_eq!(parse(text).unwrap(), 15, "{text}");
        }
        assert_eq!(parse("64").unwrap(), 64);
    }

    #[test]
    fn names_are_in_the_order_of_their_numbers() {
        let numbers = NAMES.iter().map(|(_, signal)| signal.as_raw());
        assert!(numbers.eq(1..=31));
    }

    #[test]
    fn what_is_not_a_signal_is_refused() {
        for text in ["", "0", "65", "-9", "+9", "SIG", "SIGSIGTERM", "NOPE", "9.0"] {
            let error = parse(text).unwrap_err();
            assert!(error.to_string().ends_with("is not a signal"), "{error}");
            assert!(error.hint().is_some());
        }
    }
}
