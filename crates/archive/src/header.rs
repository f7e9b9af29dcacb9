//! The header of an entry, a block of 512 bytes, and the names of entries.
//!
//! Reads headers of POSIX (ustar), GNU tar and the seventh edition, and writes ustar. Fields
//! that tare does not use (owners, device numbers) are not read.

use std::ops::Range;

pub const BLOCK_BYTES: usize = 512;
pub type Block = [u8; BLOCK_BYTES];
pub const EMPTY: Block = [0; BLOCK_BYTES];

/// The longest name or link target that fits.
pub const NAME_BYTES_MAX: usize = 100;
/// The largest size that fits as eleven octal digits.
pub const SIZE_MAX: u64 = 0o77_777_777_777;

const NAME: Range<usize> = 0..100;
const MODE: Range<usize> = 100..108;
const OWNER: Range<usize> = 108..116;
const GROUP: Range<usize> = 116..124;
const SIZE: Range<usize> = 124..136;
const MTIME: Range<usize> = 136..148;
const CHECKSUM: Range<usize> = 148..156;
const TYPE: usize = 156;
const LINK: Range<usize> = 157..257;
const MAGIC: Range<usize> = 257..265;
const PREFIX: Range<usize> = 345..500;

/// The magic of POSIX; the two digits are the version.
const USTAR: &[u8] = b"ustar\x0000";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    File,
    HardLink,
    Symlink,
    CharacterDevice,
    BlockDevice,
    Directory,
    Fifo,
    /// pax: attributes of the next entry.
    Extended,
    /// pax: attributes of all entries that follow.
    Global,
    /// GNU: the name, or the link target, of the next entry.
    LongName,
    LongLink,
    /// GNU: a file with holes.
    Sparse,
    Unknown(u8),
}

impl Type {
    fn of(byte: u8) -> Self {
        match byte {
            // 0 is the seventh edition's, 7 is what POSIX calls contiguous.
            0 | b'0' | b'7' => Self::File,
            b'1' => Self::HardLink,
            b'2' => Self::Symlink,
            b'3' => Self::CharacterDevice,
            b'4' => Self::BlockDevice,
            b'5' => Self::Directory,
            b'6' => Self::Fifo,
            b'x' => Self::Extended,
            b'g' => Self::Global,
            b'L' => Self::LongName,
            b'K' => Self::LongLink,
            b'S' => Self::Sparse,
            other => Self::Unknown(other),
        }
    }

    fn byte(self) -> u8 {
        match self {
            Self::File => b'0',
            Self::HardLink => b'1',
            Self::Symlink => b'2',
            Self::CharacterDevice => b'3',
            Self::BlockDevice => b'4',
            Self::Directory => b'5',
            Self::Fifo => b'6',
            Self::Extended => b'x',
            Self::Global => b'g',
            Self::LongName => b'L',
            Self::LongLink => b'K',
            Self::Sparse => b'S',
            Self::Unknown(byte) => byte,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    pub name: Vec<u8>,
    pub kind: Type,
    /// The permission bits, without set-id and sticky bits.
    pub mode: u32,
    pub size: u64,
    pub mtime: i64,
    pub link: Vec<u8>,
}

impl Header {
    /// The error is a sentence about the header.
    pub fn decode(block: &Block) -> Result<Self, &'static str> {
        if number(&block[CHECKSUM]) != Some(checksum(block)) {
            return Err("a header's checksum is wrong");
        }
        let field = |range| number(&block[range]).ok_or("a header holds a number that is none");
        let size = u64::try_from(field(SIZE)?).map_err(|_| "a header holds a negative size")?;
        Ok(Self {
            name: full_name(block),
            kind: Type::of(block[TYPE]),
            mode: (field(MODE)? & 0o777) as u32,
            size,
            mtime: field(MTIME)?,
            link: text(&block[LINK]).to_vec(),
        })
    }

    /// Cuts what is too long; an extended header contains it in full.
    pub fn encode(&self) -> Block {
        let mut block = [0; BLOCK_BYTES];
        put_text(&mut block[NAME], &self.name);
        put_number(&mut block[MODE], i64::from(self.mode));
        put_number(&mut block[OWNER], 0);
        put_number(&mut block[GROUP], 0);
        put_number(&mut block[SIZE], self.size.cast_signed());
        put_number(&mut block[MTIME], self.mtime);
        block[TYPE] = self.kind.byte();
        put_text(&mut block[LINK], &self.link);
        block[MAGIC].copy_from_slice(USTAR);
        let sum = format!("{:06o}\0 ", checksum(&block));
        block[CHECKSUM].copy_from_slice(sum.as_bytes());
        block
    }
}

pub fn is_zeros(bytes: &[u8]) -> bool {
    // By the block, which is fast even without optimisation.
    bytes.chunks(BLOCK_BYTES).all(|chunk| chunk == &EMPTY[..chunk.len()])
}

/// GNU tar has times where POSIX has the prefix, and another magic.
fn full_name(block: &Block) -> Vec<u8> {
    let (prefix, name) = (text(&block[PREFIX]), text(&block[NAME]));
    if prefix.is_empty() || &block[MAGIC] != USTAR {
        return name.to_vec();
    }
    [prefix, b"/", name].concat()
}

/// The sum of all bytes, with blanks in place of the sum.
fn checksum(block: &Block) -> i64 {
    let sum = |range: &[u8]| range.iter().map(|byte| i64::from(*byte)).sum::<i64>();
    sum(block) - sum(&block[CHECKSUM]) + i64::from(b' ') * CHECKSUM.len() as i64
}

fn text(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|byte| *byte == 0);
    &field[..end.unwrap_or(field.len())]
}

