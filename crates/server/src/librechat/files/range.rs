//! Which part of a file a request is for (RFC 9110, 14).

use axum::http::{HeaderMap, header};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    from: u64,
    /// The first byte that is not in it.
    until: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// Also for a range that is not understood, and for more than one.
    All,
    Part(Range),
    /// No byte of the file is in what was asked for.
    Nothing,
}

impl Range {
    pub fn all(size: u64) -> Self {
        Self { from: 0, until: size }
    }

    pub fn bytes(self) -> u64 {
        self.until - self.from
    }

    /// As `Content-Range` has it; it is never empty there.
    pub fn shown(self, size: u64) -> String {
        format!("bytes {}-{}/{size}", self.from, self.until.saturating_sub(1))
    }

    /// Its next bytes, at most so many; `None` after the last.
    pub fn take(&mut self, most: u64) -> Option<(u64, usize)> {
        let count = self.bytes().min(most);
        let from = self.from;
        self.from += count;
        let count = usize::try_from(count).ok()?;
        (count > 0).then_some((from, count))
    }
}

impl Wanted {
    pub fn of(headers: &HeaderMap, etag: &str, size: u64) -> Self {
        // Of another state than the client has, a part is of no use to it.
        let differs = headers.get(header::IF_RANGE).is_some_and(|it| it != etag);
        let range = headers.get(header::RANGE).and_then(|it| it.to_str().ok());
        match range {
            Some(range) if !differs => parsed(range, size).unwrap_or(Self::All),
            Some(_) | None => Self::All,
        }
    }
}

fn parsed(text: &str, size: u64) -> Option<Wanted> {
    let (first, last) = text.strip_prefix("bytes=")?.trim().split_once('-')?;
    let (from, until) = match (first, last) {
        ("", last) => (size.saturating_sub(number(last)?), size),
        (first, "") => (number(first)?, size),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            (last >= first).then_some((first, last.saturating_add(1).min(size)))?
        }
    };
    Some(if from < until { Wanted::Part(Range { from, until }) } else { Wanted::Nothing })
}

/// Digits alone.
fn number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_within_the_file_or_not_at_all() {
        let part = |from, until| Some(Wanted::Part(Range { from, until }));
        let of_ten = |text| parsed(text, 10);
        assert_eq!(of_ten("bytes=0-3"), part(0, 4));
        assert_eq!(of_ten("bytes=9-"), part(9, 10));
        assert_eq!(of_ten("bytes=-3"), part(7, 10));
        assert_eq!(of_ten("bytes=-30"), part(0, 10));
        assert_eq!(of_ten("bytes=5-99999999999999999999"), part(5, 10));
        for nothing in ["bytes=10-", "bytes=10-12", "bytes=-0"] {
            assert_eq!(of_ten(nothing), Some(Wanted::Nothing), "{nothing}");
        }
        for all in [
            "",
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=3-1",
            "bytes=0-1,3-4",
            "lines=0-1",
            "bytes=+1-2",
        ] {
            assert_eq!(of_ten(all), None, "{all}");
        }
        assert_eq!(parsed("bytes=0-", 0), Some(Wanted::Nothing));
    }
}
