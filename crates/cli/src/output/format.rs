//! How a table shows times, sizes, commands and missing values.

use std::time::Duration;

use tare_engine::spec::quantity;

/// The cell of a value that does not exist.
pub const EMPTY_CELL: &str = "-";

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

/// Like [`time`], but rounded up: a new lease of two hours shows as `2h`.
pub fn time_left(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let units = [(86_400, "d"), (3_600, "h"), (60, "m")];
    let unit = units.iter().find(|(size, _)| seconds + size / 60 >= *size);
    match unit {
        Some((size, name)) => format!("{}{name}", seconds.div_ceil(*size)),
        None => format!("{seconds}s"),
    }
}

/// A size with at most one decimal, rounded.
pub fn size(bytes: Option<u64>) -> String {
    let Some(bytes) = bytes else {
        return EMPTY_CELL.to_owned();
    };
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.iter().find(|(shift, _)| bytes >> shift > 0) {
        Some((shift, name)) => {
            let tenths = (u128::from(bytes) * 10 + (1 << (shift - 1))) >> shift;
            match tenths % 10 {
                0 => format!("{} {name}", tenths / 10),
                decimal => format!("{}.{decimal} {name}", tenths / 10),
            }
        }
        None => quantity::show_bytes(bytes),
    }
}

pub fn count(number: Option<u64>) -> String {
    number.map_or(EMPTY_CELL.to_owned(), |number| number.to_string())
}

/// `1 box`, `2 boxes`.
pub fn plural(count: usize, one: &str, several: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        other => format!("{other} {several}"),
    }
}

pub fn text(text: Option<&str>) -> String {
    text.unwrap_or(EMPTY_CELL).to_owned()
}

/// A command as a shell would read it.
pub fn command(words: &[String]) -> String {
    if words.is_empty() {
        return EMPTY_CELL.to_owned();
    }
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
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
    fn the_rest_of_a_lease_is_rounded_up() {
        for (seconds, shown) in
            [(0, "0s"), (59, "1m"), (61, "2m"), (7199, "2h"), (86_399, "1d"), (86_401, "2d")]
        {
            assert_eq!(time_left(Duration::from_secs(seconds)), shown, "{seconds}");
        }
    }

    #[test]
    fn sizes_have_one_decimal_at_most() {
        for (bytes, shown) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1024, "1 KiB"),
            (13_434_880, "12.8 MiB"),
            (512 << 20, "512 MiB"),
        ] {
            assert_eq!(size(Some(bytes)), shown);
        }
        assert_eq!(size(None), "-");
    }

    #[test]
    fn a_command_can_be_pasted_into_a_shell() {
        let words = ["sh", "-c", "echo 'hi there'; ls", "", "a=b"].map(str::to_owned);
        assert_eq!(command(&words), r"sh -c 'echo '\''hi there'\''; ls' '' a=b");
    }
}