fn put_text(field: &mut [u8], text: &[u8]) {
    let length = text.len().min(field.len());
    field[..length].copy_from_slice(&text[..length]);
}

/// Octal digits between blanks, or GNU's base 256 with the first bit set.
fn number(field: &[u8]) -> Option<i64> {
    if field[0] & 0x80 != 0 {
        return base_256(field);
    }
    let is_blank = |byte: &u8| *byte == b' ' || *byte == 0;
    let start = field.iter().position(|byte| *byte != b' ')?;
    let digits = &field[start..];
    let end = digits.iter().position(is_blank).unwrap_or(digits.len());
    if !digits[end..].iter().all(is_blank) {
        return None;
    }
    // `from_str_radix` accepts a sign; a header has none.
    let digits = str::from_utf8(&digits[..end]).ok()?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| i64::from_str_radix(digits, 8).ok())?
}

/// Two's complement, most significant byte first, without its topmost bit.
fn base_256(field: &[u8]) -> Option<i64> {
    let negative = field[0] & 0x40 != 0;
    let first = i64::from(field[0] & 0x3f) - if negative { 0x40 } else { 0 };
    field[1..]
        .iter()
        .try_fold(first, |value, byte| value.checked_mul(256)?.checked_add(i64::from(*byte)))
}

fn put_number(field: &mut [u8], value: i64) {
    let digits = format!("{value:0width$o}\0", width = field.len() - 1);
    if value >= 0 && digits.len() == field.len() {
        field.copy_from_slice(digits.as_bytes());
        return;
    }
    field.fill(if value < 0 { 0xff } else { 0 });
    let bytes = value.to_be_bytes();
    let start = field.len() - bytes.len();
    field[start..].copy_from_slice(&bytes);
    field[0] |= 0x80;
}

/// A checked name of an entry: components joined by single slashes, none of them empty, `.` or
/// `..`. It leads beneath the directory that it is used in, as long as no symlink is followed. A
/// name without components means that directory itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name(Vec<u8>);

impl Name {
    /// The error is a sentence about the entry, called "it".
    pub fn parse(raw: &[u8]) -> Result<Self, &'static str> {
        if raw.is_empty() {
            return Err("it has no name");
        }
        if raw.contains(&0) {
            return Err("its name holds a zero byte");
        }
        if raw[0] == b'/' {
            return Err("its name begins with a slash");
        }
        let mut joined = Vec::with_capacity(raw.len());
        for component in raw.split(|byte| *byte == b'/') {
            match component {
                b"" | b"." => continue,
                b".." => return Err("its name leads outside with '..'"),
                _ => {}
            }
            if !joined.is_empty() {
                joined.push(b'/');
            }
            joined.extend_from_slice(component);
        }
        Ok(Self(joined))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Splits off the last component. `None` for a name without components.
    pub fn split_last(&self) -> Option<(&[u8], &[u8])> {
        if self.0.is_empty() {
            return None;
        }
        match self.0.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => Some((&self.0[..slash], &self.0[slash + 1..])),
            None => Some((b"", &self.0)),
        }
    }

    /// Replaces the first component, which has to be `from`.
    pub fn with_top(&self, from: &[u8], to: &[u8]) -> Result<Self, &'static str> {
        match self.0.strip_prefix(from) {
            Some(rest) if !from.is_empty() && matches!(rest.first(), None | Some(b'/')) => {
                Self::parse(&[to, rest].concat())
            }
            Some(_) | None => Err("it is not part of what was asked for"),
        }
    }
}

