//! Frames: a little-endian `u32` length, then that many bytes of postcard.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Arguments and environment dominate a plan, and `execve` takes about 2 MiB
/// of those in total (a quarter of the 8 MiB stack limit).
pub const PLAN_BYTES_MAX: usize = 4 << 20;
/// A call to start a process has arguments and environment too.
pub const CALL_BYTES_MAX: usize = PLAN_BYTES_MAX;
/// A request is one number at most.
pub const REQUEST_BYTES_MAX: usize = 64;
/// A report holds at most one path and one error.
pub const REPORT_BYTES_MAX: usize = 16 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameError {
    /// Longer than the limit of its kind; the length is what the sender claimed.
    TooLong(usize),
    /// The bytes are not a message of this kind.
    Malformed,
}

impl std::fmt::Display for FrameError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooLong(length) => write!(f, "a frame of {length} bytes is over the limit"),
            Self::Malformed => f.write_str("a frame that does not decode"),
        }
    }
}

impl std::error::Error for FrameError {}

/// One frame, ready to be written.
pub fn encode<M: Serialize>(message: &M, bytes_max: usize) -> Result<Vec<u8>, FrameError> {
    let mut frame = postcard::to_extend(message, vec![0; 4]).map_err(|_| FrameError::Malformed)?;
    let length = frame.len() - 4;
    if length > bytes_max {
        return Err(FrameError::TooLong(length));
    }
    let header = u32::try_from(length).map_err(|_| FrameError::TooLong(length))?;
    frame[..4].copy_from_slice(&header.to_le_bytes());
    Ok(frame)
}

/// The first whole frame in `bytes` with its length, `None` while it is incomplete.
pub fn decode<M: DeserializeOwned>(
    bytes: &[u8],
    bytes_max: usize,
) -> Result<Option<(M, usize)>, FrameError> {
    let Some((header, rest)) = bytes.split_first_chunk::<4>() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes(*header) as usize;
    if length > bytes_max {
        return Err(FrameError::TooLong(length));
    }
    let Some(body) = rest.get(..length) else {
        return Ok(None);
    };
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(Some((message, 4 + length))),
        Ok(_) | Err(_) => Err(FrameError::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Request;

    #[test]
    fn a_frame_survives_the_round_trip_and_waits_for_its_last_byte() {
        let frame = encode(&Request::Signal(15), REQUEST_BYTES_MAX).unwrap();
        for cut in 0..frame.len() {
            assert_eq!(decode::<Request>(&frame[..cut], REQUEST_BYTES_MAX), Ok(None));
        }
        assert_eq!(
            decode::<Request>(&frame, REQUEST_BYTES_MAX),
            Ok(Some((Request::Signal(15), frame.len())))
        );
    }

    /// A hostile keeper claims a frame of 4 GiB.
    #[test]
    fn a_claimed_length_over_the_limit_is_refused_before_anything_is_allocated() {
        let result = decode::<Request>(&[0xff; 8], REQUEST_BYTES_MAX);
        assert_eq!(result, Err(FrameError::TooLong(u32::MAX as usize)));
    }

    /// Every single-byte damage of a frame is an answer, never a panic.
    #[test]
    fn damaged_frames_never_panic() {
        let frame = encode(&Request::Signal(9), REQUEST_BYTES_MAX).unwrap();
        for at in 0..frame.len() {
            for value in 0..=255 {
                let mut damaged = frame.clone();
                damaged[at] = value;
                let _ = decode::<Request>(&damaged, REQUEST_BYTES_MAX);
            }
        }
    }

    #[test]
    fn bytes_after_the_message_inside_its_frame_are_malformed() {
        let mut frame = encode(&Request::Signal(15), REQUEST_BYTES_MAX).unwrap();
        frame.push(0);
        frame[0] += 1;
        assert_eq!(decode::<Request>(&frame, REQUEST_BYTES_MAX), Err(FrameError::Malformed));
    }
}
