//! Extended headers: records of the form `LENGTH KEY=VALUE\n`, where LENGTH is the length of the
//! whole record.

/// The records that tare uses. Others are ignored, as the format requires.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Records {
    pub path: Option<Vec<u8>>,
    pub link: Option<Vec<u8>>,
    pub size: Option<u64>,
    /// Whole seconds.
    pub mtime: Option<i64>,
    /// Whether they describe a file with holes, in one of the three forms of GNU tar.
    pub sparse: bool,
}

const MALFORMED: &str = "an extended header is malformed";
const TWICE: &str = "an extended header says something twice";

impl Records {
    pub fn decode(mut bytes: &[u8]) -> Result<Self, &'static str> {
        let mut records = Self::default();
        while !bytes.is_empty() {
            let (key, value, rest) = split_record(bytes).ok_or(MALFORMED)?;
            records.take(key, value)?;
            bytes = rest;
        }
        Ok(records)
    }

    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), &'static str> {
        match key {
            b"path" => once(&mut self.path, value.to_vec()),
            b"linkpath" => once(&mut self.link, value.to_vec()),
            b"size" => once(&mut self.size, size(value).ok_or(MALFORMED)?),
            b"mtime" => once(&mut self.mtime, seconds(value).ok_or(MALFORMED)?),
            _ => {
                self.sparse |= key.starts_with(b"GNU.sparse.");
                Ok(())
            }
        }
    }

    /// Adds the records of another header of the same entry. An error if both have a record:
    /// programs differ in which one they use.
    pub fn merge(&mut self, other: Self) -> Result<(), &'static str> {
        if let Some(path) = other.path {
            once(&mut self.path, path)?;
        }
        if let Some(link) = other.link {
            once(&mut self.link, link)?;
        }
        if let Some(size) = other.size {
            once(&mut self.size, size)?;
        }
        if let Some(mtime) = other.mtime {
            once(&mut self.mtime, mtime)?;
        }
        self.sparse |= other.sparse;
        Ok(())
    }
}

fn once<T>(slot: &mut Option<T>, value: T) -> Result<(), &'static str> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(TWICE),
    }
}

/// Splits off the first record, and returns its key, its value and the rest.
fn split_record(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let blank = bytes.iter().position(|byte| *byte == b' ')?;
    let length = usize::try_from(size(&bytes[..blank])?).ok()?;
    let (record, rest) = bytes.split_at_checked(length)?;
    let body = record.get(blank + 1..)?.strip_suffix(b"\n")?;
    let equals = body.iter().position(|byte| *byte == b'=')?;
    Some((&body[..equals], &body[equals + 1..], rest))
}

/// Parses a size: digits only, and at most the largest size of a file.
fn size(text: &[u8]) -> Option<u64> {
    let value: u64 = if text.iter().all(u8::is_ascii_digit) {
        str::from_utf8(text).ok()?.parse().ok()?
    } else {
        return None;
    };
    (value <= i64::MAX.unsigned_abs()).then_some(value)
}

/// Parses seconds such as `-12.345`, without the fraction.
fn seconds(text: &[u8]) -> Option<i64> {
    str::from_utf8(text).ok()?.split('.').next()?.parse().ok()
}

/// Appends one record.
pub fn put_record(records: &mut Vec<u8>, key: &str, value: &[u8]) {
    let rest = key.len() + value.len() + " =\n".len();
    let mut length = rest;
    // The length includes its own digits: one more digit may need one more again.
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    records.extend_from_slice(format!("{length} {key}=").as_bytes());
    records.extend_from_slice(value);
    records.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_counts_its_own_length() {
        for length in (0..1200).chain([9_980, 99_975, 99_990]) {
            let mut bytes = Vec::new();
            let value = vec![b'\n'; length];
            put_record(&mut bytes, "path", &value);
            put_record(&mut bytes, "size", b"7");
            let records = Records::decode(&bytes).unwrap();
            assert_eq!((records.path, records.size), (Some(value), Some(7)));
        }
    }

    #[test]
    fn malformed_records_are_refused() {
        let malformed: [&[u8]; 11] = [
            b"x",
            b"5 a=b",
            b"6 a=b\n!",
            b"99 a=b\n",
            b"0 a=b\n",
            b"2 a=b\n",
            b"-6 a=b\n",
            b"5 ab\n",
            b"18446744073709551616 a=b\n",
            b"11 size=-1\n",
            b"28 size=9223372036854775808\n",
        ];
        for bytes in malformed {
            assert!(Records::decode(bytes).is_err(), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn saying_something_twice_is_refused() {
        assert_eq!(Records::decode(b"9 size=1\n9 size=2\n"), Err(TWICE));
        let mut records = Records::decode(b"9 size=1\n").unwrap();
        let again = Records::decode(b"9 size=1\n").unwrap();
        assert_eq!(records.merge(again), Err(TWICE));
    }

    #[test]
    fn times_have_fractions_and_signs() {
        assert_eq!(seconds(b"1700000000.25"), Some(1_700_000_000));
        assert_eq!(seconds(b"-5"), Some(-5));
        assert_eq!(seconds(b""), None);
    }
}
