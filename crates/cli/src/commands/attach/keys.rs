//! The keys that leave a box: Ctrl-P, then Ctrl-Q, as in other tools.

const FIRST: u8 = 0x10;
const SECOND: u8 = 0x11;

/// Input of the user, in which the keys that leave are searched for.
#[derive(Debug, Default)]
pub struct Keys {
    /// The first key was typed, and waits for what follows it.
    held: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Typed {
    Bytes(Vec<u8>),
    Leave,
}

impl Keys {
    /// Returns the bytes for the box. If the second key does not follow the first one, the first one
    /// goes to the box too.
    pub fn pass(&mut self, bytes: &[u8]) -> Typed {
        let mut passed = Vec::with_capacity(bytes.len() + 1);
        for byte in bytes {
            match (self.held, *byte) {
                (true, SECOND) => return Typed::Leave,
                (true, FIRST) => passed.push(FIRST),
                (true, other) => {
                    passed.extend([FIRST, other]);
                    self.held = false;
                }
                (false, FIRST) => self.held = true,
                (false, other) => passed.push(other),
            }
        }
        Typed::Bytes(passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Typed {
        Typed::Bytes(text.as_bytes().to_vec())
    }

    #[test]
    fn the_two_keys_leave_however_they_arrive() {
        let mut keys = Keys::default();
        assert_eq!(keys.pass(b"ls\x10"), bytes("ls"));
        assert_eq!(keys.pass(b"\x11"), Typed::Leave);
        assert_eq!(Keys::default().pass(b"\x10\x10\x11"), Typed::Leave);
    }

    #[test]
    fn one_of_them_is_for_the_box() {
        let mut keys = Keys::default();
        assert_eq!(keys.pass(b"\x11a\x10"), bytes("\x11a"));
        assert_eq!(keys.pass(b"b\x11"), bytes("\x10b\x11"));
        assert_eq!(keys.pass(b"\x10\x10x"), bytes("\x10\x10x"));
    }
}
