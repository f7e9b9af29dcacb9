//! How the things of a box are written in a table.

use std::time::Duration;

use tare_engine::spec::bytes;
use tare_engine::spec::received::escaped;

/// What is not there.
pub const NOTHING: &str = "-";

/// `3s`, `5m`, `2h`, `3d`: whole units, rounded down.
pub fn time(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let units = [(86_400, "d"), (3_600, "h"), (60, "m")];
    let unit = units.iter().find(|(size, _)| seconds >= *size);
    match unit {
        Some((size, name)) => format!("{}{name}", seconds / size),
        None => format!("{seconds}s"),
    }
}

pub fn size(bytes: Option<u64>) -> String {
    bytes.map_or(NOTHING.to_owned(), bytes::show)
}

pub fn count(number: Option<u64>) -> String {
    number.map_or(NOTHING.to_owned(), |number| number.to_string())
}

pub fn text(text: Option<&str>) -> String {
    text.map_or(NOTHING.to_owned(), escaped)
}

/// A command as a shell would read it, on one line.
pub fn command(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    escaped(&words.join(" "))
}

fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(&byte);
    match !word.is_empty() && word.bytes().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_whole_units() {
        for (seconds, shown) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (3599, "59m"),
            (7200, "2h"),
            (86_399, "23h"),
            (3 * 86_400, "3d"),
        ] {
            assert_eq!(time(Duration::from_secs(seconds)), shown);
        }
    }

    #[test]
    fn a_command_can_be_pasted_into_a_shell() {
        let words = ["sh", "-c", "echo 'hi there'; ls", "", "a=b"].map(str::to_owned);
        assert_eq!(command(&words), r"sh -c 'echo '\''hi there'\''; ls' '' a=b");
    }

    /// B011
    #[test]
    fn a_command_cannot_disturb_the_terminal() {
        let words = ["printf", "\u{1b}[2J\n"].map(str::to_owned);
        assert_eq!(command(&words), "printf '\\u{1b}[2J\\n'");
    }
}