/// Returns how many bytes of `path` are directories that `other` has in common with it.
pub fn shared_bytes(path: &[u8], other: &[u8]) -> usize {
    let equal = path.iter().zip(other).take_while(|(a, b)| a == b).count();
    let ends = |name: &[u8]| equal == name.len() || name[equal] == b'/';
    if ends(path) && ends(other) {
        return equal;
    }
    let slash = path[..equal].iter().rposition(|byte| *byte == b'/');
    slash.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            name: b"a/b".to_vec(),
            kind: Type::File,
            mode: 0o640,
            size: 12,
            mtime: 1_700_000_000,
            link: Vec::new(),
        }
    }

    #[test]
    fn a_header_survives_the_round_trip() {
        for (size, mtime) in [(0, 0), (SIZE_MAX, -1), (1 << 40, 1 << 40)] {
            let header = Header { size, mtime, ..header() };
            assert_eq!(Header::decode(&header.encode()), Ok(header));
        }
    }

    #[test]
    fn every_single_byte_of_damage_is_noticed() {
        let block = header().encode();
        for at in (0..BLOCK_BYTES).filter(|at| !CHECKSUM.contains(at)) {
            let mut damaged = block;
            damaged[at] ^= 0x10;
            assert!(Header::decode(&damaged).is_err(), "byte {at}");
        }
    }

    #[test]
    fn set_id_and_sticky_bits_are_not_read() {
        let header = Header { mode: 0o7755, ..header() };
        assert_eq!(Header::decode(&header.encode()).unwrap().mode, 0o755);
    }

    #[test]
    fn malformed_numbers_are_refused() {
        let numbers: [(&[u8], Option<i64>); 12] = [
            (b"0000644\0", Some(0o644)),
            (b"   644 \0", Some(0o644)),
            (b"77777777", Some(0o77_777_777)),
            (b"\x80\0\0\0\0\0\x01\0", Some(256)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xfe", Some(-2)),
            (b"        ", None),
            (b"\0\0\0\0\0\0\0\0", None),
            (b"0000648\0", None),
            (b"-000644\0", None),
            (b"+000644\0", None),
            (b"0644\x000644"[..8].as_ref(), None),
            (b"\xbf\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", None),
        ];
        for (field, value) in numbers {
            assert_eq!(number(field), value, "{}", field.escape_ascii());
        }
    }

    #[test]
    fn a_negative_size_is_refused() {
        let header = Header { size: u64::MAX, ..header() };
        assert!(Header::decode(&header.encode()).is_err());
    }

    #[test]
    fn dots_and_doubled_slashes_mean_nothing() {
        for raw in ["a/b", "./a/b", "a//b/", "a/./b/.", ".//a/b"] {
            assert_eq!(Name::parse(raw.as_bytes()).unwrap().as_bytes(), b"a/b");
        }
        assert_eq!(Name::parse(b"./").unwrap().split_last(), None);
    }

    #[test]
    fn names_that_lead_outside_are_refused() {
        let outside: [&[u8]; 8] =
            [b"", b"/", b"/etc", b"//etc", b"..", b"../a", b"a/../b", b"a\0b"];
        for raw in outside {
            assert!(Name::parse(raw).is_err(), "{}", raw.escape_ascii());
        }
        assert!(Name::parse(b"..a/b..").is_ok());
    }

    #[test]
    fn only_the_expected_top_is_renamed() {
        let rename = |name: &[u8]| Name::parse(name)?.with_top(b"a", b"c");
        assert_eq!(rename(b"a").unwrap().as_bytes(), b"c");
        assert_eq!(rename(b"./a/a").unwrap().as_bytes(), b"c/a");
        for other in ["b", "ab", "b/a", "."] {
            assert!(rename(other.as_bytes()).is_err(), "{other}");
        }
    }

    #[test]
    fn shared_directories_are_whole_components() {
        assert_eq!(shared_bytes(b"a/b", b"a/b/c"), 3);
        assert_eq!(shared_bytes(b"a/b/c", b"a/b"), 3);
        assert_eq!(shared_bytes(b"a/bc", b"a/bd"), 1);
        assert_eq!(shared_bytes(b"a/b", b"a/bc"), 1);
        assert_eq!(shared_bytes(b"ab", b"a"), 0);
        assert_eq!(shared_bytes(b"", b"a"), 0);
        assert_eq!(shared_bytes(b"a/b", b""), 0);
    }
}
